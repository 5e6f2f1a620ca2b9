from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from gpucheck.core.bench.doubts import HostState, different_precision, doubts_about
from gpucheck.core.bench.kernel import CacheFit
from gpucheck.core.bench.runner import Record
from gpucheck.models.bench import DtypeSpec
from tests.fakes.bench import FLOAT32, FakeCase

IDLE = HostState(others_percent=0.0, steal_percent=0.0)
UNREADABLE = HostState(others_percent=None, steal_percent=None)


def record(samples: Sequence[float], *, converged: bool = True) -> Record:
    return Record(case=FakeCase([]), samples_s=list(samples), converged=converged)


def noise(count: int = 40) -> list[float]:
    source = random.Random(2)
    return [source.gauss(1, 0.01) for _ in range(count)]


def codes(found: Record, host: HostState = IDLE) -> list[str]:
    return [doubt.code for doubt in doubts_about(found, host)]


@pytest.mark.parametrize("host", [IDLE, UNREADABLE])
def test_a_good_row_raises_no_doubt(host: HostState) -> None:
    assert codes(record(noise()), host) == []


def test_a_row_without_samples_has_its_error_and_no_doubt() -> None:
    assert codes(record([], converged=False)) == []


def test_few_samples_are_doubted_and_counted() -> None:
    (doubt,) = doubts_about(record(noise(3), converged=False), IDLE)

    assert doubt.code == "too-few-samples"
    assert doubt.facts == {"samples": 3, "wanted": 10}
    assert doubt.next


def test_an_unconverged_row_says_how_wide_its_interval_is() -> None:
    (doubt,) = doubts_about(record(noise(), converged=False), IDLE)

    assert doubt.code == "unconverged"
    assert "%" in doubt.message


def test_a_drift_is_doubted_though_the_interval_is_narrow() -> None:
    assert codes(record([1 + 0.0005 * number for number in range(20)])) == ["autocorrelated"]


def test_two_modes_are_doubted_though_the_median_is_one_of_them() -> None:
    source = random.Random(5)
    samples = [source.choice([1.0, 1.0, 2.0]) + source.gauss(0, 0.01) for _ in range(60)]

    assert codes(record(samples)) == ["bimodal"]


def test_a_few_outliers_are_no_second_mode() -> None:
    source = random.Random(6)
    samples = [*noise(), 2.0, 2.0, 2.1]
    source.shuffle(samples)

    assert codes(record(samples)) == []


@pytest.mark.parametrize(
    ("cache", "code"), [("L2", "l2-resident"), ("last-level cache", "cache-resident")]
)
def test_data_that_fits_the_cache_is_doubted(cache: str, code: str) -> None:
    found = record(noise())
    found.case.cache_fit = CacheFit(walked_bytes=299, cache_bytes=100, cache=cache)  # type: ignore[misc]
    assert codes(found) == [code]

    found.case.cache_fit = CacheFit(walked_bytes=300, cache_bytes=100, cache=cache)  # type: ignore[misc]
    assert codes(found) == []


def test_a_starved_gpu_is_doubted() -> None:
    found = record(noise())
    found.case.starved_share = 0.5  # type: ignore[misc]

    assert codes(found) == ["starved"]


@pytest.mark.parametrize(
    "host",
    [
        HostState(others_percent=30.0, steal_percent=0.0),
        HostState(others_percent=0.0, steal_percent=5.0),
    ],
)
def test_a_busy_host_is_doubted(host: HostState) -> None:
    assert codes(record(noise()), host) == ["host-busy"]


def test_different_precision_is_doubted_and_equal_precision_is_not() -> None:
    tf32 = DtypeSpec(input="float32", accumulate="float32", output="float32", math_mode="tf32")

    assert different_precision(FLOAT32, FLOAT32) == ()
    (doubt,) = different_precision(FLOAT32, tf32)
    assert doubt.facts == {"cpu": "fp32", "gpu": "tf32"}
