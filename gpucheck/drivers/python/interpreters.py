"""Other Python interpreters: the user's, that of a command, and our scripts run there."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from gpucheck.drivers.child import Child, ChildDiedError, ChildSilentError
from gpucheck.report.errors import WrongUseError

#: Variables that would make an interpreter do more than run our file.
_UNWANTED = frozenset({"PYTHONINSPECT", "PYTHONSTARTUP", "PYTHONBREAKPOINT", "PYTHONDEBUG"})
#: The folders of active environments; the first that is set counts.
ENVIRONMENTS = ("VIRTUAL_ENV", "CONDA_PREFIX")
#: The oldest Python in which our single files run.
OLDEST = (3, 8)
#: A program that every Python understands, to learn the version of one that cannot run our files.
_SAY_VERSION = (
    'import sys; sys.stdout.write(\'{"major": %d, "minor": %d}\\n\' % sys.version_info[:2])'
)
#: It needs only the interpreter itself.
_VERSION_S = 5.0


_PYTHON = re.compile(r"(?:python|pypy)[0-9.]*t?")
_OPTION_LETTERS = re.compile(r"-[bBdEhiIOPqRsSuvVx?]+")
#: Options of Python that take the next word as their value.
_WITH_VALUE = ("-W", "-X", "--check-hash-based-pycs")
#: The second line of scripts whose interpreter's path is too long for the first, or has blanks.
_LONG_INTERPRETER = re.compile(r"'''exec' (?:\"([^\"\n]+)\"|([^\"\s]+)) ")


class Interpreter(NamedTuple):
    """A Python and its options: `isolated` (-I, -E) ignores PYTHON*, `bare` (-S) skips site.

    `named_by` is the reason for its choice: --python, VIRTUAL_ENV, CONDA_PREFIX, PATH, or gpucheck
    if it is gpucheck's own; empty for the Python of a command line.
    """

    path: str
    isolated: bool = False
    bare: bool = False
    named_by: str = ""

    @property
    def command(self) -> tuple[str, ...]:
        """The words that start it."""
        return (self.path, *["-I"] * self.isolated, *["-S"] * self.bare)


def user_interpreter(
    environment: Mapping[str, str], named: str | None = None, *, option: str = "--python "
) -> Interpreter:
    """Return the user's Python.

    It is the one that `--python` (or what comes before the path, `option`) names, else that of the
    active environment (VIRTUAL_ENV, then CONDA_PREFIX), else `python`, then `python3`, in PATH,
    else gpucheck's own. gpucheck's own comes last since it may be installed apart from all
    frameworks. Files that cannot be run are skipped, and so are relative entries of PATH, which
    depend on the current directory.

    Raises:
        WrongUseError: `named` is not a program that can be run.
    """
    if named is not None:
        path = _program(named, environment) if "/" not in named else os.path.abspath(named)  # noqa: PTH100
        if path is None or not _is_program(path):
            raise WrongUseError(
                code="no-such-python",
                message=f"{option.rstrip(' =')}: {named[:200]!r} is not a program that can be run.",
                remedy=(f"Name an interpreter: {option}.venv/bin/python",),
            )
        return Interpreter(path, named_by=option.split(maxsplit=1)[0])
    for name in ENVIRONMENTS:
        path = f"{environment.get(name, '')}/bin/python"
        if environment.get(name, "").startswith("/") and _is_program(path):
            return Interpreter(path, named_by=name)
    for program in ("python", "python3"):
        python = _program(program, environment)
        if python is not None:
            return Interpreter(python, named_by="PATH")
    return Interpreter(sys.executable, named_by="gpucheck")


def _program(name: str, environment: Mapping[str, str]) -> str | None:
    """Return a program's path, searched in the absolute entries of PATH."""
    folders = environment.get("PATH", os.defpath).split(os.pathsep)
    paths = (f"{folder}/{name}" for folder in folders if folder.startswith("/"))
    return next(filter(_is_program, paths), None) if name else None


def _is_program(path: str) -> bool:
    return os.path.isfile(path) and os.access(path, os.X_OK)  # noqa: PTH113


def command_interpreter(
    command: Sequence[str], environment: Mapping[str, str]
) -> Interpreter | None:
    """Return the Python that this command starts, directly or by a script's first line."""
    path = shutil.which(command[0], path=environment.get("PATH", os.defpath))
    if path is None:
        return None
    if _is_python(path):
        return _with_options(path, command[1:])
    words = _first_line(path)
    if words and Path(words[0]).name == "env":
        words = [word for word in words[1:] if not word.startswith("-") and "=" not in word]
        return command_interpreter(words, environment) if words and _is_python(words[0]) else None
    return _with_options(words[0], words[1:]) if words and _is_python(words[0]) else None


def _is_python(path: str) -> bool:
    return _PYTHON.fullmatch(Path(path).name) is not None


def _with_options(path: str, words: Sequence[str]) -> Interpreter:
    letters = ""
    rest = iter(words)
    for word in rest:
        if word in _WITH_VALUE:
            next(rest, None)
        elif _OPTION_LETTERS.fullmatch(word):
            letters += word[1:]
        elif not word.startswith(("-W", "-X", "--check")):
            break
    isolated = "I" in letters or "E" in letters
    return Interpreter(path=path, isolated=isolated, bare="S" in letters)


def _first_line(path: str) -> list[str]:
    """Return the words after a script's `#!`, or nothing."""
    try:
        with Path(path).open("rb") as file:
            head = file.read(1024).decode("utf-8", "replace")
    except OSError:
        return []
    if not head.startswith("#!"):
        return []
    first, _, rest = head[2:].partition("\n")
    long = _LONG_INTERPRETER.match(rest)
    return [long[1] or long[2]] if long else first.split()


class OtherPythonError(Exception):
    """The interpreter could not be started, or did not answer in time."""


def user_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment for another interpreter: the user's, without the current directory.

    Empty and relative entries of PYTHONPATH mean the current directory.
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
    """Run a script of this folder and yield the JSON objects that it writes, one a line.

    Other output on its stdout is skipped. At the end, or when the caller stops reading, it is
    killed; one that is stuck in the kernel is abandoned.

    Raises:
        OtherPythonError: it cannot be started, or has not finished after `deadline_s`.
    """
    path = str(Path(__file__).with_name(script))
    try:
        child = Child(
            path,
            *arguments,
            interpreter=interpreter.command,
            environment=user_environment(environment),
        )
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


def why_silent(
    interpreter: Interpreter, environment: Mapping[str, str], how: str = "gave no answer"
) -> str:
    """Return why an interpreter gave no answer: too old, not a Python, else `how` it ended."""
    path = interpreter.path
    try:
        child = Child(
            "-",
            interpreter=(*interpreter.command, "-c", _SAY_VERSION),
            environment=user_environment(environment),
        )
    except ChildDiedError as error:
        return f"{path} {error.how}"
    try:
        answer = next(child.documents(_VERSION_S))
        version = (int(answer["major"]), int(answer["minor"]))
    except (ChildSilentError, StopIteration, KeyError, TypeError, ValueError):
        return f"{path} gave no answer: is it a Python?"
    except ChildDiedError as error:
        return f"{path} gave no answer and {error.how}: is it a Python?"
    finally:
        child.close()
    shown = ".".join(map(str, version))
    if version < OLDEST:
        return f"{path} is Python {shown}, but gpucheck needs Python 3.8 or newer there"
    return f"{path}, Python {shown}, {how}"
