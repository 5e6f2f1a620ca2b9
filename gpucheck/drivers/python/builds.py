"""Client of the child that reads what an interpreter's frameworks were built for."""

from __future__ import annotations

from collections.abc import Mapping

from gpucheck.drivers.evidence import BuildsReading
from gpucheck.drivers.python.other_python import (
    OtherPythonError,
    meant_interpreter,
    run_script,
    user_environment,
    why_silent,
)
from gpucheck.report.codec import DecodeError, from_plain

SCRIPT = "builds_child.py"
#: Reading files takes a fraction of a second, unless a network file system hangs.
DEADLINE_S = 20.0


def read_builds(
    python: str | None, environment: Mapping[str, str], *, deadline_s: float = DEADLINE_S
) -> BuildsReading:
    """Read the metadata of an interpreter's frameworks (default: the active environment's).

    No framework is imported.

    Raises:
        WrongUseError: `python` is not a program that can be run.
    """
    interpreter = meant_interpreter(environment, python)
    asked = BuildsReading(python=interpreter.path, named_by=interpreter.named_by)
    answers = run_script(
        interpreter, SCRIPT, environment=user_environment(environment), deadline_s=deadline_s
    )
    try:
        found = next((each for each in answers if "builds" in each), None)
        if found is not None:
            return from_plain(BuildsReading, {**found, "named_by": interpreter.named_by})
    except (OtherPythonError, DecodeError) as error:
        return asked._replace(unavailable=f"{interpreter.path}: {error}")
    return asked._replace(unavailable=why_silent(interpreter, user_environment(environment)))
