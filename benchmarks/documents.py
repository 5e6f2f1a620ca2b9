"""Documents of all pretended machines and scenarios, kept and compared.

A change that is to move code and leave every document as it is, is judged by this:

    python -m benchmarks.documents keep before.json --checkout PATH   # a checkout of the old commit
    python -m benchmarks.documents keep after.json
    python -m benchmarks.documents compare before.json after.json

Each command runs in a fork of the checkout's own program, on libraries and file trees made from the
machine files. Times, and the paths of the checkout and of the trees, are replaced by a word;
nothing else is. `compare` ends with 1 where a document differs; with `--sentences` texts for people
(summaries, messages, reasons, remedies, evidence, notes) may differ in JSON, and only they.
"""

from __future__ import annotations

import argparse
import difflib
import json
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
#: Stands in documents, and is as long in every run: it decides where a line breaks.
PRETENDED = Path(tempfile.mkdtemp(prefix="gpucheck-documents-"))
DEADLINE = ("--deadline", "3")

JSON, OF_A_MACHINE = (
    [
        ["list", "--json"],
        ["list", "--processes", "--topology", "--json"],
        ["list", "--ask-driver", "--json"],
        ["detect", "--json"],
        ["detect", "--deep", "--json"],
        ["place", "/gpu:0", "--json"],
        ["place", "/gpu:7", "--soft", "--json"],
        ["place", "--count", "1", "--json"],
        ["place", "--claims", "--json"],
        ["memlimit", "30%", "--json"],
        ["memlimit", "2GiB", "--gpu", "/gpu:0", "--include-overhead", "--json"],
    ],
    [
        ["list"],
        ["list", "--processes", "--topology", "-v"],
        ["list", "--format", "csv"],
        ["detect"],
        ["detect", "-v"],
        ["detect", "--strict", "-q"],
        ["place", "/gpu:0"],
        ["place", "/gpu:9"],
        ["place", "--count", "1"],
        ["place", "--count", "2", "--format", "env"],
        ["place", "--count", "1", "--min-free", "900GiB", "-v"],
        ["place", "--count", "1", "--format", "shell"],
        ["memlimit", "30%", "-v"],
        ["memlimit", "30%", "--format", "shell"],
        ["memlimit", "3000GiB"],
        ["memlimit", "1GiB", "--code", "tensorflow"],
        ["memlimit", "1GiB", "--code", "pytorch"],
    ],
)
OF_A_SCENARIO = [
    ["detect", "--json"],
    ["detect", "-v"],
    ["list", "--json"],
    ["place", "/gpu:0", "--json"],
    ["place", "--count", "1", "--json"],
    ["memlimit", "30%", "--json"],
]
#: Wrong use, help and catalogues: no machine is needed.
OF_NO_MACHINE = [
    ["--help"],
    *(
        [name, "--help"]
        for name in (
            "list",
            "detect",
            "place",
            "bench",
            "compare",
            "profile",
            "memlimit",
            "snapshot",
        )
    ),
    ["detect", "--list-checks"],
    ["detect", "--list-checks", "--json"],
    ["profile", "list"],
    ["profile", "list", "--json"],
    *(
        ["profile", "explain", name, *as_]
        for name in ("default", "acceptance", "cpu")
        for as_ in ((), ("--json",))
    ),
    ["place", "/gpu:x"],
    ["place", "/gpu:x", "--json"],
    ["place", "--count", "0", "--json"],
    ["place", "--share", "2", "--json"],
    ["memlimit", "lots", "--json"],
    ["memlimit", "130%", "--json"],
    ["list", "--gpu", "99", "--json"],
    ["list", "--sort", "nonsense", "--json"],
    ["detect", "--only", "nonsense", "--json"],
    ["detect", "--explain", "nonsense", "--json"],
    ["bench", "nonsense", "--json"],
    ["bench", "--size", "x", "--json"],
    ["bench", "--profile", "nonsense", "--json"],
    ["compare", "/none", "/none2", "--json"],
    ["snapshot", "--from", "/none", "--json"],
]

#: What differs from run to run.
VOLATILE = (
    (re.compile(r'"(time|since|started)": "[0-9T:.+Z-]+"'), r'"\1": "TIME"'),
    (re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d)?(\.\d+)?(Z|[+-]\d\d:\d\d)?"), "TIME"),
    (re.compile(r"\b[0-9.]+ (ms|µs|us)\b"), "DURATION"),
    (re.compile(r"(errors a second(: |\", \"value\": \"))[0-9.]+"), r"\1RATE"),
    (re.compile(r'"([a-z_]+_s|load_\w+|pid)": [0-9.e-]+'), r'"\1": 0'),
    (re.compile(r'"(pid|starttime)": [0-9]+'), r'"\1": 0'),
)
SENTENCES = frozenset(
    ("summary", "message", "reason", "remedy", "evidence", "conclusion", "note", "question",
     "hidden_reason", "looks_at", "why", "rules", "unavailable", "text", "value", "source", "title",
     "description", "detail", "sources", "sentence", "advice",
     "open_question", "disagreement")
)  # fmt: skip


def steady(text: str, checkout: Path) -> str:
    """Return an output without what differs from run to run."""
    for path, word in ((str(PRETENDED), "$PRETENDED"), (str(checkout), "$CHECKOUT")):
        text = text.replace(path, word)
    for pattern, word in VOLATILE:
        text = pattern.sub(word, text)
    return text


def runs(only: str) -> Iterator[tuple[str, list[str], Mapping[str, str], int]]:
    """Yield each run: its name, its words, its variables and its width in columns."""
    from gpucheck import __version__  # noqa: F401 - the checkout's, as tests.fakes is
    from tests.fakes.libraries import build_libraries
    from tests.fakes.machine import MACHINES, load_machine
    from tests.fakes.scenarios import load_scenario, scenario_names
    from tests.fakes.tree import write_tree

    for words in OF_NO_MACHINE:
        yield " ".join(["-", *words]), words, {}, 80
    checks = sorted(set(_checks()))
    for check in checks:
        yield f"- explain {check}", ["detect", "--explain", check], {}, 80
    for path in sorted(MACHINES.glob("*.toml")):
        if only not in path.stem:
            continue
        machine = load_machine(path.stem)
        shutil.rmtree(PRETENDED, ignore_errors=True)
        PRETENDED.mkdir(mode=0o700)
        variables = {
            **build_libraries(machine, PRETENDED / "libraries"),
            "GPUCHECK_ROOT": str(write_tree(machine, PRETENDED / "root")),
        }
        for words in [*JSON, *OF_A_MACHINE]:
            widths = (80,) if words in JSON or "--format" in words else (60, 120)
            for width in widths:
                yield f"{path.stem} {width}: {' '.join(words)}", words, variables, width
    for name in scenario_names():
        if only not in name:
            continue
        scenario = load_scenario(name)
        shutil.rmtree(PRETENDED, ignore_errors=True)
        PRETENDED.mkdir(mode=0o700)
        libraries = build_libraries(scenario.listed, PRETENDED / "libraries")
        variables = scenario.environment(libraries, scenario.write_root(PRETENDED / "root"))
        for words in OF_A_SCENARIO:
            extra = scenario.arguments if words[0] == "detect" else ()
            yield f"{name}: {' '.join(words)}", [*words, *extra], variables, 100


def _checks() -> list[str]:
    from gpucheck.detect.checks import CHECKS

    return [check.ID for check in CHECKS]


def keep(target: Path, checkout: Path, only: str) -> None:
    """Run everything in `checkout` and write {name: {code, stdout, stderr}} to `target`."""
    sys.path.insert(0, str(checkout))
    from tests.command_server import CommandServers
    from tests.conftest import scrubbed_environment

    kept: dict[str, dict[str, Any]] = {}
    begun = time.monotonic()
    with CommandServers() as servers:
        for name, words, variables, width in runs(only):
            # Claims of others would be in the answers, and ours in theirs.
            claims = {"GPUCHECK_CLAIMS_DIR": str(PRETENDED / "claims")} if variables else {}
            given = scrubbed_environment({**variables, **claims, "COLUMNS": str(width)})
            asks = any(word in words for word in ("list", "detect", "place", "memlimit"))
            plain = asks and not {"--help", "--list-checks", "--explain", "--claims"} & set(words)
            code, out, err = servers.run(
                [*words, *(DEADLINE if plain and variables else ())],
                environment=given, cwd=Path("/"),
            )  # fmt: skip
            kept[name] = {
                "code": code,
                "stdout": steady(out.decode("utf-8", "replace"), checkout),
                "stderr": steady(err.decode("utf-8", "replace"), checkout),
            }
    shutil.rmtree(PRETENDED, ignore_errors=True)
    target.write_text(json.dumps(kept, indent=1, ensure_ascii=False), encoding="utf-8")
    print(f"{len(kept)} documents in {time.monotonic() - begun:.0f} s")


def without_sentences(value: Any) -> Any:
    """Return a document with a mark in place of each text for people."""
    if isinstance(value, dict):
        return {
            key: "SENTENCE" if key in SENTENCES and part else without_sentences(part)
            for key, part in value.items()
        }
    return [without_sentences(part) for part in value] if isinstance(value, list) else value


def compare(old: Path, new: Path, *, sentences: bool, common: bool, shown: int) -> int:
    """Print how the documents differ; 1 if they do."""
    before, after = (json.loads(path.read_text(encoding="utf-8")) for path in (old, new))
    differing = [] if common else sorted(set(before) ^ set(after))
    for name in sorted(set(before) & set(after)):
        a, b = before[name], after[name]
        if sentences and "--json" in name:
            same = a["code"] == b["code"] and without_sentences(_parsed(a)) == without_sentences(
                _parsed(b)
            )
        elif sentences:
            same = a["code"] == b["code"]
        else:
            same = a == b
        if not same:
            differing.append(name)
    for name in differing[:shown]:
        print(f"== {name}")
        a, b = before.get(name, {}), after.get(name, {})
        for part in ("code", "stdout", "stderr"):
            was, now = (_lines(each.get(part, "")) for each in (a, b))
            print(*difflib.unified_diff(was, now, lineterm="", n=1), sep="\n")
    both = set(before) & set(after) if common else set(before) | set(after)
    print(f"{len(differing)} of {len(both)} documents differ")
    return 1 if differing else 0


def _parsed(kept: Mapping[str, Any]) -> Any:
    try:
        return json.loads(kept["stdout"])
    except ValueError:
        return kept["stdout"]


def _lines(text: object) -> list[str]:
    try:
        return json.dumps(json.loads(str(text)), indent=1).splitlines()
    except ValueError:
        return str(text).splitlines()


def main() -> None:
    """Keep or compare."""
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    keeping = commands.add_parser("keep")
    keeping.add_argument("target", type=Path)
    keeping.add_argument("--checkout", type=Path, default=ROOT)
    keeping.add_argument("--only", default="", help="machines and scenarios whose name holds this")
    comparing = commands.add_parser("compare")
    comparing.add_argument("old", type=Path)
    comparing.add_argument("new", type=Path)
    comparing.add_argument("--sentences", action="store_true")
    comparing.add_argument("--common", action="store_true", help="leave out what only one file has")
    comparing.add_argument("--shown", type=int, default=20, help="differences to print")
    asked = parser.parse_args()
    if asked.command == "keep":
        keep(asked.target, asked.checkout.resolve(), asked.only)
    else:
        sys.exit(
            compare(
                asked.old,
                asked.new,
                sentences=asked.sentences,
                common=asked.common,
                shown=asked.shown,
            )
        )


if __name__ == "__main__":
    main()
