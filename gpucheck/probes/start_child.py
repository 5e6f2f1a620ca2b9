"""The start of every child process: it ends with its parent, whatever ends that, and then works.

`python start_child.py PARENT SCRIPT [ARGUMENTS]` ties this process to the one with the id PARENT
and becomes SCRIPT; `-m MODULE` may stand in its place. Run by path in any interpreter from Python
3.8 on, standard library only. It is first, so that no call into a driver can hang before it.
"""

from __future__ import annotations

import os
import sys
from importlib.machinery import SourceFileLoader

TYPE_CHECKING = False  # the name that type checkers know, without the import of typing
if TYPE_CHECKING:
    from typing import Any

#: prctl(2): the signal that the kernel sends to a process when the thread that started it ends.
PR_SET_PDEATHSIG = 1
SIGKILL = 9
#: The line on which we are asked, whose other end only the parent has.
REQUESTS = 0


def end_with_parent(parent: int) -> None:
    """Let the kernel kill this process as soon as its parent has died, even in a hung call.

    Where a wrapper stands between us and the parent, or the kernel has no such call, a thread
    watches the line from the parent instead: it runs whenever Python does.
    """
    # The parent may have died before the kernel was told: then it is another one by now.
    if not (ask_kernel() and os.getppid() == parent):
        watch_requests()


def ask_kernel() -> bool:
    """Return whether the kernel took the order. It outlives neither an exec with privileges nor a
    fork, and this process does neither.
    """
    try:
        # The package ctypes needs several times as long as the module that it is built on.
        import _ctypes

        everything_loaded: Any = None  # the C library is among it
        prctl = _ctypes.dlsym(_ctypes.dlopen(everything_loaded, 0), "prctl")
        return bool(_ctypes.call_function(prctl, (PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0)) == 0)
    except (ImportError, AttributeError, OSError):
        return False


def watch_requests() -> None:
    """End this process when nobody can ask it any more: at once, or from another thread."""
    import _thread
    import select

    poll = select.poll()
    poll.register(REQUESTS, 0)  # the end of the line is told without being asked for

    def end_at_hangup() -> None:
        poll.poll()
        os.kill(os.getpid(), SIGKILL)

    if poll.poll(0):
        os.kill(os.getpid(), SIGKILL)
    _thread.start_new_thread(end_at_hangup, ())


def run_script(path: str) -> None:
    """Run a file as the main module, compiled beside it as an imported one would be."""
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


if __name__ == "__main__":
    end_with_parent(int(sys.argv[1]))
    if sys.argv[2] == "-m":
        run_module(sys.argv[3])
    else:
        run_script(sys.argv[2])
