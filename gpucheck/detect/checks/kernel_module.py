"""Is NVIDIA's kernel module loaded, does it own the GPUs, and is it the right kind?"""

from __future__ import annotations

from functools import partial

from gpucheck.detect.findings import make_finding
from gpucheck.detect.machine import KERNEL_LOG, Machine
from gpucheck.detect.model import Finding, Layer
from gpucheck.detect.module_problems import line_with, problem_in_log, wrong_flavour
from gpucheck.detect.remedies import build_module, install_driver, rebuild_initramfs, sign_module
from gpucheck.drivers.readings import PciDeviceReading
from gpucheck.report.envelope import CheckStatus, Evidence
from gpucheck.report.text import count_of

ID = "kernel-module"
LAYER = Layer.KERNEL
REQUIRES: tuple[str, ...] = ("pci-device",)

_finding = partial(make_finding, ID, LAYER)


SOURCE = "/sys/module/nvidia"
OF_THE_HOST = "module-of-the-host"
#: The causes of a module that is not loaded.
ABSENCES = (
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
#: What the driver logs when it takes no GPU, whereupon the kernel unloads it. Source: nv.c.
TOOK_NONE = r"NVRM: (?:No NVIDIA (?:GPU found|devices probed)|None of the NVIDIA devices)"
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
        r"Blacklist nouveau: printf 'blacklist nouveau\noptions nouveau modeset=0\n'"
        " | sudo tee /etc/modprobe.d/blacklist-nouveau.conf",
        REBUILD,
    ),
    "nova_core": (
        r"Blacklist it: printf 'blacklist %s\n' nova nova_core nova_drm"
        " | sudo tee /etc/modprobe.d/blacklist-nova.conf",
        REBUILD,
        "Or update the kernel: newer packages no longer bind it by themselves.",
    ),
    "vfio-pci": FOR_A_VM,
    "pci-stub": FOR_A_VM,
}


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
        return _finding(
            CheckStatus.UNKNOWN,
            "the list of kernel modules could not be read",
            Evidence("/sys/module", kernel.pci_unavailable or "unreadable"),
            remedy=("Run gpucheck where /sys can be read: a sandbox may hide it.",),
            cause="modules-not-readable",
        )
    return _loaded(machine) if kernel.module_loaded else _not_loaded(machine)


def _skip(summary: str) -> Finding:
    return _finding(CheckStatus.SKIP, summary)


def _held(machine: Machine, held: list[PciDeviceReading], count: int) -> Finding:
    """Report GPUs that another driver holds; for some of several, that may be intended."""
    driver = held[0].driver or ""
    if len(held) == count == 1:
        summary = f"{held[0].pci_bus_id} is held by {driver}, not by nvidia"
    else:
        names = ", ".join(device.pci_bus_id for device in held)
        are = "is" if len(held) == 1 else "are"
        summary = f"{len(held)} of {count_of(count)} {are} held by {driver}, not by nvidia: {names}"
    return _finding(
        CheckStatus.FAIL if len(held) == count else CheckStatus.WARN,
        summary,
        *(
            Evidence(f"/sys/bus/pci/devices/{device.pci_bus_id}/driver", device.driver or "")
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
    evidence = [Evidence(f"{SOURCE}/version", version)]
    if machine.system.module.flavour is not None:
        flavour = Evidence("/proc/driver/nvidia/version", machine.system.module.flavour)
        evidence.append(flavour)
    return _finding(CheckStatus.OK, f"the nvidia module is loaded ({version})", *evidence)


def _excluded(excluded: tuple[str, ...], count: int) -> Finding:
    every = len(excluded) >= count
    return _finding(
        CheckStatus.FAIL if every else CheckStatus.WARN,
        f"the driver is configured to leave out {len(excluded)} of {count_of(count)}",
        *(
            Evidence(f"/proc/driver/nvidia/gpus/{gpu}/information", "GPU Excluded: Yes")
            for gpu in excluded
        ),
        remedy=("Remove NVreg_ExcludedGpus from modprobe.d or the kernel's command line; reboot.",),
        cause="gpu-excluded",
    )


def _left_out(machine: Machine, left: list[PciDeviceReading], count: int) -> Finding:
    """Report GPUs on the bus that the loaded module does not list."""
    problem = wrong_flavour(machine, left) or problem_in_log(machine)
    what = f"the nvidia module is loaded, but does not drive {count_of(len(left))}"
    unknown = (
        KERNEL_LOG,
        "Check that this driver release supports the GPU; reinstall it as one version and reboot.",
    )
    return _finding(
        CheckStatus.FAIL if len(left) == count else CheckStatus.WARN,
        f"{what}: {problem.summary}" if problem else what,
        *(
            Evidence(
                "/proc/driver/nvidia/gpus",
                f"{device.pci_bus_id} (device {device.device_id or '?'}) is not listed",
            )
            for device in left
        ),
        *(problem.evidence if problem else ()),
        remedy=problem.remedy if problem else unknown,
        cause=problem.cause if problem else "gpu-not-taken",
    )


# ------------------------------------------------------------------------------ not loaded


def _not_loaded(machine: Machine) -> Finding:
    """Return why the module is not loaded, by the first sign that explains it."""
    for explain in EXPLANATIONS:
        found = explain(machine)
        if found is not None:
            return found
    return _missing(
        "module-not-loaded",
        "the nvidia kernel module is not loaded",
        Evidence(SOURCE, "absent"),
        remedy=(
            "Load it: sudo modprobe nvidia",
            "If that fails: install the driver for this kernel, and reboot.",
        ),
    )


def _missing(cause: str, summary: str, *evidence: Evidence, remedy: tuple[str, ...]) -> Finding:
    return _finding(CheckStatus.FAIL, summary, *evidence, remedy=remedy, cause=cause)


def _of_the_host(machine: Machine) -> Finding | None:
    if not machine.is_container:
        return None
    return _missing(
        OF_THE_HOST,
        "the nvidia kernel module is not loaded on the container's host",
        Evidence(SOURCE, "absent"),
        remedy=("On the host: install the driver and load it (sudo modprobe nvidia).",),
    )


def _refused(machine: Machine) -> Finding | None:
    """Find a message of the kernel or modprobe that the module's signature was rejected."""
    log = machine.system.log
    line = line_with(log, REFUSED_BY_KERNEL)
    if line is None:
        return None
    return _missing(
        "secure-boot",
        "the kernel rejects the nvidia module, whose signature it does not know (Secure Boot)",
        Evidence(log.source, line),
        _secure_boot(machine),
        remedy=sign_module(machine),
    )


def _suspected(machine: Machine) -> Finding | None:
    """Suspect Secure Boot if the module is installed and nothing else explains its absence."""
    installed = machine.system.module.installed
    if machine.system.platform.secure_boot is not True or not installed:
        return None
    return _missing(
        "secure-boot",
        "the nvidia module is installed, but not loaded: Secure Boot is on and may reject it",
        _secure_boot(machine),
        Evidence("modules.dep", installed[0]),
        remedy=(
            "Try to load it: sudo modprobe nvidia (`Key was rejected` means Secure Boot)",
            *sign_module(machine),
        ),
    )


def _secure_boot(machine: Machine) -> Evidence:
    on = machine.system.platform.secure_boot
    return Evidence("firmware variable SecureBoot", "unreadable" if on is None else str(int(on)))


def _blocked(machine: Machine) -> Finding | None:
    blocked = machine.system.module.blocked_by
    words = [w for w in machine.system.platform.boot_parameters if "blacklist=" in w]
    words = [word for word in words if "nvidia" in word]
    if not blocked and not words:
        return None
    evidence = [Evidence(line.partition(": ")[0], line.partition(": ")[2])
                for line in blocked]  # fmt: skip
    evidence += [Evidence("/proc/cmdline", word) for word in words]
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


def _not_built(machine: Machine) -> Finding | None:
    module = machine.system.module
    if module.installed != () or not (module.other_kernels or module.dkms_versions):
        return None
    running = machine.host.kernel or "this one"
    evidence = [Evidence(f"/lib/modules/{running}", "no nvidia.ko")]
    evidence += [Evidence(f"/lib/modules/{name}", "nvidia.ko")
                 for name in module.other_kernels]  # fmt: skip
    evidence += [Evidence("/var/lib/dkms", name) for name in module.dkms_versions]
    return _missing(
        "module-not-built",
        f"the driver is installed, but its module is not built for the running kernel {running}",
        *evidence,
        remedy=build_module(machine),
    )


def _does_not_fit(machine: Machine) -> Finding | None:
    """Find a message that the module on disk was built for another kernel."""
    log = machine.system.log
    line = line_with(log, OF_ANOTHER_KERNEL)
    if line is None:
        return None
    return _missing(
        "module-does-not-fit",
        "the kernel rejects the nvidia module on disk, which was built for another kernel",
        Evidence(log.source, line),
        remedy=build_module(machine),
    )


def _took_none(machine: Machine) -> Finding | None:
    """Find why the driver took none of the GPUs, so that the kernel unloaded it again."""
    if line_with(machine.system.log, TOOK_NONE) is None:
        return None
    problem = problem_in_log(machine)
    if problem is None:
        return None
    return _finding(
        CheckStatus.FAIL,
        f"the nvidia kernel module was loaded, and took no GPU: {problem.summary}",
        *problem.evidence,
        remedy=problem.remedy,
        cause=problem.cause,
    )


def _not_installed(machine: Machine) -> Finding | None:
    if machine.system.module.installed != ():
        return None
    running = machine.host.kernel or "this one"
    return _missing(
        "driver-not-installed",
        "the NVIDIA driver is not installed: there is no nvidia module on disk",
        Evidence(f"/lib/modules/{running}/modules.dep", "no nvidia.ko"),
        Evidence(SOURCE, "absent"),
        remedy=(install_driver(machine),),
    )


def _loadable(machine: Machine) -> Finding | None:
    installed = machine.system.module.installed
    if not installed:
        return None
    return _missing(
        "module-not-loaded",
        "the nvidia kernel module is installed for this kernel, but not loaded",
        Evidence("modules.dep", installed[0]),
        Evidence(SOURCE, "absent"),
        remedy=("Load it: sudo modprobe nvidia", KERNEL_LOG),
    )


#: The first one that explains it is reported.
EXPLANATIONS = (
    _of_the_host,
    _refused,
    _blocked,
    _not_built,
    _not_installed,
    _does_not_fit,
    _took_none,
    _suspected,
    _loadable,
)
