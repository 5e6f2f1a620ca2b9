"""NVML's readings of health, loaded by the NVML child when they are asked for.

Each question goes through the door of nvml_door_child.py, which turns errors into its `Refusal`.
"""

from __future__ import annotations

import time
from functools import partial

TYPE_CHECKING = False  # the name that type checkers know, without the import of typing
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

#: Counters of the time spent with lowered clocks, in ns. Source: nvml.h (NVML_FI_DEV_*).
SLOWDOWN_FIELDS = {
    "power cap": 74,
    "software thermal": 269,
    "hardware thermal": 270,
    "power brake": 271,
}
MEMORY_TEMPERATURE = 82
PCIE_REPLAYS = 94
RECOVERY_ACTION = 230
MOST_LINKS = 64
#: The code of a link that the GPU does not have: invalid argument, or not offered.
NO_SUCH_LINK = frozenset({2, 3, 13})
OVER = frozenset({15, 16})
INFOROM_CORRUPTED = 14


class HealthReader:
    """Reads one GPU; after it is lost nothing more is asked of it."""

    def __init__(self, door: Any, nvml: Any, refusal: type[Any], index: int) -> None:
        self._door = door
        self._nvml = nvml
        self._refusal = refusal
        self._handle: Any = None
        self._over: Any = None
        self.document: dict[str, Any] = {"part": "health", "index": index}
        self.unavailable: dict[str, str] = {}

    def sample(self) -> dict[str, int | None]:
        """Return the counters that grow: ns by kind of slowdown, and the PCIe replays."""
        wanted = [*SLOWDOWN_FIELDS.values(), PCIE_REPLAYS]
        values = self._fields(wanted)
        names = [*SLOWDOWN_FIELDS, "replays"]
        return {name: values.get(number) for name, number in zip(names, wanted, strict=True)}

    def read(self) -> dict[str, int | None]:
        """Take every reading but the second sample; return the first sample."""
        first: dict[str, int | None] = {}
        try:
            self._handle = self._door.ask("nvmlDeviceGetHandleByIndex", self.document["index"])
            first = self.sample()
        except self._refusal as refusal:
            self._note(("throttled_ns", "sample_s", "pcie_replays_grown"), refusal)
        for fields, question in self._questions():
            self._fill(fields, question)
        return first

    def finish(self, first: dict[str, int | None], sample_s: float) -> dict[str, Any]:
        """Take the second sample and return the document."""
        if self._over is None and first:
            try:
                self._compare(first, self.sample(), sample_s)
            except self._refusal as refusal:
                self._note(("throttled_ns", "sample_s", "pcie_replays_grown"), refusal)
        self.document["unavailable"] = self.unavailable
        self.document["failure"] = self._over.document() if self._over else None
        return self.document

    def _compare(
        self, first: dict[str, int | None], second: dict[str, int | None], sample_s: float
    ) -> None:
        grown = {
            name: later - before
            for name, before in first.items()
            if before is not None and (later := second.get(name)) is not None
        }
        self.document["pcie_replays_grown"] = grown.pop("replays", None)
        self.document["throttled_ns"] = grown or None
        self.document["sample_s"] = sample_s
        reason = "the driver does not count it"
        for name in ("pcie_replays_grown", "throttled_ns"):
            if self.document[name] is None:
                self.unavailable[name] = reason

    def _questions(self) -> Iterator[tuple[tuple[str, ...], Callable[[], tuple[Any, ...]]]]:
        one = self._one
        yield ("clock_event_reasons",), self._clock_reasons
        yield ("temperature_slowdown_c",), one("nvmlDeviceGetTemperatureThreshold", 1)
        yield ("temperature_memory_max_c",), one("nvmlDeviceGetTemperatureThreshold", 2)
        yield ("temperature_gpu_max_c",), one("nvmlDeviceGetTemperatureThreshold", 3)
        yield ("temperature_memory_c",), partial(self._field, MEMORY_TEMPERATURE)
        yield ("fan_count",), one("nvmlDeviceGetNumFans")
        yield ("pcie_generation_gpu_max",), one("nvmlDeviceGetGpuMaxPcieLinkGeneration")
        yield ("pcie_replays",), one("nvmlDeviceGetPcieReplayCounter")
        yield ("ecc_mode_pending",), self._second_flag("nvmlDeviceGetEccMode")
        yield ("ecc_corrected_volatile",), one("nvmlDeviceGetTotalEccErrors", 0, 0)
        yield ("ecc_uncorrected_volatile",), one("nvmlDeviceGetTotalEccErrors", 1, 0)
        yield ("ecc_sram_threshold_exceeded",), self._sram
        yield (
            ("remapped_rows_uncorrected", "remapped_rows_pending", "remapped_rows_failed"),
            self._remapped_rows,
        )
        yield ("retired_pages_single_bit",), partial(self._retired_pages, 0)
        yield ("retired_pages_double_bit",), partial(self._retired_pages, 1)
        yield ("retired_pages_pending",), self._flag("nvmlDeviceGetRetiredPagesPendingStatus")
        yield ("memory_unrepairable",), self._unrepairable
        yield ("repair_pending",), self._repair
        yield ("recovery_action",), partial(self._field, RECOVERY_ACTION)
        yield ("nvlinks", "nvlinks_active"), self._nvlinks
        yield ("fabric_state", "fabric_status", "fabric_health"), self._fabric
        yield ("power_limit_default_w",), self._default_power_limit
        yield ("power_source",), one("nvmlDeviceGetPowerSource")
        yield ("inforom_valid",), self._inforom
        yield ("vbios_version",), one("nvmlDeviceGetVbiosVersion")
        yield ("mig_mode_pending",), self._second_flag("nvmlDeviceGetMigMode")
        yield ("display_active",), self._flag("nvmlDeviceGetDisplayActive")

    # ------------------------------------------------------------------------------ kinds

    def _ask(self, function: str, *arguments: Any) -> Any:
        return self._door.ask(function, self._handle, *arguments)

    def _one(self, function: str, *arguments: Any) -> Callable[[], tuple[Any, ...]]:
        return lambda: (self._ask(function, *arguments),)

    def _flag(self, function: str) -> Callable[[], tuple[Any, ...]]:
        return lambda: (bool(self._ask(function)),)

    def _second_flag(self, function: str) -> Callable[[], tuple[Any, ...]]:
        return lambda: (bool(self._ask(function)[1]),)

    def _fields(self, numbers: list[int]) -> dict[int, int]:
        values = self._ask("nvmlDeviceGetFieldValues", numbers)
        return {v.fieldId: _value(v) for v in values if v.nvmlReturn == 0}

    def _field(self, number: int) -> tuple[Any, ...]:
        return (self._fields([number]).get(number),)

    def _struct(self, name: str, function: str) -> Any:
        """Ask a function that fills a structure which this binding may not know."""
        make = getattr(self._nvml, name, None)
        if make is None:
            text = "the installed nvidia-ml-py is too old to ask for it"
            raise self._refusal(function, None, "binding-too-old", text)
        structure = make()
        self._ask(function, self._nvml.byref(structure))
        return structure

    # ------------------------------------------------------------------------------ readings

    def _clock_reasons(self) -> tuple[Any, ...]:
        try:
            return (self._ask("nvmlDeviceGetCurrentClocksEventReasons"),)
        except self._refusal as refusal:
            if refusal.code != 13:
                raise
        return (self._ask("nvmlDeviceGetCurrentClocksThrottleReasons"),)

    def _sram(self) -> tuple[Any, ...]:
        status = self._struct("c_nvmlEccSramErrorStatus_v1_t", "nvmlDeviceGetSramEccErrorStatus")
        return (bool(status.bThresholdExceeded),)

    def _remapped_rows(self) -> tuple[Any, ...]:
        rows = self._ask("nvmlDeviceGetRemappedRows")
        return (rows[1], bool(rows[2]), bool(rows[3]))

    def _retired_pages(self, cause: int) -> tuple[Any, ...]:
        return (len(self._ask("nvmlDeviceGetRetiredPages", cause)),)

    def _unrepairable(self) -> tuple[Any, ...]:
        return (bool(self._ask("nvmlDeviceGetUnrepairableMemoryFlag_v1")),)

    def _repair(self) -> tuple[Any, ...]:
        return (any(self._ask("nvmlDeviceGetRepairStatus")),)

    def _nvlinks(self) -> tuple[int, int]:
        found = active = 0
        for link in range(MOST_LINKS):
            try:
                active += bool(self._ask("nvmlDeviceGetNvLinkState", link))
            except self._refusal as refusal:
                if refusal.code not in NO_SUCH_LINK:
                    raise
                break
            found += 1
        return (found, active)

    def _fabric(self) -> tuple[Any, ...]:
        """Ask version 3, then 2, which knows no summary of the health."""
        function = "nvmlDeviceGetGpuFabricInfoV"
        try:
            info = self._struct("c_nvmlGpuFabricInfo_v3_t", function)
        except self._refusal as refusal:
            if refusal.code != 25 and refusal.slug != "binding-too-old":
                raise
            info = self._struct("c_nvmlGpuFabricInfo_v2_t", function)
        return (info.state, info.status, getattr(info, "healthSummary", 0))

    def _default_power_limit(self) -> tuple[Any, ...]:
        return (self._ask("nvmlDeviceGetPowerManagementDefaultLimit") / 1000,)

    def _inforom(self) -> tuple[Any, ...]:
        try:
            self._ask("nvmlDeviceValidateInforom")
        except self._refusal as refusal:
            if refusal.code != INFOROM_CORRUPTED:
                raise
            return (False,)
        return (True,)

    # ------------------------------------------------------------------------------ keeping

    def _fill(self, fields: tuple[str, ...], question: Callable[[], tuple[Any, ...]]) -> None:
        if self._over is not None:
            self._note(fields, self._over)
            return
        try:
            values = question()
        except self._refusal as refusal:
            self._note(fields, refusal)
            return
        except (ValueError, TypeError, AttributeError, IndexError) as error:
            reason = f"the driver's answer could not be read ({type(error).__name__})"
            self.unavailable.update(dict.fromkeys(fields, reason))
            return
        for name, value in zip(fields, values, strict=True):
            self.document[name] = value
            if value is None:
                self.unavailable[name] = "not supported by this GPU"

    def _note(self, fields: tuple[str, ...], refusal: Any) -> None:
        self.unavailable.update(dict.fromkeys(fields, refusal.reason()))
        if refusal.code in OVER or self._handle is None:
            self._over = self._over or refusal


def _value(field: Any) -> int:
    """Return a field's value by its type. Source: nvml.h (nvmlValueType_t)."""
    value = field.value
    kinds = (value.dVal, value.uiVal, value.ulVal, value.ullVal, value.sllVal, value.siVal)
    return int(kinds[field.valueType]) if 0 <= field.valueType < len(kinds) else int(value.ullVal)


def read_health(
    door: Any, nvml: Any, refusal: type[Any], sample_s: float
) -> Iterator[dict[str, Any]]:
    """Yield a document for each GPU; the counters are looked at twice, `sample_s` apart."""
    count = door.ask("nvmlDeviceGetCount")
    readers = [HealthReader(door, nvml, refusal, index) for index in range(count)]
    started = [(reader, time.monotonic(), reader.read()) for reader in readers]
    if started:
        time.sleep(max(0.0, sample_s - (time.monotonic() - started[-1][1])))
    for reader, begun, first in started:
        yield reader.finish(first, time.monotonic() - begun)
