"""Client of the NVML child: its early start, its deadlines, and the reading of its lines."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpucheck.drivers.child import Child, ChildDiedError
from gpucheck.drivers.nvml import start
from gpucheck.drivers.nvml.client import MOST_GIVEN_UP, NvmlSession, assemble
from gpucheck.drivers.readings import GpuReading, NvmlReading, NvmlRequest, ProbeFailure

EVERYTHING = NvmlRequest(topology=True, process_utilization=True)


@pytest.mark.parametrize("form", ["pynvml.py", "pynvml"])
def test_the_binding_is_found_on_the_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "full").mkdir()
    if form.endswith(".py"):
        (tmp_path / "full" / form).touch()
    else:
        (tmp_path / "full" / form).mkdir()
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "pynvml.py").touch()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setattr(sys, "path", ["", str(tmp_path / "empty"), str(tmp_path / "full")])

    assert start.binding_directory() == str(tmp_path / "full")
    monkeypatch.setattr(sys, "path", ["", str(tmp_path / "empty")])
    assert start.binding_directory() == ""


def test_a_child_started_early_is_taken_once_or_discarded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[FakeChild] = []

    def start_fake() -> FakeChild:
        made.append(FakeChild([]))
        return made[-1]

    monkeypatch.setattr(start, "start", start_fake)
    start.start_early()
    early = start.take()
    later = start.take()
    start.start_early()
    start.discard()
    start.discard()

    assert [early, later] == made[:2]
    assert [child.closed for child in made] == [False, False, True]


def test_an_early_start_that_fails_is_told_when_it_is_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail() -> Child:
        raise ChildDiedError("could not be started: no memory")

    monkeypatch.setattr(start, "start", fail)
    start.start_early()

    reading = NvmlSession().read(EVERYTHING, deadline_s=1)

    assert reading.failure == ProbeFailure(
        code="nvml-child-died",
        message="the process that asks NVML could not be started: no memory",
    )


@pytest.fixture(autouse=True)
def _time_stands_still(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpucheck.drivers.nvml.client.time", SimpleNamespace(monotonic=lambda: 0.0))


class FakeChild:
    """A child that yields these documents, raises the errors among them, and is silent at None."""

    def __init__(self, script: list[Any]) -> None:
        self._script = iter(script)
        self.asked: list[Any] = []
        self.waits: list[float] = []
        self.closed = False

    def ask(self, request: Any) -> None:
        self.asked.append(request)

    def next_document(self, wait_s: float) -> dict[str, Any] | None:
        self.waits.append(wait_s)
        item = next(self._script)
        if isinstance(item, Exception):
            raise item
        return None if item is None else dict(item)

    def close(self) -> None:
        self.closed = True

    abandon = close


SYSTEM = {"part": "system", "driver_version": "1", "gpu_count": 2, "unavailable": {}}
GPU = {"part": "gpu", "index": 0, "uuid": "GPU-0", "unavailable": {}, "failure": None}
END = {"part": "end", "nvml_calls": 9}


def session(*script: Any) -> tuple[NvmlSession, FakeChild]:
    child = FakeChild(list(script))
    return NvmlSession(child), child  # type: ignore[arg-type]


def test_a_session_asks_as_often_as_it_is_asked() -> None:
    opened, child = session(SYSTEM, GPU, END, SYSTEM, GPU, {"part": "end", "nvml_calls": 18})

    first = opened.read(EVERYTHING, deadline_s=1)
    second = opened.read(NvmlRequest(), deadline_s=1)

    assert (first.nvml_calls, second.nvml_calls) == (9, 18)
    assert first.gpus == second.gpus == (GpuReading(index=0, uuid="GPU-0", unavailable={}),)
    assert child.asked == [
        {"topology": True, "process_utilization": True, "processes_of": None, "sysfs": ""},
        {"topology": False, "process_utilization": False, "processes_of": None, "sysfs": ""},
    ]
    assert not child.closed


@pytest.mark.parametrize(
    ("wakes", "persistence_mode", "waits"),
    [
        # The system, the first GPU, the last one, and the end.
        (True, False, [3, 2.5, 5, 5]),
        (True, True, [3, 2.5, 3, 3]),
        (False, False, [3, 1.5, 3, 3]),
    ],
)
def test_gpus_that_sleep_put_the_end_of_a_short_deadline_off(
    wakes: bool, persistence_mode: bool, waits: list[float]
) -> None:
    mode = {"persistence_mode": persistence_mode}
    opened, child = session(SYSTEM, GPU | mode, GPU | mode | {"index": 1}, END)

    reading = opened.read(NvmlRequest(), deadline_s=3, wakes=wakes)

    assert len(reading.gpus) == 2
    assert child.waits == waits


def test_the_lengthened_deadline_is_the_one_that_is_named() -> None:
    opened, _ = session(SYSTEM, GPU | {"persistence_mode": False}, None)

    reading = opened.read(NvmlRequest(), deadline_s=3, wakes=True)

    assert reading.failure is not None
    assert reading.failure.message == "GPU 1 did not answer in time (deadline 5 s)"


@pytest.mark.parametrize(
    ("trouble", "code", "words"),
    [
        (None, "driver-not-answering", "GPU 1 did not answer in time (deadline 1.5 s)"),
        (ChildDiedError("was ended by SIGSEGV"), "nvml-child-died", "was ended by SIGSEGV"),
    ],
)
def test_what_came_before_the_trouble_is_kept(
    trouble: Exception | None, code: str, words: str
) -> None:
    opened, child = session(SYSTEM, GPU, trouble)

    reading = opened.read(NvmlRequest(), deadline_s=1.5)

    assert (reading.gpu_count, reading.gpus[0].uuid) == (2, "GPU-0")
    assert reading.failure is not None
    assert reading.failure.code == code
    assert words in reading.failure.message
    assert child.closed


def gpu(index: int) -> dict[str, Any]:
    return GPU | {"index": index, "uuid": f"GPU-{index}"}


def sessions(monkeypatch: pytest.MonkeyPatch, *scripts: list[Any]) -> list[FakeChild]:
    """Let every child that a session takes be the next of these."""
    children = [FakeChild(script) for script in scripts]
    waiting = iter(children)
    monkeypatch.setattr("gpucheck.drivers.nvml.client.take", lambda: next(waiting))
    return children


FOUR = SYSTEM | {"gpu_count": 4}


def test_a_driver_that_does_not_start() -> None:
    opened, child = session(None)

    reading = opened.read(EVERYTHING, deadline_s=1.5)

    assert reading.failure is not None
    assert reading.failure.message == "the NVIDIA driver did not answer within 1.5 s"
    assert child.waits == [1.5]
    assert child.closed


def test_the_gpus_behind_one_that_hangs_are_asked_by_another_child(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pairs = {"part": "topology", "pairs": [], "nvlinks": []}
    first, second = sessions(
        monkeypatch,
        [FOUR, gpu(0), None],
        [FOUR, gpu(2), gpu(3), pairs, END],
    )

    reading = NvmlSession().read(EVERYTHING, deadline_s=10)

    assert [row.uuid for row in reading.gpus] == ["GPU-0", None, "GPU-2", "GPU-3"]
    hung = reading.gpus[1]
    assert hung.failure is not None
    assert hung.failure.code == "driver-not-answering"
    assert set(hung.unavailable.values()) == {"it did not answer in time (deadline 10 s)"}
    assert reading.failure is not None
    assert reading.failure.message == "GPU 1 did not answer in time (deadline 10 s)"
    assert reading.topology is not None
    assert (first.closed, second.closed) == (True, False)
    assert [request.get("first") for request in first.asked + second.asked] == [None, 2]
    assert second.asked[0]["silent"] == [1]
    # The driver as a whole gets all the time, a GPU with others behind it half of it.
    assert (first.waits[0], first.waits[2]) == (10, 5)


def test_one_gpu_has_all_the_time_and_needs_no_other_child() -> None:
    opened, child = session(SYSTEM | {"gpu_count": 1}, None)

    reading = opened.read(NvmlRequest(), deadline_s=10)

    assert child.waits[1] == 10
    assert reading.failure is not None
    assert reading.failure.message == "GPU 0 did not answer in time (deadline 10 s)"
    assert len(reading.gpus) == 1


@pytest.mark.parametrize(
    ("second", "behind"),
    [
        ([None], "the NVIDIA driver did not answer within 10 s"),
        ([{"part": "system"}, {"part": "failure", "code": "unknown", "message": "error 999"}],
         "error 999"),
        ([ChildDiedError("was ended by SIGSEGV")],
         "the process that asks NVML was ended by SIGSEGV"),
    ],
)  # fmt: skip
def test_the_driver_may_stop_answering_after_a_gpu(
    monkeypatch: pytest.MonkeyPatch, second: list[Any], behind: str
) -> None:
    sessions(monkeypatch, [FOUR, gpu(0), None], second)

    reading = NvmlSession().read(NvmlRequest(), deadline_s=10)

    assert reading.failure is not None
    assert reading.failure.code == "driver-not-answering"
    assert reading.failure.message == (
        f"GPU 1 did not answer in time (deadline 10 s); and after that: {behind}"
    )
    assert [row.index for row in reading.gpus] == [0, 1]


def test_only_so_many_gpus_are_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    eight = SYSTEM | {"gpu_count": 8}
    children = sessions(monkeypatch, *([eight, None] for _ in range(8)))

    reading = NvmlSession().read(NvmlRequest(), deadline_s=1)

    assert sum(bool(child.asked) for child in children) == 1 + MOST_GIVEN_UP
    assert [row.index for row in reading.gpus] == [0, 1, 2]
    assert reading.failure is not None
    assert reading.failure.message.startswith("GPUs 0, 1, 2 did not answer in time")
    assert reading.failure.message.endswith("the NVIDIA driver did not answer within 1 s")


def test_who_is_on_a_gpu_is_not_asked_of_another_child() -> None:
    opened, _ = session(None)

    reading = opened.read(NvmlRequest(processes_of=(3,)), deadline_s=1)

    assert reading.failure is not None
    assert reading.failure.code == "driver-not-answering"
    assert reading.gpus == ()


def test_a_refusal_to_initialise() -> None:
    failure = {"function": "nvmlInit", "library_code": 9, "code": "driver-not-loaded"}
    opened, _ = session({"part": "failure", **failure, "message": "not loaded"})

    reading = opened.read(EVERYTHING, deadline_s=1)

    assert reading == NvmlReading(failure=ProbeFailure(**failure, message="not loaded"))


def test_parts_are_put_together() -> None:
    gpu = GPU | {
        "processes": [{"pid": 1, "type": "compute"}],
        "mig_instances": [{"uuid": "MIG-1", "unavailable": {"name": "why"}}],
        "failure": {"code": "gpu-is-lost", "message": "gone", "library_code": 15, "function": "f"},
    }
    topology = {
        "part": "topology",
        "pairs": [{"from": 0, "to": 1, "level": 10, "unavailable": None}],
        "nvlinks": [{"gpu": 0, "link": 0, "active": False, "unavailable": "why"}],
    }

    reading = assemble([dict(SYSTEM), gpu, topology, dict(END)], None)

    (found,) = reading.gpus
    assert found.processes[0].pid == 1
    assert found.mig_instances[0].unavailable == {"name": "why"}
    assert found.failure is not None
    assert found.failure.library_code == 15
    assert reading.topology is not None
    assert (reading.topology.pairs[0].from_, reading.topology.pairs[0].to) == (0, 1)
    assert reading.topology.nvlinks[0].unavailable == "why"
