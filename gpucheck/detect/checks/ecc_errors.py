"""Did the memory have errors that could not be corrected?"""

from __future__ import annotations

from gpucheck.detect.findings import over_gpus
from gpucheck.detect.machine import Machine
from gpucheck.detect.model import About, Finding, Layer
from gpucheck.inventory.condition import ecc_errors

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
        "warn: the next reset turns ECC on or off; corrected errors are only noted",
    ),
    sources=(
        "DCGM diagnostics and Meta GCM fail from 1 uncorrected volatile error on",
        "NVIDIA GPU memory error management",
    ),
    causes=("ecc-uncorrected", "sram-threshold", "ecc-change-pending"),
)


def check(machine: Machine) -> list[Finding]:
    """Judge every GPU that answers."""
    return over_gpus(machine, ID, "no uncorrected memory error", ecc_errors)
