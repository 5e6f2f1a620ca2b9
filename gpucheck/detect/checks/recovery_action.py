"""Does the driver ask for a reset or a reboot?"""

from __future__ import annotations

from gpucheck.detect.findings import over_gpus
from gpucheck.detect.machine import Machine
from gpucheck.detect.model import About, Finding, Layer
from gpucheck.inventory.condition import recovery_action

ID = "recovery-action"
LAYER = Layer.HEALTH
REQUIRES: tuple[str, ...] = ("nvml",)

ABOUT = About(
    looks_at=("nvmlDeviceGetFieldValues 230 (NVML_FI_DEV_GET_GPU_RECOVERY_ACTION)",),
    why="The driver itself names what makes the GPU work again.",
    rules=("fail: reset, reboot, drain and reset; warn: drain peers, recover the IMEX domain",),
    sources=("nvml.h: nvmlDeviceGpuRecoveryAction_t", "DCGM diagnostics: 1, 2 and 4 fail, 3 warns"),
    causes=("recovery-action-N",),
)


def check(machine: Machine) -> list[Finding]:
    """Judge every GPU that answers."""
    return over_gpus(machine, ID, "the driver asks for no recovery", recovery_action)
