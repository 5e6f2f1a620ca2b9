"""Request for a benchmark: what to measure, how thoroughly, and with which data."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class BenchMode(StrEnum):
    """Thoroughness: about 10 seconds, about a minute, or about 5 minutes."""

    QUICK = "quick"
    DEFAULT = "default"
    FULL = "full"


class SampleDetail(StrEnum):
    """Amount of samples in a document: all of them or only a summary."""

    ALL = "all"
    SUMMARY = "summary"


class Fill(StrEnum):
    """Content of the arrays: random normal numbers, or zeros, which draw less power."""

    NORMAL = "normal"
    ZEROS = "zeros"


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchRequest:
    """Benchmark request.

    `kernels` empty means every registered kernel, `dtypes` empty each kernel's own for the mode.
    `devices` holds `cpu`, `gpu`, `gpu:<cuda_index>` or `all`. `size` is the edge of the square
    problem (of the training kernels: the batch size), None for the mode's own. `budget_s` is the
    time for all of it, None for the mode's own. `temperature` is softmax's, `towers` the number of
    simulated towers, `data_file` the path of real MNIST for the training kernels. `frameworks`
    holds `NAME` or `NAME=PYTHON`; `same_math` turns off their arithmetic of reduced precision.
    """

    kernels: tuple[str, ...] = ()
    devices: tuple[str, ...] = ("all",)
    size: int | None = None
    dtypes: tuple[str, ...] = ()
    mode: BenchMode = BenchMode.DEFAULT
    budget_s: float | None = None
    seed: int = 0
    samples: SampleDetail = SampleDetail.ALL
    fill: Fill = Fill.NORMAL
    temperature: float = 0.6
    towers: int = 2
    data_file: str | None = None
    frameworks: tuple[str, ...] = ()
    same_math: bool = False
