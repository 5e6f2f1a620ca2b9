"""The rules of sharing, and the queue: many callers in one process, each with locks of its own."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucheck.core.claims import (
    Acquisition,
    ClaimTerms,
    Held,
    Waiting,
    ids_around,
    list_claims,
    room_on,
    scheduler_of,
)
from gpucheck.models.claim import HeldSlot, Holder, Slot, Step, Target
from gpucheck.models.errors import BadAnswerError
from gpucheck.probes.claims import LockDirectory

CARD = Target(card="GPU-1")
OTHER = Target(card="GPU-2")
INSTANCE = Target(card="GPU-1", instance="MIG-1")
NOBODY: frozenset[str] = frozenset()


def held(target: Target, *steps: tuple[int, int], by: str = "x") -> HeldSlot:
    slot = Slot(target=target, steps=tuple(Step(slot=a, share=b) for a, b in steps))
    return HeldSlot(slot=slot, path="", holder=Holder(id=by, user=by))


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


class Any:
    """A chooser that takes the first cards that are not blocked."""

    def __init__(self, *cards: Target, count: int = 1) -> None:
        self.possible: Sequence[Target] = cards
        self.count = count
        self.blocked: Mapping[str, str] = {}
        self.surveys = 0
        self.busy: set[str] = set()

    def survey(self) -> None:
        self.surveys += 1

    def choose(self, blocked: Mapping[str, str]) -> Sequence[Target]:
        self.blocked = blocked
        free = [t for t in self.possible if t.uuid not in blocked and t.uuid not in self.busy]
        return free[: self.count] if len(free) >= self.count else []

    def failure(self) -> BadAnswerError:
        return BadAnswerError(code="nothing-fits", message=f"No: {dict(self.blocked)}")


@pytest.fixture
def store(tmp_path: Path) -> LockDirectory:
    return LockDirectory(tmp_path / "claims")


def take(store: LockDirectory, chooser: Any, **terms: object) -> Held:
    return Acquisition(store, ClaimTerms(**terms), chooser).run()[1]  # type: ignore[arg-type]


class TestAcquisition:
    def test_all_or_nothing(self, store: LockDirectory) -> None:
        first = take(store, Any(CARD))

        with pytest.raises(BadAnswerError, match="held by"):
            take(store, Any(CARD, OTHER, count=2))

        second = take(store, Any(CARD, OTHER))
        assert [claim.uuid for claim in second.claims] == ["GPU-2"]
        first.close()
        second.close()
        assert list_claims(store).claims == ()

    def test_the_claim_says_who_has_it(self, store: LockDirectory) -> None:
        mine = take(store, Any(CARD), command="train --fast")
        (claim,) = list_claims(store).claims

        assert (claim.uuid, claim.pid, claim.command) == ("GPU-1", os.getpid(), "train --fast")
        assert claim.held
        assert claim.user
        assert mine.claims[0].waited_s == 0
        assert Path(claim.path).exists()
        mine.close()

    def test_looking_holds_nothing_and_makes_nothing(self, store: LockDirectory) -> None:
        seen = take(store, Any(CARD), hold=False)

        assert seen.locks == ()
        assert not store.exists()

    def test_looking_sees_the_claims_of_others(self, store: LockDirectory) -> None:
        mine = take(store, Any(CARD))

        with pytest.raises(BadAnswerError):
            take(store, Any(CARD), hold=False)
        mine.close()

    def test_without_a_store_nobody_is_in_the_way(self, store: LockDirectory) -> None:
        mine = take(store, Any(CARD))
        chosen, free = Acquisition(None, ClaimTerms(), Any(CARD)).run()

        assert chosen == [CARD]
        assert free.claims == ()
        mine.close()

    def test_a_command_under_a_claim_may_divide_it(self, store: LockDirectory) -> None:
        outer = take(store, Any(CARD))
        around = ids_around(outer.environment)
        inner = take(store, Any(CARD), around=around)

        with pytest.raises(BadAnswerError):
            take(store, Any(CARD), around=around)

        outer.close()
        with pytest.raises(BadAnswerError):  # the inner one still runs there
            take(store, Any(CARD))
        inner.close()
        take(store, Any(CARD)).close()

    def test_a_lost_race_takes_the_next_best(
        self, store: LockDirectory, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from gpucheck.probes.claims import LockedDirectory

        take_really = LockedDirectory.take

        def lose(self: LockedDirectory, slot: Slot, holder: Holder) -> object:
            return None if slot.target == CARD else take_really(self, slot, holder)

        monkeypatch.setattr(LockedDirectory, "take", lose)
        mine = take(store, Any(CARD, OTHER))

        assert [claim.uuid for claim in mine.claims] == ["GPU-2"]
        mine.close()


class Scripted:
    """A clock and a sleep that does something each time."""

    def __init__(self, *actions: Callable[[], object]) -> None:
        self.time_s = 0.0
        self.actions = list(actions)

    def now_s(self) -> float:
        return self.time_s

    def sleep(self, seconds: float) -> None:
        self.time_s += seconds
        if self.actions:
            self.actions.pop(0)()


def wait_for(
    store: LockDirectory,
    chooser: Any,
    script: Scripted,
    heard: list[Waiting] | None = None,
    **terms: object,
) -> Held:
    terms = {"wait": True, **terms}
    listen = heard.append if heard is not None else (lambda _: None)
    return Acquisition(
        store,
        ClaimTerms(**terms),  # type: ignore[arg-type]
        chooser,
        on_wait=listen,
        sleep=script.sleep,
        now_s=script.now_s,
    ).run()[1]


class TestWaiting:
    def test_it_is_served_when_the_card_is_free(self, store: LockDirectory) -> None:
        first = take(store, Any(CARD))
        heard: list[Waiting] = []
        mine = wait_for(store, Any(CARD), Scripted(int, int, first.close), heard)

        assert [claim.uuid for claim in mine.claims] == ["GPU-1"]
        assert (mine.claims[0].waited_s or 0) > 0
        assert heard[0].ahead == 0
        assert "held by" in heard[0].reason
        assert list_claims(store).waiting == 0
        mine.close()

    def test_a_timeout_is_an_answer(self, store: LockDirectory) -> None:
        first = take(store, Any(CARD))

        with pytest.raises(BadAnswerError, match=r"within 3 s.*held by") as caught:
            wait_for(store, Any(CARD), Scripted(), timeout_s=3)

        assert caught.value.code == "wait-timeout"
        assert list_claims(store).waiting == 0
        first.close()

    def test_nobody_overtakes(self, store: LockDirectory) -> None:
        """While one waits, neither a later waiter nor somebody who just asks gets the card."""
        first = take(store, Any(CARD))
        served: list[str] = []

        def a_third_asks() -> None:
            with pytest.raises(BadAnswerError, match="waits"):
                wait_for(store, Any(CARD), Scripted(), timeout_s=1)

        def somebody_just_asks() -> None:
            first.close()
            with pytest.raises(BadAnswerError, match="another process waits for it already"):
                take(store, Any(CARD))
            take(store, Any(OTHER)).close()  # nobody waits for that one
            served.append("passer-by")

        mine = wait_for(store, Any(CARD), Scripted(a_third_asks, somebody_just_asks))

        assert served == ["passer-by"]
        mine.close()

    def test_the_queue_goes_on_when_a_waiter_dies(self, store: LockDirectory) -> None:
        first = take(store, Any(CARD))
        with store.gate() as gate:
            _, place = gate.enqueue(frozenset({"GPU-1"}), Holder())
        heard: list[Waiting] = []

        mine = wait_for(store, Any(CARD), Scripted(place.close, first.close), heard)

        assert [waiting.ahead for waiting in heard] == [1, 0]
        mine.close()

    def test_a_card_that_is_busy_without_a_claim_is_looked_at_again(
        self, store: LockDirectory
    ) -> None:
        chooser = Any(CARD)
        chooser.busy.add("GPU-1")
        mine = wait_for(store, chooser, Scripted(int, chooser.busy.clear))

        assert chooser.surveys == 3
        mine.close()

    def test_waiting_without_claims(self) -> None:
        chooser = Any(CARD)
        chooser.busy.add("GPU-1")
        script = Scripted(chooser.busy.clear)
        chosen, _ = Acquisition(
            None, ClaimTerms(wait=True), chooser, sleep=script.sleep, now_s=script.now_s
        ).run()

        assert chosen == [CARD]

    def test_an_interrupted_waiter_leaves_the_queue(self, store: LockDirectory) -> None:
        first = take(store, Any(CARD))

        def interrupt() -> None:
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            wait_for(store, Any(CARD), Scripted(interrupt))

        assert list_claims(store).waiting == 0
        first.close()


def test_schedulers() -> None:
    assert scheduler_of({}) is None
    assert scheduler_of({"SLURM_JOB_ID": ""}) is None
    assert scheduler_of({"SLURM_JOB_ID": "7"}) == "Slurm"


def test_no_directory_is_nobody(tmp_path: Path) -> None:
    found = list_claims(LockDirectory(tmp_path / "claims"))

    assert (found.claims, found.waiting) == ((), 0)
    assert not (tmp_path / "claims").exists()
