"""Estimates of what rows cost before any of them runs: their work, at what this machine can do.

They only decide what is left out when the time is short, so a factor of two is good enough.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gpucheck.core.bench.kernel import CaseLabel, Work
from gpucheck.core.bench.peaks import format_of
from gpucheck.core.bench.record import Record
from gpucheck.models.bench import BenchGpu, Scope
from gpucheck.probes.blas import BlasDoor
from gpucheck.probes.clock import Clock

#: The product and the copy that are timed, and how often: about 20 ms on one core.
_EDGE, _COPY_BYTES, _TIMES = 384, 2**23, 8
#: A GPU reaches half of its sheet's figures at least, and a link 5 GB/s.
_GPU_SHARE, _LINK_BYTES_PER_S = 0.5, 5e9
#: Passes over an operation's bytes that drawing, allocating and checking take, at a copy's speed.
_OVERHEAD_PASSES = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class HostRates:
    """What one thread does in a second: float32 operations of a product, bytes of a copy."""

    flops_per_s: float
    bytes_per_s: float


def measure_host(clock: Clock, blas: BlasDoor) -> HostRates | None:
    """Return the best rates of a small product and a small copy; None where the clock stands.

    Of one thread: on a busy machine several wait for each other for whole slices of time.
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
    """Write into each record how long one operation, and the rest of a turn, should take."""
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
    """Return the time at the measured rates: float64 counts double, other formats as float32."""
    flops_per_s = host.flops_per_s * (label.threads or 1)
    if label.dtype.input == "float64":
        flops_per_s /= 2
    return max(work.flops / flops_per_s, work.bytes_moved / host.bytes_per_s)


def _on_gpu(label: CaseLabel, work: Work, gpu: BenchGpu | None) -> float:
    """Return the time at half of what the board's sheet says, 0 of what it does not say."""
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
