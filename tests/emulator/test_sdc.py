"""sdc.cu on the emulator against its NumPy twin, for any bits of every format."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpucheck.bench.bits import ELEMENTS, compare_bits, digest, read_differences
from gpucheck.bench.sdc import SOURCE
from tests.emulator.conftest import Emulators
from tests.emulator.emulated import SANITIZERS, Emulator, Memory
from tests.sampling import examples

STORED = {"float32": "f4", "float16": "f2", "bfloat16": "u2", "float64": "f8", "int32": "i4"}
few = settings(max_examples=examples(8))
#: Numbers at the edges: zeros, the smallest, the largest, infinities, NaN, by their upper bits.
EDGES = st.sampled_from([0x00, 0x80, 0x01, 0x7F, 0xFF, 0x7C, 0xFC, 0x3F])


def pairs(form: str, data: st.DataObject) -> tuple[Any, Any]:
    """Return two arrays of any bits, many of which are the same; long ones are periodic."""
    width = np.dtype(STORED[form]).itemsize
    # A block of 32 threads takes 128 packs at once.
    count = data.draw(st.one_of(st.integers(1, 80), st.integers(1, 5000)))
    byte = st.one_of(EDGES, st.integers(0, 255))
    unit = data.draw(st.lists(byte, min_size=1, max_size=80 * width))
    one = np.resize(np.array(unit, dtype=np.uint8), count * width)
    other = one.copy()
    for place in data.draw(st.lists(st.integers(0, len(one) - 1), max_size=6)):
        other[place] = data.draw(byte)
    return one.view(STORED[form]), other.view(STORED[form])


def compared(program: Emulator, one: Any, other: Any, grid: int) -> tuple[Any, Any]:
    """Return what `differ` leaves of the second array, and what it found."""
    counters = np.array([0, 2**64 - 1, 0, 0], dtype=np.uint64)
    expected, left, found = program.launch(
        "differ",
        [Memory(values=one), Memory(values=other), Memory(values=counters)],
        [len(one)],
        grid=grid,
        block=32,
    )
    assert expected.tobytes() == one.tobytes()
    return left, found


#: Planted mistakes: the place in the source and the new text.
MISTAKES = {
    "the words behind the last pack left out": ("i = packs * PER_PACK + thread", "i = count"),
    "the last pack of a thread left out": (
        "low < packs; low +=",
        "low + 3 * stride < packs; low +=",
    ),
    "packs compared twice": ("low += UNROLL * stride", "low += stride"),
    "no poison left behind": ("= make_uint4(poison, poison, poison, poison)", "= computed[i]"),
    "an index in packs": ("(low + i * stride) * PER_PACK + number", "low + i * stride"),
}


@pytest.fixture(autouse=True, scope="module")
def _all_sources(emulator: Emulators) -> None:
    for form in STORED:
        emulator.begin("sdc", f"-DELEMENT={ELEMENTS[form]}", *SANITIZERS)
    for mistake in MISTAKES:
        emulator.begin("sdc", *MISTAKEN, text=broken(mistake))


MISTAKEN = ("-DELEMENT=2", "-w")


def broken(mistake: str) -> str:
    right, wrong = MISTAKES[mistake]
    text = SOURCE.read_text(encoding="utf-8")
    assert right in text
    return text.replace(right, wrong)


@pytest.mark.parametrize("form", STORED)
@few
@given(data=st.data(), grid=st.integers(1, 3))
def test_the_kernels_are_their_twins(
    emulator: Emulators, form: str, data: st.DataObject, grid: int
) -> None:
    program = emulator("sdc", f"-DELEMENT={ELEMENTS[form]}", *SANITIZERS)
    one, other = pairs(form, data)
    left, found = compared(program, one, other, grid)
    *_, total = program.launch(
        "digest",
        [Memory(values=one), Memory(values=np.zeros(1, np.uint64))],
        [len(one)],
        grid=grid,
        block=32,
    )

    assert read_differences(found) == compare_bits(one, other, form)
    assert set(left.tobytes()) == {0x80 if form == "int32" else 0xFF}
    assert f"{int(total[0]):016x}" == digest(one, form)


def assert_right(program: Emulator) -> None:
    one = np.arange(3011, dtype=np.uint16)
    for place in (9, 1500, 3000, 3010):
        other = one.copy()
        other[place] ^= 1
        left, found = compared(program, one, other, 2)
        assert read_differences(found) == compare_bits(one, other, "bfloat16")
        assert set(left.tobytes()) == {0xFF}


def test_the_right_kernel_passes_where_planted_mistakes_are_looked_for(emulator: Emulators) -> None:
    assert_right(emulator("sdc", "-DELEMENT=2", *SANITIZERS))


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_planted_mistake_is_caught(emulator: Emulators, mistake: str) -> None:
    with pytest.raises(AssertionError):
        assert_right(emulator("sdc", *MISTAKEN, text=broken(mistake)))
