"""Other Pythons: which one a person means, and our single files run there, with a deadline."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from gpucheck.models.errors import WrongUseError
from gpucheck.probes.child import Child, ChildDiedError, ChildSilentError

#: What would make an interpreter do more than run our file.
_UNWANTED = frozenset({"PYTHONINSPECT", "PYTHONSTARTUP", "PYTHONBREAKPOINT", "PYTHONDEBUG"})


#: The folders of active environments; the first that is set counts.
ENVIRONMENTS = ("VIRTUAL_ENV", "CONDA_PREFIX")


#: The oldest Python that our single files run in.
OLDEST = (3, 8)
#: A program that every Python understands, and so says its version where it runs none of ours.
_SAY_VERSION = (
    'import sys; sys.stdout.write(\'{"major": %d, "minor": %d}\\n\' % sys.version_info[:2])'
)
#: It needs nothing but the interpreter itself.
_VERSION_S = 5.0


class Interpreter(NamedTuple):
    """A Python and what it was told: `isolated` (-I, -E) reads no PYTHON*, `bare` (-S) no site.

    `named_by` is what makes it the one that a person means: --python, VIRTUAL_ENV, CONDA_PREFIX,
    PATH, or gpucheck where it is the one that gpucheck runs in; empty for that of a command line.
    """

    path: str
    isolated: bool = False
    bare: bool = False
    named_by: str = ""

    @property
    def command(self) -> tuple[str, ...]:
        """The words that start it."""
        return (self.path, *["-I"] * self.isolated, *["-S"] * self.bare)


def meant_interpreter(environment: Mapping[str, str], named: str | None = None) -> Interpreter:
    """Return the Python that a person at this shell means.

    It is the one that `--python` names, else that of the active environment (VIRTUAL_ENV, then
    CONDA_PREFIX), else `python`, then `python3`, in PATH, else gpucheck's own: gpucheck itself may
    be installed in an environment of its own, where there is no framework. What is no program is
    passed over, and so are relative entries of PATH, which lead wherever one stands.

    Raises:
        WrongUseError: `named` is no program that can be run.
    """
    if named is not None:
        path = _program(named, environment) if "/" not in named else os.path.abspath(named)  # noqa: PTH100
        if path is None or not _is_program(path):
            raise WrongUseError(
                code="no-such-python",
                message=f"--python: {named[:200]!a} is no program that can be run.",
                remedy=("Name an interpreter: --python .venv/bin/python",),
            )
        return Interpreter(path, named_by="--python")
    for name in ENVIRONMENTS:
        path = f"{environment.get(name, '')}/bin/python"
        if environment.get(name, "").startswith("/") and _is_program(path):
            return Interpreter(path, named_by=name)
    for program in ("python", "python3"):
        found = _program(program, environment)
        if found is not None:
            return Interpreter(found, named_by="PATH")
    return Interpreter(sys.executable, named_by="gpucheck")


def _program(name: str, environment: Mapping[str, str]) -> str | None:
    """Return where a program lies in the absolute entries of PATH."""
    folders = environment.get("PATH", os.defpath).split(os.pathsep)
    paths = (f"{folder}/{name}" for folder in folders if folder.startswith("/"))
    return next(filter(_is_program, paths), None) if name else None


def _is_program(path: str) -> bool:
    return os.path.isfile(path) and os.access(path, os.X_OK)  # noqa: PTH113


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


def why_silent(interpreter: Interpreter, environment: Mapping[str, str]) -> str:
    """Return why an interpreter that ran to its end gave no answer: too old, or no Python."""
    path = interpreter.path
    try:
        child = Child(
            "-", interpreter=(*interpreter.command, "-c", _SAY_VERSION), environment=environment
        )
    except ChildDiedError as error:
        return f"{path} {error.how}"
    try:
        said = next(child.documents(_VERSION_S))
        version = (int(said["major"]), int(said["minor"]))
    except (ChildSilentError, StopIteration, KeyError, TypeError, ValueError):
        return f"{path} gave no answer: is it a Python?"
    except ChildDiedError as error:
        return f"{path} gave no answer and {error.how}: is it a Python?"
    finally:
        child.close()
    shown = ".".join(map(str, version))
    if version < OLDEST:
        return f"{path} is Python {shown}, and its packages can be read from 3.8 on"
    return f"{path}, Python {shown}, gave no answer"
