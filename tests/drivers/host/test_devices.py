"""Device files: present ones, expected ones, and the result of opening them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from gpucheck.drivers.evidence import NodeOpening
from gpucheck.drivers.host.devices import open_nodes, read_nodes
from tests.conftest import drop_root_rights
from tests.fakes.machine import load_machine
from tests.fakes.tree import write_tree


def test_a_machine_s_nodes(tmp_path: Path) -> None:
    found = read_nodes(write_tree(load_machine("h100x8"), tmp_path))

    paths = [node.path for node in found.nodes]
    assert paths == sorted(paths)
    assert set(found.expected) <= set(paths)
    # The nodes of the switches and of nvidia-modeset give no access to a GPU.
    assert all(path.startswith("/dev/nvidia") and "switch" not in path for path in paths)
    assert {node.mode for node in found.nodes} == {"0666"}
    assert all(node.accessible for node in found.nodes)


def test_without_a_driver_the_usual_ones_are_expected(tmp_path: Path) -> None:
    (tmp_path / "dev").mkdir()

    assert read_nodes(tmp_path).expected == ("/dev/nvidiactl", "/dev/nvidia-uvm")


def test_a_folder_that_is_not_there_is_no_empty_one(tmp_path: Path) -> None:
    assert read_nodes(tmp_path).unavailable == "/dev: No such file or directory"


def test_opening(tmp_path: Path) -> None:
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/nvidia0").touch()

    found = open_nodes(["/dev/nvidia0", "/dev/nvidia1"], tmp_path, deadline_s=10)

    assert found == (
        NodeOpening(path="/dev/nvidia0", error=None),
        NodeOpening(path="/dev/nvidia1", error="ENOENT"),
    )


def test_opening_that_hangs_ends(tmp_path: Path) -> None:
    assert open_nodes(["/dev/nvidia0"], tmp_path, deadline_s=0.0) == ()


def test_a_node_of_somebody_else(tmp_path: Path) -> None:
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/nvidiactl").touch(mode=0o000)
    text = (
        "import sys; from pathlib import Path\n"
        "from gpucheck.drivers.host.devices import read_nodes\n"
        "print(*(node.accessible for node in read_nodes(Path(sys.argv[1])).nodes))"
    )

    # Root opens everything, unless it has lost that right.
    said = subprocess.run(
        [sys.executable, "-c", text, str(tmp_path)],
        preexec_fn=drop_root_rights,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    ).stdout

    assert said == "False\n"


def test_the_files_of_mig_instances_by_the_driver_s_list(tmp_path: Path) -> None:
    listed = "config 1\nmonitor 2\ngpu0/gi1/access 12\ngpu0/gi1/ci0/access 13\ngpu1/gi1/access 30\n"
    (tmp_path / "proc/driver/nvidia-caps").mkdir(parents=True)
    (tmp_path / "proc/driver/nvidia-caps/mig-minors").write_text(listed)
    (tmp_path / "dev/nvidia-caps").mkdir(parents=True)
    for minor in (1, 2, 12, 13):
        (tmp_path / f"dev/nvidia-caps/nvidia-cap{minor}").touch(mode=0o444)

    found = read_nodes(tmp_path)

    # The files for administrators are left out, and a missing file is not created.
    assert [cap.path for cap in found.caps] == [
        "/dev/nvidia-caps/nvidia-cap12",
        "/dev/nvidia-caps/nvidia-cap13",
    ]
