"""A burn: its ends, its devices' results, refusals and claims, and that all processes stop."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpucheck.bench import burn
from gpucheck.bench.burn import Burn, BurnProgress, BurnRequest, burn_here, check_burn
from gpucheck.bench.burn_gates import conclude_burn
from gpucheck.bench.model import BurnEnd, BurnResult, Corruption, GateClass, GateStatus
from gpucheck.bench.request_model import BenchRequest
from gpucheck.bench.workers import WorkerAnswer, WorkerDevice, WorkerPool, worker_devices
from gpucheck.drivers.nvml.sensors import NvmlSensors, Sample, SensorBatch
from gpucheck.drivers.readings import CudaDeviceReading, CudaReading, ProcessReading
from gpucheck.report.codec import to_plain
from gpucheck.report.envelope import Answer, Failure
from gpucheck.report.errors import ExitCode, InconclusiveError, MissingError, WrongUseError
from gpucheck.report.host import Host
from tests.fakes.bench import FakeClock
from tests.fakes.bench_results import uuid_of
from tests.fakes.bench_runs import gpus
from tests.fakes.probes import FakeProbes, gpu_reading, reading_of
from tests.report.formats.recorded import in_lines, recorded
from tests.report.schemas import closed_validator

#: What one device sends at one look: its check's changes, or an answer as it is: a `part`.
Step = Mapping[str, Any] | Failure | None
Script = Callable[[str], Iterator[Step]]
BOARD = "NVIDIA H100 80GB HBM3"


@pytest.fixture(autouse=True)
def _a_processor_for_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """Deadlines grow where devices share a processor, and this machine may have few."""
    monkeypatch.setattr(burn, "crowding", lambda _: 1.0)


def said(device: str, part: str, **changes: Any) -> dict[str, Any]:
    settings: dict[str, Any] = {
        "shape": (8, 8, 8),
        "dtype": "bfloat16",
        "words": 64,
        "digest": "0" * 16,
        "reference_ok": True,
        "output_bytes": 62 * 2**30,
        "product_time_percent": 92.5,
    }
    check = Corruption(device=device, gpu_uuid=None, **(settings | changes))
    return {"part": part, "name": BOARD, "check": to_plain(check)}


class FakePool(WorkerPool):
    """Devices that send what the script says, half a second later each time."""

    def __init__(self, clock: FakeClock, script: Script) -> None:
        super().__init__("none", "loads")
        self._clock = clock
        self._script = script
        self._scripts: dict[str, Iterator[Step]] = {}
        self._last: dict[str, Mapping[str, Any]] = {}
        self._stopping = False
        self.events: list[str] = []
        self.told: dict[str, Mapping[str, Any]] = {}

    def start(self, orders: Sequence[WorkerDevice], *, sequential: bool = False) -> None:
        """Begin every device's script."""
        self.events.append("start")
        self._scripts = {order.device: self._script(order.device) for order in orders}
        self.told = {order.device: json.loads(order.arguments[0]) for order in orders}

    def begin(self) -> None:
        """Note it."""
        self.events.append("begin")

    def answers(self, wait_s: float) -> Sequence[tuple[str, WorkerAnswer]]:
        """Return the next step of each device, or its last document when it was asked to stop."""
        self._clock.seconds += wait_s
        found = []
        for device in list(self._scripts):
            if self._stopping:
                found.append((device, said(device, "end", **self._last.get(device, {}))))
                del self._scripts[device]
                continue
            step = next(self._scripts[device], None)
            if isinstance(step, Failure):
                found.append((device, step))
                del self._scripts[device]
            elif step is not None and "part" in step:
                found.append((device, dict(step)))
                if step["part"] in ("end", "failure"):
                    del self._scripts[device]
            elif step is not None:
                self._last[device] = step
                found.append((device, said(device, "progress", **step)))
        return found

    def drop(self, device: str) -> None:
        """Forget a device."""
        self.events.append(f"drop {device}")
        self._scripts.pop(device, None)

    def stop(self) -> None:
        """Let each send its last document."""
        self.events.append("stop")
        self._stopping = True

    def close(self) -> None:
        """Note it."""
        self.events.append("close")


class FakeSensors(NvmlSensors):
    """Sensors that read what a script says for each look."""

    failure: str | None = None

    def __init__(self, looks: Iterator[Mapping[str, float]], **facts: Any) -> None:
        self._looks = looks
        self._facts = facts
        self._uuids: Sequence[str] = ()
        self.counters: dict[str, Any] = {}
        self.refused: dict[str, str] = {}
        self.clock = FakeClock()
        self.closed = False

    def start(self, uuids: Sequence[str]) -> Mapping[str, Mapping[str, Any]]:
        """Return the facts, and counters at zero."""
        self._uuids = uuids
        zero = {"ecc_uncorrected": 0, "ecc_corrected": 0, "limited_ns": {"sw-thermal": 0}}
        return {uuid: {"uuid": uuid, "counters": zero, **self._facts} for uuid in uuids}

    def window(self) -> SensorBatch:
        """Return one reading of each GPU."""
        values = next(self._looks, {"temperature_c": 50.0})
        now_s = self.clock()
        samples = [Sample(time_s=now_s, uuid=uuid, values=values) for uuid in self._uuids]
        return SensorBatch(
            samples=samples,
            counters=dict.fromkeys(self._uuids, self.counters),
            unavailable=dict.fromkeys(self._uuids, self.refused),
        )

    def joules(self, uuid: str) -> float | None:
        """Return nothing."""
        return None

    def close(self) -> None:
        """Note it."""
        self.closed = True


def healthy(device: str) -> Iterator[Step]:
    yield said(device, "ready")
    for turn in range(1, 10_000):
        yield {"products": 10 * turn}


def cool() -> FakeSensors:
    return FakeSensors(iter(()), temperature_slowdown_c=87)


def burned(
    script: Script = healthy,
    *,
    devices: Sequence[str] = ("gpu:0", "gpu:1"),
    sensors: Any = None,
    seconds: float = 10.0,
    limit_c: float | None = None,
    report_progress: Callable[[BurnProgress], None] = lambda moment: None,
    **more: Any,
) -> tuple[BurnResult, FakePool]:
    clock = FakeClock()
    pool = FakePool(clock, script)
    request = BurnRequest(product=BenchRequest(), seconds=seconds, limit_c=limit_c)
    sensors = sensors or cool()
    sensors.clock = clock
    workers = worker_devices(devices, gpus(8))
    told = (more.get("holders", {}), more.get("variables", {}))
    result = Burn(request, pool, sensors, clock, report_progress, *told).run(workers)
    assert pool.events[-2:] == ["stop", "close"], "something may be left running"
    return result, pool


def verdicts(result: BurnResult, status: GateStatus) -> dict[tuple[str, str], GateClass | None]:
    return {(gate.device, gate.id): gate.class_ for gate in result.gates if gate.status is status}


def code(result: BurnResult) -> ExitCode:
    return conclude_burn(result, Host()).exit_code


def test_a_healthy_burn_lasts_its_time_and_passes() -> None:
    result, pool = burned()

    assert pool.events[:2] == ["start", "begin"]
    assert (result.ended_by, result.duration_s) == (BurnEnd.TIME, 10.0)
    assert [one.corruption.products for one in result.devices] == [200, 200]
    assert verdicts(result, GateStatus.FAIL) == {}
    assert code(result) is ExitCode.OK
    # 2 x 8^3 operations a product, 20 products a second.
    assert result.devices[0].flops_per_s == pytest.approx(2 * 8**3 * 20)


def test_the_document_holds_to_its_schema() -> None:
    result, _ = burned()
    closed_validator("burn").validate(
        {
            "schema": "gpucheck/burn/1",
            "tool": {"name": "gpucheck", "version": "1"},
            "time": "2026-11-21T03:32:00Z",
            "host": to_plain(Host()),
            "status": "ok",
            "exit_code": 0,
            "error": None,
            "warnings": [],
            "result": to_plain(result),
        }
    )


def test_one_flipped_bit_is_a_hardware_failure() -> None:
    def script(device: str) -> Iterator[Step]:
        yield said(device, "ready")
        for turn in range(1, 1000):
            flipped = device == "gpu:1" and turn > 3
            found = {"mismatches": 1, "first_index": 40, "largest_ulp": 2} if flipped else {}
            yield {"products": turn, **found}

    result, _ = burned(script)

    assert verdicts(result, GateStatus.FAIL) == {("gpu:1", "burn.corruption"): GateClass.HARDWARE}
    assert code(result) is ExitCode.BAD
    gate = next(gate for gate in result.gates if gate.status is GateStatus.FAIL)
    assert {one.source: one.value for one in gate.evidence} == {
        "mismatches": "1",
        "first index": "40",
        "largest ULP": "2",
        "with NaN": "0",
    }


def test_a_wrong_first_product_is_a_hardware_failure() -> None:
    def script(device: str) -> Iterator[Step]:
        yield said(device, "ready")
        for turn in range(1, 1000):
            yield {"products": turn, "reference_ok": device != "gpu:0"}

    assert set(verdicts(burned(script)[0], GateStatus.FAIL)) == {("gpu:0", "burn.corruption")}


def test_a_twin_with_another_digest_is_a_hardware_failure() -> None:
    def script(device: str) -> Iterator[Step]:
        digest = "f" * 16 if device == "gpu:2" else "0" * 16
        yield said(device, "ready", digest=digest)
        for turn in range(1, 1000):
            yield {"products": turn, "digest": digest}

    result, _ = burned(script, devices=["gpu:0", "gpu:1", "gpu:2", "gpu:3"])

    assert verdicts(result, GateStatus.FAIL) == {("gpu:2", "burn.digest"): GateClass.HARDWARE}


def test_a_digest_that_nothing_was_compared_with_is_no_pass() -> None:
    none = Failure(code="gpu-out-of-memory", message="the GPU does not have enough free memory")

    def script(device: str) -> Iterator[Step]:
        if device == "gpu:2":
            yield said(device, "end", digest=None, reference_ok=None, failure=none)
        # Of its shape there is no other.
        shape = (16, 16, 16) if device == "gpu:3" else (8, 8, 8)
        yield said(device, "ready", shape=shape)
        for turn in range(1, 1000):
            yield {"products": turn, "shape": shape}

    result, _ = burned(script, devices=["gpu:0", "gpu:1", "gpu:2", "gpu:3"])

    found = {one.device: one for one in result.gates if one.id == "burn.digest"}
    passed = [device for device, one in found.items() if one.status is GateStatus.PASS]
    assert passed == ["gpu:0", "gpu:1"]
    assert {found[device].status for device in ("gpu:2", "gpu:3")} == {GateStatus.SKIP}
    assert found["gpu:2"].reason == "it has no product to compare"
    assert found["gpu:3"].reason == "no identical GPU has the same product to compare"


def test_a_gpu_lost_in_mid_run_fails_and_the_others_go_on() -> None:
    lost = Failure(code="gpu-lost", message="the GPU stopped answering")

    def script(device: str) -> Iterator[Step]:
        yield said(device, "ready")
        for turn in range(1, 1000):
            if device == "gpu:0" and turn == 4:
                yield said(device, "end", products=30, failure=lost)
            yield {"products": 10 * turn}

    result, _ = burned(script)

    assert verdicts(result, GateStatus.FAIL) == {("gpu:0", "burn.alive"): GateClass.HARDWARE}
    assert result.ended_by is BurnEnd.TIME
    assert result.devices[0].corruption.products == 30
    assert result.devices[1].corruption.products == 200


def test_when_all_are_lost_it_ends() -> None:
    def script(device: str) -> Iterator[Step]:
        yield said(device, "ready")
        yield {"products": 5}
        yield Failure(code="worker-died", message="SIGKILL")

    result, _ = burned(script)

    assert result.ended_by is BurnEnd.LOST
    assert result.duration_s < 5
    assert code(result) is ExitCode.BAD


def test_one_that_falls_silent_is_given_up() -> None:
    def script(device: str) -> Iterator[Step]:
        yield said(device, "ready")
        for turn in range(1, 10_000):
            yield {"products": turn} if device == "gpu:1" or turn < 5 else None

    moments: list[BurnProgress] = []
    result, pool = burned(script, seconds=120.0, report_progress=moments.append)

    assert "drop gpu:0" in pool.events
    assert verdicts(result, GateStatus.FAIL) == {("gpu:0", "burn.alive"): GateClass.HARDWARE}
    failed = [one.elapsed_s for one in moments if one.devices[0].state == "failed"]
    # It spoke for two seconds; a look every half second notices a minute of silence.
    assert failed[0] == 2.0 + 60.0 + 2 * 0.5
    assert result.devices[0].failure == Failure(
        code="worker-silent", message="the process that loads gpu:0 sent nothing for 60 s"
    )


def test_one_that_does_not_end_is_waited_for_and_then_left() -> None:
    class Deaf(FakePool):
        def stop(self) -> None:
            self.events.append("stop")

    clock = FakeClock()
    pool = Deaf(clock, healthy)
    sensors = cool()
    request = BurnRequest(product=BenchRequest(), seconds=10.0)
    Burn(request, pool, sensors, clock, lambda moment: None, {}, {}).run(
        worker_devices(["gpu:0"], gpus(1))
    )

    assert pool.events[-2:] == ["stop", "close"]
    # Half a second until it is ready, the burn, and ten seconds for its last message.
    assert clock.seconds == 0.5 + 10.0 + 10.0
    assert sensors.closed


def test_one_that_is_never_ready_is_given_up() -> None:
    def script(device: str) -> Iterator[Step]:
        if device == "gpu:1":
            yield from healthy(device)
        while True:
            yield None

    result, pool = burned(script)

    assert "drop gpu:0" in pool.events
    assert ("gpu:0", "burn.alive") in verdicts(result, GateStatus.FAIL)
    assert ("gpu:0", "burn.corruption") in verdicts(result, GateStatus.INCONCLUSIVE)
    assert result.devices[1].corruption.products > 0
    assert result.devices[0].failure == Failure(
        code="worker-silent",
        message="the process that loads gpu:0 was not ready within 180 s",
    )


def test_zero_products_are_never_a_pass() -> None:
    def script(device: str) -> Iterator[Step]:
        yield said(device, "ready")
        while True:
            yield {"products": 0}

    result, _ = burned(script)

    assert ("gpu:0", "burn.corruption") in verdicts(result, GateStatus.INCONCLUSIVE)
    assert code(result) is ExitCode.INCONCLUSIVE


def test_where_nothing_can_be_opened_the_reason_is_the_answer() -> None:
    def script(device: str) -> Iterator[Step]:
        found = {"part": "failure", "exit_code": 4, "code": "cupy-missing", "message": "no CuPy"}
        yield {**found, "remedy": ["install it"]}

    result, _ = burned(script)
    answer = conclude_burn(result, Host())

    assert answer.exit_code is ExitCode.MISSING
    assert answer.error == Failure(code="cupy-missing", message="no CuPy", remedy=("install it",))


# ------------------------------------------------------------------------------------- memory

HELD = "process 7 (py) holds 70.0 GiB"


def test_who_shares_a_gpu_is_told_to_its_process_and_to_the_reader() -> None:
    result, pool = burned(holders={uuid_of("gpu:1"): HELD})

    assert [pool.told[name]["held"] for name in ("gpu:0", "gpu:1")] == [None, HELD]
    assert result.notes == (f"gpu:1 was shared: {HELD}",)


def test_a_full_gpu_is_undecided_and_the_others_go_on() -> None:
    taken = Failure(code="gpu-memory-taken", message=f"the memory is taken: {HELD}")

    def script(device: str) -> Iterator[Step]:
        if device == "gpu:1":
            yield from healthy(device)
        yield said(device, "ready", digest=None, reference_ok=None, failure=taken)
        yield said(device, "end", digest=None, reference_ok=None, failure=taken)

    result, _ = burned(script)

    assert verdicts(result, GateStatus.FAIL) == {}
    assert verdicts(result, GateStatus.INCONCLUSIVE) == {
        ("gpu:0", "burn.alive"): GateClass.ENVIRONMENT,
        ("gpu:0", "burn.corruption"): GateClass.ENVIRONMENT,
    }
    assert result.devices[1].corruption.products > 0
    assert code(result) is ExitCode.INCONCLUSIVE


def test_a_reduced_size_is_a_note_of_its_device() -> None:
    def script(device: str) -> Iterator[Step]:
        ready = said(device, "ready")
        notes = ["measured at 2048"] if device == "gpu:1" else []
        yield {**ready, "notes": notes}
        yield from healthy(device)

    assert burned(script)[0].notes == ("gpu:1: measured at 2048",)


def test_a_size_that_fits_nowhere_is_wrong_use() -> None:
    def script(device: str) -> Iterator[Step]:
        found = {"part": "failure", "exit_code": 2, "code": "size-does-not-fit", "message": "no"}
        yield {**found, "remedy": ["smaller"]}

    answer = conclude_burn(burned(script)[0], Host())

    assert answer.exit_code is ExitCode.WRONG_USE
    assert answer.error == Failure(code="size-does-not-fit", message="no", remedy=("smaller",))


def test_variables_that_decide_about_arithmetic_are_told() -> None:
    result, _ = burned(variables={"NVIDIA_TF32_OVERRIDE": "0"})

    assert result.variables == {"NVIDIA_TF32_OVERRIDE": "0"}


# ------------------------------------------------------------------------------------ sensors


def heating(*temperatures: float) -> FakeSensors:
    return FakeSensors(
        iter([{"temperature_c": value} for value in temperatures]), temperature_slowdown_c=87
    )


def test_the_cards_own_threshold_ends_it() -> None:
    result, _ = burned(sensors=heating(60, 70, 80, 86, 87, 95))

    assert result.ended_by is BurnEnd.TEMPERATURE
    assert result.temperature_limit_c == 87
    assert set(verdicts(result, GateStatus.FAIL).values()) == {GateClass.THERMAL}
    assert ("gpu:0", "burn.temperature") in verdicts(result, GateStatus.FAIL)
    assert code(result) is ExitCode.BAD


def memory_at(*temperatures: float, **facts: Any) -> FakeSensors:
    class Warming(FakeSensors):
        def window(self) -> SensorBatch:
            self.counters = {"temperature_memory_c": next(degrees, temperatures[-1])}
            return super().window()

    degrees = iter(temperatures)
    return Warming(iter(()), temperature_slowdown_c=87, **facts)


def test_the_memory_s_own_limit_ends_it_too() -> None:
    result, _ = burned(sensors=memory_at(70, 80, 94, 95, 80, temperature_memory_max_c=95))

    assert result.ended_by is BurnEnd.TEMPERATURE
    assert result.duration_s < 5
    gate = next(gate for gate in result.gates if gate.id == "burn.memory_temperature")
    assert (gate.status, gate.class_) == (GateStatus.FAIL, GateClass.THERMAL)
    # It has cooled down since.
    assert gate.reason == "its memory reached 95 °C; the limit is 95 °C"
    assert ("gpu:0", "burn.temperature") in verdicts(result, GateStatus.PASS)
    assert code(result) is ExitCode.BAD


def test_a_memory_below_its_limit_passes_and_one_without_a_limit_is_no_pass() -> None:
    cooler, _ = burned(sensors=memory_at(70, 94, temperature_memory_max_c=95))
    unlimited, _ = burned(sensors=memory_at(70, 120))

    assert cooler.ended_by is unlimited.ended_by is BurnEnd.TIME
    assert ("gpu:0", "burn.memory_temperature") in verdicts(cooler, GateStatus.PASS)
    assert ("gpu:0", "burn.memory_temperature") in verdicts(unlimited, GateStatus.SKIP)


def test_a_limit_that_is_given_ends_it_earlier() -> None:
    result, _ = burned(sensors=heating(60, 70, 80, 86), limit_c=70.0)

    assert (result.ended_by, result.temperature_limit_c) == (BurnEnd.TEMPERATURE, 70.0)


def test_errors_that_a_card_does_not_count_are_no_pass() -> None:
    sensors = cool()
    sensors.refused = {"ecc_uncorrected": "not supported by this GPU (NVML error 3)"}

    result, _ = burned(sensors=sensors)

    found = {gate.id: gate for gate in result.gates if gate.device == "gpu:0"}
    assert found["burn.ecc_uncorrected"].status is GateStatus.SKIP
    assert found["burn.ecc_uncorrected"].reason == "not supported by this GPU (NVML error 3)"
    assert code(result) is ExitCode.OK


def test_throttling_that_a_card_does_not_tell_is_no_pass() -> None:
    sensors = cool()
    sensors.refused = {"reasons": "not supported by this GPU (NVML error 3)"}

    result, _ = burned(sensors=sensors)

    (gate, _) = (gate for gate in result.gates if gate.id == "burn.throttling")
    assert (gate.status, gate.reason) == (GateStatus.SKIP, sensors.refused["reasons"])
    assert result.devices[0].clock_limits is None


def test_a_card_without_a_threshold_has_ours() -> None:
    sensors = FakeSensors(iter([{"temperature_c": 89.0}] * 4 + [{"temperature_c": 90.0}]))

    result, _ = burned(sensors=sensors)

    assert (result.ended_by, result.temperature_limit_c) == (BurnEnd.TEMPERATURE, 90.0)


@pytest.mark.parametrize(
    ("bit", "class_"), [(0x40, GateClass.THERMAL), (0x20, GateClass.THERMAL),
                        (0x80, GateClass.POWER_CAP)]
)  # fmt: skip
def test_throttling_has_its_class(bit: int, class_: GateClass) -> None:
    looks = iter([{"temperature_c": 60.0, "reasons": float(bit | 0x4)}] * 50)
    result, _ = burned(sensors=FakeSensors(looks))

    assert verdicts(result, GateStatus.FAIL)["gpu:0", "burn.throttling"] is class_


@pytest.mark.parametrize(
    ("masks", "share"),
    [
        # At its begin the clocks change; and one reading in forty is no throttling.
        ([0x68] * 5, 0.0),
        ([0] * 12 + [0x20], 0.0),
        ([0] * 7 + [0x20, 0, 0] * 5, 1 / 3),
    ],
)
def test_the_burn_is_judged_by_shares_of_the_time_under_load(
    masks: list[int], share: float
) -> None:
    looks = iter([{"temperature_c": 60.0, "reasons": float(mask)} for mask in masks + [0] * 90])

    result, _ = burned(sensors=FakeSensors(looks), seconds=20.0 if not share else 9.0)

    device = result.devices[0]
    assert device.clock_limits == pytest.approx({"software-thermal": share} if share else {}, 0.2)
    throttled = ("gpu:0", "burn.throttling") in verdicts(result, GateStatus.FAIL)
    assert throttled is bool(share)


def test_a_hardware_slowdown_alone_only_warns() -> None:
    looks = iter([{"temperature_c": 60.0, "reasons": 8.0}] * 50)

    result, _ = burned(sensors=FakeSensors(looks))

    assert code(result) is ExitCode.OK
    assert [gate.id for gate in result.gates if gate.warning] == ["burn.throttling"] * 2


def test_the_drivers_own_count_needs_a_share_too() -> None:
    sensors = cool()
    sensors.counters = {"limited_ns": {"sw-thermal": 20_000_000}}
    # 20 ms, all of them in the first look of all: before the load has settled.
    assert code(burned(sensors=sensors)[0]) is ExitCode.OK


def test_the_driver_s_count_is_that_of_the_steady_load_alone() -> None:
    class Counting(FakeSensors):
        def window(self) -> SensorBatch:
            # Half of the time while the load is steady, all of it before.
            share = 0.5 if self.clock.seconds > 2 else 1.0
            counted = self.counters.get("limited_ns", {"sw-thermal": 0})["sw-thermal"]
            self.counters = {"limited_ns": {"sw-thermal": counted + int(share * 5e8)}}
            return super().window()

    result, _ = burned(sensors=Counting(iter(()), temperature_slowdown_c=87))

    assert [one.clock_limits for one in result.devices] == [{"software-thermal": 0.5}] * 2


def test_what_was_not_read_is_not_called_calm() -> None:
    result, _ = burned(seconds=1.0)

    assert ("gpu:0", "burn.throttling") in verdicts(result, GateStatus.SKIP)


def test_a_card_that_tells_its_margin_is_stopped_where_it_would_slow_down() -> None:
    margins = iter([{"temperature_c": 95.0, "temperature_margin_c": float(m)} for m in (5, 3, 1)])
    cooler = iter([{"temperature_c": 95.0, "temperature_margin_c": 3.0}] * 100)

    hot, _ = burned(sensors=FakeSensors(_then(margins, 0.0)))
    fine, _ = burned(sensors=FakeSensors(cooler))

    assert (hot.ended_by, hot.temperature_limit_c) == (BurnEnd.TEMPERATURE, None)
    assert verdicts(hot, GateStatus.FAIL)["gpu:0", "burn.temperature"] is GateClass.THERMAL
    assert fine.ended_by is BurnEnd.TIME
    assert ("gpu:0", "burn.temperature") in verdicts(fine, GateStatus.PASS)


def _then(first: Iterator[Mapping[str, float]], margin: float) -> Iterator[Mapping[str, float]]:
    yield from first
    while True:
        yield {"temperature_c": 97.0, "temperature_margin_c": margin}


def test_each_of_different_cards_has_its_own_threshold() -> None:
    result, _ = burned(sensors=heating(*[60.0] * 50))

    assert [one.temperature_limit_c for one in result.devices] == [87.0, 87.0]


def test_a_power_cap_alone_is_normal() -> None:
    looks = iter([{"temperature_c": 60.0, "reasons": 4.0}] * 50)

    assert code(burned(sensors=FakeSensors(looks))[0]) is ExitCode.OK


def test_a_new_uncorrected_error_is_a_hardware_failure() -> None:
    sensors = cool()
    sensors.counters = {"ecc_uncorrected": 1, "ecc_corrected": 0}

    found = verdicts(burned(sensors=sensors)[0], GateStatus.FAIL)

    assert found["gpu:0", "burn.ecc_uncorrected"] is GateClass.HARDWARE


def test_a_corrected_error_is_only_a_warning() -> None:
    sensors = cool()
    sensors.counters = {"ecc_uncorrected": 0, "ecc_corrected": 3}

    result, _ = burned(sensors=sensors)

    assert code(result) is ExitCode.OK
    assert [gate.id for gate in result.gates if gate.warning] == ["burn.ecc_corrected"] * 2


def test_without_sensors_it_burns_and_says_so() -> None:
    result, _ = burned(sensors=NvmlSensors("the driver did not answer"))

    assert result.telemetry_unavailable == "the driver did not answer"
    assert result.temperature_limit_c is None
    assert code(result) is ExitCode.OK


# ---------------------------------------------------------------------------------- interrupts


@pytest.mark.parametrize("look", [1, 3, 6])
def test_an_interrupt_stops_everything_and_keeps_what_was_found(look: int) -> None:
    looks = iter(range(1, 1000))

    def tell(moment: BurnProgress) -> None:
        if next(looks) == look:
            raise KeyboardInterrupt

    sensors = cool()
    result, pool = burned(report_progress=tell, sensors=sensors)

    assert result.ended_by is BurnEnd.INTERRUPTED
    assert code(result) is ExitCode.INTERRUPTED
    assert sensors.closed
    assert pool.events[-1] == "close"


def test_who_watches_sees_every_device() -> None:
    moments: list[BurnProgress] = []
    burned(report_progress=moments.append, sensors=heating(*[60.0] * 100))

    glance = moments[10].devices[1]
    assert (glance.device, glance.state, glance.temperature_c) == ("gpu:1", "loaded", 60.0)
    assert glance.products > 0
    assert moments[0].devices[0].state == "ready"
    assert moments[0].opening_s > 0
    assert moments[10].opening_s == 0
    assert moments[10].elapsed_s > 0


def test_getting_slower_is_a_warning() -> None:
    def script(device: str) -> Iterator[Step]:
        yield said(device, "ready")
        products = 0
        for turn in range(1000):
            products += 20 if turn < 5 else 10
            yield {"products": products}

    result, _ = burned(script)

    assert code(result) is ExitCode.OK
    pace = next(gate for gate in result.gates if gate.id == "burn.pace")
    assert pace.status is GateStatus.FAIL
    assert "50 % slower" in (pace.reason or "")


def test_the_uuid_of_a_device_is_the_parents() -> None:
    result, _ = burned()

    assert [one.corruption.gpu_uuid for one in result.devices] == [
        *(uuid_of("gpu:0"), uuid_of("gpu:1")),
    ]


UUIDS = [str(gpu_reading(at).uuid) for at in range(2)]


def asked(*devices: str, **more: Any) -> BurnRequest:
    product = BenchRequest(devices=devices, size=more.pop("size", None))
    return BurnRequest(product=product, **{"seconds": 5.0, **more})


def two_gpus() -> FakeProbes:
    """Return two GPUs, the second one with a program on it."""
    own = ProcessReading(pid=77, type="C", memory_used_bytes=2**33)
    readings = reading_of(gpu_reading(0, processes=()), gpu_reading(1, processes=(own,)))
    devices = tuple(
        CudaDeviceReading(ordinal=at, uuid_hex=uuid.partition("-")[2].replace("-", ""))
        for at, uuid in enumerate(UUIDS)
    )
    return FakeProbes(readings=readings, cuda_reading=CudaReading(device_count=2, devices=devices))


@pytest.fixture(name="burn_there")
def _burn_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    clock = FakeClock()
    pool = FakePool(clock, healthy)
    monkeypatch.setattr(burn, "monotonic_s", clock)
    monkeypatch.setattr(burn, "NvmlSensors", lambda _: NvmlSensors("none in this test"))

    def run(request: BurnRequest, probes: FakeProbes, **environment: str) -> tuple[Answer, Any]:
        found = {"GPUCHECK_CLAIMS_DIR": str(tmp_path / "claims"), **environment}
        return burn_here(request, probes, pool, found, lambda progress: None), pool

    return run


def test_every_gpu_is_loaded_and_told_who_shares_it(burn_there: Any) -> None:
    answer, pool = burn_there(asked("all"), two_gpus(), NVIDIA_TF32_OVERRIDE="0")

    result = answer.result
    assert isinstance(result, BurnResult)
    assert answer.exit_code is ExitCode.OK
    assert [one.device for one in result.devices] == ["gpu:0", "gpu:1"]
    assert pool.told["gpu:0"]["held"] is None
    assert "process 77" in pool.told["gpu:1"]["held"]
    assert result.notes == ("gpu:1 was shared: process 77 holds 8.0 GiB",)
    assert result.variables == {"NVIDIA_TF32_OVERRIDE": "0"}


def test_without_a_gpu_the_processor_stands_in_unless_a_gpu_is_required(burn_there: Any) -> None:
    answer, _ = burn_there(asked("all"), FakeProbes())

    assert [one.device for one in answer.result.devices] == ["cpu"]
    with pytest.raises(MissingError) as caught:
        burn_there(asked("all", require_gpu=True), FakeProbes())
    assert caught.value.remedy == ("Run: gpucheck detect",)


def test_the_processor_alone_wakes_no_driver(burn_there: Any) -> None:
    probes = two_gpus()

    burn_there(asked("cpu"), probes)

    assert "cuda" not in probes.asked


def test_a_claimed_gpu_is_not_burned(burn_there: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def held_by_another(*_: object) -> Iterator[tuple[dict[str, str], tuple[str, ...]]]:
        yield {UUIDS[1]: "held by process 9"}, ()

    monkeypatch.setattr(burn, "hold_gpus", held_by_another)

    with pytest.raises(InconclusiveError, match="held by process 9"):
        burn_there(asked("gpu"), two_gpus())


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"seconds": 0.0}, "bad-burn"),
        ({"seconds": float("nan")}, "bad-burn"),
        ({"seconds": float("inf")}, "bad-burn"),
        ({"limit_c": 20.0}, "bad-burn-limit"),
        ({"limit_c": float("nan")}, "bad-burn-limit"),
        ({"size": 0}, "bad-size"),
    ],
)
def test_what_makes_no_sense_is_refused(changes: dict[str, Any], code: str) -> None:
    with pytest.raises(WrongUseError) as caught:
        check_burn(asked("cpu", **changes))

    assert caught.value.code == code


@pytest.mark.parametrize("limit_c", [30.0, 120.0])
def test_the_ends_of_the_temperatures_are_allowed(limit_c: float) -> None:
    check_burn(asked("cpu", limit_c=limit_c))
    beyond = 29.9 if limit_c == 30.0 else 120.1
    with pytest.raises(WrongUseError):
        check_burn(asked("cpu", limit_c=beyond))


# ------------------------------------------------------------------------------------ whole burns


def failing(device: str) -> Iterator[Step]:
    """Yield what each of several GPUs does: one is well, and the others fail, each in its way."""
    place = int(device.removeprefix("gpu:"))
    if place == 5:
        return
    if place == 6:
        words = {"code": "gpu-busy", "message": "it is held", "remedy": ["wait"], "exit_code": 3}
        yield {"part": "failure", **words}
        return
    yield said(device, "ready")
    for turn in range(1, 100):
        if place == 1 and turn > 3:
            yield {"products": 10 * turn, "mismatches": 2, "first_index": 40, "largest_ulp": 8}
        elif place == 2 and turn == 5:
            yield Failure(code="worker-died", message="it died")
            return
        elif place == 3 and turn > 4:
            yield None
        elif place == 4:
            yield {"products": 10 * turn if turn < 10 else 90 + turn, "digest": "other"}
        else:
            yield {"products": 10 * turn}


BURNS: dict[str, Callable[[list[BurnProgress]], tuple[BurnResult, FakePool]]] = {
    "healthy": lambda told: burned(report_progress=told.append, seconds=3.0),
    "failing": lambda told: burned(
        failing, devices=[f"gpu:{n}" for n in range(7)], report_progress=told.append, seconds=40.0,
        holders={"GPU-00000000": "process 9 holds 1.0 GiB"}, variables={"CUPY_TF32": "1"},
    ),
    "hot": lambda told: burned(
        sensors=heating(50.0, 60.0, 70.0, 86.0, 87.0), report_progress=told.append
    ),
    "strained": lambda told: burned(
        devices=["gpu:0"], seconds=3.0, report_progress=told.append,
        sensors=FakeSensors(
            iter([{"temperature_c": 60.0 + n, "reasons": 0x4 if n % 2 else 0x44,
                   "clock_sm_mhz": 1500.0 - n, "power_mw": 650_000.0} for n in range(9)]),
            clock_sm_max_mhz=1980.0, power_limit_mw=700_000,
        ),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BURNS)
def test_a_burn_is_as_recorded(name: str) -> None:
    told: list[BurnProgress] = []

    result, pool = BURNS[name](told)

    answer = conclude_burn(result, Host())
    error = answer.error
    devices = [replace(one, telemetry=None) for one in result.devices]
    text = in_lines([replace(result, devices=(), gates=()), *devices, *result.gates])
    text += in_lines(one.telemetry for one in result.devices[:1])
    text += f"exit code {answer.exit_code.value}: "
    text += "no error\n" if error is None else f"{error.message} {error.remedy}\n"
    text += "".join(f"{event}\n" for event in pool.events)
    moments = [told[place] for place in sorted({0, 1, len(told) // 2, len(told) - 1})]
    text += in_lines(moments)

    assert text == recorded(f"burn-whole-{name}", text)
