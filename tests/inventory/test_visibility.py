"""CUDA_VISIBLE_DEVICES by the documented rules, and `open` wherever no document decides."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from pathlib import Path

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


#: Machines of the table. That of its order has unlike GPUs, by which the order counts.
MACHINES = {
    "three": THREE,
    "three-open": THREE,
    "three-no-question": THREE,
    "order": T4_A100,
    "split": SPLIT,
    "unlike": T4_A100,
    "one": alike(A),
    **{
        name: [THREE[0], gpu_reading(1, uuid=uuid, failure=LOST), THREE[2]]
        for name, uuid in (("second-is-lost", B), ("lost-and-nameless", None))
    },
}
NAMES = {"A": A, "B": B, "C": C, "M0": M0, "M1": M1}
TABLE = Path(__file__).parents[1] / "data" / "visible_devices.toml"


def rows() -> Iterator[tuple[str, str, dict[str, str]]]:
    """Yield the machine of each row of the table, its name and the row."""
    for group, table in tomllib.loads(TABLE.read_text(encoding="utf-8")).items():
        for name, row in table.items():
            yield row.get("gpus", group), f"{group}: {name}", row
            if group == "second-is-lost":
                yield "lost-and-nameless", f"{group}, without a name: {name}", row


def spelt(value: str) -> str | None:
    """Return a value of the table, in which <A> stands for a UUID."""
    text = value.replace("<5000 nines>", "9" * 5000)
    for name, uuid in NAMES.items():
        text = text.replace(f"<{name}>", uuid)
    return None if text == "unset" else text


def test_the_rules_decide_what_the_documents_say_and_nothing_else() -> None:
    wrong = {}
    for machine, name, row in rows():
        order = row.get("order", "PCI_BUS_ID" if name.startswith("three-open") else None)
        found = apply_rules(spelt(row["value"]), order, MACHINES[machine])
        shown = {uuid: short for short, uuid in NAMES.items()}
        seen = None if found.visible is None else [shown[uuid] for uuid in found.visible]
        said = "open" if seen is None else " ".join(seen) or "none"
        if said != row["sees"]:
            wrong[name] = said
        assert (found.open_question is None) is (said != "open"), name
        if name.startswith("three-open"):
            assert found.open_question in {entry.reason for entry in found.entries}, name
    assert wrong == {}
    assert apply_rules("0", None, THREE).decided_by is DecidedBy.RULES


def visible(text: str | None, gpus: list[GpuReading], order: str | None = None) -> object:
    return apply_rules(text, order, gpus).visible


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
