"""What github-action-benchmark reads: entries of one direction, whose names stay the same."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any

from gpucheck.bench.model import BenchResult, Verified
from gpucheck.report.envelope import Failure
from gpucheck.report.errors import ExitCode
from gpucheck.report.formats.github_benchmark import UNIT, render
from gpucheck.report.text import View, printable
from tests.fakes.bench_results import doubt, gpu, measurement, product, result_of
from tests.fakes.verdicts import HOSTILE, report

#: The action's pattern, src/extractRangeInfo.ts.
RANGE = re.compile(r"(?P<prefix>(\+-|±)\s*)(?P<value>\d.+)")
#: The units that it converts into one another, src/normalizeUnit.ts.
TIME_UNITS = ("s", "ms", "us", "ns")


def read(result: BenchResult) -> list[dict[str, Any]]:
    """Return the entries, held to the action's BenchmarkResult (src/extract.ts)."""
    entries: list[dict[str, Any]] = json.loads(render(report(result), View()))
    for entry in entries:
        assert set(entry) <= {"name", "value", "range", "unit", "extra"}
        assert isinstance(entry["value"], float)
        assert entry["unit"] == UNIT
        assert all(isinstance(entry[key], str) for key in entry if key != "value")
        if "range" in entry:
            found = RANGE.search(entry["range"])
            assert found is not None
            assert float(found["value"]) >= 0
    assert len({entry["name"] for entry in entries}) == len(entries)
    return entries


def test_times_of_both_devices() -> None:
    cpu = replace(measurement("copy", 1e9), repeat95_s=(0.9, 1.3), id="copy/a")
    fast = replace(product(700.0, shape=(4096, 4096, 4096)), id="matmul/b", doubts=(doubt("cold"),))

    first, second = read(result_of(cpu, fast))

    assert UNIT in TIME_UNITS
    assert first == {
        "name": "copy/a on cpu (Pretended CPU)",
        "unit": "us",
        "value": 1e6,
        "range": "± 300000.0",
        "extra": "1 GB/s",
    }
    assert second["name"].startswith(f"matmul/b on gpu:0 ({gpu().name}")
    assert "range" not in second
    assert second["extra"] == "700 TFLOP/s\nin doubt: cold"


def test_a_wrong_or_missing_row_enters_no_history() -> None:
    wrong = Verified(error=1.0, bound=1e-5, ok=False, reference="pretended")
    rows = (
        replace(measurement("copy", 1e9), verified=wrong),
        replace(measurement("triad", 1e9), median_s=None),
        replace(measurement("softmax", 1e9), error=Failure("out-of-memory", "No memory.")),
    )

    # The action refuses a file without entries: such a run is not recorded.
    assert read(result_of(*rows)) == []


def test_a_failed_run_has_no_entries() -> None:
    failure = Failure("no-gpu", "There is no GPU.")

    text = render(report(None, code=ExitCode.MISSING, failure=failure), View())

    assert json.loads(text) == []


def test_names_are_printable() -> None:
    found = result_of(measurement("copy", 1e9))
    named = replace(found, environment=replace(found.environment, cpu_model=HOSTILE))

    (entry,) = read(named)

    assert entry["name"].endswith(f"on cpu ({printable(HOSTILE)})")
    assert entry["name"].isprintable()
