"""Our side of the child that tells what an interpreter's frameworks were built for."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

from gpucheck.models.codec import DecodeError, from_plain
from gpucheck.models.evidence import BuildsReading
from gpucheck.probes.child import Child, ChildDiedError, ChildSilentError

SCRIPT = str(Path(__file__).with_name("builds_child.py"))
#: Reading files takes a fraction of a second, unless a network file system hangs.
DEADLINE_S = 20.0

#: What would make an interpreter do more than run our file.
_UNWANTED = frozenset({"PYTHONINSPECT", "PYTHONSTARTUP", "PYTHONBREAKPOINT", "PYTHONDEBUG"})


def user_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment for another interpreter: the user's, without the current folder.

    An empty or relative entry of PYTHONPATH is the current directory.
    """
    kept = {name: value for name, value in environment.items() if name not in _UNWANTED}
    if "PYTHONPATH" in kept:
        folders = [entry for entry in kept["PYTHONPATH"].split(":") if entry.startswith("/")]
        kept["PYTHONPATH"] = ":".join(folders)
    return kept


def read_builds(
    python: str | None, environment: Mapping[str, str], *, deadline_s: float = DEADLINE_S
) -> BuildsReading:
    """Ask an interpreter (default: this one) about its frameworks; nothing is imported."""
    interpreter = python or sys.executable
    child = None
    try:
        child = Child(SCRIPT, interpreter=(interpreter,), environment=user_environment(environment))
        return from_plain(BuildsReading, next(child.documents(deadline_s)))
    except ChildSilentError as error:
        return BuildsReading(python=interpreter, unavailable=f"no answer in {error.deadline_s:g} s")
    except (ChildDiedError, DecodeError) as error:
        return BuildsReading(python=interpreter, unavailable=f"{interpreter} {error}")
    finally:
        if child is not None:
            child.close()
