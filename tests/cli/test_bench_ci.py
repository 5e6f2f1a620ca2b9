"""Options of bench in CI: saved runs, profiles, JUnit and GitHub."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpucheck.bench import workers
from gpucheck.bench.ci.baseline import read_saved_run, to_text
from gpucheck.bench.ci.model import SavedRun
from gpucheck.bench.request_model import BenchRequest
from gpucheck.bench.workers import WorkerAnswer, WorkerDevice
from gpucheck.cli import main
from gpucheck.cli.bench_ci import (
    Saving,
    later_command,
    open_saving,
    run_with_profile,
)
from gpucheck.cli.options import Shared
from gpucheck.report.envelope import Answer, Notice
from gpucheck.report.errors import ExitCode, WrongUseError
from tests.bench.ci.test_baseline import saved
from tests.fakes.bench_results import doubt, measurement
from tests.fakes.bench_runs import document

SHARED = Shared(format="table")


def ended(code: ExitCode = ExitCode.OK) -> Answer:
    return Answer(result=None, exit_code=code)


def opened(**options: Any) -> Saving:
    return open_saving(Saving(**options))


@pytest.fixture(name="file")
def _file(tmp_path: Path) -> Path:
    path = tmp_path / "before.json"
    path.write_text(to_text(saved()), encoding="utf-8")
    return path


def test_without_options_there_are_no_further_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    # What reads saved runs is not even imported: start-up is a feature.
    monkeypatch.setitem(sys.modules, "gpucheck.bench.ci.baseline", None)

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

    answer, done = opened(save=file, update_baseline=True).keep(changed, ended(), SHARED)

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
        opened(save=file, append=True, update_baseline=True)
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

    answer, _ = opened(save=file, update_baseline=True, save_failed=True).keep(
        run, ended(code), SHARED
    )

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

    answer, _ = opened(save=file, update_baseline=True).keep(saved(), ended(code), SHARED)

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

    answer, _ = opened(save=file, save_failed=True).keep(saved(), ended(code), SHARED)

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
        opened(allow_difference=("driver",))

    assert opened(baseline=file, allow_difference=("driver", "vbios")).reference.allowed == (
        "driver",
        "vbios",
    )


# ---------------------------------------------------------------------------- a busy machine

#: One row of five processes on a machine with a load of 50, in GB/s.
BUSY = (70.2, 1.4, 2.1, 53.5, 93.4)
APART = "differ by a factor of 7.77 (standard deviation), more than 5 %"
QUIET = (90.0, 91.0, 89.5, 90.5, 90.2)


@pytest.fixture(name="planted")
def _planted(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Let the processes that measure answer with a copy at these speeds."""

    def plant(speeds: Sequence[float], *doubts: str) -> None:
        script = iter(speeds)

        class Pretended:
            def __init__(self, **more: Any) -> None:
                pass

            def round(self, orders: Sequence[WorkerDevice], **more: Any) -> list[WorkerAnswer]:
                found = tuple(map(doubt, doubts))
                row = measurement("copy", 1e9 * next(script), doubts=found)
                return [document("cpu", 1.0, rows=[row])]

        monkeypatch.setattr(workers, "Workers", Pretended)

    return plant


def bench(*words: object) -> int:
    return main(["bench", "copy", "--device", "cpu", *map(str, words)])


@pytest.mark.parametrize(
    ("speeds", "doubts", "said"),
    [
        (BUSY, (), f"its 5 processes {APART}"),
        (BUSY, ("host-busy",), "there was host-busy"),
        (QUIET, ("host-busy",), "there was host-busy"),
    ],
)
def test_a_disturbed_run_is_kept_and_marked_and_nothing_is_compared_with_it(
    planted: Callable[..., None],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    speeds: Sequence[float],
    doubts: tuple[str, ...],
    said: str,
) -> None:
    file = tmp_path / "busy.json"
    planted(speeds, *doubts)

    assert bench("--save", file) == 3

    out, err = capsys.readouterr()
    assert "1 row was disturbed: nothing can be compared with it" in out
    assert "PASS" not in out
    assert said in " ".join(out.split())
    assert "holds a run that was disturbed" in err
    assert [one.disturbed for one in read_saved_run(file).series] == [said]

    # A regression cannot hide behind it, and an improvement is none.
    for factor in (0.1, 1.0, 10.0):
        planted([factor * speed for speed in QUIET])
        assert bench("--baseline", file) == 3
        assert f"the first run was disturbed: {said}" in " ".join(capsys.readouterr().out.split())


def test_a_quiet_run_is_saved_as_before(
    planted: Callable[..., None], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    planted(QUIET)
    assert bench("--save", tmp_path / "quiet.json") == 0
    assert "PASS" in capsys.readouterr().out

    planted(QUIET)
    assert bench("--baseline", tmp_path / "quiet.json") == 0


@pytest.mark.parametrize("option", ["--update-baseline", "--append"])
def test_a_disturbed_run_neither_replaces_nor_joins_another(
    planted: Callable[..., None], tmp_path: Path, capsys: pytest.CaptureFixture[str], option: str
) -> None:
    file = tmp_path / "quiet.json"
    planted(QUIET)
    bench("--save", file)
    before = file.read_text(encoding="utf-8")
    planted(BUSY)
    capsys.readouterr()

    assert bench("--save", file, option) == 3

    assert file.read_text(encoding="utf-8") == before
    assert "nothing was saved: the run was disturbed" in capsys.readouterr().err


def test_a_disturbed_run_that_is_not_saved_is_no_error(planted: Callable[..., None]) -> None:
    planted(BUSY)

    assert bench("--processes", 5) == 0


def test_a_profile_of_the_processor_needs_no_gpu() -> None:
    with pytest.raises(WrongUseError, match="leave --require-gpu out") as raised:
        run_with_profile("cpu", BenchRequest(), Shared(format="json"), Saving(), require_gpu=True)

    assert raised.value.code == "other-device"
