"""fabric: ready and healthy."""

from __future__ import annotations

import pytest

from gpucheck.detect.checks import fabric
from gpucheck.detect.machine import Machine
from gpucheck.drivers.evidence import HealthReading
from gpucheck.drivers.readings import CudaReading
from gpucheck.report.envelope import CheckStatus
from tests.detect.checks.healthy import judge
from tests.fakes.probes import HERE, FakeProbes, gpu_reading, healthy, reading_of


def test_a_fabric_that_no_kernel_here_waits_for_is_a_warning() -> None:
    probes = FakeProbes(
        readings=reading_of(gpu_reading(0)),
        health_reading=HealthReading(gpus=(healthy(0, fabric_state=2),)),
        cuda_reading=CudaReading(driver_version=13000, device_count=1),
    )
    machine = Machine(probes)
    (before,) = fabric.check(machine)
    assert machine.launch.launches[0].right

    (after,) = fabric.check(machine)

    assert (before.status, after.status) == (CheckStatus.FAIL, CheckStatus.WARN)
    assert after.summary == "GPU 0: the NVLink fabric is not set up, yet a kernel runs"
    assert (after.cause, after.remedy) == (before.cause, before.remedy)


@pytest.mark.parametrize(("devices", "status"), [(1, CheckStatus.WARN), (0, CheckStatus.FAIL)])
def test_a_recording_runs_no_kernel_and_goes_by_whether_cuda_started(
    devices: int, status: CheckStatus
) -> None:
    probes = FakeProbes(
        readings=reading_of(gpu_reading(0)),
        health_reading=HealthReading(gpus=(healthy(0, fabric_state=2),)),
        cuda_reading=CudaReading(driver_version=13000, device_count=devices),
        machine=HERE._replace(recorded=True),
    )
    (found,) = fabric.check(Machine(probes))

    assert found.status is status
    assert found.summary.endswith(", yet CUDA starts") == bool(devices)


@pytest.mark.parametrize(
    ("gpu", "health", "status", "says"),
    [
        ({}, {}, "ok", "is ready"),
        ({}, {"fabric_state": 0}, "ok", "is ready"),
        ({}, {"fabric_state": 1}, "fail", "not set up"),
        ({}, {"fabric_state": 2}, "fail", "not set up"),
        ({}, {"fabric_status": 999}, "fail", "not set up"),
        ({}, {"fabric_health": 2}, "warn", "unhealthy"),
        ({}, {"fabric_health": 3}, "warn", "limited"),
    ],
)
def test_judgement(
    gpu: dict[str, object], health: dict[str, object], status: str, says: str
) -> None:
    found = judge(fabric, gpu, health)

    assert found.status == status
    assert says in found.summary
