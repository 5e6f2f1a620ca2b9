"""`gpucheck fleet`: the same checks on many machines, and one report over what they answered."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Self

from gpucheck.cli.options import Shared
from gpucheck.cli.output import deliver, machine
from gpucheck.cli.terminal import status_line
from gpucheck.report.errors import WrongUseError
from gpucheck.report.options import option
from gpucheck.report.text import count_of

if TYPE_CHECKING:
    from gpucheck.fleet.collect import Collected
    from gpucheck.fleet.hostlist import Expected
    from gpucheck.fleet.model import JudgementRule
    from gpucheck.fleet.speeds import Baseline
    from gpucheck.report.envelope import Answer, Host

#: Seconds between two steps of the progress.
_STEP_S = 0.2
#: A heading in --help.
WHICH_NODES = "Which nodes"

EXPECT = option(
    "--expect HOSTS|@FILE",
    "Hosts that must be there: a,b[01-16], or a file: host, rack.",
    group=WHICH_NODES,
)
MAX_MISSING = option("--max-missing N", "So many nodes may be missing.", 0, group=WHICH_NODES)
BASELINE = option(
    "--baseline FILE", "Judge speeds by this earlier report (--json) too.", group="Judge"
)
RULE = option("--rule FILE", "Judge by the parameters of this TOML file.", group="Judge")


def report_(
    *,
    paths: tuple[str, ...] = option(
        "PATH...", "Files, folders or - for stdin: .json, .jsonl, .gz.", ..., group="Documents"
    ),
    expect: str | None = EXPECT,
    max_missing: int = MAX_MISSING,
    baseline: Path | None = BASELINE,
    rule: Path | None = RULE,
    shared: Shared,
) -> int:
    """Compare what many machines answered; name the missing, failed, slow and different."""
    from gpucheck.fleet.collect import Collected

    quiet = shared.verbosity < 0
    with machine("fleet", shared) as probes:
        standard = Standard.read(expect, baseline, rule, max_missing)
        collected = Collected(standard.hosts)
        with status_line(shown=not quiet) as tell:
            _read(collected, paths, tell)
            tell("judging")
            answer = standard.judge(collected, probes.host())
    return deliver("fleet", shared, answer, probes.time())


class Standard(NamedTuple):
    """What a fleet is judged by: the options of `report` and `run` alike."""

    expected: Expected | None
    baseline: Baseline | None
    rule: JudgementRule | None
    max_missing: int

    @classmethod
    def read(
        cls,
        expect: str | None,
        baseline: Path | None,
        rule: Path | None,
        max_missing: int,
    ) -> Self:
        """Read the files that the options name.

        Raises:
            WrongUseError: one of them cannot be read, or an option cannot be used.
        """
        from gpucheck.fleet.hostlist import read_expected
        from gpucheck.fleet.speeds import read_baseline, read_rule

        if max_missing < 0:
            message = f"--max-missing takes a number of nodes, not {max_missing}."
            raise WrongUseError(code="bad-max-missing", message=message)
        return cls(
            None if expect is None else read_expected(expect),
            None if baseline is None else read_baseline(baseline),
            None if rule is None else read_rule(rule),
            max_missing,
        )

    @property
    def hosts(self) -> tuple[str, ...]:
        """Return the expected hosts; none if nobody named any."""
        return tuple(self.expected or ())

    def judge(self, collected: Collected, host: Host) -> Answer:
        """Return the answer over everything that was collected."""
        from gpucheck.fleet.report import report

        return report(
            collected,
            self.expected,
            host,
            max_missing=self.max_missing,
            rule=self.rule,
            baseline=self.baseline,
        )


def _read(collected: Collected, paths: Sequence[str], tell: Callable[[str], None]) -> None:
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
