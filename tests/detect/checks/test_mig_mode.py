"""mig-mode: split GPUs without an instance, and pending changes."""

from __future__ import annotations

import pytest

from gpucheck.detect.checks import mig_mode
from gpucheck.detect.machine import Machine
from gpucheck.drivers.evidence import HealthReading
from gpucheck.report.envelope import CheckStatus
from tests.fakes.probes import FakeProbes, gpu_reading, healthy, reading_of


@pytest.mark.parametrize(("count", "status"), [(1, "fail"), (2, "warn")])
def test_split_without_an_instance(count: int, status: str) -> None:
    rows = [gpu_reading(n, mig_enabled=n == 0) for n in range(count)]

    found = mig_mode.check(Machine(FakeProbes(readings=reading_of(*rows))))

    assert found.status == status
    assert "-cgi" in found.remedy[0]


def test_instances_that_could_not_be_listed_are_not_none() -> None:
    row = gpu_reading(0, mig_enabled=True, unavailable={"mig_instances": "no permission (NVML 4)"})
    health = HealthReading(gpus=(healthy(0, mig_mode_pending=True),))

    found = mig_mode.check(Machine(FakeProbes(readings=reading_of(row), health_reading=health)))

    assert found.status is CheckStatus.OK
