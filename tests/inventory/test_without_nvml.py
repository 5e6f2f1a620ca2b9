"""What commands say where there is no NVIDIA GPU, and where that is not certain."""

from __future__ import annotations

from typing import Any

import pytest

from gpucheck.drivers.evidence import NodeReading, NodesReading, PlatformReading, SystemReading
from gpucheck.drivers.readings import (
    CudaDeviceReading,
    CudaReading,
    KernelReading,
    NvmlReading,
    PciDeviceReading,
    ProbeFailure,
)
from gpucheck.inventory.inventory import take_inventory
from gpucheck.inventory.model import Inventory
from gpucheck.inventory.without_nvml import explain_absence
from gpucheck.report.host import Host
from tests.fakes.probes import FakeProbes

MISSING = ProbeFailure(
    code="library-not-found", message="libnvidia-ml.so.1 was not found", library_code=12
)
CARD = PciDeviceReading(pci_bus_id="0000:01:00.0", vendor_id="0x10de")
EMPTY_BUS = KernelReading(pci_devices=())


def machine(platform: PlatformReading | None = None, **changes: Any) -> FakeProbes:
    system = SystemReading(platform=platform or PlatformReading(hypervisor=False))
    readings: dict[str, Any] = {"kernel_reading": EMPTY_BUS, "system_reading": system}
    return FakeProbes(readings=NvmlReading(failure=MISSING), **(readings | changes))


def test_the_sentence_and_the_steps_of_detect() -> None:
    answer = take_inventory(machine())

    assert answer.error is not None
    assert (answer.exit_code, answer.error.code) == (4, "nvml-library-not-found")
    assert answer.error.message == "There is no NVIDIA GPU in this machine."
    assert [step.partition(" an")[0] for step in answer.error.remedy] == [
        "On your own computer without",
        "On your own computer with one: check seating, power cables,",
    ]
    (words,) = answer.warnings
    assert words.code == "driver-library"
    assert "libnvidia-ml.so.1 was not found (NVML error 12)" in words.message


@pytest.mark.parametrize(
    ("vendors", "clause"),
    [
        (("AMD",), "there is no NVIDIA GPU in this machine (its graphics card is from AMD)"),
        (
            ("AMD", "Intel"),
            "there is no NVIDIA GPU in this machine (its graphics card is from AMD and Intel)",
        ),
    ],
)
def test_another_maker_s_card_is_named(vendors: tuple[str, ...], clause: str) -> None:
    found = explain_absence(MISSING, machine(PlatformReading(other_vendors=vendors)))

    assert found is not None
    assert found[0] == clause


def test_a_laptop_s_switch_is_the_reason() -> None:
    found = explain_absence(MISSING, machine(PlatformReading(prime_profile="intel")))

    assert found is not None
    assert "graphics switch" in found[0]
    assert "prime-select" in found[1][0]


@pytest.mark.parametrize("code", ["library-not-found", "driver-not-loaded", "no-device"])
def test_failures_of_a_machine_without_a_gpu(code: str) -> None:
    assert explain_absence(MISSING._replace(code=code), machine())


@pytest.mark.parametrize(
    "probes",
    [
        machine(PlatformReading(dxg=True)),
        machine(PlatformReading(tegra="nvidia,tegra234")),
        machine(machine=Host(name="pc", os="Ubuntu 24.04 (WSL2)")),
        machine(kernel_reading=KernelReading(pci_devices=None, pci_unavailable="hidden")),
        machine(kernel_reading=KernelReading(pci_devices=(CARD,))),
        machine(system_reading=SystemReading(unavailable="not recorded")),
        machine(
            system_reading=SystemReading(
                nodes=NodesReading(nodes=(NodeReading(path="/dev/nvidiactl"),))
            )
        ),
    ],
    ids=["WSL2", "Jetson", "WSL2 by name", "hidden bus", "a card", "not recorded", "control node"],
)
def test_a_gpu_may_be_there_all_the_same(probes: FakeProbes) -> None:
    assert explain_absence(MISSING, probes) is None
    error = take_inventory(probes).error
    assert error is not None
    assert "libnvidia-ml.so.1 was not found" in error.message


@pytest.mark.parametrize("code", ["driver-not-answering", "version-mismatch", "no-permission"])
def test_a_driver_that_is_there_speaks_for_itself(code: str) -> None:
    assert explain_absence(MISSING._replace(code=code), machine()) is None


def test_where_cuda_does_not_answer_a_second_time_what_it_saw_first_is_listed() -> None:
    device = CudaDeviceReading(ordinal=0, uuid_hex="1" * 32, pci_bus_id="0000:01:00.0")
    late = ProbeFailure(code="cuda-not-answering", message="it did not answer")
    probes = machine(
        variables={"CUDA_VISIBLE_DEVICES": "0"},
        cuda_reading=CudaReading(device_count=1, devices=(device,)),
        cuda_unrestricted_reading=CudaReading(failure=late),
    )

    inventory = take_inventory(probes).result

    assert isinstance(inventory, Inventory)
    assert [gpu.uuid for gpu in inventory.gpus] == ["GPU-11111111-1111-1111-1111-111111111111"]
