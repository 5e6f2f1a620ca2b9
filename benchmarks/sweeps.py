"""Every case of the tests that hold a sample only: `python -m benchmarks.sweeps [FILE...]`.

It takes about half an hour on two cores, and prints a table for benchmarks/README.md.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def files() -> list[Path]:
    """Return the tests that take a sample."""
    pattern = re.compile(r"^from tests\.sampling import", re.MULTILINE)
    return [
        path
        for path in sorted((ROOT / "tests").rglob("test_*.py"))
        if pattern.search(path.read_text(encoding="utf-8"))
    ]


def run_tests(*words: str, **variables: str) -> tuple[subprocess.CompletedProcess[str], float]:
    """Return how these tests ended in one process under these variables, and the seconds."""
    began = time.monotonic()
    ended = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", *words],
        cwd=ROOT,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        check=False,
    )
    return ended, time.monotonic() - began


def main(words: list[str]) -> int:
    """Run each file with all its cases; the code is 1 when one of them failed."""
    failed = False
    print("| tests | cases | seconds | outcome |\n|--|--:|--:|--|")
    for path in [Path(word).resolve() for word in words] or files():
        ran, took_s = run_tests(str(path), GPUCHECK_TEST_SWEEPS="all", GPUCHECK_TEST_STARTS="real")
        last = (ran.stdout.splitlines() or [""])[-1]
        found = re.search(r"(\d+) passed", last)
        outcome = "passed" if ran.returncode == 0 else f"**{last}**"
        name = path.relative_to(ROOT).as_posix()
        print(f"| `{name}` | {found[1] if found else 0} | {took_s:.0f} | {outcome} |", flush=True)
        if ran.returncode:
            failed = True
            sys.stderr.write(ran.stdout)
    return int(failed)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
