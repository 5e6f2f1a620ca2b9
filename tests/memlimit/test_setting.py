"""Fractions of a limit: of what each framework counts from, also in a cgroup with a limit."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest

from gpucheck.drivers.python.frameworks import Software
from gpucheck.memlimit.mechanisms.setting import NO_COMMAND, PlanInput
from gpucheck.memlimit.model import GpuMemoryLimit
from gpucheck.report.units import parse_amount

GIB = 1 << 30
CARD = GpuMemoryLimit(
    uuid="GPU-1",
    memory_total_bytes=16 * GIB,
    limit_bytes=4 * GIB,
    allocator_limit_bytes=4 * GIB,
    memory_limit_bytes=8 * GIB,
    memory_limit_source="dmem.max",
)


def inputs(*gpus: GpuMemoryLimit) -> PlanInput:
    return PlanInput(
        amount=parse_amount("50%"),
        limits=gpus,
        environment={},
        software=Software(),
        hook=NO_COMMAND,
    )


@pytest.mark.parametrize(
    ("source", "of_cuda"),
    [("dmem.max", "1/2"), ("nvml", "1/2"), ("dmem.max of a parent", "1/4")],
)
def test_cudas_total_follows_our_own_groups_limit(source: str, of_cuda: str) -> None:
    found = inputs(replace(CARD, memory_limit_source=source))

    assert found.fraction() == Fraction(of_cuda)
    assert found.fraction(of_cards=True) == Fraction(1, 4)


def test_without_a_limit_the_share_is_of_every_total() -> None:
    free = replace(CARD, memory_limit_bytes=None, memory_limit_source=None)

    assert inputs(free).fraction() == inputs(free).fraction(of_cards=True) == Fraction(1, 2)
    # One card with a limit of its own: one fraction must serve both.
    assert inputs(free, CARD).fraction() == Fraction(1, 4)


def test_a_card_of_unknown_size_has_a_fraction_of_its_limit_alone() -> None:
    found = inputs(replace(CARD, memory_total_bytes=None))

    assert (found.fraction(), found.fraction(of_cards=True)) == (Fraction(1, 2), None)
