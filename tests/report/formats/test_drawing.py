"""Blocks as lines of a terminal: what fits, what is never broken, what is escaped."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from gpucheck.report.blocks import (
    Block,
    Column,
    Command,
    Fitting,
    Gap,
    Head,
    Line,
    Row,
    Span,
    Table,
)
from gpucheck.report.envelope import CheckStatus
from gpucheck.report.formats.table import as_text, draw
from gpucheck.report.text import View


def lines(*blocks: Block, width: int = 80, unicode: bool = True, color: bool = False) -> list[str]:
    view = View(width=width, unicode=unicode, color=color)
    return as_text(draw(blocks, view), view).splitlines()


def test_facts_of_the_head_are_broken_between_facts() -> None:
    assert lines(Head(("node7", "driver 580", "8 GPUs")), width=20) == [
        "node7 · driver 580",
        "8 GPUs",
    ]


def test_prose_hangs_below_its_text() -> None:
    assert lines(Line("one two three", mark=CheckStatus.FAIL, indent=2), width=18) == [
        "  ✗ one two three",
    ]
    assert lines(Line("one two three four", lead="1.", indent=2), width=22) == [
        "  1. one two three",
        "     four",
    ]


def test_a_deep_indent_gives_way_on_a_narrow_terminal() -> None:
    assert lines(Line("one two three", indent=30), width=18) == [
        "        one two",
        "        three",
    ]


def test_neither_an_amount_nor_a_command_in_prose_is_broken() -> None:
    text = (Span("See "), Span("gpucheck list --processes", "bold"), Span(" for 12 GiB of it"))

    assert lines(Line(text), width=28) == [
        "See",
        "gpucheck list --processes",
        "for 12 GiB of it",
    ]
    assert lines(Line("it has 12 GiB"), width=10) == ["it has", "12 GiB"]


def test_lines_of_a_table_are_neither_padded_nor_hold_what_is_not_available() -> None:
    table = Table(
        (Column("GPU"), Column("Memory"), Column("Util"), Column("Temp")),
        (Row(("0", (Span("", "red"), Span("  1.0 GiB")), "  5%", "   -")),),
    )

    assert lines(table, width=20)[1:] == ["  Memory 1.0 GiB", "  Util 5%"]


def test_a_command_is_never_broken() -> None:
    command = "sudo apt-get install --reinstall nvidia-driver-580"

    assert lines(Command(command), width=20) == [f"    {command}"]


def test_gaps_neither_begin_nor_end_nor_follow_one_another() -> None:
    assert lines(Gap(), Line("a"), Gap(), Gap(), Line("b"), Gap()) == ["a", "", "b"]


def test_without_unicode_everything_is_ascii() -> None:
    found = lines(Line("5 µs × 2 … 你", mark=CheckStatus.OK), unicode=False)

    assert found == ["ok 5 us x 2 ~ \\u4f60"]


def test_outside_text_controls_no_terminal() -> None:
    assert lines(Line("a\x1b[31mb"), Command("a\nb"), Head(("\x07",))) == [
        "a\\x1b[31mb",
        "    a\\nb",
        "\\x07",
    ]


def test_styles_are_escape_sequences_only_with_colour() -> None:
    block = Line((Span("hot", "red"),))

    assert lines(block) == ["hot"]
    assert lines(block, color=True) == ["\x1b[31mhot\x1b[0m"]


TABLE = Table(
    [Column("Name", least=4), Column("Size", right=True), Column("")],
    [
        Row(["abcdefgh", "1", "x"], below=(Line("hot", CheckStatus.WARN, indent=2),)),
        Row(["b", "12345", ""]),
    ],
    gap=1,
)


@pytest.mark.parametrize(
    ("width", "expected"),
    [
        (80, ["Name      Size", "abcdefgh     1 x", "  ! hot", "b        12345"]),
        (16, ["Name      Size", "abcdefgh     1 x", "  ! hot", "b        12345"]),
        (15, ["Name     Size", "abcdef…     1 x", "  ! hot", "b       12345"]),
        (12, ["Name  Size", "abc…     1 x", "! hot", "b    12345"]),
        (11, ["abcdefgh", "  Size 1", "  x", "! hot", "b", "  Size", "  12345"]),
    ],
)
def test_one_column_gives_way_then_rows_become_lines(width: int, expected: list[str]) -> None:
    assert lines(TABLE, width=width) == expected


def test_the_first_table_that_fits_is_drawn() -> None:
    wide = Table([Column("A"), Column("B")], [Row(["1" * 20, "2"])])
    narrow = Table([Column("A")], [Row(["1" * 20])])

    assert lines(Fitting((wide, narrow)), width=30) == ["A" + " " * 21 + "B", "1" * 20 + "  2"]
    assert lines(Fitting((wide, narrow)), width=20) == ["A", "1" * 20]
    assert lines(Fitting((wide, narrow)), width=19) == ["1" * 19, "1"]


def test_a_table_without_header() -> None:
    assert lines(TABLE._replace(header=False, rows=[Row(["a", "1", ""])])) == ["a 1"]


TEXT = st.text(st.characters(categories=["L", "N", "Z", "C", "P"]), max_size=40)
BLOCKS = st.one_of(
    st.builds(Head, st.lists(TEXT, max_size=4).map(tuple)),
    st.builds(Line, TEXT, st.none() | st.sampled_from(CheckStatus), st.just(""), st.integers(0, 8)),
    st.builds(
        lambda cells: Table([Column("Name", least=4), Column("N", right=True)], cells),
        st.lists(st.builds(Row, st.tuples(TEXT, TEXT), st.just(""), st.just(())), max_size=3),
    ),
)


@given(blocks=st.lists(BLOCKS, max_size=4), width=st.integers(20, 100), unicode=st.booleans())
def test_no_line_is_wider_than_the_view_and_no_letter_is_lost(
    blocks: list[Block], width: int, unicode: bool
) -> None:
    found = lines(*blocks, width=width, unicode=unicode)

    assert all(cell_len(line) <= width for line in found)
    assert all(line.isprintable() for line in found)
    if not unicode:
        assert all(line.isascii() for line in found)
    letters = {char for block in blocks if isinstance(block, Line) for char in block.text}
    if unicode:
        assert {char for char in letters if char.isalnum()} <= set("".join(found))
