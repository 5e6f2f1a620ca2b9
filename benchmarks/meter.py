"""Meter of one command: wall seconds, CPU seconds, peak bytes, exit code.

A file of its own, run by path in a bare interpreter, because a process starts with the peak memory
of the one that started it: whatever this imports is the least that can be measured.
"""

import ctypes
import os
import sys
from time import perf_counter

#: prctl(2): orphans of the command become children of this process, so that what the command
#: leaves behind is counted too.
PR_SET_CHILD_SUBREAPER = 36


def run(words: list[str]) -> str:
    """Run `words` with its output discarded and return the four numbers."""
    quiet = [(os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0)]
    began_s = perf_counter()
    pid = os.posix_spawn(words[0], words, os.environ, file_actions=quiet)
    _, status, usage = os.wait4(pid, 0)
    wall_s = perf_counter() - began_s
    cpu_s, peak_kib = usage.ru_utime + usage.ru_stime, usage.ru_maxrss
    while True:
        try:
            usage = os.wait4(-1, 0)[2]
        except ChildProcessError:
            return f"{wall_s} {cpu_s} {peak_kib * 1024} {os.waitstatus_to_exitcode(status)}"
        cpu_s += usage.ru_utime + usage.ru_stime
        peak_kib = max(peak_kib, usage.ru_maxrss)


if __name__ == "__main__":
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    sys.stdout.write(run(sys.argv[1:]))
