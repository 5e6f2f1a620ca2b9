"""Groups made for a command, and the records by which a later call finds those of the dead."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from gpucheck.drivers.host import capped_groups
from gpucheck.drivers.host.capped_groups import Record, UnsafeRecordsError
from tests.fakes.cgroups import writable_kernel_tree

#: No process has this id: the kernel's largest is 4194304.
DEAD = "gpucheck-4194999-7"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "sys/fs/cgroup").mkdir(parents=True)
    return tmp_path


def record(root: Path, name: str = DEAD) -> Record:
    return Record(name, root / "sys/fs/cgroup" / name, ("GPU-1",))


def records(root: Path) -> Path:
    return root / capped_groups.RECORDS


def test_a_name_tells_the_owner_and_whether_it_lives() -> None:
    mine = capped_groups.own_name(os.getpid(), scope=False)

    assert capped_groups.own_name(os.getpid(), scope=True) == f"{mine}.scope"
    assert capped_groups.owner_lives(mine)
    # The same id, started at another time.
    assert not capped_groups.owner_lives(f"gpucheck-{os.getpid()}-1")
    assert not capped_groups.owner_lives(DEAD)
    assert not capped_groups.owner_lives("gpucheck-../../x-1")


def test_only_the_records_of_the_dead_are_found(root: Path) -> None:
    mine = record(root, capped_groups.own_name(os.getpid(), scope=False))
    for each in (record(root), mine, record(root, f"{DEAD}.scope")):
        capped_groups.write_record(root, each)
    (records(root) / "other").write_text("{}")

    assert capped_groups.dead_records(root) == [record(root), record(root, f"{DEAD}.scope")]
    assert records(root).stat().st_mode & 0o777 == 0o700

    capped_groups.forget_record(root, DEAD)
    capped_groups.forget_record(root, "gpucheck-1-1")  # there is none
    assert not (records(root) / DEAD).exists()


def test_a_record_is_never_written_over_another(root: Path) -> None:
    capped_groups.write_record(root, record(root))

    with pytest.raises(UnsafeRecordsError, match="exists"):
        capped_groups.write_record(root, record(root))


@pytest.mark.parametrize(
    "content",
    [
        {"folder": "/etc"},
        {"folder": "{mount}/../{name}"},
        {"folder": "{mount}/other"},
        {"folder": "/elsewhere/{name}"},
    ],
)
def test_a_record_leads_nowhere_but_to_its_own_group(root: Path, content: dict[str, str]) -> None:
    capped_groups.write_record(root, record(root))
    place = str(root / "sys/fs/cgroup")
    folder = content["folder"].replace("{mount}", place).replace("{name}", DEAD)
    (records(root) / DEAD).write_text(json.dumps({"folder": folder}))

    assert capped_groups.dead_records(root) == []


@pytest.mark.parametrize("content", ["", "[]", "{", '{"uuids": 3}', '{"folder": 3}'])
def test_a_record_that_was_cut_short_names_the_usual_place(root: Path, content: str) -> None:
    capped_groups.write_record(root, record(root))
    (records(root) / DEAD).write_text(content)

    assert capped_groups.dead_records(root) == [record(root)._replace(uuids=())]


def test_links_are_not_followed(root: Path, tmp_path: Path) -> None:
    capped_groups.write_record(root, record(root))
    elsewhere = tmp_path / "elsewhere"
    (records(root) / DEAD).rename(elsewhere)
    (records(root) / DEAD).symlink_to(elsewhere)
    assert capped_groups.dead_records(root) == []

    (records(root) / DEAD).unlink()
    capped_groups.write_record(root, record(root))
    target = tmp_path / "target"
    target.mkdir()
    record(root).folder.symlink_to(target)
    assert capped_groups.dead_records(root) == []


def test_a_folder_that_cannot_be_made(root: Path) -> None:
    (root / "run").write_text("a file")

    with pytest.raises(UnsafeRecordsError, match="not a folder"):
        capped_groups.write_record(root, record(root))
    with pytest.raises(UnsafeRecordsError, match="No such file"):
        capped_groups.write_record(root / "nowhere", record(root))


@pytest.mark.parametrize("level", ["run", "run/gpucheck", "run/gpucheck/memlimit"])
def test_a_link_in_place_of_a_folder(root: Path, tmp_path: Path, level: str) -> None:
    target = tmp_path / "target/gpucheck/memlimit"
    target.mkdir(parents=True)
    (root / level).parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    (root / level).symlink_to(tmp_path / "target")

    with pytest.raises(UnsafeRecordsError, match="is a link"):
        capped_groups.write_record(root, record(root))
    assert capped_groups.dead_records(root) == []
    assert list(target.iterdir()) == []


def test_a_folder_that_others_may_write_to(root: Path) -> None:
    capped_groups.write_record(root, record(root))
    records(root).chmod(0o722)

    with pytest.raises(UnsafeRecordsError, match="others may write"):
        capped_groups.write_record(root, record(root, "gpucheck-2-2"))
    assert capped_groups.dead_records(root) == []


@pytest.mark.parametrize("kind", ["plain", "kernel"])
def test_a_group_from_its_making_to_its_end(tmp_path: Path, kind: str) -> None:
    tree = tmp_path if kind == "plain" else writable_kernel_tree()
    if tree is None:
        pytest.skip("no cgroup tree of version 2 may be written here")
    folder = tree / capped_groups.own_name(os.getpid(), scope=False)
    ready, end = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(end)
        os.read(ready, 1)
        os._exit(0)
    os.close(ready)
    capped_groups.make(folder)
    try:
        with pytest.raises(FileExistsError):
            capped_groups.make(folder)
        capped_groups.join(folder, child)
        assert capped_groups.members(folder) == [child]
        capped_groups.make(folder / "below")
        assert not capped_groups.remove(folder)
    finally:
        os.close(end)
        os.waitpid(child, 0)
    assert capped_groups.members(folder) == []
    assert capped_groups.remove(folder)
    assert not folder.exists()


def test_a_process_that_is_not_there_does_not_join(tmp_path: Path) -> None:
    folder = tmp_path / "group"
    capped_groups.make(folder)

    with pytest.raises(OSError, match="not in the group"):
        capped_groups.join(folder, 4194999)
