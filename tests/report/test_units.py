"""Amounts: what is accepted means exactly one thing, and everything else is refused in words."""

from __future__ import annotations

import contextlib
import string
from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucheck.report.errors import WrongUseError
from gpucheck.report.units import BYTES_PER_UNIT, LONGEST_TEXT, Amount, parse_amount

GIB = 1024**3


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [
        ("8GiB", 8 * GIB),
        ("8G", 8 * GIB),
        ("8g", 8 * GIB),
        ("8gib", 8 * GIB),
        ("8 GiB", 8 * GIB),
        ("8192MiB", 8 * GIB),
        ("8GB", 8 * 10**9),
        ("8gb", 8 * 10**9),
        ("512M", 512 * 1024**2),
        ("512MB", 512 * 10**6),
        ("1T", 1024**4),
        ("1TB", 10**12),
        ("4K", 4096),
        ("4KB", 4000),
        ("1.5GiB", 3 * GIB // 2),
        (".5GiB", GIB // 2),
        ("0.3MiB", 314572),
        ("1B", 1),
        ("  2KiB  ", 2048),
    ],
)
def test_bytes_with_a_unit(text: str, size_bytes: int) -> None:
    amount = parse_amount(text)

    assert amount.size_bytes == size_bytes
    assert amount.share is None
    assert amount.bytes_of(10) == size_bytes


@pytest.mark.parametrize(
    ("text", "share"),
    [
        ("30%", Fraction(3, 10)),
        ("30 %", Fraction(3, 10)),
        ("0.3", Fraction(3, 10)),
        (".3", Fraction(3, 10)),
        ("0.30", Fraction(3, 10)),
        ("100%", Fraction(1)),
        ("100.0%", Fraction(1)),
        ("0.999999999999999999999", 1 - Fraction(1, 10**21)),
        ("0.3%", Fraction(3, 1000)),
        ("33.3%", Fraction(333, 1000)),
    ],
)
def test_shares_are_exact(text: str, share: Fraction) -> None:
    amount = parse_amount(text)

    assert amount.share == share
    assert amount.size_bytes is None


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "empty"),
        ("   ", "empty"),
        ("1", "1 what? Write 100%, 1% or 1GiB."),
        ("1.0", "Write 100%, 1% or 1GiB."),
        ("30", "30 what? Write 30%, 0.3 or 30GiB."),
        ("1.5", "1.5 what? Write 1.5%, 0.015 or 1.5GiB."),
        ("100", "100 what? Write 100% or 100GiB."),
        ("101", "101 what? Write 101MiB"),
        ("8192", "8192 what? Write 8192MiB"),
        ("1048575", "Write 1048575MiB"),
        ("1048576", "Write 1048576B for bytes"),
        ("9" * LONGEST_TEXT, "B for bytes"),
        ("8589934592", "Write 8589934592B for bytes"),
        ("0", "no memory at all"),
        ("0%", "read it as no limit"),
        ("0.000", "no memory at all"),
        ("0GiB", "no memory at all"),
        ("-1", "negative"),
        ("-30%", "negative"),
        ("-0.3", "negative"),
        ("nan", "not a finite amount"),
        ("NaN%", "not a finite amount"),
        ("inf", "not a finite amount"),
        ("-Infinity", "not a finite amount"),
        ("130%", "more than the whole card"),
        ("100.0001%", "more than the whole card"),
        ("0,3", "a comma"),
        ("1,5GiB", "a comma"),
        ("8X", "'X' in '8X' is not a unit"),
        ("8Gbit", "'Gbit' in '8Gbit' is not a unit"),
        ("8PiB", "is not a unit"),
        ("0.0001B", "less than one byte"),
        ("3e-1", "is not an amount"),
        ("0x10", "is not an amount"),
        ("1_000MiB", "is not an amount"),
        ("+30%", "is not an amount"),
        ("8GiB\n", "is not an amount"),
        ("half", "is not an amount"),
        ("%", "is not an amount"),
        ("GiB", "is not an amount"),
        ("8\u212a", "is not an amount"),  # the Kelvin sign, whose lower case is a plain k
        ("\u0668GiB", "is not an amount"),  # Arabic-Indic eight
        ("8\x1b[31m", "is not an amount"),
        ("9" * (LONGEST_TEXT + 1), "longer than 64 characters"),
        ("1/3", "is not an amount"),
    ],
)
def test_everything_else_is_refused_in_one_line(text: str, said: str) -> None:
    with pytest.raises(WrongUseError) as caught:
        parse_amount(text)

    assert said in caught.value.message
    assert caught.value.exit_code == 2
    assert caught.value.code == "bad-amount"
    assert caught.value.message.isprintable()


def test_a_refusal_suggests_what_is_accepted() -> None:
    for text in ("1", "30", "1.5", "8192", "8589934592", "100"):
        with pytest.raises(WrongUseError) as caught:
            parse_amount(text)
        words = caught.value.message.split("rite ")[1].replace(",", " ").rstrip(".").split()
        suggested = [word for word in words if word[0].isdigit()]
        assert suggested
        for suggestion in suggested:
            parse_amount(suggestion)


def test_a_share_is_rounded_down_to_bytes() -> None:
    assert parse_amount("30%").bytes_of(85520809984) == 25656242995
    assert parse_amount("100%").bytes_of(85520809984) == 85520809984
    assert parse_amount("0.1").bytes_of(9) == 0


@given(st.text())
def test_any_text_is_an_amount_or_wrong_use(text: str) -> None:
    with contextlib.suppress(WrongUseError):
        amount = parse_amount(text)
        assert (amount.share is None) != (amount.size_bytes is None)


@given(st.text(alphabet=string.digits + ".%kKmMgGtTiIbB -+e,", max_size=12))
def test_nearly_amounts_are_amounts_or_wrong_use(text: str) -> None:
    with contextlib.suppress(WrongUseError):
        amount = parse_amount(text)
        assert amount.share is None or 0 < amount.share <= 1
        assert amount.size_bytes is None or amount.size_bytes > 0


@given(st.integers(min_value=1, max_value=10**12), st.sampled_from(sorted(BYTES_PER_UNIT)))
def test_a_whole_number_with_a_unit_is_that_many_units(count: int, unit: str) -> None:
    assert parse_amount(f"{count}{unit}").size_bytes == count * BYTES_PER_UNIT[unit]
    assert parse_amount(f"{count} {unit.upper()}").size_bytes == count * BYTES_PER_UNIT[unit]


@given(st.integers(min_value=1, max_value=10**15))
def test_a_size_written_in_bytes_comes_back(size_bytes: int) -> None:
    assert parse_amount(f"{size_bytes}B") == Amount(text=f"{size_bytes}B", size_bytes=size_bytes)


@given(st.integers(min_value=1, max_value=10**6 - 1), st.integers(0, 2**45))
def test_a_fraction_and_its_percentage_are_the_same_share(millionths: int, total: int) -> None:
    fraction = parse_amount(f"0.{millionths:06d}")
    percent = parse_amount(f"{millionths // 10**4}.{millionths % 10**4:04d}%")

    assert fraction.share == percent.share == Fraction(millionths, 10**6)
    assert fraction.bytes_of(total) == percent.bytes_of(total) == millionths * total // 10**6


@given(st.decimals(min_value="0.0001", max_value="0.9999", places=4))
def test_a_bare_number_below_one_is_a_share_and_never_a_size(value: Decimal) -> None:
    amount = parse_amount(str(value))

    assert (amount.share, amount.size_bytes) == (Fraction(value), None)


@given(st.integers(min_value=1, max_value=10**15))
def test_a_bare_integer_is_never_guessed(number: int) -> None:
    with pytest.raises(WrongUseError):
        parse_amount(str(number))


@given(st.integers(min_value=1, max_value=10**6), st.sampled_from("KMGT"))
def test_powers_of_1024_and_of_1000_are_told_apart(number: int, letter: str) -> None:
    binary, short, decimal = (
        parse_amount(f"{number}{letter}{rest}").size_bytes for rest in ("iB", "", "B")
    )

    assert binary == short
    assert binary is not None
    assert decimal is not None
    assert binary > decimal


@given(st.integers(min_value=1, max_value=10**6), st.sampled_from(sorted(BYTES_PER_UNIT)))
def test_case_and_a_blank_before_the_unit_mean_nothing(number: int, unit: str) -> None:
    plain = parse_amount(f"{number}{unit}")

    for text in (f"{number}{unit.upper()}", f"{number} {unit}", f" {number}{unit.title()} "):
        assert parse_amount(text).size_bytes == plain.size_bytes


@given(st.text(alphabet=string.digits + ".%kKmMgGtTiIbB ", max_size=12), st.integers(0, 2**45))
def test_what_an_amount_remembers_is_read_the_same_again(text: str, total: int) -> None:
    try:
        amount = parse_amount(text)
    except WrongUseError:
        return

    assert parse_amount(amount.text) == amount
    assert amount.share is None or 0 <= amount.bytes_of(total) <= total
