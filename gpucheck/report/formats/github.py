"""GitHub Actions format: annotations as workflow commands, and Markdown for the step summary.

Names in a report come from outside (cards, processes), and machines read both forms: no name may
end a command, begin another one, or leave its table cell.
"""

from __future__ import annotations

from collections.abc import Sequence

from gpucheck.report.envelope import Report
from gpucheck.report.text import View, as_markdown, printable
from gpucheck.report.verdicts import RED, Kind, Verdict, verdicts_of

#: GitHub shows ten annotations of each kind for a step, and silently drops the others.
MOST_ANNOTATIONS = 10
#: A summary may hold 1 MiB; more rows than this are of no use.
_MOST_ROWS = 200
_SIGNS = {
    Kind.FAILURE: "❌ fail",
    Kind.ERROR: "❓ inconclusive",
    Kind.WARNING: "⚠️ warning",
    Kind.SKIPPED: "⏭️ skipped",
    Kind.PASS: "✅ pass",
}


def workflow_commands(report: Report) -> list[str]:
    """Return the workflow commands: an error for each failed verdict, a warning for the others."""
    verdicts = verdicts_of(report)
    errors = [verdict for verdict in verdicts if verdict.kind in RED]
    warnings = [verdict for verdict in verdicts if verdict.kind is Kind.WARNING]
    return [*_commands("error", errors), *_commands("warning", warnings)]


def _commands(level: str, verdicts: Sequence[Verdict]) -> list[str]:
    shown = verdicts
    if len(verdicts) > MOST_ANNOTATIONS:
        shown = verdicts[: MOST_ANNOTATIONS - 1]
    lines = [
        f"::{level} title={_property(_title(verdict))}::{_data(_sentence(verdict))}"
        for verdict in shown
    ]
    if len(shown) < len(verdicts):
        more = f"{len(verdicts) - len(shown)} more in the step summary"
        lines.append(f"::{level} title=gpucheck::{_data(more)}")
    return lines


def _title(verdict: Verdict) -> str:
    cause = f" ({verdict.class_})" if verdict.class_ else ""
    return f"gpucheck {verdict.device} {verdict.check}{cause}"


def _sentence(verdict: Verdict) -> str:
    values = ", ".join(f"{name} {value}" for name, value in verdict.values)
    return f"{verdict.message} ({values})" if values else verdict.message


def _data(text: str) -> str:
    """Escape the message of a workflow command."""
    escaped = printable(text).replace("%", "%25")
    return escaped.replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    """Escape a property of a workflow command, which a comma or a colon would end."""
    return _data(text).replace(":", "%3A").replace(",", "%2C")


def render(report: Report, view: View) -> str:
    """Return the step summary: a headline, the bad verdicts, then the rest."""
    verdicts = verdicts_of(report)
    host = as_markdown(report.host.name or "this machine")
    lines = [f"## gpucheck {report.command} on {host}: {_headline(report, verdicts)}", ""]
    if report.error is not None:
        lines += [f"**{as_markdown(report.error.message)}**", ""]
        lines += [f"- {as_markdown(step)}" for step in report.error.remedy]
        lines += [""] if report.error.remedy else []
    bad = [verdict for verdict in verdicts if verdict.kind in (*RED, Kind.WARNING)]
    good = [verdict for verdict in verdicts if verdict not in bad]
    lines += _table(bad)
    if good:
        noun = "more" if bad else "check" if len(good) == 1 else "checks"
        lines += [f"<details><summary>{len(good)} {noun}</summary>", ""]
        lines += [*_table(good), "</details>"]
        lines += [""]
    lines += [f"> {as_markdown(notice.message)}" for notice in report.warnings]
    return "\n".join(lines).rstrip() + "\n\n"


def _headline(report: Report, verdicts: Sequence[Verdict]) -> str:
    counts = [
        (sum(verdict.kind is kind for verdict in verdicts), sign.partition(" ")[2])
        for kind, sign in _SIGNS.items()
    ]
    counted = ", ".join(f"{count} {word}" for count, word in counts if count)
    return f"{counted or 'no check'} (code {int(report.exit_code)})"


def _table(verdicts: Sequence[Verdict]) -> list[str]:
    if not verdicts:
        return []
    lines = ["| device | check | verdict | class | figures | why |", "|--|--|--|--|--|--|"]
    for verdict in verdicts[:_MOST_ROWS]:
        cells = (
            as_markdown(verdict.device),
            as_markdown(verdict.check),
            _SIGNS[verdict.kind],
            as_markdown(verdict.class_ or ""),
            "<br>".join(
                f"{as_markdown(name)} {as_markdown(value)}" for name, value in verdict.values
            ),
            "<br>".join(map(as_markdown, (verdict.message, *verdict.lines))),
        )
        lines.append(f"| {' | '.join(cells)} |")
    if len(verdicts) > _MOST_ROWS:
        lines += ["", f"{len(verdicts) - _MOST_ROWS} more are in the report."]
    return [*lines, ""]
