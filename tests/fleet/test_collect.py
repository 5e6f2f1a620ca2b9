"""Documents as they are collected, those too that no gpucheck writes."""

from __future__ import annotations

from typing import Any

import pytest

from gpucheck.fleet.collect import Collected, Gpu, Node
from gpucheck.fleet.documents import Entry
from gpucheck.fleet.model import FleetReport, Outcome
from gpucheck.fleet.report import report
from gpucheck.report.errors import ExitCode
from gpucheck.report.host import Host
from tests.fleet.documents import bench, detect


def reported(document: dict[str, Any]) -> Any:
    collected = Collected()
    collected.add(Entry("a.json", None, document))
    return report(collected, None, Host(name="here"))


@pytest.mark.parametrize("result", [None, [1], "cut"])
def test_a_document_without_a_result_is_never_healthy(result: object) -> None:
    answer = reported(detect("n1") | {"result": result})

    assert answer.exit_code is ExitCode.INCONCLUSIVE
    assert answer.result.nodes[0].outcome is Outcome.UNREADABLE


@pytest.mark.parametrize(
    ("time", "shown"),
    [
        ("0001-01-01T00:00:00+14:00", None),
        ("9999-12-31T23:59:59-14:00", None),
        ("0001-01-01T00:00:00Z", "0001-01-01T00:00:00Z"),
        ("1969-12-31T23:59:59.5", "1970-01-01T00:00:00Z"),
        ("2026-11-22T03:00:00+01:00", "2026-11-22T02:00:00Z"),
    ],
)
def test_a_time_outside_of_the_calendar_is_none(time: str, shown: str | None) -> None:
    answer = reported(detect("n1") | {"time": time})

    assert answer.result.nodes[0].time == shown


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
    collected.add(Entry("out/gpu1.json", None, detect("gpu2", failing={"xid": "79"})))
    collected.add(Entry("out/gpu2.json", None, detect("gpu2")))
    collected.add(Entry("out/all.jsonl", 1, detect("gpu2", time="2026-11-22T03:00:05Z")))

    outcomes = {host: node.outcome() for host, node in collected.nodes.items()}

    assert outcomes == {"gpu1": Outcome.FAILED, "gpu2": Outcome.OK}


def test_a_gpu_is_its_nodes_whatever_another_says_of_it() -> None:
    collected = Collected()
    honest, liar = bench("a"), bench("a", [0.5] * 8)
    liar["host"]["name"] = "b"
    for document in (honest, *(bench(f"n{number}") for number in range(4)), liar):
        collected.add(Entry("all.jsonl", 1, document))

    found = report(collected, None, Host()).result

    assert isinstance(found, FleetReport)
    slow = {node.host: node.slow for node in found.nodes if node.different}
    assert slow == {"a": False, "b": True}
    assert [len(node.gpus) for node in found.nodes] == [8] * 6


def test_one_gpu_on_all_hosts_is_named_in_few_words() -> None:
    collected = Collected()
    for number in range(9):
        document = detect("n", gpus=1) | {"host": {"name": f"n{number}"}}
        collected.add(Entry("all.jsonl", 1, document))

    found = report(collected, None, Host()).result

    assert isinstance(found, FleetReport)
    said = "one of its GPUs is also reported by n0, n2, n3 and 5 more: GPU-"
    assert found.nodes[1].reasons[0].startswith(said)


def test_workers_of_one_machine_share_its_gpus() -> None:
    collected = Collected(one_machine=True)
    for number in range(3):
        name = {"host": {"name": f"local-{number}"}}
        collected.add(Entry("all.jsonl", 1, detect("n") | name))

    found = report(collected, None, Host()).result

    assert isinstance(found, FleetReport)
    assert not any(node.different for node in found.nodes)


@pytest.mark.parametrize(
    ("file", "line", "expected", "host"),
    [
        ("out/n1.json", None, (), "n1"),
        ("out/n1.json", None, ("n1.cluster",), "n1.cluster"),
        ("out/n1.json", 1, (), None),
        ("standard input", None, (), None),
        ("/dev/fd/63", None, (), None),
    ],
)
def test_a_verdict_without_a_host_is_of_the_node_that_its_file_is_named_after(
    file: str, line: int | None, expected: tuple[str, ...], host: str | None
) -> None:
    collected = Collected(expected)
    collected.add(Entry(file, line, {"overall_severity": "CRITICAL"}))

    assert list(collected.nodes) == ([host] if host else [])
    assert collected.problem_count == (host is None)


def test_kinds_that_are_passed_over_are_named_a_few_times() -> None:
    collected = Collected()
    for letter in "abcdefghijklmnopqrstuvwxyz":
        collected.add(Entry("all.jsonl", 1, {"schema": f"gpucheck/{letter}/1"}))

    warnings = report(collected, None, Host()).warnings

    assert len(warnings) == 21
    assert "6 documents left out" in warnings[-1].message


def test_answers_of_one_second_are_told_apart_by_their_outcome() -> None:
    collected = Collected()
    line = {"schema": "gpucheck/fleet-node/1", "host": "n", "command": "detect"}
    for outcome in ("not-installed", "lost", "lost"):
        collected.add(
            Entry("all.jsonl", 1, {**line, "outcome": outcome, "time": "2026-11-22T03:00:00Z"})
        )

    assert collected.nodes["n"].documents == 2
    assert collected.nodes["n"].outcome() is Outcome.LOST


def test_what_the_sensors_saw_stays_until_newer_ones_see_more() -> None:
    for documents in (
        (bench("n", time="2026-11-22T02:00:00Z"), detect("n", time="2026-11-22T04:00:00Z")),
        (bench("n", time="2026-11-22T04:00:00Z"), bench("n", time="2026-11-22T02:00:00Z")),
    ):
        first = documents[0]["result"]["telemetry"]["gpus"]
        for gpu in first:
            gpu["temperature_c"] = {"high": 99}
        collected = Collected()
        for document in documents:
            collected.add(Entry("a.jsonl", 1, document))
        assert all("99 C" in gpu.facts for gpu in collected.gpus)


def test_the_number_of_a_gpu_is_nvmls_where_somebody_knows_it() -> None:
    document = bench("n", (1.0,))
    document["result"]["environment"]["gpus"][0]["cuda_index"] = 5
    listed = detect("n", gpus=1)

    for documents in ((document, listed), (listed, document)):
        collected = Collected()
        for one in documents:
            collected.add(Entry("a.jsonl", 1, one))
        assert [gpu.index for gpu in collected.gpus] == [0]


def test_problems_are_named_up_to_a_thousand_and_counted_beyond() -> None:
    collected = Collected()
    for number in range(1002):
        collected.add(Entry("a.jsonl", number, None, "it is no JSON"))

    assert (collected.problem_count, len(collected.problems)) == (1002, 1000)
    assert (collected.problems[-1].line, collected.problems[-1].problem) == (999, "it is no JSON")


def test_of_commands_that_failed_as_often_the_one_with_more_runs_is_told() -> None:
    node = Node("n1", counts={"bench": (3, 1), "detect": (5, 1), "list": (9, 0)})

    assert node.repeats() == (5, 1)
    assert Node("n2").repeats() == (0, 0)


def test_gpus_of_a_node_are_in_the_order_of_their_numbers_and_those_without_come_last() -> None:
    gpus = [
        Gpu(uuid=uuid, host="n", number=0, index=index)
        for uuid, index in (("GPU-a", None), ("GPU-d", 1), ("GPU-c", 0), ("GPU-b", None))
    ]
    node = Node("n", gpus={gpu.uuid: gpu for gpu in gpus})

    assert [gpu.uuid for gpu in node.ordered_gpus()] == ["GPU-c", "GPU-d", "GPU-a", "GPU-b"]
