"""Summary of a benchmark in words: each kernel's best, its share of the limit, CPU against GPU.

Where frameworks were measured, it names whose row it is, and holds their GPU against their CPU.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from gpucheck.bench.comparison import maker_of, maker_text, side_text
from gpucheck.bench.framework_conclusions import waits_for_host
from gpucheck.bench.model import BenchResult, Comparison, ComparisonSide, Measurement, Scope
from gpucheck.bench.rows_view import (
    Entry,
    by_format,
    entries,
    is_right,
    limit_of,
    models_of,
    outlier_text,
    row_name,
    speed,
    speed_text,
)
from gpucheck.report.blocks import Line
from gpucheck.report.text import duration, percent_text, two_digits

#: Between these factors two sides are equally fast.
_SLOWER, _FASTER = 0.95, 1.05
#: Share from which a slower GPU is named.
_OUTLIER = 0.01
#: Kernels whose best row has to be named.
_NAMED = ("batch", "towers", "transfer", "launch", "p2p")


def summary(result: BenchResult) -> Iterator[Line]:
    """Yield a line for each kernel and format that has a right figure."""
    found: list[tuple[str, str, str]] = []
    for group in by_format(result.measurements):
        rows = [row for row in group if is_right(row)]
        if rows:
            found.append((rows[0].kernel, rows[0].dtype.format, _sentence(rows, result)))
    kernels = [kernel for kernel, _, _ in found]
    names = [
        f"{kernel} {number_format}" if kernels.count(kernel) > 1 else kernel
        for kernel, number_format, _ in found
    ]
    width = max((len(name) for name in names), default=0)
    for name, (_, _, text) in zip(names, found, strict=True):
        yield Line(text, lead=f"{name:<{width}} ", indent=2)
    yield from _frameworks_on_gpus(result)
    if found:
        yield from _checked(result.measurements)


def _frameworks_on_gpus(result: BenchResult) -> Iterator[Line]:
    """Yield, for each framework and GPU, how many times its own CPU it is in each kernel."""
    found: dict[tuple[str, str], list[str]] = {}
    waiting = {
        (row.kernel, row.device, row.framework)
        for row in result.measurements
        if row.framework is not None and waits_for_host(row)
    }
    for one in result.comparisons:
        maker = maker_of(one.gpu)
        if maker is None or one.kernel == "batch":  # a sweep has a sentence of its own
            continue
        text = _against_own_cpu(one, first=(maker, one.gpu.device) not in found)
        if (one.kernel, one.gpu.device, one.gpu.framework) in waiting:
            text += ": it waits for the host"
        found.setdefault((maker, one.gpu.device), []).append(text)
    for (maker, device), texts in found.items():
        yield Line(f"{maker_text(maker)} on {device}: {'; '.join(texts)}", indent=2)


def _against_own_cpu(one: Comparison, *, first: bool) -> str:
    """Return "41x its own CPU for matmul 4096 (38x gpucheck's blas)", in short after the first."""
    size = f"batches of {one.shape[0]}" if one.kernel == "train" else f"{one.shape[0]}"
    what = f"for {one.kernel} {size}"
    if one.gpu.dtype.format != "float32":
        what += f" in {one.gpu.dtype.format}"
    best = f"{_times(one.speedup_resident)} {_owner(one.cpu)}"
    if one.speedup_own_cpu is None:
        text = f"{best} {what}"
    else:
        text = f"{_times(one.speedup_own_cpu)}{' its own CPU' if first else ''} {what}"
        if maker_of(one.cpu) != maker_of(one.gpu):
            text += f" ({best})"
    moved = one.speedup_end_to_end
    if moved is None:
        return text
    text += f", {_times(moved)} with transfers"
    if moved < 1 and one.break_even is not None:
        text += f" (keep the data on the card: it pays off from {one.break_even} operations)"
    return text


def _owner(side: ComparisonSide) -> str:
    """Return the CPU's side as the best one: "the best CPU row, gpucheck's blas"."""
    return f"the best CPU row, {side_text(side)}"


def _times(factor: float) -> str:
    return f"{two_digits(factor) if factor >= 0.995 else f'{factor:.2g}'}x"


def _checked(rows: Sequence[Measurement]) -> Iterator[Line]:
    """Yield how many results were checked, if all were right."""
    # A result that was wrong at once has no time, and counts too.
    checked = [row.verified for row in rows if row.verified is not None]
    if checked and all(one.ok for one in checked):
        count = "the result was" if len(checked) == 1 else f"all {len(checked)} results were"
        yield Line(f"{count} right against float64", indent=2, style="dim")


def _sentence(rows: Sequence[Measurement], result: BenchResult) -> str:
    models = models_of(result)
    shared = entries(rows, models, each=False)
    best = _best(rows, shared)
    on_gpu = best.device != "cpu"
    figure = duration(best.median_s or 0.0) if best.kernel == "launch" else speed_text(best)
    if any(row.framework for row in rows):
        figure += f" by {side_text(best)}"
    parts = [figure + _where(best, rows, shared, several=len(models) > 1)]
    percent, limit = limit_of(best)
    if percent is not None:
        parts.append(f"{percent_text(percent, ' ')} of {limit}")
    comparison = _comparison(best, result.comparisons)
    if comparison is not None:
        parts.append(_against(comparison, gpu_is_best=on_gpu))
        parts.extend(_over_sizes(comparison, result.comparisons))
    return ", ".join(parts)


def _best(rows: Sequence[Measurement], shared: Sequence[Entry]) -> Measurement:
    """Return the fastest row, or the middle one of those that share its entry."""
    best = max([row for row in rows if row.scope is Scope.RESIDENT] or rows, key=speed)
    return next((one.row for one in shared if best in one.rows), best)


def _where(
    best: Measurement, rows: Sequence[Measurement], shared: Sequence[Entry], *, several: bool
) -> str:
    """Return which row it is, as far as that is not clear; `several`: the run has several GPUs."""
    # Who made it stands before this.
    what = row_name(replace(best, framework=None), "").strip()
    parts = f" ({what})" if best.kernel in _NAMED else ""
    if best.device == "cpu":
        return parts + (" on the CPU" if any(row.device != "cpu" for row in rows) else "")
    mine = next(one for one in shared if best in one.rows)
    if len(mine.rows) > 1:
        outlier = outlier_text(mine, least=_OUTLIER)
        text = f"{parts} on each of {len(mine.rows)} GPUs"
        return f"{text} ({outlier})" if outlier else text
    return parts + (f" on {best.device}" if several else "")


def _comparison(best: Measurement, comparisons: Sequence[Comparison]) -> Comparison | None:
    """Return the comparison that the best row is a side of."""
    same = [
        one
        for one in comparisons
        if (one.kernel, one.shape, one.gpu.dtype) == (best.kernel, best.shape, best.dtype)
    ]
    made = (best.variant, best.framework)
    if best.device == "cpu":
        mine = [one for one in same if (one.cpu.variant, one.cpu.framework) == made]
        return max(mine, key=lambda one: one.speedup_resident, default=None)
    mine = [one for one in same if one.gpu.device == best.device]
    return next((one for one in mine if (one.gpu.variant, one.gpu.framework) == made), None)


def _against(one: Comparison, *, gpu_is_best: bool) -> str:
    """Return the GPU's speed against the CPU's, resident and with transfers, in words."""
    cpu = "the CPU"
    if maker_of(one.cpu) != maker_of(one.gpu):
        cpu = f"the CPU with {side_text(one.cpu)}"
    if one.cpu.dtype != one.gpu.dtype:
        cpu += f" in {one.cpu.dtype.format}"
    factor = one.speedup_resident
    if not gpu_is_best:
        text = f"the GPU {'as fast' if factor >= _SLOWER else f'{two_digits(1 / factor)}x slower'}"
    elif factor >= _FASTER:
        text = f"{two_digits(factor)}x {cpu}"
    elif factor >= _SLOWER:
        text = f"as fast as {cpu}"
    else:
        text = f"{two_digits(1 / factor)}x slower than {cpu}"
    moved = one.speedup_end_to_end
    if moved is None:
        return text
    text += f" ({_short(moved)} with transfers"
    if moved < 1 and one.break_even is not None:
        text += f"; moving the data pays off from {one.break_even} operations on it"
    return f"{text})"


def _over_sizes(one: Comparison, comparisons: Sequence[Comparison]) -> Iterator[str]:
    """Yield the range of a sweep's factors: the best size alone would say too much."""
    same = (one.kernel, one.gpu.device, one.gpu.dtype, one.cpu.dtype, maker_of(one.gpu))
    factors: dict[tuple[int, ...], float] = {}
    for other in comparisons:
        what = (other.kernel, other.gpu.device, other.gpu.dtype, other.cpu.dtype)
        if (*what, maker_of(other.gpu)) == same:
            best = factors.get(other.shape, 0.0)
            factors[other.shape] = max(best, other.speedup_resident)
    low, high = min(factors.values()), max(factors.values())
    if len(factors) > 1 and high > _FASTER * low:
        yield f"{_short(low)} to {_short(high)} over {len(factors)} sizes"


def _short(factor: float) -> str:
    if _SLOWER <= factor < _FASTER:
        return "as fast"
    return f"{two_digits(factor)}x" if factor >= 1 else f"{two_digits(1 / factor)}x slower"
