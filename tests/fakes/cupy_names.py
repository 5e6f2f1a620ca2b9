"""Names and parameters of a CuPy, the real or the pretended one: run by path, in its interpreter.

It writes a JSON object: for each name given on standard input (one a line) the names of the
parameters, null for what is no function, or a string that says why it is not there.
"""

from __future__ import annotations

import importlib
import inspect
import json
import re
import sys
import warnings
from typing import Any

_STARS = ("*", "/", "\\*")


def find(path: str) -> Any:
    """Return the object with this dotted name."""
    parts = path.split(".")
    for cut in range(len(parts), 0, -1):
        try:
            found: Any = importlib.import_module(".".join(parts[:cut]))
        except ModuleNotFoundError:
            continue
        for part in parts[cut:]:
            found = getattr(found, part)
        return found
    raise ModuleNotFoundError(path)


def parameters(found: Any) -> list[str] | None:
    """Return the names of what it takes; Cython writes them into the first line of its text."""
    text = (getattr(found, "__doc__", None) or "").strip()
    inside = re.match(r"[\w.]+\((.*?)\)(?:\s*->.*)?(?:\n|$)", text)
    if inside is not None:
        words = [part.partition("=")[0].split() for part in inside.group(1).split(",")]
        names = [word[-1].lstrip("*") for word in words if word and word[-1] not in _STARS]
        return [name for name in names if name != "self"]
    if not callable(found):
        return None
    try:
        signature = inspect.signature(found)
    except (TypeError, ValueError):
        return None
    return [name for name in signature.parameters if name != "self"]


def describe(path: str) -> Any:
    """Return what is known of one name."""
    try:
        return parameters(find(path))
    except Exception as error:  # an import may fail in any way
        return f"{type(error).__name__}: {error}"


def main() -> None:
    """Describe all names."""
    warnings.simplefilter("ignore")
    sys.path[:] = [entry for entry in sys.path if entry != __file__.rpartition("/")[0]]
    names = sys.stdin.read().split()
    sys.stdout.write(json.dumps({name: describe(name) for name in names}) + "\n")


if __name__ == "__main__":
    main()
