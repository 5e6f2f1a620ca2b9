"""Repeated products: a planted flip is found and placed, and nothing else is called corrupt."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from gpucheck.bench.bits import ELEMENTS, differences, digest
from gpucheck.bench.corruption import (
    Repetition,
    corruption_sentence,
    deviating_digests,
    is_corrupt,
    repeat_on_each,
    repetition_on,
    repetitions_on,
)
from gpucheck.bench.corruption_model import Corruption
from gpucheck.bench.model import BenchRequest
from gpucheck.bench.repeated_product import PlannedProduct
from gpucheck.report.errors import InconclusiveError
from tests.fakes.bench import FakeArray, FakeBlas, FakeClock, FakeCpu, FakeGpu

EDGE = 64
NAMES = {number: name for name, number in ELEMENTS.items()}
LOST = InconclusiveError(code="gpu-lost", message="the GPU stopped answering")


class BitGpu(FakeGpu):
    """A GPU that runs corruption.cu's kernels in NumPy; `flips` are (product, index, bits)."""

    def __init__(
        self, clock: FakeClock, flips: list[tuple[int, int, int]] | None = None, **kw: Any
    ):
        super().__init__(clock, **kw)
        self.flips = flips or []
        self.products = 0

    def multiply(self, left: Any, right: Any, out: Any, product: Any = None) -> None:
        self.synchronize_cost(1)
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
            now = differences(one.values, other.values, form)
            left = found.values
            left[0] += np.uint64(now.count)
            left[1] = min(int(left[1]), 2**64 - 1 if now.first is None else now.first)
            left[2] = max(int(left[2]), now.largest_ulp or 0)
            left[3] += np.uint64(now.nan_count)

        return launch


def repetition(gpu: BitGpu | None, clock: FakeClock, size: int = EDGE) -> Repetition:
    return repetition_on(
        gpu, BenchRequest(size=size), clock=clock, cpu=FakeCpu().facts(), blas=FakeBlas()
    )


def burned(gpu: BitGpu, clock: FakeClock, seconds: float = 0.01) -> Corruption:
    found = repetition(gpu, clock)
    found.begin()
    found.run_for(seconds)
    return found.end()


def test_a_healthy_gpu_repeats_every_bit() -> None:
    clock = FakeClock()
    check = burned(BitGpu(clock), clock)

    assert check.products > 2
    assert (check.mismatches, check.first_index, check.largest_ulp) == (0, None, None)
    assert check.reference_ok is True
    assert not is_corrupt(check)
    assert "all bits match" in corruption_sentence(check)
    assert (check.device, check.gpu_uuid, check.words) == ("gpu:0", "GPU-00000000", EDGE * EDGE)


def test_one_flipped_bit_is_found_and_placed() -> None:
    clock = FakeClock()
    check = burned(BitGpu(clock, flips=[(3, 1234, 1)]), clock)

    assert is_corrupt(check)
    assert (check.mismatches, check.first_index, check.largest_ulp) == (1, 1234, 1)
    assert "1 of" in corruption_sentence(check)
    assert "first at index 1234" in corruption_sentence(check)


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
    flips = [(number, 77, 0x4000) for number in range(100_000)]
    check = burned(BitGpu(clock, flips=flips), clock)

    assert check.mismatches == 0
    assert check.reference_ok is False
    assert is_corrupt(check)
    assert "float64" in corruption_sentence(check)


def test_a_lone_gpu_that_is_wrong_the_same_way_every_time_is_found() -> None:
    clock = FakeClock()
    # A quarter of the typical entry, in one entry of each product, in bfloat16.
    gpu = BitGpu(clock, wrong_by=0.25 * EDGE**0.5)
    one = repetition(gpu, clock)
    one.begin()
    one.run_for(0.01)
    found = one.end()

    assert found.dtype == "bfloat16"
    assert found.products > 0
    assert found.mismatches == 0
    assert found.reference_ok is False
    assert is_corrupt(found)


def test_a_gpu_lost_in_mid_run_keeps_what_was_compared() -> None:
    clock = FakeClock()
    gpu = BitGpu(clock, failures={"multiply": []})
    found = repetition(gpu, clock)
    found.begin()
    found.run_for(0.001)
    before = found.check.products
    gpu._failures["multiply"] = [LOST]
    found.run_for(0.001)
    check = found.end()

    assert check.failure is not None
    assert check.failure.code == "gpu-lost"
    assert check.products >= before > 0


def test_a_gpu_that_cannot_begin_says_so_and_is_not_corrupt() -> None:
    clock = FakeClock()
    gpu = BitGpu(clock, failures={"upload": [LOST]})
    found = repetition(gpu, clock)
    found.begin()
    check = found.end()

    assert (check.products, check.digest) == (0, None)
    assert check.failure is not None
    assert not is_corrupt(check)
    assert gpu.released == 1


def test_a_clock_that_stands_does_not_keep_us_for_ever() -> None:
    class Standing(FakeClock):
        def now_s(self) -> float:
            return 0.0

    planned = PlannedProduct(dtype="float32", shape=(8, 8, 8))
    found = Repetition(_Silent(), planned, Standing(), device="cpu")
    found.run_for(1.0)

    assert found.check.products > 0


class _Silent:
    """A repeater of which nothing takes any time."""

    def prepare(self) -> Any:
        raise AssertionError

    def repeat(self, count: int) -> None:
        pass

    def differences(self) -> Any:
        from gpucheck.bench.bits import Differences

        return Differences()

    def release(self) -> None:
        pass


def repetitions(*gpus: BitGpu, with_cpu: bool = False, **more: Any) -> tuple[Repetition, ...]:
    return repetitions_on(
        gpus,
        BenchRequest(size=EDGE),
        with_cpu=with_cpu,
        clock=FakeClock(),
        cpu=FakeCpu().facts(),
        blas=FakeBlas(),
        **more,
    )


def test_the_processor_is_checked_by_the_same_rule() -> None:
    (check,), interrupted = repeat_on_each(repetitions(with_cpu=True), 0.0)

    assert (check.device, check.dtype, check.products) == ("cpu", "float32", 1)
    assert check.reference_ok is True
    assert check.mismatches == 0
    assert not interrupted


def test_a_full_gpu_is_not_repeated_on_and_says_who_fills_it() -> None:
    full = BitGpu(FakeClock(), memory_free_bytes=0)
    other = BitGpu(FakeClock(), cuda_index=1)
    holders = {full.facts.uuid or "": "process 7 (py) holds 9.0 GiB"}

    (first, second), _ = repeat_on_each(repetitions(full, other, holders=holders), 0.0)

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

    planned = repetitions(first, second, third)
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


# ------------------------------------------------------------------------------------- twins


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

    assert differences(array.values, np.zeros(4, dtype=np.uint16), "bfloat16").count == 1
