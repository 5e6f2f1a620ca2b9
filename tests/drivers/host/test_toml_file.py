"""Where things stand in a TOML file; what graphs and profiles share."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucheck.drivers.host.toml_file import Source, find_lines, parse_toml, read_text
from gpucheck.report.errors import WrongUseError

TEXT = """\
top = 1
[a]
x = 1
[a.b]
y = 2
[[list]]
z = 1
[list.inner]
w = 1
[[list]]
z = 2
text = '''
[not.a.table]
'''
"""


def test_tables_lists_and_keys_have_their_lines() -> None:
    lines = find_lines(TEXT)

    assert lines["top", ""] == 1
    assert lines["a", "x"] == 3
    assert lines["a.b", "y"] == 5
    assert lines["list[0]", "z"] == 7
    assert lines["list[0].inner", "w"] == 9
    assert lines["list[1]", ""] == 10
    assert lines["list[1]", "z"] == 11
    assert ("not.a.table", "") not in lines


@pytest.mark.parametrize(
    ("table", "key", "line"),
    [("a", "x", 3), ("a", "missing", 2), ("", "top", 1), ("", "list", 6), ("a.q", "r", 2),
     ("nothing", "", None)],
)  # fmt: skip
def test_what_is_not_written_is_shown_at_what_holds_it(
    table: str, key: str, line: int | None
) -> None:
    assert Source(path="f", lines=find_lines(TEXT), noun="profile").line_of(table, key) == line


@pytest.mark.parametrize(
    "text",
    [
        "a" + ".a" * 500_000 + " = 1",
        "[" + "a." * 500_000 + "a]",
        "x = [{ " + "'a' . " * 100 + "a = 1 }]",
        "ok = 1\n" + '"a".' * 60 + "b = 1",
    ],
)
def test_a_name_of_too_many_parts_is_refused(text: str) -> None:
    # The parser of the standard library would need minutes, and gigabytes.
    with pytest.raises(WrongUseError, match=r"^f:[12]: a name has more than 50 parts\.$"):
        parse_toml(text, "f", "profile")


def test_many_numbers_and_long_texts_are_no_names() -> None:
    text = f"x = [{', '.join(['1.5'] * 1000)}]\ny = '{'-' * 100_000}'\nz = 1"

    assert parse_toml(text, "f", "profile")[0].keys() == {"x", "y", "z"}
    assert find_lines(text)["z", ""] == 3


def test_quotes_in_comments_open_nothing() -> None:
    # Nor do they cost time by the square of their number.
    text = 'a = [ # "' + '\\"' * 200_000 + "\n]\nb = 'x' # [\nc = 1"

    assert find_lines(text)["c", ""] == 4


@given(
    st.lists(
        st.sampled_from(["[a]", "[[l]]", "[a.b]", "k = 1", "# c", "", "v = [\n1,\n]"]), max_size=8
    )
)
def test_any_file_has_lines_within_it(parts: list[str]) -> None:
    text = "\n".join(parts)

    lines = find_lines(text)

    assert all(1 <= line <= text.count("\n") + 1 for line in lines.values())


@pytest.mark.parametrize("text", ["a = ", "a = 1\na = 2\n", "[" * 100_000, 'x = "\ud800"'])
def test_what_is_no_toml_is_the_callers_kind_of_error(text: str) -> None:
    with pytest.raises(WrongUseError, match=r"^f") as caught:
        parse_toml(text, "f", "profile")

    assert caught.value.code == "bad-profile"


def test_toml_is_returned_as_it_is() -> None:
    assert parse_toml(TEXT, "f", "profile")[0] == tomllib.loads(TEXT)


@pytest.mark.parametrize("content", [b"\xff\n", b"x" * (1 << 21)])
def test_what_cannot_be_text_is_refused(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "f.toml"
    path.write_bytes(content)

    with pytest.raises(WrongUseError, match=r"f\.toml.* cannot be read") as caught:
        read_text(path, "graph")

    assert caught.value.code == "graph-unreadable"
