"""Does the driver report the memory as unrepairable, or a repair as pending?"""

from __future__ import annotations

from gpucheck.detect.findings import over_gpus
from gpucheck.detect.machine import Machine
from gpucheck.detect.model import About, Finding, Layer
from gpucheck.inventory.condition import memory_repair

ID = "memory-repair"
LAYER = Layer.HEALTH
REQUIRES: tuple[str, ...] = ("nvml",)

ABOUT = About(
    looks_at=(
        "nvmlDeviceGetUnrepairableMemoryFlag_v1 and nvmlDeviceGetRepairStatus (new drivers)",
    ),
    why="The driver itself reports that the GPU needs a repair, or is beyond repair.",
    rules=("fail: unrepairable; warn: a repair is pending",),
    sources=("NVML API Reference", "DCGM diagnostics fail on the flag"),
    causes=("memory-unrepairable", "repair-pending"),
)


def check(machine: Machine) -> list[Finding]:
    """Judge every GPU that answers."""
    return over_gpus(machine, ID, "no memory repair is pending", memory_repair)
