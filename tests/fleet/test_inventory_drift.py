"""What differs from the majority of a kind."""

from __future__ import annotations

from gpucheck.fleet.inventory_drift import Described, differences
from gpucheck.fleet.model import JudgementRule

RULE = JudgementRule()


def described(
    *values: str, of: str | None = "H100", field: str = "vbios_version"
) -> list[Described]:
    return [Described(of, f"n{number}", {field: value}) for number, value in enumerate(values)]


def rows(found: list[Described]) -> list[tuple[str, str | None, int, tuple[str, ...]]]:
    return [(one.value, one.majority, one.count, one.hosts) for one in differences(found, RULE)]


def test_equal_ones_give_no_row() -> None:
    assert rows(described("a", "a", "a")) == []


def test_odd_one_is_named_beside_the_majority() -> None:
    assert rows(described("a", "b", "a", "a")) == [("b", "a", 1, ("n1",))]


def test_without_a_majority_every_value_is_a_row() -> None:
    found = rows(described("a", "b", "a", "b"))

    assert found == [("a", None, 2, ("n0", "n2")), ("b", None, 2, ("n1", "n3"))]


def test_of_two_nobody_knows_which_is_right() -> None:
    assert rows(described("a", "b")) == []


def test_kinds_are_not_compared_with_each_other() -> None:
    assert rows([*described("a", "a", "a"), *described("b", "b", "b", of="A100")]) == []


def test_a_host_with_many_gpus_is_named_once() -> None:
    ones = [Described("H100", "n0", {"ecc_mode": "off"})] * 8
    others = [Described("H100", "n1", {"ecc_mode": "on"})] * 24

    assert rows(ones + others) == [("off", "on", 8, ("n0",))]


def test_what_everybody_has_differently_is_no_row() -> None:
    assert rows(described(*(str(number) for number in range(50)))) == []
