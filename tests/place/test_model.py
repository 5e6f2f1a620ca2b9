"""Phrases of the records of `place`."""

from __future__ import annotations

import pytest

from gpucheck.place.model import (
    Candidate,
    Holder,
    ProcessState,
    name_together,
    together,
    who_can_remove,
)


@pytest.mark.parametrize(
    ("holder", "text"),
    [
        (Holder(), "an unknown user"),
        (Holder(user="ann", pid=7), "ann (process 7)"),
        (
            Holder(pid=7, process=ProcessState.RUNNING, command="x y"),
            "an unknown user (x)",
        ),
        (
            Holder(user="ann", pid=7, process=ProcessState.ENDED, command="x"),
            "ann (x, which has ended, but its children run)",
        ),
        (
            Holder(user="ann", pid=7, process=ProcessState.ELSEWHERE),
            "ann (process 7, in another PID namespace)",
        ),
        (Holder(user="ann", pid=7, command="x" * 40), f"ann ({'x' * 40})"),
        (Holder(user="ann", pid=7, command="x" * 41), f"ann ({'x' * 37}...)"),
    ],
)
def test_a_holder_in_a_phrase_of_bounded_length(holder: Holder, text: str) -> None:
    assert holder.described == text


@pytest.mark.parametrize(
    ("found", "text"),
    [
        ([("GPU-a", 3)], "GPU 3"),
        ([("GPU-a", 0), ("GPU-b", 1), ("GPU-c", 2), ("GPU-d", 5)], "GPUs 0-2,5"),
        ([("MIG-a", 1)], "GPU 1 (MIG-a)"),
        ([("GPU-a", None)], "GPU GPU-a"),
        ([("MIG-a", 1), ("GPU-b", 0), ("GPU-c", None)], "GPUs 0, 1 (MIG-a), GPU-c"),
    ],
)
def test_cards_are_named_by_numbers_and_instances_by_their_uuids(
    found: list[tuple[str, int | None]], text: str
) -> None:
    candidates = [
        Candidate(uuid=uuid, index=index, eligible=True, reason="") for uuid, index in found
    ]

    assert name_together(candidates) == text


def test_names_together_are_few() -> None:
    assert together(["a", "b", "c"]) == "a, b, c"
    assert together(["a", "b", "c", "d", "e"]) == "a, b, c and 2 more"


@pytest.mark.parametrize(
    ("user", "text"),
    [
        ("root", "root"),
        ("ann", "its owner, ann, or root"),
        (None, "its owner, an unknown user, or root"),
    ],
)
def test_who_can_remove_a_file_is_named_once(user: str | None, text: str) -> None:
    assert who_can_remove(user) == text
