"""`gpucheck detect --wheel`: which build of a framework runs on these GPUs with this driver."""

from __future__ import annotations

from gpucheck.cli.output import Shared, deliver, machine, split_words
from gpucheck.cli.terminal import status_line
from gpucheck.report.errors import WrongUseError


def choose_wheels(shared: Shared, words: list[str]) -> int:
    """Choose a build of each framework that is named, and report it.

    Raises:
        WrongUseError: a framework is unknown or none is named, or one line is asked for several.
    """
    from gpucheck.detect.checks.frameworks import FRAMEWORKS
    from gpucheck.detect.run import known_frameworks, normal_framework
    from gpucheck.detect.wheels import advise

    titles = {check.ID: check.guide.title for check in FRAMEWORKS}
    with machine("wheel", shared) as probes, status_line(shown=shared.verbosity >= 0) as tell:
        names = dict.fromkeys(normal_framework(word) or "" for word in split_words(words))
        if not names:
            message = f"--wheel names no framework; it knows {known_frameworks()}."
            raise WrongUseError(code="no-framework", message=message)
        if shared.format == "shell" and len(names) > 1:
            message = "--format shell writes one line, for one framework: ask once for each."
            raise WrongUseError(code="several-frameworks", message=message)
        tell("asking NVML")
        answer = advise(probes, {name: titles[name] for name in names})
    return deliver("wheel", shared, answer, probes.time())
