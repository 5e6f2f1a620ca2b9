"""xid: the driver's lines in the kernel log, and an empty log against an unread one."""

from __future__ import annotations

import re
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from gpucheck.detect.checks import xid
from gpucheck.detect.machine import Machine
from gpucheck.detect.model import Finding
from gpucheck.detect.run import explain_check
from gpucheck.detect.xids import Judgement, guide
from gpucheck.drivers.evidence import KernelLogReading, SystemReading
from gpucheck.drivers.host.kernel_log import MOST_OF_AN_XID
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


def test_nvidia_s_actions_and_our_reason_stand_in_the_evidence() -> None:
    (found,) = look(line(63))

    evidence = {item.source: item.value for item in found.evidence}
    assert evidence["NVIDIA's Xid catalogue (Ampere and newer)"] == "IGNORE"
    assert evidence["gpucheck/data/xid.toml"].startswith("warn, because the repair waits")


# ------------------------------------------------------------------------------- earlier boots


@given(st.text())
def test_any_line(text: str) -> None:
    assert look(text)
    assert look(f"NVRM: Xid (PCI:{text}): 79")


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
