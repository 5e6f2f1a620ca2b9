"""xid: the driver's lines in the kernel log, and an empty log against an unread one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucheck.detect.checks import xid
from gpucheck.detect.machine import Machine
from gpucheck.detect.model import Finding
from gpucheck.drivers.evidence import KernelLogReading, SystemReading
from gpucheck.report.envelope import CheckStatus
from tests.fakes.probes import FakeProbes, gpu_reading, reading_of

#: The bus id of the fake's first GPU.
BUS = "0000:10:00"


def look(*lines: str) -> list[Finding]:
    log = KernelLogReading(lines=lines, source="/dev/kmsg")
    probes = FakeProbes(readings=reading_of(gpu_reading(0)), system_reading=SystemReading(log=log))
    return xid.check(Machine(probes))


@pytest.mark.parametrize(
    ("number", "status"),
    [(79, "fail"), (48, "fail"), (119, "fail"), (63, "warn"), (94, "warn"), (999, "warn"),
     (13, "ok"), (31, "ok"), (43, "ok")],
)  # fmt: skip
def test_numbers(number: int, status: str) -> None:
    (found,) = look(f"NVRM: Xid (PCI:{BUS}): {number}, pid=7, name=python3, text")

    assert found.status == status


@pytest.mark.parametrize(
    "line",
    [
        f"NVRM: Xid (PCI:{BUS}): 79, GPU has fallen off the bus.",
        f"NVRM: Xid ({BUS}): 79, GPU has fallen off the bus.",
        "[  123.4] NVRM: Xid (PCI:00000000:10:00.0): 79, pid='<unknown>'",
    ],
)
def test_the_gpu_is_found_by_its_bus_id(line: str) -> None:
    (found,) = look(line)

    assert found.gpu == gpu_reading(0).uuid
    assert found.summary == "GPU 0: Xid 79 in the kernel log: the GPU has fallen off the bus"
    assert found.evidence[0].value == line


def test_a_gpu_that_nvml_does_not_list_keeps_its_bus_id() -> None:
    (found,) = look("NVRM: Xid (PCI:0000:99:00): 79, gone")

    assert found.gpu is None
    assert found.summary.startswith("0000:99:00.0: Xid 79 in the kernel log")


def test_the_same_again_is_one_finding() -> None:
    assert len(look(*[f"NVRM: Xid (PCI:{BUS}): 63, row remap"] * 50)) == 1


def test_nothing_in_a_log_that_was_read() -> None:
    (found,) = look("NVRM: loading NVIDIA UNIX Kernel Module")

    assert (found.status, found.summary) == (CheckStatus.OK, "no Xid in /dev/kmsg")


def test_a_log_that_was_refused_is_not_an_empty_one() -> None:
    log = KernelLogReading(unavailable="/dev/kmsg: Operation not permitted")
    (found,) = xid.check(Machine(FakeProbes(system_reading=SystemReading(log=log))))

    assert found.status is CheckStatus.UNKNOWN
    assert found.summary == "not checked: /dev/kmsg: Operation not permitted"


@given(st.text())
def test_any_line(text: str) -> None:
    assert look(text)
    assert look(f"NVRM: Xid (PCI:{text}): 79")


@pytest.mark.parametrize(
    ("number", "meaning", "step"),
    [
        (48, "could not be corrected", "nvidia-smi -i 0 --gpu-reset"),
        (94, "hit one program", "Restart the program"),
        (154, "asks for a recovery", "recovery-action"),
        (4711, "Xid 4711 in the kernel log", "list of XID errors"),
    ],
)
def test_a_number_is_told_in_words_with_what_to_do(number: int, meaning: str, step: str) -> None:
    (found,) = look(f"NVRM: Xid (PCI:0000:10:00): {number}, something")

    assert meaning in found.summary
    assert step in found.remedy[0]


def test_every_number_with_a_remedy_has_a_meaning_but_for_three() -> None:
    assert {*xid.SEVERE, *xid.STEPS} - {155, 156, 158} == set(xid.MEANING)
