"""How the tests themselves are run: what is slow, and what is said of what was left out."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.architecture.house import ROOT, offenders
from tests.conftest import QUICK_FILES, SLOW_FOLDERS, is_slow, scrubbed_environment

TESTS = ROOT / "tests"
MARK = re.compile(r"pytest\.mark\.slow\b")


def slow_files() -> list[Path]:
    return [path for path in sorted(TESTS.rglob("test_*.py")) if is_slow(path)]


def test_the_folders_and_files_of_the_rule_are_there() -> None:
    assert {path.parent.name for path in slow_files()} == set(SLOW_FOLDERS)
    assert {path.name for path in TESTS.rglob("test_*.py")} >= set(QUICK_FILES)


def test_what_is_slow_by_its_folder_is_not_marked_by_hand() -> None:
    assert offenders((path, MARK.findall(path.read_text("utf-8"))) for path in slow_files()) == {}


def test_without_a_compiler_the_run_says_what_was_left_out(tmp_path: Path) -> None:
    environment = scrubbed_environment({"PATH": str(tmp_path), "PYTEST_ADDOPTS": ""})

    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider",
         os.fspath(TESTS / "drivers" / "cuda" / "test_client.py"), "-k", "test_no_libcuda"],
        cwd=ROOT, env=environment, capture_output=True, text=True, check=True,
    )  # fmt: skip

    assert "1 tests were left out: there is no compiler" in ran.stdout
