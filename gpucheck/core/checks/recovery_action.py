"""Does the driver ask for a reset or a reboot?"""

from __future__ import annotations

from gpucheck.core.checks.machine import Machine
from gpucheck.core.checks.per_gpu import Judgement, Trouble, over_gpus, unread
from gpucheck.models.evidence import GpuHealthReading
from gpucheck.models.finding import About, CheckStatus, Evidence, Finding, Layer
from gpucheck.models.snapshot import GpuReading

ID = "recovery-action"
LAYER = Layer.HEALTH
REQUIRES: tuple[str, ...] = ("nvml",)

#: What the driver asks for: status, words, what to do. Source: nvml.h (nvmlGpuRecoveryAction).
ACTIONS: dict[int, tuple[CheckStatus, str, str]] = {
    1: (CheckStatus.FAIL, "a reset", "Stop what runs on it, then: sudo nvidia-smi --gpu-reset"),
    2: (CheckStatus.FAIL, "a reboot of the machine", "Reboot."),
    3: (CheckStatus.WARN, "its peers to be drained", "Stop programs that use several GPUs."),
    4: (
        CheckStatus.FAIL,
        "to be drained and reset",
        "Let programs end and start no new ones, then: sudo nvidia-smi --gpu-reset",
    ),
    5: (CheckStatus.WARN, "its IMEX domain to be recovered", "Restart nvidia-imex in the domain."),
    6: (CheckStatus.FAIL, "a reset of its bus", "Reboot, or reset the slot."),
    7: (CheckStatus.FAIL, "a reboot of the system", "Reboot."),
}
ABOUT = About(
    looks_at=("nvmlDeviceGetFieldValues 230 (NVML_FI_DEV_GET_GPU_RECOVERY_ACTION)",),
    why="The driver's own word on what it takes to make the GPU work again.",
    rules=("fail: reset, reboot, drain and reset; warn: drain peers, recover the IMEX domain",),
    sources=("nvml.h: nvmlDeviceGpuRecoveryAction_t", "DCGM diagnostics: 1, 2 and 4 fail, 3 warns"),
    causes=("recovery-action-N",),
)


def check(machine: Machine) -> list[Finding]:
    """Judge every GPU that answers."""
    return over_gpus(machine, ID, "the driver asks for no recovery", judge)


def judge(gpu: GpuReading, health: GpuHealthReading) -> Judgement:
    """Translate the driver's action."""
    missing = unread(health, "recovery_action")
    if missing is not None:
        return missing
    action = health.recovery_action or 0
    if action == 0:
        return None
    unknown = (CheckStatus.WARN, f"the unknown action {action}", "Update gpucheck, or the driver.")
    status, what, step = ACTIONS.get(action, unknown)
    return Trouble(
        status,
        f"the driver asks for {what}",
        (Evidence(source="recovery action", value=str(action)),),
        (step,),
        cause=f"recovery-action-{action}",
    )
