"""Checks of every GPU's condition; inventory/condition.py judges it, for `list` and `place` too."""

from __future__ import annotations

from gpucheck.detect.findings import over_gpus
from gpucheck.detect.machine import Machine
from gpucheck.detect.model import Finding, Layer
from gpucheck.inventory.condition import CONDITIONS


class ConditionCheck:
    """Check of one condition; `well` is the summary for healthy GPUs."""

    LAYER = Layer.HEALTH
    REQUIRES: tuple[str, ...] = ("nvml",)

    def __init__(self, name: str, question: str, well: str) -> None:
        self.__doc__ = question
        self.ID = name
        self._well = well

    def check(self, machine: Machine) -> list[Finding]:
        """Judge every GPU that answers."""
        return over_gpus(machine, self.ID, self._well, CONDITIONS[self.ID])


RECOVERY_ACTION = ConditionCheck(
    "recovery-action",
    "Does the driver ask for a reset or a reboot?",
    "the driver asks for no recovery",
)

ECC_ERRORS = ConditionCheck(
    "ecc-errors",
    "Did the memory have errors that could not be corrected?",
    "no uncorrected memory error",
)

ROW_REMAPPING = ConditionCheck(
    "row-remapping",
    "Could every bad row of memory be replaced?",
    "no memory row is waiting to be replaced",
)

RETIRED_PAGES = ConditionCheck(
    "retired-pages",
    "Are there too many retired pages of memory (GPUs before Ampere)?",
    "no memory page is waiting to be retired",
)

MEMORY_REPAIR = ConditionCheck(
    "memory-repair",
    "Does the driver report the memory as unrepairable, or a repair as pending?",
    "no memory repair is pending",
)

CLOCK_THROTTLING = ConditionCheck(
    "clock-throttling",
    "Is anything slowing the clocks down right now?",
    "no clock is throttled",
)

TEMPERATURE = ConditionCheck(
    "temperature",
    "Is any GPU, or its memory, near the card's own limit?",
    "temperatures are below the cards' limits",
)
