"""JUnit as strict readers take it: a case for each device and check, red when the code is."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucheck.bench.model import GateClass, GateStatus
from gpucheck.report.envelope import Failure, Notice, Report
from gpucheck.report.errors import ExitCode
from gpucheck.report.formats.junit import render
from gpucheck.report.text import View
from tests.fakes.verdicts import HOSTILE, gate, of_every_kind, report, result
from tests.report.formats.junit_rules import violations


def suites(found: Report) -> list[ElementTree.Element]:
    text = render(found, View())
    assert violations(text) == []
    return list(ElementTree.fromstring(text))


def children(found: Report) -> dict[tuple[str, str], ElementTree.Element | None]:
    """Return what each case holds, by device and check."""
    return {
        (str(suite.get("name")).split()[-1], str(case.get("name"))): next(iter(case), None)
        for suite in suites(found)
        for case in suite.findall("testcase")
    }


def tag(element: ElementTree.Element | None) -> str | None:
    return None if element is None else element.tag


def test_each_kind_of_verdict_has_its_element() -> None:
    found = children(of_every_kind())

    assert {key: tag(element) for key, element in found.items()} == {
        ("gpu:0", "gemm.bf16"): None,
        ("gpu:0", "pcie"): "failure",
        ("gpu:1", "gemm.bf16"): "failure",
        ("gpu:2", "gemm.bf16"): "error",
        ("gpu:3", "gemm.bf16"): "skipped",
        ("gpu:4", "gemm.bf16"): None,
        ("gpu:5", "gemm.bf16"): None,
        ("node", "spread"): None,
    }


def test_a_failure_tells_its_class_its_reason_and_its_evidence() -> None:
    failure = children(of_every_kind())["gpu:1", "gemm.bf16"]

    assert failure is not None
    assert failure.get("type") == "thermal"
    assert failure.get("message") == "3.9 % too slow"
    lines = (failure.text or "").splitlines()
    assert "measured: 710 TFLOP/s" in lines
    assert "at least: 739.4 TFLOP/s" in lines
    assert "clocks event reasons: 0x40" in lines
    assert "Look at the fans." in lines


def test_figures_stand_in_the_suites_properties() -> None:
    suite = suites(of_every_kind())[1]
    facts = {item.get("name"): item.get("value") for item in suite.iter("property")}

    assert facts["gpucheck.gpu_uuid"] == "GPU-1"
    assert facts["gemm.bf16 measured"] == "710 TFLOP/s"
    assert facts["gemm.bf16 interval"] == "700 TFLOP/s to 720 TFLOP/s"


def test_a_case_is_known_by_its_gpus_uuid() -> None:
    (case, _) = suites(of_every_kind())[0].findall("testcase")

    assert case.get("classname") == "gpucheck.bench.GPU-0"


def test_gpus_stand_in_the_order_of_their_numbers() -> None:
    gates = [gate(device=f"gpu:{number}") for number in (10, 2, 0)]
    names = [suite.get("name") for suite in suites(report(result(*gates)))]

    assert names == [f"gpucheck bench gpu:{number}" for number in (0, 2, 10)]


@pytest.mark.parametrize(
    ("code", "tag_name", "type_"),
    [
        (ExitCode.BAD, "failure", "no-answer"),
        (ExitCode.WRONG_USE, "error", "no-answer"),
        (ExitCode.INCONCLUSIVE, "error", "no-answer"),
        (ExitCode.MISSING, "error", "no-answer"),
        (ExitCode.BUG, "error", "no-answer"),
        (ExitCode.INTERRUPTED, "error", "no-answer"),
    ],
)
def test_a_report_without_a_result_is_one_red_case(
    code: ExitCode, tag_name: str, type_: str
) -> None:
    failure = Failure(
        code="no-answer", message="There is no GPU.", remedy=("Run: gpucheck detect",)
    )
    ((key, element),) = children(report(None, code=code, failure=failure)).items()

    assert key == ("run", "bench")
    assert element is not None
    assert (element.tag, element.get("type")) == (tag_name, type_)
    assert "Run: gpucheck detect" in (element.text or "")


def test_warnings_made_bad_by_strict_are_a_red_case() -> None:
    warned = report(
        result(gate()), code=ExitCode.BAD, warnings=(Notice(code="x", message="It is odd."),)
    )

    assert tag(children(warned)["run", "bench"]) == "failure"


def test_interrupted_with_good_verdicts_is_red_too() -> None:
    failure = Failure(code="interrupted", message="Interrupted.")
    found = children(report(result(gate()), code=ExitCode.INTERRUPTED, failure=failure))

    assert tag(found["run", "bench"]) == "error"


def test_nothing_to_tell_is_still_a_document() -> None:
    assert len(children(report(None))) == 1


def test_hostile_names_stay_text() -> None:
    bad = gate(GateStatus.FAIL, name=HOSTILE, reason=HOSTILE, class_=GateClass.HARDWARE)
    failure = Failure(code="gate-failed", message=HOSTILE)
    found = report(result(bad), code=ExitCode.BAD, failure=failure, host=HOSTILE)
    (suite,) = suites(found)

    assert len(suite.findall("testcase")) == 1
    assert "\x00" not in render(found, View())
    (case,) = suite.findall("testcase")
    assert "<script>alert(1)</script>" in str(case.get("name"))


@given(st.text(), st.sampled_from(list(GateStatus)), st.sampled_from([None, *GateClass]))
def test_any_text_gives_a_document_that_holds_to_the_schemas(
    text: str, status: GateStatus, class_: GateClass | None
) -> None:
    found = report(
        result(gate(status, name=text, reason=text, class_=class_)),
        code=ExitCode.BAD,
        failure=Failure(code="x", message=text, remedy=(text,)),
        warnings=(Notice(code="x", message=text),),
        host=text,
    )

    assert violations(render(found, View())) == []


def test_the_rules_find_mistakes() -> None:
    """The validator itself: what both schemas refuse, it refuses."""
    good = render(of_every_kind(), View())
    mistakes = {
        'timestamp="2026-11-21T03:32:00"': 'timestamp="2026-11-21T03:32:00Z"',
        'hostname="node17"': 'hostname=" "',
        'failures="1"': 'failures="9"',
        'id="0"': 'id="7"',
        "<system-err />": "",
        'type="thermal"': 'kind="thermal"',
        'classname="gpucheck.bench.GPU-0"': 'class="gpucheck.bench.GPU-0"',
        "<testsuites>": '<testsuites tests="8">',
        'time="12.500"': 'time="12,5"',
    }
    for right, wrong in mistakes.items():
        assert right in good
        assert violations(good.replace(right, wrong, 1)) != [], wrong
