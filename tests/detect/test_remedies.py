"""Remedies adapted to the machine: distribution, container, virtual machine, WSL2, installer."""

from __future__ import annotations

import pytest

from gpucheck.detect import remedies
from gpucheck.detect.machine import KERNEL_LOG, REBOOT, UPGRADE, Machine
from gpucheck.detect.remedies import EITHER_UPGRADE, name_installer, reinstall_command
from gpucheck.drivers.evidence import (
    BuildReading,
    BuildsReading,
    ModuleReading,
    PlatformReading,
    SystemReading,
)
from gpucheck.drivers.readings import KernelReading, PciDeviceReading
from gpucheck.report.host import Host
from tests.fakes.probes import FakeProbes

PASCAL = PciDeviceReading(pci_bus_id="0000:01:00.0", vendor_id="0x10de", device_id="0x1b38")


def machine(
    os: str | None = "Ubuntu 24.04.3 LTS",
    container: str | None = None,
    *,
    hypervisor: bool = False,
    dkms: tuple[str, ...] = (),
    kernel: KernelReading | None = None,
) -> Machine:
    host = Host(os=os, kernel="6.8.0-71-generic", container=container)
    system = SystemReading(
        platform=PlatformReading(hypervisor=hypervisor), module=ModuleReading(dkms_versions=dkms)
    )
    return Machine(
        FakeProbes(machine=host, system_reading=system, kernel_reading=kernel or KernelReading())
    )


HOST = machine()
DOCKER = machine(container="docker")
VM = machine(hypervisor=True)
WSL = machine("Ubuntu 24.04.3 LTS (WSL2)")


@pytest.mark.parametrize(
    ("where", "step", "fitted"),
    [
        (HOST, "On a host: look here.", "Look here."),
        (HOST, "Reseat the GPU.", "Reseat the GPU."),
        (DOCKER, "In a container: look here.", "Look here."),
        (DOCKER, REBOOT, "On the host: reboot."),
        (DOCKER, UPGRADE, "On the host: upgrade the driver."),
        (DOCKER, KERNEL_LOG, f"On the host: r{KERNEL_LOG[1:]}"),
        (DOCKER, "Check power cables and riser.", "On the host: check power cables and riser."),
        (DOCKER, "Or boot with `nokaslr`.", "On the host: or boot with `nokaslr`."),
        (DOCKER, "Read it: journalctl -u x", "On the host: read it: journalctl -u x"),
        (DOCKER, "Restart nvidia-imex.", "On the host: restart nvidia-imex."),
        (DOCKER, "On the host: sudo true", "On the host: sudo true"),
        (DOCKER, "Docker: sudo docker run", "Docker: sudo docker run"),
        (DOCKER, "Install the Python package x.", "Install the Python package x."),
        (DOCKER, "unset CUDA_VISIBLE_DEVICES", "unset CUDA_VISIBLE_DEVICES"),
        (DOCKER, "Reinstall it: pixi reinstall cudnn", "Reinstall it: pixi reinstall cudnn"),
        (HOST, f"{EITHER_UPGRADE}, or not", f"{EITHER_UPGRADE}, or not"),
        (DOCKER, f"{EITHER_UPGRADE}, or not", f"{EITHER_UPGRADE} on the host, or not"),
        (
            WSL,
            f"{EITHER_UPGRADE}, or not",
            "Either update the NVIDIA driver in Windows, or not",
        ),
        (VM, "In a virtual machine: stop it.", "In a virtual machine: stop it."),
        (VM, "Reseat the GPU.", "Outside the virtual machine: reseat the GPU."),
        (VM, REBOOT, REBOOT),
        (WSL, REBOOT, "In Windows: wsl --shutdown; if that does not help, reboot Windows."),
        (WSL, UPGRADE, "In Windows: update the NVIDIA driver; then: wsl --shutdown"),
        (WSL, KERNEL_LOG, "Read the kernel messages of WSL2: sudo dmesg | grep -i dxg"),
    ],
)
def test_a_step_is_fitted(where: Machine, step: str, fitted: str) -> None:
    assert remedies.adapt(where, (step,)) == (fitted,)


@pytest.mark.parametrize(
    ("where", "kept"),
    [(HOST, ("A.",)), (DOCKER, ("B.",)), (VM, ("A.", "In a virtual machine: C.")), (WSL, ("D",))],
)
def test_steps_of_other_machines_are_left_out(where: Machine, kept: tuple[str, ...]) -> None:
    steps = ("On a host: A.", "In a container: B.", "In a virtual machine: C.")

    assert remedies.adapt(where, (*steps, *["D"] * (where is WSL))) == kept


def test_something_is_always_left() -> None:
    assert remedies.adapt(HOST, ("In a container: B.",)) == ("In a container: B.",)
    assert remedies.adapt(HOST, ()) == ()


def test_of_a_machine_that_is_not_known_every_step_is_kept() -> None:
    nothing = SystemReading(unavailable="not recorded")
    where = Machine(FakeProbes(machine=Host(), system_reading=nothing))

    assert remedies.adapt(where, ("In a container: B.", REBOOT)) == ("In a container: B.", REBOOT)


@pytest.mark.parametrize(
    ("os", "command"),
    [
        ("Ubuntu 24.04.3 LTS", "sudo ubuntu-drivers install"),
        ("Linux Mint 22", "sudo ubuntu-drivers install"),
        ("Debian GNU/Linux 13 (trixie)", "sudo apt install nvidia-driver"),
        ("Fedora Linux 43", "akmod-nvidia"),
        ("Rocky Linux 9.6 (Blue Onyx)", "sudo dnf install nvidia-open"),
        ("Red Hat Enterprise Linux 10.0", "sudo dnf install nvidia-open"),
        ("Amazon Linux 2023", "sudo dnf install nvidia-open"),
        ("SUSE Linux Enterprise Server 15 SP6", "sudo zypper install nvidia-open"),
        ("Arch Linux", "sudo pacman -S nvidia-open"),
        ("Plan 9", "your distribution's package"),
        (None, "your distribution's package"),
    ],
)
def test_the_driver_is_installed_as_the_distribution_does_it(os: str | None, command: str) -> None:
    assert command in remedies.install_driver(machine(os))


def test_an_old_gpu_needs_an_old_driver() -> None:
    said = remedies.install_driver(machine(kernel=KernelReading(pci_devices=(PASCAL,))))

    assert "580" in said
    assert "ubuntu-drivers" not in said


@pytest.mark.parametrize(
    ("where", "words"),
    [
        (machine("Debian GNU/Linux 13", dkms=("nvidia/550",)), "sudo dkms autoinstall"),
        (machine("Ubuntu 24.04.3 LTS"), "linux-modules-nvidia-…-6.8.0-71-generic"),
        (machine("Fedora Linux 43"), "sudo akmods --force"),
        (machine("Arch Linux"), "Reinstall the driver"),
    ],
)
def test_how_a_module_is_built(where: Machine, words: str) -> None:
    assert words in " ".join(remedies.build_module(where))


def test_the_headers_are_of_the_running_kernel() -> None:
    steps = remedies.build_module(machine("Debian GNU/Linux 13", dkms=("nvidia/550",)))

    assert steps[0].endswith("sudo apt install linux-headers-6.8.0-71-generic")


@pytest.mark.parametrize(
    ("engine", "words"),
    [
        ("docker", "docker run --gpus all"),
        ("podman", "podman run --device nvidia.com/gpu=all"),
        ("kubernetes", "nvidia.com/gpu: 1"),
        ("kubepods", "nvidia.com/gpu: 1"),
        ("lxc", "lxc.cgroup2.devices.allow"),
        ("containerd", "docker run --gpus all"),
    ],
)
def test_a_container_is_given_gpus_as_its_engine_does_it(engine: str, words: str) -> None:
    assert words in remedies.start_with_gpus(machine(container=engine))[0]


def test_a_reset_names_the_gpu() -> None:
    steps = ("When idle: sudo nvidia-smi --gpu-reset", REBOOT)

    assert remedies.steps_for_gpu(3, steps) == (
        "When idle: sudo nvidia-smi -i 3 --gpu-reset",
        REBOOT,
    )


@pytest.mark.parametrize(
    ("os", "words"),
    [
        ("Ubuntu 24.04.3 LTS", "libnvidia-compute-580 nvidia-utils-580"),
        ("Debian GNU/Linux 13", "libcuda1"),
        ("Fedora Linux 43", "xorg-x11-drv-nvidia-cuda"),
        ("Arch Linux", "exactly version 580.95.05."),
    ],
)
def test_the_libraries_are_those_of_the_module(os: str, words: str) -> None:
    kernel = KernelReading(module_version="580.95.05")

    assert words in remedies.install_libraries(machine(os, kernel=kernel))


@pytest.mark.parametrize(
    ("os", "key"),
    [("Ubuntu 24.04.3 LTS", "MOK.der"), ("Fedora Linux 43", "akmods"), ("Arch Linux", "KEY.der")],
)
def test_the_key_is_the_distribution_s(os: str, key: str) -> None:
    assert key in remedies.sign_module(machine(os))[0]


@pytest.mark.parametrize(
    ("os", "command"),
    [("Debian GNU/Linux 13", "update-initramfs -u"), ("Arch Linux", "mkinitcpio -P")],
)
def test_the_initramfs_is_rebuilt_as_the_distribution_does_it(os: str, command: str) -> None:
    assert command in remedies.rebuild_initramfs(machine(os))


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
            "/project/.pixi/envs/default/bin/python",
            "pixi reinstall libcublas; pixi reinstall cudnn",
            "pixi reinstall --manifest-path /project libcublas;"
            " pixi reinstall --manifest-path /project cudnn",
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
