"""Is anything slowing the clocks down right now?"""

from __future__ import annotations

from gpucheck.detect.findings import over_gpus
from gpucheck.detect.machine import Machine
from gpucheck.detect.model import About, Finding, Layer
from gpucheck.inventory.condition import clock_throttling

ID = "clock-throttling"
LAYER = Layer.HEALTH
REQUIRES: tuple[str, ...] = ("nvml",)

ABOUT = About(
    looks_at=("nvmlDeviceGetCurrentClocksEventReasons, bit by bit",),
    why="A throttled GPU computes correctly, at a fraction of its speed.",
    rules=(
        "fail: power brake (0x80); warn: hardware slowdown (0x8), software (0x20) or hardware"
        " (0x40) thermal slowdown; the power limit (0x4) is only noted",
    ),
    sources=(
        "NVML API Reference: nvmlClocksEventReasons",
        "DCGM diagnostics fail on 0x8, 0x20, 0x40 and 0x80",
    ),
    causes=("clocks-lowered",),
)


def check(machine: Machine) -> list[Finding]:
    """Judge every GPU that answers."""
    return over_gpus(machine, ID, "no clock is throttled", clock_throttling)
