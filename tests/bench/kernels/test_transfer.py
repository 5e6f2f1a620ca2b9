from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucheck.bench.kernels.transfer import Transfer, fit_line, sweep_counts
from gpucheck.bench.model import Measurement, Scope
from gpucheck.bench.request_model import BenchMode, BenchRequest
from tests.fakes.bench import FLOAT32, RIGHT, FakeClock, FakeGpu, order


@given(
    latency_s=st.floats(1e-7, 1e-3),
    bytes_per_s=st.floats(1e8, 1e12),
    sizes=st.lists(st.integers(4096, 2**28), min_size=3, max_size=12, unique=True),
)
def test_a_line_is_found_again(latency_s: float, bytes_per_s: float, sizes: list[int]) -> None:
    sizes = [2**12, 2**20, 2**28, *sizes]

    found = fit_line([(size, latency_s + size / bytes_per_s) for size in sizes])

    assert found is not None
    assert found[0] == pytest.approx(latency_s, rel=1e-3)
    assert found[1] == pytest.approx(bytes_per_s, rel=1e-3)


@pytest.mark.parametrize(
    "points",
    [
        [],
        [(4096, 1e-5), (2**20, 1e-4)],
        [(4096, 1e-5), (4096, 2e-5), (4096, 3e-5)],
        [(4096, 3e-4), (2**20, 2e-4), (2**22, 1e-4)],
        [(4096, 0.5), (2**20, 0.5), (2**22, 0.5)],
    ],
    ids=["none", "two", "one-size", "falling", "flat"],
)
def test_what_is_no_line_gives_none(points: list[tuple[int, float]]) -> None:
    assert fit_line(points) is None


def test_the_sweep_grows_with_the_mode() -> None:
    largest = 2**24

    assert sweep_counts(largest, BenchMode.QUICK) == []
    assert sweep_counts(largest, BenchMode.DEFAULT) == [1024, 16384, 262144, 4194304]
    assert len(sweep_counts(largest, BenchMode.FULL)) == 7
    assert sweep_counts(10, BenchMode.FULL) == []


def test_each_way_pinned_and_pageable() -> None:
    clock = FakeClock()
    request = BenchRequest(mode=BenchMode.QUICK)
    cases = Transfer().gpu_cases(order((64, 64), clock=clock, request=request), FakeGpu(clock))

    assert [case.label.variant for case in cases] == [
        "to-gpu-pinned",
        "from-gpu-pinned",
        "both-ways-pinned",
        "to-gpu-pageable",
        "from-gpu-pageable",
    ]
    both = cases[2]
    assert both.work.bytes_moved == 2 * cases[0].work.bytes_moved


def row(size: int, seconds: float, variant: str = "to-gpu-pinned") -> Measurement:
    return Measurement(
        kernel="transfer",
        variant=variant,
        device="gpu:0",
        gpu_uuid=None,
        dtype=FLOAT32,
        shape=(size // 4,),
        scope=Scope.RESIDENT,
        bytes_moved=size,
        time_s=seconds,
        verified=RIGHT,
    )


def test_each_way_is_fitted_by_itself() -> None:
    sizes = (4096, 65536, 2**20, 2**26)
    rows = [row(size, 1e-5 + size / 25e9) for size in sizes]
    rows += [row(size, 2e-5 + size / 20e9, "from-gpu-pinned") for size in sizes]
    rows += [row(size, 1.0, "to-gpu-pageable") for size in sizes]

    one, two = Transfer().conclude(rows)

    assert one.sentence == "gpu:0 to-gpu, pinned: 10.0 us plus the bytes at 25.0 GB/s"
    assert two.facts["latency_s"] == pytest.approx(2e-5)
    assert Transfer().conclude(rows[:2]) == []
