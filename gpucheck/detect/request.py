"""Options of detect: which checks to run, for which framework, and the list of checks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from gpucheck.detect.checks import CHECKS, Check, framework
from gpucheck.detect.model import Catalogue, CheckDescription, Layer
from gpucheck.report.envelope import Answer
from gpucheck.report.errors import WrongUseError

#: The most names to suggest for one that does not exist.
MOST_OFFERED = 3
#: The least similarity of a suggested name, from 0 to 1.
ALIKE = 0.5


class DetectRequest(NamedTuple):
    """Options of one run of detect.

    `only` and `skip` are ids of checks or names of layers; `framework` must be able to use a GPU;
    `deep` imports every framework and runs a kernel on every GPU; `python` is the interpreter whose
    frameworks are checked (None: the active one).
    """

    expect_gpus: int | None = None
    framework: str | None = None
    only: tuple[str, ...] = ()
    skip: tuple[str, ...] = ()
    deep: bool = False
    python: str | None = None


def normal_framework(name: str | None) -> str | None:
    """Return the canonical name of a framework for any name in use.

    Raises:
        WrongUseError: the framework is unknown.
    """
    if name is None:
        return None
    lower = name.lower()
    known = framework.ALIASES.get(lower, lower)
    if known not in framework.NAMES:
        raise WrongUseError(
            code="unknown-framework",
            message=f"There is no check for the framework {name!r}.",
            remedy=(
                *_near(name, framework.NAMES),
                f"Known frameworks: {', '.join(framework.NAMES)}.",
            ),
        )
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
        # Some layers share the name of their first check: the check is meant.
        matching = {check.ID for check in CHECKS if word == check.ID}
        matching = matching or {check.ID for check in CHECKS if word == check.LAYER.value}
        if not matching:
            names = list(dict.fromkeys([*(check.ID for check in CHECKS), *Layer]))
            raise WrongUseError(
                code="unknown-check",
                message=f"There is no check {word!r}.",
                remedy=(
                    *_near(word, names),
                    "List the checks: gpucheck detect --list-checks",
                ),
            )
        found |= matching
    return frozenset(found)


def _near(word: str, names: Sequence[str]) -> tuple[str, ...]:
    """Return a suggestion of similar names, as a sentence; empty if no name is similar."""
    import difflib

    lower = word.lower().replace("_", "-")
    near = [name for name in names if lower and lower in name]
    near = near or difflib.get_close_matches(lower, names, MOST_OFFERED, ALIKE)
    return (f"Did you mean {' or '.join(near[:MOST_OFFERED])}?",) if near else ()


def describe_checks(name: str | None = None) -> Answer:
    """Describe every check in a line, or one in full.

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
