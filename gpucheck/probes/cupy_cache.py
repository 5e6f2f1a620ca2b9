"""CuPy's cache of compiled kernels, and how CuPy does without it where it cannot be written.

CuPy 14 makes the folder of its cache when it is imported and fails where it cannot, and writes
there whenever it has compiled a kernel. Containers with `HOME=/` or a user who is in no passwd,
read-only roots and full quotas are such places.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

#: What CuPy reads: the folder of its cache, and whether it keeps kernels in memory alone.
FOLDER_VARIABLE, IN_MEMORY_VARIABLE = "CUPY_CACHE_DIR", "CUPY_CACHE_IN_MEMORY"
#: As much as a few kernels take.
_TRIED_BYTES = 256 * 1024


def cache_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables with which CuPy works although its cache cannot be written.

    Empty where it can be, and where the environment says itself what CuPy is to do. Otherwise
    kernels are compiled anew in each process and kept in its memory: then CuPy writes nothing, not
    even a temporary file, and nothing is left behind. The folder only has to be there.
    """
    if FOLDER_VARIABLE in environment or _can_write(_default_folder(environment)):
        return {}
    return {IN_MEMORY_VARIABLE: "1", FOLDER_VARIABLE: "/"}


def _default_folder(environment: Mapping[str, str]) -> Path | None:
    """Return the folder below the home that CuPy takes, None if nobody knows a home."""
    home = environment.get("HOME") or os.path.expanduser("~")  # noqa: PTH111  may find none
    return Path(home, ".cupy", "kernel_cache") if home.startswith("/") else None


def _can_write(folder: Path | None) -> bool:
    """Return whether a few kernels' bytes can be written there; makes the folder, as CuPy does."""
    if folder is None:
        return False
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(bytes(_TRIED_BYTES))
    except OSError:
        return False
    return True
