"""The registry of checks, in the order in which they look: lowest layer first.

A check is a module with ID, LAYER, REQUIRES (ids whose failure leaves it unreached) and
`check(machine) -> Finding`. It looks at readings, never prints, and never raises for a broken
machine. PCI and module evidence comes before NVML and CUDA, which may load modules.
"""

from __future__ import annotations

from typing import Protocol

from gpucheck.core.checks import cuda_driver, kernel_module, nvml, pci_device
from gpucheck.core.checks.machine import Machine
from gpucheck.models.finding import Finding, Layer


class Check(Protocol):
    """What the registry expects of a check's module."""

    ID: str
    LAYER: Layer
    REQUIRES: tuple[str, ...]

    def check(self, machine: Machine) -> Finding:
        """Look, and say what was found."""
        ...


CHECKS: tuple[Check, ...] = (
    pci_device,
    kernel_module,
    nvml,
    cuda_driver,
)
