"""Is NVIDIA's kernel module loaded, does it own the GPUs, and is it of the right kind?"""

from __future__ import annotations

from gpucheck.core.checks.machine import KERNEL_LOG, Machine, count_of
from gpucheck.core.checks.module_trouble import (
    TOLD_CAUSES,
    line_with,
    told_by_log,
    wrong_flavour,
)
from gpucheck.core.checks.reason import Reason
from gpucheck.models.finding import About, CheckStatus, Evidence, Finding, Layer
from gpucheck.models.snapshot import PciDeviceReading

ID = "kernel-module"
LAYER = Layer.KERNEL
REQUIRES: tuple[str, ...] = ("pci-device",)

SOURCE = "/sys/module/nvidia"

#: Who may hold a GPU instead, and what to do about it.
FOR_A_VM = (
    "It is reserved for a virtual machine: use it there.",
    "If that is not intended: remove its id from vfio-pci.ids or pci-stub.ids (kernel command line,"
    " modprobe.d) and reboot.",
)
SIGN = (
    "Enroll the key that signed it: sudo mokutil --import KEY.der; reboot and confirm.",
    "Or install the driver that your distribution has signed.",
    "Or turn Secure Boot off in the firmware.",
)
OTHER_DRIVERS: dict[str, tuple[str, ...]] = {
    "nouveau": (
        "Blacklist nouveau: write `blacklist nouveau` and `options nouveau modeset=0` into"
        " /etc/modprobe.d/blacklist-nouveau.conf",
        "Rebuild the initramfs (sudo update-initramfs -u, or sudo dracut --force) and reboot.",
        "Install NVIDIA's driver, if it is not: its package also blacklists nouveau.",
    ),
    "nova_core": (
        "Blacklist nova, nova_core and nova_drm (/etc/modprobe.d), rebuild the initramfs and"
        " reboot.",
        "Or update the kernel: newer packages no longer bind it by themselves.",
    ),
    "vfio-pci": FOR_A_VM,
    "pci-stub": FOR_A_VM,
}

ABOUT = About(
    looks_at=(
        "/sys/bus/pci/devices/<id>/driver: who holds the GPU",
        f"{SOURCE}, /proc/driver/nvidia/version, /proc/driver/nvidia/gpus/*/information",
        "/lib/modules/<kernel>/modules.dep, /var/lib/dkms, modprobe.d",
        "the SecureBoot variable of the firmware; the kernel log where it may be read",
    ),
    why="Without its module there are no device files, and both NVML and CUDA refuse.",
    rules=(
        "fail: another driver holds every GPU, the module is not loaded, or it took none of them",
        "warn: another driver holds some of the GPUs, or it left out some of them",
        "the open flavour needs Turing or newer, Blackwell needs the open flavour",
    ),
    sources=(
        "NVIDIA driver README, chapters on nouveau and on the open kernel modules",
        "open-gpu-kernel-modules: messages of nv.c and osapi.c",
        "PCI ids: Turing starts at 0x1e00, Blackwell at 0x2900 (pci.ids)",
    ),
    causes=(
        *(f"held-by-{name.replace('_', '-')}" for name in OTHER_DRIVERS),
        "driver-not-installed",
        "module-not-built",
        "module-blocked",
        "module-not-loaded",
        "module-of-the-host",
        "secure-boot",
        "gpu-excluded",
        "gpu-not-taken",
        *TOLD_CAUSES,
        "modules-not-readable",
    ),
)


def check(machine: Machine) -> Finding:
    """Look at the module and at the drivers bound to the PCI devices."""
    kernel = machine.kernel
    if machine.is_wsl:
        return _skip("WSL2: the Windows driver is used, Linux needs no module")
    if machine.is_jetson:
        return _skip("Jetson: the driver is part of the board's own kernel")
    held = [device for device in kernel.pci_devices or () if device.driver in OTHER_DRIVERS]
    every = len(held) == len(kernel.pci_devices or ())
    # A container sees the bus of its host, and what others have of it.
    if held and (every or (kernel.module_loaded and not machine.is_container)):
        return _held(held, len(kernel.pci_devices or ()))
    if kernel.module_loaded is None:
        return Finding(
            id=ID,
            layer=LAYER,
            status=CheckStatus.UNKNOWN,
            summary="the list of kernel modules could not be read",
            evidence=(
                Evidence(source="/sys/module", value=kernel.pci_unavailable or "unreadable"),
            ),
            remedy=("Run gpucheck where /sys can be read: a sandbox may hide it.",),
            cause="modules-not-readable",
        )
    return _loaded(machine) if kernel.module_loaded else _absent(machine)


def _skip(summary: str) -> Finding:
    return Finding(id=ID, layer=LAYER, status=CheckStatus.SKIP, summary=summary)


def _held(held: list[PciDeviceReading], count: int) -> Finding:
    """Another driver has GPUs: of some of several, that may well be meant."""
    driver = held[0].driver or ""
    if len(held) == count == 1:
        summary = f"{held[0].pci_bus_id} is held by {driver}, not by nvidia"
    else:
        names = ", ".join(device.pci_bus_id for device in held)
        summary = f"{len(held)} of {count_of(count)} are held by {driver}, not by nvidia: {names}"
    return Finding(
        id=ID,
        layer=LAYER,
        status=CheckStatus.FAIL if len(held) == count else CheckStatus.WARN,
        summary=summary,
        evidence=tuple(
            Evidence(
                source=f"/sys/bus/pci/devices/{device.pci_bus_id}/driver", value=device.driver or ""
            )
            for device in held
        ),
        remedy=OTHER_DRIVERS[driver],
        cause=f"held-by-{driver.replace('_', '-')}",
    )


# ------------------------------------------------------------------------------ not loaded


def _absent(machine: Machine) -> Finding:
    """Say why the module is not there, by the first sign that explains it."""
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


def _missing(cause: str, summary: str, *evidence: Evidence, remedy: tuple[str, ...]) -> Finding:
    return Finding(
        id=ID,
        layer=LAYER,
        status=CheckStatus.FAIL,
        summary=summary,
        evidence=evidence,
        remedy=remedy,
        cause=cause,
    )


def _of_the_host(machine: Machine) -> Finding | None:
    if not machine.is_container:
        return None
    return _missing(
        "module-of-the-host",
        "the nvidia kernel module is not loaded on the container's host",
        Evidence(source=SOURCE, value="absent"),
        remedy=("On the host: install the driver and load it (sudo modprobe nvidia).",),
    )


def _refused(machine: Machine) -> Finding | None:
    """Take the log's word that the module's signature was refused."""
    log = machine.system.log
    line = line_with(log, "Key was rejected|Required key not available")
    if line is None:
        return None
    return _missing(
        "secure-boot",
        "the kernel refuses the nvidia module, whose signature it does not know (Secure Boot)",
        Evidence(source=log.source, value=line),
        _secure_boot(machine),
        remedy=SIGN,
    )


def _suspected(machine: Machine) -> Finding | None:
    """Suspect Secure Boot, where the module is there and nothing else explains its absence."""
    installed = machine.system.module.installed
    if machine.system.platform.secure_boot is not True or not installed:
        return None
    return _missing(
        "secure-boot",
        "the nvidia module is installed, but not loaded: Secure Boot is on and may refuse it",
        _secure_boot(machine),
        Evidence(source="modules.dep", value=installed[0]),
        remedy=(
            "See what it says: sudo modprobe nvidia (`Key was rejected`: it is Secure Boot)",
            *SIGN,
        ),
    )


def _secure_boot(machine: Machine) -> Evidence:
    on = machine.system.platform.secure_boot
    return Evidence(
        source="firmware variable SecureBoot", value="unreadable" if on is None else str(int(on))
    )


def _blocked(machine: Machine) -> Finding | None:
    blocked = machine.system.module.blocked_by
    words = [w for w in machine.system.platform.boot_parameters if "blacklist=" in w]
    words = [word for word in words if "nvidia" in word]
    if not blocked and not words:
        return None
    evidence = [Evidence(source=line.partition(": ")[0], value=line.partition(": ")[2])
                for line in blocked]  # fmt: skip
    evidence += [Evidence(source="/proc/cmdline", value=word) for word in words]
    return _missing(
        "module-blocked",
        "the nvidia kernel module is kept from loading",
        *evidence,
        remedy=(
            "On a laptop with switchable graphics: sudo prime-select on-demand; reboot.",
            "Otherwise remove the lines named here, rebuild the initramfs and reboot.",
        ),
    )


def _not_built(machine: Machine) -> Finding | None:
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
        remedy=(
            f"Install this kernel's headers (package linux-headers-{running}).",
            "Build the module: sudo dkms autoinstall; then reboot.",
        ),
    )


def _not_installed(machine: Machine) -> Finding | None:
    if machine.system.module.installed != ():
        return None
    running = machine.host.kernel or "this one"
    return _missing(
        "driver-not-installed",
        "the NVIDIA driver is not installed: there is no nvidia module on disk",
        Evidence(source=f"/lib/modules/{running}/modules.dep", value="no nvidia.ko"),
        Evidence(source=SOURCE, value="absent"),
        remedy=(
            "Install the driver: your distribution's package, on Ubuntu: sudo ubuntu-drivers"
            " install; then reboot.",
        ),
    )


def _not_loaded(machine: Machine) -> Finding | None:
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


#: The first that explains it is the one that is told.
CAUSES_OF_ABSENCE = (
    _of_the_host,
    _refused,
    _blocked,
    _not_built,
    _not_installed,
    _suspected,
    _not_loaded,
)


# ------------------------------------------------------------------------------ loaded


def _loaded(machine: Machine) -> Finding:
    taken = machine.system.module.driver_gpus
    devices = machine.kernel.pci_devices or ()
    # A container is often shown fewer GPUs than its host's bus has.
    if taken is not None and not machine.is_container:
        excluded = machine.system.module.excluded_gpus
        if excluded:
            return _excluded(excluded, len(devices))
        left = [device for device in devices if device.pci_bus_id not in taken]
        if left:
            return _left_out(machine, left, len(devices))
    version = machine.kernel.module_version or "unknown version"
    evidence = [Evidence(source=f"{SOURCE}/version", value=version)]
    if machine.system.module.flavour is not None:
        flavour = Evidence(
            source="/proc/driver/nvidia/version", value=machine.system.module.flavour
        )
        evidence.append(flavour)
    return Finding(
        id=ID,
        layer=LAYER,
        status=CheckStatus.OK,
        summary=f"the nvidia module is loaded ({version})",
        evidence=tuple(evidence),
    )


def _excluded(excluded: tuple[str, ...], count: int) -> Finding:
    every = len(excluded) >= count
    return Finding(
        id=ID,
        layer=LAYER,
        status=CheckStatus.FAIL if every else CheckStatus.WARN,
        summary=f"the driver is told to leave out {len(excluded)} of {count_of(count)}",
        evidence=tuple(
            Evidence(
                source=f"/proc/driver/nvidia/gpus/{gpu}/information", value="GPU Excluded: Yes"
            )
            for gpu in excluded
        ),
        remedy=("Remove NVreg_ExcludedGpus from modprobe.d or the kernel's command line; reboot.",),
        cause="gpu-excluded",
    )


def _left_out(machine: Machine, left: list[PciDeviceReading], count: int) -> Finding:
    """The module is loaded, and its own list lacks GPUs that the bus has."""
    trouble = wrong_flavour(machine, left) or told_by_log(machine)
    cause, summary, evidence, remedy = trouble or Reason(
        "gpu-not-taken",
        "",
        (),
        (
            KERNEL_LOG,
            "Check that this driver release supports the GPU; reinstall it as one version and"
            " reboot.",
        ),
    )
    what = f"the nvidia module is loaded, but did not take {count_of(len(left))}"
    return Finding(
        id=ID,
        layer=LAYER,
        status=CheckStatus.FAIL if len(left) == count else CheckStatus.WARN,
        summary=f"{what}: {summary}" if summary else what,
        evidence=(
            *(
                Evidence(
                    source="/proc/driver/nvidia/gpus",
                    value=f"{device.pci_bus_id} (device {device.device_id or '?'}) is not in it",
                )
                for device in left
            ),
            *evidence,
        ),
        remedy=remedy,
        cause=cause,
    )
