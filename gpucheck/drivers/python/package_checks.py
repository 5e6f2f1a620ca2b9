"""Checks that packages bring for `rapids doctor`: run in a child of their own interpreter."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from gpucheck.drivers.child import Child, ChildDiedError, ChildSilentError
from gpucheck.drivers.evidence import PackageCheckResult
from gpucheck.drivers.python.interpreters import user_environment
from gpucheck.drivers.readings import ProbeFailure
from gpucheck.report.codec import DecodeError, from_plain

SCRIPT = str(Path(__file__).with_name("package_checks_child.py"))


def run_package_checks(
    values: Sequence[str],
    python: str | None,
    environment: Mapping[str, str],
    *,
    deadline_s: float,
    report_progress: Callable[[str], None],
) -> tuple[PackageCheckResult, ...]:
    """Run the checks behind these entry points one after another.

    `deadline_s` is for all of them. One that ends its process costs no other its result; one that
    does not end leaves those after it without time.
    """
    end_s = time.monotonic() + deadline_s
    results: list[PackageCheckResult] = []
    while len(results) < len(values):
        left = values[len(results) :]
        try:
            child = Child(
                SCRIPT,
                *left,
                interpreter=(python or sys.executable,),
                environment=user_environment(environment),
            )
        except ChildDiedError as error:
            return (*results, *(_without(value, error.how) for value in left))
        try:
            for value in left:
                report_progress(f"running the check {value.partition(':')[0]}")
                answers = child.documents(max(0.1, end_s - time.monotonic()))
                results.append(from_plain(PackageCheckResult, next(answers)))
        except ChildSilentError:
            late = f"had not ended after {deadline_s:g} s"
            return (*results, *(_without(value, late) for value in values[len(results) :]))
        except (ChildDiedError, DecodeError) as error:
            results.append(_without(values[len(results)], str(error)))
        finally:
            child.close()
    return tuple(results)


def _without(value: str, how: str) -> PackageCheckResult:
    failure = ProbeFailure(code="check-without-result", message=f"its process {how}")
    return PackageCheckResult(value=value, failure=failure)
