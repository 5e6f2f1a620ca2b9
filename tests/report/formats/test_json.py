"""The documents that programs read: one line of ASCII, as the contract and the schemas say."""

from __future__ import annotations

import functools
import json
import math
import tomllib
from typing import Any

import pytest
from hypothesis import given, settings

from gpucheck.bench.model import (
    Comparison,
    ComparisonSide,
    Doubt,
    DtypeSpec,
    Measurement,
    Scope,
    Throughput,
    Verified,
)
from gpucheck.detect.model import Detection, Framework
from gpucheck.detect.run import detect
from gpucheck.drivers.readings import NvmlReading, ProbeFailure
from gpucheck.inventory.snapshot import take_snapshot
from gpucheck.memlimit.model import (
    GpuMemoryLimit,
    LimitedRun,
    Mechanism,
    MemoryLimit,
    MemoryRequest,
    Strength,
    Verification,
)
from gpucheck.place.model import Candidate, Claim, PlacedDevice, PlacedOp, Placement, Transfer
from gpucheck.report.envelope import Answer, Failure, Report
from gpucheck.report.errors import ExitCode
from gpucheck.report.formats.json import document, render
from gpucheck.report.text import View
from gpucheck.version import __version__
from tests.architecture.house import ROOT
from tests.fakes.probes import FakeProbes, gpu_reading, reading_of
from tests.fakes.reports import any_list, eventful_machine, list_report, wrap
from tests.report.schemas import changed, closed_validator, schema, validator
from tests.sampling import examples

HUNG = ProbeFailure(code="driver-not-answering", message="the driver did not answer within 10 s")
MISSING = ProbeFailure(code="library-not-found", message="no libnvidia-ml.so.1", library_code=12)
BROKEN = Failure(code="unknown-command", message="There is no command 'x'.", remedy=("Try list.",))


def failing(failure: ProbeFailure) -> FakeProbes:
    return FakeProbes(readings=NvmlReading(failure=failure))


def unlike() -> FakeProbes:
    return FakeProbes(readings=reading_of(gpu_reading(0, name="Tesla T4"), gpu_reading(1)))


def halfway() -> FakeProbes:
    return FakeProbes(readings=reading_of(gpu_reading(0), gpu_count=2, failure=HUNG))


def with_framework(answer: Answer) -> Answer:
    assert isinstance(answer.result, Detection)
    torch = Framework(name="torch", version="2.9.1", cuda_build="12.8", sees_gpu=True)
    return answer._replace(result=answer.result._replace(frameworks=(torch,)))


PLACEMENT = Placement(
    devices=(
        PlacedDevice(
            spec="/gpu:0",
            resolved="/job:localhost/replica:0/task:0/device:GPU:0",
            kind="GPU",
            cuda_index=0,
            index=1,
            uuid="GPU-1",
            name="NVIDIA H100",
            pci_bus_id="0000:1a:00.0",
            reason="CUDA calls it 0",
        ),
        PlacedDevice(spec="/cpu:0", resolved="/device:CPU:0", kind="CPU"),
    ),
    ops=(PlacedOp(name="a", op="MatMul", device="/device:GPU:0"),),
    transfers=(Transfer(from_="/device:CPU:0", to="/device:GPU:0", what="x", bytes=64),),
    value=((44.0, 56.0), (98.0, 128.0)),
    environment={"CUDA_VISIBLE_DEVICES": "GPU-1", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"},
    claims=(Claim(uuid="GPU-1", path="/run/lock/x", slot=0, held=True),),
    candidates=(Candidate(uuid="GPU-1", eligible=True, reason="free"),),
)
LIMIT = MemoryLimit(
    request=MemoryRequest(text="30%", fraction=0.3),
    gpus=(
        GpuMemoryLimit(
            uuid="GPU-1", memory_total_bytes=100, limit_bytes=30, allocator_limit_bytes=29
        ),
        GpuMemoryLimit(
            uuid=None, memory_total_bytes=None, limit_bytes=None, allocator_limit_bytes=None
        ),
    ),
    mechanisms=(
        Mechanism(
            framework="cupy",
            mechanism="CUPY_GPU_MEMORY_LIMIT",
            setting="30%",
            strength=Strength.ALLOCATOR,
            applies=True,
            reason="its pool refuses",
        ),
    ),
    environment={"CUPY_GPU_MEMORY_LIMIT": "30%"},
    verification=Verification(allocated_bytes=30, refused_bytes=1, refused_with="X", held=True),
    run=LimitedRun(exit_code=0, peak_bytes=29, exceeded=False, action=None),
)
FLOAT32 = DtypeSpec(input="float32", accumulate="float32", output="float32", math_mode="fp32")
ROW = Measurement(
    kernel="matmul",
    variant="numpy",
    device="cpu",
    gpu_uuid=None,
    dtype=FLOAT32,
    shape=(64, 64, 64),
    scope=Scope.RESIDENT,
    samples_s=(0.1, 0.1),
    warmup_s=(0.2,),
    time_s=0.1,
    median_s=0.1,
    ci95_s=(0.1, 0.1),
    converged=True,
    throughput=Throughput(value=1e9, unit="FLOP/s"),
    verified=Verified(error=1e-7, bound=1e-5, ok=True, reference="float64"),
    doubts=(Doubt(code="host-busy", message="others took 30 %", next="run it again"),),
)
SIDE = ComparisonSide(
    device="cpu", variant="numpy", threads=4, time_s=0.1, median_s=0.1, dtype=FLOAT32
)
AGAINST = Comparison(
    kernel="matmul",
    dtype=FLOAT32,
    shape=(64, 64, 64),
    cpu=SIDE,
    gpu=SIDE,
    speedup_resident=2.0,
    speedup_end_to_end=None,
    speedup_amortised=None,
    reuse_count=10,
    break_even=None,
    sentence="The GPU is twice as fast.",
)
GATE = {
    "id": "floor",
    "status": "pass",
    "measured": 2.0,
    "limit": 1.0,
    "direction": "higher",
    "unit": "GB/s",
    "reason": None,
    "class": "hardware",
}
BENCH = {
    "measurements": (ROW,),
    "comparisons": (AGAINST,),
    "gates": (GATE,),
    "telemetry": None,
    "environment": {},
    "profile": None,
}

#: At least one report for each document, and one for each way it can look.
REPORTS: dict[str, list[Report]] = {
    "list": [
        list_report(topology=True),
        list_report(),
        list_report(unlike()),
        list_report(halfway()),
        list_report(failing(HUNG)),
        list_report(failing(MISSING)),
        wrap("list", Answer(result=None, exit_code=ExitCode.WRONG_USE, error=BROKEN)),
    ],
    "detect": [
        wrap("detect", with_framework(detect(eventful_machine()))),
        wrap("detect", detect(halfway())),
        wrap("detect", detect(failing(MISSING))),
        wrap("detect", Answer(result=None, exit_code=ExitCode.BUG, error=BROKEN)),
    ],
    "snapshot": [
        wrap("snapshot", take_snapshot(eventful_machine(), redacted=False)),
        wrap("snapshot", take_snapshot(eventful_machine(), redacted=True)),
        wrap("snapshot", take_snapshot(failing(HUNG), redacted=False)),
    ],
    "error": [wrap("error", Answer(result=None, exit_code=ExitCode.WRONG_USE, error=BROKEN))],
    "place": [
        wrap("place", Answer(result=PLACEMENT)),
        wrap("place", Answer(result=Placement())),
    ],
    "memlimit": [wrap("memlimit", Answer(result=LIMIT))],
    "bench": [wrap("bench", Answer(result=BENCH))],
}
CASES = [
    pytest.param(name, report, id=f"{name}-{number}")
    for name, reports in REPORTS.items()
    for number, report in enumerate(reports)
]
#: Documents that are whole; the others grow with their commands.
WHOLE = ("list", "detect", "snapshot", "error")


# ------------------------------------------------------------------------------------- the text


@pytest.mark.parametrize(("name", "report"), CASES)
def test_one_line_of_ascii(name: str, report: Report) -> None:
    text = render(report, View())

    assert text.isascii()
    assert text.count("\n") == 1
    assert text.endswith("\n")
    assert json.loads(text)["schema"] == f"gpucheck/{name}/1"


def test_envelope() -> None:
    plain = document(REPORTS["list"][5])

    assert list(plain) == [
        "schema",
        "tool",
        "time",
        "host",
        "status",
        "exit_code",
        "error",
        "warnings",
        "result",
    ]
    assert plain["tool"] == {"name": "gpucheck", "version": __version__}
    assert plain["time"] == "2026-01-02T03:04:05Z"
    assert (plain["status"], plain["exit_code"]) == ("unknown", 4)
    assert plain["error"] == {
        "code": "nvml-library-not-found",
        "message": "The GPUs cannot be listed: no libnvidia-ml.so.1 (NVML error 12).",
        "remedy": ["Run: gpucheck detect"],
    }


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_what_is_no_number_is_null(value: float) -> None:
    probes = FakeProbes(readings=reading_of(gpu_reading(0, power_w=value)))

    [gpu] = json.loads(render(list_report(probes), View()))["result"]["gpus"]

    assert gpu["power_w"] is None


def test_eight_gpus_stay_small() -> None:
    rows = [gpu_reading(index) for index in range(8)]

    assert len(render(list_report(FakeProbes(readings=reading_of(*rows))), View())) < 20_000


@settings(max_examples=examples(10))
@given(any_list())
def test_any_list_is_one_line_that_parses(report: Report) -> None:
    text = render(report, View())

    assert text.isascii()
    assert len(text.splitlines()) == 1
    assert json.loads(text) == document(report)


# ---------------------------------------------------------------------------------- the schemas


def as_read(report: Report) -> Any:
    return json.loads(render(report, View()))


def errors(name: str, plain: Any) -> list[str]:
    return [f"{error.json_path}: {error.message}" for error in validator(name).iter_errors(plain)]


@pytest.mark.parametrize(("name", "report"), CASES)
def test_documents_are_valid(name: str, report: Report) -> None:
    assert errors(name, as_read(report)) == []


@pytest.mark.parametrize(("name", "report"), [case for case in CASES if case.values[0] in WHOLE])
def test_every_field_is_described(name: str, report: Report) -> None:
    found = closed_validator(name).iter_errors(as_read(report))

    assert [f"{error.json_path}: {error.message}" for error in found] == []


@pytest.mark.parametrize("name", WHOLE)
def test_a_field_that_nobody_described_would_be_noticed(name: str) -> None:
    plain = as_read(REPORTS[name][0]) | {"surprise": 1}

    assert not closed_validator(name).is_valid(plain)
    assert validator(name).is_valid(plain)


@pytest.mark.parametrize("name", sorted(REPORTS))
def test_every_document_has_the_same_envelope(name: str) -> None:
    own, first = schema(name), schema("list")

    assert own["required"] == first["required"]
    for field in set(first["properties"]) - {"schema", "result", "error"}:
        assert own["properties"][field] == first["properties"][field]
    for part in ("Failure", "Host"):
        assert own["$defs"][part] == first["$defs"][part]


# --------------------------------------------------------------------------------- the contract

CONTRACT = tomllib.loads((ROOT / "tests" / "data" / "contract.toml").read_text(encoding="utf-8"))
ENVELOPE = CONTRACT.pop("envelope")
FIELDS = {
    name: [
        f"{where}.{field}".removeprefix(".")
        for where, fields in (ENVELOPE | row.get("fields", {})).items()
        for field in fields.split()
    ]
    for name, row in CONTRACT.items()
}
#: A value that no field of any document may have.
NONSENSE = {"": [["nonsense"]]}
#: Fields whose content is not fixed.
ANYTHING = {("bench", "result.environment")}


@functools.cache
def documents(name: str) -> tuple[Any, ...]:
    """Return the documents of this name, to be read only."""
    return tuple(as_read(report) for report in REPORTS[name])


def first_with(name: str, path: str, change: Any) -> Any:
    """Return the first document of this name that has the field, changed there."""
    for plain in documents(name):
        found = changed(plain, path, change)
        if found is not None:
            return found
    pytest.fail(f"no report of {name} has {path}")


def delete(holder: Any, name: str) -> None:
    del holder[name]


@pytest.mark.parametrize("name", FIELDS)
def test_no_field_of_the_contract_may_be_missing(name: str) -> None:
    is_valid = validator(name).is_valid  # it ends at the first error

    assert [path for path in FIELDS[name] if is_valid(first_with(name, path, delete))] == []


@pytest.mark.parametrize("name", FIELDS)
def test_every_field_of_the_contract_has_a_type(name: str) -> None:
    def spoil(holder: Any, field: str) -> None:
        holder[field] = NONSENSE

    is_valid = validator(name).is_valid
    untyped = [path for path in FIELDS[name] if is_valid(first_with(name, path, spoil))]

    assert untyped == [path for path in FIELDS[name] if (name, path) in ANYTHING]


@pytest.mark.parametrize("name", FIELDS)
def test_null_stands_only_where_it_is_an_answer(name: str) -> None:
    def empty(holder: Any, field: str) -> None:
        holder[field] = None

    def is_refused(path: str) -> bool:
        found = validator(name).iter_errors(first_with(name, path, empty))
        # What goes together (no result without an error, say) is not about null.
        return any("allOf" not in error.absolute_schema_path for error in found)

    nullable = CONTRACT[name]["nullable"].split()

    assert [path for path in FIELDS[name] if not is_refused(path)] == [
        path for path in FIELDS[name] if path in nullable or path.startswith("host.")
    ]


def with_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: with_nulls(part) for name, part in value.items()}
    return None if value == "null" else value


@pytest.mark.parametrize("name", [name for name in CONTRACT if "wrong" in CONTRACT[name]])
def test_wrong_values_are_refused(name: str) -> None:
    def is_taken(path: str, value: object) -> bool:
        def put(holder: Any, field: str) -> None:
            holder[field] = with_nulls(value)

        return validator(name).is_valid(first_with(name, path, put))

    assert [(path, value) for path, value in CONTRACT[name]["wrong"] if is_taken(path, value)] == []


@pytest.mark.parametrize("name", sorted(REPORTS))
def test_later_versions_may_add_fields(name: str) -> None:
    plain = as_read(REPORTS[name][0])
    plain["new"] = plain["host"]["new"] = plain["tool"]["new"] = {"anything": [1]}
    for part in (plain["result"] or {}).values():
        items = part if isinstance(part, list) else [part]
        for item in items:
            if isinstance(item, dict):
                item["new"] = "1"

    assert errors(name, plain) == []


def test_on_a_terminal_the_document_is_indented_and_the_same() -> None:
    report = list_report()

    indented = render(report, View(indented=True))

    assert indented.startswith('{\n  "schema": "gpucheck/list/1",\n')
    assert json.loads(indented) == json.loads(render(report, View()))
