"""Whole outputs kept as text files: a changed report is seen as a reader would see it.

After a change that is meant, `UPDATE_SNAPSHOTS=1 pytest tests` writes them anew;
then read the difference.
"""

from __future__ import annotations

import os
from pathlib import Path

SNAPSHOTS = Path(__file__).parent / "snapshots"


def recorded(name: str, text: str) -> str:
    """Return the kept output of this name; while updating, keep `text` as it first."""
    path = SNAPSHOTS / f"{name}.txt"
    if os.environ.get("UPDATE_SNAPSHOTS") == "1":
        SNAPSHOTS.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return path.read_text(encoding="utf-8")
