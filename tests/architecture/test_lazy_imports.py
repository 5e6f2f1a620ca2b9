"""Start-up is a feature: nothing heavy is imported to print a help text or the version."""

from __future__ import annotations

import subprocess
import sys

import pytest

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

#: Runs the program with the given arguments, then prints which modules it has imported.
PROGRAM = """
import sys
from gpucheck.__main__ import main
try:
    main()
finally:
    sys.stderr.write("\\nimported: " + " ".join(sys.modules))
"""

LINES = [["--help"], ["--version"], *([name, "--help"] for name in COMMAND_NAMES)]


def imported_by(*arguments: str) -> set[str]:
    """Return the modules that a whole run of the program has imported."""
    finished = subprocess.run(
        [sys.executable, "-c", PROGRAM, *arguments], capture_output=True, text=True, check=True
    )
    return set(finished.stderr.rpartition("imported: ")[2].split())


@pytest.mark.parametrize("line", LINES, ids=" ".join)
def test_nothing_heavy_is_imported(line: list[str]) -> None:
    imported = imported_by(*line)

    assert "gpucheck.cli" in imported
    assert imported & set(HEAVY) == set()
