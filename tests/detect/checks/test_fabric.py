"""fabric: ready and healthy."""

from __future__ import annotations

import pytest

from gpucheck.detect.checks import fabric
from gpucheck.detect.machine import Machine
from gpucheck.drivers.evidence import HealthReading, PlatformReading, SystemReading
from gpucheck.drivers.readings import CudaReading, ProbeFailure
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


NOT_READY = CudaReading(
    failure=ProbeFailure(code="system-not-ready", message="not ready", library_code=802)
)
STARTS = CudaReading(driver_version=13000, device_count=1)
GUEST = SystemReading(platform=PlatformReading(hypervisor=True))


@pytest.mark.parametrize(
    ("system", "state", "active", "gpus", "cuda", "status"),
    [
        (GUEST, 1, 0, 1, STARTS, CheckStatus.SKIP),
        (GUEST, 2, 0, 1, STARTS, CheckStatus.SKIP),
        (GUEST, 1, 0, 1, NOT_READY, CheckStatus.FAIL),
        (GUEST, 1, 18, 1, STARTS, CheckStatus.FAIL),
        (GUEST, 1, 0, 2, STARTS, CheckStatus.FAIL),
        (GUEST, 3, 0, 1, STARTS, CheckStatus.OK),
        (GUEST._replace(nvswitches=4), 1, 0, 1, STARTS, CheckStatus.FAIL),
        (SystemReading(), 1, 0, 1, STARTS, CheckStatus.FAIL),
    ],
)
def test_one_card_of_a_switched_board_in_a_virtual_machine_needs_no_fabric(
    system: SystemReading,
    state: int,
    active: int,
    gpus: int,
    cuda: CudaReading,
    status: CheckStatus,
) -> None:
    changes = {"fabric_state": state, "nvlinks": 18, "nvlinks_active": active}
    probes = FakeProbes(
        readings=reading_of(*map(gpu_reading, range(gpus))),
        health_reading=HealthReading(gpus=tuple(healthy(n, **changes) for n in range(gpus))),
        system_reading=system,
        cuda_reading=cuda,
    )
    machine = Machine(probes)
    assert machine.cuda is cuda

    found = fabric.check(machine)[0]

    assert found.status is status
    assert ("one GPU of a switched machine" in found.summary) == (status is CheckStatus.SKIP)


def test_a_quick_run_does_not_start_cuda_for_the_fabric() -> None:
    guest = healthy(0, fabric_state=1, nvlinks=18, nvlinks_active=0)
    probes = FakeProbes(
        readings=reading_of(gpu_reading(0)),
        health_reading=HealthReading(gpus=(guest,)),
        system_reading=GUEST,
    )

    (found,) = fabric.check(Machine(probes))

    assert found.status is CheckStatus.SKIP
    assert "cuda" not in probes.asked


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
