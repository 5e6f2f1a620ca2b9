"""MPS daemon that would serve a program."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpucheck.drivers.host.mps import read_mps


def daemon(
    root: Path, folder: str, pid: str = "77", name: str = "nvidia-cuda-mps-control\n"
) -> None:
    pipe = root / folder
    pipe.mkdir(parents=True)
    (pipe / "control").touch()
    (pipe / "nvidia-cuda-mps-control.pid").write_text(pid)
    process = root / "proc" / "77"
    process.mkdir(parents=True)
    (process / "comm").write_text(name)


def test_without_a_pipe_there_is_none(tmp_path: Path) -> None:
    reading = read_mps({}, tmp_path)

    assert reading.running is False
    assert "/tmp/nvidia-mps" in reading.reason


@pytest.mark.parametrize("name", ["nvidia-cuda-mps-control\n", "nvidia-cuda-mps\n"])
def test_a_pipe_with_its_daemon(tmp_path: Path, name: str) -> None:
    daemon(tmp_path, "tmp/nvidia-mps", name=name)

    assert read_mps({}, tmp_path).running is True


def test_the_variable_says_where(tmp_path: Path) -> None:
    daemon(tmp_path, "run/mps")

    assert read_mps({"CUDA_MPS_PIPE_DIRECTORY": "/run/mps"}, tmp_path).running is True
    assert read_mps({}, tmp_path).running is False


def test_an_id_that_is_another_programs_now(tmp_path: Path) -> None:
    daemon(tmp_path, "tmp/nvidia-mps", name="sshd\n")

    assert read_mps({}, tmp_path).running is False


@pytest.mark.parametrize("pid", ["", "x", "78", "\xe9"])
def test_a_daemon_that_cannot_be_seen_is_not_known(tmp_path: Path, pid: str) -> None:
    daemon(tmp_path, "tmp/nvidia-mps", pid=pid)

    assert read_mps({}, tmp_path).running is None
