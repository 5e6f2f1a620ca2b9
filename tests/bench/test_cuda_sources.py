"""Every CUDA source compiles for every supported architecture, by NVRTC alone: no GPU is needed.

What was made of it is looked at as well: registers, local memory, wide loads, fences.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

import gpucheck
from benchmarks.card.variants import launches, variants_text
from gpucheck.bench.kernels.copy import TILE, UNROLL, stream_source
from gpucheck.bench.kernels.softmax import (
    SoftmaxLaunch,
    SoftmaxRows,
    choose_softmax,
    source_text,
)
from gpucheck.bench.sdc import SOURCE
from tests.bench.nvrtc import (
    Compiled,
    Nvrtc,
    find_disassembler,
    find_nvrtc,
    loads_in_flight,
)
from tests.sampling import THOROUGH

PACKAGE = Path(gpucheck.__file__).parent
SOURCES = sorted(PACKAGE.rglob("*.cu"))

#: Maxwell to Blackwell. NVRTC 12.9 knows all but sm_110 (Thor), which came with NVRTC 13; that one
#: begins at sm_75.
ALL = (50, 52, 60, 61, 70, 75, 80, 86, 89, 90, 100, 103, 110, 120, 121)
#: The compiler's other cases are `slow`.
ALWAYS = (90,)
#: The first with all options of a load, the first with clusters, and the newest.
KINDS = (70, 90, 120)
#: And the oldest, the first with bfloat16's instructions, and data centers' Blackwell; the others
#: are compiled by `python -m benchmarks.sweeps`.
FURTHER = tuple(one for one in ALL if THOROUGH or one in (50, 80, 100, *KINDS))
#: Of the generations that the disassembler of CUDA 13 knows; it takes as long as the compiler.
DISASSEMBLED = tuple(one for one in (75, 80, 90, 100, 120) if THOROUGH or one in (75, 90, 120))

#: The values of the macros that a source is compiled with; softmax.cu has a test of its own.
DEFINES = {
    "sdc.cu": tuple((f"-DELEMENT={element}",) for element in range(5)),
    "softmax.cu": (),
    "stream.cu": (tuple(f"-D{name}={value}" for name, value in TILE.items()),),
}
#: What CuPy 14 adds of its own accord (cupy/cuda/compiler.py).
CUPY_OPTIONS = ("-ftz=true", "--device-as-default-execution-space")

CASES = [
    pytest.param(source, defines, id="".join((source.stem, *defines)))
    for source in SOURCES
    for defines in DEFINES.get(source.name, ((),))
]
#: Registers of an SM, on every architecture.
REGISTERS_PER_SM = 65536

KERNELS = {"softmax_short", "softmax_long", "softmax_online"}
#: Kernels that wait for a card in benchmarks/card.
VARIANTS = {"softmax_ahead", "softmax_cluster", "softmax_raw"}
#: Number formats of softmax.cu: its name for them, and their bytes. bfloat16's instructions came
#: one after the other.
FLOAT32, FLOAT16, BFLOAT16 = (0, 4), (1, 2), (2, 2)


ARCHITECTURES = [
    pytest.param(one, marks=() if one in ALWAYS else pytest.mark.slow) for one in FURTHER
]
#: Each format at the kinds that its instructions or registers may differ in. An ordinary run has
#: each kind once or twice: bfloat16 before its instructions, with the first, and at the newest.
SOFTMAX_CASES = [
    *((*FLOAT32, one) for one in (KINDS if THOROUGH else (70, 90))),
    *((*FLOAT16, one) for one in (KINDS if THOROUGH else (75,))),
    *((*BFLOAT16, one) for one in (FURTHER if THOROUGH else (50, 80, 120))),
]


@pytest.fixture(name="nvrtc", scope="module")
def _nvrtc() -> Nvrtc:
    library = find_nvrtc()
    if library is None:
        pytest.skip("NVRTC is not installed: pip install nvidia-cuda-nvrtc-cu12")
    return Nvrtc(library)


@pytest.fixture(name="disassembler", scope="module")
def _disassembler() -> str | None:
    return find_disassembler()


def test_there_are_sources() -> None:
    assert {source.name for source in SOURCES} >= {"softmax.cu", "stream.cu", "timing.cu"}


def compiled(nvrtc: Nvrtc, text: str, defines: Sequence[str], architecture: int) -> Compiled:
    """Compile without a warning."""
    if architecture not in nvrtc.architectures():
        pytest.skip(f"this NVRTC does not know sm_{architecture}")
    # Down to machine code, and not only to PTX: the assembler has its own opinion.
    options = [f"--gpu-architecture=sm_{architecture}", "--std=c++17", *CUPY_OPTIONS, *defines]

    found = nvrtc.compile(text, *options)

    assert found.code == 0, found.log
    # Of its own accord NVRTC only says that old architectures will go.
    assert "source.cu" not in found.log, found.log
    return found


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize(("source", "defines"), CASES)
def test_source_compiles_without_a_warning_and_spills_nothing(
    nvrtc: Nvrtc, source: Path, defines: Sequence[str], architecture: int
) -> None:
    found = compiled(nvrtc, source.read_text(encoding="utf-8"), defines, architecture)

    assert found.kernels
    assert found.local_bytes == 0


def softmax_launches(itemsize: int) -> list[SoftmaxLaunch]:
    """Return one launch of each kernel, aligned or exact or not, with as many threads as it can."""
    found = {}
    for columns in (1024, 1001, 32768, 32760, 32761, 10**6, 10**6 + 1):
        launch = choose_softmax(rows_of(columns, itemsize))
        found[(launch.name, launch.defines["ALIGNED"], launch.defines.get("EXACT"))] = launch
    return list(found.values())


def rows_of(columns: int, itemsize: int) -> SoftmaxRows:
    aligned = columns * itemsize % 16 == 0
    return SoftmaxRows(rows=7, columns=columns, itemsize=itemsize, aligned=aligned)


def variant_launches(itemsize: int, capability: tuple[int, int]) -> list[SoftmaxLaunch]:
    """Return one launch of each kernel that waits for a card, as large as its threads can be."""
    found = {}
    for columns in (32768, 262_144):
        for launch in launches(rows_of(columns, itemsize), capability, 132).values():
            found[(launch.name, launch.defines.get("PREFETCH"))] = launch
    return [launch for (name, _), launch in found.items() if name in VARIANTS]


def compiled_softmax(
    nvrtc: Nvrtc, launch: SoftmaxLaunch, element: int, architecture: int
) -> Compiled:
    """Compile what one launch of the softmax takes."""
    text = source_text() + (variants_text() if launch.name in VARIANTS else "")
    defines = [f"-D{name}={value}" for name, value in launch.defines.items()]
    found = compiled(nvrtc, text, [f"-DELEMENT={element}", *defines], architecture)
    assert found.kernels == {launch.name}
    return found


@pytest.mark.slow
@pytest.mark.parametrize(("element", "itemsize", "architecture"), SOFTMAX_CASES)
def test_every_softmax_that_is_launched_has_the_registers_and_instructions_that_it_may_take(
    nvrtc: Nvrtc,
    disassembler: str | None,
    tmp_path: Path,
    element: int,
    itemsize: int,
    architecture: int,
) -> None:
    chosen = softmax_launches(itemsize)
    others = variant_launches(itemsize, divmod(architecture, 10))
    assert {launch.name for launch in chosen} == KERNELS
    left_out = {"softmax_raw"} if itemsize == 4 else set()
    left_out |= {"softmax_cluster"} if architecture < 90 else set()
    assert {launch.name for launch in others} == VARIANTS - left_out

    for launch in (*chosen, *others):
        found = compiled_softmax(nvrtc, launch, element, architecture)
        # The hardware hands out registers by eight for each thread.
        threads = launch.block * launch.defines["BLOCKS_PER_SM"]
        assert -(-found.registers // 8) * 8 * threads <= REGISTERS_PER_SM, launch
        assert found.local_bytes == 0, launch
        if disassembler and launch.defines["ALIGNED"] and architecture in DISASSEMBLED:
            instructions_are_right(found.instructions(disassembler, tmp_path), launch)


def instructions_are_right(found: dict[str, int], launch: SoftmaxLaunch) -> None:
    """Assert that aligned rows move 16 bytes at once, and that nothing waits for a fence."""
    loads, stores = moves(found, "LDG"), moves(found, "STG")
    packs = launch.defines.get("PACKS")
    # softmax_online reads four packs in each of its passes, and writes them in the second.
    assert sum(loads.values()) == (packs or 8), (launch, found)
    assert sum(stores.values()) == (packs or 4), (launch, found)
    assert all(".128" in name for name in (*loads, *stores)), (launch, found)
    assert count(found, "MEMBAR") == count(found, "ERRBAR") == 0, launch
    # A cluster's data and signals travel together: one store in each of its two exchanges.
    assert count(found, "STAS") == (2 if launch.name == "softmax_cluster" else 0), launch
    assert count(found, "LDL") == count(found, "STL") == 0, launch


def test_cards_before_volta_have_no_say_over_the_first_cache(nvrtc: Nvrtc) -> None:
    (launch, *_) = softmax_launches(4)
    pascal, volta = (
        compiled(nvrtc, stream_source(), DEFINES["stream.cu"][0], one) for one in (60, 70)
    )

    assert "no_allocate" not in pascal.ptx + compiled_softmax(nvrtc, launch, 0, 60).ptx
    assert "ld.global.nc.L1::no_allocate.v4" in volta.ptx


@pytest.mark.slow
@pytest.mark.parametrize("architecture", DISASSEMBLED)
def test_copy_and_triad_move_16_bytes_at_once(
    nvrtc: Nvrtc, disassembler: str | None, tmp_path: Path, architecture: int
) -> None:
    if disassembler is None:
        pytest.skip("nvdisasm is not installed: pip install nvidia-cuda-nvdisasm")
    found = compiled(nvrtc, stream_source(), DEFINES["stream.cu"][0], architecture).instructions(
        disassembler, tmp_path
    )

    loads, stores = moves(found, "LDG"), moves(found, "STG")
    # One for each array and pack at least; whole tiles and the last one may have code of their own.
    assert sum(loads.values()) >= 3 * UNROLL
    assert sum(stores.values()) >= 2 * UNROLL
    assert all(".128" in name for name in (*loads, *stores)), found


@pytest.mark.parametrize("architecture", DISASSEMBLED)
def test_a_comparison_of_products_has_eight_loads_of_16_bytes_in_flight(
    nvrtc: Nvrtc, disassembler: str | None, tmp_path: Path, architecture: int
) -> None:
    if disassembler is None:
        pytest.skip("nvdisasm is not installed: pip install nvidia-cuda-nvdisasm")
    text = SOURCE.read_text(encoding="utf-8")
    found = compiled(nvrtc, text, ("-DELEMENT=2",), architecture)
    lines = found.lines(disassembler, tmp_path, "differ")

    assert loads_in_flight(lines) == 8
    wide = [line for line in lines if line.startswith(("LDG", "STG")) and ".128" in line]
    assert len(wide) == 8 + 4


def test_loads_are_in_flight_until_one_of_their_registers_is_needed() -> None:
    first, second = "LDG.E.128.CONSTANT R4, [R2.64]", "LDG.E.128 R8, [R2.64+0x10]"

    assert loads_in_flight([]) == 0
    assert loads_in_flight([first, second, "FADD R20, R4, R8"]) == 2
    assert loads_in_flight([first, "FADD R20, R7, R21", second, "FADD R20, R8, R21"]) == 1
    # Its address is that of the load before.
    assert loads_in_flight([first, "LDG.E R9, [R4.64]"]) == 1
    assert loads_in_flight([first, "STG.E.128 [R2.64], R4", second]) == 1
    assert loads_in_flight(["LDG.E R4, [R2.64]", "FADD R20, R5, R6", second]) == 2


def moves(found: dict[str, int], name: str) -> dict[str, int]:
    """Return the instructions of a kind with their modifiers."""
    return {one: times for one, times in found.items() if one.split(".")[0] == name}


def count(found: dict[str, int], name: str) -> int:
    """Return how often an instruction of a kind is there."""
    return sum(moves(found, name).values())


def test_names_of_other_kernels_are_in_the_compiled_code(nvrtc: Nvrtc) -> None:
    expected = {
        "stream.cu": {"copy", "triad"},
        "train.cu": {"forward", "gradient", "merge", "project"},
        "timing.cu": {"hold", "step", "tick"},
        "sdc.cu": {"differ", "digest"},
    }
    for source in SOURCES:
        if source.name in expected:
            found = compiled(nvrtc, source.read_text(encoding="utf-8"), (), 90)
            assert found.kernels == expected[source.name]
