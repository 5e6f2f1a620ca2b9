"""Verdict over the findings: blame for a failure, the conclusion, and a line for each layer.

Observations outweigh signs, and consequences are not causes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache

from gpucheck.detect.checks import (
    CHECKS,
    cuda_driver,
    device_nodes,
    frameworks,
    gpu_lost,
    kernel_module,
    launch,
    nvml,
    pci_device,
    uvm_node,
    visibility,
    xid,
)
from gpucheck.detect.frameworks import named_by
from gpucheck.detect.machine import KERNEL_LOG, DetectRequest
from gpucheck.detect.model import UNREACHED, Detection, Finding, Layer, LayerSummary, Verdict
from gpucheck.drivers.evidence import BuildsReading
from gpucheck.drivers.readings import HUNG, ProbeFailure
from gpucheck.inventory.without_nvml import CONTROL_NODE
from gpucheck.report.envelope import CheckStatus, Evidence
from gpucheck.report.errors import ExitCode

#: Layers whose failure means that no program can use a GPU.
CHAIN = frozenset(
    {
        Layer.ENVIRONMENT, Layer.PCI, Layer.KERNEL, Layer.DEVICE_NODES, Layer.NVML,
        Layer.CUDA_DRIVER, Layer.VISIBILITY, Layer.LAUNCH,
    }
)  # fmt: skip
#: Layers that the driver itself may repair on its first call.
MADE_ON_DEMAND = frozenset({Layer.DEVICE_NODES})
#: Layers that are known only by signs, which a sandbox may hide.
KNOWN_BY_SIGNS = frozenset({Layer.PCI, Layer.KERNEL})
#: Error codes of NVML that only a running driver returns: power supply, interrupts, InfoROM, a lost
#: GPU, version, memory. The first set means that the driver was opened; 4 and 17 (no permission,
#: refused by the system) may come from the device files alone.
OPENED = frozenset({f"NVML error {code}" for code in (8, 11, 14, 15, 16, 18, 20, 27)})
RUNS = OPENED | {"NVML error 4", "NVML error 17"}
MISMATCH = frozenset({"CUDA 803", "CUDA 804"})
NOT_LOADED = "NVML error 9"
YET_A_DRIVER = "yet a driver is present"
GOOD = (CheckStatus.OK, CheckStatus.WARN)

SENTENCES = {
    Verdict.USABLE: "GPU usable",
    Verdict.DEGRADED: "GPU usable, with warnings",
    Verdict.UNUSABLE: "GPU not usable",
    Verdict.UNKNOWN: "Cannot tell whether a GPU is usable",
}
USABLE = {
    Verdict.USABLE: True,
    Verdict.DEGRADED: True,
    Verdict.UNUSABLE: False,
    Verdict.UNKNOWN: None,
}
BESIDE = frozenset(Layer) - CHAIN
#: Layers whose warnings are about the GPU rather than about a program that uses it.
BELOW = (CHAIN | {Layer.HEALTH}) - {Layer.VISIBILITY}
#: From worst to best: a layer has the worst status that was found in it.
WORST_FIRST = (CheckStatus.FAIL, CheckStatus.WARN, CheckStatus.UNKNOWN)


# ------------------------------------------------------------------------------ blame


def is_hung(finding: Finding) -> bool:
    """Return whether a library was called and did not answer."""
    return any(evidence.value == HUNG for evidence in finding.evidence)


def not_reached(cause: Finding) -> str:
    """Return the summary of a check that another finding kept from running, with that one's id.

    The problem is described there, and not repeated for every check above it.
    """
    if cause.summary.startswith(UNREACHED):
        return cause.summary
    if is_hung(cause):
        return f"{UNREACHED}{cause.id} got no answer"
    return (
        f"{UNREACHED}{cause.id} {'failed' if cause.status is CheckStatus.FAIL else 'was skipped'}"
    )


def is_unreached(finding: Finding) -> bool:
    """Return whether a finding was skipped because of another one."""
    return finding.status is CheckStatus.SKIP and finding.summary.startswith(UNREACHED)


def judge(
    findings: Sequence[Finding],
    *,
    has_control_node: bool = False,
    cupy_failure: ProbeFailure | None = None,
) -> tuple[Finding, ...]:
    """Blame the first broken layer; let observations outweigh signs.

    If a kernel runs, or CUDA starts and sees a GPU, a failure below it is a misread sign: a sandbox
    may mask the PCI bus. It becomes unknown. The same holds below NVML, if NVML answers or hangs.
    A check that went wrong above a failure that remains is its consequence: it becomes a skip.

    A bus that looks empty and a module that looks absent are signs, too. An error that only a
    running driver returns outweighs them, and so does its control node (`has_control_node`).
    `cupy_failure` is why CuPy could not run the kernel that libcuda ran.
    """
    # Only these are required by others, and each has one finding.
    chain = {finding.id: finding for finding in findings if finding.layer in CHAIN}
    names, observation = _observation(chain)
    for name in set(names) & set(chain):
        chain[name] = _outweighed(chain[name], observation)
    for name, observation in _signs_of_absence(chain, has_control_node):
        chain[name] = _outweighed(chain[name], observation)
    judged = [_consequence(chain.get(f.id, f), chain) for f in findings]
    proven = _proven_by_launch(judged, chain.get(launch.ID))
    if cupy_failure is not None:
        proven = [
            frameworks.judge_failed_launch(f, cupy_failure) if f.id == frameworks.CUPY.ID else f
            for f in proven
        ]
    return tuple(_hang_reported_once(_loss_reported_once(_without_uvm(proven))))


def _proven_by_launch(findings: Sequence[Finding], launched: Finding | None) -> list[Finding]:
    """Mark a framework that ran the kernel as ok, whatever its files look like."""
    through = launch.went_through(launched) if launched and launched.status in GOOD else None
    return [
        finding._replace(
            status=CheckStatus.OK,
            summary=f"{finding.summary}, yet a kernel runs through it",
            remedy=(),
            cause=None,
        )
        if finding.id == through and finding.status in (CheckStatus.WARN, CheckStatus.UNKNOWN)
        else finding
        for finding in findings
    ]


def _loss_reported_once(findings: Sequence[Finding]) -> list[Finding]:
    """Keep the remedy for a lost GPU in the finding that names it, not in each sign of it."""
    named = any(f.id == gpu_lost.ID and f.status is CheckStatus.FAIL for f in findings)
    causes = (pci_device.FELL_OFF, *gpu_lost.WORDS)
    return [
        finding._replace(remedy=(f"See {gpu_lost.ID}.",))
        if named and finding.layer in CHAIN and finding.cause in causes
        else finding
        for finding in findings
    ]


def _hang_reported_once(findings: Sequence[Finding]) -> Iterator[Finding]:
    """Warn once about a driver that stopped answering while the health was read."""
    first: Finding | None = None
    for finding in findings:
        if finding.layer is not Layer.HEALTH or finding.cause != HUNG:
            yield finding
        elif first is None:
            first = finding._replace(
                status=CheckStatus.WARN,
                evidence=(Evidence("NVML", HUNG),),
                remedy=(KERNEL_LOG, "Reboot when nothing runs on the GPUs."),
            )
            yield first
        else:
            yield finding._replace(status=CheckStatus.SKIP, summary=not_reached(first), cause=None)


def _observation(chain: Mapping[str, Finding]) -> tuple[tuple[str, ...], str]:
    """Return the signs that are outweighed, and the observation that outweighs them."""
    for observer, observation in (
        (launch.ID, "yet a kernel runs"),
        (cuda_driver.ID, "yet CUDA works"),
    ):
        finding = chain.get(observer)
        if finding is not None and finding.status in GOOD:
            return _below(observer), observation
    finding = chain.get(nvml.ID)
    if finding is not None and finding.status in GOOD:
        return nvml.REQUIRES, "yet NVML answers"
    if finding is not None and is_hung(finding):
        return nvml.REQUIRES, "yet a driver is present, and does not answer"
    return (), ""


def _signs_of_absence(
    chain: Mapping[str, Finding], has_control_node: bool
) -> Iterator[tuple[str, str]]:
    """Yield the signs of an absent driver that a refusing driver outweighs, and its words."""
    queried = [chain[name] for name in (nvml.ID, cuda_driver.ID) if name in chain]
    codes = {item.value for finding in queried for item in finding.evidence}
    code = next(iter(sorted(codes & (RUNS | MISMATCH))), None)
    bus, module, nodes = (
        chain.get(check_id) for check_id in (pci_device.ID, kernel_module.ID, device_nodes.ID)
    )
    node = f"yet {CONTROL_NODE} exists"
    if bus is not None and bus.cause == pci_device.NO_GPU and (code or has_control_node):
        yield bus.id, f"{YET_A_DRIVER} ({code})" if code else node
    if module is not None and module.cause in kernel_module.ABSENCES:
        # Outside containers, the files of an unloaded driver stay behind.
        stale = NOT_LOADED in codes or module.cause != kernel_module.OF_THE_HOST
        if code or (has_control_node and not stale):
            yield module.id, f"{YET_A_DRIVER} ({code})" if code else node
    if nodes is not None and nodes.cause in device_nodes.MISSING and codes & OPENED:
        yield nodes.id, YET_A_DRIVER


def _without_uvm(findings: Sequence[Finding]) -> list[Finding]:
    """Only warn of a missing nvidia-uvm where NVML, which does not need it, fails or hangs."""
    nvml_finding = next((finding for finding in findings if finding.id == nvml.ID), None)
    broken = nvml_finding is not None and (
        nvml_finding.status is CheckStatus.FAIL or is_hung(nvml_finding)
    )
    return [
        finding._replace(status=CheckStatus.WARN)
        if broken and finding.id == uvm_node.ID and finding.status is CheckStatus.FAIL
        else finding
        for finding in findings
    ]


def _outweighed(finding: Finding, observation: str) -> Finding:
    if finding.status is not CheckStatus.FAIL:
        return finding
    if finding.id == nvml.ID and finding.cause in gpu_lost.WORDS:
        return finding  # every GPU is lost, whatever a program saw before
    if finding.layer in MADE_ON_DEMAND:
        summary = f"{finding.summary} as far as could be seen at first, {observation}"
        return finding._replace(status=CheckStatus.OK, summary=summary, remedy=(), cause=None)
    if finding.layer in KNOWN_BY_SIGNS:
        # The remedy of a misread sign would mislead, and what works needs no warning.
        summary = f"{finding.summary} as far as can be seen here, {observation}"
        return finding._replace(status=CheckStatus.UNKNOWN, summary=summary, remedy=(), cause=None)
    # NVML matters by itself, even where CUDA works.
    summary = f"{finding.summary}, {observation}"
    return finding._replace(status=CheckStatus.WARN, summary=summary)


def _consequence(finding: Finding, chain: Mapping[str, Finding]) -> Finding:
    """Return the finding, or a skip if it went wrong above the first broken layer."""
    below = [chain[name] for name in _below(finding.id) if name in chain]
    cause = next((lower for lower in below if lower.status is CheckStatus.FAIL), None)
    wrong = finding.status in (CheckStatus.FAIL, CheckStatus.UNKNOWN) or is_unreached(finding)
    if cause is None or not wrong:
        return finding
    return finding._replace(
        status=CheckStatus.SKIP, summary=not_reached(cause), remedy=(), cause=None
    )


@cache
def _below(name: str) -> tuple[str, ...]:
    """Return the checks that a check requires, and those that they require, lowest first."""
    requires = {check.ID: check.REQUIRES for check in CHECKS}
    ids: set[str] = set()
    waiting = list(requires[name])
    while waiting:
        check_id = waiting.pop()
        if check_id not in ids:
            ids.add(check_id)
            waiting.extend(requires[check_id])
    return tuple(check.ID for check in CHECKS if check.ID in ids)


# ------------------------------------------------------------------------------ conclusion


def conclude(
    findings: tuple[Finding, ...], *, partial: bool = False, looked_at: BuildsReading | None = None
) -> Detection:
    """Turn the findings into the verdict, its sentence, and the remedies.

    `partial`: not all checks ran, so proof may be missing. `looked_at` is the Python whose
    frameworks were judged.
    """
    failed = _first(findings, CheckStatus.FAIL, CHAIN)
    beside = _first(findings, CheckStatus.FAIL, BESIDE)
    cause: Finding | None
    if failed is None:
        # Every GPU may be lost by now, whatever worked before.
        lost = next((finding for finding in findings if finding.id == gpu_lost.ID), None)
        none = lost is not None and (gpu_lost.remaining_gpus(lost) or "").startswith("0 ")
        failed = lost if none else None
    if failed is not None:
        verdict, cause = Verdict.UNUSABLE, failed
    elif _is_proven(findings):
        warned = _first(findings, CheckStatus.WARN, BELOW)
        verdict = Verdict.DEGRADED if warned or beside else Verdict.USABLE
        cause = beside or warned or _first(findings, CheckStatus.WARN, frozenset(Layer))
    else:
        # The last one is closest to proof: what it leaves open is what is missing.
        verdict = Verdict.UNKNOWN
        cause = beside or _first(findings[::-1], CheckStatus.UNKNOWN, CHAIN)
        if cause is None and partial:
            cause = _first(findings, CheckStatus.WARN, frozenset(Layer))
    first = failed or beside
    return Detection(
        usable=USABLE[verdict],
        verdict=verdict,
        conclusion=_sentence(verdict, cause, findings, partial=partial),
        remedy=cause.remedy if cause else (),
        first_failure=first.id if first else None,
        checks=findings,
        layers=tuple(
            _layer(layer, own, looked_at or BuildsReading())
            for layer in Layer
            if (own := [finding for finding in findings if finding.layer is layer])
        ),
        cause=cause.cause if cause else None,
        cause_check=cause.id if cause else None,
        interpreter=looked_at.python if looked_at else None,
        interpreter_named_by=looked_at.named_by if looked_at else None,
    )


def _is_proven(findings: Sequence[Finding]) -> bool:
    """Return whether a kernel ran or, if none was tried, CUDA sees a GPU."""
    by_id = {finding.id: finding for finding in findings}
    ran = by_id.get(launch.ID)
    if ran is not None and ran.status is not CheckStatus.SKIP:
        return ran.status in GOOD
    sees = by_id.get(cuda_driver.ID)
    return sees is not None and sees.status in GOOD


def _sentence(
    verdict: Verdict, cause: Finding | None, findings: Sequence[Finding], *, partial: bool
) -> str:
    if verdict is Verdict.UNKNOWN and partial and cause is None:
        if any(finding.status in GOOD for finding in findings):
            return "The selected checks passed; whether a GPU is usable was not checked"
        return "None of the selected checks could be made"
    if cause is None:
        shown = next((f for f in findings if f.id == visibility.ID), None)
        seen = visibility.seen_devices(shown) if shown and verdict is Verdict.USABLE else None
        unknown = verdict is Verdict.USABLE and is_health_unknown(findings)
        devices = f": {seen} devices (MIG)" if seen else ""
        return SENTENCES[verdict] + devices + "; its health is unknown" * unknown
    failed = cause.status is CheckStatus.FAIL
    left = gpu_lost.remaining_gpus(cause) if cause.id == gpu_lost.ID else None
    if verdict is Verdict.DEGRADED and left is not None:
        return f"{left} GPUs usable: {cause.summary}"
    if failed and verdict is Verdict.DEGRADED:
        return f"GPU usable, but {'unhealthy: ' * (cause.layer is Layer.HEALTH)}{cause.summary}"
    if verdict is Verdict.UNKNOWN and (failed or cause.status is CheckStatus.WARN):
        return cause.summary
    if verdict is Verdict.USABLE:
        return f"{SENTENCES[verdict]}; note: {cause.summary}"
    return f"{SENTENCES[verdict]}: {cause.summary}"


def is_health_unknown(findings: Sequence[Finding]) -> bool:
    """Return whether the health could not be read at all, the kernel log aside."""
    statuses = {f.status for f in findings if f.layer is Layer.HEALTH and f.id != xid.ID}
    return CheckStatus.UNKNOWN in statuses and CheckStatus.OK not in statuses


def _first(
    findings: Sequence[Finding], status: CheckStatus, layers: frozenset[Layer]
) -> Finding | None:
    return next((f for f in findings if f.status is status and f.layer in layers), None)


def limit_to_nvml(detection: Detection) -> Detection:
    """Return the detection of --quick, which proves nothing of what programs get."""
    nvml_finding = next((f for f in detection.checks if f.id == nvml.ID), None)
    cause = next((f for f in detection.checks if f.id == detection.cause_check), None)
    if cause is not None:
        summary = cause.summary
    elif nvml_finding is not None and nvml_finding.status in GOOD:
        summary = f"{nvml_finding.summary}; CUDA was not tried"
    else:
        summary = "NVML was not asked" if nvml_finding is None else nvml_finding.summary
    return detection._replace(
        usable=None, verdict=Verdict.UNKNOWN, conclusion=f"NVML only: {summary}"
    )


def exit_code_of(detection: Detection, request: DetectRequest) -> ExitCode:
    """Return 0 usable, 1 anything failed, 3 unknown; for selected checks, 0 if all passed.

    With --quick, 3 means that NVML did not answer.
    """
    framework = request.framework
    if detection.first_failure is not None:
        return ExitCode.BAD
    if request.quick and any(f.id == nvml.ID and f.status in GOOD for f in detection.checks):
        return ExitCode.OK
    requested = next((f for f in detection.checks if f.id == framework), None)
    if requested is not None and requested.status not in GOOD:
        return ExitCode.INCONCLUSIVE
    if detection.usable:
        return ExitCode.OK
    complete = len({finding.id for finding in detection.checks}) == len(CHECKS)
    open_ = _first(detection.checks, CheckStatus.UNKNOWN, CHAIN) is not None
    well = any(finding.status in GOOD for finding in detection.checks)
    return ExitCode.OK if well and not open_ and not complete else ExitCode.INCONCLUSIVE


def _layer(layer: Layer, own: Sequence[Finding], looked_at: BuildsReading) -> LayerSummary:
    """Return a layer's line, with the worst status in it."""
    if layer is Layer.HEALTH:
        return _health(own)
    for status in WORST_FIRST:
        alike = list(dict.fromkeys(f.summary for f in own if f.status is status))
        if alike:
            return LayerSummary(layer=layer, status=status, summary=_first_of(alike))
    skipped = [finding for finding in own if finding.status is CheckStatus.SKIP]
    unreached = next(filter(is_unreached, skipped), None)
    well = [finding.summary for finding in own if finding.status is CheckStatus.OK]
    if unreached is not None or not well:
        summary = (unreached or skipped[0]).summary
        if layer is Layer.FRAMEWORK:
            summary = _no_framework(looked_at)
        return LayerSummary(layer=layer, status=CheckStatus.SKIP, summary=summary)
    # The first check of a layer speaks for it; frameworks are all listed.
    summary = well[0]
    if layer is Layer.FRAMEWORK:
        where = ", ".join(filter(None, (looked_at.python, named_by(looked_at))))
        where = f" (in {where})" if where else ""
        summary = f"{'; '.join(well)}{where}"
    return LayerSummary(layer=layer, status=CheckStatus.OK, summary=summary)


def _no_framework(looked_at: BuildsReading) -> str:
    """Return where no framework was found, or why that Python gave no answer."""
    if looked_at.unavailable is not None:
        return f"not checked: {looked_at.unavailable}"
    where = looked_at.python or "this Python"
    by = named_by(looked_at)
    return f"none in {where} ({f'{by}; ' if by else ''}--python PATH selects another)"


def _first_of(summaries: Sequence[str]) -> str:
    more = len(summaries) - 1
    return f"{summaries[0]}; and {more} more" if more else summaries[0]


def _health(own: Sequence[Finding]) -> LayerSummary:
    """Return health's line: the worst finding, else the count of passed checks and the others.

    Few users may read the kernel log. An unreadable log alone does not make a GPU's health unknown,
    and an empty log alone does not make a GPU healthy.
    """
    for status in (CheckStatus.FAIL, CheckStatus.WARN):
        bad = [finding.summary for finding in own if finding.status is status]
        if bad:
            return LayerSummary(layer=Layer.HEALTH, status=status, summary=_first_of(bad))
    well = [finding for finding in own if finding.status is CheckStatus.OK]
    open_ = [finding for finding in own if finding.status is CheckStatus.UNKNOWN]
    if all(finding.id == xid.ID for finding in well):
        worst = open_ or [finding for finding in own if is_unreached(finding)] or list(own)
        return LayerSummary(layer=Layer.HEALTH, status=worst[0].status, summary=worst[0].summary)
    names = ", ".join(dict.fromkeys(finding.id for finding in open_))
    checks = "1 check" if len(well) == 1 else f"{len(well)} checks"
    summary = f"{checks} passed" + (f"; not checked: {names}" * bool(names))
    return LayerSummary(layer=Layer.HEALTH, status=CheckStatus.OK, summary=summary)
