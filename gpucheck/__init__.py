"""gpucheck: is my GPU usable, which one will I get, is it as fast as it should be."""

from __future__ import annotations

import sys

__version__ = "0.1.0"

TYPE_CHECKING = False  # the name that type checkers know, without the import of typing
if TYPE_CHECKING:
    from collections.abc import Iterable
    from contextlib import AbstractContextManager
    from os import PathLike
    from types import ModuleType

    from gpucheck.core.memlimit.api import LimitedMemory
    from gpucheck.models.bench import (
        BenchEnvironment,
        BenchGpu,
        BenchMode,
        BenchResult,
        Board,
        Comparison,
        ComparisonSide,
        Conclusion,
        Doubt,
        DtypeSpec,
        Extent,
        GpuTelemetry,
        Measurement,
        Roofline,
        SampleSummary,
        Scope,
        Telemetry,
        Throughput,
        Verified,
    )
    from gpucheck.models.corruption import Corruption
    from gpucheck.models.device import Gpu, GpuProcess, GpuState, MigInstance, MigState, PcieLink
    from gpucheck.models.errors import (
        BadAnswerError,
        ExitCode,
        GpucheckError,
        InconclusiveError,
        MissingError,
        WrongUseError,
    )
    from gpucheck.models.finding import Evidence
    from gpucheck.models.gate import Direction, Gate, GateClass, GateStatus, ProfileUse, Severity
    from gpucheck.models.memory import (
        Culprit,
        GpuMemoryLimit,
        LimitedRun,
        Mechanism,
        MemoryLimit,
        MemoryRequest,
        Overhead,
        RunGpu,
        Software,
        Strength,
        Verification,
        Way,
    )
    from gpucheck.models.placement import PlacedDevice
    from gpucheck.models.report import Failure, Host
else:
    ModuleType = type(sys)

__all__ = (
    "BadAnswerError",
    "BenchEnvironment",
    "BenchGpu",
    "BenchMode",
    "BenchResult",
    "Board",
    "Comparison",
    "ComparisonSide",
    "Conclusion",
    "Corruption",
    "Culprit",
    "Direction",
    "Doubt",
    "DtypeSpec",
    "Evidence",
    "ExitCode",
    "Extent",
    "Failure",
    "Gate",
    "GateClass",
    "GateStatus",
    "Gpu",
    "GpuMemoryLimit",
    "GpuProcess",
    "GpuState",
    "GpuTelemetry",
    "GpucheckError",
    "Host",
    "InconclusiveError",
    "LimitedMemory",
    "LimitedRun",
    "Measurement",
    "Mechanism",
    "MemoryLimit",
    "MemoryRequest",
    "MigInstance",
    "MigState",
    "MissingError",
    "Overhead",
    "PcieLink",
    "PlacedDevice",
    "ProfileUse",
    "Roofline",
    "RunGpu",
    "SampleSummary",
    "Scope",
    "Severity",
    "Software",
    "Strength",
    "Telemetry",
    "Throughput",
    "Verification",
    "Verified",
    "Way",
    "WrongUseError",
    "__version__",
    "bench",
    "devices",
    "limit_memory",
    "place",
)

#: Where each type and error is defined. Its module is loaded at its first use.
_HOMES = {
    "gpucheck.core.memlimit.api": "LimitedMemory",
    "gpucheck.models.bench": (
        "BenchEnvironment BenchGpu BenchMode BenchResult Board Comparison ComparisonSide "
        "Conclusion Doubt DtypeSpec Extent GpuTelemetry Measurement Roofline SampleSummary Scope "
        "Telemetry Throughput Verified"
    ),
    "gpucheck.models.corruption": "Corruption",
    "gpucheck.models.device": "Gpu GpuProcess GpuState MigInstance MigState PcieLink",
    "gpucheck.models.errors": (
        "BadAnswerError ExitCode GpucheckError InconclusiveError MissingError WrongUseError"
    ),
    "gpucheck.models.finding": "Evidence",
    "gpucheck.models.gate": "Direction Gate GateClass GateStatus ProfileUse Severity",
    "gpucheck.models.memory": (
        "Culprit GpuMemoryLimit LimitedRun Mechanism MemoryLimit MemoryRequest Overhead RunGpu "
        "Software Strength Verification Way"
    ),
    "gpucheck.models.placement": "PlacedDevice",
    "gpucheck.models.report": "Failure Host",
}


class _Package(ModuleType):
    """The package's module, in which a folder does not hide a function of the same name.

    Python binds a subpackage to its name in the parent when it is imported.
    """

    def __setattr__(self, name: str, value: object) -> None:
        if not (name in ("bench", "place") and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package


if not TYPE_CHECKING:  # type checkers know every name

    def __getattr__(name: str) -> object:
        """Load a type or an error at its first use."""
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
    temperature: float = 0.7,
    towers: int = 2,
    data_file: str | PathLike[str] | None = None,
    corruption_s: float = 0.0,
    require_gpu: bool = False,
) -> BenchResult:
    """Time the same work on the CPU and on the GPU, verify both, and return what was found.

    It is measured in this process, as by `gpucheck bench` with the options of the same names: all
    kernels if none is named, within about 10 seconds (mode "quick"), a minute ("default") or five
    ("full"), or in `budget_s` seconds. `device` takes "cpu", "gpu", "gpu:N" or "all", `dtype`
    formats such as "bfloat16"; both also several, in a list or with commas. `size` is the edge of
    the square problem (when training, the batch), `temperature` softmax's, `towers` the number
    simulated on one device, `data_file` MNIST to train on. `fill` is what the arrays hold, "normal"
    numbers drawn from `seed`, or "zeros". For `corruption_s` seconds one product is repeated on
    each device and compared bit for bit. CUDA is started here, and the GPUs are claimed meanwhile.

    Times are seconds for one operation: `result.measurements` has the rows with `median_s`,
    `ci95_s`, `throughput`, `verified` and `doubts`. A row that failed carries its `error`, and one
    whose result was wrong has no time. `result.comparisons` has the speed-ups, `result.environment`
    where it was measured and, without a GPU, why (`gpu_unavailable`), `result.corruption` what the
    repeated products showed.

    Raises:
        GpucheckError: a WrongUseError for what makes no sense or does not fit the memory, a
            MissingError if nothing that is asked for is here (a GPU, with `require_gpu`), an
            InconclusiveError if the host has no memory left.
    """
    from gpucheck.core.bench.api import bench_here, request_of
    from gpucheck.probes import open_probes

    request = request_of(
        kernels,
        device=device,
        size=size,
        dtype=dtype,
        mode=mode,
        budget_s=budget_s,
        seed=seed,
        fill=fill,
        temperature=temperature,
        towers=towers,
        data_file=data_file,
    )
    return bench_here(request, open_probes(), corruption_s=corruption_s, require_gpu=require_gpu)


def devices() -> tuple[Gpu, ...]:
    """Return the GPUs of this machine as `gpucheck list` reports them.

    They come in NVML's order; `cuda_index` is the number that a program started now would use.
    The driver is asked in a child process: no CUDA context is created in the calling program.

    Raises:
        GpucheckError: a MissingError without a driver or GPU, an InconclusiveError if the driver
            does not answer; both say why and what to do.
    """
    from gpucheck.core.inventory import list_gpus
    from gpucheck.probes import open_probes

    probes = open_probes()
    try:
        return list_gpus(probes)
    finally:
        probes.close()


def limit_memory(amount: str | float, *, include_overhead: bool = False) -> LimitedMemory:
    """Limit the GPU memory that this program takes: `30%`, `0.3`, `8GiB` of each visible GPU.

    A float above 0 and up to 1 is a share, as the text `0.3` is.

    Frameworks that are imported are capped now, others when they are. Used as a context manager
    the limit ends with the block, for CuPy and for what was not imported before.

    Raises:
        GpucheckError: a WrongUseError for the amount, a MissingError without a driver or GPU.
    """
    from gpucheck.core.memlimit.api import limit_memory as limit

    return limit(amount, include_overhead=include_overhead)


def place(
    *specs: str,
    soft: bool = False,
    count: int | None = None,
    min_free: str | None = None,
    max_utilization_percent: float | None = None,
    min_compute_capability: str | None = None,
    name: str | None = None,
    exclude: tuple[str, ...] = (),
    prefer: str = "free-memory",
    share: int = 1,
    wait: bool = False,
    timeout_s: float | None = None,
    claim: bool | None = None,
) -> AbstractContextManager[tuple[PlacedDevice, ...]]:
    """Hold GPUs for the length of a `with` block and yield them; the CPU needs no holding.

    They are named as in `gpucheck place /gpu:0`, or chosen as by its `--count` and the options of
    the same names; without either one GPU is chosen. Nobody else who asks gpucheck gets them until
    the block ends, nor while a process lives that was forked in it. `uuid` of a device is what
    CUDA_VISIBLE_DEVICES takes, `cuda_index` its number in this process; the environment stays as
    it is.

    Raises:
        GpucheckError: on entering the block: a WrongUseError for what makes no sense, a
            BadAnswerError where nothing fits or somebody else holds it, a MissingError without a
            driver or GPU, an InconclusiveError if the driver does not answer.
    """
    from gpucheck.core.hold import hold_devices, request_of
    from gpucheck.core.picking import Wish
    from gpucheck.probes import open_probes

    request = request_of(
        specs,
        count=count,
        min_free=min_free,
        max_utilization_percent=max_utilization_percent,
        min_compute_capability=min_compute_capability,
        name=name,
        exclude=exclude,
        prefer=prefer,
        share=share,
    )
    wish = Wish(share=share, wait=wait, timeout_s=timeout_s, claim=claim, hold=True)
    return hold_devices(specs, request, wish, soft=soft, probes=open_probes())
