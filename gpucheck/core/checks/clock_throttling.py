"""Is anything slowing the clocks down right now?"""

from __future__ import annotations

from gpucheck.core.checks.machine import Machine
from gpucheck.core.checks.per_gpu import Judgement, Trouble, over_gpus, unread
from gpucheck.models.evidence import GpuHealthReading
from gpucheck.models.finding import About, CheckStatus, Evidence, Finding, Layer
from gpucheck.models.snapshot import GpuReading

ID = "clock-throttling"
LAYER = Layer.HEALTH
REQUIRES: tuple[str, ...] = ("nvml",)

#: Bits of the clock event reasons that somebody should know of: status, what it is, what to do.
#: The idle bit (0x1), application clocks (0x2), sync boost (0x10) and the display's clocks (0x100)
#: are no throttling.
BITS: dict[int, tuple[CheckStatus, str, str]] = {
    0x80: (
        CheckStatus.FAIL,
        "the power brake (an external signal: power supply or rack)",
        "Check the power supply and its cables; in a rack, its power capping.",
    ),
    0x40: (
        CheckStatus.WARN,
        "heat (hardware: the clocks are halved or worse)",
        "Check air flow, fans and dust.",
    ),
    0x20: (CheckStatus.WARN, "heat (software)", "Check air flow, fans and dust."),
    0x8: (
        CheckStatus.WARN,
        "a hardware slowdown (heat, power brake or supply)",
        "Check temperature and power supply.",
    ),
    0x4: (CheckStatus.OK, "its power limit", ""),
}
ABOUT = About(
    looks_at=("nvmlDeviceGetCurrentClocksEventReasons, bit by bit",),
    why="A throttled GPU gives right results at a fraction of its speed.",
    rules=(
        "fail: power brake (0x80); warn: hardware slowdown (0x8), software (0x20) or hardware"
        " (0x40) thermal slowdown; the power limit (0x4) is a remark",
    ),
    sources=(
        "NVML API Reference: nvmlClocksEventReasons",
        "DCGM diagnostics fail on 0x8, 0x20, 0x40 and 0x80",
    ),
    causes=("clocks-lowered",),
)


def check(machine: Machine) -> list[Finding]:
    """Judge every GPU that answers."""
    return over_gpus(machine, ID, "no clock is throttled", judge)


def judge(gpu: GpuReading, health: GpuHealthReading) -> Judgement:
    """Test the bits: the mask may hold harmless ones beside them."""
    missing = unread(health, "clock_event_reasons")
    if missing is not None:
        return missing
    mask = health.clock_event_reasons or 0
    found = [row for bit, row in BITS.items() if mask & bit]
    if not found:
        return None
    words = " and ".join(what for _, what, _ in found)
    status = found[0][0]
    return Trouble(
        status,
        f"clocks are lowered by {words}"
        if status is not CheckStatus.OK
        else "runs at its power limit",
        (Evidence(source="nvmlDeviceGetCurrentClocksEventReasons", value=f"{mask:#x}"),),
        tuple(dict.fromkeys(step for _, _, step in found if step)),
        cause=None if status is CheckStatus.OK else "clocks-lowered",
    )
