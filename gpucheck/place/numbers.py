"""Short names for several devices: neighbouring numbers as ranges."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gpucheck.place.model import Candidate


def ranges(numbers: Iterable[int]) -> str:
    """Return numbers as ranges: 0, 1, 2, 5 -> "0-2,5"."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ",".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)


def name_together(candidates: Sequence[Candidate]) -> str:
    """Return the numbers of cards; instances have none, so their UUIDs are added."""
    cards: list[int] = []
    others: list[str] = []
    for item in candidates:
        if item.index is not None and not item.uuid.startswith("MIG-"):
            cards.append(item.index)
        else:
            others.append(item.uuid if item.index is None else f"{item.index} ({item.uuid})")
    names = ([ranges(cards)] if cards else []) + others
    return f"GPU{'s' if len(candidates) > 1 else ''} {', '.join(names)}"
