"""CuPy's cache of compiled kernels, and settings that avoid it where it is not writable.

CuPy 14 creates its cache folder on import and fails if it cannot; it writes there whenever it has
compiled a kernel. Examples of such places: containers with `HOME=/` or a user without a passwd
entry, read-only roots, and full quotas.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

#: CuPy's variables: the folder of its cache, and whether it keeps kernels only in memory.
FOLDER_VARIABLE, IN_MEMORY_VARIABLE = "CUPY_CACHE_DIR", "CUPY_CACHE_IN_MEMORY"
#: Bytes that a few kernels take.
_TRIED_BYTES = 256 * 1024


def cache_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables with which CuPy works without a writable cache.

    Empty if the cache is writable, or if the environment already configures it. Otherwise each
    process compiles its kernels again and keeps them in memory: CuPy then writes nothing, not even
    a temporary file. The folder only has to exist.
    """
    if FOLDER_VARIABLE in environment or _can_write(_default_folder(environment)):
        return {}
    return {IN_MEMORY_VARIABLE: "1", FOLDER_VARIABLE: "/"}


def _default_folder(environment: Mapping[str, str]) -> Path | None:
    """Return CuPy's default folder below the home, or None without a home."""
    home = environment.get("HOME") or os.path.expanduser("~")  # noqa: PTH111  may find none
    return Path(home, ".cupy", "kernel_cache") if home.startswith("/") else None


def _can_write(folder: Path | None) -> bool:
    """Return whether a few kernels fit there; creates the folder, as CuPy does."""
    if folder is None:
        return False
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(bytes(_TRIED_BYTES))
    except OSError:
        return False
    return True
