"""Argument types of the Python API: a wrong type is wrong use."""

from __future__ import annotations

from gpucheck.report.errors import WrongUseError


def check_argument(name: str, value: object, wants: str, *kinds: type) -> None:
    """Refuse a value that has none of these types; a bool is no number.

    Raises:
        WrongUseError: says which types it takes.
    """
    if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
        shown = ascii(value)
        shown = shown if len(shown) <= 60 else f"{shown[:57]}..."
        raise WrongUseError(code="usage", message=f"{name} takes {wants}, not {shown}.")
