"""Is every GPU's power limit the default, and its power supply sufficient?"""

from __future__ import annotations

from gpucheck.detect.findings import over_gpus
from gpucheck.detect.machine import Machine
from gpucheck.detect.model import Finding, Layer
from gpucheck.drivers.evidence import GpuHealthReading
from gpucheck.drivers.readings import GpuReading
from gpucheck.inventory.condition import Judgement, Trouble, unread
from gpucheck.report.envelope import CheckStatus, Evidence

ID = "power-limit"
LAYER = Layer.HEALTH
REQUIRES: tuple[str, ...] = ("nvml",)

#: Source: nvml.h (NVML_POWER_SOURCE_*).
SOURCES = {1: "runs on battery", 2: "has an undersized power supply"}
#: The driver rounds limits.
TOLERANCE_W = 1.0


def check(machine: Machine) -> list[Finding]:
    """Judge every GPU that answers."""
    return over_gpus(machine, ID, "power limits are the defaults", judge)


def judge(gpu: GpuReading, health: GpuHealthReading) -> Judgement:
    """Compare the enforced limit with the default."""
    supply = SOURCES.get(health.power_source or 0)
    if supply is not None:
        return Trouble(
            CheckStatus.WARN,
            supply,
            (Evidence("nvmlDeviceGetPowerSource", str(health.power_source)),),
            ("Connect the power supply that the machine came with.",),
            cause="power-supply",
        )
    missing = unread(gpu, "power_limit_w") or unread(health, "power_limit_default_w")
    if missing is not None:
        return missing
    now, default = gpu.power_limit_w or 0.0, health.power_limit_default_w or 0.0
    if now >= default - TOLERANCE_W:
        return None
    return Trouble(
        CheckStatus.OK,
        f"its power limit is lowered to {now:.0f} W of {default:.0f} W",
        (Evidence("nvmlDeviceGetEnforcedPowerLimit", f"{now:.0f} W"),),
    )
