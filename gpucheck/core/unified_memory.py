"""Memory that a GPU shares with the system (GB10, Jetson, integrated GPUs): nothing may fill it.

There memory pressure does not end in a refusal: it wedges the whole host until its power is cut
(NVIDIA/open-gpu-kernel-modules#1358).
"""

from __future__ import annotations

#: What always stays free for the system: so many bytes, and this part of what is available.
RESERVED_BYTES, RESERVED_PART = 8 * 2**30, 5


def spare_bytes(available_bytes: int) -> int:
    """Return what may be taken of the memory that the kernel calls available (MemAvailable)."""
    return max(0, available_bytes - max(RESERVED_BYTES, available_bytes // RESERVED_PART))
