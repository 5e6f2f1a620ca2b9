"""gpucheck: GPU diagnostics and benchmarks. This package is the public Python API."""

from __future__ import annotations

import sys

TYPE_CHECKING = False  # type checkers know this name; typing is slow to import
if TYPE_CHECKING:
    from collections.abc import Iterable
    from contextlib import AbstractContextManager
    from os import PathLike
    from types import ModuleType

    # isort: off
    from gpucheck.bench.model import (
        BaselineUse as BaselineUse,
        BenchEnvironment as BenchEnvironment,
        BenchResult as BenchResult,
        Comparison as Comparison,
        ComparisonSide as ComparisonSide,
        Conclusion as Conclusion,
        Corruption as Corruption,
        Direction as Direction,
        Doubt as Doubt,
        DtypeSpec as DtypeSpec,
        Extent as Extent,
        FrameworkFacts as FrameworkFacts,
        FrameworkUse as FrameworkUse,
        Gate as Gate,
        GateClass as GateClass,
        GateStatus as GateStatus,
        GpuTelemetry as GpuTelemetry,
        Measurement as Measurement,
        ProfileUse as ProfileUse,
        Roofline as Roofline,
        RowClock as RowClock,
        SampleSummary as SampleSummary,
        Scope as Scope,
        SensorHistory as SensorHistory,
        Severity as Severity,
        Telemetry as Telemetry,
        Throughput as Throughput,
        Verified as Verified,
    )
    from gpucheck.bench.request_model import BenchMode as BenchMode
    from gpucheck.bench.boards import (
        BoardPeaks as BoardPeaks,
        ComputePeak as ComputePeak,
        MemoryPeak as MemoryPeak,
        PeakGpu as PeakGpu,
    )
    from gpucheck.detect.model import Layer as Layer
    from gpucheck.drivers.gpu import (
        BenchGpu as BenchGpu,
        Board as Board,
    )
    from gpucheck.drivers.python.frameworks import Software as Software
    from gpucheck.integrations.diagnose import Diagnosis as Diagnosis
    from gpucheck.inventory.model import (
        Gpu as Gpu,
        GpuHolder as GpuHolder,
        GpuProcess as GpuProcess,
        GpuState as GpuState,
        GpuTrouble as GpuTrouble,
        MigInstance as MigInstance,
        MigState as MigState,
        PcieLink as PcieLink,
    )
    from gpucheck.memlimit.api import LimitedMemory as LimitedMemory
    from gpucheck.memlimit.model import (
        Culprit as Culprit,
        GpuMemoryLimit as GpuMemoryLimit,
        HardGpu as HardGpu,
        HardLimit as HardLimit,
        LimitedRun as LimitedRun,
        Mechanism as Mechanism,
        MemoryLimit as MemoryLimit,
        MemoryRequest as MemoryRequest,
        Overhead as Overhead,
        RunGpu as RunGpu,
        Strength as Strength,
        Verification as Verification,
        Way as Way,
    )
    from gpucheck.place.model import PlacedDevice as PlacedDevice
    from gpucheck.report.envelope import (
        CheckStatus as CheckStatus,
        Evidence as Evidence,
        Failure as Failure,
    )
    from gpucheck.report.host import Host as Host
    from gpucheck.report.errors import (
        BadAnswerError as BadAnswerError,
        ExitCode as ExitCode,
        GpucheckError as GpucheckError,
        InconclusiveError as InconclusiveError,
        MissingError as MissingError,
        WrongUseError as WrongUseError,
    )
    from gpucheck.version import __version__ as __version__
    # isort: on
else:
    ModuleType = type(sys)

#: Where each name is defined. Its module is loaded at its first use.
_HOMES = {
    "gpucheck.memlimit.api": "LimitedMemory",
    "gpucheck.bench.model": (
        "BaselineUse BenchEnvironment BenchResult Comparison ComparisonSide Conclusion "
        "Corruption Direction Doubt DtypeSpec Extent FrameworkFacts FrameworkUse Gate GateClass "
        "GateStatus GpuTelemetry Measurement ProfileUse Roofline RowClock SampleSummary Scope "
        "SensorHistory Severity Telemetry Throughput Verified"
    ),
    "gpucheck.bench.request_model": "BenchMode",
    "gpucheck.integrations.diagnose": "Diagnosis",
    "gpucheck.inventory.model": (
        "Gpu GpuHolder GpuProcess GpuState GpuTrouble MigInstance MigState PcieLink"
    ),
    "gpucheck.detect.model": "Layer",
    "gpucheck.bench.boards": "BoardPeaks ComputePeak MemoryPeak PeakGpu",
    "gpucheck.drivers.gpu": "BenchGpu Board",
    "gpucheck.drivers.python.frameworks": "Software",
    "gpucheck.report.errors": (
        "BadAnswerError ExitCode GpucheckError InconclusiveError MissingError WrongUseError"
    ),
    "gpucheck.memlimit.model": (
        "Culprit GpuMemoryLimit HardGpu HardLimit LimitedRun Mechanism MemoryLimit MemoryRequest "
        "Overhead RunGpu Strength Verification Way"
    ),
    "gpucheck.place.model": "PlacedDevice",
    "gpucheck.report.envelope": "CheckStatus Evidence Failure",
    "gpucheck.report.host": "Host",
    "gpucheck.version": "__version__",
}
_FUNCTIONS = ("bench", "devices", "diagnose", "limit_memory", "peaks", "place")
__all__ = tuple(sorted((*" ".join(_HOMES.values()).split(), *_FUNCTIONS)))


class _Package(ModuleType):
    """The package's module, in which a folder does not hide a function of the same name.

    Python binds a subpackage to its name in the parent when it is imported.
    """

    def __setattr__(self, name: str, value: object) -> None:
        if not (name in ("bench", "place") and isinstance(value, ModuleType)):
            super().__setattr__(name, value)

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle a reference: Dask, Ray and others send functions of a script with its modules."""
        return __import__, (self.__name__,)


sys.modules[__name__].__class__ = _Package


if not TYPE_CHECKING:  # type checkers know every name

    def __getattr__(name: str) -> object:
        """Load a type, an error or the version at its first use."""
        from importlib import import_module

        for module, names in _HOMES.items():
            if name in names.split():
                value = getattr(import_module(module), name)
                globals()[name] = value
                return value
        message = f"module 'gpucheck' has no attribute {name!r}"
        raise AttributeError(message)


def __dir__() -> list[str]:
    """Return all names, also of what is not loaded yet."""
    return sorted({*globals(), *__all__})


def bench(
    *kernels: str,
    device: str | Iterable[str] = "all",
    size: int | None = None,
    dtype: str | Iterable[str] = (),
    mode: str = "default",
    budget_s: float | None = None,
    seed: int = 0,
    fill: str = "normal",
    temperature: float = 0.6,
    towers: int = 2,
    data_file: str | PathLike[str] | None = None,
    frameworks: str | Iterable[str] = (),
    same_math: bool = False,
    corruption_s: float = 0.0,
    require_gpu: bool = False,
) -> BenchResult:
    """Time the same work on the CPU and on the GPU, verify both, and return the results.

    This measures in the calling process, like `gpucheck bench` with the options of the same names.
    Without names it runs all kernels. `mode` "quick" takes about 10 seconds, "default" a minute and
    "full" five; `budget_s` sets the seconds instead. `device` takes "cpu", "gpu", "gpu:N" or "all",
    and `dtype` formats such as "bfloat16"; both take several, in a list or with commas. `size` is
    the edge of the square problem, or the batch when training. `temperature` is for softmax,
    `towers` the number simulated on one device, `data_file` the MNIST file to train on. `fill`
    fills the arrays with "normal" numbers drawn from `seed`, or with "zeros". `frameworks` are
    measured too, each in a process of its own: "pytorch", or "jax=PATH" for that Python's;
    `same_math` turns off their reduced precision. For `corruption_s`
    seconds each device repeats one product, whose results are compared bit for bit. This starts
    CUDA in the process, and claims the GPUs until it returns.

    `result.measurements` has the rows with `time_s`, `ci95_s`, `throughput`, `verified` and
    `doubts`. Times are seconds for one operation. A row that failed has an `error`, and a row with
    a wrong result has no time. `result.comparisons` has the speed-ups, and `result.corruption` the
    results of the repeated products. `result.environment` describes the machine; without a GPU its
    `gpu_unavailable` says why.

    Raises:
        GpucheckError: a WrongUseError for arguments that make no sense or do not fit the memory, a
            MissingError if nothing that was requested is here (a GPU, with `require_gpu`), an
            InconclusiveError if the driver does not answer, others hold the GPU or the host has
            no memory left.
    """
    arguments = locals()
    from gpucheck.bench.request_model import BenchRequest
    from gpucheck.bench.session import bench_here
    from gpucheck.drivers import open_probes
    from gpucheck.report.options import check_arguments

    request = BenchRequest(**check_arguments(BenchRequest, arguments))
    return bench_here(request, open_probes(), corruption_s=corruption_s, require_gpu=require_gpu)


def devices() -> tuple[Gpu, ...]:
    """Return the GPUs of this machine as `gpucheck list` reports them.

    They are in NVML's order; `cuda_index` is the number that a program started now would use.
    A child process asks the driver: the calling program gets no CUDA context.

    Raises:
        GpucheckError: a MissingError without a driver or GPU, an InconclusiveError if the driver
            does not answer. Both say why, and what to do.
    """
    from contextlib import closing

    from gpucheck.drivers import open_probes
    from gpucheck.inventory.inventory import list_gpus

    with closing(open_probes()) as probes:
        return list_gpus(probes)


def diagnose(
    framework: str | BaseException | None = None, *, deadline_s: float = 20.0
) -> Diagnosis | None:
    """Return why this process cannot use a GPU; None if it can.

    The result has the first broken layer, a sentence and its remedies, as `gpucheck detect` gives
    them: `str()` of it suits the end of an error's text. A broken machine raises nothing, and a
    driver that hangs takes at most about `deadline_s` seconds. Child processes ask the drivers with
    the environment of this process, which gets no CUDA context; no kernel is run.

    With `framework` ("pytorch", "tensorflow", "jax", "cupy", "numba" or "onnxruntime") its build in
    this Python is judged as well, from its files, if it is installed. An exception stands for the
    framework that raised it.

    Raises:
        GpucheckError: a WrongUseError for an unknown framework or deadline, and nothing else.
    """
    from gpucheck.integrations.diagnose import diagnose as first_broken_layer

    return first_broken_layer(framework, deadline_s=deadline_s)


def limit_memory(amount: str | float, *, include_overhead: bool = False) -> LimitedMemory:
    """Limit the GPU memory of this program to an amount such as `30%`, `0.3` or `8GiB` of each GPU.

    Only visible GPUs count. A float above 0 and up to 1 is a share, like the text `0.3`.

    Imported frameworks are capped now, and others when they are imported. As a context manager,
    the limit ends with the block, for CuPy and for frameworks that were not imported before.

    Raises:
        GpucheckError: a WrongUseError for the amount, a MissingError without a driver or GPU.
    """
    from gpucheck.memlimit.api import limit_memory as limit

    return limit(amount, include_overhead=include_overhead)


def peaks(board: str | None = None) -> BoardPeaks:
    """Return what this machine's board can do at most, by its sources, or the named board.

    `board` is a name of the table of boards, such as "H200 SXM", or the GPU's name as NVML and CUDA
    give it, such as "NVIDIA H200". `peaks().compute["bfloat16"].flops_per_s` is dense, and
    `peaks().memory.bytes_per_s` the memory's. Each value has its `source`. A board that is not in
    the table has no answer, and never gets another's. This loads neither NumPy nor CuPy, and starts
    no CUDA.

    Raises:
        GpucheckError: a WrongUseError for a name of no board or of several, a BadAnswerError if a
            GPU here is not in the table or the GPUs are different boards, a MissingError without a
            driver or GPU, an InconclusiveError if the driver does not answer.
    """
    from gpucheck.bench.boards import board_called
    from gpucheck.bench.peaks import peaks_of_one

    if board is not None:
        from gpucheck.report.errors import check_argument

        check_argument("board", board, "the name of a board", str)
        return board_called(board)
    from contextlib import closing

    from gpucheck.drivers import open_probes

    with closing(open_probes()) as probes:
        return peaks_of_one(probes)


def place(
    *specs: str,
    soft: bool = False,
    count: int | None = None,
    min_free: str | None = None,
    max_utilization_percent: float | None = None,
    min_compute_capability: str | None = None,
    name: str | None = None,
    exclude: str | Iterable[str] = (),
    prefer: str = "free-memory",
    share: int = 1,
    wait: bool = False,
    timeout_s: float | None = None,
    claim: bool | None = None,
) -> AbstractContextManager[tuple[PlacedDevice, ...]]:
    """Hold GPUs for the length of a `with` block and yield them; the CPU is not held.

    Name them as in `gpucheck place /gpu:0`, or choose them with `count` and the options of the same
    names as those of `gpucheck place --count`; without either, one GPU is chosen. gpucheck gives
    them to nobody else until the block ends and all processes forked in it have ended. A device's
    `uuid` is what CUDA_VISIBLE_DEVICES takes, and `cuda_index` its number in this process. The
    environment is not changed.

    Raises:
        GpucheckError: on entering the block: a WrongUseError for arguments that make no sense, a
            BadAnswerError if nothing fits or another process holds it, a MissingError without a
            driver or GPU, an InconclusiveError if the driver does not answer.
    """
    arguments = locals()
    from gpucheck.drivers import open_probes
    from gpucheck.place.claims import ClaimOptions
    from gpucheck.place.lease import hold_devices, request_of

    request = request_of(specs, arguments)
    options = ClaimOptions(share=share, wait=wait, timeout_s=timeout_s, claim=claim)
    return hold_devices(specs, request, options, soft=soft, probes=open_probes())
