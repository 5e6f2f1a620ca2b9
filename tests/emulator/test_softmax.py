"""Softmax on the emulator against float64: every kernel, length, alignment, format and order.

The kernels are softmax.cu's and those that wait for a card in benchmarks/card.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from benchmarks.card.variants import launches, variants_text
from gpucheck.bench.kernels.softmax import (
    SoftmaxLaunch,
    SoftmaxRows,
    choose_softmax,
    source_text,
)
from gpucheck.bench.numerics import FORMATS, decode, encode
from tests.emulator.conftest import Emulators
from tests.emulator.emulated import ORDERS, SANITIZERS, Emulator, KernelFault, Memory
from tests.sampling import examples

HostArray = NDArray[Any]

LOG2_E = 1.4426950408889634
ELEMENTS = ("float32", "float16", "bfloat16")
KERNELS = (
    *("softmax_short", "softmax_long", "softmax_online"),
    *("softmax_ahead", "softmax_cluster", "softmax_raw"),
)
#: Relative to a number of the output, and absolutely: float32's error grows with the exponent's
#: size, of which 126 is the largest; a 16-bit format adds its rounding, in float16 also of numbers
#: below its normal ones.
TOLERANCES = {
    "float32": (3e-5, 1e-30),
    "float16": (2.0**-10, 2.0**-24),
    "bfloat16": (2.0**-8, 1e-30),
}
UNTOUCHED = 0x5A
TEXT = source_text() + variants_text()


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """Rows to compute, `offset` bytes behind a multiple of sixteen."""

    values: HostArray
    dtype: str = "float32"
    temperature: float = 0.7
    offset: int = 0

    @property
    def rows(self) -> SoftmaxRows:
        count, columns = self.values.shape
        size = FORMATS[self.dtype].itemsize
        aligned = self.offset % 16 == 0 and columns * size % 16 == 0
        return SoftmaxRows(rows=count, columns=columns, itemsize=size, aligned=aligned)


def exact(values: HostArray, temperature: float) -> HostArray:
    """Return the formula's result in float64, including NaN."""
    with np.errstate(all="ignore"):
        raised = values.astype(np.float64) / temperature
        raised = np.exp(raised - raised.max(axis=1, keepdims=True))
        return np.asarray(raised / raised.sum(axis=1, keepdims=True))


def compute(
    emulator: Emulator, problem: Problem, launch: SoftmaxLaunch, order: int = 0, seed: int = 1
) -> HostArray:
    """Return the rows of y as stored."""
    x = encode(problem.values, FORMATS[problem.dtype])
    y = np.full(x.shape, 0, x.dtype)
    y.view(np.uint8)[...] = UNTOUCHED
    factor = np.float32(LOG2_E / problem.temperature)
    defines = launch.defines
    found_x, found_y = emulator.launch(
        launch.name,
        [Memory(values=values, offset=problem.offset) for values in (x, y)],
        [
            *(*x.shape, factor, defines["ALIGNED"]),
            *(defines.get(name, 0) for name in ("PACKS", "LANES", "EXACT")),
        ],
        grid=launch.grid,
        block=launch.block,
        cluster=defines.get("CLUSTER", 1),
        order=order,
        seed=seed,
    )
    assert found_x.tobytes() == x.tobytes()
    return found_y


def assert_right(
    emulator: Emulator, problem: Problem, launch: SoftmaxLaunch, **how: int
) -> HostArray:
    """Compare the rows of y with float64, and return them as stored."""
    computed = compute(emulator, problem, launch, **how)
    stored = encode(problem.values, FORMATS[problem.dtype])
    expected = exact(decode(stored, problem.dtype), problem.temperature)
    relative, absolute = TOLERANCES[problem.dtype]
    found = decode(computed, problem.dtype)
    np.testing.assert_allclose(
        found.astype(np.float64), expected, rtol=relative, atol=absolute, err_msg=str(launch)
    )
    return computed


def built(emulator: Emulators, dtype: str) -> Emulator:
    return emulator("softmax", f"-DELEMENT={ELEMENTS.index(dtype)}", *SANITIZERS, text=TEXT)


def broken(mistake: str) -> tuple[tuple[str, ...], str]:
    """Return the options and text of a source with a mistake: it may leave something unused."""
    right, wrong = MISTAKES[mistake]
    assert right in TEXT
    sanitizers = SANITIZERS if mistake in FOUND_BY_SANITIZERS else ()
    return ("-DELEMENT=0", "-DFEW", "-w", *sanitizers), TEXT.replace(right, wrong)


@pytest.fixture(autouse=True, scope="module")
def _all_sources(emulator: Emulators) -> None:
    for dtype in ELEMENTS:
        emulator.begin("softmax", f"-DELEMENT={ELEMENTS.index(dtype)}", *SANITIZERS, text=TEXT)
    for mistake in MISTAKES:
        options, text = broken(mistake)
        emulator.begin("softmax", *options, text=text)


def draw(columns: int, rows: int, seed: int, spread: float = 1.0) -> HostArray:
    generator = np.random.default_rng([seed, rows, columns])
    return generator.standard_normal((rows, columns), dtype=np.float32) * np.float32(spread)


@pytest.mark.parametrize("dtype", ELEMENTS)
@settings(max_examples=examples(8))
@given(
    columns=st.one_of(st.integers(1, 70), st.integers(1, 5000), st.integers(1, 70_000)),
    rows=st.integers(1, 5),
    place=st.integers(0, 7),
    temperature=st.sampled_from([1e-30, 1e-4, 0.7, 1.0, 50.0, 1e30]),
    spread=st.sampled_from([0.0, 1.0, 30.0, 1e4]),
    order=st.sampled_from(ORDERS),
    seed=st.integers(0, 2**31),
)
def test_every_row_length_and_place_agrees_with_float64(
    emulator: Emulators,
    dtype: str,
    columns: int,
    rows: int,
    place: int,
    temperature: float,
    spread: float,
    order: int,
    seed: int,
) -> None:
    size = FORMATS[dtype].itemsize
    problem = Problem(
        values=draw(columns, rows, seed, spread),
        dtype=dtype,
        temperature=temperature,
        offset=size * place % 16,
    )
    launch = choose_softmax(problem.rows)

    assert_right(built(emulator, dtype), problem, launch, order=order, seed=seed)


@pytest.mark.parametrize("dtype", ELEMENTS)
@settings(max_examples=examples(8))
@given(
    name=st.sampled_from(KERNELS),
    columns=st.integers(1, 400),
    grid=st.integers(1, 7),
    packs=st.sampled_from([1, 2, 4, 8]),
    specials=st.lists(
        st.tuples(
            st.integers(0, 4), st.integers(0, 399), st.sampled_from([-np.inf, np.inf, np.nan, 3e38])
        ),
        max_size=6,
    ),
    empty=st.integers(0, 5),
    place=st.integers(0, 7),
    order=st.sampled_from(ORDERS),
)
def test_every_kernel_handles_infinities_nan_and_overflow_in_their_own_row(
    emulator: Emulators,
    dtype: str,
    name: str,
    columns: int,
    grid: int,
    packs: int,
    specials: list[tuple[int, int, float]],
    empty: int,
    place: int,
    order: int,
) -> None:
    values = draw(columns, 5, place)
    if dtype == "float32" and name == "softmax_raw":
        name = "softmax_long"
    largest = {"float32": 3e38, "float16": 6e4, "bfloat16": 3e38}[dtype]
    for row, column, value in specials:
        values[row, column % columns] = largest if value == 3e38 else value
    if empty < 5:
        values[empty] = -np.inf
    problem = Problem(values=values, dtype=dtype, offset=FORMATS[dtype].itemsize * place % 16)
    # Small blocks and clusters, so that every lane and block has a part of a short row.
    cluster = 4 if name == "softmax_cluster" else 1
    held = packs * 16 // FORMATS[dtype].itemsize
    threads = 32 if name == "softmax_short" else 32 * -(-(columns + 7) // (32 * held * cluster))
    if name == "softmax_short" and columns + 7 > 32 * held:
        name = "softmax_long"
        threads = 32 * -(-(columns + 7) // (32 * held))
    launch = SoftmaxLaunch(
        name=name,
        grid=grid * cluster,
        block=threads,
        defines={"ALIGNED": 0, "PACKS": packs, "LANES": 32, "CLUSTER": cluster},
    )

    assert_right(built(emulator, dtype), problem, launch, order=order)


@pytest.mark.parametrize("lanes", [4, 8, 16, 32])
@pytest.mark.parametrize("rows", [1, 33, 70])
def test_rows_that_share_a_warp_do_not_mix(emulator: Emulators, lanes: int, rows: int) -> None:
    for columns in (1, 4 * lanes - 3, 4 * lanes, 8 * lanes - 3):
        problem = Problem(values=draw(columns, rows, lanes, 3.0), offset=4)
        launch = SoftmaxLaunch(
            name="softmax_short",
            grid=2,
            block=64,
            defines={"ALIGNED": 0, "PACKS": 2, "LANES": lanes},
        )
        for order in ORDERS:
            assert_right(built(emulator, "float32"), problem, launch, order=order)


@pytest.mark.parametrize(("dtype", "columns"), [
    *((dtype, columns) for dtype in ELEMENTS for columns in (96, 4099)),
    # Beyond what a block holds: the format makes no difference to the order.
    ("float16", 33_000),
])  # fmt: skip
def test_the_order_of_the_threads_changes_no_bit(
    emulator: Emulators, dtype: str, columns: int
) -> None:
    problem = Problem(values=draw(columns, 3, 1), dtype=dtype)
    assert_right_in_any_order(built(emulator, dtype), problem, choose_softmax(problem.rows))


def assert_right_in_any_order(emulator: Emulator, problem: Problem, launch: SoftmaxLaunch) -> None:
    first, *others = ORDERS
    right = assert_right(emulator, problem, launch, order=first).tobytes()
    found = {compute(emulator, problem, launch, order=one, seed=one).tobytes() for one in others}
    assert found == {right}, launch


@pytest.mark.parametrize(
    ("dtype", "columns"), [("float32", 4096), ("bfloat16", 8192), ("float16", 33_000)]
)
def test_the_variants_for_a_card_agree_with_float64_in_any_order(
    emulator: Emulators, dtype: str, columns: int
) -> None:
    problem = Problem(values=draw(columns, 3, 1), dtype=dtype)
    found = launches(problem.rows, (9, 0), 1)

    assert {launch.name for launch in found.values()} >= {"softmax_cluster"}
    for launch in found.values():
        assert_right_in_any_order(built(emulator, dtype), problem, launch)


#: Planted mistakes: the place in the source, the new text, and how it shows.
MISTAKES = {
    "no barrier before a block's values are read": ("        __syncthreads(); \\\n", " \\\n"),
    "one set of slots for maxima and sums": (
        "held.raise(top, factor), sums)",
        "held.raise(top, factor), tops)",
    ),
    "no waiting for a cluster's numbers": ("        await(mail, parity); \\\n", " \\\n"),
    "a number that nobody expects": ("if (thread == 0) expect(mail);", ""),
    "one mail for maxima and sums": (
        "cluster_sum(own_sum, every_sum,",
        "cluster_sum(own_sum, every_top,",
    ),
    "a mail that nobody prepared": ("        prepare(every_sum);\n", ""),
    "a phase that is over": ("rows; row += clusters, parity ^= 1", "rows; row += clusters"),
    "a row that is written too early": (
        "float own_sum = block_sum(held.raise(top, factor), sums)",
        "float own_sum = held.raise(top, factor)",
    ),
    "nobody says that he has begun": ("    cluster_begun();\n", ""),
    "somebody says it twice": ("    cluster_begun();\n", "    cluster_begun(); cluster_begun();\n"),
    "a block of the cluster that has not begun": ("if (row == first) cluster_all_begun();", ""),
    "one element too many": ("first + PER_PACK <= columns;", "first + PER_PACK <= columns + 1;"),
    "an element in front": ("first >= 0 && first + PER_PACK", "first >= -1 && first + PER_PACK"),
    "the last element forgotten": ("first + i < columns) to[", "first + i < columns - 1) to["),
    "an exchange that some lanes leave out": (
        "first < rows; first +=",
        "first + group < rows; first +=",
    ),
    "zero beyond the row": ("nothing = 0xff800000u", "nothing = 0x00000000u"),
    "a maximum that is not the row's": ("= block_max(held.highest(), tops)", "= held.highest()"),
    "a sum relative to -inf": ("from == minus_infinity() ? 1.0f :", "from == 0.25f ? 1.0f :"),
    "a prefetch beyond the array": ("if (row + gridDim.x < rows)", "if (rows)"),
}


#: The emulator or the result reveals the others.
FOUND_BY_SANITIZERS = {
    "one element too many",
    "a prefetch beyond the array",
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_planted_mistake_is_caught(emulator: Emulators, mistake: str) -> None:
    options, text = broken(mistake)
    wrong = emulator("softmax", *options, text=text)
    defines = {"ALIGNED": 0, "PACKS": 2, "LANES": 32}
    launches = [
        SoftmaxLaunch(name="softmax_short", grid=1, block=64, defines=defines | {"LANES": 8}),
        SoftmaxLaunch(name="softmax_long", grid=1, block=64, defines=defines),
        SoftmaxLaunch(name="softmax_online", grid=1, block=32, defines=defines),
        SoftmaxLaunch(name="softmax_ahead", grid=1, block=64, defines=defines),
        SoftmaxLaunch(name="softmax_cluster", grid=2, block=32, defines=defines | {"CLUSTER": 2}),
    ]
    values = draw(51, 3, 1) - 5
    values[1] = -np.inf
    values[2, 3:40] = -np.inf
    problem = Problem(values=values, offset=4)

    def try_all() -> None:
        for launch in launches:
            for order in ORDERS:
                assert_right(wrong, problem, launch, order=order)

    with pytest.raises(AssertionError):
        try_all()


def test_the_emulator_itself_tells_what_is_wrong(emulator: Emulators) -> None:
    options, text = broken("no barrier before a block's values are read")
    wrong = emulator("softmax", *options, text=text)
    launch = SoftmaxLaunch(
        name="softmax_long", grid=1, block=64, defines={"ALIGNED": 0, "PACKS": 2}
    )
    with pytest.raises(KernelFault, match=r"race|nobody wrote"):
        compute(wrong, Problem(values=draw(51, 3, 1)), launch)
