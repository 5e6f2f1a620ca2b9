"""One running process and the GPUs: what it uses, or why it uses none (contract: process/1)."""

from collections.abc import Mapping
from typing import NamedTuple

from gpucheck.drivers.evidence import CgroupReading, MappedFrameworkReading
from gpucheck.report.envelope import NOTHING, Evidence


class UsedGpu(NamedTuple):
    """GPU, or MIG instance of one, that the process uses, or a process below it: `pid`.

    `index` is NVML's number of the card. Memory null: the driver does not report it.
    """

    index: int  # type: ignore[assignment]
    pid: int
    uuid: str | None = None
    name: str | None = None
    memory_used_bytes: int | None = None
    mig: bool = False


class Obstacle(NamedTuple):
    """What keeps the process from a GPU, or may break it there; `hinders`: it cannot use one."""

    id: str
    summary: str
    hinders: bool
    evidence: tuple[Evidence, ...] = ()
    remedy: tuple[str, ...] = ()


class LoadedLibrary(NamedTuple):
    """Library that the process has loaded; the version is that in the file's name.

    `deleted`: another file, or none, has its name now.
    """

    name: str
    path: str
    version: str | None = None
    deleted: bool = False


class ProcessAnswer(NamedTuple):
    """Result of `gpucheck detect --pid`: whether a process uses a GPU, and if not why.

    `uses_gpu` null: it cannot be told. `cause` is the id of the first obstacle that the conclusion
    is about. `device_files` are the driver's files that it holds open, `devices_present` whether
    its /dev has any; `environment` has the GPU-related variables with which it was started;
    `own_namespaces` are the kinds that it does not share with gpucheck, pid or mnt; `state` is
    running, sleeping, stopped, waiting (in the kernel) or ended. What could not be read has its
    reason in `unavailable`.
    """

    pid: int
    uses_gpu: bool | None
    conclusion: str
    cause: str | None = None
    remedy: tuple[str, ...] = ()
    name: str | None = None
    user: str | None = None
    command: str | None = None
    state: str | None = None
    threads: int | None = None
    gpus: tuple[UsedGpu, ...] = ()
    obstacles: tuple[Obstacle, ...] = ()
    libraries: tuple[LoadedLibrary, ...] | None = None
    frameworks: tuple[MappedFrameworkReading, ...] | None = None
    device_files: tuple[str, ...] | None = None
    devices_present: bool | None = None
    environment: Mapping[str, str] | None = None
    cgroup: CgroupReading | None = None
    own_namespaces: tuple[str, ...] = ()
    unavailable: Mapping[str, str] = NOTHING
