"""Pages and charts: what is refused before measuring, and what is written after it."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpucheck.bench.model import BenchResult
from gpucheck.cli import pages
from gpucheck.cli.pages import check_chart, check_drawings, failed, plan_files, tell_missing_charts
from gpucheck.cli.shared import Drawings
from gpucheck.report.errors import ExitCode, MissingError, WrongUseError
from gpucheck.report.text import View
from tests.fakes.bench_results import product, result_of
from tests.fakes.verdicts import report

CHARTS = ("roofline", "frameworks")
TWO_GPUS: BenchResult = result_of(
    product(700.0, flops=10**12, bytes_moved=10**9), product(600.0, "gpu:1")
)
HINT = View(chart_remedy=("Install it: pip install it",))


@pytest.mark.parametrize(
    ("drawings", "code"),
    [
        (Drawings(chart="roofline"), "chart-without-plot"),
        (Drawings(chart="gpus", plot=Path("x.svg")), "unknown-chart"),
    ],
)
def test_a_chart_is_one_of_the_command(drawings: Drawings, code: str) -> None:
    with pytest.raises(WrongUseError) as caught:
        check_chart(drawings, CHARTS)

    assert caught.value.code == code


def test_a_chart_that_is_like_one_is_asked_about() -> None:
    with pytest.raises(WrongUseError, match=r"Did you mean 'roofline'\?"):
        check_chart(Drawings(chart="roof-line", plot=Path("x.svg")), CHARTS)


def test_files_are_checked_before_anything_is_measured(tmp_path: Path) -> None:
    same = tmp_path / "x.html"
    for drawings, output, code in (
        (Drawings(html=tmp_path / "none" / "x.html"), None, "output-not-writable"),
        (Drawings(html=same), same, "output-twice"),
        (Drawings(plot=tmp_path / "x.gif"), None, "unknown-picture"),
    ):
        with pytest.raises(WrongUseError) as caught:
            check_drawings(drawings, output)
        assert caught.value.code == code


def test_without_matplotlib_a_plot_is_refused_and_a_page_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages, "find_spec", lambda name: None)

    check_drawings(Drawings(html=tmp_path / "x.html"), None)
    with pytest.raises(MissingError) as caught:
        check_drawings(Drawings(plot=tmp_path / "x.svg"), None)

    assert caught.value.code == "matplotlib-missing"
    assert "[plot]" in caught.value.remedy[0]


def test_a_chart_that_the_report_lacks_is_a_failure_of_the_report() -> None:
    drawings = Drawings(plot=Path("x.svg"), chart="transfer")

    found, writes = plan_files(report(TWO_GPUS), drawings, View())

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

    found, writes = plan_files(report(TWO_GPUS), Drawings(html=path), HINT)

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
