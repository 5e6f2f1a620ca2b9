"""Rows of a benchmark as tables: figures, bars, limits; alike GPUs share a row."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpucheck.bench.model import BenchResult, Measurement, Scope
from gpucheck.report.blocks import (
    Block,
    Column,
    Fitting,
    Heading,
    Inline,
    Line,
    Row,
    Span,
    Table,
    plain,
)
from gpucheck.report.text import (
    View,
    binary_bytes,
    count_of,
    duration,
    percent_text,
    ranges,
    rate,
    two_digits,
)

if TYPE_CHECKING:
    from gpucheck.bench.case import CaseLabel

#: Shortest bar that shows a proportion, and longest that is easy to read.
_SHORTEST_BAR, _LONGEST_BAR = 5, 40
#: Partial blocks, from one eighth on.
_EIGHTHS = "▏▎▍▌▋▊▉"
#: From this many GPUs on, alike rows share one without -v.
MANY_GPUS = 4
#: Error of rows for which no time was left.
NO_TIME = "no-time"
#: Share of the median from which an interval is highlighted.
_WIDE = 0.1
#: Factor from which a row is called slower than the best one.
_SLOWER = 1.05
#: Share up to which several GPUs are equally fast, and the smallest one with a digit other than 0.
_ALIKE, _LEAST_SHOWN = 0.002, 0.0005
#: Columns between a heading and its limits.
_LIMITS_GAP = 3
#: Indentation of rows, and of the lines below one.
_INDENT, _BELOW = 2, 4


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


def entries(rows: Sequence[Measurement], models: Mapping[str, str], *, each: bool) -> list[Entry]:
    """Return the entries of one table; with `each`, every row has its own.

    `models` are those of the run's GPUs: only GPUs of one model share an entry. Those whose row
    failed or is wrong stay alone.
    """
    alike: dict[object, list[Measurement]] = {}
    for row in rows:
        what = (row.variant, row.framework, row.scope, row.shape, row.threads)
        key = (*what, tuple(row.parameters.items()))
        alone = each or len(models) < MANY_GPUS or not is_right(row)
        model = models.get(row.device)
        alike.setdefault(id(row) if alone else (model, key), []).append(row)
    sizes = len({row.shape for row in rows}) > 1
    found = []
    for group in alike.values():
        ordered = sorted(group, key=speed)
        middle = ordered[len(ordered) // 2]
        where = devices_text([row.device for row in group], len(models))
        found.append(Entry(middle, tuple(ordered), row_name(middle, where, sizes=sizes)))
    return found


def by_format(rows: Iterable[Measurement]) -> list[list[Measurement]]:
    """Return the rows of each kernel and format, in the order in which these come first.

    Frameworks whose float32 is TF32 stand among those of which TF32 was requested.
    """
    found: dict[tuple[str, str, str], list[Measurement]] = {}
    for row in rows:
        key = (row.kernel, row.dtype.input, row.dtype.math_mode)
        found.setdefault(key, []).append(row)
    return list(found.values())


def is_right(row: Measurement) -> bool:
    """Return whether a row has a time, no error, and no wrong result."""
    wrong = row.verified is not None and not row.verified.ok
    return row.median_s is not None and row.error is None and not wrong


def is_late(row: Measurement) -> bool:
    """Return whether no time was left for a row."""
    return row.error is not None and row.error.code == NO_TIME and row.median_s is None


def is_unmeasured(row: Measurement) -> bool:
    """Return whether a row was interrupted before it had a figure."""
    return row.median_s is None and row.interrupted and row.error is None


def devices_text(devices: Iterable[str], gpu_count: int = 0) -> str:
    """Return devices in few words: `8 GPUs` if these are all, else `cpu, gpu:0-2,5`."""
    names = list(dict.fromkeys(devices))
    numbers = [int(found[1]) for name in names if (found := re.fullmatch(r"gpu:(\d+)", name))]
    others = [name for name in names if not re.fullmatch(r"gpu:\d+", name)]
    if len(numbers) == gpu_count >= MANY_GPUS:
        return ", ".join([*others, f"{gpu_count} GPUs"])
    return ", ".join([*others, *([f"gpu:{ranges(numbers)}"] if numbers else [])])


def row_name(row: Measurement | CaseLabel, where: str | None = None, *, sizes: bool = False) -> str:
    """Return a row's name: device, what it does, threads, and whether data moved.

    `sizes`: the rows of its table differ in size.
    """
    device = row.device if where is None else where
    what = made_by(row)
    if row.kernel == "p2p":
        return f"{what} to {device}" if device else f" {what}"
    if row.kernel == "batch" and row.shape:
        batch = f"batch {_images(row.shape[0])}"
        what = batch if row.framework is None else f"{row.framework.text}, {batch}"
    elif row.kernel == "towers" and row.shape and "towers" in row.parameters:
        count = row.parameters["towers"]
        separate = isinstance(row, Measurement) and row.facts.get("simulated") == "no"
        if separate and count != 1 and where is None:
            device = f"{count} GPUs"  # the row is the first GPU's
        what = f"{count} tower{'' if count == 1 else 's'} of {_images(row.shape[0])}"
    elif sizes and row.shape:
        what += f", {size_text(row)}"
    if row.threads is not None and row.kernel not in ("batch", "towers"):
        what += ", 1 thread" if row.threads == 1 else f", {row.threads} threads"
    moved = " with transfers" if row.scope is Scope.END_TO_END else ""
    return f"{device} {what}{moved}"


def made_by(row: Measurement | CaseLabel) -> str:
    """Return what a row runs: a variant of gpucheck's, or a framework's code and its form."""
    what = variant_text(row.kernel, row.variant)
    if row.framework is None:
        return what
    who = row.framework.text
    return who if what == row.kernel else f"{who} {what}"


def variant_text(kernel: str, variant: str) -> str:
    """Return what a row does in words: "to-gpu-pinned" is "to GPU, pinned"."""
    variant = variant.removesuffix("-1-thread")
    if kernel == "p2p":
        return variant.replace("-", " ", 1)
    if kernel == "transfer":
        way, _, memory = variant.rpartition("-")
        return f"{way.replace('-gpu', ' GPU').replace('-', ' ')}, {memory}" if way else variant
    return variant


def _images(count: int) -> str:
    return f"{count} image{'' if count == 1 else 's'}"


def size_text(row: Measurement | CaseLabel) -> str:
    """Return a row's size with its unit."""
    if row.kernel == "train":
        return f"batches of {_images(row.shape[0])}"
    if row.kernel in ("transfer", "p2p"):
        return binary_bytes(4 * math.prod(row.shape), digits=0)
    return " × ".join(str(edge) for edge in row.shape)


# ------------------------------------------------------------------------------ the table


def heading(rows: Sequence[Measurement], view: View) -> Iterator[Block]:
    """Yield a table's heading: kernel, size, format, and the limits of its percentages."""
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
    limits = limits_text(rows)
    spans = (Span(first.kernel, "bold"), Span(f" {', '.join(parts)}"))
    if limits and len(plain(spans)) + len(limits) + _LIMITS_GAP <= view.width:
        yield Heading((*spans, Span(" " * _LIMITS_GAP), Span(limits, "dim")))
        return
    yield Heading(spans)
    if limits:
        yield Line(limits, indent=_INDENT, style="dim")


def limits_text(rows: Sequence[Measurement]) -> str:
    """Return what the percentages refer to: "% of peak, 82.6 TFLOP/s", by device if they differ."""
    found: dict[tuple[str, str], list[tuple[float, str]]] = {}
    for row in rows:
        percent, name = limit_of(row)
        if percent:
            side = "cpu" if row.device == "cpu" else "gpu"
            found.setdefault((name, side), []).append(_limit_value(row, percent))
    names = list(dict.fromkeys(name for name, _ in found))
    texts = []
    for limit in names:
        sides = [side for name, side in found if name == limit]
        values = [
            (f"{side} " if len(sides) > 1 else "") + _range(found[limit, side]) for side in sides
        ]
        who = f"{sides[0]} " if len(names) > 1 and len(sides) == 1 else ""
        texts.append(f"{who}% of {limit}, {', '.join(values)}")
    return "; ".join(texts)


def _range(values: Sequence[tuple[float, str]]) -> str:
    return _span(*(rate(*pick(values)) for pick in (min, max)))


def _span(low: str, high: str) -> str:
    """Return a range of two amounts; a unit that both share is given once."""
    if low == high:
        return low
    number, _, unit = low.partition(" ")
    return f"{number if high.endswith(f' {unit}') else low} to {high}"


def limit_of(row: Measurement) -> tuple[float | None, str]:
    """Return the percentage to show, and the limit that it refers to."""
    if row.percent_of_copy is not None and row.kernel != "copy":
        return row.percent_of_copy, "a copy"
    if row.percent_of_peak is not None:
        return row.percent_of_peak, "the best product" if row.device == "cpu" else "peak"
    return None, ""


def _limit_value(row: Measurement, percent: float) -> tuple[float, str]:
    unit = "FLOP/s" if row.throughput is None else row.throughput.unit
    if unit not in ("B/s", "FLOP/s") and row.flops and row.median_s:
        return row.flops / row.median_s / percent * 100, "FLOP/s"
    return speed(row) / percent * 100, unit


def rows_table(found: Sequence[Entry], view: View, name_width: int) -> Block:
    """Return the rows of one kernel in one format; `name_width` is that of the whole report."""
    ranked = [speed(one.row) for one in found if _has_rank(one.row)]
    best, worst = max(ranked, default=0.0), min(ranked, default=0.0)
    compared = len(ranked) > 1
    standings = [_standing(one.row, best, worst, compared=compared) for one in found]
    longest = max(
        (
            len(" ".join((_remark(one.row).text, text)).strip())
            for one, (text, _, _) in zip(found, standings, strict=True)
        ),
        default=0,
    )
    tables = []
    free = view.width - _INDENT - name_width - _FIGURES_WIDTH - longest - 1
    if compared and free >= _SHORTEST_BAR:
        bars = [_bar(standing, min(free, _LONGEST_BAR), view) for standing in standings]
        tables.append(_table(found, bars, view, name_width))
    words: list[Inline] = [(Span(text, style),) if text else "" for text, style, _ in standings]
    tables.append(_table(found, words, view, name_width))
    tables.append(_table(found, words, view, 0))
    tables.append(_table(found, words, view, None))
    return Fitting(tuple(tables))


#: Widths of the columns time, interval, speed, share and remark, with their gaps.
_TIME, _SPREAD, _SPEED, _SHARE = 7, 6, 12, 4
_FIGURES_WIDTH = _TIME + _SPREAD + _SPEED + _SHARE + 5


def _table(
    found: Sequence[Entry], last: Sequence[Inline], view: View, name_width: int | None
) -> Table:
    """Return one drawing; with a name width of None it is not aligned with other tables."""
    columns = [
        Column("row"),
        *(Column(name, right=True) for name in ("time", "±", "speed", "share")),
        Column("result"),
    ]
    rows = []
    for one, standing in zip(found, last, strict=True):
        name = one.name if name_width is None else f"{'':{_INDENT}}{one.name:<{name_width}}"
        figures = _figures(one, view)
        if name_width:
            wide = (_TIME, _SPREAD, _SPEED, _SHARE)
            figures = [_padded(cell, width) for cell, width in zip(figures, wide, strict=True)]
        remark = _remark(one.row)
        cell = (remark, Span(" "), *_spans(standing)) if remark.text else standing
        rows.append(Row((name, *figures, cell), below=tuple(_below(one, view))))
    return Table(tuple(columns), tuple(rows), gap=1, header=False)


def _spans(text: Inline) -> tuple[Span, ...]:
    return (Span(text),) if isinstance(text, str) else text


def _padded(cell: Inline, width: int) -> Inline:
    missing = width - sum(len(span.text) for span in _spans(cell))
    return (Span(" " * missing), *_spans(cell)) if missing > 0 else cell


def _figures(one: Entry, view: View) -> list[Inline]:
    row = one.row
    if row.median_s is None:
        return ["", "", "", ""]
    widths = [half_width(each) for each in one.rows]
    known = [width for width in widths if width is not None]
    spread: Inline = ""
    if known:
        style = "yellow" if max(known) >= _WIDE else ""
        spread = (Span(spread_text(max(known), view), style),)
    percent, _ = limit_of(row)
    return [
        duration(row.median_s),
        spread,
        # Of a launch, the time itself is the figure.
        "" if row.kernel == "launch" else speed_text(row),
        "" if percent is None else percent_text(percent),
    ]


def speed_text(row: Measurement) -> str:
    """Return a row's speed with its unit."""
    return "" if row.throughput is None else rate(row.throughput.value, row.throughput.unit)


def _remark(row: Measurement) -> Span:
    if row.verified is not None and not row.verified.ok:
        return Span("WRONG", "bold red")
    return Span("not checked", "dim") if row.verified is None and row.median_s else Span("")


def _has_rank(row: Measurement) -> bool:
    """Return whether a row's speed is known, with an interval, and its result not wrong."""
    return half_width(row) is not None and is_right(row) and speed(row) > 0


def _standing(
    row: Measurement, best: float, worst: float, *, compared: bool
) -> tuple[str, str, float]:
    """Return how a row compares with the best one, in words, with a style and its share."""
    value = speed(row)
    if not compared or not _has_rank(row):
        return "", "", 0.0
    if value == best:
        return "best", "bold green", 1.0
    factor = best / value
    style = "yellow" if value == worst else ""
    text = f"{two_digits(factor)}x slower" if factor >= _SLOWER else ""
    return text, style, value / best


def _bar(standing: tuple[str, str, float], longest: int, view: View) -> Inline:
    text, style, share = standing
    if share <= 0:
        return ""
    color = {"bold green": "green", "yellow": "yellow"}.get(style, "cyan")
    return (Span(_drawn_bar(share * longest, view), color), Span(f" {text}", style))


def _drawn_bar(length: float, view: View) -> str:
    """Return a bar of this length; its last character is partial where possible."""
    if not view.unicode:
        return "#" * max(1, round(length))
    eighths = max(1, round(8 * length))
    return "█" * (eighths // 8) + (_EIGHTHS[eighths % 8 - 1] if eighths % 8 else "")


def _below(one: Entry, view: View) -> Iterator[Line]:
    """Yield the lines below a row: what went wrong, the range of many GPUs, its details."""
    row = one.row
    if row.error is not None:
        yield Line(row.error.message, indent=_BELOW, style="red")
    elif row.median_s is None:
        yield Line("not measured", indent=_BELOW, style="red")
    if len(one.rows) > 1 and (text := range_text(one)):
        yield Line(text, indent=_BELOW)
    if view.verbosity > 0:
        yield Line(", ".join(details(row, view)), indent=_BELOW, style="dim")


def range_text(one: Entry) -> str:
    """Return the speeds of several GPUs, and which is the slowest; empty if they are alike."""
    low, high = one.rows[0], one.rows[-1]
    if speed(low) <= 0 or speed(high) / speed(low) - 1 < _ALIKE:
        return ""
    if low.kernel == "launch":
        span = _span(duration(high.median_s or 0.0), duration(low.median_s or 0.0))
    else:
        span = _span(speed_text(low), speed_text(high))
    return f"{span}, {outlier_text(one)}"


def outlier_text(one: Entry, *, least: float = 0.0) -> str:
    """Return which of several GPUs is the slowest, if it is so much slower than the middle one."""
    low, middle = one.rows[0], speed(one.row)
    drop = 1 - speed(low) / middle if middle > 0 else 0.0
    # Not "-0.0 %".
    share = f" -{100 * drop:.1f} %" if drop >= _LEAST_SHOWN else ""
    return f"slowest {low.device}{share}" if drop >= least else ""


# ------------------------------------------------------------------------- further details


def details(row: Measurement, view: View) -> Iterator[str]:
    """Yield what -v adds to a row."""
    samples = len(row.samples_s) or (row.summary.count if row.summary else 0)
    rounds = f" in {count_of(len(row.round_medians_s), 'round')}" if row.round_medians_s else ""
    yield count_of(samples, "sample") + rounds
    if row.loops is not None:
        yield f"{count_of(row.loops, 'operation')} each"
    if row.ci95_s is not None and row.median_s:
        share = 50 * (row.ci95_s[1] - row.ci95_s[0]) / row.median_s
        yield f"median known to {plus_minus(view)}{share:.1f}%"
    if row.summary is not None:
        low, high = (duration(value) for value in (row.summary.p10_s, row.summary.p90_s))
        yield f"p10 {low}, p90 {high}"
        yield count_of(row.summary.outlier_count, "outlier")
    if row.cold_s is not None:
        yield f"first run {duration(row.cold_s)}"
    if row.verified is not None and row.verified.error is not None:
        yield f"error {row.verified.error:.1e} of at most {row.verified.bound:.1e}"
    sums = f"sums {row.dtype.accumulate}, result {row.dtype.output}"
    yield f"arithmetic {row.dtype.math_mode}, {sums}"
    yield from _limits(row)
    for name, value in row.facts.items():
        if name.endswith("_bytes") and isinstance(value, int):
            yield f"{name.removesuffix('_bytes')} {binary_bytes(value)}"
        else:
            yield f"{name} {value if isinstance(value, str) else f'{value:.6g}'}"


def _limits(row: Measurement) -> Iterator[str]:
    """Yield the percentages in full, the clock and the energy."""
    if row.percent_of_peak is not None:
        peak = row.limits.get("peak")
        yield f"{row.percent_of_peak:.1f} % of the peak" + (f" ({peak})" if peak else "")
    if row.percent_of_peak_at_clock is not None:
        yield f"{row.percent_of_peak_at_clock:.1f} % at the measured clock"
    if row.percent_of_copy is not None:
        yield f"{row.percent_of_copy:.1f} % of {row.limits.get('copy', 'a copy')}"
    if row.sm_clock_mhz is not None:
        yield f"SM clock {row.sm_clock_mhz:.0f} MHz"
    if row.joules_per_op is not None:
        yield f"{row.joules_per_op:.3g} J for one operation"


def speed(row: Measurement) -> float:
    """Return a row's speed, 0 if it has none."""
    return row.throughput.value if row.throughput is not None else 0.0


def half_width(row: Measurement) -> float | None:
    """Return half the interval for a further run as a share of the median, if there is one."""
    if row.repeat95_s is None or not row.median_s:
        return None
    return (row.repeat95_s[1] - row.repeat95_s[0]) / 2 / row.median_s


def plus_minus(view: View) -> str:
    """Return the sign before half an interval."""
    return "±" if view.unicode else "+-"


def spread_text(width: float, view: View) -> str:
    """Return half an interval in percent, with as many digits as are significant."""
    percent = 100 * width
    if percent >= 99.5:
        return f"{plus_minus(view)}>99%"
    return f"{plus_minus(view)}{percent:.{1 if percent < 9.95 else 0}f}%"
