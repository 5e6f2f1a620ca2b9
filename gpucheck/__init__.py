"""gpucheck: is my GPU usable, which one will I get, is it as fast as it should be."""

from __future__ import annotations

__version__ = "0.1.0"
