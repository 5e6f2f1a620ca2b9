"""View of a burn: while it runs, and in the end what was done and whether all was right."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING

from gpucheck.bench.model import BurnDevice, BurnEnd, BurnResult, Gate, GateStatus, Severity
from gpucheck.report.blocks import (
    Block,
    Column,
    Gap,
    Inline,
    Line,
    Row,
    Span,
    Table,
    counted,
    limited,
    opening,
    verdict,
)
from gpucheck.report.envelope import CheckStatus, Report
from gpucheck.report.errors import ExitCode
from gpucheck.report.formats.table import MARKS
from gpucheck.report.text import ABSENT, View, binary_bytes, rate

if TYPE_CHECKING:
    from gpucheck.bench.burn import BurnProgress, DeviceProgress
    from gpucheck.report.charts import Chart

_ENDS = {
    BurnEnd.TIME: "",
    BurnEnd.TEMPERATURE: ", until the temperature limit",
    BurnEnd.INTERRUPTED: ", until it was interrupted",
    BurnEnd.LOST: ", until no device was left",
}
#: No device could begin, and the error says why.
_NOT_RUN = (ExitCode.WRONG_USE, ExitCode.MISSING)
_COLUMNS = ("speed", "products", "wrong", "temp", "power")


def blocks(report: Report, view: View) -> Iterator[Block]:
    """Yield the verdict, each device's figures, and what is wrong."""
    # Only a judged run needs what judges it, which takes 20 ms to import.
    from gpucheck.bench.ci.view import gate_blocks, verdict_line

    found = report.result
    if not isinstance(found, BurnResult):
        raise TypeError(type(found).__name__)
    names = (each.name for each in found.devices if each.name is not None)
    yield from opening(report, view, counted(names))
    if report.exit_code in _NOT_RUN:
        yield verdict("no device could begin", CheckStatus.UNKNOWN, "NOT RUN")
    else:
        yield verdict_line(report, found.gates, _verdict(found))
    yield Gap()
    yield _devices(found)
    yield Gap()
    if report.exit_code not in _NOT_RUN:
        yield from gate_blocks(found.gates, view, notes=False)
    if view.verbosity >= 0:
        yield Gap()
        yield from limited(_notes(found), view)


def charts(report: Report, view: View) -> Iterator[Chart]:
    """Yield the charts of a burn."""
    from gpucheck.bench.charts_view import burn_charts

    if isinstance(report.result, BurnResult):
        yield from burn_charts(report.result)


def shown_codes(report: Report) -> Collection[str]:
    """Return the codes of the messages that the table shows."""
    return ("burn-failed", "burn-undecided")


def _devices(found: BurnResult) -> Table:
    figures = (Column(name, right=True) for name in _COLUMNS)
    columns = [Column("device"), *figures, Column("load")]
    rows = []
    for device in found.devices:
        mark, style = _mark([gate for gate in found.gates if gate.device == device.device])
        sign, _, color = MARKS[mark]
        name = (Span(f"{sign} ", color), Span(device.device))
        rows.append(Row([name, *_figures(device)], style=style))
    return Table(columns, rows)


def _mark(gates: Sequence[Gate]) -> tuple[CheckStatus, str]:
    """Return the worst that was found about a device, and the style of its row."""
    serious = {gate.status for gate in gates if gate.severity is Severity.ERROR}
    if GateStatus.FAIL in serious:
        return CheckStatus.FAIL, "bold red"
    if GateStatus.INCONCLUSIVE in serious:
        return CheckStatus.UNKNOWN, "yellow"
    if any(gate.warning or gate.status is GateStatus.FAIL for gate in gates):
        return CheckStatus.WARN, "yellow"
    return CheckStatus.OK, ""


def _figures(device: BurnDevice) -> list[Inline]:
    """Return the cells of a device: the load, its errors, and the most that its sensors showed."""
    check, sensors = device.corruption, device.telemetry
    extents = (sensors.temperature_c, sensors.power_w) if sensors is not None else (None, None)
    hot, power = (None if one is None else one.high for one in extents)
    edge = " × ".join(str(one) for one in check.shape)
    load = f"{edge} {check.dtype}".strip() if check.products else "no product"
    return [*_cells(device.flops_per_s, check.products, check.mismatches, hot, power), load]


def _cells(
    flops_per_s: float | None,
    products: int,
    wrong: int,
    temperature_c: float | None,
    power_w: float | None,
) -> list[Inline]:
    """Return the cells of `_COLUMNS`; what was not read is absent."""
    return [
        ABSENT if flops_per_s is None else rate(flops_per_s, "FLOP/s"),
        str(products),
        str(wrong),
        ABSENT if temperature_c is None else f"{temperature_c:.0f} °C",
        ABSENT if power_w is None else f"{power_w:.0f} W",
    ]


def _notes(found: BurnResult) -> Iterator[Line]:
    """Yield where the time and the results went, what could not be read, and what else to know."""
    if load := _load(found):
        yield Line(load)
    if found.telemetry_unavailable is not None and any(one.gpu_uuid for one in found.devices):
        yield Line(f"no sensors: {found.telemetry_unavailable}", CheckStatus.WARN)
    yield from (Line(note) for note in found.notes)
    variables = ", ".join(f"{name}={value}" for name, value in sorted(found.variables.items()))
    if variables:
        yield Line(f"environment: {variables}", style="dim")


def _load(found: BurnResult) -> str:
    """Return the share of the time in products, and the memory that held the results."""
    checks = [one.corruption for one in found.devices]
    percents = [one.product_time_percent for one in checks if one.product_time_percent is not None]
    if not percents:
        return ""
    low, high = min(percents), max(percents)
    share = f"{low:.0f} %" if f"{low:.0f}" == f"{high:.0f}" else f"{low:.0f} to {high:.0f} %"
    least = binary_bytes(min(one.output_bytes for one in checks if one.output_bytes))
    return f"{share} of the time in products; the results rotate through {least} of memory"


def _verdict(found: BurnResult) -> str:
    """Return what was done and what came of it, in one sentence."""
    done = f"burned {found.duration_s:.0f} of {found.asked_s:g} s{_ENDS[found.ended_by]}"
    products = sum(device.corruption.products for device in found.devices)
    numbers = sum(one.corruption.products * one.corruption.words for one in found.devices)
    wrong = sum(device.corruption.mismatches for device in found.devices)
    if not products:
        return f"{done}: no product"
    if not wrong:
        return f"{done}: {products} products, no bit changed"
    return f"{done}: {wrong} of {numbers} numbers of {products} products changed"


# ------------------------------------------------------------------------------------ while it runs

_TURNING = "|/-\\"


def live_blocks(progress: BurnProgress | None, elapsed_s: float) -> Iterator[Block]:
    """Yield the state of every device at this moment; something turns with the time."""
    turn = _TURNING[int(4 * elapsed_s) % len(_TURNING)]
    yield Line((Span(f"{turn} burn: ", "bold"), Span(_doing(progress, elapsed_s))))
    if progress is None:
        return
    figures = (Column(name, right=True) for name in (*_COLUMNS, "SM clock"))
    columns = [Column("device"), Column("state"), *figures]
    yield Table(columns, [_live_row(one) for one in progress.devices])


def _doing(progress: BurnProgress | None, elapsed_s: float) -> str:
    """Return what goes on: looking for GPUs, starting the processes, or the load."""
    if progress is None:
        return f"looking at the devices, {elapsed_s:.0f} s"
    if progress.opening_s:
        count = len(progress.devices)
        ready = sum(one.state == "ready" for one in progress.devices)
        return (
            f"starting the processes, {progress.opening_s:.0f} s: {ready} of {count} ready, "
            f"then {progress.asked_s:g} s of load"
        )
    left_s = progress.asked_s - progress.elapsed_s
    if left_s <= 0:
        return f"{progress.asked_s:g} s are over, ending the processes"
    return f"{progress.elapsed_s:.0f} s of {progress.asked_s:g} s, {left_s:.0f} s left"


def _live_row(one: DeviceProgress) -> Row:
    sensors = (one.temperature_c, one.power_w)
    cells = _cells(one.flops_per_s, one.products, one.mismatches, *sensors)
    clock = ABSENT if one.clock_sm_mhz is None else f"{one.clock_sm_mhz:.0f} MHz"
    style = "bold red" if one.mismatches or one.state == "failed" else ""
    return Row([one.device, one.state, *cells, clock], style=style)
