"""The command line: parse, call the core, render, exit. The registry of commands is here."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from types import MappingProxyType

from gpucheck.cli import output
from gpucheck.models.errors import GpucheckError

#: Command -> module with the function `command`. Only the one that is called is imported.
COMMANDS = MappingProxyType(
    {
        "detect": "gpucheck.cli.detect",
        "list": "gpucheck.cli.list",
        "place": "gpucheck.cli.place",
        "bench": "gpucheck.cli.bench",
        "memlimit": "gpucheck.cli.memlimit",
        "snapshot": "gpucheck.cli.snapshot",
    }
)

#: Commands that run another one given after `--`; elsewhere `--` only ends the options.
RUNS_A_COMMAND = frozenset({"place", "memlimit"})


def _wanted(arguments: Sequence[str]) -> str | None:
    """Return the command's name if it is the first word."""
    return arguments[0] if arguments and arguments[0] in COMMANDS else None


def main(arguments: Sequence[str] | None = None) -> int:
    """Run gpucheck with these arguments (default: the process's) and return its exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    name = _wanted(given)
    context = output.Context(command=name, json=output.asks_for_json(given))
    if sys.platform != "linux":
        return output.fail(context, output.wrong_platform())
    try:
        if name in RUNS_A_COMMAND and "--" in given:
            own, context = _split(given, name)
        else:
            own = given
        return _run(own, name, context)
    except GpucheckError as error:
        return output.fail(context, error)
    except KeyboardInterrupt:
        return output.interrupted(context)
    except BrokenPipeError:
        return output.closed_pipe()
    except Exception as error:  # the one place that meets a bug of ours
        return output.bug(context, error)


def _run(own: list[str], name: str | None, context: output.Context) -> int:
    if name == "list":
        from gpucheck.cli.listing import list_gpus
        from gpucheck.cli.quick import parse_flags

        quick = parse_flags(own)
        if quick is not None:
            return list_gpus(*quick)
    from gpucheck.cli.app import run

    return run(own, name, context)


def _split(given: list[str], name: str | None) -> tuple[list[str], output.Context]:
    """Split off the command after `--`, before any option is parsed."""
    from gpucheck.core.launch import inherited_descriptors, split_command

    own, child = split_command(given)
    keep = inherited_descriptors()
    return own, output.Context(command=name, json=False, child=tuple(child or ()), keep=keep)
