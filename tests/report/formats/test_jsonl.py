"""JSON lines: each stands alone, and holds what the document holds."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings

from gpucheck.bench.ci.model import RunComparison
from gpucheck.detect.run import detect
from gpucheck.inventory.model import Inventory
from gpucheck.report.envelope import Failure, Report
from gpucheck.report.errors import ExitCode
from gpucheck.report.formats.json import document
from gpucheck.report.formats.json import render_lines as render
from gpucheck.report.text import View
from gpucheck.version import __version__
from tests.bench.ci.test_verdicts import ROW, SIDE
from tests.fakes.bench_results import copy_result
from tests.fakes.reports import any_list, eventful_machine, list_report, wrap
from tests.fakes.verdicts import HOSTILE, of_every_kind, report
from tests.sampling import examples

HEAD = ("schema", "time", "host", "record")


def read(text: str) -> list[dict[str, Any]]:
    assert text.isascii()
    assert text.endswith("\n")
    return [json.loads(line) for line in text.splitlines()]


def rows(report: Report, kind: str) -> list[dict[str, Any]]:
    """Return the lines of a kind without what every line has."""
    found = [line for line in read(render(report, View())) if line["record"] == kind]
    return [{key: line[key] for key in line if key not in HEAD} for line in found]


@pytest.mark.parametrize(
    ("made", "lines"),
    [
        (list_report(), {"gpu": "gpus"}),
        (wrap("detect", detect(eventful_machine())), {"finding": "checks"}),
        (report(copy_result()), {"measurement": "measurements"}),
        (of_every_kind(), {"gate": "gates"}),
        (
            report(RunComparison(first=SIDE, second=SIDE, rows=(ROW,)), command="compare"),
            {"row": "rows"},
        ),
    ],
    ids=["list", "detect", "bench", "gates", "compare"],
)
def test_lines_are_the_rows_of_the_document(made: Report, lines: dict[str, str]) -> None:
    whole = document(made)
    result = whole["result"]
    assert isinstance(result, dict)

    for kind, field in lines.items():
        assert result[field] != []
        # No field of a row hides behind one of the line's own.
        assert rows(made, kind) == result[field]
    for line in read(render(made, View())):
        assert line["schema"] == made.schema
        assert (line["time"], line["host"]) == (made.time, made.host.name)


def test_the_last_line_says_how_the_run_ended() -> None:
    failure = Failure("no-driver", "There is no driver.", ("Install it.",))
    bad = report(None, code=ExitCode.MISSING, failure=failure, command="list")

    assert read(render(bad, View())) == [
        {
            "schema": "gpucheck/list/1",
            "time": "2026-11-21T03:32:00Z",
            "host": "node17",
            "record": "run",
            "version": __version__,
            "driver_version": "580.95.05",
            "status": "unknown",
            "exit_code": 4,
            "error": {
                "code": "no-driver",
                "message": "There is no driver.",
                "remedy": ["Install it."],
            },
            "warnings": [],
        }
    ]


def test_no_name_breaks_a_line() -> None:
    hostile = report(None, host=HOSTILE)

    (line,) = read(render(hostile, View()))

    assert line["host"] == HOSTILE


@settings(max_examples=examples(8))
@given(any_list())
def test_any_list_has_a_line_for_each_gpu(report: Report) -> None:
    inventory = report.result
    assert isinstance(inventory, Inventory)

    assert [line["index"] for line in rows(report, "gpu")] == [g.index for g in inventory.gpus]
