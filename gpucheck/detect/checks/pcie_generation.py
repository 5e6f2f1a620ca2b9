"""Does every GPU under load use the PCIe generation that its slot supports?"""

from __future__ import annotations

from gpucheck.detect.findings import over_gpus
from gpucheck.detect.machine import Machine
from gpucheck.detect.model import Finding, Layer
from gpucheck.drivers.evidence import GpuHealthReading
from gpucheck.drivers.readings import GpuReading
from gpucheck.inventory.condition import Judgement, Trouble, unread
from gpucheck.report.envelope import CheckStatus, Evidence

ID = "pcie-generation"
LAYER = Layer.HEALTH
REQUIRES: tuple[str, ...] = ("nvml",)

#: Links slow down at idle; from this load on they should not.
BUSY_PERCENT = 50


def check(machine: Machine) -> list[Finding]:
    """Judge every GPU that answers."""
    return over_gpus(machine, ID, "PCIe generations are as expected", judge)


def judge(gpu: GpuReading, health: GpuHealthReading) -> Judgement:
    """Judge the generation only under load."""
    now, most = gpu.pcie_generation, gpu.pcie_generation_max
    if now is None or most is None:
        return unread(gpu, "pcie_generation", "pcie_generation_max")
    evidence = (Evidence("PCIe generation now, maximum", f"{now}, {most}"),)
    if now < most and (gpu.utilization_gpu_percent or 0) >= BUSY_PERCENT:
        return Trouble(
            CheckStatus.WARN,
            f"PCIe generation {now} of {most} under load",
            evidence,
            ("Reseat the GPU or its riser.", "Set the slot's speed in the BIOS to automatic."),
            cause="pcie-slow",
        )
    card = health.pcie_generation_gpu_max
    if card is not None and card > most:
        return Trouble(
            CheckStatus.OK, f"the slot supports PCIe generation {most}, the card {card}", evidence
        )
    return None
