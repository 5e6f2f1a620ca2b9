"""What the core asks of a machine: one Protocol, served by this machine or by a recording."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple, Protocol

from gpucheck.models.report import Host
from gpucheck.models.snapshot import CudaReading, KernelReading, NvmlReading, ProcessIdentity


class NvmlQuestion(NamedTuple):
    """What to ask NVML beyond the usual reading of every GPU."""

    topology: bool = False
    process_utilization: bool = False


class Probes(Protocol):
    """The machine as the core sees it. No method raises for a broken machine: it says so."""

    def time(self) -> str:
        """Return the moment of the readings, UTC, as `2026-11-21T03:32:00Z`."""
        ...

    def host(self) -> Host:
        """Return what is known of the operating system; the driver's fields are left null."""
        ...

    def environment(self) -> Mapping[str, str]:
        """Return the environment variables that matter to GPU programs."""
        ...

    def kernel(self) -> KernelReading:
        """Read the PCI bus and the kernel modules without waking any driver."""
        ...

    def nvml(self, question: NvmlQuestion) -> NvmlReading:
        """Read every GPU through NVML, within a deadline."""
        ...

    def cuda(self) -> CudaReading:
        """Ask libcuda in a fresh process what a program started now would see."""
        ...

    def identify(self, pids: Iterable[int]) -> Mapping[int, ProcessIdentity]:
        """Say who the processes are, and whether their ids are of this PID namespace."""
        ...

    def close(self) -> None:
        """End the helper processes."""
        ...
