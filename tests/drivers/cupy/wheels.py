"""NVIDIA's wheels with headers and libraries, where they are installed; no GPU is needed."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest


class Wheels(NamedTuple):
    """Folders of NVIDIA's wheels: each library has its own in CUDA 12, all share one in CUDA 13."""

    includes: tuple[Path, ...]
    cublas: Path


def wheels() -> Wheels:
    """Return the folders of this Python's wheels, or of those beside the real CuPy."""
    python = os.environ.get("GPUCHECK_CUPY_PYTHON")
    if python is None:
        found = importlib.util.find_spec("nvidia")
        places = list(found.submodule_search_locations or ()) if found is not None else []
    else:
        lines = "import nvidia; print(*nvidia.__path__, sep='\\n')"
        done = subprocess.run([python, "-c", lines], capture_output=True, text=True, check=False)
        places = done.stdout.split()
    for folder in map(Path, places):
        for pattern in ("cublas/lib/libcublas.so.*", "cu*/lib/libcublas.so.*"):
            for cublas in folder.glob(pattern):
                names = ("cublas", "cuda_runtime", cublas.parents[1].name)
                includes = (folder / name / "include" for name in dict.fromkeys(names))
                return Wheels(tuple(filter(Path.is_dir, includes)), cublas)
    pytest.skip("no cuBLAS to compare with: GPUCHECK_CUPY_PYTHON names the Python that has it")


def enumerators(*headers: str) -> dict[str, int]:
    """Return the names of these headers that have a number, and the number."""
    folders = wheels().includes
    found = [folder / name for name in headers for folder in folders if (folder / name).is_file()]
    text = "".join(path.read_text(encoding="utf-8", errors="replace") for path in found)
    return {
        name: int(value, 0)
        for name, value in re.findall(r"\b(\w+)\s*=\s*(\w+)\b", text)
        if value[0].isdigit() and not re.search("[uUlL]", value)
    }
