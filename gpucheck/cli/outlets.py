"""Outputs beside the report: JUnit, GitHub's annotations, metrics.

GitHub reads its commands from both streams of a step. stdout carries only the report, so they go
to stderr.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from gpucheck.cli.output import failure_report
from gpucheck.cli.pages import page_writer
from gpucheck.cli.report_file import PUBLIC, check_writable, write_file
from gpucheck.cli.terminal import write_stderr, write_workflow_command
from gpucheck.drivers.interrupts import REQUESTS
from gpucheck.report.envelope import Report
from gpucheck.report.errors import GpucheckError, WrongUseError
from gpucheck.report.text import View

if TYPE_CHECKING:
    pass


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


def write_failed_page(command: str, path: Path, error: GpucheckError) -> None:
    """Write the page of a command that ended without an answer, if it can be written."""
    with contextlib.suppress(WrongUseError):
        page_writer(failure_report(command, error), path, View())()
