"""`gpucheck fleet`: the same checks on many machines, and one report over what they answered.

`run` asks every node that a Dask scheduler knows; `report` reads what nodes have written.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from gpucheck.cli.options import Shared
from gpucheck.cli.output import deliver, machine
from gpucheck.cli.terminal import is_watched, open_console, status_line
from gpucheck.drivers.interrupts import DeferredStops
from gpucheck.fleet.connector import Asked, Order, check_order, node_answers
from gpucheck.report.errors import ExitCode, WrongUseError
from gpucheck.report.options import made_of_options, option
from gpucheck.report.text import count_of, printable

if TYPE_CHECKING:
    from gpucheck.fleet.collect import Collected
    from gpucheck.fleet.documents import ResultsFile
    from gpucheck.fleet.model import NodeAnswer

#: Seconds between two steps of the progress.
_STEP_S = 0.2
#: So many nodes of each kind are named while it runs.
_NAMED = 4


@made_of_options
class Standard(NamedTuple):
    """What a fleet is judged by: the options of `report` and `run` alike."""

    expect: str | None = option(
        "--expect HOSTS|@FILE",
        "Hosts that must be there: a,b[01-16], or a file: host, rack.",
        group="Which nodes",
    )
    max_missing: int = option("--max-missing N", "So many nodes may be missing.", 0)
    baseline: Path | None = option(
        "--baseline FILE", "Judge speeds by this earlier report (--json) too.", group="Judge"
    )
    rule: Path | None = option("--rule FILE", "Judge by the parameters of this TOML file.")

    def read(self) -> dict[str, Any]:
        """Return what `fleet.report.report` judges by, from the files that the options name.

        Raises:
            WrongUseError: one of them cannot be read, or an option cannot be used.
        """
        from gpucheck.fleet.hostlist import read_expected
        from gpucheck.fleet.speeds import read_baseline, read_rule

        if self.max_missing < 0:
            message = f"--max-missing takes a number of nodes, not {self.max_missing}."
            raise WrongUseError(code="bad-max-missing", message=message)
        return {
            "expected": None if self.expect is None else read_expected(self.expect),
            "baseline": None if self.baseline is None else read_baseline(self.baseline),
            "rule": None if self.rule is None else read_rule(self.rule),
            "max_missing": self.max_missing,
        }


def report_(
    *,
    paths: tuple[str, ...] = option(
        "PATH...", "Files, folders or - for stdin: .json, .jsonl, .gz.", ..., group="Documents"
    ),
    standard: Standard,
    shared: Shared,
) -> int:
    """Compare what many machines answered; name the missing, failed, slow and different."""
    from gpucheck.fleet.collect import Collected
    from gpucheck.fleet.report import report

    with machine("fleet", shared) as probes:
        judged_by = standard.read()
        collected = Collected(tuple(judged_by["expected"] or ()))
        with status_line(shown=shared.verbosity >= 0) as tell:
            _read(collected, paths, tell)
            tell("judging")
            answer = report(collected, host=probes.host(), **judged_by)
    return deliver("fleet", shared, answer, probes.time())


def _read(collected: Collected, paths: Sequence[str], tell: Callable[[str], None]) -> None:
    """Read everything, and tell now and then how far it is."""
    from gpucheck.fleet.documents import read_documents

    told = time.monotonic()
    for entry in read_documents(paths):
        collected.add(entry)
        now = time.monotonic()
        if now - told >= _STEP_S:
            told = now
            nodes = count_of(len(collected.nodes), "node")
            tell(f"reading: {count_of(collected.documents, 'document')} of {nodes}")


# ------------------------------------------------------------------------------------- run


def run_(
    *,
    order: Order,
    standard: Standard,
    results: Path | None = option(
        "--results FILE", "Append each answer to this file.", group="Results"
    ),
    resume: Path | None = option(
        "--resume FILE", "Ask only nodes that have no answer in this file."
    ),
    shared: Shared,
) -> int:
    """Run a check on every node of a Dask cluster; name the missing, failed, slow, different."""
    from gpucheck.fleet.collect import Collected
    from gpucheck.fleet.documents import ResultsFile
    from gpucheck.fleet.report import report

    with machine("fleet", shared) as probes:
        if results is not None and resume is not None:
            message = "--resume FILE appends to that file: leave --results out."
            raise WrongUseError(code="two-files", message=message)
        check_order(order)
        judged_by = standard.read()
        hosts = tuple(judged_by["expected"] or ())
        collected = Collected(hosts, one_machine=bool(order.local))
        interrupted = False
        with ExitStack() as stack:
            file = None
            if (path := results or resume) is not None:
                opened = closing(ResultsFile(path, resume=resume is not None))
                file = stack.enter_context(opened)
            if resume is not None:
                order = _resumed(order, resume, collected)
            show = stack.enter_context(live_table(shown=shared.verbosity >= 0))
            try:
                for event in node_answers(order, hosts):
                    show(event)
                    if not isinstance(event, Asked):
                        with DeferredStops():  # what is on the disk is in the report too
                            _keep(event, collected, file)
            except KeyboardInterrupt:
                interrupted = True
        answer = report(collected, host=probes.host(), **judged_by)
        if interrupted:
            answer = answer._replace(exit_code=ExitCode.INTERRUPTED)
    return deliver("fleet", shared, answer, probes.time())


def _resumed(order: Order, path: Path, collected: Collected) -> Order:
    """Take over the answers of an earlier run, and leave their nodes out.

    Raises:
        WrongUseError: the file is of another command.
    """
    from gpucheck.fleet.documents import read_earlier

    settled, verb = read_earlier(path, collected.add)
    if verb not in (None, order.verb):
        message = f"{str(path)!r} holds answers to {verb}, not to {order.verb}."
        raise WrongUseError(code="mixed-results", message=message)
    return order._replace(skip=settled)


def _keep(answer: NodeAnswer, collected: Collected, file: ResultsFile | None) -> None:
    from gpucheck.fleet.documents import Entry
    from gpucheck.report.codec import to_plain

    if file is not None:
        file.append(answer)
    collected.add(Entry("the nodes", collected.documents + 1, to_plain(answer)))


# ------------------------------------------------------------------------------ while it runs


@contextmanager
def live_table(*, shown: bool) -> Iterator[Callable[[Asked | NodeAnswer], None]]:
    """Show who has answered, which nodes are ok, failed or missing, while the block runs."""
    if not (shown and is_watched()):
        yield lambda _: None
        return
    from rich.live import Live
    from rich.table import Table

    from gpucheck.fleet.model import SILENT, Outcome

    waiting: dict[str, bool] = {}
    answered: dict[str, list[str]] = {"ok": [], "failed": [], "missing": [], "not judged": []}
    styles = {"ok": "green", "failed": "red", "missing": "red", "not judged": "yellow"}

    def kind(answer: NodeAnswer) -> str:
        if answer.outcome in SILENT:
            return "missing"
        return {Outcome.OK: "ok", Outcome.FAILED: "failed"}.get(answer.outcome, "not judged")

    def drawn() -> Table:
        table = Table(box=None, show_header=False, padding=(0, 2, 0, 0), pad_edge=False)
        table.add_column(no_wrap=True, style="dim")
        table.add_column(no_wrap=True, justify="right")
        table.add_column(no_wrap=True, overflow="ellipsis", style="dim")
        total = len(waiting) + sum(map(len, answered.values()))
        states = Counter("working" if began else "waiting" for began in waiting.values())
        counts = ", ".join(f"{number} {state}" for state, number in sorted(states.items()))
        table.add_row("answered", f"{total - len(waiting)} of {total}", counts)
        for name, nodes in answered.items():
            names = ", ".join(nodes[-_NAMED:])
            shown_names = "" if name == "ok" else names
            table.add_row(name, f"{len(nodes)}", shown_names, style=styles[name] if nodes else "")
        return table

    with Live(console=open_console(), transient=True, get_renderable=drawn, refresh_per_second=4):

        def show(event: Asked | NodeAnswer) -> None:
            host = printable(event.host)
            if isinstance(event, Asked):
                waiting[host] = event.began
                return
            waiting.pop(host, None)
            answered[kind(event)].append(host)

        yield show
