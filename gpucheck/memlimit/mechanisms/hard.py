"""Hard limits, enforced by the driver (MPS clients) or the hardware (MIG instances)."""

from __future__ import annotations

from collections.abc import Iterator

from gpucheck.memlimit.mechanisms.setting import MIB, PlanInput, Setting
from gpucheck.memlimit.model import Mechanism, Strength, Way
from gpucheck.report.text import shown
from gpucheck.report.units import BYTES_PER_UNIT

MPS_LIMIT = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"
#: MPS limits need Volta. Source: NVIDIA's MPS guide.
MPS_CAPABILITY = (7, 0)


def plan(inputs: PlanInput) -> Iterator[Setting]:
    """Yield MPS, MIG if a visible device is an instance, and what nothing limits."""
    yield _mps(inputs)
    if any(gpu.mig_instance for gpu in inputs.limits):
        yield _mig(inputs)
    if inputs.has("numba"):
        # Numba asks the driver for every array, unless another memory manager is plugged in.
        reason = "it allocates without a pool that could be limited"
        yield _unlimited("numba", reason, installed=True)
    yield _unlimited("any other CUDA program", "only MPS, MIG or --hard can limit it")


def cgroup_mechanism() -> Mechanism:
    """Return the limit that the driver sets for the cgroup of a command (`--hard`)."""
    return Mechanism(
        framework="any program",
        mechanism="nvmlDeviceSetMemoryLimits_v1",
        setting=None,
        strength=Strength.HARD,
        applies=True,
        reason="the driver refuses for the whole cgroup; managed memory is not counted on the GPU",
        by=Way.DRIVER,
    )


def _unlimited(framework: str, reason: str, *, installed: bool | None = None) -> Setting:
    """Return the mechanism of programs that no setting and no line of code limits."""
    mechanism = Mechanism(
        framework=framework,
        mechanism="none",
        setting=None,
        strength=Strength.NONE,
        applies=False,
        reason=reason,
        by=Way.NOBODY,
        installed=installed,
    )
    return mechanism, {}


def _mps(inputs: PlanInput) -> Setting:
    """Limit the MPS client, which counts every allocation, including CUDA's own."""
    value, problem = _mps_value(inputs)
    reading = inputs.mps
    oldest = inputs.oldest_capability
    if reading is None:
        applies, reason = False, "only where an MPS daemon serves the program; not checked"
    elif oldest is not None and oldest < MPS_CAPABILITY:
        applies, reason = False, "MPS limits memory from compute capability 7.0 on"
    else:
        applies, reason = reading[0] is True, reading[1]
    # A program without a daemon ignores it, and a daemon may be invisible from here.
    wanted = value is not None and reading is not None and reading[0] is not False
    mechanism = Mechanism(
        framework="any program",
        mechanism=MPS_LIMIT,
        setting=None if value is None else f"{MPS_LIMIT}={shown(value, len(value))}",
        strength=Strength.HARD,
        applies=applies and wanted,
        reason=problem or reason,
        by=Way.DRIVER,
        inherited=inputs.environment.get(MPS_LIMIT),
    )
    return mechanism, {MPS_LIMIT: value} if wanted and value is not None else {}


def _mps_value(inputs: PlanInput) -> tuple[str | None, str | None]:
    """Return the entries, merged with those already set, or why there are none."""
    ours: dict[str, int] = {}
    for gpu in inputs.limits:
        if not gpu.uuid or not gpu.limit_bytes or gpu.limit_bytes < MIB:
            return None, "each GPU needs a UUID and a known limit of at least 1 MiB"
        ours[gpu.uuid] = gpu.limit_bytes // MIB
    theirs = inputs.environment.get(MPS_LIMIT)
    if not theirs:
        return ",".join(f"{uuid}={size}M" for uuid, size in ours.items()), None
    merged: dict[str, str] = {}
    for entry in theirs.split(","):
        key, separator, size = entry.strip().partition("=")
        if not separator or _mebibytes(size) is None:
            return None, f"{MPS_LIMIT} is set to {shown(theirs)}, which cannot be parsed"
        merged[key] = size
    for uuid, limit in ours.items():
        there = _mebibytes(merged.get(uuid, ""))
        if there is None or there > limit:
            merged[uuid] = f"{limit}M"
    return ",".join(f"{key}={size}" for key, size in merged.items()), None


def _mebibytes(text: str) -> float | None:
    """Parse MPS's `1G` or `512M` (also `512MB`); None for anything else."""
    digits = text.rstrip("GgMmKkBb")
    factor = BYTES_PER_UNIT.get(text[len(digits) :].lower().removesuffix("b"))
    if not (digits.isascii() and digits.isdigit() and len(digits) < 20) or factor is None:
        return None
    return int(digits) * int(factor) / MIB


def _mig(inputs: PlanInput) -> Setting:
    """Return the MIG instance as a mechanism; it applies if the limit is the whole instance."""
    inside = [gpu for gpu in inputs.limits if gpu.mig_instance]
    exact = all(
        gpu.memory_total_bytes is not None and gpu.memory_total_bytes <= (gpu.limit_bytes or 0)
        for gpu in inside
    )
    if exact:
        reason = "the limit is the whole instance: the hardware refuses everything above it"
    else:
        reason = (
            "the hardware refuses only what exceeds the instance; below that, the frameworks refuse"
        )
    mechanism = Mechanism(
        framework="any program",
        mechanism="MIG instance",
        setting=None,
        strength=Strength.HARD,
        applies=exact,
        reason=reason,
        by=Way.HARDWARE,
    )
    return mechanism, {}
