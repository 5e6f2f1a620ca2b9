"""NVRTC without a GPU, and its output: PTX, machine code, registers, local memory.

What was made of a text stays on disk: compiling it takes a second, and it gives the same each time.
"""

from __future__ import annotations

import base64
import ctypes
import functools
import hashlib
import json
import os
import re
import shutil
import struct
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.fakes.libraries import cache

#: Names the library, where it is not among the installed packages.
LIBRARY_VARIABLE = "GPUCHECK_TEST_NVRTC"

#: Attributes in a cubin's section .nv.info, each with a symbol's number and a value: registers of a
#: kernel's thread, and bytes of its frame in local memory, where spilled registers lie. As printed
#: by `cuobjdump -elf`.
_REGISTERS, _FRAME = 0x2F, 0x11
#: The kind of attribute that has a size and then as many bytes; others end after four.
_SIZED = 4


@dataclass(frozen=True, slots=True)
class Compiled:
    """What NVRTC made of a source: its code (0 is good), its log, the PTX and the cubin."""

    code: int
    log: str
    ptx: str
    cubin: bytes

    @property
    def kernels(self) -> set[str]:
        """Return the kernels' names."""
        return set(re.findall(r"\.entry (\w+)", self.ptx))

    @property
    def registers(self) -> int:
        """Return the most registers that a thread of one of them takes."""
        return max(value for kind, value in _attributes(self.cubin) if kind == _REGISTERS)

    @property
    def local_bytes(self) -> int:
        """Return the most local memory that a thread of one of them takes."""
        return max(value for kind, value in _attributes(self.cubin) if kind == _FRAME)

    def instructions(self, disassembler: str, folder: Path) -> Counter[str]:
        """Return how often the machine code has each instruction, modifiers included."""
        return Counter(line.split()[0] for line in self.lines(disassembler, folder))

    def lines(self, disassembler: str, folder: Path, kernel: str = r"\w+") -> list[str]:
        """Return the instructions of all kernels or one, with operands and without predicates."""
        kept = Kept("code", disassembler, self.cubin, kernel)
        known: list[str] | None = kept.read()
        if known is not None:
            return known
        file = folder / "kernel.cubin"
        file.write_bytes(self.cubin)
        done = subprocess.run(
            [disassembler, "--print-code", "-ndf", file], capture_output=True, text=True, check=True
        )
        # As in "/*0150*/   @P0 LDG.E.128.CONSTANT R4, [R2] ;"
        code = r"/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][\w.]*[^;]*?)\s*;"
        begin = rf"^\s*\.section\s+\.text\.{kernel},"
        _, *sections = re.split(begin, done.stdout, flags=re.MULTILINE)
        bodies = (one.partition("\t.section\t")[0] for one in sections)
        found = [line for body in bodies for line in re.findall(code, body)]
        kept.write(found)
        return found


def loads_in_flight(lines: Sequence[str]) -> int:
    """Return the most loads from global memory that are under way before one of them is needed.

    The code is read from its begin to its end, as if it did not branch.
    """
    widths = {"128": 4, "64": 2}
    loads: list[set[int]] = []
    most = 0
    for line in lines:
        name, _, operands = line.partition(" ")
        used = {int(number) for number in re.findall(r"\bR(\d+)", operands)}
        load = name.startswith("LDG")
        target = int(match[1]) if load and (match := re.match(r"\s*R(\d+)", operands)) else None
        loads = [one for one in loads if not one & (used - {target})]
        if target is not None:
            width = next((widths[part] for part in name.split(".") if part in widths), 1)
            loads.append(set(range(target, target + width)))
            most = max(most, len(loads))
    return most


class Kept:
    """What a program made of a text, in the cache of compiled files; another build has its own."""

    def __init__(self, what: str, program: str, *text: str | bytes) -> None:
        try:
            # Another environment's is as good; no two builds of tens of megabytes have one size.
            build = (Path(program).name, Path(program).stat().st_size)
        except OSError:  # only the loader knows where it is
            build = (program, os.getpid())
        digest = hashlib.sha256(repr((build, text)).encode()).hexdigest()
        self._path = folder_of_kept() / f"{what}-{digest[:32]}.json"

    def read(self) -> Any:
        """Return it, None if it is not there yet."""
        try:
            return json.loads(self._path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None

    def write(self, value: object) -> None:
        """Keep it: parallel workers see all of it or nothing."""
        scratch = self._path.with_name(f".{self._path.name}.{os.getpid()}")
        scratch.write_text(json.dumps(value), encoding="utf-8")
        scratch.replace(self._path)


@functools.cache
def folder_of_kept() -> Path:
    """Return this user's own folder for compiled files."""
    return cache()


class Nvrtc:
    """As much of NVRTC as compiling needs."""

    def __init__(self, library: str) -> None:
        self._path = str(Path(library).resolve())
        self._library = ctypes.CDLL(library)
        self._known: dict[tuple[str, tuple[str, ...]], Compiled] = {}

    def version(self) -> str:
        """Return its version, such as "12.9"."""
        major, minor = ctypes.c_int(), ctypes.c_int()
        self._library.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
        return f"{major.value}.{minor.value}"

    def architectures(self) -> set[int]:
        """Return the architectures that this NVRTC knows."""
        count = ctypes.c_int()
        self._library.nvrtcGetNumSupportedArchs(ctypes.byref(count))
        known = (ctypes.c_int * count.value)()
        self._library.nvrtcGetSupportedArchs(known)
        return set(known)

    def compile(self, source: str, *options: str) -> Compiled:
        """Compile a text, once; a code other than 0 says that it does not compile."""
        if (source, options) not in self._known:
            kept = Kept("compiled", self._path, source, *options)
            if (known := kept.read()) is not None:
                log, ptx, cubin = known
                found = Compiled(0, log, ptx, base64.b64decode(cubin))
            else:
                found = self._compile(source, options)
                if found.code == 0:
                    kept.write([found.log, found.ptx, base64.b64encode(found.cubin).decode()])
            self._known[source, options] = found
        return self._known[source, options]

    def _compile(self, source: str, options: Sequence[str]) -> Compiled:
        program = ctypes.c_void_p()
        code = self._library.nvrtcCreateProgram(
            ctypes.byref(program), source.encode(), b"source.cu", 0, None, None
        )
        assert code == 0
        encoded = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
        code = self._library.nvrtcCompileProgram(program, len(options), encoded)
        log = self._read("nvrtcGetProgramLog", program)
        ptx = self._read("nvrtcGetPTX", program) if code == 0 else b""
        cubin = self._read("nvrtcGetCUBIN", program) if code == 0 else b""
        self._library.nvrtcDestroyProgram(ctypes.byref(program))
        return Compiled(code, _text(log), _text(ptx), cubin)

    def _read(self, function: str, program: ctypes.c_void_p) -> bytes:
        size = ctypes.c_size_t()
        getattr(self._library, f"{function}Size")(program, ctypes.byref(size))
        buffer = ctypes.create_string_buffer(size.value)
        getattr(self._library, function)(program, buffer)
        return buffer.raw


def find_nvrtc() -> str | None:
    """Return NVRTC's shared library: the variable's, or an installed wheel's."""
    named = os.environ.get(LIBRARY_VARIABLE)
    if named:
        return named
    patterns = ("nvidia/cuda_nvrtc/lib/libnvrtc.so.*", "nvidia/cu*/lib/libnvrtc.so.*")
    found = [path for pattern in patterns for path in _in_wheels(pattern)]
    return next(
        (str(path) for path in found if not re.search("builtins|[.]alt[.]", path.name)), None
    )


def find_disassembler() -> str | None:
    """Return nvdisasm: an installed wheel's, or the one in PATH."""
    wheel = next(_in_wheels("nvidia/cu*/bin/nvdisasm"), None)
    return str(wheel) if wheel is not None else shutil.which("nvdisasm")


def _in_wheels(pattern: str) -> Iterator[Path]:
    return (path for folder in sys.path for path in Path(folder).glob(pattern))


def _text(raw: bytes) -> str:
    return raw.rstrip(b"\0").decode(errors="replace")


def _attributes(cubin: bytes) -> Iterator[tuple[int, int]]:
    """Yield the attributes that .nv.info gives of symbols: their kind and their value."""
    raw, place = _section(cubin, ".nv.info"), 0
    while place + 4 <= len(raw):
        layout, kind, size = struct.unpack_from("<BBH", raw, place)
        place += 4
        if layout == _SIZED:
            if size == 8:
                yield kind, struct.unpack_from("<II", raw, place)[1]
            place += size


def _section(elf: bytes, name: str) -> bytes:
    """Return a section of a 64-bit little-endian ELF file by its name."""
    (start,) = struct.unpack_from("<Q", elf, 40)
    entry, count, names = struct.unpack_from("<HHH", elf, 58)
    headers = [struct.unpack_from("<IIQQQQ", elf, start + entry * i) for i in range(count)]
    for header in headers:
        begin = headers[names][4] + header[0]
        if elf[begin : elf.index(b"\0", begin)].decode() == name:
            return elf[header[4] : header[4] + header[5]]
    raise AssertionError(name)
