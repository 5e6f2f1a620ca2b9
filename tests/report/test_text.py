"""Text from outside is shown, never obeyed; amounts, durations and rates as people read them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucheck.report.text import (
    View,
    binary_bytes,
    duration,
    exports,
    format_gib,
    gibibytes,
    printable,
    protect_blanks,
    ranges,
    rate,
    restore_blanks,
    step_on_recording,
    two_digits,
)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("plain text, \u00e9\u4e2d\U0001f600", "plain text, \u00e9\u4e2d\U0001f600"),
        ("\x1b[31m", "\\x1b[31m"),
        ("a\nb\tc\rd", "a\\nb\\tc\\rd"),
        ("\x00\x7f\x9b", "\\x00\\x7f\\x9b"),
        ("\u202e\u2028\u200b\ufeff", "\\u202e\\u2028\\u200b\\ufeff"),
        ("\ud800", "\\ud800"),
        # Accents are letters; a pile of them would cover the lines around.
        ("\u05e9\u05c1\u05b0\u0591 e\u0301", "\u05e9\u05c1\u05b0\u0591 e\u0301"),
        ("Z" + "\u0489" * 6, "Z" + "\u0489" * 4 + "\\u0489" * 2),
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


@given(st.text(st.characters()), st.integers(1, 20))
def test_without_unicode_it_is_ascii_and_no_longer_text_is_escaped(text: str, most: int) -> None:
    shown = printable(text, most, unicode=False)

    assert shown.isascii()
    assert shown.isprintable()
    assert len(text) <= most or shown == printable(f"{text[: most - 1]}…", unicode=False)


@given(st.text(st.characters(exclude_categories=["M"])).filter(str.isprintable))
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


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0 B"),
        (1, "1 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (1024**2 - 1, "1.0 MiB"),
        (1024**2 - 100 * 1024, "924.0 KiB"),
        (85899345920, "80.0 GiB"),
        (1024**4, "1.0 TiB"),
        (1024**5 * 5000, "5000.0 PiB"),
        (-2048, "-2.0 KiB"),
    ],
)
def test_binary_bytes(value: int, text: str) -> None:
    assert binary_bytes(value) == text


def test_amounts_in_gib_stay_in_gib() -> None:
    assert [format_gib(value) for value in (0, 2**28, 80 * 2**30, 2**40)] == [
        "0.0 GiB", "0.2 GiB", "80.0 GiB", "1024.0 GiB",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("scale", "prefix"), [(1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, "")]
)
def test_a_prefix_begins_at_its_thousand(scale: float, prefix: str) -> None:
    assert rate(scale, "B/s") == f"1.00 {prefix}B/s"
    assert rate(9.99 * scale, "B/s") == f"9.99 {prefix}B/s"
    assert rate(99.96 * scale, "B/s") == f"100 {prefix}B/s"


def test_digits() -> None:
    assert binary_bytes(1536, digits=0) == "2 KiB"
    assert binary_bytes(1536, digits=3) == "1.500 KiB"
    assert binary_bytes(1024**3 - 1, digits=0) == "1 GiB"


@given(st.integers(-(2**80), 2**80), st.integers(0, 3))
def test_no_unit_is_overrun(value: int, digits: int) -> None:
    number, unit = binary_bytes(value, digits=digits).split()

    assert unit == "PiB" or abs(float(number)) < 1024


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0.0"),
        (1024**3, "1.0"),
        (85899345920, "80.0"),
        (int(999.94 * 1024**3), "999.9"),
        (int(999.96 * 1024**3), "1000"),
        (1024**3 * 1024, "1024"),
    ],
)
def test_gibibytes(value: int, text: str) -> None:
    assert gibibytes(value) == text


@given(st.integers(0, 99999 * 1024**3))
def test_gibibytes_take_five_places(value: int) -> None:
    assert len(gibibytes(value)) <= 5


@pytest.mark.parametrize(
    ("numbers", "text"),
    [((), ""), ((3,), "3"), ((0, 1), "0-1"), ((5, 2, 1, 0), "0-2,5"), ((0, 2, 4), "0,2,4")],
)
def test_neighbours_are_one_range(numbers: tuple[int, ...], text: str) -> None:
    assert ranges(numbers) == text


@given(st.sets(st.integers(min_value=0, max_value=200)))
def test_nothing_is_lost_and_nothing_added(numbers: set[int]) -> None:
    found: set[int] = set()
    for part in filter(None, ranges(numbers).split(",")):
        first, _, last = part.partition("-")
        found |= set(range(int(first), int(last or first) + 1))

    assert found == numbers


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (12.345, "12.3 s"),
        (0.99999, "1.00 s"),
        (0.0083, "8.30 ms"),
        (1.5e-6, "1.50 µs"),
        (3e-10, "0.30 ns"),
        (0.0, "0.00 ns"),
    ],
)
def test_duration(seconds: float, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (2.067e11, "207 GFLOP/s"),
        (9.996e11, "1.00 TFLOP/s"),
        (0.9995e3, "1.00 kFLOP/s"),
        (99.95, "100 FLOP/s"),
        (12.0, "12.0 FLOP/s"),
        (0.5, "0.50 FLOP/s"),
    ],
)
def test_rate(value: float, text: str) -> None:
    assert rate(value, "FLOP/s") == text


def test_images_are_short() -> None:
    assert rate(5400.0, "image/s") == "5.40 kimg/s"


def test_exports_are_one_line_each() -> None:
    assert exports({"A": "1", "B": "x y"}) == "export A=1\nexport B='x y'\n"


@pytest.mark.parametrize(
    ("factor", "text"), [(1.84, "1.8"), (9.94, "9.9"), (9.96, "10"), (18.4, "18"), (184.2, "180")]
)
def test_two_digits(factor: float, text: str) -> None:
    assert two_digits(factor) == text


@pytest.mark.parametrize(
    ("step", "recorded"),
    [
        ("Run: gpucheck detect", "Run: gpucheck detect --from 'my file'"),
        ("See gpucheck list --processes.", "See gpucheck list --processes --from 'my file'."),
        ("gpucheck place --count 2 -- CMD", "gpucheck place --count 2 -- CMD"),
        ("gpucheck detect --from x", "gpucheck detect --from x"),
        ("gpucheck detect --explain nvml", "gpucheck detect --explain nvml"),
        ("gpucheck detect says why", "gpucheck detect says why"),
        ("see gpucheck list, then reboot", "see gpucheck list, then reboot"),
        ("gpucheck bench --quick", "gpucheck bench --quick"),
    ],
)
def test_a_command_answers_from_the_same_recording(step: str, recorded: str) -> None:
    assert step_on_recording(step, "my file") == recorded
    assert step_on_recording(step, None) == step


@pytest.mark.parametrize(
    ("text", "whole"),
    [
        ("see gpucheck detect --from my.json now", "gpucheck detect --from my.json"),
        ("see gpucheck list --from 'my file.json'", "gpucheck list --from 'my file.json'"),
        ("see gpucheck bench --quick --save a.json", "gpucheck bench --quick --save a.json"),
        ("allow it by --allow-difference driver", "--allow-difference driver"),
        ("it takes 8.0 GiB of it", "0 GiB"),
        ("it is card nvidia-smi 2 here", "nvidia-smi 2"),
        ("the limit holds on GPUs 0-2,5 here", "GPUs 0-2,5"),
        ("gpucheck lists what there is", ""),
    ],
)
def test_commands_and_amounts_are_protect_blanks(text: str, whole: str) -> None:
    held = protect_blanks(text, 40)

    assert restore_blanks(held) == text
    assert whole.replace(" ", "\ue000") in held
    assert held.count("\ue000") == whole.count(" ")


def test_what_is_wider_than_the_line_may_be_broken() -> None:
    assert protect_blanks("see gpucheck detect --from my.json", 20) == (
        "see gpucheck detect --from my.json"
    )
