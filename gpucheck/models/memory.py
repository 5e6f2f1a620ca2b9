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


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryRequest:
    """The amount as it was asked for: either a fraction of each GPU or bytes on each GPU."""

    text: str
    fraction: float | None = None
    bytes: int | None = None


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
    cuda_index: int | None = None
    index: int | None = None
    name: str | None = None
    mig_instance: bool = False
    unavailable: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mechanism:
    """One way to hold one framework to the limit.

    `setting` is what to set or the line of code, null where there is none. `applies` tells
    whether it takes effect in a program started now with the `environment` of the result.
    """

    framework: str
    mechanism: str
    setting: str | None
    strength: Strength
    applies: bool
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """What happened when a program tried to take more than the limit."""

    allocated_bytes: int
    refused_bytes: int | None
    refused_with: str | None
    held: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitedRun:
    """What a limited command did; `action` is what the watcher did about an excess."""

    exit_code: int
    peak_bytes: int | None
    exceeded: bool | None
    action: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryLimit:
    """The result of `gpucheck memlimit`; `environment` is what a limited command gets on top."""

    request: MemoryRequest
    gpus: tuple[GpuMemoryLimit, ...]
    mechanisms: tuple[Mechanism, ...]
    environment: dict[str, str] = field(default_factory=dict)
    verification: Verification | None = None
    run: LimitedRun | None = None
