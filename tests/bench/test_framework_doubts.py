"""Doubts that only a framework's rows have, at their edges."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpucheck.bench.framework_conclusions import with_framework_doubts
from gpucheck.bench.model import Doubt, Measurement
from tests.fakes.bench import FLOAT32, PYTORCH
from tests.fakes.framework_rows import COMPILED, FACTS, made_row

TF32 = replace(FLOAT32, math_mode="tf32")


def codes(*rows: Measurement, threads_intra: int | None = 2) -> list[list[str]]:
    facts = [replace(FACTS[0], threads_intra=threads_intra)]
    return [[doubt.code for doubt in row.doubts] for row in with_framework_doubts(rows, facts)]


@pytest.mark.parametrize(
    ("threads_intra", "doubted"), [(2, []), (1, ["threads-differ"]), (None, [])]
)
def test_another_number_of_threads_is_doubted(
    threads_intra: int | None, doubted: list[str]
) -> None:
    own, theirs = made_row("copy", "cpu", 0.1), made_row("copy", "cpu", 0.1, PYTORCH)

    assert codes(own, theirs, threads_intra=threads_intra) == [[], doubted]


def test_rows_of_one_thread_are_not_held_against_the_threads_of_all() -> None:
    alone = made_row("copy", "cpu", 0.1, PYTORCH, variant="copy-1-thread", threads=1)

    assert codes(made_row("copy", "cpu", 0.1), alone) == [[], []]


def test_tf32_that_nobody_asked_for_is_doubted_and_asked_for_it_is_not() -> None:
    reduced = made_row("matmul", "gpu:0", 0.1, PYTORCH, dtype=TF32)
    exact = made_row("matmul", "gpu:0", 0.2, PYTORCH)
    own = made_row("matmul", "gpu:0", 0.2, dtype=TF32)

    assert codes(own, reduced) == [[], ["reduced-precision"]]
    assert codes(reduced, exact) == [[], []]
    assert codes(reduced, replace(exact, device="gpu:1")) == [["reduced-precision"], []]
    assert codes(
        made_row("matmul", "gpu:0", 0.1, PYTORCH, dtype=replace(FLOAT32, input="int8"))
    ) == [[]]
    # What its error shows counts, not what is set.
    measured = Doubt(code="other-precision", message="as exact as float32", next="look")
    assert codes(own, replace(reduced, doubts=(measured,))) == [[], ["other-precision"]]


@pytest.mark.parametrize(
    ("longest_s", "form", "doubted"),
    [
        (3.0, COMPILED, ["compiled-again"]),
        (0.9, COMPILED, []),
        (3.0, PYTORCH, []),
    ],
    ids=["as-long-as-the-first", "far-shorter", "eager"],
)
def test_a_sample_as_long_as_the_compilation_is_doubted(
    longest_s: float, form: object, doubted: list[str]
) -> None:
    row = made_row("softmax", "cpu", 0.01, cold_s=3.0, samples_s=(0.01, longest_s, 0.01))

    assert codes(replace(row, framework=form)) == [doubted]  # type: ignore[arg-type]


def test_a_sample_of_many_loops_hides_a_compilation_as_long_as_all_of_them() -> None:
    row = made_row("softmax", "cpu", 0.01, COMPILED, cold_s=3.0, samples_s=(0.01, 0.31, 0.01))

    assert codes(replace(row, loops=10)) == [["compiled-again"]]
    assert codes(replace(row, loops=2)) == [[]]


def test_a_first_run_that_took_no_longer_than_others_says_nothing() -> None:
    row = made_row("softmax", "cpu", 0.01, COMPILED, cold_s=0.02, samples_s=(0.01, 0.02, 0.01))

    assert codes(row) == [[]]


@pytest.mark.parametrize(
    ("accuracy", "doubted"),
    [(0.8952, []), (0.8948, ["accuracy-differs"]), (0.91, ["accuracy-differs"])],
)
def test_other_accuracy_by_the_same_training_is_doubted(
    accuracy: float, doubted: list[str]
) -> None:
    facts = {"accuracy": 0.898, "accuracy_steps": 1000, "images": "file"}
    own = made_row("train", "cpu", 0.1, variant="numpy", facts=facts)
    theirs = made_row("train", "cpu", 0.1, PYTORCH, facts={**facts, "accuracy": accuracy})
    elsewhere = replace(theirs, facts={**theirs.facts, "accuracy_steps": 10})

    assert codes(own, theirs) == [[], doubted]
    assert codes(own, elsewhere) == [[], []]


def test_a_row_without_a_figure_has_no_doubt() -> None:
    row = replace(made_row("matmul", "gpu:0", 0.1, PYTORCH, dtype=TF32), time_s=None)

    assert codes(row) == [[]]
