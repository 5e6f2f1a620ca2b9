"""Limits of our own cgroup, read from a tree below a root."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from gpucheck.drivers.host.cgroups import OwnCgroup, group_paths, read_cgroup
from gpucheck.drivers.host.sysfs import driver_can_limit

CARD = "nvidia/00000000:02:00.0/vidmem"
BUS_ID = "0000:02:00.0"


def tree(root: Path, own: str, files: Mapping[str, str]) -> Path:
    """Write a tree of groups, and our own group in it."""
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/cgroup").write_text(f"{own}\n")
    for name, text in files.items():
        path = root / "sys/fs/cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_the_nearest_group_with_a_limit_has_its_use_beside_it(tmp_path: Path) -> None:
    root = tree(
        tmp_path,
        "0::/a/b",
        {"cgroup.controllers": "", "a/b/dmem.max": f"{CARD} 8\nother/x 5\n",
         "a/b/dmem.current": f"{CARD} 3\n", "a/dmem.max": f"{CARD} 9\n"},
    )  # fmt: skip

    found = read_cgroup(root)

    assert (found.version, found.has_dmem) == (2, True)
    assert found.folder == root / "sys/fs/cgroup/a/b"
    assert found.limits == {
        BUS_ID: {
            "memory_limit_bytes": 8,
            "memory_limit_used_bytes": 3,
            "memory_limit_source": "dmem.max",
        }
    }


@pytest.mark.parametrize("own", ["max", "9"])
def test_a_group_above_us_may_have_the_lower_limit(tmp_path: Path, own: str) -> None:
    files = {"cgroup.controllers": "", "a/b/dmem.max": f"{CARD} {own}", "a/dmem.max": f"{CARD} 8"}

    found = read_cgroup(tree(tmp_path, "0::/a/b", files))

    assert found.limits == {
        BUS_ID: {
            "memory_limit_bytes": 8,
            "memory_limit_used_bytes": None,
            "memory_limit_source": "dmem.max of a parent",
        }
    }


def test_without_files_of_its_own_a_group_has_its_parents_limit(tmp_path: Path) -> None:
    files = {"cgroup.controllers": "", "a/b/x": "", "a/dmem.max": f"{CARD.upper().lower()} 8"}

    (limit,) = read_cgroup(tree(tmp_path, "0::/a/b", files)).limits.values()
    assert limit["memory_limit_source"] == "dmem.max"


@pytest.mark.parametrize(
    ("files", "own", "expected"),
    [
        ({"memory/x": ""}, "4:memory:/", OwnCgroup(version=1)),
        ({"x": ""}, "0::/", OwnCgroup(version=None)),
        ({"cgroup.controllers": ""}, "4:memory:/", OwnCgroup(version=2)),
        # Outside of what a cgroup namespace shows.
        ({"cgroup.controllers": ""}, "0::/../other", OwnCgroup(version=2)),
    ],
)
def test_no_group_of_version_2(
    tmp_path: Path, files: dict[str, str], own: str, expected: OwnCgroup
) -> None:
    assert read_cgroup(tree(tmp_path, own, files)) == expected


@pytest.mark.parametrize(
    "line", ["", "nvidia/1/vidmem 3", f"{CARD} -1", f"{CARD} 3 4", f"{CARD} " + "9" * 20, "drm/0 3"]
)
def test_other_lines_are_no_limit(tmp_path: Path, line: str) -> None:
    files = {"cgroup.controllers": "", "dmem.max": line}

    found = read_cgroup(tree(tmp_path, "0::/", files))

    assert (found.has_dmem, found.limits) == (True, {})


def test_the_groups_of_a_process_by_controller(tmp_path: Path) -> None:
    (tmp_path / "cgroup").write_text(
        "12:cpu,memory:/a:b\n1:name=systemd:/c\nnonsense\n3:pids\n4:net:relative\n0::/d\n"
    )

    assert group_paths(tmp_path / "cgroup") == {
        "cpu": "/a:b", "memory": "/a:b", "name=systemd": "/c", "": "/d"
    }  # fmt: skip
    assert group_paths(tmp_path / "none") == {}


@pytest.mark.parametrize(
    ("version", "expected"),
    [("614.99", False), ("615.71.09", True), ("700.1", True), ("", False), ("x.1", False)],
)
def test_only_newer_drivers_are_asked(tmp_path: Path, version: str, expected: bool) -> None:
    path = tmp_path / "sys/module/nvidia/version"
    path.parent.mkdir(parents=True)
    path.write_text(version)

    assert driver_can_limit(tmp_path) is expected
    assert driver_can_limit(tmp_path / "none") is False
