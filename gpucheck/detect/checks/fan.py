"""Do the fans of hot GPUs turn?"""

from __future__ import annotations

from gpucheck.detect.findings import over_gpus
from gpucheck.detect.machine import Machine
from gpucheck.detect.model import Finding, Layer
from gpucheck.drivers.evidence import GpuHealthReading
from gpucheck.drivers.readings import GpuReading
from gpucheck.inventory.condition import Judgement, Trouble, Unread, unread
from gpucheck.report.envelope import CheckStatus, Evidence

ID = "fan"
LAYER = Layer.HEALTH
REQUIRES: tuple[str, ...] = ("nvml",)

#: Below it a card may stop its fans.
WARM_C = 75


def check(machine: Machine) -> list[Finding]:
    """Judge every GPU that answers."""
    return over_gpus(machine, ID, "no hot GPU has stopped fans", judge)


def judge(gpu: GpuReading, health: GpuHealthReading) -> Judgement:
    """Judge only cards that have fans."""
    if health.fan_count == 0:
        return Unread("the card has no fan", applies=False)
    missing = unread(gpu, "fan_percent", "temperature_c")
    if missing is not None:
        return missing
    if gpu.fan_percent or (gpu.temperature_c or 0) < WARM_C:
        return None
    return Trouble(
        CheckStatus.WARN,
        f"its fans are stopped at {gpu.temperature_c} C",
        (Evidence("nvmlDeviceGetFanSpeed", "0 %"),),
        ("Check that the fans can turn, and their settings (nvidia-settings).",),
        cause="fans-stand-still",
    )
