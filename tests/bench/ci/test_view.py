"""Gates, comparisons and profiles as they are shown on a terminal."""

from __future__ import annotations

from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from gpucheck.bench.ci.compare import compare_runs, conclude_comparison
from gpucheck.bench.ci.limits import explain
from gpucheck.bench.ci.profile_model import Problem, ProfileAction, ProfileFile, ProfileResult
from gpucheck.bench.ci.profiles import load_profile
from gpucheck.bench.ci.view import render_gates, render_profile
from gpucheck.bench.model import (
    Direction,
    Gate,
    GateClass,
    GateStatus,
    ProfileUse,
    Severity,
)
from gpucheck.report.envelope import Evidence, Host
from gpucheck.report.formats.table import render
from gpucheck.report.text import View
from tests.bench.ci.test_compare import run
from tests.fakes.verdicts import HOSTILE, report

GOOD = Gate(
    id="matmul",
    device="gpu:0",
    status=GateStatus.PASS,
    direction=Direction.HIGHER,
    unit="TFLOP/s",
    measured=801.25,
    limit=739.35,
    values=(800.0, 802.5),
)
BAD = replace(
    GOOD,
    device="gpu:7",
    status=GateStatus.FAIL,
    measured=640.0,
    class_=GateClass.THERMAL,
    reason="19.5 % below 795 (-20.1 to -18.9 %): heat",
    evidence=(Evidence("temperature", "91 C at most"),),
    next=("nvidia-smi -q -d TEMPERATURE,PERFORMANCE,CLOCK,POWER --id=00000000:1A:00.0 | less",),
)
USE = ProfileUse(name="nodes", version=3, path="p.toml", digest="ab", processes=5, max_processes=10)


def drawn(*gates: Gate, width: int = 80, **settings: Any) -> str:
    out = StringIO()
    console = Console(file=out, width=width, highlight=False)
    told = {"ascii_only": False, "verbosity": 0, **settings}
    console.print(render_gates(gates, USE, **told), crop=False)
    return out.getvalue()


def test_what_failed_comes_first_with_figure_limit_class_reason_and_step() -> None:
    text = drawn(GOOD, BAD)

    lines = text.splitlines()
    assert lines[0] == "profile nodes version 3, 5 processes of each device"
    assert lines[1] == "✗ FAIL  matmul on gpu:7  640 TFLOP/s, at least 739.4  thermal"
    assert "19.5 % below 795" in lines[2]
    assert "seen: temperature 91 C at most" in text
    assert lines[-1] == "FAIL: 1 failed, 1 passed"


def test_a_figure_without_a_prefix_of_its_own_gets_one() -> None:
    raw = replace(GOOD, unit="FLOP/s", measured=5.9e14, limit=6.1e14)

    assert "590 TFLOP/s, at least 610 TFLOP/s" in drawn(raw)
    two = drawn(raw, replace(raw, device="gpu:8", measured=6e14))
    assert "590 TFLOP/s to 600 TFLOP/s" in two


@pytest.mark.parametrize("width", [40, 60, 200])
def test_a_command_to_copy_is_never_broken(width: int) -> None:
    assert f"next: {BAD.next[0]}\n" in drawn(BAD, width=width)


def test_eight_gpus_that_pass_are_one_line() -> None:
    gates = [replace(GOOD, device=f"gpu:{at}", measured=800.0 + at) for at in range(8)]

    text = drawn(*gates)

    assert "matmul on gpu:0 to gpu:7 (8 devices)  800 to 807 TFLOP/s, at least 739.4" in text
    assert text.count("matmul") == 1


def test_gpus_that_say_the_same_are_told_once() -> None:
    gates = [replace(BAD, device=f"gpu:{at}") for at in range(8)]

    text = drawn(*gates)

    assert text.count("heat") == 1
    assert "8 devices" in text


def test_quiet_leaves_out_what_passed_and_verbose_shows_each() -> None:
    gates = (GOOD, replace(GOOD, device="gpu:1"), BAD)

    assert "gpu:0" not in drawn(*gates, verbosity=-1)
    loud = drawn(*gates, verbosity=1)
    assert "matmul on gpu:0" in loud
    assert "matmul on gpu:1" in loud
    assert "processes on gpu:7: 800, 802.5 TFLOP/s" in loud


@pytest.mark.parametrize(
    ("gate", "word"),
    [
        (GOOD, "PASS: 1 passed"),
        (BAD, "FAIL: 1 failed"),
        (replace(BAD, status=GateStatus.INCONCLUSIVE), "INCONCLUSIVE: 1 undecided"),
        (replace(GOOD, status=GateStatus.SKIP), "INCONCLUSIVE: 1 skipped"),
        (replace(GOOD, warning=True, reason="close"), "PASS: 1 passed, 1 with a warning"),
        (replace(BAD, severity=Severity.WARN), "INCONCLUSIVE: 1 failed"),
    ],
)
def test_the_last_line_is_the_verdict(gate: Gate, word: str) -> None:
    assert drawn(gate).splitlines()[-1] == word


def test_a_terminal_without_unicode_gets_ascii_and_names_cannot_steer_it() -> None:
    text = drawn(replace(BAD, reason="bad \x1b[2J"), ascii_only=True)

    assert text.isascii()
    assert "\x1b" not in text
    assert "x FAIL  matmul on gpu:7" in text


def test_what_is_skipped_says_once_what_would_help() -> None:
    skipped = replace(
        GOOD,
        status=GateStatus.SKIP,
        limit=None,
        reason="there is no baseline",
        next=("keep this run with --save FILE",),
    )
    lines = drawn(
        skipped, replace(skipped, device="gpu:1"), replace(skipped, id="copy")
    ).splitlines()

    assert lines[1].endswith("801.2 TFLOP/s"), "it has no limit to show"
    assert lines[3].strip() == "next: keep this run with --save FILE"
    assert sum("next:" in line for line in lines) == 1


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


PROBLEM = Problem(
    line=17,
    where="check[0].value",
    code="floor-too-low",
    message="the floor is 0.05 % of the peak: a broken board would pass",
    mend='Did you mean unit = "GB/s"?',
)
PATH = "/a/rather/long/path/that/no/narrow/terminal/holds/in/one/line/nodes.toml"


def drawn_profile(result: ProfileResult, width: int = 80) -> str:
    out = StringIO()
    console = Console(file=out, width=width, highlight=False)
    console.print(render_profile(result, width=width), crop=False)
    return out.getvalue()


def file(*problems: Problem) -> ProfileFile:
    return ProfileFile(path=PATH, name="nodes", version=3, description="d", problems=problems)


@pytest.mark.parametrize("width", [40, 120])
def test_a_mistake_is_told_as_compilers_do(width: int) -> None:
    text = drawn_profile(ProfileResult(action=ProfileAction.LINT, files=(file(PROBLEM),)), width)

    assert f"{PATH}:17 mistake floor-too-low\n" in text
    assert "fix: Did you mean unit" in text


def test_a_caution_keeps_nobody_from_using_it() -> None:
    caution = Problem(
        line=None, where="", code="unknown-board", message="m", mend="n", severity=Severity.WARN
    )

    text = drawn_profile(ProfileResult(action=ProfileAction.LINT, files=(file(caution),)))

    assert "caution unknown-board" in text
    assert "nodes version 3 can be used, 1 to look at" in text


def test_limits_are_written_out_by_board() -> None:
    limits = explain(load_profile("default"), "H100 SXM")

    text = drawn_profile(
        ProfileResult(action=ProfileAction.EXPLAIN, files=(file(),), limits=limits), width=200
    )

    assert (
        "matmul-bfloat16 on H100 SXM: 622 TFLOP/s = 74 % of 989 (datasheet) x 0.85 = 62.9 % of peak"
        in text
    )


def test_what_was_recorded_can_be_used_at_once() -> None:
    result = ProfileResult(action=ProfileAction.RECORD, files=(file(),), saved=PATH)

    assert f"use it: gpucheck bench --profile {PATH}\n" in drawn_profile(result, 40)
