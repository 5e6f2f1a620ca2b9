"""Records of `gpucheck detect`: findings and verdict (detect/1), and one process (process/1)."""

from collections.abc import Mapping
from enum import StrEnum
from typing import NamedTuple

from gpucheck.drivers.evidence import CgroupReading, MappedFrameworkReading
from gpucheck.inventory.model import MemoryCap
from gpucheck.report.envelope import NOTHING, CheckStatus, Evidence


class Layer(StrEnum):
    """The layers between a program and a running kernel, lowest first, and health."""

    ENVIRONMENT = "environment"
    PCI = "pci"
    KERNEL = "kernel"
    DEVICE_NODES = "device-nodes"
    NVML = "nvml"
    CUDA_DRIVER = "cuda-driver"
    VISIBILITY = "visibility"
    TOOLKIT = "toolkit"
    FRAMEWORK = "framework"
    LAUNCH = "launch"
    HEALTH = "health"


class Verdict(StrEnum):
    """Whether a program started now can use a GPU."""

    USABLE = "usable"
    DEGRADED = "degraded"
    UNUSABLE = "unusable"
    UNKNOWN = "unknown"


#: The beginning of the summary of what another failure kept from running.
UNREACHED = "not reached: "


class Finding(NamedTuple):
    """Result of one check; `gpu` is the UUID it is about, null for the whole machine.

    `cause` is a stable name of the problem, null if there is none.
    """

    id: str
    layer: Layer
    status: CheckStatus
    summary: str
    evidence: tuple[Evidence, ...] = ()
    remedy: tuple[str, ...] = ()
    gpu: str | None = None
    cause: str | None = None


class LayerSummary(NamedTuple):
    """One layer in one line: the worst finding in it."""

    layer: Layer
    status: CheckStatus
    summary: str


class Framework(NamedTuple):
    """Build of one framework; `sees_gpu` null means that it was not tried."""

    name: str
    version: str | None = None
    cuda_build: str | None = None
    sees_gpu: bool | None = None
    reason: str | None = None


class DetectedGpu(NamedTuple):
    """GPU that NVML lists, lost ones included; null is what could not be read."""

    index: int  # type: ignore[assignment]
    uuid: str | None = None
    name: str | None = None
    pci_bus_id: str | None = None


class Detection(NamedTuple):
    """Result of `gpucheck detect`: the verdict, its sentence, remedies, and evidence.

    `cause` and `cause_check` are the cause and the id of the finding that the sentence is about.
    `interpreter` is the Python whose frameworks were checked, `interpreter_named_by` what selected
    it: --python, VIRTUAL_ENV, CONDA_PREFIX, PATH, or gpucheck for the one it runs in; null if none
    was checked. `gpus` are those that NVML lists, `memory_limits` those of which our cgroup may use
    only a part.
    """

    usable: bool | None
    verdict: Verdict
    conclusion: str
    first_failure: str | None
    checks: tuple[Finding, ...]
    remedy: tuple[str, ...] = ()
    frameworks: tuple[Framework, ...] = ()
    layers: tuple[LayerSummary, ...] = ()
    cause: str | None = None
    interpreter: str | None = None
    interpreter_named_by: str | None = None
    cause_check: str | None = None
    gpus: tuple[DetectedGpu, ...] = ()
    memory_limits: tuple[MemoryCap, ...] = ()


class About(NamedTuple):
    """Description of a check: what it looks at, why, its rules, and their sources.

    `causes` are the names of the problems it can find.
    """

    looks_at: tuple[str, ...]
    why: str
    rules: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()
    causes: tuple[str, ...] = ()


class Cause(NamedTuple):
    """Problem that a check can find: what is wrong, and the steps that help."""

    name: str
    sentence: str
    remedy: tuple[str, ...]


class CheckDescription(NamedTuple):
    """One check as --list-checks and --explain show it; `causes` are those to be explained."""

    id: str
    layer: Layer
    question: str
    requires: tuple[str, ...]
    about: About
    causes: tuple[Cause, ...] = ()


class Catalogue(NamedTuple):
    """List of checks; `explained` asks for their full descriptions."""

    catalogue: tuple[CheckDescription, ...]
    explained: bool = False


# ---------------------------------------------------------------------------------------- a process


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
