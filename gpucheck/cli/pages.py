"""Page and chart of a report: what can be drawn here, and the files of --html and --plot."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from gpucheck.cli.report_file import check_writable, write_file
from gpucheck.cli.shared import Drawings
from gpucheck.cli.terminal import write_message, write_step
from gpucheck.report.envelope import Failure, Report, status_of
from gpucheck.report.errors import ExitCode, MissingError, WrongUseError
from gpucheck.report.text import View, did_you_mean

if TYPE_CHECKING:
    from gpucheck.report.charts import Chart

#: What --plot can write.
PICTURES = (".svg", ".png")
Write = Callable[[], None]


def check_chart(drawings: Drawings, charts: Sequence[str]) -> None:
    """Check what --chart chooses.

    Raises:
        WrongUseError: there is no such chart, or nothing to draw it to.
    """
    if drawings.chart is None:
        return
    if drawings.plot is None:
        message = "--chart chooses what --plot draws: give --plot FILE.svg with it."
        raise WrongUseError(code="chart-without-plot", message=message)
    if drawings.chart not in charts:
        suggestion = did_you_mean(drawings.chart, charts)
        message = (
            f"There is no chart {drawings.chart!r}; there is {', '.join(charts)}. {suggestion}"
        )
        raise WrongUseError(code="unknown-chart", message=message.rstrip())


def check_drawings(drawings: Drawings, output: Path | None) -> None:
    """Check the files of --html and --plot before anything is measured.

    Raises:
        WrongUseError: a file cannot be written or is named twice, or is no picture.
        MissingError: nothing is installed that draws charts.
    """
    named = [path for path in (output, drawings.html, drawings.plot) if path is not None]
    for path in named[output is not None :]:
        check_writable(path)
    if len({path.absolute() for path in named}) < len(named):
        message = "Two outputs have the same file: name one for each."
        raise WrongUseError(code="output-twice", message=message)
    if drawings.plot is None:
        return
    if drawings.plot.suffix not in PICTURES:
        message = f"--plot writes .svg or .png, not {drawings.plot.name!r}."
        raise WrongUseError(code="unknown-picture", message=message)
    remedy = chart_remedy()
    if remedy:
        message = "--plot needs matplotlib, which is not installed."
        raise MissingError(code="matplotlib-missing", message=message, remedy=remedy)


def chart_remedy() -> tuple[str, ...]:
    """Return how to install what draws charts, nothing if it is there."""
    if find_spec("matplotlib") is not None:
        return ()
    from gpucheck.drivers.cupy.install import command, installation

    return (f"Install it: {command(installation(), 'plot')}",)


def plan_files(report: Report, drawings: Drawings, view: View) -> tuple[Report, list[Write]]:
    """Return what writes the files, and the report: with a failure if it lacks the chart.

    Nothing is drawn yet, so that the report itself can be shown first.
    """
    writes: list[Write] = []
    if drawings.plot is not None and report.result is not None:
        try:
            chart = chosen_chart(report, view, drawings.chart)
        except MissingError as error:
            report = failed(report, error)
        else:
            writes.append(picture_writer(drawings.plot, chart))
    if drawings.html is not None:
        writes.append(page_writer(report, drawings.html, view))
    return report, writes


def failed(report: Report, error: MissingError | WrongUseError) -> Report:
    """Return a report with a failure; a bad exit code of its own stays."""
    code = error.exit_code if report.exit_code is ExitCode.OK else report.exit_code
    failure = report.error or Failure.of(error)
    return report._replace(
        exit_code=code, status=status_of(code, warnings=bool(report.warnings)), error=failure
    )


def chosen_chart(report: Report, view: View, name: str | None) -> Chart:
    """Return the chart of this name, or the first one.

    Raises:
        MissingError: the report has not the values of that chart.
    """
    from gpucheck.report.formats import charts_of

    charts = {one.id: one for one in charts_of(report, view)}
    chart = next(iter(charts.values()), None) if name is None else charts.get(name)
    if chart is None:
        has = f"it has {', '.join(charts)}" if charts else "it has none"
        which = "any chart" if name is None else f"the chart {name}"
        message = f"This report has no values for {which}; {has}."
        raise MissingError(code="no-chart", message=message)
    return chart


def picture_writer(path: Path, chart: Chart) -> Write:
    """Return what draws a chart to its file."""

    def write() -> None:
        from gpucheck.report.charts import picture

        write_file(path, picture(chart, path.suffix.removeprefix(".")))

    return write


def tell_missing_charts(report: Report, view: View) -> None:
    """Say on stderr that a page has no charts because nothing draws them here, and what would."""
    from gpucheck.report.formats import charts_of

    if view.chart_remedy and charts_of(report, view):
        write_message("The page has no charts: matplotlib is not installed.")
        for step in view.chart_remedy:
            write_step(step)


def page_writer(report: Report, path: Path, view: View) -> Write:
    """Return what writes the page of a report."""

    def write() -> None:
        from gpucheck.report.formats.html import render

        write_file(path, render(report, view))

    return write
