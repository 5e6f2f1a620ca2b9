"""CuPy's bindings of CUDA's own libraries; asked for one, it loads the library first."""

from __future__ import annotations

from importlib import import_module
from typing import Any

#: The libraries that were found in NVIDIA's wheels and loaded.
loaded: set[str] = set()


def __getattr__(name: str) -> Any:
    if name == "cublas":
        loaded.add(name)
        return import_module(f"{__name__}.{name}")
    message = f"module {__name__!r} has no attribute {name!r}"
    raise AttributeError(message)
