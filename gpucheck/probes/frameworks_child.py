"""Tells which GPU frameworks an interpreter has, without importing any of them.

A single file run by path in that interpreter (Python 3.8 or newer, standard library only), which
need not have gpucheck. Writes one JSON object.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from importlib import metadata

#: Module -> the distributions that bring it, the likeliest first.
DISTRIBUTIONS = {
    "torch": ("torch",),
    "tensorflow": ("tensorflow", "tensorflow-cpu", "tf-nightly", "tensorflow-gpu"),
    "jax": ("jax",),
    "cupy": ("cupy-cuda12x", "cupy-cuda13x", "cupy-cuda11x", "cupy"),
    "onnxruntime": ("onnxruntime-gpu", "onnxruntime"),
}


def version_of(names: tuple[str, ...]) -> str:
    """Return the version of the first distribution that is installed, or an empty text."""
    for name in names:
        try:
            return metadata.version(name) or ""
        except metadata.PackageNotFoundError:
            continue
    return ""


def find_frameworks() -> dict[str, str]:
    """Return the version by module, an empty text where only the version is unknown."""
    return {
        module: version_of(names)
        for module, names in DISTRIBUTIONS.items()
        if module in sys.modules or importlib.util.find_spec(module) is not None
    }


def main() -> None:
    """Write what there is."""
    # Our own folder, which the program that is asked about does not search.
    sys.path[:] = [entry for entry in sys.path if entry != __file__.rpartition("/")[0]]
    python = ".".join(map(str, sys.version_info[:3]))
    document = {"python": python, "frameworks": find_frameworks()}
    sys.stdout.write(json.dumps(document) + "\n")


if __name__ == "__main__":
    main()
