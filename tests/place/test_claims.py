"""Claiming and the queue: many callers in one process, each with locks of its own."""

from __future__ import annotations

import dataclasses
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucheck.place import claims as core_claims
from gpucheck.place.claim_store import (
    ClaimStore,
    LockedStore,
    Slot,
    Target,
    list_claims,
)
from gpucheck.place.claims import (
    Acquisition,
    ClaimOptions,
    Lease,
    Waiting,
    enclosing_ids,
    scheduler_of,
    vacancy_on,
)
from gpucheck.place.model import ClaimList, Holder
from gpucheck.report.errors import BadAnswerError, InconclusiveError

CARD = Target(card="GPU-1")
OTHER = Target(card="GPU-2")
INSTANCE = Target(card="GPU-1", instance="MIG-1")
NOBODY: frozenset[str] = frozenset()


class Any:
    """A selector that takes the first cards that are not blocked."""

    def __init__(self, *cards: Target, count: int = 1) -> None:
        self.possible: Sequence[Target] = cards
        self.count = count
        self.blocked: Mapping[str, str] = {}
        self.behind = 0
        self.surveys = 0
        self.busy: set[str] = set()
        self.chosen: Sequence[Target] = ()

    def survey(self) -> None:
        self.surveys += 1

    def choose(self, blocked: Mapping[str, str], *, behind: int = 0) -> Sequence[Target]:
        self.blocked, self.behind = blocked, behind
        if behind:
            return []
        free = [t for t in self.possible if t.uuid not in blocked and t.uuid not in self.busy]
        self.chosen = free[: self.count] if len(free) >= self.count else []
        return self.chosen

    def failure(self) -> BadAnswerError:
        return BadAnswerError(
            code="nothing-fits",
            message=f"No: {dict(self.blocked)} {self.behind} wait",
            remedy=("GPU 1: it is held", "GPU 2: it is busy", "Wait: add --wait."),
        )


@pytest.fixture
def store(tmp_path: Path) -> ClaimStore:
    return ClaimStore(tmp_path / "claims")


def take(
    store: ClaimStore, selector: Any, enclosing: frozenset[str] = NOBODY, **options: object
) -> Lease:
    return Acquisition(
        store,
        ClaimOptions(**options),  # type: ignore[arg-type]
        selector,
        enclosing=enclosing,
    ).run()


class Sleepy(Any):
    """A selector whose driver does not answer the first times."""

    silent = 3

    def survey(self) -> None:
        super().survey()
        if self.surveys <= self.silent:
            raise InconclusiveError(code="nvml-driver-not-answering", message="It is slow.")


class TestSlowDriver:
    def test_the_deadline_of_one_look_ends_no_waiting(self, store: ClaimStore) -> None:
        selector, told, slept = Sleepy(CARD), [], []
        options = ClaimOptions(wait=True)

        lease = Acquisition(store, options, selector, on_wait=told.append, sleep=slept.append).run()

        assert [claim.uuid for claim in lease.claims] == ["GPU-1"]
        assert {waiting.reason for waiting in told} == {"It is slow."}
        assert slept == [2.0, 4.0, 8.0]
        lease.close()

    def test_the_timeout_does(self, store: ClaimStore) -> None:
        clock = [0.0]
        acquisition = Acquisition(
            store,
            ClaimOptions(wait=True, timeout_s=5.0),
            Sleepy(CARD),
            sleep=lambda seconds: clock.__setitem__(0, clock[0] + seconds),
            now_s=lambda: clock[0],
        )

        with pytest.raises(BadAnswerError, match=r"within 5 s\. It is slow\."):
            acquisition.run()

    def test_without_wait_the_error_comes_at_once(self, store: ClaimStore) -> None:
        with pytest.raises(InconclusiveError):
            take(store, Sleepy(CARD))


class TestAcquisition:
    def test_all_or_nothing(self, store: ClaimStore) -> None:
        first = take(store, Any(CARD))

        with pytest.raises(BadAnswerError, match="held by"):
            take(store, Any(CARD, OTHER, count=2))

        second = take(store, Any(CARD, OTHER))
        assert [claim.uuid for claim in second.claims] == ["GPU-2"]
        first.close()
        second.close()
        assert list_claims(store).claims == ()

    def test_the_claim_says_who_has_it(self, store: ClaimStore) -> None:
        mine = take(store, Any(CARD), command="train --fast")
        (claim,) = list_claims(store).claims

        assert (claim.uuid, claim.pid, claim.command) == ("GPU-1", os.getpid(), "train --fast")
        assert claim.held
        assert claim.user
        assert mine.claims[0].waited_s == 0
        assert Path(claim.path).exists()
        mine.close()

    def test_looking_holds_nothing_and_makes_nothing(self, store: ClaimStore) -> None:
        seen = take(store, Any(CARD), hold=False)

        assert seen.locks == ()
        assert not store.exists()

    def test_looking_sees_the_claims_of_others(self, store: ClaimStore) -> None:
        mine = take(store, Any(CARD))

        with pytest.raises(BadAnswerError):
            take(store, Any(CARD), hold=False)
        mine.close()

    def test_without_a_store_nothing_is_blocked(self, store: ClaimStore) -> None:
        mine = take(store, Any(CARD))
        selector = Any(CARD)
        free = Acquisition(None, ClaimOptions(), selector).run()

        assert selector.chosen == [CARD]
        assert free.claims == ()
        mine.close()

    def test_a_command_under_a_claim_may_divide_it(self, store: ClaimStore) -> None:
        outer = take(store, Any(CARD))
        enclosing = enclosing_ids(outer.environment)
        inner = take(store, Any(CARD), enclosing=enclosing)

        with pytest.raises(BadAnswerError):
            take(store, Any(CARD), enclosing=enclosing)

        outer.close()
        with pytest.raises(BadAnswerError):  # the inner one still runs there
            take(store, Any(CARD))
        inner.close()
        take(store, Any(CARD)).close()

    def test_a_lost_race_gives_back_what_was_taken(
        self, store: ClaimStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        take_really = LockedStore.take

        def lose(self: LockedStore, slot: Slot, *record: object) -> object:
            return None if slot.target == OTHER else take_really(self, slot, *record)  # type: ignore[arg-type]

        monkeypatch.setattr(LockedStore, "take", lose)
        with pytest.raises(BadAnswerError, match="just taken"):
            take(store, Any(CARD, OTHER, count=2))

        assert list_claims(store).claims == ()

    def test_a_lost_race_takes_the_next_best(
        self, store: ClaimStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        take_really = LockedStore.take

        def lose(self: LockedStore, slot: Slot, *record: object) -> object:
            return None if slot.target == CARD else take_really(self, slot, *record)  # type: ignore[arg-type]

        monkeypatch.setattr(LockedStore, "take", lose)
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
    store: ClaimStore,
    selector: Any,
    script: Scripted,
    heard: list[Waiting] | None = None,
    **options: object,
) -> Lease:
    options = {"wait": True, **options}
    listen = heard.append if heard is not None else (lambda _: None)
    return Acquisition(
        store,
        ClaimOptions(**options),  # type: ignore[arg-type]
        selector,
        on_wait=listen,
        sleep=script.sleep,
        now_s=script.now_s,
    ).run()


class TestWaiting:
    def test_it_is_served_when_the_card_is_free(self, store: ClaimStore) -> None:
        first = take(store, Any(CARD))
        heard: list[Waiting] = []
        mine = wait_for(store, Any(CARD), Scripted(int, int, first.close), heard)

        assert [claim.uuid for claim in mine.claims] == ["GPU-1"]
        assert (mine.claims[0].waited_s or 0) > 0
        assert heard[0].ahead == 0
        assert "held by" in heard[0].reason
        assert list_claims(store).waiting == 0
        mine.close()

    def test_a_timeout_is_an_answer(self, store: ClaimStore) -> None:
        first = take(store, Any(CARD))

        with pytest.raises(BadAnswerError, match=r"within 3 s.*held by") as caught:
            wait_for(store, Any(CARD), script := Scripted(), timeout_s=3)

        assert caught.value.code == "wait-timeout"
        assert caught.value.remedy[:2] == ("GPU 1: it is held", "GPU 2: it is busy")
        assert caught.value.remedy[2:] == ("Ask for less, or wait longer: --timeout.",)
        assert script.time_s == pytest.approx(3)
        assert list_claims(store).waiting == 0
        first.close()

    def test_no_wait_for_the_impossible(self, store: ClaimStore) -> None:
        with pytest.raises(BadAnswerError, match="No:"):
            wait_for(store, Any(CARD, count=2), Scripted())

        assert list_claims(store).waiting == 0

    def test_the_queue_is_first_come_first_served(self, store: ClaimStore) -> None:
        """While one waits, neither a later waiter nor somebody who just asks gets the card."""
        first = take(store, Any(CARD))
        served: list[str] = []

        def a_third_asks() -> None:
            with pytest.raises(BadAnswerError, match="1 wait"):
                wait_for(store, Any(CARD), Scripted(), timeout_s=1)

        def somebody_just_asks() -> None:
            first.close()
            with pytest.raises(BadAnswerError, match="1 wait"):
                take(store, Any(CARD))
            take(store, Any(OTHER)).close()  # nobody waits for that one
            served.append("passer-by")

        mine = wait_for(store, Any(CARD), Scripted(a_third_asks, somebody_just_asks))

        assert served == ["passer-by"]
        mine.close()

    def test_the_queue_goes_on_when_a_waiter_dies(self, store: ClaimStore) -> None:
        first = take(store, Any(CARD))
        with store.mutex() as locked:
            place = locked.enqueue(Holder())
            place.set_wants(frozenset({"GPU-1"}))
        heard: list[Waiting] = []

        mine = wait_for(store, Any(CARD), Scripted(place.close, first.close), heard)

        assert [ahead for ahead, _ in groupby(heard, lambda waiting: waiting.ahead)] == [1, 0]
        mine.close()

    def test_a_card_that_is_busy_without_a_claim_is_looked_at_again(
        self, store: ClaimStore
    ) -> None:
        selector = Any(CARD)
        selector.busy.add("GPU-1")
        script, heard = Scripted(int, selector.busy.clear), list[Waiting]()
        mine = wait_for(store, selector, script, heard)

        assert selector.surveys == 3
        assert [(waiting.ahead, waiting.waited_s) for waiting in heard] == [(0, 0.0), (0, 2.0)]
        assert {waiting.reason for waiting in heard} == {"No: {} 0 wait"}
        assert mine.claims[0].waited_s == script.time_s == 4.0
        mine.close()

    def test_waiting_without_claims(self) -> None:
        selector = Any(CARD)
        selector.busy.add("GPU-1")
        script = Scripted(selector.busy.clear)
        Acquisition(
            None, ClaimOptions(wait=True), selector, sleep=script.sleep, now_s=script.now_s
        ).run()

        assert selector.chosen == [CARD]

    def test_an_interrupted_waiter_leaves_the_queue(self, store: ClaimStore) -> None:
        first = take(store, Any(CARD))

        def interrupt() -> None:
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            wait_for(store, Any(CARD), Scripted(interrupt))

        assert list_claims(store).waiting == 0
        first.close()


class TestFirstComeFirstServed:
    def test_who_came_first_is_served_first_however_slowly_they_look(
        self, store: ClaimStore
    ) -> None:
        """The card is free all the time, but the first one has not even looked at it yet."""
        with store.mutex() as locked:
            first = locked.enqueue(Holder())
        heard: list[Waiting] = []
        selector = Any(CARD)
        mine = wait_for(store, selector, Scripted(int, first.close), heard)

        assert {waiting.ahead for waiting in heard} == {1}
        assert selector.surveys == 2
        mine.close()

    def test_a_ticket_for_another_gpu_blocks_nothing(self, store: ClaimStore) -> None:
        with store.mutex() as locked:
            first = locked.enqueue(Holder())

        def settle() -> None:
            with store.mutex():
                first.set_wants(frozenset({"GPU-2"}))

        mine = wait_for(store, Any(CARD), Scripted(int, settle))

        assert [claim.uuid for claim in mine.claims] == ["GPU-1"]
        assert list_claims(store).waiting == 1
        mine.close()
        first.close()

    def test_a_ticket_without_wants_blocks_only_waiters(self, store: ClaimStore) -> None:
        with store.mutex() as locked:
            first = locked.enqueue(Holder())

        take(store, Any(CARD)).close()
        first.close()

    def test_they_look_in_the_order_in_which_they_came(
        self, store: ClaimStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(core_claims, "_SURVEYS_AT_ONCE", 1)
        with store.mutex() as locked:
            first = locked.enqueue(Holder())
        selector = Any(CARD)
        surveys: list[int] = []

        def settle() -> None:
            surveys.append(selector.surveys)
            with store.mutex():
                first.set_wants(frozenset({"GPU-2"}))

        wait_for(store, selector, Scripted(int, settle)).close()

        assert surveys == [0]
        assert selector.surveys == 1
        first.close()

    def test_a_timeout_before_the_first_look(
        self, store: ClaimStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(core_claims, "_SURVEYS_AT_ONCE", 1)
        with store.mutex() as locked:
            first = locked.enqueue(Holder())

        with pytest.raises(BadAnswerError, match="ahead in the queue ask"):
            wait_for(store, Any(CARD), Scripted(), timeout_s=1)
        first.close()

    def test_a_holder_is_never_seen_in_the_queue(self, store: ClaimStore) -> None:
        seen: list[int] = []

        class Watched(ClaimStore):
            @contextmanager
            def mutex(self) -> Iterator[LockedStore]:
                with super().mutex() as locked:
                    yield locked
                    seen.append(len(locked.held()) * 10 + len(locked.tickets()))

        wait_for(Watched(store.directory), Any(CARD), Scripted()).close()

        assert seen == [1, 1, 10]

    def test_the_queue_says_who_waits(self, store: ClaimStore) -> None:
        first = take(store, Any(CARD))
        listed = []

        def look() -> None:
            listed.append(list_claims(store))
            first.close()

        wait_for(store, Any(CARD), Scripted(look), command="train --fast").close()
        (waiter,) = listed[0].queue

        assert (waiter.pid, waiter.command) == (os.getpid(), "train --fast")
        assert waiter.process == "running"


def test_threads_are_callers_like_any_others(store: ClaimStore) -> None:
    present: list[str] = []
    most: list[int] = []

    def work() -> None:
        for _ in range(3):
            held = take(store, Any(CARD, OTHER), wait=True)
            uuid = held.claims[0].uuid
            present.append(uuid)
            most.append(present.count(uuid))
            present.remove(uuid)
            held.close()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert most == [1] * 12
    assert list_claims(store).claims == ()


def test_no_directory_means_no_claims(tmp_path: Path) -> None:
    directory = tmp_path / "claims"

    assert list_claims(ClaimStore(directory)) == ClaimList(directory=str(directory))
    assert not directory.exists()


# ---------------------------------------------------------------------------------- rules


def holding(target: Target, *steps: tuple[int, int], by: str = "x") -> Slot:
    holder = Holder(user=by)
    return Slot(target=target, steps=tuple(steps), holder=holder, claim_id=by, user_id=os.geteuid())


def steps(
    target: Target, *others: Slot, share: int = 1, enclosing: frozenset[str] = NOBODY
) -> list[tuple[int, int]] | None:
    slot = vacancy_on(target, others, share=share, enclosing=enclosing)
    return None if isinstance(slot, str) else list(slot.steps)


class TestRules:
    def test_a_free_card(self) -> None:
        assert steps(CARD) == [(0, 1)]
        assert steps(CARD, holding(OTHER, (0, 1))) == [(0, 1)]

    def test_alone_means_alone(self) -> None:
        assert steps(CARD, holding(CARD, (0, 1))) is None
        assert steps(CARD, holding(CARD, (0, 1)), share=8) is None
        assert steps(CARD, holding(CARD, (3, 8))) is None
        assert vacancy_on(CARD, [holding(CARD, (0, 1))], share=1, enclosing=NOBODY) == "held by x"

    def test_sharers_share(self) -> None:
        two = [holding(CARD, (0, 4)), holding(CARD, (2, 4))]

        assert steps(CARD, *two, share=4) == [(1, 4)]
        assert steps(CARD, *two, share=3) == [(1, 3)]
        assert steps(CARD, *two, share=2) is None

    def test_the_smallest_share_counts(self) -> None:
        assert steps(CARD, holding(CARD, (0, 2)), holding(CARD, (1, 8)), share=8) is None

    @pytest.mark.parametrize(
        ("one", "two", "held"),
        [(CARD, INSTANCE, "one of its MIG instances"), (INSTANCE, CARD, "the whole GPU")],
    )
    def test_a_card_and_its_instances_exclude_each_other(
        self, one: Target, two: Target, held: str
    ) -> None:
        reason = vacancy_on(one, [holding(two, (0, 4))], share=4, enclosing=NOBODY)

        assert reason == f"{held} is held by x"

    def test_two_instances_of_a_card(self) -> None:
        other = Target(card="GPU-1", instance="MIG-2")

        assert steps(INSTANCE, holding(other, (0, 1))) == [(0, 1)]

    def test_an_id_counts_only_for_its_owner(self) -> None:
        outer = holding(CARD, (0, 1), by="me")

        for user_id in (os.geteuid() + 1, None):
            stolen = dataclasses.replace(outer, user_id=user_id)
            assert steps(CARD, stolen, enclosing=frozenset({"me"})) is None

    def test_a_strange_lock_file_costs_its_card_and_no_other(self) -> None:
        strange = Slot(
            target=CARD, steps=((0, 1),), path="/run/x.lock", holder=Holder(user="alice"),
            problem="it is a link",
        )  # fmt: skip

        reason = vacancy_on(CARD, [strange], share=1, enclosing=NOBODY)

        assert isinstance(reason, str)
        assert "'/run/x.lock' cannot be used: it is a link; its owner, alice," in reason
        assert steps(OTHER, strange) == [(0, 1)]

    def test_inside_ones_own_claim(self) -> None:
        outer = holding(CARD, (0, 1), by="me")
        inner = holding(CARD, (0, 1), (0, 1), by="child")

        assert steps(CARD, outer, enclosing=frozenset({"me"})) == [(0, 1), (0, 1)]
        assert steps(CARD, outer, inner, enclosing=frozenset({"me"})) is None
        assert steps(CARD, outer, inner, enclosing=frozenset({"me", "child"})) == [(0, 1)] * 3

    def test_what_an_inner_claim_holds_is_held_when_the_outer_one_is_gone(self) -> None:
        assert steps(CARD, holding(CARD, (0, 1), (0, 1))) is None

    def test_a_uuid_that_is_no_file_name(self) -> None:
        assert steps(Target(card="a/b")) is None

    @given(
        st.lists(st.tuples(st.integers(1, 4), st.booleans()), max_size=30),
    )
    def test_no_claim_shares_with_more_than_it_allows(self, visits: list[tuple[int, bool]]) -> None:
        present: list[Slot] = []
        for share, leaves in visits:
            slot = vacancy_on(CARD, present, share=share, enclosing=NOBODY)
            if isinstance(slot, Slot):
                present.append(slot)
            if leaves and present:
                present.pop(0)
            steps_now = [item.steps[0] for item in present]
            assert len({number for number, _ in steps_now}) == len(present)
            assert all(len(present) <= share for _, share in steps_now)


def test_schedulers() -> None:
    assert scheduler_of({}) is None
    assert scheduler_of({"SLURM_JOB_ID": ""}) is None
    assert scheduler_of({"SLURM_JOB_ID": "7"}) == "Slurm"


def test_a_lease_names_the_descriptors_of_its_locks(store: ClaimStore) -> None:
    with store.mutex() as locked:
        locks = [
            locked.take(Slot(target=card, steps=((0, 1),)), Holder(pid=1)) for card in (CARD, OTHER)
        ]
    first, second = (lock for lock in locks if lock is not None)

    lease = Lease(locks=(first, second))

    assert lease.descriptors == (first.descriptor, second.descriptor)
    assert all(os.fstat(one) for one in lease.descriptors)
    assert Lease().descriptors == ()
    lease.close()
    assert lease.descriptors == (-1, -1)
