"""launch: the result of the CUDA kernel self-test."""

from __future__ import annotations

import pytest

from gpucheck.detect.checks import launch
from gpucheck.detect.machine import Machine
from gpucheck.detect.model import Finding
from gpucheck.drivers.evidence import LaunchedReading, LaunchReading
from gpucheck.drivers.readings import ProbeFailure
from tests.fakes.probes import FakeProbes


def ran(*rights: bool, cupy_failure: ProbeFailure | None = None) -> Finding:
    launches = tuple(
        LaunchedReading(ordinal=n, right=right, first_launch_s=0.5, second_launch_s=1e-5)
        for n, right in enumerate(rights)
    )
    reading = LaunchReading(through="libcuda", launches=launches, cupy_failure=cupy_failure)
    return launch.check(Machine(FakeProbes(launch_reading=reading)))


def test_the_first_launch_is_told_apart() -> None:
    found = ran(True, True)

    assert "runs on 2 GPUs through libcuda" in found.summary
    assert "first launch 500 ms" in found.summary
    assert found.evidence[0].value == "500 ms, then 0.01 ms"


def test_what_cupy_said_is_kept() -> None:
    late = ProbeFailure(code="import-not-finished", message="no nvrtc")
    assert ran(True, cupy_failure=late).evidence[0].value == "no nvrtc"


@pytest.mark.parametrize(
    ("rights", "status"),
    [((False,), "fail"), ((False, False), "fail"), ((True, False), "warn"), ((), "fail")],
)
def test_wrong_results(rights: tuple[bool, ...], status: str) -> None:
    found = ran(*rights)

    assert found.status == status
    assert found.remedy
