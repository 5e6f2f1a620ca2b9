"""Further outputs of a verdict: a JUnit file, and GitHub's annotations and step summary.

GitHub reads its commands from both streams of a step. stdout carries only the report, so they go
to stderr.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from gpucheck.cli.output import now, wrap
from gpucheck.cli.report_file import check_writable, write_file
from gpucheck.cli.terminal import write_stderr, write_workflow_command
from gpucheck.drivers.interrupts import REQUESTS
from gpucheck.report.envelope import Answer, Failure, Report
from gpucheck.report.errors import ExitCode, GpucheckError
from gpucheck.report.text import View

Junit = Annotated[
    Path | None,
    typer.Option(
        "--junit", metavar="FILE", help="Also write a JUnit file: a case for each GPU and check."
    ),
]
Github = Annotated[
    bool | None,
    typer.Option(
        "--github/--no-github",
        help="Annotations and a step summary [default: when GitHub Actions runs it].",
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlets:
    """Further outputs of a report; `summary` is the file of GitHub's step summary."""

    junit: Path | None = None
    github: bool = False
    summary: Path | None = None

    def write(self, report: Report) -> None:
        """Write the report to every outlet.

        Raises:
            WrongUseError: the JUnit file cannot be written.
        """
        if self.github:
            self._announce(report)
        if self.junit is not None:
            from gpucheck.report.formats.junit import render

            write_file(self.junit, render(report, View()))

    @contextmanager
    def guarded(self, command: str) -> Iterator[None]:
        """Write a failure without an answer, or an interrupt, to the outlets too."""
        try:
            yield
        except GpucheckError as error:
            self.write(_report_of(command, Failure.of(error), ExitCode(error.exit_code)))
            raise
        except KeyboardInterrupt:
            REQUESTS.settle()
            failure = Failure(code="interrupted", message="Interrupted.")
            self.write(_report_of(command, failure, ExitCode.INTERRUPTED))
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
    junit: Path | None, *, github: bool | None, environment: Mapping[str, str] | None = None
) -> Outlets:
    """Return the requested outlets; `github` None means what the environment says.

    Raises:
        WrongUseError: the JUnit file could not be written, which is checked before measuring.
    """
    found = os.environ if environment is None else environment
    if junit is not None:
        check_writable(junit)
    summary = found.get("GITHUB_STEP_SUMMARY")
    return Outlets(
        junit=junit,
        github=found.get("GITHUB_ACTIONS") == "true" if github is None else github,
        summary=Path(summary) if summary else None,
    )


def _report_of(command: str, failure: Failure, code: ExitCode) -> Report:
    from gpucheck.drivers.host.environment import read_host

    host = read_host(Path("/"), os.environ)
    answer = Answer(result=None, exit_code=code, host=host, error=failure)
    return wrap(command, answer, time=now())
