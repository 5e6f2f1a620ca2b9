"""Is any GPU, or its memory, near the limit that the card itself names?"""

from __future__ import annotations

from gpucheck.core.checks.machine import Machine
from gpucheck.core.checks.per_gpu import Judgement, Trouble, Unread, over_gpus
from gpucheck.models.evidence import GpuHealthReading
from gpucheck.models.finding import About, CheckStatus, Evidence, Finding, Layer
from gpucheck.models.snapshot import GpuReading

ID = "temperature"
LAYER = Layer.HEALTH
REQUIRES: tuple[str, ...] = ("nvml",)

#: Below the card's slowdown temperature by this much or less.
NEAR_C = 5
#: Only where the card names no limit.
FALLBACK_WARN_C = 83
FALLBACK_FAIL_C = 90
ABOUT = About(
    looks_at=(
        "nvmlDeviceGetTemperature",
        "nvmlDeviceGetTemperatureThreshold: slowdown, highest for the GPU, highest for its memory",
        "nvmlDeviceGetFieldValues 82: the memory's temperature",
    ),
    why="At its slowdown temperature a GPU lowers its clocks, at its shutdown temperature it goes.",
    rules=(
        "fail: at the slowdown temperature or above",
        "warn: within 5 C of it, above the GPU's or the memory's highest operating temperature",
        "where the card names no limit: warn from 83 C, fail from 90 C",
    ),
    sources=(
        "the card's own limits, by NVML",
        "gpud: above GPU_MAX or MEM_MAX is degraded; gpumedic: 5 C below slowdown, 83 and 90 else",
    ),
    causes=(
        "gpu-hot",
        "memory-hot",
    ),
)


def check(machine: Machine) -> list[Finding]:
    """Judge every GPU that answers."""
    return over_gpus(machine, ID, "temperatures are below the cards' limits", judge)


def judge(gpu: GpuReading, health: GpuHealthReading) -> Judgement:
    """Compare with the card's own limits."""
    if gpu.temperature_c is None:
        return Unread(gpu.unavailable.get("temperature_c", "the driver does not tell"))
    now = gpu.temperature_c
    slowdown = health.temperature_slowdown_c
    hot_memory = _hot_memory(health)
    if slowdown is None:
        if now >= FALLBACK_WARN_C:
            status = CheckStatus.FAIL if now >= FALLBACK_FAIL_C else CheckStatus.WARN
            return _trouble(status, f"{now} C; the card names no limit", now, None)
        return hot_memory
    if now >= slowdown:
        return _trouble(
            CheckStatus.FAIL, f"{now} C, its slowdown temperature is {slowdown} C", now, slowdown
        )
    highest = health.temperature_gpu_max_c
    if now > slowdown - NEAR_C or (highest is not None and now > highest):
        return _trouble(
            CheckStatus.WARN,
            f"{now} C, near its slowdown temperature of {slowdown} C",
            now,
            slowdown,
        )
    return hot_memory


def _hot_memory(health: GpuHealthReading) -> Trouble | None:
    now, highest = health.temperature_memory_c, health.temperature_memory_max_c
    if now is None or highest is None or now <= highest:
        return None
    return _trouble(
        CheckStatus.WARN, f"memory at {now} C, its highest is {highest} C", now, highest
    )


def _trouble(status: CheckStatus, summary: str, now: int, limit: int | None) -> Trouble:
    evidence = [Evidence(source="temperature", value=f"{now} C")]
    if limit is not None:
        evidence.append(Evidence(source="the card's limit", value=f"{limit} C"))
    steps = ("Check air flow, fans and dust.",)
    cause = "memory-hot" if summary.startswith("memory") else "gpu-hot"
    return Trouble(status, summary, tuple(evidence), steps, cause)
