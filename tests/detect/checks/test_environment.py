"""environment: the kind of machine."""

from __future__ import annotations

import pytest

from gpucheck.detect.checks.environment import check
from gpucheck.detect.machine import Machine
from gpucheck.detect.model import Finding
from gpucheck.drivers.evidence import PlatformReading, SystemReading
from gpucheck.report.envelope import CheckStatus, Host
from tests.fakes.probes import FakeProbes


def look(host: Host, platform: PlatformReading, **variables: str) -> Finding:
    system = SystemReading(platform=platform)
    return check(Machine(FakeProbes(machine=host, system_reading=system, variables=variables)))


PLAIN = Host(os="Debian GNU/Linux 12", kernel="6.1.0")


@pytest.mark.parametrize(
    ("host", "platform", "kinds"),
    [
        (PLAIN, PlatformReading(), "bare metal"),
        (PLAIN, PlatformReading(hypervisor=True), "virtual machine"),
        (PLAIN, PlatformReading(tegra="nvidia,tegra234"), "Jetson"),
        (PLAIN._replace(container="docker"), PlatformReading(), "container (docker)"),
        (PLAIN._replace(container="docker"), PlatformReading(hypervisor=True),
         "container (docker), virtual machine"),
        (PLAIN._replace(os="Ubuntu (WSL2)"), PlatformReading(hypervisor=True), "WSL2"),
    ],
)  # fmt: skip
def test_kinds(host: Host, platform: PlatformReading, kinds: str) -> None:
    found = look(host, platform)

    assert found.status is CheckStatus.OK
    assert found.summary == f"{host.os}, kernel 6.1.0: {kinds}"


def test_a_slurm_job_and_what_gave_it_its_gpus() -> None:
    found = look(PLAIN, PlatformReading(), SLURM_JOB_ID="7", SLURM_JOB_GPUS="0,1")

    assert found.summary.endswith(": Slurm job")
    assert [(item.source, item.value) for item in found.evidence] == [
        ("SLURM_JOB_ID", "'7'"),
        ("SLURM_JOB_GPUS", "'0,1'"),
    ]


def test_what_was_not_recorded_is_not_bare_metal() -> None:
    system = SystemReading(unavailable="the snapshot did not record it")

    found = check(Machine(FakeProbes(machine=Host(), system_reading=system)))

    assert (found.status, found.cause) == (CheckStatus.UNKNOWN, "not-recorded")
