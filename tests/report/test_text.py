"""Text from outside is shown, never obeyed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucheck.report.text import View, printable


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("plain text, \u00e9\u4e2d\U0001f600", "plain text, \u00e9\u4e2d\U0001f600"),
        ("\x1b[31m", "\\x1b[31m"),
        ("a\nb\tc\rd", "a\\nb\\tc\\rd"),
        ("\x00\x7f\x9b", "\\x00\\x7f\\x9b"),
        ("\u202e\u2028\u200b\ufeff", "\\u202e\\u2028\\u200b\\ufeff"),
        ("\ud800", "\\ud800"),
        ("C:\\new", "C:\\new"),
        ("", ""),
    ],
)
def test_printable(before: str, after: str) -> None:
    assert printable(before) == after


@given(st.text(st.characters()))
def test_nothing_unprintable_remains(text: str) -> None:
    shown = printable(text)

    assert shown.isprintable()
    assert printable(shown) == shown


@given(st.text().filter(str.isprintable))
def test_what_is_printable_stays(text: str) -> None:
    assert printable(text) == text


def test_a_view_is_plain_by_default() -> None:
    assert View() == View(
        width=80,
        color=False,
        unicode=True,
        verbosity=0,
        columns=None,
        processes=False,
        header=True,
    )
