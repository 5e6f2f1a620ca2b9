"""Kernel log where it may be read, and the reason where not."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucheck.drivers.host.kernel_log import (
    MOST_CHARACTERS,
    MOST_LINES,
    MOST_OF_AN_XID,
    read_kernel_log,
    written_at,
)

NOW = datetime(2026, 11, 22, 12, 0, 0, tzinfo=timezone(timedelta(hours=1)))
BOOTED = "Nov 22 03:00:00 node kernel: [    0.000000] Linux version 6.8.0\n"


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


def test_a_flood_of_one_xid_hides_no_other(tmp_path: Path) -> None:
    first = "3,1,1,-;NVRM: Xid (PCI:0000:01:00): 79, gone\n3,1,1,-;NVRM: loading\n"
    flood = "".join(f"3,1,{n},-;NVRM: Xid (PCI:0000:01:00): 31, pid={n}\n" for n in range(500))
    put(tmp_path, "dev/kmsg", first + flood)

    lines = read_kernel_log(tmp_path).lines or ()

    assert lines[:2] == ("NVRM: Xid (PCI:0000:01:00): 79, gone", "NVRM: loading")
    assert len(lines) == 2 + MOST_OF_AN_XID
    assert lines[-1].endswith("pid=499")


# -------------------------------------------------------------------------------------- times


def test_the_age_of_a_record(tmp_path: Path) -> None:
    put(tmp_path, "proc/uptime", "100.50 400.00\n")
    put(tmp_path, "dev/kmsg", "3,1,40500000,-;NVRM: a\n3,2,999999999,-;NVRM: b\nNVRM: c\n")

    found = read_kernel_log(tmp_path)

    assert found.lines == ("NVRM: a", "NVRM: b", "NVRM: c")
    assert found.ages_s == (60.0, 0.0, None)


@pytest.mark.parametrize("uptime", [None, "", "soon", "\0"])
def test_without_the_time_since_the_boot_records_have_no_age(
    tmp_path: Path, uptime: str | None
) -> None:
    if uptime is not None:
        put(tmp_path, "proc/uptime", uptime)
    put(tmp_path, "dev/kmsg", "3,1,40500000,-;NVRM: a\n")

    assert read_kernel_log(tmp_path).ages_s == (None,)


@pytest.mark.parametrize(
    ("line", "age_s"),
    [
        ("Nov 22 11:59:00 node kernel: [  970.0] NVRM: by the kernel's time", 30.0),
        ("2026-11-22T11:58:20+01:00 node kernel: NVRM: with a zone", 100.0),
        ("2026-11-22T10:58:20.5Z node kernel: NVRM: in UTC", 99.5),
        ("2026-11-22T11:58:20 node kernel: NVRM: this machine's time", 100.0),
        ("Nov 22 11:58:20 node kernel: NVRM: without a year", 100.0),
        ("Nov  2 12:00:00 node kernel: NVRM: one digit", 20 * 86400.0),
        ("Nov 22 12:00:01 node kernel: NVRM: a clock ahead", 0.0),
        ("Nov 31 12:00:01 node kernel: NVRM: no such day", None),
        ("NVRM: no time", None),
    ],
)
def test_the_age_of_a_line_of_a_file(tmp_path: Path, line: str, age_s: float | None) -> None:
    put(tmp_path, "var/log/messages", f"{line}\n")

    found = read_kernel_log(tmp_path, (NOW, 1000.0))

    assert found.ages_s == (age_s,)


def test_a_line_of_december_was_written_last_year() -> None:
    assert written_at("Dec 31 23:00:00 node", NOW) == datetime(2025, 12, 31, 23, tzinfo=NOW.tzinfo)
    assert written_at("Feb 29 23:00:00 node", NOW) is None
    # Up to a day ahead a clock is wrong; beyond that the year is.
    assert written_at("Nov 23 12:00:00 node", NOW) == NOW + timedelta(days=1)
    assert (written_at("Nov 23 12:00:01 node", NOW) or NOW).year == 2025


@given(st.text(max_size=60))
def test_any_line_has_a_time_or_none(text: str) -> None:
    for line in (text, f"2026-11-22T{text} ", f"Nov {text} 10:00:00 "):
        found = written_at(line, NOW)
        assert found is None or found.tzinfo is not None


# ------------------------------------------------------------------------------- earlier boots

OLD = "Nov 20 12:00:00 node kernel: [99.0] NVRM: Xid (PCI:0000:01:00): 79, gone\n"


def test_xids_of_earlier_boots(tmp_path: Path) -> None:
    put(tmp_path, "dev/kmsg", "3,1,1,-;NVRM: now\n")
    other = "Nov 20 11:00:00 node kernel: NVRM: loading\n"
    new = "Nov 22 11:00:00 node kernel: NVRM: Xid (PCI:0000:01:00): 31, x\n"
    put(tmp_path, "var/log/kern.log", f"{BOOTED}{other}{OLD}{BOOTED}{new}")

    found = read_kernel_log(tmp_path, (NOW, 50.0))

    assert (found.source, found.lines) == ("/dev/kmsg", ("NVRM: now",))
    assert found.earlier.lines == (OLD.rstrip(),)
    assert found.earlier.ages_s == (2 * 86400.0,)
    assert (found.earlier.source, found.earlier.unavailable) == ("/var/log/kern.log", None)


def test_a_log_without_xids_says_that_there_were_none(tmp_path: Path) -> None:
    put(tmp_path, "var/log/messages", f"NVRM: loading\n{BOOTED}")

    assert read_kernel_log(tmp_path).earlier.lines == ()


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (None, "/var/log/kern.log: No such file or directory"),
        (OLD, "/var/log/kern.log does not show where this boot began"),
    ],
)
def test_why_earlier_boots_are_not_known(tmp_path: Path, text: str | None, reason: str) -> None:
    if text is not None:
        put(tmp_path, "var/log/kern.log", text)

    found = read_kernel_log(tmp_path).earlier

    assert (found.lines, found.unavailable) == (None, reason)
