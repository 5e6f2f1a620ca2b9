"""`gpucheck fleet run`: a command on every node that a Dask scheduler knows, and one report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

from gpucheck.cli.fleet import BASELINE, EXPECT, MAX_MISSING, RULE, WHICH_NODES, Standard
from gpucheck.cli.options import MACHINE, Shared
from gpucheck.cli.output import deliver, machine
from gpucheck.cli.terminal import is_watched
from gpucheck.drivers.interrupts import DeferredStops
from gpucheck.report.envelope import Answer, Host
from gpucheck.report.errors import ExitCode, WrongUseError, check_seconds
from gpucheck.report.options import flag, option, words
from gpucheck.report.text import printable

if TYPE_CHECKING:
    from gpucheck.fleet.collect import Collected
    from gpucheck.fleet.connector import Asked, Order
    from gpucheck.fleet.documents import ResultsFile
    from gpucheck.fleet.model import NodeAnswer

#: So many nodes of each kind are named while it runs.
_NAMED = 4
#: More workers than this on one machine only wait for each other.
_MOST_LOCAL = 64


class Verb(StrEnum):
    """Commands that a node may be asked for: they change nothing there."""

    DETECT = "detect"
    LIST = "list"
    BENCH = "bench"


def run_(
    *,
    verb: Verb = option("detect|list|bench", "What each node runs.", ..., group="What to run"),
    words: tuple[str, ...] = words("[-- WORDS...]", "More of its command line.", commas=False),
    gpucheck: str = option("--gpucheck PATH", "The program on the nodes.", "gpucheck"),
    scheduler: str | None = option(
        "--scheduler tls://HOST:PORT", "Dask's scheduler.", group=WHICH_NODES
    ),
    local: int = option("--local N", "Try it: N workers on this machine's loopback.", 0),
    expect: str | None = EXPECT,
    max_missing: int = MAX_MISSING,
    baseline: Path | None = BASELINE,
    rule: Path | None = RULE,
    node_timeout: float | None = option(
        "--node-timeout SECONDS",
        "How long the command may take on a node [default: list 60, detect 120, bench 1800].",
        group="How long, and how many at once",
    ),
    wave: str | None = option(
        "--wave N|P%", "How many nodes work at once [default: bench 5%, at least one; others all]."
    ),
    results: Path | None = option(
        "--results FILE", "Append each answer to this file.", group="Results"
    ),
    resume: Path | None = option(
        "--resume FILE", "Ask only nodes that have no answer in this file."
    ),
    insecure: bool = flag(
        "--insecure", "Allow plain tcp:// to a scheduler on another machine.", group="Network"
    ),
    deadline: float | None = option(
        "--deadline SECONDS",
        "When to stop waiting for nodes [default: the waves' node timeouts, and 30].",
        group=MACHINE,
    ),
    shared: Shared,
) -> int:
    """Run a check on every node of a Dask cluster; name the missing, failed, slow, different."""
    with machine("fleet", shared) as probes:
        if results is not None and resume is not None:
            message = "--resume FILE appends to that file: leave --results out."
            raise WrongUseError(code="two-files", message=message)
        order = _order(verb, scheduler, local, words, gpucheck, node_timeout, wave, deadline)
        _check_target(scheduler, local, insecure=insecure)
        standard = Standard.read(expect, baseline, rule, max_missing)
        quiet = shared.verbosity < 0
        answer = _run(order, standard, results, resume, probes.host(), quiet=quiet)
    return deliver("fleet", shared, answer, probes.time())


def _order(
    verb: Verb,
    scheduler: str | None,
    local: int,
    words: tuple[str, ...],
    program: str,
    node_timeout: float | None,
    wave: str | None,
    deadline_s: float | None,
) -> Order:
    """Return what is to be run.

    Raises:
        WrongUseError: an option cannot be used.
    """
    from gpucheck.fleet.connector import BENCH_WAVE, NODE_TIMEOUT_S, Order, check_wave

    for name, seconds in (("node-timeout", node_timeout), ("deadline", deadline_s)):
        if seconds is not None:
            check_seconds(f"--{name}", seconds, code=f"bad-{name}")
    if wave is not None:
        check_wave(wave)
    return Order(
        verb=verb.value,
        scheduler=scheduler,
        local=local,
        words=words,
        gpucheck=program,
        node_timeout_s=node_timeout or NODE_TIMEOUT_S[verb.value],
        deadline_s=deadline_s,
        wave=wave or (BENCH_WAVE if verb is Verb.BENCH else None),
    )


def _check_target(scheduler: str | None, local: int, *, insecure: bool) -> None:
    from gpucheck.fleet.connector import check_scheduler

    if not 0 <= local <= _MOST_LOCAL:
        message = f"--local takes 1 to {_MOST_LOCAL} workers, not {local}."
        raise WrongUseError(code="bad-local", message=message)
    if (scheduler is None) == (not local):
        raise WrongUseError(
            code="which-cluster",
            message="Name a scheduler, or try it on this machine: one of the two.",
            remedy=("Add --scheduler tls://HOST:PORT, or --local 3.",),
        )
    if scheduler is not None:
        check_scheduler(scheduler, insecure=insecure)


def _run(
    order: Order,
    standard: Standard,
    results: Path | None,
    resume: Path | None,
    host: Host,
    *,
    quiet: bool,
) -> Answer:
    """Ask every node, keep each answer as it comes, and report over all."""
    from gpucheck.fleet.collect import Collected
    from gpucheck.fleet.connector import Asked, node_answers

    collected = Collected(standard.hosts, one_machine=bool(order.local))
    interrupted = False
    with ExitStack() as stack:
        file = _results_file(stack, results, resume)
        if resume is not None:
            order = _resumed(order, resume, collected)
        show = stack.enter_context(live_table(shown=not quiet))
        try:
            for event in node_answers(order, standard.hosts):
                show(event)
                if not isinstance(event, Asked):
                    with DeferredStops():  # what is on the disk is in the report too
                        _keep(event, collected, file)
        except KeyboardInterrupt:
            interrupted = True
    answer = standard.judge(collected, host)
    return answer._replace(exit_code=ExitCode.INTERRUPTED) if interrupted else answer


def _results_file(
    stack: ExitStack, results: Path | None, resume: Path | None
) -> ResultsFile | None:
    from gpucheck.fleet.documents import ResultsFile

    path = results or resume
    if path is None:
        return None
    file = ResultsFile(path, resume=resume is not None)
    stack.callback(file.close)
    return file


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
    from rich.console import Console
    from rich.live import Live
    from rich.table import Table

    from gpucheck.fleet.connector import Asked
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

    console = Console(stderr=True, highlight=False, markup=False)
    with Live(console=console, transient=True, get_renderable=drawn, refresh_per_second=4):

        def show(event: Asked | NodeAnswer) -> None:
            host = printable(event.host)
            if isinstance(event, Asked):
                waiting[host] = event.began
                return
            waiting.pop(host, None)
            answered[kind(event)].append(host)

        yield show
