"""The repeated product: planned like any other, so that one that does not fit is reported."""

from __future__ import annotations

import pytest

from gpucheck.bench.model import BenchRequest
from gpucheck.bench.repeated_product import heaviest_format, plan_product
from gpucheck.drivers.gpu import BenchGpu
from gpucheck.report.errors import InconclusiveError, WrongUseError
from tests.fakes.bench import FakeClock, FakeCpu, FakeGpu

CPU = FakeCpu(memory_available_bytes=2**40).facts()


def card(free_bytes: int = 2**36, capability: str = "9.0") -> BenchGpu:
    return FakeGpu(FakeClock(), memory_free_bytes=free_bytes, compute_capability=capability).facts


@pytest.mark.parametrize(
    ("capability", "name"), [("9.0", "bfloat16"), ("7.5", "float16"), ("6.1", "float32")]
)
def test_the_heaviest_format_that_the_card_has(capability: str, name: str) -> None:
    assert heaviest_format(card(capability=capability)) == name


def test_an_empty_card_is_loaded_with_large_matrices() -> None:
    planned = plan_product(card(), BenchRequest(), CPU)

    assert (planned.dtype, planned.shape) == ("bfloat16", (8192, 8192, 8192))
    assert planned.notes == ()
    assert planned.taken is None


def test_a_smaller_edge_for_a_nearly_full_card_is_said() -> None:
    planned = plan_product(card(2**26), BenchRequest(), CPU)

    assert planned.shape == (2048, 2048, 2048)
    assert planned.notes == (
        "product: size 8192 does not fit into the free memory; measured at 2048",
    )


def test_the_four_matrices_fit_into_what_is_planned_for_them() -> None:
    (edge, *_) = plan_product(card(2**28), BenchRequest(), CPU).shape

    assert 4 * 2 * edge**2 <= 0.8 * 2**28 < 4 * 2 * (2 * edge) ** 2


def test_a_full_card_is_named_with_who_fills_it() -> None:
    planned = plan_product(card(0), BenchRequest(), CPU, held="process 7 holds 70.0 GiB")

    assert planned.taken is not None
    assert planned.taken.code == "gpu-memory-taken"
    assert planned.taken.message.endswith("process 7 holds 70.0 GiB")


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
    assert plan_product(None, BenchRequest(), CPU).shape == (1024, 1024, 1024)
    assert plan_product(None, BenchRequest(size=96), CPU).shape == (96, 96, 96)
