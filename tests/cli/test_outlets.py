"""Outputs beside a report: what is refused before measuring, and what is written after it."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from gpucheck.bench.model import BenchResult, GateClass, GateStatus
from gpucheck.cli import outlets as module
from gpucheck.cli.options import SHARED, Outlets, Shared, arguments_of, collect_shared
from gpucheck.cli.outlets import (
    check_outlets,
    failed,
    plan_drawings,
    tell_missing_charts,
    write_for_ci,
)
from gpucheck.cli.output import call_command, publish
from gpucheck.report.envelope import Answer, Report
from gpucheck.report.errors import ExitCode, MissingError, WrongUseError
from gpucheck.report.text import View
from tests.fakes.bench_results import product, result_of
from tests.fakes.verdicts import gate, of_every_kind, report, result
from tests.report.formats.junit_rules import violations

CHARTS = ("roofline", "frameworks")
TWO_GPUS: BenchResult = result_of(
    product(700.0, flops=10**12, bytes_moved=10**9), product(600.0, "gpu:1")
)
HINT = View(chart_remedy=("Install it: pip install it",))


def called(raised: BaseException | None, command: str, **values: Any) -> BaseException | None:
    """Call a command that raises this, and return what its caller sees."""

    def run(*, shared: Shared) -> int:
        if raised is not None:
            raise raised
        return 0

    try:
        call_command(run, command, values)
    except BaseException as error:
        return error
    return None


def shared_of(**given: Any) -> Shared:
    values = {name: item.default for name, item in SHARED.items()} | given
    return collect_shared(**arguments_of(collect_shared, values))


def test_actions_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    for said, found in (("true", True), ("false", False), ("", False)):
        monkeypatch.setenv("GITHUB_ACTIONS", said)
        assert shared_of().outlets.github is found


def test_the_option_wins_over_what_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    assert not shared_of(github=False).outlets.github
    monkeypatch.delenv("GITHUB_ACTIONS")
    assert shared_of(github=True).outlets.github


def test_annotations_go_to_stderr_and_the_summary_is_appended(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    summary = tmp_path / "summary.md"
    summary.write_text("earlier\n", encoding="utf-8")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))

    write_for_ci(of_every_kind(), Outlets(github=True))

    streams = capsys.readouterr()
    assert streams.out == ""
    assert streams.err.startswith("::error title=gpucheck gpu%3A0 pcie")
    assert summary.read_text(encoding="utf-8").startswith("earlier\n## gpucheck bench on node17")


def test_a_summary_that_cannot_be_written_costs_nothing_else(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "none" / "summary.md"))

    write_for_ci(of_every_kind(), Outlets(github=True))

    assert "gpucheck: warning: no step summary: No such file or directory" in (
        capsys.readouterr().err
    )


def test_without_a_summary_there_are_annotations(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)
    bad = report(
        result(gate(GateStatus.FAIL, class_=GateClass.HARDWARE, reason="slow")),
        code=ExitCode.BAD,
    )

    write_for_ci(bad, Outlets(github=True))

    assert capsys.readouterr().err.count("::error") == 1


def test_the_junit_file_is_written(tmp_path: Path) -> None:
    path = tmp_path / "junit.xml"

    write_for_ci(of_every_kind(), Outlets(junit=path))

    assert violations(path.read_text(encoding="utf-8")) == []


def test_a_junit_file_that_cannot_be_written_is_refused_before_anything_is_measured(
    tmp_path: Path,
) -> None:
    with pytest.raises(WrongUseError, match="cannot be written"):
        check_outlets(Outlets(junit=tmp_path / "none" / "junit.xml"), None)


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

    assert called(raised, "bench", junit=path) is raised

    text = path.read_text(encoding="utf-8")
    assert violations(text) == []
    assert said in text


def test_an_answer_passes_through(tmp_path: Path) -> None:
    path = tmp_path / "junit.xml"

    assert called(None, "bench", junit=path) is None

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
        write_for_ci(of_every_kind(), Outlets(prometheus=path))
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
        write_for_ci(of_every_kind(), Outlets(prometheus=tmp_path / "gpucheck.prom"))

    assert drafts == [(tmp_path, ".tmp")]
    assert list(tmp_path.iterdir()) == []


def test_a_run_without_an_answer_writes_its_code(tmp_path: Path) -> None:
    path = tmp_path / "gpucheck.prom"

    called(MissingError(code="no-driver", message="There is no driver."), "list", prometheus=path)

    found = samples_of(path)
    assert found["gpucheck_run_exit_code"] == 4.0
    assert "gpucheck_gpus" not in found


@pytest.mark.parametrize("name", ["gpucheck.txt", "gpucheck", ".prom"])
def test_a_name_that_the_collector_does_not_read_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(WrongUseError, match=r"ends with \.prom") as raised:
        check_outlets(Outlets(prometheus=tmp_path / name), None)

    assert raised.value.code == "not-a-prom-file"
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_cannot_be_written_after_all_adds_no_second_document(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def full(report: Report, outlets: Outlets) -> None:
        raise WrongUseError(code="unwritable", message="The disk is full.")

    monkeypatch.setattr(module, "write_for_ci", full)
    shared = Shared(format="json", outlets=Outlets(junit=tmp_path / "a.xml"))
    code = publish("list", shared, Answer(None), "2026-01-02T03:04:05Z")

    streams = capsys.readouterr()
    assert code == ExitCode.WRONG_USE
    assert streams.out.count('"schema"') == 1
    assert streams.err == "gpucheck: The disk is full.\n"


# --------------------------------------------------------------------------- page and chart


@pytest.mark.parametrize(
    ("outlets", "code"),
    [
        (Outlets(chart="roofline"), "chart-without-plot"),
        (Outlets(chart="gpus", plot=Path("x.svg")), "unknown-chart"),
    ],
)
def test_a_chart_is_one_of_the_command(outlets: Outlets, code: str) -> None:
    with pytest.raises(WrongUseError) as caught:
        check_outlets(outlets, None, CHARTS)

    assert caught.value.code == code


def test_a_chart_that_is_like_one_is_asked_about() -> None:
    with pytest.raises(WrongUseError, match=r"Did you mean 'roofline'\?"):
        check_outlets(Outlets(chart="roof-line", plot=Path("x.svg")), None, CHARTS)


def test_files_are_checked_before_anything_is_measured(tmp_path: Path) -> None:
    same = tmp_path / "x.html"
    for outlets, output, code in (
        (Outlets(html=tmp_path / "none" / "x.html"), None, "output-not-writable"),
        (Outlets(html=same), same, "output-twice"),
        (Outlets(plot=tmp_path / "x.gif"), None, "unknown-picture"),
    ):
        with pytest.raises(WrongUseError) as caught:
            check_outlets(outlets, output)
        assert caught.value.code == code


def test_without_matplotlib_a_plot_is_refused_and_a_page_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "find_spec", lambda name: None)

    check_outlets(Outlets(html=tmp_path / "x.html"), None)
    with pytest.raises(MissingError) as caught:
        check_outlets(Outlets(plot=tmp_path / "x.svg"), None)

    assert caught.value.code == "matplotlib-missing"
    assert "[plot]" in caught.value.remedy[0]


def test_a_chart_that_the_report_lacks_is_a_failure_of_the_report() -> None:
    outlets = Outlets(plot=Path("x.svg"), chart="transfer")

    found, writes = plan_drawings(report(TWO_GPUS), outlets, View())

    assert writes == []
    assert found.exit_code is ExitCode.MISSING
    assert found.result is TWO_GPUS
    assert found.error is not None
    assert found.error.code == "no-chart"
    assert found.error.message.endswith("no values for the chart transfer; it has roofline.")


def test_a_bad_answer_stays_a_bad_answer() -> None:
    error = MissingError(code="no-chart", message="none")

    assert failed(report(TWO_GPUS, code=ExitCode.BAD), error).exit_code is ExitCode.BAD


def test_a_page_is_written_when_it_is_asked_for_and_not_before(tmp_path: Path) -> None:
    path = tmp_path / "page.html"

    found, writes = plan_drawings(report(TWO_GPUS), Outlets(html=path), HINT)

    assert found.exit_code is ExitCode.OK
    assert not path.exists()
    for write in writes:
        write()
    assert path.read_text(encoding="utf-8").startswith("<!DOCTYPE html>")


def test_missing_matplotlib_is_said_on_stderr_where_a_page_would_have_charts(
    capsys: pytest.CaptureFixture[str],
) -> None:
    tell_missing_charts(report(result_of()), HINT)
    assert capsys.readouterr().err == ""

    tell_missing_charts(report(TWO_GPUS), HINT)

    said = capsys.readouterr().err
    assert "gpucheck: The page has no charts: matplotlib is not installed." in said
    assert "pip install it" in said


def test_the_page_comes_beside_the_document(gpucheck_command, tmp_path: Path) -> None:
    page = tmp_path / "page.html"

    ended = gpucheck_command("list", "--from", "example:lost-gpu", "--json", "--html", str(page))

    assert ended.document["schema"] == "gpucheck/list/1"
    assert "<h1>" in page.read_text(encoding="utf-8")
    assert "recorded example" in page.read_text(encoding="utf-8")


def test_a_watch_writes_no_page(gpucheck_command, tmp_path: Path) -> None:
    ended = gpucheck_command("list", "--watch", "1", "--html", str(tmp_path / "page.html"))

    assert ended.code == 2
    assert "--html" in ended.stderr


def test_a_command_that_ends_without_an_answer_leaves_a_page_that_says_why(
    gpucheck_command, tmp_path: Path
) -> None:
    page = tmp_path / "page.html"
    page.write_text("old", encoding="utf-8")

    ended = gpucheck_command(
        *("bench", "launch", "--device", "gpu", "--require-gpu", "--quick", "--html", str(page))
    )
    wrong = gpucheck_command("bench", "no-such-kernel", "--html", str(tmp_path / "none.html"))

    assert ended.code == 4
    assert "A GPU is required" in page.read_text(encoding="utf-8")
    assert wrong.code == 2
    assert not (tmp_path / "none.html").exists()
