"""Prerequisites of a limit that the driver enforces on a cgroup, each with the step that helps.

Sources: NVIDIA, "MPS v3 Memory Partitioning" (R615, 2026-09-09) and NVML's API of R615: driver 615,
cgroup v2 at /sys/fs/cgroup, no MIG, root; the kernel's dmem controller (6.14) or the driver's own
back end. systemd's rule for cgroups: only what is delegated may be changed by others.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from gpucheck.drivers.host.cgroups import MOUNT, OwnCgroup
from gpucheck.drivers.host.sysfs import FIRST_DRIVER_WITH_LIMITS, read_text
from gpucheck.drivers.readings import ProbeFailure
from gpucheck.report.envelope import Failure
from gpucheck.report.errors import MissingError

#: The first kernel with the dmem controller.
FIRST_KERNEL_WITH_DMEM = (6, 14)
#: The first nvidia-ml-py with the functions.
BINDING = "nvidia-ml-py>=13.615"
SEE = "See what is wrong: gpucheck detect"
CAPACITY = "See which cards the kernel counts"
OWN_COUNT = "Or let the driver count, and reboot after this"
_DELEGATED = ("user.delegate", "trusted.delegate")
#: The package that installs the newest driver from NVIDIA's own repository, by system.
_PACKAGE_COMMANDS = (
    (("Ubuntu", "Debian"), "apt"),
    (("Red Hat", "Rocky", "Alma", "CentOS", "Fedora", "Amazon", "Oracle"), "dnf"),
    (("SUSE", "openSUSE", "SLES"), "zypper"),
)
_CODES = re.compile(r"([0-9]{1,4})\.([0-9]{1,4})")


@dataclass(frozen=True, slots=True, kw_only=True)
class HardFacts:
    """What the prerequisites are judged by; `words` are those that gpucheck was called with.

    `place` is where the group can be made, or what is missing for that (None: no version 2).
    `mig_indices` are the GPUs in MIG mode, `failure` is NVML's answer to a first question.
    """

    os_name: str
    kernel: str
    driver_version: str | None
    is_root: bool
    group: OwnCgroup
    mig_indices: Sequence[int] = ()
    place: str | Failure | None = None
    failure: ProbeFailure | None = None
    python: str = "python3"
    words: Sequence[str] = ()
    search_path: str = ""


def _missing(name: str, fact: str, step: str) -> Failure:
    """Return the failure of a prerequisite that is not met, with the step or command that helps."""
    return Failure(code=f"no-hard-limit-{name}", message=fact, remedy=(step,))


def missing_prerequisites(facts: HardFacts) -> list[Failure]:
    """Return every prerequisite that is not met, the most basic first."""
    return [*_missing_in_driver(facts), *_missing_in_system(facts), *_missing_in_gpus(facts)]


def _missing_in_driver(facts: HardFacts) -> Iterator[Failure]:
    version = facts.driver_version or ""
    major = version.partition(".")[0]
    needed = FIRST_DRIVER_WITH_LIMITS
    if not (major.isdecimal() and int(major) >= needed):
        fact = f"the driver is {version}" if version else "the driver's version is unknown"
        yield _missing("driver", f"{fact}, and {needed} or newer is needed", _new_driver(facts))
        return
    if facts.failure is None:
        return
    missing = missing_by_nvml(facts, facts.failure)
    if missing is not None:
        yield missing


def _new_driver(facts: HardFacts) -> str:
    for names, tool in _PACKAGE_COMMANDS:
        if facts.os_name.startswith(names):
            return f"From NVIDIA's repository, then reboot: sudo {tool} install nvidia-open"
    return f"Install NVIDIA driver {FIRST_DRIVER_WITH_LIMITS} or newer, then reboot."


def _missing_in_system(facts: HardFacts) -> Iterator[Failure]:
    if facts.group.version != 2:
        state = "version 1" if facts.group.version == 1 else "not mounted"
        fact = f"the cgroup tree at /{MOUNT} is {state}, and version 2 is needed"
        yield _missing("cgroup", fact, _unified_tree(facts))
    elif facts.is_root and isinstance(facts.place, Failure):
        yield facts.place
    if not facts.is_root:
        words = " ".join(shlex.quote(word) for word in facts.words)
        path = shlex.quote(f"PATH={facts.search_path}") if facts.search_path else ""
        command = " ".join(part for part in ("sudo -E env", path, words) if part)
        yield _missing("root", "only root may set such a limit", command)


def _unified_tree(facts: HardFacts) -> str:
    """Return how systemd is told to mount version 2; in a container that is the host's matter."""
    word = "systemd.unified_cgroup_hierarchy=1"
    if any(facts.os_name.startswith(names) for names, tool in _PACKAGE_COMMANDS if tool == "dnf"):
        return f"Then reboot: sudo grubby --update-kernel=ALL --args={word}"
    return (
        f"On the host, write {word} into GRUB_CMDLINE_LINUX of /etc/default/grub."
        " Then, before a reboot: sudo update-grub"
    )


def _missing_in_gpus(facts: HardFacts) -> Iterator[Failure]:
    if facts.mig_indices:
        numbers = ",".join(map(str, facts.mig_indices))
        many = len(facts.mig_indices) > 1
        which = f"GPUs {numbers} are" if many else f"GPU {numbers} is"
        yield _missing(
            "mig",
            f"{which} in MIG mode, where the driver has no such limit",
            "Use a MIG instance as the limit, or another GPU (--gpu). Or turn MIG off:"
            f" sudo nvidia-smi -i {numbers} -mig 0",
        )


def missing_by_nvml(facts: HardFacts, failure: ProbeFailure) -> Failure | None:
    """Return the prerequisite that NVML's refusal shows; None if only no limit is set."""
    message = failure.message
    if failure.code == "binding-too-old":
        fact = "the installed nvidia-ml-py is older than NVML's functions for it"
        return _missing("binding", fact, f"{facts.python} -m pip install -U '{BINDING}'")
    if failure.code == "function-not-found":
        fact = "libnvidia-ml.so.1 lacks nvmlDeviceSetMemoryLimits_v1"
        step = "Install the libnvidia-ml.so.1 of the loaded driver; see: gpucheck detect"
        return _missing("function", fact, step)
    if failure.code in ("not-found", "not-supported"):
        return None
    return _missing("nvml", f"NVML does not answer the question for it: {message}", SEE)


def refused_limit(facts: HardFacts, failure: ProbeFailure, group: Path) -> Failure:
    """Return which prerequisite NVML's refusal to set a limit points to."""
    if failure.code == "no-permission":
        return _missing(
            "root",
            "NVML gives only the host's root the right to set it, and this root is not",
            "Run it on the host, or in a container with the host's root: docker run --privileged",
        )
    if failure.code == "not-found":
        return _no_dmem_files(group)
    if failure.code == "not-supported":
        match = _CODES.match(facts.kernel)
        number = (int(match[1]), int(match[2])) if match else (0, 0)
        if number < FIRST_KERNEL_WITH_DMEM:
            fact = (
                f"the kernel is {facts.kernel} without the dmem controller (6.14), and this driver"
                " has no back end of its own"
            )
            option = 'options nvidia NVreg_RegistryDwords="RmMemacctMode=3"'
            step = f"echo '{option}' | sudo tee /etc/modprobe.d/nvidia-memory.conf"
            return _missing("kernel", fact, f"Boot a kernel from 6.14 on. {OWN_COUNT}: {step}")
        fact = f"NVML does not support it on this GPU with kernel {facts.kernel}"
        return _missing("kernel", fact, f"{CAPACITY}: cat /sys/fs/cgroup/dmem.capacity")
    known = missing_by_nvml(facts, failure)
    return known or _missing("nvml", f"NVML refused the limit: {failure.message}", SEE)


def _no_dmem_files(group: Path) -> Failure:
    parent = group.parent
    return _missing(
        "delegation",
        f"the kernel's dmem controller is not on for groups below {parent}",
        f"echo +dmem | sudo tee {parent}/cgroup.subtree_control",
    )


def error_of(missing: Sequence[Failure], amount: str, command: Sequence[str]) -> MissingError:
    """Return the error that names every missing prerequisite, and the way that needs none."""
    facts = "; ".join(part.message for part in missing)
    cooperative = shlex.join(("gpucheck", "memlimit", amount, "--", *command))
    steps = (step for part in missing for step in part.remedy)
    remedy = (*steps, f"Without it, by the frameworks: {cooperative}")
    return MissingError(
        code=missing[0].code,
        message=f"The driver cannot limit the command here: {facts}.",
        remedy=remedy,
    )


# -------------------------------------------------------------------------- where the group is made


def choose_place(root: Path, group: OwnCgroup, scope_program: str | None) -> str | Failure:
    """Return `own` or `scope`, or what is missing for either.

    A scope is made right below the root of the tree. There no group above it can keep what the
    driver reserves for a soft limit, even if systemd removes the group before that is given back.
    """
    own, mount = group.folder, root / MOUNT
    if own is not None and _is_delegated(root, own) and _has_dmem_for_children(own, mount):
        return "own"
    systemd = (root / "run/systemd/system").is_dir()
    if systemd and scope_program is not None:
        return "scope" if _has_dmem_for_children(mount, mount) else _no_dmem_files(mount / "group")
    if own is not None and os.access(own, os.W_OK) and not _has_dmem_for_children(own, mount):
        return _no_dmem_files(own / "group")
    where = f"/{MOUNT}" if own is None else str(own)
    fact = f"no group may be made below {where}: it is not delegated to us"
    if (root / ".dockerenv").exists() or (root / "run/.containerenv").exists():
        step = (
            "Give the container its own writable groups: docker run --privileged --cgroupns=private"
        )
    else:
        step = "Start it in a group of its own: systemd-run --scope -p Delegate=yes gpucheck"
    return _missing("delegation", fact, step)


def _is_delegated(root: Path, own: Path) -> bool:
    """Return whether we may make groups below ours: systemd marks those that it gives away."""
    if not os.access(own, os.W_OK):
        return False
    if not (root / "run/systemd/system").is_dir():
        return True
    mount = root / MOUNT
    level = own
    while True:
        for name in _DELEGATED:
            try:
                if os.getxattr(level, name) == b"1":
                    return True
            except OSError:
                continue
        if level in (mount, level.parent):
            return False
        level = level.parent


def _has_dmem_for_children(parent: Path, mount: Path) -> bool:
    """Return whether a group made below `parent` gets dmem's files, or the kernel has no dmem."""
    known = (read_text(mount / "cgroup.controllers") or "").split()
    if "dmem" not in known and not (mount / "dmem.capacity").exists():
        return True
    return "dmem" in (read_text(parent / "cgroup.subtree_control") or "").split()
