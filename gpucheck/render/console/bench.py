"""`gpucheck bench` on a terminal: rows with bars by kernel, what they say, and the doubts last."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING

from gpucheck.models.bench import (
    BenchEnvironment,
    BenchResult,
    Comparison,
    GpuTelemetry,
    Measurement,
    Roofline,
    Scope,
    Telemetry,
)
from gpucheck.models.report import Report
from gpucheck.render.base import View, printable

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text

#: From this width a row and its bar stand on one line; below, the bar gets its own.
_ONE_LINE = 76
_LONGEST_BAR = 60
_FIGURES_WIDTH = 43


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

    `verbosity` -1 leaves out doubts and the environment, 1 adds the details of each row and the
    whole text of each doubt.
    """
    from rich.console import Group
    from rich.text import Text

    drawing = _Drawing(width, _ASCII if ascii_only else _UNICODE, verbosity)
    lines: list[RenderableType] = []
    for name, kernel_rows in groupby(result.measurements, key=lambda row: row.kernel):
        for _, group in groupby(kernel_rows, key=_problem):
            rows = list(group)
            lines.extend(drawing.group(rows, _belonging(result.comparisons, rows)))
        said = [one.sentence for one in result.conclusions if one.kernel == name]
        lines.extend(drawing.sentence(text) for text in said)
        lines.append(Text())
    if result.interrupted:
        lines.append(Text("interrupted: what was measured stands above", style="yellow"))
    lines.extend(Text(f"note: {printable(note)}") for note in result.notes)
    lines.extend(drawing.legend(result.measurements))
    lines.extend(drawing.environment(result.environment))
    lines.extend(drawing.telemetry(result.telemetry))
    return Group(*lines)


def _problem(row: Measurement) -> tuple[object, ...]:
    """Return what rows under one heading have in common: the input's format and the arithmetic."""
    return (row.dtype.input, row.dtype.math_mode)


def _belonging(
    comparisons: Sequence[Comparison], rows: Sequence[Measurement]
) -> Sequence[Comparison]:
    """Return the comparisons whose GPU row stands among these."""
    here = {(row.kernel, row.shape, row.device, row.dtype) for row in rows}
    return [
        one for one in comparisons if (one.kernel, one.shape, one.gpu.device, one.gpu.dtype) in here
    ]


class _Drawing:
    """Draws rows for one width and one set of characters."""

    def __init__(self, width: int, signs: _Signs, verbosity: int) -> None:
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
            yield self._hanging(Text.assemble(f"  {name}: ", (_why_empty(row), "red")))
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
            yield self._hanging(Text(f"    {self._details(row)}", style="dim"))

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

    def legend(self, rows: Sequence[Measurement]) -> Iterator[RenderableType]:
        """Yield each doubt once, in the words of its first row, with the next step."""
        if self._verbosity != 0:
            return
        first: dict[str, str] = {}
        counts: dict[str, int] = {}
        for row in rows:
            for doubt in row.doubts:
                first.setdefault(doubt.code, f"{doubt.message}; {doubt.next}")
                counts[doubt.code] = counts.get(doubt.code, 0) + 1
        for code, text in first.items():
            count = counts[code]
            where = "1 row" if count == 1 else f"{count} rows, the first"
            yield self._hanging(self._legend_line(code, where, text))

    def _legend_line(self, code: str, where: str, text: str) -> Text:
        from rich.text import Text

        return Text.assemble(
            (f"{self._signs.doubt} {printable(code)}", "yellow"), f" ({where}): {printable(text)}"
        )

    def _figures(self, row: Measurement) -> Text:
        from rich.text import Text

        median_s = row.median_s or 0.0
        time = duration(median_s, self._signs.micro)
        spread = f"{self._signs.plus_minus}?"
        if row.ci95_s is not None and median_s > 0:
            share = 100 * (row.ci95_s[1] - row.ci95_s[0]) / 2 / median_s
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

        return self._hanging(Text(f"  {printable(text)}", style="bold"))

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

    def environment(self, found: BenchEnvironment) -> Iterator[RenderableType]:
        """Yield where the figures were taken, and why there is no GPU among them."""
        from rich.text import Text

        if found.gpu_unavailable is not None:
            yield Text(f"no GPU figures: {printable(found.gpu_unavailable)}", style="yellow")
        if self._verbosity < 0:
            return
        yield Text(_host_line(found), style="dim")
        for roofline in found.rooflines:
            yield Text(_roofline_line(roofline), style="dim")
        for gpu in found.gpus:
            board = f" ({gpu.board.source})" if gpu.board is not None else ""
            yield Text(f"gpu:{gpu.cuda_index}: {printable(gpu.name + board)}", style="dim")

    def telemetry(self, found: Telemetry | None) -> Iterator[RenderableType]:
        """Yield what the sensors said of each GPU, or why they said nothing."""
        from rich.text import Text

        if found is None or self._verbosity < 0:
            return
        if found.unavailable is not None:
            yield Text(f"no sensors: {printable(found.unavailable)}", style="dim")
        for gpu in found.gpus:
            yield Text(printable(_sensor_line(gpu)), style="dim")


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
    if found.parallel_efficiency is not None:
        parts.append(f"parallel efficiency {found.parallel_efficiency:.0%}")
    if found.peak_memory_bytes is not None:
        parts.append(f"at most {found.peak_memory_bytes / 2**20:.0f} MiB taken")
    return printable("cpu: " + ", ".join(parts))


def _roofline_line(roofline: Roofline) -> str:
    where = roofline.device
    if roofline.threads is not None:
        where += ", 1 thread" if roofline.threads == 1 else f", {roofline.threads} threads"
    parts = []
    if roofline.copy_bytes_per_s is not None:
        parts.append(f"copy {rate(roofline.copy_bytes_per_s, 'B/s')}")
    if roofline.gemm_flops_per_s is not None:
        parts.append(f"{roofline.gemm_dtype} product {rate(roofline.gemm_flops_per_s, 'FLOP/s')}")
    return printable(f"limits measured on {where}: {', '.join(parts) or 'none'}")


def _sensor_line(gpu: GpuTelemetry) -> str:
    parts = []
    if gpu.clock_sm_mhz is not None:
        parts.append(f"SM clock {gpu.clock_sm_mhz.low:.0f} to {gpu.clock_sm_mhz.high:.0f} MHz")
    if gpu.power_w is not None:
        limit = f" of {gpu.power_limit_w:.0f}" if gpu.power_limit_w is not None else ""
        parts.append(f"up to {gpu.power_w.high:.0f}{limit} W")
    if gpu.temperature_c is not None:
        parts.append(f"up to {gpu.temperature_c.high:.0f} C")
    if gpu.pcie_generation is not None:
        parts.append(f"PCIe {gpu.pcie_generation} x{gpu.pcie_width}")
    if gpu.reasons:
        parts.append(
            "clock held by " + ", ".join(sorted(set(gpu.reasons) - {"idle"}) or ["nothing"])
        )
    return f"{gpu.uuid}: {', '.join(parts) or 'the sensors gave nothing'}"


def duration(seconds: float, micro: str = "µ") -> str:
    """Return seconds with three digits and the unit that fits: 0.00831 -> "8.31 ms"."""
    units = ((1.0, "s"), (1e-3, "ms"), (1e-6, f"{micro}s"), (1e-9, "ns"))
    return _scaled(seconds, units)


def rate(value: float, unit: str) -> str:
    """Return work per second with three digits and a prefix: 2.07e11 FLOP/s -> "207 GFLOP/s"."""
    short = "img/s" if unit == "image/s" else unit
    prefixes = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""))
    return _scaled(value, tuple((scale, f"{prefix}{short}") for scale, prefix in prefixes))


def _scaled(value: float, units: Sequence[tuple[float, str]]) -> str:
    """Return the value in the largest unit of which it holds at least one, else in the smallest."""
    # 0.9995 and not 1: 999.7 would be shown as "1000" of the smaller unit.
    fitting = [(scale, unit) for scale, unit in units if value >= 0.9995 * scale]
    scale, unit = fitting[0] if fitting else units[-1]
    number = value / scale
    digits = 2 if number < 9.995 else 1 if number < 99.95 else 0
    return f"{number:.{digits}f} {unit}"
