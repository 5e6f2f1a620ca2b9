"""Outcome of a plan for each framework."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpucheck.inventory.model import MemoryCap
from gpucheck.memlimit.model import (
    Culprit,
    GpuMemoryLimit,
    HardGpu,
    HardLimit,
    LimitedRun,
    Mechanism,
    MemoryLimit,
    MemoryRequest,
    RunGpu,
    Strength,
    Way,
)
from gpucheck.memlimit.outcome import (
    HOOK,
    FrameworkOutcome,
    caps_of,
    framework_outcomes,
    group_by_mechanism,
    hard_sentences,
    outcome_lines,
    run_line,
)

GPU = GpuMemoryLimit(
    uuid="GPU-1", memory_total_bytes=10, limit_bytes=3, allocator_limit_bytes=3, index=0
)
BY_VARIABLE = Mechanism(
    framework="tensorflow",
    mechanism="VARIABLE",
    setting="VARIABLE=1",
    strength=Strength.ALLOCATOR,
    applies=True,
    reason="as usual",
    installed=True,
)
BY_CODE = replace(BY_VARIABLE, mechanism="call", by=Way.CODE, applies=False, by_hook=True)
NOBODY = Mechanism(
    framework="any other CUDA program",
    mechanism="none",
    setting=None,
    strength=Strength.NONE,
    applies=False,
    reason="nothing limits it",
    by=Way.NOBODY,
)
MPS = replace(
    NOBODY, framework="any program", mechanism="MPS", by=Way.DRIVER, applies=True,
    strength=Strength.HARD,
)  # fmt: skip


def plan(
    *mechanisms: Mechanism, gpus: int = 1, environment: dict[str, str] | None = None
) -> MemoryLimit:
    return MemoryLimit(
        request=MemoryRequest(text="30%", fraction=0.3),
        gpus=(GPU,) * gpus,
        mechanisms=mechanisms,
        environment=environment or {},
    )


def only(*mechanisms: Mechanism, gpus: int = 1) -> FrameworkOutcome:
    (found,) = framework_outcomes(plan(*mechanisms, gpus=gpus))
    return found


def test_both_ways_hold_together() -> None:
    assert only(BY_VARIABLE, BY_CODE).by == f"VARIABLE and {HOOK}"
    assert only(replace(BY_VARIABLE, applies=False), BY_CODE).by == HOOK
    assert only(BY_VARIABLE, replace(BY_CODE, by_hook=False)).by == "VARIABLE"


def test_an_installed_framework_without_a_limit_has_its_own_reason() -> None:
    variable = replace(BY_VARIABLE, applies=False, reason="the key is fatal")
    code = replace(BY_CODE, by_hook=False)

    here = only(variable, code)
    elsewhere = only(replace(variable, installed=False), replace(code, installed=False))

    assert (here.by, here.note, here.is_warning) == (None, "the key is fatal", True)
    assert elsewhere.note == "nothing limits it without the import hook"
    unknown = replace(code, installed=None, setting=None, reason="a total is unknown")
    assert only(replace(variable, installed=None), unknown).note == "a total is unknown"
    assert not elsewhere.is_warning


@pytest.mark.parametrize(
    ("changes", "note"),
    [
        ({}, ""),
        ({"inherited": "50%"}, "as usual"),
        ({"strength": Strength.SOFT}, "as usual"),
    ],
)
def test_what_the_user_must_know_is_noted(changes: dict[str, object], note: str) -> None:
    found = only(replace(BY_VARIABLE, **changes))  # type: ignore[arg-type]

    assert found.note == note
    assert found.soft is ("strength" in changes)
    assert found.is_warning is found.soft


@pytest.mark.parametrize(("gpus", "is_told"), [(1, False), (8, True)])
def test_contexts_made_by_an_older_pytorch_are_noted(gpus: int, is_told: bool) -> None:
    found = only(replace(BY_CODE, framework="pytorch"), gpus=gpus)

    assert ("a CUDA context on each of the 8 GPUs" in found.note) is is_told
    assert found.is_warning is is_told


def test_a_limit_by_the_driver_leaves_none_unlimited() -> None:
    assert [each.framework for each in framework_outcomes(plan(MPS, NOBODY))] == ["any program"]
    assert [
        each.framework for each in framework_outcomes(plan(replace(MPS, applies=False), NOBODY))
    ] == ["any other CUDA program"]


def test_a_driver_that_may_not_be_there_is_doubted() -> None:
    doubtful = replace(MPS, applies=False, reason="its daemon cannot be seen")
    found, _ = framework_outcomes(plan(doubtful, NOBODY, environment={"MPS": "GPU-1=3M"}))

    assert (found.by, found.note) == ("MPS", "its daemon cannot be seen")


def test_frameworks_that_are_not_there_count_only_where_none_is() -> None:
    absent = replace(BY_VARIABLE, framework="jax", installed=False)

    assert [each.framework for each in framework_outcomes(plan(absent, BY_VARIABLE, NOBODY))] == [
        "tensorflow",
        "any other CUDA program",
    ]
    assert [each.framework for each in framework_outcomes(plan(absent))] == ["jax"]


def test_two_groups_for_an_unknown_python() -> None:
    unknown = [
        replace(BY_VARIABLE, framework=name, mechanism=name.upper(), installed=None)
        for name in ("cupy", "jax")
    ]
    hooked = replace(BY_CODE, framework="pytorch", installed=None)

    assert group_by_mechanism(framework_outcomes(plan(*unknown, hooked, NOBODY))) == [
        ("cupy, jax", "environment variables"),
        ("pytorch", HOOK),
    ]


def test_the_cards_of_which_our_cgroup_may_use_a_part() -> None:
    capped = replace(GPU, index=3, memory_limit_bytes=5, memory_limit_source="dmem.max")
    nameless = replace(GPU, index=None, memory_limit_bytes=7)
    limit = replace(plan(), gpus=(GPU, capped, nameless))

    assert caps_of(limit) == (MemoryCap(3, 5, 10, "dmem.max"), MemoryCap(0, 7, 10, ""))


# ------------------------------------------------------------------------------------------- a run

GIB = 1 << 30
USED = RunGpu(
    uuid="GPU-1", index=0, limit_bytes=8 * GIB, allowance_bytes=0, peak_bytes=5 * GIB,
    exceeded=False, cuda_index=4,
)  # fmt: skip
RUN = LimitedRun(exit_code=7, peak_bytes=5 * GIB, exceeded=False, action=None, gpus=(USED,))


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({}, "within the limit: peak 5.0 GiB of 8.0 GiB on GPU 0"),
        ({"exceeded": True}, "exceeded the limit: peak 5.0 GiB of 8.0 GiB on GPU 0"),
        ({"exceeded": None}, "not judged: peak 5.0 GiB of 8.0 GiB on GPU 0"),
        (
            {"exceeded": True, "action": "killed"},
            "exceeded the limit: peak 5.0 GiB of 8.0 GiB on GPU 0; the watcher killed it",
        ),
        (
            {"exceeded": True, "action": "warned"},
            "exceeded the limit: peak 5.0 GiB of 8.0 GiB on GPU 0",
        ),
        (
            {"gpus": (replace(USED, index=None, limit_bytes=None), replace(USED))},
            "within the limit: peak 5.0 GiB on GPU 4, peak 5.0 GiB of 8.0 GiB on GPU 0",
        ),
        ({"gpus": (replace(USED, peak_bytes=0),)}, "no process of the command was seen on a GPU"),
        ({"peak_bytes": None}, "the peak is unknown: it was not watched"),
        (
            {"peak_bytes": None, "unavailable": {"peak_bytes": "no NVML"}},
            "the peak is unknown: no NVML",
        ),
    ],
)
def test_a_run_in_one_line(changes: dict[str, object], line: str) -> None:
    assert run_line(replace(RUN, **changes)) == line  # type: ignore[arg-type]


def test_how_a_command_ended_and_who_exceeded_the_limit() -> None:
    culprits = (
        Culprit(pid=11, name="python", uuid=None, memory_used_bytes=9 * GIB),
        Culprit(pid=12, name=None, uuid=None, memory_used_bytes=GIB),
    )
    run = replace(
        RUN, exceeded=True, culprits=culprits, unavailable={"later_readings": "NVML went away"}
    )

    assert outcome_lines(RUN) == [
        "The command ended with 7. Within the limit: peak 5.0 GiB of 8.0 GiB on GPU 0."
    ]
    assert outcome_lines(run)[1:] == [
        "python (11) had 9.0 GiB when the limit was exceeded",
        "process (12) had 1.0 GiB when the limit was exceeded",
        "NVML went away",
    ]


HARD_GPU = HardGpu(
    uuid="GPU-1", index=0, cuda_index=5, soft_limit_bytes=8 * GIB, hard_limit_bytes=8 * GIB
)
HARD = HardLimit(cgroup="/a/gpucheck-1", place="own", back_end="driver", gpus=(HARD_GPU,))


@pytest.mark.parametrize(
    ("gpus", "sizes"),
    [
        ([HARD_GPU], "8.00 GiB on GPU 0"),
        ([replace(HARD_GPU, index=None)], "8.00 GiB on GPU 5"),
        ([replace(HARD_GPU, cuda_index=None, index=None)], "8.00 GiB on GPU 0"),
        ([HARD_GPU, replace(HARD_GPU, index=1)], "8.00 GiB on each of GPUs 0-1"),
        (
            [HARD_GPU, replace(HARD_GPU, index=1, hard_limit_bytes=GIB)],
            "8.00 GiB on GPU 0, 1.00 GiB on GPU 1",
        ),
    ],
)
def test_what_the_driver_enforces(gpus: list[HardGpu], sizes: str) -> None:
    found, _ = hard_sentences(replace(HARD, gpus=tuple(gpus)))
    kernel, _ = hard_sentences(replace(HARD, gpus=tuple(gpus), back_end="dmem"))

    rest = "for every library and child (gpucheck-1)"
    assert found == f"{sizes}: enforced by the driver, {rest}"
    assert kernel == f"{sizes}: enforced by the kernel (dmem) for the driver, {rest}"


@pytest.mark.parametrize(
    ("gpu", "changes", "end"),
    [
        ({"peak_bytes": 3 * GIB}, {"removed": True}, "peak 3.00 GiB; limit and cgroup removed"),
        ({"peak_bytes": 0}, {"removed": True}, "peak 0 B; limit and cgroup removed"),
        ({}, {"removed": True}, "its peak is unknown; limit and cgroup removed"),
        (
            {},
            {"removed": False},
            "its peak is unknown; /a/gpucheck-1 could not be removed; the next call tries again",
        ),
        (
            {"allocated_bytes": 8 * GIB, "refused_bytes": GIB},
            {"removed": False, "left_pids": (1, 2, 3, 4, 5, 6)},
            "an allocation up to 9.00 GiB was refused with out of memory; its peak is unknown;"
            " the limit stays for what still runs (PID 1, 2, 3, 4, 5); the next call removes it",
        ),
    ],
)
def test_how_a_hard_limit_ended(
    gpu: dict[str, object], changes: dict[str, object], end: str
) -> None:
    first = replace(HARD_GPU, **gpu)  # type: ignore[arg-type]
    second = replace(HARD_GPU, cuda_index=1, peak_bytes=gpu.get("peak_bytes") and 1)  # type: ignore[arg-type]

    found = hard_sentences(replace(HARD, gpus=(first, second), **changes))  # type: ignore[arg-type]

    assert found[1] == end
