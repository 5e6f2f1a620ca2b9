"""No two commands state different CUDA numbers, on any machine that the tests know.

In this process, with the real NVML and CUDA children on pretended libraries: what `list`,
`list --ask-driver` and `place /gpu:N` say of one machine is held against each other, and against
what the pretended libcuda enumerates.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from gpucheck.drivers.live import LiveProbes
from gpucheck.inventory.inventory import take_inventory
from gpucheck.inventory.model import Gpu, Inventory
from gpucheck.inventory.visibility import digits_of
from gpucheck.place.device_strings import parse_device
from gpucheck.place.placement import check_agreement, resolve
from gpucheck.report.errors import BadAnswerError, GpucheckError
from tests import hang_clock
from tests.end_to_end.conftest import Pretend
from tests.fakes.machine import Machine, load_machine, machine_names
from tests.fakes.scenarios import load_scenario

LEFT_OUT = "cuda-leaves-one-out"
#: Scenarios in which a card is lost, hidden, split or unlike the others.
SCENARIOS = (
    LEFT_OUT,
    "driver-sees-fewer",
    "healthy-mig",
    "one-of-four-lost",
    "compute-mode-prohibited",
    "cuda-sees-nothing",
)
#: Those that are tried with CUDA_VISIBLE_DEVICES=1,0 as well.
SWAPPED = ("a100-mig", "gpu-lost", "h100x8", "mixed-order", f"scenario {LEFT_OUT}")


def cases() -> list[tuple[str, str | None]]:
    names = [*machine_names(), *(f"scenario {name}" for name in SCENARIOS)]
    return [(name, None) for name in names] + [(name, "1,0") for name in SWAPPED]


def numbers(gpus: tuple[Gpu, ...]) -> dict[str, int]:
    """Return the CUDA number that is stated of each UUID."""
    stated = {gpu.uuid: gpu.cuda_index for gpu in gpus}
    stated |= {item.uuid: item.cuda_index for gpu in gpus for item in gpu.mig.instances}
    return {uuid: number for uuid, number in stated.items() if uuid and number is not None}


def inventory_of(probes: LiveProbes, **request: bool) -> Inventory:
    found = take_inventory(probes, **request).result
    assert isinstance(found, Inventory)
    return found


def placed(index: int, inventory: Inventory) -> str | int | None:
    """Return the UUID that `place /gpu:N` names, or its exit code."""
    try:
        check_agreement(inventory.visibility)
        device = resolve(parse_device(f"/gpu:{index}"), inventory.gpus, soft=False)
    except GpucheckError as error:
        return int(error.exit_code)
    assert device.cuda_index == index
    assert device.resolved.endswith(f":{index}")
    return device.uuid


@pytest.mark.parametrize(("name", "text"), cases(), ids=str)
def test_every_command_states_the_same_numbers(
    pretend: Pretend, monkeypatch: pytest.MonkeyPatch, name: str, text: str | None
) -> None:
    kind, _, scenario = name.rpartition(" ")
    machine: Machine = load_scenario(scenario).listed if kind else load_machine(name)
    for key, value in pretend(machine).items():
        monkeypatch.setenv(key, value)
    if text is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", text)
    hang_clock.install(monkeypatch.setattr)
    probes = LiveProbes()
    try:
        plain = inventory_of(probes)
        sure = inventory_of(probes, ask_driver=True)
        placing = inventory_of(probes, names_devices=True)
        cuda = probes.cuda()
    finally:
        probes.close()

    enumerated = {device.uuid_hex: device.ordinal for device in cuda.devices}
    for uuid, number in numbers(sure.gpus).items():
        assert cuda.failure is not None or enumerated[digits_of(uuid)] == number
    for uuid, number in numbers(plain.gpus).items():
        if sure.visibility.disagreement is None:
            assert numbers(sure.gpus).get(uuid, number) == number
            assert cuda.failure is not None or enumerated[digits_of(uuid)] == number
    named = {number: uuid for uuid, number in numbers(sure.gpus).items()}
    # A single GPU is placed without CUDA, also where that sees none.
    unasked = len(machine.gpus) == 1 and sure.visibility.disagreement is not None
    for index in range(len(machine.gpus) + 1):
        found = placed(index, placing)
        if isinstance(found, str):
            assert unasked or named[index] == found
        elif index in named:
            assert found == 3  # refused as a whole, for nothing is certain
    if scenario == LEFT_OUT and text is None:
        assert {placed(index, placing) for index in range(8)} == {3}


def test_place_names_the_card_behind_a_lost_one(
    pretend: Pretend, monkeypatch: pytest.MonkeyPatch
) -> None:
    for key, value in pretend("gpu-lost").items():
        monkeypatch.setenv(key, value)
    probes = LiveProbes(deadline_s=600.0)
    try:
        plain = inventory_of(probes)
        sure = inventory_of(probes, names_devices=True)
    finally:
        probes.close()

    assert numbers(plain.gpus) == {}
    assert placed(3, sure) == load_machine("gpu-lost").gpus[3].uuid
    with pytest.raises(BadAnswerError, match="can only be GPU 2, which is lost"):
        resolve(parse_device("/gpu:2"), sure.gpus, soft=False)
    assert placed(4, sure) == 1


def test_bus_order_decides_where_nvml_counts_otherwise(
    pretend: Pretend, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    machine = load_machine("h100x8").with_gpus(4)
    for index, bus in enumerate(("31", "b1", "18", "ca")):
        machine = machine.with_gpu(index, pci_bus_id=f"0000:{bus}:00.0")
    # The pretended libcuda counts by NVML's order: only the rules are looked at here.
    for key, value in pretend(machine).items():
        monkeypatch.setenv(key, value)
    probes = LiveProbes(deadline_s=600.0)
    try:
        plain = inventory_of(probes)
    finally:
        probes.close()

    assert [gpu.cuda_index for gpu in plain.gpus] == [1, 2, 0, 3]
