"""Installed frameworks of an interpreter."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from gpucheck.drivers.python.frameworks import read_frameworks
from gpucheck.drivers.python.interpreters import Interpreter

STAND_INS = Path(__file__).parents[2] / "data" / "frameworks"


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
