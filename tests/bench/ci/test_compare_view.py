"""`compare` on terminals: a table where it fits, paragraphs where it does not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from gpucheck.bench.ci.compare import compare_runs, conclude_comparison
from gpucheck.report.envelope import Host
from gpucheck.report.formats.table import render
from gpucheck.report.text import View
from tests.bench.ci.test_compare import run
from tests.fakes.verdicts import HOSTILE, report


def shown(factor: float = 1.0, view: View | None = None, driver: str = "580.95.05") -> str:
    second = run(7e14 * factor)
    (device,) = second.devices
    changed = replace(device, fingerprint=replace(device.fingerprint, driver=driver))
    found = compare_runs(
        run(), replace(second, devices=(changed,)), files=(Path("a.json"), Path("b.json"))
    )
    answer = conclude_comparison(found, Host())
    return render(
        report(found, code=answer.exit_code, failure=answer.error, command="compare"),
        view or View(width=120),
    )


def test_a_row_shows_ratio_interval_and_verdict() -> None:
    text = shown(0.9)

    (line,) = [line for line in text.splitlines() if line.startswith("gpu:0   matmul")]
    assert line.split()[2:] == [
        *("700", "TFLOP/s", "630", "TFLOP/s", "-10.0", "%", "-10.8", "to", "-9.2", "%", "fail"),
    ]
    said = " ".join(text.split())
    assert "10.0 % worse, 5 % is allowed; no load, no throttling and no limit explains it" in said
    assert "explains it (hardware)" in said
    assert text.rstrip().endswith("1 fail")


def test_a_good_comparison_is_short() -> None:
    assert "allowed" not in shown()
    assert "1 pass" in shown()


@pytest.mark.parametrize("width", [20, 40, 60, 80])
def test_narrow_terminals_get_all_of_it_without_a_cut(width: int) -> None:
    text = shown(0.9, View(width=width))

    assert "…" not in text
    joined = " ".join(text.split())
    for part in ("700 TFLOP/s", "630 TFLOP/s", "-10.0 %", "fail"):
        assert part in joined


def test_the_differing_keys_are_named() -> None:
    assert "driver: 580.95.05 -> 590.1" in shown(driver="590.1")


def test_ascii_terminals_get_ascii() -> None:
    assert shown(0.9, View(width=60, unicode=False)).isascii()


def test_outside_text_cannot_steer_the_terminal() -> None:
    text = shown(driver=HOSTILE)

    assert "\x1b" not in text
    assert "\x00" not in text


def test_a_profiles_unit_gets_no_second_prefix_and_a_wide_interval_is_cut() -> None:
    found = compare_runs(run(), run(), files=(Path("a.json"), Path("b.json")))
    row = replace(found.rows[0], unit="GB/s", first=2036.4, second=801.5, interval=(0.01, 400.0))
    text = render(report(replace(found, rows=(row,)), command="compare"), View(width=120))

    assert "2036 GB/s" in text
    assert "801.5 GB/s" in text
    assert "-99.0 to over +1000 %" in text
