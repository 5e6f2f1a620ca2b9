"""Our side of the child that runs a kernel: one question, one fresh process, one deadline."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

from gpucheck.models.codec import DecodeError, from_plain
from gpucheck.models.evidence import LaunchReading
from gpucheck.models.snapshot import ProbeFailure
from gpucheck.probes.child import Child, ChildDiedError, ChildSilentError
from gpucheck.probes.other_python import user_environment

SCRIPT = str(Path(__file__).with_name("launch_child.py"))


def run_kernel(
    python: str | None,
    environment: Mapping[str, str],
    *,
    through_cupy: bool,
    every_gpu: bool,
    deadline_s: float,
) -> LaunchReading:
    """Run a kernel on the first GPU that can, or on every one; a CuPy that crashes is left out."""
    reading = _ask(python, environment, through_cupy, every_gpu, deadline_s)
    died = reading.failure is not None and reading.failure.code == "launch-died"
    if through_cupy and died and reading.failure is not None:
        said = reading.failure.message
        again = _ask(python, environment, False, every_gpu, deadline_s)
        return again._replace(cupy_failure=said)
    return reading


def _ask(
    python: str | None,
    environment: Mapping[str, str],
    through_cupy: bool,
    every_gpu: bool,
    deadline_s: float,
) -> LaunchReading:
    child = None
    words = ("every" if every_gpu else "first", "cupy" if through_cupy else "libcuda")
    # Without CuPy our own interpreter does: it starts faster without the user's packages.
    interpreter = (python or sys.executable,) if through_cupy else ()
    try:
        variables = user_environment(environment)
        child = Child(SCRIPT, *words, interpreter=interpreter, environment=variables)
        return from_plain(LaunchReading, next(child.documents(deadline_s)))
    except ChildSilentError:
        message = f"the kernel was not run within {deadline_s:g} s"
        return LaunchReading(failure=ProbeFailure(code="driver-not-answering", message=message))
    except (ChildDiedError, DecodeError) as error:
        message = f"the process that runs the kernel {error}"
        return LaunchReading(failure=ProbeFailure(code="launch-died", message=message))
    finally:
        if child is not None:
            child.close()
