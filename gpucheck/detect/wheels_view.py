"""View of `gpucheck detect --wheel`: the build, its commands, who is left out, and the reasons."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from types import MappingProxyType

from gpucheck.detect.cuda_versions import binary_for
from gpucheck.detect.wheels import Build, Fit, WheelChoice, WheelChoices, WheelGpu, gpu_label
from gpucheck.report.blocks import Block, Command, Gap, Line, counted, limited, opening, remedies
from gpucheck.report.envelope import CheckStatus, Report
from gpucheck.report.text import View

INDENT = 4
#: So many newer builds stand with the reason why they were not chosen; `-v` shows all.
MOST_PASSED_OVER = 2
#: The notices that no choice tells by itself.
OF_THE_MACHINE = ("gpu-not-read", "machine-not-recorded", "python-does-not-fit")
MARKS = {Fit.ALL: CheckStatus.OK, Fit.SOME: CheckStatus.WARN, Fit.NONE: CheckStatus.FAIL}
COLORS = {Fit.ALL: "bold green", Fit.SOME: "bold yellow", Fit.NONE: "bold red"}


def blocks(report: Report, view: View) -> Iterator[Block]:
    """Yield a build for each framework that was asked for."""
    result = report.result_as(WheelChoices)
    # What the driver's files tell, where the driver does not answer.
    known = report.host.cuda_driver_version or result.driver.cuda is None
    cuda = None if known else f"CUDA {result.driver.cuda}"
    yield from opening(report, view, cuda, counted(gpu.name for gpu in result.gpus))
    for choice in result.choices:
        yield from _choice(choice, result.gpus, view)
        yield Gap()
    notes = [note for note in report.warnings if note.code in OF_THE_MACHINE]
    yield from (Line(note.message, CheckStatus.WARN) for note in notes)


def shown_codes(report: Report) -> Collection[str]:
    """Return the codes of the messages that the table shows: every warning."""
    return {notice.code for notice in report.warnings}


def _choice(choice: WheelChoice, gpus: Sequence[WheelGpu], view: View) -> Iterator[Block]:
    fit = Fit.SOME if choice.driver_needed and choice.fit is Fit.ALL else choice.fit
    yield Line(choice.sentence, MARKS[fit], style=COLORS[fit])
    for command in choice.commands.values():
        yield Command(command, INDENT)
    yield from remedies(choice.remedy, indent=INDENT)
    if view.verbosity < 0:
        return
    for left in choice.left_out:
        yield Line(f"{gpu_label(left.gpu)} is left out: {left.reason}", indent=INDENT)
    for capability in choice.compiled_at_first_use:
        yield Line(
            f"for compute capability {capability} it has only PTX: its kernels are compiled at"
            " their first use, which can take half an hour",
            indent=INDENT,
        )
    if choice.build is not None and choice.build.python is not None:
        yield Line(f"Python {choice.build.python} only", indent=INDENT)
    passed = [
        Line(passed_over.reason, lead="newer:", indent=INDENT) for passed_over in choice.passed_over
    ]
    yield from limited(passed, view, most=MOST_PASSED_OVER) if passed else ()
    if choice.build is not None:
        yield Line(_read_from(choice.build, gpus), lead="code:", indent=INDENT, style="dim")


def _read_from(build: Build, gpus: Sequence[WheelGpu]) -> str:
    """Return the architectures of a build, the ones that GPUs run, and what they were read from."""
    code = (
        ", ".join(build.architectures) or f"none: all is compiled, for what CUDA {build.cuda} knows"
    )
    for capability in dict.fromkeys(gpu.compute_capability or "" for gpu in gpus):
        binary = binary_for(build.architectures, capability)
        if binary is not None and binary != f"sm_{capability.replace('.', '')}":
            code += f"; {binary} runs on {capability}"
    if not build.wheels:
        return f"{code} (from documents, {build.date}: {build.source})"
    return f"{code} (from the wheel of {build.wheels[-1]}, {build.date})"


def shell(result: WheelChoices) -> str:
    """Return the words for `pip install` or `uv pip install` in a line; nothing if none fits."""
    return "".join(" ".join(choice.arguments) + "\n" for choice in result.choices if choice.build)


LINES: Mapping[str, Callable[[WheelChoices], str]] = MappingProxyType({"shell": shell})
