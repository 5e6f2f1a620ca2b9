"""Registry of the benchmark kernels: one file and one line each, and what their rows show."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from importlib import import_module
from types import MappingProxyType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpucheck.bench.case import CaseLabel, Kernel
    from gpucheck.bench.model import Fact, Measurement

#: Kernel -> its class, in the module of this folder that is called like the kernel.
_CLASSES = MappingProxyType(
    {
        "matmul": "Matmul",
        "softmax": "Softmax",
        "copy": "Copy",
        "triad": "Triad",
        "transfer": "Transfer",
        "launch": "Launch",
        "train": "Train",
        "batch": "Batch",
        "towers": "Towers",
        "p2p": "PeerToPeer",
    }
)


class _Kernels(Mapping[str, "Kernel"]):
    """Kernels by name, each imported when it is looked up: --help needs no more than the names."""

    def __getitem__(self, name: str) -> Kernel:
        return _open(name)

    def __iter__(self) -> Iterator[str]:
        return iter(_CLASSES)

    def __len__(self) -> int:
        return len(_CLASSES)


@cache
def _open(name: str) -> Kernel:
    cls = _CLASSES[name]
    kernel: Kernel = getattr(import_module(f"{__name__}.{name}"), cls)()
    return kernel


KERNELS: Mapping[str, Kernel] = _Kernels()


@cache
def kernels_with(trait: str) -> frozenset[str]:
    """Return the kernels with this attribute of `Kernel`, such as `measures_link`."""
    return frozenset(name for name, kernel in KERNELS.items() if getattr(kernel, trait))


def needs_host(row: CaseLabel | Measurement, facts: Mapping[str, Fact]) -> bool:
    """Return whether the host's speed is in a row's time, and not the GPU's alone.

    A framework hands over every operation by itself, in its own process.
    """
    if row.device == "cpu" or row.scope != "resident" or row.framework is not None:
        return True
    return row.kernel in kernels_with("runs_with_host") or "timed_by" in facts
