"""NVML's readings of health, loaded by the NVML child on demand."""

from __future__ import annotations

import time
from functools import partial

from gpucheck.drivers.native import NOT_SUPPORTED
from gpucheck.drivers.nvml.binding import (
    GPU_MAX_DISTANCE,
    MOST_LINKS,
    NO_SUCH_LINK,
    OVER,
    SLOWDOWN_DISTANCE,
    NvmlError,
    celsius,
    error_of,
    field_value,
    temperature_limit,
)
from gpucheck.drivers.nvml.gpu import FieldReader, flag, watts

TYPE_CHECKING = False  # the name that type checkers know, without the import of typing
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from gpucheck.drivers.nvml.binding import Binding
    from gpucheck.drivers.nvml.gpu import Question, Values

#: Counters of the time spent with lowered clocks, in ns. Source: nvml.h (NVML_FI_DEV_*).
SLOWDOWN_FIELDS = {
    "power cap": 74,
    "software thermal": 269,
    "hardware thermal": 270,
    "power brake": 271,
}
#: Errors of all NVLinks, by kind, and of one link. Source: nvml.h (NVML_FI_DEV_NVLINK_*). From
#: NVLink 5 (Blackwell) on, links count no errors of the older kinds, and these have no totals.
NVLINK_TOTALS = {"CRC": (38, 45), "replay": (52,), "recovery": (59,)}
NVLINK_BY_LINK = {
    "CRC": 163,
    "replay": 161,
    "recovery": 162,
    "successful recovery": 213,
    "failed recovery": 214,
}
#: The counters compared between the two samples.
GROWING = ("throttled_ns", "pcie_replays_grown", "nvlink_errors_grown")
#: The codes of a single field that the GPU or the driver does not have.
NO_SUCH_FIELD = frozenset({2, 3, 13, 25})
MEMORY_TEMPERATURE = 82
PCIE_REPLAYS = 94
RECOVERY_ACTION = 230
#: The readings, by their first field, by which inventory/condition.py judges a card.
CONDITION = frozenset(
    {
        "clock_event_reasons", "ecc_mode_pending", "ecc_sram_threshold_exceeded",
        "ecc_uncorrected_volatile", "memory_unrepairable", "mig_mode_pending", "recovery_action",
        "remapped_rows_uncorrected", "retired_pages_double_bit", "retired_pages_single_bit",
        "temperature_memory_c", "temperature_memory_max_c", "temperature_slowdown_c",
    }
)  # fmt: skip
INFOROM_CORRUPTED = 14


class HealthReader(FieldReader):
    """Reader of one GPU's health."""

    def __init__(self, binding: Binding, index: int) -> None:
        super().__init__(binding, "health", index)
        self._active_links: list[int] = []
        #: The time and the values of the growing counters' first sample.
        self._begun_s = 0.0
        self._first: dict[str, int] | None = None
        #: Why a counter that the GPU has was not read.
        self._gap: NvmlError | None = None

    def read(self) -> None:
        """Take every reading, and the counters' first sample."""
        self.open()
        for fields, question in self._questions():
            self._fill(fields, question)
        if self._over is None:
            self._begun_s = time.monotonic()
            try:
                self._first = self._sample()
            except NvmlError as error:
                self._note((*GROWING, "sample_s"), error)

    def read_condition(self) -> dict[str, Any]:
        """Return a document with only the readings of CONDITION."""
        self.open()
        for fields, question in self._questions():
            if fields[0] in CONDITION:
                self._fill(fields, question)
        return self.finish()

    def read_again(self) -> dict[str, Any]:
        """Take the counters' second sample and return the document."""
        if self._over is not None or self._first is not None:
            self._fill((*GROWING, "sample_s"), self._grown)
        return self.finish()

    # ------------------------------------------------------------------------------ counters

    def _grown(self) -> Values:
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
            for name in NVLINK_BY_LINK
            if name in grown or f"{name} by link" in grown
        }
        return (slowdowns or None, grown.get("replays"), errors or None, seconds)

    def _sample(self) -> dict[str, int]:
        """Return the counters by name; those of NVLinks both for the whole GPU and by link."""
        wanted = [*SLOWDOWN_FIELDS.values(), PCIE_REPLAYS]
        values = self._fields(wanted)
        names = [*SLOWDOWN_FIELDS, "replays"]
        counts = {n: values[w] for n, w in zip(names, wanted, strict=True) if w in values}
        if not self._active_links:
            return counts
        totals = self._fields([number for kind in NVLINK_TOTALS.values() for number in kind])
        pairs = [(field, n) for field in NVLINK_BY_LINK.values() for n in self._active_links]
        by_link = self._fields(pairs)
        for name, field in NVLINK_BY_LINK.items():
            known = [totals[part] for part in NVLINK_TOTALS.get(name, ()) if part in totals]
            by_field = [value for key, value in by_link.items() if key[0] == field]
            counts |= {name: sum(known)} if known else {}
            counts |= {f"{name} by link": sum(by_field)} if by_field else {}
        return counts

    # ------------------------------------------------------------------------------ questions

    def _questions(self) -> Iterator[tuple[tuple[str, ...], Question]]:
        read = self._question
        read_flag = partial(read, convert=flag)
        yield ("clock_event_reasons",), self._clock_reasons
        yield ("temperature_slowdown_c",), partial(self._limit, 1, SLOWDOWN_DISTANCE)
        yield ("temperature_memory_max_c",), read("nvmlDeviceGetTemperatureThreshold", 2)
        yield ("temperature_gpu_max_c",), partial(self._limit, 3, GPU_MAX_DISTANCE)
        yield ("temperature_margin_c",), read("nvmlDeviceGetMarginTemperature")
        yield ("temperature_memory_c",), self._memory_temperature
        yield ("fan_count",), read("nvmlDeviceGetNumFans")
        yield ("pcie_generation_gpu_max",), read("nvmlDeviceGetGpuMaxPcieLinkGeneration")
        yield ("pcie_replays",), read("nvmlDeviceGetPcieReplayCounter")
        yield ("ecc_mode_pending",), read("nvmlDeviceGetEccMode", convert=_second_flag)
        yield ("ecc_corrected_volatile",), read("nvmlDeviceGetTotalEccErrors", 0, 0)
        yield ("ecc_uncorrected_volatile",), read("nvmlDeviceGetTotalEccErrors", 1, 0)
        yield ("ecc_sram_threshold_exceeded",), self._sram
        yield (
            ("remapped_rows_uncorrected", "remapped_rows_pending", "remapped_rows_failed"),
            read("nvmlDeviceGetRemappedRows", convert=lambda n: (n[1], bool(n[2]), bool(n[3]))),
        )
        yield ("retired_pages_single_bit",), read("nvmlDeviceGetRetiredPages", 0, convert=_count)
        yield ("retired_pages_double_bit",), read("nvmlDeviceGetRetiredPages", 1, convert=_count)
        yield ("retired_pages_pending",), read_flag("nvmlDeviceGetRetiredPagesPendingStatus")
        yield ("memory_unrepairable",), read_flag("nvmlDeviceGetUnrepairableMemoryFlag_v1")
        yield ("repair_pending",), read("nvmlDeviceGetRepairStatus", convert=_any)
        yield ("recovery_action",), partial(self._field, RECOVERY_ACTION)
        yield ("nvlinks", "nvlinks_active"), self._nvlinks
        yield ("fabric_state", "fabric_status", "fabric_health"), self._fabric
        yield (
            ("power_limit_default_w",),
            read("nvmlDeviceGetPowerManagementDefaultLimit", convert=watts),
        )
        yield ("power_source",), read("nvmlDeviceGetPowerSource")
        yield ("inforom_valid",), self._inforom
        yield ("vbios_version",), read("nvmlDeviceGetVbiosVersion")
        yield ("mig_mode_pending",), read("nvmlDeviceGetMigMode", convert=_second_flag)
        yield ("display_active",), read_flag("nvmlDeviceGetDisplayActive")

    # ------------------------------------------------------------------------------ kinds

    def _fields(self, wanted: list[Any]) -> dict[Any, int]:
        """Return the available ones of these fields (numbers, or pairs with a link)."""
        function = "nvmlDeviceGetFieldValues"
        values = self._ask(function, wanted)
        by_name = {}
        for key, value in zip(wanted, values, strict=True):
            if value.nvmlReturn == 0:
                by_name[key] = field_value(value)
            elif value.nvmlReturn in OVER or len(wanted) == 1:
                raise error_of(function, value.nvmlReturn)
            elif value.nvmlReturn not in NO_SUCH_FIELD:
                self._gap = error_of(function, value.nvmlReturn)
        return by_name

    def _field(self, number: int) -> Values:
        return (self._fields([number])[number],)

    def _memory_temperature(self) -> Values:
        (value,) = self._field(MEMORY_TEMPERATURE)
        return (celsius(value, "nvmlDeviceGetFieldValues"),)

    def _limit(self, threshold: int, distance: int) -> Values:
        return (temperature_limit(self._binding, self._handle, threshold, distance),)

    def _struct(self, name: str, function: str) -> Any:
        """Call a function that fills a structure unknown to older versions of pynvml."""
        structure = self._binding.structure(name)
        self._ask(function, self._binding.nvml.byref(structure))
        return structure

    # ------------------------------------------------------------------------------ readings

    def _clock_reasons(self) -> Values:
        try:
            return (self._ask("nvmlDeviceGetCurrentClocksEventReasons"),)
        except NvmlError as error:
            if error.code != 13:
                raise
        return (self._ask("nvmlDeviceGetCurrentClocksThrottleReasons"),)

    def _sram(self) -> Values:
        status = self._struct("c_nvmlEccSramErrorStatus_v1_t", "nvmlDeviceGetSramEccErrorStatus")
        return (bool(status.bThresholdExceeded),)

    def _nvlinks(self) -> tuple[int, int]:
        count = 0
        for link in range(MOST_LINKS):
            try:
                if self._ask("nvmlDeviceGetNvLinkState", link):
                    self._active_links.append(link)
            except NvmlError as error:
                if error.code not in NO_SUCH_LINK:
                    raise
                break
            count += 1
        return (count, len(self._active_links))

    def _fabric(self) -> Values:
        """Ask version 3, then version 2, which has no summary of the health."""
        function = "nvmlDeviceGetGpuFabricInfoV"
        try:
            info = self._struct("c_nvmlGpuFabricInfo_v3_t", function)
        except NvmlError as error:
            if error.code != 25 and error.slug != "binding-too-old":
                raise
            info = self._struct("c_nvmlGpuFabricInfo_v2_t", function)
        return (info.state, info.status, getattr(info, "healthSummary", 0))

    def _inforom(self) -> Values:
        try:
            self._ask("nvmlDeviceValidateInforom")
        except NvmlError as error:
            if error.code != INFOROM_CORRUPTED:
                raise
            return (False,)
        return (True,)

    def _why_null(self, name: str) -> str:
        if self._gap is not None and name in GROWING:
            return self._gap.reason()
        return NOT_SUPPORTED


def _second_flag(values: Any) -> Values:
    return (bool(values[1]),)


def _any(values: Any) -> Values:
    return (any(values),)


def _count(values: Any) -> Values:
    return (len(values),)


def read_health(binding: Binding, sample_s: float) -> Iterator[dict[str, Any]]:
    """Yield a document for each GPU; the counters are sampled twice, `sample_s` apart."""
    count = binding.ask("nvmlDeviceGetCount")
    readers = [HealthReader(binding, index) for index in range(count)]
    for reader in readers:
        reader.read()
    if readers:
        time.sleep(sample_s)
    for reader in readers:
        yield reader.read_again()


def read_condition(binding: Binding, gpus: list[int]) -> Iterator[dict[str, Any]]:
    """Yield for each of these GPUs only what decides whether it is fit for work."""
    for index in gpus:
        yield HealthReader(binding, index).read_condition()
