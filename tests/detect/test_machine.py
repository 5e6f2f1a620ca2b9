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
