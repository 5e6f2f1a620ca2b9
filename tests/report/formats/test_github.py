"""What GitHub Actions is told: commands that nothing in them can end, and a summary to read."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucheck.bench.model import GateClass, GateStatus, Severity
from gpucheck.report.envelope import Failure
from gpucheck.report.errors import ExitCode
from gpucheck.report.formats.github import MOST_ANNOTATIONS, render, workflow_commands
from gpucheck.report.text import View
from tests.fakes.verdicts import HOSTILE, gate, of_every_kind, report, result

COMMAND = re.compile(r"::(error|warning) title=([^:,]*)::([^\r\n]*)")


def parsed(line: str) -> tuple[str, str, str]:
    """Return level, title and message as the runner understands a line."""
    found = COMMAND.fullmatch(line)
    assert found is not None, line
    level, title, message = found.groups()
    for code, char in (("%3A", ":"), ("%2C", ","), ("%0A", "\n"), ("%0D", "\r"), ("%25", "%")):
        title, message = title.replace(code, char), message.replace(code, char)
    return level, title, message


def test_red_verdicts_are_errors_and_warnings_are_warnings() -> None:
    found = [parsed(line)[:2] for line in workflow_commands(of_every_kind())]

    assert found == [
        ("error", "gpucheck gpu:0 pcie (config)"),
        ("error", "gpucheck gpu:1 gemm.bf16 (thermal)"),
        ("error", "gpucheck gpu:2 gemm.bf16 (noise)"),
        ("warning", "gpucheck gpu:4 gemm.bf16"),
        ("warning", "gpucheck gpu:5 gemm.bf16 (hardware)"),
    ]


def test_a_message_has_the_reason_and_the_figures() -> None:
    _, _, message = parsed(workflow_commands(of_every_kind())[1])

    assert message.startswith("3.9 % too slow (measured 710 TFLOP/s, at least 739.4 TFLOP/s")


def test_a_good_report_says_nothing() -> None:
    assert workflow_commands(report(result(gate()))) == []


@pytest.mark.parametrize("count", [MOST_ANNOTATIONS, MOST_ANNOTATIONS + 1, 25])
def test_no_more_than_github_shows(count: int) -> None:
    gates = [gate(GateStatus.FAIL, device=f"gpu:{n}", reason="slow") for n in range(count)]
    lines = workflow_commands(report(result(*gates), code=ExitCode.BAD))

    assert len(lines) == MOST_ANNOTATIONS
    more = count - MOST_ANNOTATIONS + 1
    assert (f"{more} more in the step summary" in lines[-1]) is (count > MOST_ANNOTATIONS)


@given(st.text())
def test_no_text_ends_a_command_or_begins_another(text: str) -> None:
    bad = gate(GateStatus.FAIL, name=text, reason=text, class_=GateClass.HARDWARE)
    (line,) = workflow_commands(report(result(bad), code=ExitCode.BAD))

    level, title, _ = parsed(line)
    assert level == "error"
    assert title.startswith("gpucheck gpu:0 ")
    assert "\n" not in line
    assert "\x1b" not in line


def test_hostile_names_in_the_summary_are_text() -> None:
    bad = gate(GateStatus.FAIL, name=HOSTILE, reason=HOSTILE, class_=GateClass.HARDWARE)
    failure = Failure(code="x", message=HOSTILE, remedy=(HOSTILE,))
    text = render(report(result(bad), code=ExitCode.BAD, failure=failure, host=HOSTILE), View())

    rows = [line for line in text.splitlines() if line.startswith("| gpu")]
    assert len(rows) == 1
    assert len(re.findall(r"(?<!\\)\|", rows[0])) == 7
    assert re.search(r"(?<!\\)<script", text) is None
    assert "\x1b" not in text
    assert re.search(r"(?<!\\)\[link", text) is None


def test_hostile_names_render_as_text() -> None:
    """Rendered by a Markdown parser: no tag, link or emphasis but our own."""
    from markdown_it import MarkdownIt

    bad = gate(GateStatus.FAIL, name=HOSTILE, reason=HOSTILE, class_=GateClass.HARDWARE)
    failure = Failure(code="x", message=HOSTILE, remedy=(HOSTILE,))
    text = render(report(result(bad, gate()), code=ExitCode.BAD, failure=failure), View())
    tokens = MarkdownIt("commonmark").enable("table").parse(text)
    inline = [child for token in tokens for child in token.children or ()]

    assert {child.content for child in inline if child.type == "html_inline"} == {"<br>"}
    assert {child.type for child in inline} <= {
        *("text", "text_special", "html_inline", "strong_open", "strong_close"),
    }
    blocks = "".join(token.content for token in tokens if token.type == "html_block")
    assert set(re.findall(r"<[^>]*>", blocks)) == {
        *("<details>", "</details>", "<summary>", "</summary>"),
    }
    assert sum(token.type == "td_open" for token in tokens) == 12


def test_the_summary_begins_with_what_is_bad() -> None:
    text = render(of_every_kind(), View())

    head, _, folded = text.partition("<details>")
    assert head.startswith("## gpucheck bench on node17: 2 fail, 1 inconclusive, 2 warning")
    assert "3.9 % too slow" in head
    assert "this card has no bfloat16" in folded
    assert "(code 1)" in head


def test_a_failure_without_verdicts_is_told() -> None:
    failure = Failure(code="no-gpu", message="There is no GPU.", remedy=("Run: gpucheck detect",))
    missing = report(None, code=ExitCode.MISSING, failure=failure)

    assert parsed(workflow_commands(missing)[0])[2] == "There is no GPU."
    assert "- Run: gpucheck detect" in render(missing, View())


def test_a_warning_of_severity_is_not_red() -> None:
    warned = gate(GateStatus.FAIL, severity=Severity.WARN, reason="slow")

    assert parsed(workflow_commands(report(result(warned)))[0])[0] == "warning"


def test_a_long_report_stays_within_a_summary() -> None:
    gates = [gate(GateStatus.FAIL, device=f"gpu:{n}", reason="slow" * 50) for n in range(3000)]
    text = render(report(result(*gates), code=ExitCode.BAD), View())

    assert len(text.encode()) < 2**20
    assert "2800 more are in the report." in text
