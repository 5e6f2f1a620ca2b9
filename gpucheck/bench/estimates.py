"""Cost estimates of rows before they run, from their work and this machine's rates.

They only decide what to leave out when time is short, so a factor of two is accurate enough.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gpucheck.bench.kernel import CaseLabel, Work
from gpucheck.bench.model import Scope
from gpucheck.bench.peaks import format_of
from gpucheck.bench.record import Record
from gpucheck.drivers.gpu import BenchGpu
from gpucheck.drivers.host.blas import BlasDoor
from gpucheck.drivers.host.clock import Clock

#: Sizes of the timed product and copy, and their repetitions: about 20 ms on one core.
_EDGE, _COPY_BYTES, _TIMES = 384, 2**23, 8
#: A GPU reaches at least half of its datasheet's figures, and a link 5 GB/s.
_GPU_SHARE, _LINK_BYTES_PER_S = 0.5, 5e9
#: Passes over an operation's bytes for drawing, allocating and checking, at a copy's speed.
_OVERHEAD_PASSES = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class HostRates:
    """Rates of one thread: float32 operations of a product, bytes of a copy."""

    flops_per_s: float
    bytes_per_s: float


def measure_host(clock: Clock, blas: BlasDoor) -> HostRates | None:
    """Return the best rates of a small product and a small copy; None if the clock stands still.

    With one thread: on a busy machine several threads wait for each other for whole time slices.
    """
    import numpy as np

    factor = np.ones((_EDGE, _EDGE), dtype=np.float32)
    source = np.ones(_COPY_BYTES // 4, dtype=np.float32)
    target = np.zeros_like(source)
    products, copies = [], []
    with blas.limited(1):
        for _ in range(_TIMES):
            began_s = clock.now_s()
            np.matmul(factor, factor)
            between_s = clock.now_s()
            np.copyto(target, source)
            products.append(between_s - began_s)
            copies.append(clock.now_s() - between_s)
    if min(*products, *copies) <= 0:
        return None
    return HostRates(
        flops_per_s=2 * _EDGE**3 / min(products),
        bytes_per_s=2 * _COPY_BYTES / min(copies),
    )


def expect(records: Sequence[Record], host: HostRates | None, gpus: Sequence[BenchGpu]) -> None:
    """Write the expected time of an operation, and of a slice's overhead, into each record."""
    if host is None:
        return
    for record in records:
        label, work = record.case.label, record.case.work
        record.expected_overhead_s = _OVERHEAD_PASSES * work.bytes_moved / host.bytes_per_s
        if label.device == "cpu":
            record.expected_operation_s = _on_host(label, work, host)
        else:
            gpu = next((gpu for gpu in gpus if label.device == f"gpu:{gpu.cuda_index}"), None)
            record.expected_operation_s = _on_gpu(label, work, gpu)


def _on_host(label: CaseLabel, work: Work, host: HostRates) -> float:
    """Return the time at the measured rates; float64 counts double, other formats as float32."""
    flops_per_s = host.flops_per_s * (label.threads or 1)
    if label.dtype.input == "float64":
        flops_per_s /= 2
    return max(work.flops / flops_per_s, work.bytes_moved / host.bytes_per_s)


def _on_gpu(label: CaseLabel, work: Work, gpu: BenchGpu | None) -> float:
    """Return the time at half of the datasheet's rates, 0 for rates it does not give."""
    moved_s = work.bytes_moved / _LINK_BYTES_PER_S
    if label.scope is Scope.END_TO_END or label.kernel in ("transfer", "p2p"):
        return moved_s
    board = gpu.board if gpu is not None else None
    if board is None:
        return 0.0
    times = [0.0]
    flops_per_s = board.flops_per_s.get(format_of(label.dtype))
    if flops_per_s:
        times.append(work.flops / (_GPU_SHARE * flops_per_s))
    if board.bytes_per_s:
        times.append(work.bytes_moved / (_GPU_SHARE * board.bytes_per_s))
    return max(times)
