"""Every CUDA source compiles for every supported architecture, by NVRTC alone: no GPU is needed."""

from __future__ import annotations

import ctypes
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import gpucheck
from gpucheck.core.bench.kernels.copy import TILE
from gpucheck.core.bench.softmax_launch import SoftmaxLaunch, SoftmaxRows, choose_softmax

PACKAGE = Path(gpucheck.__file__).parent
SOURCES = sorted(PACKAGE.rglob("*.cu"))

#: Volta to Blackwell; NVRTC 12.9 knows them all, NVRTC 13 begins at sm_75.
ARCHITECTURES = (70, 75, 80, 86, 89, 90, 100, 120)
#: Without clusters, with them, and the newest: the compiler's other cases are `slow`, and only in
#: bfloat16, whose instructions came one after the other.
ALWAYS = (70, 90, 120)

#: The values of the macros that a source is compiled with; softmax.cu has a test of its own.
DEFINES = {
    "corruption.cu": tuple((f"-DELEMENT={element}",) for element in range(5)),
    "softmax.cu": (),
    "stream.cu": (tuple(f"-D{name}={value}" for name, value in TILE.items()),),
}

#: Names the library, where it is not among the installed packages.
LIBRARY_VARIABLE = "GPUCHECK_TEST_NVRTC"

CASES = [
    pytest.param(source, defines, id="".join((source.stem, *defines)))
    for source in SOURCES
    for defines in DEFINES.get(source.name, ((),))
]


def find_library() -> str | None:
    """Return NVRTC's shared library: the variable's, an installed wheel's, or the system's."""
    named = os.environ.get(LIBRARY_VARIABLE)
    if named:
        return named
    patterns = ("nvidia/cuda_nvrtc/lib/libnvrtc.so.*", "nvidia/cu*/lib/libnvrtc.so.*")
    found = [
        str(path)
        for folder in sys.path
        for pattern in patterns
        for path in Path(folder).glob(pattern)
        if "builtins" not in path.name and ".alt." not in path.name
    ]
    return found[0] if found else None


class Nvrtc:
    """As much of NVRTC as compiling needs."""

    def __init__(self, library: str) -> None:
        self._library = ctypes.CDLL(library)

    def architectures(self) -> set[int]:
        """Return the architectures that this NVRTC knows."""
        count = ctypes.c_int()
        self._library.nvrtcGetNumSupportedArchs(ctypes.byref(count))
        known = (ctypes.c_int * count.value)()
        self._library.nvrtcGetSupportedArchs(known)
        return set(known)

    def compile(self, source: str, *options: str) -> tuple[int, str, str]:
        """Return NVRTC's code, its log and the PTX."""
        program = ctypes.c_void_p()
        code = self._library.nvrtcCreateProgram(
            ctypes.byref(program), source.encode(), b"source.cu", 0, None, None
        )
        assert code == 0
        encoded = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
        code = self._library.nvrtcCompileProgram(program, len(options), encoded)
        log = self._text("nvrtcGetProgramLog", program)
        ptx = self._text("nvrtcGetPTX", program) if code == 0 else ""
        self._library.nvrtcDestroyProgram(ctypes.byref(program))
        return code, log, ptx

    def _text(self, function: str, program: ctypes.c_void_p) -> str:
        size = ctypes.c_size_t()
        getattr(self._library, f"{function}Size")(program, ctypes.byref(size))
        buffer = ctypes.create_string_buffer(size.value)
        getattr(self._library, function)(program, buffer)
        return buffer.value.decode(errors="replace")


@pytest.fixture(name="nvrtc", scope="module")
def _nvrtc() -> Nvrtc:
    library = find_library()
    if library is None:
        pytest.skip("NVRTC is not installed: pip install nvidia-cuda-nvrtc-cu12")
    return Nvrtc(library)


def test_there_are_sources() -> None:
    assert {source.name for source in SOURCES} >= {"softmax.cu", "stream.cu", "timing.cu"}


def assert_compiles(
    nvrtc: Nvrtc, source: Path, defines: Sequence[str], architecture: int
) -> set[str]:
    """Compile without a warning and return the kernels' names."""
    if architecture not in nvrtc.architectures():
        pytest.skip(f"this NVRTC does not know sm_{architecture}")
    text = source.read_text(encoding="utf-8")
    # Down to machine code, and not only to PTX: the assembler has its own opinion.
    # The second option is what CuPy adds.
    ours = ("--std=c++17", "--device-as-default-execution-space")
    options = [f"--gpu-architecture=sm_{architecture}", *ours, *defines]

    code, log, ptx = nvrtc.compile(text, *options)

    assert code == 0, log
    # Of its own accord NVRTC only says that old architectures will go.
    assert "source.cu" not in log, log
    return set(re.findall(r"\.entry (\w+)", ptx))


def architectures() -> list[Any]:
    """Return each architecture as a parameter, those that are not looked at always as slow."""
    return [
        pytest.param(each, marks=() if each in ALWAYS else pytest.mark.slow)
        for each in ARCHITECTURES
    ]


@pytest.mark.parametrize("architecture", architectures())
@pytest.mark.parametrize(("source", "defines"), CASES)
def test_source_compiles_without_a_warning(
    nvrtc: Nvrtc, source: Path, defines: Sequence[str], architecture: int
) -> None:
    assert assert_compiles(nvrtc, source, defines, architecture)


def softmax_launches(itemsize: int, capability: tuple[int, int]) -> list[SoftmaxLaunch]:
    """Return one launch of each kernel, aligned and not, as large as its threads can be."""
    found = {}
    for columns in (1024, 1001, 32768, 32761, 262_144, 262_001, 10**6, 10**6 + 1):
        rows = SoftmaxRows(
            rows=7,
            columns=columns,
            itemsize=itemsize,
            aligned=columns * itemsize % 16 == 0,
        )
        launch = choose_softmax(rows, capability, 132)
        found[(launch.name, launch.defines["ALIGNED"])] = launch
    return list(found.values())


@pytest.mark.parametrize(
    ("element", "itemsize", "architecture"),
    [
        *[(*each, which) for each in ((0, 4), (1, 2), (2, 2)) for which in ALWAYS],
        *[
            pytest.param(2, 2, which, marks=pytest.mark.slow)
            for which in ARCHITECTURES
            if which not in ALWAYS
        ],
    ],
)
def test_every_softmax_that_is_launched_compiles_without_a_warning(
    nvrtc: Nvrtc, element: int, itemsize: int, architecture: int
) -> None:
    source = PACKAGE / "core" / "bench" / "kernels" / "softmax.cu"
    launches = softmax_launches(itemsize, divmod(architecture, 10))
    kinds = {launch.name for launch in launches}
    assert kinds >= {"softmax_short", "softmax_long", "softmax_online"}
    assert ("softmax_cluster" in kinds) == (architecture >= 90)

    for launch in launches:
        defines = [f"-D{name}={value}" for name, value in launch.defines.items()]
        entries = assert_compiles(nvrtc, source, [f"-DELEMENT={element}", *defines], architecture)
        assert entries == {launch.name}


def test_names_of_other_kernels_are_in_the_compiled_code(nvrtc: Nvrtc) -> None:
    expected = {
        "stream.cu": {"copy", "triad"},
        "train.cu": {"forward", "gradient", "merge", "project"},
        "timing.cu": {"hold", "tick"},
        "corruption.cu": {"differ", "digest"},
    }
    for source in SOURCES:
        if source.name in expected:
            assert assert_compiles(nvrtc, source, (), 90) == expected[source.name]
