"""`gpucheck list` as people see it, on any terminal."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len

from gpucheck.drivers.evidence import GpuHealthReading, HealthReading
from gpucheck.drivers.readings import NvmlReading, ProbeFailure, ProcessReading
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
from tests.report.formats.recorded import recorded
from tests.sampling import examples

WIDTHS = (40, 64, 80, 110, 140, 160)
EVENTFUL = list_report(ask_driver=True)
ANSI = re.compile(r"\x1b\[[0-9;]*m")


def lines(report: Report, **view: object) -> list[str]:
    return render(report, View(**view)).splitlines()  # type: ignore[arg-type]


# ------------------------------------------------------------------------------------ pictures


@pytest.mark.parametrize("width", WIDTHS)
def test_whole_list(width: int) -> None:
    text = render(EVENTFUL, View(width=width, processes=True))

    assert text == recorded(f"list-{width}", text)


def test_whole_list_in_ascii() -> None:
    text = render(EVENTFUL, View(width=80, processes=True, unicode=False))

    assert text.isascii()
    assert text == recorded("list-80-ascii", text)


def test_whole_list_in_colour() -> None:
    text = render(EVENTFUL, View(width=80, color=True))

    assert text == recorded("list-80-colour", text)


@pytest.mark.parametrize("width", [40, 80])
def test_whole_topology(width: int) -> None:
    text = render(list_report(topology=True, ask_driver=True), View(width=width))

    assert text == recorded(f"topology-{width}", text)


def test_eight_gpus_at_80_columns() -> None:
    eight = list_report(FakeProbes(readings=reading_of(*(gpu_reading(i) for i in range(8)))))

    text = render(eight, View(width=80))

    assert text == recorded("list-8-gpus", text)


@pytest.mark.parametrize("width", WIDTHS)
def test_colour_changes_nothing_but_the_colour(width: int) -> None:
    plain = lines(EVENTFUL, width=width, processes=True)
    colored = lines(EVENTFUL, width=width, processes=True, color=True)

    assert [ANSI.sub("", line).rstrip() for line in colored] == plain


# ----------------------------------------------------------------------------- what it must tell


def heads(report: Report, **view: object) -> str:
    return lines(report, **view)[1]


def test_both_numberings_are_shown() -> None:
    rows = [line.replace("!", "").split()[:2] for line in lines(EVENTFUL, width=80)[2:8]]

    assert rows == [["0", "1"], ["1", "0"], ["2", "-"], ["2:0", "-"], ["2:1", "2"], ["3", "-"]]


@pytest.mark.parametrize("width", WIDTHS)
def test_a_lost_gpu_says_why(width: int) -> None:
    text = " ".join(render(EVENTFUL, View(width=width)).split())

    assert "LOST" in text
    assert "the GPU has fallen off the bus or is otherwise inaccessible" in text


@pytest.mark.parametrize("width", WIDTHS)
def test_a_hidden_gpu_says_why(width: int) -> None:
    hidden = FakeProbes(
        readings=reading_of(*(gpu_reading(i) for i in range(3))),
        variables={"CUDA_VISIBLE_DEVICES": "1"},
    )

    text = " ".join(render(list_report(hidden), View(width=width)).split())

    assert "GPUs 0,2 are hidden from CUDA: not named in CUDA_VISIBLE_DEVICES='1'" in text


def test_a_hidden_gpu_is_dimmed() -> None:
    hidden = FakeProbes(readings=reading_of(gpu_reading(0)), variables={"CUDA_VISIBLE_DEVICES": ""})

    assert lines(list_report(hidden), color=True)[2].startswith("  \x1b[2m0")


@pytest.mark.parametrize(
    ("used", "color"),
    [(0.0, ""), (0.73, ""), (0.89, ""), (0.9, "\x1b[33m"), (1, "\x1b[33m")],
)
def test_memory_that_is_nearly_full_is_coloured(used: float, color: str) -> None:
    reading = gpu_reading(0, memory_used_bytes=round(85899345920 * used))
    text = render(list_report(FakeProbes(readings=reading_of(reading))), View(color=True))

    assert f" {color}{80 * used:4.1f}/80.0 GiB" in text


def test_unknown_memory_is_not_zero() -> None:
    unknown = gpu_reading(0, memory_used_bytes=None)
    nothing = gpu_reading(1, memory_total_bytes=None, memory_used_bytes=None)

    rows = lines(list_report(FakeProbes(readings=reading_of(unknown, nothing))), width=80)[2:]

    assert "?/80.0 GiB" in rows[0]
    assert "GiB" not in rows[1]


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (reading_of(), "no GPU listed"),
        (NvmlReading(failure=ProbeFailure(code="library-not-found", message="x")), "no GPU listed"),
        (
            NvmlReading(failure=ProbeFailure(code="driver-not-answering", message="x")),
            "GPUs not known",
        ),
    ],
)
def test_a_machine_without_a_list(answer: NvmlReading, expected: str) -> None:
    [line] = lines(list_report(FakeProbes(readings=answer)))

    assert line.endswith(f" · {expected}")


def test_a_filter_that_leaves_nothing() -> None:
    empty = EVENTFUL._replace(result=EVENTFUL.result._replace(gpus=()))  # type: ignore[union-attr]

    assert lines(empty)[0].endswith(" · no GPU matches")


def test_the_heading_can_be_left_out() -> None:
    assert lines(EVENTFUL, width=80, verbosity=-1)[0].split()[:2] == ["GPU", "CUDA"]
    assert lines(EVENTFUL, width=80, header=False)[0].split()[:2] == ["GPU", "CUDA"]


def test_a_failure_without_a_result_is_no_text() -> None:
    assert render(EVENTFUL._replace(result=None), View()) == ""


def test_a_report_of_another_command_is_refused() -> None:
    with pytest.raises(TypeError, match="str"):
        render(EVENTFUL._replace(result="text"), View())


# ------------------------------------------------------------------------------------ processes


def test_a_long_command_gives_way_to_the_facts() -> None:
    shown = lines(EVENTFUL, width=64, processes=True)
    at = next(place for place, line in enumerate(shown) if " PID " in line)

    assert shown[at].split() == ["GPU", "PID", "Type", "User", "Age", "Memory", "SM", "Command"]
    assert shown[at + 2].startswith("  0 4242 compute  anna     2 h 60 GiB  98% python3 train.py")
    assert shown[at + 3].startswith("2:0    9 compute")


def test_pids_of_another_namespace_are_explained() -> None:
    assert "another PID namespace" in render(EVENTFUL, View(width=160, processes=True))


def test_no_process() -> None:
    idle = list_report(FakeProbes(readings=reading_of(gpu_reading(0))))

    assert lines(idle, processes=True)[-1] == "No process uses these GPUs."


def test_an_unreadable_list_of_processes_is_not_an_idle_gpu() -> None:
    unread = gpu_reading(0, unavailable={"processes": "no right"})
    text = render(list_report(FakeProbes(readings=reading_of(unread))), View(processes=True))

    assert "The processes of GPU 0 are not all known: no right" in text
    assert "No process" not in text


def test_a_list_with_a_gap_shows_what_it_has() -> None:
    row = gpu_reading(
        0,
        processes=(ProcessReading(pid=9, type="compute"),),
        unavailable={"processes": "the mps processes: no right"},
    )
    report = list_report(FakeProbes(readings=reading_of(row)))

    assert " 9 compute" in render(report, View(processes=True))
    assert lines(report, width=160)[2].split().count("1+") == 1


# ------------------------------------------------------------------------- cards that are not well


def unwell(*healths: GpuHealthReading, **gpu: object) -> Report:
    """Return a list of cards with this health."""
    probes = FakeProbes(
        readings=reading_of(*(gpu_reading(health.index, **gpu) for health in healths)),
        health_reading=HealthReading(gpus=healths),
    )
    report = list_report(probes)
    return report._replace(result=read_condition(report.result, probes))  # type: ignore[arg-type]


@pytest.mark.parametrize("width", [40, 80, 160])
def test_a_card_that_is_not_well_is_marked_and_explained(width: int) -> None:
    shown = lines(unwell(healthy(0, clock_event_reasons=0x20), healthy(1)), width=width)
    text = " ".join(" ".join(shown).split())

    assert any(re.match(" !0|GPU !0 ", line) for line in shown)
    assert any(re.match("  1|GPU 1 ", line) for line in shown)
    assert "! GPU 0: clocks are lowered by heat (software)" in text
    assert text.count("gpucheck detect") == 1


def test_a_saved_list_has_the_marks_of_the_list() -> None:
    report = unwell(healthy(0, clock_event_reasons=0x20), healthy(1))
    saved = read_document(json_format.render(report, View()).encode(), 1 << 20, DOCUMENTS).report

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


def test_one_cause_is_one_line_however_many_cards_have_it() -> None:
    hot = [healthy(index, temperature_slowdown_c=30 + index // 3) for index in range(4)]
    text = render(unwell(*hot), View())

    assert text.count("slowdown temperature") == 1
    assert "! GPUs 0-2: 41 °C, and its slowdown temperature is 30 °C; GPU 3 alike\n" in text


def test_a_healthy_card_has_no_mark() -> None:
    report = unwell(healthy(0), utilization_gpu_percent=100, power_w=700.0)

    assert "!" not in render(report, View())


@pytest.mark.parametrize(
    ("gpu", "health", "colored"),
    [
        ({"utilization_gpu_percent": 0}, {}, "\x1b[2m  0%"),
        ({"utilization_gpu_percent": 99}, {}, "\x1b[32m 99%"),
        ({"temperature_c": 86}, {}, "\x1b[33m86 °C"),
        ({"temperature_c": 90}, {}, "\x1b[31m90 °C"),
        ({"temperature_c": 86}, {"temperature_slowdown_c": 105, "temperature_gpu_max_c": 100},
         " 86 °C"),
        ({"power_w": 699.0}, {}, "\x1b[33m699/700 W"),
        ({"power_w": 650.0}, {}, " 650/700 W"),
    ],
)  # fmt: skip
def test_colours_follow_the_limits_of_the_card(gpu: dict, health: dict, colored: str) -> None:
    assert colored in render(unwell(healthy(0, **health), **gpu), View(color=True))


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


def test_selected_columns_stand_in_that_order() -> None:
    assert heads(EVENTFUL, columns=("temperature_c", "index")).split() == ["Temp", "GPU"]


def test_too_many_columns_become_lines() -> None:
    text = render(EVENTFUL, View(width=40, columns=("index", "name", "uuid", "pci_bus_id")))

    assert "GPU 1\n  Name NVIDIA H100 80GB HBM3\n" in text
    assert "Bus 0000:11:00.0\n" in text


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
    example=st.none(),
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


def test_no_number_stands_for_what_is_not_known() -> None:
    gone = ProbeFailure(code="gpu-is-lost", message="it fell off the bus", library_code=15)
    report = list_report(FakeProbes(readings=reading_of(gpu_reading(0, uuid=None, failure=gone))))

    assert "1 GPU · visible to CUDA: not known" in " ".join(lines(report))
