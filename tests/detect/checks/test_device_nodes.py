"""device-nodes: missing files, files without permission, and some of the GPUs."""

from __future__ import annotations

import pytest

from gpucheck.detect.checks import device_nodes
from gpucheck.detect.machine import Machine
from gpucheck.detect.model import Finding
from gpucheck.drivers.evidence import NodeReading, NodesReading, PlatformReading, SystemReading
from gpucheck.report.envelope import CheckStatus, Host
from tests.fakes.probes import HERE, IN_DOCKER, ON_WSL2, FakeProbes

EXPECTED = ("/dev/nvidiactl", "/dev/nvidia0", "/dev/nvidia1", "/dev/nvidia-uvm")


def nodes(*names: str, denied: tuple[str, ...] = ()) -> SystemReading:
    return SystemReading(
        nodes=NodesReading(
            nodes=tuple(
                NodeReading(
                    path=f"/dev/nvidia{name}", mode="0660", owner=0, group=44,
                    accessible=name not in denied,
                )
                for name in names
            ),
            expected=EXPECTED,
        )
    )  # fmt: skip


def look(
    system: SystemReading, machine: Host = HERE, variables: dict[str, str] | None = None
) -> Finding:
    probes = FakeProbes(machine=machine, system_reading=system, variables=variables or {})
    return device_nodes.check(Machine(probes))


def test_all_there() -> None:
    assert look(nodes("ctl", "0", "1")).status is CheckStatus.OK


@pytest.mark.parametrize(
    ("present", "minors"),
    [((), "-c 255 -c 0 -c 1"), (("ctl",), "-c 0 -c 1"), (("0", "1"), "-c 255")],
)
def test_nothing_to_reach_a_gpu_by(present: tuple[str, ...], minors: str) -> None:
    found = look(nodes(*present))

    assert found.status is CheckStatus.FAIL
    assert found.remedy[0] == f"Create them: sudo nvidia-modprobe {minors} -u"


def test_a_gpu_whose_minor_is_not_known_is_taken_for_the_first() -> None:
    reading = SystemReading(nodes=NodesReading(expected=("/dev/nvidiactl", "/dev/nvidia-uvm")))

    assert look(reading).remedy[0] == "Create them: sudo nvidia-modprobe -c 255 -c 0 -u"


def test_some_are_missing() -> None:
    found = look(nodes("ctl", "0"))

    assert (found.status, found.summary) == (
        CheckStatus.WARN,
        "device files are missing: /dev/nvidia1",
    )
    assert found.remedy == ("Create them: sudo nvidia-modprobe -c 1",)


def test_a_container_may_have_a_part_of_the_gpus() -> None:
    assert look(nodes("ctl", "0"), IN_DOCKER).status is CheckStatus.OK


@pytest.mark.parametrize(
    ("denied", "status"),
    [
        (("ctl",), CheckStatus.FAIL),
        (("0", "1"), CheckStatus.FAIL),
        (("ctl", "0", "1"), CheckStatus.FAIL),
        (("1",), CheckStatus.WARN),
    ],
)
def test_not_permitted(denied: tuple[str, ...], status: CheckStatus) -> None:
    found = look(nodes("ctl", "0", "1", denied=denied))

    assert found.status is status
    assert "mode 0660, owner 0, group 44" in found.evidence[0].value
    assert "group" in found.remedy[0]


def test_a_slurm_job_asks_for_gpus_first() -> None:
    found = look(nodes("ctl", "0", denied=("0",)), variables={"SLURM_JOB_ID": "7"})

    assert found.remedy[0].startswith("Request GPUs from Slurm")


@pytest.mark.parametrize("value", ["", "none", "void"])
def test_a_container_that_asked_for_none(value: str) -> None:
    found = look(nodes(), IN_DOCKER, {"NVIDIA_VISIBLE_DEVICES": value})

    assert found.status is CheckStatus.FAIL
    assert found.summary.endswith(f"NVIDIA_VISIBLE_DEVICES={value!r} requests none")


@pytest.mark.parametrize("variables", [{}, {"NVIDIA_VISIBLE_DEVICES": "all"}])
def test_a_container_that_got_none(variables: dict[str, str]) -> None:
    found = look(nodes(), IN_DOCKER, variables)

    assert found.summary == "the container was started without GPUs"


@pytest.mark.parametrize(("dxg", "status"), [(True, CheckStatus.OK), (False, CheckStatus.FAIL)])
def test_wsl(*, dxg: bool, status: CheckStatus) -> None:
    assert look(SystemReading(platform=PlatformReading(dxg=dxg)), ON_WSL2).status is status


@pytest.mark.parametrize(
    "system",
    [
        SystemReading(unavailable="the snapshot did not record it"),
        SystemReading(nodes=NodesReading(unavailable="/dev: Permission denied")),
    ],
)
def test_unread_is_not_missing(system: SystemReading) -> None:
    assert look(system).status is CheckStatus.UNKNOWN


def test_a_jetson_has_others() -> None:
    found = look(SystemReading(platform=PlatformReading(tegra="nvidia,tegra234")))

    assert found.status is CheckStatus.SKIP
