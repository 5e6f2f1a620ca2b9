"""Row of a GPU that never answered (others: test_inventory.py), and the links between GPUs."""

from __future__ import annotations

from itertools import combinations

import pytest

from gpucheck.drivers.readings import (
    HUNG,
    NvlinkReading,
    NvmlReading,
    PairReading,
    ProbeFailure,
    TopologyReading,
)
from gpucheck.inventory.gpu_row import describe_topology, rows_of
from gpucheck.inventory.model import TopologyLink
from tests.fakes.probes import gpu_reading


def test_reasons_of_a_silent_gpu_have_the_same_order_in_every_run() -> None:
    silent = NvmlReading(failure=ProbeFailure(code=HUNG, message="no answer"), gpu_count=1)

    (row,) = rows_of(silent)

    assert len(row.unavailable) > 20
    assert [*row.unavailable] == sorted(row.unavailable)


GPUS = [gpu_reading(index) for index in range(3)]
BUS = [gpu.pci_bus_id for gpu in GPUS]
SWITCHES = ("0000:c1:00.0", "0000:c2:00.0")


def kinds(*nvlinks: NvlinkReading, level: int | None = 50) -> dict[tuple[int, int], str | None]:
    pairs = tuple(PairReading(from_=a, to=b, level=level) for a, b in combinations(range(3), 2))
    found = describe_topology(TopologyReading(pairs=pairs, nvlinks=nvlinks), GPUS)
    return {(link.from_, link.to): link.kind for link in found.links}


def to_gpu(gpu: int, link: int, other: int, **changes: object) -> NvlinkReading:
    values: dict[str, object] = {
        "active": True,
        "remote_type": "gpu",
        "remote_pci_bus_id": BUS[other],
    }
    return NvlinkReading(gpu=gpu, link=link, **(values | changes))  # type: ignore[arg-type]


def to_switch(gpu: int, link: int, **changes: object) -> NvlinkReading:
    values: dict[str, object] = {
        "active": True,
        "remote_type": "switch",
        "remote_pci_bus_id": SWITCHES[link % 2],
    }
    return NvlinkReading(gpu=gpu, link=link, **(values | changes))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("level", "word"),
    [(0, "PIX"), (10, "PIX"), (20, "PXB"), (30, "PHB"), (40, "NODE"), (50, "SYS")],
)
def test_pcie_levels(level: int, word: str) -> None:
    assert kinds(level=level) == {(0, 1): word, (0, 2): word, (1, 2): word}


def test_an_unknown_level_is_said() -> None:
    reading = TopologyReading(pairs=(PairReading(from_=0, to=1, level=60),))

    [link] = describe_topology(reading, GPUS).links

    assert link == TopologyLink(
        from_=0, to=1, kind=None, unavailable="NVML reports the unknown level 60"
    )


def test_a_pair_that_could_not_be_read_keeps_its_reason() -> None:
    reading = TopologyReading(pairs=(PairReading(from_=0, to=1, level=None, unavailable="lost"),))

    [link] = describe_topology(reading, GPUS).links

    assert (link.kind, link.unavailable) == (None, "lost")


def test_direct_links_are_counted() -> None:
    links = [to_gpu(0, n, 1) for n in range(4)] + [to_gpu(1, n, 0) for n in range(4)]

    assert kinds(*links) == {(0, 1): "NV4", (0, 2): "SYS", (1, 2): "SYS"}


def test_inactive_links_do_not_count() -> None:
    links = [to_gpu(0, 0, 1), to_gpu(0, 1, 1, active=False), to_gpu(1, 0, 0)]

    assert kinds(*links)[0, 1] == "NV1"


def test_switched_links_reach_everybody_on_a_switch() -> None:
    links = [to_switch(gpu, n) for gpu in (0, 1) for n in range(18)]

    assert kinds(*links) == {(0, 1): "NV18", (0, 2): "SYS", (1, 2): "SYS"}


def test_the_slower_end_is_what_a_switched_pair_has() -> None:
    links = [to_switch(0, n) for n in range(18)] + [to_switch(1, n) for n in range(17)]

    assert kinds(*links)[0, 1] == "NV17"


@pytest.mark.parametrize(
    ("remote", "expected"),
    [(SWITCHES[0], "NV2"), (BUS[2], "SYS"), (None, "SYS")],
    ids=["no GPU is at that bus id", "another GPU is", "it is not known"],
)
def test_old_drivers_do_not_name_the_kind_of_the_other_end(
    remote: str | None, expected: str
) -> None:
    links = [
        to_switch(gpu, n, remote_type=None, remote_pci_bus_id=remote)
        for gpu in (0, 1)
        for n in range(2)
    ]

    assert kinds(*links)[0, 1] == expected


def test_links_to_a_processor_join_no_gpus() -> None:
    links = [to_gpu(gpu, 0, 0, remote_type="ibm-npu", remote_pci_bus_id=None) for gpu in range(3)]

    assert set(kinds(*links).values()) == {"SYS"}


GAP = {"active": False, "remote_type": None, "remote_pci_bus_id": None, "unavailable": "no right"}


def test_one_end_that_knows_its_links_is_enough() -> None:
    found = kinds(to_gpu(0, 0, 1, **GAP), to_gpu(1, 0, 0), to_gpu(2, 0, 2, active=False))

    assert found == {(0, 1): "NV1", (0, 2): "SYS", (1, 2): "SYS"}


@pytest.mark.parametrize("at", [0, 1])
def test_with_unread_links_the_pcie_path_is_no_answer_beside_a_switch(at: int) -> None:
    found = kinds(to_gpu(at, 0, 1, **GAP), to_switch(1 - at, 0))

    assert found[0, 1] is None


def test_with_unread_links_at_both_ends_nothing_is_known() -> None:
    gaps = tuple(to_gpu(end, 0, 1, **GAP) for end in (0, 1))
    reading = TopologyReading(pairs=(PairReading(from_=0, to=1, level=50),), nvlinks=gaps)

    [link] = describe_topology(reading, GPUS).links

    assert (link.kind, link.unavailable) == (None, "the NVLinks of GPU 0: no right")


def test_gpus_without_bus_id_are_no_target() -> None:
    gpus = [gpu_reading(0, pci_bus_id=None), gpu_reading(1, pci_bus_id=None)]
    pairs = (PairReading(from_=0, to=1, level=30),)
    link = NvlinkReading(gpu=0, link=0, active=True, remote_type="gpu")

    [found] = describe_topology(TopologyReading(pairs=pairs, nvlinks=(link,)), gpus).links

    assert found.kind == "PHB"


@pytest.mark.parametrize(
    ("changes", "kind"),
    [
        ({"active": True, "remote_type": "gpu"}, None),
        ({"active": False, "remote_type": "gpu"}, "PHB"),
        ({"active": True, "remote_type": "switch"}, "NV1"),
    ],
)
def test_a_link_to_a_gpu_without_bus_id_is_a_gap(
    changes: dict[str, object], kind: str | None
) -> None:
    hidden = {"pci_bus_id": "no permission (NVML error 4)"}
    gpus = [gpu_reading(0), gpu_reading(1, pci_bus_id=None, unavailable=hidden)]
    links = tuple(NvlinkReading(gpu=end, link=0, **changes) for end in (0, 1))  # type: ignore[arg-type]
    reading = TopologyReading(pairs=(PairReading(from_=0, to=1, level=30),), nvlinks=links)

    [found] = describe_topology(reading, gpus).links

    why = "one leads to a GPU without a PCI bus id: no permission (NVML error 4)"
    reason = f"the NVLinks of GPU 0: {why}"
    assert (found.kind, found.unavailable) == (kind, None if kind else reason)
