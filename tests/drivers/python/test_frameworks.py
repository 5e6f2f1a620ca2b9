"""Python of a command line, and its frameworks."""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path

import pytest

from gpucheck.drivers.python.frameworks import read_frameworks
from gpucheck.drivers.python.interpreters import Interpreter, command_interpreter

STAND_INS = Path(__file__).parents[2] / "data" / "frameworks"


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """Return a PATH with pythons and scripts of several kinds."""
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "python3").symlink_to(sys.executable)
    (folder / "pypy3.11").symlink_to(sys.executable)
    long = "x" * 20
    scripts = {
        "direct": f"#!{folder}/python3 -IS\n",
        "by-env": "#!/usr/bin/env python3\n",
        "by-env-s": "#!/usr/bin/env -S FOO=1 python3 -u\n",
        "long": f"#!/bin/sh\n'''exec' \"{folder}/python3\" \"$0\" \"$@\"\n' '''{long}\n",
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
    ],
)
def test_a_python_is_recognised_with_its_options(
    environment: dict[str, str], command: list[str], isolated: bool, bare: bool
) -> None:
    found = command_interpreter(command, environment)

    assert found is not None
    assert (found.isolated, found.bare) == (isolated, bare)
    assert os.access(found.path, os.X_OK)


@pytest.mark.parametrize(
    "name", ["shell", "binary", "empty", "bare", "env-alone", "missing", "/", "", "/dev/null"]
)
def test_what_is_no_python_is_not_guessed(environment: dict[str, str], name: str) -> None:
    assert command_interpreter([name, "x"], environment) is None


def test_versions_are_read_without_an_import(tmp_path: Path) -> None:
    log = tmp_path / "events"
    environment = {"PYTHONPATH": str(STAND_INS), "STUB_LOG": str(log)}

    found = read_frameworks(Interpreter(path=sys.executable), environment)

    assert found.frameworks is not None
    assert found.frameworks["torch"] == "2.13.0"
    assert found.frameworks["cupy"] == "14.2.0"
    assert found.python == ".".join(map(str, sys.version_info[:3]))
    assert not log.exists()


def test_an_isolated_python_is_asked_isolated() -> None:
    environment = {"PYTHONPATH": str(STAND_INS)}

    found = read_frameworks(Interpreter(path=sys.executable, isolated=True, bare=True), environment)

    assert found.frameworks == {}


def test_a_module_without_metadata_has_no_version(tmp_path: Path) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").touch()

    found = read_frameworks(
        Interpreter(path=sys.executable, bare=True), {"PYTHONPATH": str(tmp_path)}
    )

    assert found.frameworks == {"torch": ""}


@pytest.mark.parametrize("path", ["/bin/true", "/bin/cat", "/nonexistent/python", "/"])
def test_a_program_that_is_no_python_is_a_reason(path: str) -> None:
    found = read_frameworks(Interpreter(path=path), {})

    assert found.frameworks is None
    assert found.reason.startswith("it is not known which frameworks it has: ")
    assert path in found.reason


def test_a_python_that_hangs_is_given_up(tmp_path: Path) -> None:
    script = tmp_path / "python"
    script.write_text("#!/bin/sh\nexec sleep 60\n")
    script.chmod(0o700)

    found = read_frameworks(
        Interpreter(path=str(script)), {"PATH": "/bin:/usr/bin"}, deadline_s=0.2
    )

    assert found.frameworks is None
    assert "within 0.2 s" in found.reason


def test_no_command_line_is_a_reason() -> None:
    assert "not known which Python" in read_frameworks(None, {}).reason


@pytest.mark.parametrize(
    ("packages", "found"),
    [
        ({}, ()),
        ({"torch": "2.13.0+cpu"}, ("torch",)),
        ({"torch": "2.13.0", "tensorflow-cpu": "2.21.0"}, ("tensorflow",)),
        ({"tensorflow": "2.21.0", "tensorflow-cpu": "2.21.0"}, ()),
    ],
)
def test_builds_for_cpus_are_told_by_their_packages(
    tmp_path: Path, packages: dict[str, str], found: tuple[str, ...]
) -> None:
    for name, version in packages.items():
        folder = tmp_path / f"{name.replace('-', '_')}-{version}.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        )

    bare = Interpreter(path=sys.executable, bare=True)

    assert read_frameworks(bare, {"PYTHONPATH": str(tmp_path)}).for_cpus == found
