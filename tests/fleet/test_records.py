"""A fleet's report for other systems, each read back by the reader it is for."""

from __future__ import annotations

import json
from typing import Any
from xml.etree import ElementTree

import pytest
from prometheus_client.parser import text_string_to_metric_families

from gpucheck.fleet.collect import Collected
from gpucheck.fleet.documents import Entry
from gpucheck.fleet.model import SILENT, FleetNode, FleetReport, Outcome
from gpucheck.fleet.report import report
from gpucheck.fleet.view import verdicts
from gpucheck.report.envelope import TOOL, Answer, Report, status_of
from gpucheck.report.formats import open_format
from gpucheck.report.host import Host
from gpucheck.report.text import View
from gpucheck.report.verdicts import Kind
from tests.fleet.documents import bench, detect
from tests.report.formats.recorded import recorded


def collected(*documents: dict[str, Any], expected: tuple[str, ...] = ()) -> Collected:
    found = Collected(expected)
    for number, document in enumerate(documents):
        found.add(Entry("in.jsonl", number + 1, document))
    return found


def wrapped(answer: Answer) -> Report:
    code = answer.exit_code
    return Report(
        *("fleet", "gpucheck/fleet/1", TOOL, "2026-11-22T04:00:00Z", Host(name="head")),
        status_of(code, warnings=bool(answer.warnings)),
        *(code, answer.error, answer.result, answer.warnings),
    )


@pytest.fixture(name="fleet", scope="module")
def _fleet() -> Report:
    """Return a report with a slow, a failed, a missing and a different node."""
    hosts = tuple(f"n{number}" for number in range(6))
    documents = [bench(host, driver="580.95.05") for host in hosts[:5]]
    documents[1] = bench("n1", [1.0] * 7 + [0.85])
    documents[4] = bench("n4", vbios="96.00.88")
    documents.append(detect("n2", failing={"gpu-lost": "xid-79"}))
    expected: dict[str, str | None] = dict.fromkeys(hosts, "r1")
    return wrapped(report(collected(*documents, expected=hosts), expected, Host()))


def test_metrics_name_who_is_not_well(fleet: Report) -> None:
    text = open_format("prometheus")(fleet, View())

    ours = text[text.index("# HELP gpucheck_fleet_nodes") :]
    assert ours == recorded("fleet-metrics", ours)
    found = {family.name: family.samples for family in text_string_to_metric_families(text)}
    unhealthy = {
        one.labels["hostname"]: one.labels["outcome"]
        for one in found["gpucheck_fleet_node_unhealthy"]
    }
    counts = {one.labels["outcome"]: one.value for one in found["gpucheck_fleet_nodes"]}
    (slow,) = found["gpucheck_fleet_gpu_slower_ratio"]
    assert unhealthy == {"n1": "slow", "n2": "failed", "n5": "missing"}
    assert (counts["ok"], counts["failed"], counts["missing"]) == (4, 1, 1)
    assert (slow.labels["hostname"], slow.labels["gpu"]) == ("n1", "7")
    assert slow.value == pytest.approx(0.15)
    assert [one.labels["hostname"] for one in found["gpucheck_fleet_node_different"]] == ["n4"]


@pytest.mark.parametrize(
    ("node", "kind"),
    [
        ({"outcome": "ok"}, Kind.PASS),
        ({"outcome": "ok", "slow": True}, Kind.FAILURE),
        ({"outcome": "failed"}, Kind.FAILURE),
        ({"outcome": "missing"}, Kind.FAILURE),
        ({"outcome": "timeout"}, Kind.FAILURE),
        ({"outcome": "busy"}, Kind.ERROR),
        ({"outcome": "unreadable"}, Kind.ERROR),
        ({"outcome": "ok", "different": True}, Kind.WARNING),
        ({"outcome": "unexpected"}, Kind.WARNING),
    ],
)
def test_a_node_is_a_verdict(node: dict[str, Any], kind: Kind) -> None:
    outcome = Outcome(node.pop("outcome"))
    found = FleetReport("", None, 1, 0, 1, {}, (FleetNode("n", outcome, **node),))

    (verdict,) = verdicts(found)
    (tolerated,) = verdicts(found._replace(max_missing=1))

    assert verdict.kind is kind
    assert tolerated.kind is (Kind.WARNING if outcome in SILENT else kind)
    assert verdict.class_ == ("slow" if node.get("slow") else outcome.value)
    assert verdict.message == verdict.class_
    assert verdicts("of another command") == []


def test_junit_has_a_case_for_each_node(fleet: Report) -> None:
    root = ElementTree.fromstring(open_format("junit")(fleet, View()))

    failed = {
        case.get("name") for case in root.iter("testcase") if case.find("failure") is not None
    }
    assert len(list(root.iter("testcase"))) == 6
    assert failed == {"n1", "n2", "n5"}


def test_lines_have_every_node_and_the_run_last(fleet: Report) -> None:
    lines = [json.loads(line) for line in open_format("jsonl")(fleet, View()).splitlines()]

    kinds = [line["record"] for line in lines]
    assert [line["host"] for line in lines if line["record"] == "node"] == [
        f"n{n}" for n in range(6)
    ]
    assert kinds.count("slow") == 1
    assert kinds.count("difference") == 1
    assert kinds[-1] == "run"


def test_page_escapes_what_nodes_call_themselves() -> None:
    found = wrapped(report(collected(detect("<script>x", failing={"a": "<img>"})), None, Host()))

    page = open_format("html")(found, View())

    assert "<script>" not in page
    assert "<img>" not in page
    assert "&lt;script&gt;x" in page
    assert "1 node: 0 ok, 1 failed" in page
