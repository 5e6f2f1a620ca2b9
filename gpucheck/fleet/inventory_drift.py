"""Inventory drift: nodes and GPUs that are not set up as most of their kind.

A kind is the GPUs of one model, or the nodes with GPUs of one model. What most of a kind have is
right by assumption; where no value has a majority, each value is a row and nobody is accused.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from gpucheck.fleet.model import Difference, JudgementRule

#: A majority needs so many of a kind; of two that differ nobody knows which is right.
LEAST_OF_A_KIND = 3
#: So many values of a fact are rows; a fact that everybody has differently is none to compare.
MOST_VALUES = 20


class Described(NamedTuple):
    """A node or a GPU with what it is of, whose it is, and the facts about it."""

    of: str | None
    host: str
    facts: Mapping[str, str]


def differences(described: Iterable[Described], rule: JudgementRule) -> Iterator[Difference]:
    """Yield what differs from the majority, by kind and fact."""
    hosts: dict[tuple[str, str | None], dict[str, dict[str, int]]] = {}
    for one in described:
        for name, value in one.facts.items():
            of_value = hosts.setdefault((name, one.of), {}).setdefault(value, {})
            of_value[one.host] = of_value.get(one.host, 0) + 1
    for (name, of), values in sorted(hosts.items(), key=lambda item: (item[0][1] or "", item[0])):
        counts = {value: sum(found.values()) for value, found in values.items()}
        total = sum(counts.values())
        if len(counts) < 2 or len(counts) > MOST_VALUES or total < LEAST_OF_A_KIND:
            continue
        ordered = sorted(counts, key=lambda value: (-counts[value], value))
        first = ordered[0]
        agreed = first if counts[first] >= rule.majority_share * total else None
        for value in ordered:
            if value == agreed:
                continue
            yield Difference(
                field=name,
                of=of,
                value=value,
                majority=agreed,
                count=counts[value],
                majority_count=counts[first] if agreed is not None else 0,
                total=total,
                hosts=tuple(sorted(values[value])),
            )
