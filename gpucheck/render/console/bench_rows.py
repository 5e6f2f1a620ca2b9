"""The rows of a benchmark: one kernel in one format, with bars, doubts and its speed-ups."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpucheck.models.bench import Comparison, Measurement, Scope
from gpucheck.render.base import printable
from gpucheck.render.console.figures import duration, rate

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text

#: From this width a row and its bar stand on one line; below, the bar gets its own.
_ONE_LINE = 76
_LONGEST_BAR = 60
_FIGURES_WIDTH = 43


@dataclass(frozen=True, slots=True)
class Signs:
    """The characters to draw with."""

    bar: str
    times: str
    plus_minus: str
    micro: str
    right: str
    wrong: str
    unchecked: str
    doubt: str


UNICODE = Signs("█", "\N{MULTIPLICATION SIGN}", "±", "µ", "✓", "✗", "\N{EN DASH}", "!")
ASCII = Signs("#", "x", "+-", "u", "ok", "WRONG", "-", "!")


class Drawing:
    """Draws rows for one width and one set of characters."""

    def __init__(self, width: int, signs: Signs, verbosity: int) -> None:
        self._width = width
        self._signs = signs
        self._verbosity = verbosity

    def group(
        self, rows: Sequence[Measurement], comparisons: Sequence[Comparison]
    ) -> Iterator[RenderableType]:
        """Yield the lines of one kernel in one format."""
        from rich.text import Text

        first = rows[0]
        named = _namer(rows, self._signs.times)
        yield Text.assemble((printable(first.kernel), "bold"), f" {printable(self._heading(rows))}")
        speeds = [_speed(row) for row in rows if row.median_s is not None]
        best, worst = max(speeds, default=0.0), min(speeds, default=0.0)
        name_width = max(len(named(row)) for row in rows)
        for row in rows:
            yield from self._row(row, named(row), (best, worst), name_width)
        if self._verbosity >= 0:
            yield from self._doubts(rows, named)
        for comparison in comparisons:
            yield from self._comparison(comparison, several=len(comparisons) > 1)

    def _heading(self, rows: Sequence[Measurement]) -> str:
        """Return what all rows share, and what the percentages are of."""
        first = rows[0]
        parts = []
        if first.shape and all(row.shape == first.shape for row in rows):
            parts.append(_size(first.shape, self._signs.times))
        math_mode = first.dtype.math_mode
        parts.append("tf32" if math_mode == "tf32" else first.dtype.input)
        parts.extend(
            f"{name} {value}"
            for name, value in first.parameters.items()
            if all(row.parameters.get(name) == value for row in rows)
        )
        limits = {_limit(row)[1] for row in rows if _limit(row)[0] is not None}
        of = f" (% of {', '.join(sorted(limits))})" if limits else ""
        return ", ".join(parts) + of

    def _row(
        self, row: Measurement, name: str, bounds: tuple[float, float], name_width: int
    ) -> Iterator[RenderableType]:
        from rich.text import Text

        name = printable(name)
        if row.median_s is None:
            yield hanging(Text.assemble(f"  {name}: ", (_why_empty(row), "red")))
            return
        best = bounds[0]
        bold = "bold" if _speed(row) == best else ""
        figures = self._figures(row)
        room = self._width - name_width - _FIGURES_WIDTH - 8
        if self._width >= _ONE_LINE and room >= 6:
            bar = self._bar(row, bounds, min(room, _LONGEST_BAR))
            yield Text.assemble((f"  {name:<{name_width}} ", bold), figures, " ", bar)
        else:
            yield Text.assemble((f"  {name}", bold))
            yield Text.assemble("  ", figures)
            yield Text.assemble("    ", self._bar(row, bounds, min(self._width - 6, _LONGEST_BAR)))
        if row.error is not None:
            yield self._remark(row.error.message, "red")
        elif row.interrupted:
            yield self._remark("interrupted before its time was over", "yellow")
        if self._verbosity > 0:
            yield hanging(Text(f"    {self._details(row)}", style="dim"))

    def _doubts(
        self, rows: Sequence[Measurement], named: Callable[[Measurement], str]
    ) -> Iterator[RenderableType]:
        """Yield the doubts: their names on one line, or with -v each in full for its rows."""
        about: dict[str, list[str]] = {}
        for row in rows:
            for doubt in row.doubts:
                full = f"{doubt.message}; {doubt.next}"
                text = full if self._verbosity > 0 else doubt.code
                about.setdefault(text, []).append(named(row))
        said = []
        for text, names in about.items():
            everywhere = len(names) == sum(row.median_s is not None for row in rows)
            if self._verbosity > 0:
                who = "all rows" if everywhere and len(rows) > 1 else " | ".join(names)
                yield self._remark(f"{who}: {text}", "yellow")
            else:
                said.append(text if everywhere else f"{text} ({len(names)})")
        if said:
            yield self._remark(", ".join(said), "yellow")

    def _figures(self, row: Measurement) -> Text:
        from rich.text import Text

        median_s = row.median_s or 0.0
        time = duration(median_s, self._signs.micro)
        spread = f"{self._signs.plus_minus}?"
        if row.repeat95_s is not None and median_s > 0:
            share = 100 * (row.repeat95_s[1] - row.repeat95_s[0]) / 2 / median_s
            spread = f"{self._signs.plus_minus}{share:.1f}%" if share < 99.95 else ">99%"
        speed = "" if row.throughput is None else rate(row.throughput.value, row.throughput.unit)
        if row.kernel == "launch":
            speed = ""  # the time itself is the figure
        percent, _ = _limit(row)
        share_text = "" if percent is None else f"{percent:.0f}%"
        mark, style = self._mark(row)
        text = Text(f"{time:>8} {spread:<7}{speed:>13}{share_text:>5} ")
        text.append(f"{mark:<2}" if len(mark) < 3 else mark, style=style)
        return text

    def _mark(self, row: Measurement) -> tuple[str, str]:
        if row.verified is None:
            return self._signs.unchecked, "dim"
        return (self._signs.right, "green") if row.verified.ok else (self._signs.wrong, "red")

    def _bar(self, row: Measurement, bounds: tuple[float, float], longest: int) -> Text:
        """Return a bar as long as the row's share of the best speed, at least one character."""
        from rich.text import Text

        best, worst = bounds
        speed = _speed(row)
        share = speed / best if best > 0 else 0.0
        style = "green" if speed == best else "yellow" if speed == worst else "cyan"
        return Text(self._signs.bar * max(1, round(share * longest)), style=style)

    def sentence(self, text: str) -> RenderableType:
        """Return one plain sentence below a group."""
        from rich.text import Text

        return hanging(Text(f"  {printable(text)}", style="bold"))

    def _remark(self, text: str, style: str) -> RenderableType:
        from rich.text import Text

        return hanging(Text(f"    {self._signs.doubt} {printable(text)}", style=style))

    def _details(self, row: Measurement) -> str:
        parts = [f"{len(row.samples_s) or (row.summary.count if row.summary else 0)} samples"]
        if row.round_medians_s:
            parts[0] += f" in {len(row.round_medians_s)} rounds"
        if row.loops is not None:
            parts.append(f"{row.loops} operations each")
        if row.ci95_s is not None and row.median_s:
            share = 50 * (row.ci95_s[1] - row.ci95_s[0]) / row.median_s
            parts.append(f"median known to {self._signs.plus_minus}{share:.1f}%")
        if row.summary is not None:
            low, high = (
                duration(value, self._signs.micro)
                for value in (row.summary.p10_s, row.summary.p90_s)
            )
            parts.append(f"p10 {low}, p90 {high}")
            parts.append(f"{row.summary.outlier_count} outliers")
        if row.cold_s is not None:
            parts.append(f"first run {duration(row.cold_s, self._signs.micro)}")
        if row.verified is not None and row.verified.error is not None:
            parts.append(f"error {row.verified.error:.1e} of at most {row.verified.bound:.1e}")
        parts.append(f"arithmetic {printable(row.dtype.math_mode)}")
        parts.extend(self._limits(row))
        parts.extend(f"{name} {_number(value)}" for name, value in row.facts.items())
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

    def _comparison(self, comparison: Comparison, *, several: bool) -> Iterator[RenderableType]:
        where = f"{comparison.gpu.device}: " if several else ""
        yield self.sentence(f"{where}{comparison.sentence}")
        for doubt in comparison.doubts:
            yield self._remark(f"{doubt.message}; {doubt.next}", "yellow")


def hanging(text: Text) -> RenderableType:
    """Return a text whose further lines are indented below its first words."""
    from rich.padding import Padding

    indent = len(text.plain) - len(text.plain.lstrip())
    return Padding(text[indent:], (0, 0, 0, indent))


def _namer(rows: Sequence[Measurement], times: str) -> Callable[[Measurement], str]:
    """Return the function that names a row, with what distinguishes it from those beside it."""
    if len({row.shape for row in rows}) == 1:
        return row_name
    # Of a sweep the size is what matters; the rest only where a device has several kinds of rows.
    kinds = {(row.device, row.variant, row.threads, row.scope) for row in rows}
    plain = len(kinds) == len({row.device for row in rows})

    def named(row: Measurement) -> str:
        size = _size(row.shape, times)
        return f"{row.device}, {size}" if plain else f"{row_name(row)}, {size}"

    return named


def _size(shape: Sequence[int], times: str) -> str:
    return f" {times} ".join(str(edge) for edge in shape)


def row_name(row: Measurement) -> str:
    """Return a row's name: device, variant, threads, and that the data moved."""
    variant = row.variant.removesuffix("-1-thread")
    threads = ""
    if row.threads is not None:
        threads = ", 1 thread" if row.threads == 1 else f", {row.threads} threads"
    moved = " + transfers" if row.scope is Scope.END_TO_END else ""
    return f"{row.device} {variant}{threads}{moved}"


def _limit(row: Measurement) -> tuple[float | None, str]:
    """Return the percentage to show at a glance, and what it is of."""
    if row.percent_of_copy is not None and row.kernel != "copy":
        return row.percent_of_copy, "a copy"
    if row.percent_of_peak is not None:
        return row.percent_of_peak, "the best product" if row.device == "cpu" else "peak"
    return None, ""


def _speed(row: Measurement) -> float:
    return row.throughput.value if row.throughput is not None else 0.0


def _why_empty(row: Measurement) -> str:
    if row.error is not None:
        return printable(row.error.message)
    return "interrupted before it was measured" if row.interrupted else "not measured"


def _number(value: str | float) -> str:
    return value if isinstance(value, str) else f"{value:.6g}"
