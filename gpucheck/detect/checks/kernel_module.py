"""Is NVIDIA's kernel module loaded, does it own the GPUs, and is it the right kind?"""

from __future__ import annotations

from gpucheck.detect.checks.advice import install_driver, rebuild_initramfs
from gpucheck.detect.checks.machine import KERNEL_LOG, Machine, count_of
from gpucheck.detect.checks.module_absence import CAUSES, SOURCE, why_absent
from gpucheck.detect.checks.module_trouble import TOLD_CAUSES, told_by_log, wrong_flavour
from gpucheck.detect.checks.reason import Reason
from gpucheck.detect.model import About, Finding, Layer
from gpucheck.drivers.readings import PciDeviceReading
from gpucheck.report.envelope import CheckStatus, Evidence

ID = "kernel-module"
LAYER = Layer.KERNEL
REQUIRES: tuple[str, ...] = ("pci-device",)


#: Drivers that may hold a GPU instead, and the remedy.
FOR_A_VM = (
    "It is reserved for a virtual machine: use it there.",
    "If that is not intended: remove its id from vfio-pci.ids or pci-stub.ids (kernel command line,"
    " modprobe.d) and reboot.",
)
#: Placeholder for rebuild_initramfs, which knows the distribution.
REBUILD = "Rebuild the initramfs and reboot."
OTHER_DRIVERS: dict[str, tuple[str, ...]] = {
    "nouveau": (
        "Blacklist nouveau: write `blacklist nouveau` and `options nouveau modeset=0` into"
        " /etc/modprobe.d/blacklist-nouveau.conf",
        REBUILD,
    ),
    "nova_core": (
        "Blacklist it: write `blacklist nova`, `blacklist nova_core` and `blacklist nova_drm` into"
        " /etc/modprobe.d/blacklist-nova.conf",
        REBUILD,
        "Or update the kernel: newer packages no longer bind it by themselves.",
    ),
    "vfio-pci": FOR_A_VM,
    "pci-stub": FOR_A_VM,
}

ABOUT = About(
    looks_at=(
        "/sys/bus/pci/devices/<id>/driver: which driver holds the GPU",
        f"{SOURCE}, /proc/driver/nvidia/version, /proc/driver/nvidia/gpus/*/information",
        "/lib/modules/<kernel>/modules.dep, /var/lib/dkms, modprobe.d",
        "the SecureBoot variable of the firmware; the kernel log, if it may be read",
    ),
    why="Without its module there are no device files, and both NVML and CUDA fail.",
    rules=(
        "fail: another driver holds every GPU, the module is not loaded, or it drives none of them",
        "warn: another driver holds some of the GPUs, or the module leaves some out",
        "the open flavour needs Turing or newer, Blackwell needs the open flavour",
    ),
    sources=(
        "NVIDIA driver README, chapters on nouveau and on the open kernel modules",
        "open-gpu-kernel-modules: messages of nv.c and osapi.c",
        "PCI ids: Turing starts at 0x1e00, Blackwell at 0x2900 (pci.ids)",
    ),
    causes=(
        *(f"held-by-{name.replace('_', '-')}" for name in OTHER_DRIVERS),
        *CAUSES,
        "gpu-excluded",
        "gpu-not-taken",
        *TOLD_CAUSES,
        "modules-not-readable",
    ),
)


def check(machine: Machine) -> Finding:
    """Judge the module and the drivers bound to the PCI devices."""
    kernel = machine.kernel
    if machine.is_wsl:
        return _skip("WSL2: the Windows driver is used, Linux needs no module")
    if machine.is_jetson:
        return _skip("Jetson: the driver is part of the board's own kernel")
    held = [device for device in kernel.pci_devices or () if device.driver in OTHER_DRIVERS]
    every = len(held) == len(kernel.pci_devices or ())
    # A container sees the bus of its host, and GPUs of others on it.
    if held and (every or (kernel.module_loaded and not machine.is_container)):
        return _held(machine, held, len(kernel.pci_devices or ()))
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


def _held(machine: Machine, held: list[PciDeviceReading], count: int) -> Finding:
    """Report GPUs that another driver holds; for some of several, that may be intended."""
    driver = held[0].driver or ""
    if len(held) == count == 1:
        summary = f"{held[0].pci_bus_id} is held by {driver}, not by nvidia"
    else:
        names = ", ".join(device.pci_bus_id for device in held)
        are = "is" if len(held) == 1 else "are"
        summary = f"{len(held)} of {count_of(count)} {are} held by {driver}, not by nvidia: {names}"
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
        remedy=_free_it(machine, driver),
        cause=f"held-by-{driver.replace('_', '-')}",
    )


def _free_it(machine: Machine, driver: str) -> tuple[str, ...]:
    steps = (rebuild_initramfs(machine) if s == REBUILD else s for s in OTHER_DRIVERS[driver])
    if driver == "nouveau" and machine.system.module.installed == ():
        # The driver's packages blacklist nouveau by themselves.
        return (install_driver(machine), *steps)
    return tuple(steps)


def _absent(machine: Machine) -> Finding:
    reason = why_absent(machine)
    return Finding(
        id=ID,
        layer=LAYER,
        status=CheckStatus.FAIL,
        summary=reason.summary,
        evidence=reason.evidence,
        remedy=reason.remedy,
        cause=reason.cause,
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
        summary=f"the driver is configured to leave out {len(excluded)} of {count_of(count)}",
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
    """Report GPUs on the bus that the loaded module does not list."""
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
    what = f"the nvidia module is loaded, but does not drive {count_of(len(left))}"
    return Finding(
        id=ID,
        layer=LAYER,
        status=CheckStatus.FAIL if len(left) == count else CheckStatus.WARN,
        summary=f"{what}: {summary}" if summary else what,
        evidence=(
            *(
                Evidence(
                    source="/proc/driver/nvidia/gpus",
                    value=f"{device.pci_bus_id} (device {device.device_id or '?'}) is not listed",
                )
                for device in left
            ),
            *evidence,
        ),
        remedy=remedy,
        cause=cause,
    )
