"""Unified memory, shared by GPU and system (GB10, Jetson, integrated GPUs): never fill it.

There memory pressure causes no allocation error: it hangs the whole host until its power is cut
(NVIDIA/open-gpu-kernel-modules#1358).
"""

from __future__ import annotations

#: What always stays free for the system: bytes, and a share of the available memory.
RESERVED_BYTES, RESERVED_PART = 8 * 2**30, 5


def spare_bytes(available_bytes: int) -> int:
    """Return how much of the available memory (MemAvailable) may be taken."""
    return max(0, available_bytes - max(RESERVED_BYTES, available_bytes // RESERVED_PART))
