"""Can a program use a GPU here, and if not, which layer is broken first?"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from gpucheck.core.checks import CHECKS, Check, cuda_driver, framework, launch, nvml, visibility
from gpucheck.core.checks.machine import Machine, Wish
from gpucheck.core.inventory import HUNG, complete_host
from gpucheck.models.errors import ExitCode, WrongUseError
from gpucheck.models.finding import (
    Catalogue,
    CheckDescription,
    CheckStatus,
    Detection,
    Finding,
    Framework,
    Layer,
    LayerSummary,
    Verdict,
)
from gpucheck.models.report import Answer, Notice
from gpucheck.probes.interface import Probes

SENTENCES = {
    Verdict.USABLE: "GPU usable",
    Verdict.DEGRADED: "GPU usable, with warnings",
    Verdict.UNUSABLE: "GPU not usable",
    Verdict.UNKNOWN: "It is not known whether a GPU is usable",
}

#: Layers whose failure means that no program can use a GPU.
CHAIN = frozenset(
    {
        Layer.ENVIRONMENT,
        Layer.PCI,
        Layer.KERNEL,
        Layer.DEVICE_NODES,
        Layer.NVML,
        Layer.CUDA_DRIVER,
        Layer.VISIBILITY,
        Layer.LAUNCH,
    }
)
BESIDE = frozenset(Layer) - CHAIN
#: Layers whose warnings are about the GPU rather than about a program that uses it.
BELOW = (CHAIN | {Layer.HEALTH}) - {Layer.VISIBILITY}
USABLE = {
    Verdict.USABLE: True,
    Verdict.DEGRADED: True,
    Verdict.UNUSABLE: False,
    Verdict.UNKNOWN: None,
}
#: Layers that the driver itself may mend when it is first asked.
MADE_ON_DEMAND = frozenset({Layer.DEVICE_NODES})
#: Checks that ask the driver again are not run after these have failed.
DOORS = frozenset({nvml.ID, cuda_driver.ID, visibility.ID})
ASKS_AGAIN = frozenset({Layer.VISIBILITY, Layer.LAUNCH, Layer.HEALTH})
#: From the worst to the best: a layer is as good as the worst that was found in it.
WORST_FIRST = (CheckStatus.FAIL, CheckStatus.WARN, CheckStatus.UNKNOWN)
UNREACHED = "not reached: "
GOOD = (CheckStatus.OK, CheckStatus.WARN)


class DetectRequest(NamedTuple):
    """What to look at, and what to find.

    `only` and `skip` are ids of checks or names of layers; `framework` has to be able to use a
    GPU; `deep` imports every framework and runs a kernel on every GPU; `python` is the interpreter
    whose frameworks matter (None: this one).
    """

    expect_gpus: int | None = None
    framework: str | None = None
    only: tuple[str, ...] = ()
    skip: tuple[str, ...] = ()
    deep: bool = False
    python: str | None = None


def _say_nothing(text: str) -> None:
    """Take the progress where nobody is watching."""


def detect(
    probes: Probes,
    request: DetectRequest | None = None,
    tell: Callable[[str], None] = _say_nothing,
) -> Answer:
    """Run the checks and judge: 0 usable, 1 unusable or unhealthy, 3 unknown.

    `tell` is told what is being waited for.

    Raises:
        WrongUseError: a check or a framework that is asked for does not exist.
    """
    wanted = request or DetectRequest()
    checks = choose_checks(wanted)
    machine = Machine(probes, _wish(wanted, checks), tell)
    findings = judge(run_checks(machine, checks))
    detection = conclude(findings, partial=len(checks) < len(CHECKS))
    return Answer(
        result=detection._replace(frameworks=_frameworks(machine, findings)),
        exit_code=_exit_code(detection, machine.wish.framework),
        host=complete_host(machine.host, machine.nvml) if _looked_at_nvml(checks) else machine.host,
        warnings=tuple(
            Notice(code=finding.id, message=f"{finding.id}: {finding.summary}.")
            for finding in findings
            if finding.status is CheckStatus.WARN
        ),
    )


def _wish(request: DetectRequest, checks: Sequence[Check]) -> Wish:
    name = normal_framework(request.framework)
    ids = {check.ID for check in checks}
    tried = framework.NAMES if request.deep else (name,) if name else ()
    return Wish(
        expect_gpus=request.expect_gpus,
        framework=name,
        tried=tuple(each for each in tried if each in ids),
        every_gpu=request.deep,
        python=request.python,
    )


def _looked_at_nvml(checks: Iterable[Check]) -> bool:
    return any(check.LAYER not in (Layer.ENVIRONMENT, Layer.PCI, Layer.KERNEL) for check in checks)


def _frameworks(machine: Machine, findings: Sequence[Finding]) -> tuple[Framework, ...]:
    found = {f.id: f for f in findings if f.layer is Layer.FRAMEWORK}
    return framework.describe(machine, found) if found else ()


# ------------------------------------------------------------------------------ which checks


def normal_framework(name: str | None) -> str | None:
    """Return the framework's own name for one that people call it by.

    Raises:
        WrongUseError: it is none that is known.
    """
    if name is None:
        return None
    lower = name.lower()
    known = framework.ALIASES.get(lower, lower)
    if known not in framework.NAMES:
        names = ", ".join(framework.NAMES)
        message = f"There is no check of a framework {name!r}; known are {names}."
        raise WrongUseError(code="unknown-framework", message=message)
    return known


def choose_checks(request: DetectRequest) -> tuple[Check, ...]:
    """Return the checks to run, in their order.

    Raises:
        WrongUseError: an id is neither a check nor a layer, or nothing is left to run.
    """
    only, skip = _known(request.only), _known(request.skip)
    name = normal_framework(request.framework)
    chosen = tuple(
        check
        for check in CHECKS
        if (not only or check.ID in {*only, name}) and check.ID not in skip
    )
    if not chosen:
        message = "--only and --skip together leave no check to run."
        raise WrongUseError(code="no-checks", message=message)
    return chosen


def _known(words: Iterable[str]) -> frozenset[str]:
    found: set[str] = set()
    for word in words:
        # Some layers have the name of their first check: that one is meant.
        matching = {check.ID for check in CHECKS if word == check.ID}
        matching = matching or {check.ID for check in CHECKS if word == check.LAYER.value}
        if not matching:
            message = f"There is no check {word!r}."
            remedy = ("See which there are: gpucheck detect --list-checks",)
            raise WrongUseError(code="unknown-check", message=message, remedy=remedy)
        found |= matching
    return frozenset(found)


def describe_checks(name: str | None = None) -> Answer:
    """Describe every check, or one and all that is known of it.

    Raises:
        WrongUseError: there is no such check.
    """
    wanted = _known([name]) if name is not None else {check.ID for check in CHECKS}
    catalogue = tuple(
        CheckDescription(
            id=check.ID,
            layer=check.LAYER,
            question=(check.__doc__ or "").partition("\n")[0],
            requires=check.REQUIRES,
            about=check.ABOUT,
        )
        for check in CHECKS
        if check.ID in wanted
    )
    return Answer(result=Catalogue(catalogue=catalogue, explained=name is not None))


# ------------------------------------------------------------------------------ running


def run_checks(machine: Machine, checks: Sequence[Check]) -> list[Finding]:
    """Run the checks in order; one whose driver call would fail or hang again is skipped."""
    findings: list[Finding] = []
    for check in checks:
        cause = _in_the_way(check, findings)
        if cause is not None:
            findings.append(_unreached(check, cause))
            continue
        found = check.check(machine)
        findings.extend(found if isinstance(found, list) else [found])
    return findings


def _in_the_way(check: Check, findings: Sequence[Finding]) -> Finding | None:
    for finding in findings:
        if finding.id not in check.REQUIRES:
            continue
        if _is_hung(finding):
            return finding
        broken = finding.status in (CheckStatus.FAIL, CheckStatus.SKIP)
        if broken and finding.id in DOORS and check.LAYER in ASKS_AGAIN:
            return finding
    return None


def _is_hung(finding: Finding) -> bool:
    return any(evidence.value == HUNG for evidence in finding.evidence)


def _unreached(check: Check, cause: Finding) -> Finding:
    return Finding(
        id=check.ID,
        layer=check.LAYER,
        status=CheckStatus.SKIP,
        summary=_not_reached(cause),
    )


def _not_reached(cause: Finding) -> str:
    return f"{UNREACHED}{cause.summary}"


def _is_unreached(finding: Finding) -> bool:
    return finding.status is CheckStatus.SKIP and finding.summary.startswith(UNREACHED)


# ------------------------------------------------------------------------------ judging


def judge(findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """Give the blame to the first broken layer; let what was observed outweigh the signs.

    If a kernel runs, or CUDA starts and sees a GPU, a failure below it is a sign that was misread
    (in a sandbox the PCI bus may be masked): it becomes a warning. The same holds below NVML, if
    that answers or hangs. What requires a failure that remains and went wrong as well is its
    consequence: it becomes a skip.
    """
    # Only these are required by others, and of each of them there is one.
    chain = {finding.id: finding for finding in findings if finding.layer in CHAIN}
    names, said = _observation(chain)
    for name in set(names) & set(chain):
        chain[name] = _outweighed(chain[name], said)
    return tuple(_consequence(chain.get(f.id, f), chain) for f in findings)


def _observation(chain: Mapping[str, Finding]) -> tuple[tuple[str, ...], str]:
    """Return which signs are outweighed, and by what that was seen."""
    for witness, said in ((launch.ID, "yet a kernel runs"), (cuda_driver.ID, "yet CUDA works")):
        found = chain.get(witness)
        if found is not None and found.status in GOOD:
            return tuple(_below(witness)), said
    found = chain.get(nvml.ID)
    if found is not None and found.status in GOOD:
        return nvml.REQUIRES, "yet NVML answers"
    if found is not None and _is_hung(found):
        return nvml.REQUIRES, "yet there is a driver, which does not answer"
    return (), ""


def _outweighed(finding: Finding, observation: str) -> Finding:
    if finding.status is not CheckStatus.FAIL:
        return finding
    summary = f"{finding.summary}, {observation}"
    if finding.layer in MADE_ON_DEMAND:
        return finding._replace(status=CheckStatus.OK, summary=summary, remedy=())
    # NVML is wanted for its own sake; what a misread sign advises would mislead.
    misread = finding.layer in (Layer.PCI, Layer.KERNEL)
    return finding._replace(
        status=CheckStatus.WARN, summary=summary, remedy=() if misread else finding.remedy
    )


def _consequence(finding: Finding, chain: Mapping[str, Finding]) -> Finding:
    """Return the finding, or a skip where it went wrong above the first broken layer."""
    cause = next((chain[name] for name in _below(finding.id) if _has_failed(chain, name)), None)
    wrong = finding.status in (CheckStatus.FAIL, CheckStatus.UNKNOWN) or _is_unreached(finding)
    if cause is None or not wrong:
        return finding
    return finding._replace(status=CheckStatus.SKIP, summary=_not_reached(cause), remedy=())


def _has_failed(chain: Mapping[str, Finding], name: str) -> bool:
    return name in chain and chain[name].status is CheckStatus.FAIL


def _below(name: str) -> list[str]:
    """Return what a check requires, and what that requires, the lowest first."""
    requires = {check.ID: check.REQUIRES for check in CHECKS}
    found: set[str] = set()
    waiting = list(requires[name])
    while waiting:
        each = waiting.pop()
        if each not in found:
            found.add(each)
            waiting.extend(requires[each])
    return [check.ID for check in CHECKS if check.ID in found]


# ------------------------------------------------------------------------------ concluding


def conclude(findings: tuple[Finding, ...], *, partial: bool = False) -> Detection:
    """Turn the findings into the verdict, the sentence that says it, and the steps to try.

    `partial`: not all checks were run, so that there may be no proof.
    """
    failed = _first(findings, CheckStatus.FAIL, CHAIN)
    beside = _first(findings, CheckStatus.FAIL, BESIDE)
    cause: Finding | None
    if failed is not None:
        verdict, cause = Verdict.UNUSABLE, failed
    elif _is_proven(findings):
        warned = _first(findings, CheckStatus.WARN, BELOW)
        verdict = Verdict.DEGRADED if warned or beside else Verdict.USABLE
        cause = beside or warned or _first(findings, CheckStatus.WARN, frozenset(Layer))
    else:
        # The last one is closest to the proof: what it leaves open is what is missing.
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
        layers=tuple(_layers(findings)),
    )


def _is_proven(findings: Sequence[Finding]) -> bool:
    """Return whether a kernel ran, or where that was not tried, CUDA sees a GPU."""
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
            return "What was asked for is well; whether a GPU is usable was not asked"
        return "Nothing of what was asked for could be looked at"
    if cause is None:
        return SENTENCES[verdict]
    failed = cause.status is CheckStatus.FAIL
    if failed and verdict is Verdict.DEGRADED:
        return f"GPU usable, but {'not well: ' * (cause.layer is Layer.HEALTH)}{cause.summary}"
    if verdict is Verdict.UNKNOWN and (failed or cause.status is CheckStatus.WARN):
        return cause.summary
    return f"{SENTENCES[verdict]}: {cause.summary}"


def _first(
    findings: Sequence[Finding], status: CheckStatus, layers: frozenset[Layer]
) -> Finding | None:
    return next((f for f in findings if f.status is status and f.layer in layers), None)


def _exit_code(detection: Detection, framework_asked: str | None) -> ExitCode:
    """0 usable, 1 anything failed, 3 unknown; of chosen checks, 0 if they are all well."""
    if detection.first_failure is not None:
        return ExitCode.BAD
    asked = next((f for f in detection.checks if f.id == framework_asked), None)
    if asked is not None and asked.status not in GOOD:
        return ExitCode.INCONCLUSIVE
    if detection.usable:
        return ExitCode.OK
    complete = len({finding.id for finding in detection.checks}) == len(CHECKS)
    open_ = _first(detection.checks, CheckStatus.UNKNOWN, CHAIN) is not None
    well = any(finding.status in GOOD for finding in detection.checks)
    return ExitCode.OK if well and not open_ and not complete else ExitCode.INCONCLUSIVE


def _layers(findings: Sequence[Finding]) -> Iterable[LayerSummary]:
    """Return each layer that was looked at, as good as the worst that was found in it."""
    for layer in Layer:
        own = [finding for finding in findings if finding.layer is layer]
        if own:
            yield _layer(layer, own)


def _layer(layer: Layer, own: Sequence[Finding]) -> LayerSummary:
    if layer is Layer.HEALTH:
        return _health(own)
    for status in WORST_FIRST:
        alike = [finding.summary for finding in own if finding.status is status]
        if alike:
            return LayerSummary(layer=layer, status=status, summary=_first_of(alike))
    skipped = [finding for finding in own if finding.status is CheckStatus.SKIP]
    unreached = next(filter(_is_unreached, skipped), None)
    well = [finding.summary for finding in own if finding.status is CheckStatus.OK]
    if unreached is not None or not well:
        summary = (unreached or skipped[0]).summary
        if layer is Layer.FRAMEWORK:
            summary = "none of the known frameworks is installed"
        return LayerSummary(layer=layer, status=CheckStatus.SKIP, summary=summary)
    # The first check of a layer is the one that names it; of frameworks each is as good.
    summary = "; ".join(well) if layer is Layer.FRAMEWORK else well[0]
    return LayerSummary(layer=layer, status=CheckStatus.OK, summary=summary)


def _first_of(summaries: Sequence[str]) -> str:
    more = len(summaries) - 1
    return f"{summaries[0]}; and {more} more" if more else summaries[0]


def _health(own: Sequence[Finding]) -> LayerSummary:
    """Return the worst that was found; what was not checked is named beside what is well.

    The kernel log may hardly anywhere be read: that alone makes no GPU's health unknown.
    """
    for status in (CheckStatus.FAIL, CheckStatus.WARN):
        bad = [finding.summary for finding in own if finding.status is status]
        if bad:
            return LayerSummary(layer=Layer.HEALTH, status=status, summary=_first_of(bad))
    well = [finding for finding in own if finding.status is CheckStatus.OK]
    open_ = [finding for finding in own if finding.status is CheckStatus.UNKNOWN]
    if not well:
        worst = open_ or [finding for finding in own if _is_unreached(finding)] or list(own)
        return LayerSummary(layer=Layer.HEALTH, status=worst[0].status, summary=worst[0].summary)
    names = ", ".join(dict.fromkeys(finding.id for finding in open_))
    summary = f"{len(well)} checks find nothing wrong" + (f"; not checked: {names}" * bool(names))
    return LayerSummary(layer=Layer.HEALTH, status=CheckStatus.OK, summary=summary)
