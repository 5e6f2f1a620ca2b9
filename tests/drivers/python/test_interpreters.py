"""Our files in another Python: its environment, its output, and its deadline."""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path

import pytest

from gpucheck.drivers.python import interpreters
from gpucheck.drivers.python.interpreters import (
    Interpreter,
    OtherPythonError,
    command_interpreter,
    run_script,
    user_environment,
    user_interpreter,
)
from gpucheck.report.errors import WrongUseError

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
    """Return the path of a script in the folder of interpreters.py."""
    monkeypatch.setattr(interpreters, "__file__", str(tmp_path / "interpreters.py"))
    return tmp_path / "child.py"


def answers(script: Path, text: str, deadline_s: float = 600) -> list[object]:
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
        list(run_script(nobody, "frameworks_child.py", environment={}, deadline_s=1))


# ----------------------------------------------------------------------- the user's Python


@pytest.fixture
def pythons(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Return variables that lead to a Python in each of a venv, a conda prefix and PATH."""
    for name in ("venv/bin/python", "conda/bin/python", "a/python3", "b/python", "here/python"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch(0o755)
    monkeypatch.chdir(tmp_path)
    return {
        "VIRTUAL_ENV": str(tmp_path / "venv"),
        "CONDA_PREFIX": str(tmp_path / "conda"),
        "PATH": f"here::{tmp_path}/nobody:{tmp_path}/a:{tmp_path}/b",
    }


def meant(environment: dict[str, str], named: str | None = None) -> tuple[str, str]:
    found = user_interpreter(environment, named)
    return os.path.relpath(found.path), found.named_by


def test_the_python_that_a_person_means(pythons: dict[str, str]) -> None:
    assert meant(pythons, "here/python") == ("here/python", "--python")
    assert meant(pythons, "python3") == ("a/python3", "--python")
    assert meant(pythons) == ("venv/bin/python", "VIRTUAL_ENV")
    del pythons["VIRTUAL_ENV"]
    assert meant(pythons) == ("conda/bin/python", "CONDA_PREFIX")
    del pythons["CONDA_PREFIX"]
    # `python` of any folder comes before `python3`; a relative folder is skipped.
    assert meant(pythons) == ("b/python", "PATH")
    pythons["PATH"] = pythons["PATH"].removesuffix("/b")
    assert meant(pythons) == ("a/python3", "PATH")
    own = user_interpreter({"PATH": "here::."})
    assert own == Interpreter(sys.executable, named_by="gpucheck")


@pytest.mark.parametrize("folder", ["", "venv", "/nobody"])
def test_an_environment_without_a_python_is_none(pythons: dict[str, str], folder: str) -> None:
    assert meant({**pythons, "VIRTUAL_ENV": folder})[1] == "CONDA_PREFIX"


@pytest.mark.parametrize("named", ["", ".", "/", "nobody", "/nobody", "./a", "/etc/passwd"])
def test_a_name_that_is_no_program_is_refused(pythons: dict[str, str], named: str) -> None:
    with pytest.raises(WrongUseError) as raised:
        user_interpreter(pythons, named)

    assert raised.value.code == "no-such-python"
    assert repr(named) in raised.value.message


# ----------------------------------------------------------------------- that of a command


@pytest.fixture
def commands(tmp_path: Path) -> dict[str, str]:
    """Return a PATH with pythons and scripts of several kinds."""
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "python3").symlink_to(sys.executable)
    blanks = folder / "with blanks"
    blanks.mkdir()
    (blanks / "python3").symlink_to(sys.executable)
    (folder / "pypy3.11").symlink_to(sys.executable)
    long = "x" * 20
    scripts = {
        "direct": f"#!{folder}/python3 -IS\n",
        "by-env": "#!/usr/bin/env python3\n",
        "by-env-s": "#!/usr/bin/env -S FOO=1 python3 -u\n",
        "long": f"#!/bin/sh\n'''exec' \"{folder}/python3\" \"$0\" \"$@\"\n' '''{long}\n",
        "blanks": f"#!/bin/sh\n'''exec' \"{blanks}/python3\" \"$0\" \"$@\"\n' '''{long}\n",
        "shell": "#!/bin/sh\n",
        "binary": "\x7fELF\n",
        "empty": "",
        "bare": "#!\n",
        "env-alone": "#!/usr/bin/env\n",
    }
    for name, text in scripts.items():
        path = folder / name
        path.write_text(text)
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return {"PATH": str(folder)}


@pytest.mark.parametrize(
    ("command", "isolated", "bare"),
    [
        (["python3", "train.py", "-S"], False, False),
        (["python3", "-S", "train.py"], False, True),
        (["python3", "-I", "train.py"], True, False),
        (["python3", "-uE", "-m", "train"], True, False),
        (["python3", "-W", "-I", "-X", "dev", "-BS", "-c", "pass"], False, True),
        (["python3", "-Wignore", "-I", "x"], True, False),
        (["python3", "-m", "-I"], False, False),
        (["python3", "-c", "-I"], False, False),
        (["python3"], False, False),
        (["pypy3.11", "x"], False, False),
        (["direct"], True, True),
        (["by-env", "-S"], False, False),
        (["by-env-s"], False, False),
        (["long"], False, False),
        (["blanks"], False, False),
    ],
)
def test_a_python_is_recognised_with_its_options(
    commands: dict[str, str], command: list[str], isolated: bool, bare: bool
) -> None:
    found = command_interpreter(command, commands)

    assert found is not None
    assert (found.isolated, found.bare) == (isolated, bare)
    assert os.access(found.path, os.X_OK)


@pytest.mark.parametrize(
    "name", ["shell", "binary", "empty", "bare", "env-alone", "missing", "/", "", "/dev/null"]
)
def test_what_is_no_python_is_not_guessed(commands: dict[str, str], name: str) -> None:
    assert command_interpreter([name, "x"], commands) is None
