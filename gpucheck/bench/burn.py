"""Burn: every device under full load, its products compared and its sensors read.

A burn ends when its time is over, at a temperature limit, when no device is left, or by an
interrupt. However it ends, every process is asked to stop, and killed if it does not.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from gpucheck.bench.burn_gates import burn_gates, conclude_burn
from gpucheck.bench.environment import memory_holders, variables_of
from gpucheck.bench.model import (
    BurnDevice,
    BurnEnd,
    BurnResult,
    Corruption,
    GpuTelemetry,
    Telemetry,
)
from gpucheck.bench.plan import check_numbers
from gpucheck.bench.request_model import BenchRequest
from gpucheck.bench.session import hold_gpus
from gpucheck.bench.telemetry import Observer, WatchedGpu, held_down
from gpucheck.bench.workers import (
    WORKER_SILENT,
    WorkerAnswer,
    WorkerDevice,
    WorkerPool,
    crowding,
    select_worker_devices,
)
from gpucheck.drivers.host.clock import Clock, monotonic_s
from gpucheck.drivers.interface import Probes
from gpucheck.drivers.nvml.sensors import NvmlSensors
from gpucheck.drivers.readings import NvmlReading, NvmlRequest
from gpucheck.inventory.inventory import take_inventory
from gpucheck.inventory.model import Inventory
from gpucheck.place.claims import own_command
from gpucheck.report.codec import DecodeError, from_plain
from gpucheck.report.envelope import Answer, Failure
from gpucheck.report.errors import InconclusiveError, WrongUseError, check_seconds

#: Limit for a card that reports no threshold: below the shutdown temperature of any card.
TEMPERATURE_LIMIT_C = 90.0
#: Time for opening a GPU and drawing the matrices, for silence, and for the last message.
_START_S, _SILENT_S, _STOP_S = 180.0, 60.0, 10.0
_LOOK_S = 0.5
#: Clocks change when a burn begins; their limits count from here on.
_SETTLING_S = 2.0
#: Group of the observer's slices under steady load, and of all others.
_LOADED, _ELSE = "steady load", "otherwise"


@dataclass(frozen=True, slots=True, kw_only=True)
class BurnRequest:
    """Request of a burn: `product` with its size, seed, fill and devices, the time, and the limit.

    `limit_c` None takes each card's own limit. With `require_gpu` the CPU is no substitute.
    """

    product: BenchRequest
    seconds: float
    limit_c: float | None = None
    require_gpu: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceProgress:
    """Device at one moment of a burn, for the live view; None for unknown values."""

    device: str
    state: str
    products: int = 0
    mismatches: int = 0
    flops_per_s: float | None = None
    temperature_c: float | None = None
    power_w: float | None = None
    clock_sm_mhz: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BurnProgress:
    """Burn at one moment; `opening_s` counts while devices are opened, and is 0 afterwards."""

    elapsed_s: float
    asked_s: float
    devices: tuple[DeviceProgress, ...]
    opening_s: float = 0.0


def check_burn(request: BurnRequest) -> None:
    """Refuse an invalid request before a device is touched.

    Raises:
        WrongUseError: the time, the temperature, the size or the seed is invalid.
    """
    check_seconds("--burn", request.seconds, code="bad-burn")
    if request.limit_c is not None and not 30 <= request.limit_c <= 120:
        message = f"--burn-limit must be 30 to 120 degrees Celsius, not {request.limit_c:g}."
        raise WrongUseError(code="bad-burn-limit", message=message)
    check_numbers(request.product)


def burn_here(
    request: BurnRequest,
    probes: Probes,
    pool: WorkerPool,
    environment: Mapping[str, str],
    report_progress: Callable[[BurnProgress], None],
) -> Answer:
    """Load the chosen devices until the burn ends, and return the answer.

    Raises:
        MissingError: a GPU is required and there is none.
        InconclusiveError: another process has claimed one.
    """
    devices = request.product.devices
    on_gpus = set(devices) != {"cpu"}
    answer = take_inventory(probes, names_devices=on_gpus)
    gpus = answer.result.gpus if isinstance(answer.result, Inventory) and on_gpus else ()
    targets = select_worker_devices(devices, gpus, require_gpu=request.require_gpu)
    uuids = [worker.gpu_uuid for worker in targets if worker.gpu_uuid]
    reading = probes.nvml(NvmlRequest()) if uuids else NvmlReading()
    sensors = NvmlSensors(None if uuids else "no GPU is under load")
    holders = memory_holders(probes, reading)
    with hold_gpus(uuids, reading, environment, own_command(sys.orig_argv)) as (others, _):
        for uuid, reason in others.items():
            # A full load would ruin the work of its holder.
            raise InconclusiveError(
                code="gpu-claimed",
                message=f"{uuid} is {reason}.",
                remedy=(
                    "Burn the others: --device gpu:N",
                    "See who holds it: gpucheck place --claims",
                ),
            )
        variables = variables_of(environment)
        burn = Burn(request, pool, sensors, monotonic_s, report_progress, holders, variables)
        result = burn.run(targets)
    return conclude_burn(result, answer.host)


def burn_pool() -> WorkerPool:
    """Return the pool of the processes that load devices."""
    return WorkerPool("gpucheck.bench.burn_worker", "loads")


@dataclass
class Burn:
    """Burn while it runs; `holders` names the holders of a GPU's memory, by UUID."""

    _request: BurnRequest
    _pool: WorkerPool
    _sensors: NvmlSensors
    _clock: Clock
    _report_progress: Callable[[BurnProgress], None]
    _holders: Mapping[str, str]
    _variables: Mapping[str, str]
    ended_by: BurnEnd = BurnEnd.TIME
    _ended_s: float | None = None
    _began: bool = False

    def __post_init__(self) -> None:
        """Prepare to read the sensors."""
        self._observer = Observer(self._sensors, own_pid=os.getpid(), before={}, claims={})
        self._devices: dict[str, _DeviceState] = {}
        self._start_s = self._looked_s = self._clock()

    def run(self, workers: Sequence[WorkerDevice]) -> BurnResult:
        """Load these devices and return the result; an interrupt is an ordinary end."""
        try:
            self.open(workers)
            self.load()
        except KeyboardInterrupt:
            self.ended_by = BurnEnd.INTERRUPTED
        finally:
            self.stop()
        return self.result()

    def open(self, workers: Sequence[WorkerDevice]) -> None:
        """Start the processes and wait until each is ready or has failed."""
        product = self._request.product
        self._devices = {worker.device: _DeviceState(worker) for worker in workers}
        orders = []
        for worker in workers:
            order = {
                "device": worker.device,
                "size": product.size,
                "seed": product.seed,
                "fill": product.fill.value,
                "held": self._holders.get(worker.gpu_uuid or ""),
            }
            orders.append(replace(worker, arguments=(json.dumps(order),)))
        self._pool.start(orders)
        uuids = [worker.gpu_uuid for worker in workers if worker.gpu_uuid]
        if uuids:
            self._observer.start(uuids)
        wait_s = _START_S * crowding(len(workers))
        end_s = self._clock() + wait_s
        while self._clock() < end_s and self._devices_in_state("opening"):
            self._poll_workers()
        for device in self._devices_in_state("opening"):
            self._give_up(device, f"was not ready within {wait_s:g} s")

    def load(self) -> None:
        """Start the load, and watch until something ends it."""
        self._start_s = self._looked_s = self._clock()
        for device in self._devices_in_state("ready"):
            device.state, device.last_answer_s = "loaded", self._start_s
        self._pool.begin()
        self._began = True
        silent_s = _SILENT_S * crowding(len(self._devices))
        while self._elapsed_s() < self._request.seconds:
            if not self._devices_in_state("loaded"):
                self.ended_by = BurnEnd.LOST
                return
            self._poll_workers()
            if self._is_too_hot():
                self.ended_by = BurnEnd.TEMPERATURE
                return
            for device in self._devices_in_state("loaded"):
                if self._clock() - device.last_answer_s > silent_s:
                    self._give_up(device, f"sent nothing for {silent_s:g} s")

    def stop(self) -> None:
        """Stop the load, take the last messages, and leave no process behind."""
        self._ended_s = self._elapsed_s()
        try:
            self._pool.stop()
            end_s = self._clock() + _STOP_S
            while self._clock() < end_s and any(
                device.is_running for device in self._devices.values()
            ):
                self._poll_workers()
        except KeyboardInterrupt:  # a second Ctrl-C: skip the last messages
            self.ended_by = BurnEnd.INTERRUPTED
        finally:
            self._pool.close()
            self._sensors.close()

    def result(self) -> BurnResult:
        """Return the result."""
        telemetry = self._observer.result()
        devices = tuple(self._device_result(state, telemetry) for state in self._devices.values())
        limits = [device.temperature_limit_c for device in devices]
        # Who shares each device, and what to know of its product.
        notes = []
        for name, device in self._devices.items():
            held = self._holders.get(device.worker.gpu_uuid or "")
            notes += [] if held is None else [f"{name} was shared: {held}"]
            notes += [f"{name}: {note}" for note in device.notes]
        result = BurnResult(
            asked_s=self._request.seconds,
            duration_s=self._ended_s or 0.0,
            ended_by=self.ended_by,
            temperature_limit_c=min((limit for limit in limits if limit is not None), default=None),
            devices=devices,
            gates=(),
            telemetry_unavailable=telemetry.unavailable,
            notes=tuple(notes),
            variables=dict(self._variables),
        )
        return replace(result, gates=tuple(burn_gates(result)))

    def _device_result(self, device: _DeviceState, telemetry: Telemetry) -> BurnDevice:
        uuid = device.worker.gpu_uuid
        sensors = next((gpu for gpu in telemetry.gpus if gpu.uuid == uuid), None)
        tenth = max(2, len(device.track) // 10)
        return BurnDevice(
            device=device.worker.device,
            gpu_uuid=uuid,
            name=device.name,
            corruption=device.check,
            flops_per_s=_pace(device, device.track),
            first_flops_per_s=_pace(device, device.track[:tenth]),
            last_flops_per_s=_pace(device, device.track[-tenth:]),
            telemetry=sensors,
            failure=device.failure,
            exit_code=device.exit_code,
            clock_limits=self._clock_limits(sensors),
            temperature_limit_c=self._limit_c(device),
        )

    def _clock_limits(self, sensors: GpuTelemetry | None) -> dict[str, float] | None:
        """Return the limits of a GPU's clock under load, or None if they were not read."""
        if sensors is None:
            return None
        span_s = (self._start_s + _SETTLING_S, self._start_s + (self._ended_s or 0.0))
        state = self._observer.state(sensors.uuid, [span_s], _LOADED)
        if not state.reading_count:
            return None
        if "reasons" in sensors.unavailable and not state.limited_share:
            return None
        return held_down(state)

    # ------------------------------------------------------------------------------ listening

    def _poll_workers(self) -> None:
        """Take the messages and the sensor readings, and report progress."""
        for name, answer in self._pool.answers(_LOOK_S):
            self._take(name, answer)
        now_s = self._clock()
        if self._observer.is_watching:
            settled = self._began and self._looked_s - self._start_s >= _SETTLING_S
            group = _LOADED if settled and self._ended_s is None else _ELSE
            self._observer.end_slices(group, now_s - self._looked_s)
            self._looked_s = now_s
        self._report_progress(self._progress())

    def _take(self, name: str, answer: WorkerAnswer) -> None:
        device = self._devices[name]
        device.last_answer_s = self._clock()
        if isinstance(answer, Failure):
            device.state, device.failure = "failed", answer
            return
        part = answer.get("part")
        if part == "failure":
            device.state, device.exit_code = "failed", answer.get("exit_code")
            device.failure = Failure(
                code=str(answer["code"]),
                message=str(answer["message"]),
                remedy=tuple(map(str, answer["remedy"])),
            )
            return
        try:
            check = from_plain(Corruption, answer.get("check"))
        except DecodeError as error:
            self._give_up(device, f"sent an unreadable message: {error}")
            return
        device.check = replace(check, gpu_uuid=device.worker.gpu_uuid)
        device.name = answer.get("name", device.name)
        device.notes = (*device.notes, *map(str, answer.get("notes", ())))
        device.failure = check.failure
        if part == "ready":
            device.state = "ready"
        elif part == "end":
            device.state = "failed" if check.failure else "ended"
        else:
            device.track.append((self._elapsed_s(), check.products))

    def _give_up(self, device: _DeviceState, how: str) -> None:
        message = f"the process that loads {device.worker.device} {how}"
        device.state, device.failure = "failed", Failure(code=WORKER_SILENT, message=message)
        self._pool.drop(device.worker.device)

    # ------------------------------------------------------------------------------- watching

    def _elapsed_s(self) -> float:
        return self._clock() - self._start_s

    def _devices_in_state(self, state: str) -> list[_DeviceState]:
        return [device for device in self._devices.values() if device.state == state]

    def _limit_c(self, device: _DeviceState) -> float | None:
        """Return the temperature at which a GPU is stopped; None if its margin or nothing decides.

        The margin decides if a card reports its distance from the threshold instead of the
        threshold itself, as nvml.h announces for Ada and later.
        """
        gpu = self._observer.gpu(device.worker.gpu_uuid)
        if gpu is None:
            return None
        limit = self._request.limit_c or gpu.facts.get("temperature_slowdown_c")
        if limit:
            return float(limit)
        return None if "temperature_margin_c" in gpu.values else TEMPERATURE_LIMIT_C

    def _is_too_hot(self) -> bool:
        for device in self._devices.values():
            gpu = self._observer.gpu(device.worker.gpu_uuid)
            if gpu is not None and (_is_hot(gpu, self._limit_c(device)) or _is_memory_hot(gpu)):
                device.state = "too hot" if device.state == "loaded" else device.state
                return True
        return False

    def _progress(self) -> BurnProgress:
        devices = []
        for name, device in self._devices.items():
            gpu = self._observer.gpu(device.worker.gpu_uuid)
            values = {} if gpu is None else gpu.values
            milliwatts = values.get("power_mw")
            devices.append(
                DeviceProgress(
                    device=name,
                    state=device.state,
                    products=device.check.products,
                    mismatches=device.check.mismatches,
                    flops_per_s=_pace(device, device.track[-4:]),
                    temperature_c=values.get("temperature_c"),
                    power_w=None if milliwatts is None else milliwatts / 1000,
                    clock_sm_mhz=values.get("clock_sm_mhz"),
                )
            )
        loaded = any(device.state != "opening" for device in self._devices.values())
        return BurnProgress(
            elapsed_s=self._elapsed_s() if loaded else 0.0,
            asked_s=self._request.seconds,
            devices=tuple(devices),
            opening_s=0.0 if self._began else self._elapsed_s(),
        )


@dataclass
class _DeviceState:
    """State of a device under load; `track` has (seconds since the start, products)."""

    worker: WorkerDevice
    name: str | None = None
    state: str = "opening"
    failure: Failure | None = None
    exit_code: int | None = None
    notes: tuple[str, ...] = ()
    last_answer_s: float = 0.0
    track: list[tuple[float, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Begin with a check of no product."""
        self.check = Corruption(device=self.worker.device, gpu_uuid=self.worker.gpu_uuid)

    @property
    def is_running(self) -> bool:
        """Return whether its process is still expected to report."""
        return self.state in ("opening", "ready", "loaded")


def _pace(device: _DeviceState, track: Sequence[tuple[float, int]]) -> float | None:
    """Return the floating-point operations per second between two points: 2 m n k a product."""
    if len(track) < 2 or track[-1][0] <= track[0][0] or len(device.check.shape) != 3:
        return None
    m, k, n = device.check.shape
    products = track[-1][1] - track[0][1]
    return 2.0 * m * n * k * products / (track[-1][0] - track[0][0])


def _is_hot(gpu: WatchedGpu, limit_c: float | None) -> bool:
    """Return whether a GPU reached its limit, or has no margin left where that decides."""
    if limit_c is None:
        margin = gpu.values.get("temperature_margin_c")
        return margin is not None and margin <= 0
    now = gpu.values.get("temperature_c")
    return now is not None and now >= limit_c


def _is_memory_hot(gpu: WatchedGpu) -> bool:
    limit = gpu.facts.get("temperature_memory_max_c")
    return gpu.memory_c is not None and limit is not None and gpu.memory_c >= limit
