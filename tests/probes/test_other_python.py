"""Our files in another Python: what it is given, what it may say, and when it is given up."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from gpucheck.probes import other_python
from gpucheck.probes.other_python import (
    Interpreter,
    OtherPythonError,
    run_script,
    user_environment,
)

HERE = Interpreter(sys.executable, bare=True)


@pytest.mark.parametrize(
    ("path", "kept"),
    [("", ""), (":", ""), (".", ""), ("a:/b", "/b"), ("/b::/c", "/b:/c")],
)
def test_the_current_directory_is_on_no_path(path: str, kept: str) -> None:
    assert user_environment({"PYTHONPATH": path, "HOME": "/h"}) == {
        "PYTHONPATH": kept,
        "HOME": "/h",
    }


def test_an_interpreter_that_is_asked_does_nothing_else() -> None:
    assert user_environment({"PYTHONINSPECT": "1", "PYTHONSTARTUP": "x"}) == {}


@pytest.mark.parametrize(
    ("interpreter", "command"),
    [
        (Interpreter("/p"), ("/p",)),
        (Interpreter("/p", isolated=True), ("/p", "-I")),
        (Interpreter("/p", isolated=True, bare=True), ("/p", "-I", "-S")),
    ],
)
def test_the_words_that_start_it(interpreter: Interpreter, command: tuple[str, ...]) -> None:
    assert interpreter.command == command


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the path of a script that stands beside other_python.py."""
    monkeypatch.setattr(other_python, "__file__", str(tmp_path / "other_python.py"))
    return tmp_path / "child.py"


def answers(script: Path, text: str, deadline_s: float = 20) -> list[object]:
    script.write_text(text)
    return list(run_script(HERE, script.name, "word", environment={}, deadline_s=deadline_s))


def test_what_is_no_object_is_passed_over(script: Path) -> None:
    text = "print('site hooks talk')\nprint('[1]')\nprint('{\"a\": 1}')\nprint('more')\n"

    assert answers(script, text) == [{"a": 1}]


def test_the_end_is_the_end_whatever_the_code(script: Path) -> None:
    assert answers(script, "print('{}'); raise SystemExit(3)") == [{}]


def test_one_that_does_not_end_is_given_up(script: Path) -> None:
    with pytest.raises(OtherPythonError, match=r"no answer within 0\.2 s"):
        answers(script, "import time; time.sleep(600)", deadline_s=0.2)


def test_one_that_cannot_be_started() -> None:
    nobody = Interpreter("/nonexistent/python")

    with pytest.raises(OtherPythonError, match="could not be started"):
        list(run_script(nobody, "builds_child.py", environment={}, deadline_s=1))
