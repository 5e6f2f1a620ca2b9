"""Runs one of our single files in another Python, with a deadline and without waiting for ever."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from gpucheck.probes.child import Child, ChildDiedError, ChildSilentError

#: What would make an interpreter do more than run our file.
_UNWANTED = frozenset({"PYTHONINSPECT", "PYTHONSTARTUP", "PYTHONBREAKPOINT", "PYTHONDEBUG"})


class Interpreter(NamedTuple):
    """A Python and what it was told: `isolated` (-I, -E) reads no PYTHON*, `bare` (-S) no site."""

    path: str
    isolated: bool = False
    bare: bool = False

    @property
    def command(self) -> tuple[str, ...]:
        """The words that start it."""
        return (self.path, *["-I"] * self.isolated, *["-S"] * self.bare)


class OtherPythonError(Exception):
    """The interpreter could not be started, or did not answer in time."""


def user_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment for another interpreter: the user's, without the current folder.

    An empty or relative entry of PYTHONPATH is the current directory.
    """
    kept = {name: value for name, value in environment.items() if name not in _UNWANTED}
    if "PYTHONPATH" in kept:
        folders = [entry for entry in kept["PYTHONPATH"].split(":") if entry.startswith("/")]
        kept["PYTHONPATH"] = ":".join(folders)
    return kept


def run_script(
    interpreter: Interpreter,
    script: str,
    *arguments: str,
    environment: Mapping[str, str],
    deadline_s: float,
) -> Iterator[dict[str, Any]]:
    """Yield the JSON objects that a file beside this one writes, a line each, as they come.

    What else is on its stdout is passed over. At the end, or when the caller has enough, it is
    killed; one that is stuck in the kernel is left behind.

    Raises:
        OtherPythonError: it cannot be started, or is not at its end after `deadline_s`.
    """
    path = str(Path(__file__).with_name(script))
    try:
        child = Child(path, *arguments, interpreter=interpreter.command, environment=environment)
    except ChildDiedError as error:
        raise OtherPythonError(error.how) from None
    try:
        yield from child.documents(deadline_s)
    except ChildSilentError as error:
        raise OtherPythonError(str(error)) from None
    except ChildDiedError:
        return
    finally:
        child.close()
