"""Options of bench beside --peaks."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpucheck.cli import main


def test_peaks_take_a_board_and_formats(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "--peaks", "--board", "H100 SXM", "--dtype", "int8"]) == 0
    assert "int8" in capsys.readouterr().out


def test_defaults_of_a_file_are_for_the_runs_that_they_fit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "defaults.toml").write_text("[bench]\nseed = 3\nbudget = 9\nquick = true\n")
    words = ["--config", str(tmp_path / "defaults.toml"), "--peaks", "--board", "H100 SXM"]

    assert main(["bench", *words]) == 0
    assert capsys.readouterr().err == ""
