"""Our side of the child that tells what an interpreter's frameworks were built for."""

from __future__ import annotations

import sys
from collections.abc import Mapping

from gpucheck.models.codec import DecodeError, from_plain
from gpucheck.models.evidence import BuildsReading
from gpucheck.probes.other_python import (
    Interpreter,
    OtherPythonError,
    run_script,
    user_environment,
)

SCRIPT = "builds_child.py"
#: Reading files takes a fraction of a second, unless a network file system hangs.
DEADLINE_S = 20.0


def read_builds(
    python: str | None, environment: Mapping[str, str], *, deadline_s: float = DEADLINE_S
) -> BuildsReading:
    """Ask an interpreter (default: this one) about its frameworks; nothing is imported."""
    path = python or sys.executable
    answers = run_script(
        Interpreter(path), SCRIPT, environment=user_environment(environment), deadline_s=deadline_s
    )
    try:
        found = next((each for each in answers if "builds" in each), None)
        if found is not None:
            return from_plain(BuildsReading, found)
    except (OtherPythonError, DecodeError) as error:
        return BuildsReading(python=path, unavailable=f"{path}: {error}")
    return BuildsReading(python=path, unavailable=f"{path} gave no answer: is it a Python?")
