"""Checks of every GPU's condition; inventory/condition.py judges it, for `list` and `place` too."""

from __future__ import annotations

from gpucheck.detect.findings import over_gpus
from gpucheck.detect.machine import Machine
from gpucheck.detect.model import About, Finding, Layer
from gpucheck.inventory.condition import CONDITIONS


class ConditionCheck:
    """Check of one condition; `well` is the summary for healthy GPUs."""

    LAYER = Layer.HEALTH
    REQUIRES: tuple[str, ...] = ("nvml",)

    def __init__(self, name: str, question: str, well: str, about: About) -> None:
        self.__doc__ = question
        self.ID = name
        self.ABOUT = about
        self._well = well

    def check(self, machine: Machine) -> list[Finding]:
        """Judge every GPU that answers."""
        return over_gpus(machine, self.ID, self._well, CONDITIONS[self.ID])


RECOVERY_ACTION = ConditionCheck(
    "recovery-action",
    "Does the driver ask for a reset or a reboot?",
    "the driver asks for no recovery",
    About(
        looks_at=("nvmlDeviceGetFieldValues 230 (NVML_FI_DEV_GET_GPU_RECOVERY_ACTION)",),
        why="The driver itself names what makes the GPU work again.",
        rules=("fail: reset, reboot, drain and reset; warn: drain peers, recover the IMEX domain",),
        sources=(
            "nvml.h: nvmlDeviceGpuRecoveryAction_t",
            "DCGM diagnostics: 1, 2 and 4 fail, 3 warns",
        ),
        causes=("recovery-action-N",),
    ),
)

ECC_ERRORS = ConditionCheck(
    "ecc-errors",
    "Did the memory have errors that could not be corrected?",
    "no uncorrected memory error",
    About(
        looks_at=(
            "nvmlDeviceGetTotalEccErrors: uncorrected and corrected since the driver was loaded",
            "nvmlDeviceGetSramEccErrorStatus: threshold exceeded",
            "nvmlDeviceGetEccMode: current and pending",
        ),
        why="An uncorrected error is a wrong result or a killed program, and often the first of"
        " more.",
        rules=(
            "fail: any uncorrected volatile error, or the SRAM threshold is exceeded",
            "warn: the next reset turns ECC on or off; corrected errors are only noted",
        ),
        sources=(
            "DCGM diagnostics and Meta GCM fail from 1 uncorrected volatile error on",
            "NVIDIA GPU memory error management",
        ),
        causes=("ecc-uncorrected", "sram-threshold", "ecc-change-pending"),
    ),
)

ROW_REMAPPING = ConditionCheck(
    "row-remapping",
    "Could every bad row of memory be replaced?",
    "no memory row is waiting to be replaced",
    About(
        looks_at=("nvmlDeviceGetRemappedRows: uncorrected, pending, failed (Ampere and newer)",),
        why="Spare rows replace bad ones at the next reset; once none is left, the GPU is worn"
        " out.",
        rules=(
            "fail: a row could not be replaced, or 512 or more were",
            "warn: a replacement waits for a reset",
        ),
        sources=(
            "NVIDIA GPU memory error management: row remapping",
            "DCGM, gpud, Meta GCM and AzNHC fail on a failed remapping; DCGM on 512 rows",
        ),
        causes=("row-not-replaced", "rows-replaced", "row-pending"),
    ),
)

RETIRED_PAGES = ConditionCheck(
    "retired-pages",
    "Are there too many retired pages of memory (GPUs before Ampere)?",
    "no memory page is waiting to be retired",
    About(
        looks_at=("nvmlDeviceGetRetiredPages and nvmlDeviceGetRetiredPagesPendingStatus",),
        why="Before Ampere, bad pages are retired one by one, and only 64 can be.",
        rules=("fail: 63 or more; warn: some are retired only at the next reset",),
        sources=(
            "NVIDIA Dynamic Page Retirement",
            "DCGM diagnostics: fail from 63 on, warn on pending",
        ),
        causes=("pages-retired", "page-pending"),
    ),
)

MEMORY_REPAIR = ConditionCheck(
    "memory-repair",
    "Does the driver report the memory as unrepairable, or a repair as pending?",
    "no memory repair is pending",
    About(
        looks_at=(
            "nvmlDeviceGetUnrepairableMemoryFlag_v1 and nvmlDeviceGetRepairStatus (new drivers)",
        ),
        why="The driver itself reports that the GPU needs a repair, or is beyond repair.",
        rules=("fail: unrepairable; warn: a repair is pending",),
        sources=("NVML API Reference", "DCGM diagnostics fail on the flag"),
        causes=("memory-unrepairable", "repair-pending"),
    ),
)

CLOCK_THROTTLING = ConditionCheck(
    "clock-throttling",
    "Is anything slowing the clocks down right now?",
    "no clock is throttled",
    About(
        looks_at=("nvmlDeviceGetCurrentClocksEventReasons, bit by bit",),
        why="A throttled GPU computes correctly, at a fraction of its speed.",
        rules=(
            "fail: power brake (0x80); warn: hardware slowdown (0x8), software (0x20) or hardware"
            " (0x40) thermal slowdown; the power limit (0x4) is only noted",
        ),
        sources=(
            "NVML API Reference: nvmlClocksEventReasons",
            "DCGM diagnostics fail on 0x8, 0x20, 0x40 and 0x80",
        ),
        causes=("clocks-lowered",),
    ),
)

TEMPERATURE = ConditionCheck(
    "temperature",
    "Is any GPU, or its memory, near the card's own limit?",
    "temperatures are below the cards' limits",
    About(
        looks_at=(
            "nvmlDeviceGetTemperature",
            "nvmlDeviceGetMarginTemperature: the distance to slowdown, if the card names no limit",
            "nvmlDeviceGetTemperatureThreshold: slowdown, highest for the GPU, highest for its"
            " memory",
            "nvmlDeviceGetFieldValues 82: the memory's temperature",
        ),
        why="A GPU slows down at its slowdown temperature, and turns off at its shutdown"
        " temperature.",
        rules=(
            "fail: at the slowdown temperature or above",
            "warn: within 5 C of it, above the GPU's or the memory's highest operating temperature",
            "if the card names no limit: warn from 83 C, fail from 90 C",
        ),
        sources=(
            "the card's own limits, from NVML",
            "gpud: above GPU_MAX or MEM_MAX is degraded; gpumedic: 5 C below slowdown, else 83 and"
            " 90",
        ),
        causes=("gpu-hot", "memory-hot"),
    ),
)
