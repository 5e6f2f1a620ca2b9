"""Silent data corruption: a planted flip is found and placed, nothing else is called corrupt."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from gpucheck.bench import sdc
from gpucheck.bench.bits import ELEMENTS, BitDifferences, compare_bits, digest
from gpucheck.bench.boards import Peaks
from gpucheck.bench.model import Corruption
from gpucheck.bench.peaks import peaks_of_named
from gpucheck.bench.request_model import BenchRequest
from gpucheck.bench.sdc import (
    CpuProduct,
    GpuProduct,
    StressProduct,
    corruption_sentence,
    deviating_digests,
    heaviest_format,
    plan_product,
    product_bytes,
    repeat_on_each,
    stress_product,
)
from gpucheck.drivers.gpu import BenchGpu
from gpucheck.report.errors import InconclusiveError, WrongUseError
from tests.fakes.bench import FakeArray, FakeBlas, FakeClock, FakeCpu, FakeGpu, order

EDGE = 64
NAMES = {number: name for name, number in ELEMENTS.items()}
LOST = InconclusiveError(code="gpu-lost", message="the GPU stopped answering")


#: Free memory for the factors, the first product and three others.
FREE_BYTES, OUTPUTS = 2**16, 3


class BitGpu(FakeGpu):
    """A GPU that runs sdc.cu's kernels in NumPy; `flips` are (product, index, bits).

    The first product is number 0; those after it fill the memory before any is compared.
    """

    def __init__(
        self, clock: FakeClock, flips: list[tuple[int, int, int]] | None = None, **kw: Any
    ):
        super().__init__(clock, **{"memory_free_bytes": FREE_BYTES, **kw})
        self.flips = flips or []
        self.products = 0
        self.enqueued: list[tuple[str, Any]] = []

    def poison(self, array: Any) -> None:
        self.enqueued.append(("poison", array))
        super().poison(array)

    def multiply(self, left: Any, right: Any, out: Any, product: Any = None) -> None:
        self.synchronize_cost(1)
        self.enqueued.append(("multiply", out))
        super().multiply(left, right, out, product)
        words = out.values.reshape(-1).view(f"u{out.values.itemsize}")
        for number, index, bits in self.flips:
            if number == self.products:
                words[index] ^= bits
        self.products += 1

    def compile(self, source: str, name: str, defines: Any = None) -> Any:
        self._may_fail("compile")
        assert f"void {name}(" in source
        form = NAMES[(defines or {}).get("ELEMENT", 0)]

        def launch(grid: int, block: int, args: tuple[Any, ...]) -> None:
            if name == "digest":
                values, count, total = args
                assert count == values.values.size
                total.values[0] = int(digest(values.values, form), 16)
                return
            one, other, count, found = args
            assert count == one.values.size
            self.enqueued.append((name, other))
            now = compare_bits(one.values, other.values, form)
            other.values.reshape(-1).view(np.uint8).fill(0xFF)
            left = found.values
            left[0] += np.uint64(now.count)
            left[1] = min(int(left[1]), 2**64 - 1 if now.first is None else now.first)
            left[2] = max(int(left[2]), now.largest_ulp or 0)
            left[3] += np.uint64(now.nan_count)

        return launch


def product(gpu: BitGpu | None, clock: FakeClock, size: int = EDGE) -> StressProduct:
    return stress_product(gpu, BenchRequest(size=size), clock, FakeCpu().facts(), FakeBlas())


def burned(gpu: BitGpu, clock: FakeClock, seconds: float = 0.01) -> Corruption:
    found = product(gpu, clock)
    found.begin()
    found.run_for(seconds)
    return found.end()


def test_a_healthy_gpu_repeats_every_bit() -> None:
    clock = FakeClock()
    check = burned(BitGpu(clock), clock)

    assert check.products > 2
    assert (check.mismatches, check.first_index, check.largest_ulp) == (0, None, None)
    assert check.reference_ok is True
    assert not check.is_corrupt
    assert "all bits match" in corruption_sentence(check)
    assert (check.device, check.gpu_uuid, check.words) == ("gpu:0", "GPU-00000000", EDGE * EDGE)


def test_one_flipped_bit_is_found_and_placed() -> None:
    clock = FakeClock()
    check = burned(BitGpu(clock, flips=[(3, 1234, 1)]), clock)

    assert check.is_corrupt
    assert (check.mismatches, check.first_index, check.largest_ulp) == (1, 1234, 1)
    assert "1 of" in corruption_sentence(check)
    assert "first at index 1234" in corruption_sentence(check)


@pytest.mark.parametrize("number", range(1, 2 * OUTPUTS + 1))
def test_a_flip_in_any_place_of_the_memory_is_found(number: int) -> None:
    clock = FakeClock()
    gpu = BitGpu(clock, flips=[(number, 7, 4)])
    check = burned(gpu, clock)

    assert gpu.products > 3 * OUTPUTS
    assert (check.mismatches, check.first_index, check.largest_ulp) == (1, 7, 4)


@pytest.mark.parametrize("place", range(OUTPUTS))
def test_memory_that_loses_a_bit_while_it_holds_a_result_is_found(place: int) -> None:
    clock = FakeClock()
    gpu = BitGpu(clock)
    made = product(gpu, clock)
    made.begin()
    filled = [array for name, array in gpu.enqueued if name == "multiply"][1:]
    assert len({id(array) for array in filled}) == len(filled) == OUTPUTS
    filled[place].values[0, 9] ^= 1
    made.run_for(0.01)

    assert (made.end().mismatches, made.check.first_index) == (1, 9)


def test_each_result_is_compared_before_its_place_is_multiplied_into_again() -> None:
    clock = FakeClock()
    gpu = BitGpu(clock)
    made = GpuProduct(gpu, order((EDGE,) * 3, dtype="bfloat16"), OUTPUTS)
    made.prepare()
    first = (1 + OUTPUTS) * ["poison", "multiply"]
    assert [name for name, _ in gpu.enqueued][: len(first)] == first
    places = [id(array) for name, array in gpu.enqueued if name == "multiply"][1:]
    gpu.enqueued.clear()
    made.repeat(2 * OUTPUTS)

    # The comparison leaves the poison behind: nothing else fills memory.
    names = [name for name, _ in gpu.enqueued]
    assert names == ["differ", "multiply"] * (2 * OUTPUTS)
    assert [id(array) for name, array in gpu.enqueued if name == "differ"] == 2 * places
    assert [id(array) for name, array in gpu.enqueued if name == "multiply"] == 2 * places


@pytest.mark.parametrize("board", ["H100 SXM", "B200"])
def test_the_usual_product_takes_nine_tenths_of_a_cycle_on_paper(board: str) -> None:
    found = peaks_of_named(board).result
    assert isinstance(found, Peaks)
    (peaks,) = found.boards
    flops_per_s, bytes_per_s = peaks.compute["bfloat16"].flops_per_s, peaks.memory.bytes_per_s
    planned, _ = plan_product(card(), BenchRequest(), CPU)
    m, k, n = planned.shape
    # A comparison reads the first result and another one, and writes its poison.
    product_s = 2 * m * k * n / flops_per_s
    compared_s = 3 * product_bytes(planned.shape, planned.dtype) / bytes_per_s

    assert product_s / (product_s + compared_s) >= 0.90


def test_the_share_of_the_time_in_products_is_told() -> None:
    clock = FakeClock()

    class Slow(_Silent):
        def repeat(self, count: int) -> float:
            clock.seconds += count
            return 0.75 * count

    planned = Corruption(device="gpu:0", gpu_uuid=None, dtype="float32", shape=(8, 8, 8), words=64)
    found = StressProduct(Slow(), planned, clock)
    assert found.check.product_time_percent is None
    found.run_for(10.0)
    assert found.check.product_time_percent == pytest.approx(75.0)
    clock.seconds += 100.0
    found.run_for(10.0)
    assert found.check.product_time_percent == pytest.approx(75.0)

    clock = FakeClock()
    check = burned(BitGpu(clock), clock)
    assert check.product_time_percent is not None
    assert 0 < check.product_time_percent <= 100


def test_flips_of_several_products_are_counted_together() -> None:
    clock = FakeClock()
    check = burned(BitGpu(clock, flips=[(2, 700, 0x80), (4, 9, 2)]), clock)

    assert (check.mismatches, check.first_index, check.largest_ulp) == (2, 9, 128)


def test_a_nan_that_comes_once_is_a_mismatch_without_distance() -> None:
    clock = FakeClock()
    gpu = BitGpu(clock)
    original = gpu.multiply

    def multiply(left: Any, right: Any, out: Any, product: Any = None) -> None:
        original(left, right, out, product)
        if gpu.products == 3:
            out.values.reshape(-1)[5] = 0x7FC0

    gpu.multiply = multiply  # type: ignore[method-assign]
    check = burned(gpu, clock)

    assert (check.mismatches, check.not_finite, check.largest_ulp) == (1, 1, None)
    assert "by a NaN" in corruption_sentence(check)


def test_a_product_that_is_not_computed_does_not_pass_as_the_last_one() -> None:
    clock = FakeClock()
    gpu = BitGpu(clock)
    original = gpu.multiply

    def multiply(left: Any, right: Any, out: Any, product: Any = None) -> None:
        if gpu.products == 2:
            gpu.products += 1
            gpu.synchronize_cost(1)
            return
        original(left, right, out, product)

    gpu.multiply = multiply  # type: ignore[method-assign]

    assert burned(gpu, clock).mismatches == EDGE * EDGE


def test_a_fault_in_the_first_product_shows_against_float64() -> None:
    clock = FakeClock()
    # The exponent's highest bit of a bfloat16: the same wrong number each time.
    flips = [(number, 77, 0x4000) for number in range(10_000)]
    check = burned(BitGpu(clock, flips=flips), clock)

    assert check.mismatches == 0
    assert check.reference_ok is False
    assert check.is_corrupt
    assert "float64" in corruption_sentence(check)


def test_a_lone_gpu_that_is_wrong_the_same_way_every_time_is_found() -> None:
    clock = FakeClock()
    # A quarter of the typical entry, in one entry of each product, in bfloat16.
    gpu = BitGpu(clock, wrong_by=0.25 * EDGE**0.5)
    one = product(gpu, clock)
    one.begin()
    one.run_for(0.01)
    found = one.end()

    assert found.dtype == "bfloat16"
    assert found.products > 0
    assert found.mismatches == 0
    assert found.reference_ok is False
    assert found.is_corrupt


def test_a_gpu_lost_in_mid_run_keeps_what_was_compared() -> None:
    clock = FakeClock()
    gpu = BitGpu(clock, failures={"multiply": []})
    found = product(gpu, clock)
    found.begin()
    taken_s = found.run_for(0.001)
    before = found.check.products
    assert found.check.seconds == taken_s >= 0.001
    gpu._failures["multiply"] = [LOST]
    found.run_for(0.001)
    check = found.end()

    assert check.failure is not None
    assert check.failure.code == "gpu-lost"
    assert check.products >= before > 0


def test_a_gpu_that_cannot_begin_says_so_and_is_not_corrupt() -> None:
    clock = FakeClock()
    gpu = BitGpu(clock, failures={"upload": [LOST]})
    found = product(gpu, clock)
    found.begin()
    check = found.end()

    assert (check.products, check.digest) == (0, None)
    assert check.failure is not None
    assert not check.is_corrupt
    assert gpu.released == 1


def test_a_clock_that_stands_does_not_keep_us_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sdc, "_MOST_BATCHES", 100)

    class Standing(FakeClock):
        def __call__(self) -> float:
            return 0.0

    planned = Corruption(device="cpu", gpu_uuid=None, dtype="float32", shape=(8, 8, 8), words=64)
    found = StressProduct(_Silent(), planned, Standing())
    found.run_for(1.0)

    assert found.check.products > 0


class _Silent:
    """A product of which nothing takes any time."""

    def prepare(self) -> Any:
        raise AssertionError

    def repeat(self, count: int) -> float:
        return 0.0

    def differences(self) -> Any:
        return BitDifferences()

    def release(self) -> None:
        pass


def test_a_product_that_numpy_leaves_out_does_not_pass_as_the_last_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = CpuProduct(order(shape=(EDGE,) * 3, clock=iter([64.0, 66.0, 70.0, 71.0]).__next__))
    made.prepare()
    assert made.repeat(1) == 2.0
    assert made.differences().count == 0

    monkeypatch.setattr(np, "matmul", lambda left, right, out: None)
    made.repeat(1)

    assert made.differences().count == EDGE * EDGE


def products(*gpus: BitGpu, with_cpu: bool = False, **more: Any) -> list[StressProduct]:
    clock, blas, request = FakeClock(), FakeBlas(), BenchRequest(size=EDGE)
    return [
        stress_product(gpu, request, clock, FakeCpu().facts(), blas, **more)
        for gpu in (*[None] * with_cpu, *gpus)
    ]


def test_the_processor_is_checked_by_the_same_rule() -> None:
    (check,), interrupted = repeat_on_each(products(with_cpu=True), 0.0)

    assert (check.device, check.dtype, check.products) == ("cpu", "float32", 1)
    assert check.reference_ok is True
    assert check.mismatches == 0
    assert not interrupted


def test_a_full_gpu_is_not_repeated_on_and_says_who_fills_it() -> None:
    full = BitGpu(FakeClock(), memory_free_bytes=0)
    other = BitGpu(FakeClock(), cuda_index=1)
    held = products(full, held="process 7 (py) holds 9.0 GiB")

    (first, second), _ = repeat_on_each([*held, *products(other)], 0.0)

    assert first.failure is not None
    assert first.failure.code == "gpu-memory-taken"
    assert "process 7 (py)" in first.failure.message
    assert (first.products, second.products) == (0, 1)
    assert full.products == 0


def test_an_interrupt_keeps_the_devices_before_it() -> None:
    first, second = BitGpu(FakeClock()), BitGpu(FakeClock(), cuda_index=1)
    third = BitGpu(FakeClock(), cuda_index=2)

    def interrupted(*args: Any) -> None:
        raise KeyboardInterrupt

    planned = products(first, second, third)
    second.multiply = interrupted  # type: ignore[method-assign]
    checks, ended = repeat_on_each(planned, 0.0)

    assert ended
    assert [check.device for check in checks] == ["gpu:0", "gpu:1"]
    assert [check.products for check in checks] == [1, 0]
    assert second.released == 1


def test_both_sides_give_one_digest_for_the_same_bits() -> None:
    clock = FakeClock()
    first, second = BitGpu(clock), BitGpu(clock, cuda_index=1)

    assert burned(first, clock).digest == burned(second, clock).digest


# -------------------------------------------------------------------------------------- peers


def digests(*texts: str | None) -> list[Corruption]:
    return [
        Corruption(device=f"gpu:{place}", gpu_uuid=None, digest=text, dtype="float16")
        for place, text in enumerate(texts)
    ]


ONE_MODEL = {f"gpu:{place}": "H100" for place in range(8)}


def test_twins_that_agree_are_fine() -> None:
    assert deviating_digests(digests("a", "a", "a"), ONE_MODEL) == {}


def test_the_odd_one_of_eight_is_named() -> None:
    found = deviating_digests(digests(*"aaaaabaa"), ONE_MODEL)

    assert set(found) == {"gpu:5"}
    assert "7 identical GPUs have a" in found["gpu:5"]


def test_of_two_that_differ_both_are_named() -> None:
    found = deviating_digests(digests("a", "b"), ONE_MODEL)

    assert set(found) == {"gpu:0", "gpu:1"}
    assert "no digest has a majority" in found["gpu:0"]


def test_different_models_and_formats_are_not_compared() -> None:
    checks = digests("a", "b")
    other_format = [checks[0], replace(checks[1], dtype="float32")]

    assert deviating_digests(checks, {"gpu:0": "H100", "gpu:1": "A100"}) == {}
    assert deviating_digests(other_format, ONE_MODEL) == {}


def test_one_without_a_digest_says_nothing() -> None:
    assert deviating_digests(digests("a", None, "a"), ONE_MODEL) == {}


def test_the_fake_is_not_kinder_than_the_array() -> None:
    """The planted flips above go through the same arrays that are compared."""
    array = FakeArray(np.zeros(4, dtype=np.uint16))
    array.values.view("u2")[1] ^= 1

    assert compare_bits(array.values, np.zeros(4, dtype=np.uint16), "bfloat16").count == 1


CPU = FakeCpu(memory_available_bytes=2**40).facts()


def card(free_bytes: int = 2**36, capability: str = "9.0") -> BenchGpu:
    return FakeGpu(FakeClock(), memory_free_bytes=free_bytes, compute_capability=capability).facts


@pytest.mark.parametrize(
    ("capability", "name"), [("9.0", "bfloat16"), ("7.5", "float16"), ("6.1", "float32")]
)
def test_the_heaviest_format_that_the_card_has(capability: str, name: str) -> None:
    assert heaviest_format(card(capability=capability)) == name


def test_an_empty_card_is_loaded_with_large_matrices() -> None:
    planned, notes = plan_product(card(), BenchRequest(), CPU)

    assert (planned.dtype, planned.shape) == ("bfloat16", (8192, 8192, 8192))
    assert notes == ()
    assert planned.failure is None


def test_a_smaller_edge_for_a_nearly_full_card_is_said() -> None:
    planned, notes = plan_product(card(2**26), BenchRequest(), CPU)

    assert planned.shape == (2048, 2048, 2048)
    (note,) = notes
    assert note.startswith("product bfloat16: size 8192 does not fit into the free memory; ")
    assert note.endswith("measured at 2048")


def test_the_four_matrices_fit_into_what_is_planned_for_them() -> None:
    planned, _ = plan_product(card(2**28), BenchRequest(), CPU)
    edge = planned.shape[0]

    assert 4 * 2 * edge**2 <= 0.8 * 2**28 < 4 * 2 * (2 * edge) ** 2


@pytest.mark.parametrize("outputs", [1, 7])
def test_the_memory_of_a_repeated_product_is_that_of_its_factors_and_results(outputs: int) -> None:
    product = sdc._ProductKernel("float16", 8, outputs)

    # Two bytes each of 2 x 3 and 3 x 5 factors, and of products of 2 x 5: the first, and others.
    expected = 2 * (2 * 3 + 3 * 5 + (1 + outputs) * 2 * 5)
    assert product.device_bytes((2, 3, 5), "float16") == expected


def test_the_results_rotate_through_four_fifths_of_the_free_memory() -> None:
    planned, _ = plan_product(card(80 * 10**9), BenchRequest(), CPU)
    one = 2 * 8192**2

    assert planned.output_bytes % one == 0
    # The factors and the first product take three more.
    assert planned.output_bytes + 3 * one <= 0.8 * 80e9 < planned.output_bytes + 4 * one


def test_small_results_do_not_become_too_many() -> None:
    planned, _ = plan_product(card(), BenchRequest(size=16), CPU)

    assert planned.output_bytes == 2048 * 2 * 16**2


def test_where_others_hold_memory_one_result_is_enough() -> None:
    planned, _ = plan_product(card(), BenchRequest(), CPU, held="process 7 holds 0.3 GiB")

    assert planned.output_bytes == 2 * 8192**2


def test_memory_that_is_the_host_s_too_is_not_filled() -> None:
    shared = replace(card(2**36), integrated=True)
    host = FakeCpu(memory_available_bytes=2**36).facts()
    planned, _ = plan_product(shared, BenchRequest(), host)

    # A fifth of it stays free, besides what the host needs for its part.
    assert 0.5 * 2**36 < planned.output_bytes < 0.8 * 2**36


def test_nothing_is_held_where_nothing_runs() -> None:
    assert plan_product(card(0), BenchRequest(), CPU)[0].output_bytes == 0


def test_a_full_card_is_named_with_who_fills_it() -> None:
    planned, _ = plan_product(card(0), BenchRequest(), CPU, held="process 7 holds 70.0 GiB")

    assert planned.failure is not None
    assert planned.failure.code == "gpu-memory-taken"
    assert planned.failure.message.endswith("process 7 holds 70.0 GiB")


def test_a_size_that_does_not_fit_is_refused_with_who_is_in_the_way() -> None:
    with pytest.raises(WrongUseError) as caught:
        plan_product(card(2**28), BenchRequest(size=10**5), CPU, held="process 7 holds 9.0 GiB")

    assert caught.value.code == "size-does-not-fit"
    assert caught.value.remedy[1] == "gpu:0: process 7 holds 9.0 GiB."


@pytest.mark.parametrize("request_", [BenchRequest(size=0), BenchRequest(seed=-1)])
def test_numbers_that_make_no_sense_are_refused(request_: BenchRequest) -> None:
    with pytest.raises(WrongUseError):
        plan_product(None, request_, CPU)


def test_a_host_without_memory_cannot_check_anything() -> None:
    with pytest.raises(InconclusiveError, match="hardly any memory"):
        plan_product(None, BenchRequest(), FakeCpu(memory_available_bytes=0).facts())


def test_the_processors_product_is_small_and_asked_for_ones_are_taken() -> None:
    assert plan_product(None, BenchRequest(), CPU)[0].shape == (1024, 1024, 1024)
    assert plan_product(None, BenchRequest(size=96), CPU)[0].shape == (96, 96, 96)


def test_the_digest_is_the_sum_over_the_first_product() -> None:
    class Fixed(BitGpu):
        def multiply(self, left: Any, right: Any, out: Any, product: Any = None) -> None:
            super().multiply(left, right, out, product)
            self.first = out.values.copy()

    clock = FakeClock()
    gpu = Fixed(clock)
    check = burned(gpu, clock)

    assert check.digest == digest(gpu.first, check.dtype)


def test_batches_double_until_one_takes_an_eighth_of_the_time() -> None:
    clock = FakeClock()
    batches: list[int] = []

    class Second(_Silent):
        def repeat(self, count: int) -> float:
            batches.append(count)
            clock.seconds += count
            return float(count)

    planned = Corruption(device="cpu", gpu_uuid=None, dtype="float32", shape=(8, 8, 8), words=64)
    found = StressProduct(Second(), planned, clock)

    assert found.run_for(64.0) == 71.0
    # One of eight seconds is long enough for an eighth of 64 s.
    assert batches == [1, 2, 4, *[8] * 8]
    assert found.check.products == 71
