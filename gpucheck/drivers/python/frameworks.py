"""GPU frameworks of an interpreter: what is installed there, and a smoke test of each.

Children in that interpreter find out, for gpucheck may be installed elsewhere. What is installed
is read from files, without importing a framework. The smoke tests import in parallel and compute
in turn.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gpucheck.drivers.child import SHARE_AFTER_A_HANG, Child, ChildError, explain
from gpucheck.drivers.evidence import CRASHED, BuildsReading, TrialReading
from gpucheck.drivers.python.interpreters import (
    Interpreter,
    OtherPythonError,
    run_script,
    user_environment,
    user_interpreter,
    why_silent,
)
from gpucheck.drivers.readings import HUNG, ProbeFailure
from gpucheck.report.codec import DecodeError, from_plain

#: An interpreter answers in a fraction of this; on a stale network file system it may never.
DEADLINE_S = 20.0
SCRIPT = "frameworks_child.py"


@dataclass(frozen=True, slots=True, kw_only=True)
class Software:
    """A Python and its frameworks, version by module; null where unknown (see `reason`).

    `named_by` is --python, VIRTUAL_ENV, CONDA_PREFIX, PATH, gpucheck for the one that it runs in,
    or null for the one that a command starts. `for_cpus` are modules of CPU-only builds.
    """

    interpreter: str | None = None
    python: str | None = None
    frameworks: dict[str, str] | None = None
    reason: str | None = None
    named_by: str | None = None
    for_cpus: tuple[str, ...] = ()


def read_frameworks(
    interpreter: Interpreter | None,
    environment: Mapping[str, str],
    *,
    deadline_s: float = DEADLINE_S,
) -> Software:
    """List an interpreter's frameworks; a failure is described in `reason`."""
    if interpreter is None:
        return Software(reason="it is not known which Python the command uses")
    try:
        answers = run_script(
            interpreter, SCRIPT, "installed", environment=environment, deadline_s=deadline_s
        )
        installed = next((answer for answer in answers if "frameworks" in answer), None)
        problem = "" if installed else why_silent(interpreter, environment)
    except OtherPythonError as error:
        installed, problem = None, f"{interpreter.path}: {error}"
    unread = Software(interpreter=interpreter.path, named_by=interpreter.named_by or None)
    if installed is None:
        return replace(unread, reason=f"it is not known which frameworks it has: {problem}")
    return replace(
        unread,
        python=installed["python"],
        frameworks=installed["frameworks"],
        for_cpus=tuple(installed["for_cpus"]),
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
    unread = BuildsReading(python=interpreter.path, named_by=interpreter.named_by)
    answers = run_script(
        interpreter, SCRIPT, "builds", environment=environment, deadline_s=deadline_s
    )
    try:
        description = next((answer for answer in answers if "builds" in answer), None)
        if description is not None:
            return from_plain(BuildsReading, {**description, "named_by": interpreter.named_by})
    except (OtherPythonError, DecodeError) as error:
        return unread._replace(unavailable=f"{interpreter.path}: {error}")
    return unread._replace(unavailable=why_silent(interpreter, environment))


def software_of(reading: BuildsReading) -> Software:
    """Return a recording's Python and frameworks; where it has none, any may be meant."""
    from gpucheck.drivers.python.frameworks_child import FRAMEWORKS

    builds = {
        FRAMEWORKS[build.name][0]: build
        for build in reading.builds or ()
        if build.name in FRAMEWORKS
    }
    if not builds:
        return Software(reason="not recorded")
    return Software(
        interpreter=reading.python,
        python=reading.python_version,
        frameworks={module: build.version or "" for module, build in builds.items()},
        named_by=reading.named_by,
        for_cpus=tuple(module for module, build in builds.items() if build.gpu_build is False),
    )


# ------------------------------------------------------------------------------------ smoke tests

TEST_SCRIPT = str(Path(__file__).with_name("framework_test_child.py"))
#: A cold import of a large framework from a slow disk takes tens of seconds.
IMPORT_S = 120.0
#: The signals of a program's own faults; others come from outside, such as SIGKILL.
FAULTS = ("SIGSEGV", "SIGBUS", "SIGABRT", "SIGILL", "SIGFPE", "SIGTRAP")


class FrameworkTest:
    """One framework's child, from its start to its result."""

    def __init__(self, name: str, python: str | None, environment: Mapping[str, str]) -> None:
        self.name = name
        self._child: Child | None = None
        self._failure: ProbeFailure | None = None
        self._answer: dict[str, Any] | None = None
        try:
            self._child = Child(
                TEST_SCRIPT,
                name,
                interpreter=(python or sys.executable,),
                environment=environment,
                own_group=True,
            )
        except ChildError as error:
            self._fail(error, "", "", f"imports {name}")

    def import_(self, deadline_s: float) -> None:
        """Wait until the framework is imported or has reported why it cannot be."""
        self._next(deadline_s, "import-not-finished", "was still being imported after")

    def work(self, deadline_s: float) -> bool:
        """Let it compute on the GPU if the import succeeded; return whether it finished."""
        if self._child is None or self._answer != {"imported": True}:
            return True
        self._child.ask({})
        self._next(deadline_s, HUNG, "did not finish its work on the GPU within")
        return self._failure is None or self._failure.code != HUNG

    def _next(self, deadline_s: float, code: str, missed: str) -> None:
        if self._child is None:
            return
        try:
            self._answer = next(self._child.documents(deadline_s))
        except ChildError as error:
            self._fail(error, code, missed, f"runs {self.name}")

    def _fail(self, error: ChildError, code: str, missed: str, task: str) -> None:
        silence = (code, f"{self.name} {missed} {{}}")
        death = ("trial-died", f"the process that {task} {{}}")
        if error.ending.endswith(FAULTS):
            while_ = "being imported" if self._answer is None else "at work on the GPU"
            death = (CRASHED, f"its process {{}} while it was {while_}")
        self._failure = explain(error, (silence, death))
        self.close()

    def reading(self) -> TrialReading:
        """Return the result."""
        if self._failure is not None or self._answer is None:
            return TrialReading(name=self.name, failure=self._failure)
        try:
            return from_plain(TrialReading, self._answer)
        except DecodeError as error:
            failure = ProbeFailure(code="trial-died", message=f"an unreadable answer: {error}")
            return TrialReading(name=self.name, failure=failure)

    def close(self) -> None:
        """End the child."""
        if self._child is not None:
            self._child.close()
            self._child = None


def run_framework_tests(
    names: Sequence[str],
    python: str | None,
    environment: Mapping[str, str],
    *,
    deadline_s: float,
    report_progress: Callable[[str], None],
) -> tuple[TrialReading, ...]:
    """Test the frameworks, reporting each step through `report_progress`.

    `deadline_s` bounds the driver's part; the imports together have IMPORT_S.
    """
    for_child = user_environment(environment)
    tests = [FrameworkTest(name, python, for_child) for name in names]
    try:
        end = time.monotonic() + max(IMPORT_S, deadline_s)
        for test in tests:
            report_progress(f"importing {test.name}")
            test.import_(max(0.1, end - time.monotonic()))
        # The first computation on a GPU may compile every kernel for it.
        patience_s = deadline_s + IMPORT_S / 2
        for test in tests:
            report_progress(f"{test.name} on the GPU")
            if not test.work(patience_s):
                patience_s *= SHARE_AFTER_A_HANG
            test.close()
        return tuple(test.reading() for test in tests)
    finally:
        for test in tests:
            test.close()
