"""Gates on the machine and on the run: what a profile demands besides its checks.

The machine must be one that the profile is for, with the hardware that it demands. The processes
must return right results, and the GPUs stay cool, unlimited and free of errors.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

from gpucheck.bench.ci.diagnosis import (
    Diagnosis,
    class_of_failure,
    decisive,
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
from gpucheck.bench.sampler import off_by
from gpucheck.bench.sdc import corruption_sentence, deviating_digests
from gpucheck.bench.telemetry import is_clock_change, why_unread
from gpucheck.bench.workers import WORKER_INTERRUPTED, WORKER_NO_DOCUMENT
from gpucheck.drivers.native import gives_nvml_code
from gpucheck.inventory.model import Gpu
from gpucheck.report.envelope import Evidence, Failure
from gpucheck.report.text import count_of

_GIB = 1 << 30
_NODE = "node"
_SLOT = ("check the slot, the riser and the BIOS settings",)
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
    GateClass.THERMAL: (_COOL, "look at its health: gpucheck detect --only health"),
    GateClass.POWER_CAP: (
        "check the power supply and its cables",
        "see the power limits: nvidia-smi -q -d POWER",
    ),
    GateClass.CONFIG: ("see the clock settings: nvidia-smi -q -d CLOCK",),
    GateClass.HARDWARE: (
        "look for a fault: gpucheck detect",
        "take the card out of service and report it",
    ),
}
#: NVML_ERROR_NOT_SUPPORTED: the GPU has no such reading.
_NOT_SUPPORTED = 3
#: What to do about a framework's wrong results where gpucheck's are right.
_OTHER_VERSION = ("try another version of the framework; gpucheck's own rows are right here",)
_SWAP = ("take the card out of service", "repeat the run with the same seed to be sure")


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
            yield _mode(data, "match-mig", gpu, gpu.mig.enabled, wanted=match.mig)
    if match.min_driver is not None:
        yield _driver(data, match.min_driver)


def inventory_gates(data: RunData) -> Iterator[Gate]:
    """Yield whether each GPU has what is demanded, with the PCIe link as it was under load."""
    demands = data.profile.inventory
    for gpu in data.node.gpus:
        if demands.memory_total_gib is not None:
            yield _memory(data, gpu, demands.memory_total_gib)
        for name, found, wanted in (
            ("inventory-ecc", gpu.ecc_mode, demands.ecc),
            ("inventory-persistence", gpu.persistence_mode, demands.persistence_mode),
        ):
            if wanted is not None:
                yield _mode(data, name, gpu, found, wanted=wanted)
        yield from _pcie(data, gpu)
        if demands.pcie_full:
            yield _pcie_full(data, gpu)
        if demands.nvlink_links is not None:
            yield _nvlink(data, gpu, demands.nvlink_links)
        if demands.power_limit_w is not None:
            yield _power_limit(data, gpu, demands.power_limit_w)
    if demands.identical_gpus:
        yield _identical(data)


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


# ---------------------------------------------------------------------------------- machine


def name_of(gpu: Gpu) -> str:
    """Return what a GPU is called in gates: as CUDA numbers it, else by NVML's number."""
    return f"nvml:{gpu.index}" if gpu.cuda_index is None else f"gpu:{gpu.cuda_index}"


def _count(data: RunData, wanted: int) -> Gate:
    found, left_out = len(data.node.gpus), data.node.left_out
    gpus = "1 GPU" if found == 1 else f"{found} GPUs"
    class_, sentence = GateClass.CONFIG, f"{gpus} can be used; the profile is for {wanted}"
    steps: tuple[str, ...] = (f"choose {wanted} with --device, or change count in [match]",)
    if found + left_out == wanted and left_out:
        sentence, steps = (
            f"--device leaves {left_out} of {wanted} GPUs out",
            ("leave --device out",),
        )
    elif found + left_out < wanted:
        class_ = GateClass.HARDWARE
        steps = (
            "see which can, and why others cannot: gpucheck detect",
            "look for GPUs that fell off the bus: sudo dmesg | grep -i xid",
        )
    bad = Diagnosis(class_=class_, sentence=sentence, next=steps)
    return _gate(data, "match-count", _NODE, found, wanted, "GPUs", bad, least=found < wanted)


def _board(data: RunData, gpu: Gpu) -> Gate:
    match = data.profile.match
    known_id = data.node.pci_device_ids.get(gpu.index, "")[:4].lower()
    good = known_id in match.pci_device_ids if match.pci_device_ids and known_id else None
    if match.names and good is not False:
        good = fits_name(gpu.name or "", match.names)
    wanted = ", ".join((*match.pci_device_ids, *match.names))
    found = f"{gpu.name or 'a GPU without a name'} ({known_id or 'no PCI device id'})"
    if good is None:
        reason = f"{found} cannot be identified; the profile is for {wanted}"
        return _undecided(data, "match-board", name_of(gpu), reason)
    bad = Diagnosis(
        class_=GateClass.CONFIG,
        sentence=f"it is {found}; the profile is for {wanted}",
        next=("choose another profile: gpucheck profile list", "or another --device"),
    )
    return _gate(data, "match-board", name_of(gpu), good, 1, "match", bad, least=True)


#: Of each gate on a mode: its words, its key among unread fields, and nvidia-smi's option for it.
_MODES = {
    "match-mig": ("MIG mode", "mig.enabled", "-mig"),
    "inventory-ecc": ("ECC", "ecc_mode", "-e"),
    "inventory-persistence": ("persistence mode", "persistence_mode", "-pm"),
}


def _mode(data: RunData, name: str, gpu: Gpu, found: bool | None, *, wanted: bool) -> Gate:
    """Return whether a mode is on or off as it must be."""
    what, key, option = _MODES[name]
    why = gpu.unavailable.get(key)
    if found is None and name == "match-mig" and not wanted:
        # A board without MIG does not report the mode.
        found = False if why is None or gives_nvml_code(why, _NOT_SUPPORTED) else None
    if found is None:
        return _undecided(data, name, name_of(gpu), f"{what} is unknown: {_why(gpu, key)}")
    words = {True: "on", False: "off"}
    steps = (f"turn it {words[wanted]}: sudo nvidia-smi {option} {int(wanted)}",)
    bad = Diagnosis(
        class_=GateClass.CONFIG,
        sentence=f"{what} is {words[found]}; the profile requires it {words[wanted]}",
        next=(*steps, "reboot") if what == "ECC" else steps,
    )
    return _gate(data, name, name_of(gpu), found, wanted, "on", bad, least=found < wanted)


def _why(gpu: Gpu, key: str) -> str:
    """Return why a field of the inventory could not be read."""
    return gpu.unavailable.get(key, "the driver does not report it")


def _driver(data: RunData, wanted: str) -> Gate:
    found = data.node.driver_version
    if found is None:
        return _undecided(data, "match-driver", _NODE, "the driver version is unknown")
    bad = Diagnosis(
        class_=GateClass.SOFTWARE,
        sentence=f"the driver is {found}; the profile needs {wanted} or newer",
        next=("install a newer driver",),
    )
    good = version_key(found) >= version_key(wanted)
    return _gate(data, "match-driver", _NODE, good, 1, "match", bad, least=True)


def _memory(data: RunData, gpu: Gpu, wanted: float) -> Gate:
    total = gpu.memory_total_bytes
    found = None if total is None else total / _GIB
    bad = Diagnosis(
        class_=GateClass.HARDWARE,
        sentence="it has less memory than the board should have",
        next=(
            "look at its health: gpucheck detect --only health",
            "compare with the other cards: gpucheck list",
        ),
    )
    return _gate(
        *(data, "inventory-memory", name_of(gpu), found, wanted, "GiB", bad),
        least=True,
        unread=f"its memory size is unknown: {_why(gpu, 'memory_total_bytes')}",
    )


def _pcie(data: RunData, gpu: Gpu) -> Iterator[Gate]:
    demands, device = data.profile.inventory, name_of(gpu)
    for name, key, wanted, unit in (
        ("inventory-pcie-generation", "pcie_generation", demands.pcie_generation, "generation"),
        ("inventory-pcie-width", "pcie_width", demands.pcie_width, "lanes"),
    ):
        if wanted is None:
            continue
        seen = [getattr(one, key) for one in data.telemetry_of(device)]
        most = max((value for value in seen if value is not None), default=None)
        bad = _slow_link(gpu, "under load, the PCIe link was slower than required")
        unread = f"the link was not read under load: {data.why_no_telemetry(device)}"
        yield _gate(data, name, device, most, wanted, unit, bad, least=True, unread=unread)


def _slow_link(gpu: Gpu, reason: str) -> Diagnosis:
    slot = Evidence("slot", gpu.pci_bus_id or "unknown")
    return Diagnosis(class_=GateClass.CONFIG, sentence=reason, evidence=(slot,), next=_SLOT)


def _pcie_full(data: RunData, gpu: Gpu) -> Gate:
    """Return whether the link under load was the fastest that the board and the slot allow."""
    name, device, best = "inventory-pcie-full", name_of(gpu), gpu.pcie
    links = [
        (one.pcie_generation, one.pcie_width)
        for one in data.telemetry_of(device)
        if one.pcie_generation is not None and one.pcie_width is not None
    ]
    if not links or best.generation_max is None or best.width_max is None:
        why = data.why_no_telemetry(device) if not links else "its maximum is unknown"
        return _undecided(data, name, device, f"the link was not read under load: {why}", "%")
    # Each generation doubles the rate of a lane.
    generation, width = max(links, key=lambda link: link[1] * 2 ** link[0])
    reached = 100 * width * 2**generation / (best.width_max * 2**best.generation_max)
    bad = _slow_link(
        gpu,
        f"under load, the PCIe link ran at generation {generation} x{width} instead of "
        f"{best.generation_max} x{best.width_max}",
    )
    return _gate(data, name, device, reached, 100.0, "%", bad, least=True)


def _nvlink(data: RunData, gpu: Gpu, wanted: int) -> Gate:
    bad = Diagnosis(
        class_=GateClass.HARDWARE,
        sentence="it has too few NVLink connections to one of the other GPUs",
        next=(
            "see how the GPUs are connected: gpucheck list --topology",
            "see each link: nvidia-smi nvlink -s",
        ),
    )
    found = data.node.nvlink_links.get(gpu.index)
    return _gate(
        *(data, "inventory-nvlink", name_of(gpu), found, wanted, "links", bad),
        least=True,
        unread="its connections to the other GPUs are unknown",
    )


def _power_limit(data: RunData, gpu: Gpu, wanted: float) -> Gate:
    bad = Diagnosis(
        class_=GateClass.POWER_CAP,
        sentence="its power limit was lowered",
        next=(f"raise it: sudo nvidia-smi -i {gpu.index} -pl {wanted:.0f}",),
    )
    return _gate(
        *(data, "inventory-power-limit", name_of(gpu), gpu.power_limit_w, wanted, "W", bad),
        least=True,
        unread=f"its power limit is unknown: {_why(gpu, 'power_limit_w')}",
    )


def _identical(data: RunData) -> Gate:
    """Return whether all GPUs are of one kind: board, memory, power limit and ECC."""
    name = "inventory-identical"
    kind_of = {
        name_of(gpu): (gpu.name, gpu.memory_total_bytes, gpu.power_limit_w, gpu.ecc_mode)
        for gpu in data.node.gpus
    }
    kinds = Counter(kind_of.values())
    if not kinds:
        return _undecided(data, name, _NODE, "no GPU answers", "kinds")
    usual = kinds.most_common(1)[0][0]
    odd = ", ".join(device for device, kind in kind_of.items() if kind != usual)
    bad = Diagnosis(
        class_=GateClass.CONFIG,
        sentence=f"{odd} differs from the others in board, memory, power limit or ECC",
        next=("see them side by side: gpucheck list -v",),
    )
    return _gate(data, name, _NODE, len(kinds), 1.0, "kinds", bad)


# ---------------------------------------------------------------------------------- results


def _processes(data: RunData, device: str, runs: Sequence[ProcessRun]) -> Gate:
    """Return whether every process returned a document, and none lost its GPU."""
    failures = [failure for run in runs if (failure := _fatal(run)) is not None]
    first = decisive(failures) if failures else Failure(code="", message="")
    counts = Counter(failure.code for failure in failures)
    bad = Diagnosis(
        class_=class_of_failure(first),
        sentence=first.message,
        evidence=tuple(
            Evidence(code, f"{count} of {count_of(len(runs), 'process')}")
            for code, count in counts.items()
        ),
        # What was interrupted is no fault to look for.
        next=first.remedy
        or (() if first.code == WORKER_INTERRUPTED else ("look for a fault: gpucheck detect",)),
    )
    gate = _gate(data, "processes", device, len(failures), 0, "failed", bad)
    if failures and leaves_open(first):
        return replace(gate, status=GateStatus.INCONCLUSIVE)
    return gate


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
        yield _unchecked(data, device, runs)
        return
    wrong = [row for row in rows if is_wrong(row.verified)]
    broken = [row for row in wrong if row.verified is not None and row.verified.error is None]
    other = [row for row in wrong if row not in broken]
    yield _wrong(data, device, "results", other, len(rows), most=0)
    most = data.profile.stability.not_finite
    if most is not None:
        yield _wrong(data, device, "not-finite", broken, len(rows), most=most)


def _unchecked(data: RunData, device: str, runs: Sequence[ProcessRun]) -> Gate:
    """Return the gate of a device without checked results, with the rows' reason."""
    reason = "no result was checked"
    errors = [row.error for run in runs for row in run.rows if row.error is not None]
    if not errors:
        return _undecided(data, "results", device, reason, "wrong")
    first = decisive(errors)
    return _undecided(
        *(data, "results", device, f"{reason}: {first.message}", "wrong"),
        class_=class_of_failure(first),
        steps=first.remedy,
    )


def _wrong(
    data: RunData, device: str, name: str, wrong: Sequence[Measurement], count: int, *, most: int
) -> Gate:
    # If gpucheck's own rows are right, the device computes right, and the framework does not.
    its_own = bool(wrong) and all(row.framework is not None for row in wrong)
    bad = Diagnosis(
        class_=GateClass.SOFTWARE if its_own else GateClass.HARDWARE,
        sentence=_first_wrong(wrong[0], count) if wrong else "",
        evidence=tuple(
            Evidence(_what(row), row.error.message if row.error else "wrong") for row in wrong[:5]
        ),
        next=_OTHER_VERSION if its_own else _SWAP,
    )
    return _gate(data, name, device, len(wrong), most, "wrong", bad)


def _what(row: Measurement) -> str:
    return f"{row.kernel} {row.framework.text if row.framework is not None else row.variant}"


def _first_wrong(row: Measurement, count: int) -> str:
    what = _what(row)
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
            yield _undecided(data, name, device, data.why_no_telemetry(device), "s")
            continue
        class_ = _OF_REASON.get(reason, GateClass.HARDWARE)
        seconds = max(_limited_s(gpu, reason) for gpu in telemetry)
        bad = _hot(telemetry, class_, f"the driver held the clock down: {reason}")
        gate = _gate(data, name, device, seconds, most_s, "s", bad)
        yield _if_read(gate, [why_unread(gpu, reason) for gpu in telemetry])


def _if_read(gate: Gate, unread: Sequence[str | None]) -> Gate:
    """Return a gate that passes only by what was read; what the GPU does not have is skipped."""
    reason = next((one for one in unread if one is not None), None)
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
        yield Evidence("temperature", f"{hottest:.0f} °C at most")
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
        if limit is not None:
            most, unread = max(values, default=None), data.why_no_telemetry(device)
            yield _gate(data, name, device, most, limit, unit, bad, unread=unread)


def _class_of_drop(telemetry: Sequence[GpuTelemetry]) -> GateClass:
    """Return what the driver said held the clock down most of the time."""
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
            yield _undecided(data, name, device, data.why_no_telemetry(device), "errors")
            continue
        bad = Diagnosis(
            class_=GateClass.HARDWARE,
            sentence=f"the counter {counter.replace('_', ' ')} grew during the run",
            next=(
                "look at its health: gpucheck detect --only health",
                "look for the driver's errors: sudo dmesg | grep -i xid",
            ),
        )
        gate = _gate(data, name, device, grown[counter], most, "errors", bad)
        key = f"new_errors.{counter}"
        yield _if_read(gate, [gpu.unavailable.get(key) for gpu in telemetry])


# ---------------------------------------------------------------------------------- corruption


def _corruption(data: RunData, device: str) -> Gate:
    """Return whether repeated products were the same bits, here and on identical GPUs."""
    own = [one for one in data.corruption if one.device == device]
    compared = [one for one in own if one.products]
    # The first product is checked against float64 even if nothing was repeated after it.
    wrong = [one for one in own if one.is_corrupt]
    odd = deviating_digests(data.corruption, _boards(data)).get(device)
    if not wrong and odd is None and all(one.failure is not None for one in compared):
        none = Failure(code=WORKER_NO_DOCUMENT, message="no process compared any products")
        why = next((one.failure for one in own if one.failure is not None), none)
        return _undecided(
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
    return _gate(data, "corruption", device, count, most, "wrong numbers", bad)


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
    data: RunData,
    name: str,
    device: str,
    measured: float | None,
    limit: float,
    unit: str,
    bad: Diagnosis,
    *,
    least: bool = False,
    unread: str = "",
) -> Gate:
    """Return the gate of a number that may not be above its limit; with `least`, not below it.

    `unread` says why there is no number.
    """
    if measured is None:
        return _undecided(data, name, device, unread, unit)
    good = measured >= limit if least else measured <= limit
    gate = Gate(
        id=name,
        device=device,
        gpu_uuid=data.uuid_of(device),
        status=GateStatus.PASS,
        direction=Direction.HIGHER if least else Direction.LOWER,
        unit=unit,
        measured=float(measured),
        limit=float(limit),
    )
    return gate if good else explained(gate, bad)


def _undecided(
    data: RunData,
    name: str,
    device: str,
    reason: str,
    unit: str = "",
    *,
    class_: GateClass = GateClass.SOFTWARE,
    steps: tuple[str, ...] = (),
) -> Gate:
    """Return the gate of a demand for which nothing was read: never a pass."""
    return Gate(
        id=name,
        device=device,
        gpu_uuid=data.uuid_of(device),
        status=GateStatus.INCONCLUSIVE,
        direction=Direction.LOWER,
        unit=unit,
        reason=reason,
        class_=class_,
        next=steps or ("gpucheck detect",),
    )
