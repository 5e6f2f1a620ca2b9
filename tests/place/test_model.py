"""Phrases of the records of `place`."""

from __future__ import annotations

import pytest

from gpucheck.place.model import Holder


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
