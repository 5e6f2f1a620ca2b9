"""Stands in for PyTorch: its lazy start of CUDA and its allocator's limit."""

import os

from torch import cuda
from torch.version import __version__

uint8 = "uint8"
cuda.VERSION = __version__


def empty(size, dtype=None, device="cpu"):
    if device == "cpu":
        return None
    cuda._lazy_init()
    ordinal = int(device.partition(":")[2] or cuda.current)
    return cuda.pools[ordinal].take(size, cuda.refuse)


if os.environ.get("STUB_BREAK_TORCH"):
    del cuda._lazy_call
