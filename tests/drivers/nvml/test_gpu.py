"""Readings of one GPU: values, gaps, processes and MIG devices."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from gpucheck.drivers.nvml import binding
from gpucheck.drivers.nvml.binding import Binding
from gpucheck.drivers.nvml.gpu import NO_INSTANCE, GpuReader
from tests.fakes.pynvml_double import COLD, FakeNvml, error


def read(nvml: FakeNvml) -> dict[str, Any]:
    nvml.nvmlDeviceGetHandleByIndex = lambda index: "handle"
    return GpuReader(Binding(nvml), 0).read(process_utilization=True)


@pytest.mark.parametrize(
    ("function", "answer", "field", "value"),
    [
        ("nvmlDeviceGetPowerUsage", 71_500, "power_w", 71.5),
        ("nvmlDeviceGetPowerUsage", 0, "power_w", 0.0),
        ("nvmlDeviceGetFanSpeed", 0, "fan_percent", 0),
        ("nvmlDeviceGetPersistenceMode", 0, "persistence_mode", False),
        ("nvmlDeviceGetPersistenceMode", 1, "persistence_mode", True),
        ("nvmlDeviceGetEccMode", [0, 1], "ecc_mode", False),
        ("nvmlDeviceGetMigMode", [0, 1], "mig_enabled", False),
        ("nvmlDeviceGetPerformanceState", 0, "performance_state", 0),
        ("nvmlDeviceGetArchitecture", 9, "architecture", "Hopper"),
        ("nvmlDeviceGetArchitecture", 99, "architecture", "unknown (99)"),
        ("nvmlDeviceGetComputeMode", 3, "compute_mode", "exclusive-process"),
        ("nvmlDeviceGetComputeMode", 9, "compute_mode", "unknown (9)"),
        ("nvmlDeviceGetCudaComputeCapability", (12, 1), "compute_capability", "12.1"),
    ],
)
def test_answers_become_values(function: str, answer: Any, field: str, value: Any) -> None:
    document = read(FakeNvml(**{function: answer}))

    assert document[field] == value
    assert field not in document["unavailable"]


@pytest.mark.parametrize(
    ("function", "answer", "field"),
    [
        ("nvmlDeviceGetPerformanceState", 32, "performance_state"),  # NVML's own "unknown"
        ("nvmlDeviceGetPowerUsage", "much", "power_w"),
        ("nvmlDeviceGetCudaComputeCapability", (9,), "compute_capability"),
        ("nvmlDeviceGetEccMode", [], "ecc_mode"),
        ("nvmlDeviceGetPciInfo", SimpleNamespace(busId="?", pciDeviceId=1), "pci_bus_id"),
        ("nvmlDeviceGetPciInfo", SimpleNamespace(busId="0000:01:00.0"), "pci_device_id"),
        ("nvmlDeviceGetUtilizationRates", None, "utilization_gpu_percent"),
    ],
)
def test_answers_of_a_strange_shape_are_gaps(function: str, answer: Any, field: str) -> None:
    document = read(FakeNvml(**{function: answer}))

    assert document.get(field) is None
    assert document["unavailable"][field]
    assert document["failure"] is None


@pytest.mark.parametrize(("answer", "value"), [(0, 0), (41, 41), (COLD, -5), ((1 << 32) - 60, -60)])
def test_a_temperature_may_be_below_zero(answer: int, value: int) -> None:
    document = read(FakeNvml(nvmlDeviceGetTemperature=answer))

    assert document["temperature_c"] == value


GIB = 1 << 30


def memory(total: int, used: int, free: int) -> SimpleNamespace:
    return SimpleNamespace(total=total * GIB, used=used * GIB, free=free * GIB)


@pytest.mark.parametrize(
    ("function", "answer", "fields", "said"),
    [
        ("nvmlDeviceGetTemperature", 1 << 31, ["temperature_c"], "-2147483648 C"),
        ("nvmlDeviceGetTemperature", 201, ["temperature_c"], "201 C"),
        (
            "nvmlDeviceGetUtilizationRates",
            SimpleNamespace(gpu=250, memory=3),
            ["utilization_gpu_percent", "utilization_memory_percent"],
            "250 %",
        ),
        (
            "nvmlDeviceGetMemoryInfo",
            memory(80, 160, 0),
            ["memory_total_bytes", "memory_used_bytes", "memory_free_bytes"],
            "171798691840 bytes used",
        ),
        ("nvmlDeviceGetMemoryInfo", memory(80, 0, 81), ["memory_free_bytes"], "free of"),
    ],
)
def test_what_cannot_be_is_not_passed_on(
    function: str, answer: Any, fields: list[str], said: str
) -> None:
    document = read(FakeNvml(**{function: answer}))

    assert [document.get(field) for field in fields] == [None] * len(fields)
    assert all(said in document["unavailable"][field] for field in fields)
    assert all("which is impossible" in document["unavailable"][field] for field in fields)
    assert document["failure"] is None


@pytest.mark.parametrize("code", [15, 16])
def test_a_gpu_that_is_gone_is_asked_no_more(code: int) -> None:
    nvml = FakeNvml(nvmlDeviceGetUUID="GPU-1", nvmlDeviceGetName=error(code), nvmlDeviceGetSerial=1)

    document = read(nvml)

    assert document["uuid"] == "GPU-1"
    assert document["failure"]["library_code"] == code
    assert nvml.calls == ["nvmlDeviceGetUUID", "nvmlDeviceGetName"]
    assert document["unavailable"]["memory_total_bytes"].endswith(f"(NVML error {code})")


def process(pid: int, **values: Any) -> SimpleNamespace:
    return SimpleNamespace(**{"pid": pid, "usedGpuMemory": 1, **values})


def lists(**answers: Any) -> dict[str, Any]:
    """Return the three process lists in their newest form, empty by default."""
    names = {"compute": "Compute", "graphics": "Graphics", "mps": "MPSCompute"}
    return {
        f"nvmlDeviceGet{word}RunningProcesses_v3": answers.get(kind, [])
        for kind, word in names.items()
    }


def test_processes_of_all_kinds() -> None:
    nvml = FakeNvml(
        **lists(
            compute=[process(1, gpuInstanceId=NO_INSTANCE, computeInstanceId=NO_INSTANCE)],
            graphics=[process(2, usedGpuMemory=None)],
            mps=[process(3, gpuInstanceId=5, computeInstanceId=0)],
        )
    )

    first, second, third = read(nvml)["processes"]

    assert (first["type"], first["gpu_instance_id"], first["compute_instance_id"]) == (
        "compute", None, None,
    )  # fmt: skip
    assert (second["type"], second["memory_used_bytes"]) == ("graphics", None)
    assert (third["gpu_instance_id"], third["compute_instance_id"]) == (5, 0)


@pytest.mark.parametrize(
    ("answers", "pids", "reason"),
    [
        ({"compute": [process(1)], "graphics": error(3), "mps": error(13)}, [1], None),
        ({"compute": error(3), "graphics": [process(2)]}, [2],
         "not supported by this GPU (NVML error 3)"),
        ({"compute": [process(1)], "graphics": error(999)}, [1],
         "the graphics processes: the driver reported an unknown internal error (NVML error 999)"),
        ({"compute": error(4), "mps": error(999)}, [], "no permission to read it (NVML error 4)"),
    ],
)  # fmt: skip
def test_a_list_that_is_refused_leaves_the_others(
    monkeypatch: pytest.MonkeyPatch, answers: dict[str, Any], pids: list[int], reason: str | None
) -> None:
    def not_in_the_library(*_: object) -> None:
        raise error(13)

    monkeypatch.setattr(binding, "_list_v1", not_in_the_library)

    document = read(FakeNvml(**lists(**answers)))

    assert [item["pid"] for item in document["processes"]] == pids
    assert document["unavailable"].get("processes") == reason


def test_the_newest_sample_of_a_process_counts() -> None:
    samples = [
        SimpleNamespace(pid=1, timeStamp=10, smUtil=50),
        SimpleNamespace(pid=1, timeStamp=30, smUtil=0),
        SimpleNamespace(pid=1, timeStamp=20, smUtil=99),
        SimpleNamespace(pid=2, timeStamp=5, smUtil=7),
    ]

    found = read(FakeNvml(nvmlDeviceGetProcessUtilization=samples))
    nothing = read(FakeNvml(nvmlDeviceGetProcessUtilization=error(6)))

    assert found["process_utilization"] == {"1": 0, "2": 7}
    assert nothing["process_utilization"] == {}
    assert "process_utilization" not in nothing["unavailable"]


def test_empty_mig_slots_do_not_end_the_list() -> None:
    def by_slot(handle: str, slot: int) -> Any:
        return {0: error(6), 1: "mig1", 2: error(2), 3: "mig3", 4: error(999), 5: "mig5"}[slot]

    nvml = FakeNvml(
        nvmlDeviceGetMigMode=[1, 1],
        nvmlDeviceGetMaxMigDeviceCount=6,
        nvmlDeviceGetMigDeviceHandleByIndex=by_slot,
        nvmlDeviceGetUUID=lambda handle: f"MIG-{handle}",
    )

    document = read(nvml)

    assert [item["uuid"] for item in document["mig_instances"]] == ["MIG-mig1", "MIG-mig3"]
    assert "(NVML error 999)" in document["unavailable"]["mig_instances"]
