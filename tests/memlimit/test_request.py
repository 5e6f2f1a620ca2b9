"""Python that the plan is for: the named one, or the one that the command starts."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from gpucheck.memlimit.request import LimitRequest, _innermost, _interpreter
from gpucheck.report.errors import WrongUseError
from gpucheck.report.units import parse_amount


def request(**changes: object) -> LimitRequest:
    return LimitRequest(amount=parse_amount("30%"), **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("command", "inner"),
    [
        ("python x.py", "python x.py"),
        ("gpucheck place --count 1 -- python x.py -- y", "python x.py -- y"),
        ("/bin/gpucheck place 0 -- gpucheck memlimit 1GiB -- true", "true"),
        ("gpucheck list", "gpucheck list"),
        ("gpucheck place 0 --", "gpucheck place 0 --"),
        ("env gpucheck place 0 -- python", "env gpucheck place 0 -- python"),
    ],
)
def test_the_command_inside_of_our_own(command: str, inner: str) -> None:
    assert _innermost(tuple(command.split())) == tuple(inner.split())


def test_the_python_that_an_inner_command_starts_is_planned_for() -> None:
    command = ("gpucheck", "place", "0", "--", sys.executable, "-S", "x.py")

    found = _interpreter(request(command=command), {"PATH": "/nowhere"})

    assert found is not None
    assert (found.path, found.bare) == (sys.executable, True)


def test_a_python_is_named_by_path_or_by_name(tmp_path: Path) -> None:
    named = tmp_path / "python9"
    named.symlink_to(sys.executable)
    environment = {"PATH": str(tmp_path)}

    for text in ("python9", str(named)):
        found = _interpreter(request(python=text), environment)
        assert found is not None
        assert found.path == str(named)


@pytest.mark.parametrize("text", ["", "/nope", ".", "/etc/passwd", "no\x1bsuch"])
def test_what_cannot_be_run_is_wrong_use(text: str) -> None:
    with pytest.raises(WrongUseError, match="is not a program that can be run") as caught:
        _interpreter(request(python=text), {"PATH": "/bin"})

    assert caught.value.message.isprintable()
