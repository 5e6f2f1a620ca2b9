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


class Shared(NamedTuple):
    """Values of the options that every command has."""

    format: str = "table"
    output: Path | None = None
    recording: Path | None = None
    #: Name of the recording if it is one of those that come with the program.
    example: str | None = None
    deadline_s: float | None = None
    strict: bool = False
    verbosity: int = 0
    #: What --from named: an example or a file.
    source: str | None = None
    #: Only its owner may read the file of --output.
    private: bool = False
    #: Files beside the report: a page, and a chart (the first one if none is named).
    html: Path | None = None
    plot: Path | None = None
    chart: str | None = None
