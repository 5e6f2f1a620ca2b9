"""Lock files that survive other users' umasks, links, leftovers and kill -9."""

from __future__ import annotations

import dataclasses
import errno
import fcntl
import json
import os
import pwd
import random
import shlex
import signal
import stat
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucheck.place import claim_store, lock_files
from gpucheck.place.claim_store import ClaimStore, Slot, Target, claims_directory, parse_slot
from gpucheck.place.lock_files import DIRECTORY_VARIABLE
from gpucheck.place.model import Holder, ProcessState
from gpucheck.report.errors import InconclusiveError, MissingError
from tests.hang_watch import is_running, wait_until

SLOT = Slot(target=Target(card="GPU-1"), steps=((0, 1),))
UUID = "GPU-756a79d4-4cf2-5e9f-88b6-03d84e3e737d"
ALICE = Holder(pid=42, command="train", since="2026-01-02T03:04:05Z")


@pytest.fixture
def store(tmp_path: Path) -> ClaimStore:
    return ClaimStore(tmp_path / "claims")


@pytest.fixture
def strict_umask() -> Iterator[None]:
    before = os.umask(0o077)
    yield
    os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def another_users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ClaimStore:
    """Return the claims in a directory that another user has made."""
    folder = tmp_path / "claims"
    folder.mkdir()
    folder.chmod(0o1777)
    owner = folder.stat().st_uid + 1
    if os.geteuid() == 0:
        os.chown(folder, owner, -1)
    else:  # only root can give a directory away: here it is we who are somebody else
        monkeypatch.setattr(os, "geteuid", lambda: owner)
    return ClaimStore(folder)


class TestDirectory:
    def test_it_is_made_for_all_users_whatever_the_umask(
        self, store: ClaimStore, strict_umask: None
    ) -> None:
        with store.mutex() as locked:
            lock = locked.take(SLOT, ALICE)
            place = locked.enqueue(ALICE)

        assert mode(store.directory) == 0o1777
        assert {mode(path) for path in store.directory.iterdir()} == {0o1644}
        assert lock is not None
        lock.close()
        place.close()

    def test_no_umask_is_strange_enough(self, tmp_path: Path) -> None:
        before = os.umask(0o777)
        try:
            store = ClaimStore(tmp_path / "claims")
            with store.mutex() as locked:
                lock = locked.take(SLOT, ALICE)
        finally:
            os.umask(before)

        assert mode(store.directory) == 0o1777
        assert {mode(path) for path in store.directory.iterdir()} == {0o1644}
        assert lock is not None
        lock.close()

    def test_one_that_was_not_finished_is(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Its maker was killed between the two steps."""
        monkeypatch.setattr(lock_files, "PARENTS", (tmp_path,))
        (tmp_path / lock_files.NAME).mkdir(mode=0o700)

        with ClaimStore(tmp_path / lock_files.NAME).mutex():
            assert mode(tmp_path / lock_files.NAME) == 0o1777

    @pytest.mark.parametrize(
        ("before", "after"),
        [(0o700, 0o1777), (0o500, 0o1777), (0, 0o1777), (0o701, 0o701), (0o710, 0o710)],
    )
    def test_only_what_its_owner_alone_may_use_counts_as_unfinished(
        self, tmp_path: Path, before: int, after: int
    ) -> None:
        tmp_path.chmod(before)

        lock_files._open_to_all(tmp_path)

        assert mode(tmp_path) == after
        tmp_path.chmod(0o700)

    @pytest.mark.parametrize("name", [f"shared/{lock_files.NAME[:-1]}", lock_files.NAME])
    def test_another_unfinished_one_stays_its_owners(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
    ) -> None:
        """Another name in the shared folder, and the name in another folder."""
        monkeypatch.setattr(lock_files, "DIRECTORY_ATTEMPTS", 2)
        monkeypatch.setattr(lock_files, "PARENTS", (tmp_path / "shared",))
        (tmp_path / name).mkdir(mode=0o700, parents=True)

        with pytest.raises(MissingError), ClaimStore(tmp_path / name).mutex():
            pass
        assert mode(tmp_path / name) == 0o700

    @pytest.mark.parametrize("chosen", [0o700, 0o755, 0o777, 0o1775])
    def test_any_other_mode_is_refused(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chosen: int
    ) -> None:
        monkeypatch.setattr(lock_files, "DIRECTORY_ATTEMPTS", 2)
        tmp_path.chmod(chosen)

        with (
            pytest.raises(MissingError, match=f"its mode is {chosen:04o}") as caught,
            ClaimStore(tmp_path).mutex(),
        ):
            pass
        assert mode(tmp_path) == chosen
        assert caught.value.exit_code == 4
        me = lock_files.user_name(os.geteuid())
        assert f"It belongs to {me}." in caught.value.message

    def test_root_uses_none_but_roots(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        store = another_users(tmp_path, monkeypatch)
        monkeypatch.setattr(lock_files, "_is_root", lambda: True)

        with pytest.raises(MissingError, match="root trusts no other"), store.mutex():
            pass

    def test_others_use_it_and_are_warned(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        store = another_users(tmp_path, monkeypatch)
        monkeypatch.setattr(lock_files, "_is_root", lambda: False)

        with store.mutex() as locked:
            assert locked.held() == []
        warning = store.warning()
        assert warning is not None
        assert f"d {store.directory} 1777 root root" in warning
        assert ClaimStore(tmp_path / "none").warning() is None

    def test_ones_own_is_no_warning(self, store: ClaimStore) -> None:
        with store.mutex():
            pass

        assert store.warning() is None

    def test_links_are_not_followed(self, tmp_path: Path) -> None:
        (tmp_path / "elsewhere").mkdir()
        (tmp_path / "claims").symlink_to(tmp_path / "elsewhere")

        with pytest.raises(MissingError, match="a link"), ClaimStore(tmp_path / "claims").mutex():
            pass

        assert list((tmp_path / "elsewhere").iterdir()) == []

    def test_a_file_in_its_place(self, tmp_path: Path) -> None:
        (tmp_path / "claims").write_text("")

        with (
            pytest.raises(MissingError, match="not a directory"),
            ClaimStore(tmp_path / "claims").mutex(),
        ):
            pass
        assert ClaimStore(tmp_path / "claims").exists()
        assert ClaimStore(tmp_path / "claims" / "below").exists()
        assert not ClaimStore(tmp_path / "other").exists()

    def test_one_that_we_may_not_write_to(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(lock_files, "DIRECTORY_ATTEMPTS", 2)
        monkeypatch.setattr(lock_files.os, "access", lambda *_, **__: False)
        tmp_path.chmod(0o1777)

        with (
            pytest.raises(MissingError, match="you may not write to it"),
            ClaimStore(tmp_path).mutex(),
        ):
            pass

    def test_one_whose_permission_nobody_can_look_up(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(lock_files, "DIRECTORY_ATTEMPTS", 2)
        monkeypatch.setattr(lock_files.os, "access", lambda *_, **__: False)
        monkeypatch.setattr(Path, "is_dir", lambda path: str(path) != "/proc/self/fd")
        tmp_path.chmod(0o1777)

        with (
            pytest.raises(MissingError, match="it cannot be checked without /proc"),
            ClaimStore(tmp_path).mutex(),
        ):
            pass

    @pytest.mark.parametrize("named", ["claims", "./claims", "~/claims"])
    def test_a_relative_directory_is_refused(self, named: str) -> None:
        with pytest.raises(MissingError, match="beginning with /"):
            claims_directory({lock_files.DIRECTORY_VARIABLE: named})

    def test_no_parent(self, tmp_path: Path) -> None:
        with (
            pytest.raises(MissingError, match="cannot be created"),
            ClaimStore(tmp_path / "no" / "claims").mutex(),
        ):
            pass

    def test_a_file_system_without_locks(
        self, store: ClaimStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def refuse(_fd: int, _kind: int) -> None:
            raise OSError(errno.EBADF, "Bad file descriptor")

        monkeypatch.setattr(fcntl, "flock", refuse)

        with pytest.raises(MissingError, match="cannot lock files"), store.mutex():
            pass

    def test_a_full_disk(self, store: ClaimStore, monkeypatch: pytest.MonkeyPatch) -> None:
        with store.mutex():
            pass
        monkeypatch.setattr(os, "write", lambda _fd, _content: 0)

        with pytest.raises(MissingError, match="No space left"), store.mutex() as locked:
            locked.enqueue(ALICE)

        assert [path.name for path in store.directory.iterdir()] == ["gate.lock"]

    def test_which_one_is_the_same_for_every_user(self) -> None:
        assert claims_directory({}) == claims_directory({"HOME": "/x", "TMPDIR": "/y", "USER": "z"})
        assert claims_directory({}).name == "gpucheck-claims"
        assert claims_directory({DIRECTORY_VARIABLE: "/srv/claims"}) == Path("/srv/claims")

    def test_it_lies_in_the_first_parent_that_is_open_to_all(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        missing, file, private, public = (
            tmp_path / name for name in ("missing", "file", "private", "public")
        )
        file.write_text("")
        private.mkdir()
        public.mkdir()
        for path, chosen in ((file, 0o1777), (private, 0o777), (public, 0o1777)):
            path.chmod(chosen)

        monkeypatch.setattr(claim_store, "PARENTS", (missing, file, private, public, tmp_path))
        assert claims_directory({}) == public / "gpucheck-claims"
        monkeypatch.setattr(claim_store, "PARENTS", (missing, file, private))
        assert claims_directory({}) == private / "gpucheck-claims"


class TestLocks:
    def test_one_holder_at_a_time(self, store: ClaimStore) -> None:
        with store.mutex() as locked:
            lock = locked.take(SLOT, ALICE)
            again = locked.take(SLOT, ALICE)
            held = locked.held()

        assert lock is not None
        assert again is None
        assert [(item.name, item.holder.command) for item in held] == [(SLOT.name, "train")]
        lock.close()
        with store.mutex() as locked:
            assert locked.held() == []

    def test_looking_changes_nothing(self, store: ClaimStore) -> None:
        with store.mutex() as locked:
            lock = locked.take(SLOT, ALICE)
            assert len(locked.held()) == len(locked.held()) == 1
        assert lock is not None
        lock.close()

    def test_a_copy_of_the_descriptor_holds_on(self, store: ClaimStore) -> None:
        with store.mutex() as locked:
            lock = locked.take(SLOT, ALICE)
        assert lock is not None
        copy = os.dup(lock.descriptor)
        lock.close()
        with store.mutex() as locked:
            assert len(locked.held()) == 1
        os.close(copy)
        with store.mutex() as locked:
            assert locked.held() == []

    def test_kill_minus_nine_frees_it(self, store: ClaimStore) -> None:
        program = (
            "import sys, time; from pathlib import Path\n"
            "from gpucheck.place.claim_store import *; from gpucheck.place.claim_store import *\n"
            "slot = parse_slot('GPU-1.0of1')\n"
            "with ClaimStore(Path(sys.argv[1])).mutex() as locked:\n"
            "    lock = locked.take(slot, Holder())\n"
            "print('held', flush=True); time.sleep(600)\n"
        )
        holder = subprocess.Popen(
            [sys.executable, "-c", program, str(store.directory)], stdout=subprocess.PIPE
        )
        with holder:
            assert holder.stdout is not None
            assert holder.stdout.readline() == b"held\n"
            with store.mutex() as locked:
                assert len(locked.held()) == 1
            holder.send_signal(signal.SIGKILL)
        with store.mutex() as locked:
            assert locked.held() == []

    def test_a_process_forked_meanwhile_does_not_keep_the_mutex(self, store: ClaimStore) -> None:
        """Another thread may fork at any time; the child has copies of all descriptors."""
        with warnings.catch_warnings(), store.mutex() as locked:
            warnings.simplefilter("ignore", DeprecationWarning)
            lost = locked.take(SLOT, ALICE)
            place = locked.enqueue(ALICE)
            child = os.fork()
            if child == 0:
                time.sleep(600)
                os._exit(0)
        place.close()
        try:
            with ClaimStore(store.directory, mutex_deadline_s=1).mutex() as locked:
                assert locked.tickets() == []
                assert len(locked.held()) == 1
        finally:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            assert lost is not None
            lost.close()

    def test_a_child_does_not_inherit_it_by_itself(self, store: ClaimStore) -> None:
        with store.mutex() as locked:
            lock = locked.take(SLOT, ALICE)

        assert lock is not None
        assert not os.get_inheritable(lock.descriptor)
        lock.close()
        lock.close()  # a second time does nothing

    @pytest.mark.parametrize("kind", ["link", "fifo", "folder"])
    def test_what_is_no_file_is_not_taken(
        self, store: ClaimStore, kind: str, tmp_path: Path
    ) -> None:
        with store.mutex():
            pass
        path = store.directory / f"{SLOT.name}.lock"
        victim = tmp_path / "victim"
        if kind == "link":
            path.symlink_to(victim)
        elif kind == "fifo":
            os.mkfifo(path)
        else:
            path.mkdir()

        problem = "it is a link, not a lock file" if kind == "link" else "it is not a regular file"
        with pytest.raises(MissingError, match=problem), store.mutex() as locked:
            locked.take(SLOT, ALICE)

        assert not victim.exists()
        with store.mutex() as locked:
            (found,) = locked.held()
        assert found.problem == problem
        assert found.holder.user == lock_files.user_name(os.geteuid())
        assert str(path) in found.obstacle

    def test_files_of_other_names_are_left_alone(self, store: ClaimStore) -> None:
        with store.mutex():
            pass
        for name in ("notes.txt", "GPU-1.5of2.lock", ".draft-1", "x" * 200):
            (store.directory / name).write_text("")

        with store.mutex() as locked:
            assert locked.held() == []
            assert locked.tickets() == []

    def test_files_of_killed_processes_are_removed(self, store: ClaimStore) -> None:
        with store.mutex():
            pass
        old, young = store.directory / ".draft-1-old", store.directory / ".draft-2-young"
        for path in (old, young):
            path.write_text("")
        os.utime(old, (0, 0))

        with store.mutex() as locked:
            locked.tickets()

        assert not old.exists()
        assert young.exists()

    def test_a_taken_mutex_is_tried_after_a_millisecond_and_then_ever_later(
        self, store: ClaimStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        tries = iter([False] * 7 + [True])
        pauses: list[float] = []
        monkeypatch.setattr(claim_store, "try_lock", lambda *_: next(tries))
        monkeypatch.setattr(claim_store.os, "urandom", lambda _: b"\x80")
        monkeypatch.setattr(claim_store.time, "sleep", pauses.append)

        with store.mutex():
            pass

        assert pauses == pytest.approx([0.001, 0.002, 0.004, 0.008, 0.016, 0.03, 0.03])

    def test_the_calling_program_keeps_its_random_numbers(self, store: ClaimStore) -> None:
        before = random.getstate()

        with store.mutex() as locked:
            locked.enqueue(ALICE).close()

        assert random.getstate() == before

    def test_a_turn_is_one_program_s_and_leaves_no_directory_open(self, store: ClaimStore) -> None:
        turn = store.try_turn()
        assert turn is not None
        assert store.try_turn() is None
        turn.close()

        opened = [path.resolve() for path in Path("/proc/self/fd").iterdir()]
        assert store.directory.resolve() not in opened

    def test_a_mutex_that_others_pass_on_is_waited_for(
        self, store: ClaimStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Hundreds that came at once on a busy machine wait for longer than one that is stuck."""
        pauses = 0

        def pass_on(_seconds: float) -> None:
            nonlocal pauses
            pauses += 1
            os.utime(store.directory, ns=(pauses, pauses))
            if pauses == 10:
                lock_files.release(held)

        with store.mutex():
            pass
        held = os.open(store.directory / "gate.lock", os.O_RDONLY)
        fcntl.flock(held, fcntl.LOCK_EX)
        monkeypatch.setattr(claim_store.time, "monotonic", lambda: 60.0 * pauses)
        monkeypatch.setattr(claim_store.time, "sleep", pass_on)

        with store.mutex():
            assert pauses == 10

    def test_a_mutex_that_stays_taken(self, tmp_path: Path) -> None:
        store = ClaimStore(tmp_path / "claims", mutex_deadline_s=0.05)
        with (
            store.mutex(),
            pytest.raises(InconclusiveError, match="Another"),
            store.mutex(),
        ):
            pass


def test_no_file_is_opened_that_another_user_may_have_put_there(
    store: ClaimStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """fs.protected_regular refuses O_CREAT on a file of another user, even to root."""
    opened: list[tuple[str, int]] = []
    open_really = os.open

    def record(path: str, flags: int, *args: int, **options: int) -> int:
        opened.append((str(path), flags))
        return open_really(path, flags, *args, **options)

    monkeypatch.setattr(os, "open", record)
    for _ in range(2):
        with store.mutex() as locked:
            lock = locked.take(SLOT, ALICE)
            place = locked.enqueue(ALICE)
            locked.held()
            locked.tickets()
            assert lock is not None
            lock.close()
            place.close()

    assert len(opened) > 20
    for path, flags in opened:
        assert flags & os.O_NOFOLLOW, path
        assert flags & os.O_CLOEXEC, path
        assert bool(flags & os.O_CREAT) == bool(flags & os.O_EXCL), path


class TestRecords:
    def test_the_user_is_the_owner_of_the_record(self, store: ClaimStore) -> None:
        with store.mutex() as locked:
            lock = locked.take(SLOT, ALICE, "1-2-3")
            (held,) = locked.held()

        assert held.holder.user == lock_files.user_name(os.geteuid())
        assert (held.claim_id, held.holder.pid) == ("1-2-3", 42)
        assert lock is not None
        lock.close()

    @pytest.mark.parametrize(
        "text", ["", "{", "[]", '{"pid": "x", "command": 7}', "[" * 100_000, "\0", '{"pid": 0}']
    )
    def test_whatever_stands_in_a_record(self, store: ClaimStore, text: str) -> None:
        with store.mutex() as locked:
            lock = locked.take(SLOT, ALICE)
            (store.directory / f"{SLOT.name}.{os.geteuid()}.json").write_text(text)
            (held,) = locked.held()

        assert (held.holder.pid, held.holder.command, held.claim_id) == (None, None, None)
        assert lock is not None
        lock.close()

    def test_a_forged_record_is_ignored(self, store: ClaimStore) -> None:
        with store.mutex() as locked:
            lock = locked.take(SLOT, ALICE)
            forged = store.directory / f"{SLOT.name}.{os.geteuid() + 1}.json"
            forged.write_text('{"pid": 666}')
            (held,) = locked.held()

        assert held.holder.pid == 42
        assert lock is not None
        lock.close()

    def test_a_record_that_cannot_be_written_is_not_an_old_one(self, store: ClaimStore) -> None:
        with store.mutex() as locked:
            (store.directory / f"{SLOT.name}.{os.geteuid()}.json" / "x").mkdir(parents=True)
            lock = locked.take(SLOT, ALICE)
            (held,) = locked.held()

        assert held.holder == Holder()
        assert not [path for path in store.directory.iterdir() if path.name.startswith(".draft")]
        assert lock is not None
        lock.close()

    @pytest.mark.parametrize(
        ("changes", "state"),
        [
            ({}, "running"),
            ({"started": 1}, "ended"),  # the number is another process's now
            ({"pid": 2**31 - 1}, "ended"),
            ({"namespace": 1}, "elsewhere"),
            ({"namespace": None}, None),
            ({"pid": None}, None),
        ],
    )
    def test_what_became_of_the_process(
        self, store: ClaimStore, changes: dict[str, object], state: str | None
    ) -> None:
        with store.mutex() as locked:
            lock = locked.take(SLOT, Holder(pid=os.getpid()))
            path = store.directory / f"{SLOT.name}.{os.geteuid()}.json"
            path.write_text(json.dumps(json.loads(path.read_text()) | changes))
            (held,) = locked.held()

        assert held.holder.process == state
        assert lock is not None
        lock.close()

    def test_a_long_command_is_cut(self, store: ClaimStore) -> None:
        with store.mutex() as locked:
            lock = locked.take(SLOT, Holder(pid=1, command="x" * 100_000))
            (held,) = locked.held()

        assert len(held.holder.command or "") <= 400
        assert lock is not None
        lock.close()

    def test_a_record_of_the_future_or_of_a_dead_process_loses(
        self, store: ClaimStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        mine = dataclasses.replace(ALICE, pid=os.getpid())
        with store.mutex() as locked:
            lock = locked.take(SLOT, mine)
        other = os.geteuid() + 1
        forged = store.directory / f"{SLOT.name}.{other}.json"
        ahead = time.time() + 3600
        read_really = claim_store.read_record

        def read(folder: int, name: str) -> lock_files.FileRecord | None:
            found = read_really(folder, name)
            return found._replace(user_id=other) if found and name == forged.name else found

        monkeypatch.setattr(claim_store, "read_record", read)
        for text, changed in (
            (json.dumps({"pid": 1, "command": "forged"}), ahead),
            (lock_files.record_of(dataclasses.replace(mine, command="forged")).decode(), ahead),
            (json.dumps({"pid": 2**22 + 1, "command": "forged"}), None),
        ):
            forged.write_text(text)
            if changed is not None:
                os.utime(forged, (changed, changed))
            with store.mutex() as locked:
                (held,) = locked.held()
            assert held.holder.command == ALICE.command
        assert lock is not None
        lock.close()


class TestTickets:
    def test_an_impossible_ticket_is_ignored(self, store: ClaimStore) -> None:
        with store.mutex():
            pass
        for name in (
            "ticket-999999999999999999.1.lock",
            "ticket-99999999999999999999.1.lock",
            "ticket-000000000000000001.1.lock",
        ):
            (store.directory / name).write_text("")
        with (
            (store.directory / "ticket-000000000000000002.1.lock").open("w") as early,
            (store.directory / "ticket-999999999999999998.1.lock").open("w") as late,
        ):
            fcntl.flock(early, fcntl.LOCK_EX)
            fcntl.flock(late, fcntl.LOCK_EX)
            with store.mutex() as locked:
                places = [locked.enqueue(ALICE) for _ in range(3)]
                live = locked.tickets()
                before = [locked.tickets(before=place.ticket.number) for place in places]

        numbers = [place.ticket.number for place in places]
        assert [ticket.number for ticket in live] == numbers == sorted(set(numbers))
        assert [len(tickets) for tickets in before] == [0, 1, 2]
        for place in places:
            place.close()

    def test_what_is_drawn_is_read_again(self, store: ClaimStore) -> None:
        number = time.monotonic_ns() + 10**9
        with store.mutex() as locked:
            first = locked.enqueue(ALICE)
            (store.directory / f"ticket-{number}.1.lock").write_text("")
            second = locked.enqueue(ALICE)

        assert second.ticket.number == number + 1 > first.ticket.number
        assert claim_store._TICKET.fullmatch(second.ticket.name)
        assert claim_store._TICKET.fullmatch(f"ticket-{2**63}.1.new.lock")
        first.close()
        second.close()

    def test_a_full_disk_costs_no_place_in_the_queue(
        self, store: ClaimStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with store.mutex() as locked:
            place = locked.enqueue(ALICE)
            really = os.pwrite
            tries: list[int] = []

            def full(fd: int, content: bytes, at: int) -> int:
                tries.append(len(content))
                return really(fd, content[:3], at) if len(tries) == 1 else really(fd, content, at)

            monkeypatch.setattr(os, "pwrite", full)
            place.set_wants(frozenset({"GPU-1"}))
            assert len(tries) == 2
            assert [ticket.number for ticket in locked.tickets()] == [place.ticket.number]
        place.close()

    def test_they_come_in_the_order_they_were_drawn(self, store: ClaimStore) -> None:
        with store.mutex() as locked:
            places = [locked.enqueue(ALICE) for _ in range(5)]
            for place in places:
                place.set_wants(frozenset({"GPU-1"}))
            live = locked.tickets()

        numbers = [place.ticket.number for place in places]
        assert numbers == sorted(set(numbers))
        assert [ticket.number for ticket in live] == numbers
        assert {ticket.wants for ticket in live} == {frozenset({"GPU-1"})}
        for place in places:
            place.close()

    def test_a_dead_one_is_cleared_away(self, store: ClaimStore) -> None:
        with store.mutex() as locked:
            place = locked.enqueue(ALICE)
            ticket = place.ticket
        assert store.is_live(ticket)
        fcntl.flock(place._descriptor, fcntl.LOCK_UN)  # as the kernel does for a killed process

        assert not store.is_live(ticket)
        with store.mutex() as locked:
            assert locked.tickets() == []
        assert not (store.directory / ticket.name).exists()

    def test_it_says_later_what_it_is_for(self, store: ClaimStore) -> None:
        with store.mutex() as locked:
            place = locked.enqueue(ALICE)
            drawn = place.ticket
            assert [ticket.wants for ticket in locked.tickets()] == [None]
            place.set_wants(frozenset({"GPU-1"}))
            assert [ticket.wants for ticket in locked.tickets()] == [{"GPU-1"}]
            assert locked.tickets(before=drawn.number) == []
            assert [holder.command for holder in locked.queue()] == ["train"]

        assert not store.is_live(drawn)
        assert store.is_live(place.ticket)
        place.close()
        place.close()  # a second time does nothing
        assert not store.is_live(place.ticket)

    def test_leaving_removes_it(self, store: ClaimStore) -> None:
        with store.mutex() as locked:
            place = locked.enqueue(ALICE)
            ticket = place.ticket
        place.close()

        assert not (store.directory / ticket.name).exists()
        assert not store.is_live(ticket)


@pytest.mark.parametrize(
    ("said", "alive"), [(PermissionError(), True), (ProcessLookupError(), False)]
)
def test_a_holder_that_proc_hides_lives_where_it_may_not_be_signalled(
    monkeypatch: pytest.MonkeyPatch, said: OSError, alive: bool
) -> None:
    """Another user's process is hidden where /proc has the option hidepid."""

    def refuse(pid: int, number: int) -> None:
        assert number == 0
        raise said

    monkeypatch.setattr(lock_files, "_started", lambda _: None)
    monkeypatch.setattr(os, "kill", refuse)
    namespace = Path("/proc/self/ns/pid").stat().st_ino
    record = {"pid": os.getpid(), "namespace": namespace, "started": 1, "command": "train"}

    found = lock_files.holder_of(record, os.getuid())

    assert found.process is (ProcessState.RUNNING if alive else ProcessState.ENDED)


def test_a_holder_that_nobody_has_collected_yet_has_ended() -> None:
    with subprocess.Popen(["sleep", "600"]) as child:
        stat = Path(f"/proc/{child.pid}/stat").read_text()
        namespace = Path("/proc/self/ns/pid").stat().st_ino
        started = int(stat.rpartition(")")[2].split()[19])
        record = {"pid": child.pid, "namespace": namespace, "started": started, "command": "train"}
        assert lock_files.holder_of(record, os.getuid()).process is ProcessState.RUNNING

        child.kill()
        wait_until(lambda: not is_running(child.pid))

        assert lock_files.holder_of(record, os.getuid()).process is ProcessState.ENDED


def test_a_lock_file_that_cannot_be_opened_has_its_reason(
    store: ClaimStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_really = os.open

    def refuse(path: object, *arguments: object, **options: object) -> int:
        if path == f"{SLOT.name}.lock":
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        return open_really(path, *arguments, **options)  # type: ignore[call-overload, no-any-return]

    with store.mutex() as locked:
        lock = locked.take(SLOT, ALICE)
        monkeypatch.setattr(os, "open", refuse)
        (found,) = locked.held()

    assert found.problem == "Permission denied"
    assert lock is not None
    lock.close()


def test_a_rewrite_that_fails_keeps_the_old_content(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pwrite = os.pwrite

    def full_disk(fd: int, content: bytes, offset: int) -> int:
        count = pwrite(fd, content, offset)
        return count - 1 if content.startswith(b"new") else count

    path = tmp_path / "ticket"
    path.write_bytes(b"old")
    fd = os.open(path, os.O_RDWR)
    monkeypatch.setattr(os, "pwrite", full_disk)
    lock_files.rewrite_file(fd, b"new and longer")
    assert path.read_bytes() == b"old"

    monkeypatch.undo()
    lock_files.rewrite_file(fd, b"n")
    os.close(fd)
    assert path.read_bytes() == b"n"


def test_root_can_create_the_usual_directory_at_boot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lock_files, "PARENTS", (tmp_path / "lock",))
    usual, other = tmp_path / "lock" / "claims", tmp_path / "claims"
    for path in (usual, other):
        path.mkdir(parents=True)

    assert f"d {usual} 1777 root root" in lock_files.unusable_path(usual, "so").remedy[1]
    assert not any("1777" in step for step in lock_files.unusable_path(other, "so").remedy)
    assert f"ls -ld {shlex.quote(str(usual))}" in lock_files.unusable_path(usual, "so").remedy[0]


@pytest.mark.parametrize(
    ("problem", "is_live"), [(errno.EACCES, True), (errno.ELOOP, False), (errno.ENOENT, False)]
)
def test_a_ticket_that_cannot_be_opened_counts_as_live_unless_it_is_a_link(
    store: ClaimStore, monkeypatch: pytest.MonkeyPatch, problem: int, is_live: bool
) -> None:
    with store.mutex() as locked:
        place = locked.enqueue(ALICE)
    open_really = os.open

    def refuse(path: object, *arguments: object, **options: object) -> int:
        if path == place.ticket.name:
            raise OSError(problem, os.strerror(problem))
        return open_really(path, *arguments, **options)  # type: ignore[call-overload, no-any-return]

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", refuse)
        assert store.is_live(place.ticket) is is_live
    place.close()


def test_one_lock_file_holds_one_lock(store: ClaimStore) -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    with store.mutex() as locked:
        lock = locked.take(SLOT, ALICE)
        assert locked.take(SLOT, ALICE) is None
        place = locked.enqueue(ALICE)
        assert store.is_live(place.ticket)
        locked.held(), locked.tickets(), locked.queue()
        place.close()
    assert lock is not None
    lock.close()

    assert len(list(Path("/proc/self/fd").iterdir())) == before


@pytest.mark.parametrize("problem", ["mode", "owner", "mutex", "slot", "disk"])
def test_what_is_refused_leaves_no_descriptor_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, problem: str
) -> None:
    monkeypatch.setattr(lock_files, "DIRECTORY_ATTEMPTS", 2)
    store = another_users(tmp_path, monkeypatch)
    monkeypatch.setattr(lock_files, "_is_root", lambda: problem == "owner")
    if problem == "mode":
        store.directory.chmod(0o755)
    elif problem == "mutex":
        os.mkfifo(store.directory / "gate.lock")
    elif problem == "slot":
        os.mkfifo(store.directory / f"{SLOT.name}.lock")
    elif problem == "disk":
        monkeypatch.setattr(os, "write", lambda _fd, _content: 0)
    before = len(list(Path("/proc/self/fd").iterdir()))

    with pytest.raises(MissingError), store.mutex() as locked:
        locked.take(SLOT, ALICE) if problem == "slot" else locked.enqueue(ALICE)

    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_a_lock_file_that_does_not_stay_is_named(
    store: ClaimStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    with store.mutex() as locked:
        monkeypatch.setattr(lock_files, "create_file", lambda *_, **__: None)
        with pytest.raises(MissingError, match="keeps appearing and disappearing") as caught:
            locked.take(SLOT, ALICE)

    assert f"{SLOT.name}.lock" in caught.value.message


def test_a_ticket_that_another_program_made_is_refused(
    store: ClaimStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    with store.mutex() as locked:
        monkeypatch.setattr(claim_store, "create_file", lambda *_, **__: None)
        with pytest.raises(MissingError, match="another program changes it without its mutex"):
            locked.enqueue(ALICE)


def test_a_user_has_its_name_or_its_number() -> None:
    known = pwd.getpwall()[0]

    assert lock_files.user_name(known.pw_uid) == pwd.getpwuid(known.pw_uid).pw_name
    assert lock_files.user_name(2**31 - 7) == str(2**31 - 7)
    assert lock_files.user_name(2**70) == str(2**70)


@pytest.mark.parametrize(
    ("uid_map", "is_root"),
    [
        ("         0          0 4294967295\n", True),
        ("         0       1000          1\n", False),
        ("         0          0          1\n", False),
        ("nonsense\n", True),
    ],
)
def test_root_of_a_user_namespace_is_not_the_machines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, uid_map: str, is_root: bool
) -> None:
    (tmp_path / "uid_map").write_text(uid_map)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(lock_files, "Path", lambda _: tmp_path / "uid_map")

    assert lock_files._is_root() is is_root


@pytest.mark.parametrize(
    ("changes", "credibility"),
    [
        ({}, 2),
        ({"namespace": 1}, 1),
        ({"started": 1}, 0),
        ({"namespace": None}, 0),
        ({"pid": None}, 0),
        ({"pid": 2**31}, 0),
        ({"pid": 0, "namespace": 1}, 0),
        ({"pid": 1, "namespace": 1}, 1),
    ],
)
def test_the_credibility_of_a_record(changes: dict[str, object], credibility: int) -> None:
    record = json.loads(lock_files.record_of(Holder(pid=os.getpid()))) | changes

    assert lock_files.credibility(record, os.geteuid()) == credibility
    assert lock_files.credibility(record, os.geteuid() + 1) == min(credibility, 1)


# ---------------------------------------------------------------------------------- names of slots


@pytest.mark.parametrize(
    ("target", "steps", "name"),
    [
        (Target(card=UUID), [(0, 1)], f"{UUID}.0of1"),
        (Target(card=UUID), [(0, 1), (2, 4)], f"{UUID}.0of1.2of4"),
        (Target(card=UUID, instance="MIG-1"), [(0, 1)], f"{UUID}+MIG-1.0of1"),
        (
            Target(card=UUID, instance=f"MIG-{UUID}/7/0"),
            [(0, 1)],
            f"{UUID}+MIG-{UUID}=7=0.0of1",
        ),
    ],
)
def test_a_slot_and_its_name_are_one(
    target: Target, steps: list[tuple[int, int]], name: str
) -> None:
    slot = Slot(target=target, steps=tuple(steps))

    assert slot.name == name
    assert parse_slot(name) == slot
    assert target.uuid == (target.instance or UUID)


@pytest.mark.parametrize(
    "name",
    [
        "",
        "gate",
        UUID,
        f"{UUID}.1of1",
        f"{UUID}.0of0",
        f"{UUID}.0of999",
        f"{UUID}..0of1",
        "../x.0of1",
        "a/b.0of1",
        f"{UUID}.0of1.json",
        "ticket-1.2",
    ],
)
def test_other_names_are_no_slots(name: str) -> None:
    assert parse_slot(name) is None


@given(st.text())
def test_any_name_is_a_slot_or_none(name: str) -> None:
    slot = parse_slot(name)

    assert slot is None or slot.name == name


@pytest.mark.parametrize("card", ["", "a b", "../x", "a/b", "x" * 300, "Gé"])
def test_a_uuid_that_is_no_file_name_cannot_be_claimed(card: str) -> None:
    assert not Target(card=card).has_usable_name


@pytest.mark.parametrize("instance", [None, "MIG-1", f"MIG-{UUID}/7/0"])
def test_the_drivers_uuids_can_be_part_of_a_files_name(instance: str | None) -> None:
    assert Target(card=UUID, instance=instance).has_usable_name
    assert not Target(card=UUID, instance="MIG 1").has_usable_name


def test_a_mutex_that_is_taken_is_waited_for(
    store: ClaimStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = iter([False, False, True])
    monkeypatch.setattr(claim_store, "try_lock", lambda *_: next(answers))

    with store.mutex():
        assert next(answers, None) is None


@pytest.mark.parametrize(("ahead_s", "counts"), [(599, True), (601, False)])
def test_a_ticket_more_than_ten_minutes_ahead_was_never_drawn(
    store: ClaimStore, monkeypatch: pytest.MonkeyPatch, ahead_s: int, counts: bool
) -> None:
    now_ns = 10**15
    monkeypatch.setattr(time, "monotonic_ns", lambda: now_ns)
    number = now_ns + ahead_s * 10**9
    with store.mutex() as locked:
        (store.directory / f"ticket-{number}.1.lock").write_text("")
        place = locked.enqueue(ALICE)

    assert place.ticket.number == (number + 1 if counts else now_ns)
    place.close()


@pytest.mark.parametrize(
    ("pid", "named"), [(0, None), (1, 1), (2**31 - 1, 2**31 - 1), (2**31, None), ("7", None)]
)
def test_a_holder_has_a_process_id_of_the_kernels(pid: object, named: int | None) -> None:
    assert lock_files.holder_of({"pid": pid}, os.getuid()).pid == named


@pytest.mark.parametrize(("length", "end"), [(400, "xx"), (401, "..."), (9000, "...")])
def test_a_long_command_is_recorded_with_dots(length: int, end: str) -> None:
    record = json.loads(lock_files.record_of(Holder(command="x" * length)))

    assert len(record["command"]) == 400
    assert record["command"].endswith(end)
