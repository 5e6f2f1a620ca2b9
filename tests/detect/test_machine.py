"""Readings for the checks: each is taken once, and only when a check needs it."""

from __future__ import annotations

from threading import Event, Thread

import pytest

from gpucheck.detect.machine import Machine
from gpucheck.drivers.evidence import HealthReading, LaunchedReading, LaunchReading
from gpucheck.drivers.readings import NvmlReading, NvmlRequest, ProbeFailure
from gpucheck.report.host import Host
from tests.fakes.probes import FakeProbes, gpu_reading, reading_of

HUNG = ProbeFailure(code="driver-not-answering", message="no answer within 10 s")


def test_nothing_is_read_ahead() -> None:
    probes = FakeProbes()

    Machine(probes)

    assert probes.asked == []


def test_nothing_is_read_twice() -> None:
    probes = FakeProbes()
    machine = Machine(probes)

    for _ in range(2):
        _ = (machine.kernel, machine.nvml, machine.cuda, machine.host, machine.environment)

    assert probes.asked == ["kernel", "nvml", "cuda"]


def test_a_driver_that_hangs_keeps_no_other_thread_waiting() -> None:
    asked, end, read = Event(), Event(), Event()

    class HungProbes(FakeProbes):
        def nvml(self, request: NvmlRequest) -> NvmlReading:
            asked.set()
            end.wait()
            return NvmlReading()

    hung = Thread(target=lambda: Machine(HungProbes()).nvml)
    hung.start()
    asked.wait()
    other = Thread(target=lambda: (Machine(FakeProbes()).nvml, read.set()))
    other.start()
    has_read = read.wait()
    end.set()

    hung.join()
    other.join()
    assert has_read


@pytest.mark.parametrize(
    ("name", "expected"), [("Ubuntu 24.04 (WSL2)", True), ("Debian 12", False), (None, False)]
)
def test_wsl(name: str | None, *, expected: bool) -> None:
    assert Machine(FakeProbes(machine=Host(os=name))).is_wsl is expected


def test_what_takes_time_is_reported_before_it_is_done() -> None:
    reported: list[str] = []
    machine = Machine(FakeProbes(), report_progress=reported.append)

    _ = (machine.nvml, machine.health, machine.cuda, machine.cuda_unrestricted, machine.launch)

    assert reported == [
        "asking NVML",
        "reading each GPU's health",
        "starting CUDA",
        "starting CUDA without CUDA_VISIBLE_DEVICES",
        "running a kernel",
    ]


def test_a_recording_does_nothing_that_takes_time() -> None:
    reported: list[str] = []
    machine = Machine(FakeProbes(machine=Host(recorded=True)), report_progress=reported.append)

    _ = (machine.nvml, machine.launch)

    assert reported == []


@pytest.mark.parametrize(
    ("rows", "health", "launched", "again"),
    [
        (reading_of(gpu_reading(0)), None, 1, True),
        (reading_of(gpu_reading(0)), None, 0, False),
        (reading_of(gpu_reading(0)), HUNG, 1, False),
        (reading_of(gpu_reading(0))._replace(failure=HUNG), None, 1, False),
        (reading_of(gpu_reading(0, failure=HUNG)), None, 1, False),
    ],
)
def test_nvml_is_asked_again_after_a_kernel_if_it_can_answer(
    rows: NvmlReading, health: ProbeFailure | None, launched: int, *, again: bool
) -> None:
    ran = LaunchedReading(ordinal=0, right=True)
    probes = FakeProbes(
        readings=rows,
        health_reading=HealthReading(failure=health),
        launch_reading=LaunchReading(through="libcuda", launches=(ran,) * launched),
    )
    machine = Machine(probes)
    _ = (machine.nvml, machine.launch)

    _ = machine.reading_after_launch

    assert (probes.asked.count("nvml") == 2) is again
