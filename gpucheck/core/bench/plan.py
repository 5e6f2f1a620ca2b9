"""What will be measured: kernels, shapes that fit the memory, and the time for each group."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gpucheck.core.bench.kernel import Kernel
from gpucheck.models.bench import BenchMode, BenchRequest
from gpucheck.models.errors import WrongUseError

#: Share of the free memory that a group may take: the rest is for the system and other programs.
_HOST_SHARE, _GPU_SHARE = 0.5, 0.8

#: Seconds for all groups; the rest of the promised 10 and 60 seconds is for start-up and checks.
_BUDGETS_S = {BenchMode.QUICK: 7.0, BenchMode.DEFAULT: 48.0, BenchMode.FULL: 300.0}
#: Longest warm-up of one case: a chip needs seconds to reach its steady clock and temperature.
_WARMUPS_S = {BenchMode.QUICK: 0.2, BenchMode.DEFAULT: 1.0, BenchMode.FULL: 3.0}


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """What is free: on the host, and on the fullest of the GPUs taking part; None if unknown."""

    host_bytes: int | None
    gpu_bytes: int | None
    gpu_count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """The cases of one kernel at one shape, measured in turn with each other."""

    kernel: Kernel
    shape: tuple[int, ...]
    budget_s: float
    warmup_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The groups in order, and what a person should know about the choice."""

    groups: tuple[Group, ...]
    notes: tuple[str, ...]
    budget_s: float


def make_plan(request: BenchRequest, kernels: Mapping[str, Kernel], memory: Memory) -> Plan:
    """Choose kernels, shapes and times.

    Raises:
        WrongUseError: an unknown kernel or dtype, a size or budget that makes no sense, or an
            explicit size that does not fit the memory.
    """
    chosen = _chosen_kernels(request, kernels)
    _check_numbers(request)
    for kernel in chosen:
        _check_dtype(request, kernel)
        kernel.validate(request)
    budget_s = _BUDGETS_S[request.mode] if request.budget_s is None else request.budget_s
    share_s = budget_s / len(chosen)
    groups: list[Group] = []
    notes: list[str] = []
    for kernel in chosen:
        size, note = _fitting_size(request, kernel, memory)
        notes.extend(note)
        warmup_s = min(_WARMUPS_S[request.mode], share_s / 20)
        groups.append(
            Group(kernel=kernel, shape=kernel.shape(size), budget_s=share_s, warmup_s=warmup_s)
        )
    return Plan(groups=tuple(groups), notes=tuple(notes), budget_s=budget_s)


def _chosen_kernels(request: BenchRequest, kernels: Mapping[str, Kernel]) -> Sequence[Kernel]:
    for name in request.kernels:
        if name not in kernels:
            raise WrongUseError(
                code="unknown-kernel",
                message=f"there is no kernel called {name!r}",
                remedy=(f"choose from: {', '.join(kernels)}",),
            )
    # dict.fromkeys keeps the order and drops what was named twice.
    return [kernels[name] for name in dict.fromkeys(request.kernels or tuple(kernels))]


def _check_dtype(request: BenchRequest, kernel: Kernel) -> None:
    if request.dtype not in kernel.dtypes:
        raise WrongUseError(
            code="unknown-dtype",
            message=f"bench cannot measure {kernel.id} in dtype {request.dtype!r}",
            remedy=(f"choose from: {', '.join(kernel.dtypes)}",),
        )


def _check_numbers(request: BenchRequest) -> None:
    if request.size is not None and request.size < 1:
        raise WrongUseError(
            code="bad-size",
            message=f"a size must be at least 1, not {request.size}",
            remedy=("give the edge of the square problem, for example --size 4096",),
        )
    if request.budget_s is not None and not 0 < request.budget_s < float("inf"):
        raise WrongUseError(
            code="bad-budget",
            message=f"a budget must be a positive number of seconds, not {request.budget_s:g}",
            remedy=("give seconds, for example --budget 30",),
        )
    if request.seed < 0:
        raise WrongUseError(
            code="bad-seed",
            message=f"a seed must be zero or greater, not {request.seed}",
            remedy=("give a whole number, for example --seed 1",),
        )


def _fits(kernel: Kernel, size: int, memory: Memory) -> bool:
    shape = kernel.shape(size)
    needs = (
        (kernel.host_bytes(shape, memory.gpu_count), memory.host_bytes, _HOST_SHARE),
        (kernel.device_bytes(shape), memory.gpu_bytes, _GPU_SHARE),
    )
    return all(free is None or needed <= share * free for needed, free, share in needs)


def _largest_fitting(kernel: Kernel, limit: int, memory: Memory) -> int:
    """Return the largest size up to `limit` that fits, 0 if none does; memory grows with size."""
    low, high = 0, limit
    while low < high:
        middle = (low + high + 1) // 2
        if _fits(kernel, middle, memory):
            low = middle
        else:
            high = middle - 1
    return low


def _fitting_size(
    request: BenchRequest, kernel: Kernel, memory: Memory
) -> tuple[int, tuple[str, ...]]:
    """Return the size to measure, and the statement if it is smaller than the mode's."""
    size = request.size or kernel.sizes[request.mode]
    if _fits(kernel, size, memory):
        return size, ()
    largest = _largest_fitting(kernel, size, memory)
    if request.size is not None or largest < 1:
        raise WrongUseError(
            code="size-does-not-fit",
            message=f"{kernel.id} of size {size} does not fit into the free memory",
            remedy=(f"the largest size that fits now is {largest}",),
        )
    # A power of two: sizes in between are slower on most hardware.
    reduced = 2 ** (largest.bit_length() - 1)
    note = f"{kernel.id}: size {size} does not fit into the free memory, measured at {reduced}"
    return reduced, (note,)
