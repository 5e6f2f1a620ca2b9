from __future__ import annotations

import pytest

from gpucheck.core.bench.kernels import KERNELS
from gpucheck.core.bench.plan import Memory, make_plan
from gpucheck.models.bench import BenchMode, BenchRequest
from gpucheck.models.errors import WrongUseError

PLENTY = Memory(host_bytes=2**40, gpu_bytes=2**40, gpu_count=1)


def test_every_kernel_is_planned_when_none_is_named() -> None:
    plan = make_plan(BenchRequest(), KERNELS, PLENTY)

    assert [group.kernel.id for group in plan.groups] == list(KERNELS)
    assert sum(group.budget_s for group in plan.groups) == pytest.approx(plan.budget_s)
    assert plan.notes == ()


def test_a_kernel_named_twice_is_measured_once() -> None:
    plan = make_plan(BenchRequest(kernels=("softmax", "softmax")), KERNELS, PLENTY)

    assert [group.kernel.id for group in plan.groups] == ["softmax"]


@pytest.mark.parametrize("mode", BenchMode)
def test_each_mode_has_sizes_and_its_promised_time(mode: BenchMode) -> None:
    plan = make_plan(BenchRequest(mode=mode), KERNELS, PLENTY)

    promised_s = {BenchMode.QUICK: 10, BenchMode.DEFAULT: 60, BenchMode.FULL: 600}
    assert 0 < plan.budget_s < promised_s[mode]
    assert all(min(group.shape) >= 1024 for group in plan.groups)


def test_an_explicit_size_and_budget_are_taken() -> None:
    plan = make_plan(BenchRequest(kernels=("matmul",), size=64, budget_s=2.5), KERNELS, PLENTY)

    assert plan.groups[0].shape == (64, 64, 64)
    assert plan.groups[0].budget_s == 2.5


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (BenchRequest(kernels=("matmull",)), "unknown-kernel"),
        (BenchRequest(dtype="float16"), "unknown-dtype"),
        (BenchRequest(size=0), "bad-size"),
        (BenchRequest(size=-1), "bad-size"),
        (BenchRequest(budget_s=0.0), "bad-budget"),
        (BenchRequest(budget_s=float("nan")), "bad-budget"),
        (BenchRequest(budget_s=float("inf")), "bad-budget"),
        (BenchRequest(seed=-1), "bad-seed"),
        (BenchRequest(temperature=0.0), "bad-temperature"),
        (BenchRequest(temperature=-1.0), "bad-temperature"),
        (BenchRequest(temperature=float("nan")), "bad-temperature"),
        (BenchRequest(size=10**9), "size-does-not-fit"),
    ],
)
def test_wrong_use_is_refused_before_anything_is_measured(
    request_: BenchRequest, code: str
) -> None:
    with pytest.raises(WrongUseError) as caught:
        make_plan(request_, KERNELS, PLENTY)

    assert caught.value.code == code
    assert caught.value.remedy


def test_the_temperature_does_not_matter_to_matmul() -> None:
    assert make_plan(BenchRequest(kernels=("matmul",), temperature=0.0), KERNELS, PLENTY).groups


@pytest.mark.parametrize(
    "memory",
    [
        Memory(host_bytes=10 * 2**20, gpu_bytes=None, gpu_count=0),
        Memory(host_bytes=None, gpu_bytes=10 * 2**20, gpu_count=1),
    ],
    ids=["host", "gpu"],
)
def test_a_size_of_ours_is_reduced_with_a_statement(memory: Memory) -> None:
    plan = make_plan(BenchRequest(kernels=("matmul",)), KERNELS, memory)

    (edge, *_) = plan.groups[0].shape
    assert edge < 2048
    assert edge.bit_count() == 1
    assert plan.notes == (
        f"matmul: size 2048 does not fit into the free memory, measured at {edge}",
    )


def test_an_explicit_size_is_refused_with_the_largest_that_fits() -> None:
    memory = Memory(host_bytes=100 * 2**20, gpu_bytes=None, gpu_count=0)
    with pytest.raises(WrongUseError) as caught:
        make_plan(BenchRequest(kernels=("softmax",), size=100_000), KERNELS, memory)
    largest = int(caught.value.remedy[0].split()[-1])

    make_plan(BenchRequest(kernels=("softmax",), size=largest), KERNELS, memory)
    with pytest.raises(WrongUseError, match="does not fit"):
        make_plan(BenchRequest(kernels=("softmax",), size=largest + 1), KERNELS, memory)


def test_no_memory_at_all_is_refused_and_not_reduced_to_nothing() -> None:
    memory = Memory(host_bytes=0, gpu_bytes=None, gpu_count=0)

    with pytest.raises(WrongUseError, match="does not fit"):
        make_plan(BenchRequest(), KERNELS, memory)
