"""What an interpreter's frameworks were built for, and what is said where it does not tell."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from gpucheck.probes.builds import read_builds

ENVIRONMENT = {"PATH": "/usr/bin:/bin"}


def site_with(folder: Path, files: dict[str, str]) -> dict[str, str]:
    """Write files of pretended packages, and return the variables that lead to them."""
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return {**ENVIRONMENT, "PYTHONPATH": str(folder)}


def test_an_interpreter_that_is_none(tmp_path: Path) -> None:
    script = tmp_path / "python"
    script.write_text("#!/nobody\n")
    script.chmod(0o755)

    found = read_builds(str(script), {})

    assert found.builds is None
    assert "could not be started" in (found.unavailable or "")


def test_a_program_that_is_no_python() -> None:
    found = read_builds("/bin/true", {})

    assert found.builds is None
    assert found.unavailable == "/bin/true gave no answer: is it a Python?"


def test_the_active_environment_is_looked_at_and_named(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python").symlink_to(sys.executable)

    found = read_builds(None, {**ENVIRONMENT, "VIRTUAL_ENV": str(tmp_path)})

    assert found.python == str(tmp_path / "bin" / "python")
    assert found.named_by == "VIRTUAL_ENV"
    assert found.builds is not None


def test_one_that_hangs_is_given_up(tmp_path: Path) -> None:
    script = tmp_path / "python"
    script.write_text("#!/bin/sh\nexec sleep 60\n")
    script.chmod(0o755)

    found = read_builds(str(script), ENVIRONMENT, deadline_s=0.2)

    assert found.builds is None
    assert "no answer within 0.2 s" in (found.unavailable or "")


def test_site_hooks_may_talk(tmp_path: Path) -> None:
    environment = site_with(
        tmp_path,
        {
            "sitecustomize.py": "print('welcome')\n",
            "torch/__init__.py": "",
            "torch/version.py": "__version__ = '2.13.0'\ncuda = '12.6'\n",
        },
    )

    found = read_builds(sys.executable, environment)

    (build,) = [each for each in found.builds or () if each.name == "pytorch"]
    assert (build.version, build.cuda_build, build.gpu_build) == ("2.13.0", "12.6", True)


@pytest.mark.parametrize(
    ("content", "found"),
    [
        (
            "\0at::cuda\0sm_75 sm_90 sm_120 compute_120\0\0",
            ("sm_75", "sm_90", "sm_120", "compute_120"),
        ),
        ("\0sm_90a\0", ("sm_90a",)),
        ("\0kernel_sm_90\0sm_ \0", ()),
        ("", ()),
        (None, ()),
    ],
)
def test_pytorch_says_what_it_is_compiled_for(
    tmp_path: Path, content: str | None, found: tuple[str, ...]
) -> None:
    files = {
        "torch/__init__.py": "",
        "torch/version.py": "__version__ = '2.15.0'\ncuda = '13.2'\n",
    }
    if content is not None:
        files["torch/lib/libtorch_python.so"] = content

    reading = read_builds(sys.executable, site_with(tmp_path, files))

    (build,) = [each for each in reading.builds or () if each.name == "pytorch"]
    assert build.architectures == found


def test_what_an_uninstalled_package_left_behind_is_none(tmp_path: Path) -> None:
    environment = site_with(tmp_path, {"torch/lib/libc10.so": "", "jax/__init__.py": ""})

    found = read_builds(sys.executable, environment)

    assert found.builds is not None
    assert "pytorch" not in {build.name for build in found.builds}
    assert "jax" in {build.name for build in found.builds}


def test_files_that_make_no_sense_hide_only_their_own_package(tmp_path: Path) -> None:
    environment = site_with(
        tmp_path,
        {
            "tensorflow/__init__.py": "",
            "tensorflow/python/platform/build_info.py": "build_info = [1, 2]\n",
            "jax/__init__.py": "",
        },
    )

    found = read_builds(sys.executable, environment)

    known = {build.name: build for build in found.builds or ()}
    assert known["tensorflow"].gpu_build is None
    assert known["jax"].gpu_build is False
