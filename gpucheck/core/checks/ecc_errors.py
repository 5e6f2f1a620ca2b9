"""Did the memory have errors that could not be corrected?"""

from __future__ import annotations

from gpucheck.core.checks.machine import Machine, count_of
from gpucheck.core.checks.per_gpu import Judgement, Trouble, over_gpus, unread
from gpucheck.models.evidence import GpuHealthReading
from gpucheck.models.finding import About, CheckStatus, Evidence, Finding, Layer
from gpucheck.models.snapshot import GpuReading

ID = "ecc-errors"
LAYER = Layer.HEALTH
REQUIRES: tuple[str, ...] = ("nvml",)

ABOUT = About(
    looks_at=(
        "nvmlDeviceGetTotalEccErrors: uncorrected and corrected since the driver was loaded",
        "nvmlDeviceGetSramEccErrorStatus: threshold exceeded",
        "nvmlDeviceGetEccMode: current and pending",
    ),
    why="An uncorrected error is a wrong result or a killed program, and often the first of more.",
    rules=(
        "fail: any uncorrected volatile error, or the SRAM threshold is exceeded",
        "warn: ECC is to be turned on or off with the next reset; corrected errors are a remark",
    ),
    sources=(
        "DCGM diagnostics and Meta GCM fail from 1 uncorrected volatile error on",
        "NVIDIA GPU memory error management",
    ),
    causes=(
        "ecc-uncorrected",
        "sram-threshold",
        "ecc-change-pending",
    ),
)


def check(machine: Machine) -> list[Finding]:
    """Judge every GPU that answers."""
    return over_gpus(machine, ID, "no uncorrected memory error", judge)


def judge(gpu: GpuReading, health: GpuHealthReading) -> Judgement:
    """Count those since the driver was loaded."""
    if health.ecc_uncorrected_volatile:
        return Trouble(
            CheckStatus.FAIL,
            f"{count_of(health.ecc_uncorrected_volatile, 'memory error')} could not be corrected",
            (
                Evidence(
                    source="nvmlDeviceGetTotalEccErrors(uncorrected, volatile)",
                    value=str(health.ecc_uncorrected_volatile),
                ),
            ),
            (
                "Drain the GPU, then: sudo nvidia-smi --gpu-reset",
                "If they come back: run the vendor's field diagnostics and replace the GPU.",
            ),
            cause="ecc-uncorrected",
        )
    if health.ecc_sram_threshold_exceeded:
        return Trouble(
            CheckStatus.FAIL,
            "its on-chip memory had more errors than NVIDIA's threshold",
            (Evidence(source="nvmlDeviceGetSramEccErrorStatus", value="threshold exceeded"),),
            ("Ask the vendor to replace the GPU.",),
            cause="sram-threshold",
        )
    pending = health.ecc_mode_pending
    if pending is not None and gpu.ecc_mode is not None and pending != gpu.ecc_mode:
        return Trouble(
            CheckStatus.WARN,
            f"ECC is to be turned {'on' if pending else 'off'} with the next reset",
            (Evidence(source="nvmlDeviceGetEccMode", value=f"{gpu.ecc_mode}, pending {pending}"),),
            ("Reset the GPU when nothing runs on it: sudo nvidia-smi --gpu-reset",),
            cause="ecc-change-pending",
        )
    missing = unread(health, "ecc_uncorrected_volatile")
    if missing is not None:
        return missing
    if health.ecc_corrected_volatile:
        return Trouble(
            CheckStatus.OK,
            f"memory errors that were corrected: {health.ecc_corrected_volatile}",
        )
    return None
