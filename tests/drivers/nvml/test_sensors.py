"""Sensor process: scripted NVML inside it, and the real process without a driver."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpucheck.drivers import open_probes
from gpucheck.drivers.nvml.binding import Binding
from gpucheck.drivers.nvml.sensor_worker import Watch
from gpucheck.drivers.nvml.sensors import NvmlSensors, SensorBatch
from gpucheck.drivers.readings import NvmlRequest
from tests.fakes.libraries import build_libraries
from tests.fakes.machine import load_machine
from tests.fakes.pynvml_double import FakeNvml, Unsupporting, error


def scripted(**answers: Any) -> Unsupporting:
    return Unsupporting(**{"nvmlDeviceGetHandleByUUID": "handle"} | answers)


def started(nvml: FakeNvml, period_s: float = 0.05) -> tuple[Watch, dict[str, Any]]:
    watch = Watch(Binding(nvml))
    answer = watch.answer({"ask": "start", "uuids": ["GPU-a"], "period_s": period_s})
    return watch, answer


def test_what_the_driver_gives_is_told_and_the_rest_has_its_reason() -> None:
    nvml = scripted(
        nvmlDeviceGetClockInfo=lambda handle, kind: {1: 1755, 2: 2619}[kind],
        nvmlDeviceGetTotalEnergyConsumption=5000,
        nvmlDeviceGetMaxClockInfo=1980,
    )

    watch, facts = started(nvml)
    watch.tick(1.0)
    answer = watch.answer({"ask": "window"})

    (gpu,) = facts["gpus"]
    assert (gpu["uuid"], gpu["clock_sm_max_mhz"]) == ("GPU-a", 1980)
    assert answer["samples"] == [[1.0, "GPU-a", {"clock_sm_mhz": 1755, "clock_memory_mhz": 2619}]]
    assert answer["counters"]["GPU-a"]["energy_mj"] == 5000
    assert answer["unavailable"]["GPU-a"]["power_mw"] == "not supported by this GPU (NVML error 3)"
    assert watch.answer({"ask": "energy", "uuid": "GPU-a"}) == {"part": "energy", "joules": 5.0}
    assert watch.answer({"ask": "energy", "uuid": "GPU-x"})["joules"] is None


def test_the_slowdown_of_a_card_without_thresholds_is_counted_from_its_margin() -> None:
    offset = SimpleNamespace(nvmlReturn=0, valueType=5, value=SimpleNamespace(
        **dict.fromkeys(("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal"), -2)
    ))  # fmt: skip
    nvml = scripted(
        nvmlDeviceGetFieldValues=lambda handle, fields: [offset] if fields == [194] else error(3),
        nvmlDeviceGetMarginTemperature=30,
        nvmlDeviceGetTemperature=60,
    )

    _, facts = started(nvml)
    _, none = started(scripted(nvmlDeviceGetTemperature=60))

    assert facts["gpus"][0]["temperature_slowdown_c"] == 92
    assert none["gpus"][0]["temperature_slowdown_c"] is None


@pytest.mark.parametrize(("feature", "on"), [(0, False), (1, True)])
def test_confidential_computing_is_read(feature: int, on: bool) -> None:
    state = SimpleNamespace(ccFeature=feature)
    _, facts = started(scripted(nvmlSystemGetConfComputeState=state))

    assert facts["gpus"][0]["confidential_computing"] is on


def test_confidential_computing_that_the_driver_does_not_know_has_a_reason() -> None:
    watch, facts = started(scripted())
    answer = watch.answer({"ask": "window"})

    assert facts["gpus"][0]["confidential_computing"] is None
    assert "not supported" in answer["unavailable"]["GPU-a"]["confidential_computing"]


def test_a_refused_question_is_not_asked_again() -> None:
    nvml = scripted()
    watch, _ = started(nvml, period_s=0.0)
    watch.tick(1.0)
    asked = len(nvml.calls)

    watch.tick(2.0)

    assert len(nvml.calls) == asked


def test_older_drivers_are_asked_by_their_older_name() -> None:
    watch, _ = started(scripted(nvmlDeviceGetCurrentClocksThrottleReasons=0x24))

    watch.tick(1.0)

    assert watch.answer({"ask": "window"})["samples"][0][2] == {"reasons": 0x24}


def test_readings_come_at_their_period_and_are_handed_out_once() -> None:
    watch, _ = started(scripted(nvmlDeviceGetPowerUsage=70_000), period_s=0.05)

    for moment in (1.0, 1.01, 1.049, 1.06, 1.2):
        watch.tick(moment)

    times = [time_s for time_s, _, _ in watch.answer({"ask": "window"})["samples"]]
    assert times == [1.0, 1.06, 1.2]
    assert watch.answer({"ask": "window"})["samples"] == []
    assert watch.wait_s(1.21) == pytest.approx(0.04)


def test_counters_of_every_kind() -> None:
    fields = {82: (1, 78), 269: (3, 2_000_000_000), 270: (0, 5.0)}

    def field(handle: str, wanted: list[int]) -> list[Any]:
        if wanted[0] not in fields:
            return [SimpleNamespace(nvmlReturn=3)]
        kind, value = fields[wanted[0]]
        names = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal")
        values = SimpleNamespace(**dict.fromkeys(names, -1) | {names[kind]: value})
        return [SimpleNamespace(nvmlReturn=0, valueType=kind, value=values)]

    nvml = scripted(
        nvmlDeviceGetFieldValues=field,
        nvmlDeviceGetViolationStatus=lambda handle, policy: SimpleNamespace(violationTime=policy),
        nvmlDeviceGetTotalEccErrors=lambda handle, kind, counter: 10 + kind,
        nvmlDeviceGetRemappedRows=[1, 2, 0, 0],
        nvmlDeviceGetComputeRunningProcesses_v3=[SimpleNamespace(pid=9), SimpleNamespace(pid=4)],
    )
    watch, _ = started(nvml)

    counters = watch.answer({"ask": "window"})["counters"]["GPU-a"]

    assert counters["limited_ns"] == {
        "power": 0,
        "thermal": 1,
        "sync-boost": 2,
        "board-limit": 3,
        "reliability": 5,
        "sw-thermal": 2_000_000_000,
        "hw-thermal": 5,
    }
    assert counters["temperature_memory_c"] == 78
    assert (counters["ecc_corrected"], counters["ecc_uncorrected"]) == (10, 11)
    assert counters["remapped_rows"] == 3
    assert counters["processes"] == [4, 9]


@pytest.mark.parametrize(
    ("kind", "value", "degrees"),
    [(1, 0xFFFFFFFF - 4, -5), (5, -5, -5), (1, 0xFFFFFFFF - 300, None)],
)
def test_a_memory_below_zero_is_not_four_billion_degrees_hot(
    kind: int, value: int, degrees: int | None
) -> None:
    names = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal")
    values = SimpleNamespace(**dict.fromkeys(names, 7) | {names[kind]: value})
    field = SimpleNamespace(nvmlReturn=0, valueType=kind, value=values)
    watch, _ = started(scripted(nvmlDeviceGetFieldValues=[field]))

    counters = watch.answer({"ask": "window"})["counters"]["GPU-a"]

    assert counters["temperature_memory_c"] == degrees


def test_a_part_of_a_gpu_has_the_clocks_of_the_whole_and_no_energy_of_its_own() -> None:
    def whole_only(value: int) -> Any:
        return lambda handle, *_: value if handle == "whole" else error(3)

    nvml = scripted(
        nvmlDeviceGetDeviceHandleFromMigDeviceHandle="whole",
        nvmlDeviceGetClockInfo=whole_only(1410),
        nvmlDeviceGetPowerUsage=whole_only(400_000),
        nvmlDeviceGetTotalEnergyConsumption=whole_only(7),
    )
    watch = Watch(Binding(nvml))
    watch.answer({"ask": "start", "uuids": ["MIG-a"], "period_s": 0.05})
    watch.tick(1.0)
    answer = watch.answer({"ask": "window"})

    assert answer["samples"][0][2] == {"clock_sm_mhz": 1410, "clock_memory_mhz": 1410}
    assert {"power_mw", "energy_mj"} <= set(answer["unavailable"]["MIG-a"])
    assert "energy_mj" not in answer["counters"]["MIG-a"]


def test_a_part_whose_whole_is_refused_gives_what_it_has_itself() -> None:
    watch = Watch(Binding(scripted(nvmlDeviceGetClockInfo=1410)))
    watch.answer({"ask": "start", "uuids": ["MIG-a"], "period_s": 0.05})
    watch.tick(1.0)
    answer = watch.answer({"ask": "window"})

    assert answer["samples"][0][2]["clock_sm_mhz"] == 1410
    assert "parent" in answer["unavailable"]["MIG-a"]


def test_a_gpu_that_is_not_found_gives_nothing_and_a_reason() -> None:
    watch, facts = started(scripted(nvmlDeviceGetHandleByUUID=error(3)))
    watch.tick(1.0)
    answer = watch.answer({"ask": "window"})

    assert facts["gpus"][0]["uuid"] == "GPU-a"
    assert answer["samples"] == [[1.0, "GPU-a", {}]]
    assert "gpu" in answer["unavailable"]["GPU-a"]


def test_the_real_process_says_that_there_is_no_driver_or_reads_one() -> None:
    sensors = NvmlSensors()

    facts = sensors.start([])

    assert facts == {}
    if sensors.failure is None:
        assert sensors.window().samples == ()
    else:
        assert sensors.window() == SensorBatch()
        assert sensors.joules("GPU-a") is None
    sensors.close()


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("import sys; sys.exit(3)", "ended with code 3"),
        ("print('no json', flush=True); input()", "unreadable answer"),
        ("import time; time.sleep(60)", "did not answer within 0.3 s"),
        ('print(\'{"part": "failure", "code": "x", "message": "it is broken"}\')', "broken"),
    ],
)
def test_a_broken_process_is_a_reason_and_no_exception(
    body: str, words: str, tmp_path: Path
) -> None:
    script = tmp_path / "broken.py"
    script.write_text(body, encoding="utf-8")
    sensors = NvmlSensors(deadline_s=0.3 if "sleep" in body else 600.0, worker=str(script))

    assert sensors.start(["GPU-a"]) == {}

    assert words in (sensors.failure or "")
    assert sensors.window() == SensorBatch()
    sensors.close()


@pytest.mark.parametrize(("gpus", "period_s"), [(1, 0.05), (2, 0.05), (4, 0.1), (8, 0.2)])
def test_many_gpus_are_read_less_often(gpus: int, period_s: float, tmp_path: Path) -> None:
    asked = tmp_path / "asked"
    script = tmp_path / "worker.py"
    answer = '{"part": "facts", "gpus": []}'
    script.write_text(
        f"open({str(asked)!r}, 'w').write(input())\nprint({answer!r}, flush=True)\ninput()",
        encoding="utf-8",
    )
    sensors = NvmlSensors(worker=str(script))

    sensors.start([f"GPU-{number}" for number in range(gpus)])

    assert sensors.failure is None
    assert json.loads(asked.read_text(encoding="utf-8"))["period_s"] == period_s
    assert sensors.period_s == period_s
    sensors.close()


def test_no_sensors_says_why() -> None:
    sensors = NvmlSensors("no GPU is measured")

    assert sensors.start(["GPU-a"]) == {}
    assert sensors.window() == SensorBatch()
    assert sensors.joules("GPU-a") is None
    assert sensors.failure == "no GPU is measured"
    sensors.close()


def test_the_real_binding_on_a_pretended_driver(
    c_compiler: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in build_libraries(load_machine("h100x8"), tmp_path).items():
        monkeypatch.setenv(name, value)
    machine = open_probes()
    uuid = machine.nvml(NvmlRequest()).gpus[0].uuid
    machine.close()
    assert uuid is not None
    sensors = NvmlSensors()

    facts = sensors.start([uuid])
    window = sensors.window()
    joules = sensors.joules(uuid)
    sensors.close()

    assert sensors.failure is None
    assert facts[uuid]["clock_sm_max_mhz"] == 1980
    assert window.counters[uuid]["energy_mj"] > 0
    assert joules is not None
    for sample in window.samples:
        assert sample.uuid == uuid
        assert sample.values["clock_sm_mhz"] > 0
