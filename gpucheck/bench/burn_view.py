"""Result of a burn on a terminal."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.text import Text

from gpucheck.bench.model import BurnDevice, BurnEnd, BurnResult, Gate, GateStatus, Severity
from gpucheck.report.envelope import Report
from gpucheck.report.text import View, printable, rate

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


def build(report: Report, view: View) -> RenderableType:
    """Return the duration, each device's figures, and every gate that did not pass."""
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
