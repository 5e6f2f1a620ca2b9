"""Environment without Python's own locale coercion (PEP 538)."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

#: Values that Python may set. Source: PEP 538.
_COERCED = ("C.UTF-8", "C.utf8", "UTF-8")
_VARIABLE = "LC_CTYPE"


def environment_before(
    environment: Mapping[str, str] = os.environ, first: Path = Path("/proc/self/environ")
) -> dict[str, str]:
    """Return our environment as it was before Python coerced the locale.

    In the C locale Python sets LC_CTYPE, for its children too. `first` holds the environment
    that we were started with.
    """
    found = dict(environment)
    if found.get(_VARIABLE) not in _COERCED:
        return found
    try:
        entries = first.read_bytes().split(b"\0")
    except OSError:
        return found
    prefix = f"{_VARIABLE}=".encode()
    before = next((entry for entry in entries if entry.startswith(prefix)), None)
    if before is None:
        del found[_VARIABLE]
    else:
        found[_VARIABLE] = os.fsdecode(before.removeprefix(prefix))
    return found
