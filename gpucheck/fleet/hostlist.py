"""Lists of hosts: in Slurm's notation (`a[01-16,20]`, `r[1-2]n[1-8]`), written out and folded.

With them the hosts that a report is expected to hold, and their racks: a list or a file of them.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Sequence

from gpucheck.drivers.host.files import MIB, read_file
from gpucheck.report.errors import WrongUseError
from gpucheck.report.text import printable, ranges

#: More hosts than the largest fleets have; a slip such as a[1-999999999] ends here.
MOST_HOSTS = 200_000
#: A line for each of the most hosts, with long names.
_MOST_BYTES = 32 * MIB
_RANGE = re.compile(r"([0-9]{1,18})(?:-([0-9]{1,18}))?")
_HOST = re.compile(r"[A-Za-z0-9_.:-]{1,253}")
_NUMBERED = re.compile(r"(.*?)([0-9]{1,18})([^0-9]*)")


def expand(text: str) -> tuple[str, ...]:
    """Return the hosts of a list, in its order, each once.

    Raises:
        WrongUseError: it is malformed, or names more hosts than there can be.
    """
    hosts: dict[str, None] = {}
    for part in _parts(text):
        for host in _hosts(part, text):
            if _HOST.fullmatch(host) is None:
                raise _bad(text, f"{printable(host[:60])!r} is no name of a host")
            hosts[host] = None
            if len(hosts) > MOST_HOSTS:
                raise _too_many(text)
    return tuple(hosts)


def _parts(text: str) -> Iterator[str]:
    """Yield the parts between commas outside of brackets."""
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
    numbers: list[str] = []
    for span in ranges.split(","):
        given = _RANGE.fullmatch(span.strip())
        if given is None:
            raise _bad(text, f"[{printable(ranges[:60])}] is no range such as [01-16,20]")
        first, last = given[1], given[2] or given[1]
        low, high = int(first), int(last)
        if low > high:
            raise _bad(text, f"the range {first}-{last} runs backwards")
        if high - low + len(numbers) >= MOST_HOSTS:
            raise _too_many(text)
        numbers.extend(f"{number:0{len(first)}d}" for number in range(low, high + 1))
    return len(numbers), numbers


def fold(hosts: Iterable[str]) -> str:
    """Return hosts as a list in the same notation: the last number of each name is folded."""
    given = {host: _NUMBERED.fullmatch(host) for host in sorted(set(hosts))}
    # Where one number has leading zeros, others of its length are of the same series: n09, n10.
    padded = {
        (match[1], match[3], len(match[2]))
        for match in given.values()
        if match and match[2].startswith("0")
    }
    groups: dict[tuple[str, int, str], list[int]] = {}
    for host, match in given.items():
        if match is None:
            groups.setdefault((host, -1, ""), []).append(0)
            continue
        width = len(match[2]) if (match[1], match[3], len(match[2])) in padded else 0
        groups.setdefault((match[1], width, match[3]), []).append(int(match[2]))
    return ",".join(_folded(*key, numbers) for key, numbers in groups.items())


def _folded(head: str, width: int, tail: str, numbers: Sequence[int]) -> str:
    if width < 0:
        return head
    inside = ranges(numbers, width)
    return f"{head}{inside}{tail}" if len(numbers) == 1 else f"{head}[{inside}]{tail}"


def _bad(text: str, problem: str) -> WrongUseError:
    return WrongUseError(
        code="bad-hostlist",
        message=f"The list of hosts {printable(text[:60])!r} cannot be read: {problem}.",
        remedy=("Write it like this: a,b[01-16] or @FILE with one host a line.",),
    )


def _too_many(text: str) -> WrongUseError:
    return _bad(text, f"it names more than {MOST_HOSTS} hosts")


# ----------------------------------------------------------------------- which are expected


#: Expected hosts in their order, each with its rack if it has one.
Expected = dict[str, str | None]


class HostNames:
    """Names under which the expected hosts are known: with them, `node1.cluster` is `node1`."""

    def __init__(self, hosts: Collection[str]) -> None:
        self.hosts = frozenset(hosts)
        self._by_short_name: dict[str, str] = {}
        doubled = set()
        for host in hosts:
            short = _short_name(host)
            if self._by_short_name.setdefault(short, host) != host:
                doubled.add(short)
        for short in doubled:
            del self._by_short_name[short]

    def find(self, name: str) -> str | None:
        """Return the expected host that calls itself so, None if there is none."""
        return name if name in self.hosts else self._by_short_name.get(_short_name(name))


def _short_name(host: str) -> str:
    first, _, rest = host.partition(".")
    return host if first.isdecimal() and rest else first


def read_expected(text: str) -> Expected:
    """Return the hosts of `a,b[01-16]`, or of a file: `@FILE` has one host a line, then its rack.

    A line may hold a list of hosts of one rack. What follows a # is a comment.

    Raises:
        WrongUseError: the list or the file cannot be read, or it names no host.
    """
    if not text.startswith("@"):
        hosts: Expected = dict.fromkeys(expand(text))
    else:
        hosts = _parse_lines(_lines(text[1:]), text)
    if not hosts:
        raise WrongUseError(
            code="no-hosts", message=f"{printable(text[:60])!r} names no host at all."
        )
    return hosts


def _lines(name: str) -> list[str]:
    try:
        content = read_file("/dev/stdin" if name == "-" else name, _MOST_BYTES)
        return content.decode("utf-8").splitlines()
    except UnicodeDecodeError:
        problem = "it is no text"
    except OSError as error:
        problem = error.strerror or str(error)
    raise WrongUseError(
        code="expect-unreadable",
        message=f"The list of hosts {printable(name)!r} cannot be read: {problem}.",
        remedy=("It has one host a line, and may have its rack in a second column.",),
    )


def _parse_lines(lines: list[str], text: str) -> Expected:
    hosts: Expected = {}
    for line in lines:
        words = line.partition("#")[0].split()
        for host in expand(words[0]) if words else ():
            hosts[host] = printable(words[1])[:100] if len(words) > 1 else hosts.get(host)
        if len(hosts) > MOST_HOSTS:
            raise WrongUseError(
                code="bad-hostlist",
                message=f"{printable(text[:60])!r} names more than {MOST_HOSTS} hosts.",
            )
    return hosts
