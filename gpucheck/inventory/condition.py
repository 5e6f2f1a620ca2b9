"""Condition of a GPU: what makes a card unfit for work, judged in one place.

`detect`'s checks report each condition by itself, `list` marks the unhealthy cards, and
`place` asks for the worst of them. The rules and their sources are those of
docs/reference/checks.md, under the name of each function. A condition judges one GPU and is None
(healthy) or Trouble.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from gpucheck.drivers.evidence import GpuHealthReading, HealthReading
from gpucheck.drivers.interface import Probes
from gpucheck.drivers.readings import GpuReading
from gpucheck.inventory.model import Gpu, GpuState, GpuTrouble, Inventory
from gpucheck.report.envelope import CheckStatus, Evidence

FAIL, WARN = CheckStatus.FAIL, CheckStatus.WARN

#: NVML's "GPU is lost" and "the GPU requires a reset".
GONE = frozenset({15, 16})
#: With so many replaced rows the memory is worn (DCGM diagnostics).
MANY_ROWS = 512
#: The driver can retire 64 pages in all (NVIDIA Dynamic Page Retirement).
MANY_PAGES = 63
#: This close to the card's slowdown temperature is near it (gpumedic).
NEAR_C = 5
#: Only where the card reports no limit (gpumedic).
FALLBACK_WARN_C = 83
FALLBACK_FAIL_C = 90

#: What the driver asks for: status, words, what to do. Source: nvml.h (nvmlGpuRecoveryAction).
ACTIONS: dict[int, tuple[CheckStatus, str, str]] = {
    1: (FAIL, "a reset", "Stop what runs on it, then: sudo nvidia-smi --gpu-reset"),
    2: (FAIL, "a reboot of the machine", "Reboot."),
    3: (WARN, "its peers to be drained", "Stop programs that use several GPUs."),
    4: (FAIL, "to be drained and reset",
        "Let programs end and start no new ones, then: sudo nvidia-smi --gpu-reset"),
    5: (WARN, "its IMEX domain to be recovered", "Restart nvidia-imex in the domain."),
    6: (FAIL, "a reset of its bus", "Reboot, or reset the slot."),
    7: (FAIL, "a reboot of the system", "Reboot."),
}  # fmt: skip

#: Bits of NVML's clocks event reasons (nvml.h, nvmlClocksEventReason*); several are set at once.
CLOCK_REASONS = {
    0x1: "idle",
    0x2: "application-clocks",
    0x4: "power-cap",
    0x8: "hardware-slowdown",
    0x10: "sync-boost",
    0x20: "software-thermal",
    0x40: "hardware-thermal",
    0x80: "power-brake",
    0x100: "display",
    0x200: "board-limit",
    0x400: "reliability",
}
_COOL = "Check the airflow and the fans, and remove dust."
#: Those worth a report, the gravest first: status, what it is, what to do. Idling, application
#: clocks, sync boost and the display's clocks are no throttling.
_THROTTLING: dict[str, tuple[CheckStatus, str, str]] = {
    "power-brake": (FAIL, "the power brake (an external signal: power supply or rack)",
                    "Check the power supply and its cables; in a rack, its power capping."),
    "hardware-thermal": (WARN, "heat (hardware: the clocks are halved or worse)", _COOL),
    "software-thermal": (WARN, "heat (software)", _COOL),
    "hardware-slowdown": (WARN, "a hardware slowdown (heat, power brake or supply)",
                          "Check temperature and power supply."),
    "power-cap": (CheckStatus.OK, "its power limit", ""),
}  # fmt: skip
#: Causes for which a card must not get work: it is lost, or the vendor must replace it.
_REFUSE_WORK = frozenset(
    {
        *("gpu-is-lost", "sram-threshold", "row-not-replaced", "rows-replaced", "pages-retired"),
        "memory-unrepairable",
    }
)


class Trouble(NamedTuple):
    """Problem of one GPU; with a `status` of OK it is only a note, without a cause.

    With one of UNJUDGED it is no problem, but why none can be told.
    Without a `remedy`, that of the cause in gpucheck/data/causes.toml helps.
    """

    status: CheckStatus
    summary: str
    evidence: tuple[Evidence, ...] = ()
    remedy: tuple[str, ...] = ()
    cause: str | None = None

    @property
    def refuses_work(self) -> bool:
        """Whether the card must not get work: it is lost, or the vendor must replace it."""
        return self.cause in _REFUSE_WORK


#: Statuses of a GPU that was not judged: it could not be read, or it has nothing to judge.
UNJUDGED = (CheckStatus.UNKNOWN, CheckStatus.SKIP)
#: NVML's ordinary reading of the GPU, raw or as `list` shows it.
Card = GpuReading | Gpu
Condition = Callable[[Card, GpuHealthReading], Trouble | None]


def unread(reading: Card | GpuHealthReading, *fields: str) -> Trouble | None:
    """Return why one of these fields is null, or None if all of them were read."""
    for name in fields:
        if getattr(reading, name) is None:
            reason = reading.unavailable.get(name, "the driver does not report it")
            return Trouble(CheckStatus.UNKNOWN, reason)
    return None


def _trouble(status: CheckStatus, cause: str, summary: str, source: str, value: object) -> Trouble:
    """Return a trouble that one reading shows."""
    return Trouble(status, summary, (Evidence(source, str(value)),), cause=cause)


# ---------------------------------------------------------------------------------- conditions


def lost(gpu: Card, health: GpuHealthReading) -> Trouble | None:
    """Detect a card that stopped answering while its health was read."""
    failure = health.failure
    if failure is None or failure.library_code not in GONE:
        return None
    source, value = failure.function or "NVML", f"NVML error {failure.library_code}"
    return _trouble(FAIL, "gpu-is-lost", failure.message, source, value)


def ecc_errors(gpu: Card, health: GpuHealthReading) -> Trouble | None:
    """Did the memory have errors that could not be corrected?

    Count the uncorrected errors since the driver was loaded.
    """
    errors = health.ecc_uncorrected_volatile
    if errors:
        summary = f"{errors} memory error{'s' * (errors != 1)} could not be corrected"
        source = "nvmlDeviceGetTotalEccErrors(uncorrected, volatile)"
        return _trouble(FAIL, "ecc-uncorrected", summary, source, errors)
    if health.ecc_sram_threshold_exceeded:
        summary = "its on-chip memory had more errors than NVIDIA tolerates"
        source = "nvmlDeviceGetSramEccErrorStatus"
        return _trouble(FAIL, "sram-threshold", summary, source, "threshold exceeded")
    pending = health.ecc_mode_pending
    if pending is not None and gpu.ecc_mode is not None and pending != gpu.ecc_mode:
        summary = f"ECC will be turned {'on' if pending else 'off'} at the next reset"
        modes = f"{gpu.ecc_mode}, pending {pending}"
        return _trouble(WARN, "ecc-change-pending", summary, "nvmlDeviceGetEccMode", modes)
    missing = unread(health, "ecc_uncorrected_volatile")
    if missing is not None:
        return missing
    if health.ecc_corrected_volatile:
        summary = f"corrected memory errors: {health.ecc_corrected_volatile}"
        return Trouble(CheckStatus.OK, summary)
    return None


def row_remapping(gpu: Card, health: GpuHealthReading) -> Trouble | None:
    """Could every bad row of memory be replaced?

    Look at failed, many, and pending rows.
    """
    missing = unread(health, "remapped_rows_failed", "remapped_rows_pending")
    if missing is not None:
        return missing
    rows = health.remapped_rows_uncorrected or 0
    source = "nvmlDeviceGetRemappedRows"
    if health.remapped_rows_failed:
        summary = "a bad row of memory could not be replaced"
        return _trouble(FAIL, "row-not-replaced", summary, source, "failed")
    if rows >= MANY_ROWS:
        summary = f"{rows} rows of memory had to be replaced"
        return _trouble(FAIL, "rows-replaced", summary, source, f"uncorrected {rows}")
    if health.remapped_rows_pending:
        summary = "a bad row of memory is replaced at the next reset"
        return _trouble(WARN, "row-pending", summary, source, "pending")
    return None


def retired_pages(gpu: Card, health: GpuHealthReading) -> Trouble | None:
    """Are there too many retired pages of memory (GPUs before Ampere)?

    Count the retired pages, whatever the cause.
    """
    missing = unread(health, "retired_pages_double_bit", "retired_pages_single_bit")
    if missing is not None:
        return missing
    pages = (health.retired_pages_double_bit or 0) + (health.retired_pages_single_bit or 0)
    source = "nvmlDeviceGetRetiredPages"
    if pages >= MANY_PAGES:
        summary = f"{pages} of at most 64 pages of memory are retired"
        return _trouble(FAIL, "pages-retired", summary, source, pages)
    if health.retired_pages_pending:
        summary = "a bad page of memory is retired at the next reset"
        return _trouble(WARN, "page-pending", summary, f"{source}PendingStatus", "pending")
    return None


def memory_repair(gpu: Card, health: GpuHealthReading) -> Trouble | None:
    """Does the driver report the memory as unrepairable, or a repair as pending?

    Report what the driver says about repairs.
    """
    if health.memory_unrepairable:
        summary = "the driver says that its memory cannot be repaired"
        source = "nvmlDeviceGetUnrepairableMemoryFlag_v1"
        return _trouble(FAIL, "memory-unrepairable", summary, source, 1)
    if health.repair_pending:
        summary = "the driver wants to repair it at the next reset"
        return _trouble(WARN, "repair-pending", summary, "nvmlDeviceGetRepairStatus", "pending")
    return unread(health, "memory_unrepairable")


def recovery_action(gpu: Card, health: GpuHealthReading) -> Trouble | None:
    """Does the driver ask for a reset or a reboot?

    Translate the driver's action.
    """
    missing = unread(health, "recovery_action")
    if missing is not None:
        return missing
    action = health.recovery_action or 0
    if action == 0:
        return None
    unknown = (WARN, f"the unknown action {action}", "Update gpucheck, or the driver.")
    status, wish, step = ACTIONS.get(action, unknown)
    evidence = (Evidence("recovery action", str(action)),)
    cause = f"recovery-action-{action}"
    return Trouble(status, f"the driver asks for {wish}", evidence, (step,), cause)


def temperature(gpu: Card, health: GpuHealthReading) -> Trouble | None:
    """Is any GPU, or its memory, near the card's own limit?

    Compare with the card's own limits.
    """
    if gpu.temperature_c is None:
        return unread(gpu, "temperature_c")
    now = gpu.temperature_c
    # Older recordings hold the 0 of a driver that knows no limit, here and below.
    slowdown = health.temperature_slowdown_c or None
    hot_memory = _hot_memory(health)
    margin = health.temperature_margin_c
    if slowdown is None and margin is not None:
        if margin > NEAR_C:
            return hot_memory
        status = FAIL if margin <= 0 else WARN
        summary = f"{now} °C, {max(0, margin)} °C below its slowdown temperature"
        return _hot(status, summary, now, now + margin)
    if slowdown is None:
        if now >= FALLBACK_WARN_C:
            status = FAIL if now >= FALLBACK_FAIL_C else WARN
            return _hot(status, f"{now} °C; the card reports no limit", now, None)
        return hot_memory
    if now >= slowdown:
        summary = f"{now} °C, and its slowdown temperature is {slowdown} °C"
        return _hot(FAIL, summary, now, slowdown)
    highest = health.temperature_gpu_max_c
    if now > slowdown - NEAR_C or (highest and now > highest):
        summary = f"{now} °C, near its slowdown temperature of {slowdown} °C"
        return _hot(WARN, summary, now, slowdown)
    return hot_memory


def _hot_memory(health: GpuHealthReading) -> Trouble | None:
    now, highest = health.temperature_memory_c, health.temperature_memory_max_c
    if now is None or not highest or now <= highest:
        return None
    summary = f"memory at {now} °C, and its limit is {highest} °C"
    return _hot(WARN, summary, now, highest, cause="memory-hot")


def _hot(
    status: CheckStatus, summary: str, now: int, limit: int | None, *, cause: str = "gpu-hot"
) -> Trouble:
    evidence = [Evidence("temperature", f"{now} C")]
    if limit is not None:
        evidence.append(Evidence("the card's limit", f"{limit} C"))
    return Trouble(status, summary, tuple(evidence), cause=cause)


def clock_throttling(gpu: Card, health: GpuHealthReading) -> Trouble | None:
    """Is anything slowing the clocks down right now?

    Test the bits: the mask may hold harmless ones beside them.
    """
    missing = unread(health, "clock_event_reasons")
    if missing is not None:
        return missing
    mask = health.clock_event_reasons or 0
    names = {name for bit, name in CLOCK_REASONS.items() if mask & bit}
    reasons = [row for name, row in _THROTTLING.items() if name in names]
    if not reasons:
        return None
    status = reasons[0][0]
    lowered = status is not CheckStatus.OK
    words = f"clocks are lowered by {' and '.join(words for _, words, _ in reasons)}"
    return Trouble(
        status,
        words if lowered else "runs at its power limit",
        (Evidence("nvmlDeviceGetCurrentClocksEventReasons", f"{mask:#x}"),),
        tuple(dict.fromkeys(step for _, _, step in reasons if step)),
        cause="clocks-lowered" if lowered else None,
    )


# ---------------------------------------------------------------------------------- the worst

#: By the id of the check that reports it, the gravest first.
CONDITIONS: dict[str, Condition] = {
    "lost": lost,
    "memory-repair": memory_repair,
    "row-remapping": row_remapping,
    "retired-pages": retired_pages,
    "ecc-errors": ecc_errors,
    "recovery-action": recovery_action,
    "temperature": temperature,
    "clock-throttling": clock_throttling,
}

#: Warnings of `detect` that slow a program down or spoil its results. The others only announce work
#: for the next reset.
_ALSO_UNFIT = frozenset({"gpu-hot", "memory-hot", "clocks-lowered"})


def unfit(gpu: Card, health: GpuHealthReading) -> Trouble | None:
    """Return the worst reason against giving this card work, or None.

    A card whose trouble refuses no work gets it as the last choice. What could not be read has no
    influence.
    """
    judged = (condition(gpu, health) for condition in CONDITIONS.values())
    grave = [
        trouble
        for trouble in judged
        if trouble is not None and (trouble.status is FAIL or trouble.cause in _ALSO_UNFIT)
    ]
    return min(grave, key=lambda t: (not t.refuses_work, t.status is not FAIL), default=None)


# ------------------------------------------------------------------------- the cards of a list


def pcie_width(gpu: Card, health: GpuHealthReading) -> Trouble | None:
    """Does every GPU use all the PCIe lanes that its slot offers?

    Compare the current number of PCIe lanes with what card and slot support.
    """
    if isinstance(gpu, Gpu):
        now, most = gpu.pcie.width, gpu.pcie.width_max
    else:
        now, most = gpu.pcie_width, gpu.pcie_width_max
    if now is None or most is None:
        name = "pcie_width" if now is None else "pcie_width_max"
        reasons = gpu.unavailable
        reason = reasons.get(name) or reasons.get(name.replace("_", ".", 1))
        return Trouble(CheckStatus.UNKNOWN, reason or "the driver does not report it")
    if now >= most:
        return None
    widths = (
        Evidence("nvmlDeviceGetCurrPcieLinkWidth", str(now)),
        Evidence("nvmlDeviceGetMaxPcieLinkWidth", str(most)),
    )
    return Trouble(WARN, f"PCIe x{now} of x{most}", widths, cause="pcie-narrow")


def mig_change(gpu: Card, health: GpuHealthReading) -> Trouble | None:
    """Report a change of the MIG mode that waits for a reset."""
    now = gpu.mig.enabled if isinstance(gpu, Gpu) else gpu.mig_enabled
    wanted = health.mig_mode_pending
    if wanted is None or now is None or wanted == now:
        return None
    summary = f"the next reset turns MIG {'on' if wanted else 'off'}"
    return Trouble(WARN, summary, cause="mig-change-pending")


def read_condition(inventory: Inventory, probes: Probes) -> Inventory:
    """Return the list with what is wrong with each card; those that answer are asked for it."""
    indices = [gpu.index for gpu in inventory.gpus if gpu.state is GpuState.OK]
    return with_troubles(inventory, probes.health(indices) if indices else HealthReading())


def with_troubles(inventory: Inventory, reading: HealthReading) -> Inventory:
    """Return the list with what is wrong with each card, or why its health is not known."""
    health = {gpu.index: gpu for gpu in reading.gpus}
    why = "the driver did not answer" if reading.failure is None else reading.failure.message

    def judged(gpu: Gpu) -> Gpu:
        if gpu.state is GpuState.OK and gpu.index not in health:
            return gpu._replace(unavailable={**gpu.unavailable, "troubles": why})
        return gpu._replace(troubles=troubles(gpu, health.get(gpu.index)))

    return inventory._replace(gpus=tuple(map(judged, inventory.gpus)))


def troubles(gpu: Gpu, health: GpuHealthReading | None) -> tuple[GpuTrouble, ...]:
    """Return the troubles of a card of a list, the gravest first; notes are left out.

    Without its health, the card is judged by its row alone.
    """
    if gpu.state is not GpuState.OK:
        error = gpu.error or "it cannot be read"
        return (GpuTrouble(FAIL, error, f"{gpu.state.value}: {error}"),)
    known = health or GpuHealthReading(index=gpu.index)
    conditions = (*CONDITIONS.values(), pcie_width, mig_change)
    judged = (condition(gpu, known) for condition in conditions)
    listed = (
        GpuTrouble(trouble.status, trouble.summary, trouble.cause)
        for trouble in judged
        if trouble is not None and trouble.status in (WARN, FAIL)
    )
    return tuple(sorted(listed, key=lambda trouble: trouble.status is not FAIL))


# -------------------------------------------------------------------------- unified memory


#: What always stays free for the system: bytes, and a share of the available memory. Memory that
#: the GPU shares with it (GB10, Jetson, integrated GPUs) must never be full: there memory pressure
#: causes no allocation error, but hangs the whole host until its power is cut
#: (NVIDIA/open-gpu-kernel-modules#1358).
RESERVED_BYTES, RESERVED_PART = 8 * 2**30, 5


def spare_bytes(available_bytes: int) -> int:
    """Return how much of the available memory (MemAvailable) may be taken."""
    return max(0, available_bytes - max(RESERVED_BYTES, available_bytes // RESERVED_PART))
