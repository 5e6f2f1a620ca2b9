"""Overhead of a process on a GPU: what its context and its libraries take beside its data."""

from __future__ import annotations

from gpucheck.memlimit.mechanisms.setting import MIB
from gpucheck.memlimit.model import Overhead

#: Context on a driver that loads kernels at their first use.
LAZY_CONTEXT_BYTES = 512 * MIB
#: Context that holds every kernel of every library from the start.
EAGER_CONTEXT_BYTES = 1088 * MIB
#: Workspaces of cuBLAS and cuDNN handles that the frameworks' pools do not count.
LIBRARY_BYTES = 64 * MIB

#: First version that loads modules lazily. Source: CUDA 11.7 release notes.
LAZY_SINCE = (11, 7)

_LAZY_SOURCE = (
    "context: 256 MiB (RTX 3090, PyTorch 2.7 with CUDA 12.8, InvokeAI#9413), 426 MiB (RTX 6000 Ada,"
    " PyTorch 2.10 with CUDA 13.0, unsloth-zoo#1053), 300 to 400 MB (pytorch#107667), rounded up"
)
_EAGER_SOURCE = (
    "context: more than 1000 MB before CUDA 11.7 (pytorch#107667),"
    " 1008 MiB on a Titan V (pytorch#28394), rounded up"
)
_LIBRARY_SOURCE = (
    "libraries: 32 MiB for cuBLASLt on Hopper, 4 MiB elsewhere (pytorch#120925),"
    " and the same again for cuDNN"
)
_NOT_COUNTED = (
    "not counted: NCCL, 544 to 688 MB for each group on A100 (nccl#964), and a context for each"
    " additional process"
)


def estimate_overhead(cuda_version: str | None, *, included: bool = False) -> Overhead:
    """Return the estimate for one process on one GPU; `included` is copied into it."""
    lazy = cuda_version is None or tuple(map(int, cuda_version.split("."))) >= LAZY_SINCE
    return Overhead(
        included=included,
        context_bytes=LAZY_CONTEXT_BYTES if lazy else EAGER_CONTEXT_BYTES,
        library_bytes=LIBRARY_BYTES,
        sources=(_LAZY_SOURCE if lazy else _EAGER_SOURCE, _LIBRARY_SOURCE, _NOT_COUNTED),
    )
