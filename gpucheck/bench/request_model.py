"""Request for a benchmark: what to measure, how thoroughly, and with which data."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from gpucheck.report.options import flag, made_of_options, option, words

#: Options that decide themselves what is measured.
DECIDE = "--profile --burn --peaks"


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
@made_of_options
class BenchRequest:
    """Benchmark request, and its options.

    `kernels` empty means every registered kernel, `dtypes` empty each kernel's own for the mode.
    `devices` holds `cpu`, `gpu`, `gpu:<cuda_index>` or `all`. `size` is the edge of the square
    problem (of the training kernels: the batch size), None for the mode's own. `budget_s` is the
    time for all of it, None for the mode's own. `frameworks` holds `NAME` or `NAME=PYTHON`.
    """

    kernels: tuple[str, ...] = words(
        "[KERNEL...]",
        "matmul, softmax, copy, triad, transfer, launch, train, batch, towers, p2p [default: all].",
        group="What to measure",
        not_with=DECIDE,
        commas=False,
    )
    devices: tuple[str, ...] = words(
        "--device, -d LIST", "cpu, gpu, gpu:N or all [default: all].", ("all",)
    )
    dtypes: tuple[str, ...] = words(
        "--dtype LIST",
        "float64, float32, tf32, float16, bfloat16, float8, int8 [default: by kernel].",
        not_with="--profile --burn",
    )
    size: int | None = option(
        "--size N",
        "Edge of the square arrays; when training, the batch.",
        not_with="--profile --peaks",
    )
    frameworks: tuple[str, ...] = words(
        "--framework NAME[=PYTHON]",
        "Run pytorch, tensorflow, jax, cupy, numpy too.",
        not_with="--burn --peaks",
        commas=False,
    )
    mode: BenchMode = BenchMode.DEFAULT
    budget_s: float | None = option(
        "--budget SECONDS",
        "Time for measuring; starting and compiling come on top.",
        group="How long",
        not_with=DECIDE,
    )
    fill: Fill = option(
        "--fill",
        "What the arrays hold; zeros draw less power.",
        Fill.NORMAL,
        group="More on what is measured",
        not_with="--profile --peaks",
    )
    temperature: float = option("--temperature T", "Softmax temperature.", 0.6, not_with=DECIDE)
    towers: int = option("--towers N", "Towers to simulate on one device.", 2, not_with=DECIDE)
    data_file: str | None = option(
        "--data FILE",
        "MNIST file (IDX or NPZ) instead of generated images.",
        not_with=DECIDE,
    )
    seed: int = option("--seed N", "Seed of the random data.", 0, not_with="--profile --peaks")
    same_math: bool = flag(
        "--same-math", "Turn off the frameworks' reduced precision (TF32).", not_with=DECIDE
    )
    samples: SampleDetail = option(
        "--samples",
        "Samples or a summary in the JSON document.",
        SampleDetail.ALL,
        group="Output",
    )
