"""gpucheck: is my GPU usable, which one will I get, is it as fast as it should be."""

from __future__ import annotations

__version__ = "0.1.0"

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpucheck.models.device import Gpu


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
