"""Row of a GPU in the list: its reading, and what the kernel, CUDA and /proc add; and its links."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from gpucheck.drivers.native import gives_nvml_code
from gpucheck.drivers.readings import (
    LIMIT_FIELDS,
    GpuReading,
    KernelReading,
    MigReading,
    NvlinkReading,
    NvmlReading,
    PairReading,
    PciDeviceReading,
    ProcessIdentity,
    ProcessReading,
    TopologyReading,
)
from gpucheck.inventory.model import (
    Gpu,
    GpuProcess,
    GpuState,
    MigInstance,
    MigState,
    PcieLink,
    Topology,
    TopologyLink,
    Visibility,
)
from gpucheck.inventory.visibility import AFTER_INVALID, is_mig

_SAME_NAME = set(Gpu._fields) & set(GpuReading._fields)
_MEMORY = ("memory_total_bytes", "memory_used_bytes", "memory_free_bytes")
_APART = {"processes", "unavailable", "numa_node", "cpu_affinity", *_MEMORY}
_COPIED = tuple(sorted(_SAME_NAME - _APART))
#: Fields of a reading that are nested in the document.
_NESTED = {
    "pcie_generation": "pcie.generation",
    "pcie_generation_max": "pcie.generation_max",
    "pcie_width": "pcie.width",
    "pcie_width_max": "pcie.width_max",
    "mig_enabled": "mig.enabled",
    "mig_instances": "mig.instances",
    "process_utilization": "processes.utilization_sm_percent",
}
#: Readings that no field of the document shows.
_NOT_SHOWN = frozenset({"pci_device_id", "virtualization"})
#: What is absent of a GPU that does not answer; in an order, which its document keeps.
UNANSWERED = sorted({*_COPIED, *_MEMORY, *_NESTED, "processes"} - {"index", *LIMIT_FIELDS})
#: Why CUDA's total is no figure of the card's.
SHARED_MEMORY = "the GPU shares the CPU's memory"


def rows_of(reading: NvmlReading) -> tuple[GpuReading, ...]:
    """Return a reading for each GPU that NVML counted, even if it never answered."""
    failure = reading.failure
    if failure is None or reading.gpu_count is None:
        return reading.gpus
    reasons = dict.fromkeys(UNANSWERED, failure.message)
    answered = {gpu.index: gpu for gpu in reading.gpus}
    return tuple(
        answered.get(index) or GpuReading(index=index, failure=failure, unavailable=reasons)
        for index in range(reading.gpu_count)
    )


def describe_gpu(
    row: GpuReading,
    visibility: Visibility,
    kernel: KernelReading,
    identities: Mapping[int, ProcessIdentity],
    *,
    split: bool,
) -> Gpu:
    """Return the row of one GPU.

    `split`: some GPU is in MIG mode, and then older drivers show a program only one instance.
    """
    processes = _processes(row, identities)
    unavailable = _reasons(row, processes)
    pci = next(
        (device for device in kernel.pci_devices or () if device.pci_bus_id == row.pci_bus_id),
        PciDeviceReading(pci_bus_id="", vendor_id=""),
    )
    locality = {}
    for name in ("numa_node", "cpu_affinity"):
        by_kernel = getattr(pci, name)
        locality[name] = getattr(row, name) if by_kernel is None else by_kernel
        unavailable.pop(name, None)
        if locality[name] is None:
            unavailable[name] = _not_in_kernel(row, kernel, pci)
    visible, cuda_index, hidden = _seen(row, visibility, split=split)
    if cuda_index is None:
        split_up = "CUDA numbers its MIG instances instead"
        unavailable["cuda_index"] = hidden or visibility.open_question or split_up
    if visible is None:
        unavailable["visible"] = visibility.open_question or "the GPU has no readable UUID"
    migs = tuple(_mig_instance(mig, visibility) for mig in row.mig_instances)
    for position, instance in enumerate(migs):
        if instance.cuda_index is None:
            reason = visibility.open_question or hidden or "CUDA does not enumerate it"
            unavailable[f"mig.instances[{position}].cuda_index"] = reason
    memory = {name: getattr(row, name) for name in _MEMORY}
    source = "driver"
    if _shares_memory(row, kernel):
        total, free = kernel.memory_total_bytes, kernel.memory_available_bytes
        used = None if total is None or free is None else total - free
        memory = dict(zip(_MEMORY, (total, used, free), strict=True))
        source = "system"
        for name, value in memory.items():
            if value is not None:
                unavailable.pop(name, None)
    return Gpu(
        **{name: getattr(row, name) for name in _COPIED},
        **memory,
        memory_source=source,
        cuda_index=cuda_index,
        visible=visible,
        hidden_reason=hidden,
        pcie=PcieLink(*(getattr(row, f"pcie_{name}") for name in PcieLink._fields)),
        **locality,
        mig=MigState(enabled=row.mig_enabled, instances=migs),
        processes=processes,
        state=_state(row),
        error=_trouble(row),
        unavailable=unavailable,
    )


def _shares_memory(row: GpuReading, kernel: KernelReading) -> bool:
    """Return whether the GPU has no memory of its own (GB10, Jetson, integrated boards).

    Only there NVML answers "not supported" (3) when asked for the size; CUDA tells it apart.
    """
    reason = row.unavailable.get("memory_total_bytes", "")
    shared = reason == SHARED_MEMORY or gives_nvml_code(reason, 3)
    offered = row.memory_total_bytes is not None or not shared
    return row.failure is None and not offered and kernel.memory_total_bytes is not None


def _reasons(row: GpuReading, processes: Sequence[GpuProcess]) -> dict[str, str]:
    """Return why readings are absent, under the document's names for them."""
    reasons = {
        _NESTED.get(name, name): reason
        for name, reason in row.unavailable.items()
        if name not in _NOT_SHOWN | {"process_utilization"}
    }
    for position, mig in enumerate(row.mig_instances):
        for name, reason in mig.unavailable.items():
            reasons[f"mig.instances[{position}].{name}"] = reason
    no_load = row.unavailable.get("process_utilization")
    if no_load is None and row.process_utilization is None:
        no_load = "not requested"
    for name, reason in (
        ("memory_used_bytes", "the driver does not report it for every process"),
        ("utilization_sm_percent", no_load or "the driver has no sample of every process"),
        ("age_s", "/proc does not show when every process started"),
    ):
        if any(getattr(process, name) is None for process in processes):
            reasons[f"processes.{name}"] = reason
    return reasons


def _not_in_kernel(row: GpuReading, kernel: KernelReading, pci: PciDeviceReading) -> str:
    if kernel.pci_unavailable is not None:
        return kernel.pci_unavailable
    if row.pci_bus_id is None:
        return "its PCI bus id is not known"
    return "the kernel does not report it" if pci.pci_bus_id else "the kernel does not list the GPU"


def _state(row: GpuReading) -> GpuState:
    if row.failure is not None and row.failure.code == "gpu-is-lost":
        return GpuState.LOST
    return GpuState.OK if _trouble(row) is None else GpuState.ERROR


def _trouble(row: GpuReading) -> str | None:
    """Return why the GPU as a whole does not answer; a failed single reading is no reason."""
    if row.failure is not None:
        return row.failure.message
    if row.uuid is None and row.name is None and row.memory_total_bytes is None:
        return row.unavailable.get("uuid", "it answers none of the basic queries")
    return None


def _seen(
    row: GpuReading, visibility: Visibility, *, split: bool
) -> tuple[bool | None, int | None, str | None]:
    """Return whether CUDA sees the GPU, its ordinal, and why not."""
    if visibility.visible == ():
        return False, None, _hidden_reason(row, visibility, split=split)
    if row.uuid is None:
        return None, None, None  # without a UUID it cannot be found among CUDA's devices
    if visibility.visible is None:
        return None, None, None
    ordinals = {uuid: ordinal for ordinal, uuid in enumerate(visibility.visible)}
    if row.uuid in ordinals:
        return True, ordinals[row.uuid], None
    if any(mig.uuid in ordinals for mig in row.mig_instances):
        return True, None, None
    return False, None, _hidden_reason(row, visibility, split=split)


def _hidden_reason(row: GpuReading, visibility: Visibility, *, split: bool) -> str:
    if is_mig(row) and not row.mig_instances and "mig_instances" not in row.unavailable:
        return "MIG is enabled, but there is no instance"
    if row.failure is not None:
        return "no answer to NVML"
    text = visibility.cuda_visible_devices
    if text is None:
        beside = " beside a MIG instance" if split and visibility.visible else ""
        return f"not enumerated by the CUDA driver{beside}"
    if text == "":
        return "CUDA_VISIBLE_DEVICES is empty"
    dropped = [entry for entry in visibility.entries if entry.status == "dropped"]
    if dropped and len(dropped) == len(visibility.entries):
        return f"CUDA_VISIBLE_DEVICES={text!r} names no GPU: {dropped[0].reason}"
    ended = next((entry.reason for entry in dropped if entry.reason.startswith(AFTER_INVALID)), "")
    return f"not named in CUDA_VISIBLE_DEVICES={text!r}{ended.replace('it comes after', ' before')}"


def _mig_instance(mig: MigReading, visibility: Visibility) -> MigInstance:
    visible = visibility.visible or ()
    facts = mig._asdict()
    del facts["unavailable"]
    return MigInstance(**facts, cuda_index=visible.index(mig.uuid) if mig.uuid in visible else None)


def _processes(
    row: GpuReading, identities: Mapping[int, ProcessIdentity]
) -> tuple[GpuProcess, ...]:
    """Merge NVML's lists: one row for each process and MIG instance."""
    merged: dict[tuple[int, int | None, int | None], list[ProcessReading]] = {}
    for process in row.processes:
        key = (process.pid, process.gpu_instance_id, process.compute_instance_id)
        merged.setdefault(key, []).append(process)
    by_pid = sorted(merged.values(), key=lambda readings: readings[0].pid)
    return tuple(_process(row, readings, identities) for readings in by_pid)


def _process(
    row: GpuReading, readings: Sequence[ProcessReading], identities: Mapping[int, ProcessIdentity]
) -> GpuProcess:
    first = readings[0]
    identity = identities.get(first.pid, ProcessIdentity(pid=first.pid, namespace="unknown"))
    # The lists repeat the same total for a process that is in two of them.
    used = [r.memory_used_bytes for r in readings if r.memory_used_bytes is not None]
    instance = row.instance_of(first)
    return GpuProcess(
        **identity._asdict(),
        type="+".join(dict.fromkeys(reading.type for reading in readings)),
        memory_used_bytes=max(used, default=None),
        utilization_sm_percent=(row.process_utilization or {}).get(str(first.pid)),
        mig_uuid=instance and instance.uuid,
    )


# ------------------------------------------------------------------------------- links between GPUs

#: NVML's nvmlGpuTopologyLevel_t in nvidia-smi's words. 0 is two GPUs of one board.
LEVELS = {0: "PIX", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}


def describe_topology(reading: TopologyReading, gpus: Sequence[GpuReading]) -> Topology:
    """Name the link of each pair: NVLinks where there are any, else the PCIe ancestor."""
    #: Active NVLinks from one GPU to another, from a GPU into switches, and why some are unknown.
    direct: Counter[tuple[int, int]] = Counter()
    switched: Counter[int] = Counter()
    gaps: dict[int, str] = {}
    index_of = {gpu.pci_bus_id: gpu.index for gpu in gpus if gpu.pci_bus_id}
    nameless = [gpu.unavailable.get("pci_bus_id", "") for gpu in gpus if gpu.pci_bus_id is None]
    for link in reading.nvlinks:
        other = index_of.get(link.remote_pci_bus_id or "")
        reason = link.unavailable
        if other is not None:
            direct[link.gpu, other] += link.active
        elif _leads_to_switch(link):
            switched[link.gpu] += link.active
        lost = nameless and link.active and other is None and link.remote_type != "switch"
        if reason is None and lost:
            reason = f"one leads to a GPU without a PCI bus id: {nameless[0]}"
        if reason is not None:
            gaps[link.gpu] = f"the NVLinks of GPU {link.gpu}: {reason}"
    return Topology(links=tuple(_link(pair, direct, switched, gaps) for pair in reading.pairs))


def _leads_to_switch(link: NvlinkReading) -> bool:
    if link.remote_type is not None:
        return link.remote_type == "switch"
    # Drivers before R515 do not name the other end: a device that is no GPU is a switch.
    return link.remote_pci_bus_id is not None


def _link(
    pair: PairReading,
    direct: Counter[tuple[int, int]],
    switched: Counter[int],
    gaps: Mapping[int, str],
) -> TopologyLink:
    ways = ((pair.from_, pair.to), (pair.to, pair.from_))
    # One end that knows all of its links is enough to count those between the two.
    knowing = [way for way in ways if way[0] not in gaps]
    count = max((direct[way] for way in knowing), default=0)
    into_switches = [switched[way[0]] for way in knowing]
    if not count and len(knowing) < 2 and all(into_switches):
        # The PCIe path would read as "no NVLink", which is not known.
        gap = gaps.get(pair.from_) or gaps.get(pair.to)
        return TopologyLink(from_=pair.from_, to=pair.to, kind=None, unavailable=gap)
    # The slower end limits the pair.
    count = count or min(into_switches)
    if count:
        return TopologyLink(from_=pair.from_, to=pair.to, kind=f"NV{count}")
    kind = LEVELS.get(pair.level) if pair.level is not None else None
    reason = pair.unavailable
    if kind is None and reason is None:
        reason = f"NVML reports the unknown level {pair.level}"
    return TopologyLink(from_=pair.from_, to=pair.to, kind=kind, unavailable=reason)
