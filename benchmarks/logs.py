"""Measures of `detect --log`: the confusion of its classes, and 1 GB of hostile input.

    python -m benchmarks.logs                  the labelled sets, their confusion and macro-F1
    python -m benchmarks.logs --write          ... written into docs/measurements/logs.md
    python -m benchmarks.logs --hostile 1024   MiB of each kind of hostile input: time, peak memory

A set is material where rules were written after its logs, and fresh where none was: on a fresh one
the rules are run once, and what they find then stands in its labels (`first_found`), so that rules
which are added later do not change the figure. Each set that is material now was fresh once, but
for `open` and `projects_open`. Each kind of hostile input is read by a process of its own from a
pipe.
"""

from __future__ import annotations

import argparse
import itertools
import random
import re
import resource
import subprocess
import sys
import time
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from gpucheck.detect.log import first_causes, scan

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "tests" / "data" / "logs"
DOCUMENT = ROOT / "docs" / "measurements" / "logs.md"
NONE = "none"
FIRST_RUNS = ("heldout", "heldout_recent", "projects_heldout", "projects_fresh", "projects_fresh2")
MATERIAL = (
    *("open", "heldout", "heldout_recent"),
    *("projects_open", "projects_heldout", "projects_fresh", "projects_fresh2"),
)
RESAMPLES = 1000
MIB = 1 << 20


class Judged(NamedTuple):
    """One log: what its label says, what the rules say."""

    file: str
    label: str
    found: str
    label_line: int | None
    found_line: int


# ---------------------------------------------------------------------------------- labelled logs


def labels(folder: Path) -> list[dict[str, Any]]:
    """Return the labels of a folder of logs, one row for each."""
    document = tomllib.loads((folder / "labels.toml").read_text(encoding="utf-8"))
    return next(value for value in document.values() if isinstance(value, list))


def first_run(folder: Path) -> list[Judged]:
    """Return what the rules found when they were run on these logs for the first time."""
    return [
        Judged(
            row["file"],
            row["class"],
            row.get("first_found", row["class"]),
            row.get("line"),
            row.get("first_found_line", row.get("line", 0)),
        )
        for row in labels(folder)
    ]


def judge(folder: Path) -> list[Judged]:
    """Run the rules over a folder of labelled logs."""
    judged = []
    for row in labels(folder):
        with (folder / row["file"]).open("rb") as file:
            found = scan(file).matches
        causes, _ = first_causes(found.values())
        cause = causes[0] if causes else None
        judged.append(
            Judged(
                row["file"],
                row["class"],
                cause.class_ if cause else NONE,
                row.get("line"),
                cause.line if cause else 0,
            )
        )
    return judged


def scores(judged: Sequence[Judged]) -> dict[str, tuple[int, float, float, float]]:
    """Return how many logs each class has, and its precision, recall and F1."""
    found: dict[str, tuple[int, float, float, float]] = {}
    for name in sorted({each.label for each in judged} | {each.found for each in judged}):
        right = sum(each.label == each.found == name for each in judged)
        labelled = sum(each.label == name for each in judged)
        named = sum(each.found == name for each in judged)
        precision = right / named if named else 0.0
        recall = right / labelled if labelled else 0.0
        both = precision + recall
        found[name] = (labelled, precision, recall, 2 * precision * recall / both if both else 0.0)
    return found


def macro_f1(judged: Sequence[Judged]) -> float:
    """Return the mean F1 of the classes that the labels have."""
    per_class = [value for value in scores(judged).values() if value[0]]
    return sum(value[3] for value in per_class) / len(per_class)


def interval(judged: Sequence[Judged]) -> tuple[float, float]:
    """Return the 95 % interval of the macro-F1, from resampling the logs."""
    draw = random.Random(len(judged))
    drawn = sorted(macro_f1(draw.choices(judged, k=len(judged))) for _ in range(RESAMPLES))
    return drawn[RESAMPLES // 40], drawn[-RESAMPLES // 40 - 1]


def report(name: str, judged: Sequence[Judged]) -> str:
    """Return the tables of one set as Markdown."""
    low, high = interval(judged)
    right = sum(each.label == each.found for each in judged)
    lined = [e for e in judged if e.label == e.found != NONE and e.label_line]
    same = sum(each.label_line == each.found_line for each in lined)
    parts = [
        f"### {name}: {len(judged)} logs\n",
        f"Macro-F1 **{macro_f1(judged):.3f}** ({low:.3f} to {high:.3f}); "
        f"{right} of {len(judged)} classes are right"
        + (f"; of {len(lined)} of these, {same} name the labelled line" if lined else "")
        + ".\n",
        "| class | logs | precision | recall | F1 |\n|--|--:|--:|--:|--:|",
    ]
    parts += [
        f"| `{label}` | {count} | {precision:.2f} | {recall:.2f} | {f1:.2f} |"
        for label, (count, precision, recall, f1) in scores(judged).items()
    ]
    parts.append("\nThe confusions (all else is on the diagonal of the matrix):\n")
    parts.append("| label | found | logs |\n|--|--|--|")
    wrong: dict[tuple[str, str], list[str]] = {}
    for each in judged:
        if each.label != each.found:
            wrong.setdefault((each.label, each.found), []).append(each.file)
    parts += [
        f"| `{label}` | `{found}` | {', '.join(files)} |"
        for (label, found), files in sorted(wrong.items())
    ] or ["| | | none |"]
    return "\n".join(parts) + "\n"


def matrix(judged: Sequence[Judged]) -> str:
    """Return the confusion matrix: a row for each label, a column for each class found."""
    names = sorted({each.label for each in judged} | {each.found for each in judged})
    counts = Counter((each.label, each.found) for each in judged)
    head = " " * 20 + " ".join(f"{number:>3}" for number in range(1, len(names) + 1))
    rows = [
        f"{number:>2} {name:<17}" + " ".join(f"{counts[name, other] or '.':>3}" for other in names)
        for number, name in enumerate(names, start=1)
    ]
    return "\n".join([head, *rows]) + "\n"


def material() -> str:
    """Return the table of the sets after which rules were written, by the rules of today."""
    parts = [
        "### Material: what today's rules find in the logs after which they were written\n",
        "| set | logs | right | macro-F1 | not right |\n|--|--:|--:|--:|--|",
    ]
    for name in MATERIAL:
        judged = judge(FOLDER / name)
        wrong = [each.file for each in judged if each.label != each.found]
        parts.append(
            f"| `{name}` | {len(judged)} | {len(judged) - len(wrong)} | {macro_f1(judged):.3f} "
            f"| {', '.join(wrong)} |"
        )
    return "\n".join(parts) + "\n"


def write_section(marker: str, text: str) -> None:
    """Replace what stands between two comments of the document."""
    before = DOCUMENT.read_text(encoding="utf-8")
    begin, end = f"<!-- {marker} -->", f"<!-- end of {marker} -->"
    pattern = re.compile(f"{re.escape(begin)}.*?{re.escape(end)}", re.DOTALL)
    after = pattern.sub(lambda _: f"{begin}\n\n{text}\n{end}", before)
    DOCUMENT.write_text(after, encoding="utf-8")


# ---------------------------------------------------------------------------------- hostile input

#: Kinds of input that could cost time or memory, by what is repeated.
HOSTILE: Mapping[str, Callable[[], Iterator[bytes]]] = {
    "control characters": lambda: itertools.repeat(bytes(range(1, 32)) * 3 + b"\x9b[2J\n"),
    "one line without an end": lambda: itertools.repeat(b"CUDA error " * 100),
    "progress bar in one line": lambda: itertools.repeat(b"\r 12%|## | 12/100 [00:01<00:02]"),
    "near-matches in every line": lambda: itertools.repeat(
        b"CUDA error x NCCL WARN slurmstepd NVRM: Xid cuda failure cannot exitcode: - killed\n"
    ),
    "repeated prefixes of literals": lambda: itertools.repeat(
        b"cuda error " * 370 + b"\n" + b"nvrm: xid " * 400 + b"\n"
    ),
    "shortest lines with a word": lambda: itertools.repeat(b"oom\n"),
    "a match in every line": lambda: itertools.repeat(b"NVRM: Xid (PCI:0000:44:00): 79, x\n"),
    "nested quantifiers' bait": lambda: itertools.repeat(b"a" * 5000 + b"!" + b" " * 5000 + b"\n"),
    "bytes that are no UTF-8": lambda: itertools.repeat(bytes(range(128, 256)) * 2 + b"\n"),
    "a plain log": lambda: itertools.repeat(
        b"[2025-08-13 02:01:54 TP0] step 100 loss 2.31 device='cuda:0' 8192 tokens\n"
    ),
}
_READER = """
import resource, sys, time
from gpucheck.detect.log import first_causes, scan
began = time.process_time()
found = scan(sys.stdin.buffer)
first_causes(found.matches.values())
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(found.size_bytes, time.process_time() - began, peak * 1024)
"""


def blocks_of(pieces: Iterator[bytes], size_bytes: int) -> Iterator[bytes]:
    """Yield blocks of about 1 MiB until there are so many bytes."""
    piece = next(pieces)
    block = piece * max(1, MIB // len(piece))
    sent = 0
    while sent < size_bytes:
        sent += len(block)
        yield block


def measure(kind: str, mib: int) -> tuple[int, float, float, int]:
    """Return the bytes, the reader's CPU seconds, the wall time and the reader's peak memory."""
    began = time.monotonic()
    with subprocess.Popen(
        [sys.executable, "-c", _READER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT
    ) as reader:
        assert reader.stdin is not None
        assert reader.stdout is not None
        for block in blocks_of(HOSTILE[kind](), mib * MIB):
            reader.stdin.write(block)
        reader.stdin.close()
        size, cpu_s, peak = reader.stdout.read().split()
    return int(size), float(cpu_s), time.monotonic() - began, int(peak)


def hostile(mib: int) -> str:
    """Return the table of hostile inputs as Markdown."""
    parts = ["| input | size | CPU time | peak memory |\n|--|--:|--:|--:|"]
    for kind in HOSTILE:
        size, cpu_s, _, peak = measure(kind, mib)
        parts.append(f"| {kind} | {size / MIB:.0f} MiB | {cpu_s:.0f} s | {peak / MIB:.0f} MiB |")
        print(parts[-1], flush=True)
    return "\n".join(parts) + "\n"


def main() -> None:
    """Print the measures, or write them into the document."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--hostile", type=int, metavar="MIB")
    options = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if options.hostile:
        table = hostile(options.hostile)
        if options.write:
            write_section("hostile", table)
        return
    first = {f"{name}, the first run": first_run(FOLDER / name) for name in FIRST_RUNS}
    texts = [
        f"{report(name, judged)}\n```\n{matrix(judged)}```\n" for name, judged in first.items()
    ]
    texts.append(material())
    print("\n".join(texts))
    if options.write:
        write_section("sets", "\n".join(texts))


if __name__ == "__main__":
    main()
