"""Starter of every child process, which makes it end with its parent, however that ends.

`python start_child.py PARENT SCRIPT [ARGUMENTS]` ties this process to the one with the id PARENT
and becomes SCRIPT, which may also be `-m MODULE`; with `--own-group` before SCRIPT, all that it
starts is tied as well. Run by path in any interpreter from Python 3.8 on, standard library only.
Our own Python imports it, for `run_worker`. It runs first, so that no call into a driver can hang
before it.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False  # the name that type checkers know, without the import of typing
if TYPE_CHECKING:
    import select
    from typing import Any

#: prctl(2): the signal that the kernel sends to a process when the thread that started it ends.
PR_SET_PDEATHSIG = 1
SIGKILL = 9
#: The pipe of requests, whose other end only the parent holds, and that of the answers.
REQUESTS, ANSWERS = 0, 1
#: The word before a script that leads a process group.
OWN_GROUP = "--own-group"
#: New objects in a worker: more than one answer takes, and little memory in one that runs on.
LOOKS_FOR_GARBAGE_AFTER = 50_000


def end_with_parent(parent: int) -> None:
    """Let the kernel kill this process as soon as its parent dies, even in a hung call.

    With a wrapper between us and the parent, or without such a call in the kernel, a thread
    watches the pipe from the parent instead; it runs whenever Python does.
    """
    # The parent may have died before this call: then we have another parent by now.
    if not (ask_kernel() and os.getppid() == parent):
        watch_requests()


def ask_kernel() -> bool:
    """Return whether the kernel accepted the setting. An exec with privileges or a fork would
    clear it, and this process does neither.
    """
    try:
        # Importing the package ctypes takes several times as long as the module beneath it.
        import _ctypes

        everything_loaded: Any = None  # the C library is part of it
        prctl = _ctypes.dlsym(_ctypes.dlopen(everything_loaded, 0), "prctl")
        return bool(_ctypes.call_function(prctl, (PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0)) == 0)
    except (ImportError, AttributeError, OSError):
        return False


def watch_requests() -> None:
    """End this process once its parent is gone: at once, or from another thread."""
    import _thread

    poll = poll_requests()

    def end_at_hangup() -> None:
        poll.poll()
        os.kill(os.getpid(), SIGKILL)

    if poll.poll(0):
        os.kill(os.getpid(), SIGKILL)
    _thread.start_new_thread(end_at_hangup, ())


def lead_group() -> None:
    """Lead a process group that ends with the parent: the kernel ties this process alone to it.

    A fork in the group watches the pipe from the parent, so that the group's number stays ours.
    """
    if os.getpgrp() != os.getpid():  # a wrapper may have made it one
        os.setpgid(0, 0)
    if os.fork():
        return
    os.close(ANSWERS)  # its end tells the parent that this process has ended
    poll_requests().poll()
    os.killpg(0, SIGKILL)


def poll_requests() -> select.poll:
    """Return a poll object for the end of the pipe from the parent alone."""
    import select

    poll = select.poll()
    poll.register(REQUESTS, 0)  # POLLHUP is always reported
    return poll


def run_script(path: str) -> None:
    """Run a file as the main module, with its bytecode cached as for an import."""
    from importlib.machinery import SourceFileLoader

    if not os.path.isfile(path):  # noqa: PTH113 - no pathlib in the child
        sys.exit(2)  # as Python does
    if not (sys.flags.isolated or getattr(sys.flags, "safe_path", False)):
        sys.path[0] = os.path.dirname(path)  # noqa: PTH120
    sys.argv[:] = [path, *sys.argv[3:]]
    main = type(sys)("__main__")
    main.__file__ = path
    sys.modules["__main__"] = main
    SourceFileLoader("__main__", path).exec_module(main)


def run_module(name: str) -> None:
    """Run a module as `python -m` does."""
    import runpy

    sys.argv[:] = sys.argv[3:]
    runpy.run_module(name, run_name="__main__", alter_sys=True)


def run_worker() -> None:
    """Run a module's `main`. The arguments: the parent's id, the module, and those of `main`."""
    end_with_parent(int(sys.argv[1]))
    import gc
    from importlib import import_module

    # Imports make no garbage, and looking for it takes a tenth of a worker's start.
    gc.set_threshold(LOOKS_FOR_GARBAGE_AFTER)
    import_module(sys.argv[2]).main(*sys.argv[3:])


if __name__ == "__main__":
    end_with_parent(int(sys.argv[1]))
    if sys.argv[2] == OWN_GROUP:
        del sys.argv[2]
        lead_group()
    if sys.argv[2] == "-m":
        run_module(sys.argv[3])
    else:
        run_script(sys.argv[2])
