"""Do the NVLinks have new errors?"""

from __future__ import annotations

from gpucheck.detect.findings import over_gpus
from gpucheck.detect.machine import Machine
from gpucheck.detect.model import Finding, Layer
from gpucheck.drivers.evidence import GpuHealthReading
from gpucheck.inventory.condition import Card, Judgement, Trouble, Unread, unread
from gpucheck.report.envelope import CheckStatus, Evidence

ID = "nvlink-errors"
LAYER = Layer.HEALTH
REQUIRES: tuple[str, ...] = ("nvml",)

#: From so many CRC errors a second on, a link does more than repeat some data.
MANY_CRC_PER_S = 100
#: Errors that cost a link its data or its connection.
GRAVE = ("replay", "recovery")


def check(machine: Machine) -> list[Finding]:
    """Judge every GPU that answers."""
    return over_gpus(machine, ID, "no new NVLink error during the check", judge)


def judge(gpu: Card, health: GpuHealthReading) -> Judgement:
    """Compare the growth of each kind with DCGM's limits."""
    if not health.nvlinks_active:
        missing = unread(health, "nvlinks", "nvlinks_active")
        return missing or Unread("no link is up", applies=False)
    missing = unread(health, "nvlink_errors_grown")
    if missing is not None:
        return missing
    grown = {kind: count for kind, count in (health.nvlink_errors_grown or {}).items() if count}
    if not grown:
        return None
    seconds = health.sample_s or 0.1
    grave = any(kind in grown for kind in GRAVE) or grown.get("CRC", 0) / seconds >= MANY_CRC_PER_S
    words = ", ".join(f"{count} {kind}" for kind, count in grown.items())
    return Trouble(
        CheckStatus.FAIL if grave else CheckStatus.WARN,
        f"its NVLinks have new errors: {words} in {seconds * 1000:.0f} ms",
        tuple(
            Evidence(f"NVLink {kind} errors a second", f"{count / seconds:.0f}")
            for kind, count in grown.items()
        ),
        (
            "Find the link: nvidia-smi nvlink --errorcounters",
            "Reseat the bridge, the board or the cable; then ask the vendor.",
        ),
        cause="nvlink-errors",
    )
