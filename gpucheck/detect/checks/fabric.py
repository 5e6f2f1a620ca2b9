"""Is the NVLink fabric of NVSwitch machines ready and healthy?"""

from __future__ import annotations

from gpucheck.detect.findings import judge_gpus, make_trouble
from gpucheck.detect.machine import Machine
from gpucheck.detect.model import Finding, Layer
from gpucheck.drivers.evidence import GpuHealthReading
from gpucheck.drivers.readings import GpuReading
from gpucheck.inventory.condition import Trouble, unread
from gpucheck.report.envelope import CheckStatus, Evidence

ID = "fabric"
LAYER = Layer.HEALTH
REQUIRES: tuple[str, ...] = ("nvml",)

COMPLETED = 3
#: CUDA_ERROR_SYSTEM_NOT_READY.
SYSTEM_NOT_READY = 802
#: Source: nvml.h (NVML_GPU_FABRIC_HEALTH_SUMMARY_*).
HEALTH = {2: "unhealthy", 3: "of limited capacity"}


def check(machine: Machine) -> list[Finding]:
    """Judge every GPU that answers.

    CUDA does not start before the fabric that it needs is set up: if a kernel runs, no program
    here needs that fabric. In a recording, which runs none, it tells that CUDA started. A virtual
    machine with one card of a switched board has no fabric manager, and needs none.
    """
    alone = is_one_card_of_a_board(machine)

    def judged(gpu: GpuReading, health: GpuHealthReading) -> Trouble | None:
        if (
            alone
            and health.fabric_state != COMPLETED
            and health.nvlinks
            and not health.nvlinks_active
        ):
            return Trouble(CheckStatus.SKIP, "one GPU of a switched machine needs no fabric")
        return judge(gpu, health)

    findings = judge_gpus(machine, ID, "the NVLink fabric is ready", judged)
    if machine.has_run_a_kernel:
        yet = "a kernel runs"
    elif machine.host.recorded and machine.cuda.device_count:
        yet = "CUDA starts"
    else:
        return findings
    return [
        finding._replace(status=CheckStatus.WARN, summary=f"{finding.summary}, yet {yet}")
        if finding.status is CheckStatus.FAIL
        else finding
        for finding in findings
    ]


def is_one_card_of_a_board(machine: Machine) -> bool:
    """Return whether this virtual machine got one card without the switches, and CUDA agrees.

    What CUDA said counts only if it was asked: the quick run asks none.
    """
    asked = machine.host.recorded or "cuda" in vars(machine)
    refusal = machine.cuda.failure if asked else None
    return (
        bool(machine.system.platform.hypervisor)
        and not machine.system.nvswitches
        and len(machine.nvml.gpus) == 1
        and (refusal is None or refusal.library_code != SYSTEM_NOT_READY)
    )


def judge(gpu: GpuReading, health: GpuHealthReading) -> Trouble | None:
    """Judge the state, the status and the health; state 0 means that there is no fabric."""
    missing = unread(health, "fabric_state")
    if missing is not None:
        return missing
    state, status = health.fabric_state or 0, health.fabric_status or 0
    if state == 0:
        return Trouble(CheckStatus.SKIP, "not supported by this GPU")
    evidence = Evidence(
        "nvmlDeviceGetGpuFabricInfoV",
        f"state {state}, status {status}, health {health.fabric_health or 0}",
    )
    if state != COMPLETED or status != 0:
        return make_trouble(ID, "fabric-not-ready", evidence, status=CheckStatus.FAIL)
    condition = HEALTH.get(health.fabric_health or 0)
    if condition is None:
        return None
    return make_trouble(ID, "fabric-unhealthy", evidence, condition=condition)
