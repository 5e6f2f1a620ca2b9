"""mig-mode: split GPUs without an instance, and pending changes."""

from __future__ import annotations

import pytest

from gpucheck.detect.checks import mig_mode
from gpucheck.detect.machine import Machine
from gpucheck.drivers.evidence import HealthReading
from gpucheck.drivers.readings import GpuReading, MigReading
from gpucheck.report.envelope import CheckStatus
from tests.fakes.probes import FakeProbes, gpu_reading, healthy, reading_of


@pytest.mark.parametrize(("count", "status"), [(1, "fail"), (2, "warn")])
def test_split_without_an_instance(count: int, status: str) -> None:
    rows = [gpu_reading(n, mig_enabled=n == 0) for n in range(count)]

    found = mig_mode.check(Machine(FakeProbes(readings=reading_of(*rows))))

    assert found.status == status
    assert "-cgi" in found.remedy[0]


def test_instances_that_could_not_be_listed_are_not_none() -> None:
    row = gpu_reading(
        0, mig_enabled=True, unavailable={"mig_instances": "no permission (NVML error 4)"}
    )
    health = HealthReading(gpus=(healthy(0, mig_mode_pending=True),))

    found = mig_mode.check(Machine(FakeProbes(readings=reading_of(row), health_reading=health)))

    assert found.status is CheckStatus.OK


def split(index: int, instances: int, **changes: object) -> GpuReading:
    parts = tuple(MigReading(uuid=f"MIG-{index}-{n}") for n in range(instances))
    return gpu_reading(index, mig_enabled=True, mig_instances=parts, **changes)


@pytest.mark.parametrize(
    ("rows", "status", "summary"),
    [
        ([], "skip", "no GPU answers"),
        ([gpu_reading(0, mig_enabled=False)], "ok", "no GPU is split by MIG"),
        (
            [split(0, 2), gpu_reading(1, mig_enabled=False), split(2, 1)],
            "ok",
            "MIG: 3 instances on 2 of 3 GPUs",
        ),
    ],
)
def test_instances_are_counted(rows: list[GpuReading], status: str, summary: str) -> None:
    health = HealthReading(
        gpus=tuple(healthy(row.index, mig_mode_pending=row.mig_enabled) for row in rows)
    )

    found = mig_mode.check(Machine(FakeProbes(readings=reading_of(*rows), health_reading=health)))

    assert (found.status, found.summary) == (status, summary)


@pytest.mark.parametrize(("now", "word"), [(True, "off"), (False, "on")])
def test_a_change_that_waits_for_a_reset(word: str, *, now: bool) -> None:
    row = split(1, 1) if now else gpu_reading(1, mig_enabled=False)
    health = HealthReading(gpus=(healthy(1, mig_mode_pending=not now),))

    found = mig_mode.check(Machine(FakeProbes(readings=reading_of(row), health_reading=health)))

    assert (found.status, found.cause) == (CheckStatus.WARN, "mig-change-pending")
    assert found.summary == f"the next reset of GPU 1 turns MIG {word}"
    assert "-i 1 --gpu-reset" in found.remedy[0]
