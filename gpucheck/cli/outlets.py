"""Outputs beside the report: a page, a chart, JUnit, metrics, GitHub's annotations.

GitHub reads its commands from both streams of a step. stdout carries only the report, so they go
to stderr.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from gpucheck.cli.options import Outlets
from gpucheck.cli.report_file import PUBLIC, check_writable, write_file
from gpucheck.cli.terminal import write_message, write_stderr, write_step, write_workflow_command
from gpucheck.report.envelope import Failure, Report, status_of
from gpucheck.report.errors import ExitCode, MissingError, WrongUseError
from gpucheck.report.formats import charts_of, open_format
from gpucheck.report.text import View, did_you_mean

if TYPE_CHECKING:
    from gpucheck.report.charts import Chart

#: What --plot can write.
PICTURES = (".svg", ".png")
Write = Callable[[], None]


def check_outlets(outlets: Outlets, output: Path | None, charts: Sequence[str] = ()) -> None:
    """Check the outlets beside the file `output`, before anything is measured.

    Raises:
        WrongUseError: a file cannot be written or is named twice, it is no picture, or the
            collector would not read it; or --chart chooses none of these charts.
        MissingError: nothing is installed that draws charts.
    """
    _check_chart(outlets, charts)
    if outlets.prometheus is not None and outlets.prometheus.suffix != ".prom":
        raise WrongUseError(
            code="not-a-prom-file",
            message=f"--prometheus takes a file whose name ends with .prom, not"
            f" {str(outlets.prometheus)!r}: node-exporter reads no other.",
            remedy=("Metrics to anywhere else: --format prometheus --output FILE",),
        )
    files = (outlets.html, outlets.plot, outlets.junit, outlets.prometheus)
    named = [path for path in files if path is not None]
    for path in named:
        check_writable(path)
    named += [] if output is None else [output]
    if len({path.absolute() for path in named}) < len(named):
        message = "Two outputs have the same file: name one for each."
        raise WrongUseError(code="output-twice", message=message)
    if outlets.plot is None:
        return
    if outlets.plot.suffix not in PICTURES:
        message = f"--plot writes .svg or .png, not {outlets.plot.name!r}."
        raise WrongUseError(code="unknown-picture", message=message)
    remedy = chart_remedy()
    if remedy:
        message = "--plot needs matplotlib, which is not installed."
        raise MissingError(code="matplotlib-missing", message=message, remedy=remedy)


def _check_chart(outlets: Outlets, charts: Sequence[str]) -> None:
    if outlets.chart is None:
        return
    if outlets.plot is None:
        message = "--chart chooses what --plot draws: give --plot FILE.svg with it."
        raise WrongUseError(code="chart-without-plot", message=message)
    if outlets.chart not in charts:
        suggestion = did_you_mean(outlets.chart, charts)
        message = f"There is no chart {outlets.chart!r}; there is {', '.join(charts)}. {suggestion}"
        raise WrongUseError(code="unknown-chart", message=message.rstrip())


# ------------------------------------------------------------------------------ page and chart


def chart_remedy() -> tuple[str, ...]:
    """Return how to install what draws charts, nothing if it is there."""
    if find_spec("matplotlib") is not None:
        return ()
    from gpucheck.drivers.cupy.install import command, installation

    return (f"Install it: {command(installation(), 'plot')}",)


def plan_drawings(report: Report, outlets: Outlets, view: View) -> tuple[Report, list[Write]]:
    """Return what writes page and chart, and the report: with a failure if it lacks the chart.

    Nothing is drawn yet, so that the report itself can be shown first.
    """
    writes: list[Write] = []
    if outlets.plot is not None and report.result is not None:
        try:
            chart = chosen_chart(report, view, outlets.chart)
        except MissingError as error:
            report = failed(report, error)
        else:
            writes.append(partial(_write_picture, outlets.plot, chart))
    if outlets.html is not None:
        writes.append(partial(_write_page, outlets.html, report, view))
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
    charts = {item.id: item for item in charts_of(report, view)}
    chart = next(iter(charts.values()), None) if name is None else charts.get(name)
    if chart is None:
        which = "any chart" if not charts else f"the chart {name}; it has {', '.join(charts)}"
        message = f"This report has no values for {which}."
        raise MissingError(code="no-chart", message=message)
    return chart


def _write_picture(path: Path, chart: Chart) -> None:
    from gpucheck.report.charts import picture

    write_file(path, picture(chart, path.suffix.removeprefix(".")))


def _write_page(path: Path, report: Report, view: View) -> None:
    write_file(path, open_format("html")(report, view))


def tell_missing_charts(report: Report, view: View) -> None:
    """Say on stderr that a page has no charts because nothing draws them here, and what would."""
    if view.chart_remedy and charts_of(report, view):
        write_message("The page has no charts: matplotlib is not installed.")
        for step in view.chart_remedy:
            write_step(step)


# ---------------------------------------------------------------------------- for CI and monitors


def write_for_ci(report: Report, outlets: Outlets) -> None:
    """Write annotations, the JUnit file and the metrics.

    Raises:
        WrongUseError: a file cannot be written.
    """
    if outlets.github:
        _annotate(report)
    if outlets.junit is not None:
        write_file(outlets.junit, open_format("junit")(report, View()))
    if outlets.prometheus is not None:
        # The collector is another user's process.
        write_file(outlets.prometheus, open_format("prometheus")(report, View()), mode=PUBLIC)


def _annotate(report: Report) -> None:
    from gpucheck.report.formats.github import render, workflow_commands

    for line in workflow_commands(report):
        write_workflow_command(line)
    summary = os.environ.get("GITHUB_STEP_SUMMARY")
    if not summary:
        return
    try:
        # The runner gives each step its own file, to which every command of the step appends.
        with Path(summary).open("a", encoding="utf-8") as file:
            file.write(render(report, View()))
    except OSError as error:
        write_stderr(f"gpucheck: warning: no step summary: {error.strerror or error}")


def write_failure_beside(report: Report, outlets: Outlets) -> None:
    """Write the report of a command that ended without an answer, as far as that can be written."""
    with suppress(WrongUseError):
        write_for_ci(report, outlets)
    # Of a command line that is wrong there is no page.
    if outlets.html is not None and report.exit_code not in (
        ExitCode.WRONG_USE,
        ExitCode.INTERRUPTED,
    ):
        with suppress(WrongUseError):
            _write_page(outlets.html, report, View())
