"""Protocol of the probes, implemented for this machine and for a recording."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

from gpucheck.drivers.readings import CudaReading, KernelReading, NvmlReading, ProcessIdentity
from gpucheck.report.host import Host

if TYPE_CHECKING:  # a listing does not load what only detect needs
    from gpucheck.drivers.evidence import (
        BuildsReading,
        HealthReading,
        HoldersReading,
        LaunchReading,
        ProcessFilesReading,
        SystemReading,
        TrialReading,
    )


class NvmlRequest(NamedTuple):
    """What to read through NVML beyond the usual reading of every GPU.

    With `processes_of`, only the processes of these GPUs (by index) are read.
    """

    topology: bool = False
    process_utilization: bool = False
    processes_of: tuple[int, ...] | None = None


class Probes(Protocol):
    """The machine as the features see it. A broken machine is a reading, never an exception."""

    def time(self) -> str:
        """Return the time of the readings, UTC, as `2026-11-21T03:32:00Z`."""
        ...

    def host(self) -> Host:
        """Return the facts about the operating system; the driver's fields are null."""
        ...

    def environment(self) -> Mapping[str, str]:
        """Return the environment variables that matter to GPU programs."""
        ...

    def kernel(self) -> KernelReading:
        """Read the PCI bus and the kernel modules without waking any driver."""
        ...

    def nvml(self, request: NvmlRequest) -> NvmlReading:
        """Read every GPU through NVML, within a deadline."""
        ...

    def start_cuda(self) -> None:
        """Start the process that `cuda` will need, so that it works beside NVML's."""
        ...

    def cuda(self, *, unrestricted: bool = False) -> CudaReading:
        """Ask libcuda in a fresh process which GPUs a program started now would see.

        It is a program without CUDA_VISIBLE_DEVICES if that is `unrestricted`. The answer holds
        for these variables until NVML reads every GPU again.
        """
        ...

    def system(self) -> SystemReading:
        """Read everything in files about the driver, without waking it."""
        ...

    def open_nodes(self, paths: Sequence[str]) -> Mapping[str, str | None]:
        """Open device files in a child and return their errors; this may wake the driver."""
        ...

    def health(self, gpus: Sequence[int] | None = None) -> HealthReading:
        """Read every GPU's health through NVML, or only whether `gpus` are fit for work."""
        ...

    def builds(self, python: str | None) -> BuildsReading:
        """Read for what an interpreter's frameworks (default: this one's) were built."""
        ...

    def try_frameworks(
        self, names: Sequence[str], python: str | None, report_progress: Callable[[str], None]
    ) -> tuple[TrialReading, ...]:
        """Import frameworks in children and let each use a GPU."""
        ...

    def launch(
        self,
        python: str | None,
        *,
        through_cupy: bool,
        every_gpu: bool,
        report_progress: Callable[[str], None],
    ) -> LaunchReading:
        """Run a kernel in a child and compare its result, then through CuPy if installed."""
        ...

    def identify(self, pids: Iterable[int]) -> Mapping[int, ProcessIdentity]:
        """Identify the processes, and tell whether their ids are of this PID namespace."""
        ...

    def device_holders(self) -> HoldersReading:
        """Search /proc for the processes that hold a GPU's device file open."""
        ...

    def process(self, pid: int) -> ProcessFilesReading:
        """Read the files of one process, without touching it."""
        ...

    def close(self) -> None:
        """End the helper processes."""
        ...
