"""Do the fans turn on GPUs that are hot?"""

from __future__ import annotations

from gpucheck.core.checks.machine import Machine
from gpucheck.core.checks.per_gpu import Judgement, Trouble, Unread, over_gpus, unread
from gpucheck.models.evidence import GpuHealthReading
from gpucheck.models.finding import About, CheckStatus, Evidence, Finding, Layer
from gpucheck.models.snapshot import GpuReading

ID = "fan"
LAYER = Layer.HEALTH
REQUIRES: tuple[str, ...] = ("nvml",)

#: Below it a card may well stop its fans.
WARM_C = 75
ABOUT = About(
    looks_at=("nvmlDeviceGetNumFans, nvmlDeviceGetFanSpeed, nvmlDeviceGetTemperature",),
    why="Many cards stop their fans while they are cool; a hot one with still fans is broken.",
    rules=("warn: fan speed 0 % from 75 C on",),
    sources=("a rule of gpucheck's own: the other tools judge no fan",),
    causes=("fans-stand-still",),
)


def check(machine: Machine) -> list[Finding]:
    """Judge every GPU that answers."""
    return over_gpus(machine, ID, "fans turn where it is hot", judge)


def judge(gpu: GpuReading, health: GpuHealthReading) -> Judgement:
    """Only cards that have fans."""
    if health.fan_count == 0:
        return Unread("no such thing: the card has no fan")
    missing = unread(gpu, "fan_percent", "temperature_c")
    if missing is not None:
        return missing
    if gpu.fan_percent or (gpu.temperature_c or 0) < WARM_C:
        return None
    return Trouble(
        CheckStatus.WARN,
        f"its fans stand still at {gpu.temperature_c} C",
        (Evidence(source="nvmlDeviceGetFanSpeed", value="0 %"),),
        ("Check that the fans turn, and what is set for them (nvidia-settings).",),
        cause="fans-stand-still",
    )
