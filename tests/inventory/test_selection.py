"""Which of the listed GPUs a person asked for."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucheck.inventory.columns import COLUMNS
from gpucheck.inventory.model import (
    DecidedBy,
    Gpu,
    GpuProcess,
    Inventory,
    MigInstance,
    MigState,
    Topology,
    TopologyLink,
    Visibility,
)
from gpucheck.inventory.selection import keep, of_user, select_gpus, sort_gpus
from gpucheck.report.errors import BadAnswerError, WrongUseError

RULES = Visibility(cuda_visible_devices=None, cuda_device_order=None, decided_by=DecidedBy.RULES)


def gpu(index: int, **changes: object) -> Gpu:
    values: dict[str, object] = {
        "uuid": f"GPU-{index:x}aa1111-2222-3333-4444-555555555555",
        "pci_bus_id": f"0000:{index + 10:02x}:00.0",
    }
    return Gpu(index=index, **(values | changes))  # type: ignore[arg-type]


def inventory(*gpus: Gpu, topology: Topology | None = None) -> Inventory:
    return Inventory(gpus=gpus, visibility=RULES, topology=topology)


FOUR = inventory(*(gpu(index) for index in range(4)))
INSTANCE = MigInstance(uuid="MIG-9999", name="1g.5gb")


def indices(found: Inventory) -> list[int]:
    return [gpu.index for gpu in found.gpus]


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        ((), [0, 1, 2, 3]),
        (("2",), [2]),
        (("02",), [2]),
        (("3", "1"), [1, 3]),
        (("1", "1"), [1]),
        (("GPU-2aa1111-2222-3333-4444-555555555555",), [2]),
        (("GPU-2",), [2]),
        (("gpu-2AA",), [2]),
        (("GPU-",), [0, 1, 2, 3]),
        (("0000:0b:00.0",), [1]),
        (("00000000:0B:00.0",), [1]),
        (("0b:00.0",), [1]),
        (("0", "0c:00.0", "GPU-3"), [0, 2, 3]),
    ],
)
def test_names(wanted: tuple[str, ...], expected: list[int]) -> None:
    assert indices(select_gpus(FOUR, wanted)) == expected


def test_a_large_pci_domain() -> None:
    found = inventory(gpu(0), gpu(1, pci_bus_id="10001:0b:00.0"))

    assert indices(select_gpus(found, ["10001:0b:00.0"])) == [1]
    assert indices(select_gpus(found, ["00010001:0b:00.0"])) == [1]


def test_a_mig_instance_names_its_gpu() -> None:
    split = inventory(gpu(0), gpu(1, mig=MigState(enabled=True, instances=(INSTANCE,))))

    assert indices(select_gpus(split, ["MIG-99"])) == [1]


@pytest.mark.parametrize("name", ["4", "GPU-f", "MIG-1", "0000:99:00.0", "9" * 5000])
def test_nobody_has_that_name(name: str) -> None:
    with pytest.raises(BadAnswerError, match=r"the indices are 0, 1, 2, 3\.") as caught:
        select_gpus(FOUR, [name])

    assert caught.value.code == "no-such-gpu"


@pytest.mark.parametrize("name", ["x", "-1", "1.0", "GPU", "0b:00", "\u0661", "", "0 1", "cuda:0"])
def test_that_is_no_name(name: str) -> None:
    with pytest.raises(WrongUseError, match="index, its UUID or its PCI bus id"):
        select_gpus(FOUR, [name])


def test_without_gpus_there_is_nothing_to_choose_from() -> None:
    assert select_gpus(inventory(), ["0"]) == inventory()


@given(st.text(max_size=20))
def test_any_text_is_a_name_or_refused_with_a_sentence(name: str) -> None:
    message = None
    found = inventory()
    try:
        found = select_gpus(FOUR, [name])
    except (WrongUseError, BadAnswerError) as error:
        message = error.message

    assert bool(found.gpus) != (message is not None)
    assert message is None or message.endswith(".")
    assert set(indices(found)) <= {0, 1, 2, 3}


LINKS = Topology(
    links=tuple(TopologyLink(from_=a, to=b, kind="SYS") for a in range(4) for b in range(a + 1, 4))
)


def test_links_among_those_kept_stay() -> None:
    found = select_gpus(FOUR._replace(topology=LINKS), ["0", "2"])

    assert found.topology is not None
    assert [(link.from_, link.to) for link in found.topology.links] == [(0, 2)]


def test_keep_by_any_rule() -> None:
    assert indices(keep(FOUR, lambda item: item.index % 2 == 1)) == [1, 3]


def test_of_user() -> None:
    anna, bert = GpuProcess(pid=1, type="compute", user="anna"), GpuProcess(pid=2, type="mps")
    both = gpu(0, processes=(anna, bert))
    found = of_user(inventory(both, gpu(1, processes=(bert,)), gpu(2), topology=LINKS), "anna")

    assert indices(found) == [0]
    assert found.gpus[0].processes == (anna,)
    assert found.topology == Topology(links=())


def test_of_nobody_is_of_everybody() -> None:
    assert of_user(FOUR, None) is FOUR


def by_temperature(item: Gpu) -> int | None:
    return item.temperature_c


@pytest.mark.parametrize(
    ("descending", "expected"), [(False, [1, 2, 4, 3, 0]), (True, [3, 2, 4, 1, 0])]
)
def test_ties_keep_their_order_and_nulls_come_last(
    *, descending: bool, expected: list[int]
) -> None:
    degrees = (None, 30, 40, 50, 40)
    found = inventory(*(gpu(i, temperature_c=value) for i, value in enumerate(degrees)))

    ordered = sort_gpus(found, by_temperature, descending=descending)

    assert indices(ordered) == expected


@given(
    degrees=st.lists(st.none() | st.integers(-40, 120), max_size=8),
    descending=st.booleans(),
)
def test_sorting_keeps_the_set(degrees: list[int | None], *, descending: bool) -> None:
    found = inventory(*(gpu(i, temperature_c=value) for i, value in enumerate(degrees)))

    ordered = sort_gpus(found, by_temperature, descending=descending)

    assert sorted(indices(ordered)) == indices(found)
    values = [item.temperature_c for item in ordered.gpus if item.temperature_c is not None]
    assert values == sorted(values, reverse=descending)


@pytest.mark.parametrize("name", COLUMNS)
def test_every_column_can_be_sorted_by(name: str) -> None:
    full = gpu(1, temperature_c=40, power_w=1.5, mig=MigState(enabled=True), error="x", serial="1")

    found = sort_gpus(inventory(gpu(0), full, gpu(2)), COLUMNS[name].value, descending=True)

    assert sorted(indices(found)) == [0, 1, 2]
