"""GPU frameworks of an interpreter, read by a child in that interpreter.

gpucheck may be installed elsewhere. No framework is imported and no driver touched.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from gpucheck.drivers.evidence import BuildsReading
from gpucheck.drivers.python.interpreters import (
    Interpreter,
    OtherPythonError,
    run_script,
    user_environment,
    user_interpreter,
    why_silent,
)
from gpucheck.report.codec import DecodeError, from_plain

#: An interpreter answers in a fraction of this; on a stale network file system it may never.
DEADLINE_S = 20.0
SCRIPT = "frameworks_child.py"


class FrameworksReading(NamedTuple):
    """The frameworks of an interpreter by module name; null where unknown (see `reason`).

    `for_cpus` are those whose packages are CPU-only.
    """

    interpreter: Interpreter | None = None
    python: str | None = None
    frameworks: Mapping[str, str] | None = None
    reason: str = ""
    for_cpus: tuple[str, ...] = ()


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
            interpreter, SCRIPT, "installed", environment=environment, deadline_s=deadline_s
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


def read_builds(
    python: str | None, environment: Mapping[str, str], *, deadline_s: float = DEADLINE_S
) -> BuildsReading:
    """Read the metadata of an interpreter's frameworks (default: the active environment's).

    No framework is imported.

    Raises:
        WrongUseError: `python` is not a program that can be run.
    """
    interpreter = user_interpreter(environment, python)
    asked = BuildsReading(python=interpreter.path, named_by=interpreter.named_by)
    variables = user_environment(environment)
    answers = run_script(
        interpreter, SCRIPT, "builds", environment=variables, deadline_s=deadline_s
    )
    try:
        found = next((each for each in answers if "builds" in each), None)
        if found is not None:
            return from_plain(BuildsReading, {**found, "named_by": interpreter.named_by})
    except (OtherPythonError, DecodeError) as error:
        return asked._replace(unavailable=f"{interpreter.path}: {error}")
    return asked._replace(unavailable=why_silent(interpreter, variables))
