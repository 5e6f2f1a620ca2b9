"""Run in a limited cgroup: what is set, read back, proved and cleared; NVML is scripted."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpucheck.drivers.child import ChildDiedError, ChildSilentError, open_descriptors
from gpucheck.drivers.host import capped_groups
from gpucheck.drivers.host.capped_groups import Record
from gpucheck.drivers.readings import LimitReading, ProbeFailure
from gpucheck.memlimit import capped_run
from gpucheck.memlimit.capped_run import CappedRun, clear_dead_groups
from gpucheck.memlimit.model import GpuMemoryLimit, MemoryLimit, MemoryRequest
from gpucheck.memlimit.outcome import hard_sentences
from gpucheck.report.errors import (
    BadAnswerError,
    InconclusiveError,
    LaunchError,
    MissingError,
)

GIB = 1 << 30
MIB = 1 << 20
UUID = "GPU-00000000-0000-0000-0000-000000000001"
DIGITS = "0" * 31 + "1"
DEAD = "gpucheck-4194999-7"


class FakeSession:
    """NVML's limits in memory; `refuses` and `unread` are the codes of its failures."""

    def __init__(
        self, *, refuses: str = "", unread: str = "", rounds_by: int = 0, has_dmem: bool = False
    ) -> None:
        self.limits_of: dict[str, int] = {}
        self.used = 0
        self.above: int | None = None
        self.asked: list[tuple[str, Any]] = []
        self._refuses, self._unread, self._rounds_by = refuses, unread, rounds_by
        self._has_dmem = has_dmem

    def set_limits(
        self, group: str, limits: Mapping[str, Any], *, deadline_s: float
    ) -> dict[str, ProbeFailure | None]:
        self.asked.append((group, dict(limits)))
        if self._refuses:
            return dict.fromkeys(limits, ProbeFailure(code=self._refuses, message="no"))
        if self._has_dmem and any(limits.values()):  # the kernel has its files in every group
            (Path(group) / "dmem.max").touch()
        for uuid, pair in limits.items():
            if pair is None:
                self.limits_of.pop(uuid, None)
            else:
                assert pair[0] == pair[1]
                self.limits_of[uuid] = pair[1] + self._rounds_by
        return dict.fromkeys(limits)

    def limits(
        self, group: str, uuids: Iterable[str], *, deadline_s: float
    ) -> dict[str, LimitReading]:
        if group.endswith("cgroup"):  # the group above
            return {uuid: LimitReading(None, self.above, 0) for uuid in uuids}
        if self._unread:
            failure = ProbeFailure(code=self._unread, message="said nothing")
            return dict.fromkeys(uuids, LimitReading(failure=failure))
        return {uuid: LimitReading(None, self.limits_of.get(uuid), self.used) for uuid in uuids}


def plan() -> MemoryLimit:
    gpu = GpuMemoryLimit(
        uuid=UUID,
        memory_total_bytes=16 * GIB,
        limit_bytes=8 * GIB,
        allocator_limit_bytes=8 * GIB,
        index=0,
        cuda_index=0,
    )
    return MemoryLimit(request=MemoryRequest(text="8GiB"), gpus=(gpu,), mechanisms=())


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "sys/fs/cgroup/own").mkdir(parents=True)
    return tmp_path


def refused(failure: ProbeFailure, folder: Path) -> MissingError:
    return MissingError(code=failure.code, message=f"{folder.name}: {failure.message}")


def run_in(root: Path, session: Any, *, place: str = "own") -> CappedRun:
    parent = root / "sys/fs/cgroup/own"
    return CappedRun(root, plan(), session, place=place, parent=parent, user=None, refused=refused)


# ----------------------------------------------------------------------------------- the start


def test_the_limit_is_set_before_anything_can_join(root: Path) -> None:
    session = FakeSession()
    run = run_in(root, session)

    with run.open():
        folder = Path(run.limit.cgroup)
        assert folder.parent == root / "sys/fs/cgroup/own"
        assert (session.limits_of, folder.is_dir()) == ({UUID: 8 * GIB}, True)
        assert run.limit.removed is None

    assert (session.limits_of, folder.exists(), run.limit.removed) == ({}, False, True)
    assert capped_groups.dead_records(root) == []


@pytest.mark.parametrize(("has_dmem", "expected"), [(True, "dmem"), (False, "driver")])
def test_the_groups_own_files_tell_who_enforces_it(
    root: Path, has_dmem: bool, expected: str
) -> None:
    run = run_in(root, FakeSession(has_dmem=has_dmem))

    with run.open():
        assert run.limit.back_end == expected
        (Path(run.limit.cgroup) / "dmem.max").unlink(missing_ok=True)


def test_a_scope_is_not_made_by_us(root: Path) -> None:
    session = FakeSession()
    run = run_in(root, session, place="scope")

    with run.open() as ends:
        words = run.words("/bin/true", ("true", "x"), ends, "/usr/bin/systemd-run")
        assert session.asked == []

    assert Path(run.limit.cgroup).parent == root / "sys/fs/cgroup"
    assert Path(run.limit.cgroup).suffix == ".scope"
    assert words[0] == "/usr/bin/systemd-run"
    assert f"--unit={Path(run.limit.cgroup).name}" in words
    assert words[-4:] == ["-", "/bin/true", "true", "x"]
    assert run.limit.removed is True


@pytest.mark.parametrize("code", ["no-permission", "unknown", "driver-not-answering"])
def test_a_refused_limit_leaves_nothing(root: Path, code: str) -> None:
    run = run_in(root, FakeSession(refuses=code))

    with pytest.raises(MissingError, match="no"), run.open():
        pytest.fail("opened")

    assert not Path(run.limit.cgroup).exists()
    assert not list((root / capped_groups.RECORDS).iterdir())


@pytest.mark.parametrize(("rounds_by", "fits"), [(-1, True), (2 * MIB, True), (2 * MIB + 1, False)])
def test_what_is_read_back_may_be_rounded_to_a_block(
    root: Path, rounds_by: int, fits: bool
) -> None:
    run = run_in(root, FakeSession(rounds_by=rounds_by))

    if fits:
        with run.open():
            return
    with pytest.raises(BadAnswerError, match="cannot be read back"), run.open():
        pytest.fail("opened")


def test_a_limit_that_cannot_be_read_back_is_none(root: Path) -> None:
    with (
        pytest.raises(BadAnswerError, match="said nothing"),
        run_in(root, FakeSession(unread="unknown")).open(),
    ):
        pytest.fail("opened")


def test_a_folder_of_records_that_is_not_ours(root: Path) -> None:
    (root / "run").mkdir()
    (root / "run/gpucheck").symlink_to(root)
    run = run_in(root, FakeSession())

    with pytest.raises(MissingError, match="record of the cgroup cannot be kept"), run.open():
        pytest.fail("opened")
    assert not Path(run.limit.cgroup).exists()


# ------------------------------------------------------------------------------------ the gate


class Gate:
    """The process that waits to become a command; `start` begins it, `code` is its end."""

    def __init__(self, run: CappedRun, ends: tuple[int, int], *command: str) -> None:
        words = run.words(command[0], command, ends, None)
        self._process = subprocess.Popen(words, pass_fds=ends, stdout=subprocess.PIPE, text=True)
        self.pid = self._process.pid

    def end(self) -> tuple[int, str]:
        """Return its exit code and what it wrote."""
        said, _ = self._process.communicate()
        return self._process.returncode, said


def test_the_gate_opens_once_the_process_is_in_its_group(root: Path) -> None:
    run = run_in(root, FakeSession())
    before = len(open_descriptors())

    with run.open() as ends:
        procs = Path(run.limit.cgroup) / "cgroup.procs"
        gate = Gate(run, ends, "/bin/cat", str(procs))
        run.admit(gate.pid)
        after = open_descriptors()
        code, said = gate.end()

    assert (code, said) == (0, f"{gate.pid}\n")
    assert run.limit.removed is True
    # Beside what the command writes nothing of the gate is left open.
    assert len(after) == before + 1


def test_a_proof_that_fails_opens_no_gate(root: Path) -> None:
    run = run_in(root, FakeSession())
    gates: list[Gate] = []

    def prove(folder: Path) -> None:
        assert capped_groups.members(folder) == [gates[0].pid]
        raise InconclusiveError(code="test", message="not proved")

    def start() -> None:
        with run.open() as ends:
            gates.append(Gate(run, ends, "/bin/echo", "started"))
            run.admit(gates[0].pid, prove)

    with pytest.raises(InconclusiveError):
        start()
    assert gates[0].end() == (125, "")


def test_a_starter_that_ends_is_not_admitted(root: Path) -> None:
    run = run_in(root, FakeSession(), place="scope")

    def start() -> None:
        with run.open() as ends, subprocess.Popen(["/bin/true"], pass_fds=ends) as starter:
            starter.wait()
            run.admit(starter.pid)

    with pytest.raises(LaunchError, match="its starter ended"):
        start()


def test_a_scope_must_hold_the_process_and_is_limited_then(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(capped_run, "_SYSTEMD_S", 0.05)
    session = FakeSession()
    run = run_in(root, session, place="scope")

    with run.open() as ends:
        folder = Path(run.limit.cgroup)
        folder.mkdir()
        os.write(ends[0], b"r")
        with pytest.raises(LaunchError, match="systemd has made no group"):
            run.admit(os.getpid())
    assert session.limits_of == {}

    other = run_in(root, session, place="scope")
    with other.open() as ends:
        folder.mkdir(exist_ok=True)
        (folder / "cgroup.procs").write_text(f"{os.getpid()}\n")
        os.write(ends[0], b"r")
        go = os.dup(ends[1])
        other.admit(os.getpid())
        assert (session.limits_of, os.read(go, 1)) == ({UUID: 8 * GIB}, b"g")
        os.close(go)
        (folder / "cgroup.procs").unlink()


# ----------------------------------------------------------------------------------- the proof


class FakeChild:
    """The process that asks for memory; it answers what a test says."""

    answers: list[Any]
    open = 0

    def __init__(self, program: str, question: str, group: str, limits: str, **_: Any) -> None:
        assert f'{{"{DIGITS}": {8 * GIB}}}' == limits
        if self.answers and isinstance(self.answers[0], ChildDiedError):
            raise self.answers[0]
        FakeChild.open += 1

    def documents(self, deadline_s: float) -> Any:
        for answer in self.answers:
            if isinstance(answer, Exception):
                raise answer
            yield answer

    def __enter__(self) -> FakeChild:
        return self

    def __exit__(self, *_: object) -> None:
        FakeChild.open -= 1


def proved(root: Path, monkeypatch: pytest.MonkeyPatch, *answers: Any) -> CappedRun:
    monkeypatch.setattr(FakeChild, "answers", list(answers), raising=False)
    monkeypatch.setattr(capped_run, "Child", FakeChild)
    run = run_in(root, FakeSession())
    try:
        run.prove({}, {UUID: 16 * GIB})
    finally:
        assert FakeChild.open == 0
    return run


def told(allocated: int, refused_bytes: int | None) -> dict[str, Any]:
    return {
        "uuid_hex": DIGITS,
        "allocated_bytes": allocated,
        "refused_bytes": refused_bytes,
        "refused_with": "out of memory",
    }


def test_a_refusal_proves_the_limit(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = proved(root, monkeypatch, told(4 * GIB, 4 * GIB + 16 * MIB), {"end": True})

    (gpu,) = run.limit.gpus
    assert (gpu.allocated_bytes, gpu.refused_bytes) == (4 * GIB, 4 * GIB + 16 * MIB)
    assert "an allocation up to 8.02 GiB was refused" in hard_sentences(run.limit)[1]


def test_more_than_the_limit_was_granted(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BadAnswerError, match=r"8\.0 GiB were allocated under it"):
        proved(root, monkeypatch, told(8 * GIB + 16 * MIB, None), {"end": True})


@pytest.mark.parametrize(
    ("answers", "said"),
    [
        ([{"end": True}], "CUDA does not show the GPU"),
        ([{"uuid_hex": DIGITS, "failure": {"message": "busy"}}, {"end": True}], ": busy"),
        ([{"failure": {"message": "no driver"}}], "no driver"),
        ([ChildSilentError(120)], "CUDA did not answer within 120 s"),
        ([{"uuid_hex": DIGITS}, ChildDiedError("was killed")], "asks for memory was killed"),
        ([ChildDiedError("ended with code 1")], "asks for memory ended with code 1"),
    ],
)
def test_what_could_not_be_tried_is_no_proof(
    root: Path, monkeypatch: pytest.MonkeyPatch, answers: list[Any], said: str
) -> None:
    with pytest.raises(InconclusiveError, match=said):
        proved(root, monkeypatch, *answers)


#: The limit, what is asked for beyond it, and the proof's own context.
NEEDED = 8 * GIB + 16 * MIB + GIB


@pytest.mark.parametrize(("free", "tried"), [(NEEDED - 1, False), (NEEDED, True), (None, True)])
def test_a_card_without_room_for_more_proves_nothing(
    root: Path, monkeypatch: pytest.MonkeyPatch, free: int | None, tried: bool
) -> None:
    monkeypatch.setattr(FakeChild, "answers", [{"end": True}], raising=False)
    monkeypatch.setattr(capped_run, "Child", FakeChild)

    with pytest.raises(InconclusiveError) as caught:
        run_in(root, FakeSession()).prove({}, {UUID: free})

    assert ("does not show" in caught.value.message) is tried


# ------------------------------------------------------------------------------------- the end


def test_the_peak_is_the_most_that_was_read(root: Path) -> None:
    session = FakeSession()
    run = run_in(root, session)
    for used in (3, 9 * GIB, 5):
        session.used = used
        run.tick(1)

    outcome = run.outcome(0)

    assert (outcome.peak_bytes, outcome.readings, outcome.exceeded) == (9 * GIB, 3, True)
    session.used = 0
    within = run_in(root, session)
    within.tick(1)
    assert within.outcome(3).exceeded is False


def test_without_a_reading_the_peak_is_unknown(root: Path) -> None:
    early = run_in(root, FakeSession()).outcome(0)
    session = FakeSession(unread="gpu-is-lost")
    run = run_in(root, session)
    run.tick(1)
    run.tick(1)  # it is not asked again

    assert "before the first reading (1 s)" in early.unavailable["peak_bytes"]
    assert run.outcome(0).unavailable["exceeded"] == "said nothing"
    assert (run.outcome(0).exceeded, run.outcome(0).readings) == (None, 1)


@pytest.mark.parametrize("within_s", [0.1, None])
def test_systemd_has_half_a_second_to_remove_an_empty_scope(
    root: Path, monkeypatch: pytest.MonkeyPatch, within_s: float | None
) -> None:
    clock = 100.0
    session = FakeSession()
    run = run_in(root, session, place="scope")
    folder = Path(run.limit.cgroup)

    def sleep(seconds: float) -> None:
        nonlocal clock
        clock += seconds
        if within_s is not None and clock >= 100.0 + within_s:
            folder.rmdir()

    monkeypatch.setattr(capped_run, "time", SimpleNamespace(sleep=sleep, monotonic=lambda: clock))
    with run.open():
        folder.mkdir()

    # What systemd has removed is not cleared again; what it leaves is cleared and removed by us.
    assert (run.limit.removed, folder.exists()) == (True, False)
    assert session.asked == ([] if within_s else [(str(folder), {UUID: None})])
    assert clock == pytest.approx(100.0 + (within_s or 0.5), abs=0.021)


def test_what_still_runs_keeps_its_limit(root: Path) -> None:
    session = FakeSession()
    run = run_in(root, session)

    with run.open():
        (Path(run.limit.cgroup) / "cgroup.procs").write_text(f"{os.getpid()}\n")

    assert (run.limit.removed, run.limit.left_pids) == (False, (os.getpid(),))
    assert session.limits_of == {UUID: 8 * GIB}
    assert f"(PID {os.getpid()})" in hard_sentences(run.limit)[1]


def dead(root: Path, *, group: bool = True) -> Path:
    folder = root / "sys/fs/cgroup" / DEAD
    capped_groups.write_record(root, Record(DEAD, folder, (UUID,)))
    if group:
        folder.mkdir()
    return folder


def left(root: Path) -> list[str]:
    return [path.name for path in (root / capped_groups.RECORDS).iterdir()]


def test_what_a_dead_owner_left_is_cleared_then_removed(root: Path) -> None:
    folder = dead(root)
    session = FakeSession()

    assert clear_dead_groups(root, session, deadline_s=1.0) == (1, 0)  # type: ignore[arg-type]

    assert session.asked == [(str(folder), {UUID: None})]
    assert (folder.exists(), left(root)) == (False, [])


def test_a_record_without_a_group_is_forgotten(root: Path) -> None:
    dead(root, group=False)

    assert clear_dead_groups(root, FakeSession(), deadline_s=1.0) == (0, 0)  # type: ignore[arg-type]
    assert left(root) == []


def test_a_command_that_outlives_its_owner_keeps_its_limit(root: Path) -> None:
    folder = dead(root)
    (folder / "cgroup.procs").write_text(f"{os.getpid()}\n")
    session = FakeSession()

    assert clear_dead_groups(root, session, deadline_s=1.0) == (0, 1)  # type: ignore[arg-type]
    assert (session.asked, left(root)) == ([], [DEAD])


@pytest.mark.parametrize(
    ("session", "expected"),
    [
        (FakeSession(refuses="unknown"), (1, 0)),  # no limit is set
        (FakeSession(refuses="unknown", unread="not-supported"), (1, 0)),
        (FakeSession(refuses="unknown", unread="driver-not-loaded"), (1, 0)),
        (FakeSession(refuses="unknown", unread="unknown"), (0, 1)),
    ],
)
def test_a_limit_that_cannot_be_cleared_keeps_the_group(
    root: Path, session: Any, expected: tuple[int, int]
) -> None:
    folder = dead(root)

    assert clear_dead_groups(root, session, deadline_s=1.0) == expected
    assert folder.exists() is (expected == (0, 1))


@pytest.mark.parametrize(("above", "expected"), [(None, (0, 1)), (2, (0, 1)), (1, (1, 0))])
def test_a_limit_that_is_still_set_keeps_the_group(
    root: Path, above: int | None, expected: tuple[int, int]
) -> None:
    dead(root)
    session = FakeSession(refuses="unknown")
    session.limits_of[UUID] = 1
    session.above = above  # without a limit of its own a group has that of the one above

    assert clear_dead_groups(root, session, deadline_s=1.0) == expected  # type: ignore[arg-type]
