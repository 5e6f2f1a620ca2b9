"""Container of one command: when it ends, or its time is over, nothing that it started goes on.

    python -m benchmarks.contained SECONDS COMMAND [ARGUMENT...]

Tests start workers, servers and commands in sessions of their own. What is orphaned when a broken
test ends becomes a child of this process (prctl(2)), and is killed. The exit code is the command's,
`LATE` where the time was over.
"""

import contextlib
import ctypes
import os
import subprocess
import sys
import threading

import psutil

from benchmarks.meter import PR_SET_CHILD_SUBREAPER

#: As of timeout(1). pytest ends with 0 to 5.
LATE = 124


def run(command: list[str], limit_s: float) -> int:
    """Run `command`, kill all that is left of it, and return its exit code."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    over = threading.Event()
    process = subprocess.Popen(command)

    def end() -> None:
        over.set()
        process.kill()

    timer = threading.Timer(limit_s, end)
    timer.start()
    try:
        # Orphans too, as they die: the tests see that they are gone, as below init.
        while (ended := os.waitpid(-1, 0))[0] != process.pid:
            pass
    finally:
        timer.cancel()
        end_descendants()
    process.returncode = os.waitstatus_to_exitcode(ended[1])
    return LATE if over.is_set() else process.returncode


def end_descendants() -> None:
    """Kill every process below this one, those too that are started meanwhile."""
    while found := psutil.Process().children(recursive=True):
        for each in found:
            with contextlib.suppress(psutil.NoSuchProcess):
                each.kill()
        psutil.wait_procs(found, timeout=1)


if __name__ == "__main__":
    sys.exit(run(sys.argv[2:], float(sys.argv[1])))
