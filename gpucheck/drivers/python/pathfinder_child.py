"""Search for NVIDIA's libraries by an interpreter's cuda-pathfinder, as CuPy and numba-cuda do.

A single file run by path in that interpreter, in a process of its own: finding a library loads it.
Its arguments are the libraries' short names. It writes one JSON object: where each was found, and
the CUDA headers. The object is empty if this interpreter has no cuda-pathfinder.
"""

from __future__ import annotations

import json
import os
import sys


def find(names: list[str]) -> dict[str, object]:
    """Return the paths by name, null where not found, and the folder of the headers."""
    from cuda import pathfinder

    libraries: dict[str, object] = {}
    for name in names:
        try:
            libraries[name] = pathfinder.load_nvidia_dynamic_lib(name).abs_path
        except Exception:  # not found, or not to be loaded
            libraries[name] = None
    try:
        headers = pathfinder.find_nvidia_header_directory("cudart")
    except Exception:
        headers = None
    return {"found": libraries, "headers": headers}


def main() -> None:
    """Write the paths."""
    own = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120
    sys.path[:] = [entry for entry in sys.path if entry not in ("", own)]
    try:
        document = find(sys.argv[1:])
    except ImportError:
        document = {}
    sys.stdout.write("\n" + json.dumps(document) + "\n")


if __name__ == "__main__":
    main()
