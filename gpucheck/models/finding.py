"""What a check found, and the verdict over all of them (contract: detect/1)."""

from enum import StrEnum
from typing import NamedTuple


class Layer(StrEnum):
    """The layers between a program and a running kernel, lowest first; health is beside them."""

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


class CheckStatus(StrEnum):
    """`skip`: not reached or not applicable; `unknown`: it was to be read and could not be."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"
    SKIP = "skip"
    UNKNOWN = "unknown"


class Verdict(StrEnum):
    """Whether a program started now can use a GPU."""

    USABLE = "usable"
    DEGRADED = "degraded"
    UNUSABLE = "unusable"
    UNKNOWN = "unknown"


class Evidence(NamedTuple):
    """Where it was looked (a path, a call, a variable) and the raw value found there."""

    source: str
    value: str


class Finding(NamedTuple):
    """One check's result; `gpu` is the UUID it speaks of, null for the whole machine.

    `cause` is a name for what is wrong that programs can rely on, null where nothing is.
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
    """One layer in one line: the worst of what was found in it."""

    layer: Layer
    status: CheckStatus
    summary: str


class Framework(NamedTuple):
    """What one framework's build can use; `sees_gpu` null means that it was not tried."""

    name: str
    version: str | None = None
    cuda_build: str | None = None
    sees_gpu: bool | None = None
    reason: str | None = None


class Detection(NamedTuple):
    """The result of `gpucheck detect`: verdict, the sentence saying it, steps to try, evidence.

    `cause` is that of the finding that the sentence speaks of. `interpreter` is the Python whose
    frameworks were looked at, `interpreter_named_by` what made it that one: --python, VIRTUAL_ENV,
    CONDA_PREFIX, PATH, or gpucheck for the one that it runs in; null where none was looked at.
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


class About(NamedTuple):
    """What a check looks at, why that matters, by which rules it judges, and who says so.

    `causes` are the names of what it can find wrong.
    """

    looks_at: tuple[str, ...]
    why: str
    rules: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()
    causes: tuple[str, ...] = ()


class CheckDescription(NamedTuple):
    """One check as --list-checks and --explain show it."""

    id: str
    layer: Layer
    question: str
    requires: tuple[str, ...]
    about: About


class Catalogue(NamedTuple):
    """The checks that there are; `explained` asks for all that is known of them."""

    catalogue: tuple[CheckDescription, ...]
    explained: bool = False
