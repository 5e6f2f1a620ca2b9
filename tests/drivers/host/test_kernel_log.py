"""Kernel log where it may be read, and the reason where not."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpucheck.drivers.host.kernel_log import MOST_CHARACTERS, MOST_LINES, read_kernel_log


def put(root: Path, path: str, text: str) -> None:
    target = root / path
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(text)


def test_records_of_the_device(tmp_path: Path) -> None:
    put(
        tmp_path,
        "dev/kmsg",
        "6,1,9,-;usb 1-1: new device\n3,2,9,-;NVRM: Xid (PCI:0000:01:00): 79\n",
    )

    found = read_kernel_log(tmp_path)

    assert found.lines == ("NVRM: Xid (PCI:0000:01:00): 79",)
    assert found.source == "/dev/kmsg"


def test_a_message_of_several_lines_is_one_line(tmp_path: Path) -> None:
    record = r"NVRM: The NVIDIA GPU\x0aNVRM: is not supported by the\x0aNVRM: NVIDIA 595 release."
    put(tmp_path, "dev/kmsg", f"3,1,1,-;{record}\\x0a\n")

    assert read_kernel_log(tmp_path).lines == (
        "NVRM: The NVIDIA GPU is not supported by the NVIDIA 595 release. ",
    )


@pytest.mark.parametrize(
    "line",
    [
        "Loading of module with unavailable key is rejected",
        "Lockdown: modprobe: unsigned module loading is restricted; see man kernel_lockdown.7",
    ],
)
def test_the_kernel_s_own_words_on_signatures_are_kept(tmp_path: Path, line: str) -> None:
    put(tmp_path, "dev/kmsg", f"5,1,1,-;{line}\n")

    assert read_kernel_log(tmp_path).lines == (line,)


def test_a_log_file_from_this_boot_on(tmp_path: Path) -> None:
    put(
        tmp_path,
        "var/log/kern.log",
        "NVRM: of the boot before\nLinux version 6.8.0\nnouveau: loaded\n",
    )

    found = read_kernel_log(tmp_path)

    assert (found.lines, found.source) == (("nouveau: loaded",), "/var/log/kern.log")


def test_nothing_readable_has_a_reason(tmp_path: Path) -> None:
    found = read_kernel_log(tmp_path)

    assert found.lines is None
    assert found.unavailable == "/dev/kmsg: No such file or directory"


def test_no_line_of_ours_is_an_empty_log(tmp_path: Path) -> None:
    put(tmp_path, "dev/kmsg", "6,1,9,-;usb\n")

    assert read_kernel_log(tmp_path).lines == ()


def test_a_flood_is_cut(tmp_path: Path) -> None:
    put(tmp_path, "dev/kmsg", "".join(f"3,1,1,-;NVRM: {n} {'x' * 999}\n" for n in range(500)))

    lines = read_kernel_log(tmp_path).lines or ()

    assert len(lines) == MOST_LINES
    assert lines[-1].startswith("NVRM: 499")
    assert max(map(len, lines)) == MOST_CHARACTERS
