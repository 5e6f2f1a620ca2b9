"""The command that installs CuPy, for each way of installing gpucheck and each driver."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from gpucheck.drivers.cupy.install import (
    Installation,
    command,
    extra,
    install_cupy,
    installation,
)
from gpucheck.drivers.readings import CudaDeviceReading, CudaReading
from gpucheck.report.blocks import Command, remedies

REQUIRES = (
    "typer<0.29,>=0.12",
    "cupy-cuda12x<15,>=14; extra == 'cuda12'",
    'nvidia-cublas-cu12<13,>=12; extra == "cuda12"',
    "cupy-cuda13x<15,>=14; extra == 'cuda13'",
)
PLAIN = Installation("/opt/v", "/opt/v/bin/python", "pip", {}, REQUIRES)
FOLDER = {"url": "file:///src/gpucheck", "dir_info": {}}
EDITABLE = {"url": "file:///src/gpu%20check", "dir_info": {"editable": True}}
VCS = {"url": "https://user:secret@host/gpucheck", "vcs_info": {"vcs": "git"}}


@pytest.mark.parametrize(
    ("driver", "capability", "wanted"),
    [
        (13000, (8, 9), "cuda13"),
        (13000, None, "cuda13"),
        (13000, (7, 0), "cuda12"),
        (12090, (9, 0), "cuda12"),
        (None, None, "cuda12"),
    ],
)
def test_the_extra_fits_the_driver_and_the_oldest_card(
    driver: int | None, capability: tuple[int, int] | None, wanted: str
) -> None:
    assert extra(driver, capability) == wanted


@pytest.mark.parametrize(
    ("capabilities", "wanted"),
    [
        (("10.0", "8.9"), "[cuda13]"),
        (("10.0", "7.0"), "[cuda12]"),
        ((None,), "[cuda13]"),
        ((), "[cuda13]"),
    ],
)
def test_an_answer_of_cuda_is_not_asked_for_again(
    capabilities: tuple[str | None, ...], wanted: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpucheck.drivers.cupy.install._installed_cuda", lambda: None)
    monkeypatch.setattr("gpucheck.drivers.cuda.worker.Binding", lambda: pytest.fail("asked again"))
    devices = tuple(
        CudaDeviceReading(ordinal, compute_capability=capability)
        for ordinal, capability in enumerate(capabilities)
    )

    (step,) = install_cupy(reading=CudaReading(driver_version=13000, devices=devices))

    assert wanted in step


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (PLAIN, "/opt/v/bin/python -m pip install 'gpucheck-cli[cuda12]'"),
        (
            PLAIN._replace(installer="uv"),
            "uv pip install --python /opt/v/bin/python 'gpucheck-cli[cuda12]'",
        ),
        (
            PLAIN._replace(origin=FOLDER),
            "/opt/v/bin/python -m pip install '/src/gpucheck[cuda12]'",
        ),
        (
            PLAIN._replace(origin=EDITABLE),
            "/opt/v/bin/python -m pip install -e '/src/gpu check[cuda12]'",
        ),
        (
            PLAIN._replace(origin=VCS),
            "/opt/v/bin/python -m pip install 'gpucheck-cli[cuda12] @ git+https://host/gpucheck'",
        ),
        (
            PLAIN._replace(prefix="/home/a/.local/pipx/venvs/gpucheck-cli"),
            "pipx inject gpucheck-cli 'cupy-cuda12x<15,>=14' 'nvidia-cublas-cu12<13,>=12'",
        ),
        (
            PLAIN._replace(prefix="/home/a/.local/share/uv/tools/gpucheck-cli"),
            "uv tool install 'gpucheck-cli[cuda12]'",
        ),
    ],
)
def test_the_command_fits_the_way_gpucheck_was_installed(found: Installation, words: str) -> None:
    said = command(found, "cuda12")

    assert said == words
    assert shlex.split(said)
    # It stands alone on its line.
    assert any(
        isinstance(block, Command) and block.text == words
        for block in remedies([f"Install it: {said}"])
    )


@pytest.mark.parametrize(
    ("file", "begins"),
    [
        ("uv-receipt.toml", "uv tool install "),
        ("pipx_metadata.json", "pipx inject gpucheck-cli "),
    ],
)
def test_a_tool_is_known_by_its_file_wherever_its_folder_is(
    file: str, begins: str, tmp_path: Path
) -> None:
    prefix = tmp_path / "gpucheck-cli"
    prefix.mkdir()
    (prefix / file).touch()

    assert command(PLAIN._replace(prefix=str(prefix)), "cuda12").startswith(begins)


def test_in_the_checkout_the_command_is_short(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    pip = tmp_path / "bin" / "pip"
    pip.parent.mkdir()
    pip.touch(mode=0o755)
    monkeypatch.setenv("PATH", str(pip.parent))
    here = {"url": tmp_path.as_uri(), "dir_info": {"editable": True}}
    found = PLAIN._replace(executable=str(pip.parent / "python"), origin=here)

    assert command(found, "cuda13") == "pip install -e '.[cuda13]'"


def test_this_installation_is_found() -> None:
    found = installation()

    assert command(found, "cuda12").endswith("[cuda12]'")
