"""Part of a card's measurement that runs the program itself and keeps its documents."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from benchmarks.card.children import Children, Ended
from benchmarks.card.figures import NO_TIME, Figure

#: Error of a command that was stopped; its document holds what it had measured.
LATE = "it was stopped: its time was over"
#: Exit code of coreutils' timeout, and the seconds for a command to report
#: what it has measured: a burn waits ten for its processes.
_LATE, _REPORTING_S = 124, 15
#: By name: the arguments of a command, and the most seconds for it. The most valuable come first;
#: each writes its document to a file of its own, from which it is joined to the others.
COMMANDS: Mapping[str, tuple[tuple[str, ...], float]] = MappingProxyType(
    {
        "snapshot": (("snapshot", "--redact"), 40),
        "list": (("list", "--json", "--topology", "--processes", "--ask-driver", "-o"), 30),
        "detect": (("detect", "--json", "-o"), 60),
        "bench": (("bench", "--quick", "--budget", "15", "--device", "gpu:0", "--json", "-o"), 90),
        "place": (("place", "/gpu:0", "--json", "-o"), 30),
        "memlimit": (("memlimit", "10%", "--verify-with", "cupy", "--json", "-o"), 60),
        "burn": (("bench", "--burn", "10", "--device", "gpu:0", "--json", "-o"), 60),
        "detect --deep": (("detect", "--deep", "--json", "-o"), 120),
    }
)


def run_program(
    children: Children, folder: Path, kept: Path, seconds: float
) -> tuple[list[Figure], str | None]:
    """Run each command while there is time, and keep all documents so far in the file `kept`.

    A figure is the command's seconds; it is right if the command ended with 0.
    """
    end_s = time.monotonic() + seconds
    figures: list[Figure] = []
    documents: dict[str, object] = {}
    remarks: list[str] = []
    for name, (words, most_s) in COMMANDS.items():
        begun_s = time.monotonic()
        if begun_s >= end_s:
            figures.append(_figure(name, error=NO_TIME))
            continue
        file = folder / f"{name.replace(' ', '')}.json"
        given_s = min(most_s, end_s - begun_s)
        command = [sys.executable, "-m", "gpucheck", *words, str(file)]
        # SIGTERM to gpucheck alone, which answers with what it has measured and ends its children.
        command = ["timeout", "--foreground", f"{given_s:.0f}", *command]
        ended = children.run(command, given_s + _REPORTING_S)
        taken_s = time.monotonic() - begun_s
        documents[name] = {
            "command": " ".join(("gpucheck", *words)).removesuffix(" -o"),
            "exit_code": ended.code,
            "seconds": round(taken_s, 3),
            "said": ended.said,
            "document": _document(file),
        }
        kept.write_text(json.dumps(documents, indent=1) + "\n", encoding="utf-8")
        figures.append(_judged(name, ended, taken_s))
        if ended.code != 0:
            remarks.append(f"{name} ended early or badly ({ended.how}): {ended.said}")
    return figures, "; ".join(remarks) or None


def _judged(name: str, ended: Ended, taken_s: float) -> Figure:
    """Return the figure of a command that has ended, or has been killed at its deadline."""
    if ended.code in (None, _LATE):
        return _figure(name, error=LATE if ended.code == _LATE else ended.how)
    return _figure(name, seconds=taken_s, right=ended.code == 0, code=ended.code)


def _figure(
    name: str,
    *,
    seconds: float | None = None,
    right: bool | None = None,
    error: str | None = None,
    code: int | None = None,
) -> Figure:
    details = {} if code is None else {"exit code": code}
    return Figure(
        part="program",
        name=name,
        unit="s",
        ours=seconds,
        verified=right,
        error=error,
        details=details,
    )


def _document(file: Path) -> object:
    """Return the document that a command has written, None if there is none."""
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
