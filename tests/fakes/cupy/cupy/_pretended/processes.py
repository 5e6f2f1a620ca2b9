"""Our lines in the file from which the pretended NVML reads the GPUs' processes."""

from __future__ import annotations

import fcntl
from pathlib import Path


def rewrite(path: str, pid: int, lines: list[str]) -> None:
    """Replace the lines of one process."""
    with Path(path).open("a+", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        others = [line for line in file.read().splitlines() if line.split()[1:2] != [str(pid)]]
        file.seek(0)
        file.truncate()
        file.write("".join(f"{line}\n" for line in (*others, *lines)))
