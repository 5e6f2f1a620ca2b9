"""Watcher of a command: what it reads, when it acts, and on which processes."""

from __future__ import annotations

import signal
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar

import pytest

from gpucheck.drivers.host.process_tree import Stat
from gpucheck.drivers.readings import (
    GpuReading,
    MigReading,
    NvmlReading,
    NvmlRequest,
    ProbeFailure,
    ProcessIdentity,
    ProcessReading,
)
from gpucheck.memlimit import watcher as watching
from gpucheck.memlimit.model import (
    GpuMemoryLimit,
    LimitedRun,
    MemoryLimit,
    MemoryRequest,
    WatchAction,
    estimate_overhead,
)
from gpucheck.memlimit.watcher import GRACE_S, SLACK_BYTES, MachineAccess, Watcher, open_watch
from tests.fakes.probes import gpu_reading, reading_of

GIB = 1024**3
CHILD, WORKER, STRANGER = 100, 101, 900
OVERHEAD = estimate_overhead("13.0")
ALLOWANCE = SLACK_BYTES + OVERHEAD.total_bytes


@dataclass
class FakeTree:
    """The command's processes; those that `stubborn` names outlive SIGTERM."""

    members: dict[int, Stat] = field(default_factory=dict)
    stubborn: frozenset[int] = frozenset()
    others: frozenset[int] = frozenset()
    sent: list[tuple[signal.Signals, list[int]]] = field(default_factory=list)
    #: What left the tree and is known by its mark alone.
    marked: dict[int, Stat] = field(default_factory=dict)

    def refresh(self, suspects: Iterable[int] = ()) -> Mapping[int, Stat]:
        self.members |= {pid: self.marked[pid] for pid in suspects if pid in self.marked}
        return dict(self.members)

    def send(self, number: signal.Signals) -> tuple[list[int], list[int]]:
        reached = [pid for pid in self.members if pid not in self.others]
        self.sent.append((number, reached))
        for pid in reached:
            if number is signal.SIGKILL or pid not in self.stubborn:
                del self.members[pid]
        return reached, sorted(self.others)


@dataclass
class Scene:
    """A machine whose memory a test changes between ticks."""

    action: WatchAction = WatchAction.WARN
    limits: tuple[GpuMemoryLimit, ...] = ()
    tree: FakeTree = field(default_factory=FakeTree)
    gpus: list[GpuReading] = field(default_factory=list)
    failure: ProbeFailure | None = None
    foreign: frozenset[int] = frozenset()
    said: list[str] = field(default_factory=list)
    time_s: float = 0.0
    included: bool = False
    contained: bool = False

    def __post_init__(self) -> None:
        self.limits = self.limits or (limit_of(gpu_reading(0).uuid),)
        self.tree.members = self.tree.members or {pid: stat() for pid in (CHILD, WORKER)}
        overhead = estimate_overhead("13.0", included=self.included)
        machine = MachineAccess(
            read=self._read,
            identify=self._identify,
            open_tree=lambda pid: self.tree,  # type: ignore[arg-type, return-value]
            report=self.said.append,
            now=lambda: self.time_s,
            sleep=self._sleep,
            contained=self.contained,
        )
        self.watcher = Watcher(self.limits, overhead, self.action, machine)

    def _read(self) -> NvmlReading:
        return reading_of(*self.gpus, failure=self.failure)

    def _identify(self, pids: Iterable[int]) -> Mapping[int, ProcessIdentity]:
        return {
            pid: ProcessIdentity(pid=pid, namespace="other" if pid in self.foreign else "own")
            for pid in pids
        }

    def _sleep(self, seconds: float) -> None:
        self.time_s += seconds

    def tick(self, used: Mapping[int, int | None], *, after_s: float = 1.0) -> None:
        """Let the first GPU's processes use so much, and tick."""
        self.gpus = [gpu_reading(0, processes=processes(used))]
        self.time_s += after_s
        self.watcher.tick(CHILD)

    def finish(self, exit_code: int = 0) -> LimitedRun:
        return self.watcher.finish(exit_code)


@dataclass
class FakeSession:
    """NVML session that answers with nothing, or fails, and records what it was asked."""

    failure: ClassVar[ProbeFailure | None] = None
    asked: list[tuple[int, ...] | None] = field(default_factory=list)
    deadlines_s: list[float] = field(default_factory=list)
    closed: bool = False

    def read(self, question: NvmlRequest, *, deadline_s: float) -> NvmlReading:
        self.asked.append(question.processes_of)
        self.deadlines_s.append(deadline_s)
        return reading_of(failure=self.failure)

    def close(self) -> None:
        self.closed = True


def stat() -> Stat:
    return Stat(parent=1, started=5, name="python", state="S")


def limit_of(uuid: str | None, size: int | None = 8 * GIB) -> GpuMemoryLimit:
    return GpuMemoryLimit(
        uuid=uuid,
        memory_total_bytes=80 * GIB,
        limit_bytes=size,
        allocator_limit_bytes=size,
        index=0,
        cuda_index=0,
    )


def processes(used: Mapping[int, int | None], **changes: object) -> tuple[ProcessReading, ...]:
    return tuple(
        ProcessReading(pid=pid, type="compute", memory_used_bytes=size, **changes)  # type: ignore[arg-type]
        for pid, size in used.items()
    )


class TestPeak:
    def test_the_tree_is_summed_and_the_most_is_kept(self) -> None:
        scene = Scene()
        for worker in (1, 3, 2):
            scene.tick({CHILD: 2 * GIB, WORKER: worker * GIB})

        run = scene.finish(7)

        assert (run.exit_code, run.peak_bytes, run.exceeded) == (7, 5 * GIB, False)
        assert (run.action, run.readings, run.gpus[0].processes) == (None, 3, 2)
        assert run.unavailable == {}

    def test_others_on_the_card_do_not_count(self) -> None:
        scene = Scene()
        scene.tick({CHILD: GIB, STRANGER: 70 * GIB})

        assert scene.finish().peak_bytes == GIB

    def test_a_process_in_two_lists_counts_once(self) -> None:
        scene = Scene()
        scene.tick({CHILD: GIB})
        both = (
            *processes({CHILD: GIB}),
            ProcessReading(pid=CHILD, type="graphics", memory_used_bytes=GIB),
        )
        scene.gpus = [gpu_reading(0, processes=both)]
        scene.watcher.tick(CHILD)

        assert scene.finish().peak_bytes == GIB

    def test_a_command_that_uses_no_gpu_has_a_peak_of_zero(self) -> None:
        scene = Scene()
        scene.tick({STRANGER: GIB})

        run = scene.finish()

        assert (run.peak_bytes, run.exceeded) == (0, False)

    def test_memory_in_a_mig_instance_counts_for_that_instance(self) -> None:
        scene = Scene(limits=(limit_of("MIG-2"),))
        migs = tuple(
            MigReading(uuid=f"MIG-{n}", gpu_instance_id=n, compute_instance_id=0) for n in (1, 2)
        )
        inside = processes({CHILD: GIB}, gpu_instance_id=2, compute_instance_id=0)
        beside = processes({WORKER: GIB}, gpu_instance_id=1, compute_instance_id=0)
        scene.gpus = [gpu_reading(0, mig_instances=migs, processes=(*inside, *beside))]
        scene.watcher.tick(CHILD)

        assert scene.finish().peak_bytes == GIB

    def test_a_limit_that_is_not_known_is_never_exceeded(self) -> None:
        scene = Scene(limits=(limit_of(gpu_reading(0).uuid, None),))
        scene.tick({CHILD: 79 * GIB})

        run = scene.finish()

        assert (run.peak_bytes, run.exceeded, scene.said) == (79 * GIB, False, [])


class TestUnknown:
    def test_ids_of_another_namespace_are_not_taken_for_ours(self) -> None:
        scene = Scene(action=WatchAction.STOP, foreign=frozenset({CHILD}))
        scene.tick({CHILD: 79 * GIB})

        run = scene.finish()

        assert (run.peak_bytes, run.exceeded, run.action) == (None, None, None)
        assert (run.gpus[0].peak_bytes, run.gpus[0].exceeded) == (None, None)
        assert "PID namespace" in run.unavailable["peak_bytes"]
        assert scene.tree.sent == []

    def test_one_foreign_id_makes_all_others_chance(self) -> None:
        scene = Scene(action=WatchAction.STOP, foreign=frozenset({STRANGER}))
        scene.tick({CHILD: 79 * GIB, STRANGER: GIB})

        run = scene.finish()

        assert (run.peak_bytes, scene.tree.sent) == (None, [])
        assert "PID namespace" in run.unavailable["exceeded"]

    def test_in_a_container_silence_is_not_taken_for_nothing(self) -> None:
        scene = Scene(contained=True)
        scene.tick({})

        run = scene.finish()

        assert (run.peak_bytes, run.exceeded, run.readings) == (None, None, 1)
        assert "container" in run.unavailable["peak_bytes"]

    def test_in_a_container_that_names_its_own_ids_they_count(self) -> None:
        scene = Scene(contained=True)
        scene.tick({CHILD: GIB})

        assert scene.finish().peak_bytes == GIB

    def test_memory_that_the_driver_does_not_report(self) -> None:
        scene = Scene()
        scene.tick({CHILD: None})

        run = scene.finish()

        assert run.peak_bytes is None
        assert "does not report" in run.unavailable["exceeded"]

    def test_a_command_that_ends_before_the_first_reading(self) -> None:
        run = Scene().finish(3)

        assert (run.exit_code, run.peak_bytes, run.exceeded) == (3, None, None)
        assert "before the first reading" in run.unavailable["peak_bytes"]

    def test_a_driver_that_fails_ends_the_watch_and_not_the_command(self) -> None:
        scene = Scene(action=WatchAction.STOP)
        scene.failure = ProbeFailure(code="driver-not-answering", message="no answer within 2 s")
        for _ in range(3):
            scene.tick({CHILD: 79 * GIB})

        run = scene.finish()

        assert (run.readings, run.peak_bytes) == (0, None)
        assert "no answer" in run.unavailable["peak_bytes"]
        assert scene.tree.sent == []

    def test_readings_before_a_failure_count(self) -> None:
        scene = Scene()
        scene.tick({CHILD: GIB})
        scene.failure = ProbeFailure(code="gone", message="the process was ended by SIGTERM")
        scene.tick({CHILD: 2 * GIB})

        run = scene.finish()

        assert (run.peak_bytes, run.readings) == (GIB, 1)
        assert "SIGTERM" in run.unavailable["later_readings"]


class TestAllowance:
    @pytest.mark.parametrize(("above", "exceeded"), [(0, False), (1, True)])
    def test_a_context_and_slack_are_allowed_above_the_limit(
        self, above: int, exceeded: bool
    ) -> None:
        scene = Scene()
        scene.tick({CHILD: 8 * GIB + ALLOWANCE + above})

        run = scene.finish()

        assert (run.exceeded, run.gpus[0].allowance_bytes) == (exceeded, ALLOWANCE)

    def test_every_process_has_a_context(self) -> None:
        scene = Scene()
        scene.tick({CHILD: 4 * GIB, WORKER: 4 * GIB + ALLOWANCE + OVERHEAD.total_bytes})

        assert scene.finish().exceeded is False

    def test_a_context_that_the_limit_includes_is_not_allowed_again(self) -> None:
        scene = Scene(included=True)
        scene.tick({CHILD: 8 * GIB + SLACK_BYTES + 1})

        assert scene.finish().exceeded is True


class TestActions:
    def test_one_warning_names_the_culprit(self) -> None:
        scene = Scene()
        for _ in range(3):
            scene.tick({CHILD: GIB, WORKER: 20 * GIB})

        run = scene.finish()

        assert len(scene.said) == 1
        assert scene.said[0] == (
            "the command takes 21.0 GiB of GPU 0, above the limit of 8.0 GiB plus 1.2 GiB"
            f" allowance: python ({WORKER}) and 1 more"
        )
        assert (run.action, run.exceeded, scene.tree.sent) == ("warned", True, [])
        assert run.gpus[0].exceeded is True
        assert [culprit.pid for culprit in run.culprits] == [WORKER, CHILD]

    @pytest.mark.parametrize(("index", "shown"), [(0, "GPU 0"), (None, "GPU 3")])
    def test_a_warning_names_the_gpu_as_list_does(self, index: int | None, shown: str) -> None:
        limit = replace(limit_of(gpu_reading(0).uuid), index=index, cuda_index=3)
        scene = Scene(limits=(limit,))
        scene.tick({CHILD: 20 * GIB})

        (said,) = scene.said
        assert f"of {shown}, above" in said
        assert said.endswith(f"python ({CHILD})")

    def test_stop_sends_sigterm_to_the_tree_at_the_first_reading_above(self) -> None:
        scene = Scene(action=WatchAction.STOP)
        scene.tick({CHILD: GIB})
        scene.tick({CHILD: 20 * GIB, STRANGER: 50 * GIB})

        assert scene.tree.sent == [(signal.SIGTERM, [CHILD, WORKER])]
        assert scene.finish(143).action == "terminated"

    def test_what_outlives_sigterm_is_killed_after_the_grace(self) -> None:
        scene = Scene(action=WatchAction.STOP, tree=FakeTree(stubborn=frozenset({WORKER})))
        scene.tick({WORKER: 20 * GIB})
        scene.tick({WORKER: 20 * GIB}, after_s=GRACE_S - 0.5)
        assert len(scene.tree.sent) == 1

        scene.tick({WORKER: 20 * GIB}, after_s=0.5)

        assert scene.tree.sent[1:] == [(signal.SIGKILL, [WORKER])]
        assert scene.finish(137).action == "killed"

    def test_what_outlives_the_command_itself_is_killed_too(self) -> None:
        scene = Scene(action=WatchAction.STOP, tree=FakeTree(stubborn=frozenset({WORKER})))
        scene.tick({CHILD: 20 * GIB})
        before = scene.time_s

        run = scene.finish(143)

        assert scene.tree.sent[-1] == (signal.SIGKILL, [WORKER])
        assert run.action == "killed"
        assert GRACE_S <= scene.time_s - before < GRACE_S + 1

    def test_processes_of_another_user_are_named_and_left(self) -> None:
        tree = FakeTree(others=frozenset({WORKER}))
        scene = Scene(action=WatchAction.STOP, tree=tree)
        scene.tick({CHILD: 20 * GIB})

        assert tree.sent == [(signal.SIGTERM, [CHILD])]
        assert scene.said[-1].endswith(f"another user: {WORKER}")

    def test_a_process_that_left_the_tree_is_counted_and_stopped(self) -> None:
        tree = FakeTree(marked={STRANGER: stat()})
        scene = Scene(action=WatchAction.STOP, tree=tree)
        scene.tick({STRANGER: 20 * GIB})

        assert tree.sent == [(signal.SIGTERM, [CHILD, WORKER, STRANGER])]
        assert scene.finish(0).peak_bytes == 20 * GIB

    def test_nothing_is_sent_by_a_watch_that_warns(self) -> None:
        scene = Scene(action=WatchAction.WARN)
        scene.tick({CHILD: 20 * GIB}, after_s=100)
        scene.tick({CHILD: 20 * GIB}, after_s=100)
        scene.finish()

        assert scene.tree.sent == []


class TestOpenWatch:
    """Opening of NVML beside a command, with a session that only records."""

    @pytest.fixture
    def sessions(self, monkeypatch: pytest.MonkeyPatch) -> list[FakeSession]:
        opened: list[FakeSession] = []

        def open_session() -> FakeSession:
            opened.append(FakeSession())
            return opened[-1]

        monkeypatch.setattr(watching, "NvmlSession", open_session)
        return opened

    def plan(self, *indices: int | None) -> MemoryLimit:
        gpus = tuple(replace(limit_of("GPU-1"), index=index) for index in indices)
        request = MemoryRequest(text="30%", fraction=0.3)
        return MemoryLimit(request=request, gpus=gpus, mechanisms=())

    def test_off_opens_nothing(self, sessions: list[FakeSession]) -> None:
        with open_watch(self.plan(0), WatchAction.OFF, print) as watcher:
            assert watcher is None

        assert sessions == []

    @pytest.mark.parametrize(
        ("indices", "asked"), [((3, 1), (1, 3)), ((2, 2), (2,)), ((0, None), None)]
    )
    def test_only_the_limited_gpus_are_read(
        self,
        sessions: list[FakeSession],
        indices: tuple[int | None, ...],
        asked: tuple[int, ...] | None,
    ) -> None:
        with open_watch(self.plan(*indices), WatchAction.WARN, print) as watcher:
            assert watcher is not None
            assert not sessions[0].closed

        assert sessions[0].asked == [asked]
        assert sessions[0].closed

    def test_the_first_answer_may_take_longer_with_more_gpus(
        self, sessions: list[FakeSession]
    ) -> None:
        for count in (1, 3):
            with open_watch(self.plan(*range(count)), WatchAction.WARN, print):
                pass
        with open_watch(self.plan(0), WatchAction.WARN, print, deadline_s=1.5):
            pass

        one, three, given = (session.deadlines_s[0] for session in sessions)
        assert one < three
        assert given == 1.5

    def test_a_driver_that_does_not_answer_is_reported_once(
        self, sessions: list[FakeSession], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(FakeSession, "failure", ProbeFailure(code="x", message="it hangs"))
        said: list[str] = []

        with open_watch(self.plan(0), WatchAction.STOP, said.append) as watcher:
            assert watcher is None

        assert said == ["memory is not watched: it hangs"]
        assert sessions[0].closed
