"""The readings that checks look at, each taken at most once and only when a check wants it."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property

from gpucheck.models.report import Host
from gpucheck.models.snapshot import CudaReading, KernelReading, NvmlReading
from gpucheck.probes.interface import NvmlQuestion, Probes

#: What helps where nothing more exact is known: the driver says there what it met.
KERNEL_LOG = "Look at what the driver says in the kernel log: sudo dmesg | grep -i nvrm"


class Machine:
    """Lazy readings over the probes."""

    def __init__(self, probes: Probes) -> None:
        self._probes = probes

    @cached_property
    def host(self) -> Host:
        """The operating system."""
        return self._probes.host()

    @cached_property
    def environment(self) -> Mapping[str, str]:
        """The GPU-related environment variables."""
        return self._probes.environment()

    @cached_property
    def kernel(self) -> KernelReading:
        """PCI devices and kernel modules."""
        return self._probes.kernel()

    @cached_property
    def nvml(self) -> NvmlReading:
        """What NVML says."""
        return self._probes.nvml(NvmlQuestion())

    @cached_property
    def cuda(self) -> CudaReading:
        """What libcuda says in a fresh process with this environment."""
        return self._probes.cuda()

    @property
    def is_wsl(self) -> bool:
        """Whether this is WSL2, where the Windows driver owns the GPU."""
        return (self.host.os or "").endswith("(WSL2)")
