"""Live probes: the deadline, the kept session, and the root."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpucheck.drivers import live, open_probes
from gpucheck.drivers.child import ChildDiedError
from gpucheck.drivers.live import LiveProbes
from gpucheck.drivers.readings import CudaReading, NvmlReading, NvmlRequest, ProbeFailure
from tests.fakes.machine import load_machine
from tests.fakes.tree import write_tree


class FakeSession:
    """A session that returns readings in turn and records its arguments."""

    made: list[FakeSession]
    readings: Iterator[NvmlReading]

    def __init__(self) -> None:
        self.deadlines: list[float] = []
        self.closed = False
        self.made.append(self)

    def read(self, question: NvmlRequest, *, deadline_s: float, sysfs: str) -> NvmlReading:
        self.deadlines.append(deadline_s)
        return next(self.readings)

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def sessions(monkeypatch: pytest.MonkeyPatch) -> type[FakeSession]:
    FakeSession.made = []
    monkeypatch.setattr(live, "NvmlSession", FakeSession)
    return FakeSession


GOOD = NvmlReading(gpu_count=0)
BAD = NvmlReading(failure=ProbeFailure(code="driver-not-answering", message="silent"))


def test_a_driver_that_hung_gets_less_time_until_nvml_answers(
    sessions: type[FakeSession], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[float] = []

    def silent(*, deadline_s: float, **_: object) -> CudaReading:
        asked.append(deadline_s)
        return CudaReading(failure=BAD.failure)

    monkeypatch.setattr("gpucheck.drivers.cuda.client.read_cuda", silent)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    sessions.readings = iter([GOOD, BAD, GOOD, GOOD])
    probes = LiveProbes(root=tmp_path, deadline_s=20)

    probes.nvml(NvmlRequest())
    probes.cuda()
    probes.cuda(unrestricted=True)
    for _ in range(3):
        probes.nvml(NvmlRequest())

    assert asked == [20, 5]
    assert [each for session in sessions.made for each in session.deadlines] == [20, 5, 5, 20]


class FakeChild:
    """A child that counts how many were started, and notes its end."""

    started: list[FakeChild]

    def __init__(self, _program: str, *, environment: object = None) -> None:
        self.closed = False
        self.started.append(self)

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def children(monkeypatch: pytest.MonkeyPatch) -> list[FakeChild]:
    """Return the children that are started, each of which answers with its number."""
    FakeChild.started = []

    def read(*, child: FakeChild | None, environment: object, **_: object) -> CudaReading:
        child = child or FakeChild("new", environment=environment)
        return CudaReading(device_count=FakeChild.started.index(child))

    monkeypatch.setattr(live, "Child", FakeChild)
    monkeypatch.setattr("gpucheck.drivers.cuda.client.read_cuda", read)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return FakeChild.started


def test_cuda_is_asked_once_for_the_same_variables(
    children: list[FakeChild], monkeypatch: pytest.MonkeyPatch
) -> None:
    probes = LiveProbes()

    first = probes.cuda()
    assert probes.cuda() is probes.cuda(unrestricted=True) is first
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert probes.cuda() != first
    assert probes.cuda(unrestricted=True) is first
    assert len(children) == 2


def test_a_whole_reading_of_nvml_makes_cudas_answers_old(
    children: list[FakeChild], sessions: type[FakeSession], tmp_path: Path
) -> None:
    sessions.readings = iter([GOOD, GOOD])
    probes = LiveProbes(root=tmp_path)

    first = probes.cuda()
    probes.nvml(NvmlRequest(processes_of=(0,)))
    assert probes.cuda() is first
    probes.nvml(NvmlRequest())
    assert probes.cuda() != first


def test_the_child_that_was_started_early_is_the_one_that_is_asked(
    children: list[FakeChild], monkeypatch: pytest.MonkeyPatch
) -> None:
    probes = LiveProbes()

    probes.start_cuda()
    probes.start_cuda()
    assert (probes.cuda().device_count, len(children)) == (0, 1)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    probes.start_cuda()
    probes.close()
    assert [child.closed for child in children] == [False, True]


def test_a_child_that_cannot_be_started_early_is_started_when_it_is_asked(
    children: list[FakeChild], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_program: str) -> FakeChild:
        raise ChildDiedError("could not be started: no memory")

    probes = LiveProbes()
    with monkeypatch.context() as broken:
        broken.setattr(live, "Child", fail)
        probes.start_cuda()

    assert (probes.cuda().device_count, len(children)) == (0, 1)


@pytest.mark.parametrize(("deadline_s", "after_s"), [(0.5, 0.5), (2, 1), (100, 25)])
def test_the_time_after_a_hang(
    sessions: type[FakeSession], tmp_path: Path, deadline_s: float, after_s: float
) -> None:
    sessions.readings = iter([BAD])
    probes = LiveProbes(root=tmp_path, deadline_s=deadline_s)

    before_s = probes.patience_s()
    probes.nvml(NvmlRequest())

    assert (before_s, probes.patience_s()) == (deadline_s, after_s)
    assert probes.deadline_s() == deadline_s


def test_one_session_serves_every_question(sessions: type[FakeSession], tmp_path: Path) -> None:
    sessions.readings = iter([GOOD, GOOD])
    probes = LiveProbes(root=tmp_path, deadline_s=2)

    probes.nvml(NvmlRequest())
    probes.nvml(NvmlRequest(topology=True))

    (session,) = sessions.made
    assert session.deadlines == [2, 2]
    assert not session.closed
    probes.close()
    assert session.closed
    probes.close()


def test_after_a_failure_the_next_question_begins_anew(
    sessions: type[FakeSession], tmp_path: Path
) -> None:
    sessions.readings = iter([BAD, GOOD])
    probes = LiveProbes(root=tmp_path, deadline_s=2)

    assert probes.nvml(NvmlRequest()) == BAD
    assert probes.nvml(NvmlRequest()) == GOOD

    first, second = sessions.made
    assert (first.closed, second.closed) == (True, False)


@pytest.mark.parametrize(("gpus", "deadline_s"), [(1, 13), (8, 34), (64, 202)])
def test_the_deadline_grows_with_the_gpus_on_the_bus(
    tmp_path: Path, gpus: int, deadline_s: float
) -> None:
    root = write_tree(load_machine("h100x8").with_gpus(gpus), tmp_path)

    assert LiveProbes(root=root).deadline_s() == deadline_s
    assert LiveProbes(root=root, deadline_s=1.5).deadline_s() == 1.5


def test_without_a_bus_there_is_a_deadline_too(tmp_path: Path) -> None:
    assert LiveProbes(root=tmp_path).deadline_s() == 13


def test_the_root_comes_from_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_tree(load_machine("wsl2"), tmp_path)
    monkeypatch.setenv("GPUCHECK_ROOT", str(tmp_path))

    host = open_probes().host()
    monkeypatch.setenv("GPUCHECK_ROOT", "")
    here = open_probes().host()

    assert host.name == "wsl2"
    assert here.name != "wsl2"


def test_nobody_is_looked_up_for_no_process(tmp_path: Path) -> None:
    assert LiveProbes(root=tmp_path).identify([]) == {}


def test_processes_are_looked_up_once_each(tmp_path: Path) -> None:
    found = LiveProbes(root=tmp_path).identify([5, 5, 7])

    assert sorted(found) == [5, 7]


def test_time_is_utc_to_the_second() -> None:
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", LiveProbes().time())


def test_variables_are_those_of_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    monkeypatch.setenv("SOME_SECRET", "x")

    found = LiveProbes().environment()

    assert found["CUDA_VISIBLE_DEVICES"] == "1"
    assert "SOME_SECRET" not in found
