"""Rows of a benchmark as tables: names, figures and limits; alike GPUs share a row."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING

from gpucheck.bench.comparison import is_disturbed
from gpucheck.bench.model import (
    NO_TIME,
    BenchResult,
    Fact,
    Measurement,
    RowClock,
    Scope,
    is_wrong,
)
from gpucheck.report.blocks import Column, Fitting, Heading, Inline, Line, Row, Span, Table
from gpucheck.report.text import (
    View,
    binary_bytes,
    count_of,
    duration,
    group_by,
    percent_text,
    ranges,
    rate,
    two_digits,
)

if TYPE_CHECKING:
    from gpucheck.bench.case import CaseLabel

#: From this many GPUs on, alike rows share one without -v.
MANY_GPUS = 4
#: Width of a terminal from which a row says how it was sampled.
_WIDE_VIEW = 120
#: Share of the time from which an interval is highlighted.
_WIDE = 0.1
#: Share from which an interval says nothing.
_UNKNOWN = 0.995
#: Factor from which a row is called slower than the best one.
_SLOWER = 1.05
#: Share up to which several GPUs are equally fast, and the smallest one with a digit other than 0.
_ALIKE, _LEAST_SHOWN = 0.002, 0.0005
#: Limit of a softmax on the processor whose exponentials take longer than its memory.
EXP = "exp"
#: Facts whose key is no word.
_FACTS = {"exp": "exponentials of a thread", "compile": "compiling", "enqueue": "handing over"}
#: How a fact is shown whose key ends with this unit.
_UNITS: Mapping[str, Callable[[float], str]] = {
    "_bytes": lambda value: binary_bytes(int(value)),
    "_per_s": lambda value: rate(value, "/s"),
    "_s": duration,
    "_share": lambda value: percent_text(100 * value),
}
#: Indentation of the lines below a row.
_BELOW = 4


@dataclass(frozen=True, slots=True)
class Entry:
    """Line of the table: one row, or those of several GPUs that differ in nothing else.

    `row` is the middle one by speed.
    """

    row: Measurement
    rows: tuple[Measurement, ...]
    name: str


# -------------------------------------------------------------------------------- entries


def models_of(result: BenchResult) -> dict[str, str]:
    """Return the model of each GPU in the run, by device."""
    names = {gpu.device: gpu.name for gpu in result.environment.gpus}
    devices = dict.fromkeys(row.device for row in result.measurements if row.device != "cpu")
    return {device: names.get(device, "") for device in devices}


def entries(
    rows: Sequence[Measurement], models: Mapping[str, str], *, separate: bool
) -> list[Entry]:
    """Return the entries of one table; with `separate`, every row has its own.

    `models` are those of the run's GPUs: only GPUs of one model share an entry. Those whose row
    failed or is wrong stay alone.
    """
    alike: dict[object, list[Measurement]] = {}
    for row in rows:
        kind = (row.variant, row.framework, row.scope, row.shape, row.threads)
        key = (*kind, tuple(row.parameters.items()))
        alone = separate or len(models) < MANY_GPUS or not is_right(row)
        model = models.get(row.device)
        alike.setdefault(id(row) if alone else (model, key), []).append(row)
    sizes = len({row.shape for row in rows}) > 1
    table = []
    for group in alike.values():
        ordered = sorted(group, key=attrgetter("speed"))
        middle = ordered[len(ordered) // 2]
        where = devices_text([row.device for row in group], len(models))
        table.append(Entry(middle, tuple(ordered), row_name(middle, where, sizes=sizes)))
    return table


def group_by_format(rows: Iterable[Measurement]) -> list[list[Measurement]]:
    """Return the rows of each kernel and format, in the order in which these come first.

    Frameworks whose float32 is TF32 stand among those of which TF32 was requested.
    """
    by_format = group_by(rows, lambda row: (row.kernel, row.dtype.input, row.dtype.math_mode))
    return list(by_format.values())


def is_right(row: Measurement) -> bool:
    """Return whether a row has a time, no error, and no wrong result."""
    return row.time_s is not None and row.error is None and not is_wrong(row.verified)


def is_late(row: Measurement) -> bool:
    """Return whether no time was left for a row."""
    return row.error is not None and row.error.code == NO_TIME and row.time_s is None


def is_unmeasured(row: Measurement) -> bool:
    """Return whether a row was interrupted before it had a figure."""
    return row.time_s is None and row.interrupted and row.error is None


def devices_text(devices: Iterable[str], gpu_count: int = 0) -> str:
    """Return devices in few words: `8 GPUs` if these are all, else `cpu, gpu:0-2,5`."""
    names = list(dict.fromkeys(devices))
    numbers = [int(match[1]) for name in names if (match := re.fullmatch(r"gpu:(\d+)", name))]
    others = [name for name in names if not re.fullmatch(r"gpu:\d+", name)]
    if len(numbers) == gpu_count >= MANY_GPUS:
        return ", ".join([*others, f"{gpu_count} GPUs"])
    return ", ".join([*others, *([f"gpu:{ranges(numbers)}"] if numbers else [])])


def row_name(row: Measurement | CaseLabel, where: str | None = None, *, sizes: bool = False) -> str:
    """Return a row's name: device, what it does, threads, and whether data moved.

    `sizes`: the rows of its table differ in size.
    """
    device = row.device if where is None else where
    name = made_by(row)
    if row.kernel == "p2p":
        return f"{name} to {device}" if device else f" {name}"
    if row.kernel == "batch" and row.shape:
        batch = f"batch {count_of(row.shape[0], 'image')}"
        name = batch if row.framework is None else f"{row.framework.text}, {batch}"
    elif row.kernel == "towers" and row.shape and "towers" in row.parameters:
        count = row.parameters["towers"]
        separate = isinstance(row, Measurement) and row.facts.get("simulated") == "no"
        if separate and count != 1 and where is None:
            device = f"{count} GPUs"  # the row is the first GPU's
        name = f"{count} tower{'' if count == 1 else 's'} of {count_of(row.shape[0], 'image')}"
    elif sizes and row.shape:
        name += f", {size_text(row)}"
    if row.threads is not None and row.kernel not in ("batch", "towers"):
        name += f", {count_of(row.threads, 'thread')}"
    moved = " with transfers" if row.scope is Scope.END_TO_END else ""
    return f"{device} {name}{moved}"


def named_rows(rows: Sequence[Measurement], gpu_count: int = 0) -> list[str]:
    """Return rows by name, with kernel, format and size; rows that differ only by device once."""
    alike: dict[str, list[str]] = {}
    for row in rows:
        sizes = {other.shape for other in rows if other.kernel == row.kernel}
        name = f"{row.kernel} {row.dtype.format}{row_name(row, '', sizes=len(sizes) > 1)}"
        alike.setdefault(name, []).append(row.device)
    return [f"{name} on {devices_text(devices, gpu_count)}" for name, devices in alike.items()]


def made_by(row: Measurement | CaseLabel) -> str:
    """Return the maker of a row: a variant of gpucheck's, or a framework and its form."""
    variant = variant_text(row.kernel, row.variant)
    if row.framework is None:
        return variant
    who = row.framework.text
    return who if variant == row.kernel else f"{who} {variant}"


def variant_text(kernel: str, variant: str) -> str:
    """Return a row's variant in words: "to-gpu-pinned" is "to GPU, pinned"."""
    variant = variant.removesuffix("-1-thread")
    if kernel == "p2p":
        return variant.replace("-", " ", 1)
    if kernel == "transfer":
        way, _, memory = variant.rpartition("-")
        return f"{way.replace('-gpu', ' GPU').replace('-', ' ')}, {memory}" if way else variant
    return variant


def size_text(row: Measurement | CaseLabel) -> str:
    """Return a row's size with its unit."""
    if row.kernel == "train":
        return f"batches of {count_of(row.shape[0], 'image')}"
    if row.kernel in ("transfer", "p2p"):
        return binary_bytes(4 * math.prod(row.shape), digits=0)
    return " × ".join(str(edge) for edge in row.shape)


# ------------------------------------------------------------------------------ the table


def heading(rows: Sequence[Measurement]) -> Heading:
    """Return a table's heading: kernel, size, format, and what its percentages are of."""
    first = rows[0]
    parts = []
    one_size = all(row.shape == first.shape for row in rows)
    if first.shape and one_size and first.kernel not in ("batch", "towers"):
        parts.append(size_text(first))
    parts.append(first.dtype.format)
    parts.extend(
        f"{name} {value}"
        for name, value in first.parameters.items()
        if name != "towers" and all(row.parameters.get(name) == value for row in rows)
    )
    spans = (Span(first.kernel, "bold"), Span(f" {', '.join(parts)}"))
    limits = _limits_text(rows)
    return Heading((*spans, Span(f"   {limits}", "dim")) if limits else spans)


def _limits_text(rows: Sequence[Measurement]) -> str:
    """Return the reference of the percentages, by side if that differs: "% of peak"."""
    sides: dict[str, set[str]] = {}
    for row in rows:
        percent, limit = limit_of(row)
        if percent:
            sides.setdefault(limit, set()).add("cpu" if row.device == "cpu" else "gpu")
    by_exp = sides.pop(EXP, None)
    names = [
        limit if len(sides) == 1 else f"{limit} ({', '.join(sorted(of))})"
        for limit, of in sides.items()
    ]
    if by_exp:
        names.append(f"of {EXP} in the cache where it says so" if names else f"{EXP} in the cache")
    return f"% of {', '.join(names)}" if names else ""


def limit_of(row: Measurement) -> tuple[float | None, str]:
    """Return the percentage to show, and the limit that it refers to."""
    if row.device == "cpu" and None not in (row.percent_of_copy, row.percent_of_peak):
        return row.percent_of_peak, EXP
    if row.percent_of_copy is not None and row.kernel != "copy":
        return row.percent_of_copy, "a copy"
    if row.percent_of_peak is not None:
        return row.percent_of_peak, "the best product" if row.device == "cpu" else "peak"
    return None, ""


def rows_table(entries: Sequence[Entry], view: View) -> Table | Fitting:
    """Return the rows of one kernel in one format, each held against the fastest one.

    A wide terminal also shows how each was sampled, which -v says below the row.
    """
    ranked = [entry.row for entry in entries if has_rank(entry.row)]
    ranked.sort(key=attrgetter("speed"), reverse=True)
    figures = (Column(name, right=True) for name in ("time", "±", "speed", "share"))
    rows = [
        Row(
            (f"  {entry.name}", *_figures(entry), _result(entry.row, ranked)),
            below=tuple(_below(entry, view)),
        )
        for entry in entries
    ]
    table = Table([Column("row"), *figures, Column("result")], rows, gap=1, header=False)
    if view.width < _WIDE_VIEW or view.verbosity != 0:
        return table
    sampled = [(Span(f"  {', '.join(sampling(entry.row))}", "dim"),) for entry in entries]
    wide = [row._replace(cells=(*row.cells, how)) for row, how in zip(rows, sampled, strict=True)]
    columns = (*table.columns, Column("samples"))
    return Fitting((table._replace(columns=columns, rows=wide), table))


def _figures(entry: Entry) -> list[Inline]:
    row = entry.row
    if row.time_s is None:
        return ["", "", "", ""]
    widest = max(
        (width for item in entry.rows if (width := half_width(item)) is not None), default=-1
    )
    percent, limit = limit_of(row) if has_rank(row) else (None, "")
    marked = f" {limit}" if limit == EXP else ""
    return [
        duration(row.time_s) + (" CPU" if row.clock is RowClock.CPU else ""),
        # A wide interval is highlighted.
        (Span(spread_text(widest), "yellow" if widest >= _WIDE else ""),) if widest >= 0 else "",
        # Of a launch, the time itself is the figure.
        "" if row.kernel == "launch" else speed_text(row),
        "" if percent is None else f"{percent_text(percent)}{marked}",
    ]


def speed_text(row: Measurement) -> str:
    """Return a row's speed with its unit."""
    return "" if row.throughput is None else rate(row.throughput.value, row.throughput.unit)


def has_rank(row: Measurement) -> bool:
    """Return whether a row can be held against others: it is right, and its interval says where.

    What other programs left to the threads of a team says nothing of the processor.
    """
    width = half_width(row)
    if width is None or width >= _UNKNOWN or not is_right(row) or row.speed <= 0:
        return False
    return row.device != "cpu" or row.threads == 1 or not is_disturbed(row)


def _is_slower(row: Measurement, other: Measurement) -> bool:
    """Return whether a ranked row is slower beyond the intervals: those of their speeds part."""
    (_, fastest), (slowest, _) = _speeds(row), _speeds(other)
    return fastest < slowest


def _speeds(row: Measurement) -> tuple[float, float]:
    """Return from which to which speed a ranked row's interval goes."""
    assert row.repeat95_s is not None
    low_s, high_s = row.repeat95_s
    work = row.speed * (row.time_s or 0.0)
    return work / high_s, work / low_s


def _result(row: Measurement, ranked: Sequence[Measurement]) -> Inline:
    """Return whether a row's result is wrong or unchecked, and how far it is from the best.

    Rows whose intervals meet that of the fastest one are not known to be slower, so that none of
    them is the best.
    """
    if is_wrong(row.verified):
        return (Span("WRONG", "bold red"),)
    spans = [Span("not checked ", "dim")] if row.verified is None and row.time_s else []
    if len(ranked) > 1 and has_rank(row):
        best, *others = ranked
        if row is best and all(_is_slower(other, best) for other in others):
            spans.append(Span("best", "bold green"))
        elif _is_slower(row, best) and best.speed >= _SLOWER * row.speed:
            spans.append(Span(f"{two_digits(best.speed / row.speed)}x slower"))
    return tuple(spans)


def _below(entry: Entry, view: View) -> Iterator[Line]:
    """Yield the lines below a row: what went wrong, the range of many GPUs, its details."""
    row = entry.row
    if row.error is not None:
        yield Line(row.error.message, indent=_BELOW, style="red")
    elif row.time_s is None:
        yield Line("not measured", indent=_BELOW, style="red")
    if text := range_text(entry):
        yield Line(text, indent=_BELOW)
    if view.verbosity > 0:
        yield Line(", ".join(details(row)), indent=_BELOW, style="dim")


def range_text(entry: Entry) -> str:
    """Return the speeds of several GPUs, and which is the slowest; empty if they are alike."""
    low, high = entry.rows[0], entry.rows[-1]
    if low.speed <= 0 or high.speed / low.speed - 1 < _ALIKE:
        return ""
    ends = [
        duration(end.time_s or 0.0) if end.kernel == "launch" else speed_text(end)
        for end in (low, high)
    ]
    drop = 1 - low.speed / entry.row.speed
    # Not "-0.0 %".
    share = f" -{100 * drop:.1f} %" if drop >= _LEAST_SHOWN else ""
    return f"{ends[0]} to {ends[1]}, slowest {low.device}{share}"


# ------------------------------------------------------------------------- further details


def sampling(row: Measurement) -> Iterator[str]:
    """Yield how often a row was sampled, the other of fastest sample and median, and CPU time."""
    samples = len(row.samples_s) or (row.summary.count if row.summary else 0)
    if row.time_s is None or not samples:
        return
    rounds = f" in {count_of(len(row.round_medians_s), 'round')}" if row.round_medians_s else ""
    yield count_of(samples, "sample") + rounds
    if row.median_s is not None and row.time_s != row.median_s:
        yield f"median {duration(row.median_s)}"
    elif row.summary is not None:
        yield f"fastest {duration(row.summary.min_s)}"
    if row.waited_percent is not None and row.clock is RowClock.CPU:
        yield f"waited {row.waited_percent:.0f} %"
    elif row.cpu_median_s is not None:
        yield f"CPU time {duration(row.cpu_median_s)}"


def details(row: Measurement) -> Iterator[str]:
    """Yield the lines that -v adds to a row."""
    yield from sampling(row)
    if row.loops is not None:
        yield f"{count_of(row.loops, 'operation')} each"
    if row.ci95_s is not None and row.time_s:
        yield f"known to ±{50 * (row.ci95_s[1] - row.ci95_s[0]) / row.time_s:.1f}%"
    if row.summary is not None:
        yield f"p10 {duration(row.summary.p10_s)}, p90 {duration(row.summary.p90_s)}"
        yield count_of(row.summary.outlier_count, "outlier")
    if row.cold_s is not None:
        yield f"first run {duration(row.cold_s)}"
    if row.verified is not None and row.verified.error is not None:
        yield f"error {row.verified.error:.1e} of at most {row.verified.bound:.1e}"
    yield f"arithmetic {row.dtype.math_mode}, sums {row.dtype.accumulate}"
    yield f"result {row.dtype.output}"
    if row.percent_of_peak is not None:
        source = row.limits.get("peak")
        yield f"{row.percent_of_peak:.1f} % of the peak{_whole(row, row.percent_of_peak)}" + (
            f" ({source})" if source else ""
        )
    if row.percent_of_peak_at_clock is not None:
        yield f"{row.percent_of_peak_at_clock:.1f} % at the measured clock"
    if row.percent_of_copy is not None:
        limit = row.limits.get("copy", "a copy")
        yield f"{row.percent_of_copy:.1f} % of {limit}{_whole(row, row.percent_of_copy)}"
    if row.sm_clock_mhz is not None:
        yield f"SM clock {row.sm_clock_mhz:.0f} MHz"
    if row.joules_per_op is not None:
        yield f"{row.joules_per_op:.3g} J for one operation"
    yield from (_fact_text(name, value) for name, value in row.facts.items())


def _fact_text(name: str, value: Fact) -> str:
    """Return a fact of a row in words, by its key, which ends with the unit of a number."""
    end = next((end for end in _UNITS if name.endswith(end) and not isinstance(value, str)), "")
    words = name.removesuffix(end)
    words = _FACTS.get(words, words.replace("_", " "))
    if isinstance(value, str):
        return f"{words} {value}"
    return f"{words} {_UNITS[end](value) if end else f'{value:.6g}'}"


def _whole(row: Measurement, percent: float) -> str:
    """Return the limit itself: ", 67.0 TFLOP/s"; empty if a row's speed has another unit."""
    if not percent or row.throughput is None or row.throughput.unit not in ("B/s", "FLOP/s"):
        return ""
    return f", {rate(100 * row.throughput.value / percent, row.throughput.unit)}"


def half_width(row: Measurement) -> float | None:
    """Return half the interval for a further run as a share of its time, if there is one."""
    if row.repeat95_s is None or not row.time_s:
        return None
    return (row.repeat95_s[1] - row.repeat95_s[0]) / 2 / row.time_s


def spread_text(width: float) -> str:
    """Return half an interval in percent, with as many digits as are significant."""
    percent = 100 * width
    if width >= _UNKNOWN:
        return "±>99%"
    return f"±{percent:.{1 if percent < 9.95 else 0}f}%"
