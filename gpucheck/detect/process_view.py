"""View of `gpucheck detect --pid`: the answer, what else is wrong, and the facts it rests on."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from gpucheck.detect.model import LoadedLibrary, ProcessAnswer, UsedGpu
from gpucheck.detect.process import MOST_NAMED
from gpucheck.detect.view import INDENT, MOST_EVIDENCE, evidence_lines
from gpucheck.drivers.evidence import CgroupReading, MappedFrameworkReading
from gpucheck.report.blocks import Block, Gap, Line, opening, remedies, verdict
from gpucheck.report.envelope import CheckStatus, Report
from gpucheck.report.errors import ExitCode
from gpucheck.report.text import View, binary_bytes, count_of, framework_title, group_by

#: Width of the names before the facts.
_NAME = 10
#: What the kernel calls them -> in a sentence.
NAMESPACES = {"pid": "PID", "mnt": "mount"}
#: So many characters of a command line are shown; `-v` shows all.
MOST_OF_A_COMMAND = 120


def blocks(report: Report, view: View) -> Iterator[Block]:
    """Yield the answer and its remedy, further obstacles, and the facts."""
    answer = report.result_as(ProcessAnswer)
    yield from opening(report, view)
    yield verdict(answer.conclusion, _mark(report, answer))
    yield from remedies(answer.remedy, indent=INDENT)
    most = None if view.verbosity > 0 else MOST_EVIDENCE
    first = next((obstacle for obstacle in answer.obstacles if obstacle.id == answer.cause), None)
    if first is not None and view.verbosity >= 0:
        yield from evidence_lines(first.evidence, most)
    if view.verbosity < 0:
        return
    others = [obstacle for obstacle in answer.obstacles if obstacle is not first]
    if others:
        yield Gap()
    for obstacle in others:
        yield Line(obstacle.summary, CheckStatus.WARN)
        yield from evidence_lines(obstacle.evidence, most)
        yield from remedies(obstacle.remedy, indent=INDENT)
    yield Gap()
    yield from _facts(answer, view)


def shown_codes(report: Report) -> Collection[str]:
    """Return the codes of the messages that the table shows."""
    return ("not-recorded",)


def line(answer: ProcessAnswer) -> str:
    """Return the sentence of --format line."""
    return answer.conclusion


def _mark(report: Report, answer: ProcessAnswer) -> CheckStatus:
    if report.exit_code is ExitCode.INCONCLUSIVE or answer.uses_gpu is None:
        return CheckStatus.UNKNOWN
    return CheckStatus.OK if answer.uses_gpu else CheckStatus.FAIL


# ------------------------------------------------------------------------------ the facts


def _facts(answer: ProcessAnswer, view: View) -> Iterator[Block]:
    for name, text in _named_facts(answer, view):
        yield Line(text, lead=f"{name:<{_NAME}}", style="dim" if text == "none" else "")
    if view.verbosity > 0:
        for library in answer.libraries or ():
            yield Line(library.path, lead=f"{'':<{_NAME}}", style="dim")
    if answer.unavailable:
        yield Line(_unread(answer.unavailable), CheckStatus.UNKNOWN)


def _named_facts(answer: ProcessAnswer, view: View) -> Iterator[tuple[str, str]]:
    about = [
        None if answer.user is None else f"user {answer.user}",
        answer.state,
        None if answer.threads is None else count_of(answer.threads, "thread"),
    ]
    facts = ", ".join(part for part in about if part)
    if facts:
        yield "process", facts
    command = answer.command or answer.name
    if command:
        cut = view.verbosity <= 0 and len(command) > MOST_OF_A_COMMAND
        yield "command", f"{command[: MOST_OF_A_COMMAND - 3]}..." if cut else command
    if len(answer.gpus) > MOST_NAMED or any(gpu.pid != answer.pid for gpu in answer.gpus):
        yield "uses", ", ".join(map(_use, answer.gpus))
    if answer.frameworks:
        yield "frameworks", ", ".join(map(_framework, answer.frameworks))
    if answer.libraries is not None:
        names = dict.fromkeys(map(_library, answer.libraries))
        yield "libraries", ", ".join(names) or "none of NVIDIA's"
    if answer.device_files is not None:
        yield "files open", ", ".join(answer.device_files) or "none of the driver"
    if answer.environment is not None:
        pairs = (f"{name}={value!r}" for name, value in answer.environment.items() if _tells(name))
        none = "started with none about GPUs (what it set later cannot be seen)"
        yield "variables", ", ".join(pairs) or none
    if answer.own_namespaces:
        kinds = " and ".join(NAMESPACES[kind] for kind in answer.own_namespaces)
        yield "namespaces", f"{kinds} of its own: it may be in a container"
    if answer.cgroup is not None:
        yield "cgroup", _group(answer.cgroup)


def _tells(name: str) -> bool:
    """Return whether a variable decides about devices; -v and JSON have the others."""
    return "VISIBLE" in name or name in (
        "CUDA_DEVICE_ORDER",
        "JAX_PLATFORMS",
        "JAX_PLATFORM_NAME",
        "LD_LIBRARY_PATH",
    )


def _use(gpu: UsedGpu) -> str:
    memory = ""
    if gpu.memory_used_bytes is not None:
        memory = f" {binary_bytes(gpu.memory_used_bytes)}"
    return f"GPU {gpu.index} by PID {gpu.pid}{memory}"


def _framework(framework: MappedFrameworkReading) -> str:
    title = framework_title(framework.name)
    known = {True: "has CUDA", False: "for CPUs", None: "not known whether it has CUDA"}
    built = known[framework.gpu_build]
    if framework.cuda_build:
        built = f"CUDA {framework.cuda_build}"
    return f"{title} {framework.version or ''}".rstrip() + f" ({built})"


def _library(library: LoadedLibrary) -> str:
    gone = " (replaced on disk)" if library.deleted else ""
    return f"{library.name} {library.version or ''}".rstrip() + gone


def _group(group: CgroupReading) -> str:
    facts = [group.path]
    if group.memory_limit_bytes is not None:
        used = ""
        if group.memory_used_bytes is not None:
            used = f"{binary_bytes(group.memory_used_bytes)} of "
        facts.append(f"memory {used}{binary_bytes(group.memory_limit_bytes)}")
    if group.oom_kills:
        facts.append(f"{count_of(group.oom_kills, 'process')} killed for memory")
    return ", ".join(facts)


def _unread(unavailable: Mapping[str, str]) -> str:
    """Return the names of unread facts, with the reason once for all that share it."""
    reasons = group_by(unavailable, lambda name: unavailable[name])
    parts = (f"{', '.join(names)} ({reason})" for reason, names in reasons.items())
    return f"not read: {'; '.join(parts).replace('_', ' ')}"
