"""Entry point: `gpucheck` and `python -m gpucheck`."""

from __future__ import annotations

import gc
import signal
import sys

#: The command that asks NVML first thing, unless it answers from a file or only explains itself.
#: Others read the kernel's files before: NVML may load modules and create device nodes.
ASKS_NVML = "list"
NOT_NOW = frozenset({"--from", "--help", "-h"})


def main() -> None:
    """Run the command line and exit with its code."""
    # Imports make no garbage, and looking for it is a tenth of the start-up time. Commands that
    # run for long turn the collector on again.
    gc.disable()
    words = sys.argv[1:]
    # In the middle of an import an interrupt may be lost, or come out as another error: it waits
    # until the imports are over.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT,))
    try:
        if words[:1] == [ASKS_NVML] and not _is_answered_elsewhere(words):
            # The driver is asked while the rest is imported, which takes about as long.
            from gpucheck.probes.nvml_start import start_early

            start_early()
        from gpucheck.cli import main as run

        code = run(ready=lambda: signal.pthread_sigmask(signal.SIG_SETMASK, before))
    except KeyboardInterrupt:
        code = _interrupted(words)
    finally:
        _end_what_was_started()
    sys.exit(code)


def _interrupted(words: list[str]) -> int:
    """Answer a Ctrl-C that came before the command line could."""
    from gpucheck.cli import output
    from gpucheck.cli.commands import COMMANDS

    command = words[0] if words and words[0] in COMMANDS else None
    return output.interrupted(output.Context(command=command, json=output.asks_for_json(words)))


def _end_what_was_started() -> None:
    """End a child that nobody asked: with a hung driver it would stay for ever."""
    starter = sys.modules.get("gpucheck.probes.nvml_start")
    if starter is not None:
        starter.discard()


def _is_answered_elsewhere(words: list[str]) -> bool:
    return any(word in NOT_NOW or word.startswith("--from=") for word in words)


if __name__ == "__main__":
    main()
