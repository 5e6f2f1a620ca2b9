"""Commands of remedies: for the checked Python, by its own installer."""

from __future__ import annotations

import pytest

from gpucheck.detect.installers import name_installer, reinstall_command
from gpucheck.drivers.evidence import BuildReading, BuildsReading

TORCH = BuildReading(name="pytorch", distributions=("torch 2.13.0+cu126",))


@pytest.mark.parametrize(
    ("installers", "named_by", "said"),
    [
        (("pip",), "VIRTUAL_ENV", "pip uninstall -y a; pip install b"),
        (
            ("pip",),
            "--python",
            "'/an env/bin/python' -m pip uninstall -y a; '/an env/bin/python' -m pip install b",
        ),
        (
            ("uv",),
            "VIRTUAL_ENV",
            "uv pip uninstall --python '/an env/bin/python' a;"
            " uv pip install --python '/an env/bin/python' b",
        ),
        ((), "PATH", "pip uninstall -y a; pip install b"),
    ],
)
def test_pip_s_words_in_the_checked_python(
    installers: tuple[str, ...], named_by: str, said: str
) -> None:
    builds = BuildsReading(python="/an env/bin/python", installers=installers, named_by=named_by)

    assert name_installer(builds, "Do: pip uninstall -y a; pip install b") == f"Do: {said}"


@pytest.mark.parametrize(
    ("python", "command", "said"),
    [
        ("/env/bin/python", "conda install cupy", "conda install -p /env cupy"),
        (
            "/project/.pixi/envs/default/bin/python",
            "pixi add cupy",
            "pixi add --manifest-path /project cupy",
        ),
        (
            "/env/bin/python",
            "python -X faulthandler -c 'import torch'",
            "/env/bin/python -X faulthandler -c 'import torch'",
        ),
    ],
)
def test_another_environment_is_named(python: str, command: str, said: str) -> None:
    builds = BuildsReading(python=python, installers=("conda", "pip"), named_by="--python")

    assert name_installer(builds, command) == said
    assert name_installer(builds._replace(named_by="CONDA_PREFIX"), command) == command


@pytest.mark.parametrize(
    ("owners", "conda_owners", "said"),
    [
        (
            (),
            (),
            "pip install --force-reinstall --no-deps torch==2.13.0+cu126"
            " --index-url https://x/cu126",
        ),
        (
            ("nvidia-cudnn-cu13 9.26.0.51", "nvidia-cublas 13.1"),
            (),
            "pip install --force-reinstall --no-deps nvidia-cudnn-cu13==9.26.0.51"
            " nvidia-cublas==13.1",
        ),
        ((), ("cudnn 9.26",), "conda install --force-reinstall cudnn=9.26"),
    ],
)
def test_what_is_harmed_is_reinstalled_by_name_and_version(
    owners: tuple[str, ...], conda_owners: tuple[str, ...], said: str
) -> None:
    build = TORCH._replace(owners=owners, conda_owners=conda_owners)

    assert reinstall_command(BuildsReading(), build, "https://x/") == said
