"""Console view of `gpucheck detect`."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from gpucheck.detect.model import Detection, Finding, Layer, LayerSummary, Verdict
from gpucheck.detect.run import detect
from gpucheck.drivers.evidence import SystemReading
from gpucheck.drivers.readings import KernelReading, NvmlReading, ProbeFailure
from gpucheck.report.envelope import Answer, CheckStatus, Evidence, Report
from gpucheck.report.errors import ExitCode
from gpucheck.report.formats.table import MARKS, render
from gpucheck.report.host import Host
from gpucheck.report.text import View
from tests.fakes.probes import FakeProbes
from tests.fakes.reports import NASTY, eventful_machine, wrap
from tests.report.formats.recorded import recorded

NO_GPU = FakeProbes(
    system_reading=SystemReading(),
    readings=NvmlReading(
        failure=ProbeFailure(code="library-not-found", message="libnvidia-ml.so.1 was not found")
    ),
    kernel_reading=KernelReading(pci_devices=(), module_loaded=False),
)
DEGRADED = wrap("detect", detect(eventful_machine()))
UNUSABLE = wrap("detect", detect(NO_GPU))


@pytest.mark.parametrize("width", [40, 80])
@pytest.mark.parametrize(("name", "report"), [("degraded", DEGRADED), ("unusable", UNUSABLE)])
def test_whole_report(name: str, report: Report, width: int) -> None:
    text = render(report, View(width=width))

    assert text == recorded(f"detect-{name}-{width}", text)


def test_whole_report_in_ascii_with_all_evidence() -> None:
    text = render(DEGRADED, View(width=80, unicode=False, verbosity=1))

    assert text.isascii()
    assert text == recorded("detect-degraded-80-ascii", text)


def test_whole_report_in_colour() -> None:
    text = render(UNUSABLE, View(width=80, color=True))

    assert text == recorded("detect-unusable-80-colour", text)


def test_quiet_leaves_out_what_is_fine() -> None:
    text = render(DEGRADED, View(width=80, verbosity=-1))

    assert "✓" not in text
    assert text.splitlines()[0].startswith("✗ 3 of 4 GPUs usable")


def test_the_verdict_stands_on_top_and_the_first_step_below_it() -> None:
    lines = render(UNUSABLE, View(width=200, verbosity=-1)).splitlines()

    assert lines[0] == "✗ GPU not usable: no NVIDIA GPU is on the PCI bus"
    assert lines[1].startswith("    1. In the cloud:")


@pytest.mark.parametrize("status", CheckStatus)
def test_every_status_has_its_mark(status: CheckStatus) -> None:
    finding = Finding(id="x", layer=Layer.PCI, status=status, summary="text")
    detection = Detection(
        usable=None,
        verdict=Verdict.UNKNOWN,
        conclusion="c",
        first_failure=None,
        checks=(finding,),
        layers=(LayerSummary(layer=Layer.PCI, status=status, summary="text"),),
    )
    report = wrap("detect", Answer(result=detection))

    shown = {CheckStatus.OK: "pci", CheckStatus.SKIP: "pci: text"}.get(status, "x: text")
    line = f"{MARKS[status][0]} {shown}"

    assert line in render(report, View()).splitlines()


def test_a_report_of_another_command_is_refused() -> None:
    with pytest.raises(TypeError, match="str"):
        render(DEGRADED._replace(result="text"), View())


FINDINGS = st.builds(
    Finding,
    id=NASTY,
    layer=st.sampled_from(Layer),
    status=st.sampled_from(CheckStatus),
    summary=NASTY,
    evidence=st.lists(st.builds(Evidence, source=NASTY, value=NASTY), max_size=2).map(tuple),
    remedy=st.lists(NASTY, max_size=2).map(tuple),
)
DETECTIONS = st.builds(
    Detection,
    usable=st.none(),
    verdict=st.sampled_from(Verdict),
    conclusion=NASTY,
    first_failure=st.none(),
    checks=st.lists(FINDINGS, max_size=3).map(tuple),
    layers=st.lists(
        st.builds(
            LayerSummary,
            layer=st.sampled_from(Layer),
            status=st.sampled_from(CheckStatus),
            summary=NASTY,
        ),
        max_size=3,
    ).map(tuple),
    remedy=st.lists(NASTY, max_size=3).map(tuple),
)


@given(
    detection=DETECTIONS,
    width=st.integers(20, 200),
    unicode=st.booleans(),
    verbosity=st.integers(-1, 1),
)
def test_any_report_fits_and_steers_nothing(
    detection: Detection, width: int, *, unicode: bool, verbosity: int
) -> None:
    view = View(width=width, unicode=unicode, verbosity=verbosity)

    text = render(wrap("detect", Answer(result=detection)), view)

    # Commands, which are indented, are never broken.
    lines = text.splitlines()
    assert [line for line in lines if cell_len(line) > width and line[:1] != " "] == []
    assert [char for char in text if not char.isprintable() and char != "\n"] == []
    assert unicode or text.isascii()


@pytest.mark.parametrize(
    ("code", "status", "said"),
    [
        (ExitCode.BAD, CheckStatus.WARN, True),
        (ExitCode.OK, CheckStatus.WARN, False),
        (ExitCode.BAD, CheckStatus.FAIL, False),
    ],
)
def test_strict_says_that_it_made_the_mark(code: ExitCode, status: CheckStatus, said: bool) -> None:
    finding = Finding("fan", Layer.HEALTH, status, "slow")
    result = Detection(True, Verdict.USABLE, "usable", None, (finding,))

    text = render(wrap("detect", Answer(result=result, exit_code=code, host=Host())), View())

    assert ("--strict" in text) is said
