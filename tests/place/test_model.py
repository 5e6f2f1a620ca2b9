"""Phrases of the records of `place`."""

from __future__ import annotations

import pytest

from gpucheck.place.model import Candidate, Holder, ProcessState, name_together


@pytest.mark.parametrize(
    ("holder", "text"),
    [
        (Holder(), "an unknown user"),
        (Holder(user="ann", pid=7), "ann (pid 7)"),
        (Holder(pid=7, process=ProcessState.RUNNING), "an unknown user (pid 7)"),
        (
            Holder(user="ann", pid=7, process=ProcessState.ENDED, command="x"),
            "ann (pid 7, which has ended, but its children run: x)",
        ),
        (
            Holder(user="ann", pid=7, process=ProcessState.ELSEWHERE),
            "ann (pid 7 in another PID namespace)",
        ),
        (Holder(user="ann", pid=7, command="x" * 60), f"ann (pid 7: {'x' * 60})"),
        (Holder(user="ann", pid=7, command="x" * 61), f"ann (pid 7: {'x' * 57}...)"),
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
