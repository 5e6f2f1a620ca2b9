"""CUDA_VISIBLE_DEVICES by the documented rules, and `open` wherever no document decides."""

from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from gpucheck.drivers.readings import (
    CudaDeviceReading,
    CudaReading,
    GpuReading,
    MigReading,
    ProbeFailure,
)
from gpucheck.inventory.model import DecidedBy, EntryStatus, Visibility
from gpucheck.inventory.visibility import apply_rules, join_driver
from tests.fakes.probes import gpu_reading

A = "GPU-9942190a-aa31-4ff1-4aa9-c388d80f85f1"
B = "GPU-9e8d35e3-a134-0fdd-0e01-23811fdbd293"
C = "GPU-e429a63e-c61c-4795-b757-5132caeb8e70"
M0 = "MIG-a1e3a6c4-1f35-5b0b-9a52-6f2f2bd2ec01"
M1 = "MIG-b7c8e2de-5a42-54e0-8fd9-3b1b8b30d402"
LOST = ProbeFailure(code="gpu-is-lost", message="it is gone", library_code=15)
#: What `visible` is where the documents leave it to the driver.
OPEN = None


def alike(*uuids: str) -> list[GpuReading]:
    return [gpu_reading(index, uuid=uuid) for index, uuid in enumerate(uuids)]


THREE = alike(A, B, C)
T4_A100 = [
    gpu_reading(0, uuid=A, name="Tesla T4", pci_device_id="1eb810de"),
    gpu_reading(1, uuid=B, name="NVIDIA A100-SXM4-40GB", pci_device_id="20b010de"),
]
#: A with two GPU instances, B whole: the machine of the MIG table.
SPLIT = [
    gpu_reading(
        0,
        uuid=A,
        mig_enabled=True,
        mig_instances=(
            MigReading(uuid=M0, gpu_instance_id=1, compute_instance_id=0),
            MigReading(uuid=M1, gpu_instance_id=2, compute_instance_id=0),
        ),
    ),
    gpu_reading(1, uuid=B),
]


def visible(text: str | None, gpus: list[GpuReading], order: str | None = None) -> object:
    return apply_rules(text, order, gpus).visible


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param(None, (A, B, C), id="unset is all"),
        pytest.param("", (), id="empty is none"),
        pytest.param("0", (A,), id="one"),
        pytest.param("2,1", (C, B), id="list order gives the ordinals"),
        pytest.param("0,2,-1,1", (A, C), id="the first invalid entry ends the list"),
        pytest.param("-1", (), id="negative first"),
        pytest.param("NoDevFiles", (), id="word of Slurm before 19.05"),
        pytest.param("none", (), id="none is no word of CUDA"),
        pytest.param("all", (), id="all is no word of CUDA either"),
        pytest.param("9", (), id="out of range first"),
        pytest.param("1,5,0", (B,), id="out of range ends the list"),
        pytest.param("1,two,0", (B,), id="a word ends the list"),
        pytest.param("0,1,2,1", (), id="a duplicate empties the list"),
        pytest.param("0,0", (), id="0,0 does not simulate two GPUs"),
        pytest.param("0, 1 ,2", (A, B, C), id="blanks around ordinals"),
        pytest.param("\t1", (B,), id="any blank of C"),
        pytest.param("1gpu2,2ampere", (B, C), id="what follows a number is ignored"),
        pytest.param("0-2", (A,), id="a range is its first number"),
        pytest.param("0:1", (A,), id="no MIG index"),
        pytest.param("0.9", (A,), id="no fraction"),
        pytest.param("2, +1, -0", (C, B, A), id="signs"),
        pytest.param("+", (), id="a lone sign is no number"),
        pytest.param("++1", (), id="two signs are no number"),
        pytest.param("- 1", (), id="a sign apart is no number"),
        pytest.param('"0"', (), id="quotes that a file kept"),
        pytest.param("\u0661", (), id="a digit of another script"),
        pytest.param("2147483647", (), id="the largest int is out of range"),
        pytest.param(A, (A,), id="UUID"),
        pytest.param(f"{C},{A}", (C, A), id="UUIDs in list order"),
        pytest.param("GPU-99", (A,), id="a unique beginning"),
        pytest.param("GPU-99,GPU-9e,GPU-e", (A, B, C), id="unique beginnings"),
        pytest.param("GPU-9", (), id="an ambiguous beginning is invalid"),
        pytest.param(f"{A},GPU-9,{C}", (A,), id="an ambiguous beginning ends the list"),
        pytest.param("GPU-123", (), id="an unknown UUID is invalid"),
        pytest.param(f"{A},GPU-123,{C}", (A,), id="an unknown UUID ends the list"),
        pytest.param(f"{A}0", (), id="longer than a UUID"),
        pytest.param(f"{A},{A}", (), id="a UUID twice"),
        pytest.param(f"{A},GPU-9942190a", (), id="two spellings of one GPU"),
        pytest.param(f"GPU-99,{B},GPU-9942", (), id="two beginnings of one GPU"),
        pytest.param(f"{A},2", (A,), id="an ordinal ends a list of UUIDs"),
        pytest.param(f"{A}, 2", (A,), id="so does one with a blank"),
        pytest.param(f"{A},none", (A,), id="so does a word"),
        pytest.param(f"1,{A}", (B,), id="a UUID ends a list of ordinals"),
        pytest.param("MIG-1", (), id="an instance that nobody has"),
        pytest.param("MIG-", (), id="no instance at all here"),
    ],
)
def test_documented(text: str | None, expected: tuple[str, ...]) -> None:
    found = apply_rules(text, None, THREE)

    assert found.visible == expected
    assert found.open_question is None
    assert found.decided_by is DecidedBy.RULES


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(",", id="only a comma"),
        pytest.param(" ", id="only a blank"),
        pytest.param(",0", id="empty first"),
        pytest.param("0,", id="trailing comma"),
        pytest.param("0,,1", id="empty between"),
        pytest.param(f"{A},", id="trailing comma after a UUID"),
        pytest.param("0x1", id="hexadecimal"),
        pytest.param("0,0x1", id="hexadecimal second: not certainly a duplicate of 0"),
        pytest.param("010", id="octal"),
        pytest.param("09", id="octal or decimal"),
        pytest.param("-010", id="negative octal"),
        pytest.param("4294967296", id="more than an int holds"),
        pytest.param("9" * 5000, id="more than anything holds"),
        pytest.param("-99999999999", id="less than an int holds"),
        pytest.param(f" {A}", id="blank before a UUID"),
        pytest.param(f"{A} ", id="blank behind a UUID"),
        pytest.param(f"{A}, {B}", id="blank before the second UUID"),
        pytest.param(A.upper(), id="UUID in upper case"),
        pytest.param(A.replace("GPU", "gpu"), id="kind in lower case"),
        pytest.param(f"{B},{A.upper()}", id="second UUID in upper case"),
        pytest.param("0,9,0", id="a duplicate after a stop at a number"),
        pytest.param("0,-1,0", id="a duplicate after a stop at a negative"),
        pytest.param("0,no,1,1", id="a duplicate wholly after a stop"),
        pytest.param(f"{A},GPU-123,{A}", id="a duplicate after a stop at a UUID"),
        pytest.param("0,9,9", id="the invalid entry twice"),
    ],
)
def test_open(text: str) -> None:
    found = apply_rules(text, "PCI_BUS_ID", THREE)

    assert found.visible is OPEN
    assert found.open_question
    assert found.open_question in {entry.reason for entry in found.entries}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("00", (A,), id="zero is zero in every notation"),
        pytest.param("01", (B,), id="one too"),
        pytest.param("0x", (A,), id="no digits after x"),
        pytest.param("0xg", (A,), id="none that count"),
        pytest.param("0,00", (), id="two spellings of one number"),
        pytest.param("0x0,0", (), id="zero in hexadecimal is the same zero"),
        pytest.param(f"{'0' * 40}2", (C,), id="leading zeros alone do not overflow"),
        pytest.param("-1,0,0", (), id="nothing stands before the stop"),
        pytest.param(",-1,0", OPEN, id="an empty entry before the stop"),
        pytest.param("-1,", (), id="an empty entry after it"),
        pytest.param("0,-1,0x1", (A,), id="what stands after a stop raises no question"),
        pytest.param(f"{A},2,MIG-1", (A,), id="nor does an instance there"),
        pytest.param("GPU-,GPU-", (), id="ambiguous, so the first is a stop"),
        pytest.param("gpu-123", (), id="unknown in any case"),
        pytest.param(f"{A}, GPU-123", (A,), id="unknown with or without the blank"),
        pytest.param(f"0, {A.upper()}", (A,), id="a UUID in any form ends a list of ordinals"),
    ],
)
def test_a_question_that_changes_nothing_is_not_asked(text: str, expected: object) -> None:
    assert visible(text, THREE) == expected


@pytest.mark.parametrize(
    ("order", "gpus", "text", "expected"),
    [
        pytest.param(None, T4_A100, None, OPEN, id="unlike, unset: the fastest is first"),
        pytest.param(None, T4_A100, "0", OPEN, id="unlike, 0"),
        pytest.param("FASTEST_FIRST", T4_A100, "1", OPEN, id="unlike, 1"),
        pytest.param("PCI_BUS_ID", T4_A100, "0", (A,), id="by bus, 0"),
        pytest.param("PCI_BUS_ID", T4_A100, "1,0", (B, A), id="by bus, 1,0"),
        pytest.param("PCI_BUS_ID", T4_A100, None, (A, B), id="by bus, unset"),
        pytest.param(None, T4_A100, f"{B},{A}", (B, A), id="UUIDs need no order"),
        pytest.param("PCI_BUS_I", T4_A100, f"{B},{A}", (B, A), id="nor a known one"),
        pytest.param("PCI_BUS_I", T4_A100, "0", OPEN, id="a typo"),
        pytest.param("pci_bus_id", T4_A100, "0", OPEN, id="lower case is a typo"),
        pytest.param("PCI_BUS_I", THREE, "0", OPEN, id="a typo with like cards"),
        pytest.param("PCI_BUS_I", alike(A), "0", (A,), id="a typo with one card"),
        pytest.param(None, THREE, "0", (A,), id="like cards"),
        pytest.param("FASTEST_FIRST", THREE, "2", (C,), id="like cards, said out loud"),
        pytest.param("", THREE, "2", (C,), id="an empty order is none"),
        pytest.param(None, T4_A100, "", (), id="empty needs no order"),
        pytest.param(None, T4_A100, "-1", (), id="neither does a negative"),
        pytest.param(None, T4_A100, "9", (), id="nor what is out of range in any order"),
        pytest.param(None, T4_A100, "0,0", (), id="nor a duplicate"),
    ],
)
def test_device_order(
    order: str | None, gpus: list[GpuReading], text: str | None, expected: object
) -> None:
    assert visible(text, gpus, order) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param(None, OPEN, id="unset: m0, or m0,m1,B"),
        pytest.param(M0, (M0,), id="m0"),
        pytest.param(M1, (M1,), id="m1"),
        pytest.param(f"{M0},{M1}", OPEN, id="m0,m1: one or both"),
        pytest.param(f"{M1},{M0}", OPEN, id="m1,m0"),
        pytest.param(f"{M0},{M0}", (), id="m0,m0: a duplicate"),
        pytest.param("0", OPEN, id="0 is the split GPU"),
        pytest.param(A, OPEN, id="A is the split GPU"),
        pytest.param("GPU-99", OPEN, id="a beginning of A"),
        pytest.param("1", (B,), id="1 is whole"),
        pytest.param(B, (B,), id="B is whole"),
        pytest.param("0,1", OPEN, id="0,1"),
        pytest.param("0,0", (), id="0,0: a duplicate"),
        pytest.param(f"{M0},{B}", OPEN, id="an instance and a GPU"),
        pytest.param(f"{B},{M0}", OPEN, id="a GPU and an instance"),
        pytest.param(f"MIG-{A}/1/0", (M0,), id="the form of drivers 450 and 460"),
        pytest.param(f"MIG-{A}/2/0", (M1,), id="the same, m1"),
        pytest.param(f"{M0},MIG-{A}/1/0", (), id="two spellings of m0"),
        pytest.param("MIG-GPU-9942190a/1/0", OPEN, id="that form, shortened"),
        pytest.param(f"MIG-{A}/9/9", (), id="that form, no such instance"),
        pytest.param("MIG-a1e3a6c4", OPEN, id="a beginning of m0"),
        pytest.param("MIG-00000000", (), id="an unknown instance"),
        pytest.param(f"{M0},MIG-00000000", (M0,), id="an unknown instance ends the list"),
        pytest.param(f"{M0},1", (M0,), id="so does an ordinal"),
        pytest.param("0:1", OPEN, id="0:1 is 0, the split GPU"),
        pytest.param("2", OPEN, id="beyond the GPUs, yet perhaps an instance"),
        pytest.param("-1", (), id="negative"),
        pytest.param("", (), id="empty"),
        pytest.param(f"1,{M0}", (B,), id="an instance ends a list of ordinals"),
        pytest.param(M0.upper(), OPEN, id="m0 in upper case"),
    ],
)
def test_mig(text: str | None, expected: object) -> None:
    assert visible(text, SPLIT) == expected


def test_mig_without_an_instance_is_left_to_the_driver() -> None:
    empty = [gpu_reading(0, uuid=A, mig_enabled=True)]

    assert visible("0", empty) is OPEN
    assert visible(None, empty) is OPEN


@pytest.mark.parametrize(
    "reading",
    [
        gpu_reading(0, uuid=A, mig_enabled=True, unavailable={"mig_instances": "no permission"}),
        gpu_reading(0, uuid=A, mig_enabled=True, mig_instances=(MigReading(uuid=None),)),
        gpu_reading(0, uuid=A, failure=LOST),
    ],
    ids=["unread", "nameless", "lost"],
)
def test_an_instance_may_be_one_that_nvml_did_not_name(reading: GpuReading) -> None:
    assert visible("MIG-00000000", [reading]) is OPEN


def test_unread_mig_mode_of_a_gpu_without_mig_raises_no_question() -> None:
    old = [gpu_reading(0, mig_enabled=None, unavailable={"mig_enabled": "not supported"})]

    assert visible("MIG-00000000", old) == ()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param(None, OPEN, id="unset"),
        pytest.param("0", OPEN, id="an ordinal below it"),
        pytest.param("2", OPEN, id="an ordinal above it"),
        pytest.param("3", (), id="out of range, counted or not"),
        pytest.param(A, (A,), id="another GPU by its UUID"),
        pytest.param(f"{C},{A}", (C, A), id="others by their UUIDs"),
        pytest.param("", (), id="empty"),
    ],
)
@pytest.mark.parametrize("uuid", [B, None], ids=["named", "nameless"])
def test_a_lost_gpu_opens_the_ordinals(
    uuid: str | None, text: str | None, expected: object
) -> None:
    gpus = [
        gpu_reading(0, uuid=A),
        gpu_reading(1, uuid=uuid, failure=LOST),
        gpu_reading(2, uuid=C),
    ]

    assert visible(text, gpus) == expected


def test_a_lost_gpu_that_is_named_is_left_to_the_driver() -> None:
    gpus = [gpu_reading(0, uuid=A), gpu_reading(1, uuid=B, failure=LOST)]

    assert visible(B, gpus) is OPEN


@pytest.mark.parametrize("text", ["GPU-9e", B, "GPU-99"])
def test_a_nameless_gpu_may_be_the_one_that_is_named(text: str) -> None:
    gpus = [gpu_reading(0, uuid=A), gpu_reading(1, uuid=None)]

    assert visible(text, gpus) is OPEN


def test_gpus_whose_kinds_cannot_be_read_are_not_taken_as_alike() -> None:
    gpus = [gpu_reading(i, name=None, pci_device_id=None) for i in range(2)]

    assert visible("0", gpus) is OPEN


def test_two_gpus_with_one_uuid_are_left_to_the_driver() -> None:
    assert visible(None, alike(A, A)) is OPEN
    assert visible("1", alike(A, A), "PCI_BUS_ID") is OPEN
    assert visible(A, alike(A, A)) == ()


def test_without_gpus_nothing_is_visible() -> None:
    assert visible(None, []) == ()
    assert apply_rules("0", None, []).entries[0].reason == "out of range: there are 0 GPUs"


# ------------------------------------------------------------------------------- the verdicts


def verdicts(text: str, gpus: list[GpuReading]) -> list[tuple[str, str | None, str]]:
    entries = apply_rules(text, None, gpus).entries
    return [(entry.status.value, entry.uuid, entry.reason) for entry in entries]


def test_every_entry_is_told_its_fate() -> None:
    assert verdicts("1,9,0", THREE) == [
        ("kept", B, "valid"),
        ("dropped", None, "out of range: there are 3 GPUs"),
        ("dropped", None, "it comes after the invalid entry '9'"),
    ]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("-1", "a negative number ends the list"),
        ("all", "neither an ordinal nor a UUID"),
        ("GPU-9", "the UUIDs of several GPUs begin with this"),
        ("GPU-1", "no GPU has this UUID"),
        ("MIG-1", "no MIG instance has this UUID"),
        ("0,0", "a device is named twice, which empties the whole list"),
        ("5", "out of range: there are 3 GPUs"),
    ],
)
def test_reason_of_a_dropped_entry(text: str, reason: str) -> None:
    assert verdicts(text, THREE)[0] == ("dropped", None, reason)


def test_a_range_is_explained() -> None:
    assert verdicts("0-2", THREE) == [("kept", A, "only the number counts, '-2' is ignored")]


def test_an_entry_is_not_repeated_at_length() -> None:
    [_, dropped] = verdicts("x" * 5000 + ",1", THREE)

    assert len(dropped[2]) < 120


# -------------------------------------------------------------------------------- properties

PIECES = (
    "0", "1", "2", "3", "9", "00", "01", "010", "0x1", "+1", "-0", "-1", " 1", "1 ", "", " ", "x",
    "1x", "0-2", A, B, C, A.upper(), "gpu-9", "GPU-", "GPU-9", "GPU-99", "GPU-e", f" {A}", M0, M1,
    "MIG-", "MIG-a", f"MIG-{A}/1/0", f"MIG-{A}/1/7", "MIG-GPU-9/1/0", "4294967297", "all",
)  # fmt: skip
LISTS = st.lists(st.sampled_from(PIECES), max_size=6).map(",".join)
TEXTS = st.none() | LISTS | st.text(max_size=30)
ORDERS = st.none() | st.sampled_from(["PCI_BUS_ID", "FASTEST_FIRST", "", "PCI_BUS_I"]) | st.text()


@st.composite
def readings(draw: st.DrawFn) -> list[GpuReading]:
    """Up to four GPUs: alike or not, split, lost, nameless, or two with one UUID."""
    gpus = []
    for index in range(draw(st.integers(0, 4))):
        changes: dict[str, object] = {"uuid": draw(st.sampled_from([A, B, C, None]))}
        changes["name"] = draw(st.sampled_from(["NVIDIA H100", "Tesla T4", None]))
        changes["failure"] = draw(st.sampled_from([None, None, LOST]))
        if draw(st.booleans()):
            ids = st.none() | st.integers(0, 2)
            instance = st.builds(
                MigReading,
                uuid=st.sampled_from([M0, M1, None]),
                gpu_instance_id=ids,
                compute_instance_id=ids,
            )
            changes["mig_enabled"] = draw(st.sampled_from([True, False, None]))
            changes["mig_instances"] = tuple(draw(st.lists(instance, max_size=3)))
        gpus.append(gpu_reading(index, **changes))
    return gpus


def known(gpus: list[GpuReading]) -> set[str | None]:
    return {gpu.uuid for gpu in gpus} | {m.uuid for gpu in gpus for m in gpu.mig_instances}


@given(text=TEXTS, order=ORDERS, gpus=readings())
def test_any_text_gives_distinct_known_devices_or_a_question(
    text: str | None, order: str | None, gpus: list[GpuReading]
) -> None:
    found = apply_rules(text, order, gpus)

    assert (found.visible is None) == (found.open_question is not None)
    assume(found.visible is not None)
    assert len(set(found.visible)) == len(found.visible)
    assert set(found.visible) <= known(gpus) - {None}


@given(text=TEXTS, order=ORDERS, gpus=readings())
def test_every_entry_has_its_verdict_in_order(
    text: str | None, order: str | None, gpus: list[GpuReading]
) -> None:
    entries = apply_rules(text, order, gpus).entries

    assert [entry.text for entry in entries] == (text.split(",") if text else [])
    assert all(entry.reason for entry in entries)
    statuses = [entry.status for entry in entries]
    assert statuses == sorted(statuses, key=[EntryStatus.KEPT, EntryStatus.DROPPED].index)


@given(text=TEXTS, order=ORDERS, gpus=readings())
def test_what_is_kept_is_what_is_visible(
    text: str | None, order: str | None, gpus: list[GpuReading]
) -> None:
    found = apply_rules(text, order, gpus)

    assume(found.visible is not None and text is not None)
    kept = [entry.uuid for entry in found.entries if entry.status is EntryStatus.KEPT]
    assert tuple(kept) == found.visible


@given(text=TEXTS, order=ORDERS, gpus=readings())
def test_uuids_resolve_to_themselves(
    text: str | None, order: str | None, gpus: list[GpuReading]
) -> None:
    once = apply_rules(text, order, gpus).visible

    assume(once is not None)
    assert apply_rules(",".join(once), order, gpus).visible == once


@given(text=LISTS, gpus=readings(), tail=LISTS)
def test_what_follows_an_invalid_entry_never_adds_a_device(
    text: str, gpus: list[GpuReading], tail: str
) -> None:
    before = apply_rules(text, None, gpus)
    after = apply_rules(f"{text},{tail}", None, gpus)

    assume(any(entry.status is EntryStatus.DROPPED for entry in before.entries))
    assert after.visible in (before.visible, None, ())


# -------------------------------------------------------------------------------- the driver


def said(*uuids: str) -> CudaReading:
    devices = tuple(
        CudaDeviceReading(ordinal=ordinal, uuid_hex=uuid[4:].replace("-", ""))
        for ordinal, uuid in enumerate(uuids)
    )
    return CudaReading(driver_version=13000, device_count=len(devices), devices=devices)


def ask(text: str | None, gpus: list[GpuReading], cuda: CudaReading) -> Visibility | None:
    return join_driver(apply_rules(text, None, gpus), cuda, gpus)


def test_the_driver_decides_the_order() -> None:
    found = ask(None, T4_A100, said(B, A))

    assert found is not None
    assert found.visible == (B, A)
    assert found.decided_by is DecidedBy.DRIVER
    assert found.open_question is None


def test_the_driver_names_mig_instances() -> None:
    found = ask(f"{M0},{M1}", SPLIT, said(M0))

    assert found is not None
    assert found.visible == (M0,)


def test_a_device_that_nvml_does_not_name_keeps_its_ordinal() -> None:
    found = ask(None, [gpu_reading(0, uuid=A), gpu_reading(1, uuid=None)], said(C, A))

    assert found is not None
    assert found.visible == (C, A)


def test_no_device_is_an_answer() -> None:
    failure = ProbeFailure(code="no-device", message="none", function="cuInit", library_code=100)

    found = ask("0,", THREE, CudaReading(failure=failure))

    assert found is not None
    assert found.visible == ()
    assert [entry.status for entry in found.entries] == ["dropped", "dropped"]


@pytest.mark.parametrize("code", [1, 2, 3, 34, 46, 101, 304, 802, 803, 804, 999, None])
def test_any_other_failure_is_no_answer(code: int | None) -> None:
    failure = ProbeFailure(code="some", message="text", library_code=code)

    assert ask(None, T4_A100, CudaReading(failure=failure)) is None


def test_a_driver_that_does_not_name_its_devices_gives_no_order() -> None:
    nameless = CudaReading(device_count=1, devices=(CudaDeviceReading(ordinal=0),))

    assert ask(None, T4_A100, nameless) is None
    assert ask(None, T4_A100, said(A, A)) is None


def test_the_driver_settles_the_entries() -> None:
    found = ask("1,0,9", T4_A100, said(A, B))

    assert found is not None
    assert [(entry.status.value, entry.uuid) for entry in found.entries] == [
        ("kept", A),
        ("kept", B),
        ("dropped", None),
    ]
    assert found.entries[0].reason == "confirmed by the CUDA driver"


def test_the_driver_may_end_the_list_where_the_rules_leave_it_open() -> None:
    found = ask("0,,1", THREE, said(A))

    assert found is not None
    assert [(entry.status.value, entry.uuid) for entry in found.entries] == [
        ("kept", A),
        ("dropped", None),
        ("dropped", B),
    ]
    assert found.entries[1].reason == "the CUDA driver does not enumerate it"


CONFIRMED, LEFT_OUT = "confirmed by the CUDA driver", "the CUDA driver does not enumerate it"
NOT_BESIDE = f"{LEFT_OUT} beside the others"
UNCLEAR = "how CUDA reads a number that starts with 0 or is very large is not documented"


@pytest.mark.parametrize(
    ("text", "answer", "reasons"),
    [
        pytest.param("0,1", (M0,), [CONFIRMED, NOT_BESIDE], id="no whole GPU beside an instance"),
        pytest.param("0,1", (M0, M1, B), [CONFIRMED, CONFIRMED], id="all instances, and the GPU"),
        pytest.param("1,0", (B,), [CONFIRMED, NOT_BESIDE], id="the first entry decides"),
        pytest.param(f"{M0},{M1}", (M0,), [CONFIRMED, NOT_BESIDE], id="one instance"),
        pytest.param(f"{M1},{M0}", (M0,), [NOT_BESIDE, CONFIRMED], id="the card's first one"),
        pytest.param(",0", (), [LEFT_OUT, LEFT_OUT], id="nothing"),
        pytest.param("0,9,0", (M0,), [CONFIRMED, LEFT_OUT, LEFT_OUT], id="what ends the list"),
        pytest.param("0x1", (B,), [UNCLEAR], id="an entry of unknown meaning stays open"),
        pytest.param(f"{A},{M0}", (M0,), [CONFIRMED, CONFIRMED], id="either may be meant"),
        pytest.param("1", (B,), ["valid"], id="nothing was open"),
        pytest.param("1", (), [LEFT_OUT], id="left out against the rules"),
    ],
)
def test_with_mig_an_entry_is_kept_only_if_its_device_is_enumerated(
    text: str, answer: tuple[str, ...], reasons: list[str]
) -> None:
    found = ask(text, SPLIT, said(*answer))

    assert found is not None
    assert [entry.reason for entry in found.entries] == reasons
    dropped = [entry.status is EntryStatus.DROPPED for entry in found.entries]
    assert dropped == [reason.startswith(LEFT_OUT) for reason in reasons]


def test_a_driver_that_agrees_leaves_the_verdicts_alone() -> None:
    rules = apply_rules("1,9", None, THREE)

    found = join_driver(rules, said(B), THREE)

    assert found is not None
    assert found.entries == rules.entries


def test_more_devices_than_entries_are_not_forced_onto_them() -> None:
    rules = apply_rules("0,0", None, THREE)

    found = join_driver(rules, said(A, B), THREE)

    assert found is not None
    assert found.entries == rules.entries
    assert found.visible == (A, B)


@given(text=TEXTS, gpus=readings(), answer=st.lists(st.sampled_from([A, B, C, M0, M1]), max_size=4))
def test_joining_never_raises_and_keeps_every_entry(
    text: str | None, gpus: list[GpuReading], answer: list[str]
) -> None:
    rules = apply_rules(text, None, gpus)
    found = join_driver(rules, said(*answer), gpus)

    assert (found is None) == (len(set(answer)) < len(answer))
    if found is not None:
        # The driver gives digits alone: a device that NVML does not name is called a GPU.
        assert [uuid[4:] for uuid in found.visible or ()] == [uuid[4:] for uuid in answer]
        assert [entry.text for entry in found.entries] == [entry.text for entry in rules.entries]


# -------------------------------------------------------------------- MIG by driver, disagreement

THREE_INSTANCES = [
    gpu_reading(
        0,
        mig_enabled=True,
        mig_instances=tuple(
            MigReading(uuid=f"MIG-{n}", gpu_instance_id=n, compute_instance_id=0) for n in range(3)
        ),
    ),
    gpu_reading(1),
]


@pytest.mark.parametrize(
    ("text", "before_570"),
    [
        (None, OPEN),  # which one is taken when none is named, only the driver knows
        ("MIG-0,MIG-1", ("MIG-0",)),
        ("MIG-1,MIG-2", ("MIG-1",)),
        ("MIG-1", ("MIG-1",)),
        ("MIG-0,MIG-1,none", ("MIG-0",)),
        ("MIG-0,MIG-0", ()),
        ("MIG-2,MIG-1", OPEN),  # "the first one available": of the list or of the card?
        ("0", OPEN),
        ("0,1", OPEN),
    ],
)
def test_a_program_sees_one_instance_before_driver_570(
    text: str | None, before_570: object
) -> None:
    for version in ("450.0", "525.147.05", "569.99"):
        found = apply_rules(text, None, THREE_INSTANCES, driver_version=version)
        assert found.visible == before_570


@pytest.mark.parametrize("version", [None, "", "570.0", "580.95.05", "x", "449.99", "9" * 50])
@pytest.mark.parametrize("text", [None, "MIG-0,MIG-1"])
def test_for_other_drivers_the_number_of_instances_is_open(
    version: str | None, text: str | None
) -> None:
    found = apply_rules(text, None, THREE_INSTANCES, driver_version=version)

    assert found.visible is None
    assert found.open_question


def test_the_second_instance_is_dropped_with_the_reason() -> None:
    found = apply_rules("MIG-0,MIG-1,none", None, THREE_INSTANCES, driver_version="525.1")

    assert [entry.status for entry in found.entries] == ["kept", "dropped", "dropped"]
    assert [entry.reason for entry in found.entries] == [
        "valid",
        "before driver 570 a program sees only one MIG instance",
        "not a UUID in a list that begins with one",
    ]


@pytest.mark.parametrize(
    ("text", "enumerated", "disagreement"),
    [
        ("0,1", (A, B), None),
        ("0,", (B,), None),  # the rules were open
        ("0,1,2", (A, C), f"sees 3 devices; the driver leaves out {B}."),
        ("0,1", (B, A), f"sees {A}, {B}; the driver enumerates {B}, {A}."),
        ("0", (B,), f"sees {A}; the driver enumerates {B}."),
        ("0", (), f"sees {A}; the driver enumerates no device."),
        ("-1", (A,), f"sees no device; the driver enumerates {A}."),
    ],
)
def test_a_driver_that_differs_from_the_rules(
    text: str, enumerated: tuple[str, ...], disagreement: str | None
) -> None:
    devices = tuple(
        CudaDeviceReading(ordinal=at, uuid_hex=uuid[4:].replace("-", ""))
        for at, uuid in enumerate(enumerated)
    )
    reading = CudaReading(device_count=len(devices), devices=devices)

    joined = join_driver(apply_rules(text, None, THREE), reading, THREE)

    assert joined is not None
    expected = disagreement and f"By NVIDIA's documented rules CUDA {disagreement}"
    assert joined.disagreement == expected
