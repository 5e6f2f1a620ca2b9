"""Libraries that the loader would find, without loading one."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpucheck.drivers.evidence import LibrariesReading
from gpucheck.drivers.host.libraries import kind_of, read_libraries
from tests.fakes.machine import load_machine
from tests.fakes.tree import write_tree


def put(root: Path, path: str, text: str = "") -> None:
    target = root / path
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(text)


def look(root: Path, path: str = "") -> LibrariesReading:
    return read_libraries(root, {"LD_LIBRARY_PATH": path} if path else {})


def test_the_driver_s_libraries_carry_its_version(tmp_path: Path) -> None:
    machine = load_machine("t4")

    found = {lib.name: lib for lib in look(write_tree(machine, tmp_path)).found}

    assert found["libcuda.so.1"].version == machine.driver.version
    assert found["libcuda.so.1"].kind == "driver"
    assert found["libnvidia-ml.so.1"].path == "/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1"


def test_ld_library_path_comes_first(tmp_path: Path) -> None:
    put(tmp_path, "opt/compat/libcuda.so.1")
    put(tmp_path, "usr/lib64/libcuda.so.1")

    found = look(tmp_path, "/opt/compat").found

    assert [(lib.path, lib.kind) for lib in found if lib.name == "libcuda.so.1"][:2] == [
        ("/opt/compat/libcuda.so.1", "compat"),
        ("/usr/lib64/libcuda.so.1", "driver"),
    ]


@pytest.mark.parametrize("path", [":", ".", "relative/lib", ""])
def test_nothing_is_taken_from_the_current_directory(
    tmp_path: Path, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(tmp_path, "here/libcuda.so.1")
    monkeypatch.chdir(tmp_path / "here")

    assert not [lib for lib in look(tmp_path / "root", path).found if "here" in lib.path]


@pytest.mark.parametrize(
    ("folder", "kind"),
    [
        ("/usr/local/cuda/lib64/stubs", "stub"),
        ("/usr/local/cuda-13.0/compat", "compat"),
        ("/usr/lib/wsl/lib", "wsl"),
        ("/usr/lib64", "driver"),
        ("/opt/compatible/lib", "driver"),
    ],
)
def test_kinds(folder: str, kind: str) -> None:
    assert kind_of(folder) == kind


@pytest.mark.parametrize(
    ("name", "text", "version"),
    [
        ("version.json", '{"cuda": {"version": "12.4.1"}}', "12.4.1"),
        ("version.txt", "CUDA Version 10.2.89\n", "10.2.89"),
        ("version.json", "no json", "12.4"),
        ("other", "", "12.4"),
    ],
)
def test_toolkits(tmp_path: Path, name: str, text: str, version: str) -> None:
    put(tmp_path, f"usr/local/cuda-12.4/{name}", text)
    (tmp_path / "usr/local/cuda").symlink_to("cuda-12.4")

    (toolkit,) = look(tmp_path).toolkits

    assert toolkit.version == version
