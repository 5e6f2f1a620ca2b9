"""Connector to Dask: one command on every node, and each node's answer as it comes.

The engine runs in a child (`dask_child.py`) that may block: this side has the deadlines, and turns
whatever came, or did not come, into the outcome of a node.
"""

from __future__ import annotations

import ipaddress
import json
import math
import os
import re
import sys
import tempfile
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from time import monotonic as _now
from typing import Any, NamedTuple

from gpucheck.drivers.child import Child, ChildDiedError
from gpucheck.drivers.python.interpreters import user_environment
from gpucheck.fleet.hostlist import HostNames
from gpucheck.fleet.model import NodeAnswer, Outcome
from gpucheck.report.errors import MissingError, WrongUseError, check_seconds
from gpucheck.report.options import flag, made_of_options, option
from gpucheck.report.text import printable

SCRIPT = Path(__file__).parent / "dask_child.py"
#: What may be run, and how long it may take on a node if nobody says otherwise.
NODE_TIMEOUT_S: Mapping[str, float] = {"list": 60.0, "detect": 120.0, "bench": 1800.0}
#: All nodes at once would be a load step for the building.
BENCH_WAVE = "5%"
#: More workers than this on one machine only wait for each other.
_MOST_LOCAL = 64
#: Each command that runs outside the queue holds two connections of the scheduler.
MOST_AT_ONCE = 400
#: Until the child has named the nodes: connecting, and their greeting; then its first silence.
_BEGIN_S, _SLACK_S = 120.0, 20.0
#: Each worker of this machine starts a Python of its own, on processors that may be busy.
_LOCAL_BEGIN_S = 10.0
_ADDRESS = re.compile(
    r"(?P<scheme>tls|tcp)://(?:\[(?P<v6>[0-9a-fA-F:.]+)\]|(?P<host>[A-Za-z0-9._-]+)):[0-9]{1,5}"
)
_WAVE = re.compile(r"[1-9][0-9]{0,6}|(?:100|[1-9]?[0-9](?:\.[0-9]+)?)%")
#: No document of ours is nested deeper than a dozen levels.
_MOST_LEVELS = 100
#: env(1) when it cannot find the command, or may not execute it.
_NOT_EXECUTABLE, _NOT_FOUND = 126, 127
_UNREACHABLE, _NO_ENGINE = "scheduler-unreachable", "no-engine"
_NOT_STARTED = "workers-not-started"
#: The sentence of a failure, and what to do; that of a missing engine depends on the installation.
_FAILURES = {
    "no-certificates": (
        "The certificates for a tls:// scheduler are missing: {}.",
        "Name them in Dask's configuration, or in the variables"
        " DASK_DISTRIBUTED__COMM__TLS__CA_FILE, DASK_DISTRIBUTED__COMM__TLS__CLIENT__CERT and"
        " DASK_DISTRIBUTED__COMM__TLS__CLIENT__KEY.",
    ),
    "engine-version": (
        "Nothing was run: the versions of the engine differ: {}.",
        "Install the scheduler's version here.",
    ),
    _UNREACHABLE: (
        "The scheduler cannot be reached: {}.",
        "See that it runs there, and that its certificates are of the same authority as yours.",
    ),
    _NOT_STARTED: (
        "The workers did not start on this machine: {}.",
        "Ask for fewer (--local), or wait longer (--deadline).",
    ),
}


#: How a node's command came to no end -> the outcome, and the reason.
_ENDS = {
    "timeout": (Outcome.TIMEOUT, "the command had not ended after {timeout_s:g} s"),
    "silent": (Outcome.NO_ANSWER, "no answer within {limit_s:.0f} s"),
    "scheduler-gone": (Outcome.NO_ANSWER, "the scheduler went away"),
    "gone": (Outcome.LOST, "its worker went away"),
    "queued": (Outcome.BUSY, "its worker had no free GPU for {limit_s:.0f} s"),
    "incompatible": (Outcome.INCOMPATIBLE, "{message}"),
    "not-found": (Outcome.NOT_INSTALLED, "{message}"),
    "too-much": (Outcome.UNREADABLE, "it printed {bytes} bytes"),
}


class Verb(StrEnum):
    """Commands that a node may be asked for: they change nothing there."""

    DETECT = "detect"
    LIST = "list"
    BENCH = "bench"


@made_of_options
class Order(NamedTuple):
    """What is to be run, and where.

    `scheduler` is null with `local`, the number of workers on this machine. `words` follow the
    verb. `wave` is how many nodes work at once: "20" or "5%". Hosts in `skip` are left out.
    """

    verb: Verb = option("detect|list|bench", "What each node runs.", ..., group="What to run")
    words: tuple[str, ...] = option("[-- WORDS...]", "More of its command line.", ())
    gpucheck: str = option("--gpucheck PATH", "The program on the nodes.", "gpucheck")
    scheduler: str | None = option(
        "--scheduler tls://HOST:PORT", "Dask's scheduler.", group="Which nodes"
    )
    local: int = option("--local N", "Try it: N workers on this machine's loopback.", 0)
    node_timeout_s: float | None = option(
        "--node-timeout SECONDS",
        "How long the command may take on a node [default: list 60, detect 120, bench 1800].",
        group="How long, and how many at once",
    )
    wave: str | None = option(
        "--wave N|P%", "How many nodes work at once [default: bench 5%, at least one; others all]."
    )
    insecure: bool = flag(
        "--insecure", "Allow plain tcp:// to a scheduler on another machine.", group="Network"
    )
    deadline_s: float | None = option(
        "--deadline SECONDS",
        "When to stop waiting for nodes [default: the waves' node timeouts, and 30].",
        group="Machine",
    )
    skip: frozenset[str] = frozenset()

    @property
    def timeout_s(self) -> float:
        """Return how long the command may take on a node."""
        return self.node_timeout_s or NODE_TIMEOUT_S[self.verb]

    def request(self) -> dict[str, Any]:
        """Return the request to the child."""
        program = [sys.executable, "-m", "gpucheck"] if self.local else [self.gpucheck]
        chosen = any(word.partition("=")[0] == "--samples" for word in self.words)
        summary = ["--samples", "summary"] if self.verb == "bench" and not chosen else []
        return {
            "scheduler": self.scheduler,
            "local": self.local,
            "each_worker": bool(self.local),
            "queued": self.verb == "bench",
            "command": [*program, self.verb, "--json", *summary, *self.words],
            "node_timeout_s": self.timeout_s,
            "most_at_once": MOST_AT_ONCE,
        }


class Asked(NamedTuple):
    """Node that is to answer, or `began` to, and when its scheduler last saw it."""

    host: str
    last_seen_s: float | None
    began: bool = False


def check_order(order: Order) -> None:
    """Refuse an order that cannot be carried out.

    Raises:
        WrongUseError: a time, a wave, or a number of workers makes no sense, or it does not say
            whom to ask.
    """
    for name, seconds in (("node-timeout", order.node_timeout_s), ("deadline", order.deadline_s)):
        if seconds is not None:
            check_seconds(f"--{name}", seconds, code=f"bad-{name}")
    if order.wave is not None:
        check_wave(order.wave)
    if not 0 <= order.local <= _MOST_LOCAL:
        message = f"--local takes 1 to {_MOST_LOCAL} workers, not {order.local}."
        raise WrongUseError(code="bad-local", message=message)
    if (order.scheduler is None) == (not order.local):
        raise WrongUseError(
            code="which-cluster",
            message="Name a scheduler, or try it on this machine: one of the two.",
            remedy=("Add --scheduler tls://HOST:PORT, or --local 3.",),
        )
    if order.scheduler is not None:
        check_scheduler(order.scheduler, insecure=order.insecure)


def check_scheduler(address: str, *, insecure: bool) -> None:
    """Refuse an address that is none, or over which everybody could send commands.

    Raises:
        WrongUseError: it is no tls:// or tcp:// address, or plain tcp to another machine.
    """
    match = _ADDRESS.fullmatch(address)
    if match is None:
        raise WrongUseError(
            code="bad-scheduler",
            message=f"{printable(address[:80])!r} is no address of a Dask scheduler.",
            remedy=("Write tls://HOST:PORT, such as tls://head:8786.",),
        )
    if match["scheme"] == "tcp" and not insecure and not _is_loopback(match["v6"] or match["host"]):
        raise WrongUseError(
            code="insecure-scheduler",
            message=f"{address} is not encrypted: whoever can reach it could run commands on every"
            " node, or answer in their name.",
            remedy=("Use tls://, or add --insecure on a network that you trust.",),
        )


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def check_wave(wave: str) -> None:
    """Refuse a wave that is neither a number of nodes nor a share of them.

    Raises:
        WrongUseError: it is not.
    """
    if not _WAVE.fullmatch(wave) or float(wave.rstrip("%")) <= 0:
        raise WrongUseError(
            code="bad-wave",
            message=f"{printable(wave[:40])!r} is no wave: how many nodes work at once.",
            remedy=("Write a number of nodes, such as 20, or a share of them, such as 5%.",),
        )


def waves(order: Order, count: int) -> int:
    """Return how many of so many nodes may work at once: "20", "5%" rounded down, or all."""
    text = order.wave or (BENCH_WAVE if order.verb == Verb.BENCH else None)
    if text is None:
        wanted = count
    elif text.endswith("%"):
        wanted = int(count * float(text[:-1]) / 100)
    else:
        wanted = int(text)
    return max(1, min(wanted, MOST_AT_ONCE))


def node_answers(order: Order, expected: Collection[str]) -> Iterator[Asked | NodeAnswer]:
    """Yield each node when it is known, when it begins, and its answer.

    Every node that is known gets an answer, at the latest when the deadline has passed.

    Raises:
        MissingError: there is no engine, no scheduler, or not one that we can talk to.
    """
    # A folder for the workers of this machine.
    scratch = tempfile.TemporaryDirectory(prefix="gpucheck-fleet-", ignore_cleanup_errors=True)
    with scratch as folder, _child(order, folder) as child:
        yield from _Collector(order, expected).run(child)


@contextmanager
def _child(order: Order, folder: str) -> Iterator[Child]:
    # -P: no module is taken from the script's folder; user packages and PYTHONPATH count.
    child = Child(
        str(SCRIPT),
        interpreter=(sys.executable, "-P"),
        environment=user_environment(os.environ),
    )
    try:
        child.ask({**order.request(), "folder": folder})
        yield child
    finally:
        child.abandon()


class _Collector:
    """Turns the child's lines into answers, and its silence too."""

    def __init__(self, order: Order, expected: Collection[str]) -> None:
        self._order = order
        self._expected = HostNames(expected)
        self._pending: dict[str, Asked] = {}
        self._begun_s = _now()
        self._end_s = self._begun_s + _BEGIN_S + _LOCAL_BEGIN_S * order.local
        if order.deadline_s is not None:
            self._end_s = self._begun_s + order.deadline_s

    def run(self, child: Child) -> Iterator[Asked | NodeAnswer]:
        """Yield the nodes and answers that the child reports, then the nodes without an answer."""
        known, unknown = False, _NOT_STARTED if self._order.local else _UNREACHABLE
        why = Outcome.NO_ANSWER, f"no answer before the deadline of {self._deadline()}"
        while True:
            try:
                line = child.next_document(self._end_s - _now())
            except ChildDiedError as error:
                if not known:
                    raise _failure(code=unknown, message=f"its client {error.how}") from None
                why = Outcome.NO_ANSWER, f"the engine's client {error.how}"
                break
            if line is None:
                if not known:
                    raise _failure(code=unknown, message=f"nothing in {self._deadline()}")
                break
            part = line.get("part")
            if part == "end":
                break
            if part == "failure":
                raise _failure(code=line["code"], message=line["message"])
            if part == "nodes":
                known = True
                self._choose(line)
                at_once = waves(self._order, len(self._pending))
                child.ask({"addresses": list(self._pending), "at_once": at_once})
                if self._order.deadline_s is None:
                    turns = math.ceil(max(1, len(self._pending)) / at_once)
                    self._end_s = _now() + turns * line["limit_s"] + _SLACK_S
                yield from self._pending.values()
            elif part == "begun" and line["address"] in self._pending:
                yield self._pending[line["address"]]._replace(began=True)
            elif part == "answer" and line["address"] in self._pending:
                yield self._answer(self._pending.pop(line["address"]), line)
        for node in self._pending.values():
            yield self._line(node, *why, last_seen_s=node.last_seen_s)

    def _deadline(self) -> str:
        return f"{self._end_s - self._begun_s:.0f} s"

    def _choose(self, line: Mapping[str, Any]) -> None:
        """Name the nodes, and leave out those that need not be asked.

        A name is given once, and to the same machine in the next run: the second machine of a name
        has its address beside it.
        """
        taken: set[str] = set()
        names = {}
        for node in sorted(line["nodes"], key=lambda node: (node["ip"], node["worker"])):
            name = self._name(node)
            if name in taken:
                name = f"{name} ({node['ip']})"
            if name in taken:
                name = f"{name} ({node['worker']})"
            taken.add(name)
            names[node["address"]] = name
        for node in line["nodes"]:
            host = names[node["address"]]
            if host not in self._order.skip:
                self._pending[node["address"]] = Asked(host, node["last_seen_s"])

    def _name(self, node: Mapping[str, Any]) -> str:
        """Return a node's name: its own, or the expected one, by its worker or its address.

        One that did not say its name goes by its address.
        """
        own: str | None = node["host"]
        names = [str(name) for name in (own, node["worker"], node["ip"]) if name is not None]
        expected = next((name for name in names if self._expected.find(name) is not None), None)
        return expected or own or str(node["ip"])

    def _answer(self, node: Asked, line: Mapping[str, Any]) -> NodeAnswer:
        if line["how"] == "ended":
            return self._ended(node, line)
        outcome, reason = _ENDS.get(line["how"], (Outcome.NO_ANSWER, "{message}"))
        facts = {
            **line,
            "message": line.get("message") or "failed",
            "limit_s": line.get("limit_s") or 0,
            "timeout_s": self._order.timeout_s,
        }
        seen = line.get("last_seen_s")
        return self._line(node, outcome, reason.format(**facts), line, last_seen_s=seen)

    def _ended(self, node: Asked, line: Mapping[str, Any]) -> NodeAnswer:
        """Return the answer of a command that ended on its node."""
        code = line["exit_code"]
        last = line["stderr"].strip().rpartition("\n")[2]
        document = _document(line["stdout"])
        if document is not None:
            bad = {0: Outcome.OK, 1: Outcome.FAILED}
            outcome = bad.get(code, Outcome.INCONCLUSIVE)
            return self._line(node, outcome, None, line, document=document)
        if code in (_NOT_FOUND, _NOT_EXECUTABLE):
            return self._line(node, Outcome.NOT_INSTALLED, last or f"exit code {code}", line)
        if code < 0:
            reason = f"the command was ended by signal {-code}"
            return self._line(node, Outcome.LOST, reason, line)
        reason = f"it printed no document and ended with code {code}"
        return self._line(node, Outcome.UNREADABLE, f"{reason}: {last}" if last else reason, line)

    def _line(
        self,
        node: Asked,
        outcome: Outcome,
        reason: str | None,
        line: Mapping[str, Any] | None = None,
        *,
        document: dict[str, Any] | None = None,
        last_seen_s: float | None = None,
    ) -> NodeAnswer:
        tool = document.get("tool") if document else None
        version = tool.get("version") if isinstance(tool, dict) else None
        return NodeAnswer(
            schema="gpucheck/fleet-node/1",
            host=node.host,
            outcome=outcome,
            reason=None if reason is None else printable(reason),
            command=self._order.verb,
            time=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            seconds=line.get("seconds") if line else None,
            exit_code=line.get("exit_code") if line else None,
            gpucheck_version=version if isinstance(version, str) else None,
            last_seen_s=last_seen_s,
            document=document,
        )


def _document(text: str) -> dict[str, Any] | None:
    """Return the document that a command printed, None if it printed none."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return document if isinstance(document, dict) and not _is_too_deep(document) else None


def _is_too_deep(document: object) -> bool:
    """Return whether a value is nested deeper than what writes it again can follow."""
    level: list[Any] = [document]
    for _ in range(_MOST_LEVELS):
        inner = [value.values() if isinstance(value, dict) else value for value in level]
        level = [value for items in inner for value in items if isinstance(value, dict | list)]
        if not level:
            return False
    return True


def _failure(*, code: str, message: str) -> MissingError:
    if code == _NO_ENGINE:
        from gpucheck.drivers.cupy.install import command, installation

        sentence = "Dask's distributed is not installed here: {}."
        remedy = f"Install it: {command(installation(), 'fleet')}"
    else:
        sentence, remedy = _FAILURES[code]
    return MissingError(
        code=code, message=sentence.format(printable(message).rstrip(".")), remedy=(remedy,)
    )
