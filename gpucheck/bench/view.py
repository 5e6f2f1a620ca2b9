"""View of `gpucheck bench`: the rows by kernel, a summary in words, and what is in doubt."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING

from gpucheck.bench.doubts_view import full_doubts, in_doubt
from gpucheck.bench.environment import blas_text
from gpucheck.bench.model import (
    MORE_TIME,
    BenchEnvironment,
    BenchResult,
    Comparison,
    Conclusion,
    Corruption,
    GpuTelemetry,
    Measurement,
    Roofline,
    Telemetry,
)
from gpucheck.bench.plan import BUDGETS_S
from gpucheck.bench.rows_view import (
    Entry,
    by_format,
    devices_text,
    entries,
    heading,
    is_late,
    is_unmeasured,
    models_of,
    row_name,
    rows_table,
    size_text,
)
from gpucheck.bench.scheduler import NO_INTERVAL, TOO_SHORT
from gpucheck.bench.summary_view import summary
from gpucheck.report.blocks import (
    Block,
    Gap,
    Heading,
    Headline,
    Line,
    head,
    limited,
    remedies,
    with_command,
)
from gpucheck.report.envelope import CheckStatus, Report, Status
from gpucheck.report.text import View, count_of, rate, two_digits

if TYPE_CHECKING:
    from gpucheck.report.charts import Chart

#: Most conclusions of one kind shown without -v.
_MOST_CONCLUSIONS = 3
#: Most rows without time that are named.
_MOST_NAMED = 3


def blocks(report: Report, view: View) -> Iterator[Block]:
    """Yield what a report of bench shows; with a profile or a baseline, the verdict."""
    result = report.result
    if not isinstance(result, BenchResult):
        raise TypeError(type(result).__name__)
    if not result.gates:
        yield from bench_blocks(report, result, view)
        return
    # Judging takes 20 ms to import, and most runs have no gates.
    from gpucheck.bench.ci import gates_view

    if gates_view.shows_rows(result, view):
        yield from bench_blocks(report, gates_view.over_processes(result), view)
        yield Gap()
    elif view.verbosity >= 0:
        yield head(report, *_facts(result))
        yield Gap()
    yield from gates_view.blocks(report, result, view)


def charts(report: Report, view: View) -> Iterator[Chart]:
    """Yield the charts of a report of bench."""
    # Only what draws needs them.
    from gpucheck.bench.charts_view import bench_charts

    if isinstance(report.result, BenchResult):
        yield from bench_charts(report.result)


def headline(report: Report) -> Headline:
    """Return what was measured, where no gate has a verdict."""
    result = report.result
    if not isinstance(result, BenchResult):
        raise TypeError(type(result).__name__)
    # One that was wrong at once has no time.
    measured = [
        row
        for row in result.measurements
        if row.median_s is not None or (row.verified is not None and not row.verified.ok)
    ]
    wrong = sum(row.verified is not None and not row.verified.ok for row in measured)
    doubtful = sum(bool(row.doubts) for row in measured)
    said = f"{result.headline[:1].upper()}{result.headline[1:]}. " if result.headline else ""
    said += count_of(len(measured), "row")
    checked = all(row.verified is not None for row in measured)
    right = ", all right against float64" if checked and measured else ""
    said += f", {wrong} WRONG" if wrong else right
    said += f", {doubtful} with a doubt." if doubtful else "."
    if wrong:
        return Headline(said, CheckStatus.FAIL, "WRONG")
    if not measured:
        return Headline(said, CheckStatus.UNKNOWN, "NOTHING")
    status = CheckStatus.WARN if doubtful or report.status is not Status.OK else CheckStatus.OK
    return Headline(said, status, "INTERRUPTED" if result.interrupted else "MEASURED")


def in_table(report: Report) -> Collection[str]:
    """Return the codes of the messages that the table shows: with gates, their verdict."""
    if not isinstance(report.result, BenchResult) or not report.result.gates:
        return ()
    from gpucheck.bench.ci.gates import SHOWN

    return SHOWN


def bench_blocks(report: Report, result: BenchResult, view: View) -> Iterator[Block]:
    """Yield the head, the rows, the summary, and what is in doubt."""
    if view.verbosity >= 0:
        yield head(report, *_facts(result))
        yield from _no_gpu(result.environment, view)
        yield Gap()
    yield from row_blocks(result, view)
    said = list(summary(result))
    if said:
        yield Heading("Summary")
        yield from said
        yield Gap()
    if view.verbosity >= 0:
        yield from _notes(result, view)
    if view.verbosity > 0:
        yield Gap()
        yield from machine_lines(result.environment, result.telemetry)


def _facts(result: BenchResult) -> Iterator[str]:
    """Yield the facts of the head line."""
    found = result.environment
    for name, count in Counter(gpu.name for gpu in found.gpus).items():
        yield name if count == 1 else f"{count} × {name}"
    if found.cupy_version is not None and found.gpus:
        yield f"CuPy {found.cupy_version}"
    if found.gpu_remedy and not found.gpus:
        yield f"{_unmeasured(found)}: not measured"
    cpu = found.cpu_model or "unknown processor"
    cores = f"{found.usable_cores} of {found.logical_cores or '?'} cores"
    yield f"{'beside ' if found.gpus else ''}{cpu}, {cores}"
    if result.profile is not None:
        # The budget is that of one process.
        yield f"{found.duration_s:.0f} s"
        return
    how = str(found.mode)
    if found.budget_s != BUDGETS_S[found.mode]:
        how = f"budget {found.budget_s:g} s"
    yield f"{how}, {found.duration_s:.1f} s"


def _unmeasured(found: BenchEnvironment) -> str:
    """Return the GPUs that could not be measured."""
    names = Counter(found.gpus_not_measured).items()
    shown = (name if count == 1 else f"{count} × {name}" for name, count in names)
    return ", ".join(shown) or "GPU"


def _no_gpu(found: BenchEnvironment, view: View) -> Iterator[Block]:
    """Yield why GPUs, or gpucheck's own rows of them, are missing, and what to do."""
    if found.gpus and (why := found.unavailable.get("cupy_version")):
        text = f"gpucheck's own kernels were not measured on the GPU: {why.rstrip('.')}."
        yield Line(text, CheckStatus.WARN, style="yellow")
        yield from remedies(found.gpu_remedy)
    if found.gpu_unavailable is None:
        return
    reason = found.gpu_unavailable.rstrip(".")
    if found.gpu_remedy and not found.gpus:
        text = f"{_unmeasured(found)} not measured: {reason}."
        yield Line(text, CheckStatus.WARN, style="bold yellow")
        yield from remedies(found.gpu_remedy)
        return
    if found.gpus:
        text = f"Not every GPU was measured: {reason}."
        yield Line(text, CheckStatus.WARN, style="yellow")
    else:
        short = reason if view.verbosity > 0 else reason.partition(": ")[0]
        yield Line(f"No GPU was measured: {short} (why: gpucheck detect).", style="yellow")


# ---------------------------------------------------------------------------------- rows


def row_blocks(result: BenchResult, view: View) -> Iterator[Block]:
    """Yield the rows that were measured, by kernel and format, with what follows from them."""
    models = models_of(result)
    tables: list[tuple[list[Measurement], list[Entry]]] = []
    for group in by_format(result.measurements):
        rows = [row for row in group if not is_late(row) and not is_unmeasured(row)]
        if rows:
            tables.append((rows, entries(rows, models, each=view.verbosity > 0)))
    name_width = max((len(one.name) for _, found in tables for one in found), default=0)
    for number, (rows, found) in enumerate(tables):
        yield from heading(rows, view)
        yield rows_table(found, view, name_width)
        if view.verbosity > 0:
            yield from full_doubts(rows, [row_name(row) for row in rows])
            yield from _comparisons(_belonging(result.comparisons, rows))
        kernel = rows[0].kernel
        if number + 1 == len(tables) or tables[number + 1][0][0].kernel != kernel:
            said = [one for one in result.conclusions if one.kernel == kernel]
            for text in _concluded(said, view):
                yield from with_command(text, indent=2)
        yield Gap()
    if not result.gates:
        for check in result.corruption:
            yield _repeated(check)
        yield Gap()


def _repeated(check: Corruption) -> Line:
    """Return the result of repeated products on one device; a profile has a gate for it."""
    if check.failure is not None and not check.dtype:
        return Line(f"{check.device}: {check.failure.message}", CheckStatus.FAIL, style="red")
    where = f"{check.device}: {check.products} identical products in {check.dtype}"
    if check.mismatches:
        numbers = "1 number" if check.mismatches == 1 else f"{check.mismatches} numbers"
        text = f"{where}: {numbers} CHANGED, the first at {check.first_index}"
        return Line(text, CheckStatus.FAIL, style="bold red")
    if check.reference_ok is False:
        return Line(f"{where}: WRONG against float64", CheckStatus.FAIL, style="bold red")
    if check.failure is not None:
        return Line(f"{where}: {check.failure.message}", CheckStatus.FAIL, style="red")
    return Line(f"{where}: every bit the same", style="green")


def _concluded(conclusions: Sequence[Conclusion], view: View) -> Iterator[str]:
    """Yield the sentences; without -v only the first of a kind that many devices share."""
    counts = Counter(one.code for one in conclusions)
    for code in counts:
        said = [one.sentence for one in conclusions if one.code == code]
        if view.verbosity > 0 or len(said) <= _MOST_CONCLUSIONS:
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


def _comparisons(comparisons: Sequence[Comparison]) -> Iterator[Line]:
    """Yield the speed-ups in sentences, with the amortised ones and their doubts."""
    for one in comparisons:
        yield Line(f"{_which(one, comparisons)}{one.sentence}", indent=2)
        if one.speedup_amortised is not None:
            factor = one.speedup_amortised
            times = two_digits(factor if factor >= 1 or factor <= 0 else 1 / factor)
            text = f"{one.reuse_count} operations on data moved once: {times} times"
            yield Line(f"{text} {'faster' if factor >= 1 else 'slower'}", indent=4)
    about = (f"{doubt.message}; {doubt.next}" for one in comparisons for doubt in one.doubts)
    for text in dict.fromkeys(about):
        yield Line(text, CheckStatus.WARN, indent=4)


def _which(one: Comparison, comparisons: Sequence[Comparison]) -> str:
    """Return what distinguishes a comparison from the others: GPU, size or towers."""
    parts = []
    if len({other.gpu.device for other in comparisons}) > 1:
        parts.append(one.gpu.device)
    if len({other.shape for other in comparisons}) > 1:
        parts.append(f"size {' × '.join(str(edge) for edge in one.shape)}")
    here = (one.gpu.device, one.shape, one.gpu.framework)
    alike = ((other.gpu.device, other.shape, other.gpu.framework) for other in comparisons)
    if sum(other == here for other in alike) > 1:
        parts.append(one.gpu.variant)
    return f"{', '.join(parts)}: " if parts else ""


# --------------------------------------------------------------------- doubts and notes


def _notes(result: BenchResult, view: View) -> Iterator[Block]:
    """Yield what is in doubt, which rows lacked time, and the notes."""
    doubts = in_doubt(result.measurements, settled=not result.interrupted)
    if doubts:
        yield Heading("In doubt")
        yield from limited(doubts, view)
    late = [] if result.interrupted else [row for row in result.measurements if is_late(row)]
    lines = list(_out_of_time(late, result))
    lines += [
        Line(f"note: {note}")
        for note in result.notes
        if NO_INTERVAL not in note and not (late and TOO_SHORT in note)
    ]
    if lines:
        yield Gap()
        yield from limited(lines, view)


def _out_of_time(late: Sequence[Measurement], result: BenchResult) -> Iterator[Line]:
    """Yield which rows were not measured, which have no interval, and a sufficient budget."""
    texts = [step for row in late if row.error is not None for step in row.error.remedy]
    texts += [note for note in result.notes if NO_INTERVAL in note]
    enough = max((float(one) for text in texts for one in _BUDGET.findall(text)), default=None)
    remedy = MORE_TIME
    if enough is not None:
        remedy = f"give --budget {enough:g} (seconds in a profile)"
    if late:
        names = _late_names(late, len(result.environment.gpus))
        rest = len(names) - _MOST_NAMED
        listed = ", ".join(names[:_MOST_NAMED]) + (f" and {rest} more" if rest > 0 else "")
        count = "1 row" if len(late) == 1 else f"{len(late)} rows"
        yield Line(f"no time was left for {count}: {listed}; {remedy}", CheckStatus.WARN)
    measured = [row for row in result.measurements if row.median_s is not None]
    without = sum(row.repeat95_s is None for row in measured)
    if without and not result.interrupted:
        few = f"{without} of {len(measured)} rows" if len(measured) > 1 else "the row"
        text = f"no interval (±) for {few}: fewer than three rounds"
        text += "" if late else f"; {remedy}"
        yield Line(text, CheckStatus.WARN)


_BUDGET = re.compile(r"--budget (\d+(?:\.\d+)?)")


def _late_names(late: Sequence[Measurement], gpu_count: int) -> list[str]:
    """Return the names of rows, once for GPUs that differ in nothing else."""
    alike: dict[str, list[str]] = {}
    for row in late:
        name = f"{row.kernel} {row.dtype.format}{row_name(row, '')}"
        if row.shape and row.kernel not in ("batch", "towers"):
            alone = {other.shape for other in late if other.kernel == row.kernel}
            name += f", {size_text(row)}" if len(alone) > 1 else ""
        alike.setdefault(name, []).append(row.device)
    return [f"{name} on {devices_text(devices, gpu_count)}" for name, devices in alike.items()]


# ------------------------------------------------------------------------------ with -v


def machine_lines(found: BenchEnvironment, telemetry: Telemetry | None) -> Iterator[Line]:
    """Yield the meaning of ±, the processor, the measured limits, the GPUs, and their sensors."""
    meaning = "19 of 20 further runs should lie within it if the machine stays unchanged"
    yield Line(f"±: {meaning}", style="dim")
    yield Line(_host_line(found), style="dim")
    for one in found.rooflines:
        yield Line(_roofline_line(one), style="dim")
    for line in _gpu_lines(found):
        yield Line(line, style="dim")
    if telemetry is None:
        return
    if telemetry.unavailable is not None:
        yield Line(f"no sensors: {telemetry.unavailable}", style="dim")
    names = {gpu.uuid: gpu.device for gpu in found.gpus}
    for sensors in telemetry.gpus:
        name = f"sensors of {names.get(sensors.uuid, sensors.uuid)}"
        yield Line(_sensor_line(name, sensors), style="dim")


def _host_line(found: BenchEnvironment) -> str:
    parts = [found.cpu_model or "unknown processor"]
    parts.append(f"{found.usable_cores} of {found.logical_cores or '?'} cores")
    if found.cpu_quota_cores is not None:
        parts.append(f"quota {found.cpu_quota_cores:g}")
    blas = blas_text(found)
    if blas is not None:
        parts.append(blas)
    parts.append(f"NumPy {found.numpy_version}")
    if found.parallel_efficiency is not None:
        parts.append(f"parallel efficiency {found.parallel_efficiency:.0%}")
    if found.peak_memory_bytes is not None:
        parts.append(f"peak memory {found.peak_memory_bytes / 2**20:.0f} MiB")
    return "cpu: " + ", ".join(parts)


def _roofline_line(one: Roofline) -> str:
    where = one.device
    if one.threads is not None:
        where += ", 1 thread" if one.threads == 1 else f", {one.threads} threads"
    parts = []
    if one.copy_bytes_per_s is not None:
        parts.append(f"copy {rate(one.copy_bytes_per_s, 'B/s')}")
    if one.gemm_flops_per_s is not None:
        parts.append(f"{one.gemm_dtype} product {rate(one.gemm_flops_per_s, 'FLOP/s')}")
    return f"limits measured on {where}: {', '.join(parts) or 'none'}"


def _gpu_lines(found: BenchEnvironment) -> Iterator[str]:
    """Yield each kind of GPU once, with the devices of that kind."""
    kinds: dict[str, list[str]] = {}
    for gpu in found.gpus:
        board = f" ({gpu.board.source})" if gpu.board is not None else ""
        kinds.setdefault(gpu.name + board, []).append(gpu.device)
    for kind, names in kinds.items():
        yield f"{devices_text(names)}: {kind}"


def _sensor_line(name: str, gpu: GpuTelemetry) -> str:
    """Return the sensor readings of a GPU, from lowest to highest."""
    parts = []
    if gpu.clock_sm_mhz is not None:
        low, high = gpu.clock_sm_mhz.low, gpu.clock_sm_mhz.high
        span = f"{low:.0f}" if low == high else f"{low:.0f} to {high:.0f}"
        parts.append(f"SM clock {span} MHz")
    if gpu.power_w is not None:
        limit = f" of {gpu.power_limit_w:.0f}" if gpu.power_limit_w is not None else ""
        parts.append(f"up to {gpu.power_w.high:.0f}{limit} W")
    if gpu.temperature_c is not None:
        parts.append(f"up to {gpu.temperature_c.high:.0f} °C")
    if gpu.pcie_generation is not None:
        parts.append(f"PCIe gen{gpu.pcie_generation} x{gpu.pcie_width}")
    if gpu.reasons:
        reasons = sorted(set(gpu.reasons) - {"idle"})
        parts.append("clock limited by " + ", ".join(reasons or ["nothing"]))
    return f"{name}: {', '.join(parts) or 'no readings'}"
