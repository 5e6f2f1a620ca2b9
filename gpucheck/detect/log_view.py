"""View of `gpucheck detect --log`: the first cause, whether it is still there, and what to do."""

from __future__ import annotations

from collections.abc import Iterator

from gpucheck.detect.log import Level, LogVerdict, Match, Seen, conclusion
from gpucheck.report.blocks import Block, Gap, Line, Span, opening, remedies, verdict
from gpucheck.report.envelope import CheckStatus, Report
from gpucheck.report.text import View, count_of

INDENT = 4
NOT_KNOWN = "If it failed, its last lines say how. Whether this machine is well: gpucheck detect"
WORDS = {Seen.YES: "yes", Seen.NO_LONGER: "no longer", Seen.CANNOT_BE_TOLD: "not known"}


def blocks(report: Report, view: View) -> Iterator[Block]:
    """Yield the cause with its line and remedy, then what else the log has."""
    result = report.result_as(LogVerdict)
    yield from opening(report, view)
    cause = result.cause
    if cause is None:
        # No good mark: a program may have failed with words that no rule knows.
        yield verdict(conclusion(result), CheckStatus.SKIP)
        yield from remedies((NOT_KNOWN,) if result.lines else (), indent=INDENT)
        return
    # The mark is the whole log's: an error may follow from a warning that comes first.
    marks = [_mark(match) for match in (*result.causes, *result.consequences)]
    mark = CheckStatus.FAIL if CheckStatus.FAIL in marks else CheckStatus.WARN
    yield verdict(conclusion(result), mark)
    yield Line(cause.excerpt, indent=INDENT)
    if result.live is not None:
        live = result.live
        styles = {Seen.YES: "red", Seen.NO_LONGER: "green"}
        word = Span(WORDS[live.seen], styles.get(live.seen, "yellow"))
        yield Line((Span("still there: "), word, Span(f" ({live.summary})", "dim")), indent=INDENT)
    yield from remedies(result.remedy, indent=INDENT)
    if view.verbosity < 0:
        return
    others = result.causes[1:]
    if others or result.consequences:
        yield Gap()
        yield from _others(result, view)
    if view.verbosity > 0:
        yield Gap()
        yield Line(f"rule: {cause.rule} ({cause.class_}); its source: {result.source}", style="dim")
        yield Line(f"often confused with {result.confused_with}", style="dim")


def line(result: LogVerdict) -> str:
    """Return the sentence of --format line."""
    return conclusion(result)


def _mark(match: Match) -> CheckStatus:
    return CheckStatus.FAIL if match.level is Level.ERROR else CheckStatus.WARN


def _others(result: LogVerdict, view: View) -> Iterator[Block]:
    """Yield the other causes, and how many lines follow from them; with `-v` each."""
    if view.verbosity > 0:
        for match in result.causes[1:]:
            yield from _match(match, _mark(match))
        for match in result.consequences:
            yield from _match(match, CheckStatus.SKIP)
        return
    others = result.causes[1:]
    if others:
        first = f"the first of {len(result.causes)} causes; then: "
        yield Line(first + "; ".join(f"line {match.line}: {match.says}" for match in others[:2]))
    if result.consequences:
        lines = sum(match.matches for match in result.consequences)
        names = ", ".join(dict.fromkeys(match.class_ for match in result.consequences))
        verb = "is a consequence" if lines == 1 else "are consequences"
        yield Line(f"{count_of(lines, 'more line')} {verb}: {names} (-v: which)", style="dim")


def _match(match: Match, mark: CheckStatus) -> Iterator[Block]:
    times = "" if match.matches == 1 else f", {match.matches} times up to line {match.last_line}"
    yield Line(f"line {match.line}{times}: {match.says}", mark)
    yield Line(match.excerpt, indent=INDENT, style="dim")
