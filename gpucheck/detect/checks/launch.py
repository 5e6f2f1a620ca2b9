"""Can a program run a kernel: allocate, launch, synchronise, compare?"""

from __future__ import annotations

from functools import partial

from gpucheck.detect.findings import make_finding, report_cause
from gpucheck.detect.machine import Machine
from gpucheck.detect.model import Finding, Layer
from gpucheck.drivers.evidence import LaunchedReading, LaunchReading
from gpucheck.drivers.readings import ProbeFailure
from gpucheck.report.envelope import CheckStatus, Evidence
from gpucheck.report.text import count_of

ID = "launch"
LAYER = Layer.LAUNCH
REQUIRES: tuple[str, ...] = ("cuda-driver", "visibility", "compute-mode")

#: Source of the evidence that names what ran the kernel.
THROUGH = "through"
#: What ran the kernel, in a sentence.
WORDS = {"cupy": "libcuda and CuPy", "libcuda": "libcuda", None: "libcuda"}

_finding = partial(make_finding, ID, LAYER)
_report = partial(report_cause, ID, LAYER)

UNDECIDED = frozenset({"driver-not-answering", "launch-died", "cuda-child-died"})


def check(machine: Machine) -> Finding:
    """Judge the result of the CUDA kernel self-test."""
    reading = machine.launch
    if reading.failure is not None:
        return _failed(reading.failure, reading)
    bad = [launch for launch in reading.launches if not launch.right]
    if not reading.launches:
        return _failed(ProbeFailure(code="no-device", message="no GPU to run it on"), reading)
    if bad:
        return _some_failed(bad, reading)
    first = reading.launches[0]
    summary = (
        f"a kernel runs on {count_of(len(reading.launches))} through {WORDS[reading.through]} and"
        f" its result is right (first launch {_time(first.first_launch_s)})"
    )
    alone = reading.libcuda_failure
    if alone is None:
        return _finding(CheckStatus.OK, summary, *_evidence(reading))
    return _report(
        alone.code,
        Evidence(alone.function or "libcuda", alone.code),
        *_evidence(reading),
        status=CheckStatus.WARN,
        summary=f"a kernel runs only through CuPy; through libcuda: {alone.message}",
    )


def went_through(finding: Finding) -> str | None:
    """Return the library that ran this finding's kernel: cupy, libcuda, or None for neither."""
    return next(
        (evidence.value for evidence in finding.evidence if evidence.source == THROUGH), None
    )


def _time(seconds: float | None) -> str:
    return "?" if seconds is None else f"{seconds * 1000:.3g} ms"


def _evidence(reading: LaunchReading) -> list[Evidence]:
    evidence = []
    if reading.cupy_failure is not None:
        evidence.append(Evidence("CuPy", reading.cupy_failure.message))
    for launch in reading.launches:
        if launch.failure is not None:
            value = f"{launch.failure.function}: {launch.failure.message}"
        elif launch.right is False:
            value = "the result is wrong"
        else:
            value = f"{_time(launch.first_launch_s)}, then {_time(launch.second_launch_s)}"
        evidence.append(Evidence(f"launch on CUDA device {launch.ordinal}", value))
    if reading.launches and reading.through is not None:
        evidence.append(Evidence(THROUGH, reading.through))
    return evidence


def _failed(failure: ProbeFailure, reading: LaunchReading) -> Finding:
    if failure.code == "not-recorded":
        return _finding(CheckStatus.SKIP, "not checked: a snapshot cannot run a kernel")
    code = "" if failure.library_code is None else f"CUDA {failure.library_code}"
    return _report(
        failure.code,
        Evidence(failure.function or "launch", code or failure.code),
        *_evidence(reading),
        status=CheckStatus.UNKNOWN if failure.code in UNDECIDED else CheckStatus.FAIL,
        summary=f"no kernel could be run: {failure.message}",
    )


def _some_failed(bad: list[LaunchedReading], reading: LaunchReading) -> Finding:
    count = len(reading.launches)
    first = bad[0].failure
    problem = "the result is wrong" if first is None else first.message
    if len(bad) == count:
        where = "" if count == 1 else f" on any of {count_of(count)}"
        summary = f"no kernel could be run{where}: {problem}"
        status = CheckStatus.FAIL
    else:
        names = ", ".join(str(launch.ordinal) for launch in bad)
        summary = f"a kernel cannot be run on CUDA device {names}: {problem}"
        status = CheckStatus.WARN
    cause = first.code if first else "wrong-result"
    return _report(cause, *_evidence(reading), status=status, summary=summary)
