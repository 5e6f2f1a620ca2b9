"""Where a verdict goes besides stdout, also when there is no answer."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpucheck.bench.ci.gate_model import GateClass, GateStatus
from gpucheck.cli.reporting import open_outlets
from gpucheck.report.errors import ExitCode, MissingError, WrongUseError
from tests.fakes.verdicts import gate, of_every_kind, report, result
from tests.report.formats.junit_rules import violations


def test_actions_is_found_out(tmp_path: Path) -> None:
    running = {"GITHUB_ACTIONS": "true", "GITHUB_STEP_SUMMARY": str(tmp_path / "summary.md")}

    assert open_outlets(None, github=None, environment=running).github
    assert not open_outlets(None, github=None, environment={}).github
    assert not open_outlets(None, github=None, environment={"GITHUB_ACTIONS": "false"}).github


def test_the_option_wins_over_what_is_found_out() -> None:
    assert not open_outlets(None, github=False, environment={"GITHUB_ACTIONS": "true"}).github
    assert open_outlets(None, github=True, environment={}).github


def test_annotations_go_to_stderr_and_the_summary_is_appended(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    summary = tmp_path / "summary.md"
    summary.write_text("earlier\n", encoding="utf-8")
    outlets = open_outlets(None, github=True, environment={"GITHUB_STEP_SUMMARY": str(summary)})

    outlets.write(of_every_kind())

    streams = capsys.readouterr()
    assert streams.out == ""
    assert streams.err.startswith("::error title=gpucheck gpu%3A0 pcie")
    assert summary.read_text(encoding="utf-8").startswith("earlier\n## gpucheck bench on node17")


def test_a_summary_that_cannot_be_written_costs_nothing_else(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    missing = {"GITHUB_STEP_SUMMARY": str(tmp_path / "none" / "summary.md")}

    open_outlets(None, github=True, environment=missing).write(of_every_kind())

    assert "gpucheck: warning: no step summary: No such file or directory" in (
        capsys.readouterr().err
    )


def test_without_a_summary_there_are_annotations(capsys: pytest.CaptureFixture[str]) -> None:
    bad = report(
        result(gate(GateStatus.FAIL, class_=GateClass.HARDWARE, reason="slow")),
        code=ExitCode.BAD,
    )

    open_outlets(None, github=True, environment={}).write(bad)

    assert capsys.readouterr().err.count("::error") == 1


def test_the_junit_file_is_written(tmp_path: Path) -> None:
    path = tmp_path / "junit.xml"

    open_outlets(path, github=False).write(of_every_kind())

    assert violations(path.read_text(encoding="utf-8")) == []


def test_a_junit_file_that_cannot_be_written_is_refused_before_anything_is_measured(
    tmp_path: Path,
) -> None:
    with pytest.raises(WrongUseError, match="cannot be written"):
        open_outlets(tmp_path / "none" / "junit.xml", github=False)


@pytest.mark.parametrize(
    ("raised", "said"),
    [
        (
            MissingError(code="no-gpu", message="There is no GPU.", remedy=("detect",)),
            '<error message="There is no GPU." type="no-gpu">',
        ),
        (KeyboardInterrupt(), '<error message="Interrupted." type="interrupted">'),
    ],
)
def test_a_failure_without_an_answer_is_a_red_case(
    tmp_path: Path, raised: BaseException, said: str
) -> None:
    path = tmp_path / "junit.xml"

    with pytest.raises(type(raised)), open_outlets(path, github=False).guarded("bench"):
        raise raised

    text = path.read_text(encoding="utf-8")
    assert violations(text) == []
    assert said in text


def test_an_answer_passes_through(tmp_path: Path) -> None:
    path = tmp_path / "junit.xml"

    with open_outlets(path, github=False).guarded("bench"):
        pass

    assert not path.exists()
