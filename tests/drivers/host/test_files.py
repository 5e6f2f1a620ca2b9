"""Files that a user names."""

from __future__ import annotations

import os
import tracemalloc
from pathlib import Path

import pytest

from gpucheck.drivers.host import files
from gpucheck.drivers.host.files import MIB, read_file


def test_a_file_of_just_so_many_bytes_is_read(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"abc")

    assert read_file(path, 3) == b"abc"
    with pytest.raises(OSError, match="it is larger than 2 bytes"):
        read_file(path, 2)
    path.write_bytes(bytes(MIB + 1))
    with pytest.raises(OSError, match="it is larger than 1 MiB"):
        read_file(path, MIB)


def test_a_file_of_the_kernel_that_has_nothing_now_is_empty(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # /proc/kmsg: a regular file by its status, and EAGAIN when read.
    reading, writing = os.pipe2(os.O_NONBLOCK)
    monkeypatch.setattr(files, "open_file", lambda _: reading)

    assert read_file(tmp_path / "kmsg", 10) == b""
    os.close(writing)


def test_a_link_to_a_file_is_followed(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"abc")
    (tmp_path / "link").symlink_to("file")

    assert read_file(tmp_path / "link", 3) == b"abc"


def test_what_is_no_regular_file_is_refused_unopened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")  # it has no writer: opening would wait for ever
    (tmp_path / "device").symlink_to("/dev/zero")

    for path in (tmp_path / "pipe", tmp_path / "device"):
        with pytest.raises(OSError, match="it is not a regular file"):
            read_file(path, 10)
    with pytest.raises(OSError, match="it is a directory"):
        read_file(tmp_path, 10)


@pytest.mark.parametrize("name", ["a\0b", "n" * 300, "missing"])
def test_names_that_no_file_has(tmp_path: Path, name: str) -> None:
    with pytest.raises(OSError, match=r"invalid|too long|No such file"):
        read_file(tmp_path / name, 10)


def test_what_our_caller_opened_for_us_is_read_up_to_the_limit() -> None:
    read_end, write_end = os.pipe()
    try:
        os.write(write_end, b"abc")
        os.close(write_end)
        assert read_file(f"/dev/fd/{read_end}", 3) == b"abc"
    finally:
        os.close(read_end)
    with Path("/dev/zero").open("rb") as endless, pytest.raises(OSError, match="larger than"):
        read_file(f"/proc/self/fd/{endless.fileno()}", 100)


def test_reading_a_small_file_takes_little_memory(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"abc")

    tracemalloc.start()
    try:
        assert read_file(path, 8 * MIB) == b"abc"
        assert tracemalloc.get_traced_memory()[1] < MIB
    finally:
        tracemalloc.stop()
