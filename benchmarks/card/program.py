"""Parts of a card's measurement that run the program itself and keep its documents."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from benchmarks.card.children import Children, Ended
from benchmarks.card.figures import NO_TIME, Figure
from benchmarks.card.redaction import DocumentRedactor

#: Error of a command that was stopped; its document holds what it had measured.
LATE = "it was stopped: its time was over"
#: Exit code of coreutils' timeout, and the seconds for a command to report
#: what it has measured: a burn waits ten for its processes.
_LATE, _REPORTING_S = 124, 15
#: Arguments of a command and the most seconds for it.
Command = tuple[tuple[str, ...], float]
#: By name: the arguments of a command, and the most seconds for it. The most valuable come first;
#: each writes its document to a file of its own, from which it is joined to the others.
COMMANDS: Mapping[str, Command] = MappingProxyType(
    {
        "snapshot": (("snapshot", "--redact"), 40),
        "list": (("list", "--json", "--topology", "--processes", "--ask-driver", "-o"), 30),
        "detect": (("detect", "--json", "-o"), 60),
        "bench": (("bench", "--quick", "--budget", "15", "--device", "gpu:0", "--json", "-o"), 90),
        "place": (("place", "/gpu:0", "--json", "-o"), 30),
        "memlimit": (("memlimit", "10%", "--verify-with", "cupy", "--json", "-o"), 60),
        "detect --deep": (("detect", "--deep", "--json", "-o"), 120),
    }
)
#: Edge of a burn's matrices in a trial without a real card.
_TRIAL_EDGE = 256


def burn_commands(share: float) -> Mapping[str, Command]:
    """Return the one command of the part `burn`: a short load at the power limit.

    A `share` below 1 shrinks the product to one that a pretended card computes in time.
    """
    size = ("--size", str(_TRIAL_EDGE)) if share < 1 else ()
    return {"burn": (("bench", "--burn", "10", *size, "--device", "gpu:0", "--json", "-o"), 60)}


class Program:
    """Runs of gpucheck's commands, whose documents are kept together in the file `kept`.

    The documents of a run that kept them there before stay, unless the same command runs again.
    """

    def __init__(self, children: Children, folder: Path, kept: Path) -> None:
        self._children = children
        self._folder = folder
        self._kept = kept
        self._redactor = DocumentRedactor()

    def run(
        self, part: str, commands: Mapping[str, Command], seconds: float
    ) -> tuple[list[Figure], str | None]:
        """Run each command while there is time.

        A figure is the command's seconds; it is right if the command ended with 0.
        """
        end_s = time.monotonic() + seconds
        figures: list[Figure] = []
        remarks: list[str] = []
        for name, (words, most_s) in commands.items():
            left_s = end_s - time.monotonic()
            if left_s <= 0:
                figures.append(_figure(part, name, error=NO_TIME))
                continue
            ended, taken_s = self._run_command(name, words, min(most_s, left_s))
            figures.append(_judged(part, name, ended, taken_s))
            if ended.code != 0:
                said = self._redactor.text(ended.said)
                remarks.append(f"{name} ended early or badly ({ended.how}): {said}")
        return figures, "; ".join(remarks) or None

    def _run_command(self, name: str, words: Sequence[str], seconds: float) -> tuple[Ended, float]:
        """Run a command, keep its document, and return its end and the seconds it took."""
        begun_s = time.monotonic()
        file = self._folder / f"{name.replace(' ', '')}.json"
        command = [sys.executable, "-m", "gpucheck", *words, str(file)]
        # SIGTERM to gpucheck alone, which answers with what it has measured and ends its children.
        command = ["timeout", "--foreground", f"{seconds:.0f}", *command]
        ended = self._children.run(command, seconds + _REPORTING_S)
        taken_s = time.monotonic() - begun_s
        document = self._redactor.document(_document(file))
        self._keep(
            name,
            {
                "command": " ".join(("gpucheck", *words)).removesuffix(" -o"),
                "exit_code": ended.code,
                "seconds": round(taken_s, 3),
                "said": self._redactor.text(ended.said),
                "document": document,
            },
        )
        return ended, taken_s

    def _keep(self, name: str, answer: Mapping[str, object]) -> None:
        earlier = _document(self._kept)
        kept = {**(earlier if isinstance(earlier, dict) else {}), name: answer}
        self._kept.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")


def _judged(part: str, name: str, ended: Ended, taken_s: float) -> Figure:
    """Return the figure of a command that has ended, or has been killed at its deadline."""
    if ended.code in (None, _LATE):
        return _figure(part, name, error=LATE if ended.code == _LATE else ended.how)
    return _figure(part, name, seconds=taken_s, right=ended.code == 0, code=ended.code)


def _figure(
    part: str,
    name: str,
    *,
    seconds: float | None = None,
    right: bool | None = None,
    error: str | None = None,
    code: int | None = None,
) -> Figure:
    details = {} if code is None else {"exit code": code}
    return Figure(
        part=part,
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
