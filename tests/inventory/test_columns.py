"""Every column: its plain value, and how a person reads it."""

from __future__ import annotations

import pytest
from hypothesis import given

from gpucheck.inventory.columns import COLUMNS, CSV_COLUMNS
from gpucheck.inventory.model import Gpu, GpuProcess, GpuState, MigInstance, MigState, PcieLink
from gpucheck.report.text import ABSENT
from tests.fakes.reports import gpus

FULL = Gpu(
    index=3,
    cuda_index=1,
    visible=True,
    uuid="GPU-1",
    name="NVIDIA H100",
    serial="42",
    pci_bus_id="0000:1a:00.0",
    architecture="Hopper",
    compute_capability="9.0",
    memory_total_bytes=85899345920,
    memory_used_bytes=1073741824,
    memory_free_bytes=84825604096,
    utilization_gpu_percent=7,
    utilization_memory_percent=3,
    temperature_c=41,
    fan_percent=30,
    power_w=120.4,
    power_limit_w=699.6,
    clock_sm_mhz=1980,
    clock_sm_max_mhz=1990,
    performance_state=0,
    persistence_mode=True,
    compute_mode="default",
    ecc_mode=False,
    pcie=PcieLink(generation=5, generation_max=5, width=16, width_max=16),
    numa_node=0,
    cpu_affinity="0-15",
    memory_limit_bytes=8589934592,
    memory_limit_used_bytes=1073741824,
    memory_limit_source="dmem.max",
    mig=MigState(enabled=True, instances=(MigInstance(uuid=None, name=None),)),
)
SHOWN = {
    "index": (3, "3"),
    "cuda_index": (1, "1"),
    "visible": (True, "on"),
    "hidden_reason": (None, "-"),
    "uuid": ("GPU-1", "GPU-1"),
    "name": ("NVIDIA H100", "NVIDIA H100"),
    "serial": ("42", "42"),
    "pci_bus_id": ("0000:1a:00.0", "0000:1a:00.0"),
    "architecture": ("Hopper", "Hopper"),
    "compute_capability": ("9.0", "9.0"),
    "memory_total_bytes": (85899345920, "80.0 GiB"),
    "memory_used_bytes": (1073741824, "1.0 GiB"),
    "memory_free_bytes": (84825604096, "79.0 GiB"),
    "memory_source": ("driver", "driver"),
    "memory_limit_bytes": (8589934592, "8.0 GiB"),
    "memory_limit_used_bytes": (1073741824, "1.0 GiB"),
    "memory_limit_source": ("dmem.max", "dmem.max"),
    "utilization_gpu_percent": (7, "7%"),
    "utilization_memory_percent": (3, "3%"),
    "temperature_c": (41, "41 °C"),
    "fan_percent": (30, "30%"),
    "power_w": (120.4, "120/700 W"),
    "power_limit_w": (699.6, "700 W"),
    "clock_sm_mhz": (1980, "1980 MHz"),
    "clock_sm_max_mhz": (1990, "1990 MHz"),
    "performance_state": (0, "P0"),
    "persistence_mode": (True, "on"),
    "compute_mode": ("default", "default"),
    "ecc_mode": (False, "off"),
    "pcie": ("5x16", "gen5 x16"),
    "pcie_generation": (5, "5"),
    "pcie_generation_max": (5, "5"),
    "pcie_width": (16, "16"),
    "pcie_width_max": (16, "16"),
    "numa_node": (0, "0"),
    "cpu_affinity": ("0-15", "0-15"),
    "mig": ("on (1)", "on (1)"),
    "processes": (0, "0"),
    "state": ("ok", "ok"),
    "error": (None, "-"),
}
#: Fields of the document that are shown under another name, or below the table.
ELSEWHERE = {"unavailable", "memory_unaccounted_bytes", "holders", "troubles"}


@pytest.mark.parametrize("name", COLUMNS)
def test_value_and_looks(name: str) -> None:
    value, shown = SHOWN[name]

    assert COLUMNS[name].value(FULL) == value
    assert COLUMNS[name].show(FULL) == shown


def test_every_field_of_the_document_is_a_column() -> None:
    assert set(Gpu._fields) - ELSEWHERE <= set(COLUMNS)


@pytest.mark.parametrize(
    "name", sorted(set(COLUMNS) - {"index", "memory_source", "processes", "state"})
)
def test_an_absent_reading_is_absent(name: str) -> None:
    empty = Gpu(index=0)

    assert COLUMNS[name].value(empty) is None
    assert COLUMNS[name].show(empty) == ABSENT


def test_headings_tell_the_columns_apart() -> None:
    headings = [column.heading for column in COLUMNS.values()]

    assert len(set(headings)) == len(headings)


@pytest.mark.parametrize(
    ("used", "limit", "shown"),
    [(None, None, "-"), (None, 700.0, "?/700 W"), (99.6, None, "100 W"), (0.0, 70.0, "0/70 W")],
)
def test_watts(used: float | None, limit: float | None, shown: str) -> None:
    assert COLUMNS["power_w"].show(FULL._replace(power_w=used, power_limit_w=limit)) == shown


@pytest.mark.parametrize(
    ("link", "shown"),
    [
        (
            PcieLink(generation=3, generation_max=5, width=8, width_max=16),
            "gen3 x8 (slot gen5 x16)",
        ),
        (PcieLink(generation=3, width=8, width_max=16), "gen3 x8 (slot gen? x16)"),
        # A lower generation alone is what an idle link does.
        (PcieLink(generation=1, generation_max=5, width=16, width_max=16), "gen1 x16"),
        (PcieLink(generation=1, width=16), "gen1 x16"),
        (PcieLink(width=16), "-"),
        (PcieLink(generation=5), "-"),
    ],
)
def test_pcie(link: PcieLink, shown: str) -> None:
    assert COLUMNS["pcie"].show(FULL._replace(pcie=link)) == shown


@pytest.mark.parametrize(
    ("enabled", "unavailable", "shown"),
    [
        (None, {}, "-"),
        (False, {}, "off"),
        (True, {}, "on (1)"),
        (True, {"mig.instances": "no right"}, "on (1+)"),
    ],
)
def test_mig(enabled: bool | None, unavailable: dict[str, str], shown: str) -> None:
    gpu = FULL._replace(mig=FULL.mig._replace(enabled=enabled), unavailable=unavailable)

    assert COLUMNS["mig"].show(gpu) == shown


def test_words_stand_left_and_figures_right() -> None:
    assert {name for name, column in COLUMNS.items() if not column.right} == {
        *("name", "uuid", "pci_bus_id", "serial", "architecture", "memory_source", "compute_mode"),
        *("cpu_affinity", "hidden_reason", "state", "error", "memory_limit_source"),
    }


def test_processes_are_counted() -> None:
    two = FULL._replace(processes=tuple(GpuProcess(pid=pid, type="compute") for pid in (1, 2)))

    assert (COLUMNS["processes"].value(two), COLUMNS["processes"].show(two)) == (2, "2")
    some = two._replace(unavailable={"processes": "no right to list the rest"})
    assert (COLUMNS["processes"].value(some), COLUMNS["processes"].show(some)) == (2, "2+")


def test_unknown_processes_are_not_none() -> None:
    unread = FULL._replace(unavailable={"processes": "no right"})

    assert COLUMNS["processes"].value(unread) is None
    assert COLUMNS["processes"].show(unread) == ABSENT


def test_a_lost_gpu_says_so() -> None:
    assert COLUMNS["state"].show(FULL._replace(state=GpuState.LOST)) == "lost"


def test_csv_has_plain_columns() -> None:
    assert set(COLUMNS) - set(CSV_COLUMNS) == {"pcie", "mig"}


@given(gpus(0))
def test_any_gpu_has_all_columns(gpu: Gpu) -> None:
    for column in COLUMNS.values():
        shown = column.show(gpu)
        assert isinstance(shown, str)
        if column.value(gpu) is None:
            assert shown == ABSENT or shown.startswith("?/")
