"""A cgroup that may use only a part of a card: what is free for it, and the sentence about it."""

from __future__ import annotations

import pytest

from gpucheck.inventory.capped import capped_sentences, caps_of, free_bytes
from gpucheck.inventory.model import Gpu

GIB = 1 << 30


@pytest.mark.parametrize(
    ("free", "limit", "used", "expected"),
    [
        (7, None, None, 7),
        (7, 8, None, 7),
        (7, 8, 3, 5),
        (4, 8, 3, 4),
        (7, 8, 9, 0),
        (None, 8, 3, 5),
        (None, None, None, None),
    ],
)
def test_what_is_left_of_card_and_limit_is_free(
    free: int | None, limit: int | None, used: int | None, expected: int | None
) -> None:
    gpu = Gpu(
        index=0, memory_free_bytes=free, memory_limit_bytes=limit, memory_limit_used_bytes=used
    )

    assert free_bytes(gpu) == expected


def card(index: int, limit: int | None, total: int | None = 80 * GIB) -> Gpu:
    return Gpu(
        index=index,
        memory_total_bytes=total,
        memory_limit_bytes=limit,
        memory_limit_source=None if limit is None else "dmem.max",
    )


def test_equal_limits_are_one_sentence_and_cards_without_are_none() -> None:
    gpus = [card(0, 8 * GIB), card(1, None), card(2, 8 * GIB), card(3, 4 * GIB, None)]

    assert list(capped_sentences(caps_of(gpus))) == [
        "GPUs 0,2: 8.0 GiB of 80.0 GiB is your cgroup's limit, not the card's (dmem.max);"
        " out of memory at 8.0 GiB is expected.",
        "GPU 3: 4.0 GiB is your cgroup's limit, not the card's (dmem.max);"
        " out of memory at 4.0 GiB is expected.",
    ]
