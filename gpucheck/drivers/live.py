"""Live probes: this machine, or a system mounted under another root."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpucheck.drivers.child import SHARE_AFTER_A_HANG, Child, ChildDiedError
from gpucheck.drivers.host.environment import gpu_variables, read_host
from gpucheck.drivers.host.sysfs import count_gpus, driver_can_limit, read_kernel
from gpucheck.drivers.nvml.client import NvmlSession
from gpucheck.drivers.readings import (
    HUNG,
    CudaReading,
    GpuReading,
    KernelReading,
    NvmlReading,
    NvmlRequest,
    ProbeFailure,
    ProcessIdentity,
)
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

#: Files are read below this directory instead of `/`: a host mounted in a container, or a test.
ROOT_VARIABLE = "GPUCHECK_ROOT"

#: A healthy driver answers in milliseconds, but with persistence mode off the first client wakes
#: every GPU, 1 to 3 s each (NVIDIA's driver persistence documentation).
DEADLINE_BASE_S = 10.0
DEADLINE_PER_GPU_S = 3.0
#: The minimum, even after a hang.
LEAST_S = 1.0
#: Variables of a process, as a key.
Variables = frozenset[tuple[str, str]]


class LiveProbes:
    """Probes of the running system; one NVML child serves all requests until `close`."""

    def __init__(
        self, *, root: Path | None = None, deadline_s: float | None = None, wakes: bool = False
    ) -> None:
        self._root = root or Path(os.environ.get(ROOT_VARIABLE) or "/")
        self._deadline_s = deadline_s
        self._wakes = wakes
        self._session: NvmlSession | None = None
        #: The children that ask CUDA, and their answers, by their variables.
        self._started: dict[Variables, Child] = {}
        self._seen: dict[Variables, CudaReading] = {}
        self._hung = False

    def time(self) -> str:
        """Return the time of the readings, UTC, as `2026-11-21T03:32:00Z`."""
        return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")

    def host(self) -> Host:
        """Return the facts about the operating system; the driver's fields are null."""
        return read_host(self._root, os.environ)

    def environment(self) -> Mapping[str, str]:
        """Return the environment variables that matter to GPU programs."""
        return gpu_variables(os.environ)

    def kernel(self) -> KernelReading:
        """Read the PCI bus and the kernel modules without waking any driver."""
        return read_kernel(self._root)

    def deadline_s(self) -> float:
        """Return the driver's deadline in seconds, by the number of GPUs on the bus."""
        if self._deadline_s is not None:
            return self._deadline_s
        return DEADLINE_BASE_S + DEADLINE_PER_GPU_S * count_gpus(self._root)

    def patience_s(self) -> float:
        """Return the deadline of the driver's next answer, in seconds."""
        whole_s = self.deadline_s()
        return min(whole_s, max(LEAST_S, SHARE_AFTER_A_HANG * whole_s)) if self._hung else whole_s

    def _note_hang(self, failure: ProbeFailure | None) -> None:
        """Remember that the driver has missed a deadline."""
        if failure is not None and failure.code == HUNG:
            self._hung = True

    def nvml(self, request: NvmlRequest) -> NvmlReading:
        """Read every GPU through NVML's child; after a failure the next request starts another."""
        if self._session is None:
            self._session = NvmlSession()
        sysfs = str(self._root / "sys/bus/pci/devices")
        limits: Mapping[str, Mapping[str, Any]] = {}
        more: dict[str, Any] = {"wakes": True} if self._wakes else {}
        if driver_can_limit(self._root):
            from gpucheck.drivers.host.cgroups import read_cgroup

            group = read_cgroup(self._root)
            limits = group.limits
            if limits:
                more["whole_cards"] = True
            elif group.folder is not None and not group.has_dmem:
                more["limits_of"] = str(group.folder)
        reading = self._session.read(request, deadline_s=self.patience_s(), sysfs=sysfs, **more)
        if limits or "limits_of" in more:
            reading = reading._replace(gpus=tuple(_with_limit(gpu, limits) for gpu in reading.gpus))
        if reading.failure is not None:
            self._end_nvml()
        if request.processes_of is None:
            self._seen.clear()
        # With --watch, a driver that recovers gets its whole deadline back.
        self._hung = False
        self._note_hang(reading.failure)
        return reading

    def start_cuda(self) -> None:
        """Start the worker that asks libcuda; a failure is reported when it is asked."""
        from gpucheck.drivers.cuda.client import WORKER

        variables = frozenset(os.environ.items())
        with suppress(ChildDiedError):
            if variables not in self._started:
                self._started[variables] = Child(WORKER)

    def cuda(self, *, unrestricted: bool = False) -> CudaReading:
        """Ask libcuda in a fresh process which GPUs a program started now would see.

        It is a program without CUDA_VISIBLE_DEVICES if that is `unrestricted`. The answer holds
        for these variables until NVML reads every GPU again.
        """
        from gpucheck.drivers.cuda.client import read_cuda

        unset = "CUDA_VISIBLE_DEVICES" if unrestricted else None
        variables = frozenset(item for item in os.environ.items() if item[0] != unset)
        if variables not in self._seen:
            child = self._started.pop(variables, None)
            reading = self._seen[variables] = read_cuda(
                deadline_s=self.patience_s(), environment=dict(variables), child=child
            )
            self._note_hang(reading.failure)
        return self._seen[variables]

    def system(self) -> SystemReading:
        """Read everything in files about the driver, without waking it."""
        from gpucheck.drivers.host.driver_files import read_system

        return read_system(self._root, os.environ)

    def open_nodes(self, paths: Sequence[str]) -> Mapping[str, str | None]:
        """Open device files in a child and return their errors; this may wake the driver."""
        from gpucheck.drivers.host.driver_files import open_nodes

        opened = open_nodes(paths, self._root, deadline_s=self.patience_s())
        self._hung |= len(opened) < len(paths)
        return opened

    def health(self, gpus: Sequence[int] | None = None) -> HealthReading:
        """Read every GPU's health through NVML, or only whether `gpus` are fit for work."""
        if self._session is None:
            self._session = NvmlSession()
        reading = self._session.read_health(gpus, deadline_s=self.patience_s())
        if reading.failure is not None:
            self._end_nvml()
        self._note_hang(reading.failure)
        return reading

    def builds(self, python: str | None) -> BuildsReading:
        """Read for what an interpreter's frameworks (default: this one's) were built."""
        from gpucheck.drivers.python.frameworks import read_builds

        return read_builds(python, os.environ)

    def try_frameworks(
        self, names: Sequence[str], python: str | None, report_progress: Callable[[str], None]
    ) -> tuple[TrialReading, ...]:
        """Import frameworks in children and let each use a GPU."""
        from gpucheck.drivers.python.frameworks import run_framework_tests

        patience_s = self.patience_s()
        trials = run_framework_tests(
            names, python, os.environ, deadline_s=patience_s, report_progress=report_progress
        )
        for trial in trials:
            self._note_hang(trial.failure)
        return trials

    def launch(self, python: str | None, **options: Any) -> LaunchReading:
        """Run a kernel in a child and compare its result, then through CuPy if installed.

        The options are those of `run_kernel`.
        """
        from gpucheck.drivers.cuda.client import run_kernel

        reading = run_kernel(python, os.environ, deadline_s=self.patience_s(), **options)
        # A late CuPy is not the driver's fault: the driver has already run a kernel.
        self._note_hang(reading.failure)
        return reading

    def identify(self, pids: Iterable[int]) -> Mapping[int, ProcessIdentity]:
        """Identify the processes, and tell whether their ids are of this PID namespace."""
        wanted = sorted(set(pids))
        if not wanted:
            return {}
        from gpucheck.drivers.command_lines import read_in_time
        from gpucheck.drivers.host.processes import identify

        child = self._session.child if self._session is not None else None
        command_lines, given_up = read_in_time(wanted, str(self._root / "proc"), child)
        if given_up:
            self._end_nvml()
        return identify(wanted, self._root, command_lines)

    def device_holders(self) -> HoldersReading:
        """Search /proc, within a second, for the processes that hold a GPU's device file open."""
        from gpucheck.drivers.host.device_holders import read_holders

        return read_holders(self._root, self.identify)

    def process(self, pid: int) -> ProcessFilesReading:
        """Read the files of one process without touching it, in the driver's deadline."""
        from gpucheck.drivers.host.process_files import read_process_in_time

        return read_process_in_time(pid, self._root, deadline_s=self.deadline_s())

    def close(self) -> None:
        """End the children."""
        self._end_nvml()
        while self._started:
            self._started.popitem()[1].close()

    def _end_nvml(self) -> None:
        if self._session is not None:
            self._session.close()
            self._session = None


def _with_limit(gpu: GpuReading, limits: Mapping[str, Mapping[str, Any]]) -> GpuReading:
    """Return the reading with the limit that the kernel sets for our cgroup.

    A total that is no more than the limit may be the limit itself: then the card's is not known.
    """
    gpu = gpu._replace(**limits.get(gpu.pci_bus_id or "", {}))
    total = gpu.memory_total_bytes
    if total is None or gpu.memory_limit_bytes is None or total > gpu.memory_limit_bytes:
        return gpu
    reason = "NVML reports the memory of the cgroup, not of the card"
    names = ("memory_total_bytes", "memory_used_bytes", "memory_free_bytes")
    unknown: dict[str, Any] = dict.fromkeys(names)
    return gpu._replace(**unknown, unavailable={**gpu.unavailable, **dict.fromkeys(names, reason)})
