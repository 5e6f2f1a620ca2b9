"""Lists of hosts in Slurm's notation, written out and folded: `a[01-16,20]`, `r[1-2]n[1-8]`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from gpucheck.report.errors import WrongUseError
from gpucheck.report.text import printable

#: More hosts than the largest fleets have; a slip such as a[1-999999999] ends here.
MOST_HOSTS = 200_000
_RANGE = re.compile(r"([0-9]{1,18})(?:-([0-9]{1,18}))?")
_HOST = re.compile(r"[A-Za-z0-9_.:-]{1,253}")
_NUMBERED = re.compile(r"(.*?)([0-9]{1,18})([^0-9]*)")


def expand(text: str) -> tuple[str, ...]:
    """Return the hosts of a list, in its order, each once.

    Raises:
        WrongUseError: it is malformed, or names more hosts than there can be.
    """
    found: dict[str, None] = {}
    for part in _parts(text):
        for host in _hosts(part, text):
            if _HOST.fullmatch(host) is None:
                raise _bad(text, f"{printable(host[:60])!r} is no name of a host")
            found[host] = None
            if len(found) > MOST_HOSTS:
                raise _too_many(text)
    return tuple(found)


def _parts(text: str) -> Iterator[str]:
    """Yield what commas outside of brackets separate."""
    depth, start = 0, 0
    for place, char in enumerate(text):
        if char == "[":
            depth += 1
        elif char == "]":
            depth -= 1
        elif char == "," and depth == 0:
            yield text[start:place].strip()
            start = place + 1
        if not 0 <= depth <= 1:
            raise _bad(text, "its brackets do not match")
    if depth:
        raise _bad(text, "its brackets do not match")
    yield text[start:].strip()


def _hosts(part: str, text: str) -> Iterator[str]:
    """Yield the hosts of one part: every combination of its brackets, the last changing first."""
    import itertools

    if not part:
        return
    pieces = re.split(r"\[([^]]*)\]", part)
    choices: list[Sequence[str]] = []
    total = 1
    for number, piece in enumerate(pieces):
        count, choice = _numbers(piece, text) if number % 2 else (1, [piece])
        total *= count
        if total > MOST_HOSTS:
            raise _too_many(text)
        choices.append(choice)
    for combination in itertools.product(*choices):
        yield "".join(combination)


def _numbers(ranges: str, text: str) -> tuple[int, Sequence[str]]:
    """Return the numbers in a bracket, with their leading zeros."""
    found: list[str] = []
    for one in ranges.split(","):
        given = _RANGE.fullmatch(one.strip())
        if given is None:
            raise _bad(text, f"[{printable(ranges[:60])}] is no range such as [01-16,20]")
        first, last = given[1], given[2] or given[1]
        low, high = int(first), int(last)
        if low > high:
            raise _bad(text, f"the range {first}-{last} runs backwards")
        if high - low >= MOST_HOSTS:
            raise _too_many(text)
        found.extend(f"{number:0{len(first)}d}" for number in range(low, high + 1))
    return len(found), found


def fold(hosts: Iterable[str]) -> str:
    """Return hosts as a list in the same notation: the last number of each name is folded."""
    given = {host: _NUMBERED.fullmatch(host) for host in sorted(set(hosts))}
    # Where one number has leading zeros, others of its length are of the same series: n09, n10.
    padded = {
        (one[1], one[3], len(one[2])) for one in given.values() if one and one[2].startswith("0")
    }
    groups: dict[tuple[str, int, str], list[int]] = {}
    for host, one in given.items():
        if one is None:
            groups.setdefault((host, -1, ""), []).append(0)
            continue
        width = len(one[2]) if (one[1], one[3], len(one[2])) in padded else 0
        groups.setdefault((one[1], width, one[3]), []).append(int(one[2]))
    return ",".join(_folded(*key, sorted(numbers)) for key, numbers in groups.items())


def _folded(head: str, width: int, tail: str, numbers: Sequence[int]) -> str:
    if width < 0:
        return head
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    words = [
        f"{run[0]:0{width}d}" if len(run) == 1 else f"{run[0]:0{width}d}-{run[-1]:0{width}d}"
        for run in runs
    ]
    inside = ",".join(words)
    return f"{head}{inside}{tail}" if len(numbers) == 1 else f"{head}[{inside}]{tail}"


def _bad(text: str, problem: str) -> WrongUseError:
    return WrongUseError(
        code="bad-hostlist",
        message=f"The list of hosts {printable(text[:60])!r} cannot be read: {problem}.",
        remedy=("Write it like this: a,b[01-16] or @FILE with one host a line.",),
    )


def _too_many(text: str) -> WrongUseError:
    return _bad(text, f"it names more than {MOST_HOSTS} hosts")
