"""Prometheus text format: a document's metrics, and those that every run has.

It holds no timestamps: node-exporter's textfile collector skips a file that has any. When the run
was is a metric of its own.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from datetime import datetime

from gpucheck.report.documents import open_mapping
from gpucheck.report.envelope import Report
from gpucheck.report.metrics import Metric, Number, gauge
from gpucheck.report.text import View, printable


def render(report: Report, view: View) -> str:
    """Return all metrics; a report without a result has those of the run."""
    metrics = [*_run_metrics(report)]
    mapping = open_mapping("metrics", report.command)
    if mapping is not None and report.result is not None:
        metrics += mapping(report)
    return "".join(line for metric in metrics for line in _lines(metric, report.host.name))


def _run_metrics(report: Report) -> Iterator[Metric]:
    """Yield what monitors of the monitor need: did it run, when, and how did it end?"""
    command = {"command": report.command}
    yield gauge(
        "gpucheck_run_info",
        "Version of gpucheck, and of the driver that it found.",
        [
            (
                {
                    **command,
                    "version": report.tool.version,
                    "driver_version": report.host.driver_version,
                },
                1,
            )
        ],
    )
    yield gauge(
        "gpucheck_run_timestamp_seconds",
        "Time of the run, in seconds since the epoch.",
        [(command, datetime.fromisoformat(report.time).timestamp())],
    )
    yield gauge(
        "gpucheck_run_exit_code",
        "Exit code of the run: 0 good, 1 bad, 2 wrong use, 3 cannot tell, 4 something is missing.",
        [(command, int(report.exit_code))],
    )
    yield gauge(
        "gpucheck_run_warnings",
        "Number of warnings about the run.",
        [(command, len(report.warnings))],
    )


def _lines(metric: Metric, host: str | None) -> Iterator[str]:
    samples = [each for each in metric.samples if each.value is not None]
    if not samples:
        return
    yield f"# HELP {metric.name} {_escaped(metric.help)}\n"
    yield f"# TYPE {metric.name} gauge\n"
    found: dict[str, Number] = {}
    for labels, value in samples:
        # Of two that look alike the first stays: node-exporter would refuse the whole file.
        found.setdefault(_labels({"hostname": host, **labels}), value)
    for shown, value in found.items():
        yield f"{metric.name}{shown} {_number(value)}\n"


def _labels(labels: Mapping[str, str | None]) -> str:
    """Return labels in braces; an empty one is the same as none to Prometheus."""
    shown = (
        f'{name}="{_escaped(printable(text)).replace(chr(34), chr(92) + chr(34))}"'
        for name, text in labels.items()
        if text
    )
    joined = ",".join(shown)
    return f"{{{joined}}}" if joined else ""


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n")


def _number(value: Number) -> str:
    """Return a number as Go reads it."""
    if isinstance(value, float):
        return repr(value) if math.isfinite(value) else "NaN"
    return str(int(value or 0))
