"""The file of a recording: who may read it, and what is said of it."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from gpucheck.cli import main


def test_a_recording_with_names_is_its_owners_alone_and_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "machine.json"
    path.write_text("older, and open to all")

    assert main(["snapshot", str(path), "--replace"]) == 0

    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert "make it with --redact" in capsys.readouterr().err


def test_a_redacted_one_is_an_ordinary_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "machine.json"
    path.touch()
    path.chmod(0o644)  # whatever the umask

    assert main(["snapshot", str(path), "--redact", "--replace"]) == 0

    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    assert "--redact" not in capsys.readouterr().err


def test_a_name_that_no_file_can_have_is_wrong_use(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["snapshot", str(tmp_path / ("n" * 300))]) == 2

    assert "File name too long" in capsys.readouterr().err


@pytest.mark.parametrize("words", [("snapshot", "-"), ("list", "-o", "-", "--json")])
def test_a_dash_is_standard_output(
    words: tuple[str, ...],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)

    main([*words, "--from", "example:geforce"])

    assert capsys.readouterr().out.startswith('{"schema":')
    assert [*tmp_path.iterdir()] == []
