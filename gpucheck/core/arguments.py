"""Arguments of the Python API: what is of another kind than a function takes is wrong use."""

from __future__ import annotations

from gpucheck.models.errors import WrongUseError


def check_argument(name: str, value: object, wants: str, *kinds: type) -> None:
    """Refuse a value that is of none of these kinds; a bool is no number.

    Raises:
        WrongUseError: with what it takes.
    """
    if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
        shown = ascii(value)
        shown = shown if len(shown) <= 60 else f"{shown[:57]}..."
        raise WrongUseError(code="usage", message=f"{name} takes {wants}, not {shown}.")
