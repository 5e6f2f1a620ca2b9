"""Doubts about a row compared with its roofline.

They cover figures beyond a limit, uncertain limits, and two signs that a GPU product did not run in
the arithmetic that its row names: a rate that needs no tensor cores, and an error that does not
match the format.
"""

from __future__ import annotations

from gpucheck.bench.model import Doubt, Fact, Measurement, Scope
from gpucheck.bench.roofline import TENSOR_FORMATS, flops_of_cuda_cores, in_cache
from gpucheck.drivers.gpu import BenchGpu, Board

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
    found = (
        _other_precision(row, gpu),
        _tensor_cores_unused(row, gpu),
        _above_peak(row),
        _above_copy(row),
        _uncertain_peak(row, gpu),
    )
    return tuple(doubt for doubt in found if doubt is not None)


def _above_peak(row: Measurement) -> Doubt | None:
    percent = row.percent_of_peak
    # A row in the cache exceeds memory speed and already has its own doubt.
    if percent is None or percent <= _ABOVE_PERCENT or in_cache(row):
        return None
    if row.device == "cpu":
        message = f"{percent:.0f} % of the best product of this run: that product was disturbed"
        remedy = "run it again when the machine is idle"
    else:
        message = (
            f"{percent:.0f} % of the peak should be impossible: the clock was above nominal, "
            "or another precision ran"
        )
        remedy = "see the percentage at the measured clock and the arithmetic (-v)"
    facts: dict[str, Fact] = {"percent_of_peak": percent}
    return Doubt(code="above-peak", message=message, next=remedy, facts=facts)


def _above_copy(row: Measurement) -> Doubt | None:
    percent = row.percent_of_copy
    if percent is None or percent <= _ABOVE_PERCENT or in_cache(row):
        return None
    return Doubt(
        code="above-copy",
        message=f"{percent:.0f} % of the fastest copy or triad of this run: those were disturbed, "
        "or this row moves fewer bytes than it counts",
        next="run it again when the machine is idle; choose a larger --size",
        facts={"percent_of_copy": percent},
    )


def _uncertain_peak(row: Measurement, gpu: BenchGpu | None) -> Doubt | None:
    if gpu is None or gpu.board is None or row.percent_of_peak is None:
        return None
    by_memory = row.throughput is not None and row.throughput.unit == "B/s"
    unsure = gpu.board.uncertainty.get("bytes_per_s" if by_memory else row.dtype.format)
    if unsure is None:
        return None
    return Doubt(
        code="peak-uncertain",
        message=f"the peak that this row is compared with is uncertain: {unsure}",
        next="treat the percentage as equally uncertain",
    )


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
        ran = "float32: TF32 would leave about 3e-04"
    elif mode == "fp32" and not row.verified.ok and _BETWEEN_ERRORS < error < _MOST_ROUNDING:
        ran = "TF32: float32 would leave about 1e-06"
    else:
        return None
    return Doubt(
        code="other-precision",
        message=f"its error of {error:.0e} is typical of {ran}",
        next="check the variables CUPY_TF32 and NVIDIA_TF32_OVERRIDE; try another cuBLAS",
        facts={"error": error, "math_mode": mode},
    )


def _tensor_cores_unused(row: Measurement, gpu: BenchGpu | None) -> Doubt | None:
    """Doubt a rate that CUDA cores could reach where tensor cores should be clearly faster."""
    if gpu is None or gpu.board is None or row.kernel != "matmul":
        return None
    name, board = row.dtype.format, gpu.board
    if name not in TENSOR_FORMATS or row.scope is not Scope.RESIDENT:
        return None
    if not row.flops or not row.median_s or any(doubt.code in _EXPLAINED for doubt in row.doubts):
        return None
    cores, expected = flops_of_cuda_cores(gpu, name), _least_rate(row, board, name)
    if cores is None or expected is None:
        return None
    # Programs that share a GPU get equal slices of its time.
    expected /= 1 + _other_processes(row)
    if expected <= _ABOVE_CORES * cores:
        return None
    if row.sm_clock_mhz and board.clock_mhz:
        # CUDA cores slow down with the clock, and so does the rate that needs tensor cores.
        cores *= row.sm_clock_mhz / board.clock_mhz
    if row.flops / row.median_s > _ABOVE_CORES * cores:
        return None
    return _slow_as_cuda_cores(row, row.flops / row.median_s, cores, expected)


def _slow_as_cuda_cores(row: Measurement, reached: float, cores: float, expected: float) -> Doubt:
    uneven = any(edge % _EVEN for edge in row.shape)
    return Doubt(
        code="tensor-cores-unused",
        message=f"{reached / 1e12:.3g} TFLOP/s needs no tensor cores: CUDA cores alone could do "
        f"{cores / 1e12:.3g}, and at least {expected / 1e12:.3g} is expected here",
        next=("choose a --size that is a multiple of 16; " if uneven else "")
        + "compare with --dtype float32 at this --size; try another cuBLAS",
        facts={
            "flops_per_s": reached,
            "cuda_cores_flops_per_s": cores,
            "expected_flops_per_s": expected,
        },
    )


def _other_processes(row: Measurement) -> int:
    """Return how many other processes used the GPU."""
    shared = next((doubt for doubt in row.doubts if doubt.code == "gpu-shared"), None)
    return len(str(shared.facts["processes"]).split(",")) if shared is not None else 0


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
