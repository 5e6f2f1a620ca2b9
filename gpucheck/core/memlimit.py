"""What an amount of memory means on each visible GPU, and what holds each framework to it.

Shares are of the total that NVML reports. CuPy and JAX multiply a fraction by CUDA's total, which
is a little smaller, so the same fraction never exceeds the limit there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from gpucheck.core.placement import visible_devices
from gpucheck.models.device import Gpu
from gpucheck.models.errors import MissingError, WrongUseError
from gpucheck.models.memory import (
    GpuMemoryLimit,
    Mechanism,
    MemoryLimit,
    MemoryRequest,
    Strength,
)
from gpucheck.models.placement import CudaDevice
from gpucheck.models.units import Amount

MIB = 1024**2

CUPY_LIMIT = "CUPY_GPU_MEMORY_LIMIT"
JAX_FRACTION = "XLA_CLIENT_MEM_FRACTION"
JAX_FRACTION_OLD = "XLA_PYTHON_CLIENT_MEM_FRACTION"
JAX_ALLOCATOR = "XLA_PYTHON_CLIENT_ALLOCATOR"

#: Decimals of a fraction in a setting; rounded down, it costs less than 0.1 MiB on any card.
_DECIMALS = 9

_NO_CONTEXT = "the CUDA context was not measured on this GPU"


def plan_limit(
    amount: Amount, gpus: Sequence[Gpu], *, environment: Mapping[str, str] | None = None
) -> MemoryLimit:
    """Work out the limit for each visible GPU and the setting of each framework.

    `environment` is what the limited program would inherit: a limit in it that is tighter stays.

    Raises:
        WrongUseError: when the amount is more than a card has, or nothing on it.
        MissingError: when no GPU is visible.
        InconclusiveError: when it is not known which are visible.
    """
    devices = visible_devices(gpus)
    if not devices:
        raise _nothing_visible(gpus)
    limits = tuple(_limit(amount, device) for device in devices)
    inherited = {} if environment is None else environment
    applied = (_cupy(amount, limits, inherited), _jax(amount, limits, inherited))
    return MemoryLimit(
        request=MemoryRequest(
            text=amount.text,
            fraction=None if amount.share is None else float(amount.share),
            bytes=amount.size_bytes,
        ),
        gpus=limits,
        mechanisms=(
            *(setting.mechanism for setting in applied),
            _pytorch(amount, limits),
            _tensorflow(limits),
            _mps(limits),
            _OTHER_PROGRAMS,
        ),
        environment={name: value for setting in applied for name, value in setting.variables},
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Setting:
    """A mechanism and the variables that it adds to the environment."""

    mechanism: Mechanism
    variables: tuple[tuple[str, str], ...] = ()


_OTHER_PROGRAMS = Mechanism(
    framework="any other CUDA program",
    mechanism="none",
    setting=None,
    strength=Strength.NONE,
    applies=False,
    reason="cudaMalloc knows no limit: only MPS or a MIG instance holds such a program",
)


def _limit(amount: Amount, device: CudaDevice) -> GpuMemoryLimit:
    total = device.memory_total_bytes
    unavailable = {"context_estimate_bytes": _NO_CONTEXT}
    if total is None:
        limit = amount.size_bytes
        unavailable["memory_total_bytes"] = "NVML reports no total for it"
        if limit is None:
            reason = f"{amount.text} of an unknown total"
            unavailable |= {"limit_bytes": reason, "allocator_limit_bytes": reason}
    else:
        limit = _checked(amount, device, total)
    return GpuMemoryLimit(
        uuid=device.uuid,
        memory_total_bytes=total,
        limit_bytes=limit,
        allocator_limit_bytes=limit,
        cuda_index=device.cuda_index,
        index=device.index,
        name=device.name,
        mig_instance=device.mig_instance,
        unavailable=unavailable,
    )


def _checked(amount: Amount, device: CudaDevice, total: int) -> int:
    """Return the limit in bytes, refusing one that the device cannot have."""
    limit = amount.bytes_of(total)
    what = f"{'MIG instance' if device.mig_instance else 'GPU'} {_number(device)}"
    if limit > total:
        raise WrongUseError(
            code="more-than-the-card",
            message=f"{amount.text} is {limit} bytes, more than the {total} bytes of {what}.",
            remedy=("Write a smaller amount, or a share such as 90%.",),
        )
    if limit == 0:
        raise WrongUseError(
            code="bad-amount",
            message=f"{amount.text} of {what} is less than one byte.",
            remedy=("Write a larger share, or bytes such as 8GiB.",),
        )
    return limit


def _number(device: CudaDevice) -> str:
    number = device.index if device.cuda_index is None else device.cuda_index
    return f"{number} ({_shown(device.name)})" if device.name else str(number)


def _nothing_visible(gpus: Sequence[Gpu]) -> MissingError:
    if not gpus:
        fact = "There is no GPU whose memory could be limited."
    else:
        reasons = sorted({gpu.hidden_reason for gpu in gpus if gpu.hidden_reason})
        why = f": {reasons[0]}" if reasons else ""
        fact = f"None of the {len(gpus)} GPUs is visible to CUDA{why}."
    return MissingError(code="no-visible-gpu", message=fact, remedy=("Run: gpucheck detect",))


def _fraction_everywhere(amount: Amount, limits: Sequence[GpuMemoryLimit]) -> Fraction | None:
    """Return the fraction that keeps every GPU within the limit; None if a total is missing."""
    if amount.share is not None:
        return amount.share
    shares = []
    for gpu in limits:
        if gpu.limit_bytes is None or gpu.memory_total_bytes is None:
            return None
        shares.append(Fraction(gpu.limit_bytes, gpu.memory_total_bytes))
    return min(shares)


def _decimal(value: Fraction) -> str:
    """Write a number of at most 100 as a decimal, rounded down."""
    whole, rest = divmod(int(value * 10**_DECIMALS), 10**_DECIMALS)
    return f"{whole}.{rest:0{_DECIMALS}d}".rstrip("0").rstrip(".")


def _cupy(
    amount: Amount, limits: Sequence[GpuMemoryLimit], inherited: Mapping[str, str]
) -> _Setting:
    """Cap CuPy's default pool: bytes or percent of each device's total."""
    ours = str(amount.size_bytes) if amount.share is None else f"{_decimal(amount.share * 100)}%"
    if ours == "0%":
        return _cupy_setting(None, "as a percentage it rounds to 0%, which CuPy reads as no limit")
    theirs = inherited.get(CUPY_LIMIT)
    if theirs is None:
        return _cupy_setting(ours, "default pool only; the asynchronous pool is held softly")
    if _cupy_is_tighter(theirs, amount, limits):
        return _cupy_setting(theirs, f"{CUPY_LIMIT} is set already and is no wider; it stays")
    return _cupy_setting(ours, f"replaces {_shown(theirs)}, which does not keep to the limit")


def _cupy_setting(value: str | None, reason: str) -> _Setting:
    mechanism = Mechanism(
        framework="cupy",
        mechanism=CUPY_LIMIT,
        setting=None if value is None else f"{CUPY_LIMIT}={_shown(value)}",
        strength=Strength.ALLOCATOR,
        applies=value is not None,
        reason=reason,
    )
    return _Setting(mechanism=mechanism, variables=() if value is None else ((CUPY_LIMIT, value),))


def _cupy_is_tighter(text: str, amount: Amount, limits: Sequence[GpuMemoryLimit]) -> bool:
    """Return whether CuPy would read `text` as a limit that is within ours on every GPU."""
    if not text.endswith("%"):
        size = _number_of(text) if text.isdigit() else None
        return size is not None and all(_is_within(size, gpu.limit_bytes) for gpu in limits)
    percent = _number_of(text[:-1])
    if percent is None or not 0 < percent <= 100:
        return False
    if amount.share is not None:
        return percent <= amount.share * 100
    return all(
        gpu.memory_total_bytes is not None
        and _is_within(percent / 100 * gpu.memory_total_bytes, gpu.limit_bytes)
        for gpu in limits
    )


def _is_within(size: Fraction, limit_bytes: int | None) -> bool:
    return limit_bytes is not None and 0 < size <= limit_bytes


def _number_of(text: str) -> Fraction | None:
    """Read a plain decimal; text that is longer or stranger is no limit that we would rely on."""
    if len(text) > 40 or not text.isascii() or not set(text) <= set("0123456789."):
        return None
    try:
        return Fraction(text)
    except ValueError:
        return None


def _jax(
    amount: Amount, limits: Sequence[GpuMemoryLimit], inherited: Mapping[str, str]
) -> _Setting:
    """Cap JAX's pool: one fraction of CUDA's total, for all devices."""
    fraction = _fraction_everywhere(amount, limits)
    if fraction is None:
        return _jax_setting(JAX_FRACTION, None, "it needs a fraction, and a GPU's total is unknown")
    name, theirs = _jax_name(inherited)
    if name is None:
        reason = f"{JAX_FRACTION} and {JAX_FRACTION_OLD} are both set, which JAX refuses; unset one"
        return _jax_setting(JAX_FRACTION, None, reason)
    ours = _decimal(fraction)
    if inherited.get(JAX_ALLOCATOR) == "platform":
        return _jax_setting(name, None, f"{JAX_ALLOCATOR}=platform allocates without a pool")
    if ours == "0":
        return _jax_setting(name, None, "the fraction rounds to 0")
    if theirs is None:
        return _jax_setting(name, ours, _jax_reason(limits, amount))
    value = _number_of(theirs)
    if value is not None and 0 < value <= fraction:
        return _jax_setting(name, theirs, f"{name} is set already and is no wider; it stays")
    return _jax_setting(name, ours, f"replaces {_shown(theirs)}, which does not keep to the limit")


def _jax_name(inherited: Mapping[str, str]) -> tuple[str | None, str | None]:
    """Return the name to set and the value it has: JAX refuses to start with both names."""
    new, old = inherited.get(JAX_FRACTION), inherited.get(JAX_FRACTION_OLD)
    if new and old:
        return None, None
    if old:
        return JAX_FRACTION_OLD, old
    return JAX_FRACTION, new or None


def _jax_reason(limits: Sequence[GpuMemoryLimit], amount: Amount) -> str:
    pool = "the pool only; memory for collectives comes on top"
    totals = {gpu.memory_total_bytes for gpu in limits}
    if amount.share is None and len(totals) > 1:
        return f"one fraction for all GPUs, that of the largest; {pool}"
    return pool


def _jax_setting(name: str, value: str | None, reason: str) -> _Setting:
    mechanism = Mechanism(
        framework="jax",
        mechanism=name,
        setting=None if value is None else f"{name}={_shown(value)}",
        strength=Strength.ALLOCATOR,
        applies=value is not None,
        reason=reason,
    )
    return _Setting(mechanism=mechanism, variables=() if value is None else ((name, value),))


def _pytorch(amount: Amount, limits: Sequence[GpuMemoryLimit]) -> Mechanism:
    """Give PyTorch's line: a float fraction of the total, for each device (an int is refused)."""
    fraction = _fraction_everywhere(amount, limits)
    setting = None
    if fraction is not None:
        value = _decimal(fraction) if fraction < 1 else "1.0"
        setting = f"torch.cuda.set_per_process_memory_fraction({value}, device)"
    return Mechanism(
        framework="pytorch",
        mechanism="set_per_process_memory_fraction",
        setting=setting,
        strength=Strength.ALLOCATOR,
        applies=False,
        reason="a line in the program, for each device"
        if setting
        else "it needs a fraction, and a GPU's total is unknown",
    )


def _tensorflow(limits: Sequence[GpuMemoryLimit]) -> Mechanism:
    """Give TensorFlow's line: whole MiB, as its runtime cuts anything else down to an integer."""
    sizes = [None if gpu.limit_bytes is None else gpu.limit_bytes // MIB for gpu in limits]
    known = [size for size in sizes if size]
    usable = len(known) == len(sizes)
    missing = "a GPU's limit is unknown" if None in sizes else "it counts in whole MiB"
    return Mechanism(
        framework="tensorflow",
        mechanism="set_logical_device_configuration",
        setting=_tensorflow_line(known) if usable else None,
        strength=Strength.ALLOCATOR,
        applies=False,
        reason="a line in the program, before TensorFlow starts its devices; memory_limit is in MiB"
        if usable
        else missing,
    )


def _tensorflow_line(sizes: Sequence[int]) -> str:
    listed = ", ".join(str(size) for size in sizes)
    pairs = f'zip(tf.config.list_physical_devices("GPU"), [{listed}])'
    logical = "tf.config.LogicalDeviceConfiguration(memory_limit=mib)"
    return f"for gpu, mib in {pairs}: tf.config.set_logical_device_configuration(gpu, [{logical}])"


def _mps(limits: Sequence[GpuMemoryLimit]) -> Mechanism:
    """Give the MPS client's limit, the only one here that counts every allocation."""
    parts = [
        f"{gpu.uuid}={gpu.limit_bytes // MIB}M"
        for gpu in limits
        if gpu.uuid and gpu.limit_bytes and gpu.limit_bytes >= MIB
    ]
    name = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"
    return Mechanism(
        framework="any program",
        mechanism=name,
        setting=f"{name}={','.join(parts)}" if len(parts) == len(limits) else None,
        strength=Strength.HARD,
        applies=False,
        reason="only where an MPS daemon serves the program, which was not looked at",
    )


def _shown(text: str) -> str:
    """Return outside text unquoted, with control characters made visible."""
    return ascii(text)[1:-1]
