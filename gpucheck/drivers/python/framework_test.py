"""Framework smoke tests: client of the children, which import in parallel and compute in turn."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from gpucheck.drivers.child import SHARE_AFTER_A_HANG, Child, ChildDiedError, ChildSilentError
from gpucheck.drivers.evidence import TrialReading
from gpucheck.drivers.python.interpreters import user_environment
from gpucheck.drivers.readings import ProbeFailure
from gpucheck.report.codec import DecodeError, from_plain

SCRIPT = str(Path(__file__).with_name("framework_test_child.py"))
#: A cold import of a large framework from a slow disk takes tens of seconds.
IMPORT_S = 120.0
NOT_ANSWERING = "driver-not-answering"


class FrameworkTest:
    """One framework's child, from its start to its result."""

    def __init__(self, name: str, python: str | None, environment: Mapping[str, str]) -> None:
        self.name = name
        self._child: Child | None = None
        self._failure: ProbeFailure | None = None
        self._answer: dict[str, Any] | None = None
        try:
            self._child = Child(
                SCRIPT, name, interpreter=(python or sys.executable,), environment=environment
            )
        except ChildDiedError as error:
            self._fail("trial-died", f"the process that imports {name} {error.how}")

    def import_(self, deadline_s: float) -> None:
        """Wait until the framework is imported or has reported why it cannot be."""
        self._next(deadline_s, "import-not-finished", "was still being imported after")

    def work(self, deadline_s: float) -> bool:
        """Let it compute on the GPU if the import succeeded; return whether it finished."""
        if self._child is None or self._answer != {"imported": True}:
            return True
        self._child.ask({})
        self._next(deadline_s, NOT_ANSWERING, "did not finish its work on the GPU within")
        return self._failure is None or self._failure.code != NOT_ANSWERING

    def _next(self, deadline_s: float, code: str, missed: str) -> None:
        if self._child is None:
            return
        try:
            self._answer = next(self._child.documents(deadline_s))
        except ChildSilentError:
            self._fail(code, f"{self.name} {missed} {deadline_s:g} s")
        except ChildDiedError as error:
            self._fail("trial-died", f"the process that runs {self.name} {error.how}")

    def _fail(self, code: str, message: str) -> None:
        self._failure = ProbeFailure(code=code, message=message)
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
