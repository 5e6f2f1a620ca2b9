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

    burn = report.result
    if not isinstance(burn, BurnResult):
        raise TypeError(type(burn).__name__)
    names = (item.name for item in burn.devices if item.name is not None)
    yield from opening(report, view, counted(names))
    if report.exit_code in _NOT_RUN:
        yield verdict("no device could begin", CheckStatus.UNKNOWN, "NOT RUN")
    else:
        yield verdict_line(report, burn.gates, _verdict(burn))
    yield Gap()
    yield _devices(burn)
    yield Gap()
    if report.exit_code not in _NOT_RUN:
        yield from gate_blocks(burn.gates, view, notes=False)
    if view.verbosity >= 0:
        yield Gap()
        yield from limited(_notes(burn), view)


def charts(report: Report, view: View) -> Iterator[Chart]:
    """Yield the charts of a burn."""
    from gpucheck.bench.charts_view import burn_charts

    if isinstance(report.result, BurnResult):
        yield from burn_charts(report.result)


def shown_codes(report: Report) -> Collection[str]:
    """Return the codes of the messages that the table shows."""
    return ("burn-failed", "burn-undecided")


def _devices(burn: BurnResult) -> Table:
    figures = (Column(name, right=True) for name in _COLUMNS)
    columns = [Column("device"), *figures, Column("load")]
    rows = []
    for device in burn.devices:
        mark, style = _mark([gate for gate in burn.gates if gate.device == device.device])
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
    hot, power = (None if item is None else item.high for item in extents)
    edge = " × ".join(str(item) for item in check.shape)
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


def _notes(burn: BurnResult) -> Iterator[Line]:
    """Yield where the time and the results went, what could not be read, and what else to know."""
    if load := _load(burn):
        yield Line(load)
    if burn.telemetry_unavailable is not None and any(item.gpu_uuid for item in burn.devices):
        yield Line(f"no sensors: {burn.telemetry_unavailable}", CheckStatus.WARN)
    yield from (Line(note) for note in burn.notes)
    variables = ", ".join(f"{name}={value}" for name, value in sorted(burn.variables.items()))
    if variables:
        yield Line(f"environment: {variables}", style="dim")


def _load(burn: BurnResult) -> str:
    """Return the share of the time in products, and the memory that held the results."""
    checks = [item.corruption for item in burn.devices]
    percents = [
        item.product_time_percent for item in checks if item.product_time_percent is not None
    ]
    if not percents:
        return ""
    low, high = min(percents), max(percents)
    share = f"{low:.0f} %" if f"{low:.0f}" == f"{high:.0f}" else f"{low:.0f} to {high:.0f} %"
    least = binary_bytes(min(item.output_bytes for item in checks if item.output_bytes))
    return f"{share} of the time in products; the results rotate through {least} of memory"


def _verdict(burn: BurnResult) -> str:
    """Return the burn's verdict in one sentence: its length and its result."""
    done = f"burned {burn.duration_s:.0f} of {burn.asked_s:g} s{_ENDS[burn.ended_by]}"
    products = sum(device.corruption.products for device in burn.devices)
    numbers = sum(item.corruption.products * item.corruption.words for item in burn.devices)
    wrong = sum(device.corruption.mismatches for device in burn.devices)
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
    yield Table(columns, [_live_row(device) for device in progress.devices])


def _doing(progress: BurnProgress | None, elapsed_s: float) -> str:
    """Return the current step: looking for GPUs, starting the processes, or the load."""
    if progress is None:
        return f"looking at the devices, {elapsed_s:.0f} s"
    if progress.opening_s:
        count = len(progress.devices)
        ready = sum(item.state == "ready" for item in progress.devices)
        return (
            f"starting the processes, {progress.opening_s:.0f} s: {ready} of {count} ready, "
            f"then {progress.asked_s:g} s of load"
        )
    left_s = progress.asked_s - progress.elapsed_s
    if left_s <= 0:
        return f"{progress.asked_s:g} s are over, ending the processes"
    return f"{progress.elapsed_s:.0f} s of {progress.asked_s:g} s, {left_s:.0f} s left"


def _live_row(device: DeviceProgress) -> Row:
    sensors = (device.temperature_c, device.power_w)
    cells = _cells(device.flops_per_s, device.products, device.mismatches, *sensors)
    clock = ABSENT if device.clock_sm_mhz is None else f"{device.clock_sm_mhz:.0f} MHz"
    style = "bold red" if device.mismatches or device.state == "failed" else ""
    return Row([device.device, device.state, *cells, clock], style=style)
