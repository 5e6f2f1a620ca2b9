"""`gpucheck bench --burn` on a terminal: the live table, and the final result."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from gpucheck.bench.burn_model import BurnDevice, BurnEnd, BurnProgress, BurnResult
from gpucheck.bench.ci.gate_model import Gate, GateStatus, Severity
from gpucheck.report.envelope import Report
from gpucheck.report.text import View, printable, rate

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

_STYLES = {
    GateStatus.PASS: "green",
    GateStatus.FAIL: "bold red",
    GateStatus.INCONCLUSIVE: "yellow",
    GateStatus.SKIP: "dim",
}
_ENDS = {
    BurnEnd.TIME: "to the end",
    BurnEnd.TEMPERATURE: "until the temperature limit",
    BurnEnd.INTERRUPTED: "until it was interrupted",
    BurnEnd.LOST: "until no device was left",
}


def live_table(progress: BurnProgress, *, unicode: bool) -> Table:
    """Return the state of every device at this moment."""
    from rich.table import Table

    left_s = max(0.0, progress.asked_s - progress.elapsed_s)
    title = f"burn: {progress.elapsed_s:.0f} s of {progress.asked_s:g} s, {left_s:.0f} s left"
    if progress.opening_s:
        title = (
            f"burn: opening the devices for {progress.opening_s:.0f} s, then {progress.asked_s:g} s"
        )
    table = Table(
        box=None,
        padding=(0, 2, 0, 0),
        pad_edge=False,
        header_style="dim",
        title=title,
        title_justify="left",
    )
    for heading in ("DEVICE", "STATE", "SPEED", "PRODUCTS", "WRONG", "TEMP", "POWER", "SM CLOCK"):
        table.add_column(heading, justify="left" if heading in ("DEVICE", "STATE") else "right")
    nothing = "\N{EN DASH}" if unicode else "-"
    for one in progress.devices:
        table.add_row(
            one.device,
            one.state,
            nothing if one.flops_per_s is None else rate(one.flops_per_s, "FLOP/s"),
            str(one.products),
            str(one.mismatches),
            nothing if one.temperature_c is None else f"{one.temperature_c:.0f} C",
            nothing if one.power_w is None else f"{one.power_w:.0f} W",
            nothing if one.clock_sm_mhz is None else f"{one.clock_sm_mhz:.0f} MHz",
            style="bold red" if one.mismatches or one.state == "failed" else "",
        )
    return table


def build(report: Report, view: View) -> RenderableType:
    """Return the duration, each device's figures, and every gate that did not pass."""
    from rich.console import Group
    from rich.text import Text

    found = report.result
    if not isinstance(found, BurnResult):
        raise TypeError(type(found).__name__)
    lines: list[RenderableType] = []
    if view.verbosity >= 0:
        how = _ENDS[found.ended_by]
        lines.append(Text(f"burned {found.duration_s:.0f} of {found.asked_s:g} s, {how}"))
        if found.telemetry_unavailable is not None and any(one.gpu_uuid for one in found.devices):
            lines.append(Text(f"no sensors: {printable(found.telemetry_unavailable)}"))
        variables = ", ".join(f"{name}={value}" for name, value in sorted(found.variables.items()))
        if variables:
            lines.append(Text(f"environment: {printable(variables)}"))
        lines.extend(Text(printable(note)) for note in found.notes)
    for device in found.devices:
        gates = [gate for gate in found.gates if gate.device == device.device]
        lines.extend(_device(device, gates, view))
    return Group(*lines)


def _device(device: BurnDevice, gates: list[Gate], view: View) -> Iterator[RenderableType]:
    from rich.text import Text

    name = f" {printable(device.name)}" if device.name else ""
    serious = {gate.status for gate in gates if gate.severity is Severity.ERROR}
    statuses = (GateStatus.FAIL, GateStatus.INCONCLUSIVE)
    worst = next((status for status in statuses if status in serious), GateStatus.PASS)
    yield Text.assemble((f"{device.device}{name}: ", "bold"), (worst.value, _STYLES[worst]))
    if view.verbosity >= 0:
        yield Text(f"  {', '.join(_figures(device))}")
    for gate in gates:
        if gate.status is GateStatus.PASS and not gate.warning and view.verbosity <= 0:
            continue
        cause = f" ({gate.class_.value})" if gate.class_ else ""
        reason = f": {printable(gate.reason)}" if gate.reason else ""
        warns = gate.warning or (gate.status is GateStatus.FAIL and gate.severity is Severity.WARN)
        word = "warning" if warns else gate.status.value
        style = "yellow" if warns else _STYLES[gate.status]
        yield Text(f"  {word} {gate.id}{cause}{reason}", style=style)
        for step in gate.next:
            yield Text(f"    {printable(step)}")


def _figures(device: BurnDevice) -> Iterator[str]:
    check = device.corruption
    if check.products:
        edge = "x".join(str(one) for one in check.shape)
        yield f"{check.products} products {edge} in {check.dtype}"
        yield f"{check.mismatches} of {check.products * check.words} numbers changed"
    else:
        yield "no product"
    if device.flops_per_s is not None:
        yield rate(device.flops_per_s, "FLOP/s")
    sensors = device.telemetry
    if sensors is not None and sensors.temperature_c is not None:
        yield f"up to {sensors.temperature_c.high:.0f} C"
    if sensors is not None and sensors.power_w is not None:
        yield f"up to {sensors.power_w.high:.0f} W"
