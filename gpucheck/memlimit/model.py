"""Records of a GPU memory limit and of what enforces it (contract memlimit/1), and the overhead."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from gpucheck.drivers.python.frameworks import Software


class Strength(StrEnum):
    """Effect of a mechanism on a program that wants more than the limit.

    `hard`: the driver or the hardware refuses, whoever allocates. `allocator`: that framework's
    allocator refuses; the CUDA context, libraries and other allocators are not counted. `soft`:
    memory above the limit is released once it is free. `none`: nothing is refused.
    """

    HARD = "hard"
    ALLOCATOR = "allocator"
    SOFT = "soft"
    NONE = "none"


class Way(StrEnum):
    """Route by which a mechanism reaches a program."""

    ENVIRONMENT = "environment"
    CODE = "code"
    DRIVER = "driver"
    HARDWARE = "hardware"
    NOBODY = "nobody"


class WatchAction(StrEnum):
    """Action of the watcher on a command that exceeds the limit."""

    OFF = "off"
    WARN = "warn"
    STOP = "stop"


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryRequest:
    """Requested amount: either a fraction of each GPU or bytes on each GPU."""

    text: str
    fraction: float | None = None
    bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Overhead:
    """Estimate of what one process takes on a GPU outside its allocator, with its sources.

    `included` tells whether it was subtracted from the allocators' limit.
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
    """Limit on one visible GPU or MIG instance.

    `limit_bytes` is the whole limit, `allocator_limit_bytes` the limit for allocators. Both are
    null if the limit depends on the size of the GPU and that is unknown. `memory_limit_bytes` is
    our cgroup's limit, of which a share is then a part; `memory_total_bytes` stays the card's.
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
    memory_limit_bytes: int | None = None
    memory_limit_source: str | None = None
    unavailable: dict[str, str] = field(default_factory=dict)

    @property
    def number(self) -> int | None:
        """Return the number that `list` shows under GPU; of a MIG instance, CUDA's."""
        if self.mig_instance or self.index is None:
            return self.cuda_index
        return self.index

    @property
    def whole_bytes(self) -> int | None:
        """Return that of which a share is a part: our cgroup's limit, or else the card's total."""
        sizes = (self.memory_limit_bytes, self.memory_total_bytes)
        return min((size for size in sizes if size is not None), default=None)

    @property
    def cuda_total_bytes(self) -> int | None:
        """Return the total that CUDA's cuMemGetInfo is based on.

        It follows the cgroup's limit, but not that of a group above one that has none itself.
        Source: NVIDIA Dynamo, "Per-GPU Compute and Memory Limits with MPS", Verified Behavior.
        """
        inherited = self.memory_limit_source == "dmem.max of a parent"
        return self.memory_total_bytes if inherited else self.whole_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Mechanism:
    """Mechanism that holds one framework to the limit.

    `setting` is what to set or the line of code, null where there is none. `applies` tells
    whether it takes effect in a program started now with the `environment` of the result, and
    with the import hook where a command is run. `installed` tells whether the Python of the plan
    has the framework (null: unknown), `inherited` what the variable was set to before.
    `by_hook` tells whether the import hook of a run applies it, in whichever Python has the
    framework.
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
class Verification:
    """Outcome of a program's attempt to take more than the limit of one GPU.

    `limit_bytes` is what its mechanism allows there, `allocated_bytes` the most that it got,
    `refused_bytes` the size of the request that was refused then, `refused_with` the exception.
    The real limit lies from `allocated_bytes` to `refused_bytes` more; `deviation_bytes` is how
    far that begins above the limit (negative: below). `held` is null if it could not be tried,
    see `reason`; `restored` tells whether freed memory could be allocated again. `peak_bytes` is
    what the allocator counted then, `nvml_bytes` what NVML counted, `overhead_bytes` the
    difference, and `nvml_most_bytes` the most that NVML may count: the limit plus twice the
    estimated overhead.
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
    """Memory that a limited command took of one GPU; null where it could not be read."""

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
    """Process of the command on a GPU at the moment when the limit was exceeded."""

    pid: int
    name: str | None
    uuid: str | None
    memory_used_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitedRun:
    """Outcome of a limited command; `action` is what the watcher did about an excess.

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
class HardGpu:
    """The driver's limits on one GPU for a command's cgroup, and the most that it used, by NVML.

    `refused_bytes` is the request, beside `allocated_bytes` that it had got, that the driver
    refused with `refused_with` before the command started; null without `--verify`.
    """

    uuid: str
    index: int | None
    cuda_index: int | None
    soft_limit_bytes: int
    hard_limit_bytes: int
    peak_bytes: int | None = None
    allocated_bytes: int | None = None
    refused_bytes: int | None = None
    refused_with: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class HardLimit:
    """The cgroup that the driver limits, from its making to its removal.

    `place` is `own` (below our own group) or `scope` (systemd's). `back_end` is who enforces it:
    `dmem` (the kernel) or `driver`. `removed` is null while the command runs, and false if
    processes of it are left: then the limits stay for them, and the next call removes them.
    """

    cgroup: str
    place: str
    back_end: str
    gpus: tuple[HardGpu, ...]
    user: str | None = None
    removed: bool | None = None
    left_pids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryLimit:
    """Result of `gpucheck memlimit`; `environment` is what a limited command gets in addition.

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
    hard: HardLimit | None = None


#: Context on a driver that loads kernels at their first use.
LAZY_CONTEXT_BYTES = 512 << 20
#: Context that holds every kernel of every library from the start.
EAGER_CONTEXT_BYTES = 1088 << 20
#: Workspaces of cuBLAS and cuDNN handles that the frameworks' pools do not count.
LIBRARY_BYTES = 64 << 20

#: First version that loads modules lazily. Source: CUDA 11.7 release notes.
LAZY_SINCE = (11, 7)

_LAZY_SOURCE = (
    "context: 256 MiB (RTX 3090, PyTorch 2.7 with CUDA 12.8, InvokeAI#9413), 426 MiB (RTX 6000 Ada,"
    " PyTorch 2.10 with CUDA 13.0, unsloth-zoo#1053), 300 to 400 MB (pytorch#107667), rounded up"
)
_EAGER_SOURCE = (
    "context: more than 1000 MB before CUDA 11.7 (pytorch#107667),"
    " 1008 MiB on a Titan V (pytorch#28394), rounded up"
)
_LIBRARY_SOURCE = (
    "libraries: 32 MiB for cuBLASLt on Hopper, 4 MiB elsewhere (pytorch#120925),"
    " and the same again for cuDNN"
)
_NOT_COUNTED = (
    "not counted: NCCL, 544 to 688 MB for each group on A100 (nccl#964), and a context for each"
    " additional process"
)


def estimate_overhead(cuda_version: str | None, *, included: bool = False) -> Overhead:
    """Return the estimate for one process on one GPU; `included` is copied into it."""
    lazy = cuda_version is None or tuple(map(int, cuda_version.split("."))) >= LAZY_SINCE
    return Overhead(
        included=included,
        context_bytes=LAZY_CONTEXT_BYTES if lazy else EAGER_CONTEXT_BYTES,
        library_bytes=LIBRARY_BYTES,
        sources=(_LAZY_SOURCE if lazy else _EAGER_SOURCE, _LIBRARY_SOURCE, _NOT_COUNTED),
    )
