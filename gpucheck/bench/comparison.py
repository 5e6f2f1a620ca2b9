"""Comparison of CPU and GPU: resident, end-to-end and amortised speed-ups, and break-even."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from gpucheck.bench.model import Comparison, ComparisonSide, Doubt, DtypeSpec, Measurement, Scope
from gpucheck.report.text import two_digits

#: How many operations on the same data the amortised speed-up assumes.
REUSE_COUNT = 10
#: The doubt of a comparison with a slowed-down side, and the doubts of rows that mean it.
SIDE_IN_DOUBT = "side-in-doubt"
_SLOWED = (
    *("throttled", "gpu-shared", "gpu-claimed", "clock-low", "host-busy", "quota-reached"),
    "blas-older-than-cpu",
)
#: The code for a side with too few rounds for an interval.
_NO_INTERVAL = "no-interval"
#: More GPUs than this share one sentence.
_MOST_ALONE = 2


def compare(measurements: Sequence[Measurement]) -> tuple[Comparison, ...]:
    """Return one comparison for each kernel, shape, format and GPU that has times on both sides.

    Each side is its fastest row; the CPU's in the same format if there is one, else in float32.
    Rows that failed or have no time are left out.
    """
    timed = [
        row
        for row in measurements
        if row.median_s and row.error is None and row.verified and row.verified.ok
    ]
    found = []
    for gpu in _fastest_gpu_rows(timed):
        problem = (gpu.kernel, gpu.shape, gpu.parameters)
        same = [row for row in timed if (row.kernel, row.shape, row.parameters) == problem]
        cpus = [other for other in same if other.device == "cpu"]
        alike = [cpu for cpu in cpus if cpu.dtype == gpu.dtype]
        plain = [cpu for cpu in cpus if cpu.dtype.math_mode == "fp32"]
        if alike or plain:
            cpu = min(alike or plain, key=_median_s)
            found.append(_comparison(cpu, gpu, _end_to_end(same, gpu)))
    return tuple(found)


def _median_s(row: Measurement) -> float:
    assert row.median_s is not None
    return row.median_s


def _fastest_gpu_rows(timed: Sequence[Measurement]) -> list[Measurement]:
    """Return the fastest resident row of each problem, format and GPU, in the rows' order."""
    best: dict[tuple[object, ...], Measurement] = {}
    for row in timed:
        if row.device == "cpu" or row.scope is not Scope.RESIDENT:
            continue
        problem = (row.kernel, row.shape, tuple(row.parameters.items()), row.dtype, row.device)
        if problem not in best or _median_s(row) < _median_s(best[problem]):
            best[problem] = row
    return list(best.values())


def _end_to_end(rows: Sequence[Measurement], gpu: Measurement) -> float | None:
    """Return the same GPU's median in the same format with its transfers, if it was measured."""
    wanted = (Scope.END_TO_END, gpu.device, gpu.dtype)
    times = [
        _median_s(other) for other in rows if (other.scope, other.device, other.dtype) == wanted
    ]
    return min(times, default=None)


def _comparison(cpu: Measurement, gpu: Measurement, end_to_end_s: float | None) -> Comparison:
    cpu_s, gpu_s = _median_s(cpu), _median_s(gpu)
    resident = cpu_s / gpu_s
    moved = amortised = break_even = None
    if end_to_end_s is not None:
        # The end-to-end time may be the shorter one by noise: then the transfer cost nothing.
        transfer_s = max(0.0, end_to_end_s - gpu_s)
        moved = cpu_s / end_to_end_s
        amortised = cpu_s / (gpu_s + transfer_s / REUSE_COUNT)
        break_even = break_even_count(cpu_s, gpu_s, transfer_s)
    precisions = None if cpu.dtype == gpu.dtype else (cpu.dtype.format, gpu.dtype.format)
    return Comparison(
        kernel=gpu.kernel,
        dtype=gpu.dtype,
        shape=gpu.shape,
        cpu=_side(cpu),
        gpu=_side(gpu),
        speedup_resident=resident,
        speedup_end_to_end=moved,
        speedup_amortised=amortised,
        reuse_count=REUSE_COUNT,
        break_even=break_even,
        sentence=sentence(resident, moved, break_even, precisions),
        doubts=(
            *_different_precision(cpu.dtype, gpu.dtype),
            *_sides_in_doubt(cpu, gpu),
        ),
    )


def _different_precision(cpu: DtypeSpec, gpu: DtypeSpec) -> tuple[Doubt, ...]:
    """Doubt a comparison whose two sides compute in different precisions."""
    if cpu == gpu:
        return ()
    return (
        Doubt(
            code="different-precision",
            message=f"the CPU computes in {cpu.math_mode}, the GPU in {gpu.math_mode}",
            next="compare rows of the same precision: --dtype float32, with CUPY_TF32 unset",
            facts={"cpu": cpu.math_mode, "gpu": gpu.math_mode},
        ),
    )


def _sides_in_doubt(cpu: Measurement, gpu: Measurement) -> tuple[Doubt, ...]:
    """Return the doubt that something slowed one side down, or that its time has no interval."""
    slowed = [
        (
            side,
            [doubt.code for doubt in row.doubts if doubt.code in _SLOWED]
            + ([_NO_INTERVAL] if row.ci95_s is None else []),
        )
        for side, row in (("cpu", cpu), ("gpu", gpu))
    ]
    sentences = [
        f"the {side.upper()}'s time is in doubt ({', '.join(c)})" for side, c in slowed if c
    ]
    if not sentences:
        return ()
    codes = dict.fromkeys(code for _, found in slowed for code in found)
    return (
        Doubt(
            code=SIDE_IN_DOUBT,
            message=" and ".join(sentences),
            next="see the doubts of the rows, remove what slowed them down, and run it again",
            facts={"codes": ", ".join(codes)},
        ),
    )


def _side(row: Measurement) -> ComparisonSide:
    return ComparisonSide(
        device=row.device,
        variant=row.variant,
        threads=row.threads,
        median_s=_median_s(row),
        dtype=row.dtype,
        framework=row.framework,
    )


def break_even_count(cpu_s: float, gpu_s: float, transfer_s: float) -> int | None:
    """Return the fewest operations on moved data from which the GPU is at least as fast.

    The data moves once: n cpu_s >= transfer_s + n gpu_s. None if the GPU's kernel is not faster.
    """
    if gpu_s >= cpu_s:
        return None
    return max(1, math.ceil(transfer_s / (cpu_s - gpu_s)))


def sentence(
    resident: float,
    end_to_end: float | None,
    break_even: int | None,
    precisions: tuple[str, str] | None = None,
) -> str:
    """Return the speed-ups in plain words; `precisions` are the CPU's and the GPU's if not one."""
    first = f"for this size the GPU is {_times(resident)} if the data stays there"
    if precisions is not None:
        cpu, gpu = precisions
        first = f"for this size the GPU in {gpu} is {_times(resident, f' in {cpu}')}"
        first += " if the data stays there"
    if end_to_end is None:
        return f"{first}; transfers were not measured"
    text = f"{first}, {_times(end_to_end)} with transfers"
    if end_to_end < 1 and break_even is not None:
        text += f"; moving pays from {break_even} operations on the same data"
    return text


def _times(factor: float, cpu: str = "") -> str:
    """Return a speed-up in words, with two significant digits.

    `cpu` qualifies the processor's side, which is then named.
    """
    if 0.95 <= factor < 1.05:
        return f"as fast as the CPU{cpu}"
    than = f" than the CPU{cpu}" if cpu else ""
    if factor >= 1:
        return f"{two_digits(factor)} times faster{than}"
    return f"{two_digits(1 / factor)} times slower{than}"


def headline(comparisons: Sequence[Comparison]) -> str | None:
    """Return the speed-ups of all kernels in one sentence for each GPU, None if there are none.

    Where kernels were compared in equal precision, only those count.
    """
    fair = [one for one in comparisons if one.cpu.dtype == one.gpu.dtype] or list(comparisons)
    devices = list(dict.fromkeys(one.gpu.device for one in fair))
    if len(devices) > _MOST_ALONE:
        return _reached(f"each of {len(devices)} GPUs", fair)
    said = [_reached(name, [one for one in fair if one.gpu.device == name]) for name in devices]
    return "; ".join(said) or None


def _reached(who: str, here: Sequence[Comparison]) -> str:
    """Return what a device, or some of them, reach in these comparisons."""
    where = f" in {_named(here[0])}" if len(here) == 1 else ""
    text = f"{who} reaches {_range(here, lambda one: one.speedup_resident)} the CPU's speed"
    text += f"{where} if the data stays there"
    moved = [one for one in here if one.speedup_end_to_end is not None]
    if moved:
        text += f", {_range(moved, lambda one: one.speedup_end_to_end or 0.0)}"
        text += " with transfers"
    codes = dict.fromkeys(
        code
        for one in here
        for doubt in one.doubts
        if doubt.code == SIDE_IN_DOUBT
        for code in str(doubt.facts["codes"]).split(", ")
    )
    return f"{text} (in doubt: {', '.join(codes)})" if codes else text


def _range(here: Sequence[Comparison], speedup: Callable[[Comparison], float]) -> str:
    """Return the smallest and the largest speed-up, each with its kernel and format."""
    low, high = min(here, key=speedup), max(here, key=speedup)
    if len(here) == 1:
        return f"{_factor(speedup(low))} times"
    low_text = f"{_factor(speedup(low))} ({_named(low)})"
    return f"{low_text} to {_factor(speedup(high))} ({_named(high)}) times"


def _named(comparison: Comparison) -> str:
    return f"{comparison.kernel} {comparison.dtype.format}"


def _factor(value: float) -> str:
    return f"{value:.2g}" if value < 0.995 else two_digits(value)
