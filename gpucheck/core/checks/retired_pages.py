"""Are there too many retired pages of memory (GPUs before Ampere)?"""

from __future__ import annotations

from gpucheck.core.checks.machine import Machine
from gpucheck.core.checks.per_gpu import Judgement, Trouble, over_gpus, unread
from gpucheck.models.evidence import GpuHealthReading
from gpucheck.models.finding import About, CheckStatus, Evidence, Finding, Layer
from gpucheck.models.snapshot import GpuReading

ID = "retired-pages"
LAYER = Layer.HEALTH
REQUIRES: tuple[str, ...] = ("nvml",)

#: The driver can retire 64 pages in all.
MANY_PAGES = 63
ABOUT = About(
    looks_at=("nvmlDeviceGetRetiredPages and nvmlDeviceGetRetiredPagesPendingStatus",),
    why="Before Ampere, bad pages are given up one by one, and only 64 can be.",
    rules=("fail: 63 or more; warn: some are retired only at the next reset",),
    sources=(
        "NVIDIA Dynamic Page Retirement",
        "DCGM diagnostics: fail from 63 on, warn on pending",
    ),
    causes=(
        "pages-retired",
        "page-pending",
    ),
)


def check(machine: Machine) -> list[Finding]:
    """Judge every GPU that answers."""
    return over_gpus(machine, ID, "no page of memory waits to be retired", judge)


def judge(gpu: GpuReading, health: GpuHealthReading) -> Judgement:
    """Count both causes."""
    missing = unread(health, "retired_pages_double_bit", "retired_pages_single_bit")
    if missing is not None:
        return missing
    pages = (health.retired_pages_double_bit or 0) + (health.retired_pages_single_bit or 0)
    if pages >= MANY_PAGES:
        return Trouble(
            CheckStatus.FAIL,
            f"{pages} pages of memory are retired, and 64 can be",
            (Evidence(source="nvmlDeviceGetRetiredPages", value=str(pages)),),
            ("Ask the vendor to replace the GPU.",),
            cause="pages-retired",
        )
    if health.retired_pages_pending:
        return Trouble(
            CheckStatus.WARN,
            "a bad page of memory is retired at the next reset",
            (Evidence(source="nvmlDeviceGetRetiredPagesPendingStatus", value="pending"),),
            ("When nothing runs on it: sudo nvidia-smi --gpu-reset",),
            cause="page-pending",
        )
    return None
