"""Metrics as Prometheus reads them: its own parser gets back what was found."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from gpucheck.bench.ci.run_data import row_id
from gpucheck.detect.model import DetectedGpu, Detection, Finding, Layer, Verdict
from gpucheck.inventory.model import DecidedBy, Inventory, Visibility
from gpucheck.report.documents import DOCUMENTS
from gpucheck.report.envelope import CheckStatus, Failure, Notice, Report
from gpucheck.report.errors import ExitCode
from gpucheck.report.formats import prometheus
from gpucheck.report.formats.prometheus import Metric, gauge, gpu_labels, render
from gpucheck.report.text import View, printable
from gpucheck.version import __version__
from tests.fakes.bench_results import copy_result
from tests.fakes.reports import NASTY, any_list, list_report
from tests.fakes.verdicts import HOSTILE, gate, report, result
from tests.sampling import examples

NAME = re.compile(r"gpucheck(_[a-z0-9]+)+")
Found = dict[tuple[str, frozenset[tuple[str, str]]], float]


def read(text: str) -> Found:
    """Return the samples by name and labels; two alike make node-exporter refuse the file."""
    found: Found = {}
    for family in text_string_to_metric_families(text):
        assert NAME.fullmatch(family.name), family.name
        assert family.documentation
        assert family.type == "gauge"
        for one in family.samples:
            assert one.timestamp is None, "the textfile collector skips a file with timestamps"
            key = (one.name, frozenset(one.labels.items()))
            assert key not in found
            found[key] = one.value
    return found


def value(found: Found, name: str, **labels: str) -> float:
    """Return the value of the one sample of this name that has these labels."""
    wanted = set(labels.items())
    (one,) = [value for (each, has), value in found.items() if each == name and wanted <= has]
    return one


def detection(*findings: Finding, **changes: object) -> Detection:
    return Detection(
        usable=True,
        verdict=Verdict.DEGRADED,
        conclusion="degraded",
        first_failure=None,
        checks=findings,
        gpus=(
            DetectedGpu(0, "GPU-a", "NVIDIA H100", "0000:1a:00.0"),
            DetectedGpu(1),  # a lost one
        ),
    )._replace(**changes)


# --------------------------------------------------------------------------- what every run has


def test_a_run() -> None:
    found = read(render(report(None, warnings=(Notice("a", "b"),)), View()))
    labels = {"command": "bench", "hostname": "node17"}

    assert value(found, "gpucheck_run_timestamp_seconds", **labels) == 1795231920.0
    assert value(found, "gpucheck_run_exit_code", **labels) == 0
    assert value(found, "gpucheck_run_warnings", **labels) == 1
    info = {**labels, "version": __version__, "driver_version": "580.95.05"}
    assert value(found, "gpucheck_run_info", **info) == 1
    assert len(found) == 4


def test_an_error_is_its_code() -> None:
    failure = Failure("no-driver", "There is no driver.")
    bad = report(None, code=ExitCode.MISSING, failure=failure, command="detect")

    assert value(read(render(bad, View())), "gpucheck_run_exit_code", command="detect") == 4


def test_any_document_has_the_metrics_of_its_run() -> None:
    found = read(render(report(object(), command="wheel"), View()))

    assert {name for name, _ in found} >= {"gpucheck_run_timestamp_seconds"}


# -------------------------------------------------------------------------------- the text form


def drawn(monkeypatch: pytest.MonkeyPatch, metrics: Iterable[Metric], host: str | None) -> Found:
    monkeypatch.setattr(prometheus, "open_mapping", lambda *_: lambda _: metrics)
    return read(render(report(object(), host=host, command="list"), View()))


@pytest.mark.parametrize("text", [HOSTILE, 'a"b\\c\nd', "\\n", "\\", '"', "}", "a=b,c", "é中"])
def test_every_name_comes_back(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    metrics = [gauge("gpucheck_x", 'a \\ "b"\nc', [({"modelName": text}, 1)])]

    found = drawn(monkeypatch, metrics, text)

    shown = printable(text)
    assert value(found, "gpucheck_x", modelName=shown, hostname=shown) == 1


def test_absent_values_and_labels_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    metrics = [
        gauge("gpucheck_none", "Nothing was read.", [({}, None)]),
        gauge("gpucheck_some", "Some was read.", [({"gpu": "0"}, None), ({"gpu": None}, False)]),
    ]

    found = drawn(monkeypatch, metrics, None)

    assert [(name, labels) for name, labels in found if not name.startswith("gpucheck_run")] == [
        ("gpucheck_some", frozenset())
    ]


def test_of_alike_samples_the_first_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    alike = gauge("gpucheck_x", "Two that look alike.", [({"a": None}, 1), ({"a": ""}, 2)])

    assert value(drawn(monkeypatch, [alike], None), "gpucheck_x") == 1


def test_a_sample_may_have_a_host_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    metrics = [gauge("gpucheck_node", "One of many.", [({"hostname": "node3"}, 1)])]

    found = drawn(monkeypatch, metrics, "head")

    assert value(found, "gpucheck_node", hostname="node3") == 1


def test_numbers_are_gos() -> None:
    numbers = [0, True, 2**53 + 1, 1e-9, 1.5e300, float("inf"), float("nan")]

    assert [prometheus._number(one) for one in numbers] == [
        *("0", "1", "9007199254740993", "1e-09", "1.5e+300", "NaN", "NaN")
    ]


# ------------------------------------------------------------------------------ what joins DCGM's


def test_labels_of_a_gpu_are_dcgm_exporters() -> None:
    # As dcgm-exporter writes them: {gpu="0",UUID="GPU-…",pci_bus_id="00000000:1A:00.0",…}
    labels = gpu_labels(index=0, uuid="GPU-a", pci_bus_id="0000:1a:00.0", name="Tesla T4")

    assert labels == {
        **{"gpu": "0", "UUID": "GPU-a"},
        **{"pci_bus_id": "00000000:1A:00.0", "modelName": "Tesla T4"},
    }
    assert gpu_labels() == dict.fromkeys(("gpu", "UUID", "pci_bus_id", "modelName"))


def test_no_name_is_dcgms_and_no_two_documents_share_one() -> None:
    """Several files lie in one folder of the collector, and no sample may be in two of them."""
    documents = {
        "list": list_report(),
        "detect": report(detection(), command="detect"),
        "bench": report(copy_result()),
    }
    assert all(DOCUMENTS[name].metrics is not None for name in documents)
    names = {
        command: {name for name, _ in read(render(one, View()))} - own_of_runs()
        for command, one in documents.items()
    }

    assert all(len(each) > 3 for each in names.values())
    assert not any("dcgm" in name.lower() for each in names.values() for name in each)
    for first, second in combinations(names, 2):
        assert names[first] & names[second] == set()


def own_of_runs() -> set[str]:
    """Return the names of a run's metrics, whose samples say of which command they are."""
    return {name for name, _ in read(render(report(None), View()))}


# --------------------------------------------------------------------------------- each document


def test_a_list() -> None:
    found = read(render(list_report(), View()))
    listed = list_report().result
    assert isinstance(listed, Inventory)
    busy = listed.gpus[0]
    labels = {"gpu": "0", "UUID": str(busy.uuid)}

    assert value(found, "gpucheck_gpus") == 4
    assert value(found, "gpucheck_gpu_memory_used_bytes", **labels) == 75 * 2**30
    assert value(found, "gpucheck_gpu_utilization_ratio", **labels) == 1.0
    assert value(found, "gpucheck_gpu_power_watts", **labels) == 120.5
    assert value(found, "gpucheck_gpu_processes", **labels) == 2
    assert value(found, "gpucheck_gpu_up", gpu="3") == 0
    assert value(found, "gpucheck_gpu_visible", gpu="3") == 0
    assert not any(
        name == "gpucheck_gpu_temperature_celsius" and ("gpu", "3") in labels
        for name, labels in found
    )
    megabytes = value(found, "gpucheck_mig_memory_used_bytes", GPU_I_PROFILE="1g.5gb")
    assert megabytes == 10 * 2**20


def test_gpus_that_could_not_be_listed_are_not_none() -> None:
    silent = list_report()._replace(
        result=Inventory(gpus=(), visibility=Visibility(None, None, DecidedBy.RULES)),
        error=Failure("no-driver", "There is no driver."),
    )
    assert not any(name == "gpucheck_gpus" for name, _ in read(render(silent, View())))

    matching = silent._replace(error=None)
    assert value(read(render(matching, View())), "gpucheck_gpus") == 0


@settings(max_examples=examples(8))
@given(any_list())
def test_any_list_comes_back(report: Report) -> None:
    inventory = report.result
    assert isinstance(inventory, Inventory)

    found = read(render(report, View()))

    assert value(found, "gpucheck_gpus") == len(inventory.gpus)
    used = [value for (name, _), value in found.items() if name == "gpucheck_gpu_memory_used_bytes"]
    assert used == [g.memory_used_bytes for g in inventory.gpus if g.memory_used_bytes is not None]


def finding(status: CheckStatus, gpu: str | None = None, **changes: str) -> Finding:
    known = {"id": "pcie-width", "layer": Layer.HEALTH, "summary": "narrow", "cause": "pcie-narrow"}
    return Finding(**{**known, "status": status, "gpu": gpu, **changes})  # type: ignore[arg-type]


def test_a_detection() -> None:
    checks = (
        finding(CheckStatus.OK, "GPU-a", id="fan"),
        finding(CheckStatus.WARN, "GPU-a"),
        finding(CheckStatus.FAIL, "GPU-a", id="xid", cause="xid-48"),
        finding(CheckStatus.FAIL, id="xid", cause="xid-79"),
        finding(CheckStatus.FAIL, id="xid", cause="xid-79"),  # another one of its kind
        finding(CheckStatus.UNKNOWN, "GPU-elsewhere", id="ecc"),
        finding(CheckStatus.SKIP, id="launch"),
    )
    found = read(render(report(detection(*checks), command="detect"), View()))

    assert value(found, "gpucheck_usable") == 1
    assert {
        dict(labels)["verdict"]: each
        for (name, labels), each in found.items()
        if name == "gpucheck_verdict"
    } == {"usable": 0, "degraded": 1, "unusable": 0, "unknown": 0}
    assert value(found, "gpucheck_findings", status="fail") == 3
    assert value(found, "gpucheck_gpu_failed_checks", UUID="GPU-a", gpu="0") == 1
    joined = {"UUID": "GPU-a", "pci_bus_id": "00000000:1A:00.0", "modelName": "NVIDIA H100"}
    assert value(found, "gpucheck_finding", check="pcie-width", status="warn", **joined) == 1
    assert value(found, "gpucheck_finding", check="xid", cause="xid-79") == 2
    assert value(found, "gpucheck_finding", check="ecc", UUID="GPU-elsewhere") == 1
    shown = {dict(labels)["status"] for name, labels in found if name == "gpucheck_finding"}
    assert shown == {"warn", "fail", "unknown"}


def test_what_is_not_known_has_no_sample() -> None:
    unknown = report(detection(usable=None, verdict=Verdict.UNKNOWN), command="detect")

    found = read(render(unknown, View()))

    assert not any(name == "gpucheck_usable" for name, _ in found)
    assert value(found, "gpucheck_verdict", verdict="unknown") == 1


@settings(max_examples=examples(15))
@given(names=st.lists(NASTY, min_size=2, max_size=2))
def test_any_detection_is_read(names: list[str]) -> None:
    gpus = tuple(DetectedGpu(index, name, name, name) for index, name in enumerate(names))
    checks = tuple(finding(CheckStatus.FAIL, name, cause=name) for name in names)

    found = read(render(report(detection(*checks, gpus=gpus), command="detect"), View()))

    assert value(found, "gpucheck_findings", status="fail") == 2


def test_a_benchmark() -> None:
    found = read(render(report(copy_result()), View()))
    rows = copy_result().measurements

    for row in rows:
        labels = {"id": row.id or row_id(row), "target": row.device}
        assert value(found, "gpucheck_bench_seconds", **labels) == row.time_s
        assert row.throughput is not None
        assert value(found, "gpucheck_bench_bytes_per_second", **labels) == row.throughput.value
        assert value(found, "gpucheck_bench_verified", **labels) == 1


def test_gates_keep_a_series_for_each_state() -> None:
    found = read(render(report(result(gate())), View()))

    assert {
        dict(labels)["status"]: each
        for (name, labels), each in found.items()
        if name == "gpucheck_bench_gate"
    } == {"pass": 1, "fail": 0, "inconclusive": 0, "skip": 0}


def labels_of(found: Mapping[tuple[str, frozenset[tuple[str, str]]], float]) -> Iterator[str]:
    for _, labels in found:
        yield from dict(labels)


def test_labels_are_few_and_their_texts_do_not_change_with_a_reading() -> None:
    documents = (list_report(), report(detection(), command="detect"), report(copy_result()))
    labels = {name for one in documents for name in labels_of(read(render(one, View())))}

    assert labels <= {
        *("command", "version", "driver_version", "hostname"),
        *("gpu", "UUID", "pci_bus_id", "modelName", "GPU_I_ID", "GPU_I_PROFILE", "mig_uuid"),
        *("architecture", "compute_capability", "state"),
        *("verdict", "status", "check", "layer", "cause"),
        *("id", "kernel", "dtype", "scope", "target", "gate"),
    }
