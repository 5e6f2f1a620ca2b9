"""Topology: how GPUs reach each other, in the terms of nvidia-smi topo -m."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from gpucheck.drivers.readings import GpuReading, NvlinkReading, PairReading, TopologyReading
from gpucheck.inventory.model import Topology, TopologyLink

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
