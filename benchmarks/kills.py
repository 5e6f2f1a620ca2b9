"""Kill test: SIGTERM, SIGHUP or SIGKILL at random moments, and what gpucheck leaves behind.

Every run is a whole command in a process group of its own, on a pretended machine whose driver is
healthy or hangs. Afterwards no process of it may be there, nothing in TMPDIR, no draft and no half
file beside its report; after SIGTERM and SIGHUP it has answered with one document.

    python -m benchmarks.kills --runs 300 --seed 1
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from tests.fakes.libraries import build_libraries, cupy_environment
from tests.fakes.machine import load_machine
from tests.fakes.tree import write_tree

SIGNALS = (signal.SIGTERM, signal.SIGHUP, signal.SIGKILL)
#: In the environment of every process of a run, by which it is known when its parent is gone.
MARK = "KILLS_RUN"
REPORT = "report.json"
#: So long a process may take to die on a busy machine; nobody waits that long for one that is gone.
PATIENCE_S = 60.0

_SMALL = ("--device", "cpu", "--size", "256")
#: What is run; with `--` behind it a command that is not ours, and has no document.
CASES: dict[str, tuple[str, ...]] = {
    "list": ("list", "--json"),
    "list --output": ("list", "--json", "--output", REPORT),
    "list --watch": ("list", "--json", "--watch", "0.1"),
    "detect": ("detect", "--json"),
    "place": ("place", "/gpu:0", "--json"),
    "place --count --wait": ("place", "--count", "1", "--wait", "--timeout", "3", "--json"),
    "place -- CMD": ("place", "--count", "1", "--", "sleep", "0.3"),
    "snapshot FILE": ("snapshot", REPORT),
    "memlimit": ("memlimit", "30%", "--json"),
    "memlimit -- CMD": ("memlimit", "30%", "--", "sleep", "0.3"),
    "bench": ("bench", "matmul", "--quick", *_SMALL, "--budget", "1", "--json"),
    "bench on the GPU": ("bench", "matmul", "--quick", "--device", "gpu:0", "--size", "256",
                         "--budget", "1", "--json"),
    "bench --save": ("bench", "matmul", "--quick", *_SMALL, "--budget", "1", "--processes", "2",
                     "--save", REPORT, "--json"),
    "bench --burn": ("bench", "--burn", "1", *_SMALL, "--json"),
    "compare": ("compare", "run.json", "run.json", "--json"),
    "profile": ("profile", "lint", "default", "--json"),
}  # fmt: skip
#: The deadline is long beside the hang: the signal decides, not the deadline.
MACHINES = {"healthy": "t4", "hung": "hung", "one GPU hung": "hung-gpu"}
#: These never ask a driver.
_WITHOUT_DRIVER = ("compare", "profile", "bench", "bench --save", "bench --burn")


class Ended(NamedTuple):
    """How a run ended; `problems` is empty if all is as it should be."""

    code: int
    outcome: str
    problems: tuple[str, ...]


def environments(folder: Path) -> dict[str, dict[str, str]]:
    """Return the variables of each kind of machine."""
    found = {}
    for kind, name in MACHINES.items():
        machine, place = load_machine(name), folder / name
        found[kind] = {
            **build_libraries(machine, place / "libraries"),
            **cupy_environment(),
            "GPUCHECK_ROOT": str(write_tree(machine, place / "root")),
        }
    return found


def run(
    name: str,
    machine: Mapping[str, str],
    folder: Path,
    number: signal.Signals | None,
    wait: Callable[[subprocess.Popen[bytes], str], None],
) -> Ended:
    """Run a case in an empty folder, signal it after `wait`, and look at what is left.

    `wait` is given the process and the mark of all that belong to it; without a signal the run
    comes to its own end.
    """
    for inside in ("work", "tmp", "claims"):
        (folder / inside).mkdir(parents=True)
    (folder / "claims").chmod(0o1777)
    work = folder / "work"
    mark = f"{folder.name}-{os.getpid()}"
    kept = {key: os.environ[key] for key in ("PATH", "HOME") if key in os.environ}
    environment = {
        **kept,
        **machine,
        "LANG": "C.UTF-8",
        "TMPDIR": str(folder / "tmp"),
        "GPUCHECK_CLAIMS_DIR": str(folder / "claims"),
        MARK: mark,
    }
    started = [path.name for path in work.iterdir()]
    with subprocess.Popen(
        [sys.executable, "-m", "gpucheck", *CASES[name]],
        env=environment,
        cwd=work,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        process_group=0,
    ) as process:
        wait(process, mark)
        if number is not None:
            process.send_signal(number)
        stdout, stderr = process.communicate(timeout=10 * PATIENCE_S)
    problems = [f"left running: {left}" for left in _left_running(mark)]
    problems += [f"left in TMPDIR: {path.name}" for path in (folder / "tmp").iterdir()]
    problems += _bad_files(work, started)
    if b"Traceback" in stderr:
        problems.append(stderr.decode(errors="replace").strip())
    outcome, said = _judge(name, process.returncode, number, stdout.decode())
    return Ended(process.returncode, outcome, (*problems, *said))


def members(mark: str) -> list[int]:
    """Return the processes of a run."""
    needle = f"{MARK}={mark}".encode()
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            if needle in (entry / "environ").read_bytes().split(b"\0"):
                found.append(int(entry.name))
        except OSError:  # it is gone, or another user's
            continue
    return found


def _left_running(mark: str) -> list[str]:
    end = time.monotonic() + PATIENCE_S
    while (left := members(mark)) and time.monotonic() < end:
        time.sleep(0.05)
    lines = []
    for pid in left:
        try:
            lines.append(Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode())
            os.kill(pid, signal.SIGKILL)
        except OSError:
            continue
    return lines


def _bad_files(work: Path, before: Sequence[str]) -> list[str]:
    """Name the drafts, and files that are neither whole nor absent."""
    problems = []
    for path in work.iterdir():
        if path.name == REPORT:
            try:
                json.loads(path.read_text(encoding="utf-8"))
            except ValueError:
                problems.append(f"half a file: {path.name}")
        elif path.name not in before:
            problems.append(f"left beside the report: {path.name}")
    return problems


def _judge(
    name: str, code: int, number: signal.Signals | None, stdout: str
) -> tuple[str, list[str]]:
    """Return how the run took the signal, and what is wrong with what it said."""
    lines = stdout.splitlines()
    if "CMD" in name or number is signal.SIGKILL:
        # A pipe has no halves to be undone; a command's code is the command's.
        return ("killed" if code == -signal.SIGKILL else "its own end"), []
    try:
        codes = [json.loads(line)["exit_code"] for line in lines]
    except (ValueError, KeyError):
        return "half a document", ["half a document on stdout"]
    if number is not None and code == -number:
        wrong = ["more than one document"] if len(codes) > 1 and "watch" not in name else []
        return "before Python ran, or behind its answer", wrong
    if "watch" in name and code == 0:
        return "its own end", []
    if name == "snapshot FILE" and not codes:  # its document goes nowhere else
        return ("answered" if code == 130 else "its own end"), []
    if name == "list --output" and not codes and code != 130:
        return "its own end", []
    if codes != [code]:
        return "wrong", [f"code {code}, and documents with {codes}"]
    return ("answered" if code == 130 else "its own end"), []


def main(words: Sequence[str]) -> int:
    """Make the runs, print the table and whatever went wrong."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--runs", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(words)
    chance = random.Random(options.seed)
    with tempfile.TemporaryDirectory(prefix="kills-") as place:
        folder = Path(place)
        machines = environments(folder / "machines")
        spans = _spans(machines, folder / "whole")
        counts: dict[tuple[str, str], collections.Counter[str]] = collections.defaultdict(
            collections.Counter
        )
        bad = 0
        for at in range(options.runs):
            name, kind = chance.choice(list(spans))
            number = chance.choice(SIGNALS)
            delay_s = chance.uniform(0, spans[name, kind])
            ended = run(name, machines[kind], folder / f"run{at}", number, _after(delay_s))
            counts[name, kind].update(("runs", number.name, ended.outcome))
            counts[name, kind]["problems"] += len(ended.problems)
            for problem in ended.problems:
                bad += 1
                print(f"run {at}: {name}, {kind}, {number.name} after {delay_s:.2f} s: {problem}")
    _print(counts)
    return int(bad > 0)


def _after(delay_s: float) -> Callable[[subprocess.Popen[bytes], str], None]:
    def wait(process: subprocess.Popen[bytes], mark: str) -> None:
        end = time.monotonic() + delay_s
        while process.poll() is None and time.monotonic() < end:
            time.sleep(min(0.005, max(0.0, end - time.monotonic())))

    return wait


def _spans(machines: Mapping[str, Mapping[str, str]], folder: Path) -> dict[tuple[str, str], float]:
    """Return how long each command runs here by itself, or is let run: the moments to choose."""
    spans = {}
    for name in CASES:
        for kind in MACHINES:
            if kind != "healthy" and name in _WITHOUT_DRIVER:
                continue
            if kind == "one GPU hung" and "bench" in name:
                continue  # it opens the other GPU, which is the healthy case again
            if "watch" in name or kind != "healthy":
                spans[name, kind] = 3.0
                continue
            begun = time.monotonic()
            place = folder / f"{name} {kind}".replace(" ", "-").replace("/", "-")
            run(name, machines[kind], place, None, lambda process, mark: None)
            spans[name, kind] = 1.1 * (time.monotonic() - begun)
    return spans


def _print(counts: Mapping[tuple[str, str], collections.Counter[str]]) -> None:
    heads = ("runs", "SIGTERM", "SIGHUP", "SIGKILL", "answered", "killed", "its own end",
             "before Python ran, or behind its answer", "problems")  # fmt: skip
    print("| command | driver | " + " | ".join(heads) + " |")
    print("|--|--|" + "--:|" * len(heads))
    total: collections.Counter[str] = collections.Counter()
    for (name, kind), found in sorted(counts.items()):
        total += found
        print(f"| {name} | {kind} | " + " | ".join(str(found[head]) for head in heads) + " |")
    print("| all | | " + " | ".join(str(total[head]) for head in heads) + " |")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
