"""Pages: what stands where, and that nothing in a report can act or break them."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings

from gpucheck.bench.model import GateStatus
from gpucheck.cli.examples import find_recording
from gpucheck.detect.run import detect
from gpucheck.drivers import open_probes
from gpucheck.fleet.collect import Collected
from gpucheck.fleet.report import report as fleet_report
from gpucheck.report.blocks import Column, Row, Table
from gpucheck.report.envelope import Answer, Failure, Notice, Report
from gpucheck.report.errors import ExitCode
from gpucheck.report.formats.html import MOST_OF_A_NAME, _drawn, render
from gpucheck.report.host import Host
from gpucheck.report.text import View, printable
from tests.fakes.bench_results import doubt, product, result_of
from tests.fakes.reports import any_list, eventful_machine, list_report, wrap
from tests.fakes.verdicts import HOSTILE, gate
from tests.fakes.verdicts import report as bench_report
from tests.report.formats.pages import Page
from tests.sampling import examples

#: Charts are drawn in tests.report.test_charts.py: they cost seconds.
PLAIN = View(chart_remedy=("Install it: pip install 'gpucheck-cli[plot]'",))
PAYLOADS = (
    HOSTILE,
    "</script><script>alert(1)</script>",
    "</style><svg onload=alert(1)>",
    '"><img src=x onerror=alert(1)>',
    "javascript:alert(1)",
    "}body{display:none}/*",
    "\u202eevil\u200f\u2066",
    "]]><!--",
    "a\u0300" * 50,
)


def page(report: Report, **view: Any) -> Page:
    found = Page(render(report, PLAIN._replace(**view)))
    found.assert_inert()
    return found


# ------------------------------------------------------------------------------- what stands where


def test_the_verdict_comes_first_then_the_machine_then_the_rows() -> None:
    found = page(list_report(), processes=True)
    order = ("gpucheck list", "4 GPUs", "3 visible to CUDA", "Machine", "NVIDIA driver", "Details")

    places = [found.text.find(word) for word in order]

    assert -1 not in places
    assert places == sorted(places)


def test_a_bench_without_gates_says_what_was_measured_and_every_doubt_in_full() -> None:
    row = product(700.0, doubts=(doubt("throttled"),))
    text = page(bench_report(result_of(row))).text

    assert "MEASURED\n1 row" in text
    assert "1 with a doubt." in text
    assert row.doubts[0].message in text
    assert "700 TFLOP/s" in text


def test_a_wrong_result_is_the_headline() -> None:
    right = product(700.0).verified
    assert right is not None
    wrong = product(700.0, verified=replace(right, ok=False))

    for row in (wrong, replace(wrong, time_s=None, throughput=None)):
        assert "WRONG\n1 row, 1 WRONG" in page(bench_report(result_of(row))).text


@pytest.mark.parametrize(("status", "word"), [(GateStatus.PASS, "PASS"), (GateStatus.FAIL, "FAIL")])
def test_gates_give_the_verdict(status: GateStatus, word: str) -> None:
    found = result_of(product(700.0), gates=(gate(status, reason="too slow"),))
    code = ExitCode.BAD if status is GateStatus.FAIL else ExitCode.OK
    read = page(bench_report(found, code=code))

    assert f"{word}\n1 check" in read.text
    assert ("div", "class", f"verdict {word.lower().replace('pass', 'ok')}") in read.attributes


def test_a_failure_without_a_result_says_what_to_do() -> None:
    failure = Failure("no-driver", "There is no driver.", ("Load it: sudo modprobe nvidia",))
    text = page(bench_report(None, code=ExitCode.MISSING, failure=failure)).text

    assert "UNKNOWN\nThere is no driver." in text
    assert "What to do" in text
    assert "sudo modprobe nvidia" in text


def test_without_what_draws_them_a_page_has_no_charts_and_no_advice() -> None:
    row = product(700.0, flops=10**12, bytes_moved=10**9)
    text = page(bench_report(result_of(row))).text

    assert "700 TFLOP/s" in text
    assert "Charts" not in text
    assert "matplotlib" not in text
    assert "pip install" not in text


def test_few_doubts_among_right_rows_leave_the_headline_green() -> None:
    known = (1.3e-3, 1.5e-3)
    rows = [product(700.0, f"gpu:{number}", time_s=1.4e-3, repeat95_s=known) for number in range(6)]
    doubtful = [replace(row, doubts=(doubt("throttled"),)) for row in rows]

    one = page(bench_report(result_of(doubtful[0], *rows[1:])))
    many = page(bench_report(result_of(*doubtful[:3], *rows[3:])))

    assert ("div", "class", "verdict ok") in one.attributes
    assert ("div", "class", "verdict warn") in many.attributes


def test_what_failed_stands_before_what_passed() -> None:
    text = page(wrap("detect", detect(open_probes(find_recording("example:lost-gpu"))))).text
    order = (
        *("health: GPU 2", "xid:", "row-remapping:", "checks passed", "ecc-errors:"),
        *("pci: 0000:2a:00.0", "launch:", "environment:"),
    )

    details = text[text.index("Details") :]
    places = [details.find(word) for word in order]

    assert -1 not in places
    assert places == sorted(places)


def folded(source: str) -> list[tuple[str, str]]:
    """Return (summary, all that it hides) for each fold of a page."""
    return re.findall(r"<details[^>]*><summary>(.*?)</summary>(.*?)</details>", source, re.DOTALL)


@pytest.mark.parametrize(
    ("machine", "summaries", "inside"),
    [
        ("h100x8", ["N checks passed, N skipped"], ["environment", "pci", "health", "gpu-lost"]),
        (
            "lost-gpu",
            ["N checks passed"] * 3,
            ["environment", "kernel", "ecc-errors"],
        ),
    ],
)
def test_checks_that_passed_are_folded(
    machine: str, summaries: list[str], inside: list[str]
) -> None:
    report = wrap("detect", detect(open_probes(find_recording(f"example:{machine}"))))

    found = page(report)

    folds = folded(found.source)
    hidden = "".join(text for _, text in folds)
    assert [re.sub("[0-9]+", "N", summary) for summary, _ in folds] == summaries
    assert ("details", "open", "") not in found.attributes
    assert all(f"<span>{name}: " in hidden for name in inside)
    # What was not checked has not passed: a layer of it stands open.
    assert "<span>launch: " in found.source
    assert "<span>launch: " not in hidden
    assert not re.search(r'class="mark (fail|warn|unknown)"', hidden)


def test_nothing_of_another_command_is_folded() -> None:
    assert folded(page(bench_report(result_of(product(700.0)))).source) == []
    assert folded(page(list_report(), processes=True).source) == []


def test_a_number_alone_has_its_columns_name_and_a_sign_is_said_once() -> None:
    table = Table(
        (Column("GPU", right=True), Column("±"), Column("time")), (Row(("0", "±1 %", "2 s")),)
    )
    drawn = "".join(_drawn((table,)))

    assert re.findall(r'data-name="([^"]*)"', drawn) == ["GPU", "time"]


def test_a_fleets_page_says_where_it_was_written() -> None:
    text = page(wrap("fleet", fleet_report(Collected(), None, Host(name="laptop")))).text

    assert "Written on" in text
    assert "Machine" not in text


def test_every_warning_stands_at_the_end_even_if_it_stands_above() -> None:
    said = result_of(product(1.0), notes=("It is odd",))
    text = page(bench_report(said, warnings=(Notice("odd", "It is odd."),))).text

    assert text.count("It is odd") == 2


def test_warnings_stand_at_the_end() -> None:
    read = page(bench_report(result_of(product(1.0)), warnings=(Notice("odd", "It is odd."),)))

    assert read.text.index("Details") < read.text.index("It is odd.")


def test_tables_are_tables_for_those_who_listen() -> None:
    read = page(list_report())

    assert ("html", "lang", "en") in read.attributes
    assert ("th", "scope", "col") in read.attributes
    assert ("th", "scope", "row") in read.attributes


def test_a_recording_is_marked() -> None:
    assert "recorded example" in page(list_report(), source="example:h100x8").text


# ------------------------------------------------------------------------------------- injection


@pytest.mark.parametrize("payload", PAYLOADS, ids=range(len(PAYLOADS)))
def test_payloads_are_text(payload: str) -> None:
    probes = eventful_machine()
    rows = tuple(row._replace(name=payload) for row in probes.readings.gpus)
    probes.readings = probes.readings._replace(gpus=rows)
    people = {
        pid: who._replace(name=payload, user=payload, command=f"{payload} --x")
        for pid, who in probes.people.items()
    }
    probes.people = people
    gpus = list_report(probes)
    bench = result_of(product(700.0, doubts=(replace(doubt("throttled"), message=payload),)))
    failed = bench_report(None, failure=Failure("x", payload, (f"Run: {payload}",)), host=payload)

    shown = [
        page(gpus._replace(host=Host(name=payload, os=payload)), processes=True, verbosity=2),
        page(bench_report(bench, host=payload, warnings=(Notice("x", payload),))),
        page(failed),
    ]

    assert all(printable(payload) in read.text for read in shown)


@settings(max_examples=examples(8))
@given(any_list())
def test_any_list_is_an_inert_page(report: Report) -> None:
    page(report, processes=True)


def test_a_name_of_a_megabyte_is_cut() -> None:
    host = Host(name="n" * 1_000_000)
    read = page(wrap("list", Answer(result=None, exit_code=ExitCode.MISSING, host=host)))

    assert len(read.source) < 40_000
    assert f"({1_000_000 - MOST_OF_A_NAME} more characters)" in read.text


def test_the_same_report_gives_the_same_page() -> None:
    assert render(list_report(), PLAIN) == render(list_report(), PLAIN)
