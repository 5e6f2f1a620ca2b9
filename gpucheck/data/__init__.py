"""Tables of facts, each row with its source and date: one TOML file per table.

A row is a `[[row]]` with `id` (unique in its table), `source` (where the fact stands: an address or
the title of a document), `date` (when the source was read) and the facts of that table. What holds
for all rows of a table stands above them. `tests/architecture/test_tables.py` holds every table to
this.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent


@cache
def document(name: str) -> Mapping[str, Any]:
    """Return a table's whole file: its rows under "row", and what holds for all of them."""
    import tomllib

    return tomllib.loads((FOLDER / f"{name}.toml").read_text(encoding="utf-8"))


def table(name: str) -> Sequence[Mapping[str, Any]]:
    """Return the rows of a table, in the order of its file."""
    rows: Sequence[Mapping[str, Any]] = document(name)["row"]
    return rows
