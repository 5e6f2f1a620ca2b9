"""Are there too many retired pages of memory (GPUs before Ampere)?"""

from __future__ import annotations

from gpucheck.detect.findings import over_gpus
from gpucheck.detect.machine import Machine
from gpucheck.detect.model import About, Finding, Layer
from gpucheck.inventory.condition import retired_pages

ID = "retired-pages"
LAYER = Layer.HEALTH
REQUIRES: tuple[str, ...] = ("nvml",)

ABOUT = About(
    looks_at=("nvmlDeviceGetRetiredPages and nvmlDeviceGetRetiredPagesPendingStatus",),
    why="Before Ampere, bad pages are retired one by one, and only 64 can be.",
    rules=("fail: 63 or more; warn: some are retired only at the next reset",),
    sources=(
        "NVIDIA Dynamic Page Retirement",
        "DCGM diagnostics: fail from 63 on, warn on pending",
    ),
    causes=("pages-retired", "page-pending"),
)


def check(machine: Machine) -> list[Finding]:
    """Judge every GPU that answers."""
    return over_gpus(machine, ID, "no memory page is waiting to be retired", retired_pages)
