"""Mappings of a detection: what CI systems are told of it."""

from __future__ import annotations

import pytest

from gpucheck.detect.mappings import verdicts
from gpucheck.detect.model import Catalogue, DetectedGpu, Detection, Finding, Layer, Verdict
from gpucheck.detect.run import detect
from gpucheck.drivers import open_probes
from gpucheck.report.envelope import CheckStatus, Evidence
from gpucheck.report.errors import ExitCode
from gpucheck.report.formats.github import workflow_commands
from gpucheck.report.formats.junit import render
from gpucheck.report.text import View
from gpucheck.report.verdicts import RED, Kind, verdicts_of
from tests.architecture.house import PACKAGE
from tests.fakes.reports import wrap
from tests.fakes.verdicts import HOSTILE, report
from tests.report.formats.junit_rules import violations


def finding(status: CheckStatus, check: str = "xid", gpu: str | None = None) -> Finding:
    return Finding(
        id=check,
        layer=Layer.HEALTH,
        status=status,
        summary="what was seen",
        evidence=(Evidence("/dev/kmsg", "Xid 48"),),
        remedy=("Reset it.",),
        gpu=gpu,
        cause="double-bit-error",
    )


def detection(*checks: Finding) -> Detection:
    return Detection(
        usable=True,
        verdict=Verdict.USABLE,
        conclusion="usable",
        first_failure=None,
        checks=checks,
        gpus=(DetectedGpu(10, "GPU-a"), DetectedGpu(2, "GPU-b")),
    )


@pytest.mark.parametrize(
    ("status", "kind", "lines"),
    [
        (CheckStatus.OK, Kind.PASS, 0),
        (CheckStatus.SKIP, Kind.SKIPPED, 0),
        (CheckStatus.UNKNOWN, Kind.SKIPPED, 2),
        (CheckStatus.WARN, Kind.WARNING, 2),
        (CheckStatus.FAIL, Kind.FAILURE, 2),
    ],
)
def test_a_finding_is_a_verdict(status: CheckStatus, kind: Kind, lines: int) -> None:
    (verdict,) = verdicts(detection(finding(status, gpu="GPU-b")))

    assert (verdict.device, verdict.check, verdict.gpu_uuid) == ("GPU 2", "xid", "GPU-b")
    assert (verdict.kind, verdict.class_) == (kind, "double-bit-error")
    assert verdict.lines == ("/dev/kmsg: Xid 48", "Reset it.")[:lines]
    assert verdict.message.startswith("not known: ") is (status is CheckStatus.UNKNOWN)


def test_devices_and_several_findings_of_one_check() -> None:
    checks = [finding(CheckStatus.FAIL, gpu=gpu) for gpu in (None, None, "GPU-a", "GPU-gone")]

    found = [(one.device, one.check) for one in verdicts(detection(*checks))]

    assert found == [("node", "xid"), ("node", "xid 2"), ("GPU 10", "xid"), ("GPU-gone", "xid")]


def test_a_description_of_checks_has_none() -> None:
    assert verdicts(Catalogue(catalogue=())) == []


def test_junit_is_valid_and_its_suites_are_in_the_gpus_order() -> None:
    checks = [finding(CheckStatus.WARN, gpu=gpu) for gpu in ("GPU-a", "GPU-b", None)]
    checks += [finding(CheckStatus.FAIL)._replace(summary=HOSTILE, cause=HOSTILE)]
    text = render(report(detection(*checks), command="detect", code=ExitCode.BAD), View())

    assert violations(text) == []
    assert text.index("detect GPU 2") < text.index("detect GPU 10") < text.index("detect node")


def test_red_means_a_code_other_than_0() -> None:
    codes = set()
    for path in sorted((PACKAGE / "data" / "examples").glob("*.json")):
        probes = open_probes(path)
        made = wrap("detect", detect(probes))
        probes.close()
        codes.add(made.exit_code)

        assert violations(render(made, View())) == []
        red = any(one.kind in RED for one in verdicts_of(made))
        assert red is (made.exit_code is not ExitCode.OK)
        errors = [line for line in workflow_commands(made) if line.startswith("::error")]
        assert bool(errors) is red
    assert codes == {ExitCode.OK, ExitCode.BAD}
