"""Table of doubts: the sentences about each, the gravest doubt first."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from gpucheck.bench.model import Doubt, Fact
from gpucheck.data import read_table


@cache
def read_wordings() -> Mapping[str, Mapping[str, str]]:
    """Return the wordings by name; one of another doubt has what it lacks from there."""
    table = read_table("doubts")
    return {name: {**table.get(row.get("code"), {}), **row} for name, row in table.items()}


def make_doubt(wording: str, facts: Mapping[str, Fact] | None = None, **words: Fact) -> Doubt:
    """Return a doubt with its sentences; `words` are what they name beside the facts."""
    row, facts = read_wordings()[wording], dict(facts or {})
    named = facts | words
    return Doubt(
        code=row.get("code", wording),
        message=row["message"].format_map(named),
        next=row["next"].format_map(named),
        facts=facts,
    )


def find_wording(code: str) -> Mapping[str, str]:
    """Return the wording of a doubt; for a doubt of another version, its code."""
    return read_wordings().get(code, {"short": code, "short_next": "see -v"})
