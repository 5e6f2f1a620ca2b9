"""One or more pretended cards, shared by the stand-ins for GPU frameworks beside this file.

They count bytes and allocate nothing. What a test wants to know is appended to $STUB_LOG.
$STUB_CARDS ("GPU-a=1024,GPU-b=2048": UUID and bytes of each in CUDA's order) are cards of different
size, of which CUDA_VISIBLE_DEVICES shows those that it names by UUID when a framework is imported.
"""

import json
import os
from pathlib import Path

TOTAL = int(os.environ.get("STUB_TOTAL_BYTES", 16 << 30))
FREE = int(os.environ.get("STUB_FREE_BYTES", TOTAL))
COUNT = int(os.environ.get("STUB_DEVICES", "1"))
_CARDS = dict(card.split("=") for card in os.environ.get("STUB_CARDS", "").split(",") if card)
_named = os.environ.get("CUDA_VISIBLE_DEVICES")
VISIBLE = [uuid for uuid in (_CARDS if _named is None else _named.split(",")) if uuid in _CARDS]
if _CARDS:
    COUNT = len(VISIBLE)


def total_bytes(ordinal):
    """Return the size of a card by its number in this process."""
    return int(_CARDS[VISIBLE[ordinal]]) if _CARDS else TOTAL


def log(*event):
    """Append one event."""
    path = os.environ.get("STUB_LOG")
    if path:
        with Path(path).open("a", encoding="utf-8") as file:
            file.write(json.dumps([os.getpid(), *event]) + "\n")


if _CARDS:
    log("card", "visible", VISIBLE)


class Block:
    """Memory that is held; it goes back to its pool when the last reference goes."""

    def __init__(self, pool, size):
        self.pool, self.size = pool, size
        pool.used += size

    def __del__(self):
        self.pool.used -= self.size

    def block_until_ready(self):
        return self


class Pool:
    """An allocator with a limit (0: none) on a card that is finite too."""

    def __init__(self, limit=0):
        self.limit, self.used = limit, 0

    def take(self, size, refuse):
        if self.limit and self.used + size > self.limit:
            raise refuse(size, self)
        if self.used + size > FREE:
            raise refuse(size, self)
        return Block(self, size)
