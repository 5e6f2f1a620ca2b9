"""Recorded probes: the answers of a snapshot file to the questions of live.py."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from gpucheck.drivers.evidence import (
    BuildsReading,
    HealthReading,
    HoldersReading,
    LaunchReading,
    ProcessFilesReading,
    SystemReading,
    TrialReading,
)
from gpucheck.drivers.host.files import MOST_JSON_BYTES, read_file
from gpucheck.drivers.readings import (
    CudaReading,
    KernelReading,
    NvmlReading,
    NvmlRequest,
    ProbeFailure,
    ProcessIdentity,
)
from gpucheck.report.codec import DecodeError, from_plain
from gpucheck.report.errors import WrongUseError
from gpucheck.report.host import Host
from gpucheck.report.saved import NEWER, check_bounds, version_of
from gpucheck.version import __version__

SCHEMA = "gpucheck/snapshot/1"
NOT_RECORDED = ProbeFailure(code="not-recorded", message="the snapshot did not record it")


class Snapshot(NamedTuple):
    """A machine as the probes saw it (contract: snapshot/1); null parts were not recorded.

    `cuda_unrestricted` is libcuda's answer without CUDA_VISIBLE_DEVICES, if that is set.
    """

    time: str
    host: Host
    environment: Mapping[str, str]
    kernel: KernelReading | None = None
    nvml: NvmlReading | None = None
    cuda: CudaReading | None = None
    processes: tuple[ProcessIdentity, ...] = ()
    redacted: bool = False
    system: SystemReading | None = None
    cuda_unrestricted: CudaReading | None = None
    health: HealthReading | None = None
    builds: BuildsReading | None = None


def read_snapshot(path: Path) -> Snapshot:
    """Read a snapshot document.

    Raises:
        WrongUseError: the file cannot be read, is not JSON or not a snapshot, or is newer.
    """
    document = _read_document(path)
    schema = document.get("schema")
    if schema != SCHEMA:
        problem = f"its schema is {repr(schema)[:60]}" if schema else "it has no schema"
        raise _unusable(path, f"is not a gpucheck snapshot that this version can read: {problem}")
    version = version_of(document)
    try:
        # Other versions recorded more, and earlier states of this one did.
        snapshot = from_plain(Snapshot, document.get("result"), where="result", ignored=[])
        check_bounds("snapshot", document)
    except DecodeError as error:
        other = version not in (None, __version__)
        by = f" (written by gpucheck {str(version)[:40]}; this is {__version__})" if other else ""
        more = (NEWER,) if other else ()
        raise _unusable(path, f"is damaged{by}: {str(error).removeprefix('$.')}", *more) from None
    return snapshot


def _read_document(path: Path) -> dict[str, Any]:
    try:
        document = json.loads(read_file(path, MOST_JSON_BYTES))
    except OSError as error:
        raise _unusable(path, f"cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError):
        raise _unusable(path, "is not JSON") from None
    if not isinstance(document, dict):
        raise _unusable(path, "is not a JSON object")
    return document


def _unusable(path: Path, problem: str, *steps: str) -> WrongUseError:
    return WrongUseError(
        code="snapshot-unusable",
        message=f"The snapshot {str(path)!r} {problem}.",
        remedy=(*steps, "Record one with: gpucheck snapshot FILE"),
    )


class RecordedProbes:
    """Readings from a snapshot; a part that was not recorded is a failure that says so."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot

    def time(self) -> str:
        """Return when the snapshot was taken."""
        return self._snapshot.time

    def host(self) -> Host:
        """Return the recorded host, marked as recorded."""
        return self._snapshot.host._replace(recorded=True)

    def environment(self) -> Mapping[str, str]:
        """Return the recorded variables."""
        return self._snapshot.environment

    def kernel(self) -> KernelReading:
        """Return the recorded PCI bus and modules."""
        return self._snapshot.kernel or KernelReading(pci_unavailable=NOT_RECORDED.message)

    def nvml(self, request: NvmlRequest) -> NvmlReading:
        """Return the recorded reading, without the parts that were not requested."""
        recorded = self._snapshot.nvml or NvmlReading(failure=NOT_RECORDED)
        return recorded if request.topology else recorded._replace(topology=None)

    def start_cuda(self) -> None:
        """Start nothing."""

    def cuda(self, *, unrestricted: bool = False) -> CudaReading:
        """Return libcuda's recorded answer, with the variable or without it."""
        unrestricted &= "CUDA_VISIBLE_DEVICES" in self._snapshot.environment
        recorded = self._snapshot.cuda_unrestricted if unrestricted else self._snapshot.cuda
        return recorded or CudaReading(failure=NOT_RECORDED)

    def system(self) -> SystemReading:
        """Return the recorded files of the driver."""
        return self._snapshot.system or SystemReading(unavailable=NOT_RECORDED.message)

    def open_nodes(self, paths: Sequence[str]) -> Mapping[str, str | None]:
        """Open nothing: the files here belong to another machine."""
        return {}

    def health(self, gpus: Sequence[int] | None = None) -> HealthReading:
        """Return the recorded health, also of a few GPUs."""
        return self._snapshot.health or HealthReading(failure=NOT_RECORDED)

    def builds(self, python: str | None) -> BuildsReading:
        """Return the frameworks of the interpreter that made the recording."""
        return self._snapshot.builds or BuildsReading(unavailable=NOT_RECORDED.message)

    def try_frameworks(self, names: Sequence[str], *_: Any) -> tuple[TrialReading, ...]:
        """Try nothing: a recording runs no framework."""
        return tuple(TrialReading(name=name, failure=NOT_RECORDED) for name in names)

    def launch(self, python: str | None, **options: Any) -> LaunchReading:
        """Run nothing: a recording has no GPU."""
        return LaunchReading(failure=NOT_RECORDED)

    def identify(self, pids: Iterable[int]) -> Mapping[int, ProcessIdentity]:
        """Return the recorded processes; the namespace of others is unknown."""
        known = {process.pid: process for process in self._snapshot.processes}
        return {pid: known.get(pid, ProcessIdentity(pid=pid, namespace="unknown")) for pid in pids}

    def device_holders(self) -> HoldersReading:
        """Return a reading without holders: they are not recorded."""
        return HoldersReading(unavailable="not recorded")

    def process(self, pid: int) -> ProcessFilesReading:
        """Return the recorded process on a GPU: no more than its name."""
        who = self.identify((pid,))[pid]
        return ProcessFilesReading(
            pid=pid,
            name=who.name,
            user=who.user,
            command=who.command,
            unavailable=dict.fromkeys(
                ("environment", "libraries", "frameworks", "device_files", "cgroup"),
                NOT_RECORDED.message,
            ),
        )

    def close(self) -> None:
        """Do nothing: nothing is open."""
