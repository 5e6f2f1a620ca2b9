"""Prometheus: metrics of a report, and their text format with those that every run has.

A metric is a name, a help text and samples with labels, which a feature makes of its document.

It holds no timestamps: node-exporter's textfile collector skips a file that has any. When the run
was is a metric of its own.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import NamedTuple

from gpucheck.report.documents import open_mapping
from gpucheck.report.envelope import Report
from gpucheck.report.text import View, printable

Number = int | float | bool | None


#: Labels and the value under them; a label without text is absent, and a value that is None is
#: left out. The machine's name is added as the label `hostname`, unless the sample has its own.
Sample = tuple[Mapping[str, str | None], Number]


class Metric(NamedTuple):
    """Gauge in a base unit: seconds, bytes, ratios (not percent), celsius, watts, hertz.

    `name` begins with `gpucheck_` and ends with the unit. The label sets of `samples` are unique.
    Metrics of two documents have different names: node-exporter refuses files that both hold the
    same sample.
    """

    name: str
    help: str
    samples: tuple[Sample, ...]


def gauge(name: str, text: str, samples: Iterable[Sample]) -> Metric:
    """Return a metric of these labels and values."""
    return Metric(name, text, tuple(samples))


def gpu_labels(
    *,
    index: int | None = None,
    uuid: str | None = None,
    pci_bus_id: str | None = None,
    name: str | None = None,
) -> dict[str, str | None]:
    """Return the labels of a GPU in DCGM-exporter's spelling, so that its series join ours.

    `index` is NVML's. Source: dcgm-exporter, internal/pkg/rendermetrics/render_metrics.go. Bus ids
    stand there as DCGM has them, with eight digits of the domain and in upper case.
    """
    domain, colon, rest = (pci_bus_id or "").partition(":")
    return {
        "gpu": None if index is None else str(index),
        "UUID": uuid,
        "pci_bus_id": f"{domain:0>8}:{rest}".upper() if colon else pci_bus_id,
        "modelName": name,
    }


def ratio(percent: float | None) -> float | None:
    """Return percent as a share of one, which is Prometheus' base unit."""
    return None if percent is None else percent / 100


def render(report: Report, view: View) -> str:
    """Return all metrics; a report without a result has those of the run."""
    metrics = [*_run_metrics(report)]
    mapping = open_mapping("metrics", report.command)
    if mapping is not None and report.result is not None:
        metrics += mapping(report)
    return "".join(line for metric in metrics for line in _lines(metric, report.host.name))


def _run_metrics(report: Report) -> Iterator[Metric]:
    """Yield the metrics of the run itself: when it was, and how it ended."""
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
    samples = [(labels, value) for labels, value in metric.samples if value is not None]
    if not samples:
        return
    yield f"# HELP {metric.name} {_escaped(metric.help)}\n"
    yield f"# TYPE {metric.name} gauge\n"
    values: dict[str, Number] = {}
    for labels, value in samples:
        # Of two that look alike the first stays: node-exporter would refuse the whole file.
        values.setdefault(_labels({"hostname": host, **labels}), value)
    for shown, first in values.items():
        yield f"{metric.name}{shown} {_number(first)}\n"


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
