"""Nodes made out of their documents: the same host twice, foreign GPUs, clocks, racks, missing."""

from __future__ import annotations

from typing import Any

import pytest

from gpucheck.fleet.collect import Collected
from gpucheck.fleet.documents import Found, Place
from gpucheck.fleet.hostlist import Expected, read_expected
from gpucheck.fleet.model import FleetNode, FleetReport, JudgementRule, Outcome
from gpucheck.fleet.report import differences, report
from gpucheck.report.envelope import Host
from gpucheck.report.errors import ExitCode, WrongUseError
from tests.fleet.documents import bench, detect, envelope


def reported(
    *documents: dict[str, Any] | None,
    hosts: tuple[str, ...] | None = None,
    files: tuple[str, ...] = (),
    **more: Any,
) -> tuple[FleetReport, ExitCode]:
    """Return the report over documents; None is a damaged one."""
    collected = Collected(hosts or ())
    for number, document in enumerate(documents):
        name = files[number] if files else f"{number}.json"
        problem = "it is damaged" if document is None else None
        collected.add(Found(Place(name), document, problem))
    expected = None if hosts is None else Expected(hosts, {})
    answer = report(collected, expected, Host(), **more)
    assert isinstance(answer.result, FleetReport)
    return answer.result, answer.exit_code


def only(found: FleetReport) -> FleetNode:
    (node,) = found.nodes
    return node


def at(hour: int) -> str:
    return f"2026-11-22T{hour:02d}:00:00Z"


def test_newest_document_of_a_command_decides() -> None:
    old, new = detect("n", failing={"nvml": "x"}, time=at(1)), detect("n", time=at(2))

    for documents in ((old, new), (new, old)):
        node = only(reported(*documents)[0])
        assert node.outcome is Outcome.OK
        assert (node.runs, node.failed_in) == (2, 1)
        assert node.reasons == ("failed in 1 of 2 runs",)


def test_two_failures_of_three_are_one() -> None:
    bad = [detect("n", failing={"nvml": "x"}, time=at(hour)) for hour in (1, 2)]

    found, code = reported(*bad, detect("n", time=at(3)))

    assert only(found).outcome is Outcome.FAILED
    assert code is ExitCode.BAD


def test_the_worst_of_several_commands_counts() -> None:
    found, _ = reported(detect("n", time=at(2)), bench("n", code=1, time=at(1)))

    assert only(found).outcome is Outcome.FAILED


def test_the_cause_comes_before_what_other_commands_say_of_it() -> None:
    error = {"code": "nvml-driver-not-loaded", "message": "The GPUs cannot be listed."}
    listed = envelope("n", "list", None, code=4, error=error)

    node = only(reported(listed, detect("n", failing={"kernel-module": "not-loaded"}))[0])

    assert node.reasons == ("kernel-module: not-loaded", "The GPUs cannot be listed")


def test_same_document_twice_counts_once() -> None:
    assert only(reported(bench("n"), bench("n"))[0]).documents == 1


def test_damaged_document_gives_way_to_a_later_good_one() -> None:
    hosts, files = ("n",), ("n.json", "n.json")

    after, _ = reported(detect("n"), None, hosts=hosts, files=files)
    before, _ = reported(None, detect("n"), hosts=hosts, files=files)

    assert only(after).outcome is Outcome.UNREADABLE
    assert only(before).outcome is Outcome.OK


def test_file_of_an_expected_host_is_its_document() -> None:
    found, code = reported(
        detect("pod-x7"), None, hosts=("n1", "n2"), files=("n1.json", "n2.json.gz")
    )

    assert [(node.host, node.outcome) for node in found.nodes] == [
        ("n1", Outcome.OK),
        ("n2", Outcome.UNREADABLE),
    ]
    assert code is ExitCode.INCONCLUSIVE


@pytest.mark.parametrize(
    ("said", "hosts"),
    [("n1.cluster", ("n1",)), ("n1", ("n1.cluster",)), ("n1.a", ("n1.a", "n1.b"))],
)
def test_short_and_full_names_are_one_host(said: str, hosts: tuple[str, ...]) -> None:
    found, _ = reported(detect(said), hosts=hosts)

    assert found.nodes[0].outcome is Outcome.OK


def test_addresses_are_never_shortened() -> None:
    found, _ = reported(detect("10.0.0.1"), hosts=("10.0.0.2",))

    assert [node.outcome for node in found.nodes] == [Outcome.MISSING, Outcome.UNEXPECTED]


def test_gpu_of_two_hosts_is_said_of_both() -> None:
    one, other = bench("a"), bench("a")
    other["host"]["name"] = "b"

    found, code = reported(one, other)

    assert all(node.different for node in found.nodes)
    assert any("also reported by b" in reason for reason in found.nodes[0].reasons)
    assert code is ExitCode.OK


def test_two_machines_of_one_name_are_told() -> None:
    other = bench("b")
    other["host"]["name"] = "a"

    node = only(reported(bench("a"), other)[0])

    assert node.documents == 2
    assert any("two machines of one name" in reason for reason in node.reasons)


def test_old_document_or_wrong_clock_is_told() -> None:
    others = [detect(f"n{number}", time="2026-11-22T03:00:00Z") for number in range(4)]

    found, _ = reported(*others, detect("late", time="2026-11-12T03:00:00Z"))

    (late,) = [node for node in found.nodes if node.different]
    assert late.host == "late"
    assert "10.0 days older" in late.reasons[0]


@pytest.mark.parametrize(
    ("missing", "allowed", "code"),
    [(0, 0, ExitCode.OK), (1, 0, ExitCode.BAD), (1, 1, ExitCode.OK), (2, 1, ExitCode.BAD)],
)
def test_missing_nodes_count_against_the_allowance(
    missing: int, allowed: int, code: ExitCode
) -> None:
    hosts = ("a", *(f"m{number}" for number in range(missing)))

    found, ended = reported(detect("a"), hosts=hosts, max_missing=allowed)

    assert ended is code
    assert found.outcomes.get("missing", 0) == missing


def test_nothing_but_missing_nodes_is_never_healthy() -> None:
    assert reported(hosts=("a",), max_missing=9)[1] is ExitCode.INCONCLUSIVE
    assert reported()[1] is ExitCode.INCONCLUSIVE


def test_slow_node_is_bad_and_names_its_gpus() -> None:
    documents = [bench(f"n{number}") for number in range(5)]
    documents[2] = bench("n2", [1.0, 0.9, *[1.0] * 6])

    found, code = reported(*documents)

    (slow,) = [node for node in found.nodes if node.slow]
    assert (slow.host, slow.outcome, code) == ("n2", Outcome.OK, ExitCode.BAD)
    assert slow.reasons == ("GPU 1 is 10.0 % slower in copy",)
    assert found.conclusion == "5 nodes: 1 slow"
    assert found.slow[0].facts == ("power-cap 40 % of the time", "70 C", "1700 MHz")


def test_list_of_hosts_has_racks(tmp_path: Any) -> None:
    path = tmp_path / "hosts"
    path.write_text("a[1-2] r1 # left\n\n# none\nb\n")

    found = read_expected(f"@{path}")

    assert found == Expected(("a1", "a2", "b"), {"a1": "r1", "a2": "r1"})


@pytest.mark.parametrize("content", [b"", b"# nobody\n", b"a\xff\n", b"a[ r1\n"])
def test_useless_list_of_hosts_is_wrong_use(content: bytes, tmp_path: Any) -> None:
    path = tmp_path / "hosts"
    path.write_bytes(content)

    with pytest.raises(WrongUseError):
        read_expected(f"@{path}")


# ----------------------------------------------------------------------------- what differs


Described = tuple[str | None, str, dict[str, str]]


def described(*values: str, of: str | None = "H100") -> list[Described]:
    return [(of, f"n{number}", {"vbios_version": value}) for number, value in enumerate(values)]


def rows(found: list[Described]) -> list[tuple[str, str | None, int, tuple[str, ...]]]:
    return [
        (one.value, one.majority, one.count, one.hosts)
        for one in differences(found, JudgementRule())
    ]


def test_equal_ones_give_no_row() -> None:
    assert rows(described("a", "a", "a")) == []


def test_odd_one_is_named_beside_the_majority() -> None:
    assert rows(described("a", "b", "a", "a")) == [("b", "a", 1, ("n1",))]


def test_without_a_majority_every_value_is_a_row() -> None:
    found = rows(described("a", "b", "a", "b"))

    assert found == [("a", None, 2, ("n0", "n2")), ("b", None, 2, ("n1", "n3"))]


def test_of_two_nobody_knows_which_is_right() -> None:
    assert rows(described("a", "b")) == []


def test_kinds_are_not_compared_with_each_other() -> None:
    assert rows([*described("a", "a", "a"), *described("b", "b", "b", of="A100")]) == []


def test_a_host_with_many_gpus_is_named_once() -> None:
    ones: list[Described] = [("H100", "n0", {"ecc_mode": "off"})] * 8
    others: list[Described] = [("H100", "n1", {"ecc_mode": "on"})] * 24

    assert rows(ones + others) == [("off", "on", 8, ("n0",))]


def test_what_everybody_has_differently_is_no_row() -> None:
    assert rows(described(*(str(number) for number in range(50)))) == []


def test_one_host_with_many_values_hides_no_other() -> None:
    liar: list[Described] = [("H100", "liar", {"ecc_mode": f"{value}"}) for value in range(50)]
    others: list[Described] = [("H100", f"n{number}", {"ecc_mode": "on"}) for number in range(90)]
    odd: list[Described] = [("H100", "odd", {"ecc_mode": "off"})] * 8

    found = rows(liar + others + odd)

    assert found[0] == ("off", "on", 8, ("odd",))
    assert len(found) == 20
