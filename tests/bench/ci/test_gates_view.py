from __future__ import annotations

from dataclasses import replace
from io import StringIO
from typing import Any

import pytest
from rich.console import Console

from gpucheck.bench.ci.gate_model import (
    Direction,
    Gate,
    GateClass,
    GateStatus,
    ProfileUse,
    Severity,
)
from gpucheck.bench.ci.gates_view import render_gates
from gpucheck.report.envelope import Evidence

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
    console.print(render_gates(gates, USE, **{"ascii_only": False, **settings}), crop=False)
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
