"""Who gets a document, in which outcome, and what is said beside it."""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np
import pytest

from gpucheck import cli
from gpucheck.cli import output
from gpucheck.cli.options import Context, Shared
from gpucheck.report.envelope import Answer, Notice
from gpucheck.report.errors import GpucheckError
from tests.fakes.bench_results import measurement, result_of


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
    shared = Shared(**{"format": "json", **options})

    output.publish("bench", shared, Answer(result), "2026-11-21T03:32:00Z")

    assert ("--samples summary leaves single samples out" in capsys.readouterr().err) is warned


@pytest.mark.parametrize(("strict", "told"), [(False, False), (True, True)])
def test_quiet_keeps_the_warning_that_strict_fails_by(
    strict: bool, told: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    answer = Answer(result_of(), warnings=(Notice("code", "The reason."),))

    output.publish("bench", Shared(verbosity=-1, strict=strict), answer, "2026-11-21T03:32:00Z")

    assert ("The reason." in capsys.readouterr().err) is told


def test_what_failed_for_lack_of_memory_is_freed_before_the_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    held: list[weakref.ref[object]] = []

    def run() -> int:
        array = np.zeros(1)
        held.append(weakref.ref(array))
        raise MemoryError

    def fail(context: Context, error: GpucheckError) -> int:
        assert held[0]() is None
        return int(error.exit_code)

    monkeypatch.setattr(cli, "_command", lambda *_: run)
    monkeypatch.setattr(output, "fail", fail)

    assert cli.main(["list"]) == 3
