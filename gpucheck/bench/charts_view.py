"""Charts of a benchmark: each from the document's own values, and left out where it has none."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from operator import attrgetter

from gpucheck.bench.model import (
    BenchResult,
    BurnResult,
    GpuTelemetry,
    Measurement,
    Roofline,
    Scope,
)
from gpucheck.bench.rows_view import (
    devices_text,
    has_rank,
    is_right,
    limit_of,
    variant_text,
)
from gpucheck.bench.telemetry import TROUBLE
from gpucheck.report.charts import Axis, Band, Chart, Drawn, Panel, Series
from gpucheck.report.text import (
    count_of,
    framework_title,
    rate,
)

#: Sizes that make a curve.
_CURVE = 3
_GIGA = 1e9
#: Units of a roofline, the largest first.
_FLOP_UNITS = ((1e12, "TFLOP/s"), (1e9, "GFLOP/s"), (1e6, "MFLOP/s"))


def bench_charts(result: BenchResult) -> Iterator[Chart]:
    """Yield the charts that the result has values for."""
    sensors = [] if result.telemetry is None else result.telemetry.gpus
    names = {gpu.uuid: gpu.device for gpu in result.environment.gpus}
    charts = (
        roofline(result),
        transfer(result),
        frameworks(result),
        telemetry([(names.get(item.uuid, item.uuid), item) for item in sensors]),
    )
    yield from (chart for chart in charts if chart is not None)


def burn_charts(result: BurnResult) -> Iterator[Chart]:
    """Yield the sensors of the devices under load."""
    known = [(item.device, item.telemetry) for item in result.devices if item.telemetry is not None]
    chart = telemetry(known)
    if chart is not None:
        yield chart


def _series(name: str, points: Iterable[tuple[float, float]], drawn: Drawn) -> Series:
    """Return the points of one name, at least one."""
    x, y = zip(*points, strict=True)
    return Series(name, x, y, drawn)


# --------------------------------------------------------------------------------- roofline


def roofline(result: BenchResult) -> Chart | None:
    """Return rows by their FLOPs for each byte, under the roofs of one GPU and the processor."""
    rows = [
        row
        for row in result.measurements
        if is_right(row) and row.flops and row.bytes_moved and row.scope is Scope.RESIDENT
    ]
    if not rows:
        return None
    intensities = [_intensity(row) for row in rows]
    span = (min(intensities) / 3, max(intensities) * 3)
    best = max(rows, key=_flops_per_s)
    known = [row for row in rows if has_rank(row)]
    unit = next(
        (unit_row for unit_row in _FLOP_UNITS if _flops_per_s(best) >= unit_row[0]), _FLOP_UNITS[-1]
    )
    bounds = _boards_bounds(result, rows) | _measured_bounds(result.environment.rooflines)
    roofs = [_roof(name, *bound, span=span, scale=unit[0]) for name, bound in bounds.items()]
    points: dict[str, list[Measurement]] = {}
    for row in sorted(rows, key=lambda row: row.device == "cpu"):
        side = "CPU" if row.device == "cpu" else "GPU"
        who = f" {framework_title(row.framework.name)}" if row.framework else ""
        points.setdefault(f"{row.kernel} {side}{who}", []).append(row)
    series = [
        _series(name, [(_intensity(row), _flops_per_s(row) / unit[0]) for row in of], Drawn.POINTS)
        for name, of in points.items()
    ]
    fastest = ""
    if known:
        best = max(known, key=_flops_per_s)
        label = f"{best.kernel} {best.dtype.format} on {best.device}"
        fastest = f"; the fastest is {label} with {rate(_flops_per_s(best), 'FLOP/s')}"
    kinds = [
        word
        for word, known in (
            ("memory", any(copy for copy, _ in bounds.values())),
            ("arithmetic", any(product for _, product in bounds.values())),
        )
        if known
    ]
    under = f" under the limits of {' and '.join(kinds)}" if kinds else ""
    return Chart(
        id="roofline",
        title="Roofline",
        says=f"{count_of(len(rows), 'row')}{under}{fastest}.",
        x=Axis("arithmetic intensity (FLOP/byte)", log=True),
        panels=(Panel(Axis(f"speed ({unit[1]})", log=True), (*roofs, *series)),),
    )


def _flops_per_s(row: Measurement) -> float:
    return (row.flops or 0) / (row.time_s or 1.0)


def _intensity(row: Measurement) -> float:
    return (row.flops or 0) / (row.bytes_moved or 1)


#: Bytes/s and FLOP/s that bound the rows of a device, by its name; None was not measured.
Bounds = dict[str, tuple[float | None, float | None]]


def _boards_bounds(result: BenchResult, rows: Sequence[Measurement]) -> Bounds:
    """Return the bounds of the first GPU's board, for the formats that were measured on it."""
    boards = {gpu.device: gpu.board for gpu in result.environment.gpus}
    device = next((row.device for row in rows if boards.get(row.device) is not None), None)
    board = boards.get(device or "")
    if board is None or board.bytes_per_s is None:
        return {}
    formats = dict.fromkeys(row.dtype.format for row in rows if row.device != "cpu")
    return {
        f"{board.name} {name}": (board.bytes_per_s, board.flops_per_s[name])
        for name in formats
        if board.flops_per_s.get(name)
    }


def _measured_bounds(rooflines: Sequence[Roofline]) -> Bounds:
    """Return the bounds that this run measured on all of the processor's threads."""
    known = [
        item
        for item in rooflines
        if item.device == "cpu" and (item.copy_bytes_per_s or item.gemm_flops_per_s)
    ]
    best = max(known, key=lambda item: item.threads or 0, default=None)
    if best is None:
        return {}
    name = f"CPU {best.gemm_dtype}, measured"
    return {name: (best.copy_bytes_per_s, best.gemm_flops_per_s)}


def _roof(
    name: str,
    copy: float | None,
    product: float | None,
    *,
    span: tuple[float, float],
    scale: float,
) -> Series:
    """Return a roof: memory's slope up to the ridge, then arithmetic's ceiling, or one of them."""
    low, high = span
    if copy and product:
        ridge = product / copy
        x: tuple[float, ...] = (min(low, ridge / 3), ridge, max(high, ridge * 3))
    else:
        x = (low, high)
    y = (
        min(intensity * copy if copy else math.inf, product or math.inf) / scale for intensity in x
    )
    return Series(name, x, tuple(y), Drawn.LINE, limit=True)


# --------------------------------------------------------------------------------- transfer


def transfer(result: BenchResult) -> Chart | None:
    """Return the speed of the copies between host and GPU, over their size if it has several."""
    rows = [
        row
        for row in result.measurements
        if is_right(row) and row.framework is None and row.kernel == "transfer"
    ]
    ways: dict[str, list[Measurement]] = {}
    for row in sorted(rows, key=_bytes):
        if row.device == rows[0].device:
            ways.setdefault(variant_text("transfer", row.variant), []).append(row)
    if max(map(len, ways.values()), default=0) < _CURVE:
        return None
    best = max((row for of in ways.values() for row in of), key=attrgetter("speed"))
    series = tuple(
        _series(name, [(_bytes(row) / 2**20, row.speed / _GIGA) for row in of], Drawn.LINE)
        for name, of in ways.items()
    )
    return Chart(
        id="transfer",
        title="Transfer over size",
        says=f"{best.device}: at most {rate(best.speed, 'B/s')},"
        f" {variant_text('transfer', best.variant)}.",
        x=Axis("size of one copy (MiB)", log=True),
        panels=(Panel(Axis("speed (GB/s)"), series),),
    )


def _bytes(row: Measurement) -> float:
    return 4.0 * math.prod(row.shape)


# ------------------------------------------------------------------------------- frameworks


def frameworks(result: BenchResult) -> Chart | None:
    """Return the share of the limit that each framework reaches, beside gpucheck's own code."""
    rows = [row for row in result.measurements if has_rank(row) and limit_of(row)[0] is not None]
    if not any(row.framework for row in rows):
        return None
    best: dict[tuple[str, str, str], dict[str, float]] = {}
    for row in rows:
        side = "CPU" if row.device == "cpu" else "GPU"
        who = "gpucheck" if row.framework is None else row.framework.text
        of = best.setdefault((row.kernel, row.dtype.format, side), {})
        of[who] = max(of.get(who, 0.0), limit_of(row)[0] or 0.0)
    shared = {key: of for key, of in best.items() if set(of) - {"gpucheck"}}
    if not shared:
        return None
    names = tuple(f"{kernel} {number_format}, {side}" for kernel, number_format, side in shared)
    everyone = dict.fromkeys(who for of in shared.values() for who in of)
    series = []
    for who in everyone:
        values = [(of[who], float(place)) for place, of in enumerate(shared.values()) if who in of]
        series.append(_series(who, values, Drawn.BARS))
    limit = Series("limit", (100.0, 100.0), (-0.5, len(names) - 0.5), Drawn.LINE, limit=True)
    return Chart(
        id="frameworks",
        title="Frameworks beside the limit",
        says=f"Share of the limit that {', '.join(everyone)} reach; 100 % is the board's peak, the"
        " best product of the processor, its exponentials, or a copy.",
        x=Axis("share of the limit (%)"),
        panels=(Panel(Axis("", names=names), (*series, limit)),),
    )


# --------------------------------------------------------------------------------- telemetry


def telemetry(named: Sequence[tuple[str, GpuTelemetry]]) -> Chart | None:
    """Return clock, power and temperature of the GPUs over time, and what held the clock down."""
    kept = [(name, gpu, gpu.history) for name, gpu in named if gpu.history is not None]
    panels = []
    for label, key in (
        ("SM clock (MHz)", "clock_sm_mhz"),
        ("power (W)", "power_w"),
        ("temperature (°C)", "temperature_c"),
    ):
        series = []
        for name, _, history in kept:
            known = [
                ((place + 0.5) * history.part_s, value)
                for place, value in enumerate(getattr(history, key))
                if value is not None
            ]
            if known:
                series.append(_series(name, known, Drawn.LINE))
        if series:
            panels.append(Panel(Axis(label), tuple(series)))
    if not panels:
        return None
    limited: dict[str, list[tuple[float, float]]] = {}
    whose: dict[str, list[str]] = {}
    for name, _, history in kept:
        for reason, periods in history.limited.items():
            limited.setdefault(reason, []).extend(periods)
            whose.setdefault(reason, []).append(name)
    bands = [
        Band(f"{reason}, {devices_text(whose[reason], len(kept))}", start, end, reason in TROUBLE)
        for reason, periods in limited.items()
        for start, end in _joined(periods)
    ]
    hottest = max((gpu.temperature_c.high for _, gpu, _ in kept if gpu.temperature_c), default=None)
    hot = "" if hottest is None else f" up to {hottest:.0f} °C."
    names = ", ".join(limited)
    return Chart(
        id="telemetry",
        title="Sensors over time",
        says=f"{count_of(len(kept))}{hot or '.'} "
        + (f"The clock was held down by {names}." if names else "Nothing held the clock down."),
        x=Axis("time (s)"),
        panels=tuple(panels),
        bands=tuple(bands),
    )


def _joined(periods: Iterable[tuple[float, float]]) -> Iterator[tuple[float, float]]:
    """Yield periods in order, those that touch as one."""
    begin, until = math.inf, -math.inf
    for start, end in sorted(periods):
        if start > until:
            if until > begin:
                yield begin, until
            begin, until = start, end
        until = max(until, end)
    if until > begin:
        yield begin, until
