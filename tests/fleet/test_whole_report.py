"""Whole reports of a fleet in which everything happens that can happen to a node, as recorded."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from gpucheck.fleet.collect import Collected
from gpucheck.fleet.documents import Entry
from gpucheck.fleet.model import Correction, FleetReport, Group, JudgedBy, JudgementRule
from gpucheck.fleet.report import report
from gpucheck.report.host import Host
from tests.fleet.documents import bench, detect, envelope, gpu_uuid
from tests.report.formats.recorded import in_lines, recorded

GPUS = 4
HOSTS = tuple(f"n{number:02}" for number in range(26))


def speeds(number: int, **changed: float) -> list[float]:
    """Return the speeds of a node's GPUs; `gpu2=0.9` makes one that much slower."""
    usual = [1 + ((7 * number + 3 * gpu) % 11 - 5) * 0.0015 for gpu in range(GPUS)]
    return [one * changed.get(f"gpu{gpu}", 1.0) for gpu, one in enumerate(usual)]


def at(hour: int, day: int = 22) -> str:
    return f"2026-11-{day:02}T{hour:02}:00:00Z"


def of_node(host: str, outcome: str, number: int = 1, **more: Any) -> dict[str, Any]:
    return {"schema": f"gpucheck/fleet-node/{number}", "host": host, "outcome": outcome, **more}


def with_sensors(document: dict[str, Any], **changed: Any) -> dict[str, Any]:
    """Return a run in which the sensors of the first GPU saw something else."""
    document["result"]["telemetry"]["gpus"][0].update(changed)
    return document


def listed(host: str, **changed: Any) -> dict[str, Any]:
    gpu = {
        "name": "NVIDIA H100 80GB HBM3", "memory_total_bytes": 85520809984, "power_limit_w": 700.0,
        "ecc_mode": True, "mig": {"enabled": False}, "persistence_mode": True,
        "compute_mode": "default", "pcie": {"generation_max": 5, "width": 16}, "state": "ok",
    }  # fmt: skip
    gpus = [gpu | {"index": at, "uuid": gpu_uuid(host, at)} for at in range(GPUS)]
    gpus[1] |= changed
    links = [{"kind": "nvlink"}] * 5 + [{"kind": "node"}, {}]
    return envelope(host, "list", {"gpus": gpus, "topology": {"links": links}}, time=at(4))


def documents() -> Iterator[dict[str, Any] | str]:
    """Yield documents, or what is wrong with one."""
    changed: Mapping[int, dict[str, float]] = {
        5: {"gpu3": 0.88}, 6: dict.fromkeys(("gpu0", "gpu1", "gpu2"), 0.9), 7: {"gpu1": 0.953},
        12: {"gpu0": 0.93, "gpu2": 0.8},
    }  # fmt: skip
    for number, host in enumerate(HOSTS[:22]):
        tests = ("copy", "matmul") if number % 2 else ("copy", "transfer")
        when = at(3, day=19) if host == "n11" else at(3)
        yield bench(host, speeds(number, **changed.get(number, {})), tests=tests, time=when)
    # Later runs: slow in one of three, busy, other firmware, old, another's GPU, other GPUs.
    for hour, factor in ((5, 0.9), (6, 1.0)):
        yield bench("n08", speeds(8, gpu2=factor), time=at(hour))
    yield bench("n09", speeds(9, gpu1=0.5), busy=(1,), time=at(7), vbios="96.00.99.00.02")
    yield bench("n10", speeds(10), vbios="96.00.88", driver="570.1.0", time=at(5))
    yield bench("n12", speeds(12), time=at(5)) | {"host": {"name": "n13", "recorded": True}}
    yield bench("elsewhere", speeds(14), time=at(9)) | {"host": {"name": "n14"}}
    hot = {
        "reasons": {"hardware-thermal": 0.05, "power-cap": 0.049, "odd": "x"}, "ecc_mode": False,
        "temperature_c": {"high": 91.4}, "clock_sm_mhz": {"median": 1201.5},
        "new_errors": {"pcie_replays": 3, "ecc_corrected": 0}, "pcie_width": 8,
    }  # fmt: skip
    yield with_sensors(bench("n15", speeds(15, gpu0=0.85), time=at(5)), **hot)
    # What failed, and how.
    yield detect("n16", failing={"gpu-lost": "xid-79", "nvml": "x"}, gpus=GPUS, time=at(4))
    yield detect("n16", gpus=GPUS, time=at(5)) | {"exit_code": 3, "error": {"message": "Hm."}}
    yield detect("n17", gpus=GPUS, time=at(4)) | {"exit_code": 4}
    wrong = bench("n18", speeds(18), time=at(4)) | {"exit_code": 1}
    wrong["result"]["measurements"][1]["verified"] = {"ok": False}
    wrong["result"]["measurements"][2]["doubts"] = [{"code": "gpu-shared"}]
    wrong["result"]["corruption"] = [{"device": "gpu:0", "mismatches": 2}, {"device": "gpu:1"}]
    wrong["result"]["gates"] = [
        {"id": "copy", "device": "gpu:1", "status": "fail", "reason": "too slow"},
        {"id": "heat", "device": "gpu:1", "status": "fail", "severity": "warn"},
        {"id": "wide", "device": "gpu:2", "status": "pass"},
    ]
    yield wrong
    for hour, code in ((3, 1), (4, 0), (5, 1)):
        yield detect("n19", failing={"nvml": "x"} if code else {}, gpus=GPUS, time=at(hour))
    yield listed("n20")
    yield listed(
        "n21", power_limit_w=500.0, state="lost", persistence_mode=False, compute_mode=None
    )
    yield of_node("n22", "timeout", reason="it had not ended", command="detect", time=at(4))
    yield of_node("n23", "no-answer", reason="silent", last_seen_s=12.4, time=at(4))
    yield of_node("n24", "ok", time=at(4), gpucheck_version="0.2.0", command="place")
    yield of_node("n20", "busy", document=detect("x", gpus=GPUS, time=at(2)), time=at(6))
    yield of_node("n21", "ok", number=2, time=at(7))
    # Documents of others.
    yield envelope("n00", "place", None, code=2)
    yield {"schema": "gpucheck/detect/2", "host": {"name": "n01"}, "time": at(8)}
    yield {"schema": "gpucheck/list/0", "host": {"name": "n02"}, "time": at(8)}
    yield {"schema": "gpucheck/fleet/1"}
    yield {"schema": "nvidia-smi/1", "host": {"name": "n03"}}
    yield {"overall_severity": "CRITICAL", "node_id": "n04", "affected_components": [
        {"check_ids": ["PCIE-1", "PCIE-2"], "entities": ["GPU 0"]}, {"check_ids": ["FAN"]}, {},
    ]}  # fmt: skip
    yield {"overall_severity": "PASS", "hostname": "n04"}
    yield detect("x9", gpus=2, time=at(4))
    yield detect("x9", gpus=2, time=at(4))
    yield bench("x8", [1.0], name="NVIDIA A100", time=at(4)) | {"exit_code": None}
    yield {}
    yield "it was cut off"


def whole(**more: Any) -> str:
    collected = Collected(HOSTS)
    for number, document in enumerate(documents()):
        broken = isinstance(document, str)
        place = "in.jsonl", number + 1
        collected.add(Entry(*place, None, document) if broken else Entry(*place, document))
    expected: dict[str, str | None] = {host: f"rack{at // 9}" for at, host in enumerate(HOSTS)}
    answer = report(collected, expected, Host(), **more)
    found = answer.result
    assert isinstance(found, FleetReport)
    parts = {
        "nodes": found.nodes, "groups": found.groups, "slow": found.slow,
        "attributions": found.attributions, "differences": found.differences,
        "problems": found.problems, "warnings": answer.warnings,
    }  # fmt: skip
    rest = found._replace(**dict.fromkeys(set(parts) - {"warnings"}, ()))
    text = f"exit code {answer.exit_code}\n" + in_lines([rest])
    return text + "".join(f"## {name}\n" + in_lines(part) for name, part in parts.items())


def test_a_report_over_every_kind_of_node_is_as_recorded() -> None:
    text = whole()

    assert text == recorded("fleet-every-kind", text)


def test_a_report_by_another_rule_and_a_baseline_is_as_recorded() -> None:
    groups = [line.split("  ")[0] for line in whole().splitlines() if line.startswith("key=")]
    keys = [word.removeprefix("key=") for word in groups]
    before = {
        key: Group(
            key=key, test="", gpu_name="", judged_by=JudgedBy.PEERS,
            median=3.2e12 if at % 2 else 3e12, scale=1e10, gpus=8 * at,
        )
        for at, key in enumerate(keys)
    }  # fmt: skip
    rule = JudgementRule(
        least_group=4, slow_z=-4.0, watch_z=-2.5, least_percent=2.0, correction=Correction.HOLM,
        rack_risk=0.5, node_share=0.25, majority_share=0.9, most_age_s=3600.0, shift_percent=2.0,
    )  # fmt: skip

    text = whole(rule=rule, baseline=("before.json", before), max_missing=3)

    assert text == recorded("fleet-by-a-baseline", text)
