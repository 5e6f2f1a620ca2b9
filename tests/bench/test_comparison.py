from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucheck.bench.comparison import REUSE_COUNT, break_even_count, compare, headline, sentence
from gpucheck.bench.model import Doubt, Measurement, Scope
from gpucheck.report.envelope import Failure
from tests.fakes.bench import FLOAT32, PYTORCH, RIGHT, WRONG

SECONDS = st.floats(min_value=1e-7, max_value=1e2)


def row(device: str, median_s: float | None, scope: Scope = Scope.RESIDENT) -> Measurement:
    return Measurement(
        kernel="matmul",
        variant="any",
        device=device,
        gpu_uuid=None,
        dtype=FLOAT32,
        shape=(8, 8, 8),
        scope=scope,
        time_s=median_s,
        ci95_s=None if median_s is None else (median_s, median_s),
        repeat95_s=None if median_s is None else (0.99 * median_s, 1.01 * median_s),
        verified=RIGHT,
    )


def timed(row: Measurement, time_s: float) -> Measurement:
    """Return a row with another time, known as well."""
    return replace(row, time_s=time_s, repeat95_s=(0.99 * time_s, 1.01 * time_s))


CPU = row("cpu", 0.31)
GPU = row("gpu:0", 0.01)
MOVED = row("gpu:0", 0.148, Scope.END_TO_END)


def test_three_speedups_break_even_and_the_sentence() -> None:
    (found,) = compare([CPU, GPU, MOVED])

    assert found.speedup_resident == pytest.approx(31)
    assert found.speedup_end_to_end == pytest.approx(2.09, abs=0.01)
    assert found.speedup_amortised == pytest.approx(0.31 / (0.01 + 0.138 / REUSE_COUNT))
    assert found.break_even == 1
    assert found.sentence == (
        "for this size the GPU is 31 times faster if the data stays there, "
        "2.1 times faster with transfers"
    )


def test_the_fastest_cpu_row_is_the_opponent() -> None:
    (found,) = compare([replace(CPU, variant="slow", time_s=9.0), CPU, GPU])

    assert found.cpu.time_s == 0.31
    assert found.speedup_end_to_end is None
    assert found.break_even is None


def test_each_gpu_gets_its_own_comparison_with_its_own_transfers() -> None:
    other = row("gpu:1", 0.02)

    first, second = compare([CPU, GPU, MOVED, other])

    assert first.speedup_end_to_end is not None
    assert second.gpu.device == "gpu:1"
    assert second.speedup_end_to_end is None


@pytest.mark.parametrize(
    "broken",
    [
        replace(GPU, verified=WRONG),
        replace(GPU, verified=None),
        replace(GPU, time_s=None),
        replace(GPU, error=Failure(code="gpu-lost", message="gone")),
        replace(GPU, shape=(9, 9, 9)),
        replace(GPU, parameters={"temperature": 2.0}),
    ],
    ids=["wrong", "unverified", "unmeasured", "failed", "other-shape", "other-parameter"],
)
def test_rows_that_are_not_the_same_good_answer_are_not_compared(broken: Measurement) -> None:
    assert compare([CPU, broken]) == ()


def test_tf32_against_fp32_is_labelled() -> None:
    fast = replace(GPU, dtype=replace(FLOAT32, math_mode="tf32"))

    (found,) = compare([CPU, fast])

    (doubt,) = found.doubts
    assert doubt.code == "different-precision"
    assert doubt.facts == {"cpu": "fp32", "gpu": "tf32"}


@given(cpu_s=SECONDS, gpu_s=SECONDS, transfer_s=SECONDS)
def test_break_even_is_the_first_count_at_which_the_gpu_wins(
    cpu_s: float, gpu_s: float, transfer_s: float
) -> None:
    count = break_even_count(cpu_s, gpu_s, transfer_s)

    if count is None:
        assert gpu_s >= cpu_s
        return
    slack = 1 + 1e-9
    assert transfer_s + count * gpu_s <= count * cpu_s * slack
    before = count - 1
    assert before == 0 or transfer_s + before * gpu_s >= before * cpu_s / slack


@pytest.mark.parametrize(
    ("resident", "moved", "break_even", "words"),
    [
        (0.5, 0.1, None, "2.0 times slower if the data stays there, 10 times slower with"),
        (1.02, 0.2, 40, "as fast as the CPU if the data stays there, 5.0 times slower"),
        (9.97, 0.5, 3, "moving pays from 3 operations on the same data"),
        (314.2, None, None, "310 times faster if the data stays there; transfers were not"),
    ],
)
def test_the_sentence_says_slower_too(
    resident: float, moved: float | None, break_even: int | None, words: str
) -> None:
    assert words in sentence(resident, moved, break_even)


def test_the_headline_spans_the_kernels_of_equal_precision() -> None:
    slow = [replace(row, kernel="copy") for row in (timed(CPU, 0.5), timed(GPU, 0.25))]
    tf32 = timed(replace(GPU, dtype=replace(FLOAT32, math_mode="tf32")), 1e-9)

    said = headline(compare([CPU, GPU, tf32, *slow])) or ""

    words = "gpu:0 reaches 2.0 (copy float32) to 31 (matmul float32) times the CPU's speed"
    assert said.startswith(f"{words} if the data stays there")
    assert "tf32" not in said


def test_two_precisions_are_named_in_the_sentence() -> None:
    half = replace(GPU, dtype=replace(FLOAT32, input="bfloat16", math_mode="bf16"))

    (found,) = compare([CPU, half])

    words = "the GPU in bfloat16 is 31 times faster than the CPU in float32 if the data stays there"
    assert words in found.sentence
    assert "as fast as the CPU in float32" in sentence(1.0, None, None, " in float32", " in tf32")


def busy(row: Measurement, code: str) -> Measurement:
    return replace(row, doubts=(Doubt(code=code, message="so it is", next="do it"),))


def test_a_side_that_was_slowed_down_puts_the_speed_up_in_doubt() -> None:
    (found,) = compare([busy(CPU, "host-busy"), busy(GPU, "throttled"), MOVED])

    (doubt,) = found.doubts
    assert doubt.code == "side-in-doubt"
    assert "CPU's time is in doubt (host-busy) and the GPU's time is in doubt" in doubt.message
    assert (headline([found]) or "").endswith("(in doubt: host-busy, throttled)")


def test_a_wide_interval_does_not_slow_one_side_down() -> None:
    (found,) = compare([busy(CPU, "unconverged"), busy(GPU, "power-capped")])

    assert found.doubts == ()


def test_many_gpus_share_one_headline() -> None:
    rows = [replace(timed(GPU, 0.01 + number / 1000), device=f"gpu:{number}") for number in (0, 5)]

    two, many = (
        headline(compare([CPU, *rows])),
        headline(compare([CPU, *rows, replace(GPU, device="gpu:7")])),
    )

    assert (two or "").count("gpu:") == 2
    assert (many or "").startswith("each of 3 GPUs reaches 21 ")


@pytest.mark.parametrize("around", [(0.005, 0.4), None])
def test_what_differs_within_its_intervals_is_no_speed_up(
    around: tuple[float, float] | None,
) -> None:
    """One run's 31 times may be the next one's 0.8, and without intervals anything."""
    (found,) = compare([CPU, replace(GPU, repeat95_s=around), MOVED])

    assert found.speedup_resident == pytest.approx(31)
    assert found.sentence == (
        "for this size the GPU is not known to be faster or slower than the CPU if the data stays "
        "there, 2.1 times faster with transfers"
    )
    assert headline([found]) is None


def test_transfers_that_decide_nothing_are_in_no_headline() -> None:
    (found,) = compare([CPU, GPU, replace(MOVED, repeat95_s=(0.1, 0.5))])

    assert found.sentence.endswith("stays there, not known to be faster or slower with transfers")
    assert "transfers" not in (headline([found]) or "transfers")
    assert found.resident_repeat95 == pytest.approx((31 * 0.99 / 1.01, 31 * 1.01 / 0.99))
    assert found.end_to_end_repeat95 == pytest.approx((0.31 * 0.99 / 0.5, 0.31 * 1.01 / 0.1))


def test_a_sweep_names_its_kernel_once() -> None:
    sizes = [
        replace(timed(one, one_s), shape=(size,))
        for size, gpu_s in ((1, 0.62), (64, 0.01))
        for one, one_s in ((CPU, 0.31), (GPU, gpu_s))
    ]
    other = [replace(one, kernel="copy") for one in (timed(CPU, 0.2), GPU)]

    alone, among = headline(compare(sizes)), headline(compare([*sizes, *other]))

    assert (
        alone == "gpu:0 reaches 0.5 to 31 times the CPU's speed in matmul float32 if the data "
        "stays there"
    )
    assert (among or "").startswith("gpu:0 reaches 0.5 to 31 times (matmul float32) the CPU's")


def test_without_a_comparison_there_is_no_headline() -> None:
    assert headline(()) is None


def test_a_side_without_an_interval_puts_the_speed_up_in_doubt() -> None:
    (found,) = compare([replace(CPU, ci95_s=None), GPU])

    (doubt,) = found.doubts
    assert "the CPU's time is in doubt (no-interval)" in doubt.message


@pytest.mark.parametrize(
    ("factor", "words"),
    [
        (0.9, "the GPU is 1.1 times slower if"),
        (0.95, "the GPU is as fast as the CPU if"),
        (1.04, "the GPU is as fast as the CPU if"),
        (1.05, "the GPU is 1.1 times faster if"),
        (1.5, "the GPU is 1.5 times faster if"),
    ],
)
def test_up_to_five_percent_is_as_fast(factor: float, words: str) -> None:
    assert words in sentence(factor, None, None)


def test_moving_pays_only_where_it_does_not_pay_at_once() -> None:
    assert "moving pays from 7" in sentence(2.0, 0.9, 7)
    assert "moving pays" not in sentence(2.0, 1.0, 7)


# ------------------------------------------------------------------------------ frameworks

TORCH_CPU = replace(timed(CPU, 0.2), framework=PYTORCH)
TORCH_GPU = replace(timed(GPU, 0.02), framework=PYTORCH)
TORCH_MOVED = replace(timed(MOVED, 0.03), framework=PYTORCH)
COMPILED_GPU = replace(TORCH_GPU, framework=replace(PYTORCH, form="torch.compile"), time_s=0.01)


def test_the_best_cpu_row_is_the_opponent_whoever_made_it() -> None:
    own, torch = compare([CPU, TORCH_CPU, GPU, MOVED, TORCH_GPU, TORCH_MOVED])

    assert own.cpu == torch.cpu
    assert own.cpu.framework == PYTORCH
    assert own.gpu.framework is None
    assert own.speedup_resident == pytest.approx(20)
    assert own.speedup_own_cpu == pytest.approx(31)
    assert torch.speedup_resident == torch.speedup_own_cpu == pytest.approx(10)
    assert torch.speedup_end_to_end == pytest.approx(0.2 / 0.03)
    assert own.sentence.startswith(
        "for this size the GPU with gpucheck's any is 20 times faster than the CPU with PyTorch "
        "eager if the data stays there"
    )


def test_a_frameworks_gpu_meets_gpuchecks_cpu_kernel_if_that_is_faster() -> None:
    (found,) = compare([replace(CPU, time_s=0.1), TORCH_CPU, TORCH_GPU])

    assert found.cpu.framework is None
    assert found.speedup_resident == pytest.approx(5)
    assert found.speedup_own_cpu == pytest.approx(10)
    assert found.speedup_end_to_end is None, "gpucheck's transfers are not PyTorch's"


def test_the_fastest_form_of_a_framework_is_its_side() -> None:
    (found,) = compare([TORCH_CPU, TORCH_GPU, COMPILED_GPU])

    assert found.gpu.framework == COMPILED_GPU.framework
    assert found.speedup_resident == pytest.approx(20)


def test_a_framework_without_a_cpu_row_has_no_speed_up_over_its_own() -> None:
    (found,) = compare([CPU, TORCH_GPU])

    assert found.speedup_own_cpu is None


def test_a_slow_cpu_row_in_16_bits_does_not_stand_for_the_cpu() -> None:
    half = replace(FLOAT32, input="bfloat16", math_mode="bf16")
    slow = replace(TORCH_CPU, dtype=half, time_s=5.0)
    quick = replace(slow, time_s=0.05)
    on_gpu = replace(TORCH_GPU, dtype=half)

    (against_slow,) = compare([CPU, slow, on_gpu])
    (against_quick,) = compare([CPU, quick, on_gpu])

    assert against_slow.cpu.dtype == FLOAT32
    assert against_slow.cpu.time_s == 0.31
    assert against_quick.cpu.dtype == half


def test_float64_is_not_compared_with_faster_float32() -> None:
    double = replace(FLOAT32, input="float64", accumulate="float64", math_mode="fp64")
    cpu = replace(CPU, dtype=double, time_s=0.9)

    (found,) = compare([CPU, cpu, replace(GPU, dtype=double)])

    assert found.cpu.time_s == 0.9


def test_a_faster_cpu_side_that_is_not_installed_is_a_doubt_with_its_command() -> None:
    (found,) = compare([CPU, GPU], {"matmul": "pip install it"})
    (other,) = compare([CPU, GPU], {"softmax": "pip install it"})

    assert [(doubt.code, doubt.next) for doubt in found.doubts] == [
        ("faster-cpu-exists", "pip install it")
    ]
    assert not other.doubts


def test_different_arithmetic_of_a_framework_names_the_option_that_makes_it_equal() -> None:
    tf32 = replace(TORCH_GPU, dtype=replace(FLOAT32, math_mode="tf32"))

    (found,) = compare([CPU, tf32])

    (doubt,) = found.doubts
    assert doubt.code == "different-precision"
    assert "--same-math" in doubt.next


def test_the_headline_names_each_maker_on_each_device() -> None:
    text = headline(compare([CPU, GPU, TORCH_GPU])) or ""

    assert text.startswith("gpu:0 reaches 31 times")
    assert "; PyTorch on gpu:0 reaches 16 times" in text


def test_many_gpus_share_a_part_for_each_maker() -> None:
    rows = [CPU]
    for number in range(3):
        rows += [replace(one, device=f"gpu:{number}") for one in (GPU, TORCH_GPU)]

    text = headline(compare(rows)) or ""

    assert "each of 3 GPUs reaches" in text
    assert "PyTorch on each of 3 GPUs reaches" in text


def test_a_precision_that_a_row_is_doubted_for_is_not_doubted_again() -> None:
    doubt = Doubt(code="reduced-precision", message="", next="")
    reduced = replace(TORCH_GPU, dtype=replace(FLOAT32, math_mode="tf32"), doubts=(doubt,))

    (found,) = compare([CPU, reduced])

    assert found.doubts == ()
