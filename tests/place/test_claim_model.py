"""What decides about a claim is in the name of its file, so the name must say all of it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucheck.place.claim_store import Slot, Step, Target, parse_slot
from gpucheck.place.model import Holder

CARD = "GPU-756a79d4-4cf2-5e9f-88b6-03d84e3e737d"


@pytest.mark.parametrize(
    ("target", "steps", "name"),
    [
        (Target(card=CARD), [(0, 1)], f"{CARD}.0of1"),
        (Target(card=CARD), [(0, 1), (2, 4)], f"{CARD}.0of1.2of4"),
        (Target(card=CARD, instance="MIG-1"), [(0, 1)], f"{CARD}+MIG-1.0of1"),
        (
            Target(card=CARD, instance=f"MIG-{CARD}/7/0"),
            [(0, 1)],
            f"{CARD}+MIG-{CARD}=7=0.0of1",
        ),
    ],
)
def test_a_slot_and_its_name_are_one(
    target: Target, steps: list[tuple[int, int]], name: str
) -> None:
    slot = Slot(target=target, steps=tuple(Step(slot=a, share=b) for a, b in steps))

    assert slot.name == name
    assert parse_slot(name) == slot


@pytest.mark.parametrize(
    "name",
    [
        "",
        "gate",
        CARD,
        f"{CARD}.1of1",
        f"{CARD}.0of0",
        f"{CARD}.0of999",
        f"{CARD}..0of1",
        "../x.0of1",
        "a/b.0of1",
        f"{CARD}.0of1.json",
        "ticket-1.2",
    ],
)
def test_other_names_are_no_slots(name: str) -> None:
    assert parse_slot(name) is None


@given(st.text())
def test_any_name_is_a_slot_or_none(name: str) -> None:
    slot = parse_slot(name)

    assert slot is None or slot.name == name


@pytest.mark.parametrize("card", ["", "a b", "../x", "a/b", "x" * 300, "Gé"])
def test_a_uuid_that_is_no_file_name_cannot_be_claimed(card: str) -> None:
    assert not Target(card=card).has_usable_name


@pytest.mark.parametrize(
    ("holder", "text"),
    [
        (Holder(), "an unknown user"),
        (Holder(user="ann", pid=7), "ann (pid 7)"),
        (Holder(user="ann", pid=7, command="x" * 60), f"ann (pid 7: {'x' * 60})"),
        (Holder(user="ann", pid=7, command="x" * 61), f"ann (pid 7: {'x' * 57}...)"),
    ],
)
def test_a_holder_in_a_phrase_of_bounded_length(holder: Holder, text: str) -> None:
    assert holder.described == text
