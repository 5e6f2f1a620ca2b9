"""Memory fit of problem sizes, and GPUs whose memory other processes hold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from gpucheck.bench.gpu_case import ROTATION_IN_L2
from gpucheck.bench.kernel import Kernel
from gpucheck.bench.model import BenchMode
from gpucheck.bench.record import memory_taken
from gpucheck.drivers.gpu import BenchGpu
from gpucheck.inventory.condition import RESERVED_BYTES, spare_bytes
from gpucheck.report.envelope import Failure
from gpucheck.report.errors import InconclusiveError, WrongUseError

#: Share of the free memory that a group may use; the system and other programs keep the rest.
_HOST_SHARE, _GPU_SHARE = 0.5, 0.8
#: A GPU whose free memory holds less than this part of the size is left out, since it would shrink
#: the size for the others too.
_LEAST_PART = 1 / 16
#: Kernels that move a GPU's memory, and the shortest useful time of their operations: a graph takes
#: about a microsecond to start the next one.
_OF_MEMORY, _LEAST_OPERATION_S = frozenset({"copy", "triad", "softmax"}), 100e-6
#: Largest edge (2 GiB) of the copy that shows a processor's limit; it must exceed the caches.
_LARGEST_LIMIT = 16384


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """Devices of a run, and the host's free memory and last-level cache; None if unknown.

    `holders` names the processes that hold a GPU's memory, by UUID; `variables` are those of the
    environment.
    """

    with_cpu: bool = True
    gpus: tuple[BenchGpu, ...] = ()
    host_bytes: int | None = None
    cache_bytes: int | None = None
    holders: Mapping[str, str] = field(default_factory=dict)
    variables: Mapping[str, str] = field(default_factory=dict)


def taken_by_others(
    kernel: Kernel, dtype: str, gpu: BenchGpu, size: int, machine: Machine, *, exact: bool
) -> Failure | None:
    """Return the error of a GPU on which other processes leave too little memory.

    With `exact` the user chose the size: only a GPU that fits no size is left out, and `check_fits`
    handles the rest. A GPU that is too small even when empty has no error.
    """
    least = 1 if exact else max(1, int(_LEAST_PART * size))
    needed = kernel.device_bytes(kernel.shape(least), dtype)
    if needed <= _GPU_SHARE * gpu.memory_free_bytes:
        return None
    if needed > _GPU_SHARE * gpu.memory_total_bytes:
        return None
    return memory_taken(gpu, machine.holders.get(gpu.uuid or ""))


def reduced_size(
    kernel: Kernel, dtype: str, size: int, gpus: Sequence[BenchGpu], machine: Machine
) -> int:
    """Return the size, or the largest power of two that fits.

    Raises:
        InconclusiveError: not even the smallest size fits.
    """
    if fits(kernel, dtype, size, machine, gpus):
        return size
    return power_of_two(_largest(kernel, dtype, size, machine, gpus))


def check_fits(
    kernel: Kernel, dtype: str, size: int, gpus: Sequence[BenchGpu], machine: Machine
) -> None:
    """Check that a size fits; the error names the largest that does.

    Raises:
        WrongUseError: the size does not fit.
        InconclusiveError: not even the smallest size fits.
    """
    if fits(kernel, dtype, size, machine, gpus):
        return
    largest = _largest(kernel, dtype, size, machine, gpus)
    held = [
        f"gpu:{gpu.cuda_index}: {machine.holders[gpu.uuid or '']}."
        for gpu in gpus
        if (gpu.uuid or "") in machine.holders
    ]
    raise WrongUseError(
        code="size-does-not-fit",
        message=f"{kernel.id} of size {size} does not fit into the free memory.",
        remedy=(f"The largest size that fits now is {largest}.", *held),
    )


def _largest(
    kernel: Kernel, dtype: str, size: int, machine: Machine, gpus: Sequence[BenchGpu]
) -> int:
    largest = largest_fitting(kernel, dtype, size, machine, gpus)
    if largest < 1 and any(gpu.integrated for gpu in gpus):
        raise InconclusiveError(
            code="memory-shared",
            message=f"{kernel.id} is not measured: the GPU shares the system's memory, of which at "
            f"least {RESERVED_BYTES / 2**30:.0f} GiB must stay available. Filling it would stop "
            "the whole machine.",
            remedy=(
                "End the programs that use the memory, and run it again.",
                "Measure the processor instead: --device cpu",
            ),
        )
    if largest < 1:
        raise InconclusiveError(
            code="memory-taken",
            message=f"{kernel.id} cannot be measured: hardly any memory is free.",
            remedy=("End the programs that use the memory, and run it again.",),
        )
    return largest


def fits(kernel: Kernel, dtype: str, size: int, machine: Machine, gpus: Sequence[BenchGpu]) -> bool:
    """Return whether a size fits into the free memory of the host and of these GPUs.

    Memory that a GPU shares with the host counts for both and must never fill up.
    """
    shape = kernel.shape(size)
    host = kernel.host_bytes(shape, dtype, len(machine.gpus))
    if machine.host_bytes is not None and host > _HOST_SHARE * machine.host_bytes:
        return False
    needed = kernel.device_bytes(shape, dtype)
    if not all(needed <= _GPU_SHARE * gpu.memory_free_bytes for gpu in gpus):
        return False
    sharing = sum(bool(gpu.integrated) for gpu in gpus)
    return not sharing or host + sharing * needed <= spare_bytes(machine.host_bytes or 0)


def long_enough(kernel: Kernel, dtype: str, mode: BenchMode, gpus: Sequence[BenchGpu]) -> int:
    """Return the default edge: the mode's, doubled for fast memory.

    It is doubled until an operation takes a tenth of a millisecond at the fastest board's
    bandwidth. The quick mode has no time for that; the default mode stops at the full mode's edge.
    """
    edge, most = kernel.sizes[mode], kernel.sizes[BenchMode.FULL]
    if kernel.id not in _OF_MEMORY or mode is BenchMode.QUICK:
        return edge
    if mode is BenchMode.FULL:
        most *= 2
    fastest = max((gpu.board.bytes_per_s or 0.0 for gpu in gpus if gpu.board), default=0.0)
    wanted = _LEAST_OPERATION_S * fastest
    while 2 * edge <= most and kernel.work(kernel.shape(edge), dtype).bytes_moved < wanted:
        edge *= 2
    return edge


def beyond_cache(kernel: Kernel, edge: int, cache_bytes: int | None) -> int:
    """Return the edge, doubled until one operation walks through several times the cache."""
    wanted = ROTATION_IN_L2 * (cache_bytes or 0)
    while edge < _LARGEST_LIMIT and kernel.work(kernel.shape(edge), "float32").bytes_moved < wanted:
        edge *= 2
    return edge


def largest_fitting(
    kernel: Kernel, dtype: str, limit: int, machine: Machine, gpus: Sequence[BenchGpu]
) -> int:
    """Return the largest size up to `limit` that fits, 0 if none does; memory grows with size."""
    low, high = 0, limit
    while low < high:
        middle = (low + high + 1) // 2
        if fits(kernel, dtype, middle, machine, gpus):
            low = middle
        else:
            high = middle - 1
    return low


def power_of_two(size: int) -> int:
    """Return the largest power of two up to `size`; sizes in between are mostly slower."""
    return 1 << (size.bit_length() - 1)
