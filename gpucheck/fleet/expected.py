"""Hosts that a report is expected to hold, and their racks: a list of hosts or a file of them."""

from __future__ import annotations

import os
from typing import NamedTuple

from gpucheck.drivers.host.files import MIB, read_file
from gpucheck.fleet.hostlist import MOST_HOSTS, expand
from gpucheck.report.errors import WrongUseError
from gpucheck.report.text import printable

#: A line for each of the most hosts, with long names.
_MOST_BYTES = 32 * MIB


class Expected(NamedTuple):
    """Expected hosts in their order, and the rack of each that has one."""

    hosts: tuple[str, ...]
    racks: dict[str, str]


def read_expected(text: str) -> Expected:
    """Return the hosts of `a,b[01-16]`, or of a file: `@FILE` has one host a line, then its rack.

    A line may hold a list of hosts of one rack. What follows a # is a comment.

    Raises:
        WrongUseError: the list or the file cannot be read, or it names no host.
    """
    if not text.startswith("@"):
        found = Expected(expand(text), {})
    else:
        found = _of_lines(_lines(text[1:]), text)
    if not found.hosts:
        raise WrongUseError(
            code="no-hosts", message=f"{printable(text[:60])!r} names no host at all."
        )
    return found


def _lines(name: str) -> list[str]:
    try:
        content = read_file("/dev/stdin" if name == "-" else os.fspath(name), _MOST_BYTES)
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


def _of_lines(lines: list[str], text: str) -> Expected:
    hosts: dict[str, None] = {}
    racks: dict[str, str] = {}
    for line in lines:
        words = line.partition("#")[0].split()
        for host in expand(words[0]) if words else ():
            hosts[host] = None
            if len(words) > 1:
                racks[host] = printable(words[1])[:100]
        if len(hosts) > MOST_HOSTS:
            raise WrongUseError(
                code="bad-hostlist",
                message=f"{printable(text[:60])!r} names more than {MOST_HOSTS} hosts.",
            )
    return Expected(tuple(hosts), racks)
