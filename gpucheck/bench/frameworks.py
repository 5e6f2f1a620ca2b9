"""Frameworks of a run: named on the command line, started in their own Pythons, their facts."""

from __future__ import annotations

import os
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from gpucheck.bench.model import FrameworkFacts, FrameworkUse
from gpucheck.bench.request_model import BenchRequest
from gpucheck.drivers.gpu import BenchGpu
from gpucheck.drivers.python.framework_bench import (
    MISSING,
    CompiledFolder,
    FrameworkProcess,
)
from gpucheck.drivers.python.interpreters import Interpreter, user_interpreter
from gpucheck.inventory.visibility import digits_of
from gpucheck.report.envelope import Failure
from gpucheck.report.errors import GpucheckError, MissingError, WrongUseError
from gpucheck.report.text import did_you_mean, framework_name, framework_title

#: Forms of each framework's programs, the plainest first; `quick` measures the first alone, or the
#: compiled one where nobody would write the plain one.
FORMS: Mapping[str, tuple[str, ...]] = {
    "pytorch": ("eager", "eager-out", "torch.compile"),
    "tensorflow": ("eager", "tf.function", "tf.function-xla"),
    "jax": ("jax.jit", "eager"),
    "cupy": ("eager", "eager-out"),
    "numpy": ("eager", "eager-out"),
}
#: Forms that compile in their first run.
COMPILED = frozenset({"torch.compile", "tf.function", "tf.function-xla", "jax.jit"})
#: Frameworks for one kind of device alone.
CPU_ONLY, GPU_ONLY = frozenset({"numpy"}), frozenset({"cupy"})
#: Formats of each kernel that frameworks have too; tf32 is a GPU's.
DTYPES: Mapping[str, tuple[str, ...]] = {
    "matmul": ("float32", "float64", "tf32", "bfloat16", "float16"),
    "softmax": ("float32", "bfloat16", "float16"),
    "copy": ("float32",),
    "transfer": ("float32",),
    "train": ("float32",),
    "batch": ("float32",),
}
#: Formats that NumPy multiplies by a library.
_NUMPY_DTYPES = ("float32", "float64")
#: Kernels that are measured with frameworks if none is named.
UNNAMED = ("matmul", "softmax", "copy", "transfer", "train")
#: Reasons for facts that a framework does not report.
_UNREPORTED = "it does not report it"


def parse_framework(text: str) -> tuple[str, str | None]:
    """Return the name and the Python of a `NAME[=PYTHON]`.

    Raises:
        WrongUseError: there is no such framework, or no Python after the equals sign.
    """
    name, separator, python = text.partition("=")
    name = framework_name(name)
    if name not in FORMS:
        raise WrongUseError(
            code="unknown-framework",
            message=f"bench cannot run a framework called {name!r}. "
            f"{did_you_mean(name, FORMS)}".strip(),
            remedy=(f"Choose from: {', '.join(FORMS)}.",),
        )
    if separator and not python.strip():
        raise WrongUseError(
            code="no-such-python",
            message=f"--framework {name}= names no Python.",
            remedy=(f"Name an interpreter: --framework {name}=.venv/bin/python",),
        )
    return name, os.path.expanduser(python.strip()) or None  # noqa: PTH111


def dtypes_of(name: str, kernel: str) -> tuple[str, ...]:
    """Return the formats in which a framework runs a kernel."""
    dtypes = DTYPES.get(kernel, ())
    return tuple(dtype for dtype in dtypes if name != "numpy" or dtype in _NUMPY_DTYPES)


def use_gpus(frameworks: Sequence[str]) -> bool:
    """Return whether one of the frameworks in a request computes on GPUs."""
    return any(name not in CPU_ONLY for name, _ in map(parse_framework, frameworks))


@dataclass(slots=True, kw_only=True)
class Framework:
    """One framework of a run; `failure` is why it cannot be measured.

    `trials_s` are the seconds of operations that were tried out at smaller sizes, by format and
    edge.
    """

    process: FrameworkProcess
    failure: Failure | None = None
    trials_s: dict[tuple[str, int], float | None] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Return the framework's name, as in `detect`."""
        return self.process.name

    @property
    def version(self) -> str | None:
        """Return the framework's version, None if it did not answer."""
        version = self.process.facts.get("version")
        return None if version is None else str(version)

    def use(self, form: str) -> FrameworkUse:
        """Return the framework and form of a row."""
        python = self.process.interpreter.path
        return FrameworkUse(name=self.name, version=self.version, form=form, python=python)

    def facts(self) -> FrameworkFacts:
        """Return the facts that the framework reported about itself."""
        said = self.process.facts
        build = {key: said.get(key) for key in ("build", "blas", "threads_intra", "threads_inter")}
        why = self.failure.message if self.failure is not None else _UNREPORTED
        return FrameworkFacts(
            name=self.name,
            version=self.version,
            python=self.process.interpreter.path,
            libraries={key: str(value) for key, value in said.get("libraries", {}).items()},
            math_settings={key: str(value) for key, value in said.get("math_settings", {}).items()},
            failure=self.failure,
            unavailable={key: why for key, value in build.items() if value is None},
            **build,
        )

    def place_of(self, gpu: BenchGpu) -> str | None:
        """Return the framework's number for a GPU, None if it does not see it.

        It sees the GPUs that it was given, in this order. Its name for the GPU must be the
        driver's, and so must the UUID where the framework reports one.
        """
        seen, given = self.process.facts.get("gpus") or (), self.process.gpu_uuids
        number = given.index(gpu.uuid) if gpu.uuid in given else gpu.cuda_index
        if number >= len(seen):
            return None
        name, uuid = seen[number].get("name"), seen[number].get("uuid")
        if uuid and gpu.uuid:
            return f"gpu:{number}" if _digits(str(uuid)) == _digits(gpu.uuid) else None
        return f"gpu:{number}" if name in (None, gpu.name) else None


def _digits(uuid: str) -> str:
    """Return a UUID's digits; NVML and CUDA write a kind before them, some frameworks do not."""
    return digits_of(uuid if uuid.upper().startswith(("GPU-", "MIG-")) else f"GPU-{uuid}")


class Frameworks:
    """All frameworks of a run; empty if none was named."""

    def __init__(self, members: Sequence[Framework] = ()) -> None:
        self.members = tuple(members)

    def pids(self) -> list[int]:
        """Return the ids of their running processes."""
        return [pid for member in self.members if (pid := member.process.pid) is not None]

    def wait(self, report: Callable[[str], None]) -> None:
        """Wait until each is imported or has failed; one that failed keeps its reason.

        Raises:
            MissingError: none of them is installed.
        """
        for member in self.members:
            report(f"importing {framework_title(member.name)}")
            try:
                member.process.wait()
            except GpucheckError as error:
                member.failure = Failure.of(error)
        failures = [member.failure for member in self.members if member.failure is not None]
        if failures and len(failures) == len(self.members):
            first = failures[0]
            if all(failure.code == MISSING for failure in failures):
                raise MissingError(
                    code=first.code, message=f"{_sentence(first.message)}.", remedy=first.remedy
                )

    def facts(self) -> tuple[FrameworkFacts, ...]:
        """Return the facts that each framework reported about itself."""
        return tuple(member.facts() for member in self.members)

    def without_rows(self, measured: Container[str], *, on_gpus: bool) -> Iterator[str]:
        """Yield why a framework has none of the rows, for each that is not among the measured."""
        for member in self.members:
            if member.name in measured:
                continue
            title = framework_title(member.name)
            if member.failure is not None:
                yield f"{_sentence(member.failure.message)}: not measured"
            elif member.name in GPU_ONLY and not on_gpus:
                yield f"{title} computes on GPUs alone, and no GPU takes part: not measured"
            elif member.name in CPU_ONLY:
                formats = " and ".join(_NUMPY_DTYPES)
                yield f"{title} computes on the CPU alone, in {formats}: not measured"
            else:
                yield f"{title} has none of these kernels and formats: not measured"

    def close(self) -> None:
        """End their processes."""
        for member in self.members:
            member.process.close()


def _sentence(text: str) -> str:
    return framework_title(text.partition(" ")[0]) + " " + text.partition(" ")[2]


def interpreters_of(
    frameworks: Sequence[str], environment: Mapping[str, str]
) -> dict[str, Interpreter]:
    """Return the Python of each framework in a request, by its name.

    Raises:
        WrongUseError: a name is not a framework or stands for two Pythons, or its Python cannot be
            run.
    """
    named: dict[str, str | None] = {}
    for name, python in map(parse_framework, frameworks):
        if named.setdefault(name, python) != python:
            raise WrongUseError(
                code="framework-twice",
                message=f"--framework names two Pythons for {name}: one run measures one of them.",
                remedy=("Save a run of each (--save FILE), and compare them: gpucheck compare",),
            )
    return {
        name: user_interpreter(environment, python, option=f"--framework {name}=")
        for name, python in named.items()
    }


@contextmanager
def open_frameworks(
    request: BenchRequest,
    environment: Mapping[str, str],
    *,
    threads: int,
    gpus: Sequence[BenchGpu],
) -> Iterator[Frameworks]:
    """Start the requested frameworks, which import side by side, and end them after the block.

    They see the GPUs that take part, and no other.

    Raises:
        WrongUseError: a name is not a framework, or its Python cannot be run.
    """
    interpreters = interpreters_of(request.frameworks, environment)
    if not interpreters:
        yield Frameworks()
        return
    uuids = [gpu.uuid for gpu in gpus if gpu.uuid is not None]
    folder, frameworks = CompiledFolder(), Frameworks()
    try:
        for name, interpreter in interpreters.items():
            process = FrameworkProcess(
                name=name,
                interpreter=interpreter,
                environment=environment,
                threads=threads,
                gpu=bool(gpus) and name not in CPU_ONLY,
                gpu_uuids=tuple(uuids) if len(uuids) == len(gpus) else (),
                same_math=request.same_math,
                folder=folder.path,
            )
            member = Framework(process=process)
            frameworks.members = (*frameworks.members, member)
            try:
                process.start()
            except GpucheckError as error:
                member.failure = Failure.of(error)
        yield frameworks
    finally:
        frameworks.close()
        folder.close()
