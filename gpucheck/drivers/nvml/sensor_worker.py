"""Child process that reads GPUs' sensors through NVML, on a timer of its own.

Watching a benchmark must not disturb it: this process reads at its own pace and keeps its readings
until they are requested, so that the measuring program needs no thread. The parent writes one
request a line and reads one JSON line for each:

    {"ask": "start", "uuids": [...], "period_s": 0.05}  -> {"part": "facts", "gpus": [...]}
    {"ask": "window"}                                   -> {"part": "window", "samples", "counters"}
    {"ask": "energy", "uuid": ...}                      -> {"part": "energy", "joules": ...}

Times are of CLOCK_MONOTONIC, which all processes of a machine share.
"""

from __future__ import annotations

import json
import os
import select
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from gpucheck.drivers.native import take_over_output
from gpucheck.drivers.nvml.binding import (
    SLOWDOWN_DISTANCE,
    Binding,
    NvmlError,
    celsius,
    field_value,
    open_nvml,
    temperature_limit,
)

Value = TypeVar("Value")

#: No more readings than this are kept between two requests: an hour and a half at 20 Hz.
MOST_SAMPLES = 100_000

#: One reading: the key, pynvml's function and its arguments after the handle.
READINGS = (
    ("clock_sm_mhz", (("nvmlDeviceGetClockInfo", (1,)),)),
    ("clock_memory_mhz", (("nvmlDeviceGetClockInfo", (2,)),)),
    ("power_mw", (("nvmlDeviceGetPowerUsage", ()),)),
    ("temperature_c", (("nvmlDeviceGetTemperature", (0,)),)),
    # The margin to its next slowdown: from Ada on, in place of the thresholds.
    ("temperature_margin_c", (("nvmlDeviceGetMarginTemperature", ()),)),
    (
        "reasons",
        (
            ("nvmlDeviceGetCurrentClocksEventReasons", ()),
            ("nvmlDeviceGetCurrentClocksThrottleReasons", ()),
        ),
    ),
    ("pcie_generation", (("nvmlDeviceGetCurrPcieLinkGeneration", ()),)),
    ("pcie_width", (("nvmlDeviceGetCurrPcieLinkWidth", ()),)),
)

FACTS = (
    ("compute_capability", (("nvmlDeviceGetCudaComputeCapability", ()),)),
    ("clock_sm_max_mhz", (("nvmlDeviceGetMaxClockInfo", (1,)),)),
    # The graphics clock that was set, and the card's default.
    ("clock_application_mhz", (("nvmlDeviceGetApplicationsClock", (0,)),)),
    ("clock_application_default_mhz", (("nvmlDeviceGetDefaultApplicationsClock", (0,)),)),
    ("power_limit_mw", (("nvmlDeviceGetEnforcedPowerLimit", ()),)),
    ("power_limit_default_mw", (("nvmlDeviceGetPowerManagementDefaultLimit", ()),)),
    ("pcie_generation_max", (("nvmlDeviceGetMaxPcieLinkGeneration", ()),)),
    ("pcie_width_max", (("nvmlDeviceGetMaxPcieLinkWidth", ()),)),
    ("vbios_version", (("nvmlDeviceGetVbiosVersion", ()),)),
    # nvmlTemperatureThresholds_t: 2 is the memory's.
    ("temperature_memory_max_c", (("nvmlDeviceGetTemperatureThreshold", (2,)),)),
    ("ecc_mode", (("nvmlDeviceGetEccMode", ()),)),
)

#: Counters that only grow; nvml.h: error types 0 corrected and 1 uncorrected, counter 0 volatile.
COUNTERS = (
    ("energy_mj", (("nvmlDeviceGetTotalEnergyConsumption", ()),)),
    ("ecc_corrected", (("nvmlDeviceGetTotalEccErrors", (0, 0)),)),
    ("ecc_uncorrected", (("nvmlDeviceGetTotalEccErrors", (1, 0)),)),
    ("pcie_replays", (("nvmlDeviceGetPcieReplayCounter", ()),)),
)
#: Time in which a policy held the clock down, in nanoseconds (nvml.h, nvmlPerfPolicyType_t).
POLICIES = (("power", 0), ("thermal", 1), ("sync-boost", 2), ("board-limit", 3), ("reliability", 5))
#: Values that only nvmlDeviceGetFieldValues gives (nvml.h): the memory's temperature, and
#: nanoseconds of slowdown by heat (software, hardware) and by the power brake.
MEMORY_TEMPERATURE_FIELD = 82
LIMIT_FIELDS = (("sw-thermal", 269), ("hw-thermal", 270), ("hw-power-brake", 271))


#: Values that NVML counts for a whole GPU, without a share for each MIG device.
WHOLE_ONLY = frozenset(
    ("power_mw", "power_limit_mw", "power_limit_default_mw", "energy_mj", "processes")
)


class Sensors:
    """The sensors of one GPU; one that failed once is not read again, and its reason is kept.

    A MIG device shares the clocks, temperature, link and errors of its GPU.
    """

    def __init__(self, binding: Binding, uuid: str) -> None:
        self._binding = binding
        self.uuid = uuid
        self.unavailable: dict[str, str] = {}
        self._handle: Any = None
        self._parent: Any = None
        try:
            self._handle = binding.ask("nvmlDeviceGetHandleByUUID", uuid)
            if uuid.startswith("MIG-"):
                parent = "nvmlDeviceGetDeviceHandleFromMigDeviceHandle"
                self._parent = binding.ask(parent, self._handle)
        except NvmlError as error:
            # Only a MIG device's parent is missing then; its own values remain valid.
            key = "gpu" if self._handle is None else "parent"
            self.unavailable[key] = error.reason()

    def read(self, table: Any) -> dict[str, Any]:
        """Return the available values of a table."""
        readings = {}
        for key, forms in table:
            value = self._ask(key, forms)
            if value is not None:
                readings[key] = value
        return readings

    def counters(self) -> dict[str, Any]:
        """Return all counters, the memory's temperature, and the GPU's processes."""
        counters = self.read(COUNTERS)
        counters["limited_ns"] = limited = {}
        for name, policy in POLICIES:
            status = self._ask(f"limited-{name}", (("nvmlDeviceGetViolationStatus", (policy,)),))
            if status is not None:
                limited[name] = int(status.violationTime)
        for name, field in LIMIT_FIELDS:
            value = self._field(f"limited-{name}", field)
            if value is not None:
                limited[name] = value
        counters["temperature_memory_c"] = self._memory_temperature("temperature_memory_c")
        remapped = self._ask("remapped_rows", (("nvmlDeviceGetRemappedRows", ()),))
        if remapped is not None:
            counters["remapped_rows"] = int(remapped[0]) + int(remapped[1])
        forms = tuple(
            (f"nvmlDeviceGetComputeRunningProcesses{form}", ()) for form in ("_v3", "_v2", "")
        )
        processes = self._ask("processes", forms)
        if processes is not None:
            counters["processes"] = sorted(int(process.pid) for process in processes)
        return counters

    def facts(self) -> dict[str, Any]:
        """Return the card's facts that do not change during a run."""
        return {
            **self.read(FACTS),
            "temperature_slowdown_c": self._slowdown_c(),
            "confidential_computing": self._noting(
                "confidential_computing", self._binding.confidential_computing
            ),
        }

    def _slowdown_c(self) -> int | None:
        """Return where the hardware begins to slow down (nvmlTemperatureThresholds_t: 1)."""
        whole = self._parent or self._handle
        if whole is None:
            return None
        read = partial(temperature_limit, self._binding, whole, 1, SLOWDOWN_DISTANCE)
        return self._noting("temperature_slowdown_c", read)

    def _noting(self, key: str, read: Callable[[], Value]) -> Value | None:
        """Return what `read` gives; None, with the reason noted, where NVML gives nothing."""
        try:
            return read()
        except NvmlError as error:
            self.unavailable[key] = error.reason()
            return None

    def energy_j(self) -> float | None:
        """Return the energy counter in joules."""
        value = self._ask("energy_mj", COUNTERS[0][1])
        return None if value is None else float(value) / 1000

    def _memory_temperature(self, key: str) -> int | None:
        value = self._field(key, MEMORY_TEMPERATURE_FIELD)
        if value is None:
            return None
        return self._noting(key, partial(celsius, value, "nvmlDeviceGetFieldValues"))

    def _field(self, key: str, field: int) -> int | None:
        values = self._ask(key, (("nvmlDeviceGetFieldValues", ([field],)),))
        if not values:
            return None
        if values[0].nvmlReturn != 0:
            self.unavailable[key] = f"not given by this GPU (NVML error {values[0].nvmlReturn})"
            return None
        return field_value(values[0])

    def _ask(self, key: str, forms: Any) -> Any:
        """Call the first function that the driver knows; None if it knows none."""
        if self._handle is None or key in self.unavailable:
            return None
        handles = [self._handle]
        if self._parent is not None and key not in WHOLE_ONLY:
            handles.append(self._parent)
        for handle in handles:
            for function, arguments in forms:
                try:
                    return self._binding.ask(function, handle, *arguments)
                except NvmlError as error:
                    reason = error.reason()
        self.unavailable[key] = reason
        return None


class Watch:
    """All watched GPUs, and their readings since the last request."""

    def __init__(self, binding: Binding) -> None:
        self._binding = binding
        self._sensors: list[Sensors] = []
        self._samples: list[list[Any]] = []
        self.period_s: float | None = None
        self._due_s = 0.0

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """Return the document that answers one request."""
        if request["ask"] == "start":
            self.period_s = float(request["period_s"])
            self._sensors = [Sensors(self._binding, uuid) for uuid in request["uuids"]]
            gpus = [
                {"uuid": sensors.uuid, **sensors.facts(), "counters": sensors.counters()}
                for sensors in self._sensors
            ]
            self._samples = []
            return {"part": "facts", "gpus": gpus}
        if request["ask"] == "energy":
            for sensors in self._sensors:
                if sensors.uuid == request["uuid"]:
                    return {"part": "energy", "joules": sensors.energy_j()}
            return {"part": "energy", "joules": None}
        counters = {sensors.uuid: sensors.counters() for sensors in self._sensors}
        samples, self._samples = self._samples, []
        unavailable = {sensors.uuid: sensors.unavailable for sensors in self._sensors}
        return {
            "part": "window",
            "samples": samples,
            "counters": counters,
            "unavailable": unavailable,
        }

    def wait_s(self, now_s: float) -> float | None:
        """Return the seconds until the next reading, None while nothing is watched."""
        return None if self.period_s is None else max(0.0, self._due_s - now_s)

    def tick(self, now_s: float) -> None:
        """Read every GPU once if a reading is due."""
        if self.period_s is None or now_s < self._due_s:
            return
        self._due_s = now_s + self.period_s
        if len(self._samples) >= MOST_SAMPLES:
            return
        for sensors in self._sensors:
            self._samples.append([now_s, sensors.uuid, sensors.read(READINGS)])


def serve(watch: Watch, write_answer: Any) -> None:
    """Answer requests from standard input until it ends, reading sensors in between."""
    pending = b""
    while True:
        ready, _, _ = select.select([0], [], [], watch.wait_s(time.monotonic()))
        if ready:
            chunk = os.read(0, 1 << 16)
            if not chunk:
                return
            *lines, pending = (pending + chunk).split(b"\n")
            for line in lines:
                write_answer(watch.answer(json.loads(line)))
        watch.tick(time.monotonic())


def main(binding_directory: str) -> None:
    """Serve one parent."""
    if binding_directory:  # an empty entry would be the current directory
        sys.path.append(binding_directory)
    write_answer = take_over_output()
    try:
        binding = open_nvml()
    except NvmlError as error:
        write_answer({"part": "failure", "code": error.slug, "message": error.reason()})
        return
    serve(Watch(binding), write_answer)
