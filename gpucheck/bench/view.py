"""View of `gpucheck bench`: the rows by kernel, a summary in words, and what is in doubt."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING

from gpucheck.bench.doubt_table import find_wording, read_wordings
from gpucheck.bench.environment import blas_text
from gpucheck.bench.model import (
    MORE_TIME,
    NOTHING_SETTLED,
    BenchEnvironment,
    BenchResult,
    Comparison,
    Corruption,
    GpuTelemetry,
    Measurement,
    Roofline,
    RowClock,
    Telemetry,
    is_wrong,
)
from gpucheck.bench.plan import BUDGETS_S
from gpucheck.bench.rows_view import (
    devices_text,
    entries,
    group_by_format,
    has_rank,
    heading,
    is_late,
    is_right,
    is_unmeasured,
    models_of,
    named_rows,
    rows_table,
)
from gpucheck.bench.scheduler import TOO_SHORT
from gpucheck.report.blocks import (
    Block,
    Gap,
    Heading,
    Headline,
    Line,
    counted,
    limited,
    opening,
    remedies,
    verdict,
)
from gpucheck.report.envelope import CheckStatus, Report
from gpucheck.report.errors import ExitCode
from gpucheck.report.text import View, count_of, rate, two_digits

if TYPE_CHECKING:
    from gpucheck.report.charts import Chart

#: Most rows without time that are named.
_MOST_NAMED = 3


def blocks(report: Report, view: View) -> Iterator[Block]:
    """Yield the head, the verdict, the rows, and what is in doubt or judged."""
    result = report.result
    if not isinstance(result, BenchResult):
        raise TypeError(type(result).__name__)
    yield from opening(report, view, *_facts(result))
    if not result.gates:
        yield from _no_gpu(result.environment, view)
        yield from _other_load(result)
        yield _verdict(report, result)
        yield Gap()
        yield from _rows_with_notes(result, view)
        return
    # Judging takes 20 ms to import, and most runs have no gates.
    from gpucheck.bench.ci import view as judged_view

    yield from judged_view.run_verdict(report, result, view)
    yield Gap()
    if judged_view.shows_rows(result, view):
        yield from _no_gpu(result.environment, view)
        yield from _other_load(result)
        yield from _rows_with_notes(judged_view.take_process_medians(result), view)
        yield Gap()
    yield from judged_view.run_blocks(report, result, view)


def charts(report: Report, view: View) -> Iterator[Chart]:
    """Yield the charts of a report of bench."""
    # Only what draws needs them.
    from gpucheck.bench.charts_view import bench_charts

    if isinstance(report.result, BenchResult):
        yield from bench_charts(report.result)


def shown_codes(report: Report) -> Collection[str]:
    """Return the codes of the messages that the table shows: those of its verdict."""
    if not isinstance(report.result, BenchResult) or not report.result.gates:
        return (NOTHING_SETTLED,)
    from gpucheck.bench.ci.verdicts import SHOWN

    return SHOWN


def _verdict(report: Report, result: BenchResult) -> Headline:
    """Return the verdict of a run without gates: its rows, and how many are right or in doubt."""
    wrong = sum(is_wrong(row.verified) for row in result.measurements)
    changed = [check.device for check in result.corruption if check.is_corrupt]
    # One that was wrong at once has no time.
    measured = [
        row for row in result.measurements if row.time_s is not None or is_wrong(row.verified)
    ]
    doubtful = sum(row.time_s is not None and bool(row.doubts) for row in measured)
    parts = [count_of(len(measured), "row")]
    if wrong:
        parts.append(f"{wrong} WRONG")
    elif measured and all(row.verified is not None for row in measured):
        parts.append("all right against float64" if len(measured) > 1 else "right against float64")
    parts += [f"repeated products WRONG on {devices_text(changed)}"] if changed else []
    right = [row for row in measured if is_right(row)]
    unknown = bool(right) and not any(map(has_rank, right))
    parts += ["no row is known well enough"] if unknown else []
    parts += [f"{doubtful} with a doubt"] if doubtful else []
    said = f"{result.headline}. {', '.join(parts)}" if result.headline else ", ".join(parts)
    if wrong or changed:
        status, word = CheckStatus.FAIL, "WRONG"
    elif not measured:
        status, word = CheckStatus.UNKNOWN, "NOTHING"
    else:
        # Few doubts among right rows stand in amber at their rows.
        good = 2 * doubtful < len(measured) and report.exit_code is ExitCode.OK and not unknown
        status = CheckStatus.OK if good else CheckStatus.WARN
        word = "INTERRUPTED" if result.interrupted else "MEASURED"
    return verdict(f"{said}.", status, word)


def _rows_with_notes(result: BenchResult, view: View) -> Iterator[Block]:
    yield from _rows(result, view)
    if view.verbosity >= 0:
        yield from _notes(result, view)
    if view.verbosity > 0:
        yield Gap()
        yield from machine_lines(result.environment, result.telemetry)


def _facts(result: BenchResult) -> Iterator[str]:
    """Yield the facts of the head line."""
    machine = result.environment
    if (gpus := counted(gpu.name for gpu in machine.gpus)) is not None:
        yield gpus
        if machine.cupy_version is not None:
            yield f"CuPy {machine.cupy_version}"
    if machine.gpu_remedy and not machine.gpus:
        yield f"{counted(machine.gpus_not_measured) or 'GPU'}: not measured"
    cpu = machine.cpu_model or "unknown processor"
    cores = f"{machine.usable_cores} of {machine.logical_cores or '?'} cores"
    yield f"{'beside ' if machine.gpus else ''}{cpu}, {cores}"
    if result.profile is not None:
        # The budget is that of one process.
        yield f"{machine.duration_s:.0f} s"
        return
    how = str(machine.mode)
    if machine.budget_s != BUDGETS_S[machine.mode]:
        how = f"budget {machine.budget_s:g} s"
    yield f"{how}, {machine.duration_s:.1f} s"


def _no_gpu(machine: BenchEnvironment, view: View) -> Iterator[Block]:
    """Yield why GPUs, or gpucheck's own rows of them, are missing, and what to do."""
    if machine.gpus and (why := machine.unavailable.get("cupy_version")):
        text = f"gpucheck's own kernels were not measured on the GPU: {why.rstrip('.')}."
        yield Line(text, CheckStatus.WARN, style="yellow")
        yield from remedies(machine.gpu_remedy)
    if machine.gpu_unavailable is None:
        return
    reason = machine.gpu_unavailable.rstrip(".")
    if machine.gpu_remedy and not machine.gpus:
        text = f"{counted(machine.gpus_not_measured) or 'GPU'} not measured: {reason}."
        yield Line(text, CheckStatus.WARN, style="bold yellow")
        yield from remedies(machine.gpu_remedy)
        return
    if machine.gpus:
        text = f"Not every GPU was measured: {reason}."
        yield Line(text, CheckStatus.WARN, style="yellow")
    else:
        short = reason if view.verbosity > 0 else reason.partition(": ")[0]
        yield Line(f"No GPU was measured: {short} (why: gpucheck detect).", style="yellow")


def _other_load(result: BenchResult) -> Iterator[Line]:
    """Yield who else used the processor, where that touched the rows, and what the speeds are."""
    machine = result.environment
    others, stolen = machine.other_load_percent or 0.0, machine.steal_percent or 0.0
    timed = [row for row in result.measurements if row.device == "cpu" and row.time_s is not None]
    by_cpu_time = [row for row in timed if row.clock is RowClock.CPU]
    slowed = [row for row in timed if any(doubt.code == "host-busy" for doubt in row.doubts)]
    if not (slowed or by_cpu_time) or max(others, stolen) < 1:
        return
    who = "Other programs" if others >= stolen else "Other virtual machines"
    speeds = "The speeds are what they left."
    if by_cpu_time:
        which = "speeds" if all(row in by_cpu_time for row in slowed) else "speeds by CPU time"
        # Up to 27 % of a product that ten loops interrupt: docs/measurements/busy.md.
        speeds = (
            f"The {which} are what it can do, not what they left; caches that they fill meanwhile"
            " may cost a quarter."
        )
    text = f"{who} take {max(others, stolen):.0f} % of this processor. {speeds}"
    yield Line(text, CheckStatus.WARN, style="yellow")


# ---------------------------------------------------------------------------------- rows


def _rows(result: BenchResult, view: View) -> Iterator[Block]:
    """Yield the rows that were measured, by kernel and format, with what follows from them."""
    models = models_of(result)
    shown = [row for row in result.measurements if not is_late(row) and not is_unmeasured(row)]
    tables = group_by_format(shown)
    for number, rows in enumerate(tables):
        yield heading(rows)
        yield rows_table(entries(rows, models, separate=view.verbosity > 0), view)
        yield from limited(_comparisons(_belonging(result.comparisons, rows), view), view)
        kernel = rows[0].kernel
        if number + 1 == len(tables) or tables[number + 1][0].kernel != kernel:
            said = [item.sentence for item in result.conclusions if item.kernel == kernel]
            yield from limited((Line(text, indent=2) for text in said), view)
        yield Gap()
    if not result.gates:
        yield from map(_repeated, result.corruption)
        yield Gap()


def _repeated(check: Corruption) -> Line:
    """Return the result of repeated products on one device; a profile has a gate for it."""
    if check.failure is not None and not check.dtype:
        return Line(f"{check.device}: {check.failure.message}", CheckStatus.FAIL, style="red")
    where = f"{check.device}: {check.products} identical products in {check.dtype}"
    if check.mismatches:
        numbers = count_of(check.mismatches, "number")
        text = f"{where}: {numbers} CHANGED, the first at {check.first_index}"
        return Line(text, CheckStatus.FAIL, style="bold red")
    if check.reference_ok is False:
        return Line(f"{where}: WRONG against float64", CheckStatus.FAIL, style="bold red")
    if check.failure is not None:
        return Line(f"{where}: {check.failure.message}", CheckStatus.FAIL, style="red")
    return Line(f"{where}: every bit the same", style="green")


def _belonging(
    comparisons: Sequence[Comparison], rows: Sequence[Measurement]
) -> Sequence[Comparison]:
    """Return the comparisons whose GPU row is among these."""
    here = {(row.kernel, row.shape, row.device, row.dtype) for row in rows}
    return [
        item
        for item in comparisons
        if (item.kernel, item.shape, item.gpu.device, item.gpu.dtype) in here
    ]


def _comparisons(comparisons: Sequence[Comparison], view: View) -> Iterator[Line]:
    """Yield the speed-ups in sentences, named by what distinguishes them: GPUs or size."""
    sizes = {item.shape for item in comparisons}
    devices: dict[str, list[str]] = {}
    for item in comparisons:
        size = f"size {' × '.join(map(str, item.shape))}: " if len(sizes) > 1 else ""
        text = size + item.sentence
        moved, own = item.speedup_amortised, item.speedup_own_cpu
        if view.verbosity > 0 and moved:
            how = (
                f"{two_digits(max(moved, 1 / moved))} times {'faster' if moved >= 1 else 'slower'}"
            )
            text += f"; {item.reuse_count} operations on data moved once: {how}"
        if view.verbosity > 0 and own is not None and own != item.speedup_resident:
            text += f"; {two_digits(own)} times the speed of its own code on the CPU"
        devices.setdefault(text, []).append(item.gpu.device)
    several = len({item.gpu.device for item in comparisons}) > 1
    for text, names in devices.items():
        yield Line(f"{devices_text(names)}: {text}" if several else text, indent=2)


# --------------------------------------------------------------------- doubts and notes


def _notes(result: BenchResult, view: View) -> Iterator[Block]:
    """Yield the doubts, the rows that lacked time, and the notes."""
    doubts = list(doubt_lines(result, view))
    if doubts:
        yield Heading("In doubt")
        yield from limited(doubts, view)
        yield Gap()
    late = [] if result.interrupted else [row for row in result.measurements if is_late(row)]
    lines = list(_unmeasured_lines(late, result))
    said = bool(lines)
    lines += [Line(f"note: {note}") for note in result.notes if not (said and TOO_SHORT in note)]
    yield from limited(lines, view)


def _unmeasured_lines(late: Sequence[Measurement], result: BenchResult) -> Iterator[Line]:
    """Yield which rows were not measured, which have no interval, and a sufficient budget."""
    texts = [step for row in late if row.error is not None for step in row.error.remedy]
    texts += [note for note in result.notes if TOO_SHORT in note]
    enough = max(
        (float(seconds) for text in texts for seconds in _BUDGET.findall(text)), default=None
    )
    remedy = MORE_TIME
    if enough is not None:
        remedy = f"give --budget {enough:g} (seconds in a profile)"
    if late:
        names = named_rows(late, len(result.environment.gpus))
        rest = len(names) - _MOST_NAMED
        listed = ", ".join(names[:_MOST_NAMED]) + (f" and {rest} more" if rest > 0 else "")
        yield Line(
            f"no time was left for {count_of(len(late), 'row')}: {listed}; {remedy}",
            CheckStatus.WARN,
        )
    measured = [row for row in result.measurements if row.time_s is not None]
    without = sum(row.repeat95_s is None for row in measured)
    if without and not result.interrupted:
        few = f"{without} of {len(measured)} rows" if len(measured) > 1 else "the row"
        text = f"no interval (±) for {few}: fewer than three rounds"
        text += "" if late else f"; {remedy}"
        yield Line(text, CheckStatus.WARN)


_BUDGET = re.compile(r"--budget (\d+(?:\.\d+)?)")


# ------------------------------------------------------------------------------ with -v


def machine_lines(machine: BenchEnvironment, telemetry: Telemetry | None) -> Iterator[Line]:
    """Yield the meaning of ±, the processor, the measured limits, and the sensors of the GPUs."""
    meaning = "19 of 20 further runs should lie within it if the machine stays unchanged"
    lines = [f"±: {meaning}", _host_line(machine), *map(_roofline_line, machine.rooflines)]
    if telemetry is not None:
        if telemetry.unavailable is not None:
            lines.append(f"no sensors: {telemetry.unavailable}")
        names = {gpu.uuid: gpu.device for gpu in machine.gpus}
        lines += [_sensor_line(names.get(item.uuid, item.uuid), item) for item in telemetry.gpus]
    yield from (Line(line, style="dim") for line in lines)


def _host_line(machine: BenchEnvironment) -> str:
    quota, efficiency, memory = (
        machine.cpu_quota_cores,
        machine.parallel_efficiency,
        machine.peak_memory_bytes,
    )
    parts = (
        machine.cpu_model or "unknown processor",
        f"{machine.usable_cores} of {machine.logical_cores or '?'} cores",
        "" if quota is None else f"quota {quota:g}",
        blas_text(machine),
        f"NumPy {machine.numpy_version}",
        "" if efficiency is None else f"parallel efficiency {efficiency:.0%}",
        "" if memory is None else f"peak memory {memory / 2**20:.0f} MiB",
    )
    return f"cpu: {', '.join(filter(None, parts))}"


def _roofline_line(roofline: Roofline) -> str:
    where = (
        roofline.device
        if roofline.threads is None
        else f"{roofline.device}, {count_of(roofline.threads, 'thread')}"
    )
    copy, product = roofline.copy_bytes_per_s, roofline.gemm_flops_per_s
    parts = (
        "" if copy is None else f"copy {rate(copy, 'B/s')}",
        "" if product is None else f"{roofline.gemm_dtype} product {rate(product, 'FLOP/s')}",
    )
    return f"limits measured on {where}: {', '.join(filter(None, parts)) or 'none'}"


def _sensor_line(name: str, gpu: GpuTelemetry) -> str:
    """Return the sensor readings of a GPU, from lowest to highest."""
    parts = []
    if gpu.clock_sm_mhz is not None:
        parts.append(f"SM clock {gpu.clock_sm_mhz.low:.0f} to {gpu.clock_sm_mhz.high:.0f} MHz")
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
    return f"sensors of {name}: {', '.join(parts) or 'no readings'}"


# ------------------------------------------------------------------------------------- in doubt


def doubt_lines(result: BenchResult, view: View) -> Iterator[Line]:
    """Yield each doubt about rows and comparisons once, the gravest first.

    Of an interrupted run, how well times are known is left out.
    """
    full = view.verbosity > 0
    measured = [row for row in result.measurements if row.time_s is not None]
    subjects: list[Measurement | Comparison] = [*measured, *result.comparisons]
    doubted = [(doubt, item) for item in subjects for doubt in item.doubts]
    # A run without a doubt reads no table.
    order = list(read_wordings()) if doubted else []
    doubted.sort(key=lambda item: order.index(item[0].code) if item[0].code in order else -1)
    doubtful: dict[tuple[str, str], dict[int, Measurement | Comparison]] = {}
    for doubt, item in doubted:
        words = find_wording(doubt.code)
        if full:
            said = (doubt.message, doubt.next)
        elif "short" in words and not (result.interrupted and words.get("about") == "precision"):
            said = (words["short"], words["short_next"])
        else:
            continue
        doubtful.setdefault(said, {})[id(item)] = item
    for (about, step), of in doubtful.items():
        where = _where_doubted([*of.values()], measured, full=full)
        yield Line(f"{about} ({where}): {step}", CheckStatus.WARN, indent=2)


def _where_doubted(
    doubted: Sequence[Measurement | Comparison], measured: Sequence[Measurement], *, full: bool
) -> str:
    """Return which rows or comparisons these are: how many, and their device or kernel."""
    rows = [item for item in doubted if isinstance(item, Measurement)]
    if not rows:
        return ", ".join(dict.fromkeys(f"{item.kernel} {item.dtype.format}" for item in doubted))
    if full and len(rows) < len(measured):
        return "; ".join(named_rows(rows))
    count = f"{len(rows)} of {len(measured)} rows" if len(measured) > 1 else "the row"
    devices = {row.device for row in rows}
    if devices != {row.device for row in measured} and "," not in devices_text(devices):
        return f"{count}, on {devices_text(devices)}"
    kernels = {row.kernel for row in rows}
    several = kernels != {row.kernel for row in measured}
    return f"{count}, in {kernels.pop()}" if several and len(kernels) == 1 else count
