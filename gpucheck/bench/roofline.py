"""Roofline of each row: the peaks of its board and the best results of this run.

Peaks come from the sourced table by PCI device id, else by formula: FLOP/s = SMs x clock x
operations per clock and SM; bytes/s = memory clock x bus bits / 8 x 2. The compute capability alone
does not give the rate (8.6, 8.9 and 12.0 have boards of half rate), so an unknown board has a
range.

A GPU's row is compared with its board's peak and the copy measured on it. A processor's row is
compared with what the same run measured on at most as many threads, since no peak is published for
it: the best matrix product, and the best copy from memory or, for data that fit into the cache, of
as many bytes. The exponentials alone, in the cache, are softmax' second limit: the lower counts.
Rows and limits come by the same estimator.

The doubts cover figures beyond a limit, uncertain limits, and two signs that a GPU product did not
run in the arithmetic that its row names: a rate that needs no tensor cores, and an error that does
not match the format.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from operator import attrgetter
from typing import Any

from gpucheck.bench.boards import (
    VGPU,
    VGPU_SHARE,
    BoardPeaks,
    ComputePeak,
    MemoryPeak,
    find_board,
)
from gpucheck.bench.doubt_table import make_doubt
from gpucheck.bench.kernels import kernels_with
from gpucheck.bench.kernels.softmax import EXPONENTIALS
from gpucheck.bench.model import LARGER_SIZE, Doubt, Fact, Measurement, Roofline, Scope
from gpucheck.data import read_table
from gpucheck.drivers.gpu import BenchGpu, Board

#: Formats that run on tensor cores, which have a lower clock on some boards.
TENSOR_FORMATS = frozenset({"tf32", "float16", "bfloat16", "float8", "int8"})
#: PCI device ids of TU116 and TU117, compute capability 7.5 without tensor cores. Ids: names of
#: NVIDIA's open kernel modules (g_nv_name_released.h); the chips: techpowerup's review of GTX 1660.
_WITHOUT_TENSOR_CORES = (range(0x1F80, 0x2000), range(0x2180, 0x2200))
#: Doubt of a row whose data may be in the processor's cache.
_RESIDENT = "cache-resident"
#: Reasons for no percentage of a peak, and for none of a copy.
_BY_MEMORY = "memory limits its speed: see percent_of_copy"
_NO_MEMORY = "memory does not limit its speed"
_NO_COPY = "no copy of as many bytes was measured"
_NO_PEAK = "the board is not in the table, and its peak in this format cannot be computed"
#: Why a MIG instance has no peak of its memory: CUDA shows it the whole card's bus.
_MIG_MEMORY = "a MIG instance has a share of the memory"
#: Factor between the bytes of two rows up to which a cache holds as much of both.
_ALIKE = 1.25
#: Reason for a missing limit although a copy was measured.
_CACHED = f"the copies of this run may have stayed in a cache: {LARGER_SIZE}"


def flops_by_formula(sm_count: int, clock_mhz: float, rate: float) -> float:
    """Return SMs x clock x operations per clock and SM, in FLOP/s."""
    return sm_count * clock_mhz * 1e6 * rate


def bytes_by_formula(memory_clock_mhz: float, bus_bits: int) -> float:
    """Return memory clock x bus width x 2, in bytes/s; the clock is half the pin rate."""
    return memory_clock_mhz * 1e6 * bus_bits / 8 * 2


def with_board(gpu: BenchGpu) -> BenchGpu:
    """Return a GPU with its limits from the table, else computed, and why it lacks some.

    Part of a board is never held against the whole: a MIG instance has what its SMs can do, and a
    vGPU, whose share may be of the time, no limit.
    """
    entry = find_board(gpu.name, gpu.pci_device_id, gpu.virtualization)
    board, why = None, {"board": "it is not in the table, and its peaks cannot be computed"}
    if gpu.virtualization == VGPU:
        why = {"board": VGPU_SHARE}
    elif entry is None or gpu.is_mig:
        board = _computed(gpu)
    elif gpu.sm_count < entry.sm_count:
        why = {"board": f"it has {gpu.sm_count} of the {entry.sm_count} SMs of {entry.name}"}
    else:
        board = board_from(entry)
    if board is not None:
        why = {"board.bytes_per_s": _MIG_MEMORY} if gpu.is_mig else {}
        board = replace(board, bytes_per_s=None) if gpu.is_mig else board
    return replace(gpu, board=board, unavailable=why)


def flops_of_cuda_cores(gpu: BenchGpu, name: str) -> float | None:
    """Return the peak of the CUDA cores alone in a tensor-core format.

    Products that sum in float32 then run at float32's rate, whatever their factors are.
    """
    if gpu.board is None:
        return None
    single = gpu.board.high_flops_per_s.get("float32")
    ratio = 1.0
    if name == "int8":
        ratio = read_table("peaks")["int8_on_cuda_cores"].get(gpu.compute_capability, 0.0)
    return single * ratio if single and ratio else None


def board_from(entry: BoardPeaks) -> Board:
    """Return the limits of a board of the table."""
    peaks = dict(entry.compute)
    # A float64 product runs on the tensor cores where they support it.
    tensor = peaks.pop("float64_tensor", None)
    if tensor is not None:
        peaks["float64"] = max(peaks.get("float64", tensor), tensor, key=attrgetter("flops_per_s"))
    flops = {name: peak.flops_per_s for name, peak in peaks.items()}
    doubtful: dict[str, ComputePeak | MemoryPeak] = {**entry.compute, "bytes_per_s": entry.memory}
    return Board(
        name=entry.name,
        source=entry.memory.source,
        sources={name: peak.source for name, peak in peaks.items()}
        | {"bytes_per_s": entry.memory.source},
        flops_per_s=flops,
        high_flops_per_s=flops,
        bytes_per_s=entry.memory.bytes_per_s,
        clock_mhz=entry.clock_sm_mhz,
        tensor_clock_mhz=entry.clock_tensor_mhz,
        uncertainty={name: peak.doubt for name, peak in doubtful.items() if peak.doubt},
    )


def _computed(gpu: BenchGpu) -> Board | None:
    """Return the range of all boards of this compute capability, at this GPU's own clock."""
    capability, clock = gpu.compute_capability, gpu.clock_sm_max_mhz
    rows = [
        rates
        for kind, rates in read_table("peaks")["rates"].items()
        if kind.removesuffix("-half") == capability
    ]
    if not rows or clock is None:
        return None
    device = int((gpu.pci_device_id or "0")[:4], 16)
    without_cores = "GTX 16" in gpu.name or any(device in ids for ids in _WITHOUT_TENSOR_CORES)

    def peaks(choose: Callable[[Iterable[float]], float]) -> dict[str, float]:
        values = {
            key: flops_by_formula(gpu.sm_count, clock, choose(row[key] for row in rows))
            for key in rows[0]
            if key not in TENSOR_FORMATS or not without_cores
        }
        tensor = values.pop("float64_tensor", None)
        if tensor is not None:
            values["float64"] = max(values["float64"], tensor)
        return values

    memory = None
    if gpu.clock_memory_max_mhz is not None and gpu.memory_bus_bits is not None:
        memory = bytes_by_formula(gpu.clock_memory_max_mhz, gpu.memory_bus_bits)
    return Board(
        name=gpu.name,
        source="computed from SMs, clock and compute capability",
        computed=True,
        flops_per_s=peaks(min),
        high_flops_per_s=peaks(max),
        bytes_per_s=memory,
        clock_mhz=clock,
        tensor_clock_mhz=clock,
    )


def rooflines_of(rows: Sequence[Measurement]) -> tuple[Roofline, ...]:
    """Return the limits that good rows of `copy`, `triad` and `matmul` show, by device and threads.

    What fewer threads reach is possible with more.
    """
    good = _sound(rows)
    places = dict.fromkeys(
        (row.device, row.threads) for row in good if row.kernel in kernels_with("streams")
    )
    places |= dict.fromkeys(
        (row.device, row.threads) for row in good if row.kernel == "matmul" and row.device == "cpu"
    )
    return tuple(_roofline(good, device, threads) for device, threads in places)


def _roofline(rows: Sequence[Measurement], device: str, threads: int | None) -> Roofline:
    here = [row for row in rows if row.device == device and (row.threads or 0) <= (threads or 0)]
    copies = [
        row for row in here if row.kernel in kernels_with("streams") and not may_be_cached(row)
    ]
    # A small copy shows the cost of its launch, not the speed of the memory.
    largest = max((math.prod(row.shape) for row in copies), default=None)
    copies = [row for row in copies if math.prod(row.shape) == largest]
    cached = any(row.kernel in kernels_with("streams") for row in here) and not copies
    # The other kernels compute in float32.
    products = [row for row in here if row.kernel == "matmul" and row.dtype.math_mode == "fp32"]
    return Roofline(
        device=device,
        threads=threads,
        copy_bytes_per_s=max(map(attrgetter("speed"), copies), default=None),
        gemm_flops_per_s=max(map(attrgetter("speed"), products), default=None),
        gemm_dtype="float32",
        unavailable={"copy_bytes_per_s": _CACHED} if cached else {},
    )


def may_be_cached(row: Measurement) -> bool:
    """Return whether a row's data may have stayed in a cache."""
    return any(doubt.code.endswith("-resident") for doubt in row.doubts)


def _sound(rows: Iterable[Measurement]) -> list[Measurement]:
    """Return the rows whose speed is a possible one."""
    return [
        row
        for row in rows
        if row.verified is not None
        and row.verified.ok
        and row.scope is Scope.RESIDENT
        and row.throughput is not None
    ]


def with_percentages(
    row: Measurement,
    rooflines: Iterable[Roofline],
    gpus: Sequence[BenchGpu],
    measured: Iterable[Measurement] = (),
) -> Measurement:
    """Return the row with its percentages and their limits; a row without interval has none.

    `measured` are all rows of the run, those that only show limits included.
    """
    if row.time_s is None or row.throughput is None:
        return row
    if row.ci95_s is None:
        reason = row.unavailable.get("ci95_s", "it has no interval")
        return _lacking(_lacking(row, "percent_of_peak", reason), "percent_of_copy", reason)
    # A naive row has one thread.
    place = (row.device, row.threads)
    roofline = next((item for item in rooflines if (item.device, item.threads) == place), None)
    gpu = next((gpu for gpu in gpus if row.device == gpu.device), None)
    if row.device != "cpu":
        return _compare_to_board(_compare_to_copy(row, roofline), gpu)
    possible = [
        item
        for item in _sound(measured)
        if item.device == "cpu" and (item.threads or 0) <= (row.threads or 0)
    ]
    row = _compare_to_copy(row, roofline, possible)
    if row.throughput is not None and row.throughput.unit == "B/s":
        return _compare_to_exponentials(row, possible)
    return _compare_to_product(row, roofline)


def _lacking(row: Measurement, key: str, reason: str) -> Measurement:
    """Return the row with the reason for a missing percentage."""
    return replace(row, unavailable=row.unavailable | {key: reason})


def _shared(row: Measurement, of: str, percent: float, limit: str) -> Measurement:
    """Return the row with a percentage, of the peak or a copy, and the name of that limit."""
    key = f"percent_of_{of}"
    kept = {name: why for name, why in row.unavailable.items() if name != key}
    shares: dict[str, Any] = {key: percent, "limits": row.limits | {of: limit}, "unavailable": kept}
    return replace(row, **shares)


def _compare_to_copy(
    row: Measurement, roofline: Roofline | None, possible: Sequence[Measurement] = ()
) -> Measurement:
    """Return the row with its percentage of the measured copy, if it moves memory.

    Data that a processor's cache may hold are held against a copy of as many bytes. Then it does
    not matter that they are in the cache, except where memory itself is measured.
    """
    moves = row.throughput is not None and row.throughput.unit == "B/s"
    if not moves or row.scope is not Scope.RESIDENT or row.kernel in kernels_with("measures_link"):
        return _lacking(row, "percent_of_copy", _NO_MEMORY)
    cached = row.device == "cpu" and may_be_cached(row)
    copy, limit = _copy_of_as_many_bytes(row, possible), "the best copy or triad of as many bytes"
    if not cached:
        copy = roofline.copy_bytes_per_s if roofline is not None else None
        limit = "the best copy or triad of this run"
    if copy is not None:
        if cached and row.kernel not in kernels_with("streams"):
            row = replace(
                row, doubts=tuple(doubt for doubt in row.doubts if doubt.code != _RESIDENT)
            )
        return _shared(row, "copy", 100 * row.speed / copy, limit)
    reasons = {} if roofline is None else roofline.unavailable
    reason = _NO_COPY if cached else reasons.get("copy_bytes_per_s")
    return row if reason is None else _lacking(row, "percent_of_copy", reason)


def _copy_of_as_many_bytes(row: Measurement, possible: Sequence[Measurement]) -> float | None:
    own = row.bytes_moved or 0
    copies = [item for item in possible if item.kernel in kernels_with("streams")]
    alike = [item.speed for item in copies if are_alike(own, item.bytes_moved or 0)]
    return max(alike, default=None)


def are_alike(one_bytes: int, other_bytes: int) -> bool:
    """Return whether a cache holds about as much of one row's data as of the other's."""
    return one_bytes <= _ALIKE * other_bytes and other_bytes <= _ALIKE * one_bytes


def _compare_to_exponentials(row: Measurement, possible: Sequence[Measurement]) -> Measurement:
    """Return a softmax on the processor with its percentage of the exponentials alone.

    Only if those are a lower limit than the copy. A softmax that is faster than they were timed
    shows how fast they can be.
    """
    alike = [item for item in possible if (item.kernel, item.dtype) == (row.kernel, row.dtype)]
    rates = [float(item.facts[EXPONENTIALS]) for item in alike if EXPONENTIALS in item.facts]
    if row.percent_of_copy is not None and rates:
        of_a_number = (row.bytes_moved or 0) / math.prod(row.shape)
        by_rate = max(rates) * (row.threads or 1) * of_a_number
        limit = max(by_rate, *(item.speed for item in alike))
        percent = 100 * row.speed / limit
        if percent > row.percent_of_copy:
            return _shared(row, "peak", percent, "exponentials alone, in the cache")
    return _lacking(row, "percent_of_peak", _BY_MEMORY)


def _compare_to_product(row: Measurement, roofline: Roofline | None) -> Measurement:
    """Return the row with its percentage of the measured matrix product, if it computes."""
    best = roofline.gemm_flops_per_s if roofline is not None else None
    if not row.flops:
        reason = _BY_MEMORY
    elif row.dtype.math_mode != "fp32":
        reason = f"no peak is known for {row.dtype.math_mode} on this processor"
    elif best is None or row.time_s is None:
        reason = "no matrix product was measured with this number of threads"
    else:
        percent = 100 * row.flops / row.time_s / best
        return _shared(row, "peak", percent, "the best float32 product of this run")
    return _lacking(row, "percent_of_peak", reason)


def _compare_to_board(row: Measurement, gpu: BenchGpu | None) -> Measurement:
    """Return the row with its percentage of the board's peak, at the nominal and the real clock."""
    board = None if gpu is None else gpu.board
    if (
        row.scope is not Scope.RESIDENT
        or row.kernel in kernels_with("measures_link")
        or row.throughput is None
    ):
        return _lacking(row, "percent_of_peak", "transfers limit its speed")
    by_memory, name, peak = row.throughput.unit == "B/s", row.dtype.format, None
    if board is not None and by_memory:
        peak = board.bytes_per_s
    elif board is not None and row.flops:
        peak = board.high_flops_per_s.get(name)
    if board is None or peak is None or row.time_s is None:
        reasons = {} if gpu is None else gpu.unavailable
        key = "board.bytes_per_s" if board is not None and by_memory else "board"
        return _lacking(row, "percent_of_peak", reasons.get(key, _NO_PEAK))
    reached = row.throughput.value if by_memory else (row.flops or 0) / row.time_s
    percent = 100 * reached / peak
    at_clock = None
    nominal_mhz = board.tensor_clock_mhz if name in TENSOR_FORMATS else board.clock_mhz
    if not by_memory and row.sm_clock_mhz and nominal_mhz:
        at_clock = percent * nominal_mhz / row.sm_clock_mhz
    row = replace(row, percent_of_peak_at_clock=at_clock)
    return _shared(row, "peak", percent, _named(board, name, by_memory=by_memory))


def _named(board: Board, dtype: str, *, by_memory: bool) -> str:
    """Return the name of the limit that a percentage refers to; of a range it is the upper end."""
    named = f"{board.name}, {board.source_of('bytes_per_s' if by_memory else dtype)}"
    if by_memory or board.flops_per_s[dtype] == board.high_flops_per_s[dtype]:
        return named
    low, high = board.flops_per_s[dtype], board.high_flops_per_s[dtype]
    return f"{named}: {low / 1e12:.3g} to {high / 1e12:.3g} TFLOP/s"


# ---------------------------------------------------------------------------------- doubts

#: Margin between measurement and datasheet: beyond it something else is wrong.
_ABOVE_PERCENT = 101.0
#: A rate below this multiple of the CUDA cores' peak needs no tensor cores. Boards run above their
#: nominal clock, and no product reaches its full peak.
_ABOVE_CORES = 1.15
#: Share of their peaks that tensor cores and memory should at least reach, and the overhead of a
#: product. Below that, a slow product shows nothing.
_LEAST_SHARE, _MOST_OVERHEAD_S = 0.5, 20e-6
#: Other doubts that explain a slow product.
_EXPLAINED = frozenset({"starved", "throttled"})
#: Tensor cores lose nothing on multiples of this edge, in any format.
_EVEN = 16
#: Between the errors of products of normal numbers in float32 (1e-6) and in TF32 (3e-4).
_BETWEEN_ERRORS = 3e-5
#: With fewer rows an error may be small by chance; a larger error is not rounding.
_FEWEST_ROWS, _MOST_ROUNDING = 64, 1e-2


def doubts_about_roofline(row: Measurement, gpu: BenchGpu | None) -> tuple[Doubt, ...]:
    """Return the doubts about a row and its roofline; `gpu` is None for the CPU."""
    doubts = (
        _other_precision(row, gpu),
        _tensor_cores_unused(row, gpu),
        *_exceeded_limits(row),
        _uncertain_peak(row, gpu),
    )
    return tuple(doubt for doubt in doubts if doubt is not None)


def _exceeded_limits(row: Measurement) -> Iterator[Doubt]:
    """Yield a doubt for each limit that a row exceeds; one in the cache has its own doubt."""
    above = "above-product" if row.device == "cpu" else "above-peak"
    for code, key in ((above, "percent_of_peak"), ("above-copy", "percent_of_copy")):
        percent = getattr(row, key)
        if percent is not None and percent > _ABOVE_PERCENT and not may_be_cached(row):
            yield make_doubt(code, {key: percent})


def _uncertain_peak(row: Measurement, gpu: BenchGpu | None) -> Doubt | None:
    if gpu is None or gpu.board is None or row.percent_of_peak is None:
        return None
    by_memory = row.throughput is not None and row.throughput.unit == "B/s"
    unsure = gpu.board.uncertainty.get("bytes_per_s" if by_memory else row.dtype.format)
    return None if unsure is None else make_doubt("peak-uncertain", unsure=unsure)


def _other_precision(row: Measurement, gpu: BenchGpu | None) -> Doubt | None:
    """Doubt a TF32 product as exact as float32, and a float32 product that is not."""
    if gpu is None or row.kernel != "matmul":
        return None
    error = row.verified.error if row.verified is not None else None
    # Zeros leave no error in any format.
    if not error or row.verified is None or row.shape[0] < _FEWEST_ROWS:
        return None
    mode = row.dtype.math_mode
    if mode == "tf32" and error < _BETWEEN_ERRORS:
        ran, other, usual = "float32", "TF32", 3e-4
    elif mode == "fp32" and not row.verified.ok and _BETWEEN_ERRORS < error < _MOST_ROUNDING:
        ran, other, usual = "TF32", "float32", 1e-6
    else:
        return None
    wording = "other-precision" if row.framework is None else "other-precision-framework"
    facts: dict[str, Fact] = {"error": error, "math_mode": mode}
    return make_doubt(wording, facts, ran=ran, other=other, usual=usual)


def _tensor_cores_unused(row: Measurement, gpu: BenchGpu | None) -> Doubt | None:
    """Doubt a rate that CUDA cores could reach where tensor cores should be clearly faster."""
    if gpu is None or gpu.board is None or row.kernel != "matmul":
        return None
    name, board = row.dtype.format, gpu.board
    if name not in TENSOR_FORMATS or row.scope is not Scope.RESIDENT:
        return None
    if not row.flops or not row.time_s or any(doubt.code in _EXPLAINED for doubt in row.doubts):
        return None
    cores, expected = flops_of_cuda_cores(gpu, name), _least_rate(row, board, name)
    if cores is None or expected is None:
        return None
    # Programs that share a GPU get equal slices of its time.
    for doubt in row.doubts:
        if doubt.code == "gpu-shared":
            expected /= 1 + len(str(doubt.facts["processes"]).split(","))
    if expected <= _ABOVE_CORES * cores:
        return None
    if row.sm_clock_mhz and board.clock_mhz:
        # CUDA cores slow down with the clock, and so does the rate that needs tensor cores.
        cores *= row.sm_clock_mhz / board.clock_mhz
    if row.flops / row.time_s > _ABOVE_CORES * cores:
        return None
    return _slow_as_cuda_cores(row, row.flops / row.time_s, cores, expected)


def _slow_as_cuda_cores(row: Measurement, reached: float, cores: float, expected: float) -> Doubt:
    uneven = any(edge % _EVEN for edge in row.shape)
    return make_doubt(
        "tensor-cores-unused-uneven" if uneven else "tensor-cores-unused",
        {
            "flops_per_s": reached,
            "cuda_cores_flops_per_s": cores,
            "expected_flops_per_s": expected,
        },
        reached=reached / 1e12,
        cores=cores / 1e12,
        expected=expected / 1e12,
    )


def _least_rate(row: Measurement, board: Board, name: str) -> float | None:
    """Return the least FLOP/s that tensor cores should reach on a product of this size."""
    peak = board.flops_per_s.get(name)
    if not peak or not row.flops:
        return None
    computing_s = row.flops / (_LEAST_SHARE * peak)
    moving_s = 0.0
    if board.bytes_per_s and row.bytes_moved:
        moving_s = row.bytes_moved / (_LEAST_SHARE * board.bytes_per_s)
    return row.flops / (max(computing_s, moving_s) + _MOST_OVERHEAD_S)
