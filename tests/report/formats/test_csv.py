"""A list as CSV: parses back into what was found."""

from __future__ import annotations

import csv
import io

import pytest
from hypothesis import given, settings

from gpucheck.inventory.columns import COLUMNS, CSV_COLUMNS
from gpucheck.inventory.model import Inventory
from gpucheck.report.envelope import Report
from gpucheck.report.formats.csv import render
from gpucheck.report.text import View, printable
from tests.fakes.reports import any_list, list_report
from tests.sampling import examples


def read(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def test_a_list() -> None:
    first, *_, lost = read(render(list_report(), View()))

    assert tuple(first) == CSV_COLUMNS
    assert first["index"] == "0"
    assert first["cuda_index"] == "1"
    assert first["visible"] == "true"
    assert first["memory_used_bytes"] == str(75 << 30)
    assert first["power_w"] == "120.5"
    assert first["ecc_mode"] == "true"
    assert first["fan_percent"] == ""
    assert first["processes"] == "2"
    assert (lost["state"], lost["temperature_c"], lost["visible"]) == ("lost", "", "false")


def test_chosen_columns() -> None:
    text = render(list_report(), View(columns=("name", "index")))

    assert text.splitlines()[:2] == ["name,index", "NVIDIA H100 80GB HBM3,0"]


@pytest.mark.parametrize("name", COLUMNS)
def test_every_column_can_be_chosen(name: str) -> None:
    assert len(read(render(list_report(), View(columns=(name,))))) == 4


def test_without_heading() -> None:
    assert render(list_report(), View(columns=("index",), header=False)) == "0\n1\n2\n3\n"


def test_without_a_result_there_is_the_heading() -> None:
    text = render(list_report()._replace(result=None), View(columns=("index", "uuid")))

    assert text == "index,uuid\n"


@settings(max_examples=examples(15))
@given(any_list())
def test_any_list_parses_back_from_a_line_for_each_row(report: Report) -> None:
    inventory = report.result
    assert isinstance(inventory, Inventory)
    text = render(report, View())
    rows = read(text)

    assert len(text.splitlines()) == len(inventory.gpus) + 1
    assert [char for char in text if not char.isprintable() and char != "\n"] == []
    assert len(rows) == len(inventory.gpus)
    for row, gpu in zip(rows, inventory.gpus, strict=True):
        assert row["index"] == str(gpu.index)
        name = printable(gpu.name or "")
        # A spreadsheet would take it for a formula.
        assert row["name"] == (f"'{name}" if name.startswith(("=", "+", "-", "@")) else name)
        assert row["memory_used_bytes"] == ("" if gpu.memory_used_bytes is None else
                                            str(gpu.memory_used_bytes))  # fmt: skip


@pytest.mark.parametrize("name", ["=cmd|' /C calc'!A0", "+1", "-1", "@SUM(A1)"])
def test_no_name_is_a_spreadsheets_formula(name: str) -> None:
    report = list_report()
    assert isinstance(report.result, Inventory)
    gpu = report.result.gpus[0]._replace(name=name, temperature_c=-5)
    report = report._replace(result=report.result._replace(gpus=(gpu,)))

    [row] = read(render(report, View(columns=("name", "temperature_c"))))

    assert row == {"name": f"'{name}", "temperature_c": "-5"}
