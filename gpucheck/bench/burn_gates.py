"""Gates of a burn: correct bits, equal digests, survival, heat, throttling, new errors, pace."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from gpucheck.bench.ci.diagnosis import Diagnosis, class_of_failure, diagnose, explained
from gpucheck.bench.ci.verdicts import GATES, exit_status, spoken
from gpucheck.bench.model import (
    BurnDevice,
    BurnEnd,
    BurnResult,
    Direction,
    Gate,
    GateClass,
    GateStatus,
    GpuTelemetry,
    Severity,
)
from gpucheck.bench.sdc import corruption_sentence, deviating_digests
from gpucheck.bench.telemetry import HEAT, LIMITED_TIME, TROUBLE, is_clock_change
from gpucheck.bench.workers import WORKER_SILENT
from gpucheck.report.envelope import Answer, Evidence, Failure
from gpucheck.report.errors import ExitCode
from gpucheck.report.host import Host
from gpucheck.report.text import count_of

#: Counters that must not grow, and counters of errors that are corrected every day.
_FATAL_ERRORS = ("ecc_uncorrected", "remapped_rows")
_CORRECTED_ERRORS = ("ecc_corrected", "pcie_replays")
#: A larger loss of speed between beginning and end gives a warning.
_PACE_PERCENT = 10.0
#: Fewer products are no load; a burn does thousands.
_FEWEST_PRODUCTS = 100
_WORDING = {
    GateStatus.FAIL: ("burn-failed", *GATES[GateStatus.FAIL][1:]),
    GateStatus.INCONCLUSIVE: ("burn-undecided", *GATES[GateStatus.INCONCLUSIVE][1:]),
}


def burn_gates(result: BurnResult) -> Iterator[Gate]:
    """Yield the gates, device by device."""
    model_of = {item.device: item.name for item in result.devices if item.name and item.gpu_uuid}
    odd = deviating_digests([item.corruption for item in result.devices], model_of)
    for device in result.devices:
        yield _alive(device, result)
        yield _corruption(device, result)
        if len(model_of) > 1 and device.device in model_of:
            yield _digest(device, result.devices, odd.get(device.device))
        if device.telemetry is not None:
            yield _temperature(device, device.telemetry)
            yield _memory_temperature(device, device.telemetry)
            yield _throttling(device, device.telemetry)
            yield from _errors(device, device.telemetry)
        yield from _pace(device)


def _gate(
    device: BurnDevice,
    name: str,
    unit: str = "",
    measured: float | None = None,
    limit: float | None = None,
    *,
    bad: Diagnosis | None = None,
    direction: Direction = Direction.LOWER,
) -> Gate:
    """Return a gate that passes unless it has a diagnosis."""
    gate = Gate(
        id=f"burn.{name}",
        device=device.device,
        gpu_uuid=device.gpu_uuid,
        status=GateStatus.PASS,
        direction=direction,
        unit=unit,
        measured=measured,
        limit=limit,
    )
    return gate if bad is None else explained(gate, bad)


def _skipped(gate: Gate, reason: str) -> Gate:
    """Return a gate for which nothing was read or compared: no pass."""
    return replace(gate, status=GateStatus.SKIP, reason=reason)


def _alive(device: BurnDevice, result: BurnResult) -> Gate:
    """Return whether the device kept working until the end."""
    failure = device.failure
    if failure is None:
        return _gate(device, "alive")
    class_ = class_of_failure(failure)
    # If a card answered and then fell silent under load, the software is not to blame.
    if failure.code == WORKER_SILENT and device.corruption.products:
        class_ = GateClass.HARDWARE
    bad = Diagnosis(
        class_=class_,
        sentence=failure.message,
        evidence=(Evidence("failure", failure.code),),
        next=failure.remedy or ("Run: gpucheck detect",),
    )
    interrupted = result.ended_by is BurnEnd.INTERRUPTED and not device.corruption.products
    # If others interfered, for example by taking all of its memory, the device is not to blame.
    if interrupted or class_ is GateClass.ENVIRONMENT:
        bad = replace(bad, status=GateStatus.INCONCLUSIVE)
    return _gate(device, "alive", bad=bad)


def _corruption(device: BurnDevice, result: BurnResult) -> Gate:
    """Return whether all products were identical and right; undecided if they were no load."""
    check = device.corruption
    if check.is_corrupt:
        evidence = (
            Evidence("mismatches", str(check.mismatches)),
            Evidence("first index", str(check.first_index)),
            Evidence("largest ULP", str(check.largest_ulp)),
            Evidence("with NaN", str(check.not_finite)),
        )
        bad = diagnose("burn-defect", {"reason": corruption_sentence(check)}, evidence)
        return _gate(device, "corruption", "numbers", float(check.mismatches), 0.0, bad=bad)
    measured = float(check.mismatches) if check.products else None
    if check.products >= _FEWEST_PRODUCTS:
        gate = _gate(device, "corruption", "numbers", measured, 0.0)
        return replace(gate, reason=corruption_sentence(check))
    few = count_of(check.products, "product") if check.products else "no product"
    class_ = GateClass.CONFIG if check.products else GateClass.SOFTWARE
    longer = result.ended_by is BurnEnd.TIME and device.failure is None
    bad = Diagnosis(
        class_=class_of_failure(device.failure) if device.failure else class_,
        sentence=f"{few} compared; fewer than {_FEWEST_PRODUCTS} are no burn",
        next=("Burn for longer, or with a smaller --size.",) if longer else (),
        status=GateStatus.INCONCLUSIVE,
    )
    return _gate(device, "corruption", "numbers", measured, 0.0, bad=bad)


def _digest(device: BurnDevice, devices: Sequence[BurnDevice], odd: str | None) -> Gate:
    """Return whether the first product equals that of identical GPUs."""
    if odd is not None:
        return _gate(device, "digest", bad=diagnose("burn-defect", {"reason": odd}))
    gate = _gate(device, "digest")
    if _digest_key(device) is None:
        return _skipped(gate, "it has no product to compare")
    if not any(
        other is not device and _digest_key(other) == _digest_key(device) for other in devices
    ):
        return _skipped(gate, "no identical GPU has the same product to compare")
    return gate


def _digest_key(device: BurnDevice) -> tuple[object, ...] | None:
    """Return the key under which digests are compared, or None without a digest."""
    check = device.corruption
    if check.digest is None or device.gpu_uuid is None:
        return None
    return device.name, check.dtype, check.shape


def _temperature(device: BurnDevice, sensors: GpuTelemetry) -> Gate:
    """Return whether the device stayed below its limit, or above its margin if that decides."""
    limit, margin = device.temperature_limit_c, sensors.temperature_margin_c
    if limit is None and margin is not None:
        bad = diagnose("burn-slows-down") if margin.low <= 0 else None
        up = Direction.HIGHER
        return _gate(device, "temperature", "C", margin.low, 0.0, bad=bad, direction=up)
    if sensors.temperature_c is None or limit is None:
        reason = sensors.unavailable.get("temperature_c", "no reading")
        return _skipped(_gate(device, "temperature", "C"), reason)
    high = sensors.temperature_c.high
    bad = diagnose("burn-hot", {"high": high, "limit": limit}) if high >= limit else None
    return _gate(device, "temperature", "C", high, limit, bad=bad)


def _memory_temperature(device: BurnDevice, sensors: GpuTelemetry) -> Gate:
    """Return whether the memory stayed below the card's limit for it."""
    high, limit = sensors.temperature_memory_c, sensors.temperature_memory_max_c
    if high is None or limit is None:
        unread = "temperature_memory_c" if high is None else "temperature_memory_max_c"
        reason = sensors.unavailable.get(unread, "no reading")
        return _skipped(_gate(device, "memory_temperature", "C"), reason)
    bad = diagnose("burn-memory-hot", {"high": high, "limit": limit}) if high >= limit else None
    return _gate(device, "memory_temperature", "C", high, limit, bad=bad)


def _throttling(device: BurnDevice, sensors: GpuTelemetry) -> Gate:
    """Return whether heat or the power supply limited the clock for long; a power cap is normal.

    A hardware slowdown alone only warns, since a clock change looks the same.
    """
    if device.clock_limits is None:
        reason = sensors.unavailable.get("reasons", "it was not read under load")
        return _skipped(_gate(device, "throttling", "%"), reason)
    shares = {name: share for name, share in device.clock_limits.items() if name in TROUBLE}
    names = sorted(shares)
    percent, limit = 100 * max(shares.values(), default=0.0), 100 * LIMITED_TIME
    gate = _gate(device, "throttling", "%", percent, limit)
    if not names:
        return gate
    reason = f"{', '.join(names)} limited the clock for {percent:.0f} % of the time"
    evidence = tuple(
        Evidence(
            name,
            f"{shares[name]:.0%} of the time under load; {sensors.limited_s.get(name, 0.0):.1f} s "
            "in total by the driver's count",
        )
        for name in names
    )
    if is_clock_change(sensors.reasons) and names == ["hardware-slowdown"]:
        reason += ", but a clock change looks the same"
        return replace(gate, warning=True, reason=reason, evidence=evidence)
    case = "burn-throttled-by-heat" if HEAT & set(names) else "burn-throttled"
    bad = diagnose(case, {"reason": reason}, evidence)
    return _gate(device, "throttling", "%", percent, limit, bad=bad)


def _errors(device: BurnDevice, sensors: GpuTelemetry) -> Iterator[Gate]:
    """Yield whether error counters grew; an uncorrected error is a defect."""
    for name in _FATAL_ERRORS:
        grown = sensors.new_errors.get(name, 0)
        unread = sensors.unavailable.get(f"new_errors.{name}")
        if grown:
            bad = diagnose("burn-defect", {"reason": f"{spoken(name)} grew by {grown}"})
            yield _gate(device, name, "", float(grown), 0.0, bad=bad)
        elif unread is not None:
            yield _skipped(_gate(device, name, "", None, 0.0), unread)
        else:
            yield _gate(device, name, "", 0.0, 0.0)
    for name in _CORRECTED_ERRORS:
        if grown := sensors.new_errors.get(name, 0):
            gate = _gate(device, name, "", float(grown))
            yield replace(gate, warning=True, reason=f"{spoken(name)} grew by {grown}")


def _pace(device: BurnDevice) -> Iterator[Gate]:
    """Yield the loss of speed at the end, as a warning."""
    first, last = device.first_flops_per_s, device.last_flops_per_s
    if not first or last is None:
        return
    percent, bad = 100 * (1 - last / first), None
    if percent > _PACE_PERCENT:
        bad = Diagnosis(
            class_=GateClass.THERMAL if device.gpu_uuid else GateClass.ENVIRONMENT,
            sentence=f"{percent:.0f} % slower at the end than at the beginning",
        )
    gate = _gate(device, "pace", "%", percent, _PACE_PERCENT, bad=bad)
    yield replace(gate, severity=Severity.WARN)


def conclude_burn(result: BurnResult, host: Host) -> Answer:
    """Return the answer: 130 interrupted, 1 a gate failed, 3 inconclusive or nothing ran, else 0.

    If no device could begin, all for one reason, its code is used: 2 for a size that does not fit,
    4 without CuPy.
    """
    exit_codes = {device.exit_code for device in result.devices}
    for code in (ExitCode.WRONG_USE, ExitCode.MISSING):
        if exit_codes == {code}:
            failure = next(device.failure for device in result.devices)
            return Answer(result=result, exit_code=code, host=host, error=failure)
    code, failure = exit_status(result.gates, _WORDING)
    if result.ended_by is BurnEnd.INTERRUPTED:
        message = f"Interrupted after {result.duration_s:.0f} of {result.asked_s:g} s."
        code = ExitCode.INTERRUPTED
        failure = failure or Failure(code="interrupted", message=message)
    return Answer(result=result, exit_code=code, host=host, error=failure)
