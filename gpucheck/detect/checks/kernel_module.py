"""Is NVIDIA's kernel module loaded, does it own the GPUs, and is it the right kind?"""

from __future__ import annotations

from functools import partial

from gpucheck.detect.findings import (
    explain_finding,
    line_with,
    make_finding,
    problem_in_log,
    report_cause,
    wrong_flavour,
)
from gpucheck.detect.machine import Machine
from gpucheck.detect.model import Finding, Layer
from gpucheck.detect.remedies import build_module, install_driver, rebuild_initramfs, sign_module
from gpucheck.drivers.readings import PciDeviceReading
from gpucheck.report.envelope import CheckStatus, Evidence
from gpucheck.report.text import count_of

ID = "kernel-module"
LAYER = Layer.KERNEL
REQUIRES: tuple[str, ...] = ("pci-device",)

_finding = partial(make_finding, ID, LAYER)
_report = partial(report_cause, ID, LAYER)

SOURCE = "/sys/module/nvidia"
ABSENT = Evidence(SOURCE, "absent")
OF_THE_HOST = "module-of-the-host"
#: The causes of a module that is not loaded.
ABSENCES = (
    "driver-not-installed", "module-not-built", "module-blocked", "module-does-not-fit",
    "module-not-loaded", OF_THE_HOST, "secure-boot",
)  # fmt: skip
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
#: Drivers that may hold a GPU instead.
OTHER_DRIVERS = ("nouveau", "nova_core", "vfio-pci", "pci-stub")


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
        evidence = Evidence("/sys/module", kernel.pci_unavailable or "unreadable")
        return _report("modules-not-readable", evidence, status=CheckStatus.UNKNOWN)
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
    finding = _report(
        f"held-by-{driver.replace('_', '-')}",
        *(
            Evidence(f"/sys/bus/pci/devices/{device.pci_bus_id}/driver", device.driver or "")
            for device in held
        ),
        status=CheckStatus.FAIL if len(held) == count else CheckStatus.WARN,
        summary=summary,
        rebuild=rebuild_initramfs(machine),
    )
    if driver == "nouveau" and machine.system.module.installed == ():
        # The driver's packages blacklist nouveau by themselves.
        return finding._replace(remedy=(install_driver(machine), *finding.remedy))
    return finding


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
    return _report(
        "gpu-excluded",
        *(
            Evidence(f"/proc/driver/nvidia/gpus/{gpu}/information", "GPU Excluded: Yes")
            for gpu in excluded
        ),
        status=CheckStatus.FAIL if every else CheckStatus.WARN,
        excluded=len(excluded),
        gpus=count_of(count),
    )


def _left_out(machine: Machine, left: list[PciDeviceReading], count: int) -> Finding:
    """Report GPUs on the bus that the loaded module does not list."""
    finding = _report(
        "gpu-not-taken",
        *(
            Evidence(
                "/proc/driver/nvidia/gpus",
                f"{device.pci_bus_id} (device {device.device_id or '?'}) is not listed",
            )
            for device in left
        ),
        status=CheckStatus.FAIL if len(left) == count else CheckStatus.WARN,
        gpus=count_of(len(left)),
    )
    return explain_finding(finding, wrong_flavour(machine, left) or problem_in_log(machine))


# ------------------------------------------------------------------------------ not loaded


def _not_loaded(machine: Machine) -> Finding:
    """Return why the module is not loaded, by the first sign that explains it."""
    for explain in EXPLANATIONS:
        finding = explain(machine)
        if finding is not None:
            return finding
    return _report("module-not-loaded", ABSENT)


def _judge_host_module(machine: Machine) -> Finding | None:
    if not machine.is_container:
        return None
    return _report(OF_THE_HOST, ABSENT)


def _refused(machine: Machine) -> Finding | None:
    """Find a message of the kernel or modprobe that the module's signature was rejected."""
    log = machine.system.log
    line = line_with(log, REFUSED_BY_KERNEL)
    if line is None:
        return None
    evidence = (Evidence(log.source, line), _secure_boot(machine))
    return _report("secure-boot", *evidence, remedy=sign_module(machine))


def _suspected(machine: Machine) -> Finding | None:
    """Suspect Secure Boot if the module is installed and nothing else explains its absence."""
    installed = machine.system.module.installed
    if machine.system.platform.secure_boot is not True or not installed:
        return None
    evidence = (_secure_boot(machine), Evidence("modules.dep", installed[0]))
    finding = _report("secure-boot-suspected", *evidence)
    return finding._replace(remedy=(*finding.remedy, *sign_module(machine)))


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
    finding = _report("module-blocked", *evidence, rebuild=rebuild_initramfs(machine))
    # The first step is for laptops with a graphics switch.
    return finding if profile is not None else finding._replace(remedy=finding.remedy[1:])


def _not_built(machine: Machine) -> Finding | None:
    module = machine.system.module
    if module.installed != () or not (module.other_kernels or module.dkms_versions):
        return None
    running = machine.host.kernel or "this one"
    evidence = [Evidence(f"/lib/modules/{running}", "no nvidia.ko")]
    evidence += [Evidence(f"/lib/modules/{name}", "nvidia.ko")
                 for name in module.other_kernels]  # fmt: skip
    evidence += [Evidence("/var/lib/dkms", name) for name in module.dkms_versions]
    return _report("module-not-built", *evidence, remedy=build_module(machine), kernel=running)


def _does_not_fit(machine: Machine) -> Finding | None:
    """Find a message that the module on disk was built for another kernel."""
    log = machine.system.log
    line = line_with(log, OF_ANOTHER_KERNEL)
    if line is None:
        return None
    evidence = Evidence(log.source, line)
    return _report("module-does-not-fit", evidence, remedy=build_module(machine))


def _took_none(machine: Machine) -> Finding | None:
    """Find why the driver took none of the GPUs, so that the kernel unloaded it again."""
    if line_with(machine.system.log, TOOK_NONE) is None:
        return None
    problem = problem_in_log(machine)
    if problem is None:
        return None
    taken = _finding(CheckStatus.FAIL, "the nvidia kernel module was loaded, and took no GPU")
    return explain_finding(taken, problem)


def _not_installed(machine: Machine) -> Finding | None:
    if machine.system.module.installed != ():
        return None
    running = machine.host.kernel or "this one"
    on_disk = Evidence(f"/lib/modules/{running}/modules.dep", "no nvidia.ko")
    return _report("driver-not-installed", on_disk, ABSENT, remedy=(install_driver(machine),))


def _loadable(machine: Machine) -> Finding | None:
    installed = machine.system.module.installed
    if not installed:
        return None
    return _report("module-installed-not-loaded", Evidence("modules.dep", installed[0]), ABSENT)


#: The first one that explains it is reported.
EXPLANATIONS = (
    _judge_host_module, _refused, _blocked, _not_built, _not_installed, _does_not_fit, _took_none,
    _suspected, _loadable,
)  # fmt: skip
