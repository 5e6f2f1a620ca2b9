"""Does the driver call the memory unrepairable, or want to repair it?"""

from __future__ import annotations

from gpucheck.core.checks.machine import Machine
from gpucheck.core.checks.per_gpu import Judgement, Trouble, over_gpus, unread
from gpucheck.models.evidence import GpuHealthReading
from gpucheck.models.finding import About, CheckStatus, Evidence, Finding, Layer
from gpucheck.models.snapshot import GpuReading

ID = "memory-repair"
LAYER = Layer.HEALTH
REQUIRES: tuple[str, ...] = ("nvml",)

ABOUT = About(
    looks_at=(
        "nvmlDeviceGetUnrepairableMemoryFlag_v1 and nvmlDeviceGetRepairStatus (new drivers)",
    ),
    why="The driver itself says that the GPU needs a repair, or is past it.",
    rules=("fail: unrepairable; warn: a repair is pending",),
    sources=("NVML API Reference", "DCGM diagnostics fail on the flag"),
    causes=(
        "memory-unrepairable",
        "repair-pending",
    ),
)


def check(machine: Machine) -> list[Finding]:
    """Judge every GPU that answers."""
    return over_gpus(machine, ID, "no memory waits for a repair", judge)


def judge(gpu: GpuReading, health: GpuHealthReading) -> Judgement:
    """Take the driver's word."""
    if health.memory_unrepairable:
        return Trouble(
            CheckStatus.FAIL,
            "the driver says that its memory cannot be repaired",
            (Evidence(source="nvmlDeviceGetUnrepairableMemoryFlag_v1", value="1"),),
            ("Ask the vendor to replace the GPU.",),
            cause="memory-unrepairable",
        )
    if health.repair_pending:
        return Trouble(
            CheckStatus.WARN,
            "the driver wants to repair it at the next reset",
            (Evidence(source="nvmlDeviceGetRepairStatus", value="pending"),),
            ("When nothing runs on it: sudo nvidia-smi --gpu-reset",),
            cause="repair-pending",
        )
    return unread(health, "memory_unrepairable")
