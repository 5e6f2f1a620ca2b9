"""A benchmark's and a burn's metrics, whole: names, labels and values of every series."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest

from gpucheck.bench.model import GateStatus
from gpucheck.bench.records import burn_metrics, metrics
from gpucheck.report.formats.prometheus import Metric
from tests.bench.test_burn import burned
from tests.fakes.bench_results import varied_result
from tests.fakes.verdicts import gate, report
from tests.report.formats.recorded import recorded


def in_lines(found: Iterable[Metric]) -> str:
    return "".join(
        f"# {metric.name}: {metric.help}\n"
        + "".join(
            f"{' '.join(f'{name}={text}' for name, text in labels.items() if text)}: {value}\n"
            for labels, value in metric.samples
        )
        for metric in found
    )


def test_every_series_of_a_benchmark() -> None:
    found = replace(varied_result(), gates=(gate(), gate(GateStatus.SKIP, device="node")))

    text = in_lines(metrics(report(found)))

    assert text == recorded("bench-metrics", text)


def test_every_series_of_a_burn() -> None:
    text = in_lines(burn_metrics(report(burned()[0], command="burn")))

    assert text == recorded("burn-metrics", text)


def test_another_document_has_no_such_metrics() -> None:
    for mapping in (metrics, burn_metrics):
        with pytest.raises(TypeError, match="NoneType"):
            list(mapping(report(None)))
