"""pci-device: the GPUs that the kernel sees on the bus without any driver."""

from __future__ import annotations

import pytest

from gpucheck.detect.checks.pci_device import check
from gpucheck.detect.machine import Machine
from gpucheck.detect.model import Finding
from gpucheck.drivers.evidence import PciDetailReading, PlatformReading, SystemReading
from gpucheck.drivers.readings import KernelReading, PciDeviceReading
from gpucheck.report.envelope import CheckStatus
from tests.fakes.probes import ON_WSL2, FakeProbes


def device(number: int, **changes: object) -> PciDeviceReading:
    values: dict[str, object] = {
        "pci_bus_id": f"0000:{number:02x}:00.0",
        "vendor_id": "0x10de",
        "device_id": "0x2330",
    }
    return PciDeviceReading(**(values | changes))  # type: ignore[arg-type]


def look(kernel: KernelReading) -> Finding:
    return check(Machine(FakeProbes(kernel_reading=kernel)))


def test_gpus_on_the_bus() -> None:
    found = look(KernelReading(pci_devices=(device(16), device(17, device_id=None))))

    assert found.status is CheckStatus.OK
    assert found.summary == "2 NVIDIA GPUs on the PCI bus"
    assert [(item.source, item.value) for item in found.evidence] == [
        ("/sys/bus/pci/devices/0000:10:00.0", "device 0x2330"),
        ("/sys/bus/pci/devices/0000:11:00.0", "device of unknown id"),
    ]


def test_one_gpu() -> None:
    assert look(KernelReading(pci_devices=(device(1),))).summary == "1 NVIDIA GPU on the PCI bus"


def test_no_gpu() -> None:
    found = look(KernelReading(pci_devices=()))

    assert found.status is CheckStatus.FAIL
    assert found.remedy


def test_an_unreadable_bus_is_not_an_empty_one() -> None:
    found = look(KernelReading(pci_devices=None, pci_unavailable="/sys/bus/pci: no such file"))

    assert found.status is CheckStatus.UNKNOWN
    assert found.evidence[0].value == "/sys/bus/pci: no such file"
    assert found.remedy


def test_wsl_has_no_gpu_on_its_bus() -> None:
    found = check(
        Machine(FakeProbes(machine=ON_WSL2, kernel_reading=KernelReading(pci_devices=())))
    )

    assert found.status is CheckStatus.SKIP


def with_details(*details: PciDetailReading) -> Finding:
    kernel = KernelReading(pci_devices=tuple(device(16 + n) for n in range(len(details))))
    system = SystemReading(pci=details)
    return check(Machine(FakeProbes(kernel_reading=kernel, system_reading=system)))


def test_one_that_reads_all_ones_is_gone() -> None:
    gone = PciDetailReading(pci_bus_id="0000:10:00.0", answers=False, runtime_status="active")
    there = PciDetailReading(pci_bus_id="0000:11:00.0", answers=True)

    assert with_details(gone).status is CheckStatus.FAIL
    found = with_details(gone, there)
    assert (found.status, found.cause) == (CheckStatus.WARN, "fell-off-the-bus")
    assert found.summary == "0000:10:00.0 (1 of 2 GPUs) fell off the bus"


def test_one_that_sleeps_is_not_gone() -> None:
    asleep = PciDetailReading(pci_bus_id="0000:10:00.0", answers=False, runtime_status="suspended")

    found = with_details(asleep)

    assert found.status is CheckStatus.OK
    assert found.evidence[0].value == "device 0x2330, suspended"


@pytest.mark.parametrize(
    ("platform", "cause", "values", "steps"),
    [
        (PlatformReading(hypervisor=True), "no-gpu-on-the-bus", 1, 2),
        (PlatformReading(hypervisor=False), "no-gpu-on-the-bus", 1, 2),
        (PlatformReading(), "no-gpu-on-the-bus", 1, 4),
        (PlatformReading(prime_profile="intel"), "gpu-switched-off", 2, 1),
        (PlatformReading(prime_profile="on-demand"), "no-gpu-on-the-bus", 1, 4),
    ],
)
def test_why_there_is_none(platform: PlatformReading, cause: str, values: int, steps: int) -> None:
    probes = FakeProbes(system_reading=SystemReading(platform=platform))

    found = check(Machine(probes))

    assert (found.status, found.cause) == (CheckStatus.FAIL, cause)
    assert (len(found.evidence), len(found.remedy)) == (values, steps)
    assert found.evidence[-1].value == platform.prime_profile or values == 1
