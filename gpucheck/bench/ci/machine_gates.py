"""Gates on the machine and on the run: what a profile demands besides its checks.

The machine must be one that the profile is for, with the hardware that it demands. The processes
must return right results, and the GPUs stay cool, unlimited and free of errors.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from operator import attrgetter
from types import MappingProxyType

from gpucheck.bench.boards import VGPU_SHARE
from gpucheck.bench.ci.diagnosis import (
    class_of_failure,
    decisive,
    diagnose,
    explain_unread,
    explained,
    leaves_open,
)
from gpucheck.bench.ci.limits import fits_name, version_key
from gpucheck.bench.ci.model import ProcessRun
from gpucheck.bench.ci.profile_model import Target
from gpucheck.bench.ci.run_data import RunData
from gpucheck.bench.model import (
    Direction,
    Gate,
    GateClass,
    GateStatus,
    GpuTelemetry,
    Measurement,
    is_wrong,
)
from gpucheck.bench.sampler import describe_deviation
from gpucheck.bench.sdc import corruption_sentence, deviating_digests
from gpucheck.bench.telemetry import is_clock_change, why_unread
from gpucheck.bench.workers import WORKER_INTERRUPTED, WORKER_NO_DOCUMENT
from gpucheck.drivers.native import gives_nvml_code
from gpucheck.inventory.model import Gpu
from gpucheck.report.envelope import Evidence, Failure
from gpucheck.report.text import count_of

_GIB = 1 << 30
_NODE = "node"
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
#: NVML_ERROR_NOT_SUPPORTED: the GPU has no such reading.
_NOT_SUPPORTED = 3


def match_gates(data: RunData) -> Iterator[Gate]:
    """Yield whether the profile is for this machine, for each key of [match] that it has."""
    match, node = data.profile.match, data.node
    if match.target is Target.CPU:
        return
    if match.pci_device_ids or match.names:
        for gpu in node.gpus:
            yield _board(data, gpu)
    if match.count is not None:
        yield _count(data, match.count)
    if match.mig is not None:
        for gpu in node.gpus:
            yield _mode("match-mig", gpu, gpu.mig.enabled, wanted=match.mig)
    if match.min_driver is not None:
        yield _driver(data, match.min_driver)


def inventory_gates(data: RunData) -> Iterator[Gate]:
    """Yield whether each GPU has what is demanded, with the PCIe link as it was under load."""
    demands = data.profile.inventory
    for gpu in data.node.gpus:
        total = gpu.memory_total_bytes
        gib = None if total is None else total / _GIB
        wanted, why = demands.memory_total_gib, _why(gpu, "memory_total_bytes")
        if wanted is not None and gpu.index in data.node.vgpus:
            yield _undecided("inventory-memory", name_of(gpu), VGPU_SHARE, "GiB", least=True)
        else:
            yield from _amount("inventory-memory", gpu, gib, wanted, "GiB", why)
        for name, is_on, mode in (
            ("inventory-ecc", gpu.ecc_mode, demands.ecc),
            ("inventory-persistence", gpu.persistence_mode, demands.persistence_mode),
        ):
            if mode is not None:
                yield _mode(name, gpu, is_on, wanted=mode)
        yield from _pcie(data, gpu)
        if demands.pcie_full:
            yield _pcie_full(data, gpu)
        links, watts = data.node.nvlink_links.get(gpu.index), gpu.power_limit_w
        yield from _amount("inventory-nvlink", gpu, links, demands.nvlink_links, "links")
        wanted, why = demands.power_limit_w, _why(gpu, "power_limit_w")
        yield from _amount("inventory-power-limit", gpu, watts, wanted, "W", why)
    if demands.identical_gpus:
        yield _identical(data)


def result_gates(data: RunData) -> Iterator[Gate]:
    """Yield whether each device's processes answered, and whether their results were correct."""
    for device in data.devices:
        runs = data.runs_of(device)
        if runs:
            yield _processes(device, runs)
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
    repeated = {item.device for item in data.corruption}
    yield from (_corruption(data, device) for device in data.devices if device in repeated)


# ---------------------------------------------------------------------------------- machine


def name_of(gpu: Gpu) -> str:
    """Return a GPU's name in gates: by CUDA's number, else by NVML's."""
    return f"nvml:{gpu.index}" if gpu.cuda_index is None else f"gpu:{gpu.cuda_index}"


def _count(data: RunData, wanted: int) -> Gate:
    count, left_out = len(data.node.gpus), data.node.left_out
    case = "match-count"
    if count + left_out == wanted and left_out:
        case = "match-count-left-out"
    elif count + left_out < wanted:
        case = "match-count-too-few"
    return _gate(
        *("match-count", _NODE, count, wanted, "GPUs"),
        least=count < wanted,
        case=case,
        said={"gpus": count_of(count), "left_out": left_out, "wanted": wanted},
    )


def _board(data: RunData, gpu: Gpu) -> Gate:
    match = data.profile.match
    known_id = data.node.pci_device_ids.get(gpu.index, "")[:4].lower()
    good = known_id in match.pci_device_ids if match.pci_device_ids and known_id else None
    if match.names and good is not False:
        good = fits_name(gpu.name or "", match.names)
    wanted = ", ".join((*match.pci_device_ids, *match.names))
    board = f"{gpu.name or 'a GPU without a name'} ({known_id or 'no PCI device id'})"
    if good is None:
        reason = f"{board} cannot be identified; the profile is for {wanted}"
        return _undecided("match-board", name_of(gpu), reason, least=True)
    said = {"found": board, "wanted": wanted}
    return _gate("match-board", name_of(gpu), good, 1, "match", least=True, said=said)


#: Of each gate on a mode: its key among unread fields.
_MODES = {
    "match-mig": "mig.enabled",
    "inventory-ecc": "ecc_mode",
    "inventory-persistence": "persistence_mode",
}


def _mode(name: str, gpu: Gpu, is_on: bool | None, *, wanted: bool) -> Gate:
    """Return whether a mode is on or off as it must be."""
    why = gpu.unavailable.get(_MODES[name])
    if is_on is None and name == "match-mig" and not wanted:
        # A board without MIG does not report the mode.
        is_on = False if why is None or gives_nvml_code(why, _NOT_SUPPORTED) else None
    if is_on is None:
        reason = explain_unread(name, _why(gpu, _MODES[name]))
        return _undecided(name, name_of(gpu), reason, least=wanted)
    words = {True: "on", False: "off"}
    said = {"found": words[is_on], "wanted": words[wanted], "flag": int(wanted)}
    return _gate(name, name_of(gpu), is_on, wanted, "on", least=wanted, said=said)


def _why(gpu: Gpu, key: str) -> str:
    """Return why a field of the inventory could not be read."""
    return gpu.unavailable.get(key, "the driver does not report it")


def _driver(data: RunData, wanted: str) -> Gate:
    version = data.node.driver_version
    if version is None:
        return _undecided("match-driver", _NODE, "the driver version is unknown", least=True)
    good, said = version_key(version) >= version_key(wanted), {"found": version, "wanted": wanted}
    return _gate("match-driver", _NODE, good, 1, "match", least=True, said=said)


def _amount(
    name: str,
    gpu: Gpu,
    amount: float | None,
    wanted: float | None,
    unit: str,
    why: str = "",
) -> Iterator[Gate]:
    """Yield whether a GPU has as much of something as is demanded, if anything is."""
    if wanted is not None:
        said = {"wanted": wanted, "index": gpu.index, "why": why}
        yield _gate(name, name_of(gpu), amount, wanted, unit, least=True, said=said)


def _pcie(data: RunData, gpu: Gpu) -> Iterator[Gate]:
    """Yield whether the link was as fast under load as is demanded."""
    demands, device = data.profile.inventory, name_of(gpu)
    for name, key, wanted, unit in (
        ("inventory-pcie-generation", "pcie_generation", demands.pcie_generation, "generation"),
        ("inventory-pcie-width", "pcie_width", demands.pcie_width, "lanes"),
    ):
        if wanted is None:
            continue
        seen = [getattr(sensor, key) for sensor in data.telemetry_of(device)]
        most = max((value for value in seen if value is not None), default=None)
        said, slot = {"why": data.why_no_telemetry(device)}, _slot(gpu)
        yield _gate(name, device, most, wanted, unit, least=True, evidence=slot, said=said)


def _slot(gpu: Gpu) -> tuple[Evidence, ...]:
    return (Evidence("slot", gpu.pci_bus_id or "unknown"),)


def _pcie_full(data: RunData, gpu: Gpu) -> Gate:
    """Return whether the link under load was the fastest that the board and the slot allow."""
    name, device, best = "inventory-pcie-full", name_of(gpu), gpu.pcie
    links = [
        (sensor.pcie_generation, sensor.pcie_width)
        for sensor in data.telemetry_of(device)
        if sensor.pcie_generation is not None and sensor.pcie_width is not None
    ]
    if not links or best.generation_max is None or best.width_max is None:
        why = data.why_no_telemetry(device) if not links else "its maximum is unknown"
        return _undecided(name, device, explain_unread(name, why), "%", least=True)
    # Each generation doubles the rate of a lane.
    generation, width = max(links, key=lambda link: link[1] * 2 ** link[0])
    reached = 100 * width * 2**generation / (best.width_max * 2**best.generation_max)
    said = {"link": f"{generation} x{width}", "best": f"{best.generation_max} x{best.width_max}"}
    evidence = _slot(gpu)
    return _gate(*(name, device, reached, 100.0, "%"), least=True, evidence=evidence, said=said)


def _identical(data: RunData) -> Gate:
    """Return whether all GPUs are of one kind: board, memory, power limit and ECC."""
    name = "inventory-identical"
    kind = attrgetter("name", "memory_total_bytes", "power_limit_w", "ecc_mode")
    kind_of = {name_of(gpu): kind(gpu) for gpu in data.node.gpus}
    kinds = Counter(kind_of.values())
    if not kinds:
        return _undecided(name, _NODE, "no GPU answers", "kinds")
    usual = kinds.most_common(1)[0][0]
    odd = ", ".join(device for device, kind in kind_of.items() if kind != usual)
    return _gate(name, _NODE, len(kinds), 1.0, "kinds", said={"odd": odd})


# ---------------------------------------------------------------------------------- results


def _processes(device: str, runs: Sequence[ProcessRun]) -> Gate:
    """Return whether every process returned a document, and none lost its GPU."""
    failures = [failure for run in runs if (failure := _fatal(run)) is not None]
    if not failures:
        return _gate("processes", device, 0, 0, "failed")
    first = decisive(failures)
    counts = Counter(failure.code for failure in failures)
    gate = _gate(
        *("processes", device, len(failures), 0, "failed"),
        class_=class_of_failure(first),
        evidence=tuple(
            Evidence(code, f"{count} of {count_of(len(runs), 'process')}")
            for code, count in counts.items()
        ),
        said={"reason": first.message},
    )
    # What was interrupted is no fault to look for.
    if first.remedy or first.code == WORKER_INTERRUPTED:
        gate = replace(gate, next=first.remedy)
    return replace(gate, status=GateStatus.INCONCLUSIVE) if leaves_open(first) else gate


def _fatal(run: ProcessRun) -> Failure | None:
    """Return why a process returned nothing, or that it lost its GPU."""
    if run.result is None:
        return run.failure or Failure(code=WORKER_NO_DOCUMENT, message="it returned no document")
    errors = [row.error for row in run.rows if row.error is not None]
    return next((error for error in errors if error.code == "gpu-lost"), None)


def _results(data: RunData, device: str, runs: Sequence[ProcessRun]) -> Iterator[Gate]:
    rows = [
        row for run in runs for row in run.rows if row.device == device and row.verified is not None
    ]
    if not rows:
        yield _unchecked(device, runs)
        return
    wrong = [row for row in rows if is_wrong(row.verified)]
    broken = [row for row in wrong if row.verified is not None and row.verified.error is None]
    other = [row for row in wrong if row not in broken]
    yield _wrong(device, "results", other, len(rows), most=0)
    most = data.profile.stability.not_finite
    if most is not None:
        yield _wrong(device, "not-finite", broken, len(rows), most=most)


def _unchecked(device: str, runs: Sequence[ProcessRun]) -> Gate:
    """Return the gate of a device without checked results, with the rows' reason."""
    reason = "no result was checked"
    errors = [row.error for run in runs for row in run.rows if row.error is not None]
    if not errors:
        return _undecided("results", device, reason, "wrong")
    first = decisive(errors)
    return _undecided(
        *("results", device, f"{reason}: {first.message}", "wrong"),
        class_=class_of_failure(first),
        steps=first.remedy,
    )


def _wrong(device: str, name: str, wrong: Sequence[Measurement], count: int, *, most: int) -> Gate:
    if not wrong:
        return _gate(name, device, 0, most, "wrong")
    said: dict[str, object] = {"row": _row_text(wrong[0]), "count": count}
    if (verified := wrong[0].verified) is not None and verified.error is not None:
        said["off_by"] = describe_deviation(verified)
    # If gpucheck's own rows are right, the device computes right, and the framework does not.
    its_own = all(row.framework is not None for row in wrong)
    return _gate(
        *(name, device, len(wrong), most, "wrong"),
        case=f"{name}-of-framework" if its_own else name,
        evidence=tuple(
            Evidence(_row_text(row), row.error.message if row.error else "wrong")
            for row in wrong[:5]
        ),
        said=said,
    )


def _row_text(row: Measurement) -> str:
    return f"{row.kernel} {row.framework.text if row.framework is not None else row.variant}"


# ---------------------------------------------------------------------------------- sensors


def _throttling(data: RunData, device: str) -> Iterator[Gate]:
    """Yield the seconds of the worst process for each reason that the profile names."""
    telemetry = data.telemetry_of(device)
    for reason, most_s in data.profile.stability.throttle_s.items():
        name = f"throttle-{reason}"
        if not telemetry:
            yield _undecided(name, device, data.why_no_telemetry(device), "s")
            continue
        class_ = _OF_REASON.get(reason, GateClass.HARDWARE)
        seconds = max(_limited_s(gpu, reason) for gpu in telemetry)
        gate = _gate(
            *(name, device, seconds, most_s, "s"),
            case="throttle",
            class_=class_,
            evidence=tuple(_heat_and_power(telemetry)),
            said={"reason": reason},
        )
        yield _if_read(gate, [why_unread(gpu, reason) for gpu in telemetry])


def _if_read(gate: Gate, unread: Sequence[str | None]) -> Gate:
    """Return a gate that passes only by what was read; what the GPU does not have is skipped."""
    reason = next((why for why in unread if why is not None), None)
    if reason is None or gate.status is not GateStatus.PASS:
        return gate
    if gives_nvml_code(reason, _NOT_SUPPORTED):
        return replace(gate, status=GateStatus.SKIP, measured=None, reason=reason)
    return replace(
        gate,
        status=GateStatus.INCONCLUSIVE,
        measured=None,
        reason=f"it was not read: {reason}",
        class_=GateClass.SOFTWARE,
        next=("see what the driver says: gpucheck detect",),
    )


def _limited_s(gpu: GpuTelemetry, reason: str) -> float:
    """Return the seconds that the driver counted, or those of the readings that showed it.

    A hardware slowdown that stands alone is what a change of clocks looks like, and counts nothing.
    """
    if reason == "hardware-slowdown" and is_clock_change(gpu.reasons):
        return 0.0
    seen_s = gpu.reasons.get(reason, 0.0) * gpu.reading_count * gpu.period_s
    return max(gpu.limited_s.get(reason, 0.0), seen_s)


def _heat_and_power(telemetry: Sequence[GpuTelemetry]) -> Iterator[Evidence]:
    hottest = max((gpu.temperature_c.high for gpu in telemetry if gpu.temperature_c), default=None)
    if hottest is not None:
        yield Evidence("temperature", f"{hottest:.0f} °C at most")
    drawn = max((gpu.power_w.high for gpu in telemetry if gpu.power_w), default=None)
    limit = next((gpu.power_limit_w for gpu in telemetry if gpu.power_limit_w), None)
    if drawn is not None:
        of = f" of {limit:.0f} W" if limit is not None else ""
        yield Evidence("power", f"{drawn:.0f} W at most{of}")


def _sensors(data: RunData, device: str) -> Iterator[Gate]:
    demands, telemetry = data.profile.stability, data.telemetry_of(device)
    heat = [item.temperature_c.high for item in telemetry if item.temperature_c is not None]
    clocks = [item.clock_sm_mhz for item in telemetry if item.clock_sm_mhz is not None]
    drops = [100 * (1 - item.median / item.high) for item in clocks if item.high > 0]
    for name, limit, values, unit, class_ in (
        ("temperature", demands.max_temperature_c, heat, "C", GateClass.THERMAL),
        ("clock-drop", demands.max_clock_drop_percent, drops, "%", _class_of_drop(telemetry)),
    ):
        if limit is not None:
            yield _gate(
                *(name, device, max(values, default=None), limit, unit),
                class_=class_,
                evidence=tuple(_heat_and_power(telemetry)),
                said={"why": data.why_no_telemetry(device)},
            )


def _class_of_drop(telemetry: Sequence[GpuTelemetry]) -> GateClass:
    """Return the class of the reason that held the clock down most of the time."""
    shares: Counter[str] = Counter()
    for gpu in telemetry:
        shares.update({name: share for name, share in gpu.reasons.items() if name in _OF_REASON})
    return _OF_REASON[max(shares, key=shares.__getitem__)] if shares else GateClass.HARDWARE


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
            yield _undecided(name, device, data.why_no_telemetry(device), "errors")
            continue
        said = {"counter": counter.replace("_", " ")}
        gate = _gate(name, device, grown[counter], most, "errors", said=said)
        key = f"new_errors.{counter}"
        yield _if_read(gate, [gpu.unavailable.get(key) for gpu in telemetry])


# ---------------------------------------------------------------------------------- corruption


def _corruption(data: RunData, device: str) -> Gate:
    """Return whether repeated products were the same bits, here and on identical GPUs."""
    own = [check for check in data.corruption if check.device == device]
    compared = [check for check in own if check.products]
    # The first product is checked against float64 even if nothing was repeated after it.
    wrong = [check for check in own if check.is_corrupt]
    odd = deviating_digests(data.corruption, _boards(data)).get(device)
    if not wrong and odd is None and all(check.failure is not None for check in compared):
        none = Failure(code=WORKER_NO_DOCUMENT, message="no process compared any products")
        why = next((check.failure for check in own if check.failure is not None), none)
        return _undecided(
            *("corruption", device, why.message, "wrong numbers"),
            class_=class_of_failure(why),
            steps=why.remedy,
        )
    count = sum(check.mismatches + (check.reference_ok is False) for check in wrong) + (
        odd is not None
    )
    most = data.profile.stability.corruption or 0
    return _gate(
        *("corruption", device, count, most, "wrong numbers"),
        evidence=tuple(
            Evidence(
                f"{check.dtype} {'x'.join(map(str, check.shape))}", f"{check.products} products"
            )
            for check in (wrong or compared)[:5]
        ),
        said={"reason": corruption_sentence(wrong[0]) if wrong else odd},
    )


def _boards(data: RunData) -> dict[str, str]:
    """Return which devices are identical: the same board with as many SMs."""
    return {
        run.device: f"{gpu.name}/{gpu.sm_count}"
        for run in data.runs
        if run.result is not None
        for gpu in run.result.environment.gpus
    }


# ---------------------------------------------------------------------------------- verdicts


def _gate(
    name: str,
    device: str,
    measured: float | None,
    limit: float,
    unit: str,
    *,
    least: bool = False,
    case: str = "",
    class_: GateClass | None = None,
    evidence: tuple[Evidence, ...] = (),
    said: Mapping[str, object] = MappingProxyType({}),
) -> Gate:
    """Return the gate of a number that may not be above its limit; with `least`, not below it.

    A gate that fails has the texts of its name, or of `case`, with what is `said`.
    """
    if measured is None:
        return _undecided(name, device, explain_unread(name, said.get("why")), unit, least=least)
    good = measured >= limit if least else measured <= limit
    gate = Gate(
        id=name,
        device=device,
        status=GateStatus.PASS,
        direction=Direction.HIGHER if least else Direction.LOWER,
        unit=unit,
        measured=float(measured),
        limit=float(limit),
    )
    return gate if good else explained(gate, diagnose(case or name, said, evidence, class_))


def _undecided(
    name: str,
    device: str,
    reason: str,
    unit: str = "",
    *,
    least: bool = False,
    class_: GateClass = GateClass.SOFTWARE,
    steps: tuple[str, ...] = (),
) -> Gate:
    """Return the gate of a demand for which nothing was read: never a pass."""
    return Gate(
        id=name,
        device=device,
        status=GateStatus.INCONCLUSIVE,
        direction=Direction.HIGHER if least else Direction.LOWER,
        unit=unit,
        reason=reason,
        class_=class_,
        next=steps or ("gpucheck detect",),
    )
