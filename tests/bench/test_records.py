"""Rows for other programs, whole: columns of CSV and JSON lines."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from gpucheck.bench.model import BurnResult, GateStatus
from gpucheck.bench.records import COLUMNS, records, rows
from gpucheck.report.text import View
from tests.bench.test_burn import burned
from tests.fakes.bench_results import varied_result
from tests.fakes.verdicts import gate, report
from tests.report.formats.recorded import recorded


def test_every_field_of_a_row_has_its_column() -> None:
    heading, found = rows(report(varied_result()), View())

    assert heading == COLUMNS
    assert all(len(each) == len(heading) for each in found)
    text = "".join(
        f"{name}: {value!r}\n"
        for each in found
        for name, value in (*zip(heading, each, strict=True), ("--", None))
    )
    assert text == recorded("bench-records", text)


@pytest.mark.parametrize("without", [None, "words"])
def test_without_a_benchmark_there_is_the_heading_alone(without: object) -> None:
    assert rows(report(without), View()) == (COLUMNS, [])
    assert list(records(without)) == []


def test_lines_are_all_that_a_run_found() -> None:
    found = replace(varied_result(), gates=(gate(), gate(GateStatus.FAIL)))
    burn = burned()[0]

    lines = list(records(found))

    assert [each for kind, each in lines if kind == "measurement"] == list(found.measurements)
    assert [each for kind, each in lines if kind == "corruption"] == list(found.corruption)
    assert [each for kind, each in lines if kind == "gate"] == list(found.gates)
    assert Counter(kind for kind, _ in records(burn)) == {
        "device": len(burn.devices),
        "gate": len(burn.gates),
    }
    assert isinstance(burn, BurnResult)
