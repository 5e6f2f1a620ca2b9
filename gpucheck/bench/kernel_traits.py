"""Kernels by what their rows show, such as memory bandwidth or a link; `Kernel` describes each."""

from __future__ import annotations

from collections.abc import Mapping

from gpucheck.bench.case import CaseLabel
from gpucheck.bench.kernels import KERNELS
from gpucheck.bench.model import Fact, Measurement, Scope

STREAMS, LINKS, BLAS_USERS, WHOLE_TRANSFERS, _WITH_HOST = (
    frozenset(name for name, kernel in KERNELS.items() if getattr(kernel, trait))
    for trait in ("streams", "measures_link", "uses_blas", "transfers_all", "runs_with_host")
)


def needs_host(row: CaseLabel | Measurement, facts: Mapping[str, Fact]) -> bool:
    """Return whether the host's speed is in a row's time, and not the GPU's alone.

    A framework hands over every operation by itself, in its own process.
    """
    on_host = row.device == "cpu" or row.scope is not Scope.RESIDENT or row.framework is not None
    return on_host or row.kernel in _WITH_HOST or "timed_by" in facts
