"""`gpucheck list` as people see it, on any terminal."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len

from gpucheck.drivers.evidence import GpuHealthReading, HealthReading
from gpucheck.drivers.readings import GpuReading, NvmlReading, ProbeFailure, ProcessReading
from gpucheck.inventory.columns import COLUMNS
from gpucheck.inventory.condition import read_condition
from gpucheck.report.documents import DOCUMENTS
from gpucheck.report.envelope import Report
from gpucheck.report.errors import ExitCode
from gpucheck.report.formats import json as json_format
from gpucheck.report.formats.table import render
from gpucheck.report.saved import read_document
from gpucheck.report.text import View
from tests.fakes.probes import FakeProbes, gpu_reading, healthy, reading_of
from tests.fakes.reports import any_list, eventful_machine, list_report
from tests.report.formats.recorded import in_sections, recorded
from tests.sampling import examples

WIDTHS = (40, 64, 80, 110, 140, 160)
EVENTFUL = list_report(ask_driver=True)
ANSI = re.compile(r"\x1b\[[0-9;]*m")


def lines(report: Report, **view: object) -> list[str]:
    return render(report, View(**view)).splitlines()  # type: ignore[arg-type]


# ------------------------------------------------------------------------------------ pictures


def unwell(*healths: GpuHealthReading, **gpu: object) -> Report:
    """Return a list of cards with this health."""
    probes = FakeProbes(
        readings=reading_of(*(gpu_reading(health.index, **gpu) for health in healths)),
        health_reading=HealthReading(gpus=healths),
    )
    report = list_report(probes)
    return report._replace(result=read_condition(report.result, probes))  # type: ignore[arg-type]


def listed(*readings: GpuReading, **answer: object) -> Report:
    return list_report(FakeProbes(readings=reading_of(*readings)._replace(**answer)))


def hidden(value: str, count: int) -> Report:
    rows = reading_of(*map(gpu_reading, range(count)))
    return list_report(FakeProbes(readings=rows, variables={"CUDA_VISIBLE_DEVICES": value}))


def situations() -> dict[str, tuple[Report, dict[str, Any]]]:
    """Return lists by what is special about them, and how each is looked at."""
    gone = ProbeFailure(code="gpu-is-lost", message="it fell off the bus", library_code=15)
    unread = {"processes": "the mps processes: no right"}
    one = (ProcessReading(pid=9, type="compute"),)
    no_match = EVENTFUL._replace(result=EVENTFUL.result._replace(gpus=()))  # type: ignore[union-attr]
    hot = [healthy(index, temperature_slowdown_c=30 + index // 3) for index in range(4)]
    lowered = unwell(healthy(0, clock_event_reasons=0x20), healthy(1))
    failures = {
        code: list_report(
            FakeProbes(readings=NvmlReading(failure=ProbeFailure(code=code, message="x")))
        )
        for code in ("library-not-found", "driver-not-answering")
    }
    colored = {"color": True}
    full = {
        f"memory of which {percent} % is used": (
            listed(gpu_reading(0, memory_used_bytes=percent * 85899345920 // 100)), colored,
        )
        for percent in (0, 73, 89, 90, 100)
    }  # fmt: skip
    cards: tuple[tuple[dict[str, Any], dict[str, Any]], ...] = (
        ({"utilization_gpu_percent": 0}, {}),
        ({"utilization_gpu_percent": 99}, {}),
        ({"temperature_c": 86}, {}),
        ({"temperature_c": 90}, {}),
        ({"temperature_c": 86}, {"temperature_slowdown_c": 105, "temperature_gpu_max_c": 100}),
        ({"power_w": 699.0}, {}),
        ({"power_w": 650.0}, {}),
    )
    return {
        "all of it in colour": (EVENTFUL, colored),
        "eight GPUs": (listed(*map(gpu_reading, range(8))), {}),
        "two are hidden": (hidden("1", 3), {}),
        "two are hidden, on a narrow screen": (hidden("1", 3), {"width": 40}),
        "a hidden one is dimmed": (hidden("", 1), colored),
        **full,
        "memory that is not known": (
            listed(
                gpu_reading(0, memory_used_bytes=None),
                gpu_reading(1, memory_total_bytes=None, memory_used_bytes=None),
            ),
            {},
        ),
        "no GPU": (listed(), {}),
        **{f"no answer: {code}": (report, {}) for code, report in failures.items()},
        "a filter that leaves nothing": (no_match, {}),
        "without a heading": (EVENTFUL, {"header": False}),
        "quiet": (EVENTFUL, {"verbosity": -1}),
        "processes at 64 columns": (EVENTFUL, {"width": 64, "processes": True}),
        "processes at 160 columns": (EVENTFUL, {"width": 160, "processes": True}),
        "no process": (listed(gpu_reading(0)), {"processes": True}),
        "a list of processes that could not be read": (
            listed(gpu_reading(0, unavailable={"processes": "no right"})), {"processes": True},
        ),
        "a list of processes with a gap": (
            listed(gpu_reading(0, processes=one, unavailable=unread)), {"processes": True},
        ),
        **{
            f"a card that is not well at {width} columns": (lowered, {"width": width})
            for width in (40, 80, 160)
        },
        "one cause on four cards": (unwell(*hot), {}),
        "a healthy card at its limits": (
            unwell(healthy(0), utilization_gpu_percent=100, power_w=700.0), {},
        ),
        **{
            f"colours of {gpu} {health}": (unwell(healthy(0, **health), **gpu), colored)
            for gpu, health in cards
        },
        "two columns in another order": (EVENTFUL, {"columns": ("temperature_c", "index")}),
        "too many columns become lines": (
            EVENTFUL, {"width": 40, "columns": ("index", "name", "uuid", "pci_bus_id")},
        ),
        "what is not known has no number": (
            listed(gpu_reading(0, uuid=None, failure=gone)), {},
        ),
    }  # fmt: skip


def test_situations_are_as_recorded() -> None:
    shown = {name: render(report, View(**view)) for name, (report, view) in situations().items()}
    text = in_sections(shown)

    assert text == recorded("list-situations", text)


@pytest.mark.parametrize("width", WIDTHS)
def test_whole_list(width: int) -> None:
    text = render(EVENTFUL, View(width=width, processes=True))

    assert text == recorded(f"list-{width}", text)


def test_whole_list_in_ascii() -> None:
    text = render(EVENTFUL, View(width=80, processes=True, unicode=False))

    assert text.isascii()
    assert text == recorded("list-80-ascii", text)


@pytest.mark.parametrize("width", [40, 80])
def test_whole_topology(width: int) -> None:
    text = render(list_report(topology=True, ask_driver=True), View(width=width))

    assert text == recorded(f"topology-{width}", text)


@pytest.mark.parametrize("width", WIDTHS)
def test_colour_changes_nothing_but_the_colour(width: int) -> None:
    plain = lines(EVENTFUL, width=width, processes=True)
    colored = lines(EVENTFUL, width=width, processes=True, color=True)

    assert [ANSI.sub("", line).rstrip() for line in colored] == plain


def test_a_failure_without_a_result_is_no_text() -> None:
    assert render(EVENTFUL._replace(result=None), View()) == ""


def test_a_report_of_another_command_is_refused() -> None:
    with pytest.raises(TypeError, match="str"):
        render(EVENTFUL._replace(result="text"), View())


def test_a_saved_list_has_the_marks_of_the_list() -> None:
    report = unwell(healthy(0, clock_event_reasons=0x20), healthy(1))
    saved = read_document(json_format.render(report, View()).encode(), 1 << 20, DOCUMENTS)[0]

    assert saved.result.gpus[0].troubles[0].cause == "clocks-lowered"
    assert saved.result.gpus[1].troubles == ()
    assert render(saved, View()) == render(report, View())


def test_a_health_that_cannot_be_read_is_not_a_good_one() -> None:
    hung = ProbeFailure(code="nvml-driver-not-answering", message="no answer within 2 s")
    rows = reading_of(gpu_reading(0, pcie_width=8))
    probes = FakeProbes(readings=rows, health_reading=HealthReading(failure=hung))
    report = list_report(probes)

    judged = read_condition(report.result, probes)  # type: ignore[arg-type]

    assert judged.gpus[0].troubles is None
    assert judged.gpus[0].unavailable["troubles"] == "no answer within 2 s"
    assert "! GPU 0: PCIe" in render(report._replace(result=judged), View())


def test_columns_stay_where_they_are_when_readings_change() -> None:
    idle = {"utilization_gpu_percent": 0, "power_w": 9.0, "temperature_c": 31, "clock_sm_mhz": 345}
    busy = {"utilization_gpu_percent": 100, "power_w": 699.0, "clock_sm_mhz": 1980}
    for width in WIDTHS[1:]:
        heads = {lines(unwell(healthy(0), **gpu), width=width)[1] for gpu in (idle, busy)}
        assert len(heads) == 1


@pytest.mark.parametrize("width", [40, 80, 160])
def test_verbose_shows_more_at_every_width(width: int) -> None:
    plain, more = (lines(EVENTFUL, width=width, verbosity=each) for each in (0, 1))
    text = " ".join(" ".join(more).split())

    assert len(more) > len(plain)
    assert "compute capability 9.0" in text
    assert "bus 0000:10:00.0" in text or width == 160


# -------------------------------------------------------------------------------- other columns


@pytest.mark.parametrize("name", COLUMNS)
def test_every_column_can_be_selected(name: str) -> None:
    [_, head, *rows] = lines(EVENTFUL, width=200, columns=(name,))

    assert head.strip() == COLUMNS[name].heading
    assert len(rows) >= 4


def test_values_are_never_cut() -> None:
    text = render(EVENTFUL, View(width=79, columns=("uuid", "name", "pci_bus_id", "serial")))

    for row in eventful_machine().readings.gpus:
        assert row.uuid in text
        assert row.pci_bus_id in text


# ----------------------------------------------------------------------------------- properties

VIEWS = st.builds(
    View,
    width=st.integers(20, 200),
    color=st.booleans(),
    unicode=st.booleans(),
    processes=st.booleans(),
    columns=st.none() | st.lists(st.sampled_from(list(COLUMNS)), min_size=1, max_size=6).map(tuple),
)


@settings(max_examples=examples(15))
@given(report=any_list(), view=VIEWS)
def test_any_list_fits_steers_nothing_and_tells_every_gpu(report: Report, view: View) -> None:
    text = render(report, view)
    plain = ANSI.sub("", text) if view.color else text

    # What is to be copied (it stands four columns in) is never broken.
    lines = [line for line in plain.splitlines() if not line.startswith("    ")]
    assert [line for line in lines if cell_len(line) > view.width] == []
    assert [char for char in plain if not char.isprintable() and char != "\n"] == []
    assert view.unicode or plain.isascii()
    text = render(report._replace(exit_code=ExitCode.OK), View(width=view.width))
    for gpu in report.result.gpus:  # type: ignore[union-attr]
        assert re.search(rf"^ *(GPU ?)?!?{gpu.index}\b", text, re.MULTILINE)
