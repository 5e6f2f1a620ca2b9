"""Could every bad row of memory be replaced?"""

from __future__ import annotations

from gpucheck.detect.findings import over_gpus
from gpucheck.detect.machine import Machine
from gpucheck.detect.model import About, Finding, Layer
from gpucheck.inventory.condition import row_remapping

ID = "row-remapping"
LAYER = Layer.HEALTH
REQUIRES: tuple[str, ...] = ("nvml",)

ABOUT = About(
    looks_at=("nvmlDeviceGetRemappedRows: uncorrected, pending, failed (Ampere and newer)",),
    why="Spare rows replace bad ones at the next reset; once none is left, the GPU is worn out.",
    rules=(
        "fail: a row could not be replaced, or 512 or more were",
        "warn: a replacement waits for a reset",
    ),
    sources=(
        "NVIDIA GPU memory error management: row remapping",
        "DCGM, gpud, Meta GCM and AzNHC fail on a failed remapping; DCGM on 512 rows",
    ),
    causes=("row-not-replaced", "rows-replaced", "row-pending"),
)


def check(machine: Machine) -> list[Finding]:
    """Judge every GPU that answers."""
    return over_gpus(machine, ID, "no memory row is waiting to be replaced", row_remapping)
