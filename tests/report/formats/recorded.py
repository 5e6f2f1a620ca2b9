"""Whole outputs kept as text files: a changed report is seen as a reader would see it.

After a change that is meant, `UPDATE_SNAPSHOTS=1 pytest tests` writes them anew;
then read the difference.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from gpucheck.report.codec import to_plain

SNAPSHOTS = Path(__file__).parent / "snapshots"


def recorded(name: str, text: str) -> str:
    """Return the kept output of this name; while updating, keep `text` as it first."""
    path = SNAPSHOTS / f"{name}.txt"
    if os.environ.get("UPDATE_SNAPSHOTS") == "1":
        SNAPSHOTS.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return path.read_text(encoding="utf-8")


def in_sections(screens: Mapping[str, str]) -> str:
    """Return screens as one text, each below the situation that it shows."""
    return "\n".join(f"== {name}\n\n{screen.rstrip()}\n" for name, screen in screens.items())


def in_lines(records: Iterable[Any]) -> str:
    """Return records as text, a line for each, with the fields that say something.

    Numbers have nine digits, since other processors may round the last ones otherwise.
    """
    lines = []
    for record in records:
        said = {name: _short(value) for name, value in to_plain(record).items()}
        fields = [f"{name}={_word(value)}" for name, value in said.items() if _says(value)]
        lines.append("  ".join(fields) + "\n")
    return "".join(lines)


def _says(value: Any) -> bool:
    return value is not None and value is not False and value not in ([], {}, "")


def _word(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _short(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.9g}") if abs(value) > 1e-12 else 0.0
    if isinstance(value, dict):
        return {name: _short(each) for name, each in value.items()}
    return [_short(each) for each in value] if isinstance(value, list) else value
