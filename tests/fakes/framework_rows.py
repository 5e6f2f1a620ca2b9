"""Rows of frameworks beside gpucheck's own, as a run would have them; the figures are made up."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from gpucheck.bench.comparison import compare
from gpucheck.bench.framework_conclusions import framework_conclusions, with_framework_doubts
from gpucheck.bench.model import (
    BenchResult,
    FrameworkFacts,
    FrameworkUse,
    Measurement,
    Scope,
    Throughput,
)
from gpucheck.bench.roofline import rooflines_of, with_percentages
from gpucheck.bench.stats import summarise
from tests.fakes.bench import FLOAT32, PYTORCH, RIGHT
from tests.fakes.bench_results import environment, gpu, uuid_of

COMPILED = replace(PYTORCH, form="torch.compile")
TENSORFLOW = FrameworkUse(
    name="tensorflow", version="2.21.0", form="tf.function", python="/tf/bin/python"
)
FACTS = (
    FrameworkFacts(
        name="pytorch",
        version="2.13.0",
        python="/usr/bin/python3",
        build="cpu",
        blas="MKL 2024.2",
        libraries={"oneDNN": "3.7.1"},
        threads_intra=2,
        threads_inter=1,
        math_settings={"allow_tf32": "False"},
    ),
    FrameworkFacts(
        name="tensorflow",
        version="2.21.0",
        python="/tf/bin/python",
        build="cpu",
        blas="oneDNN 3.7.1",
        threads_intra=2,
        threads_inter=1,
    ),
)
_FLOPS, _BYTES = 2 * 2048**3, 2 * 4 * 4096 * 4096


def made_row(
    kernel: str,
    device: str,
    median_s: float,
    framework: FrameworkUse | None = None,
    *,
    variant: str | None = None,
    threads: int | None = None,
    **fields: Any,
) -> Measurement:
    """Return a settled row of a product, a softmax, a copy, or of training."""
    shape = {"matmul": (2048, 2048, 2048), "train": (100,)}.get(kernel, (4096, 4096))
    unit = {"matmul": "FLOP/s", "train": "image/s"}.get(kernel, "B/s")
    amount = {"FLOP/s": _FLOPS, "image/s": 100, "B/s": _BYTES}[unit]
    samples = (median_s,) * 12
    row = Measurement(
        kernel=kernel,
        variant=variant or kernel,
        device=device,
        gpu_uuid=None if device == "cpu" else uuid_of(device),
        dtype=FLOAT32,
        shape=shape,
        scope=Scope.RESIDENT,
        framework=framework,
        threads=threads or (2 if device == "cpu" else None),
        parameters={"temperature": 0.6} if kernel == "softmax" else {},
        flops=_FLOPS if unit == "FLOP/s" else 4 * 785 * 10 * 100 if kernel == "train" else 0,
        bytes_moved=_BYTES,
        loops=1,
        samples_s=samples,
        round_sizes=(4, 4, 4),
        round_medians_s=samples[:3],
        cold_s=2 * median_s,
        summary=summarise(samples),
        time_s=median_s,
        ci95_s=(median_s * 0.998, median_s * 1.002),
        repeat95_s=(median_s * 0.996, median_s * 1.004),
        converged=True,
        throughput=Throughput(value=amount / median_s, unit=unit),
        verified=RIGHT,
    )
    return replace(row, **fields)


def made_result(*rows: Measurement, facts: tuple[FrameworkFacts, ...] = FACTS) -> BenchResult:
    """Return the result that a run would draw from these rows."""
    devices = dict.fromkeys(row.device for row in rows if row.device != "cpu")
    gpus = tuple(gpu(device) for device in devices)
    rooflines = rooflines_of(rows)
    judged = with_framework_doubts([with_percentages(row, rooflines, gpus) for row in rows], facts)
    comparisons = compare(judged)
    return BenchResult(
        measurements=tuple(judged),
        comparisons=comparisons,
        environment=environment(gpus, rooflines=rooflines, frameworks=facts),
        conclusions=framework_conclusions(judged, comparisons, facts, "openblas 0.3.31 (SkylakeX)"),
    )


def on_cpu() -> tuple[Measurement, ...]:
    """Return a processor's rows: TensorFlow multiplies faster, gpucheck's softmax is faster."""
    return (
        made_row("matmul", "cpu", 0.0880, variant="blas"),
        made_row("matmul", "cpu", 0.1680, variant="blas-1-thread", threads=1),
        made_row("matmul", "cpu", 0.1087, PYTORCH),
        made_row("matmul", "cpu", 0.0834, TENSORFLOW),
        made_row("softmax", "cpu", 0.00715, variant="fused"),
        made_row("softmax", "cpu", 0.0561, PYTORCH),
        made_row("softmax", "cpu", 0.0118, COMPILED, cold_s=2.5),
        made_row("softmax", "cpu", 0.0127, TENSORFLOW),
        made_row("copy", "cpu", 0.00588, variant="memcpy"),
        made_row("train", "cpu", 0.00021, variant="numpy", facts={"accuracy": 0.898}),
        made_row("train", "cpu", 0.00052, PYTORCH, facts={"accuracy": 0.899}),
    )


def on_gpu() -> tuple[Measurement, ...]:
    """Return a GPU's rows: the product is fast, and training waits for the host."""
    return (
        made_row("matmul", "gpu:0", 0.0005, variant="cublas"),
        made_row("matmul", "gpu:0", 0.0010, PYTORCH),
        made_row("matmul", "gpu:0", 0.1300, PYTORCH, scope=Scope.END_TO_END),
        made_row("train", "gpu:0", 0.00002, variant="fused"),
        made_row("train", "gpu:0", 0.00074, PYTORCH, facts={"enqueue_share": 0.97}),
    )
