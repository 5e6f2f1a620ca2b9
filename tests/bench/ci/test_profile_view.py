from __future__ import annotations

from io import StringIO

import pytest
from rich.console import Console

from gpucheck.bench.ci.gate_model import Severity
from gpucheck.bench.ci.limits import explain
from gpucheck.bench.ci.profile_model import Problem, ProfileAction, ProfileFile, ProfileResult
from gpucheck.bench.ci.profile_view import render_profile
from gpucheck.bench.ci.profiles import load_profile

PROBLEM = Problem(
    line=17,
    where="check[0].value",
    code="floor-too-low",
    message="the floor is 0.05 % of the peak: a broken board would pass",
    mend='did you mean unit = "GB/s"?',
)
PATH = "/a/rather/long/path/that/no/narrow/terminal/holds/in/one/line/nodes.toml"


def drawn(result: ProfileResult, width: int = 80) -> str:
    out = StringIO()
    console = Console(file=out, width=width, highlight=False)
    console.print(render_profile(result, width=width, ascii_only=False), crop=False)
    return out.getvalue()


def file(*problems: Problem) -> ProfileFile:
    return ProfileFile(path=PATH, name="nodes", version=3, description="d", problems=problems)


@pytest.mark.parametrize("width", [40, 120])
def test_a_mistake_is_told_as_compilers_do(width: int) -> None:
    text = drawn(ProfileResult(action=ProfileAction.LINT, files=(file(PROBLEM),)), width)

    assert f"{PATH}:17 mistake floor-too-low\n" in text
    assert "fix: did you mean unit" in text


def test_a_caution_keeps_nobody_from_using_it() -> None:
    caution = Problem(
        line=None, where="", code="unknown-board", message="m", mend="n", severity=Severity.WARN
    )

    text = drawn(ProfileResult(action=ProfileAction.LINT, files=(file(caution),)))

    assert "caution unknown-board" in text
    assert "nodes version 3 can be used, 1 to look at" in text


def test_limits_are_written_out_by_board() -> None:
    limits = explain(load_profile("default"), "H100 SXM")

    text = drawn(
        ProfileResult(action=ProfileAction.EXPLAIN, files=(file(),), limits=limits), width=200
    )

    assert (
        "matmul-bfloat16 on H100 SXM: 622 TFLOP/s = 74 % of 989 (datasheet) x 0.85 = 62.9 % of peak"
        in text
    )


def test_what_was_recorded_can_be_used_at_once() -> None:
    result = ProfileResult(action=ProfileAction.RECORD, files=(file(),), saved=PATH)

    assert f"use it: gpucheck bench --profile {PATH}\n" in drawn(result, 40)
