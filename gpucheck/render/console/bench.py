"""`gpucheck bench` on a terminal: rows with bars by kernel, doubts under them, speed-ups last."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING

from gpucheck.models.bench import (
    BenchEnvironment,
    BenchResult,
    Comparison,
    Measurement,
    Scope,
)
from gpucheck.models.report import Report
from gpucheck.render.base import View, printable

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text

#: From this width a row and its bar stand on one line; below, the bar gets its own.
_ONE_LINE = 72
_LONGEST_BAR = 60
_FIGURES_WIDTH = 38


@dataclass(frozen=True, slots=True)
class _Signs:
    """The characters to draw with."""

    bar: str
    times: str
    plus_minus: str
    micro: str
    right: str
    wrong: str
    unchecked: str
    doubt: str


_UNICODE = _Signs("█", "\N{MULTIPLICATION SIGN}", "±", "µ", "✓", "✗", "\N{EN DASH}", "!")
_ASCII = _Signs("#", "x", "+-", "u", "ok", "WRONG", "-", "!")


def build(report: Report, view: View) -> RenderableType:
    """Return the whole report as one renderable."""
    if not isinstance(report.result, BenchResult):
        raise TypeError(type(report.result).__name__)
    return render_bench(
        report.result, width=view.width, ascii_only=not view.unicode, verbosity=view.verbosity
    )


def render_bench(
    result: BenchResult, *, width: int, ascii_only: bool, verbosity: int = 0
) -> RenderableType:
    """Return the result for a terminal of `width` columns.

    `verbosity` -1 leaves out doubts and the environment, 1 adds the details of each row.
    """
    from rich.console import Group
    from rich.text import Text

    drawing = _Drawing(width, _ASCII if ascii_only else _UNICODE, verbosity)
    lines: list[RenderableType] = []
    for _, group in groupby(result.measurements, key=lambda row: (row.kernel, row.shape)):
        rows = list(group)
        same = [one for one in result.comparisons if _belongs(one, rows[0])]
        lines.extend(drawing.group(rows, same))
        lines.append(Text())
    if result.interrupted:
        lines.append(Text("interrupted: what was measured stands above", style="yellow"))
    lines.extend(Text(f"note: {printable(note)}") for note in result.notes)
    lines.extend(drawing.environment(result.environment))
    return Group(*lines)


def _belongs(comparison: Comparison, row: Measurement) -> bool:
    return (comparison.kernel, comparison.shape) == (row.kernel, row.shape)


class _Drawing:
    """Draws rows for one width and one set of characters."""

    def __init__(self, width: int, signs: _Signs, verbosity: int) -> None:
        self._width = width
        self._signs = signs
        self._verbosity = verbosity

    def group(
        self, rows: Sequence[Measurement], comparisons: Sequence[Comparison]
    ) -> Iterator[RenderableType]:
        """Yield the lines of one kernel at one shape."""
        from rich.text import Text

        first = rows[0]
        size = f" {self._signs.times} ".join(str(edge) for edge in first.shape)
        extras = "".join(f", {name} {value}" for name, value in first.parameters.items())
        yield Text.assemble(
            (printable(first.kernel), "bold"),
            f" {size}, {printable(first.dtype.input)}{printable(extras)}",
        )
        best = max((_speed(row) for row in rows), default=0.0)
        name_width = max(len(row_name(row)) for row in rows)
        for row in rows:
            yield from self._row(row, best, name_width)
        if self._verbosity >= 0:
            yield from self._doubts(rows)
        for comparison in comparisons:
            yield from self._comparison(comparison, several=len(comparisons) > 1)

    def _row(self, row: Measurement, best: float, name_width: int) -> Iterator[RenderableType]:
        from rich.text import Text

        name = printable(row_name(row))
        if row.median_s is None:
            yield self._hanging(Text.assemble(f"  {name}: ", (_why_empty(row), "red")))
            return
        bold = "bold" if _speed(row) == best else ""
        figures = self._figures(row)
        room = self._width - name_width - _FIGURES_WIDTH - 8
        if self._width >= _ONE_LINE and room >= 8:
            bar = self._bar(row, best, min(room, _LONGEST_BAR))
            yield Text.assemble((f"  {name:<{name_width}} ", bold), figures, " ", bar)
        else:
            yield Text.assemble((f"  {name}", bold))
            yield Text.assemble("   ", figures)
            yield Text.assemble("    ", self._bar(row, best, min(self._width - 6, _LONGEST_BAR)))
        if row.error is not None:
            yield self._remark(row.error.message, "red")
        elif row.interrupted:
            yield self._remark("interrupted before its time was over", "yellow")
        if self._verbosity > 0:
            yield self._hanging(Text(f"    {self._details(row)}", style="dim"))

    def _doubts(self, rows: Sequence[Measurement]) -> Iterator[RenderableType]:
        """Yield each doubt once, with the names of the rows it is about."""
        about: dict[str, list[str]] = {}
        for row in rows:
            for doubt in row.doubts:
                about.setdefault(f"{doubt.message}; {doubt.next}", []).append(row_name(row))
        for text, names in about.items():
            who = "all rows" if len(names) == len(rows) > 1 else " | ".join(names)
            yield self._remark(f"{who}: {text}", "yellow")

    def _figures(self, row: Measurement) -> Text:
        from rich.text import Text

        median_s = row.median_s or 0.0
        time = duration(median_s, self._signs.micro)
        spread = f"{self._signs.plus_minus}?"
        if row.ci95_s is not None and median_s > 0:
            share = (row.ci95_s[1] - row.ci95_s[0]) / 2 / median_s
            spread = f"{self._signs.plus_minus}{100 * share:.1f}%"
        speed = "" if row.throughput is None else rate(row.throughput.value, row.throughput.unit)
        mark, style = self._mark(row)
        text = Text(f"{time:>9} {spread:<8}{speed:>13} ")
        text.append(f"{mark:<2}" if len(mark) < 3 else mark, style=style)
        return text

    def _mark(self, row: Measurement) -> tuple[str, str]:
        if row.verified is None:
            return self._signs.unchecked, "dim"
        return (self._signs.right, "green") if row.verified.ok else (self._signs.wrong, "red")

    def _bar(self, row: Measurement, best: float, longest: int) -> Text:
        """Return a bar as long as the row's share of the best speed, at least one character."""
        from rich.text import Text

        share = _speed(row) / best if best > 0 else 0.0
        style = "green" if share == 1 else "cyan"
        return Text(self._signs.bar * max(1, round(share * longest)), style=style)

    def _remark(self, text: str, style: str) -> RenderableType:
        from rich.text import Text

        return self._hanging(Text(f"    {self._signs.doubt} {printable(text)}", style=style))

    def _hanging(self, text: Text) -> RenderableType:
        """Return a text whose further lines are indented below its first words."""
        from rich.padding import Padding

        indent = len(text.plain) - len(text.plain.lstrip())
        stripped = text[indent:]
        return Padding(stripped, (0, 0, 0, indent))

    def _details(self, row: Measurement) -> str:
        parts = [f"{len(row.samples_s) or (row.summary.count if row.summary else 0)} samples"]
        if row.loops is not None:
            parts.append(f"{row.loops} operations each")
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
        return ", ".join(parts)

    def _comparison(self, comparison: Comparison, *, several: bool) -> Iterator[RenderableType]:
        from rich.text import Text

        where = f"{comparison.gpu.device}: " if several else ""
        yield self._hanging(
            Text(f"  {printable(where)}{printable(comparison.sentence)}", style="bold")
        )
        for doubt in comparison.doubts:
            yield self._remark(f"{doubt.message}; {doubt.next}", "yellow")

    def environment(self, found: BenchEnvironment) -> Iterator[RenderableType]:
        """Yield where the figures were taken, and why there is no GPU among them."""
        from rich.text import Text

        if found.gpu_unavailable is not None:
            yield Text(f"no GPU figures: {printable(found.gpu_unavailable)}", style="yellow")
        if self._verbosity < 0:
            return
        yield Text(_host_line(found), style="dim")
        for gpu in found.gpus:
            yield Text(f"gpu:{gpu.cuda_index}: {printable(gpu.name)}", style="dim")


def row_name(row: Measurement) -> str:
    """Return a row's name: device, variant, threads, and that the data moved."""
    variant = row.variant.removesuffix("-1-thread")
    threads = ""
    if row.threads is not None:
        threads = ", 1 thread" if row.threads == 1 else f", {row.threads} threads"
    moved = " + transfers" if row.scope is Scope.END_TO_END else ""
    return f"{row.device} {variant}{threads}{moved}"


def _speed(row: Measurement) -> float:
    return row.throughput.value if row.throughput is not None else 0.0


def _why_empty(row: Measurement) -> str:
    if row.error is not None:
        return printable(row.error.message)
    return "interrupted before it was measured" if row.interrupted else "not measured"


def _host_line(found: BenchEnvironment) -> str:
    parts = [found.cpu_model or "unknown processor"]
    parts.append(f"{found.usable_cores} of {found.logical_cores or '?'} cores")
    if found.cpu_quota_cores is not None:
        parts.append(f"quota {found.cpu_quota_cores:g}")
    if found.blas_name is not None:
        parts.append(f"{found.blas_name} {found.blas_version or ''}".strip())
    parts.append(f"NumPy {found.numpy_version}")
    if found.cupy_version is not None:
        parts.append(f"CuPy {found.cupy_version}")
    return printable("cpu: " + ", ".join(parts))


def duration(seconds: float, micro: str = "µ") -> str:
    """Return seconds with three digits and the unit that fits: 0.00831 -> "8.31 ms"."""
    units = ((1.0, "s"), (1e-3, "ms"), (1e-6, f"{micro}s"), (1e-9, "ns"))
    return _scaled(seconds, units)


def rate(value: float, unit: str) -> str:
    """Return work per second with three digits and a prefix: 2.07e11 FLOP/s -> "207 GFLOP/s"."""
    prefixes = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""))
    return _scaled(value, tuple((scale, f"{prefix}{unit}") for scale, prefix in prefixes))


def _scaled(value: float, units: Sequence[tuple[float, str]]) -> str:
    """Return the value in the largest unit of which it holds at least one, else in the smallest."""
    # 0.9995 and not 1: 999.7 would be shown as "1000" of the smaller unit.
    fitting = [(scale, unit) for scale, unit in units if value >= 0.9995 * scale]
    scale, unit = fitting[0] if fitting else units[-1]
    number = value / scale
    digits = 2 if number < 9.995 else 1 if number < 99.95 else 0
    return f"{number:.{digits}f} {unit}"
