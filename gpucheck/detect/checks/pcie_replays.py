"""Are PCIe transfers repeated?"""

from __future__ import annotations

from gpucheck.detect.findings import over_gpus
from gpucheck.detect.machine import Machine
from gpucheck.detect.model import Finding, Layer
from gpucheck.drivers.evidence import GpuHealthReading
from gpucheck.drivers.readings import GpuReading
from gpucheck.inventory.condition import Judgement, Trouble, unread
from gpucheck.report.envelope import CheckStatus, Evidence

ID = "pcie-replays"
LAYER = Layer.HEALTH
REQUIRES: tuple[str, ...] = ("nvml",)

#: Transfer rate of a lane in GT/s, by generation.
LANE_GT_PER_S = {1: 2.5, 2: 5.0, 3: 8.0, 4: 16.0, 5: 32.0, 6: 64.0}
#: Fewer in so short a time may be chance.
LEAST_GROWTH = 2


def check(machine: Machine) -> list[Finding]:
    """Judge every GPU that answers."""
    return over_gpus(machine, ID, "no PCIe transfer was repeated during the check", judge)


def judge(gpu: GpuReading, health: GpuHealthReading) -> Judgement:
    """Compare the rate with DCGM's."""
    missing = unread(health, "pcie_replays_grown")
    if missing is not None:
        return missing
    grown, seconds = health.pcie_replays_grown or 0, health.sample_s or 0.1
    rate = grown * 60 / seconds
    lanes = (gpu.pcie_width or 16) * LANE_GT_PER_S.get(gpu.pcie_generation or 3, 8.0)
    limit = lanes * 60 / 1000
    if grown < LEAST_GROWTH or rate <= limit:
        return None
    return Trouble(
        CheckStatus.WARN,
        f"PCIe transfers are repeated: {grown} in {seconds * 1000:.0f} ms",
        (
            Evidence("replays a minute", f"{rate:.0f}, limit {limit:.0f}"),
            Evidence("replays since the driver started", str(health.pcie_replays)),
        ),
        ("Reseat the GPU or its riser, and clean the contacts.",),
        cause="pcie-replays",
    )
