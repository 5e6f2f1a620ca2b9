"""Registry of the checks, in the order in which they run: lowest layer first.

A check is a module with ID, LAYER, REQUIRES (ids whose failure leaves it unreached) and
`check(machine)`, which returns a finding, or a list of them if it is about several GPUs. Its
docstring is its question; what --explain adds stands in gpucheck/data/checks.toml. Checks that
differ only in data are rows of a table: gpu_health.py, frameworks.py. A check looks at readings,
never prints, and never raises for a broken machine. Its remedies are written for a plain host;
remedies.py adapts them to the machine at hand. PCI, module and node evidence comes before NVML and
CUDA, which may load modules.
"""

from __future__ import annotations

from typing import Protocol

from gpucheck.detect.checks import (
    compute_mode,
    cuda_driver,
    device_nodes,
    environment,
    fabric,
    frameworks,
    gpu_count,
    gpu_health,
    gpu_lost,
    kernel_module,
    launch,
    mig_mode,
    nvlink,
    nvml,
    pci_device,
    toolkit_libraries,
    uvm_node,
    variables,
    vbios_versions,
    visibility,
    xid,
)
from gpucheck.detect.machine import Machine
from gpucheck.detect.model import Finding, Layer


class Check(Protocol):
    """Interface of a check: a module, or a row of a table if many are alike."""

    ID: str
    LAYER: Layer
    REQUIRES: tuple[str, ...]

    def check(self, machine: Machine) -> Finding | list[Finding]:
        """Return the finding, or one for each GPU."""
        ...


CHECKS: tuple[Check, ...] = (
    environment,
    pci_device,
    kernel_module,
    device_nodes,
    uvm_node,
    nvml,
    mig_mode,
    compute_mode,
    cuda_driver,
    visibility,
    variables,
    toolkit_libraries,
    *frameworks.FRAMEWORKS,
    launch,
    gpu_lost,
    gpu_count,
    *gpu_health.CARD,
    nvlink,
    gpu_health.NVLINK_ERRORS,
    fabric,
    gpu_health.INFOROM,
    xid,
    gpu_health.PERSISTENCE_MODE,
    vbios_versions,
)
