"""Findings of the checks, and the verdict over all of them (contract: detect/1)."""

from enum import StrEnum
from typing import NamedTuple

from gpucheck.inventory.model import MemoryCap
from gpucheck.report.envelope import CheckStatus, Evidence


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
