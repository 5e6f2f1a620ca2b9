"""Remedies adapted to the machine: to its distribution, and to containers, VMs and WSL2.

Checks write their remedies for a plain host. A step that begins with one of the places below is for
such machines only. In a container or a virtual machine, a step that must be taken outside says so.
Steps on packages are written for pip, and become those of the checked Python's own installer.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping

from gpucheck.data import read_table
from gpucheck.detect.cuda_versions import is_older_than_turing
from gpucheck.detect.machine import KERNEL_LOG, REBOOT, UPGRADE, Machine
from gpucheck.drivers.evidence import BuildReading, BuildsReading

#: Steps with this beginning name a driver that a container or WSL2 has outside.
EITHER_UPGRADE = "Either upgrade the driver"
#: Steps with this beginning are for such machines only.
IN_A_CONTAINER = "In a container: "
ON_A_HOST = "On a host: "
IN_A_VM = "In a virtual machine: "

#: Steps on the machine itself, which cannot be taken in a container. Patterns are compiled only
#: when something is wrong: that takes longer than importing most checks.
_OF_THE_HOST = (
    r"(?i)\bsudo\b|\breboot\b|power the machine|\bBIOS\b|firmware|initramfs|modprobe|reseat"
    r"|attach the|power supply|air ?flow|install the (nvidia )?driver|upgrade the driver|reinstall"
    r"|cable|riser|fans can|field diagnostics|boot with|update the kernel|unattended upgrades"
    r"|lines that block|journalctl|nvidia-imex"
)
#: Steps on the checked Python, wherever it is.
_OF_A_PYTHON = r"\b(pip (un)?install|conda install|pixi (add|reinstall))\b"
#: Steps on the hardware, which cannot be taken in a virtual machine.
_OF_THE_HARDWARE = (
    r"(?i)power the machine|\bBIOS\b|cable|reseat|riser|air ?flow|\bdust\b|power supply"
)
#: Steps that already say where to take them.
_PLACED = r"(?i)(on the host|in windows|in a|on a|if docker|docker|kubernetes|podman|lxc)\b"
#: Steps that differ in WSL2.
_IN_WSL: Mapping[str, str] = {
    KERNEL_LOG: "Read the kernel messages of WSL2: sudo dmesg | grep -i dxg",
    REBOOT: "In Windows: wsl --shutdown; if that does not help, reboot Windows.",
    UPGRADE: "In Windows: update the NVIDIA driver; then: wsl --shutdown",
}


def _texts(machine: Machine) -> Mapping[str, str]:
    """Return how this machine's distribution is told to install a driver and what goes with it."""
    known = read_table("systems")["distribution"]
    own = known[next((name for name in known if name in (machine.host.os or "")), "other")]
    shared = ("driver", "headers", "initramfs")
    alike = known[own["like"]] if "like" in own else {}
    return {**{name: alike[name] for name in shared if name in alike}, **own}


def install_driver(machine: Machine) -> str:
    """Return how to install the driver on this machine."""
    if any(is_older_than_turing(gpu.device_id) for gpu in machine.kernel.pci_devices or ()):
        return (
            "Install driver branch 580 or an older one, in the proprietary flavour (newer branches"
            " do not support this GPU); then reboot."
        )
    return f"Install the driver: {_texts(machine)['driver']}; then reboot."


def build_module(machine: Machine) -> tuple[str, ...]:
    """Return how to build the module of an installed driver for the running kernel."""
    kernel = machine.host.kernel or "$(uname -r)"
    texts = _texts(machine)
    headers = f"Install this kernel's headers: {texts['headers'].format(kernel)}"
    if machine.system.module.dkms_versions:
        return (headers, "Build the module: sudo dkms autoinstall; then reboot.")
    if texts["driver"].startswith("sudo ubuntu-drivers"):
        package = f"linux-modules-nvidia-…-{kernel}"
        return (f"Install this kernel's module ({package}): sudo ubuntu-drivers install; reboot.",)
    if "Fedora" in (machine.host.os or ""):
        return (headers, "Build the module: sudo akmods --force; then reboot.")
    return (headers, "Reinstall the driver, so that its module is built; then reboot.")


def sign_module(machine: Machine) -> tuple[str, ...]:
    """Return how to load the module under Secure Boot."""
    key = _texts(machine).get("key", "KEY.der")
    return (
        f"Enroll the key that signed it: sudo mokutil --import {key}; reboot and confirm.",
        "Or install the driver that your distribution signs.",
        "Or turn off Secure Boot in the firmware.",
    )


def rebuild_initramfs(machine: Machine) -> str:
    """Return how to rebuild the initramfs on this machine."""
    return f"Rebuild the initramfs: {_texts(machine)['initramfs']}; then reboot."


def start_with_gpus(machine: Machine) -> tuple[str, ...]:
    """Return how to give GPUs to a container of this kind."""
    engines = read_table("systems")["engine"]
    name = machine.host.container or ""
    own = engines.get("kubernetes" if name == "kubepods" else name)
    return tuple(own.values()) if own else tuple(texts["start"] for texts in engines.values())


def install_libraries(machine: Machine) -> str:
    """Return how to install the driver's libraries for a module that is already loaded."""
    version = machine.kernel.module_version
    major = (version or "NNN").partition(".")[0]
    packages = _texts(machine).get("libraries", "").format(major)
    wanted = f"Install the driver's libraries, exactly version {version or '(the module)'}"
    return f"{wanted}: {packages}" if packages else f"{wanted}."


def steps_for_gpu(index: int, steps: Iterable[str]) -> tuple[str, ...]:
    """Return the steps with the GPU named, so that a reset does not hit all GPUs."""
    reset = "nvidia-smi --gpu-reset"
    return tuple(step.replace(reset, f"nvidia-smi -i {index} --gpu-reset") for step in steps)


def adapt(machine: Machine, steps: Iterable[str]) -> tuple[str, ...]:
    """Return the steps that apply to this machine, in their order."""
    given = tuple(steps)
    if not given:
        return ()
    if machine.system.unavailable is not None and machine.host.os is None:
        return given  # the kind of machine is unknown
    return tuple(dict.fromkeys(_adapted(machine, given))) or given


def _adapted(machine: Machine, steps: Iterable[str]) -> Iterator[str]:
    places = {
        IN_A_CONTAINER: machine.is_container,
        ON_A_HOST: not machine.is_container and not machine.is_wsl,
        IN_A_VM: bool(machine.system.platform.hypervisor) and not machine.is_wsl,
    }
    for step in steps:
        place = next((place for place in places if step.startswith(place)), None)
        if place is not None:
            if places[place]:
                rest = step if place == IN_A_VM else step.removeprefix(place)
                yield f"{rest[0].upper()}{rest[1:]}"
        elif step.startswith(EITHER_UPGRADE) and machine.is_container:
            yield step.replace(EITHER_UPGRADE, "Either upgrade the driver on the host", 1)
        elif step.startswith(EITHER_UPGRADE) and machine.is_wsl:
            yield step.replace(EITHER_UPGRADE, "Either update the NVIDIA driver in Windows", 1)
        elif machine.is_wsl and not machine.is_container:
            yield _IN_WSL.get(step, step)
        elif machine.is_container and _is(step, _OF_THE_HOST):
            yield f"On the host: {step[0].lower()}{step[1:]}"
        elif places[IN_A_VM] and _is(step, _OF_THE_HARDWARE):
            yield f"Outside the virtual machine: {step[0].lower()}{step[1:]}"
        else:
            yield step


def _is(step: str, kind: str) -> bool:
    elsewhere = re.match(_PLACED, step) or re.search(_OF_A_PYTHON, step)
    return re.search(kind, step) is not None and elsewhere is None


# ----------------------------------------------------------------------------- packages of a Python

#: What selects a Python without making it the shell's own.
NOT_THE_SHELLS = ("--python", "gpucheck")
#: The installers of conda's packages, with the option for another environment than the active one,
#: and how each reinstalls a package.
OF_CONDA: Mapping[str, tuple[str, str, str]] = {
    "conda": ("install", "-p", "conda install --force-reinstall {name}={version}"),
    "pixi": ("add", "--manifest-path", "pixi reinstall {name}"),
}


def name_installer(builds: BuildsReading, step: str) -> str:
    """Return a step with the checked Python's own installer, and its path if it is not active."""
    if builds.python is None:
        return step
    python = shlex.quote(builds.python)
    not_active = builds.named_by in NOT_THE_SHELLS
    if not_active:
        step = re.sub(r"\bpython (?=-X )", lambda _: f"{python} ", step)
        folder = shlex.quote(_environment_of(builds.python))
        for name, (verb, option, _) in OF_CONDA.items():
            for command in (f"{name} {verb}", f"{name} reinstall"):
                step = step.replace(command, f"{command} {option} {folder}")
    pip = r"(?<!uv )\bpip (install|uninstall)( -y)?"
    if "uv" in builds.installers:  # which asks no question
        return re.sub(pip, lambda match: f"uv pip {match[1]} --python {python}", step)
    if not_active:
        return re.sub(pip, lambda match: f"{python} -m {match[0]}", step)
    return step


def _environment_of(python: str) -> str:
    """Return the folder by which conda knows an environment, or pixi its project."""
    return python.partition("/.pixi/")[0] if "/.pixi/" in python else python.rpartition("/bin/")[0]


def install_command(
    builds: BuildsReading,
    build: BuildReading | None,
    commands: Mapping[str, str],
    removes: Iterable[str],
) -> str:
    """Return the command that puts the chosen build in place of the present one.

    `commands` install it, by the name of the installer.
    """
    for name in builds.installers[:1]:
        if name in OF_CONDA and name in commands and (build is None or build.from_conda):
            return commands[name]
    return f"{remove_command(removes)}{commands['pip']}"


def remove_command(packages: Iterable[str]) -> str:
    """Return the command that removes packages before an installation.

    Two packages that own the same files must both go: removing one takes files of the other, which
    pip still believes installed.
    """
    names = " ".join(dict.fromkeys(name.partition(" ")[0] for name in packages))
    return f"pip uninstall -y {names}; " if names else ""


def pinned(packages: Iterable[str]) -> str:
    """Return packages as pip's requirements: "torch==2.15.0 triton==3.4"."""
    return " ".join(package.replace(" ", "==") for package in packages)


def reinstall_command(builds: BuildsReading, build: BuildReading, indexes: str | None) -> str:
    """Return the command that reinstalls the packages of harmed files, else the framework's own.

    `indexes` is where versions such as 2.13.0+cu126 come from.
    """
    commands = []
    packages = build.owners or (() if build.conda_owners else build.distributions or (build.name,))
    if packages:
        local = next((name.partition("+")[2] for name in packages if "+" in name), "")
        index = f" --index-url {indexes}{local}" if local and indexes else ""
        commands.append(f"pip install --force-reinstall --no-deps {pinned(packages)}{index}")
    native = next((name for name in builds.installers if name in OF_CONDA), "conda")
    for package in build.conda_owners:
        name, _, version = package.partition(" ")
        commands.append(OF_CONDA[native][2].format(name=name, version=version))
    return "; ".join(commands)
