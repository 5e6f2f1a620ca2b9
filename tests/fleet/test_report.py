"""Nodes made out of their documents: the same host twice, foreign GPUs, clocks, racks, missing."""

from __future__ import annotations

from typing import Any

import pytest

from gpucheck.fleet.collect import Collected
from gpucheck.fleet.documents import Entry
from gpucheck.fleet.hostlist import read_expected
from gpucheck.fleet.model import FleetNode, FleetReport, JudgementRule, Outcome
from gpucheck.fleet.report import differences, report, shortened
from gpucheck.report.envelope import Answer
from gpucheck.report.errors import ExitCode, WrongUseError
from gpucheck.report.formats import open_format
from gpucheck.report.host import Host
from gpucheck.report.text import View
from tests.fakes.reports import wrap
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
        collected.add(Entry(name, None, document, problem))
    expected = None if hosts is None else dict.fromkeys(hosts)
    answer = report(collected, expected, Host(), **more)
    assert isinstance(answer.result, FleetReport)
    return answer.result, answer.exit_code


def table(found: FleetReport) -> str:
    return open_format("table")(wrap("fleet", Answer(result=found)), View(width=160))


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


def test_a_single_run_and_runs_that_never_failed_are_not_counted() -> None:
    once, _ = reported(detect("n", failing={"nvml": "x"}, time=at(1)))
    well, _ = reported(detect("n", time=at(1)), detect("n", time=at(2)))

    assert only(once).reasons == ("nvml: x",)
    assert only(well).reasons == ()


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


def test_the_table_says_of_a_well_node_what_is_different() -> None:
    documents = [detect(f"n{number}") for number in range(4)]
    copied = detect("n0") | {"host": documents[1]["host"] | {"name": "copy"}}
    found, _ = reported(*documents, copied)

    shown = table(found)

    lines = [line.split() for line in shown.splitlines()]
    assert [line[:2] for line in lines if "also" in line] == [
        ["copy", "different"], ["n0", "different"],
    ]  # fmt: skip
    assert shown.count("also reported by") == 2


def test_the_same_gpus_under_several_hosts_are_no_difference_from_most() -> None:
    hosts = [detect("n0"), detect("n0"), detect("n0")]
    for number, document in enumerate(hosts):
        document["host"]["name"] = f"w{number}"
    collected = Collected()
    for number, document in enumerate(hosts):
        collected.add(Entry(f"{number}.json", None, document))
    answer = report(collected, None, Host())

    assert isinstance(answer.result, FleetReport)
    assert answer.result.conclusion == "3 nodes: 3 ok, 3 with the same GPUs"
    assert [(one.code, one.message) for one in answer.warnings] == [
        ("same-gpus", "The same GPUs answer under several hosts: w[0-2].")
    ]


def test_a_failed_node_has_its_documents_own_sentence_and_the_command_that_shows_it() -> None:
    sentence = "7 of 8 GPUs usable: GPU 2 (0000:2a:00.0) fell off the bus"
    lost = detect("n1", failing={"gpu-lost": "gpu-is-lost"})
    lost["result"]["conclusion"] = sentence
    found, _ = reported(lost, files=("out/n 1.json",))

    assert found.nodes[0].reasons == ("gpu-lost: gpu-is-lost",)
    assert found.nodes[0].conclusion == sentence
    lines = [" ".join(one.split()) for one in table(found).splitlines()]
    assert f"n1 failed {sentence}" in lines
    assert "→ gpucheck show 'out/n 1.json'" in lines
    assert "gpu-is-lost" not in table(found)


def test_nodes_that_are_alike_are_one_row() -> None:
    found, _ = reported(detect("n1"), hosts=tuple(f"n{number}" for number in range(1, 129)))

    lines = [line.split() for line in table(found).splitlines()]

    assert found.conclusion == "128 nodes: 1 ok, 127 missing"
    assert ["n[2-128]", "missing"] in lines


def test_what_a_row_of_the_differences_says_is_not_said_of_each_node() -> None:
    failed = detect("n0", failing={"nvml": "x"}, time=at(1))
    documents = [detect(f"n{number}", time=at(2)) for number in range(5)]
    documents[0]["host"]["driver_version"] = "570.1"
    found, _ = reported(failed, *documents)

    shown = table(found)

    assert found.nodes[0].different
    assert "failed in 1 of 2 runs" in found.nodes[0].reasons
    assert "driver_version" in shown
    assert "reason" not in shown


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
    assert found.conclusion == "5 nodes: 4 ok, 1 slow"
    assert found.slow[0].facts == ("power-cap 40 % of the time", "70 C", "1700 MHz")


def test_the_conclusion_counts_every_kind_once() -> None:
    documents = [bench(f"n{number}") for number in range(5)]
    documents[2] = bench("n2", [1.0, 0.9, *[1.0] * 6])
    documents[3] = bench("n3", vbios="old")
    more = [
        detect("n0", failing={"a": "b"}),
        detect("n1", time=at(4)) | {"exit_code": 3},
        detect("x1"),
        detect("x2"),
        None,
    ]
    hosts = tuple(f"n{number}" for number in range(7))

    found, code = reported(*documents, *more, hosts=hosts)

    assert found.conclusion == (
        "9 nodes: 4 ok, 2 missing, 1 failed, 1 slow, 1 not judged, 1 different, 2 unexpected,"
        " 1 document of no node"
    )
    assert (found.nodes_expected, found.nodes_answered, found.documents) == (7, 7, 10)
    assert code is ExitCode.BAD


@pytest.mark.parametrize(
    ("documents", "max_missing", "codes"),
    [
        ([detect("a"), detect("x")], 1, ["unexpected-nodes", "missing-nodes"]),
        ([detect("a"), detect("b"), None], 0, ["unreadable-documents"]),
        ([detect("a"), detect("b"), envelope("a", "fleet", {})], 0, ["documents-passed-over"]),
    ],
)
def test_what_is_no_fault_is_a_warning(
    documents: list[Any], max_missing: int, codes: list[str]
) -> None:
    collected = Collected(("a", "b"))
    for number, document in enumerate(documents):
        problem = None if document else "it is damaged"
        collected.add(Entry(f"{number}.json", None, document, problem))

    answer = report(collected, dict.fromkeys("ab"), Host(), max_missing=max_missing)

    assert [one.code for one in answer.warnings] == codes


def test_recorded_answers_and_speeds_that_nobody_judged_are_told() -> None:
    document = bench("n")
    document["host"]["recorded"] = True
    collected = Collected()
    collected.add(Entry("a.json", None, document))

    warnings = {one.code: one.message for one in report(collected, None, Host()).warnings}

    assert warnings == {
        "recorded-nodes": "1 node answered from a recording, not as it is now.",
        "speed-not-judged": "The speed of 8 GPUs was not judged: only 8 alike, and no baseline.",
    }


def test_unstable_and_watched_gpus_are_told_and_no_fault() -> None:
    steps = [0.98 + 0.005 * (number % 9) for number in range(8)]
    documents = [bench(f"n{number}", steps) for number in range(8)]
    documents.append(bench("unstable", [1.0, *steps[1:]], time=at(4)))
    documents.append(bench("unstable", [0.6, *steps[1:]], time=at(5)))
    documents.append(bench("watched", [0.935, *steps[1:]]))

    collected = Collected()
    for number, document in enumerate(documents):
        collected.add(Entry(f"{number}.json", None, document))
    answer = report(collected, None, Host())

    assert isinstance(answer.result, FleetReport)
    assert {one.host: one.speed.value for one in answer.result.slow} == {
        "unstable": "unstable",
        "watched": "watch",
    }
    assert answer.exit_code is ExitCode.OK
    assert [one.code for one in answer.warnings] == ["unstable-gpus", "gpus-to-watch"]
    assert not any(node.slow for node in answer.result.nodes)


def test_the_same_group_has_the_same_key_in_every_report() -> None:
    found, _ = reported(*(bench(f"n{number}") for number in range(3)))

    (group,) = found.groups
    assert group.key == (
        "copy/kernel/-/-/float32/1024/resident | NVIDIA H100 80GB HBM3 | memory 85520809984"
        " | power 700 | mig off | ecc on | pcie 5 x16 | driver 580 | unit B/s"
    )
    assert (group.gpus, group.median, group.slow) == (24, 3e12, 0)


@pytest.mark.parametrize(
    ("slow", "reason"),
    [
        (1, "GPU 0 is 10.0 % slower in add and 1 more test"),
        (4, "GPU 3 is 10.0 % slower in add and 1 more test"),
        (5, "5 GPUs are slow, by up to 10.0 % in add"),
    ],
)
def test_slow_gpus_of_a_node_are_named_or_counted(slow: int, reason: str) -> None:
    documents = [bench(f"n{number}", tests=("copy", "add")) for number in range(5)]
    documents[0] = bench("n0", [0.9] * slow + [1.0] * (8 - slow), tests=("copy", "add"))

    found, _ = reported(*documents)

    assert found.nodes[0].reasons[-1] == reason
    assert len(found.nodes[0].reasons) == (slow if slow < 5 else 1)
    assert [gpu.speed.value for gpu in found.nodes[0].gpus].count("slow") == slow
    assert found.slow[0].tests == 2


def test_a_gpu_that_others_used_is_busy() -> None:
    found, _ = reported(bench("n", busy=(2,)))

    assert [gpu.speed.value for gpu in only(found).gpus][1:3] == ["not-judged", "busy"]


def test_a_newer_document_of_another_kind_leaves_what_it_does_not_say() -> None:
    old = envelope("n", "list", {"gpus": [{"uuid": "GPU-1", "index": 0, "state": "ok"}]})
    old["host"]["driver_version"] = "1"
    new = detect("n", gpus=0, time=at(4))
    new["host"]["driver_version"] = "2"

    for documents in ((old, new), (new, old)):
        node = only(reported(*documents)[0])
        assert node.driver_version == "2"
        assert node.time == at(4)
        assert [(gpu.uuid, gpu.index, gpu.state) for gpu in node.gpus] == [("GPU-1", 0, "ok")]


def test_a_long_list_of_hosts_is_cut_between_two_names() -> None:
    hosts = [f"{letter * 9}" for letter in "abcdef"]  # 59 characters with the commas

    assert shortened(hosts) == ",".join(hosts)
    assert shortened([*hosts, "g" * 9]) == ",".join(hosts) + ", …"
    assert shortened(["a" * 60]) == "a" * 60
    assert shortened(["a" * 61]) == "a" * 60 + ", …"


@pytest.mark.parametrize(
    ("time", "told"),
    [("23T03:00:00", False), ("23T03:00:01", True), ("21T03:00:00", False), ("21T02:59:59", True)],
)
def test_more_than_a_day_apart_is_told(time: str, told: bool) -> None:
    others = [detect(f"n{number}", time=at(3)) for number in range(3)]
    odd, early = detect("odd", time=f"2026-11-{time}Z"), detect("n3", time=at(1))

    found, _ = reported(*others, odd, early)  # most are of three o'clock

    assert [node.host for node in found.nodes if node.different] == (["odd"] if told else [])


def test_list_of_hosts_has_racks(tmp_path: Any) -> None:
    path = tmp_path / "hosts"
    path.write_text("a[1-2] r1 # left\n\n# none\nb\n")

    found = read_expected(f"@{path}")

    assert list(found.items()) == [("a1", "r1"), ("a2", "r1"), ("b", None)]


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


@pytest.mark.parametrize(("values", "rows_"), [(20, 20), (21, 0)])
def test_a_fact_has_twenty_values_at_most(values: int, rows_: int) -> None:
    assert len(rows(described(*map(str, range(values))))) == rows_


@pytest.mark.parametrize(("most", "majority", "count"), [(6, "a", 6), (5, None, 0)])
def test_a_majority_is_six_of_ten(most: int, majority: str | None, count: int) -> None:
    found = list(differences(described(*"a" * most, *"b" * (10 - most)), JudgementRule()))

    last = found[-1]
    assert (last.field, last.of, last.value) == ("vbios_version", "H100", "b")
    assert (last.majority, last.majority_count, last.count, last.total) == (
        *(majority, count),
        *(10 - most, 10),
    )


def test_of_three_two_are_a_majority() -> None:
    assert rows(described("a", "b", "a")) == [("b", "a", 1, ("n1",))]
