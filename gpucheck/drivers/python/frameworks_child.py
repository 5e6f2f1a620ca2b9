"""List of an interpreter's GPU frameworks, made without importing any of them.

A single file run by path in that interpreter (Python 3.8 or newer, standard library only), which
need not have gpucheck; builds_child.py uses it. Writes one JSON object.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from importlib import metadata

#: Framework -> its module, and the distributions that provide it, the likeliest first.
FRAMEWORKS = {
    "pytorch": ("torch", ("torch",)),
    "tensorflow": (
        "tensorflow",
        ("tensorflow", "tensorflow-cpu", "tensorflow-gpu", "tf-nightly", "tf-nightly-cpu",
         "tensorflow-rocm", "intel-tensorflow"),
    ),
    "jax": ("jax", ("jax",)),
    "cupy": (
        "cupy",
        ("cupy", "cupy-cuda13x", "cupy-cuda12x", "cupy-cuda11x", "cupy-cuda118", "cupy-cuda117",
         "cupy-cuda116", "cupy-cuda115", "cupy-cuda114", "cupy-cuda113", "cupy-cuda112",
         "cupy-cuda111", "cupy-cuda110", "cupy-rocm-5-0", "cupy-rocm-7-0"),
    ),
    "numba": ("numba", ("numba", "numba-cuda")),
    "onnxruntime": ("onnxruntime", ("onnxruntime-gpu", "onnxruntime")),
}  # fmt: skip


def installed(names: tuple[str, ...]) -> dict[str, str]:
    """Return name -> version of the distributions that are installed."""
    found = {}
    for name in names:
        try:
            found[name] = metadata.version(name) or ""
        except metadata.PackageNotFoundError:
            continue
        except Exception:  # damaged metadata
            found[name] = ""
    return found


def folder_of(module: str) -> str | None:
    """Return a package's folder without importing it, None if there is no such package.

    A folder without `__init__.py`, which uninstalling may leave behind, does not count.
    """
    try:
        spec = importlib.util.find_spec(module)
    except (ImportError, ValueError):
        return None
    if spec is None or spec.origin is None:
        return None
    return next(iter(spec.submodule_search_locations or ()), None)


def find_frameworks() -> dict[str, str]:
    """Return the version by module, empty where only the version is unknown."""
    return {
        module: next(iter(installed(distributions).values()), "")
        for module, distributions in FRAMEWORKS.values()
        if module in sys.modules or folder_of(module) is not None
    }


def find_for_cpus() -> list[str]:
    """Return the modules whose packages are CPU-only by name."""
    found = []
    if (installed(("torch",)).get("torch") or "").endswith("+cpu"):
        found.append("torch")
    tensorflows = list(installed(FRAMEWORKS["tensorflow"][1]))
    if tensorflows and all(name.endswith("-cpu") for name in tensorflows):
        found.append("tensorflow")
    return found


def main() -> None:
    """Write the frameworks."""
    # Our own folder is not on the search path of the program in question.
    sys.path[:] = [entry for entry in sys.path if entry != __file__.rpartition("/")[0]]
    python = ".".join(map(str, sys.version_info[:3]))
    document = {
        "python": python,
        "frameworks": find_frameworks(),
        "for_cpus": find_for_cpus(),
    }
    sys.stdout.write(json.dumps(document) + "\n")


if __name__ == "__main__":
    main()
