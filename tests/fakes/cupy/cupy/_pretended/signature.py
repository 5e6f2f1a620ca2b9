"""Arguments of a CUDA kernel, read from its source after the system's preprocessor."""

from __future__ import annotations

import functools
import hashlib
import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from .errors import CompileException, FakeIncompleteError

#: CUDA's type names: NumPy's name of one number, and how many of them.
_TYPES = {
    "char": ("int8", 1),
    "signed char": ("int8", 1),
    "unsigned char": ("uint8", 1),
    "short": ("int16", 1),
    "unsigned short": ("uint16", 1),
    "ushort": ("uint16", 1),
    "int": ("int32", 1),
    "unsigned int": ("uint32", 1),
    "unsigned": ("uint32", 1),
    "uint": ("uint32", 1),
    "long long": ("int64", 1),
    "long": ("int64", 1),
    "unsigned long long": ("uint64", 1),
    "unsigned long": ("uint64", 1),
    "size_t": ("uint64", 1),
    "float": ("float32", 1),
    "double": ("float64", 1),
    "__half": ("float16", 1),
    "half": ("float16", 1),
    "bool": ("bool", 1),
}
_VECTORS = {
    "char": "int8",
    "uchar": "uint8",
    "short": "int16",
    "ushort": "uint16",
    "int": "int32",
    "uint": "uint32",
    "longlong": "int64",
    "ulonglong": "uint64",
    "float": "float32",
    "double": "float64",
}
_KERNEL = re.compile(
    r'extern\s*"C"\s*__global__\s+(?:void\b\s*|__\w+__\s*\([^)]*\)\s*)+(\w+)\s*\(([^)]*)\)\s*\{'
)
_TYPEDEF = re.compile(r"typedef\s+([\w\s]+?)\s+(\w+)\s*;|using\s+(\w+)\s*=\s*([\w\s]+?)\s*;")
_QUALIFIERS = re.compile(r"\b(const|__restrict__|volatile|restrict|__grid_constant__)\b")
_BOUNDS = re.compile(r"__launch_bounds__\s*\(\s*(\d+)")


@dataclass(frozen=True, slots=True)
class Parameter:
    """One argument: NumPy's type of it, or of what it points to, `count` of them at once."""

    name: str
    dtype: str
    pointer: bool
    count: int = 1


@dataclass(frozen=True, slots=True)
class Source:
    """A source as NVRTC would see it."""

    text: str
    kernels: dict[str, tuple[Parameter, ...]]
    bounds: dict[str, int]


@functools.cache
def read(source: str, options: Sequence[str], capability: tuple[int, int]) -> Source:
    """Return the kernels of a source; a source that cannot be preprocessed does not compile."""
    architecture = 100 * capability[0] + 10 * capability[1]
    defines = [word for word in options if word.startswith("-D")]
    text = _preprocessed(source, [*defines, f"-D__CUDA_ARCH__={architecture}", "-D__CUDACC__"])
    if text.count("{") != text.count("}"):
        raise CompileException("error: expected a '}'", source, "", tuple(options))
    types = dict(_TYPES)
    for plain, name, alias, meant in _TYPEDEF.findall(text):
        known = _resolve(plain or meant, types)
        if known is not None:
            types[name or alias] = known
    kernels, bounds = {}, {}
    for found in _KERNEL.finditer(text):
        name, inside = found.groups()
        kernels[name] = tuple(_parameter(part, types) for part in _split(inside))
        limit = _BOUNDS.search(found.group(0))
        bounds[name] = int(limit.group(1)) if limit else 1024
    return Source(text, kernels, bounds)


def _preprocessed(source: str, defines: list[str]) -> str:
    compiler = next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)
    if compiler is None:
        message = "the pretended CuPy needs a C compiler for its preprocessor"
        raise FakeIncompleteError(message)
    command = [compiler, "-E", "-P", "-x", "c++", "-undef", "-nostdinc", *defines, "-"]
    kept = _kept(repr((command, source)))
    if kept is not None and kept.exists():
        return kept.read_text(encoding="utf-8")
    done = subprocess.run(command, input=source, capture_output=True, text=True, check=False)
    if done.returncode:
        raise CompileException(done.stderr, source, "", ())
    if kept is not None:
        # Renamed when it is whole: many processes pretend at once.
        scratch = kept.with_name(f".{kept.name}.{os.getpid()}")
        scratch.write_text(done.stdout, encoding="utf-8")
        scratch.replace(kept)
    return done.stdout


def _kept(question: str) -> Path | None:
    """Return the file for what the preprocessor answered; every process asks it the same."""
    folder = os.environ.get("FAKE_GPU_CACHE")
    if not folder:
        return None
    Path(folder).mkdir(parents=True, exist_ok=True)
    return Path(folder) / f"{hashlib.sha256(question.encode()).hexdigest()[:24]}.txt"


def _split(inside: str) -> list[str]:
    return [part.strip() for part in inside.split(",") if part.strip() not in ("", "void")]


def _parameter(text: str, types: dict[str, tuple[str, int]]) -> Parameter:
    plain = " ".join(_QUALIFIERS.sub(" ", text.replace("*", " * ")).split())
    pointer = "*" in plain
    words = plain.replace("*", " ").split()
    name, kind = words[-1], " ".join(words[:-1])
    known = _resolve(kind, types)
    if known is None:
        message = f"the pretended CuPy does not know the type {kind!r} of {text!r}"
        raise FakeIncompleteError(message)
    return Parameter(name, known[0], pointer, known[1])


def _resolve(kind: str, types: dict[str, tuple[str, int]]) -> tuple[str, int] | None:
    kind = " ".join(kind.split())
    if kind in types:
        return types[kind]
    vector = re.fullmatch(r"(u?[a-z]+?)([1-4])", kind)
    if vector and vector.group(1) in _VECTORS:
        return _VECTORS[vector.group(1)], int(vector.group(2))
    return None
