"""Snapshot files: readings restored from them, and errors for unreadable ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucheck.cli.examples import FOLDER
from gpucheck.drivers import open_probes, recorded
from gpucheck.drivers.readings import (
    CudaReading,
    KernelReading,
    NvmlReading,
    NvmlRequest,
    PciDeviceReading,
    ProbeFailure,
    ProcessIdentity,
    TopologyReading,
)
from gpucheck.drivers.recorded import RecordedProbes, Snapshot, read_snapshot
from gpucheck.report.codec import to_plain
from gpucheck.report.errors import WrongUseError
from gpucheck.report.host import Host
from gpucheck.version import __version__
from tests.fakes.probes import gpu_reading, reading_of

SNAPSHOT = Snapshot(
    time="2026-01-02T03:04:05Z",
    host=Host(name="node1", kernel="6.1.0", driver_version="580.95.05"),
    environment={"CUDA_VISIBLE_DEVICES": ""},
    kernel=KernelReading(
        pci_devices=(PciDeviceReading(pci_bus_id="0000:10:00.0", vendor_id="0x10de"),),
        module_loaded=True,
    ),
    nvml=reading_of(gpu_reading(0), gpu_reading(1), topology=TopologyReading()),
    cuda=CudaReading(driver_version=13000, failure=ProbeFailure(code="x", message="y")),
    processes=(ProcessIdentity(pid=7, name="python3", user="alice"),),
)


def document(result: Any, schema: object = "gpucheck/snapshot/1") -> str:
    return json.dumps({"schema": schema, "result": result})


def write(folder: Path, text: str) -> Path:
    file = folder / "snapshot.json"
    file.write_text(text, encoding="utf-8")
    return file


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    file = write(tmp_path, document(to_plain(SNAPSHOT)))

    assert read_snapshot(file) == SNAPSHOT


def test_answers_are_those_of_the_snapshot(tmp_path: Path) -> None:
    probes = open_probes(write(tmp_path, document(to_plain(SNAPSHOT))))

    assert probes.time() == SNAPSHOT.time
    assert probes.host() == SNAPSHOT.host._replace(recorded=True)
    assert probes.environment() == {"CUDA_VISIBLE_DEVICES": ""}
    assert probes.kernel() == SNAPSHOT.kernel
    assert probes.cuda() == SNAPSHOT.cuda
    assert probes.nvml(NvmlRequest(topology=True)) == SNAPSHOT.nvml
    assert probes.nvml(NvmlRequest()).topology is None
    people = probes.identify([7, 8])
    assert people[7].user == "alice"
    assert (people[8].namespace, people[8].user) == ("unknown", None)
    probes.close()


def test_what_was_not_recorded_says_so() -> None:
    probes = RecordedProbes(Snapshot(time="", host=Host(), environment={}))

    reading = probes.nvml(NvmlRequest())
    cuda = probes.cuda()
    kernel = probes.kernel()

    assert reading == NvmlReading(failure=recorded.NOT_RECORDED)
    assert cuda == CudaReading(failure=recorded.NOT_RECORDED)
    assert kernel.pci_devices is None
    assert kernel.pci_unavailable == "the snapshot did not record it"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "is not JSON"),
        ("nonsense", "is not JSON"),
        ("[1]", "is not a JSON object"),
        ("{}", "it has no schema"),
        (document({}, "gpucheck/snapshot/99"), "its schema is 'gpucheck/snapshot/99'"),
        (document({}, 1), "its schema is 1"),
        (document(None), "is damaged: result: must be an object"),
        (document({"time": 1}), "is damaged: result.time: must be text"),
        (document({"time": "now"}), "is damaged: result.host: is missing"),
    ],
)
def test_files_that_cannot_be_used(tmp_path: Path, text: str, words: str) -> None:
    file = write(tmp_path, text)

    with pytest.raises(WrongUseError) as caught:
        open_probes(file)

    assert words in caught.value.message
    assert str(file) in caught.value.message
    assert caught.value.code == "snapshot-unusable"
    assert caught.value.remedy == ("Record one with: gpucheck snapshot FILE",)


def of_version(version: str, result: Any) -> str:
    """Return a snapshot that another gpucheck wrote."""
    return json.dumps(json.loads(document(result)) | {"tool": {"version": version}})


@pytest.mark.parametrize("version", ["99.1", __version__])
def test_what_was_recorded_in_addition_is_ignored(tmp_path: Path, version: str) -> None:
    """By a newer version, or by an earlier state of this one."""
    file = write(tmp_path, of_version(version, to_plain(SNAPSHOT) | {"extra": 1}))

    assert read_snapshot(file) == SNAPSHOT


def test_a_snapshot_that_does_not_fit_names_the_version_that_wrote_it(tmp_path: Path) -> None:
    file = write(tmp_path, of_version("99.1", {"time": 1}))

    with pytest.raises(WrongUseError, match=r"is damaged \(written by gpucheck 99.1; ") as caught:
        read_snapshot(file)

    assert caught.value.remedy[0].startswith("Read it with the gpucheck that wrote it")


def test_files_that_are_too_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write(tmp_path, document(to_plain(SNAPSHOT)))
    size = file.stat().st_size

    monkeypatch.setattr(recorded, "MOST_JSON_BYTES", size)
    assert read_snapshot(file) == SNAPSHOT
    monkeypatch.setattr(recorded, "MOST_JSON_BYTES", size - 1)
    with pytest.raises(WrongUseError, match="is larger than"):
        read_snapshot(file)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["time", "host", "nvml", "gpus", "x"]), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(result=JSON, schema=JSON | st.just("gpucheck/snapshot/1"))
def test_any_json_is_a_snapshot_or_a_sentence(
    tmp_path_factory: pytest.TempPathFactory, result: Any, schema: Any
) -> None:
    file = write(tmp_path_factory.mktemp("json"), document(result, schema))

    try:
        found = read_snapshot(file)
    except WrongUseError as error:
        assert str(file) in error.message  # noqa: PT017
        return
    assert isinstance(found, Snapshot)


@pytest.mark.parametrize(
    ("before", "after", "place"),
    [
        ('"compute_capability":"9.0"', '"compute_capability":"9.x"', "compute_capability"),
        ('"time":"2026', '"time":"x2026', "time: must"),
        ('"fan_percent":null', '"fan_percent":-1', "fan_percent"),
    ],
)
def test_forms_that_its_schema_refuses(before: str, after: str, place: str, tmp_path: Path) -> None:
    text = (FOLDER / "h100x8.json").read_text(encoding="utf-8")
    assert before in text
    file = tmp_path / "node.json"
    file.write_text(text.replace(before, after, 1), encoding="utf-8")

    with pytest.raises(WrongUseError, match="is damaged") as caught:
        read_snapshot(file)

    assert place in caught.value.message
