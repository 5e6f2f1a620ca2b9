"""Options of bench in CI: saved runs, profiles, JUnit and GitHub."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpucheck.bench.ci.baseline import read_saved_run, to_text
from gpucheck.bench.ci.model import SavedRun
from gpucheck.cli.bench_ci import (
    Saving,
    later_command,
    open_saving,
    run_with_profile,
)
from gpucheck.cli.outlets import Outlets
from gpucheck.cli.output import Shared
from gpucheck.report.envelope import Answer, Notice
from gpucheck.report.errors import ExitCode, WrongUseError
from tests.bench.ci.test_baseline import saved

SHARED = Shared(format="table")


def ended(code: ExitCode = ExitCode.OK) -> Answer:
    return Answer(result=None, exit_code=code)


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
    with pytest.raises(WrongUseError, match="replaced only on request") as raised:
        opened(save=file)

    assert "--update-baseline" in raised.value.remedy[0]


@pytest.mark.parametrize(
    ("words", "later"),
    [
        ("bench matmul --quick --save a.json", "bench matmul --quick --baseline a.json"),
        ("bench --save=a.json --append --seed=3", "bench --seed=3 --baseline a.json"),
        (
            "bench --baseline b.json --save a.json --save-failed copy",
            "bench copy --baseline a.json",
        ),
    ],
)
def test_the_command_that_compares_later_is_this_one_without_saving(words: str, later: str) -> None:
    assert later_command(words.split(), "a.json") == f"gpucheck {later}"


def test_a_baseline_that_is_missing_is_written_by_this_very_command(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    words = ["bench", "--profile", "cpu", "--baseline", str(tmp_path / "gone.json")]
    monkeypatch.setattr("sys.argv", ["gpucheck", *words])
    with pytest.raises(WrongUseError) as raised:
        opened(baseline=tmp_path / "gone.json")

    step = "Write one with: gpucheck bench --profile cpu --save FILE"
    assert raised.value.remedy == (step,)


def test_updating_is_explicit_and_says_where_the_run_went(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = file.read_text(encoding="utf-8")
    changed = saved(doubts=("host-busy",))

    monkeypatch.setattr("sys.argv", ["gpucheck", "bench", "--save", str(file), "--update-baseline"])

    answer, done = opened(save=file, update=True).keep(changed, ended(), SHARED)

    assert file.read_text(encoding="utf-8") != before
    assert read_saved_run(file) == replace(changed, exit_code=0)
    assert answer.warnings == ()
    assert done == (
        f"Saved to {file}: 3 runs of each of 2 devices, all results right. "
        f"Measure again later, and compare, with:\n"
        f"  gpucheck bench --baseline {shlex.quote(str(file))}"
    )


def test_a_further_session_is_added_to_the_file(file: Path) -> None:
    first = saved()
    later = replace(first, time="2026-11-22T03:32:00Z")

    answer, _ = opened(save=file, append=True).keep(later, ended(), SHARED)

    assert answer.exit_code is ExitCode.OK
    found = read_saved_run(file)
    assert (found.time, found.further_times) == (first.time, (later.time,))
    for one, before in zip(found.series, first.series, strict=True):
        assert one.values == before.values * 2
        assert one.sessions == (len(before.values),) * 2
    _, done = opened(save=file, append=True).keep(later, ended(), SHARED)
    assert done is not None
    assert done.startswith(f"Added to {file} as session 3: ")
    assert all(len(one.sessions) == 3 for one in read_saved_run(file).series)


def test_a_session_of_another_machine_is_refused_and_the_file_stays(file: Path) -> None:
    before = file.read_text(encoding="utf-8")
    run = saved()
    (device, *others) = run.devices
    changed = replace(device, fingerprint=replace(device.fingerprint, blas="mkl"))

    other = replace(run, devices=(changed, *others))
    answer, _ = opened(save=file, append=True).keep(other, ended(), SHARED)

    assert answer.exit_code is ExitCode.WRONG_USE
    assert answer.error is not None
    assert "blas: " in answer.error.message
    assert file.read_text(encoding="utf-8") == before


def test_the_first_session_makes_the_file(tmp_path: Path) -> None:
    path = tmp_path / "new.json"

    opened(save=path, append=True).keep(saved(), ended(), SHARED)

    assert read_saved_run(path) == replace(saved(), exit_code=0)


def test_to_append_takes_a_file_and_excludes_replacing_it(file: Path) -> None:
    with pytest.raises(WrongUseError, match="name that"):
        opened(append=True)
    with pytest.raises(WrongUseError, match="choose one"):
        opened(save=file, append=True, update=True)
    file.write_text("{}", encoding="utf-8")
    with pytest.raises(WrongUseError, match="not a saved run"):
        opened(save=file, append=True)


@pytest.mark.parametrize(
    ("run", "code"),
    [(None, ExitCode.OK), (saved(), ExitCode.INTERRUPTED), (saved(), ExitCode.MISSING)],
)
def test_a_run_that_is_not_complete_leaves_the_old_file(
    file: Path, run: SavedRun | None, code: ExitCode
) -> None:
    before = file.read_text(encoding="utf-8")

    answer, _ = opened(save=file, update=True, failed=True).keep(run, ended(code), SHARED)

    assert file.read_text(encoding="utf-8") == before
    assert [(one.code, one.message) for one in answer.warnings] == [
        ("not-saved", "nothing was saved: the run is not complete.")
    ]


@pytest.mark.parametrize(
    ("code", "said"),
    [(ExitCode.BAD, "the run failed"), (ExitCode.INCONCLUSIVE, "the run is undecided")],
)
def test_a_run_that_did_not_pass_is_no_baseline(file: Path, code: ExitCode, said: str) -> None:
    before = file.read_text(encoding="utf-8")

    answer, _ = opened(save=file, update=True).keep(saved(), ended(code), SHARED)

    assert file.read_text(encoding="utf-8") == before
    assert answer.exit_code is code
    assert said in answer.warnings[0].message
    assert "--save-failed keeps it" in answer.warnings[0].message


@pytest.mark.parametrize("strict", [True, False])
def test_with_strict_a_run_with_warnings_did_not_pass(tmp_path: Path, strict: bool) -> None:
    file = tmp_path / "new.json"
    warned = ended()._replace(warnings=(Notice("gate-warning", "slow"),))

    opened(save=file).keep(saved(), warned, SHARED._replace(strict=strict))

    assert file.exists() is not strict


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (ExitCode.BAD, "holds a run that failed"),
        (ExitCode.INCONCLUSIVE, "holds a run that is undecided"),
    ],
)
def test_what_is_kept_all_the_same_says_so(tmp_path: Path, code: ExitCode, said: str) -> None:
    file = tmp_path / "new.json"

    answer, _ = opened(save=file, failed=True).keep(saved(), ended(code), SHARED)

    assert read_saved_run(file).exit_code == code
    assert said in answer.warnings[0].message


def test_a_baseline_that_failed_is_told(tmp_path: Path) -> None:
    file = tmp_path / "failed.json"
    file.write_text(to_text(replace(saved(), exit_code=1)), encoding="utf-8")

    answer, _ = opened(baseline=file).keep(None, ended(), SHARED)

    assert [one.code for one in answer.warnings] == ["baseline-failed"]


def test_without_save_nothing_is_kept(tmp_path: Path) -> None:
    answer, _ = opened(processes=2).keep(saved(), ended(), SHARED)

    assert list(tmp_path.iterdir()) == []
    assert answer.warnings == ()


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

    assert opened(baseline=file, allow_difference=["driver,vbios"]).reference.allowed == (
        "driver",
        "vbios",
    )


def test_a_profile_of_the_processor_needs_no_gpu() -> None:
    with pytest.raises(WrongUseError, match="leave --require-gpu out") as raised:
        run_with_profile("cpu", (), Shared(format="json"), Saving(), Outlets(), require_gpu=True)

    assert raised.value.code == "other-device"
