"""Entry point: `gpucheck` and `python -m gpucheck`."""

from __future__ import annotations

import gc
import os
import sys

TYPE_CHECKING = False  # type checkers know this name; typing is slow to import
if TYPE_CHECKING:
    import signal as _signal
else:
    import _signal  # what `signal` is built on, without its names: an interrupt comes at any time

#: The command that starts NVML at once, unless it reads a file or only shows its help.
#: Others read the kernel's files first: NVML may load modules and create device nodes.
ASKS_NVML = "list"
INTERRUPTED = 130
NOT_NOW = frozenset({"--from", "--help", "-h"})


def main() -> None:
    """Run the command line and exit with its code."""
    if sys.platform != "linux":
        # It only says so: the signals and modules below are not there.
        from gpucheck.cli import main as say_so

        sys.exit(say_so())
    # An interrupt during an import may be lost, or turn into another error: it waits until the
    # imports are done. No second thread could receive it yet.
    stopping = (_signal.SIGHUP, _signal.SIGINT, _signal.SIGTERM)
    before = _signal.pthread_sigmask(_signal.SIG_BLOCK, stopping)
    # Imports make no garbage, and collecting takes a tenth of the start-up time. Long-running
    # commands turn the collector on again.
    gc.disable()
    words = sys.argv[1:]
    sys.path[:] = _without_current_directory(sys.path, os.environ.get("PYTHONPATH", ""))
    from gpucheck.drivers.interrupts import REQUESTS

    REQUESTS.listen()
    try:
        if words[:1] == [ASKS_NVML] and not any(
            word in NOT_NOW or word.startswith("--from=") for word in words
        ):
            # The driver answers while the rest is imported, which takes about as long.
            from gpucheck.drivers.nvml.start import start_early

            start_early()
        from gpucheck.cli import main as run

        code = run(ready=lambda: _signal.pthread_sigmask(_signal.SIG_SETMASK, before))
    except KeyboardInterrupt:
        code = _interrupted(words)
    finally:
        # An unused child process ends: with a hung driver it would stay for ever.
        starter = sys.modules.get("gpucheck.drivers.nvml.start")
        if starter is not None:
            starter.discard()
    REQUESTS.release()
    if code == INTERRUPTED:
        # An interrupt in the middle of exec() (every dataclass is made by one) makes Python end
        # by SIGINT at its very end, although it was caught and handled.
        for stream in filter(None, (sys.stdout, sys.stderr)):
            try:
                stream.flush()
            except (OSError, ValueError):
                continue
        os._exit(code)
    sys.exit(code)


def _without_current_directory(path: list[str], variable: str) -> list[str]:
    """Return the module path without the empty and relative entries of PYTHONPATH.

    Otherwise anyone who can write into the current directory could put a module there. Python has
    made these entries absolute by now.
    """
    given = [] if sys.flags.ignore_environment or not variable else variable.split(os.pathsep)
    relative = {os.path.abspath(entry) for entry in given if not entry.startswith("/")}  # noqa: PTH100 - pathlib is slow to import
    return [
        entry
        for entry in path
        if entry.startswith("/") and (entry not in relative or entry in given)
    ]


def _interrupted(words: list[str]) -> int:
    """Answer a Ctrl-C that came before the command line could."""
    from gpucheck.cli import output
    from gpucheck.cli.commands import COMMANDS
    from gpucheck.cli.options import Context

    command = words[0] if words and words[0] in COMMANDS else None
    return output.interrupted(Context(command=command, document=output.requested_document(words)))


if __name__ == "__main__":
    # `python -m` puts the current directory first, unless it was told not to (-P, -I).
    if not sys.flags.safe_path and sys.path and sys.path[0] == os.getcwd():  # noqa: PTH109 - pathlib is slow to import
        del sys.path[0]
    main()
