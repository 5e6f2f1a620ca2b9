"""Files of runs: what is read of them, and that nothing else is taken for one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucheck.bench.ci.baseline import read_run, read_saved_run, to_text
from gpucheck.bench.ci.gate_model import ProfileUse
from gpucheck.report.codec import to_plain
from gpucheck.report.errors import WrongUseError
from tests.bench.ci.test_baseline import saved
from tests.fakes.bench_runs import document, row
from tests.report.schemas import closed_validator


def written(folder: Path, plain: Any) -> Path:
    path = folder / "run.json"
    path.write_text(json.dumps(plain), encoding="utf-8")
    return path


# ---------------------------------------------------------------------------------- saved runs


def test_a_file_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    path.write_text(to_text(saved()), encoding="utf-8")

    assert read_saved_run(path) == saved()


def test_the_file_holds_to_its_schema_and_has_a_series_a_line() -> None:
    text = to_text(saved())

    closed_validator("baseline").validate(json.loads(text))
    assert sum('"values"' in line for line in text.splitlines()) == 2


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is empty"),
        (" \n", "is empty"),
        ("{", "is not JSON"),
        ("[" * 100_000, "is not JSON"),
        ("[]", "is not a saved run"),
        ("null", "is not a saved run"),
        ('{"schema": 3}', "is not a saved run"),
        ('{"schema": "gpucheck/bench/1"}', "is a report of one process"),
        ('{"schema": "gpucheck/list/1"}', "is a gpucheck/list/1 document"),
        ('{"schema": "gpucheck/baseline/2"}', "is a gpucheck/baseline/2 document"),
        ('{"schema": "gpucheck/baseline/1"}', "is damaged"),
    ],
)
def test_what_is_no_saved_run_is_refused(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "run.json"
    path.write_text(text, encoding="utf-8")

    with pytest.raises(WrongUseError, match=said):
        read_saved_run(path)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *(("values", one) for one in ([], [0.0], [-1.0], [1.0, 0.0], ["x"], [None], [True])),
        *(("values", [one]) for one in (float("inf"), float("nan"), 10**400)),
        *(("tolerance_percent", one) for one in (0, -1.0, 100.0, 1e9, "5", None)),
        *(("repeat_factor", one) for one in (0.5, -1.0, float("nan"))),
    ],
)
def test_figures_that_cannot_be_are_refused(tmp_path: Path, key: str, value: Any) -> None:
    plain = json.loads(to_text(saved()))
    plain["series"][1][key] = value

    with pytest.raises(WrongUseError, match=rf"series\[1\]\.{key}"):
        read_saved_run(written(tmp_path, plain))


def test_a_file_that_was_cut_off_is_refused_wherever_that_was(tmp_path: Path) -> None:
    text, path = to_text(saved()), tmp_path / "run.json"

    for end in range(0, len(text) - 2, 37):
        path.write_text(text[:end], encoding="utf-8")
        with pytest.raises(WrongUseError, match=r"cut off|is empty"):
            read_run(path)


def test_an_unknown_field_is_refused_with_the_version_that_wrote_it(tmp_path: Path) -> None:
    plain = json.loads(to_text(saved())) | {"surprise": 1}
    newer = plain | {"tool": {"name": "gpucheck", "version": "9.0"}}

    with pytest.raises(WrongUseError, match=r"is damaged: .*surprise"):
        read_saved_run(written(tmp_path, plain))
    with pytest.raises(WrongUseError, match=r"written by gpucheck 9\.0.*surprise"):
        read_saved_run(written(tmp_path, newer))


def test_a_file_without_the_later_fields_is_read(tmp_path: Path) -> None:
    plain = json.loads(to_text(saved()))
    del plain["exit_code"]
    for series in plain["series"]:
        del series["repeat_factor"]
    for device in plain["devices"]:
        del device["fingerprint"]["variables"]

    found = read_saved_run(written(tmp_path, plain))

    assert found.exit_code is None
    assert [one.values for one in found.series] == [one.values for one in saved().series]


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(WrongUseError, match="cannot be read"):
        read_saved_run(tmp_path / "none.json")


def test_bytes_that_are_no_text_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    path.write_bytes(b"\xff\xfe{}")

    with pytest.raises(WrongUseError, match="is not JSON"):
        read_saved_run(path)


JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(key=st.sampled_from(["tool", "time", "devices", "series", "profile", "host"]), value=JSON)
def test_whatever_stands_in_a_field_is_a_run_or_wrong_use(
    tmp_path_factory: pytest.TempPathFactory, key: str, value: object
) -> None:
    plain = json.loads(to_text(saved())) | {key: value}
    path = written(tmp_path_factory.getbasetemp(), plain)

    try:
        found = read_run(path)
    except WrongUseError:
        return
    assert to_plain(getattr(found, key)) == value


# ------------------------------------------------------------------------------------- reports


def test_a_file_of_a_newer_kind_is_not_to_be_written_anew(tmp_path: Path) -> None:
    newer = {"schema": "gpucheck/baseline/2", "tool": {"name": "gpucheck", "version": "9.0"}}

    with pytest.raises(WrongUseError, match=r"written by gpucheck 9\.0") as caught:
        read_run(written(tmp_path, newer))

    assert caught.value.remedy == ("Read it with the gpucheck that wrote it, or a newer one.",)


def test_a_report_of_bench_is_a_run_of_one_process(tmp_path: Path) -> None:
    rows = [row("gpu:0", 7e14, repeat95_s=(1.9e-4, 2.1e-4), median_s=2e-4)]
    found = read_run(written(tmp_path, document("gpu:0", 7e14, rows=rows, exit_code=0)))

    (series,) = found.series
    assert (series.values, series.device) == ((7e14,), "gpu:0")
    assert series.repeat_factor == pytest.approx(1.05)
    assert found.devices[0].fingerprint.board == "NVIDIA H100 80GB HBM3"
    assert (found.time, found.exit_code, found.profile) == ("2026-11-21T03:32:00Z", 0, None)


def test_each_device_of_a_report_has_its_rows(tmp_path: Path) -> None:
    rows = [row("gpu:0", 7e14), row("cpu", 1e11)]
    found = read_run(written(tmp_path, document("gpu:0", 7e14, rows=rows)))

    assert [(one.device, one.values) for one in found.series] == [
        ("gpu:0", (7e14,)),
        ("cpu", (1e11,)),
    ]
    assert [one.device for one in found.devices] == ["gpu:0", "cpu"]
    assert found.devices[1].fingerprint.board is None


def test_the_profile_of_a_report_is_part_of_its_fingerprint(tmp_path: Path) -> None:
    use = ProfileUse(
        name="cpu", version=1, path="cpu.toml", digest="ab" * 32, processes=3, max_processes=3
    )
    found = read_run(written(tmp_path, document("cpu", 1e11, profile=use)))

    assert found.profile == "cpu/1/abababababab"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"result": None}, "is a report without figures"),
        ({"result": {}}, "is damaged"),
        ({"host": 3}, "is damaged"),
    ],
)
def test_a_report_without_figures_is_refused(
    tmp_path: Path, changes: dict[str, Any], said: str
) -> None:
    with pytest.raises(WrongUseError, match=said):
        read_run(written(tmp_path, document("cpu", 1e11) | changes))


def test_a_report_is_no_baseline(tmp_path: Path) -> None:
    path = written(tmp_path, document("cpu", 1e11))

    with pytest.raises(WrongUseError, match="is a report of one process") as caught:
        read_saved_run(path)

    assert "--save" in caught.value.remedy[0]
