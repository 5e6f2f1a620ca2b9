"""Rows as CSV: they parse back into what was found."""

from __future__ import annotations

import csv
import io
from dataclasses import replace

import pytest
from hypothesis import given, settings

from gpucheck.bench import records as bench_records
from gpucheck.bench.ci.model import RunComparison
from gpucheck.bench.model import FrameworkUse
from gpucheck.inventory.columns import COLUMNS, CSV_COLUMNS
from gpucheck.inventory.model import Inventory
from gpucheck.report.envelope import Failure, Report
from gpucheck.report.formats.lines import rows as render
from gpucheck.report.text import View, printable
from tests.bench.ci.test_verdicts import ROW, SIDE
from tests.fakes.bench_results import doubt, measurement, product, result_of
from tests.fakes.reports import any_list, list_report
from tests.fakes.verdicts import report
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


@settings(max_examples=examples(10))
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


# ----------------------------------------------------------------------------- bench, compare


def test_a_benchmark_has_a_row_for_each_measurement() -> None:
    rows = (
        replace(measurement("copy", 1e9), ci95_s=(0.9, 1.1), doubts=(doubt("a"), doubt("b"))),
        replace(
            product(700.0),
            framework=FrameworkUse(name="pytorch", version="2.13", form="eager", python="/p"),
        ),
        replace(
            measurement("triad", 1e9, device="gpu:0"),
            time_s=None,
            median_s=None,
            throughput=None,
            verified=None,
            error=Failure("out-of-memory", "No memory,\nat all."),
        ),
    )

    first, second, third = read(render(report(result_of(*rows)), View()))

    assert tuple(first) == bench_records.COLUMNS
    assert (first["time"], first["host"]) == ("2026-11-21T03:32:00Z", "node17")
    assert (first["device"], first["gpu_uuid"], first["threads"]) == ("cpu", "", "2")
    assert (first["median_s"], first["ci95_low_s"], first["repeat95_low_s"]) == ("1.0", "0.9", "")
    assert (first["throughput"], first["throughput_unit"]) == ("1000000000.0", "B/s")
    assert (first["verified"], first["doubts"], first["shape"]) == ("true", "a b", "4096x4096")
    assert (second["framework"], second["framework_version"]) == ("pytorch", "2.13")
    assert (second["dtype"], second["math_mode"]) == ("bfloat16", "bf16")
    assert second["processor"].startswith("NVIDIA H100")
    assert (third["median_s"], third["throughput"], third["verified"]) == ("", "", "")
    assert third["error"] == "No memory,\\nat all."


def test_a_comparison_has_a_row_for_each_row() -> None:
    slower = replace(ROW, ratio=0.39, interval=(0.38, 0.4))
    found = RunComparison(first=SIDE, second=SIDE, rows=(slower, replace(ROW, first=None)))

    first, second = read(render(report(found, command="compare"), View()))

    assert tuple(first) == bench_records.COMPARED_COLUMNS
    assert (first["id"], first["device"], first["status"]) == (ROW.id, ROW.device, ROW.status)
    assert (first["before"], first["now"]) == (str(ROW.first), str(ROW.second))
    assert (first["ratio"], first["ratio_low"], first["ratio_high"]) == ("0.39", "0.38", "0.4")
    assert (second["before"], second["unit"]) == ("", ROW.unit)


@pytest.mark.parametrize("command", ["bench", "compare"])
def test_without_a_run_there_is_the_heading(command: str) -> None:
    text = render(report(None, command=command), View())

    assert len(text.splitlines()) == 1
    assert len(set(text.strip().split(","))) == text.count(",") + 1
