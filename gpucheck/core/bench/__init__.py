"""The measuring engine: plan, runner, statistics, doubts, comparison, and the kernels."""

from gpucheck.core.bench.engine import run_bench

__all__ = ["run_bench"]
