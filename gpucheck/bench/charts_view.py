"""Charts of a benchmark: each from the document's own values, and left out where it has none."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

from gpucheck.bench.model import (
    BenchResult,
    BurnDevice,
    BurnResult,
    Comparison,
    GpuTelemetry,
    Measurement,
    Roofline,
    Scope,
)
from gpucheck.bench.rows_view import (
    devices_text,
    is_right,
    models_of,
    row_name,
    size_text,
    speed,
    variant_text,
)
from gpucheck.bench.telemetry import TROUBLE
from gpucheck.report.charts import Axis, Band, Chart, Drawn, Panel, Series
from gpucheck.report.text import (
    count_of,
    duration,
    framework_title,
    rate,
    two_digits,
)

#: Rows whose rounds are shown: those that vary most.
_MOST_ROUNDS = 16
#: From this share on a GPU is pointed out as slower than its peers.
_OUTLIER = 0.01
#: Sizes from which a kernel has a curve.
_CURVE = 3
_TERA, _GIGA = 1e12, 1e9


def bench_charts(result: BenchResult) -> Iterator[Chart]:
    """Yield the charts that the result has values for."""
    makers = (roofline, speedup, transfer, frameworks, gpus, rounds)
    for make in makers:
        chart = make(result)
        if chart is not None:
            yield chart
    if result.telemetry is not None:
        names = {gpu.uuid: gpu.device for gpu in result.environment.gpus}
        yield from telemetry(
            [(names.get(one.uuid, one.uuid), one) for one in result.telemetry.gpus]
        )


def _own(rows: Iterable[Measurement]) -> list[Measurement]:
    """Return the right rows of gpucheck's own code."""
    return [row for row in rows if is_right(row) and row.framework is None]


def burn_charts(result: BurnResult) -> Iterator[Chart]:
    """Yield the load of the devices side by side, and their sensors."""
    loaded = [one for one in result.devices if one.flops_per_s]
    if loaded:
        yield _loads(loaded)
    yield from telemetry(
        [(one.device, one.telemetry) for one in result.devices if one.telemetry is not None]
    )


def _loads(devices: Sequence[BurnDevice]) -> Chart:
    """Return the speed of each device, at the start and at the end of the load."""
    gpus = [one for one in devices if one.gpu_uuid is not None]
    shown = gpus or list(devices)
    places = tuple(float(place) for place in range(len(shown)))
    speeds = [(one.flops_per_s or 0.0) / _TERA for one in shown]
    middle = sorted(speeds)[len(speeds) // 2]
    slow = [
        (place, f"{100 * (value / middle - 1):.1f} %")
        for place, value in enumerate(speeds)
        if value < (1 - _OUTLIER) * middle and value == min(speeds)
    ]
    series = [Series("whole time", tuple(speeds), places, Drawn.BARS, marked=tuple(slow))]
    for name, key in (("first tenth", "first_flops_per_s"), ("last tenth", "last_flops_per_s")):
        values = [getattr(one, key) and getattr(one, key) / _TERA for one in shown]
        series.append(Series(name, *_known_points(values, places)))
    slowest = min(shown, key=lambda one: one.flops_per_s or 0.0)
    return Chart(
        id="gpus",
        title=f"{count_of(len(shown), 'device')} under load",
        says=f"The slowest is {slowest.device} with {rate(slowest.flops_per_s or 0.0, 'FLOP/s')}.",
        x=Axis("speed (TFLOP/s)"),
        panels=(Panel(Axis("", names=tuple(one.device for one in shown)), tuple(series)),),
    )


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
    roofs = [*_gpu_roofs(result, rows, span), *_cpu_roofs(result.environment.rooflines, span)]
    points: dict[str, list[Measurement]] = {}
    for row in sorted(rows, key=lambda row: row.device == "cpu"):
        side = "CPU" if row.device == "cpu" else "GPU"
        who = f" {framework_title(row.framework.name)}" if row.framework else ""
        points.setdefault(f"{row.kernel} {side}{who}", []).append(row)
    series = [
        Series(
            name,
            tuple(_intensity(row) for row in of),
            tuple((row.flops or 0) / (row.median_s or 1.0) / _TERA for row in of),
        )
        for name, of in points.items()
    ]
    best = max(rows, key=lambda row: (row.flops or 0) / (row.median_s or 1.0))
    fastest = rate((best.flops or 0) / (best.median_s or 1.0), "FLOP/s")
    return Chart(
        id="roofline",
        title="Roofline",
        says=f"{count_of(len(rows), 'row')} under the limits of memory and arithmetic; the fastest"
        f" is {best.kernel} {best.dtype.format} on {best.device} with {fastest}.",
        x=Axis("arithmetic intensity (FLOP/byte)", log=True),
        panels=(Panel(Axis("speed (TFLOP/s)", log=True), (*roofs, *series)),),
    )


def _intensity(row: Measurement) -> float:
    return (row.flops or 0) / (row.bytes_moved or 1)


def _gpu_roofs(
    result: BenchResult, rows: Sequence[Measurement], span: tuple[float, float]
) -> Iterator[Series]:
    """Yield the roofs of the first GPU's board, for the formats that were measured on it."""
    boards = {gpu.device: gpu.board for gpu in result.environment.gpus}
    device = next((row.device for row in rows if boards.get(row.device) is not None), None)
    board = boards.get(device or "")
    if board is None or board.bytes_per_s is None:
        return
    formats = dict.fromkeys(row.dtype.format for row in rows if row.device != "cpu")
    for name in formats:
        flops = board.flops_per_s.get(name)
        if flops:
            yield _roof(f"{board.name} {name}", board.bytes_per_s, flops, span)


def _cpu_roofs(rooflines: Sequence[Roofline], span: tuple[float, float]) -> Iterator[Series]:
    """Yield the roof that this run measured on all of the processor's threads."""
    known = [
        one
        for one in rooflines
        if one.device == "cpu" and one.copy_bytes_per_s and one.gemm_flops_per_s
    ]
    best = max(known, key=lambda one: one.threads or 0, default=None)
    if best is not None:
        copy, product = best.copy_bytes_per_s or 0.0, best.gemm_flops_per_s or 0.0
        yield _roof(f"CPU {best.gemm_dtype}, measured", copy, product, span)


def _roof(name: str, bytes_per_s: float, flops_per_s: float, span: tuple[float, float]) -> Series:
    """Return a roof: memory's slope up to the ridge, then arithmetic's ceiling."""
    ridge = flops_per_s / bytes_per_s
    x = (min(span[0], ridge / 3), ridge, max(span[1], ridge * 3))
    y = (x[0] * bytes_per_s / _TERA, flops_per_s / _TERA, flops_per_s / _TERA)
    return Series(name, x, y, Drawn.LINE, limit=True)


# --------------------------------------------------------------------------------- speed-up


def speedup(result: BenchResult) -> Chart | None:
    """Return how many times faster the GPU is, over the size if a kernel has several."""
    own = [one for one in result.comparisons if one.gpu.framework is None]
    first = own[0].gpu.device if own else None
    mine = [one for one in own if one.gpu.device == first]
    if first is None:
        return None
    curves: dict[tuple[str, str, str], list[Comparison]] = {}
    for one in mine:
        curves.setdefault((one.kernel, one.gpu.dtype.format, one.gpu.variant), []).append(one)
    long = {key: of for key, of in curves.items() if len({one.shape for one in of}) >= _CURVE}
    return _over_sizes(long, first) if long else _by_kernel(mine, first)


def _over_sizes(curves: dict[tuple[str, str, str], list[Comparison]], device: str) -> Chart:
    series, parts = [], []
    kernels = [kernel for kernel, _, _ in curves]
    for (kernel, number_format, _), found in curves.items():
        ordered = sorted(found, key=lambda one: one.shape)
        x = tuple(float(one.shape[0]) for one in ordered)
        name = f"{kernel} {number_format}" if kernels.count(kernel) > 1 else kernel
        resident = tuple(one.speedup_resident for one in ordered)
        series.append(Series(name, x, resident, Drawn.LINE, marked=_break_even(resident, x)))
        moved = tuple(one.speedup_end_to_end for one in ordered)
        if any(value is not None for value in moved):
            label = f"{name}, transfers"
            series.append(Series(label, x, moved, Drawn.LINE, marked=_break_even(moved, x)))
        parts.append(f"{name} {two_digits(min(resident))} to {two_digits(max(resident))} times")
    ends = [value for one in series for value in one.x]
    series.append(
        Series("as fast as the CPU", (min(ends), max(ends)), (1.0, 1.0), Drawn.LINE, limit=True)
    )
    return Chart(
        id="speedup",
        title="Speed-up over size",
        says=f"{device} against the CPU: {', '.join(parts)} over the sizes. A ring marks the first"
        " size at which the GPU is faster.",
        x=Axis("size (edge of the arrays, or images)", log=True),
        panels=(Panel(Axis("times as fast as the CPU", log=True), tuple(series)),),
    )


def _break_even(
    factors: Sequence[float | None], sizes: Sequence[float]
) -> tuple[tuple[int, str], ...]:
    """Return the place of the first size at which the GPU is faster, if it once was not."""
    known = [place for place, factor in enumerate(factors) if factor is not None]
    ahead = [place for place in known if (factors[place] or 0.0) >= 1]
    if not ahead or ahead[0] == known[0]:
        return ()
    return ((ahead[0], f"from {sizes[ahead[0]]:g}"),)


def _by_kernel(found: Sequence[Comparison], device: str) -> Chart:
    names = tuple(
        f"{one.kernel} {one.gpu.dtype.format} {variant_text(one.kernel, one.gpu.variant)}"
        for one in found
    )
    places = tuple(float(place) for place in range(len(found)))
    once = f"data moved once for {found[0].reuse_count} operations"
    kinds: dict[str, list[float | None]] = {
        "data in place": [one.speedup_resident for one in found],
        "data moved for each operation": [one.speedup_end_to_end for one in found],
        once: [one.speedup_amortised for one in found],
    }
    series = [
        Series(name, *_known_points(values, places))
        for name, values in kinds.items()
        if any(values)
    ]
    line = Series(
        "as fast as the CPU", (1.0, 1.0), (-0.5, len(found) - 0.5), Drawn.LINE, limit=True
    )
    best = max(found, key=lambda one: one.speedup_resident)
    return Chart(
        id="speedup",
        title="Speed-up",
        says=f"{device} against the CPU; the most with data in place is {best.kernel}"
        f" {best.gpu.dtype.format}, {two_digits(best.speedup_resident)} times.",
        x=Axis("times as fast as the CPU", log=True),
        panels=(Panel(Axis("", names=names), (line, *series)),),
    )


def _known_points(
    values: Sequence[float | None], places: Sequence[float]
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    known = [(value, place) for value, place in zip(values, places, strict=True) if value]
    return tuple(value for value, _ in known), tuple(place for _, place in known)


# --------------------------------------------------------------------------------- transfer


def transfer(result: BenchResult) -> Chart | None:
    """Return the speed of the copies between host and GPU, over their size if it has several."""
    rows = [row for row in _own(result.measurements) if row.kernel == "transfer"]
    first = next((row.device for row in rows), None)
    ways: dict[str, list[Measurement]] = {}
    for row in rows:
        if row.device == first:
            ways.setdefault(variant_text("transfer", row.variant), []).append(row)
    if not ways:
        return None
    best = max((row for of in ways.values() for row in of), key=speed)
    says = f"{first}: at most {rate(speed(best), 'B/s')}, {variant_text('transfer', best.variant)}."
    if max(len(of) for of in ways.values()) < _CURVE:
        every = [row for of in ways.values() for row in of]
        names = tuple(f"{variant_text('transfer', row.variant)}, {size_text(row)}" for row in every)
        values = tuple(speed(row) / _GIGA for row in every)
        places = tuple(float(place) for place in range(len(every)))
        bars = Series("", values, places, Drawn.BARS)
        panel = Panel(Axis("", names=names), (bars,))
        return Chart("transfer", "Transfer", says, Axis("speed (GB/s)"), (panel,))
    series = []
    for name, of in ways.items():
        ordered = sorted(of, key=_bytes)
        series.append(
            Series(
                name,
                tuple(_bytes(row) / 2**20 for row in ordered),
                tuple(speed(row) / _GIGA for row in ordered),
                Drawn.LINE,
            )
        )
    panel = Panel(Axis("speed (GB/s)"), tuple(series))
    x = Axis("size of one copy (MiB)", log=True)
    return Chart("transfer", "Transfer over size", says, x, (panel,))


def _bytes(row: Measurement) -> float:
    return 4.0 * math.prod(row.shape)


# ------------------------------------------------------------------------------- frameworks


def frameworks(result: BenchResult) -> Chart | None:
    """Return the share of the limit that each framework reaches, beside gpucheck's own code."""
    rows = [row for row in result.measurements if is_right(row) and _share(row) is not None]
    if not any(row.framework for row in rows):
        return None
    best: dict[tuple[str, str, str], dict[str, float]] = {}
    for row in rows:
        side = "CPU" if row.device == "cpu" else "GPU"
        who = "gpucheck" if row.framework is None else row.framework.text
        of = best.setdefault((row.kernel, row.dtype.format, side), {})
        of[who] = max(of.get(who, 0.0), _share(row) or 0.0)
    shared = {key: of for key, of in best.items() if set(of) - {"gpucheck"}}
    if not shared:
        return None
    names = tuple(f"{kernel} {number_format}, {side}" for kernel, number_format, side in shared)
    everyone = dict.fromkeys(who for of in shared.values() for who in of)
    series = []
    for who in everyone:
        values = [(of[who], float(place)) for place, of in enumerate(shared.values()) if who in of]
        x, y = tuple(value for value, _ in values), tuple(place for _, place in values)
        series.append(Series(who, x, y, Drawn.BARS))
    limit = Series("limit", (100.0, 100.0), (-0.5, len(names) - 0.5), Drawn.LINE, limit=True)
    return Chart(
        id="frameworks",
        title="Frameworks beside the limit",
        says=f"Share of the limit that {', '.join(everyone)} reach; 100 % is the board's peak, the"
        " best product of the processor, or a copy.",
        x=Axis("share of the limit (%)"),
        panels=(Panel(Axis("", names=names), (*series, limit)),),
    )


def _share(row: Measurement) -> float | None:
    copies = row.percent_of_copy is not None and row.kernel != "copy"
    return row.percent_of_copy if copies else row.percent_of_peak


# ------------------------------------------------------------------------------- GPUs of a node


def gpus(result: BenchResult) -> Chart | None:
    """Return each GPU's speed against the middle one of its model, with the outliers marked."""
    models = models_of(result)
    alike: dict[tuple[str, str], list[Measurement]] = {}
    for row in _own(result.measurements):
        if row.device in models and speed(row) > 0 and row.kernel != "p2p":
            sizes = len({one.shape for one in result.measurements if _alike(one, row)}) > 1
            name = f"{row.kernel} {row.dtype.format}{row_name(row, '', sizes=sizes)}"
            alike.setdefault((models[row.device], name), []).append(row)
    shared = {key: of for key, of in alike.items() if len(of) > 1}
    if not shared:
        return None
    points: dict[str, list[tuple[float, float]]] = {}
    outliers: list[tuple[str, int, float, str]] = []
    for place, ((_, name), of) in enumerate(shared.items()):
        middle = sorted(speed(row) for row in of)[len(of) // 2]
        for row in of:
            mine = points.setdefault(row.device, [])
            percent = 100 * (speed(row) / middle - 1)
            if percent <= -100 * _OUTLIER and row is min(of, key=speed):
                outliers.append((row.device, len(mine), percent, name))
            mine.append((percent, float(place)))
    series = [
        Series(
            device,
            tuple(x for x, _ in of),
            tuple(y for _, y in of),
            marked=tuple((place, who) for who, place, _, _ in outliers if who == device),
        )
        for device, of in sorted(points.items(), key=lambda item: _number_of(item[0]))
    ]
    names = tuple(name for _, name in shared)
    line = Series("the middle GPU", (0.0, 0.0), (-0.5, len(names) - 0.5), Drawn.LINE, limit=True)
    says = "All GPUs are within 1 % of the middle one."
    if outliers:
        device, _, percent, name = min(outliers, key=lambda one: one[2])
        says = f"The furthest behind is {device}: {percent:.1f} % in {name}."
    return Chart(
        id="gpus",
        title=f"{len(points)} GPUs side by side",
        says=says,
        x=Axis("speed against the middle GPU (%)"),
        panels=(Panel(Axis("", names=names), (line, *series)),),
    )


def _alike(one: Measurement, other: Measurement) -> bool:
    return (one.kernel, one.variant, one.dtype) == (other.kernel, other.variant, other.dtype)


def _number_of(device: str) -> int:
    number = device.rpartition(":")[2]
    return int(number) if number.isascii() and number.isdecimal() else -1


# ------------------------------------------------------------------------------------ rounds


def rounds(result: BenchResult) -> Chart | None:
    """Return the time of each round against its row's median, with the median's interval."""
    rows = [row for row in result.measurements if row.median_s and len(_rounds_of(row)) > 1]
    if not rows:
        return None
    shown = sorted(rows, key=_spread, reverse=True)[:_MOST_ROUNDS]
    names = tuple(f"{row.kernel} {row.dtype.format} {row_name(row)}" for row in shown)
    x, y, low, high = [], [], [], []
    for place, row in enumerate(shown):
        median = row.median_s or 1.0
        x += [100 * (value / median - 1) for value in _rounds_of(row)]
        y += [float(place)] * len(_rounds_of(row))
        ends = row.ci95_s or (None, None)
        low.append(None if ends[0] is None else 100 * (ends[0] / median - 1))
        high.append(None if ends[1] is None else 100 * (ends[1] / median - 1))
    places = tuple(float(place) for place in range(len(shown)))
    middle = Series("median and its 95 % interval", (0.0,) * len(shown), places)
    middle = middle._replace(low=tuple(low), high=tuple(high))
    widest = max(shown, key=_spread)
    some = (
        f"The {len(shown)} rows that vary most of {len(rows)}. " if len(shown) < len(rows) else ""
    )
    processes = any(row.process_medians_s for row in shown)
    one = "process" if processes else "round"
    return Chart(
        id="rounds",
        title=f"Time of each {one}",
        says=f"{some}The widest is {widest.kernel} {row_name(widest)}: its {one}s are"
        f" {100 * _spread(widest):.1f} % apart at a median of {duration(widest.median_s or 0.0)}.",
        x=Axis("time against the row's median (%)"),
        panels=(Panel(Axis("", names=names), (Series(f"one {one}", tuple(x), tuple(y)), middle)),),
    )


def _rounds_of(row: Measurement) -> Sequence[float]:
    return row.process_medians_s or row.round_medians_s


def _spread(row: Measurement) -> float:
    found = _rounds_of(row)
    return (max(found) - min(found)) / (row.median_s or 1.0)


# --------------------------------------------------------------------------------- telemetry


def telemetry(found: Sequence[tuple[str, GpuTelemetry]]) -> Iterator[Chart]:
    """Yield clock, power and temperature of the GPUs over time, and what held the clock down."""
    kept = [(name, one, one.history) for name, one in found if one.history is not None]
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
                x, y = tuple(time for time, _ in known), tuple(value for _, value in known)
                series.append(Series(name, x, y, Drawn.LINE))
        if series:
            panels.append(Panel(Axis(label), tuple(series)))
    if not panels:
        return
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
    hottest = max((one.temperature_c.high for _, one, _ in kept if one.temperature_c), default=None)
    hot = "" if hottest is None else f" up to {hottest:.0f} °C."
    names = ", ".join(limited)
    yield Chart(
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
