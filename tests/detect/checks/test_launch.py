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


@pytest.mark.parametrize(
    ("rights", "summary"),
    [
        ((False,), "no kernel could be run: the result is wrong"),
        ((False, False), "no kernel could be run on any of 2 GPUs: the result is wrong"),
        ((True, False), "a kernel cannot be run on CUDA device 1: the result is wrong"),
        ((), "no kernel could be run: no GPU to run it on"),
    ],
)
def test_where_it_failed(rights: tuple[bool, ...], summary: str) -> None:
    assert ran(*rights).summary == summary


@pytest.mark.parametrize(
    ("code", "status"),
    [("not-recorded", "skip"), ("driver-not-answering", "unknown"), ("out-of-memory", "fail")],
)
def test_a_launch_that_was_not_possible(code: str, status: str) -> None:
    failure = ProbeFailure(code=code, message="why", function="cuCtxCreate", library_code=2)
    probes = FakeProbes(launch_reading=LaunchReading(failure=failure))

    found = launch.check(Machine(probes))

    assert found.status == status
    assert found.cause == (None if status == "skip" else code)
    assert found.evidence == (() if status == "skip" else (("cuCtxCreate", "CUDA 2"),))


def test_cupy_alone_is_a_warning_about_libcuda() -> None:
    failure = ProbeFailure(code="ptx-too-new", message="the PTX is too new", function="load")
    ran_once = LaunchedReading(ordinal=0, right=True)
    reading = LaunchReading(through="cupy", launches=(ran_once,), libcuda_failure=failure)

    found = launch.check(Machine(FakeProbes(launch_reading=reading)))

    assert (found.status, found.cause) == ("warn", "ptx-too-new")
    assert found.summary == "a kernel runs only through CuPy; through libcuda: the PTX is too new"
    assert found.evidence[0] == ("load", "ptx-too-new")
    assert launch.went_through(found) == "cupy"
