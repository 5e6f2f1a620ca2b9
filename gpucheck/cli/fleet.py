"""`gpucheck fleet`: the same checks on many machines, and one report over what they answered."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gpucheck.cli.options import with_shared_options
from gpucheck.cli.output import Shared, deliver, machine
from gpucheck.cli.terminal import status_line
from gpucheck.report.errors import WrongUseError
from gpucheck.report.text import count_of

if TYPE_CHECKING:
    from gpucheck.fleet.collect import Collected

#: Seconds between two steps of the progress.
_STEP_S = 0.2


@with_shared_options
def report_(
    *,
    paths: Annotated[
        list[str],
        typer.Argument(
            metavar="PATH...",
            help="Files, folders or - for stdin: .json, .jsonl, .gz.",
            show_default=False,
        ),
    ],
    expect: Annotated[
        str | None,
        typer.Option(
            "--expect",
            metavar="HOSTS|@FILE",
            help="Hosts that must be there: a,b[01-16], or a file: host, rack.",
        ),
    ] = None,
    baseline: Annotated[
        Path | None,
        typer.Option(
            "--baseline",
            metavar="FILE",
            help="Judge speeds by this earlier report (--json) too.",
        ),
    ] = None,
    rule: Annotated[
        Path | None,
        typer.Option("--rule", metavar="FILE", help="Judge by the parameters of this TOML file."),
    ] = None,
    max_missing: Annotated[
        int,
        typer.Option("--max-missing", metavar="N", help="So many nodes may be without an answer."),
    ] = 0,
    shared: Shared,
) -> int:
    """Compare what many machines answered; name the missing, failed, slow and different."""
    from gpucheck.fleet.baseline import read_baseline, read_rule
    from gpucheck.fleet.collect import Collected
    from gpucheck.fleet.expected import read_expected
    from gpucheck.fleet.report import report

    if shared.recording is not None:
        message = "fleet report reads documents, not a snapshot: leave --from out."
        raise WrongUseError(code="fleet-from-snapshot", message=message)
    if max_missing < 0:
        message = f"--max-missing takes a number of nodes, not {max_missing}."
        raise WrongUseError(code="bad-max-missing", message=message)
    quiet = shared.verbosity < 0
    with machine("fleet", shared) as probes:
        hosts = None if expect is None else read_expected(expect)
        judged_by = None if rule is None else read_rule(rule)
        reference = None if baseline is None else read_baseline(baseline)
        collected = Collected(hosts.hosts if hosts else ())
        with status_line(shown=not quiet) as tell:
            _read(collected, paths, tell)
            tell("judging")
            answer = report(
                collected,
                hosts,
                probes.host(),
                max_missing=max_missing,
                rule=judged_by,
                baseline=reference,
            )
    return deliver("fleet", shared, answer, probes.time())


def _read(collected: Collected, paths: list[str], tell: Callable[[str], None]) -> None:
    """Read everything, and tell now and then how far it is."""
    from gpucheck.fleet.documents import read_documents

    told = time.monotonic()
    for found in read_documents(paths):
        collected.add(found)
        now = time.monotonic()
        if now - told >= _STEP_S:
            told = now
            nodes = count_of(len(collected.nodes), "node")
            tell(f"reading: {count_of(collected.documents, 'document')} of {nodes}")
