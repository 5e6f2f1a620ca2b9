"""Sentences about frameworks: each is drawn from rows alone, and missing where nothing follows."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpucheck.bench.model import Conclusion, Doubt, Measurement, Scope
from tests.fakes.bench import FLOAT32, PYTORCH
from tests.fakes.framework_rows import (
    COMPILED,
    FACTS,
    TENSORFLOW,
    made_result,
    made_row,
    on_cpu,
    on_gpu,
)

BFLOAT16 = replace(FLOAT32, input="bfloat16", output="bfloat16", math_mode="bf16")
DOUBTS = {code: Doubt(code=code, message="", next="") for code in ("host-busy", "quota-reached")}


def said(*rows: Measurement, code: str) -> list[Conclusion]:
    return [one for one in made_result(*rows).conclusions if one.code == code]


def test_without_a_framework_nothing_is_said() -> None:
    own = [row for row in (*on_cpu(), *on_gpu()) if row.framework is None]

    assert made_result(*own).conclusions == ()


def test_each_makers_best_form_has_its_share_of_the_copy() -> None:
    (one,) = [
        found for found in said(*on_cpu(), code="framework-share") if found.kernel == "softmax"
    ]

    assert one.sentence == (
        "gpucheck's softmax (fused) reaches 82 % of this CPU's copy, PyTorch's (torch.compile) "
        "50 %, TensorFlow's (tf.function) 46 %"
    )
    assert list(one.facts) == ["gpucheck_percent", "pytorch_percent", "tensorflow_percent"]
    assert one.facts["pytorch_percent"] == pytest.approx(49.83, abs=0.01)


def test_the_share_is_of_the_exponentials_where_those_limit_every_maker() -> None:
    rows = [
        replace(row, percent_of_copy=50.0, percent_of_peak=90.0)
        for row in on_cpu()
        if row.kernel == "softmax"
    ]

    (one,) = said(*rows, code="framework-share")

    assert "reaches 90 % of this CPU's exponentials" in one.sentence


def test_two_formats_of_a_kernel_are_told_apart() -> None:
    rows = on_cpu()
    halves = [replace(row, dtype=BFLOAT16) for row in rows if row.kernel == "softmax"]

    sentences = [
        found.sentence
        for found in said(*rows, *halves, code="framework-share")
        if found.kernel == "softmax"
    ]

    assert [text.partition(": ")[0] for text in sentences] == ["float32", "bfloat16"]
    assert len({text.partition(": ")[2] for text in sentences}) == 1


def test_training_is_compared_with_the_fastest_since_no_limit_says_much_of_it() -> None:
    (one,) = [found for found in said(*on_cpu(), code="framework-share") if found.kernel == "train"]

    assert one.sentence == "PyTorch's train (eager) reaches 40 % of the speed of gpucheck's numpy"


@pytest.mark.parametrize(
    "changes",
    [
        {"ci95_s": None},
        {"ci95_s": (0.007, 0.0121)},
        {"time_s": None},
        {"scope": Scope.END_TO_END},
        {"doubts": (DOUBTS["host-busy"],)},
        {"doubts": (DOUBTS["quota-reached"],)},
    ],
    ids=["no-interval", "hardly-known", "unmeasured", "with-transfers", "busy", "short-of-quota"],
)
def test_rows_that_show_little_carry_no_sentence(changes: dict[str, object]) -> None:
    row = replace(made_row("softmax", "cpu", 0.01, PYTORCH), **changes)  # type: ignore[arg-type]

    assert not said(made_row("softmax", "cpu", 0.02), row, code="framework-share")


def test_compiling_says_what_it_gains_and_when_it_pays_off() -> None:
    (one,) = said(*on_cpu(), code="compiling")

    assert one.sentence == (
        "PyTorch's torch.compile is 4.8 times as fast as its eager code; compiling takes 2.49 s "
        "once, which pays off from 56 operations"
    )
    assert one.facts["pays_off_from"] == 56


def test_compiling_that_gains_nothing_is_said_too() -> None:
    rows = made_row("softmax", "cpu", 0.01, PYTORCH), made_row("softmax", "cpu", 0.02, COMPILED)

    (one,) = said(*rows, code="compiling")

    assert "gains nothing here: its eager code is 2.0 times as fast" in one.sentence


def test_a_first_run_that_was_no_slower_tells_nothing_of_compiling() -> None:
    compiled = made_row("softmax", "cpu", 0.01, COMPILED, cold_s=0.009)

    (one,) = said(made_row("softmax", "cpu", 0.02, PYTORCH), compiled, code="compiling")

    assert one.sentence == "PyTorch's torch.compile is 2.0 times as fast as its eager code"
    assert "compile_s" not in one.facts


def test_forms_whose_intervals_meet_are_not_compared() -> None:
    eager = made_row("softmax", "cpu", 0.0110, PYTORCH, ci95_s=(0.0095, 0.0120))
    compiled = made_row("softmax", "cpu", 0.0100, COMPILED, ci95_s=(0.0090, 0.0105))

    assert not said(eager, compiled, code="compiling")


def test_a_faster_blas_is_named_with_the_one_that_is_used() -> None:
    (one,) = said(*on_cpu(), code="faster-blas")

    assert one.sentence == (
        "TensorFlow (oneDNN 3.7.1) multiplies 6 % faster than gpucheck's own BLAS, "
        "openblas 0.3.31 (SkylakeX), with 2 threads"
    )
    assert one.facts == {
        "percent": pytest.approx(5.52, abs=0.01),
        "threads": 2,
        "blas": "openblas 0.3.31 (SkylakeX)",
        "faster_blas": "oneDNN 3.7.1",
    }


def test_each_number_of_threads_has_its_own_fastest_blas() -> None:
    alone = made_row("matmul", "cpu", 0.150, TENSORFLOW, variant="matmul-1-thread", threads=1)

    found = said(*on_cpu(), alone, code="faster-blas")

    assert [one.facts["threads"] for one in found] == [2, 1]


@pytest.mark.parametrize(("median_s", "count"), [(0.0885, 0), (0.0878, 0), (0.0865, 1)])
def test_a_blas_is_faster_only_beyond_the_intervals(median_s: float, count: int) -> None:
    rows = made_row("matmul", "cpu", 0.0880), made_row("matmul", "cpu", median_s, TENSORFLOW)

    assert len(said(*rows, code="faster-blas")) == count


def test_the_same_version_of_a_blas_is_not_a_faster_one() -> None:
    facts = (replace(FACTS[1], blas="scipy-openblas 0.3.31"), FACTS[0])
    rows = made_row("matmul", "cpu", 0.0880), made_row("matmul", "cpu", 0.0800, TENSORFLOW)
    mkl = made_row("matmul", "cpu", 0.0850, PYTORCH)

    alone, both = (made_result(*found, facts=facts) for found in (rows, (*rows, mkl)))

    assert "faster-blas" not in {one.code for one in alone.conclusions}
    (one,) = [one for one in both.conclusions if one.code == "faster-blas"]
    assert one.sentence.startswith("PyTorch (MKL 2024.2) multiplies 4 % faster")


def test_a_gpu_that_waits_for_the_host_is_told_what_helps() -> None:
    (one,) = said(*on_cpu(), *on_gpu(), code="waits-for-host")

    assert one.device == "gpu:0"
    assert one.sentence == (
        "PyTorch eager on gpu:0 waits for the host, which hands over work for 97 % of the time: "
        "take larger batches (--size; size in a profile), or compile the code"
    )


def test_compiling_is_no_advice_where_it_was_done_and_a_busy_gpu_does_not_wait() -> None:
    waiting = made_row("train", "gpu:0", 0.0007, COMPILED, facts={"enqueue_share": 0.95})
    eager = made_row("train", "gpu:0", 0.0009, PYTORCH, facts={"enqueue_share": 0.99})
    busy = made_row("matmul", "gpu:0", 0.01, PYTORCH, facts={"enqueue_share": 0.2})

    (one,) = said(waiting, eager, busy, code="waits-for-host")

    assert "torch.compile on gpu:0" in one.sentence
    assert one.sentence.endswith("larger batches (--size; size in a profile)")


def test_equal_accuracy_is_said_and_differing_accuracy_is_not() -> None:
    (one,) = said(*on_cpu(), code="same-accuracy")
    other = made_row("train", "cpu", 0.0004, TENSORFLOW, facts={"accuracy": 0.894})

    assert one.sentence == "gpucheck and PyTorch learn the same: 89.8 to 89.9 % accuracy"
    assert not said(*on_cpu(), other, code="same-accuracy")


def test_an_accuracy_that_is_the_same_to_the_last_digit_is_said_once() -> None:
    rows = [
        made_row("train", "cpu", 0.1, use, facts={"accuracy": 0.972}) for use in (None, PYTORCH)
    ]

    (one,) = said(*rows, code="same-accuracy")

    assert one.sentence == "gpucheck and PyTorch learn the same: 97.2 % accuracy"


def batches(times: dict[int, tuple[float, float]]) -> list[Measurement]:
    return [
        made_row("batch", device, median_s, PYTORCH, shape=(size,))
        for size, both in times.items()
        for device, median_s in zip(("cpu", "gpu:0"), both, strict=True)
    ]


@pytest.mark.parametrize(
    ("times", "words"),
    [
        (
            {1: (1e-5, 1e-4), 64: (2e-4, 1e-4), 512: (1e-4, 1.1e-4), 4096: (1e-2, 1e-3)},
            "PyTorch on gpu:0 is faster than the CPU from batches of 4096 on",
        ),
        (
            {1: (1e-5, 1e-4), 64: (2e-4, 1e-4), 4096: (1e-2, 1e-3)},
            "from batches of 64 on (10 times with 4096)",
        ),
        (
            {1: (1e-5, 1e-4), 64: (1e-5, 1e-4)},
            "is not known to be faster than the CPU up to batches of 64",
        ),
        ({1: (1e-3, 1e-4), 64: (1e-2, 1e-4)}, "from batches of 1 on (100 times with 64)"),
    ],
    ids=["falls-back", "from-64", "never", "always"],
)
def test_the_break_even_batch_is_the_one_from_which_the_gpu_stays_faster(
    times: dict[int, tuple[float, float]], words: str
) -> None:
    (one,) = said(*batches(times), code="break-even-size")

    assert words in one.sentence


def test_one_batch_alone_has_no_break_even() -> None:
    assert not said(*batches({64: (1e-3, 1e-4)}), code="break-even-size")
