"""Checks that packages bring for `rapids doctor`: named by default, run with --deep."""

from __future__ import annotations

import pytest

from gpucheck.detect.checks import rapids_doctor
from gpucheck.detect.machine import DetectRequest, Machine
from gpucheck.detect.model import Finding
from gpucheck.drivers.evidence import BuildsReading, PackageCheckReading, PackageCheckResult
from gpucheck.drivers.readings import NvmlReading, ProbeFailure
from gpucheck.report.envelope import CheckStatus
from tests.detect.test_run import HUNG
from tests.fakes.probes import FakeProbes

CUDF = PackageCheckReading(name="import", value="cudf.checks:import_check", package="cudf")
CUML = PackageCheckReading(name="gpu", value="cuml.checks:gpu_check", package="cuml")
OURS = PackageCheckReading(
    name="gpucheck", value="gpucheck.integrations.rapids:gpucheck", package="gpucheck_cli"
)
DEEP = DetectRequest(deep=True)


def probes(
    *checks: PackageCheckReading, results: tuple[PackageCheckResult, ...] = ()
) -> FakeProbes:
    return FakeProbes(
        builds_reading=BuildsReading(python="/usr/bin/python3", builds=(), package_checks=checks),
        package_check_results={result.value: result for result in results},
    )


def found(of: FakeProbes, request: DetectRequest = DEEP) -> Finding:
    return rapids_doctor.check(Machine(of, request))


def test_no_package_brings_any() -> None:
    assert found(probes()).status is CheckStatus.SKIP
    assert found(probes(OURS)).summary == "no package brings checks of its own"


@pytest.mark.parametrize(
    ("builds", "reason"),
    [
        (BuildsReading(unavailable="it hangs"), "it hangs"),
        (BuildsReading(builds=()), "they were not looked for"),
    ],
)
def test_what_was_not_read_is_not_checked(builds: BuildsReading, reason: str) -> None:
    assert found(FakeProbes(builds_reading=builds)).summary == f"not checked: {reason}"


def test_without_deep_they_are_named_and_not_run() -> None:
    machine = probes(CUDF, CUML, OURS)

    finding = found(machine, DetectRequest())

    assert finding.status is CheckStatus.SKIP
    assert finding.summary == "not run: 2 checks of cudf, cuml (--deep runs them)"
    assert [each.source for each in finding.evidence] == ["cudf: import", "cuml: gpu"]
    assert "package checks" not in machine.asked


def test_a_driver_that_hangs_is_not_called_by_them_either() -> None:
    machine = probes(CUDF)
    machine.readings = NvmlReading(failure=HUNG)

    assert "the driver does not answer" in found(machine).summary
    assert "package checks" not in machine.asked


def test_all_pass() -> None:
    finding = found(probes(CUDF, CUML, OURS))

    assert (finding.status, finding.summary) == (
        CheckStatus.OK,
        "2 checks of cudf, cuml passed",
    )
    assert [each.value for each in finding.evidence] == ["ok", "ok"]


FAILED = PackageCheckResult(value=CUML.value, error="cuML needs a GPU.", warnings=("old",))
WARNED = PackageCheckResult(value=CUDF.value, warnings=("swap is small", "and slow"))
LOST = PackageCheckResult(
    value=CUDF.value, failure=ProbeFailure(code="check-without-result", message="its process died")
)


@pytest.mark.parametrize(
    ("results", "status", "cause", "summary"),
    [
        (
            (WARNED, FAILED),
            CheckStatus.WARN,
            "package-check-failed",
            "cuml's check gpu: cuML needs a GPU",
        ),
        (
            (WARNED,),
            CheckStatus.WARN,
            "package-check-warned",
            "cudf's check import: swap is small",
        ),
        (
            (LOST,),
            CheckStatus.UNKNOWN,
            "check-without-result",
            "cudf's check import: its process died",
        ),
        (
            (FAILED, PackageCheckResult(value=CUDF.value, error="no")),
            CheckStatus.WARN,
            "package-check-failed",
            "cudf's check import: no; and 1 more",
        ),
    ],
)
def test_the_worst_is_told_and_all_is_evidence(
    results: tuple[PackageCheckResult, ...], status: CheckStatus, cause: str, summary: str
) -> None:
    finding = found(probes(CUDF, CUML, results=results))

    assert (finding.status, finding.cause, finding.summary) == (status, cause, summary)
    assert finding.remedy == ("See all of them: rapids doctor --verbose",)
    texts = {each.value for each in finding.evidence}
    assert {text for result in results for text in rapids_doctor._texts(result)} <= texts
