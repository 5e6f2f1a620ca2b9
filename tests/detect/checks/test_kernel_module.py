"""kernel-module: whether nvidia is loaded, and holds the GPUs."""

from __future__ import annotations

from typing import Any

import pytest

from gpucheck.data import read_table
from gpucheck.detect.checks.kernel_module import OTHER_DRIVERS, check
from gpucheck.detect.findings import wrong_flavour
from gpucheck.detect.machine import Machine
from gpucheck.detect.model import Finding
from gpucheck.drivers.evidence import (
    KernelLogReading,
    ModuleReading,
    PlatformReading,
    SystemReading,
)
from gpucheck.drivers.readings import KernelReading, PciDeviceReading
from gpucheck.report.envelope import CheckStatus, Host
from tests.fakes.probes import HERE, IN_DOCKER, ON_WSL2, FakeProbes


def look(kernel: KernelReading) -> Finding:
    return check(Machine(FakeProbes(kernel_reading=kernel)))


def held_by(*drivers: str | None) -> KernelReading:
    devices = tuple(
        PciDeviceReading(pci_bus_id=f"0000:{at:02x}:00.0", vendor_id="0x10de", driver=driver)
        for at, driver in enumerate(drivers, start=1)
    )
    return KernelReading(pci_devices=devices, module_loaded=True, module_version="580.95.05")


@pytest.mark.parametrize("drivers", [("nvidia",), ("nvidia", "nvidia"), (None,), ()])
def test_loaded(drivers: tuple[str | None, ...]) -> None:
    found = look(held_by(*drivers))

    assert found.status is CheckStatus.OK
    assert found.summary == "the nvidia module is loaded (580.95.05)"


def test_loaded_without_a_version() -> None:
    found = look(KernelReading(pci_devices=(), module_loaded=True))

    assert found.summary == "the nvidia module is loaded (unknown version)"


@pytest.mark.parametrize("driver", sorted(OTHER_DRIVERS))
def test_another_driver_holds_a_gpu(driver: str) -> None:
    found = look(held_by(driver))

    assert found.status is CheckStatus.FAIL
    assert found.summary == f"0000:01:00.0 is held by {driver}, not by nvidia"
    assert found.evidence[0].value == driver
    assert found.cause == f"held-by-{driver.replace('_', '-')}"
    steps = read_table("causes")["kernel-module"][found.cause]["remedy"]
    assert found.remedy[0] == steps[0].format()
    assert len(found.remedy) == len(steps)
    assert not any("{" in step for step in found.remedy)


def test_another_driver_that_holds_some_leaves_the_others() -> None:
    found = look(held_by("nvidia", "vfio-pci"))

    assert found.status is CheckStatus.WARN
    assert found.summary == "1 of 2 GPUs is held by vfio-pci, not by nvidia: 0000:02:00.0"


def test_without_the_module_what_one_gpu_is_held_by_is_not_the_reason() -> None:
    found = look(held_by(None, "vfio-pci")._replace(module_loaded=False))

    assert found.cause == "module-not-loaded"


def test_a_container_sees_what_others_hold() -> None:
    kernel = held_by("nvidia", "vfio-pci")

    assert (
        check(Machine(FakeProbes(kernel_reading=kernel, machine=IN_DOCKER))).status
        is CheckStatus.OK
    )


def test_another_driver_explains_more_than_a_missing_module() -> None:
    found = look(held_by("nouveau")._replace(module_loaded=False))

    assert "nouveau" in found.summary


def test_not_loaded() -> None:
    found = look(KernelReading(pci_devices=(), module_loaded=False))

    assert found.status is CheckStatus.FAIL
    assert found.remedy[0] == "Load it: sudo modprobe nvidia"


@pytest.mark.parametrize("reason", [None, "the snapshot did not record it"])
def test_an_unreadable_list_is_not_an_empty_one(reason: str | None) -> None:
    found = look(KernelReading(pci_unavailable=reason))

    assert found.status is CheckStatus.UNKNOWN
    assert found.evidence[0].value == (reason or "unreadable")
    assert found.remedy


def test_wsl_needs_no_module() -> None:
    found = check(
        Machine(FakeProbes(machine=ON_WSL2, kernel_reading=KernelReading(module_loaded=False)))
    )

    assert found.status is CheckStatus.SKIP


# ------------------------------------------------------------------------------ files


def module(
    *, loaded: bool = False, machine: Host = HERE, log: str | None = None, **parts: object
) -> Finding:
    """Return the finding about two GPUs, with these facts of the module or the platform."""
    own = {name: parts.pop(name) for name in tuple(parts) if name in PlatformReading._fields}
    system = SystemReading(
        module=ModuleReading(**parts),  # type: ignore[arg-type]
        platform=PlatformReading(**own),  # type: ignore[arg-type]
        log=KernelLogReading(lines=None if log is None else ("an older line", log)),
    )
    kernel = held_by(None, None)._replace(module_loaded=loaded)
    return check(Machine(FakeProbes(machine=machine, kernel_reading=kernel, system_reading=system)))


ON_DISK = ("kernel/drivers/nvidia.ko",)
LEGACY = (
    "NVRM: The NVIDIA NVIDIA GeForce GTX 1050 GPU installed in this system is\n"
    "NVRM:  supported through the NVIDIA 580.xx Legacy drivers. Please\n"
    "NVRM: No NVIDIA GPU found."
)


@pytest.mark.parametrize(
    ("parts", "cause", "values"),
    [
        ({"installed": ON_DISK}, "module-not-loaded", [*ON_DISK, "absent"]),
        ({"installed": None}, "module-not-loaded", ["absent"]),
        ({"installed": ()}, "driver-not-installed", ["no nvidia.ko", "absent"]),
        (
            {"installed": (), "other_kernels": ("6.1.0-9",), "dkms_versions": ("580.95.05",)},
            "module-not-built",
            ["no nvidia.ko", "nvidia.ko", "580.95.05"],
        ),
        (
            {"installed": (), "dkms_versions": ("580.95.05",)},
            "module-not-built",
            ["no nvidia.ko", "580.95.05"],
        ),
        (
            {"installed": ON_DISK, "blocked_by": ("/etc/modprobe.d/x.conf: blacklist nvidia",)},
            "module-blocked",
            ["blacklist nvidia"],
        ),
        (
            {
                "installed": ON_DISK,
                "boot_parameters": ("modprobe.blacklist=nvidia", "rd.blacklist=nouveau", "quiet"),
            },
            "module-blocked",
            ["modprobe.blacklist=nvidia"],
        ),
        (
            {"installed": ON_DISK, "secure_boot": True},
            "secure-boot",
            ["1", *ON_DISK],
        ),
        ({"installed": ON_DISK, "secure_boot": False}, "module-not-loaded", [*ON_DISK, "absent"]),
        (
            {"installed": (), "secure_boot": True},
            "driver-not-installed",
            ["no nvidia.ko", "absent"],
        ),
        (
            {"installed": ON_DISK, "log": "Loading of unsigned module is rejected"},
            "secure-boot",
            ["Loading of unsigned module is rejected", "unreadable"],
        ),
        (
            {"installed": ON_DISK, "log": "nvidia: version magic '6.1' should be '6.2'"},
            "module-does-not-fit",
            ["nvidia: version magic '6.1' should be '6.2'"],
        ),
        (
            # Drivers that no longer have a GPU's generation take none, and are unloaded again.
            {"installed": ON_DISK, "secure_boot": True, "log": LEGACY},
            "gpu-not-supported",
            [LEGACY],
        ),
        (
            {"installed": ON_DISK, "log": "NVRM: No NVIDIA GPU found."},
            "module-not-loaded",
            [*ON_DISK, "absent"],
        ),
        ({"installed": ON_DISK, "machine": IN_DOCKER}, "module-of-the-host", ["absent"]),
    ],
)
def test_why_it_is_not_loaded(parts: dict[str, Any], cause: str, values: list[str]) -> None:
    found = module(**parts)

    assert (found.status, found.cause) == (CheckStatus.FAIL, cause)
    assert [item.value for item in found.evidence] == values
    assert found.summary
    assert found.remedy


@pytest.mark.parametrize("profile", [None, "intel"])
def test_a_laptop_s_switch_is_turned_before_the_lines_are_removed(profile: str | None) -> None:
    found = module(blocked_by=("x.conf: blacklist nvidia",), prime_profile=profile)

    assert len(found.remedy) == 1 + (profile is not None)
    assert ("prime-select" in found.remedy[0]) is (profile is not None)


BOTH = ("0000:01:00.0", "0000:02:00.0")


@pytest.mark.parametrize(
    ("parts", "status", "cause", "summary"),
    [
        ({"driver_gpus": BOTH}, "ok", None, "the nvidia module is loaded (580.95.05)"),
        (
            {"driver_gpus": BOTH, "excluded_gpus": BOTH[:1]},
            "warn",
            "gpu-excluded",
            "the driver is configured to leave out 1 of 2 GPUs",
        ),
        (
            {"driver_gpus": BOTH, "excluded_gpus": BOTH},
            "fail",
            "gpu-excluded",
            "the driver is configured to leave out 2 of 2 GPUs",
        ),
        (
            {"driver_gpus": BOTH[:1]},
            "warn",
            "gpu-not-taken",
            "the nvidia module is loaded, but does not drive 1 GPU",
        ),
        (
            {"driver_gpus": ()},
            "fail",
            "gpu-not-taken",
            "the nvidia module is loaded, but does not drive 2 GPUs",
        ),
        (
            {"driver_gpus": (), "log": "NVRM: GPU 0000:01:00.0: RmInitAdapter failed! (0x26:0x56)"},
            "fail",
            "gpu-init-failed",
            "the nvidia module is loaded, but does not drive 2 GPUs:"
            " the driver could not initialise the GPU",
        ),
        (
            {"driver_gpus": (), "excluded_gpus": BOTH, "machine": IN_DOCKER},
            "ok",
            None,
            "the nvidia module is loaded (580.95.05)",
        ),
    ],
)
def test_what_a_loaded_module_drives(
    parts: dict[str, Any], status: str, cause: str | None, summary: str
) -> None:
    found = module(loaded=True, **parts)

    assert (found.status, found.cause, found.summary) == (status, cause, summary)
    assert bool(found.remedy) is (cause is not None)
    assert found.evidence


def test_the_flavour_of_a_loaded_module_is_evidence() -> None:
    found = module(loaded=True, driver_gpus=BOTH, flavour="open")

    assert [item.value for item in found.evidence] == ["580.95.05", "open"]


def test_nouveau_on_a_machine_without_the_driver_goes_by_its_installation() -> None:
    kernel = held_by("nouveau")._replace(module_loaded=False)
    system = SystemReading(module=ModuleReading(installed=()))

    found = check(Machine(FakeProbes(kernel_reading=kernel, system_reading=system)))

    assert found.remedy[0].startswith("Install the driver")
    assert found.remedy[1:] == look(kernel).remedy


@pytest.mark.parametrize(
    ("flavour", "device_id", "cause"),
    [
        ("open", "0x1db6", "open-module-on-old-gpu"),
        ("open", "0x2330", None),
        ("open", "0x2901", None),
        ("proprietary", "0x2901", "proprietary-module-on-new-gpu"),
        ("proprietary", "0x2330", None),
        ("proprietary", "0x1db6", None),
        (None, "0x1db6", None),
        (None, "0x2901", None),
    ],
)
def test_a_flavour_that_does_not_fit_a_gpu_is_named_as_evidence(
    flavour: str | None, device_id: str, cause: str | None
) -> None:
    machine = Machine(
        FakeProbes(system_reading=SystemReading(module=ModuleReading(flavour=flavour)))
    )
    device = PciDeviceReading(pci_bus_id="0000:01:00.0", vendor_id="0x10de", device_id=device_id)

    found = wrong_flavour(machine, [device])

    assert (found and found.cause) == cause
    assert [item.value for item in found.evidence] == [flavour] if found else cause is None
