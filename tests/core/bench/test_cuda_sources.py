"""Every CUDA source compiles for every supported architecture, by NVRTC alone: no GPU is needed."""

from __future__ import annotations

import ctypes
import os
import re
import sys
from pathlib import Path

import pytest

import gpucheck
from gpucheck.core.bench.kernels.softmax import choose_launch

PACKAGE = Path(gpucheck.__file__).parent
SOURCES = sorted(PACKAGE.rglob("*.cu"))

#: Volta to Blackwell; NVRTC 12.9 knows them all, NVRTC 13 begins at sm_75.
ARCHITECTURES = (70, 75, 80, 86, 89, 90, 100, 120)

#: The values of the macros that a source is compiled with.
DEFINES = {"softmax.cu": ("-DELEMENT=0", "-DELEMENT=1", "-DELEMENT=2")}

#: Names the library, where it is not among the installed packages.
LIBRARY_VARIABLE = "GPUCHECK_TEST_NVRTC"

CASES = [
    pytest.param(source, define, id=f"{source.stem}{define}")
    for source in SOURCES
    for define in DEFINES.get(source.name, ("",))
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


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize(("source", "define"), CASES)
def test_source_compiles_without_a_warning(
    nvrtc: Nvrtc, source: Path, define: str, architecture: int
) -> None:
    if architecture not in nvrtc.architectures():
        pytest.skip(f"this NVRTC does not know sm_{architecture}")
    text = source.read_text(encoding="utf-8")
    # Down to machine code, and not only to PTX: the assembler has its own opinion.
    options = [f"--gpu-architecture=sm_{architecture}", "--std=c++17"]

    code, log, ptx = nvrtc.compile(text, *options, *([define] if define else []))

    assert code == 0, log
    # Of its own accord NVRTC only says that old architectures will go.
    assert "source.cu" not in log, log
    assert ".entry" in ptx


@pytest.mark.parametrize("element", [0, 1, 2])
def test_every_kernel_that_is_launched_is_in_the_compiled_code(nvrtc: Nvrtc, element: int) -> None:
    source = (PACKAGE / "core" / "bench" / "kernels" / "softmax.cu").read_text(encoding="utf-8")
    _, _, ptx = nvrtc.compile(source, "--gpu-architecture=compute_90", f"-DELEMENT={element}")
    entries = set(re.findall(r"\.entry (\w+)", ptx))

    launched = {
        choose_launch(7, columns).name
        for columns in (*range(1, 1200), *range(1200, 40000, 4), 40001, 5001, 12001, 20001)
    }

    assert launched <= entries


def test_names_of_other_kernels_are_in_the_compiled_code(nvrtc: Nvrtc) -> None:
    expected = {
        "stream.cu": {"copy", "triad"},
        "train.cu": {"gradient", "merge"},
        "timing.cu": {"hold", "tick"},
    }
    for source in SOURCES:
        if source.name in expected:
            text = source.read_text(encoding="utf-8")
            _, log, ptx = nvrtc.compile(text, "--gpu-architecture=compute_90")
            assert set(re.findall(r"\.entry (\w+)", ptx)) == expected[source.name], log
