"""CuPy 14's cache of compiled kernels: a folder made at the import, a file for each kernel.

Only as far as it fails where nothing can be written (cupy/cuda/_compiler_cache.py, compiler.py).
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

_FOLDER = Path(os.environ.get("CUPY_CACHE_DIR", "~/.cupy/kernel_cache")).expanduser()
if not _FOLDER.is_dir():
    _FOLDER.mkdir(parents=True, exist_ok=True)


def keep(compiled: bytes) -> None:
    """Write what was compiled, as CuPy does unless it is told to keep kernels in memory alone."""
    if os.environ.get("CUPY_CACHE_IN_MEMORY", "0") not in ("", "0"):
        return
    with tempfile.TemporaryDirectory(), tempfile.NamedTemporaryFile(dir=_FOLDER) as file:
        file.write(compiled)
