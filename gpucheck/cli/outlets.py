"""Outputs beside the report: JUnit, GitHub's annotations, metrics; a page and a chart.

GitHub reads its commands from both streams of a step. stdout carries only the report, so they go
to stderr.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from gpucheck.cli.output import Shared, failure_report, write_message, write_step
from gpucheck.cli.report_file import PUBLIC, check_writable, write_file
from gpucheck.cli.terminal import write_stderr, write_workflow_command
from gpucheck.drivers.interrupts import REQUESTS
from gpucheck.report.envelope import Failure, Report, status_of
from gpucheck.report.errors import ExitCode, GpucheckError, MissingError, WrongUseError
from gpucheck.report.text import View, did_you_mean

if TYPE_CHECKING:
    from gpucheck.report.charts import Chart

#: What --plot can write.
PICTURES = (".svg", ".png")
Write = Callable[[], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlets:
    """Further outputs of a report; `summary` is the file of GitHub's step summary."""

    junit: Path | None = None
    prometheus: Path | None = None
    github: bool = False
    summary: Path | None = None

    def write(self, report: Report) -> None:
        """Write the report to every outlet.

        Raises:
            WrongUseError: a file cannot be written.
        """
        if self.github:
            self._announce(report)
        if self.junit is not None:
            from gpucheck.report.formats.junit import render

            write_file(self.junit, render(report, View()))
        if self.prometheus is not None:
            from gpucheck.report.formats.prometheus import render

            # The collector is another user's process.
            write_file(self.prometheus, render(report, View()), mode=PUBLIC)

    @contextmanager
    def guarded(self, command: str) -> Iterator[None]:
        """Write a failure without an answer, or an interrupt, to the outlets too."""
        try:
            yield
        except (GpucheckError, KeyboardInterrupt) as error:
            if isinstance(error, KeyboardInterrupt):
                REQUESTS.settle()
            self.write(failure_report(command, error))
            raise

    def _announce(self, report: Report) -> None:
        from gpucheck.report.formats.github import render, workflow_commands

        for line in workflow_commands(report):
            write_workflow_command(line)
        if self.summary is None:
            return
        try:
            # The runner gives each step its own file, to which every command of the step appends.
            with self.summary.open("a", encoding="utf-8") as file:
                file.write(render(report, View()))
        except OSError as error:
            write_stderr(f"gpucheck: warning: no step summary: {error.strerror or error}")


def open_outlets(
    junit: Path | None = None,
    *,
    github: bool | None = None,
    prometheus: Path | None = None,
    environment: Mapping[str, str] | None = None,
) -> Outlets:
    """Return the requested outlets; `github` None means what the environment says.

    Raises:
        WrongUseError: a file could not be written, which is checked before measuring, or the
            collector would not read the one with metrics.
    """
    found = os.environ if environment is None else environment
    if prometheus is not None and prometheus.suffix != ".prom":
        raise WrongUseError(
            code="not-a-prom-file",
            message=f"--prometheus takes a file whose name ends with .prom, not"
            f" {str(prometheus)!r}: node-exporter reads no other.",
            remedy=("Metrics to anywhere else: --format prometheus --output FILE",),
        )
    for path in (junit, prometheus):
        if path is not None:
            check_writable(path)
    summary = found.get("GITHUB_STEP_SUMMARY")
    return Outlets(
        junit=junit,
        prometheus=prometheus,
        github=found.get("GITHUB_ACTIONS") == "true" if github is None else github,
        summary=Path(summary) if summary else None,
    )


# ---------------------------------------------------------------------- a page and a chart


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
        suggestion = did_you_mean(shared.chart, charts)
        message = f"There is no chart {shared.chart!r}; there is {', '.join(charts)}. {suggestion}"
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
    if shared.plot.suffix not in PICTURES:
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
            chart = chosen_chart(report, view, shared.chart)
        except MissingError as error:
            report = failed(report, error)
        else:
            writes.append(picture_writer(shared.plot, chart))
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
    with contextlib.suppress(WrongUseError):
        page_writer(failure_report(command, error), path, View())()


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
        from gpucheck.report.plot import picture

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
