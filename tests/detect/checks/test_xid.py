"""xid: the driver's lines in the kernel log, and an empty log against an unread one."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucheck.detect.checks import xid
from gpucheck.detect.machine import Machine
from gpucheck.detect.model import Finding
from gpucheck.detect.run import explain_check
from gpucheck.detect.xids import Judgement, guide
from gpucheck.drivers.evidence import EarlierBootReading, KernelLogReading, SystemReading
from gpucheck.drivers.host.kernel_log import MOST_OF_AN_XID
from gpucheck.report.envelope import CheckStatus
from tests.fakes.probes import FakeProbes, gpu_reading, reading_of

#: The bus id of the fake's first GPU.
BUS = "0000:10:00"


def look(*lines: str, **log: Any) -> list[Finding]:
    reading = KernelLogReading(lines=lines, source="/dev/kmsg", **log)
    system = SystemReading(log=reading)
    return xid.check(
        Machine(FakeProbes(readings=reading_of(gpu_reading(0)), system_reading=system))
    )


def line(number: int, bus: str = BUS, more: str = "pid=8812, name=python3, text") -> str:
    return f"NVRM: Xid (PCI:{bus}): {number}, {more}"


@pytest.mark.parametrize(
    ("number", "status"),
    [(79, "fail"), (48, "fail"), (119, "fail"), (46, "fail"), (63, "warn"), (94, "warn"),
     (109, "warn"), (999, "warn"), (13, "ok"), (31, "ok"), (43, "ok"), (45, "ok")],
)  # fmt: skip
def test_numbers(number: int, status: str) -> None:
    (found,) = look(f"NVRM: Xid (PCI:{BUS}): {number}, pid=7, name=python3, text")

    assert found.status == status


@pytest.mark.parametrize(
    "text",
    [
        f"NVRM: Xid (PCI:{BUS}): 79, GPU has fallen off the bus.",
        f"NVRM: Xid ({BUS}): 79, GPU has fallen off the bus.",
        "[  123.4] NVRM: Xid (PCI:00000000:10:00.0): 79, pid='<unknown>'",
        f"NVRM: Xid (PCI:{BUS} GPU-I:05 GPU-CI:00): 79, pid='<unknown>', name=<unknown>",
    ],
)
def test_the_gpu_is_found_by_its_bus_id(text: str) -> None:
    (found,) = look(text)

    assert found.gpu == gpu_reading(0).uuid
    assert found.summary == (
        "GPU 0: Xid 79 (the GPU has fallen off the bus): restart the machine (NVIDIA: RESTART_BM)"
    )
    assert found.evidence[0].value == text


def test_a_gpu_that_nvml_does_not_list_keeps_its_bus_id() -> None:
    (found,) = look("NVRM: Xid (PCI:0000:99:00): 79, gone")

    assert found.gpu is None
    assert found.summary.startswith("0000:99:00.0: Xid 79 (")


def test_a_burst_is_one_finding_that_says_when_and_whose() -> None:
    (found,) = look(*[line(94)] * 17, ages_s=tuple(10_900.0 - n for n in range(17)))

    assert found.status == "warn"
    assert found.summary == (
        "GPU 0: Xid 94 (a memory error that hit one program) × 17 in one burst, 3 h ago, "
        "only PID 8812 (python3): restart the program (NVIDIA: RESTART_APP)"
    )
    assert found.remedy == ("Restart the program that it hit.",)


def test_a_flood_says_that_there_were_more() -> None:
    (found,) = look(*[line(63)] * MOST_OF_AN_XID)
    (fewer,) = look(*[line(63)] * (MOST_OF_AN_XID - 1))

    assert f"× {MOST_OF_AN_XID} or more, only PID" in found.summary
    assert f"× {MOST_OF_AN_XID - 1}, only PID" in fewer.summary


def test_each_number_and_gpu_is_a_finding_and_the_worst_comes_first() -> None:
    found = look(line(94), line(79), line(94, "0000:99:00"), line(13), line(94))

    assert [finding.cause for finding in found] == ["xid-79", "xid-94", "xid-94"]
    assert "× 2" in found[1].summary


def test_nvidia_s_actions_and_our_reason_stand_in_the_evidence() -> None:
    (found,) = look(line(63))

    evidence = {item.source: item.value for item in found.evidence}
    assert evidence["NVIDIA's Xid catalogue (Ampere and newer)"] == "IGNORE"
    assert evidence["gpucheck/data/xid.toml"].startswith("warn, because the repair waits")


def test_what_the_driver_asks_for_is_said() -> None:
    (found,) = look(line(154, more="GPU recovery action changed from 0x0 (None) to 0x1 (Reset)"))

    assert found.summary.endswith(": it asks for: Reset (NVIDIA: XID_154)")


# ------------------------------------------------------------------------------- earlier boots


def earlier(*lines: str) -> EarlierBootReading:
    return EarlierBootReading(
        lines=lines, ages_s=(200_000.0,) * len(lines), source="/var/log/kern.log"
    )


def test_an_error_that_came_back() -> None:
    (found,) = look(line(79), earlier=earlier(line(79, more="old")))

    assert "it came back after the last boot" in found.summary
    assert found.evidence[-1].source == "/var/log/kern.log, before this boot"
    assert found.evidence[-1].value.endswith("old")


def test_another_gpu_s_error_did_not_come_back() -> None:
    (found,) = look(line(79), earlier=earlier(line(79, "0000:99:00"), line(48)))

    assert "came back" not in found.summary
    assert len(found.evidence) == 2


def test_an_error_that_did_not_come_back_is_no_trouble() -> None:
    (found,) = look("NVRM: loading", earlier=earlier(line(79), line(31)))

    assert found.status == "ok"
    assert found.summary == (
        "no Xid in /dev/kmsg; before the last boot: Xid 79 once, 2 d ago, on GPU 0; "
        "not seen again since"
    )


def test_earlier_boots_that_were_not_read_are_said() -> None:
    reason = "/var/log/kern.log: Permission denied"
    (found,) = look(line(79), earlier=EarlierBootReading(unavailable=reason))
    (well,) = look("NVRM: loading", earlier=EarlierBootReading(unavailable=reason))

    assert found.evidence[-1].source == "earlier boots"
    assert found.evidence[-1].value.endswith(reason)
    assert well.summary == "no Xid in /dev/kmsg"


def test_nothing_in_a_log_that_was_read() -> None:
    (found,) = look("NVRM: loading NVIDIA UNIX Kernel Module")

    assert (found.status, found.summary) == (CheckStatus.OK, "no Xid in /dev/kmsg")
    assert not found.evidence


def test_errors_of_programs_are_named_the_last_one_in_full() -> None:
    (found,) = look(line(13), line(43), line(31), line(31), ages_s=(900.0, 800.0, 300.0, 240.0))

    assert (found.status, found.remedy, found.cause) == (CheckStatus.OK, (), None)
    assert found.summary == (
        "only program errors: GPU 0: Xid 31 (the program read or wrote outside its memory) "
        "× 2 in one burst, 4 min ago, only PID 8812 (python3): restart the program "
        "(NVIDIA: RESTART_APP); also Xid 13, 43"
    )
    assert [item.value for item in found.evidence] == [line(13), line(43), line(31)]


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
        (4711, "Xid 4711 (not in NVIDIA's catalogue)", "list of XID errors"),
    ],
)
def test_a_number_is_told_in_words_with_what_to_do(number: int, meaning: str, step: str) -> None:
    (found,) = look(f"NVRM: Xid (PCI:0000:10:00): {number}, something")

    assert meaning in found.summary
    assert step in found.remedy[0]


def test_one_fatal_line_of_nvlink_makes_the_finding_a_failure() -> None:
    fatal = line(149, more="NETIR_LINK_EVT  Fatal   XC0 i0 Link 09 (0x025525c6 0x00000000)")
    other = line(149, more="NETIR_BER_EVENT Nonfatal XC0 i0 Link 03 (0x00086226 0x00000001)")

    (warned,) = look(other)
    (failed,) = look(fatal, other)

    assert (warned.status, failed.status) == (CheckStatus.WARN, CheckStatus.FAIL)
    assert "check the links (NVIDIA: WORKFLOW_NVLINK5_ERR)" in warned.summary
    assert "reset the GPU (NVIDIA: RESET_GPU)" in failed.summary
    assert "nvidia-smi -i 0 --gpu-reset" in failed.remedy[0]
    assert failed.evidence[0].value == fatal


def test_explain_names_the_numbers_that_the_table_judges_so() -> None:
    fails, notes = (
        {number for number in range(1, 1000) if guide(number).judgement is judgement}
        for judgement in (Judgement.FAIL, Judgement.NOTE)
    )
    first, second = (
        {int(word) for word in re.findall(r"\b[0-9]+\b", rule)}
        for rule in explain_check(xid).rules[:2]
    )

    assert (first, second) == (fails, notes)
