"""Python interpreter of a command, and the GPU frameworks that it has.

A child in that interpreter lists them, since gpucheck may be installed elsewhere. No framework is
imported and no driver touched.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from gpucheck.drivers.python.other_python import (
    Interpreter,
    OtherPythonError,
    run_script,
    why_silent,
)

#: An interpreter answers in a fraction of this; on a stale network file system it may never.
DEADLINE_S = 20.0

_PYTHON = re.compile(r"(?:python|pypy)[0-9.]*t?")
_OPTION_LETTERS = re.compile(r"-[bBdEhiIOPqRsSuvVx?]+")
#: Options of Python that take the next word as their value.
_WITH_VALUE = ("-W", "-X", "--check-hash-based-pycs")
#: The second line of scripts whose interpreter's path is too long for the first.
_LONG_INTERPRETER = re.compile(r"'''exec' \"?([^\"\s]+)\"? ")


class FrameworksReading(NamedTuple):
    """The frameworks of an interpreter by module name; null where unknown (see `reason`).

    `for_cpus` are those whose packages are CPU-only.
    """

    interpreter: Interpreter | None = None
    python: str | None = None
    frameworks: Mapping[str, str] | None = None
    reason: str = ""
    for_cpus: tuple[str, ...] = ()


def find_interpreter(command: Sequence[str], environment: Mapping[str, str]) -> Interpreter | None:
    """Return the Python that this command starts, directly or by a script's first line."""
    path = shutil.which(command[0], path=environment.get("PATH", os.defpath))
    if path is None:
        return None
    if _is_python(path):
        return _with_options(path, command[1:])
    words = _first_line(path)
    if words and Path(words[0]).name == "env":
        words = [word for word in words[1:] if not word.startswith("-") and "=" not in word]
        return find_interpreter(words, environment) if words and _is_python(words[0]) else None
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
    return [long[1]] if long else first.split()


def read_frameworks(
    interpreter: Interpreter | None,
    environment: Mapping[str, str],
    *,
    deadline_s: float = DEADLINE_S,
) -> FrameworksReading:
    """List an interpreter's frameworks; a failure is described in `reason`."""
    if interpreter is None:
        return FrameworksReading(reason="it is not known which Python the command uses")
    try:
        answers = run_script(
            interpreter, "frameworks_child.py", environment=environment, deadline_s=deadline_s
        )
        found = next((each for each in answers if "frameworks" in each), None)
        problem = "" if found else why_silent(interpreter, environment)
    except OtherPythonError as error:
        found, problem = None, f"{interpreter.path}: {error}"
    if found is None:
        reason = f"it is not known which frameworks it has: {problem}"
        return FrameworksReading(interpreter=interpreter, reason=reason)
    return FrameworksReading(
        interpreter=interpreter,
        python=found["python"],
        frameworks=found["frameworks"],
        for_cpus=tuple(found["for_cpus"]),
    )
