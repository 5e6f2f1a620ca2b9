"""Measurement of gpucheck on this machine's GPU: one command, under nine minutes.

    python -m benchmarks.gpu [--output docs/measurements] [--seconds 500] [--only softmax,matmul]

Run it from the checkout (or with PYTHONPATH=. there). It needs NumPy and CuPy, and compares with
PyTorch if installed. Each part runs in its own process with its own time, and each figure is in the
files within seconds. A part that fails, hangs or breaks the CUDA context loses only its own
remaining figures. The kernels' tests come first, compute-sanitizer last, each if installed.

Writes `<card>-documents.json` with these answers, `<card>.json` and `<card>.md` (parts that do not
run keep their figures of the same card and software) and `run.log`, and prints a short table last.
Exits with 1 if a result was wrong, 3 if there was nothing to measure, if it was stopped, or if a
part that is not optional has no figure.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.card.checks import run_sanitizer, run_tests
from benchmarks.card.children import GRACE_S, Children, Ended, StoppedError, stop_when_asked
from benchmarks.card.figures import LOST, Figure, Notebook, give_up_unfinished, read_figures
from benchmarks.card.plan import BEGIN_S, BUDGETS, share_seconds
from benchmarks.card.program import COMMANDS, Program, burn_commands
from benchmarks.card.report import Report

#: Default seconds for all parts.
SECONDS = 500
#: Parts of a run, in its order; `facts` begins every run.
PARTS = [part for part in BUDGETS if part != "facts"]
#: Seconds to import the libraries and open the card, with torch and then without.
_OPENING_S, _OPENING_ALONE_S = 100, 60
#: Seconds for a single figure: torch's first compilation may take half of them.
_HANGING_S = 60


def main() -> int:
    """Run all parts, or in a child the requested one, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, default=Path("docs/measurements"))
    parser.add_argument("--seconds", type=float, default=SECONDS)
    parser.add_argument("--only", help="parts, by commas: " + ", ".join(PARTS))
    parser.add_argument("--share", type=float, default=1.0, help="shrink all sizes: for a trial")
    parser.add_argument("--without-torch", action="store_true")
    parser.add_argument("--part", help=argparse.SUPPRESS)
    parser.add_argument("--notes", type=Path, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.part:
        return run_part(chosen)
    parts = chosen.only.split(",") if chosen.only else list(PARTS)
    unknown = [part for part in parts if part not in PARTS]
    if unknown:
        parser.error(f"there is no part {unknown[0]!r}: {', '.join(PARTS)}")
    stop_when_asked()
    return Run(chosen, parts).run()


def run_part(chosen: argparse.Namespace) -> int:
    """Run one part in this process; `facts` only prints the machine's facts."""
    from benchmarks.card.rivals import torch_or_none
    from gpucheck.drivers.cupy.device import open_gpus

    # PyTorch comes first: both use the CUDA libraries that are loaded first.
    alone = chosen.without_torch or chosen.part == "exercise"
    torch, said = (None, "left out") if alone else torch_or_none()
    # Reading cuBLAS' version creates a handle: tens of seconds under a sanitizer.
    opened = open_gpus(read_cublas_version=chosen.part != "exercise")
    if not opened.devices:
        print(opened.unavailable, file=sys.stderr)
        return 3
    if chosen.part == "facts":
        from benchmarks.card.machine import read_machine

        chosen.notes.write_text(json.dumps(read_machine(opened, said)), encoding="utf-8")
        return 0
    from benchmarks.card.bench import Bench
    from benchmarks.card.parts import MEASURED

    bench = Bench(
        gpus=tuple(opened.devices),
        torch=torch,
        notes=Notebook(chosen.notes, chosen.part, chosen.seconds),
        share=chosen.share,
    )
    MEASURED[chosen.part](bench)
    return 0


class Run:
    """Run of the suite: its parts one after the other, and its files."""

    def __init__(self, chosen: argparse.Namespace, parts: list[str]) -> None:
        self._parts = parts
        self._end_s: float = time.monotonic() + chosen.seconds
        self._output: Path = chosen.output
        self._share: float = chosen.share
        self._without_torch: bool = chosen.without_torch

    @property
    def _left_s(self) -> float:
        return self._end_s - time.monotonic()

    def run(self) -> int:
        """Run the parts and report; if stopped, report the figures so far."""
        self._print_plan()
        self._output.mkdir(parents=True, exist_ok=True)
        self._children = Children(self._output / "run.log")
        with tempfile.TemporaryDirectory() as folder:
            self._folder = Path(folder)
            try:
                facts = self._facts()
            except StoppedError:
                facts = "stopped before the card was open"
            if isinstance(facts, str):
                print(f"no GPU can be measured here: {facts}", file=sys.stderr)
                return 3
            report = Report(self._output, facts, self._parts)
            self._program = Program(self._children, self._folder, report.documents)
            try:
                for place, part in enumerate(self._parts):
                    # What earlier parts have left, or taken beyond their time, is shared anew.
                    left = share_seconds(self._parts[place:], max(0.0, self._left_s))
                    self._one(part, report, left[part])
            except StoppedError:
                report.stop()
        report.save()
        print(report.text)
        wrong = any(figure.verdict == "wrong" for figure in report.figures)
        if wrong:
            return 1
        needed = [part for part in self._parts if not BUDGETS[part].optional]
        return 3 if report.stopped or report.without_figures(needed) else 0

    def _print_plan(self) -> None:
        """Print the seconds of each part, before any is known to take fewer."""
        shares = share_seconds(["facts", *self._parts], self._left_s)
        plan = ", ".join(f"{part} {seconds:.0f}" for part, seconds in shares.items())
        print(f"plan in seconds: {plan}", file=sys.stderr, flush=True)

    def _facts(self) -> dict[str, object] | str:
        """Return the card, its driver and the versions, or why there is nothing to measure."""
        notes = self._folder / "facts.json"
        ended = self._child("facts", notes, min(self._left_s, _OPENING_S))
        torch = {}
        if not notes.exists() and ended.code != 3 and not self._without_torch:
            torch = {"torch": f"torch is left out: {ended.how}: {ended.said}"}
            self._without_torch = True
            ended = self._child("facts", notes, min(self._left_s, _OPENING_ALONE_S))
        if not notes.exists():
            return f"{ended.how}: {ended.said}"
        told: dict[str, object] = json.loads(notes.read_text(encoding="utf-8"))
        return told | torch | {"command": " ".join(["python -m benchmarks.gpu", *sys.argv[1:]])}

    def _one(self, part: str, report: Report, seconds: float) -> None:
        """Run one part; its figures are in the report's files as they come."""
        if seconds < BEGIN_S:
            report.remark(f"{part}: not begun, out of time")
            return
        print(f"{part} ...", file=sys.stderr, flush=True)
        began_s = time.monotonic()
        notes = self._folder / f"{part}.jsonl"
        if part == "program":
            figures, remark = self._program.run(part, COMMANDS, seconds)
        elif part == "burn":
            figures, remark = self._program.run(part, burn_commands(self._share), seconds)
        elif part == "tests":
            figures, remark = run_tests(self._children, seconds)
        elif part.endswith("check"):
            figures, remark = run_sanitizer(self._children, part, notes, seconds)
        else:
            figures, remark = self._measured(part, notes, seconds, report)
        report.put(part, figures)
        if remark:
            report.remark(f"{part}: {remark}")
        print(f"{part}: {time.monotonic() - began_s:.0f} s", file=sys.stderr, flush=True)

    def _measured(
        self, part: str, notes: Path, seconds: float, report: Report
    ) -> tuple[list[Figure], str | None]:
        """Return a part's figures, and a remark if it failed.

        If the process hangs or crashes, the current figure is given up and a new process goes on.
        It runs without torch if it crashed before the first figure, or hung twice: torch is the
        likelier cause.
        """
        end_s, alone, hung = time.monotonic() + seconds, False, 0
        remarks: list[str] = []
        while (left_s := end_s - time.monotonic()) > 0:
            ended = self._child(part, notes, left_s, Watch(report, part, notes), alone=alone)
            if ended.code == 0:
                break
            at = give_up_unfinished(notes, part, ended.how)
            where = f" at {at}" if at else ""
            remarks.append(f"ended early{where} ({ended.how}): {ended.said}")
            hung += ended.code is None
            if at is None and ended.code != LOST and (alone or self._without_torch):
                break
            alone = alone or hung > 1 or (at is None and ended.code != LOST)
        return read_figures(notes), "; ".join(remarks) or None

    def _child(
        self,
        part: str,
        notes: Path,
        seconds: float,
        hangs: Callable[[], bool] | None = None,
        *,
        alone: bool = False,
    ) -> Ended:
        words = ["-m", "benchmarks.gpu", "--part", part, "--notes", str(notes)]
        words += ["--seconds", str(seconds), "--share", str(self._share)]
        words += ["--without-torch"] if alone or self._without_torch else []
        limit_s = seconds if part == "facts" else seconds + GRACE_S
        return self._children.python(words, limit_s, hangs)


class Watch:
    """Watch on a part's notes: prints new figures, and detects a hang.

    Before the first note the libraries are loaded, which takes a minute or more from a cold disk.
    """

    def __init__(self, report: Report, part: str, notes: Path) -> None:
        self._report = report
        self._part = part
        self._notes = notes
        self._size = -1
        self._since_s = time.monotonic()

    def __call__(self) -> bool:
        """Return whether nothing new has come for too long."""
        size = self._notes.stat().st_size if self._notes.exists() else 0
        if size != self._size:
            self._size, self._since_s = size, time.monotonic()
            self._report.put(self._part, read_figures(self._notes))
        longest_s = _HANGING_S if size else _OPENING_S
        return time.monotonic() - self._since_s > longest_s


if __name__ == "__main__":
    sys.exit(main())
