"""Tables that fit or are not drawn."""

from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from rich.console import Console
from rich.text import Text

from gpucheck.report.grid import Heading, Row, excess, grid, said_once

HEADINGS = (Heading("Name", least=4), Heading("Size", right=True))


def rows(*cells: tuple[str, str]) -> list[Row]:
    return [Row([Text(text) for text in row]) for row in cells]


def drawn(found: list[Row], width: int, gap: int = 1) -> list[str] | None:
    table = grid(HEADINGS, found, width=width, gap=gap)
    if table is None:
        return None
    console = Console(width=200)
    with console.capture() as captured:
        console.print(table)
    return [line.rstrip() for line in captured.get().splitlines()]


SOME = rows(("abcdefgh", "1"), ("b", "12345"))


@pytest.mark.parametrize(
    ("width", "expected"),
    [
        (80, ["Name      Size", "abcdefgh     1", "b        12345"]),
        (14, ["Name      Size", "abcdefgh     1", "b        12345"]),
        (13, ["Name     Size", "abcdef…     1", "b       12345"]),
        (10, ["Name  Size", "abc…     1", "b    12345"]),
        (9, None),
    ],
)
def test_one_column_gives_way(width: int, expected: list[str] | None) -> None:
    assert drawn(SOME, width) == expected


def test_without_rows_the_headings_count() -> None:
    assert drawn([], 9) == ["Name Size"]
    assert drawn([], 8) is None


def test_a_wider_gap() -> None:
    assert drawn(SOME, 15, gap=2) == ["Name       Size", "abcdefgh      1", "b         12345"]


def test_excess() -> None:
    assert excess(HEADINGS, SOME, width=10, gap=1) == 4
    assert excess(HEADINGS, SOME, width=20, gap=1) == -6


CELLS = st.text(st.characters(categories=["L", "N"]), max_size=30)


@given(
    cells=st.lists(st.tuples(CELLS, CELLS), max_size=4),
    width=st.integers(1, 60),
    gap=st.integers(1, 2),
)
def test_what_is_drawn_fits_and_keeps_its_numbers(
    cells: list[tuple[str, str]], width: int, gap: int
) -> None:
    shown = drawn(rows(*cells), width, gap)

    assume(shown is not None)
    assert all(Text(line).cell_len <= width for line in shown)
    assert len(shown) == len(cells) + 1
    assert all(row[1] in line for row, line in zip(cells, shown[1:], strict=True))


def test_reasons_are_said_once() -> None:
    assert said_once([("a", 0), ("b", 1), ("a", 2)]) == [("a", "GPUs 0, 2"), ("b", "GPU 1")]
