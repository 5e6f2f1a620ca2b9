"""Verdicts of a report for CI systems: one for each device and check, with its kind."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from gpucheck.report.documents import open_mapping
from gpucheck.report.envelope import Report
from gpucheck.report.errors import ExitCode


class Kind(StrEnum):
    """Kind of a verdict for a CI system; a warning does not turn a job red."""

    PASS = "pass"
    WARNING = "warning"
    FAILURE = "failure"
    ERROR = "error"
    SKIPPED = "skipped"


RED = (Kind.FAILURE, Kind.ERROR)


class Verdict(NamedTuple):
    """One verdict: `values` are names and values for people, `lines` the evidence and what to do.

    `device` is `cpu`, `gpu:<cuda_index>`, `GPU <index>` (NVML's), `node`, or `run` for all of it.
    """

    device: str
    check: str
    kind: Kind
    message: str
    gpu_uuid: str | None = None
    class_: str | None = None
    values: tuple[tuple[str, str], ...] = ()
    lines: tuple[str, ...] = ()


def verdicts_of(report: Report) -> tuple[Verdict, ...]:
    """Return the verdicts of a report; red ones are among them exactly if its exit code is not 0.

    What was not looked at, such as a row for which the time was too short, is skipped in a run
    that ended well.
    """
    mapping = open_mapping("verdicts", report.command)
    verdicts: list[Verdict] = [] if mapping is None else mapping(report.result)
    if report.exit_code is ExitCode.OK:
        return tuple(
            verdict._replace(kind=Kind.SKIPPED) if verdict.kind is Kind.ERROR else verdict
            for verdict in verdicts
        )
    if not any(verdict.kind in RED for verdict in verdicts):
        verdicts = [*verdicts, _report_verdict(report)]
    return tuple(verdicts)


def seconds_of(report: Report) -> float:
    """Return how long the work behind a report took, 0 if it does not say."""
    mapping = open_mapping("seconds", report.command)
    return 0.0 if mapping is None else float(mapping(report.result))


def _report_verdict(report: Report) -> Verdict:
    """Return the verdict on the whole run, if no single check explains its exit code."""
    failure = report.error
    message = (
        failure.message if failure else "; ".join(notice.message for notice in report.warnings)
    )
    kind = Kind.FAILURE if report.exit_code is ExitCode.BAD else Kind.ERROR
    return Verdict(
        device="run",
        check=report.command,
        kind=kind,
        message=message or f"ended with code {int(report.exit_code)}",
        class_=failure.code if failure else "warnings",
        lines=failure.remedy if failure else (),
    )
