"""How much of the memory that a GPU shares with the system may be taken."""

from __future__ import annotations

import pytest

from gpucheck.inventory.unified_memory import spare_bytes

GIB = 1 << 30


@pytest.mark.parametrize(
    ("available", "spare"),
    [
        (0, 0),
        (7 * GIB, 0),
        (8 * GIB, 0),
        (10 * GIB, 2 * GIB),
        (40 * GIB, 32 * GIB),
        (120 * GIB, 96 * GIB),
    ],
)
def test_the_larger_of_8_gib_and_a_fifth_stays_free(available: int, spare: int) -> None:
    assert spare_bytes(available) == spare
