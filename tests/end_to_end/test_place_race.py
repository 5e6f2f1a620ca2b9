"""Dozens of processes ask for one of eight cards at once, and some of them are killed."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import scrubbed_environment
from tests.sampling import THOROUGH

ROOT = Path(__file__).parents[2]
NOBODY = 65534
pytestmark = pytest.mark.usefixtures("c_compiler")


def environment() -> dict[str, str]:
    """Return variables under which another Python finds the same packages."""
    packages = [path for path in sys.path if path.endswith("site-packages")]
    added = {"PYTHONPATH": os.pathsep.join(packages), "PYTHONDONTWRITEBYTECODE": "1"}
    return scrubbed_environment(added)


def race(interpreter: str, *options: str) -> str:
    """Run the benchmark and return what it printed; it fails where somebody was treated wrongly."""
    finished = subprocess.run(
        [interpreter, "-m", "benchmarks.claims", *options],
        cwd=ROOT,
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert finished.returncode == 0, finished.stdout + finished.stderr
    return finished.stdout


def for_nobody() -> str | None:
    """Return a Python of this version that another user may run too."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    for path in (sys.executable, f"/usr/bin/{version}", f"/usr/local/bin/{version}"):
        with contextlib.suppress(OSError):
            tried = subprocess.run(
                [path, "-c", "import gpucheck.cli"],
                cwd=ROOT,
                env=environment(),
                user=NOBODY,
                group=NOBODY,
                extra_groups=[],
                capture_output=True,
                check=False,
            )
            if tried.returncode == 0:
                return path
    return None


def test_every_card_has_one_holder_and_everybody_is_served_in_order() -> None:
    printed = race(sys.executable, "--processes", "200" if THOROUGH else "30", "--rounds", "1")

    assert printed.count("every card held by one at a time, in order") == 1


def test_the_same_with_two_users() -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can become another user")
    interpreter = for_nobody()
    if interpreter is None:
        pytest.skip("another user may not run this Python or read this checkout")
    printed = race(interpreter, "--processes", "16", "--rounds", "1", "--users", "2")

    assert "every card held by one at a time, in order" in printed
