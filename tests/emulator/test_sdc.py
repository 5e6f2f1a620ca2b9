"""sdc.cu on the emulator against its NumPy twin, for any bits of every format."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpucheck.bench.sdc import ELEMENTS, compare_bits, differences_found, digest
from tests.emulator.conftest import Emulators
from tests.emulator.emulated import SANITIZERS, Memory
from tests.sampling import examples

STORED = {"float32": "f4", "float16": "f2", "bfloat16": "u2", "float64": "f8", "int32": "i4"}
few = settings(max_examples=examples(8))
#: Numbers at the edges: zeros, the smallest, the largest, infinities, NaN, by their upper bits.
EDGES = st.sampled_from([0x00, 0x80, 0x01, 0x7F, 0xFF, 0x7C, 0xFC, 0x3F])


def pairs(form: str, data: st.DataObject) -> tuple[Any, Any]:
    """Return two arrays of any bits, many of which are the same."""
    width = np.dtype(STORED[form]).itemsize
    count = data.draw(st.integers(1, 80))
    byte = st.one_of(EDGES, st.integers(0, 255))
    one = data.draw(st.lists(byte, min_size=count * width, max_size=count * width))
    other = list(one)
    for place in data.draw(st.lists(st.integers(0, len(one) - 1), max_size=6)):
        other[place] = data.draw(byte)
    made = [np.array(side, dtype=np.uint8).view(STORED[form]) for side in (one, other)]
    return made[0], made[1]


@pytest.fixture(autouse=True, scope="module")
def _all_formats(emulator: Emulators) -> None:
    for form in STORED:
        emulator.begin("sdc", f"-DELEMENT={ELEMENTS[form]}", *SANITIZERS)


@pytest.mark.parametrize("form", STORED)
@few
@given(data=st.data(), grid=st.integers(1, 3))
def test_the_kernels_are_their_twins(
    emulator: Emulators, form: str, data: st.DataObject, grid: int
) -> None:
    program = emulator("sdc", f"-DELEMENT={ELEMENTS[form]}", *SANITIZERS)
    one, other = pairs(form, data)
    counters = np.array([0, 2**64 - 1, 0, 0], dtype=np.uint64)

    *_, found = program.launch(
        "differ",
        [Memory(values=one), Memory(values=other), Memory(values=counters)],
        [len(one)],
        grid=grid,
        block=32,
    )
    *_, total = program.launch(
        "digest",
        [Memory(values=one), Memory(values=np.zeros(1, np.uint64))],
        [len(one)],
        grid=grid,
        block=32,
    )

    assert differences_found(found) == compare_bits(one, other, form)
    assert f"{int(total[0]):016x}" == digest(one, form)
