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
    return Topology(links=tuple(_link(pair, active, index_of) for pair in reading.pairs))


def _link(
    pair: PairReading, active: Sequence[NvlinkReading], index_of: dict[str, int]
) -> TopologyLink:
    count = _direct(pair, active, index_of) or _switched(pair, active, index_of)
    if count:
        return TopologyLink(from_=pair.from_, to=pair.to, kind=f"NV{count}")
    kind = LEVELS.get(pair.level) if pair.level is not None else None
    reason = pair.unavailable
    if kind is None and reason is None:
        reason = f"NVML gave the unknown level {pair.level}"
    return TopologyLink(from_=pair.from_, to=pair.to, kind=kind, unavailable=reason)


def _direct(
    pair: PairReading, active: Sequence[NvlinkReading], index_of: dict[str, int]
) -> int:
    return sum(
        link.gpu == pair.from_ and index_of.get(link.remote_pci_bus_id or "") == pair.to
        for link in active
    )


def _switched(
    pair: PairReading, active: Sequence[NvlinkReading], index_of: dict[str, int]
) -> int:
    """Count links into NVSwitches; the slower end of a pair is what the pair has."""
    return min(
        sum(link.gpu == end and _leads_to_switch(link, index_of) for link in active)
        for end in (pair.from_, pair.to)
    )


def _leads_to_switch(link: NvlinkReading, index_of: dict[str, int]) -> bool:
    if link.remote_type is not None:
        return link.remote_type == "switch"
    # Drivers before R515 do not say what is at the other end: a device that is no GPU is a switch.
    return link.remote_pci_bus_id is not None and link.remote_pci_bus_id not in index_of
