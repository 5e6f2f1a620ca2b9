"""Checks that judge each GPU by itself: a rule, and the row that makes a check of it.

Rules that `list` and `place` share stand in inventory/condition.py.
"""

from __future__ import annotations

from gpucheck.detect.findings import Judge, judge_gpus, make_trouble
from gpucheck.detect.machine import Machine
from gpucheck.detect.model import Finding, Layer
from gpucheck.drivers.evidence import GpuHealthReading
from gpucheck.drivers.readings import GpuReading
from gpucheck.inventory import condition
from gpucheck.inventory.condition import Trouble, unread
from gpucheck.report.envelope import CheckStatus, Evidence


class GpuCheck:
    """Check of every GPU that answers, by one rule, whose docstring is the question.

    `ok_summary` is that of healthy GPUs.
    """

    LAYER = Layer.HEALTH
    REQUIRES: tuple[str, ...] = ("nvml",)

    def __init__(self, name: str, ok_summary: str, judge: Judge) -> None:
        self.__doc__ = judge.__doc__
        self.ID = name
        self._ok_summary = ok_summary
        self._judge = judge

    def check(self, machine: Machine) -> list[Finding]:
        """Judge every GPU that answers."""
        return judge_gpus(machine, self.ID, self._ok_summary, self._judge)


# ---------------------------------------------------------------------------------- rules

#: Special cases of the cause power-supply. Source: nvml.h (NVML_POWER_SOURCE_*).
POWER_SOURCES = {1: "on-battery", 2: "undersized-supply"}
#: The driver rounds limits.
TOLERANCE_W = 1.0
#: Links slow down at idle; from this load on they should not.
BUSY_PERCENT = 50
#: Transfer rate of a lane in GT/s, by generation.
LANE_GT_PER_S = {1: 2.5, 2: 5.0, 3: 8.0, 4: 16.0, 5: 32.0, 6: 64.0}
#: Fewer replays in so short a time may be chance.
LEAST_REPLAYS = 2
#: From so many CRC errors a second on, a link does more than repeat some data.
MANY_CRC_PER_S = 100
#: Errors that cost a link its data or its connection.
GRAVE = ("replay", "recovery", "failed recovery")
#: Below it a card may stop its fans.
WARM_C = 75
#: Counters of lowered clocks that may grow without trouble.
HARMLESS = ("power cap",)


def judge_throttled_time(gpu: GpuReading, health: GpuHealthReading) -> Trouble | None:
    """Were the clocks lowered during the check?

    Compare the two readings of the counters.
    """
    missing = unread(health, "throttled_ns")
    if missing is not None:
        return missing
    grown = {name: ns for name, ns in (health.throttled_ns or {}).items() if ns > 0}
    bad = {name: ns for name, ns in grown.items() if name not in HARMLESS}
    if not bad:
        return None
    window_ms = (health.sample_s or 0) * 1000
    return make_trouble(
        "throttled-time",
        "time-throttled",
        *(
            Evidence(f"{name} counter", f"+{ns / 1e6:.1f} ms in {window_ms:.0f} ms")
            for name, ns in bad.items()
        ),
        counters=" and ".join(bad),
    )


def judge_fan(gpu: GpuReading, health: GpuHealthReading) -> Trouble | None:
    """Do the fans of hot GPUs turn?

    Judge only cards that have fans.
    """
    if health.fan_count == 0:
        return Trouble(CheckStatus.SKIP, "the card has no fan")
    missing = unread(gpu, "fan_percent", "temperature_c")
    if missing is not None:
        return missing
    if gpu.fan_percent or (gpu.temperature_c or 0) < WARM_C:
        return None
    stopped = Evidence("nvmlDeviceGetFanSpeed", "0 %")
    return make_trouble("fan", "fans-stand-still", stopped, temperature=gpu.temperature_c)


def judge_power_limit(gpu: GpuReading, health: GpuHealthReading) -> Trouble | None:
    """Is every GPU's power limit the default, and its power supply sufficient?

    Compare the enforced limit with the default.
    """
    supply = POWER_SOURCES.get(health.power_source or 0)
    if supply is not None:
        evidence = Evidence("nvmlDeviceGetPowerSource", str(health.power_source))
        return make_trouble("power-limit", supply, evidence)
    missing = unread(gpu, "power_limit_w") or unread(health, "power_limit_default_w")
    if missing is not None:
        return missing
    now, default = gpu.power_limit_w or 0.0, health.power_limit_default_w or 0.0
    if now >= default - TOLERANCE_W:
        return None
    return Trouble(
        CheckStatus.OK,
        f"its power limit is lowered to {now:.0f} W of {default:.0f} W",
        (Evidence("nvmlDeviceGetEnforcedPowerLimit", f"{now:.0f} W"),),
    )


def judge_pcie_generation(gpu: GpuReading, health: GpuHealthReading) -> Trouble | None:
    """Does every GPU under load use the PCIe generation that its slot supports?

    Judge the generation only under load.
    """
    now, most = gpu.pcie_generation, gpu.pcie_generation_max
    if now is None or most is None:
        return unread(gpu, "pcie_generation", "pcie_generation_max")
    evidence = Evidence("PCIe generation now, maximum", f"{now}, {most}")
    if now < most and (gpu.utilization_gpu_percent or 0) >= BUSY_PERCENT:
        return make_trouble("pcie-generation", "pcie-slow", evidence, now=now, most=most)
    card = health.pcie_generation_gpu_max
    if card is not None and card > most:
        summary = f"the slot supports PCIe generation {most}, the card {card}"
        return Trouble(CheckStatus.OK, summary, (evidence,))
    return None


def judge_pcie_replays(gpu: GpuReading, health: GpuHealthReading) -> Trouble | None:
    """Are PCIe transfers repeated?

    Compare the rate with DCGM's.
    """
    missing = unread(health, "pcie_replays_grown")
    if missing is not None:
        return missing
    grown, seconds = health.pcie_replays_grown or 0, health.sample_s or 0.1
    rate = grown * 60 / seconds
    lanes = (gpu.pcie_width or 16) * LANE_GT_PER_S.get(gpu.pcie_generation or 3, 8.0)
    limit = lanes * 60 / 1000
    if grown < LEAST_REPLAYS or rate <= limit:
        return None
    return make_trouble(
        "pcie-replays",
        "pcie-replays",
        Evidence("replays a minute", f"{rate:.0f}, limit {limit:.0f}"),
        Evidence("replays since the driver started", str(health.pcie_replays)),
        grown=grown,
        milliseconds=f"{seconds * 1000:.0f}",
    )


def judge_nvlink_errors(gpu: GpuReading, health: GpuHealthReading) -> Trouble | None:
    """Do the NVLinks have new errors?

    Compare the growth of each kind with DCGM's limits.
    """
    if not health.nvlinks_active:
        missing = unread(health, "nvlinks", "nvlinks_active")
        return missing or Trouble(CheckStatus.SKIP, "no link is up")
    missing = unread(health, "nvlink_errors_grown")
    if missing is not None:
        return missing
    grown = {kind: count for kind, count in (health.nvlink_errors_grown or {}).items() if count}
    if not grown:
        return None
    seconds = health.sample_s or 0.1
    grave = any(kind in grown for kind in GRAVE) or grown.get("CRC", 0) / seconds >= MANY_CRC_PER_S
    return make_trouble(
        "nvlink-errors",
        "nvlink-errors",
        *(
            Evidence(f"NVLink {kind} errors a second", f"{count / seconds:.0f}")
            for kind, count in grown.items()
        ),
        status=CheckStatus.FAIL if grave else CheckStatus.WARN,
        errors=", ".join(f"{count} {kind}" for kind, count in grown.items()),
        milliseconds=f"{seconds * 1000:.0f}",
    )


def judge_inforom(gpu: GpuReading, health: GpuHealthReading) -> Trouble | None:
    """Is the InfoROM intact, the card's record of its identity and history?

    Judge by the driver's own validation.
    """
    missing = unread(health, "inforom_valid")
    if missing is not None:
        return missing
    if health.inforom_valid:
        return None
    evidence = Evidence("nvmlDeviceValidateInforom", "NVML error 14")
    return make_trouble("inforom", "inforom-corrupted", evidence)


def judge_persistence_mode(gpu: GpuReading, health: GpuHealthReading) -> Trouble | None:
    """Is persistence mode on for every GPU without a display?

    Note where it is off; a desktop does not need it.
    """
    missing = unread(gpu, "persistence_mode")
    if missing is not None:
        return missing
    if gpu.persistence_mode or health.display_active:
        return None
    summary = "persistence mode is off: the first program waits while the GPU wakes"
    return Trouble(CheckStatus.OK, summary, (Evidence("nvmlDeviceGetPersistenceMode", "0"),))


# ---------------------------------------------------------------------------------- checks

#: Those of a card's memory, heat, power and PCIe link.
CARD = (
    GpuCheck("recovery-action", "the driver asks for no recovery", condition.recovery_action),
    GpuCheck("ecc-errors", "no uncorrected memory error", condition.ecc_errors),
    GpuCheck("row-remapping", "no memory row is waiting to be replaced", condition.row_remapping),
    GpuCheck("retired-pages", "no memory page is waiting to be retired", condition.retired_pages),
    GpuCheck("memory-repair", "no memory repair is pending", condition.memory_repair),
    GpuCheck("clock-throttling", "no clock is throttled", condition.clock_throttling),
    GpuCheck("throttled-time", "no time was lost to heat or the power brake", judge_throttled_time),
    GpuCheck("temperature", "temperatures are below the cards' limits", condition.temperature),
    GpuCheck("fan", "no hot GPU has stopped fans", judge_fan),
    GpuCheck("power-limit", "power limits are the defaults", judge_power_limit),
    GpuCheck("pcie-width", "PCIe links have their full width", condition.pcie_width),
    GpuCheck("pcie-generation", "PCIe generations are as expected", judge_pcie_generation),
    GpuCheck("pcie-replays", "no PCIe transfer was repeated during the check", judge_pcie_replays),
)
NVLINK_ERRORS = GpuCheck(
    "nvlink-errors", "no new NVLink error during the check", judge_nvlink_errors
)
INFOROM = GpuCheck("inforom", "the InfoROMs are valid", judge_inforom)
PERSISTENCE_MODE = GpuCheck("persistence-mode", "persistence mode is on", judge_persistence_mode)
