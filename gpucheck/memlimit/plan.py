"""Plan of a memory limit: the bytes on each visible GPU, and the settings that enforce them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from gpucheck.drivers.host.mps import MpsReading
from gpucheck.drivers.python.frameworks import FrameworksReading
from gpucheck.inventory.model import Gpu
from gpucheck.memlimit import cupy, hard, jax, onnxruntime, pytorch, tensorflow
from gpucheck.memlimit.model import GpuMemoryLimit, MemoryLimit, MemoryRequest, Overhead, Software
from gpucheck.memlimit.overhead import estimate_overhead
from gpucheck.memlimit.situation import HookState, Setting, Situation
from gpucheck.place.model import CudaDevice
from gpucheck.place.placement import visible_devices
from gpucheck.report.errors import MissingError, WrongUseError
from gpucheck.report.units import Amount


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PlanRequest:
    """Options besides the amount; `chosen` are the UUIDs of --gpu in order, None means all GPUs."""

    include_overhead: bool = False
    chosen: tuple[str | None, ...] | None = None


def plan_limit(
    amount: Amount,
    gpus: Sequence[Gpu],
    *,
    environment: Mapping[str, str] | None = None,
    request: PlanRequest | None = None,
    cuda_version: str | None = None,
    frameworks: FrameworksReading | None = None,
    mps: MpsReading | None = None,
    hook: HookState | None = None,
) -> MemoryLimit:
    """Compute the limit for each visible GPU and the setting for each framework.

    `environment` is what the limited program would inherit; a tighter limit in it is kept.

    Raises:
        WrongUseError: the amount is more than a card has, or less than a byte of it.
        MissingError: no GPU is visible.
        InconclusiveError: it is unknown which GPUs are visible.
    """
    wanted = request or PlanRequest()
    overhead = estimate_overhead(cuda_version, included=wanted.include_overhead)
    limits = _limits(amount, gpus, wanted, overhead)
    situation = Situation(
        amount=amount,
        limits=limits,
        environment={} if environment is None else environment,
        overhead_included=wanted.include_overhead,
        frameworks=frameworks or FrameworksReading(),
        hook=_usable(hook or HookState(), limits),
        mps=mps,
        oldest_capability=_oldest(gpus),
    )
    settings = _settings(situation)
    return MemoryLimit(
        request=MemoryRequest(
            text=amount.text,
            fraction=None if amount.share is None else float(amount.share),
            bytes=amount.size_bytes,
        ),
        gpus=situation.limits,
        mechanisms=tuple(setting.mechanism for setting in settings),
        environment={key: value for each in settings for key, value in each.variables.items()},
        overhead=overhead,
        software=None if frameworks is None else _software(frameworks),
    )


def _usable(hook: HookState, limits: Sequence[GpuMemoryLimit]) -> HookState:
    """Return the hook's state; without the limit of every GPU it cannot run."""
    if hook.present is False or all(gpu.allocator_limit_bytes is not None for gpu in limits):
        return hook
    reason = "the import hook needs the limit of every GPU, and one is unknown"
    return HookState(present=False, reason=reason)


def _settings(situation: Situation) -> list[Setting]:
    return [
        cupy.plan(situation),
        jax.plan(situation),
        *pytorch.plan(situation),
        *tensorflow.plan(situation),
        onnxruntime.plan(situation),
        *hard.plan(situation),
    ]


def _software(reading: FrameworksReading) -> Software:
    return Software(
        interpreter=reading.interpreter.path if reading.interpreter else None,
        named_by=(reading.interpreter.named_by or None) if reading.interpreter else None,
        python=reading.python,
        for_cpus=reading.for_cpus,
        frameworks=None if reading.frameworks is None else dict(reading.frameworks),
        reason=reading.reason or None,
    )


def _limits(
    amount: Amount, gpus: Sequence[Gpu], wanted: PlanRequest, overhead: Overhead
) -> tuple[GpuMemoryLimit, ...]:
    devices = visible_devices(gpus)
    if wanted.chosen is not None:
        by_uuid = {device.uuid: device for device in devices}
        devices = tuple(by_uuid[uuid] for uuid in dict.fromkeys(wanted.chosen))
    if not devices:
        raise _nothing_visible(gpus)
    free = _free_by_uuid(gpus)
    return tuple(_limit(amount, device, free.get(device.uuid), overhead) for device in devices)


def _free_by_uuid(gpus: Sequence[Gpu]) -> dict[str | None, int | None]:
    free: dict[str | None, int | None] = {}
    for gpu in gpus:
        free[gpu.uuid] = gpu.memory_free_bytes
        for instance in gpu.mig.instances:
            total, used = instance.memory_total_bytes, instance.memory_used_bytes
            free[instance.uuid] = None if total is None or used is None else total - used
    return free


def _limit(
    amount: Amount, device: CudaDevice, free: int | None, overhead: Overhead
) -> GpuMemoryLimit:
    total = device.memory_total_bytes
    unavailable = {} if free is not None else {"memory_free_bytes": "NVML does not report it"}
    if total is None:
        limit = amount.size_bytes
        unavailable["memory_total_bytes"] = "NVML does not report its total"
        if limit is None:
            reason = f"{amount.text} of an unknown total"
            unavailable |= {"limit_bytes": reason, "allocator_limit_bytes": reason}
    else:
        limit = _checked(amount, device, total)
    return GpuMemoryLimit(
        uuid=device.uuid,
        memory_total_bytes=total,
        limit_bytes=limit,
        allocator_limit_bytes=_for_allocators(amount, device, limit, overhead),
        context_estimate_bytes=overhead.context_bytes,
        library_estimate_bytes=overhead.library_bytes,
        memory_free_bytes=free,
        cuda_index=device.cuda_index,
        index=device.index,
        name=device.name,
        mig_instance=device.mig_instance,
        memory_source=device.memory_source,
        unavailable=unavailable,
    )


def _for_allocators(
    amount: Amount, device: CudaDevice, limit: int | None, overhead: Overhead
) -> int | None:
    """Subtract what is allocated outside the allocators, if that was requested."""
    if limit is None or not overhead.included:
        return limit
    left = limit - overhead.total_bytes
    if left > 0:
        return left
    raise WrongUseError(
        code="less-than-the-overhead",
        message=f"{amount.text} of {_what(device)} is {limit} bytes, but a CUDA program needs"
        f" about {overhead.total_bytes} bytes outside its allocator, so nothing is left.",
        remedy=("Give a larger amount, or omit --include-overhead.",),
    )


def _checked(amount: Amount, device: CudaDevice, total: int) -> int:
    """Return the limit in bytes; refuse one that does not fit the device."""
    limit = amount.bytes_of(total)
    if limit > total:
        raise WrongUseError(
            code="more-than-the-card",
            message=f"{amount.text} is {limit} bytes, more than the {total} bytes of "
            f"{_what(device)}.",
            remedy=("Give a smaller amount, or a share such as 90%.",),
        )
    if limit == 0:
        raise WrongUseError(
            code="bad-amount",
            message=f"{amount.text} of {_what(device)} is less than one byte.",
            remedy=("Give a larger share, or bytes such as 8GiB.",),
        )
    return limit


def _what(device: CudaDevice) -> str:
    number = device.index if device.cuda_index is None else device.cuda_index
    kind = "MIG instance" if device.mig_instance else "GPU"
    return f"{kind} {number} ({ascii(device.name)[1:-1]})" if device.name else f"{kind} {number}"


def _oldest(gpus: Sequence[Gpu]) -> tuple[int, int] | None:
    versions = [
        (int(major), int(minor))
        for gpu in gpus
        if gpu.compute_capability and gpu.visible
        for major, _, minor in [gpu.compute_capability.partition(".")]
    ]
    return min(versions, default=None)


def _nothing_visible(gpus: Sequence[Gpu]) -> MissingError:
    if not gpus:
        fact = "There is no GPU to limit."
    else:
        reasons = sorted({gpu.hidden_reason for gpu in gpus if gpu.hidden_reason})
        why = f": {reasons[0]}" if reasons else ""
        fact = f"None of the {len(gpus)} GPUs is visible to CUDA{why}."
    return MissingError(code="no-visible-gpu", message=fact, remedy=("Run: gpucheck detect",))
