"""Lines of the kernel log about NVIDIA GPUs, if this user may read it.

A log that cannot be read is "not checked", never "nothing found".
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from gpucheck.drivers.evidence import KernelLogReading

_ABOUT_GPUS = re.compile(
    r"NVRM|nvidia|nouveau|nova_core|NovaCore|request_free_mem_region"
    r"|Key was rejected|Required key not available|Loading of [a-z ]+ is rejected"
    r"|module loading is restricted"
)
#: How the kernel escapes a line end within a record, and how the driver begins the next line.
_WITHIN = re.compile(r"\\x0a(?:NVRM: *)?")
#: Logs that some systems leave readable; they include earlier boots.
FILES = ("var/log/kern.log", "var/log/messages")
_BOOT = "Linux version "
MOST_LINES = 100
MOST_CHARACTERS = 300
_MOST_RECORDS = 30_000
_TAIL_BYTES = 1 << 20


def read_kernel_log(root: Path) -> KernelLogReading:
    """Return this boot's lines about GPUs, from /dev/kmsg or a log file."""
    try:
        return _kept(_ring_buffer(root / "dev/kmsg"), "/dev/kmsg")
    except OSError as error:
        refused = f"/dev/kmsg: {error.strerror}"
    for name in FILES:
        try:
            return _kept(_since_boot(root / name), f"/{name}")
        except OSError:
            continue
    return KernelLogReading(unavailable=refused)


def _kept(lines: list[str], source: str) -> KernelLogReading:
    chosen = [line[:MOST_CHARACTERS] for line in lines if _ABOUT_GPUS.search(line)]
    return KernelLogReading(lines=tuple(chosen[-MOST_LINES:]), source=source)


def _ring_buffer(path: Path) -> list[str]:
    """Read the existing records: each read of the device returns one; after the last it blocks."""
    lines: list[str] = []
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        for _ in range(_MOST_RECORDS):
            try:
                record = os.read(descriptor, 1 << 16)
            except BlockingIOError:
                break
            except BrokenPipeError:  # overwritten meanwhile
                continue
            if not record:
                break
            text = _WITHIN.sub(" ", record.decode("utf-8", "replace"))
            lines.extend(line.partition(";")[2] or line for line in text.splitlines())
    finally:
        os.close(descriptor)
    return lines


def _since_boot(path: Path) -> list[str]:
    with path.open("rb") as file:
        file.seek(0, os.SEEK_END)
        file.seek(max(0, file.tell() - _TAIL_BYTES))
        lines = file.read().decode("utf-8", "replace").splitlines()
    starts = [number for number, line in enumerate(lines) if _BOOT in line]
    return lines[starts[-1] :] if starts else lines
