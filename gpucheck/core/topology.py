"""How GPUs reach each other, in the words that nvidia-smi topo -m taught everybody."""

from __future__ import annotations

from collections.abc import Sequence

from gpucheck.models.device import Topology, TopologyLink
from gpucheck.models.snapshot import GpuReading, NvlinkReading, PairReading, TopologyReading

#: NVML's nvmlGpuTopologyLevel_t in nvidia-smi's words. 0 is two GPUs of one board.
LEVELS = {0: "PIX", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}


def describe_topology(reading: TopologyReading, gpus: Sequence[GpuReading]) -> Topology:
    """Name the link of each pair: NVLinks where there are any, else the PCIe ancestor."""
    index_of = {gpu.pci_bus_id: gpu.index for gpu in gpus if gpu.pci_bus_id}
    active = [link for link in reading.nvlinks if link.active]
    gaps = _gaps(reading, gpus, index_of)
    return Topology(links=tuple(_link(pair, active, index_of, gaps) for pair in reading.pairs))


def _gaps(
    reading: TopologyReading, gpus: Sequence[GpuReading], index_of: dict[str, int]
) -> dict[int, str]:
    """Say of which GPUs not all NVLinks are known: their PCIe path would read as "no NVLink"."""
    nameless = [gpu.unavailable.get("pci_bus_id", "") for gpu in gpus if gpu.pci_bus_id is None]
    gaps = {}
    for link in reading.nvlinks:
        reason = link.unavailable
        somewhere = link.active and not _leads_to_gpu(link, index_of)
        if reason is None and nameless and somewhere and link.remote_type != "switch":
            reason = f"one leads to a GPU without a PCI bus id: {nameless[0]}"
        if reason is not None:
            gaps[link.gpu] = f"the NVLinks of GPU {link.gpu}: {reason}"
    return gaps


def _link(
    pair: PairReading,
    active: Sequence[NvlinkReading],
    index_of: dict[str, int],
    gaps: dict[int, str],
) -> TopologyLink:
    ends = (pair.from_, pair.to)
    # One end that knows all of its links is enough to count those between the two.
    knowing = [end for end in ends if end not in gaps]
    count = max((_direct(end, ends, active, index_of) for end in knowing), default=0)
    into_switches = [_into_switches(end, active, index_of) for end in knowing]
    if not count and len(knowing) < 2 and all(into_switches):
        gap = gaps.get(pair.from_) or gaps.get(pair.to)
        return TopologyLink(from_=pair.from_, to=pair.to, kind=None, unavailable=gap)
    # The slower end of a pair is what the pair has.
    count = count or min(into_switches)
    if count:
        return TopologyLink(from_=pair.from_, to=pair.to, kind=f"NV{count}")
    kind = LEVELS.get(pair.level) if pair.level is not None else None
    reason = pair.unavailable
    if kind is None and reason is None:
        reason = f"NVML gave the unknown level {pair.level}"
    return TopologyLink(from_=pair.from_, to=pair.to, kind=kind, unavailable=reason)


def _direct(
    end: int, ends: tuple[int, int], active: Sequence[NvlinkReading], index_of: dict[str, int]
) -> int:
    """Count the links from one end of a pair to the other."""
    other = ends[0] if end == ends[1] else ends[1]
    return sum(
        link.gpu == end and index_of.get(link.remote_pci_bus_id or "") == other for link in active
    )


def _into_switches(end: int, active: Sequence[NvlinkReading], index_of: dict[str, int]) -> int:
    return sum(link.gpu == end and _leads_to_switch(link, index_of) for link in active)


def _leads_to_gpu(link: NvlinkReading, index_of: dict[str, int]) -> bool:
    return link.remote_pci_bus_id is not None and link.remote_pci_bus_id in index_of


def _leads_to_switch(link: NvlinkReading, index_of: dict[str, int]) -> bool:
    if link.remote_type is not None:
        return link.remote_type == "switch"
    # Drivers before R515 do not say what is at the other end: a device that is no GPU is a switch.
    return link.remote_pci_bus_id is not None and not _leads_to_gpu(link, index_of)
