"""The rules of sharing."""

from __future__ import annotations

import dataclasses
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucheck.place.claim_model import HeldSlot, Holder, Slot, Step, Target
from gpucheck.place.claim_rules import room_on, scheduler_of

CARD = Target(card="GPU-1")
OTHER = Target(card="GPU-2")
INSTANCE = Target(card="GPU-1", instance="MIG-1")
NOBODY: frozenset[str] = frozenset()


def held(target: Target, *steps: tuple[int, int], by: str = "x") -> HeldSlot:
    slot = Slot(target=target, steps=tuple(Step(slot=a, share=b) for a, b in steps))
    return HeldSlot(slot=slot, path="", holder=Holder(id=by, user=by, user_id=os.geteuid()))


def steps(
    target: Target, *others: HeldSlot, share: int = 1, around: frozenset[str] = NOBODY
) -> list[tuple[int, int]] | None:
    room = room_on(target, others, share=share, around=around)
    return room.slot and [(step.slot, step.share) for step in room.slot.steps]


class TestRules:
    def test_a_free_card(self) -> None:
        assert steps(CARD) == [(0, 1)]
        assert steps(CARD, held(OTHER, (0, 1))) == [(0, 1)]

    def test_alone_means_alone(self) -> None:
        assert steps(CARD, held(CARD, (0, 1))) is None
        assert steps(CARD, held(CARD, (0, 1)), share=8) is None
        assert steps(CARD, held(CARD, (3, 8))) is None
        assert room_on(CARD, [held(CARD, (0, 1))], share=1, around=NOBODY).reason == "held by x"

    def test_sharers_share(self) -> None:
        two = [held(CARD, (0, 4)), held(CARD, (2, 4))]

        assert steps(CARD, *two, share=4) == [(1, 4)]
        assert steps(CARD, *two, share=3) == [(1, 3)]
        assert steps(CARD, *two, share=2) is None

    def test_the_smallest_wish_counts(self) -> None:
        assert steps(CARD, held(CARD, (0, 2)), held(CARD, (1, 8)), share=8) is None

    @pytest.mark.parametrize(("one", "two"), [(CARD, INSTANCE), (INSTANCE, CARD)])
    def test_a_card_and_its_instances_exclude_each_other(self, one: Target, two: Target) -> None:
        assert steps(one, held(two, (0, 4)), share=4) is None

    def test_two_instances_of_a_card(self) -> None:
        other = Target(card="GPU-1", instance="MIG-2")

        assert steps(INSTANCE, held(other, (0, 1))) == [(0, 1)]

    def test_an_id_counts_only_for_its_owner(self) -> None:
        outer = held(CARD, (0, 1), by="me")
        another = dataclasses.replace(outer.holder, user_id=os.geteuid() + 1)
        nobody = dataclasses.replace(outer.holder, user_id=None)

        for holder in (another, nobody):
            stolen = dataclasses.replace(outer, holder=holder)
            assert steps(CARD, stolen, around=frozenset({"me"})) is None

    def test_a_strange_lock_file_costs_its_card_and_no_other(self) -> None:
        slot = Slot(target=CARD, steps=(Step(slot=0, share=1),))
        strange = HeldSlot(
            slot=slot, path="/run/x.lock", holder=Holder(user="alice"), problem="it is a link"
        )

        room = room_on(CARD, [strange], share=1, around=NOBODY)

        assert room.slot is None
        assert "'/run/x.lock' cannot be used: it is a link; its owner, alice," in room.reason
        assert steps(OTHER, strange) == [(0, 1)]

    def test_inside_ones_own_claim(self) -> None:
        outer = held(CARD, (0, 1), by="me")
        inner = held(CARD, (0, 1), (0, 1), by="child")

        assert steps(CARD, outer, around=frozenset({"me"})) == [(0, 1), (0, 1)]
        assert steps(CARD, outer, inner, around=frozenset({"me"})) is None
        assert steps(CARD, outer, inner, around=frozenset({"me", "child"})) == [(0, 1)] * 3

    def test_what_an_inner_claim_holds_is_held_when_the_outer_one_is_gone(self) -> None:
        assert steps(CARD, held(CARD, (0, 1), (0, 1))) is None

    def test_a_uuid_that_is_no_file_name(self) -> None:
        assert room_on(Target(card="a/b"), [], share=1, around=NOBODY).slot is None

    @given(
        st.lists(st.tuples(st.integers(1, 4), st.booleans()), max_size=30),
    )
    def test_nobody_ever_has_more_company_than_they_asked_for(
        self, visits: list[tuple[int, bool]]
    ) -> None:
        present: list[HeldSlot] = []
        for share, leaves in visits:
            room = room_on(CARD, present, share=share, around=NOBODY)
            if room.slot is not None:
                present.append(HeldSlot(slot=room.slot, path="", holder=Holder()))
            if leaves and present:
                present.pop(0)
            steps_now = [item.slot.steps[0] for item in present]
            assert len({step.slot for step in steps_now}) == len(present)
            assert all(len(present) <= step.share for step in steps_now)


def test_schedulers() -> None:
    assert scheduler_of({}) is None
    assert scheduler_of({"SLURM_JOB_ID": ""}) is None
    assert scheduler_of({"SLURM_JOB_ID": "7"}) == "Slurm"
