"""Markdown for tickets: whole outputs, and names that stay where they are."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings

from gpucheck.bench.model import GateStatus
from gpucheck.detect.run import detect
from gpucheck.report.envelope import Failure, Notice
from gpucheck.report.errors import ExitCode
from gpucheck.report.formats.markdown import render
from gpucheck.report.text import View, as_markdown
from tests.fakes.bench_results import doubt, product, result_of
from tests.fakes.reports import any_list, eventful_machine, list_report, wrap
from tests.fakes.verdicts import HOSTILE, gate, report
from tests.report.formats.recorded import recorded
from tests.sampling import examples

#: Markup of ours: what may stand unescaped.
_TABLE = re.compile(r"\|.*\|")


def test_whole_reports() -> None:
    for name, found in {
        "list": list_report(),
        "detect": wrap("detect", detect(eventful_machine())),
        "bench": report(result_of(product(700.0, doubts=(doubt("throttled"),)))),
    }.items():
        text = render(found, View(processes=True))
        assert text == recorded(f"markdown-{name}", text)


def test_the_verdict_is_the_heading() -> None:
    found = result_of(product(700.0), gates=(gate(GateStatus.FAIL, reason="too slow"),))

    lines = render(report(found, code=ExitCode.BAD), View()).splitlines()

    assert lines[0] == "## ❌ FAIL: gpucheck bench on node17"
    assert lines[2] == "**1 check failed**"


def test_a_failure_says_what_to_do_as_commands_to_copy() -> None:
    failure = Failure("x", "No driver.", ("Load it: sudo modprobe nvidia", "Or ask."))

    text = render(report(None, code=ExitCode.MISSING, failure=failure), View())

    assert "**No driver.**" in text
    assert "1. Load it:\n   ```sh\n   sudo modprobe nvidia\n   ```\n2. Or ask.\n" in text


def test_a_code_block_cannot_be_left() -> None:
    failure = Failure("x", "y", ("Run: sudo echo ````` end",))

    text = render(report(None, failure=failure), View())

    assert "``````sh\n" in text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a|b", r"a\|b"),
        ("`x`", r"\`x\`"),
        ("<script>&amp;", r"\<script\>\&amp;"),
        ("[a](http://b)", r"\[a\](http\://b)"),
        ("WWW.b.example", r"WWW\.b.example"),
        ("- x", r"\- x"),
        ("1. x", r"1\. x"),
        ("8.0/79.6 GiB", "8.0/79.6 GiB"),
        ("-12.5 %", "-12.5 %"),
        ("a\nb\u202e", "a\\\\nb\\\\u202e"),
    ],
)
def test_escapes(text: str, shown: str) -> None:
    assert as_markdown(text) == shown


def test_hostile_names_stay_text() -> None:
    found = report(result_of(product(1.0)), host=HOSTILE, warnings=(Notice("x", HOSTILE),))

    text = render(found, View())

    assert not re.search(r"(?<!\\)<(?!sub>|/sub>|br>)", text)
    assert "](" not in text.replace(r"\](", "")
    assert not any(line.startswith("::") for line in text.splitlines())


@settings(max_examples=examples(10))
@given(any_list())
def test_any_list_has_whole_tables(found) -> None:
    text = render(found, View(processes=True))

    assert {char for char in text if not char.isprintable()} <= {"\n"}
    widths = []
    for line in text.splitlines():
        if _TABLE.fullmatch(line):
            widths.append(len(re.findall(r"(?<!\\)\|", re.sub(r"\\\\", "", line))))
        else:
            assert len(set(widths)) <= 1
            widths = []
