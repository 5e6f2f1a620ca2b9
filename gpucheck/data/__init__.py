"""Tables of the package, one TOML file each: facts, or texts that a command shows.

Facts are a list: a `[[row]]` has its `id` (unique in its table), `source` (where the fact stands:
an address or the title of a document), `date` (when the source was read) and the facts of that
table. What holds for all rows stands above them. Texts stand by their names: `[NAME]` has the texts
of one thing. A value belongs where `{field}` stands. A table is read when a command shows something
of it, since the parser takes time. `tests/architecture/test_tables.py` holds every table to this.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent


@cache
def read_table(name: str) -> Mapping[str, Any]:
    """Return a table: its facts as the list "row", in the order of its file, or texts by name."""
    import tomllib

    return tomllib.loads((FOLDER / f"{name}.toml").read_text(encoding="utf-8"))
