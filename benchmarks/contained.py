"""Container of one command: when it ends, or its time is over, nothing that it started goes on.

    python -m benchmarks.contained SECONDS COMMAND [ARGUMENT...]

Tests start workers, servers and commands in sessions of their own. What is orphaned when a broken
test ends becomes a child of this process (prctl(2)), and is killed. The exit code is the command's,
`LATE` where the time was over.
"""

import contextlib
import ctypes
import subprocess
import sys

import psutil

from benchmarks.meter import PR_SET_CHILD_SUBREAPER

#: As of timeout(1). pytest ends with 0 to 5.
LATE = 124


def run(command: list[str], limit_s: float) -> int:
    """Run `command`, kill all that is left of it, and return its exit code."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    process = subprocess.Popen(command)
    try:
        return process.wait(limit_s)
    except subprocess.TimeoutExpired:
        return LATE
    finally:
        end_descendants()


def end_descendants() -> None:
    """Kill every process below this one, those too that are started meanwhile."""
    while found := psutil.Process().children(recursive=True):
        for each in found:
            with contextlib.suppress(psutil.NoSuchProcess):
                each.kill()
        psutil.wait_procs(found, timeout=1)


if __name__ == "__main__":
    sys.exit(run(sys.argv[2:], float(sys.argv[1])))
