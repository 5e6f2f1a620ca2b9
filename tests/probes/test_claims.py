"""Lock files that survive other users' umasks, links, leftovers and kill -9."""

from __future__ import annotations

import fcntl
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpucheck.models.claim import Holder, Slot, Step, Target
from gpucheck.models.errors import InconclusiveError, MissingError
from gpucheck.probes import claim_files
from gpucheck.probes.claim_files import DIRECTORY_VARIABLE
from gpucheck.probes.claims import LockDirectory, claims_directory

SLOT = Slot(target=Target(card="GPU-1"), steps=(Step(slot=0, share=1),))
ALICE = Holder(id="1-2-3", pid=42, command="train", since="2026-01-02T03:04:05Z")


@pytest.fixture
def store(tmp_path: Path) -> LockDirectory:
    return LockDirectory(tmp_path / "claims")


@pytest.fixture
def strict_umask() -> Iterator[None]:
    before = os.umask(0o077)
    yield
    os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


class TestDirectory:
    def test_it_is_made_for_all_users_whatever_the_umask(
        self, store: LockDirectory, strict_umask: None
    ) -> None:
        with store.gate() as gate:
            lock = gate.take(SLOT, ALICE)
            _, place = gate.enqueue(frozenset({"GPU-1"}), ALICE)

        assert mode(store.directory) == 0o1777
        assert {mode(path) for path in store.directory.iterdir()} == {0o644}
        assert lock is not None
        lock.close()
        place.close()

    def test_one_that_somebody_chose_keeps_its_mode(self, tmp_path: Path) -> None:
        tmp_path.chmod(0o700)

        with LockDirectory(tmp_path).gate():
            assert mode(tmp_path) == 0o700

    def test_nobody_follows_a_link(self, tmp_path: Path) -> None:
        (tmp_path / "elsewhere").mkdir()
        (tmp_path / "claims").symlink_to(tmp_path / "elsewhere")

        with pytest.raises(MissingError, match="a link"), LockDirectory(tmp_path / "claims").gate():
            pass

        assert list((tmp_path / "elsewhere").iterdir()) == []

    def test_a_file_in_its_place(self, tmp_path: Path) -> None:
        (tmp_path / "claims").write_text("")

        with (
            pytest.raises(MissingError, match="no directory"),
            LockDirectory(tmp_path / "claims").gate(),
        ):
            pass

    def test_one_that_all_may_empty_is_not_trusted(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(claim_files, "DIRECTORY_ATTEMPTS", 2)
        tmp_path.chmod(0o777)

        with pytest.raises(MissingError, match="sticky"), LockDirectory(tmp_path).gate():
            pass

    def test_no_parent(self, tmp_path: Path) -> None:
        with (
            pytest.raises(MissingError, match="cannot be made"),
            LockDirectory(tmp_path / "no" / "claims").gate(),
        ):
            pass

    def test_which_one_is_the_same_for_every_user(self) -> None:
        assert claims_directory({}) == claims_directory({"HOME": "/x", "TMPDIR": "/y", "USER": "z"})
        assert claims_directory({}).name == "gpucheck-claims"
        assert claims_directory({DIRECTORY_VARIABLE: "/srv/claims"}) == Path("/srv/claims")


class TestLocks:
    def test_one_holder_at_a_time(self, store: LockDirectory) -> None:
        with store.gate() as gate:
            lock = gate.take(SLOT, ALICE)
            again = gate.take(SLOT, ALICE)
            held = gate.held()

        assert lock is not None
        assert again is None
        assert [(item.slot, item.holder.command) for item in held] == [(SLOT, "train")]
        lock.close()
        with store.gate() as gate:
            assert gate.held() == []

    def test_looking_disturbs_nobody(self, store: LockDirectory) -> None:
        with store.gate() as gate:
            lock = gate.take(SLOT, ALICE)
            assert len(gate.held()) == len(gate.held()) == 1
        assert lock is not None
        lock.close()

    def test_a_copy_of_the_descriptor_holds_on(self, store: LockDirectory) -> None:
        with store.gate() as gate:
            lock = gate.take(SLOT, ALICE)
        assert lock is not None
        copy = os.dup(lock.descriptor)
        lock.close()
        with store.gate() as gate:
            assert len(gate.held()) == 1
        os.close(copy)
        with store.gate() as gate:
            assert gate.held() == []

    def test_kill_minus_nine_frees_it(self, store: LockDirectory) -> None:
        program = (
            "import sys, time; from pathlib import Path\n"
            "from gpucheck.models.claim import *; from gpucheck.probes.claims import *\n"
            "slot = parse_slot('GPU-1.0of1')\n"
            "with LockDirectory(Path(sys.argv[1])).gate() as gate:\n"
            "    lock = gate.take(slot, Holder())\n"
            "print('held', flush=True); time.sleep(60)\n"
        )
        holder = subprocess.Popen(
            [sys.executable, "-c", program, str(store.directory)], stdout=subprocess.PIPE
        )
        with holder:
            assert holder.stdout is not None
            assert holder.stdout.readline() == b"held\n"
            with store.gate() as gate:
                assert len(gate.held()) == 1
            holder.send_signal(signal.SIGKILL)
        with store.gate() as gate:
            assert gate.held() == []

    def test_a_child_does_not_inherit_it_by_itself(self, store: LockDirectory) -> None:
        with store.gate() as gate:
            lock = gate.take(SLOT, ALICE)

        assert lock is not None
        assert not os.get_inheritable(lock.descriptor)
        lock.close()
        lock.close()  # a second time does nothing

    @pytest.mark.parametrize("kind", ["link", "fifo", "folder"])
    def test_what_is_no_file_is_not_taken(
        self, store: LockDirectory, kind: str, tmp_path: Path
    ) -> None:
        with store.gate():
            pass
        path = store.directory / f"{SLOT.name}.lock"
        victim = tmp_path / "victim"
        if kind == "link":
            path.symlink_to(victim)
        elif kind == "fifo":
            os.mkfifo(path)
        else:
            path.mkdir()

        with pytest.raises(MissingError), store.gate() as gate:
            gate.take(SLOT, ALICE)

        assert not victim.exists()

    def test_files_of_other_names_are_left_alone(self, store: LockDirectory) -> None:
        with store.gate():
            pass
        for name in ("notes.txt", "GPU-1.5of2.lock", ".draft-1", "x" * 200):
            (store.directory / name).write_text("")

        with store.gate() as gate:
            assert gate.held() == []
            assert gate.tickets() == []

    def test_a_gate_that_nobody_leaves(self, tmp_path: Path) -> None:
        store = LockDirectory(tmp_path, gate_deadline_s=0.05)
        with store.gate(), pytest.raises(InconclusiveError, match="to themselves"), store.gate():
            pass


class TestRecords:
    def test_the_user_is_the_owner_of_the_record(self, store: LockDirectory) -> None:
        with store.gate() as gate:
            lock = gate.take(SLOT, ALICE)
            (held,) = gate.held()

        assert held.holder.user == claim_files.user_name(os.geteuid())
        assert (held.holder.id, held.holder.pid) == ("1-2-3", 42)
        assert lock is not None
        lock.close()

    @pytest.mark.parametrize(
        "text", ["", "{", "[]", '{"pid": "x", "command": 7}', "[" * 100_000, "\0", '{"pid": -1}']
    )
    def test_whatever_stands_in_a_record(self, store: LockDirectory, text: str) -> None:
        with store.gate() as gate:
            lock = gate.take(SLOT, ALICE)
            (store.directory / f"{SLOT.name}.{os.geteuid()}.json").write_text(text)
            (held,) = gate.held()

        assert (held.holder.pid, held.holder.command, held.holder.id) == (None, None, None)
        assert lock is not None
        lock.close()

    def test_nobody_writes_a_record_in_the_name_of_another(self, store: LockDirectory) -> None:
        with store.gate() as gate:
            lock = gate.take(SLOT, ALICE)
            forged = store.directory / f"{SLOT.name}.{os.geteuid() + 1}.json"
            forged.write_text('{"pid": 666}')
            (held,) = gate.held()

        assert held.holder.pid == 42
        assert lock is not None
        lock.close()

    def test_a_long_command_is_cut(self, store: LockDirectory) -> None:
        with store.gate() as gate:
            lock = gate.take(SLOT, Holder(pid=1, command="x" * 100_000))
            (held,) = gate.held()

        assert len(held.holder.command or "") <= 400
        assert lock is not None
        lock.close()


class TestTickets:
    def test_they_come_in_the_order_they_were_drawn(self, store: LockDirectory) -> None:
        with store.gate() as gate:
            places = [gate.enqueue(frozenset({"GPU-1"}), ALICE) for _ in range(5)]
            live = gate.tickets()

        numbers = [ticket.number for ticket, _ in places]
        assert numbers == sorted(set(numbers))
        assert [ticket.number for ticket in live] == numbers
        assert {ticket.wants for ticket in live} == {frozenset({"GPU-1"})}
        for _, place in places:
            place.close()

    def test_a_dead_one_is_cleared_away(self, store: LockDirectory) -> None:
        with store.gate() as gate:
            ticket, place = gate.enqueue(frozenset(), ALICE)
        assert store.is_live(ticket)
        os.close(os.dup(place.descriptor))
        fcntl.flock(place.descriptor, fcntl.LOCK_UN)  # as the kernel does for a killed process

        assert not store.is_live(ticket)
        with store.gate() as gate:
            assert gate.tickets() == []
        assert not (store.directory / ticket.name).exists()

    def test_leaving_removes_it(self, store: LockDirectory) -> None:
        with store.gate() as gate:
            ticket, place = gate.enqueue(frozenset(), ALICE)
        place.close()

        assert not (store.directory / ticket.name).exists()
        assert not store.is_live(ticket)
