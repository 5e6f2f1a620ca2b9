"""Values of the options that every command has; nothing here needs the parser."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple


class Shared(NamedTuple):
    """Values of the options that every command has."""

    format: str = "table"
    output: Path | None = None
    recording: Path | None = None
    deadline_s: float | None = None
    strict: bool = False
    verbosity: int = 0
    #: Only its owner may read the file of --output.
    private: bool = False


def split_words(values: Sequence[str] | None) -> tuple[str, ...]:
    """Return the words of options that may be given several times or with commas."""
    return tuple(
        word.strip() for value in values or () for word in value.split(",") if word.strip()
    )
