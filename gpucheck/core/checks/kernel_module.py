"""Is NVIDIA's kernel module loaded, does it own the GPUs, and is it of the right kind?"""

from __future__ import annotations

from gpucheck.core.checks.machine import KERNEL_LOG, Machine, count_of
from gpucheck.models.evidence import KernelLogReading
from gpucheck.models.finding import About, CheckStatus, Evidence, Finding, Layer
from gpucheck.models.snapshot import PciDeviceReading

ID = "kernel-module"
LAYER = Layer.KERNEL
REQUIRES: tuple[str, ...] = ("pci-device",)

SOURCE = "/sys/module/nvidia"
ABOUT = About(
    looks_at=(
        "/sys/bus/pci/devices/<id>/driver: who holds the GPU",
        f"{SOURCE}, /proc/driver/nvidia/version, /proc/driver/nvidia/gpus/*/information",
        "/lib/modules/<kernel>/modules.dep, /var/lib/dkms, modprobe.d",
        "the SecureBoot variable of the firmware; the kernel log where it may be read",
    ),
    why="Without its module there are no device files, and both NVML and CUDA refuse.",
    rules=(
        "fail: another driver holds a GPU, the module is not loaded, or it took none of the GPUs",
        "warn: it left out some of them",
        "the open flavour needs Turing or newer, Blackwell needs the open flavour",
    ),
    sources=(
        "NVIDIA driver README, chapters on nouveau and on the open kernel modules",
        "open-gpu-kernel-modules: messages of nv.c and osapi.c",
        "PCI ids: Turing starts at 0x1e00, Blackwell at 0x2900 (pci.ids)",
    ),
)

#: Who may hold a GPU instead, and what to do about it.
OTHER_DRIVERS = {
    "nouveau": "Blacklist nouveau (modprobe.d), rebuild the initramfs and reboot.",
    "nova_core": "Blacklist nova, nova_core and nova_drm (modprobe.d) and reboot.",
    "vfio-pci": "It is reserved for a virtual machine; if not intended, bind it to nvidia again.",
    "pci-stub": "It is reserved for a virtual machine; if not intended, bind it to nvidia again.",
}
FIRST_TURING = 0x1E00
FIRST_BLACKWELL = 0x2900

#: What the driver writes to the kernel log, and what that means in one phrase.
TOLD_BY_LOG = (
    ("Key was rejected", "the kernel refused the module's signature"),
    ("Required key not available", "the kernel refused the module's signature"),
    ("not supported by open nvidia.ko", "the open module does not support this GPU"),
    ("is not supported by the NVIDIA", "this driver release does not support this GPU"),
    ("probe routine was not called", "another driver had taken the GPU"),
    ("RmInitAdapter failed", "the driver could not initialise the GPU"),
    ("has fallen off the bus", "the GPU has fallen off the bus"),
)


def check(machine: Machine) -> Finding:
    """Look at the module and at the drivers bound to the PCI devices."""
    kernel = machine.kernel
    if machine.is_wsl:
        return _skip("WSL2: the Windows driver is used, Linux needs no module")
    if machine.is_jetson:
        return _skip("Jetson: the driver is part of the board's own kernel")
    for device in kernel.pci_devices or ():
        if device.driver in OTHER_DRIVERS:
            return _held(device.pci_bus_id, device.driver)
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
        )
    return _loaded(machine) if kernel.module_loaded else _absent(machine)


def _skip(summary: str) -> Finding:
    return Finding(id=ID, layer=LAYER, status=CheckStatus.SKIP, summary=summary)


def _held(pci_bus_id: str, driver: str) -> Finding:
    return Finding(
        id=ID,
        layer=LAYER,
        status=CheckStatus.FAIL,
        summary=f"{pci_bus_id} is held by {driver}, not by nvidia",
        evidence=(Evidence(source=f"/sys/bus/pci/devices/{pci_bus_id}/driver", value=driver),),
        remedy=(OTHER_DRIVERS[driver],),
    )


# ------------------------------------------------------------------------------ not loaded


def _absent(machine: Machine) -> Finding:
    """Say why the module is not there, by the first sign that explains it."""
    for explain in (_of_the_host, _refused, _blocked, _not_built, _not_installed, _not_loaded):
        found = explain(machine)
        if found is not None:
            return found
    return _missing(
        "the nvidia kernel module is not loaded",
        Evidence(source=SOURCE, value="absent"),
        remedy=(
            "Load it: sudo modprobe nvidia",
            "If that fails: install the driver for this kernel, and reboot.",
        ),
    )


def _missing(summary: str, *evidence: Evidence, remedy: tuple[str, ...]) -> Finding:
    return Finding(
        id=ID,
        layer=LAYER,
        status=CheckStatus.FAIL,
        summary=summary,
        evidence=evidence,
        remedy=remedy,
    )


def _of_the_host(machine: Machine) -> Finding | None:
    if not machine.is_container:
        return None
    return _missing(
        "the nvidia kernel module is not loaded on the container's host",
        Evidence(source=SOURCE, value="absent"),
        remedy=("On the host: install the driver and load it (sudo modprobe nvidia).",),
    )


def _refused(machine: Machine) -> Finding | None:
    """Secure Boot, where the module is there, or the log's word that its signature was refused."""
    installed = machine.system.module.installed
    line = _line_with(machine.system.log, "Key was rejected", "Required key not available")
    on = machine.system.platform.secure_boot is True
    if line is None and not (on and installed):
        return None
    evidence = [Evidence(source="firmware variable SecureBoot", value="1" if on else "?")]
    if installed:
        evidence.append(Evidence(source="modules.dep", value=installed[0]))
    if line is not None:
        evidence.append(Evidence(source=machine.system.log.source, value=line))
    return _missing(
        "Secure Boot is on and the nvidia module, which is installed, is not loaded:"
        " it refuses modules without a known signature",
        *evidence,
        remedy=(
            "Enroll the key that signed it: sudo mokutil --import KEY.der; reboot and confirm.",
            "Or install the driver that your distribution has signed.",
            "Or turn Secure Boot off in the firmware.",
        ),
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
        "the nvidia kernel module is installed for this kernel, but not loaded",
        Evidence(source="modules.dep", value=installed[0]),
        Evidence(source=SOURCE, value="absent"),
        remedy=("Load it: sudo modprobe nvidia", KERNEL_LOG),
    )


def _line_with(log: KernelLogReading, *words: str) -> str | None:
    """Return the newest line of the kernel log that has one of these words."""
    lines = reversed(log.lines or ())
    return next((line for line in lines if any(word in line for word in words)), None)


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
    )


def _left_out(machine: Machine, left: list[PciDeviceReading], count: int) -> Finding:
    """The module is loaded, and its own list lacks GPUs that the bus has."""
    every = len(left) == count
    summary, remedy = _why_left_out(machine, left)
    evidence = [
        Evidence(
            source="/proc/driver/nvidia/gpus",
            value=f"{device.pci_bus_id} (device {device.device_id or '?'}) is not in it",
        )
        for device in left
    ]
    flavour = machine.system.module.flavour
    if flavour is not None:
        evidence.append(Evidence(source="/proc/driver/nvidia/version", value=flavour))
    line = _line_with(machine.system.log, *(words for words, _ in TOLD_BY_LOG))
    if line is not None:
        evidence.append(Evidence(source=machine.system.log.source, value=line))
    return Finding(
        id=ID,
        layer=LAYER,
        status=CheckStatus.FAIL if every else CheckStatus.WARN,
        summary=summary,
        evidence=tuple(evidence),
        remedy=remedy,
    )


def _why_left_out(machine: Machine, left: list[PciDeviceReading]) -> tuple[str, tuple[str, ...]]:
    flavour = machine.system.module.flavour
    number = _number(left[0])
    if flavour == "open" and number is not None and number < FIRST_TURING:
        return (
            "the open kernel module is loaded, which supports no GPU older than Turing",
            ("Install the proprietary flavour of a driver branch that still supports this GPU.",),
        )
    if flavour == "proprietary" and number is not None and number >= FIRST_BLACKWELL:
        return (
            "the proprietary kernel module is loaded, and Blackwell GPUs need the open one",
            ("Install the driver's open flavour (package names end in -open); reboot.",),
        )
    log = machine.system.log
    line = _line_with(log, *(words for words, _ in TOLD_BY_LOG))
    said = next((meaning for words, meaning in TOLD_BY_LOG if line and words in line), None)
    summary = f"the nvidia module is loaded, but did not take {count_of(len(left))}"
    if said is not None:
        summary = f"{summary}: {said}"
    return summary, (
        KERNEL_LOG,
        "Check that this driver release supports the GPU; reinstall it as one version and reboot.",
    )


def _number(device: PciDeviceReading) -> int | None:
    try:
        return int(device.device_id or "", 16)
    except ValueError:
        return None
