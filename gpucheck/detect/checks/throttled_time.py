"""Were the clocks lowered during the check?"""

from __future__ import annotations

from gpucheck.detect.findings import over_gpus
from gpucheck.detect.machine import Machine
from gpucheck.detect.model import Finding, Layer
from gpucheck.drivers.evidence import GpuHealthReading
from gpucheck.drivers.readings import GpuReading
from gpucheck.inventory.condition import Judgement, Trouble, unread
from gpucheck.report.envelope import CheckStatus, Evidence

ID = "throttled-time"
LAYER = Layer.HEALTH
REQUIRES: tuple[str, ...] = ("nvml",)

#: Counters that may grow without trouble.
HARMLESS = ("power cap",)


def check(machine: Machine) -> list[Finding]:
    """Judge every GPU that answers."""
    return over_gpus(machine, ID, "no time was lost to heat or the power brake", judge)


def judge(gpu: GpuReading, health: GpuHealthReading) -> Judgement:
    """Compare the two readings."""
    missing = unread(health, "throttled_ns")
    if missing is not None:
        return missing
    grown = {name: ns for name, ns in (health.throttled_ns or {}).items() if ns > 0}
    bad = {name: ns for name, ns in grown.items() if name not in HARMLESS}
    if not bad:
        return None
    window_ms = (health.sample_s or 0) * 1000
    return Trouble(
        CheckStatus.WARN,
        f"clocks were lowered by {' and '.join(bad)} during the check",
        tuple(
            Evidence(f"{name} counter", f"+{ns / 1e6:.1f} ms in {window_ms:.0f} ms")
            for name, ns in bad.items()
        ),
        ("Check airflow, fans, dust and the power supply.",),
        cause="time-throttled",
    )
