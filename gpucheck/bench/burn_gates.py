"""Gates of a burn: correct bits, equal digests, survival, heat, throttling, new errors, pace."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gpucheck.bench.burn_model import BurnDevice, BurnEnd, BurnResult
from gpucheck.bench.ci.diagnosis import class_of_failure
from gpucheck.bench.ci.gate_model import Direction, Gate, GateClass, GateStatus, Severity
from gpucheck.bench.ci.gates import GATES, exit_status
from gpucheck.bench.model import GpuTelemetry
from gpucheck.bench.sdc import corruption_sentence, deviating_digests, is_corrupt
from gpucheck.bench.telemetry import LIMITED_TIME, TROUBLE, is_clock_change
from gpucheck.bench.workers import WORKER_SILENT
from gpucheck.report.envelope import Answer, Evidence, Failure, Host
from gpucheck.report.errors import ExitCode

#: Reasons that point to the cooling; the others point to the power supply.
_HEAT = frozenset({"hardware-thermal", "software-thermal", "hardware-slowdown"})
#: Counters that must not grow, and counters of errors that are corrected every day.
_FATAL_ERRORS = ("ecc_uncorrected", "remapped_rows")
_MENDED_ERRORS = ("ecc_corrected", "pcie_replays")
#: A larger loss of speed between beginning and end gives a warning.
_PACE_PERCENT = 10.0
_WORDING = GATES._replace(failed_code="burn-failed", undecided_code="burn-undecided")
_SWAP = ("Take it out of use, and repeat the burn with the card in another slot.",)
_COOL = ("Check the fans, the filters and the inlet temperature.",)


def burn_gates(result: BurnResult) -> Iterator[Gate]:
    """Yield the gates, device by device."""
    model_of = {one.device: one.name for one in result.devices if one.name and one.gpu_uuid}
    odd = deviating_digests([one.corruption for one in result.devices], model_of)
    for device in result.devices:
        yield _alive(device, result)
        yield _bits(device)
        if len(model_of) > 1 and device.device in model_of:
            yield _twins(device, result.devices, odd.get(device.device))
        if device.telemetry is not None:
            yield from _heat(device, device.telemetry)
            yield _throttling(device, device.telemetry)
            yield from _errors(device, device.telemetry)
        yield from _pace(device)


def _gate(
    device: BurnDevice,
    name: str,
    status: GateStatus,
    *,
    unit: str = "",
    measured: float | None = None,
    limit: float | None = None,
    direction: Direction = Direction.LOWER,
    reason: str | None = None,
    class_: GateClass | None = None,
    severity: Severity = Severity.ERROR,
    warning: bool = False,
    evidence: tuple[Evidence, ...] = (),
    next_: tuple[str, ...] = (),
) -> Gate:
    return Gate(
        id=f"burn.{name}",
        device=device.device,
        gpu_uuid=device.gpu_uuid,
        status=status,
        direction=direction,
        unit=unit,
        measured=measured,
        limit=limit,
        reason=reason,
        class_=class_,
        severity=severity,
        warning=warning,
        evidence=evidence,
        next=next_,
    )


def _alive(device: BurnDevice, result: BurnResult) -> Gate:
    """Return whether the device kept working until the end."""
    failure = device.failure
    if failure is None:
        return _gate(device, "alive", GateStatus.PASS)
    class_ = class_of_failure(failure)
    # If a card answered and then fell silent under load, the software is not to blame.
    if failure.code == WORKER_SILENT and device.corruption.products:
        class_ = GateClass.HARDWARE
    interrupted = result.ended_by is BurnEnd.INTERRUPTED and not device.corruption.products
    # If others interfered, for example by taking all of its memory, the device is not to blame.
    others = class_ is GateClass.ENVIRONMENT
    status = GateStatus.INCONCLUSIVE if interrupted or others else GateStatus.FAIL
    remedy = failure.remedy or ("Run: gpucheck detect",)
    evidence = (Evidence("failure", failure.code),)
    return _gate(
        device,
        "alive",
        status,
        reason=failure.message,
        class_=class_,
        evidence=evidence,
        next_=remedy,
    )


def _bits(device: BurnDevice) -> Gate:
    """Return whether all products were identical and right."""
    check = device.corruption
    sentence = corruption_sentence(check)
    figures = (float(check.mismatches), 0.0)
    if is_corrupt(check):
        evidence = (
            Evidence("mismatches", str(check.mismatches)),
            Evidence("first index", str(check.first_index)),
            Evidence("largest ULP", str(check.largest_ulp)),
            Evidence("with NaN", str(check.not_finite)),
        )
        return _gate(
            device,
            "corruption",
            GateStatus.FAIL,
            unit="numbers",
            measured=figures[0],
            limit=figures[1],
            reason=sentence,
            class_=GateClass.HARDWARE,
            evidence=evidence,
            next_=_SWAP,
        )
    if not check.products:
        return _gate(
            device,
            "corruption",
            GateStatus.INCONCLUSIVE,
            unit="numbers",
            limit=0.0,
            reason="no product was compared",
            class_=class_of_failure(device.failure) if device.failure else GateClass.SOFTWARE,
        )
    return _gate(
        device,
        "corruption",
        GateStatus.PASS,
        unit="numbers",
        measured=figures[0],
        limit=figures[1],
        reason=sentence,
    )


def _twins(device: BurnDevice, devices: Sequence[BurnDevice], odd: str | None) -> Gate:
    """Return whether the first product equals that of identical GPUs."""
    if odd is not None:
        return _gate(
            device, "digest", GateStatus.FAIL, reason=odd, class_=GateClass.HARDWARE, next_=_SWAP
        )
    if _digest_key(device) is None:
        return _gate(device, "digest", GateStatus.SKIP, reason="it has no product to compare")
    if not any(one is not device and _digest_key(one) == _digest_key(device) for one in devices):
        reason = "no identical GPU has the same product to compare"
        return _gate(device, "digest", GateStatus.SKIP, reason=reason)
    return _gate(device, "digest", GateStatus.PASS)


def _digest_key(device: BurnDevice) -> tuple[object, ...] | None:
    """Return the key under which digests are compared, or None without a digest."""
    check = device.corruption
    if check.digest is None or device.gpu_uuid is None:
        return None
    return device.name, check.dtype, check.shape


def _heat(device: BurnDevice, sensors: GpuTelemetry) -> Iterator[Gate]:
    limit, margin = device.temperature_limit_c, sensors.temperature_margin_c
    if limit is None and margin is not None:
        yield _margin(device, margin.low)
        return
    if sensors.temperature_c is None or limit is None:
        reason = sensors.unavailable.get("temperature_c", "no reading")
        yield _gate(device, "temperature", GateStatus.SKIP, unit="C", reason=reason)
        return
    high = sensors.temperature_c.high
    if high < limit:
        yield _gate(device, "temperature", GateStatus.PASS, unit="C", measured=high, limit=limit)
        return
    yield _gate(
        device,
        "temperature",
        GateStatus.FAIL,
        unit="C",
        measured=high,
        limit=limit,
        reason=f"it reached {high:.0f} C; the limit is {limit:.0f} C",
        class_=GateClass.THERMAL,
        next_=_COOL,
    )


def _margin(device: BurnDevice, low: float) -> Gate:
    """Return whether a card that reports its distance from slowing down reached that point."""
    hot = low <= 0
    return _gate(
        device,
        "temperature",
        GateStatus.FAIL if hot else GateStatus.PASS,
        unit="C",
        measured=low,
        limit=0.0,
        direction=Direction.HIGHER,
        reason="it reached the temperature at which it slows down" if hot else None,
        class_=GateClass.THERMAL if hot else None,
        next_=_COOL if hot else (),
    )


def _throttling(device: BurnDevice, sensors: GpuTelemetry) -> Gate:
    """Return whether heat or the power supply limited the clock for long; a power cap is normal.

    A hardware slowdown alone only warns, since a clock change looks the same.
    """
    if device.clock_limits is None:
        reason = sensors.unavailable.get("reasons", "it was not read under load")
        return _gate(device, "throttling", GateStatus.SKIP, unit="%", reason=reason)
    shares = {name: share for name, share in device.clock_limits.items() if name in TROUBLE}
    names = sorted(shares)
    measured, limit = 100 * max(shares.values(), default=0.0), 100 * LIMITED_TIME
    if not names:
        return _gate(
            device, "throttling", GateStatus.PASS, unit="%", measured=measured, limit=limit
        )
    harmless = is_clock_change(sensors.reasons) and names == ["hardware-slowdown"]
    hot = bool(_HEAT & set(names))
    reason = f"{', '.join(names)} limited the clock for {measured:.0f} % of the time"
    if harmless:
        reason += ", but a clock change looks the same"
    return _gate(
        device,
        "throttling",
        GateStatus.PASS if harmless else GateStatus.FAIL,
        unit="%",
        measured=measured,
        limit=limit,
        reason=reason,
        class_=None if harmless else GateClass.THERMAL if hot else GateClass.POWER_CAP,
        warning=harmless,
        evidence=tuple(
            Evidence(
                name,
                f"{share:.0%} of the time under load; {sensors.limited_s.get(name, 0.0):.1f} s in "
                "total by the driver's count",
            )
            for name, share in sorted(shares.items())
        ),
        next_=() if harmless else _COOL if hot else ("Check the power supply and its cables.",),
    )


def _errors(device: BurnDevice, sensors: GpuTelemetry) -> Iterator[Gate]:
    """Yield whether error counters grew; an uncorrected error is a defect."""
    for name in (*_FATAL_ERRORS, *_MENDED_ERRORS):
        grown = sensors.new_errors.get(name, 0)
        fatal = name in _FATAL_ERRORS
        if not grown:
            unread = sensors.unavailable.get(f"new_errors.{name}")
            if fatal and unread is not None:
                yield _gate(device, name, GateStatus.SKIP, limit=0.0, reason=unread)
            elif fatal:
                yield _gate(device, name, GateStatus.PASS, measured=0.0, limit=0.0)
            continue
        yield _gate(
            device,
            name,
            GateStatus.FAIL if fatal else GateStatus.PASS,
            measured=float(grown),
            limit=0.0 if fatal else None,
            reason=f"{name} grew by {grown}",
            class_=GateClass.HARDWARE if fatal else None,
            warning=not fatal,
            next_=_SWAP if fatal else (),
        )


def _pace(device: BurnDevice) -> Iterator[Gate]:
    """Yield the loss of speed at the end, as a warning."""
    first, last = device.first_flops_per_s, device.last_flops_per_s
    if not first or last is None:
        return
    drop = 100 * (1 - last / first)
    slower = drop > _PACE_PERCENT
    cause = GateClass.THERMAL if device.gpu_uuid else GateClass.ENVIRONMENT
    yield _gate(
        device,
        "pace",
        GateStatus.FAIL if slower else GateStatus.PASS,
        unit="%",
        measured=drop,
        limit=_PACE_PERCENT,
        reason=f"{drop:.0f} % slower at the end than at the beginning" if slower else None,
        class_=cause if slower else None,
        severity=Severity.WARN,
    )


def conclude_burn(result: BurnResult, host: Host) -> Answer:
    """Return the answer: 130 interrupted, 1 a gate failed, 3 inconclusive or nothing ran, else 0.

    If no device could begin, all for one reason, its code is used: 2 for a size that does not fit,
    4 without CuPy.
    """
    told = {one.exit_code for one in result.devices}
    if told in ({ExitCode.WRONG_USE}, {ExitCode.MISSING}):
        failure = result.devices[0].failure
        return Answer(result=result, exit_code=ExitCode(told.pop() or 0), host=host, error=failure)
    code, failure = exit_status(result.gates, _WORDING)
    if result.ended_by is BurnEnd.INTERRUPTED:
        message = f"Interrupted after {result.duration_s:.0f} of {result.asked_s:g} s."
        code = ExitCode.INTERRUPTED
        failure = failure or Failure(code="interrupted", message=message)
    return Answer(result=result, exit_code=code, host=host, error=failure)
