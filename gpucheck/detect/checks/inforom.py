"""Is the InfoROM intact, the card's record of its identity and history?"""

from __future__ import annotations

from gpucheck.detect.findings import over_gpus
from gpucheck.detect.machine import Machine
from gpucheck.detect.model import Finding, Layer
from gpucheck.drivers.evidence import GpuHealthReading
from gpucheck.drivers.readings import GpuReading
from gpucheck.inventory.condition import Judgement, Trouble, unread
from gpucheck.report.envelope import CheckStatus, Evidence

ID = "inforom"
LAYER = Layer.HEALTH
REQUIRES: tuple[str, ...] = ("nvml",)


def check(machine: Machine) -> list[Finding]:
    """Judge every GPU that answers."""
    return over_gpus(machine, ID, "the InfoROMs are valid", judge)


def judge(gpu: GpuReading, health: GpuHealthReading) -> Judgement:
    """Judge by the driver's own validation."""
    missing = unread(health, "inforom_valid")
    if missing is not None:
        return missing
    if health.inforom_valid:
        return None
    return Trouble(
        CheckStatus.WARN,
        "its InfoROM is corrupted",
        (Evidence("nvmlDeviceValidateInforom", "NVML error 14"),),
        ("Ask the GPU's vendor to repair its InfoROM or to replace the GPU.",),
        cause="inforom-corrupted",
    )
