"""Causes of a kernel module that is not loaded, by the first sign that explains it."""

from __future__ import annotations

from gpucheck.detect.checks.advice import (
    build_module,
    install_driver,
    rebuild_initramfs,
    sign_module,
)
from gpucheck.detect.checks.machine import KERNEL_LOG, Machine
from gpucheck.detect.checks.module_trouble import line_with
from gpucheck.detect.checks.reason import Reason
from gpucheck.report.envelope import Evidence

SOURCE = "/sys/module/nvidia"
OF_THE_HOST = "module-of-the-host"
#: The names of the causes.
CAUSES = (
    "driver-not-installed",
    "module-not-built",
    "module-blocked",
    "module-does-not-fit",
    "module-not-loaded",
    OF_THE_HOST,
    "secure-boot",
)
#: Source: Linux, kernel/module/signing.c and security/lockdown; the others are modprobe's messages.
REFUSED_BY_KERNEL = (
    r"Loading of .* is rejected|module loading is restricted"
    "|Key was rejected|Required key not available"
)
#: Source: Linux, kernel/module/main.c and version.c.
OF_ANOTHER_KERNEL = (
    r"nvidia: (?:version magic|disagrees about version|Unknown symbol|no symbol version)"
)


def why_absent(machine: Machine) -> Reason:
    """Return why the module is not loaded, by the first sign that explains it."""
    for explain in CAUSES_OF_ABSENCE:
        found = explain(machine)
        if found is not None:
            return found
    return _missing(
        "module-not-loaded",
        "the nvidia kernel module is not loaded",
        Evidence(source=SOURCE, value="absent"),
        remedy=(
            "Load it: sudo modprobe nvidia",
            "If that fails: install the driver for this kernel, and reboot.",
        ),
    )


def _missing(cause: str, summary: str, *evidence: Evidence, remedy: tuple[str, ...]) -> Reason:
    return Reason(cause, summary, evidence, remedy)


def _of_the_host(machine: Machine) -> Reason | None:
    if not machine.is_container:
        return None
    return _missing(
        OF_THE_HOST,
        "the nvidia kernel module is not loaded on the container's host",
        Evidence(source=SOURCE, value="absent"),
        remedy=("On the host: install the driver and load it (sudo modprobe nvidia).",),
    )


def _refused(machine: Machine) -> Reason | None:
    """Find a message of the kernel or modprobe that the module's signature was rejected."""
    log = machine.system.log
    line = line_with(log, REFUSED_BY_KERNEL)
    if line is None:
        return None
    return _missing(
        "secure-boot",
        "the kernel rejects the nvidia module, whose signature it does not know (Secure Boot)",
        Evidence(source=log.source, value=line),
        _secure_boot(machine),
        remedy=sign_module(machine),
    )


def _suspected(machine: Machine) -> Reason | None:
    """Suspect Secure Boot if the module is installed and nothing else explains its absence."""
    installed = machine.system.module.installed
    if machine.system.platform.secure_boot is not True or not installed:
        return None
    return _missing(
        "secure-boot",
        "the nvidia module is installed, but not loaded: Secure Boot is on and may reject it",
        _secure_boot(machine),
        Evidence(source="modules.dep", value=installed[0]),
        remedy=(
            "Try to load it: sudo modprobe nvidia (`Key was rejected` means Secure Boot)",
            *sign_module(machine),
        ),
    )


def _secure_boot(machine: Machine) -> Evidence:
    on = machine.system.platform.secure_boot
    return Evidence(
        source="firmware variable SecureBoot", value="unreadable" if on is None else str(int(on))
    )


def _blocked(machine: Machine) -> Reason | None:
    blocked = machine.system.module.blocked_by
    words = [w for w in machine.system.platform.boot_parameters if "blacklist=" in w]
    words = [word for word in words if "nvidia" in word]
    if not blocked and not words:
        return None
    evidence = [Evidence(source=line.partition(": ")[0], value=line.partition(": ")[2])
                for line in blocked]  # fmt: skip
    evidence += [Evidence(source="/proc/cmdline", value=word) for word in words]
    profile = machine.system.platform.prime_profile
    return _missing(
        "module-blocked",
        "the nvidia kernel module is blocked from loading",
        *evidence,
        remedy=(
            *("Turn the GPU on: sudo prime-select on-demand; reboot.",) * (profile is not None),
            f"Remove the lines that block it. {rebuild_initramfs(machine)}",
        ),
    )


def _not_built(machine: Machine) -> Reason | None:
    module = machine.system.module
    if module.installed != () or not (module.other_kernels or module.dkms_versions):
        return None
    running = machine.host.kernel or "this one"
    evidence = [Evidence(source=f"/lib/modules/{running}", value="no nvidia.ko")]
    evidence += [Evidence(source=f"/lib/modules/{name}", value="nvidia.ko")
                 for name in module.other_kernels]  # fmt: skip
    evidence += [Evidence(source="/var/lib/dkms", value=name) for name in module.dkms_versions]
    return _missing(
        "module-not-built",
        f"the driver is installed, but its module is not built for the running kernel {running}",
        *evidence,
        remedy=build_module(machine),
    )


def _does_not_fit(machine: Machine) -> Reason | None:
    """Find a message that the module on disk was built for another kernel."""
    log = machine.system.log
    line = line_with(log, OF_ANOTHER_KERNEL)
    if line is None:
        return None
    return _missing(
        "module-does-not-fit",
        "the kernel rejects the nvidia module on disk, which was built for another kernel",
        Evidence(source=log.source, value=line),
        remedy=build_module(machine),
    )


def _not_installed(machine: Machine) -> Reason | None:
    if machine.system.module.installed != ():
        return None
    running = machine.host.kernel or "this one"
    return _missing(
        "driver-not-installed",
        "the NVIDIA driver is not installed: there is no nvidia module on disk",
        Evidence(source=f"/lib/modules/{running}/modules.dep", value="no nvidia.ko"),
        Evidence(source=SOURCE, value="absent"),
        remedy=(install_driver(machine),),
    )


def _not_loaded(machine: Machine) -> Reason | None:
    installed = machine.system.module.installed
    if not installed:
        return None
    return _missing(
        "module-not-loaded",
        "the nvidia kernel module is installed for this kernel, but not loaded",
        Evidence(source="modules.dep", value=installed[0]),
        Evidence(source=SOURCE, value="absent"),
        remedy=("Load it: sudo modprobe nvidia", KERNEL_LOG),
    )


#: The first one that explains it is reported.
CAUSES_OF_ABSENCE = (
    _of_the_host,
    _refused,
    _blocked,
    _not_built,
    _not_installed,
    _does_not_fit,
    _suspected,
    _not_loaded,
)
