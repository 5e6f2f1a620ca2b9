"""Roofline of each row: the datasheet's peak and the best results of this run.

A GPU's row is compared with its board's peak and the copy measured on it. A processor's row is
compared with the best copy and matrix product of the same run, since no peak is published for it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace

from gpucheck.bench.model import Measurement, Roofline, Scope
from gpucheck.bench.peaks import TENSOR_FORMATS, format_of
from gpucheck.drivers.gpu import BenchGpu, Board


def rooflines_of(rows: Sequence[Measurement]) -> tuple[Roofline, ...]:
    """Return the limits that good rows of `copy`, `triad` and `matmul` show, by device and threads.

    The fastest of all samples counts, as in STREAM: a speed reached once is possible.
    """
    good = [row for row in rows if _is_good(row)]
    places = dict.fromkeys((row.device, row.threads) for row in good if row.kernel in _STREAMS)
    places |= dict.fromkeys(
        (row.device, row.threads) for row in good if row.kernel == "matmul" and row.device == "cpu"
    )
    return tuple(_roofline(good, device, threads) for device, threads in places)


def _is_good(row: Measurement) -> bool:
    verified = row.verified is not None and row.verified.ok
    return verified and row.scope is Scope.RESIDENT and row.summary is not None


def _roofline(rows: Sequence[Measurement], device: str, threads: int | None) -> Roofline:
    here = [row for row in rows if (row.device, row.threads) == (device, threads)]
    copies = [row for row in here if row.kernel in _STREAMS and not in_cache(row)]
    # A small copy shows the cost of its launch, not the speed of the memory.
    largest = max((math.prod(row.shape) for row in copies), default=0)
    copies = [row for row in copies if math.prod(row.shape) == largest]
    cached = any(row.kernel in _STREAMS for row in here) and not copies
    # The other kernels compute in float32.
    products = [row for row in here if row.kernel == "matmul" and row.dtype.math_mode == "fp32"]
    return Roofline(
        device=device,
        threads=threads,
        copy_bytes_per_s=max(map(_fastest, copies), default=None),
        gemm_flops_per_s=max(map(_fastest, products), default=None),
        gemm_dtype="float32",
        unavailable={"copy_bytes_per_s": _CACHED} if cached else {},
    )


#: Kernels that only move memory.
_STREAMS = ("copy", "triad")
#: Reason for a missing limit although a copy was measured.
_CACHED = "the copies of this run may have stayed in a cache: choose a larger --size"


def in_cache(row: Measurement) -> bool:
    """Return whether a row's data may have stayed in a cache."""
    return any(doubt.code.endswith("-resident") for doubt in row.doubts)


def _fastest(row: Measurement) -> float:
    """Return the throughput of a row's fastest sample, in its bytes or operations."""
    amount = row.bytes_moved if row.kernel in _STREAMS else row.flops
    return (amount or 0) / row.summary.min_s if row.summary is not None else 0.0


def held_against(
    row: Measurement, rooflines: Iterable[Roofline], gpus: Sequence[BenchGpu]
) -> Measurement:
    """Return the row with its percentages and their limits; a row without interval has none."""
    if row.median_s is None or row.throughput is None:
        return row
    if row.ci95_s is None:
        reason = row.unavailable.get("ci95_s", "it has no interval")
        unknown = dict.fromkeys(("percent_of_peak", "percent_of_copy"), reason)
        return replace(row, unavailable=row.unavailable | unknown)
    roofline = _nearest(row, rooflines)
    gpu = next((gpu for gpu in gpus if row.device == f"gpu:{gpu.cuda_index}"), None)
    row = _against_copy(row, roofline)
    if row.device == "cpu":
        return _against_product(row, roofline)
    board = gpu.board if gpu is not None else None
    return _against_board(row, board)


def _nearest(row: Measurement, rooflines: Iterable[Roofline]) -> Roofline | None:
    """Return the limits of the row's device at its number of threads; a naive row has one."""
    for roofline in rooflines:
        if (roofline.device, roofline.threads) == (row.device, row.threads):
            return roofline
    return None


def _share(part: float, whole: float) -> float:
    return 100 * part / whole


def _against_copy(row: Measurement, roofline: Roofline | None) -> Measurement:
    """Return the row with its percentage of the measured copy, if it moves memory."""
    copy = roofline.copy_bytes_per_s if roofline is not None else None
    if roofline is not None and "copy_bytes_per_s" in roofline.unavailable:
        reason = roofline.unavailable["copy_bytes_per_s"]
        row = replace(row, unavailable=row.unavailable | {"percent_of_copy": reason})
    if copy is None or row.throughput is None:
        return row
    if row.throughput.unit != "B/s" or row.scope is not Scope.RESIDENT or row.kernel in _LINKS:
        reason = "memory does not limit its speed"
        return replace(row, unavailable=row.unavailable | {"percent_of_copy": reason})
    limits = row.limits | {"copy": "the best copy or triad of this run"}
    percent = _share(row.throughput.value, copy)
    return replace(
        row, percent_of_copy=percent, limits=limits, unavailable=_without(row, "percent_of_copy")
    )


#: Kernels that measure a link between memories, not the memory itself.
_LINKS = frozenset({"transfer", "p2p"})


def _without(row: Measurement, key: str) -> dict[str, str]:
    return {name: why for name, why in row.unavailable.items() if name != key}


def _against_product(row: Measurement, roofline: Roofline | None) -> Measurement:
    """Return the row with its percentage of the measured matrix product, if it computes."""
    best = roofline.gemm_flops_per_s if roofline is not None else None
    if row.throughput is None or row.throughput.unit == "B/s" or not row.flops:
        reason = "memory limits its speed: see percent_of_copy"
    elif row.dtype.math_mode != "fp32":
        reason = f"no peak is known for {row.dtype.math_mode} on this processor"
    elif best is None or row.median_s is None:
        reason = "no matrix product was measured with this number of threads"
    else:
        percent = _share(row.flops / row.median_s, best)
        limits = row.limits | {"peak": "the best float32 product of this run"}
        kept = _without(row, "percent_of_peak")
        return replace(row, percent_of_peak=percent, limits=limits, unavailable=kept)
    return replace(row, unavailable=row.unavailable | {"percent_of_peak": reason})


def _against_board(row: Measurement, board: Board | None) -> Measurement:
    """Return the row with its percentage of the board's peak, at the nominal and the real clock."""
    if row.scope is not Scope.RESIDENT or row.kernel in _LINKS or row.throughput is None:
        reason = "transfers limit its speed"
        return replace(row, unavailable=row.unavailable | {"percent_of_peak": reason})
    peak, name = _peak(row, board), format_of(row.dtype)
    if board is None or peak is None or row.median_s is None:
        reason = "the board is not in the table, and its peak in this format cannot be computed"
        return replace(row, unavailable=row.unavailable | {"percent_of_peak": reason})
    by_memory = row.throughput.unit == "B/s"
    reached = row.throughput.value if by_memory else (row.flops or 0) / row.median_s
    percent = _share(reached, peak)
    at_clock = None
    nominal_mhz = board.tensor_clock_mhz if name in TENSOR_FORMATS else board.clock_mhz
    if not by_memory and row.sm_clock_mhz and nominal_mhz:
        at_clock = percent * nominal_mhz / row.sm_clock_mhz
    return replace(
        row,
        percent_of_peak=percent,
        percent_of_peak_at_clock=at_clock,
        limits=row.limits | {"peak": _named(board, name, by_memory=by_memory)},
        unavailable=_without(row, "percent_of_peak"),
    )


def _peak(row: Measurement, board: Board | None) -> float | None:
    if board is None or row.throughput is None:
        return None
    if row.throughput.unit == "B/s":
        return board.bytes_per_s
    return board.high_flops_per_s.get(format_of(row.dtype)) if row.flops else None


def _named(board: Board, dtype: str, *, by_memory: bool) -> str:
    """Return the name of the limit that a percentage refers to; of a range it is the upper end."""
    low, high = board.flops_per_s.get(dtype, 0.0), board.high_flops_per_s.get(dtype, 0.0)
    named = f"{board.name}, {board.source_of('bytes_per_s' if by_memory else dtype)}"
    if by_memory or low == high:
        return named
    return f"{named}: {low / 1e12:.3g} to {high / 1e12:.3g} TFLOP/s"
