"""Lines of the kernel log about NVIDIA GPUs, if this user may read it.

A log that cannot be read is "not checked", never "nothing found".
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from pathlib import Path

from gpucheck.drivers.evidence import EarlierBootReading, KernelLogReading
from gpucheck.drivers.host.sysfs import read_uptime_s

_ABOUT_GPUS = re.compile(
    r"NVRM|nvidia|nouveau|nova_core|NovaCore|request_free_mem_region"
    r"|Key was rejected|Required key not available|Loading of [a-z ]+ is rejected"
    r"|module loading is restricted"
)
#: The driver's line of an error, up to its number.
_XID = r"NVRM: Xid \([^)]*\): ([0-9]+)"
_XID_BYTES = b"NVRM: Xid ("
#: How the kernel escapes a line end within a record, and how the driver begins the next line.
_WITHIN = re.compile(r"\\x0a(?:NVRM: *)?")
#: A record of /dev/kmsg: priority, sequence, microseconds since the boot, flags (kernel,
#: Documentation/ABI/testing/dev-kmsg).
_RECORD = r"[0-9]+,[0-9]+,(?P<us>[0-9]{1,18}),[^;]*;"
#: The kernel's own time in a log file, compiled only if one is read, where the logger keeps it.
_SINCE_BOOT = r"kernel: \[ *(?P<s>[0-9]{1,12}\.[0-9]+)\]"
#: The logger's times: of RFC 5424, and the older one without a year (RFC 3164).
_ISO = r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:.]+(?:Z|[+-][0-9:]{5,6})?(?= )"
_OLD = r"(?P<month>[A-Z][a-z]{2}) +(?P<day>[0-9]{1,2}) (?P<time>[0-9]{2}:[0-9:]{5}) "
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
#: Logs that some systems leave readable; they include earlier boots.
FILES = ("var/log/kern.log", "var/log/messages")
_BOOT = "Linux version "
MOST_LINES = 100
#: So many lines of each Xid are kept beside the others: a flood of one number hides no other.
MOST_OF_AN_XID = 100
MOST_CHARACTERS = 300
_MOST_RECORDS = 30_000
_TAIL_BYTES = 1 << 20
_FLAGS = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC


#: Now, by the wall, and in seconds since the boot without sleep; None if not known.
Clock = tuple[datetime, float | None]
#: Line of a log, and how long ago it was written, in seconds.
_Line = tuple[str, float | None]


def read_kernel_log(root: Path, clock: Clock | None = None) -> KernelLogReading:
    """Return this boot's lines about GPUs, from /dev/kmsg or a log file, and earlier Xids."""
    clock = clock or _read_clock(root)
    earlier = _earlier_boot(root, clock)
    try:
        return _kept(_ring_buffer(root / "dev/kmsg", clock), "/dev/kmsg", earlier)
    except OSError as error:
        refused = f"/dev/kmsg: {error.strerror}"
    for name in FILES:
        try:
            lines = _about((line, None) for line in _lines_since_boot(root / name))
        except OSError:
            continue
        return _kept([_dated(line, clock) for line, _ in lines], f"/{name}", earlier)
    return KernelLogReading(unavailable=refused, earlier=earlier)


def _read_clock(root: Path) -> Clock:
    """Return the clocks: the kernel's log counts as CLOCK_MONOTONIC does, which sleep stops."""
    now = datetime.now().astimezone()
    live = root == Path("/")
    return now, time.clock_gettime(time.CLOCK_MONOTONIC) if live else read_uptime_s(root)


def _about(lines: Iterable[_Line]) -> list[_Line]:
    """Return the newest lines about GPUs, in their order, and the newest of each Xid."""
    chosen: list[_Line] = []
    counts: Counter[str] = Counter()
    for line in reversed([line for line in lines if _ABOUT_GPUS.search(line[0])]):
        xid = re.search(_XID, line[0])
        kind, most = (xid[1], MOST_OF_AN_XID) if xid else ("", MOST_LINES)
        counts[kind] += 1
        if counts[kind] <= most:
            chosen.append(line)
    return chosen[::-1]


def _kept(lines: Sequence[_Line], source: str, earlier: EarlierBootReading) -> KernelLogReading:
    chosen = _about(lines)
    return KernelLogReading(
        lines=tuple(text[:MOST_CHARACTERS] for text, _ in chosen),
        source=source,
        ages_s=tuple(age_s for _, age_s in chosen),
        earlier=earlier,
    )


class NewMessages:
    """Messages that the kernel writes from now on; none if this user may not read its log."""

    def __init__(self, root: Path) -> None:
        self._descriptor: int | None = None
        with contextlib.suppress(OSError):
            self._descriptor = os.open(root / "dev/kmsg", _FLAGS)
            os.lseek(self._descriptor, 0, os.SEEK_END)

    def read(self) -> bytes | None:
        """Return the kernel's messages, a line each; None if they may not be read."""
        if self._descriptor is None:
            return None
        descriptor, self._descriptor = self._descriptor, None
        try:
            lines = (line for record in _records(descriptor) for line in record.splitlines())
            return b"".join(line.partition(b";")[2] + b"\n" for line in lines)
        finally:
            os.close(descriptor)


def _ring_buffer(path: Path, clock: Clock) -> list[_Line]:
    """Read the existing records."""
    lines: list[_Line] = []
    descriptor = os.open(path, _FLAGS)
    try:
        for record in _records(descriptor):
            text = _WITHIN.sub(" ", record.decode("utf-8", "replace"))
            lines.extend(_parse_record(line, clock) for line in text.splitlines())
    finally:
        os.close(descriptor)
    return lines


def _records(descriptor: int) -> Iterator[bytes]:
    """Yield records: each read of the device returns one; after the last it blocks."""
    for _ in range(_MOST_RECORDS):
        try:
            record = os.read(descriptor, 1 << 16)
        except BlockingIOError:
            return
        except BrokenPipeError:  # overwritten meanwhile
            continue
        if not record:
            return
        yield record


def _parse_record(line: str, clock: Clock) -> _Line:
    match = re.match(_RECORD, line)
    if match is None:
        return line.partition(";")[2] or line, None
    return line[match.end() :], _age(int(match["us"]) / 1e6, clock)


def _age(since_boot_s: float, clock: Clock) -> float | None:
    """Return how long ago this moment after the boot was."""
    return None if clock[1] is None else max(0.0, clock[1] - since_boot_s)


# ------------------------------------------------------------------------------------ log files


def _earlier_boot(root: Path, clock: Clock) -> EarlierBootReading:
    """Return the Xids that a log file has from before this boot."""
    reason = ""
    for name in FILES:
        try:
            tail = _tail(root / name)
        except OSError as error:
            reason = reason or f"/{name}: {error.strerror}"
            continue
        if _BOOT.encode() not in tail:
            reason = f"/{name} does not show where this boot began"
            continue
        # Most logs have none: then their lines need not be told apart.
        lines = tail.decode("utf-8", "replace").splitlines() if _XID_BYTES in tail else []
        before = lines[: _boot_began(lines)]
        about = _about(
            _dated(line, clock, earlier=True) for line in before if re.search(_XID, line)
        )
        return EarlierBootReading(
            lines=tuple(text[:MOST_CHARACTERS] for text, _ in about),
            ages_s=tuple(age_s for _, age_s in about),
            source=f"/{name}",
        )
    return EarlierBootReading(unavailable=reason)


def _tail(path: Path) -> bytes:
    with path.open("rb") as file:
        file.seek(0, os.SEEK_END)
        file.seek(max(0, file.tell() - _TAIL_BYTES))
        return file.read(_TAIL_BYTES)


def _lines_since_boot(path: Path) -> list[str]:
    lines = _tail(path).decode("utf-8", "replace").splitlines()
    return lines[_boot_began(lines) :]


def _boot_began(lines: Sequence[str]) -> int:
    """Return where this boot's lines begin; 0 if that is not to be seen."""
    return max((number for number, line in enumerate(lines) if _BOOT in line), default=0)


def _dated(line: str, clock: Clock, *, earlier: bool = False) -> _Line:
    """Return a line of a log file with its age: by the kernel's time in it, else the logger's."""
    kernel = None if earlier else re.search(_SINCE_BOOT, line)
    now, since_boot_s = clock
    if kernel is not None and since_boot_s is not None:
        return line, _age(float(kernel["s"]), clock)
    written = written_at(line, now)
    age_s = None if written is None else (now - written).total_seconds()
    return line, None if age_s is None else max(0.0, age_s)


def written_at(line: str, now: datetime) -> datetime | None:
    """Return when a logger wrote a line, None if it has no time.

    The older form has no year and no zone: it is this machine's time, and never in the future.
    """
    try:
        if match := re.match(_ISO, line):
            written = datetime.fromisoformat(match[0])
            return written if written.tzinfo else written.replace(tzinfo=now.tzinfo)
        if match := re.match(_OLD, line):
            month = _MONTHS.index(match["month"]) + 1
            day = f"{now.year:04}-{month:02}-{int(match['day']):02}"
            written = datetime.fromisoformat(f"{day}T{match['time']}").replace(tzinfo=now.tzinfo)
            # A clock may be a little ahead; a day ahead it was last year.
            late = written > now + timedelta(days=1)
            return written.replace(year=now.year - 1) if late else written
    except ValueError:
        return None
    return None
