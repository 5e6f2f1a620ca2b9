"""Which GPUs do the visibility variables leave to a program, entry by entry?"""

from __future__ import annotations

from functools import partial

from gpucheck.detect.checks.cuda_driver import UNDECIDED
from gpucheck.detect.findings import make_finding, make_trouble, report_cause, set_variables
from gpucheck.detect.machine import VISIBLE, Machine
from gpucheck.detect.model import UNREACHED, Finding, Layer
from gpucheck.inventory.advice import hides_on_purpose
from gpucheck.inventory.model import EntryStatus, Visibility
from gpucheck.report.envelope import CheckStatus, Evidence
from gpucheck.report.text import count_of

ID = "visibility"
LAYER = Layer.VISIBILITY
REQUIRES: tuple[str, ...] = ("cuda-driver",)

_finding = partial(make_finding, ID, LAYER)
_report = partial(report_cause, ID, LAYER)

ORDER = "CUDA_DEVICE_ORDER"
#: Where the evidence says how many of the devices of a split GPU's machine programs see.
SEEN = "devices that programs see"
#: Values whose meaning is hard to guess.
SPECIAL_VALUES = {
    "NoDevFiles": "Slurm sets this for a job without GPUs",
    '""': "these are two quotation marks, which name no GPU; an empty value has none",
}


def check(machine: Machine) -> Finding:
    """Explain the variable's entries by what CUDA sees."""
    text = machine.environment.get(VISIBLE)
    seen = machine.cuda.device_count or 0
    failure = machine.cuda.failure
    if failure is not None and failure.code in UNDECIDED and machine.visibility.visible != ():
        return _finding(CheckStatus.SKIP, f"{UNREACHED}CUDA's answer is not known")
    order = set_variables(machine, ORDER)
    if text is None:
        summary = f"{VISIBLE} is not set: programs see {_of(machine, seen)}"
        return _finding(CheckStatus.OK, summary, *order, *_seen_of_split(machine, seen))
    visibility = machine.visibility
    value = Evidence(VISIBLE, repr(text))
    entries = (
        Evidence(f"{VISIBLE} entry {entry.text!r}", f"{entry.status}: {entry.reason}")
        for entry in visibility.entries
    )
    evidence = (value, *entries, *order)
    if not seen:
        return _report(
            "hidden-by-variable",
            *evidence,
            remedy=_show_one(machine, visibility, text),
            value=repr(text),
            why=_why(text, visibility),
        )
    dropped = [entry for entry in visibility.entries if entry.status is EntryStatus.DROPPED]
    if dropped:
        return _report(
            "entries-dropped",
            *evidence,
            status=CheckStatus.WARN,
            value=repr(text),
            dropped=len(dropped),
            gpus=_of(machine, seen),
            entry=repr(dropped[0].text),
        )
    summary = f"{VISIBLE}={text!r}: programs see {_of(machine, seen)}"
    return _finding(CheckStatus.OK, summary, *evidence, *_seen_of_split(machine, seen))


def seen_devices(finding: Finding) -> str | None:
    """Return how many devices programs see where MIG keeps others from them: "1 of 4"."""
    return next((evidence.value for evidence in finding.evidence if evidence.source == SEEN), None)


def _seen_of_split(machine: Machine, seen: int) -> tuple[Evidence, ...]:
    """Return how many of the instances and whole GPUs programs see, if MIG leaves them fewer."""
    devices = _devices_of_split(machine)
    return (Evidence(SEEN, f"{seen} of {devices}"),) if seen < devices else ()


def _devices_of_split(machine: Machine) -> int:
    """Return how many instances and whole GPUs there are; 0 where no GPU is split."""
    gpus = machine.nvml.gpus
    if not any(gpu.mig_instances for gpu in gpus):
        return 0
    return sum(len(gpu.mig_instances) if gpu.mig_enabled else 1 for gpu in gpus)


def _of(machine: Machine, seen: int) -> str:
    devices = _devices_of_split(machine)
    if devices:
        some = f"{seen} of " if seen < devices else ""
        return f"{some}{count_of(max(seen, devices), 'device')} (each MIG instance is one)"
    total = machine.nvml.gpu_count
    return count_of(seen) if total in (None, 0, seen) else f"{seen} of {count_of(total or 0)}"


def _show_one(machine: Machine, visibility: Visibility, text: str) -> tuple[str, ...]:
    unset = f"Unset it (unset {VISIBLE}), or name a GPU that exists: gpucheck list"
    if text == "NoDevFiles" or "SLURM_JOB_ID" in machine.environment:
        return (*make_trouble(ID, "slurm-without-gpus").remedy, unset)
    if hides_on_purpose(visibility):
        return (f"To use a GPU after all: unset {VISIBLE}",)
    if any(entry.reason.startswith("no MIG instance") for entry in visibility.entries):
        return (unset, "Recreated MIG instances have new UUIDs.")
    if not text:
        return (unset, "A scheduler that set it gave this job no GPU: request one.")
    return (unset,)


def _why(text: str, visibility: Visibility) -> str:
    if text == "":
        return "an empty value means none"
    if text in SPECIAL_VALUES:
        return SPECIAL_VALUES[text]
    if hides_on_purpose(visibility):
        return "this value is used to hide every GPU"
    dropped = [entry for entry in visibility.entries if entry.status is EntryStatus.DROPPED]
    if dropped:
        return f"{dropped[0].text!r}: {dropped[0].reason}"
    return "no entry names a GPU that CUDA sees"
