"""Rows of a benchmark on the console: figures, bars, their doubts and speed-ups."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from rich.console import RenderableType
from rich.padding import Padding
from rich.text import Text

from gpucheck.bench.model import Comparison, Measurement, Scope
from gpucheck.report.text import duration, printable, rate, two_digits

#: Shortest bar that shows a proportion, and longest that is easy to read.
_SHORTEST_BAR, _LONGEST_BAR = 5, 60
#: Widths of a row's figures, its mark, the share after a bar, and the indentation.
_FIGURES_WIDTH, _MARK_WIDTH, _SHARE_WIDTH, _INDENT = 35, 2, 8, 2
#: From this many GPUs on, only the fastest and slowest of each kind of row appear without -v.
_MANY_GPUS = 4
#: Error of rows for which no time was left, and how many of them are named.
_NO_TIME, _MOST_NAMED = "no-time", 4
#: Share of the median from which an interval is highlighted.
_WIDE = 0.1
Namer = Callable[[Measurement], str]


@dataclass(frozen=True, slots=True)
class Signs:
    """Characters to draw with."""

    bar: str
    parts: str
    times: str
    plus_minus: str
    micro: str
    right: str
    wrong: str
    unchecked: str
    doubt: str


UNICODE = Signs("█", "▏▎▍▌▋▊▉", "\N{MULTIPLICATION SIGN}", "±", "µ", "✓", "✗", "\N{EN DASH}", "!")
ASCII = Signs("#", "", "x", "+-", "u", "ok", "WRONG", "-", "!")


class RowsRenderer:
    """Renderer of rows for one width and one set of characters.

    `known` are the codes of doubts that are shown once for the whole report.
    """

    def __init__(
        self, width: int, signs: Signs, verbosity: int, known: frozenset[str] = frozenset()
    ) -> None:
        self._width = width
        self._signs = signs
        self._verbosity = verbosity
        self._known = known

    def group(
        self, rows: Sequence[Measurement], comparisons: Sequence[Comparison]
    ) -> Iterator[RenderableType]:
        """Yield the lines of one kernel in one format."""
        first = rows[0]
        named = namer(rows, self._signs.times)
        yield Text.assemble((printable(first.kernel), "bold"), f" {printable(self._heading(rows))}")
        late = [row for row in rows if row.error is not None and row.error.code == _NO_TIME]
        begun = [row for row in rows if all(row is not other for other in late)]
        shown = begun if self._verbosity > 0 else _without_the_middle(begun)
        # A row without an interval has no rank.
        speeds = [_speed(row) for row in rows if half_width(row) is not None]
        bounds = max(speeds, default=0.0), min(speeds, default=0.0)
        name_width = max((len(printable(named(row))) for row in shown), default=0)
        for row in shown:
            yield from self._row(row, printable(named(row)), bounds, name_width)
        if late:
            names = [named(row) for row in late[:_MOST_NAMED]]
            rest = len(late) - len(names)
            listed = " | ".join(names) + (f" | and {rest} more rows" if rest else "")
            yield self._marked_line(f"no time was left for {listed}", "yellow")
        if len(shown) < len(begun):
            text = f"fastest and slowest of {_gpu_count(rows)} GPUs; -v shows all"
            yield hanging_indent(Text(f"    {text}", style="dim"))
        if self._verbosity >= 0:
            yield from self._doubts(rows, named)
        yield from self._comparisons(comparisons)

    def _heading(self, rows: Sequence[Measurement]) -> str:
        """Return what all rows share, and the limit that the percentages refer to."""
        first = rows[0]
        parts = []
        if first.shape and all(row.shape == first.shape for row in rows):
            parts.append(_size(first.shape, self._signs.times))
        parts.append(first.dtype.format)
        parts.extend(
            f"{name} {value}"
            for name, value in first.parameters.items()
            if all(row.parameters.get(name) == value for row in rows)
        )
        return ", ".join(parts) + _percent_of(rows)

    def _row(
        self, row: Measurement, name: str, bounds: tuple[float, float], name_width: int
    ) -> Iterator[RenderableType]:
        if row.median_s is None:
            why = "interrupted before it was measured" if row.interrupted else "not measured"
            if row.error is not None:
                why = printable(row.error.message)
            yield hanging_indent(Text.assemble(f"  {name}: ", (why, "red")))
            return
        bold = "bold" if half_width(row) is not None and _speed(row) == bounds[0] else ""
        figures = self._figures(row)
        free_width = self._width - _INDENT - name_width - 1 - _SHARE_WIDTH
        beside = free_width - _FIGURES_WIDTH - max(_MARK_WIDTH, len(self._mark(row)[0])) - 1
        if beside >= _SHORTEST_BAR:
            bar = self._bar(row, bounds, min(beside, _LONGEST_BAR))
            yield Text.assemble((f"  {name:<{name_width}} ", bold), figures, " ", bar)
        else:
            line = Text.assemble((f"  {name:<{name_width}}", bold))
            if free_width >= _SHORTEST_BAR:
                line.append_text(Text.assemble(" ", self._bar(row, bounds, free_width)))
            yield line
            yield Text.assemble("  ", figures)
        if row.error is not None:
            yield self._marked_line(row.error.message, "red")
        if self._verbosity > 0:
            yield hanging_indent(Text(f"    {self._details(row)}", style="dim"))

    def _doubts(self, rows: Sequence[Measurement], named: Namer) -> Iterator[RenderableType]:
        """Yield the group's own doubts: their codes on one line, or each in full with -v."""
        if self._verbosity > 0:
            for text in full_doubts(rows, named):
                yield self._marked_line(text, "yellow")
            return
        said = short_doubts(rows, self._known)
        if said:
            yield self._marked_line(said, "yellow")

    def _figures(self, row: Measurement) -> Text:
        median_s = row.median_s or 0.0
        time = duration(median_s, self._signs.micro)
        width = half_width(row)
        spread = spread_text(width, self._signs.plus_minus)
        speed = "" if row.throughput is None else rate(row.throughput.value, row.throughput.unit)
        if row.kernel == "launch":
            speed = ""  # the time itself is the figure
        percent, _ = _limit(row)
        share_text = "" if percent is None else f"{percent:.0f}%"
        mark, style = self._mark(row)
        text = Text(f"{time:>8} ")
        text.append(f"{spread:<7}", style="yellow" if width is None or width >= _WIDE else "")
        text.append(f"{speed:>13}{share_text:>5} ")
        text.append(f"{mark:<{_MARK_WIDTH}}", style=style)
        return text

    def _mark(self, row: Measurement) -> tuple[str, str]:
        if row.verified is None:
            return self._signs.unchecked, "dim"
        return (self._signs.right, "green") if row.verified.ok else (self._signs.wrong, "red")

    def _bar(self, row: Measurement, bounds: tuple[float, float], longest: int) -> Text:
        """Return a bar as long as the row's share of the best speed, and that share in numbers."""
        if half_width(row) is None:
            return Text("no interval", style="yellow") if longest >= len("no interval") else Text()
        best, worst = bounds
        speed = _speed(row)
        share = speed / best if best > 0 else 0.0
        style = "green" if speed == best else "yellow" if speed == worst else "cyan"
        bar = Text(self._length(share * longest), style=style)
        if speed == best:
            return bar.append(" best", style="bold green") if worst < best else bar
        return bar.append(f" 1/{two_digits(best / speed)}" if speed > 0 else "", style="")

    def _length(self, length: float) -> str:
        """Return a bar of this length; its last character is partial where possible."""
        parts = self._signs.parts
        if not parts:
            return self._signs.bar * max(1, round(length))
        eighths = max(1, round(8 * length))
        return self._signs.bar * (eighths // 8) + (parts[eighths % 8 - 1] if eighths % 8 else "")

    def sentence(self, text: str, style: str = "bold") -> RenderableType:
        """Return a plain sentence below a group."""
        return hanging_indent(Text(f"  {printable(text)}", style=style))

    def _marked_line(self, text: str, style: str) -> RenderableType:
        return hanging_indent(Text(f"    {self._signs.doubt} {printable(text)}", style=style))

    def _details(self, row: Measurement) -> str:
        samples = len(row.samples_s) or (row.summary.count if row.summary else 0)
        parts = [_counted(samples, "sample")]
        if row.round_medians_s:
            parts[0] += f" in {_counted(len(row.round_medians_s), 'round')}"
        if row.loops is not None:
            parts.append(f"{_counted(row.loops, 'operation')} each")
        if row.ci95_s is not None and row.median_s:
            share = 50 * (row.ci95_s[1] - row.ci95_s[0]) / row.median_s
            parts.append(f"median known to {self._signs.plus_minus}{share:.1f}%")
        if row.summary is not None:
            low, high = (
                duration(value, self._signs.micro)
                for value in (row.summary.p10_s, row.summary.p90_s)
            )
            parts.append(f"p10 {low}, p90 {high}")
            parts.append(_counted(row.summary.outlier_count, "outlier"))
        if row.cold_s is not None:
            parts.append(f"first run {duration(row.cold_s, self._signs.micro)}")
        if row.verified is not None and row.verified.error is not None:
            parts.append(f"error {row.verified.error:.1e} of at most {row.verified.bound:.1e}")
        sums = f"sums {row.dtype.accumulate}, result {row.dtype.output}"
        parts.append(f"arithmetic {row.dtype.math_mode}, {sums}")
        parts.extend(self._limits(row))
        parts.extend(
            f"{name} {value if isinstance(value, str) else f'{value:.6g}'}"
            for name, value in row.facts.items()
        )
        return ", ".join(printable(part) for part in parts)

    def _limits(self, row: Measurement) -> Iterator[str]:
        """Yield the percentages in full, the clock and the energy."""
        if row.percent_of_peak is not None:
            yield f"{row.percent_of_peak:.1f} % of the peak ({row.limits.get('peak', '')})"
        if row.percent_of_peak_at_clock is not None:
            yield f"{row.percent_of_peak_at_clock:.1f} % at the measured clock"
        if row.percent_of_copy is not None:
            yield f"{row.percent_of_copy:.1f} % of {row.limits.get('copy', 'a copy')}"
        if row.sm_clock_mhz is not None:
            yield f"SM clock {row.sm_clock_mhz:.0f} MHz"
        if row.joules_per_op is not None:
            yield f"{row.joules_per_op:.3g} J for one operation"

    def _comparisons(self, comparisons: Sequence[Comparison]) -> Iterator[RenderableType]:
        """Yield the speed-ups; of many only the smallest and the largest."""
        chosen = comparisons
        if self._verbosity <= 0 and len(comparisons) > 2:
            inner = sorted(comparisons, key=lambda one: one.speedup_resident)[1:-1]
            chosen = [one for one in comparisons if all(one is not other for other in inner)]
        for one in chosen:
            yield self.sentence(f"{self._where(one, comparisons)}{one.sentence}")
            if self._verbosity > 0 and one.speedup_amortised is not None:
                factor = one.speedup_amortised
                times = two_digits(factor if factor >= 1 or factor <= 0 else 1 / factor)
                text = f"{one.reuse_count} operations on data moved once: {times} times"
                yield self.sentence(f"  {text} {'faster' if factor >= 1 else 'slower'}")
        # Without -v the sentences name both precisions, and the legend why a side was slow.
        if self._verbosity > 0:
            about = (f"{doubt.message}; {doubt.next}" for one in chosen for doubt in one.doubts)
            for text in dict.fromkeys(about):
                yield self._marked_line(text, "yellow")

    def _where(self, one: Comparison, comparisons: Sequence[Comparison]) -> str:
        """Return what distinguishes a comparison from the others: GPU, size or towers."""
        parts = []
        if len({other.gpu.device for other in comparisons}) > 1:
            parts.append(one.gpu.device)
        if len({other.shape for other in comparisons}) > 1:
            parts.append(f"size {_size(one.shape, self._signs.times)}")
        here = (one.gpu.device, one.shape)
        if sum((other.gpu.device, other.shape) == here for other in comparisons) > 1:
            parts.append(one.gpu.variant)
        return f"{printable(', '.join(parts))}: " if parts else ""


def _gpu_count(rows: Sequence[Measurement]) -> int:
    return len({row.device for row in rows if row.device != "cpu"})


def _without_the_middle(rows: Sequence[Measurement]) -> Sequence[Measurement]:
    """Return the rows without those between the fastest and the slowest of many GPUs.

    Rows that went wrong stay.
    """
    if _gpu_count(rows) < _MANY_GPUS:
        return rows
    kinds: dict[tuple[object, ...], list[Measurement]] = {}
    for row in rows:
        right = row.verified is not None and row.verified.ok
        if row.device != "cpu" and row.median_s is not None and row.error is None and right:
            kinds.setdefault((row.variant, row.scope, row.shape), []).append(row)
    middle = {
        id(row)
        for kind in kinds.values()
        for row in sorted(kind, key=lambda row: _speed(row))[1:-1]
    }
    return [row for row in rows if id(row) not in middle]


def hanging_indent(text: Text) -> RenderableType:
    """Return a text whose further lines are indented below its first word."""
    indent = len(text.plain) - len(text.plain.lstrip())
    return Padding(text[indent:], (0, 0, 0, indent))


def namer(rows: Sequence[Measurement], times: str) -> Namer:
    """Return the function that names a row so that it differs from the others."""
    if len({row.shape for row in rows}) == 1:
        return row_name
    # In a sweep the size matters; the rest only if a device has several kinds of rows.
    kinds = {(row.device, row.variant, row.threads, row.scope) for row in rows}
    plain = len(kinds) == len({row.device for row in rows})

    def named(row: Measurement) -> str:
        size = _size(row.shape, times)
        return f"{row.device}, {size}" if plain else f"{row_name(row)}, {size}"

    return named


def _size(shape: Sequence[int], times: str) -> str:
    return f" {times} ".join(str(edge) for edge in shape)


def row_name(row: Measurement) -> str:
    """Return a row's name: device, variant, threads, and whether data moved."""
    variant = row.variant.removesuffix("-1-thread")
    threads = ""
    if row.threads is not None:
        threads = ", 1 thread" if row.threads == 1 else f", {row.threads} threads"
    moved = " + transfers" if row.scope is Scope.END_TO_END else ""
    return f"{row.device} {variant}{threads}{moved}"


def _limit(row: Measurement) -> tuple[float | None, str]:
    """Return the percentage to show, and the limit that it refers to."""
    if row.percent_of_copy is not None and row.kernel != "copy":
        return row.percent_of_copy, "a copy"
    if row.percent_of_peak is not None:
        return row.percent_of_peak, "the best product" if row.device == "cpu" else "peak"
    return None, ""


def _percent_of(rows: Sequence[Measurement]) -> str:
    """Return the limits of the percentages, by device if they differ."""
    limits: dict[str, list[str]] = {}
    for row in rows:
        percent, limit = _limit(row)
        if percent is not None:
            limits.setdefault(limit, []).append("cpu" if row.device == "cpu" else "gpu")
    if len(limits) < 2:
        return "".join(f" (% of {limit})" for limit in limits)
    parts = [f"{devices[0]} % of {limit}" for limit, devices in limits.items()]
    return f" ({', '.join(parts)})"


def _counted(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def _speed(row: Measurement) -> float:
    return row.throughput.value if row.throughput is not None else 0.0


def half_width(row: Measurement) -> float | None:
    """Return half the interval for a further run as a share of the median, if there is one."""
    if row.repeat95_s is None or not row.median_s:
        return None
    return (row.repeat95_s[1] - row.repeat95_s[0]) / 2 / row.median_s


def spread_text(width: float | None, plus_minus: str) -> str:
    """Return half an interval in percent, with as many digits as are significant."""
    if width is None:
        return f"{plus_minus}?"
    percent = 100 * width
    if percent >= 99.5:
        return ">99%"
    return f"{plus_minus}{percent:.{1 if percent < 9.95 else 0}f}%"


def full_doubts(rows: Sequence[Measurement], named: Namer) -> Iterator[str]:
    """Yield each doubt of a group in full, with its rows."""
    about: dict[str, list[str]] = {}
    for row in rows:
        for doubt in row.doubts:
            about.setdefault(f"{doubt.message}; {doubt.next}", []).append(named(row))
    measured = sum(row.median_s is not None for row in rows)
    for text, names in about.items():
        who = "all rows" if len(names) == measured > 1 else " | ".join(names)
        yield printable(f"{who}: {text}")


def short_doubts(rows: Sequence[Measurement], known: frozenset[str]) -> str:
    """Return the codes of a group's own doubts, without those shown for all rows."""
    measured = [row for row in rows if row.median_s is not None]
    counts = Counter(doubt.code for row in measured for doubt in row.doubts)
    said = [
        code if count == len(measured) else f"{code} ({count})"
        for code, count in counts.items()
        if code not in known
    ]
    return ", ".join(said)
