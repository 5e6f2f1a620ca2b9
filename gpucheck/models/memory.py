"""How much memory a program may take, and what holds it to that (contract memlimit/1)."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum


class Strength(StrEnum):
    """What a mechanism does about a program that wants more than the limit.

    `hard`: the driver or the hardware refuses, whoever allocates. `allocator`: that framework's
    allocator refuses; the CUDA context, libraries and other allocators are not counted. `soft`:
    memory above the limit is given back when it is free. `none`: nothing is refused.
    """

    HARD = "hard"
    ALLOCATOR = "allocator"
    SOFT = "soft"
    NONE = "none"


class Way(StrEnum):
    """How a mechanism gets into a program: who has to say it."""

    ENVIRONMENT = "environment"
    CODE = "code"
    DRIVER = "driver"
    HARDWARE = "hardware"
    NOBODY = "nobody"


class WatchAction(StrEnum):
    """What the watcher does about a command that takes more than the limit."""

    OFF = "off"
    WARN = "warn"
    STOP = "stop"


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryRequest:
    """The amount as it was asked for: either a fraction of each GPU or bytes on each GPU."""

    text: str
    fraction: float | None = None
    bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Overhead:
    """What one process takes on a GPU beside its allocator: an estimate, and where it is from.

    `included` tells whether it was taken off what allocators are told.
    """

    included: bool
    context_bytes: int
    library_bytes: int
    sources: tuple[str, ...]

    @property
    def total_bytes(self) -> int:
        """Return context and libraries together."""
        return self.context_bytes + self.library_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuMemoryLimit:
    """The limit on one visible GPU or MIG instance.

    `limit_bytes` is the whole limit, `allocator_limit_bytes` what allocators are told. Both are
    null where the size of the GPU is not known and the limit depends on it.
    """

    uuid: str | None
    memory_total_bytes: int | None
    limit_bytes: int | None
    allocator_limit_bytes: int | None
    context_estimate_bytes: int | None = None
    library_estimate_bytes: int | None = None
    memory_free_bytes: int | None = None
    cuda_index: int | None = None
    index: int | None = None
    name: str | None = None
    mig_instance: bool = False
    memory_source: str = "driver"
    unavailable: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mechanism:
    """One way to hold one framework to the limit.

    `setting` is what to set or the line of code, null where there is none. `applies` tells
    whether it takes effect in a program started now with the `environment` of the result, and
    with the import hook where a command is run. `installed` tells whether the Python of the plan
    has the framework (null: nobody knows), `inherited` what the variable was set to before.
    `by_hook` tells whether the import hook of a run does it, wherever the framework is.
    """

    framework: str
    mechanism: str
    setting: str | None
    strength: Strength
    applies: bool
    reason: str
    by: Way = Way.ENVIRONMENT
    installed: bool | None = None
    inherited: str | None = None
    by_hook: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Software:
    """The Python that the plan is for; `frameworks` (version by module) is null if not known.

    `named_by` is --python, VIRTUAL_ENV, CONDA_PREFIX, PATH, gpucheck for the one that it runs in,
    or null for the one that a command starts. `for_cpus` are modules of builds for CPUs only.
    """

    interpreter: str | None
    python: str | None
    frameworks: dict[str, str] | None
    reason: str | None = None
    named_by: str | None = None
    for_cpus: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """What happened when a program tried to take more than the limit of one GPU.

    `limit_bytes` is what its mechanism allows there, `allocated_bytes` the most that it got,
    `refused_bytes` the size of the request that was refused then, `refused_with` the exception:
    the real limit lies between the two. `deviation_bytes` is how far above the limit that begins,
    below it where negative. `held` is null where it could not be tried, see `reason`; `restored`
    tells whether there was room again after memory was freed. `peak_bytes` is what the allocator
    counted then, `nvml_bytes` what NVML did, `overhead_bytes` the difference, and `nvml_most_bytes`
    the most that NVML may count: the limit, and twice what a program takes beside it by estimate.
    """

    allocated_bytes: int | None
    refused_bytes: int | None
    refused_with: str | None
    held: bool | None
    framework: str | None = None
    version: str | None = None
    uuid: str | None = None
    cuda_index: int | None = None
    mechanism: str | None = None
    limit_bytes: int | None = None
    peak_bytes: int | None = None
    nvml_bytes: int | None = None
    overhead_bytes: int | None = None
    nvml_most_bytes: int | None = None
    deviation_bytes: int | None = None
    restored: bool | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunGpu:
    """What a limited command took of one GPU; null where it could not be read."""

    uuid: str | None
    index: int | None
    limit_bytes: int | None
    allowance_bytes: int
    peak_bytes: int | None
    exceeded: bool | None
    processes: int = 0
    cuda_index: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Culprit:
    """A process of the command that took most of a GPU when the limit was exceeded."""

    pid: int
    name: str | None
    uuid: str | None
    memory_used_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitedRun:
    """What a limited command did; `action` is what the watcher did about an excess.

    `peak_bytes` is the most that its processes together took of one GPU, at the moments when it
    was read (every `interval_s`); what is null has its reason in `unavailable`.
    """

    exit_code: int
    peak_bytes: int | None
    exceeded: bool | None
    action: str | None
    interval_s: float | None = None
    readings: int = 0
    gpus: tuple[RunGpu, ...] = ()
    culprits: tuple[Culprit, ...] = ()
    unavailable: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryLimit:
    """The result of `gpucheck memlimit`; `environment` is what a limited command gets on top.

    `verification` is the first cap that did not hold, or else the first that was tried.
    """

    request: MemoryRequest
    gpus: tuple[GpuMemoryLimit, ...]
    mechanisms: tuple[Mechanism, ...]
    environment: dict[str, str] = field(default_factory=dict)
    overhead: Overhead | None = None
    software: Software | None = None
    code: str | None = None
    verification: Verification | None = None
    verifications: tuple[Verification, ...] = ()
    run: LimitedRun | None = None
