"""--save and --baseline: nothing is replaced by itself, and what cannot work fails at once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gpucheck.cli.saving import Saving, open_saving
from gpucheck.core.bench.processes.baseline import read_saved_run, to_text
from gpucheck.models.errors import WrongUseError
from tests.core.bench.processes.test_baseline import saved


def opened(**options: Any) -> Saving:
    nothing: dict[str, Any] = {
        "update": False,
        "baseline": None,
        "allow_difference": None,
        "processes": None,
    }
    return open_saving(options.pop("save", None), **(nothing | options))


@pytest.fixture(name="file")
def _file(tmp_path: Path) -> Path:
    path = tmp_path / "before.json"
    path.write_text(to_text(saved()), encoding="utf-8")
    return path


def test_without_options_there_are_no_further_processes() -> None:
    assert not opened().repeats


def test_each_of_them_takes_processes(tmp_path: Path, file: Path) -> None:
    assert opened(save=tmp_path / "new.json").repeats
    assert opened(baseline=file).repeats
    assert opened(processes=3).repeats


def test_a_file_is_never_replaced_by_itself(file: Path) -> None:
    with pytest.raises(WrongUseError, match="never replaced") as raised:
        opened(save=file)

    assert "--update-baseline" in raised.value.remedy[0]


def test_updating_is_explicit(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = file.read_text(encoding="utf-8")
    changed = saved(doubts=("host-busy",))

    opened(save=file, update=True).keep(changed, quiet=False)

    assert file.read_text(encoding="utf-8") != before
    assert read_saved_run(file) == changed
    assert capsys.readouterr().err.startswith("Saved. Compare a later run with: gpucheck compare")


def test_a_run_that_is_not_complete_leaves_the_old_file(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = file.read_text(encoding="utf-8")

    opened(save=file, update=True).keep(None, quiet=False)

    assert file.read_text(encoding="utf-8") == before
    assert "nothing was saved" in capsys.readouterr().err


def test_without_save_nothing_is_kept(tmp_path: Path) -> None:
    opened(processes=2).keep(saved(), quiet=False)

    assert list(tmp_path.iterdir()) == []


def test_a_directory_that_is_not_there_is_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(WrongUseError, match="cannot be written"):
        opened(save=tmp_path / "none" / "a.json")


@pytest.mark.parametrize("processes", [0, -1, 101])
def test_a_senseless_number_of_processes_is_refused(processes: int) -> None:
    with pytest.raises(WrongUseError, match="1 to 100"):
        opened(processes=processes)


def test_a_difference_needs_a_baseline(file: Path) -> None:
    with pytest.raises(WrongUseError, match="--baseline"):
        opened(allow_difference=["driver"])

    assert opened(baseline=file, allow_difference=["driver,vbios"]).allowed == ("driver", "vbios")
