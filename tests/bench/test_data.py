from __future__ import annotations

import numpy as np
import pytest

from gpucheck.bench.data import HostData, fresh_array
from gpucheck.bench.model import Fill


def test_a_seed_gives_the_same_numbers_in_other_memory_after_each_renewal() -> None:
    data = HostData(3)
    first = data.normal("left", (50, 40))
    assert data.normal("left", (50, 40)) is first

    data.renew()
    second = data.normal("left", (50, 40))

    assert second is not first
    np.testing.assert_array_equal(first, second)


def test_names_and_shapes_tell_arrays_apart() -> None:
    data = HostData(3)

    assert not np.array_equal(data.normal("left", (9, 9)), data.normal("right", (9, 9)))
    assert data.normal("left", (9, 9)).shape != data.normal("left", (9, 8)).shape
    assert data.normal("left", (9, 9), "float64").dtype == np.float64


def test_what_is_kept_and_what_is_large_survives_a_renewal() -> None:
    data = HostData(3, kept_from_bytes=4 * 100)
    large, small = data.normal("large", (10, 10)), data.normal("small", (10, 9))
    reference = data.keep("reference", lambda: [1.0])

    data.renew()

    assert data.normal("large", (10, 10)) is large
    assert data.normal("small", (10, 9)) is not small
    assert data.keep("reference", lambda: [2.0]) is reference


def test_groups_share_what_is_kept_and_nothing_else() -> None:
    kept: dict[str, object] = {}
    one, other = HostData(3, kept=kept), HostData(3, kept=kept)

    assert one.keep("images", lambda: [1.0]) is other.keep("images", lambda: [2.0])
    assert one.normal("left", (4, 4)) is not other.normal("left", (4, 4))


def test_zeros_are_zeros() -> None:
    assert not HostData(3, Fill.ZEROS).normal("left", (4, 4)).any()


@pytest.mark.parametrize("edge", [3, 600, 1200])
def test_fresh_arrays_are_written_like_others_and_lie_elsewhere(edge: int) -> None:
    one, other = (fresh_array((edge, edge), "float64") for _ in range(2))

    one.fill(1.0)
    other.fill(2.0)

    assert one.shape == (edge, edge)
    assert one.dtype == np.float64
    assert one.flags.c_contiguous
    assert one.sum() == edge * edge
    assert not np.shares_memory(one, other)


def test_memory_that_is_not_there_is_a_memory_error() -> None:
    with pytest.raises(MemoryError):
        fresh_array((2**55,), "float64")
