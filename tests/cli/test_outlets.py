"""Outputs beside a report: what is refused before measuring, and what is written after it."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from gpucheck.bench.model import GateClass, GateStatus
from gpucheck.cli.outlets import open_outlets
from gpucheck.cli.output import publish
from gpucheck.cli.shared import Shared
from gpucheck.report.envelope import Answer, Report
from gpucheck.report.errors import ExitCode, MissingError, WrongUseError
from tests.fakes.verdicts import gate, of_every_kind, report, result
from tests.report.formats.junit_rules import violations


def test_actions_is_found_out(tmp_path: Path) -> None:
    running = {"GITHUB_ACTIONS": "true", "GITHUB_STEP_SUMMARY": str(tmp_path / "summary.md")}

    assert open_outlets(environment=running).github
    assert not open_outlets(environment={}).github
    assert not open_outlets(environment={"GITHUB_ACTIONS": "false"}).github


def test_the_option_wins_over_what_is_found_out() -> None:
    assert not open_outlets(github=False, environment={"GITHUB_ACTIONS": "true"}).github
    assert open_outlets(github=True, environment={}).github


def test_annotations_go_to_stderr_and_the_summary_is_appended(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    summary = tmp_path / "summary.md"
    summary.write_text("earlier\n", encoding="utf-8")
    outlets = open_outlets(github=True, environment={"GITHUB_STEP_SUMMARY": str(summary)})

    outlets.write(of_every_kind())

    streams = capsys.readouterr()
    assert streams.out == ""
    assert streams.err.startswith("::error title=gpucheck gpu%3A0 pcie")
    assert summary.read_text(encoding="utf-8").startswith("earlier\n## gpucheck bench on node17")


def test_a_summary_that_cannot_be_written_costs_nothing_else(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    missing = {"GITHUB_STEP_SUMMARY": str(tmp_path / "none" / "summary.md")}

    open_outlets(github=True, environment=missing).write(of_every_kind())

    assert "gpucheck: warning: no step summary: No such file or directory" in (
        capsys.readouterr().err
    )


def test_without_a_summary_there_are_annotations(capsys: pytest.CaptureFixture[str]) -> None:
    bad = report(
        result(gate(GateStatus.FAIL, class_=GateClass.HARDWARE, reason="slow")),
        code=ExitCode.BAD,
    )

    open_outlets(github=True, environment={}).write(bad)

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


# --------------------------------------------------------------------------- --prometheus


def samples_of(path: Path) -> dict[str, float]:
    families = text_string_to_metric_families(path.read_text(encoding="utf-8"))
    return {one.name: one.value for family in families for one in family.samples}


def test_metrics_replace_the_file_and_the_collectors_user_can_read_them(tmp_path: Path) -> None:
    path = tmp_path / "gpucheck.prom"
    path.write_text("earlier\n", encoding="utf-8")
    path.chmod(0o600)
    before = path.stat().st_ino

    mask = os.umask(0o077)
    try:
        open_outlets(prometheus=path, github=False).write(of_every_kind())
    finally:
        os.umask(mask)

    assert samples_of(path)["gpucheck_run_exit_code"] == 1.0
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    # A new file took its place: the collector saw the old one or the new one, never half of it.
    assert path.stat().st_ino != before
    assert [each.name for each in tmp_path.iterdir()] == ["gpucheck.prom"]


def test_a_draft_of_the_file_is_none_that_the_collector_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drafts = []

    def replace(draft: Path, target: Path) -> Path:
        drafts.append((draft.parent, draft.suffix))
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", replace)

    with pytest.raises(WrongUseError, match="No space left on device"):
        open_outlets(prometheus=tmp_path / "gpucheck.prom", github=False).write(of_every_kind())

    assert drafts == [(tmp_path, ".tmp")]
    assert list(tmp_path.iterdir()) == []


def test_a_run_without_an_answer_writes_its_code(tmp_path: Path) -> None:
    path = tmp_path / "gpucheck.prom"
    outlets = open_outlets(prometheus=path, github=False)

    with pytest.raises(MissingError), outlets.guarded("list"):
        raise MissingError(code="no-driver", message="There is no driver.")

    found = samples_of(path)
    assert found["gpucheck_run_exit_code"] == 4.0
    assert "gpucheck_gpus" not in found


@pytest.mark.parametrize("name", ["gpucheck.txt", "gpucheck", ".prom"])
def test_a_name_that_the_collector_does_not_read_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(WrongUseError, match=r"ends with \.prom") as raised:
        open_outlets(prometheus=tmp_path / name, github=False)

    assert raised.value.code == "not-a-prom-file"
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_cannot_be_written_after_all_adds_no_second_document(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def full(report: Report) -> None:
        raise WrongUseError(code="unwritable", message="The disk is full.")

    code = publish("list", Shared(format="json"), Answer(None), "2026-01-02T03:04:05Z", also=full)

    streams = capsys.readouterr()
    assert code == ExitCode.WRONG_USE
    assert streams.out.count('"schema"') == 1
    assert streams.err == "gpucheck: The disk is full.\n"
