"""Exports that a shell evaluates to exactly the values, whatever is in them."""

from __future__ import annotations

import subprocess

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpucheck.memlimit.model import MemoryLimit, MemoryRequest
from gpucheck.report.envelope import Host, Report, Status
from gpucheck.report.errors import ExitCode
from gpucheck.report.formats import code, shell
from gpucheck.report.text import View


def report(result: object) -> Report:
    return Report(
        command="memlimit",
        schema="gpucheck/memlimit/1",
        time="2026-01-01T00:00:00Z",
        host=Host(),
        exit_code=ExitCode.OK,
        status=Status.OK,
        error=None,
        warnings=(),
        result=result,
    )


def limit(environment: dict[str, str], *, lines: str | None = None) -> MemoryLimit:
    return MemoryLimit(
        request=MemoryRequest(text="30%"),
        gpus=(),
        mechanisms=(),
        environment=environment,
        code=lines,
    )


@settings(max_examples=25)
@given(st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=20))
def test_any_value_survives_the_shell(value: str) -> None:
    text = shell.render(report(limit({"GPUCHECK_TEST": value})), View())

    shown = subprocess.run(
        ["sh", "-c", 'eval "$1"; printf %s "$GPUCHECK_TEST"', "sh", text.encode()],
        capture_output=True,
        check=True,
        env={"PATH": "/bin:/usr/bin"},
    )
    assert shown.stdout.decode("utf-8") == value


@pytest.mark.parametrize("result", [None, limit({}), "something else"])
def test_nothing_to_set_is_nothing_to_evaluate(result: object) -> None:
    assert shell.render(report(result), View()) == ""


def test_lines_of_code_are_shown_as_they_are() -> None:
    assert code.render(report(limit({}, lines="a = 1\n  b\n")), View(width=1)) == "a = 1\n  b\n"
    assert code.render(report(limit({})), View()) == ""
    assert code.render(report(None), View()) == ""


def test_code_of_another_result_is_refused() -> None:
    with pytest.raises(TypeError):
        code.render(report("something else"), View())
