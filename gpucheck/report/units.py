"""Amounts of memory as people write them: a share of a card, or bytes with a unit."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction

from gpucheck.report.errors import WrongUseError

#: Bytes per unit, by the unit in lower case: a lone letter and KiB are powers of 1024, KB of 1000.
BYTES_PER_UNIT = {
    "b": 1,
    **{letter: 1024**power for power, letter in enumerate("kmgt", start=1)},
    **{f"{letter}ib": 1024**power for power, letter in enumerate("kmgt", start=1)},
    **{f"{letter}b": 1000**power for power, letter in enumerate("kmgt", start=1)},
}

EXAMPLES = "write a share such as 30% or 0.3, or bytes with a unit such as 8GiB"

#: No amount is longer. Longer text is refused first: arithmetic on it would be expensive.
LONGEST_TEXT = 64

_NUMBER_AND_UNIT = re.compile(r"([0-9]+(?:\.[0-9]+)?|\.[0-9]+)[ ]*(%|[A-Za-z]*)")
_NOT_FINITE = re.compile(r"[+-]?(nan|inf|infinity)\b.*", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Amount:
    """An amount of memory: exactly one of `share` (above 0, at most 1) and `size_bytes` is set."""

    text: str
    share: Fraction | None = None
    size_bytes: int | None = None

    def bytes_of(self, total_bytes: int) -> int:
        """Return the bytes this amount means on a card of `total_bytes`, rounded down.

        A size in bytes is returned unchanged, even if the card is smaller: the caller decides
        whether it fits.
        """
        if self.size_bytes is not None:
            return self.size_bytes
        return int((self.share or 0) * total_bytes)


def parse_amount(text: str) -> Amount:
    """Parse `30%`, `0.3`, `8GiB`, `8GB`, `8192MiB` or `512M`, in any case.

    Raises:
        WrongUseError: for everything else; it suggests what to write.
    """
    cleaned = text.strip(" ")
    if not cleaned:
        raise _refusal(fact="The amount is empty", remedy=EXAMPLES)
    if len(cleaned) > LONGEST_TEXT:
        raise _refusal(fact=f"The amount is longer than {LONGEST_TEXT} characters", remedy=EXAMPLES)
    match = _NUMBER_AND_UNIT.fullmatch(cleaned)
    if match is None:
        raise _refusal_of_form(cleaned)
    number, unit = match.groups()
    value = Fraction(number)
    if value == 0:
        raise _refusal(
            fact=f"{cleaned} leaves no memory at all, and some libraries read it as no limit",
            remedy="write a share above 0 such as 30%, or bytes such as 8GiB",
        )
    match unit:
        case "%":
            if value > 100:
                raise _refusal(
                    fact=f"{cleaned} is more than the whole card", remedy="write at most 100%"
                )
            return Amount(text=cleaned, share=value / 100)
        case "":
            return _fraction(cleaned, number, value)
        case _:
            return _size(cleaned, value, unit)


def _fraction(text: str, number: str, value: Fraction) -> Amount:
    """Accept a bare number strictly between 0 and 1: any other needs a unit."""
    if value < 1:
        return Amount(text=text, share=value)
    if value == 1:
        raise _refusal(fact=f"{text} what?", remedy="write 100%, 1% or 1GiB")
    if value <= 100:
        hundredth = f", {_plain(value / 100)}" if value < 100 else ""
        raise _refusal(fact=f"{text} what?", remedy=f"write {number}%{hundredth} or {number}GiB")
    if value < 1024**2:
        raise _refusal(fact=f"{text} what?", remedy=f"write {number}MiB, or a share such as 30%")
    raise _refusal(
        fact=f"{text} what?", remedy=f"write {number}B for bytes, or a share such as 30%"
    )


def _size(text: str, value: Fraction, unit: str) -> Amount:
    factor = BYTES_PER_UNIT.get(unit.lower())
    if factor is None:
        raise _refusal(
            fact=f"'{unit}' in {text!r} is not a unit of memory",
            remedy="use %, K to T or KiB to TiB (powers of 1024), or KB to TB (of 1000)",
        )
    size_bytes = int(value * factor)
    if size_bytes == 0:
        raise _refusal(fact=f"{text} is less than one byte", remedy=EXAMPLES)
    return Amount(text=text, size_bytes=size_bytes)


def _refusal_of_form(text: str) -> WrongUseError:
    """Return the error for text that is not a number with an optional unit."""
    lowered = text.lower()
    if _NOT_FINITE.fullmatch(lowered):
        return _refusal(fact=f"{text!r} is not a finite amount", remedy=EXAMPLES)
    if lowered.startswith("-"):
        return _refusal(fact=f"{text!r} is negative, and a limit is above 0", remedy=EXAMPLES)
    if "," in text:
        return _refusal(fact=f"{text!r} has a comma where decimals take a point", remedy=EXAMPLES)
    return _refusal(fact=f"{text!r} is not an amount of memory", remedy=EXAMPLES)


def _refusal(*, fact: str, remedy: str) -> WrongUseError:
    joint = " " if fact.endswith("?") else "; "
    lead = remedy[0].upper() if joint == " " else remedy[0]
    return WrongUseError(code="bad-amount", message=f"{fact}{joint}{lead}{remedy[1:]}.")


def _plain(value: Fraction) -> str:
    """Write a fraction with a finite decimal expansion without an exponent."""
    return f"{float(value):f}".rstrip("0").rstrip(".")
