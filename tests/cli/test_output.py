"""Messages on stderr: whole lines for logs, wrapped ones on a terminal; who gets a document."""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np
import pytest

from gpucheck import cli
from gpucheck.cli import output
from gpucheck.report.envelope import Answer, Failure, Notice
from gpucheck.report.errors import GpucheckError
from tests.fakes.bench_results import measurement, result_of

FAILURE = Failure(
    code="no-cupy",
    message="No GPU can be measured: CuPy is not installed.",
    remedy=(
        "Install it: /opt/venv/bin/python -m pip install cupy-cuda13x",
        "Or measure the processor alone, with bench --device cpu.",
    ),
)


def written(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *, terminal: bool
) -> str:
    monkeypatch.setattr(output, "is_watched", lambda: terminal)
    monkeypatch.setenv("COLUMNS", "40")
    output.write_failure(FAILURE)
    output.write_warnings([Notice(code="x", message="short")])
    return capsys.readouterr().err


def test_a_log_gets_whole_lines(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert written(capsys, monkeypatch, terminal=False).splitlines() == [
        f"gpucheck: {FAILURE.message}",
        *(f"  {step}" for step in FAILURE.remedy),
        "gpucheck: warning: short",
    ]


def test_a_terminal_gets_lines_that_fit_and_commands_to_copy(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert written(capsys, monkeypatch, terminal=True).splitlines() == [
        "gpucheck: No GPU can be measured: CuPy",
        "  is not installed.",
        "  Install it:",
        "    /opt/venv/bin/python -m pip install cupy-cuda13x",
        "  Or measure the processor alone, with",
        "    bench --device cpu.",
        "gpucheck: warning: short",
    ]


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["list", "--json"], "json"),
        (["list", "--format", "json"], "json"),
        (["list", "--format=jsonl"], "jsonl"),
        (["list", "--format", "jsonl", "--nope"], "jsonl"),
        (["list", "--format", "csv"], None),
        (["bench", "json"], None),
        (["--json=x"], None),
        (["list", "--format"], None),
        ([], None),
    ],
)
def test_a_document_in_every_outcome_is_asked_for(words: list[str], found: str | None) -> None:
    assert output.requested_document(words) == found


@pytest.mark.parametrize(
    ("samples", "options", "warned"),
    [
        (20_000, {}, True),
        (2_000, {}, False),
        (0, {}, False),
        (20_000, {"verbosity": -1}, False),
        (20_000, {"format": "table"}, False),
    ],
)
def test_a_large_document_of_bench_names_what_makes_it_small(
    samples: int, options: dict[str, Any], warned: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    row = measurement("copy", 1e9, samples_s=(0.00123456789,) * samples)
    # The notes alone make it large.
    result = result_of(row, notes=("note",) * (20_000 if samples == 0 else 1))
    shared = output.Shared(**{"format": "json", **options})

    output.publish("bench", shared, Answer(result), "2026-11-21T03:32:00Z")

    assert ("--samples summary leaves single samples out" in capsys.readouterr().err) is warned


def test_what_failed_for_lack_of_memory_is_freed_before_the_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    held: list[weakref.ref[object]] = []

    def run() -> int:
        array = np.zeros(1)
        held.append(weakref.ref(array))
        raise MemoryError

    def fail(context: output.Context, error: GpucheckError) -> int:
        assert held[0]() is None
        return int(error.exit_code)

    monkeypatch.setattr(cli, "_command", lambda *_: run)
    monkeypatch.setattr(output, "fail", fail)

    assert cli.main(["list"]) == 3
