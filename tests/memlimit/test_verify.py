"""Verdict of the proof: held, broken or not tried."""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from typing import Any

import pytest

from gpucheck.drivers.cupy.install import install_cupy
from gpucheck.drivers.python import limit_proof_child
from gpucheck.drivers.python.frameworks import Software
from gpucheck.drivers.python.interpreters import OtherPythonError
from gpucheck.drivers.readings import CudaDeviceReading, CudaReading
from gpucheck.memlimit.model import GpuMemoryLimit, MemoryLimit, Verification
from gpucheck.memlimit.plan import plan_limit
from gpucheck.memlimit.verify import (
    NOTHING_SHARED,
    STEPS,
    SharedMemory,
    allowed_bytes,
    find_provable,
    prove,
    shared_memory,
)
from gpucheck.report.envelope import Answer
from gpucheck.report.errors import MissingError, WrongUseError
from gpucheck.report.units import parse_amount
from tests.fakes.gpus import sized_row

MIB = 1024**2
LIMIT, STEP, FINE = 1600 * MIB, 100 * MIB, 16 * MIB
START = {"step": "start", "gpu": 0, "pid": 7, "version": "14.2.0", "size": STEP, "free": 9 * LIMIT}
REFUSED = {
    "step": "refused",
    "gpu": 0,
    "size": FINE,
    "error": "OOM",
    "message": "no",
    "proper": True,
    "free": 9 * LIMIT,
}
END = {"step": "end", "gpu": 0, "refused": True, "restored": True}


def took(size: int) -> dict[str, Any]:
    return {"step": "took", "gpu": 0, "taken": size, "counted": size}


def measured(pid: int, uuid: str | None, index: int | None) -> int | None:
    """Return what NVML says of the process."""
    return 2100 * MIB if (pid, uuid, index) == (7, "GPU-0", 0) else None


HELD = [START, took(LIMIT), REFUSED, END]


def plan(**changes: Any) -> MemoryLimit:
    gpu = sized_row(0, 10 * LIMIT)
    software = Software(interpreter="python", frameworks={"cupy": "14.2.0"})
    return plan_limit(
        parse_amount("10%"), [gpu], **({"software": software, "environment": {}} | changes)
    )


def tried(
    *steps: Mapping[str, Any],
    framework: str = "cupy",
    nvml_bytes: int | None = 2100 * MIB,
    **changes: Any,
) -> tuple[Answer, Verification]:
    def measured(pid: int, uuid: str | None, index: int | None) -> int | None:
        return nvml_bytes if (pid, uuid, index) == (7, "GPU-0", 0) else None

    def run(*_: Any, **__: Any) -> Iterator[Mapping[str, Any]]:
        yield from steps

    limit = plan(**changes)
    answer = prove(
        Answer(result=limit),
        limit,
        [framework],
        {},
        run=run,
        memory_reader=lambda: nullcontext(measured),
    )
    assert isinstance(answer.result, MemoryLimit)
    assert answer.result.verification is not None
    return answer, answer.result.verification


def test_a_cap_that_holds() -> None:
    answer, found = tried(*HELD)

    assert (answer.exit_code, answer.error) == (0, None)
    assert (found.held, found.allocated_bytes, found.refused_bytes) == (True, LIMIT, FINE)
    assert found.deviation_bytes == 0
    assert (found.refused_with, found.restored, found.version) == ("OOM", True, "14.2.0")
    assert found.mechanism == "CUPY_GPU_MEMORY_LIMIT"
    assert (found.nvml_bytes, found.overhead_bytes) == (2100 * MIB, 500 * MIB)


def test_the_distance_from_the_limit_is_reported() -> None:
    _, below = tried(START, took(LIMIT - 24 * MIB), REFUSED, END)
    _, above = tried(START, took(LIMIT + 1), REFUSED, END)

    assert (below.held, below.deviation_bytes) == (True, -24 * MIB)
    assert (above.held, above.deviation_bytes) == (False, 1)
    assert f"too late, 1 bytes above the limit of {LIMIT} bytes, to within 16777216" in (
        above.reason or ""
    )


def test_what_nvml_counts_is_compared_with_the_limit() -> None:
    # CuPy kept its word, and something else in the process did not.
    most = LIMIT + 2 * 576 * MIB + 64 * MIB
    answer, broken = tried(*HELD, nvml_bytes=most + 1)
    _, fine = tried(*HELD, nvml_bytes=most)
    _, untold = tried(*HELD, nvml_bytes=None)

    assert (answer.exit_code, broken.held) == (1, False)
    assert (broken.reason or "").endswith(
        f"NVML counts {most + 1} bytes for the process: 1 more than the limit plus twice the"
        " estimated overhead"
    )
    assert (fine.held, fine.nvml_most_bytes, fine.overhead_bytes) == (True, most, most - LIMIT)
    assert (untold.held, untold.nvml_most_bytes, untold.overhead_bytes) == (True, None, None)


@pytest.mark.parametrize(("framework", "counts_its_pool"), [("torch", True), ("jax", False)])
def test_what_a_program_takes_beside_its_pool_is_known_where_the_pool_is_counted(
    framework: str, counts_its_pool: bool
) -> None:
    software = Software(interpreter="python", frameworks={"torch": "2.12.0", "jax": "0.10.2"})
    _, found = tried(*HELD, framework=framework, software=software)

    assert (found.held, found.nvml_bytes) == (True, 2100 * MIB)
    assert found.overhead_bytes == (500 * MIB if counts_its_pool else None)


@pytest.mark.parametrize(
    ("taken", "reason"),
    [(LIMIT - STEP, None), (LIMIT - 2 * STEP, None), (LIMIT - 2 * STEP - 1, "limit is lower")],
)
def test_rounding_of_an_allocator_is_no_failure(taken: int, reason: str | None) -> None:
    found = tried(START, took(taken), REFUSED, END)[1]

    assert found.held is True
    assert (found.reason or "").endswith(reason or "")
    assert (found.reason is None) is (reason is None)


@pytest.mark.parametrize(
    ("steps", "why"),
    [
        (
            [START, took(2 * LIMIT), {"step": "end", "gpu": 0, "refused": False}],
            "nothing was refused",
        ),
        ([START, took(LIMIT + STEP), REFUSED, END], "bytes above the limit"),
        ([START, took(LIMIT), REFUSED | {"proper": False}, END], "another error: no"),
        ([START, took(LIMIT), REFUSED, END | {"restored": False}], "could not be allocated again"),
    ],
)
def test_a_cap_that_does_not(steps: list[dict[str, Any]], why: str) -> None:
    answer, found = tried(*steps)

    assert (answer.exit_code, found.held) == (1, False)
    assert answer.error is not None
    assert answer.error.code == "limit-not-held"
    assert "CUPY_GPU_MEMORY_LIMIT" in answer.error.message
    assert why in answer.error.message


@pytest.mark.parametrize(
    ("steps", "why"),
    [
        ([], "it ended early"),
        ([START, took(STEP)], "it ended early"),
        ([START, {"step": "failed", "gpu": 0, "error": "E", "message": "no"}], "E: no"),
        ([{"step": "failed", "gpu": None, "error": "E", "message": "no"}], "E: no"),
        (
            [START, took(LIMIT // 2), REFUSED | {"free": FINE + 63 * MIB}, END],
            "the card itself was full",
        ),
        ([START, took(LIMIT // 2), REFUSED | {"free": None}, END], "well below the limit"),
    ],
)
def test_what_proves_nothing(steps: list[dict[str, Any]], why: str) -> None:
    answer, found = tried(*steps)

    assert (answer.exit_code, found.held) == (3, None)
    assert answer.error is not None
    assert why in answer.error.message


def test_a_tighter_limit_holds_too() -> None:
    answer, found = tried(START, took(LIMIT // 2), REFUSED, END)

    assert (answer.exit_code, found.held) == (0, True)
    assert "another limit is lower" in (found.reason or "")


def test_both_sides_take_the_same_steps() -> None:
    assert STEPS == limit_proof_child.STEPS


class TestMemoryFit:
    def tried(
        self, *free: int | None, shared: SharedMemory = NOTHING_SHARED
    ) -> tuple[list[Any], tuple[Verification, ...]]:
        gpus = [sized_row(n, 10 * LIMIT, memory_free_bytes=each) for n, each in enumerate(free)]
        asked: list[Any] = []

        def run(*arguments: Any, **_: Any) -> Iterator[Mapping[str, Any]]:
            asked.append(arguments[2])
            return iter(())

        software = Software(interpreter="python", frameworks={"cupy": "14.2.0"})
        limit = plan_limit(parse_amount("10%"), gpus, environment={}, software=software)
        memory_reader = functools.partial(nullcontext, measured)
        answer = prove(
            Answer(result=limit),
            limit,
            ["cupy"],
            {},
            run=run,
            memory_reader=memory_reader,
            shared=shared,
        )
        assert isinstance(answer.result, MemoryLimit)
        assert answer.exit_code == 3
        return asked, answer.result.verifications

    @pytest.mark.parametrize("lacking", [0, 1])
    def test_the_last_byte_that_the_proof_needs_decides(self, lacking: int) -> None:
        needed = LIMIT + STEP + 576 * MIB  # a step more than the limit, and a program's context

        asked, (found,) = self.tried(needed - lacking)

        assert asked == ([] if lacking else [[(LIMIT, 2 * LIMIT)]])
        assert ("is free and the proof needs" in (found.reason or "")) is bool(lacking)

    def test_a_gpu_without_free_memory_is_not_tried(self) -> None:
        asked, found = self.tried(10 * LIMIT, LIMIT, None)

        assert asked == [[(LIMIT, 2 * LIMIT), (0, 0), (LIMIT, 2 * LIMIT)]]
        assert " is free and the proof needs " in (found[1].reason or "")
        assert found[0].reason == found[2].reason == "it ended early"

    @pytest.mark.parametrize(
        ("spare", "asked", "why"),
        [
            # The limit, a step more, and what a program takes beside it.
            (LIMIT + STEP + 576 * MIB, [(LIMIT, LIMIT + STEP)], "it ended early"),
            (LIMIT + STEP + 576 * MIB - 1, None, "it shares the system's memory, of which"),
            (None, None, "how much of that is free is unknown"),
            (9 * LIMIT, [(LIMIT, 2 * LIMIT)], "it ended early"),
        ],
    )
    def test_memory_that_the_system_shares_is_never_filled(
        self, spare: int | None, asked: Any, why: str
    ) -> None:
        shared = SharedMemory(cuda_indices=frozenset({0}), spare_bytes=spare)

        # What the driver calls free says nothing here: the kernel's caches are not in it.
        started, (found,) = self.tried(None, shared=shared)

        assert started == ([] if asked is None else [asked])
        assert why in (found.reason or "")

    def test_where_nvml_has_no_size_of_its_own_it_is_shared_too(self) -> None:
        own, shared = (
            GpuMemoryLimit(
                uuid=None,
                memory_total_bytes=LIMIT,
                limit_bytes=LIMIT,
                allocator_limit_bytes=LIMIT,
                memory_source=source,
            )
            for source in ("driver", "system")
        )

        assert [NOTHING_SHARED.has(gpu) for gpu in (own, shared)] == [False, True]
        # What is available of it was not read: nothing is taken.
        assert NOTHING_SHARED.refusal(1) is not None

    def test_which_gpus_share_it_is_cudas_word(self) -> None:
        devices = tuple(
            CudaDeviceReading(ordinal=n, integrated=shares)
            for n, shares in enumerate((False, True, None))
        )

        found = shared_memory(CudaReading(devices=devices), 100 << 30)

        assert found == SharedMemory(cuda_indices=frozenset({1}), spare_bytes=80 << 30)
        assert shared_memory(CudaReading(), None).spare_bytes is None

    def test_without_any_free_memory_nothing_is_started(self) -> None:
        asked, found = self.tried(LIMIT, 0)

        assert asked == []
        assert [each.held for each in found] == [None, None]


class TestSeveralGpus:
    def tried(self, *documents: Mapping[str, Any]) -> tuple[Answer, tuple[Verification, ...]]:
        limit = plan_limit(
            parse_amount("10%"),
            [sized_row(n + 4, 10 * LIMIT, cuda_index=n, uuid=f"GPU-{n}") for n in (0, 1)],
            software=Software(
                interpreter="python", frameworks={"cupy": "14.2.0"}
            ),
            environment={},
        )  # fmt: skip
        asked: list[Any] = []

        def run(*arguments: Any, **_: Any) -> Iterator[Mapping[str, Any]]:
            asked.append(arguments[2])
            yield from documents

        def measure(*arguments: Any) -> int:
            asked.append(arguments)
            return 2100 * MIB

        answer = prove(
            Answer(result=limit),
            limit,
            ["cupy"],
            {},
            run=run,
            memory_reader=lambda: nullcontext(measure),
        )
        assert asked[0] == [(LIMIT, 2 * LIMIT)] * 2
        # NVML is asked about a GPU at its refusal.
        refusals = [each["gpu"] for each in documents if each["step"] == "refused"]
        assert asked[1:] == [(7, f"GPU-{gpu}", gpu + 4) for gpu in refusals]
        assert isinstance(answer.result, MemoryLimit)
        return answer, answer.result.verifications

    @staticmethod
    def on(ordinal: int, *steps: Mapping[str, Any]) -> list[dict[str, Any]]:
        return [{**step, "gpu": ordinal} for step in steps]

    def test_each_has_its_verdict(self) -> None:
        answer, found = self.tried(*self.on(0, *HELD), *self.on(1, *HELD))

        assert answer.exit_code == 0
        assert [(each.uuid, each.cuda_index, each.held) for each in found] == [
            ("GPU-0", 0, True), ("GPU-1", 1, True),
        ]  # fmt: skip

    def test_one_that_does_not_hold_is_named(self) -> None:
        broken = self.on(1, START, took(2 * LIMIT), {"step": "end", "refused": False})
        answer, found = self.tried(*self.on(0, *HELD), *broken)

        assert (answer.exit_code, [each.held for each in found]) == (1, [True, False])
        assert answer.error is not None
        assert "(CUPY_GPU_MEMORY_LIMIT) does not hold on GPU 5: " in answer.error.message

    def test_what_all_lack_is_said_of_none(self) -> None:
        software = Software(interpreter="python", frameworks={"torch": "2.12.0"})
        gpus = [sized_row(n, 10 * LIMIT) for n in (0, 1)]
        limit = plan_limit(parse_amount("10%"), gpus, software=software, environment={})
        answer = prove(
            Answer(result=limit), limit, ["cupy"], {}, memory_reader=lambda: nullcontext(measured)
        )

        assert answer.error is not None
        assert answer.error.message == "The limit of cupy could not be tried: python has no cupy."

    def test_a_failure_on_one_gpu_leaves_the_other_open(self) -> None:
        failed = {"step": "failed", "gpu": 0, "error": "E", "message": "lost"}
        answer, found = self.tried(failed, *self.on(1, *HELD))

        assert (answer.exit_code, [each.held for each in found]) == (3, [None, True])
        assert found[0].reason == "E: lost"

    def test_a_failure_before_any_is_everyones(self) -> None:
        _, found = self.tried({"step": "failed", "gpu": None, "error": "E", "message": "no"})

        assert [each.reason for each in found] == ["E: no"] * 2


@pytest.mark.parametrize(
    ("name", "amount", "allowed"),
    [
        ("cupy", "10%", [8, 1]),
        ("cupy", "4GiB", [4, 4]),
        ("jax", "4GiB", [4, 0.5]),  # one fraction: that of the larger card
        ("torch", "4GiB", [4, 0.5]),
        ("tensorflow", "4GiB", [4, 4]),
    ],
)
def test_what_one_setting_allows_on_cards_that_differ(
    name: str, amount: str, allowed: list[float]
) -> None:
    gpus = [sized_row(n, size << 30) for n, size in enumerate((80, 10))]
    software = Software(
        interpreter="python",
        frameworks={"cupy": "1", "jax": "0.10.2", "torch": "2.12.0", "tensorflow": "2.21.0"},
    )
    limit = plan_limit(parse_amount(amount), gpus, environment={}, software=software)

    assert [allowed_bytes(limit, name, gpu) for gpu in limit.gpus] == [
        int(size * 1024**3) for size in allowed
    ]


@pytest.mark.parametrize(("version", "allowed"), [("2.5.0", [4, 4]), ("2.12.0", [4, 0.5])])
def test_code_gives_each_card_its_own_fraction_and_the_environment_one_to_all(
    version: str, allowed: list[float]
) -> None:
    gpus = [sized_row(n, size << 30) for n, size in enumerate((80, 10))]
    software = Software(interpreter="python", frameworks={"jax": "0.10.2", "torch": version})
    limit = plan_limit(parse_amount("4GiB"), gpus, environment={}, software=software)

    assert [allowed_bytes(limit, "torch", gpu) for gpu in limit.gpus] == [
        int(size * 1024**3) for size in allowed
    ]


def test_a_framework_that_does_not_answer() -> None:
    def run(*_: Any, **__: Any) -> Iterator[Mapping[str, Any]]:
        yield START
        problem = "it did not answer in time"
        raise OtherPythonError(problem)

    limit = plan()
    answer = prove(
        Answer(result=limit),
        limit,
        ["cupy"],
        {},
        run=run,
        memory_reader=lambda: nullcontext(measured),
    )

    assert answer.exit_code == 3


def test_a_framework_that_is_not_installed_is_missing() -> None:
    answer, found = tried(*HELD, framework="torch")

    assert (answer.exit_code, found.held) == (4, None)
    assert answer.error is not None
    assert answer.error.message.startswith("The limit of torch could not be tried: ")
    assert answer.error.remedy == ("Try what this Python has: --verify-with cupy",)


def test_gpucheck_s_own_python_gets_cupy_by_a_command() -> None:
    software = Software(interpreter=sys.executable, frameworks={"torch": ""})
    answer, _ = tried(framework="cupy", software=software)

    assert answer.error is not None
    assert answer.error.remedy[:-1] == install_cupy()


def test_without_any_framework_another_python_is_the_remedy() -> None:
    software = Software(interpreter="python", frameworks={"numba": ""})
    answer, _ = tried(framework="cupy", software=software)

    assert answer.error is not None
    assert answer.error.remedy == ("Name a Python that has it: --python FILE",)


def test_a_framework_that_nothing_caps_is_not_capped() -> None:
    answer, found = tried(*HELD, environment={"CUPY_GPU_MEMORY_LIMIT": "1"})
    assert found.held is True

    software = Software(interpreter="python", frameworks={"jax": "0.10.2"})
    answer, found = tried(
        framework="jax",
        software=software,
        environment={"XLA_PYTHON_CLIENT_ALLOCATOR": "platform"},
    )

    assert (answer.exit_code, found.held) == (1, False)


def test_without_a_python() -> None:
    limit = plan(software=Software(reason="none"))

    with pytest.raises(MissingError):
        prove(Answer(result=limit), limit, ["cupy"], {})


def test_names_are_checked_first() -> None:
    names = ["cupy", "pytorch", "jax", "TF", "torch"]

    assert find_provable(names) == ("cupy", "torch", "jax", "tensorflow")
    with pytest.raises(WrongUseError):
        find_provable(["caffe"])
