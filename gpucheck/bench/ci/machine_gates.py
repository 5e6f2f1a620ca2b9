"""Gates on the machine: it is one the profile is for, and has what the profile demands."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from gpucheck.bench.ci.diagnosis import Diagnosis, at_least, at_most, exactly, holds, undecided
from gpucheck.bench.ci.limits import fits_name
from gpucheck.bench.ci.profile_model import Target
from gpucheck.bench.ci.run_data import NodeGpu, RunData
from gpucheck.bench.model import Gate, GateClass
from gpucheck.report.envelope import Evidence

_GIB = 1 << 30
_NODE = "node"
_SLOT = ("check the slot, the riser and the BIOS settings",)


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
            yield _flag(data, "match-mig", gpu, gpu.gpu.mig.enabled, match.mig, "MIG mode")
    if match.min_driver is not None:
        yield _driver(data, match.min_driver)


def inventory_gates(data: RunData) -> Iterator[Gate]:
    """Yield whether each GPU has what is demanded, with the PCIe link as it was under load."""
    demands = data.profile.inventory
    for gpu in data.node.gpus:
        if demands.memory_total_gib is not None:
            yield _memory(data, gpu, demands.memory_total_gib)
        if demands.ecc is not None:
            yield _flag(data, "inventory-ecc", gpu, gpu.gpu.ecc_mode, demands.ecc, "ECC")
        if demands.persistence_mode is not None:
            found = gpu.gpu.persistence_mode
            wanted = demands.persistence_mode
            yield _flag(data, "inventory-persistence", gpu, found, wanted, "persistence mode")
        yield from _pcie(data, gpu)
        if demands.pcie_full:
            yield _pcie_full(data, gpu)
        if demands.nvlink_links is not None:
            yield _nvlink(data, gpu, demands.nvlink_links)
        if demands.power_limit_w is not None:
            yield _power_limit(data, gpu, demands.power_limit_w)
    if demands.identical_gpus:
        yield _identical(data)


def name_of(gpu: NodeGpu) -> str:
    """Return what a GPU is called in gates: as CUDA numbers it, else by NVML's number."""
    return gpu.device or f"nvml:{gpu.gpu.index}"


def _count(data: RunData, wanted: int) -> Gate:
    found = len(data.node.gpus)
    bad = Diagnosis(
        class_=GateClass.HARDWARE if found < wanted else GateClass.CONFIG,
        sentence=f"{found} GPUs answer; the profile is for {wanted}",
        next=("gpucheck detect", "look for GPUs that fell off the bus: dmesg | grep -i xid"),
    )
    return exactly(data, "match-count", _NODE, found, wanted, "GPUs", bad)


def _board(data: RunData, gpu: NodeGpu) -> Gate:
    match = data.profile.match
    known_id = (gpu.pci_device_id or "")[:4].lower()
    good = known_id in match.pci_device_ids if match.pci_device_ids and known_id else None
    if match.names and good is not False:
        good = fits_name(gpu.gpu.name or "", match.names)
    wanted = ", ".join((*match.pci_device_ids, *match.names))
    found = f"{gpu.gpu.name or 'a GPU without a name'} ({known_id or 'no PCI device id'})"
    if good is None:
        reason = f"{found} cannot be identified; the profile is for {wanted}"
        return undecided(data, "match-board", name_of(gpu), reason)
    bad = Diagnosis(
        class_=GateClass.CONFIG,
        sentence=f"it is {found}; the profile is for {wanted}",
        next=("choose another profile: gpucheck profile list", "or another --device"),
    )
    return holds(data, "match-board", name_of(gpu), good, bad)


def _flag(
    data: RunData, name: str, gpu: NodeGpu, found: bool | None, wanted: bool, what: str
) -> Gate:
    device = name_of(gpu)
    if found is None and what == "MIG mode" and not wanted:
        # A board without MIG does not report the mode.
        found = False
    if found is None:
        key = "ecc_mode" if what == "ECC" else what.replace(" ", "_")
        why = gpu.gpu.unavailable.get(key, "the driver does not report it")
        return undecided(data, name, device, f"{what} is unknown: {why}")
    words = {True: "on", False: "off"}
    steps = {
        "ECC": f"nvidia-smi -e {int(wanted)} and a reboot (as root)",
        "MIG mode": f"nvidia-smi -mig {int(wanted)} (as root)",
        "persistence mode": f"nvidia-smi -pm {int(wanted)} (as root), or nvidia-persistenced",
    }
    bad = Diagnosis(
        class_=GateClass.CONFIG,
        sentence=f"{what} is {words[found]}; the profile requires it {words[wanted]}",
        next=(steps[what],),
    )
    return exactly(data, name, device, found, wanted, "on", bad)


def _driver(data: RunData, wanted: str) -> Gate:
    from gpucheck.bench.ci.profile_lint import version_key

    found = data.node.driver_version
    if found is None:
        return undecided(data, "match-driver", _NODE, "the driver version is unknown")
    bad = Diagnosis(
        class_=GateClass.SOFTWARE,
        sentence=f"the driver is {found}; the profile needs {wanted} or newer",
        next=("install a newer driver",),
    )
    return holds(data, "match-driver", _NODE, version_key(found) >= version_key(wanted), bad)


def _memory(data: RunData, gpu: NodeGpu, wanted: float) -> Gate:
    name, total = "inventory-memory", gpu.gpu.memory_total_bytes
    if total is None:
        return undecided(data, name, name_of(gpu), "its memory size is unknown", "GiB")
    bad = Diagnosis(
        class_=GateClass.HARDWARE,
        sentence="it has less memory than the board should have",
        next=("gpucheck detect --only health", "compare with the other cards: gpucheck list"),
    )
    return at_least(data, name, name_of(gpu), total / _GIB, wanted, "GiB", bad)


def _pcie(data: RunData, gpu: NodeGpu) -> Iterator[Gate]:
    demands, device = data.profile.inventory, name_of(gpu)
    for name, key, wanted, unit in (
        ("inventory-pcie-generation", "pcie_generation", demands.pcie_generation, "generation"),
        ("inventory-pcie-width", "pcie_width", demands.pcie_width, "lanes"),
    ):
        if wanted is None:
            continue
        seen = [getattr(one, key) for one in data.telemetry_of(device)]
        known = [float(value) for value in seen if value is not None]
        if not known:
            why = data.why_no_telemetry(device)
            yield undecided(data, name, device, f"the link was not read under load: {why}", unit)
            continue
        bad = _slow_link(gpu, "under load, the PCIe link was slower than required")
        yield at_least(data, name, device, max(known), wanted, unit, bad)


def _slow_link(gpu: NodeGpu, reason: str) -> Diagnosis:
    slot = Evidence("slot", gpu.gpu.pci_bus_id or "unknown")
    return Diagnosis(class_=GateClass.CONFIG, sentence=reason, evidence=(slot,), next=_SLOT)


def _pcie_full(data: RunData, gpu: NodeGpu) -> Gate:
    """Return whether the link under load was the fastest that the board and the slot allow."""
    name, device, best = "inventory-pcie-full", name_of(gpu), gpu.gpu.pcie
    links = [
        (one.pcie_generation, one.pcie_width)
        for one in data.telemetry_of(device)
        if one.pcie_generation is not None and one.pcie_width is not None
    ]
    if not links or best.generation_max is None or best.width_max is None:
        why = data.why_no_telemetry(device) if not links else "its maximum is unknown"
        return undecided(data, name, device, f"the link was not read under load: {why}", "%")
    # Each generation doubles the rate of a lane.
    generation, width = max(links, key=lambda link: link[1] * 2 ** link[0])
    reached = 100 * width * 2**generation / (best.width_max * 2**best.generation_max)
    bad = _slow_link(
        gpu,
        f"under load, the PCIe link ran at generation {generation} x{width} instead of "
        f"{best.generation_max} x{best.width_max}",
    )
    return at_least(data, name, device, reached, 100.0, "%", bad)


def _nvlink(data: RunData, gpu: NodeGpu, wanted: int) -> Gate:
    name = "inventory-nvlink"
    if gpu.nvlink_links is None:
        reason = "its connections to the other GPUs are unknown"
        return undecided(data, name, name_of(gpu), reason, "links")
    bad = Diagnosis(
        class_=GateClass.HARDWARE,
        sentence="it has too few NVLink connections to one of the other GPUs",
        next=("gpucheck list --topology", "nvidia-smi nvlink -s shows each link"),
    )
    return at_least(data, name, name_of(gpu), gpu.nvlink_links, wanted, "links", bad)


def _power_limit(data: RunData, gpu: NodeGpu, wanted: float) -> Gate:
    name, found = "inventory-power-limit", gpu.gpu.power_limit_w
    if found is None:
        return undecided(data, name, name_of(gpu), "its power limit is unknown", "W")
    bad = Diagnosis(
        class_=GateClass.POWER_CAP,
        sentence="its power limit was lowered",
        next=(f"nvidia-smi -i {gpu.gpu.index} -pl {wanted:.0f} (as root)",),
    )
    return at_least(data, name, name_of(gpu), found, wanted, "W", bad)


def _identical(data: RunData) -> Gate:
    """Return whether all GPUs are of one kind: board, memory, power limit and ECC."""
    name = "inventory-identical"
    kind_of = {name_of(gpu): _kind(gpu) for gpu in data.node.gpus}
    kinds = Counter(kind_of.values())
    if not kinds:
        return undecided(data, name, _NODE, "no GPU answers", "kinds")
    usual = kinds.most_common(1)[0][0]
    odd = ", ".join(device for device, kind in kind_of.items() if kind != usual)
    bad = Diagnosis(
        class_=GateClass.CONFIG,
        sentence=f"{odd} differs from the others in board, memory, power limit or ECC",
        next=("gpucheck list -v shows them side by side",),
    )
    return at_most(data, name, _NODE, len(kinds), 1.0, "kinds", bad)


def _kind(gpu: NodeGpu) -> tuple[object, ...]:
    found = gpu.gpu
    return (found.name, found.memory_total_bytes, found.power_limit_w, found.ecc_mode)
