"""Plan of a limit: the bytes on each GPU, and the settings for each framework."""

from __future__ import annotations

import ast
import sys
from collections.abc import Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucheck.drivers.evidence import BuildReading, BuildsReading
from gpucheck.drivers.python.frameworks import Software
from gpucheck.drivers.readings import GpuReading, KernelReading, NvmlReading, ProbeFailure
from gpucheck.inventory.model import Gpu, MigInstance, MigState
from gpucheck.memlimit import plan as planning
from gpucheck.memlimit import verify
from gpucheck.memlimit.model import Mechanism, MemoryLimit, Strength, Way
from gpucheck.memlimit.plan import (
    LimitOptions,
    _innermost,
    _interpreter,
    find_hard_limit,
    find_limit,
    plan_limit,
    select_gpus,
)
from gpucheck.report.envelope import Answer
from gpucheck.report.errors import BadAnswerError, InconclusiveError, WrongUseError
from gpucheck.report.units import parse_amount
from tests.fakes.gpus import sized_row
from tests.fakes.probes import FakeProbes, gpu_reading, reading_of

GIB, MIB = 1024**3, 1024**2
CUPY = "CUPY_GPU_MEMORY_LIMIT"
JAX = "XLA_CLIENT_MEM_FRACTION"
JAX_OLD = "XLA_PYTHON_CLIENT_MEM_FRACTION"


def plan(text: str, *gpus: Gpu, environment: Mapping[str, str] | None = None) -> MemoryLimit:
    return plan_limit(parse_amount(text), gpus or (sized_row(0),), environment=environment)


def mechanism(limit: MemoryLimit, framework: str) -> Mechanism:
    """Return the only mechanism of a framework, or the one that is a line of code."""
    return [each for each in limit.mechanisms if each.framework == framework][-1]


class TestEnvironment:
    def test_the_inherited_environment_is_not_changed(self) -> None:
        inherited = {JAX: "0.9", "PATH": "/bin"}

        plan("30%", environment=inherited)

        assert inherited == {JAX: "0.9", "PATH": "/bin"}

    @given(st.text(max_size=12), st.text(max_size=12), st.text(max_size=12))
    def test_any_inherited_text_is_survived(self, cupy: str, jax: str, old: str) -> None:
        limit = plan("30%", environment={CUPY: cupy, JAX: jax, JAX_OLD: old})

        for each in limit.mechanisms:
            assert each.reason.isprintable()
            assert each.setting is None or each.setting.isprintable()


class TestCodeLines:
    def test_pytorchs_fraction_is_a_float(self) -> None:
        for text, expected in (("30%", 0.3), ("100%", 1.0), ("8GiB", 0.1)):
            setting = mechanism(plan(text), "pytorch").setting
            assert setting is not None
            (loop,) = ast.parse(setting).body
            assert isinstance(loop, ast.For)
            (call,) = (node for node in ast.walk(loop.body[0]) if isinstance(node, ast.Call))
            value = ast.literal_eval(call.args[0])
            assert isinstance(value, float)
            assert value == expected


@given(
    st.sampled_from(["30%", "0.07", "99.9%", "1.5GiB", "700MB", "12345678K"]),
    st.lists(st.integers(min_value=12 * GIB, max_value=300 * GIB), min_size=1, max_size=4),
)
def test_no_setting_ever_allows_more_than_the_limit(text: str, totals: list[int]) -> None:
    limit = plan(text, *(sized_row(i, total) for i, total in enumerate(totals)))

    cupy, jax = limit.environment[CUPY], Fraction(limit.environment[JAX_OLD])
    for gpu in limit.gpus:
        assert gpu.memory_total_bytes is not None
        assert gpu.limit_bytes is not None
        share = Fraction(cupy.rstrip("%")) / 100 * gpu.memory_total_bytes
        pool = share if cupy.endswith("%") else Fraction(cupy)
        assert int(pool) <= gpu.limit_bytes
        assert int(jax * gpu.memory_total_bytes) <= gpu.limit_bytes


# ------------------------------------------------------------------------------------------- --gpu


CARDS = tuple(sized_row(index, uuid=f"GPU-{index}aaa") for index in range(3))


def test_none_named_are_all() -> None:
    assert select_gpus((), CARDS) is None


def test_no_gpu_at_all_is_left_to_the_plan() -> None:
    assert select_gpus(("0",), ()) is None


def test_a_hidden_one_is_not_there() -> None:
    with pytest.raises(BadAnswerError, match="No visible GPU is '0'"):
        select_gpus(("0",), (sized_row(0, visible=False, cuda_index=None),))


@pytest.mark.parametrize("spec", ["/gpu:1", "cuda:1", "1", "GPU-1aaa", "gpu-1AAA", "/device:GPU:1"])
def test_one_card_by_each_of_its_names(spec: str) -> None:
    assert select_gpus((spec, spec), CARDS) == ("GPU-1aaa",)


def test_several_keep_their_order() -> None:
    limit = plan_limit(parse_amount("30%"), CARDS, selected=select_gpus(("2", "0"), CARDS))

    assert [gpu.index for gpu in limit.gpus] == [2, 0]
    assert limit.environment["CUDA_VISIBLE_DEVICES"] == "GPU-2aaa,GPU-0aaa"
    assert limit.environment["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"


def test_an_instance() -> None:
    instance = MigInstance(
        uuid="MIG-7777", name="1g", memory_total_bytes=1, memory_used_bytes=0, cuda_index=0
    )
    split = sized_row(0, cuda_index=None, mig=MigState(enabled=True, instances=(instance,)))

    assert select_gpus(("mig-7777",), (split,)) == ("MIG-7777",)


@pytest.mark.parametrize("spec", ["", "/", "gpu:*", "/gpu", "/job:localhost", "/cpu:0", "cpu"])
def test_what_names_no_single_gpu_is_wrong_use(spec: str) -> None:
    with pytest.raises(WrongUseError) as caught:
        select_gpus((spec,), CARDS)

    assert caught.value.code == "not-a-gpu"


@pytest.mark.parametrize("spec", ["/gpu:3", "99", "GPU-9999", "MIG-1111"])
def test_a_missing_gpu_is_refused_without_options_of_place(spec: str) -> None:
    with pytest.raises(BadAnswerError) as caught:
        select_gpus((spec,), CARDS)

    assert caught.value.code == "no-such-gpu"
    assert caught.value.message in (
        f"No visible GPU is {spec!a}.", f"No visible GPU has a UUID that starts with {spec!a}."
    )  # fmt: skip
    assert "--soft" not in f"{caught.value.message}{caught.value.remedy}"
    assert "gpucheck list" in caught.value.remedy[0]


def test_the_beginning_of_two_is_neither() -> None:
    cards = (sized_row(0, uuid="GPU-abcd0"), sized_row(1, uuid="GPU-abcd1"))

    with pytest.raises(BadAnswerError, match="2 visible GPUs"):
        select_gpus(("GPU-abcd",), cards)


def test_a_card_without_a_uuid_cannot_be_named() -> None:
    with pytest.raises(BadAnswerError, match="no readable UUID"):
        select_gpus(("0",), (sized_row(0, uuid=None),))


# ---------------------------------------------------------------------------------------- --python


def options(**changes: object) -> LimitOptions:
    return LimitOptions(amount=parse_amount("30%"), **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("command", "inner"),
    [
        ("python x.py", "python x.py"),
        ("gpucheck place --count 1 -- python x.py -- y", "python x.py -- y"),
        ("/bin/gpucheck place 0 -- gpucheck memlimit 1GiB -- true", "true"),
        ("gpucheck list", "gpucheck list"),
        ("gpucheck place 0 --", "gpucheck place 0 --"),
        ("env gpucheck place 0 -- python", "env gpucheck place 0 -- python"),
    ],
)
def test_the_command_inside_of_our_own(command: str, inner: str) -> None:
    assert _innermost(tuple(command.split())) == tuple(inner.split())


def test_the_python_that_an_inner_command_starts_is_planned_for() -> None:
    command = ("gpucheck", "place", "0", "--", sys.executable, "-S", "x.py")

    found = _interpreter(options(command=command), {"PATH": "/nowhere"})

    assert found is not None
    assert (found.path, found.bare) == (sys.executable, True)


def test_a_python_is_named_by_path_or_by_name(tmp_path: Path) -> None:
    named = tmp_path / "python9"
    named.symlink_to(sys.executable)
    environment = {"PATH": str(tmp_path)}

    for text in ("python9", str(named)):
        found = _interpreter(options(python=text), environment)
        assert found is not None
        assert found.path == str(named)


@pytest.mark.parametrize("text", ["", "/nope", ".", "/etc/passwd", "no\x1bsuch"])
def test_what_cannot_be_run_is_wrong_use(text: str) -> None:
    with pytest.raises(WrongUseError, match="is not a program that can be run") as caught:
        _interpreter(options(python=text), {"PATH": "/bin"})

    assert caught.value.message.isprintable()


# --------------------------------------------------------------------------------- the whole answer


def answer_of(*, variables: Mapping[str, str] | None = None, **changes: object) -> Answer:
    cards = [gpu_reading(index) for index in (0, 1)]
    probes = FakeProbes(readings=reading_of(*cards), variables=variables or {})
    return find_limit(options(**changes), probes)


def limit_of(answer: Answer) -> MemoryLimit:
    assert isinstance(answer.result, MemoryLimit)
    return answer.result


class TestFindLimit:
    def test_a_recording_knows_the_frameworks_that_were_recorded(self) -> None:
        builds = (
            BuildReading(name="pytorch", version="2.9.0", gpu_build=False),
            BuildReading(name="numba"),
        )
        reading = BuildsReading(
            python="/venv/bin/python", python_version="3.12.3", builds=builds, named_by="PATH"
        )
        probes = FakeProbes(readings=reading_of(gpu_reading(0)), builds_reading=reading)

        limit = limit_of(find_limit(options(), probes))

        assert limit.software == Software(
            interpreter="/venv/bin/python",
            python="3.12.3",
            frameworks={"torch": "2.9.0", "numba": ""},
            named_by="PATH",
            for_cpus=("torch",),
        )

    def test_a_recording_without_frameworks_says_nothing_of_them(self) -> None:
        answer = answer_of(variables={CUPY: "20%", "TF_GPU_MEMORY_LIMIT": "1"})
        limit = limit_of(answer)

        assert [gpu.cuda_index for gpu in limit.gpus] == [0, 1]
        assert limit.software is not None
        assert limit.software.reason == "not recorded"
        assert limit.environment[CUPY] == "20%"
        assert "not checked" in mechanism(limit, "any program").reason
        assert [each.code for each in answer.warnings if each.code == "no-memory-limit"]
        assert limit.code is None

    def test_the_environment_given_counts_instead_of_the_probes(self) -> None:
        given = {"PATH": "/nowhere", "TF_GPU_MEMORY_LIMIT": "1"}
        answer = answer_of(variables={CUPY: "20%"}, environment=given)
        limit = limit_of(answer)

        assert limit.environment[CUPY] == "30%"
        assert "no-memory-limit" in [each.code for each in answer.warnings]
        assert "not checked" not in mechanism(limit, "any program").reason

    def test_code_for_a_framework(self) -> None:
        assert (limit_of(answer_of(code="cupy")).code or "").startswith("# 30% of each")

    @pytest.mark.parametrize("numbers", ["1", "1,0"])
    def test_code_keeps_to_the_cards_that_the_caller_s_variable_leaves(self, numbers: str) -> None:
        """The code may run where the variable has another value: it names the cards itself."""
        limit = limit_of(answer_of(code="cupy", variables={"CUDA_VISIBLE_DEVICES": numbers}))

        uuids = ",".join(gpu.uuid or "" for gpu in limit.gpus)
        assert [gpu.index for gpu in limit.gpus] == [int(each) for each in numbers.split(",")]
        assert f'os.environ["CUDA_VISIBLE_DEVICES"] = "{uuids}"' in (limit.code or "")

    def test_only_the_selected_gpus(self) -> None:
        limit = limit_of(answer_of(gpus=("1",)))

        assert [gpu.cuda_index for gpu in limit.gpus] == [1]
        assert limit.environment["CUDA_VISIBLE_DEVICES"] == limit.gpus[0].uuid

    @pytest.mark.parametrize(
        ("changes", "hooked", "why"),
        [
            ({}, True, "add this line to the program"),
            ({"command": ("true",)}, True, "the import hook runs it"),
            ({"proofs": ("cupy",)}, True, "the import hook runs it"),
            ({"hook": False}, False, "--no-hook turns the import hook off"),
            ({"command": ("true",), "hook": False}, False, "--no-hook"),
            ({"environment": None, "hook": False}, False, "--no-hook"),
        ],
    )
    def test_the_hook_runs_for_a_command_and_a_proof(
        self, changes: dict[str, Any], hooked: bool, why: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(verify, "prove", lambda answer, *_, **__: answer)
        monkeypatch.setattr(planning, "read_frameworks", lambda *_: Software())

        limit = limit_of(answer_of(**({"environment": {"PATH": "/nowhere"}} | changes)))

        row = mechanism(limit, "onnxruntime")
        assert (row.by_hook, why in row.reason) == (hooked, True)

    def test_a_proof_gets_the_plan_and_the_shared_memory(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        given: list[object] = []

        def prove(answer: Answer, *words: object, **more: object) -> Answer:
            given.extend((*words, more))
            return answer

        monkeypatch.setattr(verify, "prove", prove)
        environment = {"PATH": "/nowhere"}

        answer_of()
        assert given == []
        answer = answer_of(proofs=("cupy",), environment=environment)

        assert given[:3] == [answer.result, ("cupy",), environment]
        assert isinstance(given[3], dict)
        assert given[3]["hook"] is True
        assert given[3]["shared"].spare_bytes is not None

    def test_a_named_python_has_to_answer(self) -> None:
        with pytest.raises(WrongUseError, match="does not name a working Python") as caught:
            answer_of(python="/bin/true", environment={"PATH": "/bin"})

        assert caught.value.code == "not-a-python"

    def test_without_a_driver_there_is_no_plan(self) -> None:
        failure = ProbeFailure(code="library-not-found", message="no NVML")
        answer = find_limit(options(), FakeProbes(readings=NvmlReading(failure=failure)))

        assert answer.result is None
        assert answer.error is not None


class TestFindHardLimit:
    """The limit for a cgroup: whole MiB on each GPU, and nothing that a framework must know."""

    def found(self, text: str, *cards: GpuReading, gpus: tuple[str, ...] = ()) -> Answer:
        cards = cards or tuple(gpu_reading(index) for index in (0, 1))
        asked = LimitOptions(amount=parse_amount(text), gpus=gpus)
        variables = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
        return find_hard_limit(asked, FakeProbes(readings=reading_of(*cards), variables=variables))

    def test_the_driver_limits_any_program_in_whole_mib(self) -> None:
        odd = gpu_reading(0, memory_total_bytes=10 * MIB - 1)
        limit = limit_of(self.found("30%", odd))

        assert [gpu.limit_bytes for gpu in limit.gpus] == [2 * MIB]
        (only,) = limit.mechanisms
        assert (only.framework, only.by, only.applies) == ("any program", Way.DRIVER, True)
        assert (only.strength, only.setting) == (Strength.HARD, None)
        assert (limit.environment, limit.overhead) == ({}, None)

    def test_only_named_gpus_are_limited_and_seen(self) -> None:
        answer = self.found("8GiB", gpus=("1",))
        limit = limit_of(answer)

        assert [(gpu.index, gpu.limit_bytes) for gpu in limit.gpus] == [(1, 8 * GIB)]
        assert limit.environment == {
            "CUDA_VISIBLE_DEVICES": limit.gpus[0].uuid, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"
        }  # fmt: skip
        assert answer.warnings == ()

    def test_a_share_of_an_unknown_total_is_inconclusive(self) -> None:
        with pytest.raises(InconclusiveError) as caught:
            self.found("30%", gpu_reading(0), gpu_reading(1, memory_total_bytes=None))

        assert (caught.value.code, caught.value.exit_code) == ("limit-unknown", 3)

    @pytest.mark.parametrize(("size", "fits"), [(MIB, True), (MIB - 1, False)])
    def test_less_than_one_mib_is_wrong_use(self, size: int, fits: bool) -> None:
        if fits:
            assert limit_of(self.found(f"{size}B")).gpus[0].limit_bytes == MIB
            return
        with pytest.raises(WrongUseError, match="less than 1 MiB") as caught:
            self.found(f"{size}B")
        assert caught.value.code == "bad-amount"

    def test_what_names_no_gpu_is_wrong_use_on_any_machine(self) -> None:
        lost = FakeProbes(readings=NvmlReading(failure=ProbeFailure(code="x", message="x")))

        with pytest.raises(WrongUseError):
            find_hard_limit(options(gpus=("cpu",)), lost)
        answer = find_hard_limit(options(), lost)
        assert (answer.result, answer.error is None) == (None, False)

    def test_a_prohibited_card_is_warned_of_if_it_is_limited(self) -> None:
        cards = (gpu_reading(0), gpu_reading(1, compute_mode="prohibited"))

        def codes(gpu: str) -> list[str]:
            return [each.code for each in self.found("8GiB", *cards, gpus=(gpu,)).warnings]

        assert [codes(gpu).count("compute-mode-prohibited") for gpu in "01"] == [0, 1]


def test_memory_that_is_shared_is_warned_of() -> None:
    nothing = dict.fromkeys(("memory_total_bytes", "memory_used_bytes", "memory_free_bytes"))
    refused = dict.fromkeys(nothing, "not supported by this GPU (NVML error 3)")
    probes = FakeProbes(
        readings=reading_of(gpu_reading(0, **nothing, unavailable=refused)),
        kernel_reading=KernelReading(
            pci_devices=(), memory_total_bytes=100 * GIB, memory_available_bytes=90 * GIB
        ),
    )

    answer = find_limit(options(), probes)

    assert "memory-shared" in [each.code for each in answer.warnings]


def test_cards_with_less_free_than_the_limit_are_named_together() -> None:
    sizes = {"memory_total_bytes": 80 * GIB, "memory_used_bytes": 60 * GIB}
    short = [gpu_reading(n)._replace(**sizes, memory_free_bytes=20 * GIB) for n in range(3)]
    enough = gpu_reading(3)._replace(memory_total_bytes=80 * GIB, memory_free_bytes=25 * GIB)
    probes = FakeProbes(readings=reading_of(*short, enough))

    answer = find_limit(LimitOptions(amount=parse_amount("30%")), probes)

    (found,) = [each for each in answer.warnings if each.code == "less-free"]
    assert found.message == "GPUs 0-2 have only 20.0 GiB free now: less than the limit."
    assert answer.exit_code == 0


def test_a_card_with_enough_free_memory_needs_no_warning() -> None:
    size = {"memory_total_bytes": 80 * GIB, "memory_free_bytes": 24 * GIB}
    probes = FakeProbes(readings=reading_of(gpu_reading(0)._replace(**size)))

    answer = find_limit(LimitOptions(amount=parse_amount("30%")), probes)

    assert "less-free" not in [each.code for each in answer.warnings]
