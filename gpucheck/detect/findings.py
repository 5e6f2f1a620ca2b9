"""Findings and the texts of their causes: of one check, of every GPU, of the kernel's module."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from gpucheck.data import read_table
from gpucheck.detect.cuda_versions import is_blackwell_or_newer, is_older_than_turing
from gpucheck.detect.machine import KERNEL_LOG, Machine
from gpucheck.detect.model import Cause, Finding, Layer
from gpucheck.detect.remedies import steps_for_gpu
from gpucheck.drivers.evidence import GpuHealthReading, KernelLogReading
from gpucheck.drivers.native import BINDING_TOO_OLD, NOT_SUPPORTED, gives_nvml_code
from gpucheck.drivers.readings import HUNG, GpuReading, PciDeviceReading
from gpucheck.inventory.condition import UNJUDGED, Trouble, lost
from gpucheck.report.envelope import CheckStatus, Evidence
from gpucheck.report.text import count_of

#: Why a GPU or driver does not have a value, as opposed to what was not read: NVML's codes (3: not
#: supported, 13: function not found, 26: deprecated), and our own words.
NOT_OFFERED_CODES = (3, 13, 26)
NOT_OFFERED = (NOT_SUPPORTED, BINDING_TOO_OLD)


Judge = Callable[[GpuReading, GpuHealthReading], Trouble | None]


def make_finding(
    check_id: str,
    layer: Layer,
    status: CheckStatus,
    summary: str,
    *evidence: Evidence,
    remedy: tuple[str, ...] = (),
    gpu: str | None = None,
    cause: str | None = None,
) -> Finding:
    """Return a finding of one check; `cause` and `remedy` if something is wrong."""
    return Finding(check_id, layer, status, summary, evidence, remedy, gpu, cause)


def make_trouble(
    check_id: str,
    cause: str,
    *evidence: Evidence,
    status: CheckStatus = CheckStatus.WARN,
    **values: object,
) -> Trouble:
    """Return a trouble with the sentence and the remedy that the table has for its cause.

    A rare error code of the driver has none: the kernel log says more of it. Texts of a special
    case name the cause that it is a case of.
    """
    texts = cause_texts(check_id, cause)
    steps = tuple(step.format(**values) for step in texts.get("remedy", (KERNEL_LOG,)))
    sentence = texts.get("sentence", "").format(**values)
    return Trouble(status, sentence, evidence, steps, texts.get("cause", cause))


def set_variables(machine: Machine, *names: str) -> tuple[Evidence, ...]:
    """Return those of these environment variables that are set, with their values."""
    known = machine.environment
    return tuple(Evidence(name, repr(known[name])) for name in names if name in known)


def _steps(check_id: str, trouble: Trouble) -> Sequence[str]:
    """Return the steps of a trouble: its own, else those of its cause."""
    known = trouble.remedy or trouble.cause is None
    return trouble.remedy if known else cause_texts(check_id, trouble.cause or "")["remedy"]


def cause_texts(check_id: str, cause: str) -> Mapping[str, Any]:
    """Return the table's texts of a cause: the check's own, or those of any check."""
    causes = read_table("causes")
    own: Mapping[str, Any] | None = causes.get(check_id, {}).get(cause)
    return own or causes["any"].get(cause, {})


def explain_cause(check_id: str, layer: Layer, cause: str) -> Cause:
    """Return a cause in words that hold on every machine: "…" stands for what a check fills in."""
    texts = cause_texts(check_id, cause)
    if not texts and layer is Layer.FRAMEWORK:
        texts = cause_texts("framework", cause)
    steps = (_without_values(step) for step in texts.get("remedy", ()))
    return Cause(cause, _without_values(texts.get("sentence", "")), tuple(filter(None, steps)))


def _without_values(text: str) -> str:
    """Return a text with "…" for its values, but none for a value that is a sentence."""
    return re.sub(r"\{\w+\}", "…", re.sub(r"(^|(?<=\.) )\{\w+\}$", "", text))


def report_cause(
    check_id: str,
    layer: Layer,
    cause: str,
    *evidence: Evidence,
    status: CheckStatus = CheckStatus.FAIL,
    summary: str | None = None,
    remedy: tuple[str, ...] | None = None,
    **values: object,
) -> Finding:
    """Return a finding of what is wrong: the table's texts, unless others are given."""
    trouble = make_trouble(check_id, cause, *evidence, status=status, **values)
    sentence = trouble.summary if summary is None else summary
    steps = trouble.remedy if remedy is None else remedy
    return Finding(check_id, layer, status, sentence, evidence, steps, cause=trouble.cause)


def explain_finding(finding: Finding, trouble: Trouble | None) -> Finding:
    """Return a finding that a trouble explains, with its remedy and cause."""
    if trouble is None:
        return finding
    return finding._replace(
        summary=f"{finding.summary}: {trouble.summary}",
        evidence=(*finding.evidence, *trouble.evidence),
        remedy=trouble.remedy,
        cause=trouble.cause,
    )


def judge_gpus(machine: Machine, check_id: str, ok_summary: str, judge: Judge) -> list[Finding]:
    """Judge every GPU that answers; `ok_summary` is that of healthy GPUs.

    Each GPU with trouble gets a finding of its own, so that a document of many healthy GPUs stays
    small.
    """
    whole = partial(make_finding, check_id, Layer.HEALTH)
    # Of a lost GPU only the trouble found before counts; gpu-lost reports the loss.
    judged = [
        (gpu, trouble)
        for gpu, health in machine.gpus
        if ((trouble := judge(gpu, health)) and trouble.status not in UNJUDGED)
        or not lost(gpu, health)
    ]
    troubles = [
        whole(
            trouble.status,
            f"GPU {gpu.index}: {trouble.summary}",
            *trouble.evidence,
            remedy=steps_for_gpu(gpu.index, _steps(check_id, trouble)),
            gpu=gpu.uuid,
            cause=trouble.cause,
        )
        for gpu, trouble in judged
        if trouble is not None and trouble.status not in UNJUDGED
    ]
    wrong = [finding for finding in troubles if finding.status is not CheckStatus.OK]
    if wrong:
        return wrong
    failure = machine.health.failure
    if failure is not None:
        # Nothing is known about the GPUs that were not reached, whatever the others answered.
        cause = HUNG if failure.code == HUNG else "not-read"
        return [whole(CheckStatus.UNKNOWN, f"not checked: {failure.message}", cause=cause)]
    gaps = [(gpu.index, gap) for gpu, gap in judged if gap and gap.status in UNJUDGED]
    unread = [
        (index, gap.summary)
        for index, gap in gaps
        if gap.status is CheckStatus.UNKNOWN
        and not gives_nvml_code(gap.summary, *NOT_OFFERED_CODES)
        and not any(part in gap.summary for part in NOT_OFFERED)
    ]
    if unread:
        names = ", ".join(str(index) for index, _ in unread)
        where = "" if len(unread) == len(judged) else f" on GPU {names}"
        summary = f"not checked{where}: {unread[0][1]}"
        return [whole(CheckStatus.UNKNOWN, summary, cause="not-read")]
    if troubles:
        return troubles
    if len(gaps) < len(judged):
        return [whole(CheckStatus.OK, f"{ok_summary} ({count_of(len(judged) - len(gaps))})")]
    summary = f"not available: {gaps[0][1].summary}" if gaps else "no GPU answers"
    return [whole(CheckStatus.SKIP, summary)]


# ---------------------------------------------------------------------- problems of a kernel module

#: Driver messages in the kernel log: a pattern, and the cause. A message has several lines, each of
#: which may come alone: a pattern is part of one of them.
#: Source: open-gpu-kernel-modules, messages of nv.c and osapi.c.
LOG_MESSAGES: tuple[tuple[str, str], ...] = (
    (r"not supported by open\b", "open-module-on-old-gpu"),
    ("requires use of the NVIDIA open kernel modules", "proprietary-module-on-new-gpu"),
    ("is not supported by the", "gpu-not-supported"),
    (r"supported through the NVIDIA [0-9]+\.xx Legacy drivers", "gpu-of-an-older-branch"),
    ("probe routine was not called", "taken-by-another-driver"),
    ("already bound to NovaCore", "taken-by-nova-core"),
    ("assigned to your NVIDIA device is invalid|BAR[0-9] is 0M", "no-memory-window"),
    ("has fallen off the bus", "fell-off-the-bus"),
    (r"gsp_\w+\.bin failed|No firmware image found", "gsp-firmware"),
    ("RmInitAdapter failed", "gpu-init-failed"),
)


def line_with(log: KernelLogReading, pattern: str) -> str | None:
    """Return the newest line of the kernel log in which a pattern is found."""
    return next((line for line in reversed(log.lines or ()) if re.search(pattern, line)), None)


def problem_in_log(machine: Machine) -> Trouble | None:
    """Return the problem that the log shows, the most specific one first."""
    log = machine.system.log
    for pattern, cause in LOG_MESSAGES:
        line = line_with(log, pattern)
        if line is not None:
            evidence = Evidence(log.source, line)
            return make_trouble("kernel-module", cause, evidence, status=CheckStatus.FAIL)
    return None


def wrong_flavour(machine: Machine, devices: Sequence[PciDeviceReading]) -> Trouble | None:
    """Return why the loaded flavour, open or proprietary, does not fit one of these GPUs."""
    flavour = machine.system.module.flavour
    if flavour == "open" and any(is_older_than_turing(device.device_id) for device in devices):
        summary = "the open kernel module is loaded, which supports no GPU older than Turing"
        cause = "open-module-on-old-gpu"
    elif flavour == "proprietary" and any(is_blackwell_or_newer(d.device_id) for d in devices):
        summary = "the proprietary kernel module is loaded, but Blackwell GPUs need the open one"
        cause = "proprietary-module-on-new-gpu"
    else:
        return None
    evidence = Evidence("/proc/driver/nvidia/version", flavour)
    trouble = make_trouble("kernel-module", cause, evidence, status=CheckStatus.FAIL)
    return trouble._replace(summary=summary)
