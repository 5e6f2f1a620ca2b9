"""Memory of a GPU: what no listed process owns, and what a cgroup may use of it."""

from __future__ import annotations

import pytest

from gpucheck.drivers.evidence import HolderReading, HoldersReading
from gpucheck.drivers.readings import ProcessReading
from gpucheck.inventory.inventory import take_inventory
from gpucheck.inventory.memory import capped_sentences, caps_of, find_unowned, free_bytes, is_much
from gpucheck.inventory.model import Gpu, Inventory
from gpucheck.report.envelope import Answer
from gpucheck.report.formats.table import render
from gpucheck.report.text import View
from tests.fakes.probes import FakeProbes, gpu_reading, reading_of
from tests.fakes.reports import wrap

GIB = 1 << 30
MEMORY = {
    "memory_total_bytes": 80 * GIB,
    "memory_used_bytes": 20 * GIB,
    "memory_free_bytes": 59 * GIB,
}
BUS = "0000:10:00.0"
STOPPED = HolderReading(
    pid=4711, minors=(0,), state="stopped", name="python", user="alice", mine=True
)


def machine(reading: HoldersReading | None = None, **gpu: object) -> FakeProbes:
    return FakeProbes(
        readings=reading_of(gpu_reading(0, **(MEMORY | gpu))),  # type: ignore[arg-type]
        holders_reading=reading,
    )


def found(probes: FakeProbes) -> Gpu:
    inventory = take_inventory(probes).result
    assert isinstance(inventory, Inventory)
    return find_unowned(inventory, probes).gpus[0]


def holders(*held: HolderReading, **changes: object) -> HoldersReading:
    return HoldersReading(holders=held, minors={BUS: 0})._replace(**changes)  # type: ignore[arg-type]


def process(pid: int, size: int | None) -> ProcessReading:
    return ProcessReading(pid=pid, type="compute", memory_used_bytes=size)


@pytest.mark.parametrize(
    ("gpu", "unowned", "much"),
    [
        ({}, 20 * GIB, True),
        ({"processes": (process(1, 12 * GIB),)}, 8 * GIB, True),
        ({"processes": (process(1, 19 * GIB),)}, 1 * GIB, False),
        ({"processes": (process(1, 30 * GIB),)}, 0, False),
        ({"memory_total_bytes": 2 * GIB, "memory_used_bytes": GIB >> 2,
          "memory_free_bytes": GIB}, GIB >> 2, False),
    ],
)  # fmt: skip
def test_what_no_process_owns(gpu: dict[str, object], unowned: int, much: bool) -> None:
    probes = machine(**gpu)
    row = found(probes)

    assert row.memory_unaccounted_bytes == unowned
    assert is_much(row) is much
    assert ("device_holders" in probes.asked) is much


@pytest.mark.parametrize(
    ("gpu", "reason"),
    [
        ({"memory_free_bytes": 60 * GIB}, "does not tell its own reserve apart"),
        ({"mig_enabled": True}, "split by MIG"),
        ({"processes": (process(1, None),)}, "the memory of a process is not known"),
        ({"unavailable": {"processes": "no right"}}, "no right"),
    ],
)
def test_what_cannot_be_told_is_not_guessed(gpu: dict[str, object], reason: str) -> None:
    probes = machine(**gpu)
    row = found(probes)

    assert row.memory_unaccounted_bytes is None
    assert reason in row.unavailable["memory_unaccounted_bytes"]
    assert "device_holders" not in probes.asked


def test_memory_that_is_the_systems_has_no_owner_to_look_for() -> None:
    probes = machine()
    inventory = take_inventory(probes).result
    assert isinstance(inventory, Inventory)
    shared = inventory.gpus[0]._replace(memory_source="system")

    [row] = find_unowned(inventory._replace(gpus=(shared,)), probes).gpus

    assert row.memory_unaccounted_bytes is None
    assert row.unavailable["memory_unaccounted_bytes"] == "the GPU shares the CPU's memory"


@pytest.mark.parametrize(
    ("state", "mine", "command"),
    [
        ("stopped", True, "kill 4711 && kill -CONT 4711"),
        ("stopped", False, "sudo kill 4711 && sudo kill -CONT 4711"),
        ("zombie", True, "kill -KILL 4711"),
        ("orphaned", True, "kill 4711"),
        ("running", True, None),
    ],
)
def test_command_that_ends_a_holder(state: str, mine: bool, command: str | None) -> None:
    [holder] = found(machine(holders(STOPPED._replace(state=state, mine=mine)))).holders or ()

    assert (holder.pid, holder.state, holder.end_command) == (4711, state, command)


def test_listed_processes_and_those_of_other_cards_hold_nothing_here() -> None:
    reading = holders(STOPPED._replace(pid=1), STOPPED._replace(minors=(1,)))

    assert found(machine(reading, processes=(process(1, GIB),))).holders == ()


@pytest.mark.parametrize(
    ("reading", "said"),
    [
        (holders(STOPPED), "PID 4711 (alice: python), stopped, still has the card open. To end it:"
         " kill 4711 && kill -CONT 4711"),
        (holders(STOPPED, STOPPED._replace(pid=4712)),
         "PID 4711 (alice: python), stopped, and 1 more still have the card open."
         " To end the first: kill 4711 && kill -CONT 4711"),
        (holders(STOPPED._replace(command="python -u train.py --lr 1")),
         "PID 4711 (alice: train.py), "),
        (holders(STOPPED._replace(state="running")), "open there: PID 4711 (alice: python)"),
        (holders(hidden=12), "who holds them is not known: the open files of 12 processes"),
        (holders(complete=False), "who holds them is not known: there are too many processes"),
        (holders(), "the driver holds them, or a process in another container"),
        (HoldersReading(unavailable="not recorded"), "who holds them is not known: not recorded"),
        (HoldersReading(), "who holds them is not known: the number of its device file"),
    ],
)  # fmt: skip
def test_the_list_says_who_holds_it(reading: HoldersReading, said: str) -> None:
    probes = machine(reading)
    inventory = take_inventory(probes).result
    assert isinstance(inventory, Inventory)
    report = wrap("list", Answer(result=find_unowned(inventory, probes)))

    text = " ".join(render(report, View(width=80)).split())

    assert f"! GPU 0: 20.0 GiB in use belong to no listed process; {said}" in text


def test_one_holder_of_many_cards_is_one_line() -> None:
    rows = [gpu_reading(index, **MEMORY) for index in range(4)]  # type: ignore[arg-type]
    buses = {str(row.pci_bus_id): row.index for row in rows}
    probes = FakeProbes(
        readings=reading_of(*rows),
        holders_reading=HoldersReading(
            holders=(STOPPED._replace(minors=(0, 1, 2, 3)),), minors=buses
        ),
    )
    inventory = take_inventory(probes).result
    assert isinstance(inventory, Inventory)
    report = wrap("list", Answer(result=find_unowned(inventory, probes)))

    text = render(report, View(width=160))

    assert "! GPUs 0-3: 80.0 GiB in use belong to no listed process; PID 4711" in text
    assert text.count("4711") == 3


GIB = 1 << 30


@pytest.mark.parametrize(
    ("free", "limit", "used", "expected"),
    [
        (7, None, None, 7),
        (7, 8, None, 7),
        (7, 8, 3, 5),
        (4, 8, 3, 4),
        (7, 8, 9, 0),
        (None, 8, 3, 5),
        (None, None, None, None),
    ],
)
def test_what_is_left_of_card_and_limit_is_free(
    free: int | None, limit: int | None, used: int | None, expected: int | None
) -> None:
    gpu = Gpu(
        index=0, memory_free_bytes=free, memory_limit_bytes=limit, memory_limit_used_bytes=used
    )

    assert free_bytes(gpu) == expected


def card(index: int, limit: int | None, total: int | None = 80 * GIB) -> Gpu:
    return Gpu(
        index=index,
        memory_total_bytes=total,
        memory_limit_bytes=limit,
        memory_limit_source=None if limit is None else "dmem.max",
    )


def test_equal_limits_are_one_sentence_and_cards_without_are_none() -> None:
    gpus = [card(0, 8 * GIB), card(1, None), card(2, 8 * GIB), card(3, 4 * GIB, None)]

    assert list(capped_sentences(caps_of(gpus))) == [
        "GPUs 0,2: 8.0 GiB of 80.0 GiB is your cgroup's limit, not the card's (dmem.max);"
        " out of memory at 8.0 GiB is expected.",
        "GPU 3: 4.0 GiB is your cgroup's limit, not the card's (dmem.max);"
        " out of memory at 4.0 GiB is expected.",
    ]
