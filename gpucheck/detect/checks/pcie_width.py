"""Does every GPU use all the PCIe lanes that its slot offers?"""

from __future__ import annotations

from gpucheck.detect.findings import over_gpus
from gpucheck.detect.machine import Machine
from gpucheck.detect.model import About, Finding, Layer
from gpucheck.drivers.evidence import GpuHealthReading
from gpucheck.drivers.readings import GpuReading
from gpucheck.inventory.condition import Judgement, Trouble, unread
from gpucheck.report.envelope import CheckStatus, Evidence

ID = "pcie-width"
LAYER = Layer.HEALTH
REQUIRES: tuple[str, ...] = ("nvml",)

ABOUT = About(
    looks_at=("nvmlDeviceGetCurrPcieLinkWidth and nvmlDeviceGetMaxPcieLinkWidth",),
    why="Half the lanes mean half the transfer rate, and nothing else shows it.",
    rules=("warn: fewer lanes than both slot and card support",),
    sources=(
        "gpumedic, Meta GCM",
        "unlike the generation, the width does not change with the load",
    ),
    causes=("pcie-narrow",),
)


def check(machine: Machine) -> list[Finding]:
    """Judge every GPU that answers."""
    return over_gpus(machine, ID, "PCIe links have their full width", judge)


def judge(gpu: GpuReading, health: GpuHealthReading) -> Judgement:
    """Compare the current width with the maximum."""
    missing = unread(gpu, "pcie_width", "pcie_width_max")
    if missing is not None:
        return missing
    now, most = gpu.pcie_width or 0, gpu.pcie_width_max or 0
    if now >= most:
        return None
    return Trouble(
        CheckStatus.WARN,
        f"PCIe x{now} of x{most}",
        (
            Evidence("nvmlDeviceGetCurrPcieLinkWidth", str(now)),
            Evidence("nvmlDeviceGetMaxPcieLinkWidth", str(most)),
        ),
        (
            "Reseat the GPU or its riser, and clean the contacts.",
            "Check in the BIOS how the slot's lanes are divided.",
        ),
        cause="pcie-narrow",
    )
