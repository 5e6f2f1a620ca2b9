"""Console report of `gpucheck bench`: doubts, rows with bars by kernel, and the speed-up last."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from gpucheck.bench.model import (
    BenchEnvironment,
    BenchResult,
    Comparison,
    Conclusion,
    Corruption,
    Doubt,
    GpuTelemetry,
    Measurement,
    Roofline,
    Telemetry,
)
from gpucheck.bench.rows_view import (
    ASCII,
    UNICODE,
    Namer,
    RowsRenderer,
    Signs,
    half_width,
    hanging_indent,
    namer,
    spread_text,
)
from gpucheck.report.envelope import Report
from gpucheck.report.text import View, printable, rate

#: Doubts about how well a median is known; one line covers them all.
PRECISION = (
    "unconverged",
    "too-few-samples",
    "rounds-differ",
    "drifting",
    "autocorrelated",
)
#: Most rows that are named one by one; more are counted.
_MOST_DOUBTFUL_ROWS = 2
#: Most conclusions of one kind shown without -v.
_MOST_CONCLUSIONS = 3
#: With more GPUs than this, they share their lines without -v.
_MOST_ALONE = 3


def build(report: Report, view: View) -> RenderableType:
    """Return the whole report as one renderable."""
    if not isinstance(report.result, BenchResult):
        raise TypeError(type(report.result).__name__)
    result = report.result
    rows = render_bench(
        result, width=view.width, ascii_only=not view.unicode, verbosity=view.verbosity
    )
    if not result.gates:
        return rows
    from gpucheck.bench.ci.view import render_gates

    # The user waits for the gates; the rows behind them come with -v.
    verdict = render_gates(
        result.gates, result.profile, ascii_only=not view.unicode, verbosity=view.verbosity
    )
    return Group(verdict, Text(), rows) if view.verbosity > 0 else verdict


def render_bench(
    result: BenchResult, *, width: int, ascii_only: bool, verbosity: int = 0
) -> RenderableType:
    """Return the result for a terminal of `width` columns.

    `verbosity` -1 leaves out doubts and the environment, 1 adds the details of each row and the
    whole text of each doubt.
    """
    signs = ASCII if ascii_only else UNICODE
    drawing = RowsRenderer(width, signs, verbosity, shared_codes(result.measurements))
    lines: list[RenderableType] = []
    names: dict[int, str] = {}
    for name, kernel_rows in groupby(result.measurements, key=lambda row: row.kernel):
        # Rows under one heading share input format and arithmetic.
        for _, group in groupby(
            kernel_rows, key=lambda row: (row.dtype.input, row.dtype.math_mode)
        ):
            rows = list(group)
            names |= {id(row): namer(rows, signs.times)(row) for row in rows}
            lines.extend(drawing.group(rows, _belonging(result.comparisons, rows)))
            lines.append(Text())
        said = [one for one in result.conclusions if one.kernel == name]
        if said:
            lines.pop()
            lines.extend(drawing.sentence(text, "") for text in _concluded(said, verbosity))
            lines.append(Text())
    lines.extend(_repeated(check) for check in result.corruption if not result.gates)
    lines.extend(hanging_indent(Text(f"note: {printable(note)}")) for note in result.notes)
    if verbosity == 0:
        lines.extend(_doubt_lines(result.measurements, names, signs))
    if any(row.repeat95_s is not None for row in result.measurements) and verbosity >= 0:
        meaning = "19 of 20 further runs should lie within it if the machine stays unchanged"
        lines.append(hanging_indent(Text(f"{signs.plus_minus}: {meaning}", style="dim")))
    if verbosity >= 0:
        lines.extend(machine_lines(result.environment, result.telemetry, verbosity=verbosity))
    lines.extend(_last_words(result))
    return Group(*lines)


def _repeated(check: Corruption) -> RenderableType:
    """Return the result of repeated products on one device; a profile has a gate for it."""
    where = f"{check.device}: {check.products} identical products in {check.dtype}"
    if check.mismatches:
        numbers = "1 number" if check.mismatches == 1 else f"{check.mismatches} numbers"
        text = f"{where}: {numbers} CHANGED, the first at {check.first_index}"
        return hanging_indent(Text(text, style="bold red"))
    if check.reference_ok is False:
        return hanging_indent(Text(f"{where}: WRONG against float64", style="bold red"))
    if check.failure is not None:
        return hanging_indent(Text(f"{where}: {printable(check.failure.message)}", style="red"))
    return hanging_indent(Text(f"{where}: every bit the same", style="green"))


def _last_words(result: BenchResult) -> Iterator[RenderableType]:
    """Yield the last lines: an interruption, missing GPUs, the overall speed-up."""
    if result.interrupted:
        yield Text("interrupted: the results so far are above", style="yellow")
    if result.environment.gpu_unavailable is not None:
        reason = printable(result.environment.gpu_unavailable)
        some = bool(result.environment.gpus)
        said = "not every GPU was measured" if some else "no GPU figures"
        text = f"{said}: {reason.rstrip('.')} (for details: gpucheck detect)"
        yield Text(text, style="yellow")
    if result.headline is not None:
        yield Text(printable(result.headline), style="bold")


def _concluded(conclusions: Sequence[Conclusion], verbosity: int) -> Iterator[str]:
    """Yield the sentences; without -v only the first of a kind that many devices share."""
    counts = Counter(one.code for one in conclusions)
    for code in counts:
        said = [one.sentence for one in conclusions if one.code == code]
        if verbosity > 0 or len(said) <= _MOST_CONCLUSIONS:
            yield from said
        else:
            yield f"{said[0]} (-v: {len(said) - 1} more devices)"


def _belonging(
    comparisons: Sequence[Comparison], rows: Sequence[Measurement]
) -> Sequence[Comparison]:
    """Return the comparisons whose GPU row is among these."""
    here = {(row.kernel, row.shape, row.device, row.dtype) for row in rows}
    return [
        one for one in comparisons if (one.kernel, one.shape, one.gpu.device, one.gpu.dtype) in here
    ]


def _doubt_lines(
    rows: Sequence[Measurement], names: Mapping[int, str], signs: Signs
) -> Iterator[RenderableType]:
    """Yield each doubt once, with its rows and its remedy."""
    for head, words, step in doubts_legend(rows, lambda row: names[id(row)], signs.plus_minus):
        said = Text.assemble((printable(head), "yellow"), f": {printable(words)}")
        if step:
            said.append(f"\nto do: {printable(step)}")
        # A grid indents further lines to the first line's text.
        entry = Table.grid(padding=(0, 1, 0, 0))
        entry.add_row(Text(signs.doubt, style="yellow"), said)
        yield entry


def shared_codes(rows: Sequence[Measurement]) -> frozenset[str]:
    """Return the codes not shown at single rows: those of most rows, and those of precision."""
    measured = [row for row in rows if row.median_s is not None]
    counts = Counter(doubt.code for row in measured for doubt in row.doubts)
    often = {code for code, count in counts.items() if 2 * count > len(measured)}
    whole: set[str] = set()
    for device in {row.device for row in measured}:
        here = [{doubt.code for doubt in row.doubts} for row in measured if row.device == device]
        whole |= set.intersection(*here)
    return frozenset(often | whole | set(PRECISION))


def doubts_legend(
    rows: Sequence[Measurement], named: Namer, plus_minus: str
) -> Iterator[tuple[str, str, str]]:
    """Yield each doubt once: its code with its rows, its message, and the remedy.

    The message is that of its first row; a remedy that was already shown is left out.
    """
    measured = [row for row in rows if row.median_s is not None]
    said: set[str] = set()
    others = list(_others(measured, named))
    # Doubts about every row mostly explain why the rest did not settle.
    everywhere = [one for one in others if "every row" in one[0]]
    rest = [one for one in others if "every row" not in one[0]]
    for head, words, next_step in [*everywhere, *_precision(measured, named, plus_minus), *rest]:
        steps = [step for step in next_step.split("; ") if step not in said]
        said.update(steps)
        yield head, words, "; ".join(steps)


def _precision(
    rows: Sequence[Measurement], named: Namer, plus_minus: str
) -> Iterator[tuple[str, str, str]]:
    """Yield the number of medians known less well than wanted, the widest, and why."""
    found = [(row, doubt) for row in rows for doubt in row.doubts if doubt.code in PRECISION]
    if not found:
        return
    counts = Counter(doubt.code for _, doubt in found)
    doubtful = {id(row) for row, _ in found}
    head = ", ".join(f"{code} ({counts[code]})" for code in PRECISION if counts[code])
    few = f"{len(doubtful)} of {len(rows)} rows" if len(rows) > 1 else "the row"
    least = _least_known([row for row in rows if id(row) in doubtful], named, plus_minus)
    steps = dict.fromkeys(step for _, doubt in found for step in doubt.next.split("; "))
    yield head, f"{few} did not settle in the time{least}", "; ".join(list(steps)[:2])


def _least_known(rows: Sequence[Measurement], named: Namer, plus_minus: str) -> str:
    """Return the row with the widest interval, and how many have none."""
    widths = [(half_width(row), number) for number, row in enumerate(rows)]
    known = [(width, number) for width, number in widths if width is not None]
    without = len(rows) - len(known)
    text = ""
    if known and len(rows) > 1:
        width, number = max(known)
        row = rows[number]
        text = f", {row.kernel} {named(row)} the least ({spread_text(width, plus_minus)})"
    if without:
        who = "it" if len(rows) == 1 else str(without)
        text += f"; {who} had too few rounds for an interval ({plus_minus}?)"
    return text


def _others(rows: Sequence[Measurement], named: Namer) -> Iterator[tuple[str, str, str]]:
    about: dict[str, list[tuple[Measurement, Doubt]]] = {}
    for row in rows:
        for doubt in row.doubts:
            if doubt.code not in PRECISION:
                about.setdefault(doubt.code, []).append((row, doubt))
    for code, found in about.items():
        where = _where([row for row, _ in found], rows, named)
        message = found[0][1].message
        if len({doubt.message for _, doubt in found}) > 1:
            message = f"for example, {message}"
        steps = dict.fromkeys(doubt.next for _, doubt in found)
        yield f"{code} ({where})", message, "; ".join(steps)


def _where(found: Sequence[Measurement], rows: Sequence[Measurement], named: Namer) -> str:
    """Return the shortest description of these rows among all rows."""
    if len(found) == len(rows):
        return "every row"
    counts = Counter(row.device for row in rows)
    whole = [
        device
        for device, count in Counter(row.device for row in found).items()
        if count == counts[device]
    ]
    if whole:
        rest = sum(row.device not in whole for row in found)
        return f"every row of {', '.join(whole)}" + (f", and {rest} more" if rest else "")
    kernels = list(dict.fromkeys(row.kernel for row in found))
    if len(found) == sum(row.kernel in kernels for row in rows) > 1:
        return f"all of {', '.join(kernels)}"
    if len(found) <= _MOST_DOUBTFUL_ROWS:
        return " | ".join(f"{row.kernel} {named(row)}" for row in found)
    return f"{len(found)} rows of {', '.join(kernels)}"


def machine_lines(
    found: BenchEnvironment, telemetry: Telemetry | None, *, verbosity: int = 0
) -> Iterator[Text]:
    """Yield the processor, the measured limits, the GPUs, and their sensors.

    Many GPUs share their lines unless details are wanted.
    """
    together = verbosity <= 0 and len(found.gpus) > _MOST_ALONE
    yield Text(_host_line(found), style="dim")
    for where, rooflines in _places(found.rooflines, together=together):
        yield Text(_roofline_line(where, rooflines), style="dim")
    yield from (Text(line, style="dim") for line in _gpu_lines(found))
    if telemetry is None:
        return
    if telemetry.unavailable is not None:
        yield Text(f"no sensors: {printable(telemetry.unavailable)}", style="dim")
    names = {gpu.uuid: gpu.device for gpu in found.gpus}
    if together and len(telemetry.gpus) > 1:
        line = _sensor_line(f"sensors of {len(telemetry.gpus)} GPUs", telemetry.gpus)
        yield Text(printable(line), style="dim")
        return
    for sensors in telemetry.gpus:
        name = f"sensors of {names.get(sensors.uuid, sensors.uuid)}"
        yield Text(printable(_sensor_line(name, [sensors])), style="dim")


def _host_line(found: BenchEnvironment) -> str:
    parts = [found.cpu_model or "unknown processor"]
    parts.append(f"{found.usable_cores} of {found.logical_cores or '?'} cores")
    if found.cpu_quota_cores is not None:
        parts.append(f"quota {found.cpu_quota_cores:g}")
    if found.blas_name is not None:
        core = f" ({found.blas_architecture})" if found.blas_architecture else ""
        parts.append(f"{found.blas_name} {found.blas_version or ''}".strip() + core)
    parts.append(f"NumPy {found.numpy_version}")
    if found.cupy_version is not None:
        parts.append(f"CuPy {found.cupy_version}")
    if found.parallel_efficiency is not None:
        parts.append(f"parallel efficiency {found.parallel_efficiency:.0%}")
    if found.peak_memory_bytes is not None:
        parts.append(f"peak memory {found.peak_memory_bytes / 2**20:.0f} MiB")
    return printable("cpu: " + ", ".join(parts))


def _places(
    rooflines: Sequence[Roofline], *, together: bool
) -> Iterator[tuple[str, Sequence[Roofline]]]:
    """Yield the limits of each device, or those of all GPUs together."""
    on_gpus = [one for one in rooflines if one.threads is None]
    for one in rooflines:
        if one.threads is not None:
            threads = "1 thread" if one.threads == 1 else f"{one.threads} threads"
            yield f"{one.device}, {threads}", [one]
        elif not together:
            yield one.device, [one]
    if together and on_gpus:
        yield f"{len(on_gpus)} GPUs", on_gpus


def _roofline_line(where: str, rooflines: Sequence[Roofline]) -> str:
    copies = [one.copy_bytes_per_s for one in rooflines if one.copy_bytes_per_s is not None]
    products = [one.gemm_flops_per_s for one in rooflines if one.gemm_flops_per_s is not None]
    parts = []
    if copies:
        parts.append(f"copy {_range(copies, 'B/s')}")
    if products:
        parts.append(f"{rooflines[0].gemm_dtype} product {_range(products, 'FLOP/s')}")
    return printable(f"limits measured on {where}: {', '.join(parts) or 'none'}")


def _range(values: Sequence[float], unit: str) -> str:
    low, high = rate(min(values), unit), rate(max(values), unit)
    return low if low == high else f"{low} to {high}"


def _gpu_lines(found: BenchEnvironment) -> Iterator[str]:
    """Yield each kind of GPU once, with the devices of that kind."""
    kinds: dict[str, list[str]] = {}
    for gpu in found.gpus:
        board = f" ({gpu.board.source})" if gpu.board is not None else ""
        kinds.setdefault(printable(gpu.name + board), []).append(gpu.device)
    for kind, names in kinds.items():
        yield f"{', '.join(names)}: {kind}"


def _sensor_line(name: str, gpus: Sequence[GpuTelemetry]) -> str:
    """Return the sensor readings of these GPUs, from lowest to highest."""
    parts = []
    clocks = [gpu.clock_sm_mhz for gpu in gpus if gpu.clock_sm_mhz is not None]
    if clocks:
        low, high = min(one.low for one in clocks), max(one.high for one in clocks)
        span = f"{low:.0f}" if low == high else f"{low:.0f} to {high:.0f}"
        parts.append(f"SM clock {span} MHz")
    hungry = [gpu for gpu in gpus if gpu.power_w is not None]
    if hungry:
        most = max(hungry, key=lambda gpu: gpu.power_w.high if gpu.power_w else 0.0)
        limit = f" of {most.power_limit_w:.0f}" if most.power_limit_w is not None else ""
        parts.append(f"up to {most.power_w.high if most.power_w else 0:.0f}{limit} W")
    temperatures = [gpu.temperature_c.high for gpu in gpus if gpu.temperature_c is not None]
    if temperatures:
        parts.append(f"up to {max(temperatures):.0f} C")
    links = {
        f"PCIe {gpu.pcie_generation} x{gpu.pcie_width}"
        for gpu in gpus
        if gpu.pcie_generation is not None
    }
    parts.extend(sorted(links))
    reasons = {reason for gpu in gpus for reason in gpu.reasons} - {"idle"}
    if any(gpu.reasons for gpu in gpus):
        parts.append("clock limited by " + ", ".join(sorted(reasons) or ["nothing"]))
    return f"{name}: {', '.join(parts) or 'no readings'}"
