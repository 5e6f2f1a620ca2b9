"""Documents as they are collected, those too that no gpucheck writes."""

from __future__ import annotations

from typing import Any

import pytest

from gpucheck.fleet.collect import Collected
from gpucheck.fleet.documents import Found, Place
from gpucheck.fleet.model import Outcome
from gpucheck.fleet.report import report
from gpucheck.report.envelope import Host
from gpucheck.report.errors import ExitCode
from tests.fleet.documents import bench, detect


def reported(document: dict[str, Any]) -> Any:
    collected = Collected()
    collected.add(Found(Place("a.json"), document))
    return report(collected, None, Host(name="here"))


@pytest.mark.parametrize("result", [None, [1], "cut"])
def test_a_document_without_a_result_is_never_healthy(result: object) -> None:
    answer = reported(detect("n1") | {"result": result})

    assert answer.exit_code is ExitCode.INCONCLUSIVE
    assert answer.result.nodes[0].outcome is Outcome.UNREADABLE


@pytest.mark.parametrize("time", ["0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00"])
def test_a_time_outside_of_the_calendar_is_none(time: str) -> None:
    answer = reported(detect("n1") | {"time": time})

    assert answer.result.nodes[0].time is None


def test_a_share_that_is_no_number_explains_nothing() -> None:
    document = bench("n1")
    document["result"]["telemetry"] = {
        "gpus": [
            {"uuid": gpu["uuid"], "reasons": {"sw_thermal": 10**400}}
            for gpu in document["result"]["environment"]["gpus"]
        ]
    }

    assert reported(document).exit_code is ExitCode.OK


def test_a_node_does_not_answer_in_the_name_of_another() -> None:
    collected = Collected(["gpu1", "gpu2"])
    collected.add(Found(Place("out/gpu1.json"), detect("gpu2", failing={"xid": "79"})))
    collected.add(Found(Place("out/gpu2.json"), detect("gpu2")))
    collected.add(Found(Place("out/all.jsonl", 1), detect("gpu2", time="2026-11-22T03:00:05Z")))

    outcomes = {host: node.outcome() for host, node in collected.nodes.items()}

    assert outcomes == {"gpu1": Outcome.FAILED, "gpu2": Outcome.OK}
