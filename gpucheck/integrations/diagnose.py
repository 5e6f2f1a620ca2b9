"""Diagnosis for another program's error: the first broken layer of this machine, in one call."""

from __future__ import annotations

import os
import sys
import time
from contextlib import closing
from dataclasses import dataclass
from numbers import Real

from gpucheck.detect.checks import CHECKS
from gpucheck.detect.checks.frameworks import NAMES
from gpucheck.detect.machine import DetectRequest
from gpucheck.detect.model import Detection, Finding, Layer
from gpucheck.detect.run import detect, normal_framework
from gpucheck.drivers.evidence import BuildsReading
from gpucheck.drivers.interface import Probes
from gpucheck.drivers.live import LEAST_S, LiveProbes
from gpucheck.report.envelope import CheckStatus
from gpucheck.report.errors import GpucheckError, check_argument, check_seconds
from gpucheck.report.text import framework_name

#: The kernel self-test is left out: the caller may hold all of the GPU's memory. So are the
#: libraries of a toolkit that the caller may not use.
LEFT_OUT = ("launch", "toolkit")
WRONG = (CheckStatus.WARN, CheckStatus.FAIL, CheckStatus.UNKNOWN)


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """What keeps a program from using a GPU: the first broken layer, a sentence, the remedies.

    `status` is `fail`, or `unknown` if it cannot be told whether a GPU is usable. `check` and
    `cause` are the names that `gpucheck detect` uses, and `layer` is where that check looks; they
    are None if gpucheck itself could not look. As a text it is the sentence with a line for each
    remedy.
    """

    status: CheckStatus
    message: str
    remedy: tuple[str, ...] = ()
    layer: Layer | None = None
    check: str | None = None
    cause: str | None = None

    def __str__(self) -> str:
        """Return the sentence and the remedies, one in each line."""
        return "\n  ".join((self.message, *self.remedy, "Details: gpucheck detect"))


class HurriedProbes(LiveProbes):
    """Live probes that share one deadline among all that they wait for."""

    def __init__(self, deadline_s: float) -> None:
        super().__init__(deadline_s=deadline_s)
        self._end_s = time.monotonic() + deadline_s

    def deadline_s(self) -> float:
        """Return the seconds that are left; a driver that answers at all needs few."""
        return max(LEAST_S, round(self._end_s - time.monotonic(), 1))

    def builds(self, python: str | None) -> BuildsReading:
        """Read the metadata of an interpreter's frameworks in the time that is left."""
        from gpucheck.drivers.python.frameworks import read_builds

        return read_builds(python, os.environ, deadline_s=self.deadline_s())


def diagnose(framework: str | BaseException | None, *, deadline_s: float) -> Diagnosis | None:
    """Diagnose this machine for the calling process; see `gpucheck.diagnose`.

    Raises:
        WrongUseError: there is no check for the framework, or the deadline is none.
    """
    if isinstance(framework, BaseException):
        raised_by = framework_name(type(framework).__module__.partition(".")[0])
        framework = raised_by if raised_by in NAMES else None
    if framework is not None:
        check_argument("framework", framework, "a name such as 'pytorch'", str)
    name = normal_framework(framework)
    check_argument("deadline_s", deadline_s, "seconds", Real)
    check_seconds("deadline_s", deadline_s)
    try:
        with closing(HurriedProbes(deadline_s)) as probes:
            return diagnosis_of(look(probes, name, python=sys.executable))
    except GpucheckError as error:
        return Diagnosis(status=CheckStatus.UNKNOWN, message=error.message, remedy=error.remedy)
    except Exception as error:
        # The caller is handling an error of its own, which must not be lost.
        return Diagnosis(
            status=CheckStatus.UNKNOWN,
            message=f"The GPUs could not be diagnosed: {type(error).__name__}: {error}.",
        )


def look(probes: Probes, framework: str | None, *, python: str) -> Detection:
    """Look at a machine, and at a framework's build in an interpreter by its files."""
    builds = (check.ID for check in CHECKS if check.LAYER is Layer.FRAMEWORK)
    others = (name for name in builds if name != framework)
    request = DetectRequest(skip=(*LEFT_OUT, *others), python=python)
    detection = detect(probes, request).result
    assert isinstance(detection, Detection), "a detection without checks"
    return detection


def diagnosis_of(detection: Detection) -> Diagnosis | None:
    """Return the first broken layer, else the bad build; None if there is neither."""
    if detection.first_failure is not None or not detection.usable:
        return _diagnose_machine(detection)
    builds = (check for check in detection.checks if check.layer is Layer.FRAMEWORK)
    return next((_diagnose_framework(check) for check in builds if check.status in WRONG), None)


def _diagnose_machine(detection: Detection) -> Diagnosis:
    check = detection.first_failure or detection.cause_check
    return Diagnosis(
        status=CheckStatus.FAIL if detection.first_failure else CheckStatus.UNKNOWN,
        message=f"{detection.conclusion}.",
        remedy=detection.remedy,
        layer=next((finding.layer for finding in detection.checks if finding.id == check), None),
        check=check,
        cause=detection.cause,
    )


def _diagnose_framework(finding: Finding) -> Diagnosis:
    unknown = finding.status is CheckStatus.UNKNOWN
    return Diagnosis(
        status=CheckStatus.UNKNOWN if unknown else CheckStatus.FAIL,
        message=f"GPU usable, but {finding.summary}.",
        remedy=finding.remedy,
        layer=finding.layer,
        check=finding.id,
        cause=finding.cause,
    )
