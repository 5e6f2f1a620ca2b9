"""Could every bad row of memory be replaced?"""

from __future__ import annotations

from gpucheck.core.checks.machine import Machine
from gpucheck.core.checks.per_gpu import Judgement, Trouble, over_gpus, unread
from gpucheck.models.evidence import GpuHealthReading
from gpucheck.models.finding import About, CheckStatus, Evidence, Finding, Layer
from gpucheck.models.snapshot import GpuReading

ID = "row-remapping"
LAYER = Layer.HEALTH
REQUIRES: tuple[str, ...] = ("nvml",)

#: From so many rows on the memory is worn, though every one was replaced.
MANY_ROWS = 512
ABOUT = About(
    looks_at=("nvmlDeviceGetRemappedRows: uncorrected, pending, failed (Ampere and newer)",),
    why="Spare rows replace bad ones at the next reset; where none is left, the GPU is worn out.",
    rules=(
        "fail: a row could not be replaced, or 512 and more were",
        "warn: a replacement waits for a reset",
    ),
    sources=(
        "NVIDIA GPU memory error management: row remapping",
        "DCGM, gpud, Meta GCM and AzNHC fail on a failed remapping; DCGM on 512 rows",
    ),
    causes=(
        "row-not-replaced",
        "rows-replaced",
        "row-pending",
    ),
)


def check(machine: Machine) -> list[Finding]:
    """Judge every GPU that answers."""
    return over_gpus(machine, ID, "no row of memory waits for a replacement", judge)


def judge(gpu: GpuReading, health: GpuHealthReading) -> Judgement:
    """Look at failed, many, and pending rows."""
    missing = unread(health, "remapped_rows_failed", "remapped_rows_pending")
    if missing is not None:
        return missing
    rows = health.remapped_rows_uncorrected or 0
    source = "nvmlDeviceGetRemappedRows"
    if health.remapped_rows_failed:
        return Trouble(
            CheckStatus.FAIL,
            "a bad row of memory could not be replaced",
            (Evidence(source=source, value="failed"),),
            ("Ask the vendor to replace the GPU.",),
            cause="row-not-replaced",
        )
    if rows >= MANY_ROWS:
        return Trouble(
            CheckStatus.FAIL,
            f"{rows} rows of memory had to be replaced",
            (Evidence(source=source, value=f"uncorrected {rows}"),),
            ("Ask the vendor to replace the GPU.",),
            cause="rows-replaced",
        )
    if health.remapped_rows_pending:
        return Trouble(
            CheckStatus.WARN,
            "a bad row of memory is replaced at the next reset",
            (Evidence(source=source, value="pending"),),
            ("When nothing runs on it: sudo nvidia-smi --gpu-reset",),
            cause="row-pending",
        )
    return None
