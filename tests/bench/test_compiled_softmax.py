"""The compiled softmax against float64, on every shape, temperature and number."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("numba", reason="numba is not installed: pip install -e '.[cpu]'")

from gpucheck.bench.compiled_softmax import compiled
from gpucheck.bench.kernels.softmax import FusedSoftmax, Softmax, verify_softmax
from tests.bench.kernels.test_softmax import HostArray, exact
from tests.fakes.bench import order

LOG2_E = 1.4426950408889634


def softmax(source: HostArray, temperature: float) -> HostArray:
    out = np.full_like(source, -7)
    compiled()(source, out, LOG2_E / temperature)
    return out


def assert_softmax(source: HostArray, temperature: float) -> None:
    out, expected = softmax(source, temperature), exact(source, temperature)
    np.testing.assert_allclose(out, expected, rtol=4e-6, atol=1e-30)


@given(
    rows=st.integers(1, 5),
    columns=st.integers(1, 300),
    temperature=st.sampled_from([1e-30, 1e-6, 0.7, 1.0, 30.0, 1e30]),
    spread=st.sampled_from([0.0, 1.0, 100.0, 1e6]),
    seed=st.integers(0, 2**31),
)
def test_every_shape_and_temperature_agrees_with_float64(
    rows: int, columns: int, temperature: float, spread: float, seed: int
) -> None:
    generator = np.random.default_rng(seed)
    source = generator.standard_normal((rows, columns), dtype=np.float32)
    source += generator.standard_normal((rows, 1), dtype=np.float32) * np.float32(spread)
    out, expected = softmax(source, temperature), exact(source, temperature)

    # The power of two is rounded to float32: its error grows with its distance below the maximum.
    np.testing.assert_allclose(out, expected, rtol=0, atol=4e-6)


def test_each_number_is_right_to_a_few_roundings() -> None:
    source = np.random.default_rng(1).standard_normal((64, 1000), dtype=np.float32)

    assert_softmax(source, 0.6)


@given(
    columns=st.integers(1, 40),
    places=st.lists(
        st.tuples(
            st.integers(0, 5),
            st.integers(0, 39),
            st.sampled_from([-np.inf, np.inf, np.nan, -np.nan]),
        )
    ),
    empty=st.integers(0, 5),
)
def test_infinities_and_nan_spoil_their_own_row_only(
    columns: int, places: list[tuple[int, int, float]], empty: int
) -> None:
    source = np.random.default_rng(1).standard_normal((6, columns), dtype=np.float32)
    for row, column, value in places:
        source[row, column % columns] = value
    source[empty] = -np.inf

    assert_softmax(source, 0.7)


def test_the_extremes_of_float32_do_not_overflow() -> None:
    most = np.finfo(np.float32).max

    assert_softmax(np.array([[-most, most, 0.0], [most, most, -most]], dtype=np.float32), 1.0)


def test_what_is_below_the_smallest_normal_number_becomes_zero() -> None:
    powers = np.array([[0.0, -125.9, -126.1]], dtype=np.float32)
    out = np.empty_like(powers)

    compiled()(powers, out, 1.0)

    assert out[0, 0] == 1
    assert out[0, 1] == pytest.approx(2**-125.9, rel=1e-5)
    assert out[0, 2] == 0


@pytest.mark.parametrize("columns", [32768, 32769, 100_001])
def test_long_rows_keep_their_accuracy(columns: int) -> None:
    source = np.random.default_rng(2).standard_normal((3, columns), dtype=np.float32)
    found = verify_softmax(source, softmax(source, 0.7), 0.7)

    assert found.error is not None
    assert found.error < 2e-6


def test_no_rows_and_no_columns_are_no_error() -> None:
    for shape in ((0, 5), (5, 0)):
        assert softmax(np.zeros(shape, dtype=np.float32), 1.0).shape == shape


@pytest.mark.parametrize("shape", [(64, 100), (1, 1), (512, 1024), (3, 40_000)])
def test_with_numba_the_processor_has_the_compiled_case(shape: tuple[int, int]) -> None:
    fused = [case for case in Softmax().cpu_cases(order(shape)) if isinstance(case, FusedSoftmax)]

    assert fused
    for case in fused:
        case.prepare()
        case.poison()
        case.run(2)
        assert case.check().ok
        case.release()
