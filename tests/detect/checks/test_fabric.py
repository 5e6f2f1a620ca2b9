"""fabric: ready and healthy."""

from __future__ import annotations

from gpucheck.detect.checks import fabric
from gpucheck.detect.machine import Machine
from gpucheck.drivers.evidence import HealthReading
from gpucheck.drivers.readings import CudaReading
from gpucheck.report.envelope import CheckStatus
from tests.fakes.probes import FakeProbes, gpu_reading, healthy, reading_of


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
