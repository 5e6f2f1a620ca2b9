"""Files beside the report: the page of --html and the chart of --plot."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from gpucheck.cli.report_file import check_writable, write_file
from gpucheck.report.envelope import Failure, Report, status_of
from gpucheck.report.errors import ExitCode, GpucheckError, MissingError, WrongUseError
from gpucheck.report.text import View, did_you_mean

if TYPE_CHECKING:
    from gpucheck.cli.output import Shared
    from gpucheck.report.charts import Drawing

#: What --plot can write.
SUFFIXES = (".svg", ".png")
Write = Callable[[], None]


def check_chart(shared: Shared, charts: Sequence[str]) -> None:
    """Check what --chart chooses.

    Raises:
        WrongUseError: there is no such chart, or nothing to draw it to.
    """
    if shared.chart is None:
        return
    if shared.plot is None:
        message = "--chart chooses what --plot draws: give --plot FILE.svg with it."
        raise WrongUseError(code="chart-without-plot", message=message)
    if shared.chart not in charts:
        asked = did_you_mean(shared.chart, charts)
        message = f"There is no chart {shared.chart!r}; there is {', '.join(charts)}. {asked}"
        raise WrongUseError(code="unknown-chart", message=message.rstrip())


def check_beside(shared: Shared) -> None:
    """Check the files of --html and --plot before anything is measured.

    Raises:
        WrongUseError: a file cannot be written or is named twice, or is no picture.
        MissingError: nothing is installed that draws charts.
    """
    named = [path for path in (shared.output, shared.html, shared.plot) if path is not None]
    for path in named[shared.output is not None :]:
        check_writable(path)
    if len({path.absolute() for path in named}) < len(named):
        message = "Two outputs have the same file: name one for each."
        raise WrongUseError(code="output-twice", message=message)
    if shared.plot is None:
        return
    if shared.plot.suffix not in SUFFIXES:
        message = f"--plot writes .svg or .png, not {shared.plot.name!r}."
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


def plan_files(report: Report, shared: Shared, view: View) -> tuple[Report, list[Write]]:
    """Return what writes the files, and the report: with a failure if it lacks the chart.

    Nothing is drawn yet, so that the report itself can be shown first.
    """
    writes: list[Write] = []
    if shared.plot is not None and report.result is not None:
        try:
            drawing = chosen_chart(report, view, shared.chart)
        except MissingError as error:
            report = failed(report, error)
        else:
            writes.append(picture_writer(shared.plot, drawing))
    if shared.html is not None:
        writes.append(page_writer(report, shared.html, view))
    return report, writes


def failed(report: Report, error: MissingError | WrongUseError) -> Report:
    """Return a report with a failure; a bad exit code of its own stays."""
    code = error.exit_code if report.exit_code is ExitCode.OK else report.exit_code
    failure = report.error or Failure.of(error)
    return report._replace(
        exit_code=code, status=status_of(code, warnings=bool(report.warnings)), error=failure
    )


def write_failed_page(command: str, path: Path, error: GpucheckError) -> None:
    """Write the page of a command that ended without an answer, if it can be written."""
    from gpucheck.cli.output import failure_report

    with contextlib.suppress(WrongUseError):
        page_writer(failure_report(command, error), path, View())()


def chosen_chart(report: Report, view: View, name: str | None) -> Drawing:
    """Return the chart of this name, or the first one.

    Raises:
        MissingError: the report has not the values of that chart.
    """
    from gpucheck.report.formats import charts_of

    drawings = {one.id: one for one in charts_of(report, view)}
    drawing = next(iter(drawings.values()), None) if name is None else drawings.get(name)
    if drawing is None:
        has = f"it has {', '.join(drawings)}" if drawings else "it has none"
        which = "any chart" if name is None else f"the chart {name}"
        message = f"This report has no values for {which}; {has}."
        raise MissingError(code="no-chart", message=message)
    return drawing


def picture_writer(path: Path, drawing: Drawing) -> Write:
    """Return what draws a chart to its file."""

    def write() -> None:
        from gpucheck.report.plot import picture

        write_file(path, picture(drawing, path.suffix.removeprefix(".")))

    return write


def page_writer(report: Report, path: Path, view: View) -> Write:
    """Return what writes the page of a report."""

    def write() -> None:
        from gpucheck.report.formats.html import render

        write_file(path, render(report, view))

    return write
