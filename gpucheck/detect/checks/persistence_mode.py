"""Is persistence mode on for every GPU without a display?"""

from __future__ import annotations

from gpucheck.detect.findings import over_gpus
from gpucheck.detect.machine import Machine
from gpucheck.detect.model import Finding, Layer
from gpucheck.drivers.evidence import GpuHealthReading
from gpucheck.drivers.readings import GpuReading
from gpucheck.inventory.condition import Judgement, Trouble, unread
from gpucheck.report.envelope import CheckStatus, Evidence

ID = "persistence-mode"
LAYER = Layer.HEALTH
REQUIRES: tuple[str, ...] = ("nvml",)


def check(machine: Machine) -> list[Finding]:
    """Judge every GPU that answers."""
    return over_gpus(machine, ID, "persistence mode is on", judge)


def judge(gpu: GpuReading, health: GpuHealthReading) -> Judgement:
    """Note where it is off; a desktop does not need it."""
    missing = unread(gpu, "persistence_mode")
    if missing is not None:
        return missing
    if gpu.persistence_mode or health.display_active:
        return None
    return Trouble(
        CheckStatus.OK,
        "persistence mode is off: the first program waits while the GPU wakes",
        (Evidence("nvmlDeviceGetPersistenceMode", "0"),),
    )
