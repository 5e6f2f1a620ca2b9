"""The other CUDA sources on the emulator: each kernel against NumPy in float64 or bit by bit."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.emulator.conftest import PACKAGE, SOURCES, Emulators
from tests.emulator.emulated import FOLDER, ORDERS, SANITIZERS, KernelFault, Memory
from tests.sampling import examples

HostArray = NDArray[Any]
INPUTS, CLASSES = 785, 10
few = settings(max_examples=examples(6))


def blank(shape: tuple[int, ...] | int) -> HostArray:
    return np.full(shape, np.nan, dtype=np.float32)


def drawn(shape: tuple[int, ...] | int, seed: int) -> HostArray:
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


def softmax(values: HostArray) -> HostArray:
    raised = np.exp(values - values.max(axis=1, keepdims=True))
    return np.asarray(raised / raised.sum(axis=1, keepdims=True))


def test_every_source_has_a_driver() -> None:
    assert set(SOURCES) == {path.stem for path in FOLDER.glob("*.cpp")}
    assert {path.suffix for path in PACKAGE.rglob("*.cu*")} == {".cu"}


@few
@given(
    packs=st.integers(1, 700),
    grid=st.integers(1, 4),
    block=st.sampled_from([32, 64]),
    order=st.sampled_from(ORDERS),
)
def test_copy_and_triad_reach_every_pack_with_any_grid(
    emulator: Emulators, packs: int, grid: int, block: int, order: int
) -> None:
    x, z, how = drawn(4 * packs, 1), drawn(4 * packs, 2), {"grid": grid, "block": block}
    stream = emulator("stream", *SANITIZERS)

    _, copied = stream.launch(
        "copy", [Memory(values=x), Memory(values=blank(4 * packs))], [packs], order=order, **how
    )
    *_, scaled = stream.launch(
        "triad",
        [Memory(values=x), Memory(values=z), Memory(values=blank(4 * packs))],
        [np.float32(0.7), packs],
        order=order,
        **how,
    )

    assert copied.tobytes() == x.tobytes()
    expected = np.float64(np.float32(0.7)) * x + z.astype(np.float64)
    np.testing.assert_allclose(scaled, expected, rtol=0, atol=2e-6)


@few
@given(rows=st.integers(1, 40), grid=st.integers(1, 6), order=st.sampled_from(ORDERS))
def test_forward_is_softmax_less_targets(
    emulator: Emulators, rows: int, grid: int, order: int
) -> None:
    images, weights = drawn((rows, INPUTS), rows), drawn((INPUTS, CLASSES), 7) / 10
    targets = np.eye(CLASSES, dtype=np.float32)[np.arange(rows) % CLASSES]
    memories = [Memory(values=one) for one in (images, weights, targets, blank((rows, CLASSES)))]

    *_, found = emulator("train", *SANITIZERS).launch(
        "forward", memories, [rows], grid=grid, block=128, order=order
    )

    expected = softmax(images.astype(np.float64) @ weights.astype(np.float64)) - targets
    np.testing.assert_allclose(found, expected, atol=3e-6)


@settings(few, max_examples=examples(4))
@given(rows=st.integers(1, 40), added=st.booleans(), order=st.sampled_from(ORDERS))
def test_project_is_the_scaled_product(
    emulator: Emulators, rows: int, added: bool, order: int
) -> None:
    images, errors = drawn((rows, INPUTS), rows), drawn((rows, CLASSES), 3)
    # An output that is overwritten may hold anything, including NaN.
    out = drawn((INPUTS, CLASSES), 4) if added else blank((INPUTS, CLASSES))

    *_, found = emulator("train", *SANITIZERS).launch(
        "project",
        [Memory(values=images), Memory(values=errors), Memory(values=out)],
        [np.float32(-0.1), int(added), rows],
        grid=-(-INPUTS // 32),
        block=512,
        order=order,
    )

    product = np.float64(np.float32(-0.1)) * (images.astype(np.float64).T @ errors)
    np.testing.assert_allclose(found, product + (out if added else 0), atol=2e-5)


@few
@given(rows=st.integers(1, 300), spare=st.integers(0, 2), order=st.sampled_from(ORDERS))
def test_gradient_is_softmax_less_targets_in_place(
    emulator: Emulators, rows: int, spare: int, order: int
) -> None:
    logits, targets = drawn((rows, CLASSES), rows) * 30, drawn((rows, CLASSES), 5)

    found, _ = emulator("train", *SANITIZERS).launch(
        "gradient",
        [Memory(values=logits), Memory(values=targets)],
        [rows],
        grid=-(-rows // 64) + spare,
        block=64,
        order=order,
    )

    expected = softmax(logits.astype(np.float64)) - targets
    np.testing.assert_allclose(found, expected, atol=1e-6)


@few
@given(count=st.integers(1, 300), towers=st.integers(1, 5), order=st.sampled_from(ORDERS))
def test_merge_subtracts_every_tower(
    emulator: Emulators, count: int, towers: int, order: int
) -> None:
    weights, steps = drawn(count, 1), drawn((towers, count), 2)

    found, _ = emulator("train", *SANITIZERS).launch(
        "merge",
        [Memory(values=weights), Memory(values=steps)],
        [towers, count],
        grid=-(-count // 64),
        block=64,
        order=order,
    )

    np.testing.assert_allclose(found, weights - steps.sum(axis=0, dtype=np.float64), atol=1e-5)


def timing_without_special_registers() -> str:
    """Return timing.cu with calls in place of the assembly that reads a GPU's registers."""
    pattern = r'asm volatile\("mov\.u\d+ %0, %%(\w+);" : "=[lr]"\((\w+)\)\);'
    text = SOURCES["timing"].read_text(encoding="utf-8")
    calls = {"globaltimer": "global_timer", "smid": "sm_number"}
    found, count = re.subn(pattern, lambda one: f"{one[2]} = {calls[one[1]]}();", text)
    assert count == 6
    return found


def test_the_timing_kernels_wait_and_write_once(emulator: Emulators) -> None:
    timing = emulator("timing", *SANITIZERS, text=timing_without_special_registers())

    assert timing.launch("hold", [], [50_000], grid=1, block=1) == []
    (ticks,) = timing.launch("tick", [Memory(values=np.zeros(2, np.uint64))], [], grid=4, block=1)
    (untouched,) = timing.launch(
        "tick", [Memory(values=np.zeros(2, np.uint64))], [], grid=3, block=1
    )

    (stepped,) = timing.launch("step", [Memory(values=np.zeros(1, np.uint64))], [], grid=1, block=1)

    assert stepped.tolist() == [1000]
    assert ticks[0] > 50_000
    assert ticks[1] == 2 * ticks[0]
    assert not untouched.any()


WORDS = {0: np.float32, 1: np.float16, 3: np.float64, 4: np.int32}


@pytest.mark.parametrize("element", [0, 1, 3])
@settings(few, max_examples=examples(5))
@given(
    count=st.integers(1, 300),
    grid=st.integers(1, 3),
    wrong=st.sets(st.integers(0, 299), max_size=5),
    order=st.sampled_from(ORDERS),
)
def test_differing_words_are_counted_and_the_digest_tells_them(
    emulator: Emulators, element: int, count: int, grid: int, wrong: set[int], order: int
) -> None:
    program = emulator("sdc", f"-DELEMENT={element}", *SANITIZERS)
    one = np.random.default_rng(count).standard_normal(count).astype(WORDS[element])
    other = one.copy()
    places = sorted(place for place in wrong if place < count)
    for place in places:
        other[place] = np.nextafter(other[place], WORDS[element](9))
    most = np.uint64(2**64 - 1)
    counters = np.array([0, most, 0, 0], dtype=np.uint64)

    def digest(values: HostArray) -> int:
        memories = [Memory(values=values), Memory(values=np.zeros(1, np.uint64))]
        *_, found = program.launch("digest", memories, [count], grid=grid, block=32, order=order)
        return int(found[0])

    *_, found = program.launch(
        "differ",
        [Memory(values=one), Memory(values=other), Memory(values=counters)],
        [count],
        grid=grid,
        block=32,
        order=order,
    )

    assert found.tolist() == [
        len(places),
        places[0] if places else int(most),
        1 if places else 0,
        0,
    ]
    assert (digest(one) == digest(other)) == (not places)


MISTAKES = {
    "a tile too many": ("stream", "first + i * BLOCK < packs)", "first + i * BLOCK <= packs)"),
    "parts read before all are there": ("train", "    __syncthreads();\n", "\n"),
    "an image too many": ("train", "for (; row < rows;", "for (; row <= rows;"),
    "an input too many": (
        "train",
        "        if (input < INPUTS) {",
        "        if (input <= INPUTS) {",
    ),
    "one row too many": ("train", "if (row >= rows) return;", "if (row > rows) return;"),
}


def broken(mistake: str) -> tuple[tuple[str, ...], str]:
    """Return the name and options, and the text, of a source with a mistake."""
    name, right, wrong = MISTAKES[mistake]
    text = SOURCES[name].read_text(encoding="utf-8")
    assert right in text
    # The emulator itself detects missing barriers.
    sanitizers = () if "barrier" in mistake or "parts" in mistake else SANITIZERS
    return (name, *sanitizers), text.replace(right, wrong)


@pytest.fixture(autouse=True, scope="module")
def _all_sources(emulator: Emulators) -> None:
    for name in ("stream", "train"):
        emulator.begin(name, *SANITIZERS)
    emulator.begin("timing", *SANITIZERS, text=timing_without_special_registers())
    for element in (0, 1, 3):
        emulator.begin("sdc", f"-DELEMENT={element}", *SANITIZERS)
    for mistake in MISTAKES:
        words, text = broken(mistake)
        emulator.begin(*words, text=text)


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_planted_mistake_is_caught(emulator: Emulators, mistake: str) -> None:
    (name, *options), text = broken(mistake)
    wrong = emulator(name, *options, text=text)
    images, errors = drawn((3, INPUTS), 1), drawn((3, CLASSES), 2)
    weights = drawn((INPUTS, CLASSES), 3)
    tried: dict[str, tuple[list[HostArray], list[float], int, int]] = {
        "copy": ([drawn(20, 1), blank(20)], [5], 1, 32),
        "forward": ([images, weights, errors, errors], [3], 1, 128),
        "project": ([images, errors, weights], [1.0, 1, 3], 25, 512),
        "gradient": ([errors, errors], [3], 1, 64),
    }

    def try_all() -> None:
        for kernel, (arrays, scalars, grid, block) in tried.items():
            if (kernel == "copy") == (name == "stream"):
                memories = [Memory(values=one) for one in arrays]
                wrong.launch(kernel, memories, scalars, grid=grid, block=block)

    with pytest.raises(KernelFault):
        try_all()
