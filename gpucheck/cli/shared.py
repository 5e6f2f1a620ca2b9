"""Options that every command has, and what is known of a call before its options are parsed."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple


class Context(NamedTuple):
    """Facts about an invocation before its options are parsed.

    `document` is the format of which stdout has a document in every outcome, `json` or `jsonl`.
    `child` is a command of the user's to run, and `keep` the descriptors that our caller left
    open for it. Stdout then belongs to that command, so there is no document on it.
    """

    command: str | None
    document: str | None = None
    child: tuple[str, ...] | None = None
    keep: frozenset[int] = frozenset()


class Recording(NamedTuple):
    """What --from names: the file, its name if it is one of our examples, and the option's text."""

    path: Path
    example: str | None
    source: str


class Drawings(NamedTuple):
    """Files that are drawn beside the report: a page, and a chart (the first if none is named)."""

    html: Path | None = None
    plot: Path | None = None
    chart: str | None = None


class Shared(NamedTuple):
    """Values of the options that every command has.

    `private`: only its owner may read the file of --output.
    """

    format: str = "table"
    output: Path | None = None
    verbosity: int = 0
    strict: bool = False
    private: bool = False
    recording: Recording | None = None
    deadline_s: float | None = None
    #: GPUs that sleep lengthen the deadline.
    wakes: bool = False
    drawings: Drawings = Drawings()
