"""One GPU whose health a test changes, and the finding of a health check about it."""

from __future__ import annotations

from gpucheck.detect.checks import Check
from gpucheck.detect.machine import Machine
from gpucheck.detect.model import Finding
from gpucheck.drivers.evidence import GpuHealthReading, HealthReading
from gpucheck.drivers.readings import GpuReading
from gpucheck.report.envelope import CheckStatus
from tests.fakes.probes import FakeProbes, gpu_reading, healthy, reading_of


def pairs_of(*pairs: tuple[GpuReading, GpuHealthReading], check: Check) -> list[Finding]:
    """Return what a check says of these GPUs."""
    probes = FakeProbes(
        readings=reading_of(*(gpu for gpu, _ in pairs)),
        health_reading=HealthReading(gpus=tuple(health for _, health in pairs)),
    )
    found = check.check(Machine(probes))
    return found if isinstance(found, list) else [found]


def judge(
    check: Check, gpu: dict[str, object] | None = None, health: dict[str, object] | None = None
) -> Finding:
    """Return what a check says of one GPU beside a healthy one; what is wrong has a remedy."""
    changed = (gpu_reading(0, **(gpu or {})), healthy(0, **(health or {})))
    found = pairs_of(changed, (gpu_reading(1), healthy(1)), check=check)
    assert len(found) == 1
    assert bool(found[0].remedy) == (found[0].status in (CheckStatus.WARN, CheckStatus.FAIL))
    return found[0]
