"""Claiming and the queue: many callers in one process, each with locks of its own."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path

import pytest

from gpucheck.place import claims as core_claims
from gpucheck.place.claim_list import list_claims
from gpucheck.place.claim_model import Holder, Slot, Target
from gpucheck.place.claim_rules import ids_around
from gpucheck.place.claim_store import LockDirectory, LockedDirectory
from gpucheck.place.claims import Acquisition, ClaimTerms, Held, Waiting
from gpucheck.report.errors import BadAnswerError, InconclusiveError

CARD = Target(card="GPU-1")
OTHER = Target(card="GPU-2")


class Any:
    """A chooser that takes the first cards that are not blocked."""

    def __init__(self, *cards: Target, count: int = 1) -> None:
        self.possible: Sequence[Target] = cards
        self.count = count
        self.blocked: Mapping[str, str] = {}
        self.behind = 0
        self.surveys = 0
        self.busy: set[str] = set()

    def survey(self) -> None:
        self.surveys += 1

    def choose(self, blocked: Mapping[str, str], *, behind: int = 0) -> Sequence[Target]:
        self.blocked, self.behind = blocked, behind
        if behind:
            return []
        free = [t for t in self.possible if t.uuid not in blocked and t.uuid not in self.busy]
        return free[: self.count] if len(free) >= self.count else []

    def failure(self) -> BadAnswerError:
        return BadAnswerError(
            code="nothing-fits", message=f"No: {dict(self.blocked)} {self.behind} wait"
        )


@pytest.fixture
def store(tmp_path: Path) -> LockDirectory:
    return LockDirectory(tmp_path / "claims")


def take(store: LockDirectory, chooser: Any, **terms: object) -> Held:
    return Acquisition(store, ClaimTerms(**terms), chooser).run()[1]  # type: ignore[arg-type]


class Sleepy(Any):
    """A chooser whose driver does not answer the first times."""

    silent = 3

    def survey(self) -> None:
        super().survey()
        if self.surveys <= self.silent:
            raise InconclusiveError(code="nvml-driver-not-answering", message="It is slow.")


class TestSlowDriver:
    def test_the_deadline_of_one_look_ends_no_waiting(self, store: LockDirectory) -> None:
        chooser, told, slept = Sleepy(CARD), [], []
        terms = ClaimTerms(wait=True)

        _, held = Acquisition(store, terms, chooser, on_wait=told.append, sleep=slept.append).run()

        assert [claim.uuid for claim in held.claims] == ["GPU-1"]
        assert {waiting.reason for waiting in told} == {"It is slow."}
        assert slept == [2.0, 4.0, 8.0]
        held.close()

    def test_the_timeout_does(self, store: LockDirectory) -> None:
        clock = [0.0]
        acquisition = Acquisition(
            store,
            ClaimTerms(wait=True, timeout_s=5.0),
            Sleepy(CARD),
            sleep=lambda seconds: clock.__setitem__(0, clock[0] + seconds),
            now_s=lambda: clock[0],
        )

        with pytest.raises(BadAnswerError, match=r"within 5 s\. It is slow\."):
            acquisition.run()

    def test_who_does_not_wait_is_told_at_once(self, store: LockDirectory) -> None:
        with pytest.raises(InconclusiveError):
            take(store, Sleepy(CARD))


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

    def test_nobody_waits_for_what_can_never_be(self, store: LockDirectory) -> None:
        with pytest.raises(BadAnswerError, match="No:"):
            wait_for(store, Any(CARD, count=2), Scripted())

        assert list_claims(store).waiting == 0

    def test_nobody_overtakes(self, store: LockDirectory) -> None:
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

    def test_the_queue_goes_on_when_a_waiter_dies(self, store: LockDirectory) -> None:
        first = take(store, Any(CARD))
        with store.gate() as gate:
            place = gate.enqueue(Holder())
            place.settle(frozenset({"GPU-1"}))
        heard: list[Waiting] = []

        mine = wait_for(store, Any(CARD), Scripted(place.close, first.close), heard)

        assert [ahead for ahead, _ in groupby(heard, lambda waiting: waiting.ahead)] == [1, 0]
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


class TestFirstComeFirstServed:
    def test_who_came_first_is_served_first_however_slowly_they_look(
        self, store: LockDirectory
    ) -> None:
        """The card is free all the time, but the first one has not even looked at it yet."""
        with store.gate() as gate:
            first = gate.enqueue(Holder())
        heard: list[Waiting] = []
        chooser = Any(CARD)
        mine = wait_for(store, chooser, Scripted(int, first.close), heard)

        assert {waiting.ahead for waiting in heard} == {1}
        assert chooser.surveys == 2
        mine.close()

    def test_who_came_first_and_wants_another_card_is_in_nobodys_way(
        self, store: LockDirectory
    ) -> None:
        with store.gate() as gate:
            first = gate.enqueue(Holder())

        def settle() -> None:
            with store.gate():
                first.settle(frozenset({"GPU-2"}))

        mine = wait_for(store, Any(CARD), Scripted(int, settle))

        assert [claim.uuid for claim in mine.claims] == ["GPU-1"]
        assert list_claims(store).waiting == 1
        mine.close()
        first.close()

    def test_who_does_not_wait_is_not_kept_by_somebody_who_only_looks(
        self, store: LockDirectory
    ) -> None:
        with store.gate() as gate:
            first = gate.enqueue(Holder())

        take(store, Any(CARD)).close()
        first.close()

    def test_they_look_in_the_order_in_which_they_came(
        self, store: LockDirectory, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(core_claims, "_SURVEYS_AT_ONCE", 1)
        with store.gate() as gate:
            first = gate.enqueue(Holder())
        chooser = Any(CARD)
        surveys: list[int] = []

        def settle() -> None:
            surveys.append(chooser.surveys)
            with store.gate():
                first.settle(frozenset({"GPU-2"}))

        wait_for(store, chooser, Scripted(int, settle)).close()

        assert surveys == [0]
        assert chooser.surveys == 1
        first.close()

    def test_a_timeout_before_the_first_look(
        self, store: LockDirectory, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(core_claims, "_SURVEYS_AT_ONCE", 1)
        with store.gate() as gate:
            first = gate.enqueue(Holder())

        with pytest.raises(BadAnswerError, match="ahead in the queue ask"):
            wait_for(store, Any(CARD), Scripted(), timeout_s=1)
        first.close()

    def test_nobody_sees_us_wait_for_what_we_have(self, store: LockDirectory) -> None:
        seen: list[int] = []

        class Watched(LockDirectory):
            @contextmanager
            def gate(self) -> Iterator[LockedDirectory]:
                with super().gate() as gate:
                    yield gate
                    seen.append(len(gate.held()) * 10 + len(gate.tickets()))

        wait_for(Watched(store.directory), Any(CARD), Scripted()).close()

        assert seen == [1, 1, 10]

    def test_the_queue_says_who_waits(self, store: LockDirectory) -> None:
        first = take(store, Any(CARD))
        listed = []

        def look() -> None:
            listed.append(list_claims(store))
            first.close()

        wait_for(store, Any(CARD), Scripted(look), command="train --fast").close()
        (waiter,) = listed[0].queue

        assert (waiter.pid, waiter.command) == (os.getpid(), "train --fast")
        assert waiter.process == "running"


def test_threads_are_callers_like_any_others(store: LockDirectory) -> None:
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


def test_no_directory_is_nobody(tmp_path: Path) -> None:
    found = list_claims(LockDirectory(tmp_path / "claims"))

    assert (found.claims, found.waiting) == ((), 0)
    assert not (tmp_path / "claims").exists()
