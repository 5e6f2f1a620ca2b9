"""Tells which of NVIDIA's libraries a shared library needs and nobody has.

A single file that builds_child.py loads, in any interpreter (Python 3.8 or newer, standard library
only). Headers are read, nothing is loaded.
"""

from __future__ import annotations

import glob
import os
import re
import struct
import sys

TYPE_CHECKING = False  # the name that type checkers know, without the import of typing
if TYPE_CHECKING:
    from typing import BinaryIO

#: They come with the driver, whose absence is another matter.
_DRIVERS_OWN = re.compile(r"lib(?:cuda|nvidia-ml|nvcuvid|nvidia-encode)\.so")
_NVIDIAS = re.compile(
    r"lib(?:cu(?:da|dart|blas|fft|fftw|rand|solver|sparse|dnn|pti|tensor|dss|file|obj)"
    r"|nv|nccl|cudss)"
)
SYSTEM_FOLDERS = (
    "/usr/lib/wsl/lib", "/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64",
    "/lib/x86_64-linux-gnu", "/lib64", "/usr/lib", "/usr/local/lib", "/usr/local/cuda/lib64",
)  # fmt: skip

DT_NEEDED, DT_STRTAB, DT_STRSZ, DT_RPATH, DT_RUNPATH = 1, 5, 10, 15, 29
PT_LOAD, PT_DYNAMIC = 1, 2


def read_dynamic(path: str) -> tuple[list[str], list[str]]:
    """Return the libraries that an ELF file needs, and the folders that it names for them.

    Source: the System V ABI, "Dynamic Section". A file that is no 64-bit little-endian ELF gives
    nothing.
    """
    try:
        with open(path, "rb") as file:  # noqa: PTH123
            return _dynamic(file)
    except (OSError, struct.error, ValueError, IndexError):
        return [], []


def _dynamic(file: BinaryIO) -> tuple[list[str], list[str]]:
    header = file.read(64)
    if header[:6] != b"\x7fELF\x02\x01":
        return [], []
    offset, size, count = (
        struct.unpack_from("<Q", header, 32)[0],
        *struct.unpack_from("<HH", header, 54),
    )
    file.seek(offset)
    table = file.read(size * count)
    segments = [struct.unpack_from("<IIQQQQQQ", table, size * at) for at in range(count)]
    loads = [s for s in segments if s[0] == PT_LOAD]
    dynamic = next(s for s in [*segments, (PT_DYNAMIC, 0, 0, 0, 0, 0, 0, 0)] if s[0] == PT_DYNAMIC)
    file.seek(dynamic[2])
    raw = file.read(dynamic[5])
    entries = [struct.unpack_from("<qQ", raw, at) for at in range(0, len(raw) - 15, 16)]
    values = dict(entries)
    if DT_STRTAB not in values:
        return [], []
    file.seek(_offset_of(values[DT_STRTAB], loads))
    strings = file.read(values.get(DT_STRSZ, 0))
    needed = [_string(strings, value) for tag, value in entries if tag == DT_NEEDED]
    paths = [_string(strings, value) for tag, value in entries if tag in (DT_RPATH, DT_RUNPATH)]
    return needed, [folder for path in paths for folder in path.split(":") if folder]


def _offset_of(address: int, loads: list[tuple[int, ...]]) -> int:
    for _, _, offset, start, _, size, _, _ in loads:
        if start <= address < start + size:
            return offset + address - start
    return address


def _string(strings: bytes, at: int) -> str:
    return strings[at : strings.index(b"\0", at)].decode("utf-8", "replace")


class Shelves:
    """The folders in which this interpreter's programs find libraries."""

    def __init__(self) -> None:
        told = os.environ.get("LD_LIBRARY_PATH", "").split(":")
        self._folders = [folder for folder in told if folder.startswith("/")]
        for site in sys.path:
            # Wheels of CUDA 12 have a folder for each part, those of CUDA 13 one for all.
            self._folders += sorted(glob.glob(os.path.join(glob.escape(site), "nvidia/*/lib")))  # noqa: PTH118, PTH207
        self._folders += self._configured()
        self._folders += SYSTEM_FOLDERS
        self._listed: dict[str, frozenset[str]] = {}

    @staticmethod
    def _configured() -> list[str]:
        folders = []
        for path in sorted(glob.glob("/etc/ld.so.conf.d/*.conf")):  # noqa: PTH207
            try:
                with open(path, encoding="utf-8", errors="replace") as file:  # noqa: PTH123
                    folders += [line.strip() for line in file if line.startswith("/")]
            except OSError:
                continue
        return folders

    def has(self, name: str, *first: str) -> bool:
        """Return whether a library of this name is in one of the folders."""
        return any(name in self._list(folder) for folder in (*first, *self._folders))

    def has_like(self, pattern: str, *first: str) -> bool:
        """Return whether there is a library whose name fits the pattern."""
        wanted = re.compile(pattern)
        folders = (*first, *self._folders)
        return any(wanted.fullmatch(name) for folder in folders for name in self._list(folder))

    def _list(self, folder: str) -> frozenset[str]:
        if folder not in self._listed:
            try:
                self._listed[folder] = frozenset(os.listdir(folder))  # noqa: PTH208
            except OSError:
                self._listed[folder] = frozenset()
        return self._listed[folder]

    def missing_of(self, path: str) -> list[str]:
        """Return which of NVIDIA's libraries a shared library needs and nobody has."""
        needed, own = read_dynamic(path)
        origin = os.path.dirname(os.path.realpath(path))  # noqa: PTH120
        first = [origin, *(folder.replace("$ORIGIN", origin) for folder in own)]
        return [
            name
            for name in needed
            if _NVIDIAS.match(name) and not _DRIVERS_OWN.match(name) and not self.has(name, *first)
        ]

    def missing_among(self, names: tuple[str, ...]) -> list[str]:
        """Return which of these names nobody has."""
        return [name for name in names if not self.has(name)]
