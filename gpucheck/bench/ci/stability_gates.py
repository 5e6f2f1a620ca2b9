"""Gates on the run: processes, results, heat, power, errors and corrupted bits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

from gpucheck.bench.ci.diagnosis import Diagnosis, at_most, class_of_failure, leaves_open, undecided
from gpucheck.bench.ci.model import ProcessRun
from gpucheck.bench.ci.profile_model import Target
from gpucheck.bench.ci.run_data import RunData
from gpucheck.bench.model import Gate, GateClass, GateStatus, GpuTelemetry, Measurement
from gpucheck.bench.sampler import off_by
from gpucheck.bench.sdc import corruption_sentence, deviating_digests, is_corrupt
from gpucheck.bench.telemetry import is_clock_change, why_unread
from gpucheck.bench.workers import WORKER_NO_DOCUMENT
from gpucheck.report.envelope import Evidence, Failure

#: Where to look for each of the driver's throttle reasons.
_OF_REASON = {
    "software-thermal": GateClass.THERMAL,
    "hardware-thermal": GateClass.THERMAL,
    "hardware-slowdown": GateClass.THERMAL,
    "power-cap": GateClass.POWER_CAP,
    "power-brake": GateClass.POWER_CAP,
    "board-limit": GateClass.POWER_CAP,
    "application-clocks": GateClass.CONFIG,
    "sync-boost": GateClass.CONFIG,
    "display": GateClass.CONFIG,
    "reliability": GateClass.HARDWARE,
}
_COOL = "check this card's fans, its airflow and the cards next to it"
_STEPS = {
    GateClass.THERMAL: (_COOL, "gpucheck detect --only health"),
    GateClass.POWER_CAP: ("check the power supply and its cables", "nvidia-smi -q -d POWER"),
    GateClass.CONFIG: ("see the clock settings: nvidia-smi -q -d CLOCK",),
    GateClass.HARDWARE: ("gpucheck detect", "take the card out of service and report it"),
}
#: How a reading's reason ends if the GPU does not support it (NVML_ERROR_NOT_SUPPORTED).
_NOT_SUPPORTED = "(NVML 3)"
_SWAP = ("take the card out of service", "repeat the run with the same seed to be sure")


def result_gates(data: RunData) -> Iterator[Gate]:
    """Yield whether each device's processes answered, and whether their results were correct."""
    for device in data.devices:
        runs = data.runs_of(device)
        if runs:
            yield _processes(data, device, runs)
            yield from _results(data, device, runs)


def stability_gates(data: RunData) -> Iterator[Gate]:
    """Yield how steady each GPU was, for each demand of the profile."""
    if data.profile.match.target is Target.CPU:
        return
    for device in data.devices:
        if not data.runs_of(device):
            continue
        yield from _throttling(data, device)
        yield from _sensors(data, device)
        yield from _new_errors(data, device)
        if data.profile.stability.corruption is not None:
            yield _corruption(data, device)


def corruption_gates(data: RunData) -> Iterator[Gate]:
    """Yield whether repeated products had the same bits, for each device that repeated any."""
    repeated = {one.device for one in data.corruption}
    yield from (_corruption(data, device) for device in data.devices if device in repeated)


# ---------------------------------------------------------------------------------- results


def _processes(data: RunData, device: str, runs: Sequence[ProcessRun]) -> Gate:
    """Return whether every process returned a document, and none lost its GPU."""
    failures = [failure for run in runs if (failure := _fatal(run)) is not None]
    first = failures[0] if failures else Failure(code="", message="")
    counts = Counter(failure.code for failure in failures)
    bad = Diagnosis(
        class_=class_of_failure(first),
        sentence=first.message,
        evidence=tuple(
            Evidence(code, f"{count} of {len(runs)} processes") for code, count in counts.items()
        ),
        next=first.remedy or ("gpucheck detect",),
    )
    gate = at_most(data, "processes", device, len(failures), 0, "failed", bad)
    if failures and leaves_open(first):
        return replace(gate, status=GateStatus.INCONCLUSIVE)
    return gate


def _fatal(run: ProcessRun) -> Failure | None:
    """Return why a process returned nothing, or that it lost its GPU."""
    if run.result is None:
        return run.failure or Failure(code=WORKER_NO_DOCUMENT, message="it returned no document")
    errors = [row.error for row in run.result.measurements if row.error is not None]
    return next((error for error in errors if error.code == "gpu-lost"), None)


def _results(data: RunData, device: str, runs: Sequence[ProcessRun]) -> Iterator[Gate]:
    rows = [
        row
        for run in runs
        if run.result is not None
        for row in run.result.measurements
        if row.device == device and row.verified is not None
    ]
    if not rows:
        yield _unchecked(data, device, runs)
        return
    wrong = [row for row in rows if row.verified is not None and not row.verified.ok]
    broken = [row for row in wrong if row.verified is not None and row.verified.error is None]
    yield _wrong(data, device, "results", [row for row in wrong if row not in broken], len(rows))
    if data.profile.stability.not_finite is not None:
        yield _wrong(data, device, "not-finite", broken, len(rows))


def _unchecked(data: RunData, device: str, runs: Sequence[ProcessRun]) -> Gate:
    """Return the gate of a device without checked results, with the rows' reason."""
    reason = "no result was checked"
    results = [run.result for run in runs if run.result is not None]
    errors = [row.error for one in results for row in one.measurements if row.error is not None]
    if not errors:
        return undecided(data, "results", device, reason, "wrong")
    first = errors[0]
    return undecided(
        *(data, "results", device, f"{reason}: {first.message}", "wrong"),
        class_=class_of_failure(first),
        steps=first.remedy,
    )


def _wrong(data: RunData, device: str, name: str, wrong: Sequence[Measurement], count: int) -> Gate:
    bad = Diagnosis(
        class_=GateClass.HARDWARE,
        sentence=_first_wrong(wrong[0], count) if wrong else "",
        evidence=tuple(
            Evidence(f"{row.kernel} {row.variant}", row.error.message if row.error else "wrong")
            for row in wrong[:5]
        ),
        next=_SWAP,
    )
    return at_most(data, name, device, len(wrong), 0, "wrong", bad)


def _first_wrong(row: Measurement, count: int) -> str:
    what = f"{row.kernel} {row.variant}"
    if row.verified is None or row.verified.error is None:
        return f"{what} gave NaN or infinity ({count} results were checked)"
    return f"{what}: {off_by(row.verified)} ({count} results were checked)"


# ---------------------------------------------------------------------------------- sensors


def _throttling(data: RunData, device: str) -> Iterator[Gate]:
    """Yield the seconds of the worst process for each reason that the profile names."""
    telemetry = data.telemetry_of(device)
    for reason, most_s in data.profile.stability.throttle_s.items():
        name = f"throttle-{reason}"
        if not telemetry:
            yield undecided(data, name, device, data.why_no_telemetry(device), "s")
            continue
        class_ = _OF_REASON.get(reason, GateClass.HARDWARE)
        seconds = max(_limited_s(gpu, reason) for gpu in telemetry)
        bad = _hot(telemetry, class_, f"the driver held the clock down: {reason}")
        gate = at_most(data, name, device, seconds, most_s, "s", bad)
        yield _if_read(gate, [why_unread(gpu, reason) for gpu in telemetry])


def _if_read(gate: Gate, unread: Sequence[str | None]) -> Gate:
    """Return a gate that passes only by what was read; what the GPU does not have is skipped."""
    reason = next((one for one in unread if one is not None), None)
    if reason is None or gate.status is not GateStatus.PASS:
        return gate
    if _NOT_SUPPORTED in reason:
        return replace(gate, status=GateStatus.SKIP, measured=None, reason=reason)
    return replace(
        gate,
        status=GateStatus.INCONCLUSIVE,
        measured=None,
        reason=f"it was not read: {reason}",
        class_=GateClass.SOFTWARE,
        next=("gpucheck detect",),
    )


def _hot(telemetry: Sequence[GpuTelemetry], class_: GateClass, reason: str) -> Diagnosis:
    evidence = tuple(_heat_and_power(telemetry))
    return Diagnosis(class_=class_, sentence=reason, evidence=evidence, next=_STEPS[class_])


def _limited_s(gpu: GpuTelemetry, reason: str) -> float:
    """Return the seconds that the driver counted, or those of the readings that showed it.

    A hardware slowdown that stands alone is what a change of clocks looks like, and counts nothing.
    """
    if reason == "hardware-slowdown" and is_clock_change(gpu.reasons):
        return 0.0
    seen_s = gpu.reasons.get(reason, 0.0) * gpu.reading_count * gpu.period_s
    return max(gpu.limited_s.get(reason, 0.0), seen_s)


def _heat_and_power(telemetry: Sequence[GpuTelemetry]) -> Iterator[Evidence]:
    hottest = max((one.temperature_c.high for one in telemetry if one.temperature_c), default=None)
    if hottest is not None:
        yield Evidence("temperature", f"{hottest:.0f} C at most")
    drawn = max((one.power_w.high for one in telemetry if one.power_w), default=None)
    limit = next((one.power_limit_w for one in telemetry if one.power_limit_w), None)
    if drawn is not None:
        of = f" of {limit:.0f} W" if limit is not None else ""
        yield Evidence("power", f"{drawn:.0f} W at most{of}")


def _sensors(data: RunData, device: str) -> Iterator[Gate]:
    demands, telemetry = data.profile.stability, data.telemetry_of(device)
    heat = [one.temperature_c.high for one in telemetry if one.temperature_c is not None]
    clocks = [one.clock_sm_mhz for one in telemetry if one.clock_sm_mhz is not None]
    drops = [100 * (1 - one.median / one.high) for one in clocks if one.high > 0]
    hot = _hot(telemetry, GateClass.THERMAL, "it got hotter than allowed")
    below = "under load, its clock fell too far below the highest reading"
    slow = _hot(telemetry, _class_of_drop(telemetry), below)
    for name, limit, values, unit, bad in (
        ("temperature", demands.max_temperature_c, heat, "C", hot),
        ("clock-drop", demands.max_clock_drop_percent, drops, "%", slow),
    ):
        if limit is None:
            continue
        if values:
            yield at_most(data, name, device, max(values), limit, unit, bad)
        else:
            yield undecided(data, name, device, data.why_no_telemetry(device), unit)


def _class_of_drop(telemetry: Sequence[GpuTelemetry]) -> GateClass:
    """Return what the driver said held the clock down most of the time."""
    shares: Counter[str] = Counter()
    for gpu in telemetry:
        shares.update({name: share for name, share in gpu.reasons.items() if name in _OF_REASON})
    return _OF_REASON[shares.most_common(1)[0][0]] if shares else GateClass.HARDWARE


def _new_errors(data: RunData, device: str) -> Iterator[Gate]:
    demands, telemetry = data.profile.stability, data.telemetry_of(device)
    grown: Counter[str] = Counter()
    for gpu in telemetry:
        grown.update(gpu.new_errors)
    for name, counter, most in (
        ("new-ecc-uncorrected", "ecc_uncorrected", demands.new_ecc_uncorrected),
        ("new-ecc-corrected", "ecc_corrected", demands.new_ecc_corrected),
        ("new-remapped-rows", "remapped_rows", demands.new_remapped_rows),
        ("new-pcie-replays", "pcie_replays", demands.new_pcie_replays),
    ):
        if most is None:
            continue
        if not telemetry:
            yield undecided(data, name, device, data.why_no_telemetry(device), "errors")
            continue
        bad = Diagnosis(
            class_=GateClass.HARDWARE,
            sentence=f"the counter {counter.replace('_', ' ')} grew during the run",
            next=("gpucheck detect --only health", "dmesg | grep -i xid"),
        )
        gate = at_most(data, name, device, grown[counter], most, "errors", bad)
        key = f"new_errors.{counter}"
        yield _if_read(gate, [gpu.unavailable.get(key) for gpu in telemetry])


# ---------------------------------------------------------------------------------- corruption


def _corruption(data: RunData, device: str) -> Gate:
    """Return whether repeated products were the same bits, here and on identical GPUs."""
    own = [one for one in data.corruption if one.device == device]
    compared = [one for one in own if one.products]
    # The first product is checked against float64 even if nothing was repeated after it.
    wrong = [one for one in own if is_corrupt(one)]
    odd = deviating_digests(data.corruption, _boards(data)).get(device)
    if not wrong and odd is None and all(one.failure is not None for one in compared):
        none = Failure(code=WORKER_NO_DOCUMENT, message="no process compared any products")
        why = next((one.failure for one in own if one.failure is not None), none)
        return undecided(
            *(data, "corruption", device, why.message, "wrong numbers"),
            class_=class_of_failure(why),
            steps=why.remedy,
        )
    count = sum(one.mismatches + (one.reference_ok is False) for one in wrong) + (odd is not None)
    bad = Diagnosis(
        class_=GateClass.HARDWARE,
        sentence=corruption_sentence(wrong[0]) if wrong else odd or "",
        evidence=tuple(
            Evidence(f"{one.dtype} {'x'.join(map(str, one.shape))}", f"{one.products} products")
            for one in (wrong or compared)[:5]
        ),
        next=_SWAP,
    )
    most = data.profile.stability.corruption or 0
    return at_most(data, "corruption", device, count, most, "wrong numbers", bad)


def _boards(data: RunData) -> dict[str, str]:
    """Return which devices are identical: the same board with as many SMs."""
    return {
        run.device: f"{gpu.name}/{gpu.sm_count}"
        for run in data.runs
        if run.result is not None
        for gpu in run.result.environment.gpus
    }
