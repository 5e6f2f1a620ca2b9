"""Does every GPU use all the PCIe lanes that its slot offers?"""

from __future__ import annotations

from gpucheck.detect.findings import over_gpus
from gpucheck.detect.machine import Machine
from gpucheck.detect.model import Finding, Layer
from gpucheck.inventory.condition import pcie_width

ID = "pcie-width"
LAYER = Layer.HEALTH
REQUIRES: tuple[str, ...] = ("nvml",)


def check(machine: Machine) -> list[Finding]:
    """Judge every GPU that answers."""
    return over_gpus(machine, ID, "PCIe links have their full width", pcie_width)
