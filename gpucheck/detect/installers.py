"""Commands that install and remove packages in the environment that was checked.

Remedies are written for pip. Here they become those of the environment's own installer, for the
Python that was checked and for no other.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from gpucheck.drivers.evidence import BuildReading, BuildsReading

if TYPE_CHECKING:
    from gpucheck.detect.wheels import WheelChoice

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
        for name, (verb, option, _) in OF_CONDA.items():
            folder = shlex.quote(_environment_of(builds.python))
            step = step.replace(f"{name} {verb}", f"{name} {verb} {option} {folder}")
    pip = r"(?<!uv )\bpip (install|uninstall)( -y)?"
    if "uv" in builds.installers:  # which asks no question
        return re.sub(pip, lambda found: f"uv pip {found[1]} --python {python}", step)
    if not_active:
        return re.sub(pip, lambda found: f"{python} -m {found[0]}", step)
    return step


def _environment_of(python: str) -> str:
    """Return the folder by which conda knows an environment, or pixi its project."""
    return python.partition("/.pixi/")[0] if "/.pixi/" in python else python.rpartition("/bin/")[0]


def install_command(
    builds: BuildsReading, build: BuildReading | None, choice: WheelChoice, removes: Iterable[str]
) -> str:
    """Return the command that puts the chosen build in place of the present one."""
    for name in builds.installers[:1]:
        if name in OF_CONDA and name in choice.commands and (build is None or build.from_conda):
            return choice.commands[name]
    return f"{remove_command(removes)}{choice.commands['pip']}"


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
