from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucheck.bench.softmax_launch import (
    HELD_NUMBERS,
    MOST_THREADS,
    REGISTERS_PER_SM,
    SoftmaxLaunch,
    SoftmaxRows,
    choose_softmax,
)

#: Compute capability, SMs: V100, T4, A100, RTX 3090, RTX 4090, H200, B200, RTX PRO 6000, Jetson.
CARDS = [
    ((7, 0), 80),
    ((7, 5), 40),
    ((8, 0), 108),
    ((8, 6), 82),
    ((8, 9), 128),
    ((9, 0), 132),
    ((10, 0), 148),
    ((12, 0), 188),
    ((8, 7), 8),
]


def rows(columns: int, itemsize: int = 4, count: int = 1000, aligned: bool = True) -> SoftmaxRows:
    return SoftmaxRows(rows=count, columns=columns, itemsize=itemsize, aligned=aligned)


def held_packs(launch: SoftmaxLaunch) -> int:
    """Return how many packs of one row a launch holds in registers."""
    defines = launch.defines
    threads = defines.get("LANES") or defines.get("CLUSTER", 1) * launch.block
    return threads * defines["PACKS"]


@given(
    columns=st.one_of(st.integers(0, 3000), st.integers(0, 600_000)),
    count=st.integers(0, 2**33),
    itemsize=st.sampled_from([2, 4]),
    aligned=st.booleans(),
    card=st.sampled_from(CARDS),
)
def test_every_launch_holds_its_rows_and_fits_the_card(
    columns: int, count: int, itemsize: int, aligned: bool, card: tuple[tuple[int, int], int]
) -> None:
    problem = rows(columns, itemsize, count, aligned)

    launch = choose_softmax(problem, *card)

    defines = launch.defines
    cluster = defines.get("CLUSTER", 1)
    assert launch.block % 32 == 0
    assert 32 <= launch.block <= MOST_THREADS
    assert 1 <= launch.grid < 2**31
    assert launch.grid % cluster == 0
    assert defines["BLOCK"] == launch.block
    assert bool(defines["ALIGNED"]) == (aligned and columns * itemsize % 16 == 0)
    # What the compiler is asked to fit an SM at once must fit.
    assert 1 <= defines["BLOCKS_PER_SM"] <= 16
    assert defines["BLOCKS_PER_SM"] * launch.block <= 1024
    if launch.name != "softmax_online":
        assert held_packs(launch) >= problem.packs
        assert defines["PACKS"] * 16 // itemsize <= HELD_NUMBERS
    if launch.name == "softmax_cluster":
        assert card[0] >= (9, 0)
        assert cluster in (2, 4, 8)


def test_rows_anywhere_count_the_pack_that_they_may_begin_in() -> None:
    assert rows(8).packs == 2
    assert rows(8, aligned=False).packs == 3
    assert rows(1, itemsize=2, aligned=False).packs == 1
    assert rows(2, itemsize=2, aligned=False).packs == 2
    assert rows(0).packs == 0


@pytest.mark.parametrize("itemsize", [2, 4])
@pytest.mark.parametrize(
    ("columns", "name", "block"),
    [
        (1, "softmax_short", 128),
        (1024, "softmax_short", 128),
        (1032, "softmax_long", 64),
        (4096, "softmax_long", 128),
        (32768, "softmax_long", 1024),
        (65536, "softmax_cluster", 512),
        (131_072, "softmax_cluster", 512),
        (262_144, "softmax_cluster", 1024),
        (262_152, "softmax_online", 512),
    ],
)
def test_rows_stay_in_registers_as_long_as_there_are_any(
    columns: int, name: str, block: int, itemsize: int
) -> None:
    launch = choose_softmax(rows(columns, itemsize), (9, 0), 132)

    assert (launch.name, launch.block) == (name, block)


@pytest.mark.parametrize(("columns", "size"), [(65536, 4), (131_072, 8), (262_144, 8)])
def test_a_cluster_is_as_small_as_lets_two_blocks_share_an_sm(columns: int, size: int) -> None:
    launch = choose_softmax(rows(columns), (9, 0), 132)

    assert launch.defines["CLUSTER"] == size
    assert launch.grid == 1000 * size


def test_before_clusters_long_rows_are_read_twice() -> None:
    launch = choose_softmax(rows(65536), (8, 0), 108)

    assert launch.name == "softmax_online"
    assert launch.grid == 2 * 108


def test_a_block_that_is_alone_on_its_sm_stays_and_asks_ahead() -> None:
    alone = choose_softmax(rows(32768), (9, 0), 132)
    shared = choose_softmax(rows(16384), (9, 0), 132)

    assert (alone.grid, alone.defines["PREFETCH"]) == (132, 1)
    assert (shared.grid, shared.defines["PREFETCH"]) == (1000, 0)
    assert REGISTERS_PER_SM // (64 * shared.block) == 2


@pytest.mark.parametrize("columns", [12_001, 14_001, 16_001])
def test_rows_that_begin_anywhere_leave_room_for_fewer_threads(columns: int) -> None:
    launch = choose_softmax(rows(columns, aligned=False), (9, 0), 132)

    # Their blocks are alone on an SM from 385 threads on, not from 513.
    alone = launch.block > 384
    assert launch.defines["BLOCKS_PER_SM"] == (1 if alone else 2)
    assert launch.defines["PREFETCH"] == int(alone)
    assert launch.grid == (132 if alone else 1000)


@pytest.mark.parametrize("aligned", [True, False])
def test_two_blocks_of_the_longest_rows_fit_an_sm(aligned: bool) -> None:
    launch = choose_softmax(rows(600_000, aligned=aligned), (9, 0), 132)

    assert launch.name == "softmax_online"
    assert launch.defines["BLOCKS_PER_SM"] == 2
    assert launch.grid == 2 * 132


@pytest.mark.parametrize("itemsize", [2, 4])
@pytest.mark.parametrize("columns", [520, 1032, 1536, 4097, 33_000, 131_080])
def test_no_thread_holds_a_pack_that_no_row_fills(columns: int, itemsize: int) -> None:
    aligned = columns % 8 == 0
    problem = rows(columns, itemsize, aligned=aligned)

    launch = choose_softmax(problem, (9, 0), 132)

    packs = launch.defines["PACKS"]
    assert held_packs(launch) // packs * (packs - 1) < problem.packs


def test_short_rows_share_a_warp() -> None:
    lanes = {
        columns: choose_softmax(rows(columns), (9, 0), 132).defines["LANES"]
        for columns in (1, 64, 68, 128, 132, 256, 260, 1024)
    }

    assert lanes == {1: 4, 64: 4, 68: 8, 128: 8, 132: 16, 256: 16, 260: 32, 1024: 32}
