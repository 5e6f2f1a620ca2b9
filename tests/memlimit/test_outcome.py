"""Outcome of a plan for each framework."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpucheck.memlimit.model import (
    GpuMemoryLimit,
    Mechanism,
    MemoryLimit,
    MemoryRequest,
    Strength,
    Way,
)
from gpucheck.memlimit.outcome import HOOK, FrameworkOutcome, framework_outcomes, group_by_mechanism

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
