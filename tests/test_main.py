"""The start of the program: nothing is taken from the directory that it is started in."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from gpucheck.__main__ import _without_current_directory
from tests.conftest import scrubbed_environment


@pytest.mark.parametrize("variable", [":x", ".:x"])
def test_nothing_comes_from_the_current_directory(tmp_path: Path, variable: str) -> None:
    for folder in (tmp_path, tmp_path / "x"):
        folder.mkdir(exist_ok=True)
        for name in ("json", "typer", "pynvml", "platform"):
            (folder / f"{name}.py").write_text("raise SystemExit('taken from here')")

    finished = subprocess.run(
        [sys.executable, "-m", "gpucheck", "list", "--json", "--visible"],
        env=scrubbed_environment({"PYTHONPATH": variable}),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )

    assert json.loads(finished.stdout)["schema"] == "gpucheck/list/1", finished.stderr


@pytest.mark.parametrize(
    ("variable", "kept"),
    [
        ("", ["/here", "/here/x", "/other", "/lib"]),
        (":x", ["/other", "/lib"]),
        (".:/other", ["/here/x", "/other", "/lib"]),
        ("x:/here", ["/here", "/other", "/lib"]),
        ("x:/here/x", ["/here", "/here/x", "/other", "/lib"]),
    ],
)
def test_relative_entries_go_and_absolute_ones_stay(
    monkeypatch: pytest.MonkeyPatch, variable: str, kept: list[str]
) -> None:
    monkeypatch.setattr(os, "getcwd", lambda: "/here")

    path = _without_current_directory(["/here", "/here/x", "/other", "/lib", "", "x"], variable)

    assert path == kept
