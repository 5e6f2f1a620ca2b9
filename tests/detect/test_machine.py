"""Readings for the checks: each is taken once, and only when a check needs it."""

from __future__ import annotations

import pytest

from gpucheck.detect.machine import Machine
from gpucheck.report.envelope import Host
from tests.fakes.probes import FakeProbes


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
