"""gpucheck: is my GPU usable, which one will I get, is it as fast as it should be."""

from __future__ import annotations

__version__ = "0.1.0"

TYPE_CHECKING = False
if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from gpucheck.core.memlimit.api import LimitedMemory
    from gpucheck.models.device import Gpu
    from gpucheck.models.placement import PlacedDevice


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


def limit_memory(amount: str, *, include_overhead: bool = False) -> LimitedMemory:
    """Limit the GPU memory that this program takes: `30%`, `0.3`, `8GiB` of each visible GPU.

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
