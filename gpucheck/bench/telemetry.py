"""Sensor readings of each row and of the whole run, with throttle reasons and extents."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from gpucheck.bench import stats
from gpucheck.bench.model import Extent, GpuTelemetry, SensorHistory, Telemetry
from gpucheck.drivers.nvml.sensors import PERIOD_S, NvmlSensors, Sample
from gpucheck.inventory.condition import CLOCK_REASONS

#: Reasons that mean trouble. A power cap is normal under a product of random numbers, idling is no
#: trouble, and locked clocks are a choice.
TROUBLE = frozenset(
    {"hardware-slowdown", "software-thermal", "hardware-thermal", "power-brake", "board-limit"}
)
#: Reasons that point to the cooling; the other troubles point to the power supply.
HEAT = frozenset({"hardware-thermal", "software-thermal", "hardware-slowdown"})
#: Bits 0x20, 0x40 and 0x80: with one of them `hardware-slowdown` is trouble. Alone it "may be
#: also reported during PState or clock change" (nvml.h, nvmlClocksEventReasonHwSlowdown).
_BESIDE_SLOWDOWN = frozenset({"software-thermal", "hardware-thermal", "power-brake"})
#: Share of the readings, and of the time that the driver counts, from which a limit matters.
LIMITED_READINGS, LIMITED_TIME = 0.05, 0.01
#: Reasons that hold no clock down while there is work.
_NO_LIMIT = frozenset({"idle", "display", "application-clocks"})
#: Parts of a run's time that its history has at most: enough for a chart, and a few KB a GPU.
MOST_PARTS = 120
#: Counters of the driver, by the reason that they count.
_COUNTED = {
    "power": "power-cap",
    "thermal": "software-thermal",
    "sync-boost": "sync-boost",
    "board-limit": "board-limit",
    "reliability": "reliability",
    "sw-thermal": "software-thermal",
    "hw-thermal": "hardware-thermal",
    "hw-power-brake": "power-brake",
}
#: Fields of the document whose unit differs from the driver's, with the driver's key.
_KEYS = {
    "power_w": "power_mw",
    "power_limit_w": "power_limit_mw",
    "power_limit_default_w": "power_limit_default_mw",
    "energy_j": "energy_mj",
}
#: Facts of a GPU that the document has as the driver gives them.
_FACTS = (
    *("temperature_memory_max_c", "clock_sm_max_mhz", "temperature_slowdown_c", "vbios_version"),
    "confidential_computing",
)
_ERRORS = ("ecc_corrected", "ecc_uncorrected", "remapped_rows", "pcie_replays")


#: NVML's power is the average of the last second on GPUs newer than GA100, compute capability 8.0
#: (nvml.h, nvmlDeviceGetPowerUsage): until a second has passed it is of the time before.
_POWER_AVERAGE_S, _LAST_WITHOUT_AVERAGE = 1.0, (8, 0)
_AVERAGED = "the driver averages power over a second, and the readings lasted no longer"


@dataclass(frozen=True, slots=True, kw_only=True)
class SensorSummary:
    """Sensor readings of one GPU while a group, or one of its rows, was measured.

    `reasons` is the share of readings for each reason, `limited_share` the driver's count as a
    share of the time. `claimed_by` names the process that holds the card.
    `clock_sm_max_mhz` is the highest clock that the driver allows. `confidential`: what crosses
    its link is encrypted.
    """

    reading_count: int = 0
    reasons: Mapping[str, float] = field(default_factory=dict)
    limited_share: Mapping[str, float] = field(default_factory=dict)
    new_errors: Mapping[str, int] = field(default_factory=dict)
    other_processes: tuple[int, ...] = ()
    link: tuple[int, int] | None = None
    link_max: tuple[int, int] | None = None
    claimed_by: str | None = None
    clock_sm_max_mhz: float | None = None
    confidential: bool = False


def held_down(gpu: SensorSummary) -> dict[str, float]:
    """Return the reasons that held the clock down long enough, with their share of the time."""
    seen = {name: share for name, share in gpu.reasons.items() if share >= LIMITED_READINGS}
    counted = {
        name: min(1.0, share) for name, share in gpu.limited_share.items() if share >= LIMITED_TIME
    }
    return counted | seen


def why_unread(gpu: GpuTelemetry, reason: str) -> str | None:
    """Return why a reason's hold on the clock is unknown, None if it is known."""
    key = f"limited_s.{reason}"
    counted = reason in _COUNTED.values() and key not in gpu.unavailable
    if counted or ("reasons" not in gpu.unavailable and gpu.reading_count):
        return None
    return gpu.unavailable.get("reasons") or gpu.unavailable.get(key) or "it was never read"


def is_clock_change(reasons: Iterable[str]) -> bool:
    """Return whether a hardware slowdown stands alone: a change of clocks explains it."""
    names = set(reasons)
    return "hardware-slowdown" in names and not names & _BESIDE_SLOWDOWN


@dataclass(slots=True)
class _Counted:
    """Driver's counts on one GPU, summed over the slices of one group."""

    seconds: float = 0.0
    limited_s: Counter[str] = field(default_factory=Counter)
    new_errors: Counter[str] = field(default_factory=Counter)
    others: set[int] = field(default_factory=set)


@dataclass(slots=True)
class WatchedGpu:
    """Readings of one GPU so far; `memory_c` is the highest temperature of its memory."""

    facts: Mapping[str, Any]
    first: Mapping[str, Any]
    last: Mapping[str, Any]
    samples: list[Sample] = field(default_factory=list)
    unavailable: Mapping[str, str] = field(default_factory=dict)
    others: set[int] = field(default_factory=set)
    memory_c: float | None = None
    groups: dict[Hashable, _Counted] = field(default_factory=dict)

    @property
    def values(self) -> Mapping[str, float]:
        """Return the last reading, with the driver's keys; empty if there is none."""
        return self.samples[-1].values if self.samples else {}


class Observer:
    """Collector of a run's sensor readings, by group and as a whole.

    `before` are the processes that used each GPU before this program opened it, `claims` those
    that hold it. `children` returns the running processes of this program that use GPUs too.
    """

    def __init__(
        self,
        sensors: NvmlSensors,
        *,
        own_pid: int,
        before: Mapping[str, frozenset[int]],
        claims: Mapping[str, str],
        children: Callable[[], Iterable[int]] = tuple,
    ) -> None:
        self._sensors = sensors
        self._own_pid = own_pid
        self._children = children
        self._before = before
        self._claims = claims
        self._gpus: dict[str, WatchedGpu] = {}

    def start(self, uuids: Iterable[str]) -> None:
        """Begin to watch these GPUs."""
        for uuid, facts in self._sensors.start(list(uuids)).items():
            counters = facts["counters"]
            self._gpus[uuid] = WatchedGpu(facts=facts, first=counters, last=counters)

    @property
    def is_watching(self) -> bool:
        """Return whether the sensors of any GPU are read."""
        return bool(self._gpus)

    def gpu(self, uuid: str | None) -> WatchedGpu | None:
        """Return the readings of a GPU so far, None if its sensors are not read."""
        return self._gpus.get(uuid or "")

    def end_slices(self, group: Hashable, seconds: float) -> None:
        """Store the readings since the last slices, as those of a group, with their duration."""
        window = self._sensors.window()
        for uuid, gpu in self._gpus.items():
            before, gpu.last = gpu.last, window.counters.get(uuid, gpu.last)
            memory_c = gpu.last.get("temperature_memory_c")
            if memory_c is not None:
                gpu.memory_c = max(memory_c, gpu.memory_c or memory_c)
            gpu.unavailable = window.unavailable.get(uuid, gpu.unavailable)
            others = other_processes(
                self._before.get(uuid, frozenset()),
                frozenset(gpu.last.get("processes", ())),
                frozenset((self._own_pid, *self._children())),
            )
            gpu.others |= others
            counted = gpu.groups.setdefault(group, _Counted())
            counted.seconds += seconds
            counted.others |= others
            counted.limited_s.update(limited_s(before, gpu.last))
            counted.new_errors.update(grown(before, gpu.last))
        for sample in window.samples:
            self._gpus[sample.uuid].samples.append(sample)

    def state(
        self, uuid: str | None, slices_s: Sequence[tuple[float, float]], group: Hashable
    ) -> SensorSummary:
        """Return the readings of a group's row during these slices, empty without sensors."""
        gpu = self.gpu(uuid)
        if uuid is None or gpu is None:
            return SensorSummary(claimed_by=self._claims.get(uuid or ""))
        samples = samples_within(gpu.samples, slices_s)
        counted = gpu.groups.get(group, _Counted())
        seconds = max(counted.seconds, 1e-9)
        best, widest = (gpu.facts.get(f"pcie_{part}_max") for part in ("generation", "width"))
        return SensorSummary(
            reading_count=len(samples),
            reasons=reason_shares(samples, gpu.facts),
            limited_share={name: value / seconds for name, value in counted.limited_s.items()},
            new_errors=dict(counted.new_errors),
            other_processes=tuple(sorted(counted.others)),
            link=best_link(samples),
            link_max=(int(best), int(widest)) if best and widest else None,
            claimed_by=self._claims.get(uuid),
            clock_sm_max_mhz=gpu.facts.get("clock_sm_max_mhz"),
            confidential=bool(gpu.facts.get("confidential_computing")),
        )

    def result(self) -> Telemetry:
        """Return the whole run's sensors."""
        times = [
            gpu.samples[place].time_s
            for gpu in self._gpus.values()
            for place in (0, -1)
            if gpu.samples
        ]
        span = (min(times), max(times)) if times else (0.0, 0.0)
        period_s = self._sensors.period_s
        gpus = tuple(_summary(uuid, gpu, span, period_s) for uuid, gpu in self._gpus.items())
        return Telemetry(gpus=gpus, unavailable=self._sensors.failure)


def other_processes(before: frozenset[int], now: frozenset[int], own: frozenset[int]) -> set[int]:
    """Return the other processes that use a GPU; `own` are this program's.

    In a container the driver may use the host's process ids, so that none of them is found. Then as
    many new processes as there can be of this program's are assumed to be those.
    """
    if own & now:
        return set(now - own)
    newcomers = now - before
    return set(now - newcomers) if len(newcomers) <= len(own) else set(now)


def samples_within(
    samples: Sequence[Sample], slices_s: Sequence[tuple[float, float]]
) -> list[Sample]:
    """Return the readings taken during these periods; both are in order of time."""
    starts = [low for low, _ in slices_s]
    within = []
    for sample in samples:
        place = bisect_right(starts, sample.time_s) - 1
        if place >= 0 and sample.time_s <= slices_s[place][1]:
            within.append(sample)
    return within


def reason_shares(samples: Sequence[Sample], facts: Mapping[str, Any]) -> dict[str, float]:
    """Return the share of readings in which each reason was set.

    Data-centre cards come with application clocks; at their default the user has not set them.
    """
    masks = [int(sample.values["reasons"]) for sample in samples if "reasons" in sample.values]
    shares = {
        name: sum(1 for mask in masks if mask & bit) / len(masks)
        for bit, name in CLOCK_REASONS.items()
        if masks
    }
    application_mhz = facts.get("clock_application_mhz")
    if application_mhz is not None and application_mhz == facts.get(
        "clock_application_default_mhz"
    ):
        shares.pop("application-clocks", None)
    return {name: share for name, share in shares.items() if share > 0}


def limited_s(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, float]:
    """Return the seconds that the driver counted for each reason between two readings."""
    limited: dict[str, float] = {}
    first, last = before.get("limited_ns", {}), after.get("limited_ns", {})
    for name in first.keys() & last.keys():
        seconds = (last[name] - first[name]) / 1e9
        if seconds > 0:
            # Two counters may count one reason: the larger one is complete.
            reason = _COUNTED[name]
            limited[reason] = max(limited.get(reason, 0.0), seconds)
    return limited


def grown(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, int]:
    """Return the growth of each error counter that grew."""
    both = [name for name in _ERRORS if name in before and name in after]
    return {name: after[name] - before[name] for name in both if after[name] > before[name]}


def best_link(samples: Sequence[Sample]) -> tuple[int, int] | None:
    """Return the fastest PCIe link seen, as generation and width: an idle link trains down."""
    links = [
        (int(sample.values["pcie_generation"]), int(sample.values["pcie_width"]))
        for sample in samples
        if "pcie_generation" in sample.values and "pcie_width" in sample.values
    ]
    return max(links, key=lambda link: link[1] * 2 ** link[0], default=None)


def extent(samples: Sequence[Sample], key: str, scale: float = 1.0) -> Extent | None:
    """Return the smallest, middle and largest of one sensor's readings."""
    values = [float(sample.values[key]) * scale for sample in samples if key in sample.values]
    if not values:
        return None
    return Extent(low=min(values), median=stats.median(values), high=max(values))


def _watts(milliwatts: float | None) -> float | None:
    return None if milliwatts is None else milliwatts / 1000


def history_of(
    samples: Sequence[Sample], span: tuple[float, float], period_s: float = PERIOD_S
) -> SensorHistory | None:
    """Return readings in at most `MOST_PARTS` equal parts of a time span, None without any."""
    if not samples:
        return None
    begin, seconds = span[0], span[1] - span[0]
    # No finer than the readings are, so that few parts are empty.
    part_s = max(period_s, seconds / min(MOST_PARTS, len(samples)))
    count = min(MOST_PARTS, int(seconds / part_s) + 1)
    parts: list[list[Sample]] = [[] for _ in range(count)]
    for sample in samples:
        parts[min(count - 1, int((sample.time_s - begin) / part_s))].append(sample)

    def medians(key: str, scale: float, digits: int) -> tuple[float | None, ...]:
        extents = (extent(part, key, scale) for part in parts)
        return tuple(None if item is None else round(item.median, digits) for item in extents)

    return SensorHistory(
        part_s=part_s,
        clock_sm_mhz=medians("clock_sm_mhz", 1.0, 0),
        power_w=medians("power_mw", 1e-3, 1),
        temperature_c=medians("temperature_c", 1.0, 0),
        limited=_limited_periods(samples, begin, part_s, period_s),
    )


def _limited_periods(
    samples: Sequence[Sample], begin: float, part_s: float, period_s: float
) -> dict[str, tuple[tuple[float, float], ...]]:
    """Return when each reason was set, from reading to reading; pauses below a part do not count.

    A reason holds for the readings' period after the last reading that has it. Idling and the
    display's clock are no limits.
    """
    by_name: dict[str, list[tuple[float, float]]] = {}
    for sample in samples:
        mask, now = int(sample.values.get("reasons", 0)), sample.time_s - begin
        for bit, name in CLOCK_REASONS.items():
            if not mask & bit or name in _NO_LIMIT:
                continue
            periods = by_name.setdefault(name, [])
            if periods and now - periods[-1][1] <= part_s:
                periods[-1] = (periods[-1][0], round(now + period_s, 2))
            else:
                periods.append((round(now, 2), round(now + period_s, 2)))
    return {name: tuple(periods) for name, periods in by_name.items()}


def _without_earlier_power(gpu: WatchedGpu) -> list[Sample]:
    """Return a GPU's readings without the power that was averaged over the time before them."""
    if tuple(gpu.facts.get("compute_capability", ())) <= _LAST_WITHOUT_AVERAGE or not gpu.samples:
        return gpu.samples
    own_s = gpu.samples[0].time_s + _POWER_AVERAGE_S
    return [
        sample
        if sample.time_s >= own_s
        else replace(
            sample, values={key: it for key, it in sample.values.items() if key != "power_mw"}
        )
        for sample in gpu.samples
    ]


def _summary(
    uuid: str, gpu: WatchedGpu, span: tuple[float, float], period_s: float
) -> GpuTelemetry:
    link, samples = best_link(gpu.samples), _without_earlier_power(gpu)
    # NVML's pair: the current mode, and the one after the next start.
    ecc_modes = gpu.facts.get("ecc_mode")
    energy = None
    if "energy_mj" in gpu.first and "energy_mj" in gpu.last:
        energy = (gpu.last["energy_mj"] - gpu.first["energy_mj"]) / 1000
    facts: dict[str, Any] = {name: gpu.facts.get(name) for name in _FACTS}
    summary = GpuTelemetry(
        **facts,
        uuid=uuid,
        reading_count=len(gpu.samples),
        period_s=period_s,
        clock_sm_mhz=extent(gpu.samples, "clock_sm_mhz"),
        clock_memory_mhz=extent(gpu.samples, "clock_memory_mhz"),
        power_w=extent(samples, "power_mw", 1e-3),
        temperature_c=extent(gpu.samples, "temperature_c"),
        temperature_memory_c=gpu.memory_c,
        temperature_margin_c=extent(gpu.samples, "temperature_margin_c"),
        power_limit_w=_watts(gpu.facts.get("power_limit_mw")),
        power_limit_default_w=_watts(gpu.facts.get("power_limit_default_mw")),
        ecc_mode=None if ecc_modes is None else bool(ecc_modes[0]),
        energy_j=energy,
        pcie_generation=link[0] if link else None,
        pcie_width=link[1] if link else None,
        reasons=reason_shares(gpu.samples, gpu.facts),
        limited_s=limited_s(gpu.first, gpu.last),
        new_errors=grown(gpu.first, gpu.last),
        other_processes=tuple(sorted(gpu.others)),
        history=history_of(samples, span, period_s),
    )
    refused = gpu.unavailable
    if any("power_mw" in sample.values for sample in gpu.samples):
        refused = {**refused, "power_mw": _AVERAGED}
    return replace(summary, unavailable=reasons_for(summary, refused))


def reasons_for(telemetry: GpuTelemetry, refused: Mapping[str, str]) -> dict[str, str]:
    """Return the driver's reasons for missing readings, by the document's names.

    Counters in a shared field get names like `new_errors.pcie_replays`. Of two counters for one
    reason either is enough.
    """
    fallback = refused.get("gpu", "it was not read before the run ended")
    empty = [item.name for item in fields(telemetry) if getattr(telemetry, item.name) is None]
    missing = {name: refused.get(_KEYS.get(name, name), fallback) for name in empty}
    for name, key in {"reasons": "reasons", "other_processes": "processes"}.items():
        if key in refused:
            missing[name] = refused[key]
    missing |= {f"new_errors.{key}": refused[key] for key in _ERRORS if key in refused}
    for reason in dict.fromkeys(_COUNTED.values()):
        keys = [f"limited-{name}" for name, means in _COUNTED.items() if means == reason]
        if all(key in refused for key in keys):
            missing[f"limited_s.{reason}"] = refused[keys[0]]
    return missing
