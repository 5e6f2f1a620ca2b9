from __future__ import annotations

import tomllib
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucheck import __version__
from gpucheck.bench.ci.model import (
    BASELINE_SCHEMA,
    Fingerprint,
    SavedDevice,
    SavedRun,
    SavedTool,
    Series,
)
from gpucheck.bench.ci.profile_lint import MOST_TOLERANCE_PERCENT, lint_text
from gpucheck.bench.ci.profile_record import _toml, record_profile
from gpucheck.bench.ci.profiles import load_profile
from gpucheck.bench.model import Direction
from gpucheck.report.errors import WrongUseError

BASE = load_profile("default")
BOARD = Fingerprint(board="NVIDIA H100 80GB HBM3", pci_device_id="233010de", driver="580.95.05")
GOOD = (700.0, 701.0, 699.0, 702.0, 698.0)


def saved(values: tuple[float, ...] = GOOD, **changes: object) -> SavedRun:
    devices = ("gpu:0", "gpu:1")
    run = SavedRun(
        schema=BASELINE_SCHEMA,
        tool=SavedTool(name="gpucheck", version="0.1.0"),
        time="2026-11-21T10:00:00Z",
        host='node "17"',
        profile=f"default/2/{BASE.digest[:12]}",
        devices=tuple(
            SavedDevice(device=device, gpu_uuid=None, fingerprint=BOARD) for device in devices
        ),
        series=tuple(
            Series(
                id="matmul-bfloat16",
                device=device,
                unit="TFLOP/s",
                direction=Direction.HIGHER,
                values=values,
                tolerance_percent=15,
            )
            for device in devices
        ),
    )
    return replace(run, **changes)  # type: ignore[arg-type]


def recorded(*runs: SavedRun) -> str:
    return record_profile(BASE, [(Path("run.json"), run) for run in runs], name="mine")


def test_what_is_recorded_is_a_profile_with_its_provenance() -> None:
    text = recorded(saved())

    found = lint_text(text, "mine.toml")

    assert text.startswith(f"# Recorded by gpucheck {__version__} from 1 saved runs;")
    assert found.problems == ()
    assert found.profile is not None
    (check,) = found.profile.checks
    assert check.expectation.value == 700
    assert check.unit == "TFLOP/s"
    assert "5 processes on each of 2 devices" in (check.source or "")
    assert check.date == "2026-11-21"
    assert found.profile.match.pci_device_ids == ("2330",)
    assert found.profile.match.count == 2
    assert found.profile.provenance["driver"] == "580.95.05"
    assert found.profile.provenance["base"] == "default version 2"
    assert "gpu:1 700" in found.profile.provenance["reached-matmul-bfloat16"]


def test_the_demands_of_the_base_stay() -> None:
    base = replace(BASE, run=replace(BASE.run, corruption_s=30.0))

    text = record_profile(base, [(Path("run.json"), saved())], name="mine")
    found = lint_text(text, "mine.toml").profile

    assert found is not None
    assert found.stability == base.stability
    assert found.run == base.run


def test_noise_widens_the_tolerance() -> None:
    noisy = saved((700.0, 760.0, 640.0, 740.0, 660.0))

    found = lint_text(recorded(noisy), "mine.toml").profile

    assert found is not None
    # Four times the standard deviation of the logarithms, 7.3 %, in halves of a percent.
    assert found.checks[0].tolerance_percent == 29.5


def test_a_process_that_was_disturbed_moves_neither_value_nor_tolerance() -> None:
    calm, disturbed = (saved((*GOOD[:4], last)) for last in (GOOD[4], 350.0))

    checks = [lint_text(recorded(run), "mine.toml").profile for run in (calm, disturbed)]

    first, second = (found.checks[0] for found in checks if found is not None)
    assert second.expectation.value == pytest.approx(first.expectation.value, rel=2e-3)
    assert second.tolerance_percent == first.tolerance_percent


def test_a_tolerance_that_no_profile_may_have_is_refused() -> None:
    (check,) = (one for one in BASE.checks if one.id == "matmul-bfloat16")
    loose = replace(BASE, checks=(replace(check, tolerance_percent=MOST_TOLERANCE_PERCENT),))

    with pytest.raises(WrongUseError, match="varies by"):
        record_profile(loose, [(Path("run.json"), saved())], name="mine")


_SCALARS = st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False) | st.text()


@given(
    st.recursive(
        _SCALARS, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=8
    )
)
def test_what_is_written_is_read_again(value: object) -> None:
    assert tomllib.loads(f"key = {_toml(value)}") == {"key": value}


def test_several_nodes_are_pooled() -> None:
    other = saved(tuple(0.98 * value for value in GOOD), host="node18")

    found = lint_text(recorded(saved(), other), "mine.toml").profile

    assert found is not None
    assert found.checks[0].expectation.value == pytest.approx(693, rel=1e-3)
    assert 'of 4 devices of node "17", node18' in (found.checks[0].source or "")


@pytest.mark.parametrize(
    ("runs", "reason"),
    [
        ([saved(exit_code=1)], "holds a run that failed"),
        ([saved((700.0, 1100.0, 400.0, 900.0, 500.0))], "varies by"),
        ([saved(GOOD[:4])], "4 processes, and a profile needs at least 5"),
        ([saved(profile="cpu/1/abc")], "not measured with the profile default"),
        ([saved(profile=None)], "not measured with the profile default"),
        ([saved(series=())], "no figure"),
        (
            [
                saved(),
                saved(
                    devices=(
                        SavedDevice(
                            device="gpu:0", gpu_uuid=None, fingerprint=Fingerprint(board="L4")
                        ),
                    )
                ),
            ],
            "different boards",
        ),
    ],
    ids=["failed", "noisy", "few", "other profile", "no profile", "nothing", "boards"],
)
def test_what_makes_no_profile_is_refused(runs: list[SavedRun], reason: str) -> None:
    with pytest.raises(WrongUseError, match=reason):
        recorded(*runs)


def test_a_broken_board_makes_no_profile() -> None:
    slow = saved(tuple(0.3 * value for value in GOOD))

    found = lint_text(recorded(slow), "mine.toml")

    assert {one.code for one in found.problems} == {"floor-too-low"}


def test_keys_stand_in_the_order_of_the_record_and_what_is_not_set_is_left_out() -> None:
    without = replace(BASE, run=replace(BASE.run, corruption_s=0.0, size=None))
    runs = [(Path("run.json"), saved())]

    written = tomllib.loads(record_profile(without, runs, name="mine"))
    (check,) = written["check"]

    assert list(written["run"]) == [
        *("seconds", "processes", "max_processes", "mode", "seed"),
        *("same_math", "alone", "together", "data"),
    ]
    assert list(check)[:4] == ["id", "kernel", "dtype", "device"]
    assert list(check)[-9:] == [
        *("value", "unit", "tolerance_percent", "on_unsupported", "on_missing"),
        *("severity", "reason", "source", "date"),
    ]
