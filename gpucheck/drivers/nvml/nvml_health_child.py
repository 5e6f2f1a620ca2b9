"""NVML's readings of health, loaded by the NVML child on demand.

Each call goes through the binding of nvml_door_child.py, which turns errors into its `Refusal`.
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
#: Errors of all NVLinks, by kind, and of one link. Source: nvml.h (NVML_FI_DEV_NVLINK_*).
NVLINK_TOTALS = {"CRC": (38, 45), "replay": (52,), "recovery": (59,)}
NVLINK_BY_LINK = {"CRC": 163, "replay": 161, "recovery": 162}
#: The counters compared between the two samples.
GROWING = ("throttled_ns", "pcie_replays_grown", "nvlink_errors_grown")
#: The codes of a single field that the GPU or the driver does not have.
NO_SUCH_FIELD = frozenset({2, 3, 13, 25})
MEMORY_TEMPERATURE = 82
PCIE_REPLAYS = 94
RECOVERY_ACTION = 230
MOST_LINKS = 64
#: Readings, by their first field, from which inventory/condition.py decides that a card is unfit.
CONDITION = frozenset(
    {
        "clock_event_reasons",
        "ecc_sram_threshold_exceeded",
        "ecc_uncorrected_volatile",
        "memory_unrepairable",
        "recovery_action",
        "remapped_rows_uncorrected",
        "retired_pages_double_bit",
        "retired_pages_single_bit",
        "temperature_slowdown_c",
    }
)
#: The codes of a link that the GPU does not have: invalid argument, or not offered.
NO_SUCH_LINK = frozenset({2, 3, 13})
OVER = frozenset({15, 16})
INFOROM_CORRUPTED = 14


class HealthReader:
    """Reader of one GPU; once it is lost, it is not read any further."""

    def __init__(self, door: Any, nvml: Any, refusal: type[Any], index: int) -> None:
        self._door = door
        self._nvml = nvml
        self._refusal = refusal
        self._handle: Any = None
        self._over: Any = None
        self._active_links: list[int] = []
        #: The time and the values of the growing counters' first sample.
        self._begun_s = 0.0
        self._first: dict[str, int] | None = None
        #: Why a counter that the GPU has was not read.
        self._gap: Any = None
        self.document: dict[str, Any] = {"part": "health", "index": index}
        self.unavailable: dict[str, str] = {}

    def read(self) -> None:
        """Take every reading, and the counters' first sample."""
        try:
            self._handle = self._door.ask("nvmlDeviceGetHandleByIndex", self.document["index"])
        except self._refusal as refusal:
            self._over = refusal
        for fields, question in self._questions():
            self._fill(fields, question)
        if self._over is None:
            self._begun_s = time.monotonic()
            try:
                self._first = self._sample()
            except self._refusal as refusal:
                self._note((*GROWING, "sample_s"), refusal)

    def read_condition(self) -> dict[str, Any]:
        """Return a document with only the readings of CONDITION."""
        try:
            self._handle = self._door.ask("nvmlDeviceGetHandleByIndex", self.document["index"])
        except self._refusal as refusal:
            self._over = refusal
        for fields, question in self._questions():
            if fields[0] in CONDITION:
                self._fill(fields, question)
        self.document["unavailable"] = self.unavailable
        self.document["failure"] = self._over.document() if self._over else None
        return self.document

    def finish(self) -> dict[str, Any]:
        """Take the second sample and return the document."""
        if self._over is not None or self._first is not None:
            self._fill((*GROWING, "sample_s"), self._grown)
        self.document["unavailable"] = self.unavailable
        self.document["failure"] = self._over.document() if self._over else None
        return self.document

    # ------------------------------------------------------------------------------ counters

    def _grown(self) -> tuple[Any, ...]:
        """Return the growth of each kind of counter, and the time in which it grew."""
        later = self._sample()
        seconds = time.monotonic() - self._begun_s
        # A counter that was reset meanwhile has not grown.
        grown = {
            name: max(0, later[name] - before)
            for name, before in (self._first or {}).items()
            if name in later
        }
        slowdowns = {name: grown[name] for name in SLOWDOWN_FIELDS if name in grown}
        errors = {
            name: max(grown.get(name, 0), grown.get(f"{name} by link", 0))
            for name in NVLINK_TOTALS
            if name in grown or f"{name} by link" in grown
        }
        return (slowdowns or None, grown.get("replays"), errors or None, seconds)

    def _sample(self) -> dict[str, int]:
        """Return the counters by name; those of NVLinks both for the whole GPU and by link."""
        wanted = [*SLOWDOWN_FIELDS.values(), PCIE_REPLAYS]
        values = self._fields(wanted)
        names = [*SLOWDOWN_FIELDS, "replays"]
        found = {n: values[w] for n, w in zip(names, wanted, strict=True) if w in values}
        if not self._active_links:
            return found
        totals = self._fields([number for kind in NVLINK_TOTALS.values() for number in kind])
        pairs = [(field, n) for field in NVLINK_BY_LINK.values() for n in self._active_links]
        by_link = self._fields(pairs)
        for name, numbers in NVLINK_TOTALS.items():
            known = [totals[number] for number in numbers if number in totals]
            each = [value for key, value in by_link.items() if key[0] == NVLINK_BY_LINK[name]]
            found |= {name: sum(known)} if known else {}
            found |= {f"{name} by link": sum(each)} if each else {}
        return found

    # ------------------------------------------------------------------------------ questions

    def _questions(self) -> Iterator[tuple[tuple[str, ...], Callable[[], tuple[Any, ...]]]]:
        one = self._one
        yield ("clock_event_reasons",), self._clock_reasons
        yield ("temperature_slowdown_c",), one("nvmlDeviceGetTemperatureThreshold", 1)
        yield ("temperature_memory_max_c",), one("nvmlDeviceGetTemperatureThreshold", 2)
        yield ("temperature_gpu_max_c",), one("nvmlDeviceGetTemperatureThreshold", 3)
        yield ("temperature_margin_c",), one("nvmlDeviceGetMarginTemperature")
        yield ("temperature_memory_c",), self._memory_temperature
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

    def _fields(self, wanted: list[Any]) -> dict[Any, int]:
        """Return the available ones of these fields (numbers, or pairs with a link)."""
        function = "nvmlDeviceGetFieldValues"
        values = self._ask(function, wanted)
        found = {}
        for key, each in zip(wanted, values, strict=True):
            if each.nvmlReturn == 0:
                found[key] = _value(each)
            elif each.nvmlReturn in OVER or len(wanted) == 1:
                raise self._door.refusal(function, each.nvmlReturn)
            elif each.nvmlReturn not in NO_SUCH_FIELD:
                self._gap = self._door.refusal(function, each.nvmlReturn)
        return found

    def _field(self, number: int) -> tuple[Any, ...]:
        return (self._fields([number])[number],)

    def _memory_temperature(self) -> tuple[Any, ...]:
        (value,) = self._field(MEMORY_TEMPERATURE)
        return (self._door.celsius(value, "nvmlDeviceGetFieldValues"),)

    def _struct(self, name: str, function: str) -> Any:
        """Call a function that fills a structure unknown to older versions of pynvml."""
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
        found = 0
        for link in range(MOST_LINKS):
            try:
                if self._ask("nvmlDeviceGetNvLinkState", link):
                    self._active_links.append(link)
            except self._refusal as refusal:
                if refusal.code not in NO_SUCH_LINK:
                    raise
                break
            found += 1
        return (found, len(self._active_links))

    def _fabric(self) -> tuple[Any, ...]:
        """Ask version 3, then version 2, which has no summary of the health."""
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
                gap = self._gap if name in GROWING else None
                self.unavailable[name] = gap.reason() if gap else "not supported by this GPU"

    def _note(self, fields: tuple[str, ...], refusal: Any) -> None:
        self.unavailable.update(dict.fromkeys(fields, refusal.reason()))
        if refusal.code in OVER:
            self._over = self._over or refusal


def _value(field: Any) -> int:
    """Return a field's value by its type. Source: nvml.h (nvmlValueType_t)."""
    value = field.value
    kinds = (value.dVal, value.uiVal, value.ulVal, value.ullVal, value.sllVal, value.siVal)
    return int(kinds[field.valueType]) if 0 <= field.valueType < len(kinds) else int(value.ullVal)


def read_health(
    door: Any, nvml: Any, refusal: type[Any], sample_s: float
) -> Iterator[dict[str, Any]]:
    """Yield a document for each GPU; the counters are sampled twice, `sample_s` apart."""
    count = door.ask("nvmlDeviceGetCount")
    readers = [HealthReader(door, nvml, refusal, index) for index in range(count)]
    for reader in readers:
        reader.read()
    if readers:
        time.sleep(sample_s)
    for reader in readers:
        yield reader.finish()


def read_condition(
    door: Any, nvml: Any, refusal: type[Any], gpus: list[int]
) -> Iterator[dict[str, Any]]:
    """Yield for each of these GPUs only what decides whether it is fit for work."""
    for index in gpus:
        yield HealthReader(door, nvml, refusal, index).read_condition()
