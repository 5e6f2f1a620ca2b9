"""uvm-node: the module and the device file that CUDA needs and NVML does not."""

from __future__ import annotations

import pytest

from gpucheck.detect.checks import uvm_node
from gpucheck.detect.machine import Machine
from gpucheck.detect.remedies import adapt
from gpucheck.drivers.evidence import NodeReading, NodesReading, PlatformReading, SystemReading
from gpucheck.drivers.readings import KernelReading
from gpucheck.report.envelope import Host
from tests.fakes.probes import HERE, IN_DOCKER, ON_WSL2, FakeProbes


def uvm(*, accessible: bool = True) -> SystemReading:
    node = NodeReading(path="/dev/nvidia-uvm", mode="0660", owner=0, accessible=accessible)
    return SystemReading(nodes=NodesReading(nodes=(node,)))


@pytest.mark.parametrize(
    ("system", "status", "cause", "summary"),
    [
        (uvm(), "ok", None, "/dev/nvidia-uvm exists"),
        (
            uvm(accessible=False),
            "fail",
            "uvm-not-permitted",
            "this user may not open /dev/nvidia-uvm",
        ),
        (
            SystemReading(unavailable="not recorded"),
            "unknown",
            "nodes-not-readable",
            "/dev/nvidia-uvm could not be read",
        ),
        (
            SystemReading(nodes=NodesReading(unavailable="/dev: Permission denied")),
            "unknown",
            "nodes-not-readable",
            "/dev/nvidia-uvm could not be read",
        ),
        (
            SystemReading(platform=PlatformReading(tegra="nvidia,tegra234")),
            "skip",
            None,
            "not needed on this kind of machine",
        ),
    ],
)
def test_the_node(system: SystemReading, status: str, cause: str | None, summary: str) -> None:
    found = uvm_node.check(Machine(FakeProbes(system_reading=system)))

    assert (found.status, found.cause, found.summary) == (status, cause, summary)


def test_windows_needs_none() -> None:
    probes = FakeProbes(machine=ON_WSL2, system_reading=SystemReading())

    assert uvm_node.check(Machine(probes)).status == "skip"


@pytest.mark.parametrize(
    ("machine", "loaded", "what", "values", "first"),
    [
        (HERE, True, "/dev/nvidia-uvm", ["absent", "loaded"], "Load it"),
        (HERE, False, "the module nvidia_uvm", ["absent", "absent"], "Load it"),
        (IN_DOCKER, True, "/dev/nvidia-uvm", ["absent", "loaded"], "Start the container"),
    ],
)
def test_it_is_missing(
    machine: Host, what: str, values: list[str], first: str, *, loaded: bool
) -> None:
    probes = FakeProbes(
        machine=machine,
        system_reading=SystemReading(),
        kernel_reading=KernelReading(uvm_loaded=loaded),
    )

    found = uvm_node.check(Machine(probes))

    assert found.status == "fail"
    assert found.summary == f"{what} is missing, which CUDA needs and NVML does not"
    assert found.cause == ("uvm-node-missing" if loaded else "uvm-module-missing")
    assert [item.value for item in found.evidence] == values
    assert adapt(Machine(probes), found.remedy)[0].startswith(first)
