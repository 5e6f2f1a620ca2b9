"""Selected environment variables, and the operating system's name."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from gpucheck.drivers.host.environment import gpu_variables, read_host
from tests.architecture.house import modules
from tests.fakes.machine import load_machine
from tests.fakes.tree import write_tree


@pytest.mark.parametrize(
    "name",
    [
        "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "CUDA_MODULE_LOADING", "LD_LIBRARY_PATH",
        "NVIDIA_VISIBLE_DEVICES", "NVIDIA_DRIVER_CAPABILITIES", "SLURM_JOB_GPUS", "XLA_FLAGS",
        "CUDA_DEVICE_MEMORY_LIMIT_7", "TF_FORCE_GPU_ALLOW_GROWTH", "PYTORCH_ALLOC_CONF",
        "JAX_PLATFORMS", "JAX_PLATFORM_NAME", "SLURM_JOB_ID",
    ],
)  # fmt: skip
def test_variables_of_gpu_programs(name: str) -> None:
    assert gpu_variables({name: "x"}) == {name: "x"}


@pytest.mark.parametrize(
    "name",
    [
        "HOME", "PATH", "AWS_SECRET_ACCESS_KEY", "TF_VAR_password", "SLURM_JWT", "cuda_visible",
        "MY_CUDA_HOME", "NVIDIA_API_KEY", "NVIDIA_NGC_TOKEN", "CUDA_REGISTRY_PASSWORD",
        "XLA_AUTH_SECRET", "NVIDIA_PASSPHRASE", "CUDA_Pwd", "CUDA_PAT", "XLA_BEARER",
        "CUDA_DEVICE_MEMORY_LIMIT_KEY",
    ],
)  # fmt: skip
def test_other_variables_may_be_secrets(name: str) -> None:
    assert gpu_variables({name: "x"}) == {}


def test_every_variable_that_the_program_speaks_of_is_read() -> None:
    sources = [path.read_text(encoding="utf-8") for path in modules()]
    words = {
        word
        for source in sources
        for word in re.findall(r"[\"'`](?:CUDA|NVIDIA|XLA)_[A-Z0-9_]*[A-Z0-9](?=[\"'`=])", source)
    }
    spoken_of = {word[1:] for word in words if "_ERROR_" not in word}

    assert len(spoken_of) > 20
    assert spoken_of - gpu_variables(dict.fromkeys(spoken_of, "x")).keys() == set()


def test_an_empty_value_is_not_an_absent_one() -> None:
    assert gpu_variables({"CUDA_VISIBLE_DEVICES": ""}) == {"CUDA_VISIBLE_DEVICES": ""}


def test_the_host_of_a_machine(tmp_path: Path) -> None:
    machine = load_machine("h100x8")

    host = read_host(write_tree(machine, tmp_path), {})

    assert (host.name, host.os, host.kernel) == ("h100x8", machine.host.os, machine.host.kernel)
    assert host.container is None
    assert host.driver_version is None


def test_windows_underneath(tmp_path: Path) -> None:
    host = read_host(write_tree(load_machine("wsl2"), tmp_path), {})

    assert host.os is not None
    assert host.os.endswith(" (WSL2)")


@pytest.mark.parametrize(
    ("files", "variables", "expected"),
    [
        ({}, {}, None),
        ({".dockerenv": ""}, {}, "docker"),
        ({"run/.containerenv": ""}, {}, "podman"),
        ({"proc/1/cgroup": "0::/kubepods/burstable/pod1"}, {}, "kubepods"),
        ({"proc/1/cgroup": "1:name=systemd:/docker/abc"}, {}, "docker"),
        ({"proc/1/cgroup": "0::/lxc/box"}, {}, "lxc"),
        ({"proc/1/cgroup": "0::/init.scope"}, {}, None),
        ({}, {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, "kubernetes"),
    ],
)
def test_containers(
    tmp_path: Path, files: dict[str, str], variables: dict[str, str], expected: str | None
) -> None:
    for path, text in files.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text, encoding="ascii")

    assert read_host(tmp_path, variables).container == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('PRETTY_NAME="Debian GNU/Linux 12 (bookworm)"\n', "Debian GNU/Linux 12 (bookworm)"),
        ("PRETTY_NAME='Alpine'\n", "Alpine"),
        ("NAME=x\nPRETTY_NAME=Plain\n", "Plain"),
        ('PRETTY_NAME=""\n', "Linux"),
        ("no equals sign\n", "Linux"),
        ("", "Linux"),
    ],
)
def test_names_of_operating_systems(tmp_path: Path, text: str, expected: str) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/os-release").write_text(text, encoding="utf-8")

    assert read_host(tmp_path, {}).os == expected


def test_an_empty_root_falls_back_to_the_running_kernel(tmp_path: Path) -> None:
    host = read_host(tmp_path, {})

    assert (host.name, host.kernel) == (os.uname().nodename, os.uname().release)
