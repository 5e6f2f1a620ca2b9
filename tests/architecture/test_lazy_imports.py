"""Start-up is a feature: nothing heavy is imported to print a help text or the version."""

from __future__ import annotations

import subprocess
import sys

from tests.architecture.commands import COMMAND_NAMES

HEAVY = (
    "cupy",
    "dask",
    "distributed",
    "matplotlib",
    "ml_dtypes",
    "numpy",
    "psutil",
    "pydantic",
    "pynvml",
    "rich",
    "threadpoolctl",
)

#: Runs the program with each of the command lines that it is given, in a fork that has imported its
#: entry point and Typer, and prints which modules are imported at the end of each.
PROGRAM = """
import os, sys
import typer.main
from gpucheck.__main__ import main
for line in sys.argv[1:]:
    if os.fork() == 0:
        sys.argv[1:] = line.split()
        break
    if os.wait()[1]:
        sys.exit(f"{line} failed")
else:
    sys.exit()
try:
    main()
finally:
    sys.stderr.write(f"{line}: {' '.join(sys.modules)}\\n")
"""

LINES = ["--help", "--version", *(f"{name} --help" for name in COMMAND_NAMES)]


def test_nothing_heavy_is_imported() -> None:
    finished = subprocess.run(
        [sys.executable, "-c", PROGRAM, *LINES], capture_output=True, text=True, check=True
    )
    imported = {
        line: set(names.split())
        for line, names in (told.split(": ") for told in finished.stderr.splitlines())
    }

    assert list(imported) == LINES
    assert all("gpucheck.cli" in names for names in imported.values())
    assert {
        line: names & set(HEAVY) for line, names in imported.items() if names & set(HEAVY)
    } == {}
