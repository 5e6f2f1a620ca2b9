"""Benchmark engine: plan, scheduler, sampler, statistics, doubts, comparisons and kernels."""

from gpucheck.core.bench.engine import run_bench

__all__ = ["run_bench"]
