"""Planted faults of the pretended GPUs: the statements of FAKE_GPU_SCRIPT.

Statements stand on lines or between semicolons: a word, then `key=value`. `gpu=N` is NVML's number
and limits a statement to one GPU; `after=N` lets so many calls (or launches, or allocations) go
well first. See tests/fakes/README.md for the words.
"""

from __future__ import annotations

import fnmatch
import os
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

_WORDS = {
    "lost": {"gpu", "after", "error"},
    "hang": {"gpu", "after"},
    "interrupt": {"gpu", "after"},
    "oom": {"gpu", "after"},
    "used": {"gpu", "bytes"},
    "slow": {"gpu", "memory", "compute", "link", "launch", "kernel"},
    "throttle": {"gpu", "clock", "at", "until"},
    "flip": {"gpu", "kernel", "after", "times"},
    "nan": {"gpu", "kernel", "after", "times"},
    "skip": {"gpu", "kernel", "after"},
    "fail": {"gpu", "kernel", "after", "error"},
    "noise": {"gpu", "share"},
    "instead": {"gpu", "of", "runs"},
    "efficiency": {"gpu", "memory", "gemm", "link"},
    "no-peers": {"gpu"},
    "unified": {"gpu"},
}


class ScriptError(ValueError):
    """A statement that cannot be understood."""


@dataclass(slots=True)
class Statement:
    """One statement, and how often its moment has come."""

    word: str
    values: dict[str, str] = field(default_factory=dict)
    seen: int = 0

    def number(self, key: str, absent: float) -> float:
        """Return a value as a number."""
        return float(self.values.get(key, absent))

    def text(self, key: str, absent: str) -> str:
        """Return a value."""
        return self.values.get(key, absent)

    def is_for(self, gpu: int) -> bool:
        """Return whether it is about this GPU."""
        return self.values.get("gpu", "*") in ("*", str(gpu))

    def matches(self, kernel: str) -> bool:
        """Return whether it is about this kernel."""
        return fnmatch.fnmatchcase(kernel, self.values.get("kernel", "*"))

    def due(self) -> bool:
        """Count a call and return whether it is one of those that go wrong."""
        self.seen += 1
        past = self.seen - int(self.number("after", 0))
        return 0 < past <= self.number("times", float("inf"))


class Script:
    """All statements."""

    def __init__(self, text: str) -> None:
        lines = text.replace("\n", ";").split(";")
        self._statements = [_parsed(line) for line in lines if line.strip()]

    def about(self, word: str, gpu: int) -> Iterator[Statement]:
        """Yield the statements with this word for this GPU; each GPU counts for itself."""
        for statement in self._statements:
            if statement.word == word and statement.is_for(gpu):
                yield replace(statement)

    def factor(self, word: str, key: str, gpu: int, absent: float = 1.0) -> float:
        """Return the last value that was given."""
        found = absent
        for statement in self.about(word, gpu):
            found = statement.number(key, found)
        return found


def _parsed(line: str) -> Statement:
    word, *pairs = line.split()
    if word not in _WORDS:
        message = f"FAKE_GPU_SCRIPT: {word!r} is none of {', '.join(_WORDS)}"
        raise ScriptError(message)
    values = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or key not in _WORDS[word]:
            message = f"FAKE_GPU_SCRIPT: {word} takes {sorted(_WORDS[word])}, not {pair!r}"
            raise ScriptError(message)
        values[key] = value
    if word in ("flip", "nan"):
        values.setdefault("times", "1")
    return Statement(word, values)


SCRIPT = Script(os.environ.get("FAKE_GPU_SCRIPT", ""))
