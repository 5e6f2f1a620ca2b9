"""Lines of Xids and their bursts, and what the table makes of a number."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucheck.data import read_table
from gpucheck.detect.xids import (
    SILENCE_S,
    Judgement,
    Xid,
    ago,
    count_bursts,
    described,
    guide,
    how_long_ago,
    how_often,
    parse_line,
    parse_lines,
    suggested,
    which_processes,
)

BUS = "0000:10:00.0"


def at(*ages_s: float | None) -> list[Xid]:
    return [Xid(79, BUS, "line", age_s=age_s) for age_s in ages_s]


def of(*processes: tuple[int | None, str | None]) -> list[Xid]:
    return [Xid(31, BUS, "line", pid, name) for pid, name in processes]


# ------------------------------------------------------------------------------------ the line


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("NVRM: Xid (PCI:0000:10:00): 79, GPU has fallen off the bus.", (79, BUS, None, None)),
        ("NVRM: Xid (0000:10:00): 31, Ch 0000000b, engmask 00000120", (31, BUS, None, None)),
        ("NVRM: Xid (PCI:00000000:10:00.0): 62, text", (62, BUS, None, None)),
        ("NVRM: Xid (PCI:0000:10:00): 31, pid=79, name=exe, Ch 0000000a", (31, BUS, 79, "exe")),
        ("NVRM: Xid (PCI:0000:10:00): 79, pid=1122, GPU has fallen", (79, BUS, 1122, None)),
        (
            "NVRM: Xid (PCI:0000:10:00): 13, pid='<unknown>', name=<unknown>, x",
            (13, BUS, None, None),
        ),
        ("NVRM: Xid (PCI:0000:10:00): 45, pid='81', name='a b', x", (45, BUS, 81, "a b")),
        ("NVRM: Xid (PCI:0000:10:00 GPU-I:05): 94, pid=7194, Contained: CE", (94, BUS, 7194, None)),
        ("NVRM: Xid (PCI:0000:10:00 GPU-I:05 GPU-CI:00): 43, pid=7, name=x", (43, BUS, 7, "x")),
        ("[  12.5] NVRM: Xid (PCI:0000:10:00): 154, GPU recovery action", (154, BUS, None, None)),
    ],
)
def test_lines_of_drivers(line: str, expected: tuple[object, ...]) -> None:
    found = parse_line(line)

    assert found is not None
    assert (found.number, found.pci_bus_id, found.pid, found.process) == expected


@pytest.mark.parametrize(
    "line",
    ["", "NVRM: Xid", "NVRM: Xid (PCI:0000:10:00): x", "NVRM: Xid (PCI:): 79",
     "Xid (0000:10:00): 79", "NVRM: Xid (PCI:0000:10:00): 123456, six digits"],
)  # fmt: skip
def test_other_lines(line: str) -> None:
    assert parse_line(line) is None


@given(st.text(max_size=400))
def test_any_text_is_a_line_or_none(text: str) -> None:
    for line in (text, f"NVRM: Xid (PCI:{text}): 79", f"NVRM: Xid (PCI:0000:10:00): 79, {text}"):
        found = parse_line(line)
        assert found is None or (0 <= found.number < 100_000 and found.line == line)


@given(
    number=st.integers(0, 99_999),
    pid=st.integers(1, 2**31),
    name=st.text(
        st.characters(exclude_characters=",'", exclude_categories=("Cs", "Cc", "Zl", "Zp", "Zs")),
        min_size=1,
        max_size=64,
    ),
    text=st.text(max_size=99),
)
def test_what_the_driver_prints_is_read_back(number: int, pid: int, name: str, text: str) -> None:
    line = f"NVRM: Xid (PCI:0000:10:00): {number}, pid={pid}, name={name}, {text}"

    found = parse_line(line, 5.0)

    process = None if name == "<unknown>" else name
    assert found == Xid(number, BUS, line, pid, process, 5.0)


def test_what_154_asks_for() -> None:
    text = "GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)"

    asks = parse_line(f"NVRM: Xid (PCI:0000:10:00): 154, {text}")
    other = parse_line(f"NVRM: Xid (PCI:0000:10:00): 79, {text}")

    assert asks is not None
    assert asks.recovery == "Node Reboot Required"
    assert other is not None
    assert other.recovery is None


@pytest.mark.parametrize(
    ("text", "fatal"),
    [
        ("149, NETIR_LINK_EVT  Fatal   XC0 i0 Link 09 (0x025525c6 0x00000000 0x00000000)", True),
        ("149, NETIR Fatal XC0 i0 Link -1 (0x000fe406 0x00000000)", True),
        ("150, MSE_WATCHDOG Fatal XC0 i0 Link -1 (0x00000000 0x00000000)", True),
        # Two of the reasons why a link goes down need no reset, bits 20 to 25: 38 and 40.
        ("149, NETIR_LINK_EVT Fatal XC0 i0 Link 00 (0x026001c6 0x00000000)", False),
        ("149, NETIR_LINK_EVT Fatal XC0 i0 Link 00 (0x028001c6 0x00000000)", False),
        ("145, RLW_REMAP Fatal XC0 i0 Link 00 (0x026001c6 0x00000040)", True),
        ("145, RLW_RXPIPE Nonfatal XC0 i0 Link 13 (0x0409a0c2 0x00000008)", False),
        ("74, NVLink: fatal error detected on link 3(0x10000, 0x0, 0x0)", False),
        ("79, GPU has fallen off the bus.", False),
    ],
)
def test_which_lines_of_nvlink_are_fatal(text: str, fatal: bool) -> None:
    found = parse_line(f"NVRM: Xid (PCI:0018:01:00): {text}")

    assert found is not None
    assert found.fatal is fatal
    judged = guide(found.number, fatal=True)
    if found.number in range(144, 151):
        assert (judged.judgement, judged.nvidia) == (Judgement.FAIL, "RESET_GPU")
    else:
        assert judged == guide(found.number)


def test_lines_without_recorded_times_have_none() -> None:
    line = "NVRM: Xid (PCI:0000:10:00): 79, x"

    assert [xid.age_s for xid in parse_lines([line, "usb", line], ())] == [None, None]
    assert [xid.age_s for xid in parse_lines([line, "usb", line], (9.0, 8.0, 7.0))] == [9.0, 7.0]


# ------------------------------------------------------------------------------------ bursts


def test_three_minutes_of_silence_end_a_burst() -> None:
    just_less = SILENCE_S - 0.001

    assert SILENCE_S == 180
    assert count_bursts(at(1000.0, 1000.0 - just_less)) == 1
    assert count_bursts(at(1000.0, 1000.0 - SILENCE_S)) == 2
    assert count_bursts(at(5.0)) == 1
    assert count_bursts(at(5.0, None)) is None
    assert count_bursts([]) is None


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=30))
def test_bursts_do_not_depend_on_the_order(ages: list[float]) -> None:
    found = count_bursts(at(*ages))

    assert found == count_bursts(at(*sorted(ages)))
    assert found is not None
    assert 1 <= found <= len(ages)


@pytest.mark.parametrize(
    ("xids", "text"),
    [
        (at(9.0), "once"),
        (at(9.0, 8.0, 7.0), "× 3 in one burst"),
        (at(999.0, 8.0, 7.0), "× 3 in 2 bursts"),
        (at(None, 7.0), "× 2"),
        (at(*(9.0,) * 5), "× 5 or more in one burst"),
    ],
)
def test_how_often(xids: list[Xid], text: str) -> None:
    assert how_often(xids, 5) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "0 s ago"), (119.9, "120 s ago"), (120.0, "2 min ago"), (7199.0, "119 min ago"),
        (7200.0, "2 h ago"), (172_799.0, "47 h ago"), (172_800.0, "2 d ago"),
    ],
)  # fmt: skip
def test_ago(seconds: float, text: str) -> None:
    assert ago(seconds) == text


def test_the_last_one_counts() -> None:
    assert how_long_ago(at(9000.0, None, 7200.0)) == "2 h ago"
    assert how_long_ago(at(None)) is None


@pytest.mark.parametrize(
    ("xids", "text"),
    [
        (of((None, None)), None),
        (of((8, "python3")), "PID 8 (python3)"),
        (of((8, "python3"), (8, "python3")), "only PID 8 (python3)"),
        (of((8, None), (None, None)), "PID 8"),
        (of((8, "a"), (9, None)), "PIDs 8 (a), 9"),
        (of((1, None), (2, None), (3, None)), "PIDs 1, 2, 3"),
        (of((1, None), (2, None), (3, None), (4, None)), "PIDs 1, 2, 3, 1 more"),
    ],
)
def test_which_processes(xids: list[Xid], text: str | None) -> None:
    assert which_processes(xids) == text


# ------------------------------------------------------------------------------------- the table


def test_every_number_of_the_catalogue_has_one_row() -> None:
    named = [int(row["id"][4:]) for row in read_table("xid")["row"] if row["id"].startswith("xid-")]
    unused = [number for row in read_table("xid")["row"] for number in row.get("numbers", ())]

    assert sorted([*named, *unused]) == list(range(1, max(named) + 1))
    assert max(named) >= 172


def test_every_bucket_has_an_action() -> None:
    used = {row["immediate"] for row in read_table("xid")["row"] if "immediate" in row}

    assert used == set(read_table("xid")["buckets"])


def test_a_row_that_judges_otherwise_gives_the_reason_and_no_other_does() -> None:
    offenders = [
        row["id"]
        for row in read_table("xid")["row"]
        if ("because" in row)
        != (
            "judgement" in row
            and row["judgement"] != suggested(row.get("immediate"), row.get("investigatory"))
        )
        or ("judgement" in row) != ("because" in row)
    ]

    assert not offenders


def test_a_number_is_described_with_its_source() -> None:
    found = described(63)

    assert found is not None
    question, about = found
    assert question == "Xid 63: a row or page of memory was marked to be replaced"
    assert about.why == "GPU memory remapping event (INFOROM_DRAM_RETIREMENT_EVENT)."
    assert about.rules[0].startswith("warn, because the repair waits for a reset")
    assert about.rules[1] == "NVIDIA: IGNORE (A100, H100, B100, GB200)"
    assert about.sources == (
        "https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html (read 2026-11-22)",
    )


def test_every_number_has_a_description_and_no_other() -> None:
    known = [number for number in range(1, 1000) if described(number) is not None]

    assert known == list(range(1, len(known) + 1))
    unused, critical, silent = described(61), described(46), described(171)
    assert unused is not None
    assert "none of the catalogue's products" in unused[1].rules[1]
    assert critical is not None
    assert critical[1].rules[0] == "fail, as NVIDIA's actions suggest"
    assert silent is not None
    assert silent[1].rules[:2] == (
        "warn, since NVIDIA names no action",
        "NVIDIA: no action (A100, H100, B100, GB200)",
    )


@pytest.mark.parametrize(
    ("buckets", "expected"),
    [
        (("RESET_GPU", "CONTACT_SUPPORT"), "fail"),
        (("RESTART_BM", "CONTACT_SUPPORT"), "fail"),
        (("WORKFLOW_XID_48", "WORKFLOW_XID_48"), "fail"),
        (("WORKFLOW_NVLINK_ERR", "CONTACT_SUPPORT"), "fail"),
        (("WORKFLOW_NVLINK5_ERR", "WORKFLOW_NVLINK5_ERR"), "warn"),
        (("RESTART_APP", "CHECK_APP/CUDA"), "note"),
        (("RESTART_APP", "WORKFLOW_XID_31"), "note"),
        (("RESTART_APP", "CONTACT_SUPPORT"), "warn"),
        (("IGNORE", "IGNORE"), "note"),
        (("IGNORE", "INVESTIGATE_SW"), "warn"),
        (("WORKFLOW_XID_45", "WORKFLOW_XID_45"), "note"),
        (("CONTACT_SUPPORT", None), "warn"),
        ((None, None), "warn"),
    ],
)
def test_what_the_buckets_suggest(buckets: tuple[str | None, str | None], expected: str) -> None:
    assert suggested(*buckets) == expected


@pytest.mark.parametrize(
    ("number", "judgement", "action", "nvidia"),
    [
        (79, "fail", "restart the machine", "RESTART_BM, then CONTACT_SUPPORT"),
        (48, "fail", "reset the GPU", "WORKFLOW_XID_48"),
        (94, "warn", "restart the program", "RESTART_APP, then IGNORE (sympathetic)"),
        (63, "warn", "reset the GPU when nothing runs on it", "IGNORE"),
        (31, "note", "restart the program", "RESTART_APP, then WORKFLOW_XID_31"),
        (61, "warn", "ask the vendor", "CONTACT_SUPPORT"),
        (167, "warn", "look the number up", None),
        (171, "warn", "see Xid 48", None),
        (145, "warn", "check the links", "WORKFLOW_NVLINK5_ERR"),
        (9999, "warn", "look the number up", None),
    ],
)
def test_guide(number: int, judgement: str, action: str, nvidia: str | None) -> None:
    found = guide(number)

    assert (found.judgement, found.action, found.nvidia) == (Judgement(judgement), action, nvidia)
