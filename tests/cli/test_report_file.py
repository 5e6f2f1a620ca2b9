"""Reports in files: whole or not at all, and never where somebody else has led us."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from gpucheck.cli import report_file
from gpucheck.cli.report_file import PRIVATE, check_writable, write_file
from gpucheck.report.errors import WrongUseError


def without_nameless_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Be on a file system that cannot do that."""

    def refuse(*_: object) -> Path:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(report_file, "_written_without_name", refuse)


@pytest.fixture(params=["nameless", "named"])
def file_system(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Be on either kind of file system."""
    if request.param == "named":
        without_nameless_files(monkeypatch)


@pytest.mark.usefixtures("file_system")
def test_a_file_is_written_or_replaced_and_nothing_is_left_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "report.json"

    write_file(path, "one")
    path.chmod(0o640)
    write_file(path, "two")

    assert path.read_text() == "two"
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.usefixtures("file_system")
def test_a_private_file_is_its_owners_alone_also_in_the_place_of_another(tmp_path: Path) -> None:
    path = tmp_path / "machine.json"
    path.write_text("open to all")

    write_file(path, "private", mode=PRIVATE)

    assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.usefixtures("file_system")
def test_a_name_that_is_taken_is_drawn_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = iter([bytes(8), bytes(8), b"another!"])
    monkeypatch.setattr(os, "urandom", lambda count: next(names))
    taken = tmp_path / f".gpucheck-{bytes(8).hex()}.tmp"
    taken.write_text("somebody's")

    write_file(tmp_path / "report.json", "ours")

    assert (tmp_path / "report.json").read_text() == "ours"
    assert taken.read_text() == "somebody's"


@pytest.mark.usefixtures("file_system")
def test_a_file_that_cannot_be_finished_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    path = tmp_path / "report.json"
    path.write_text("old")
    monkeypatch.setattr(os, "fsync", full)

    with pytest.raises(WrongUseError, match="No space left on device"):
        write_file(path, "new")

    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_link_stays_one_and_a_device_is_written_to(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "two").symlink_to("folder/file")
    (tmp_path / "one").symlink_to("two")

    write_file(tmp_path / "one", "text")
    write_file(Path("/dev/null"), "text")

    assert (tmp_path / "folder" / "file").read_text() == "text"
    assert (tmp_path / "one").is_symlink()
    assert (tmp_path / "two").is_symlink()


def owned_by(monkeypatch: pytest.MonkeyPatch, path: Path, user: int) -> None:
    """Let a link seem to be another user's."""
    real = Path.lstat

    def lstat(self: Path) -> os.stat_result:
        facts = real(self)
        return os.stat_result([*facts[:4], user, *facts[5:10]]) if self == path else facts

    monkeypatch.setattr(Path, "lstat", lstat)


@pytest.mark.parametrize(
    ("mode", "refused"), [(0o1777, True), (0o1775, False), (0o777, False), (0o755, False)]
)
def test_anothers_link_counts_only_where_the_kernel_would_follow_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: int, refused: bool
) -> None:
    # Source: proc(5), /proc/sys/fs/protected_symlinks.
    target, shared = tmp_path / "target", tmp_path / "shared"
    target.write_text("mine")
    shared.mkdir()
    shared.chmod(mode)
    link = shared / "report.json"
    link.symlink_to(target)
    owned_by(monkeypatch, link, os.geteuid() + 1)

    if not refused:
        check_writable(link)
        write_file(link, "report")
        assert target.read_text() == "report"
        return
    for call in (lambda: check_writable(link), lambda: write_file(link, "report")):
        with pytest.raises(WrongUseError, match="is another user's link"):
            call()
    assert target.read_text() == "mine"


def test_our_own_link_is_followed_everywhere(tmp_path: Path) -> None:
    tmp_path.chmod(0o1777)
    (tmp_path / "link").symlink_to("file")

    write_file(tmp_path / "link", "text")

    assert (tmp_path / "file").read_text() == "text"


@pytest.mark.parametrize("name", ["n" * 300, "a\0b", "loop"])
def test_impossible_names_are_refused_before_anything_is_measured(
    tmp_path: Path, name: str
) -> None:
    (tmp_path / "loop").symlink_to("loop")

    with pytest.raises(WrongUseError, match="cannot be written"):
        check_writable(tmp_path / name)
    with pytest.raises(WrongUseError, match="cannot be written"):
        write_file(tmp_path / name, "text")
