"""Options that a profile, a burn or --peaks has no use for are refused, never silently dropped."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpucheck.cli import main

DECIDES = "The profile decides what is measured: omit"
REPEATS = "A burn repeats one product: omit"
SHOWS = "--peaks measures nothing: omit"


@pytest.mark.parametrize(
    ("line", "refusal"),
    [
        ("--profile cpu --quick", f"{DECIDES} --quick."),
        ("--profile cpu --seed 0", f"{DECIDES} --seed."),
        ("--profile cpu --budget 0", f"{DECIDES} --budget."),
        ("--profile cpu --size 4 copy", f"{DECIDES} the kernels, --size."),
        ("--profile cpu --same-math", f"{DECIDES} --same-math."),
        ("--profile cpu --burn 10 --processes 3", f"{DECIDES} --processes, --burn."),
        ("--burn 10 softmax", f"{REPEATS} the kernels."),
        ("--burn 10 --dtype int8 --size 64", f"{REPEATS} --dtype."),
        ("--burn 10 --corruption 5", f"{REPEATS} --corruption."),
        ("--burn 10 --save run.json --processes 3", f"{REPEATS} --processes, --save."),
        ("--peaks copy --dtype int8", f"{SHOWS} the kernels."),
        ("--peaks --save run.json --burn 2", f"{SHOWS} --burn, --save."),
        ("--peaks --junit a.xml", f"{SHOWS} --junit."),
        ("--board H100", "--board names a board whose peaks to show: give --peaks with it."),
    ],
)
def test_options_that_do_not_go_together(
    line: str,
    refusal: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)

    assert main(["bench", *line.split()]) == 2

    assert f"gpucheck: {refusal}\n" in capsys.readouterr().err


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


def test_a_sweep_is_answered_with_the_option_for_a_size(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["bench", "--sweep"]) == 2

    said = capsys.readouterr().err
    assert "No such option: --sweep. One run measures one size: --size N." in said
    assert "--seed" not in said
