"""What is taken of one document, and what is not believed."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucheck.fleet.model import Outcome
from gpucheck.fleet.node_facts import (
    LONGEST_TEXT,
    MOST_REASONS,
    MOST_ROWS,
    Config,
    GpuFacts,
    facts_of,
)
from tests.fleet.documents import H100, bench, detect, envelope, gpu_uuid

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=20,
)


@pytest.mark.parametrize(
    ("command", "code", "outcome"),
    [
        ("detect", 0, Outcome.OK),
        ("detect", 1, Outcome.FAILED),
        ("detect", 3, Outcome.INCONCLUSIVE),
        ("detect", 4, Outcome.FAILED),
        ("list", 4, Outcome.FAILED),
        ("bench", 4, Outcome.INCONCLUSIVE),
        ("bench", 130, Outcome.INCONCLUSIVE),
        ("error", 2, Outcome.INCONCLUSIVE),
        ("detect", 70, Outcome.INCONCLUSIVE),
        ("detect", False, Outcome.INCONCLUSIVE),
        ("detect", True, Outcome.INCONCLUSIVE),
        ("detect", 0.0, Outcome.INCONCLUSIVE),
        ("detect", None, Outcome.INCONCLUSIVE),
    ],
)
def test_exit_code_decides(command: str, code: Any, outcome: Outcome) -> None:
    found = facts_of(envelope("n1", command, {}, code=code))

    assert (found.host, found.outcome) == ("n1", outcome)
    assert bool(found.reasons) is (outcome is Outcome.INCONCLUSIVE or code == 4)


def test_a_lost_gpu_fails_its_node_whatever_the_code() -> None:
    gpus = [{"uuid": "GPU-1", "state": "lost"}, {"uuid": "GPU-2", "state": "ok"}]

    found = facts_of(envelope("n1", "list", {"gpus": gpus}))

    assert found.outcome is Outcome.FAILED
    assert found.reasons[0] == "1 GPU lost or unreadable"


@pytest.mark.parametrize(
    ("document", "outcome", "says"),
    [
        ({"schema": "gpucheck/detect/2", "host": {"name": "n"}}, Outcome.INCOMPATIBLE, "newer"),
        ({"schema": "gpucheck/detect/0", "host": {"name": "n"}}, Outcome.INCOMPATIBLE, "older"),
        ({"schema": "other/1", "host": "n"}, Outcome.UNREADABLE, "other/1"),
        ({}, Outcome.UNREADABLE, "no schema"),
    ],
)
def test_other_documents_are_an_outcome(
    document: dict[str, Any], outcome: Outcome, says: str
) -> None:
    found = facts_of(document)

    assert found.outcome is outcome
    assert says in found.reasons[0]
    assert found.host == ("n" if "host" in document else None)


def test_an_earlier_report_is_passed_over() -> None:
    assert facts_of(envelope("n1", "fleet", {})).ignored is not None


@pytest.mark.parametrize(
    ("severity", "outcome"),
    [
        ("PASS", Outcome.OK),
        ("WARNING", Outcome.OK),
        ("CRITICAL", Outcome.FAILED),
        ("UNKNOWN", Outcome.INCONCLUSIVE),
    ],
)
def test_verdicts_of_health_validation_are_read(severity: str, outcome: Outcome) -> None:
    part = {
        "check_ids": ["gpu_xid_79"],
        "entities": ["GPU-1"],
        "category": "xid",
        "max_severity": severity,
    }

    found = facts_of(
        {"overall_severity": severity, "hostname": "n1", "affected_components": [part]}
    )

    assert (found.host, found.outcome) == ("n1", outcome)
    if outcome is not Outcome.OK:
        assert found.reasons == (f"NVIDIA Health Validation says {severity}: gpu_xid_79 (GPU-1)",)


def line(outcome: str, document: object = None, **more: object) -> dict[str, object]:
    head = {"schema": "gpucheck/fleet-node/1", "host": "n1", "command": "detect"}
    return {**head, "outcome": outcome, "reason": "so it is", "document": document, **more}


@pytest.mark.parametrize("outcome", ["timeout", "lost", "busy", "not-installed", "incompatible"])
def test_line_of_results_has_its_outcome(outcome: str) -> None:
    found = facts_of(line(outcome))

    assert (found.host, found.outcome, found.reasons) == ("n1", Outcome(outcome), ("so it is",))


def test_silent_node_says_when_it_was_last_seen() -> None:
    found = facts_of(line("no-answer", last_seen_s=48.2))

    assert found.reasons == ("so it is (last seen 48 s before)",)
    assert facts_of(line("no-answer")).reasons == ("so it is",)
    assert facts_of(line("failed", last_seen_s=48.2)).reasons == ("so it is",)


def test_document_in_a_line_decides_and_the_engine_knows_the_host() -> None:
    found = facts_of(line("ok", detect("a-container", failing={"nvml": "no-driver"})))

    assert (found.host, found.outcome) == ("n1", Outcome.FAILED)
    assert found.reasons == ("nvml: no-driver",)


def test_ok_without_a_document_is_not_believed() -> None:
    assert facts_of(line("ok")).outcome is Outcome.UNREADABLE
    assert facts_of(line("splendid")).outcome is Outcome.INCOMPATIBLE


@pytest.mark.parametrize(
    ("said", "inner", "outcome", "reasons"),
    [
        ("ok", 0, "ok", ()),
        ("failed", 0, "ok", ()),
        ("timeout", 0, "timeout", ("so it is",)),
        ("inconclusive", 3, "inconclusive", ("detect ended with code 3",)),
        ("busy", 3, "busy", ("so it is", "detect ended with code 3")),
        ("timeout", 1, "failed", ("a: b",)),
        ("ok", 3, "inconclusive", ("detect ended with code 3",)),
    ],
)
def test_the_worse_of_a_line_and_its_document_counts(
    said: str, inner: int, outcome: str, reasons: tuple[str, ...]
) -> None:
    document = detect("x", failing={"a": "b"} if inner == 1 else None)
    document["exit_code"] = inner

    found = facts_of(line(said, document, time="2026-11-22T05:00:00Z"))

    assert (found.outcome, found.reasons, found.host) == (Outcome(outcome), reasons, "n1")
    assert found.time == 1795323600
    assert facts_of({**line(said, document), "host": None}).host == "x"
    assert facts_of(line(said, document)).time == 1795316400


def test_a_line_with_a_document_about_no_node_is_unreadable() -> None:
    found = facts_of(line("ok", envelope("n1", "fleet", {})))

    assert found.outcome is Outcome.UNREADABLE
    assert "not about a node" in found.reasons[0]


@pytest.mark.parametrize(
    ("changes", "unit", "value", "position"),
    [
        ({}, "B/s", 3e12, None),
        ({"throughput": {"value": 5.0}}, "1/s", 5.0, None),
        ({"throughput": None}, "1/s", 1000.0, None),
        ({"kernel": "transfer"}, "B/s", 3e12, 0),
        ({"kernel": "p2p", "device": "gpu:12"}, "B/s", 3e12, 12),
        ({"scope": "end-to-end", "device": "gpu:999"}, "B/s", 3e12, 999),
        ({"scope": "end-to-end", "device": "gpu:1000"}, "B/s", 3e12, None),
        ({"scope": "end-to-end", "device": "cpu"}, "B/s", 3e12, None),
        ({"scope": "end-to-end", "device": "gpu:x"}, "B/s", 3e12, None),
    ],
)
def test_a_row_is_a_speed(
    changes: dict[str, Any], unit: str, value: float, position: int | None
) -> None:
    document = bench("n1", (1.0,))
    document["result"]["measurements"][0].update(changes)

    ((_, found, speed),) = facts_of(document).speeds

    assert found[1:] == (unit, position)
    assert speed == pytest.approx(value)


def test_rows_of_others_are_no_speeds() -> None:
    document = bench("n1", (1.0,) * 4)
    rows = document["result"]["measurements"]
    rows[0]["gpu_uuid"] = None
    rows[1]["id"] = 7
    rows[2]["doubts"] = [{"code": "gpu-shared"}]

    found = facts_of(document)

    assert [uuid for uuid, _, _ in found.speeds] == [gpu_uuid("n1", 3)]
    assert found.busy == {gpu_uuid("n1", 2)}


def test_a_gpu_is_grouped_by_what_decides_about_its_speed() -> None:
    (found,) = facts_of(bench("n1", (1.0,), power_limit_w=500.0)).gpus

    assert found.config == Config(H100, 85520809984, 500.0, False, True, "5 x16", "580")
    assert found.inventory == {
        "vbios_version": "96.00.99.00.01",
        "power_limit_w": "500",
        "ecc_mode": "on",
    }
    assert found.facts == ("power-cap 40 % of the time", "70 C", "1700 MHz")


def test_of_one_document_no_more_is_taken_than_a_node_has() -> None:
    gpus = [{"uuid": f"GPU-{number}", "index": number} for number in range(300)]
    rows = [{"gpu_uuid": "GPU-1", "id": "t", "time_s": 1.0}] * (MOST_ROWS + 1)

    for command, result in (("list", {"gpus": gpus}), ("detect", {"gpus": gpus})):
        assert len(facts_of(envelope("n", command, result)).gpus) == 256
    assert len(facts_of(envelope("n", "bench", {"measurements": rows})).speeds) == 20_000


def test_a_listed_gpu_has_what_should_be_alike() -> None:
    gpu = {
        "uuid": "GPU-1", "index": 3, "name": H100, "state": "ok", "memory_total_bytes": 80,
        "power_limit_w": 700.0, "ecc_mode": False, "mig": {"enabled": True}, "compute_mode": "x",
        "persistence_mode": None, "pcie": {"generation_max": 5, "width": 16},
    }  # fmt: skip

    found = facts_of(envelope("n", "list", {"gpus": [gpu, {"index": 4}]}))

    assert found.gpus == (
        GpuFacts("GPU-1", 3, H100, "ok", inventory={
            "memory_total_bytes": "80", "power_limit_w": "700", "ecc_mode": "off", "mig": "on",
            "compute_mode": "x", "pcie_generation_max": "5", "pcie_width": "16",
        }),
    )  # fmt: skip
    assert found.inventory["gpu_count"] == "2"


def test_speeds_of_busy_gpus_are_not_taken() -> None:
    found = facts_of(bench("n1", busy=(2, 3)))

    assert found.busy == {gpu_uuid("n1", 2), gpu_uuid("n1", 3)}
    assert len(found.speeds) == 6


@pytest.mark.parametrize("value", [0, -1.0, 5e-324, 1e299, True, "1", None, 10**400])
def test_a_time_or_rate_that_none_can_be_is_no_speed(value: object) -> None:
    timed, rated = bench("n1", (1.0,)), bench("n1", (1.0,))
    timed["result"]["measurements"][0].update(time_s=value, throughput=None)
    rated["result"]["measurements"][0]["throughput"]["value"] = value

    assert facts_of(timed).speeds == ()
    # The rate is enough, as in documents from before rows had this time.
    del timed["result"]["measurements"][0]["time_s"]
    timed["result"]["measurements"][0]["throughput"] = {"value": 3e12, "unit": "B/s"}
    assert [speed for _, _, speed in facts_of(timed).speeds] == [3e12]
    assert [unit for _, (_, unit, _), _ in facts_of(rated).speeds] == ["1/s"]


@pytest.mark.parametrize("value", [{"a": 1}, [[1]], None])
def test_a_fact_of_an_unexpected_type_is_absent(value: object) -> None:
    document = bench("n1", (1.0,))
    document["result"]["telemetry"]["gpus"][0]["ecc_mode"] = value

    assert "ecc_mode" not in facts_of(document).gpus[0].inventory


def test_what_explains_a_gpu_is_a_few_words() -> None:
    document = bench("n1", (1.0,))
    document["result"]["telemetry"]["gpus"][0].update(
        reasons={f"r{number}": 0.5 for number in range(99)},
        new_errors={f"e{number}": 1 for number in range(99)} | {"never": -1},
    )

    assert len(facts_of(document).gpus[0].facts) == 2 * MOST_REASONS + 2


def test_links_are_counted_by_kind() -> None:
    links = [{"kind": "NV18"}] * 3 + [{"kind": "SYS"}, {}]
    many = [{"kind": f"{number}"} for number in range(50_000)]

    def shown(found: object) -> str:
        return facts_of(envelope("n", "list", {"topology": {"links": found}})).inventory["links"]

    assert shown(links) == "1 x ?, 3 x NV18, 1 x SYS"
    assert len(shown(many)) == LONGEST_TEXT


def test_wrong_results_and_gates_are_reasons() -> None:
    document = bench("n1", code=1)
    document["result"]["measurements"][0]["verified"]["ok"] = False
    document["result"]["gates"] = [
        {"id": "straggler", "device": "gpu:1", "status": "fail", "reason": "9 % worse"},
        {"id": "spread", "device": "node", "status": "fail", "severity": "warn"},
    ]

    found = facts_of(document)

    assert found.outcome is Outcome.FAILED
    assert found.reasons[0] == "straggler on gpu:1: 9 % worse"
    assert [reason.partition(":")[0] for reason in found.reasons[1:]] == ["wrong result"]


def test_texts_are_cut_and_made_printable() -> None:
    found = facts_of(detect("n\x1b[31m" + "x" * 999, failing={"a": "\x00" * 999}))

    assert found.host is not None
    for text in (found.host, *found.reasons):
        assert text.isprintable()
        assert len(text) <= 2 * LONGEST_TEXT


@given(JSON, st.sampled_from(["detect", "list", "bench", "fleet-node", "burn"]))
def test_nothing_in_a_document_ends_the_reading(value: Any, command: str) -> None:
    """Every field holds what no gpucheck writes there."""
    good = bench("n1", (1.0,)) if command == "bench" else detect("n1", gpus=1)
    good["schema"] = f"gpucheck/{command}/1"
    for key in list(good["result"]):
        facts_of({**good, "result": {**good["result"], key: value}})
    for key in ("result", "host", "error", "tool", "time", "exit_code", "document", "outcome"):
        facts_of({**good, key: value})
    rows = good["result"].get("measurements", good["result"].get("checks"))
    for key in list(rows[0]):
        name = "measurements" if command == "bench" else "checks"
        facts_of({**good, "result": {**good["result"], name: [{**rows[0], key: value}]}})
