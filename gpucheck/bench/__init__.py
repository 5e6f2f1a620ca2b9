"""Benchmarks: how fast the CPU and the GPUs are, compared with the hardware and each other."""

from gpucheck.report.documents import DOCUMENTS, Document

DOCUMENTS.update(
    {
        "bench": Document(
            results=("gpucheck.bench.model:BenchResult",),
            view="gpucheck.bench.view",
            verdicts="gpucheck.bench.ci.verdicts:verdicts",
            seconds="gpucheck.bench.ci.verdicts:seconds",
            metrics="gpucheck.bench.records:metrics",
            rows="gpucheck.bench.records:rows",
            records="gpucheck.bench.records:records",
        ),
        "burn": Document(
            results=("gpucheck.bench.model:BurnResult",),
            view="gpucheck.bench.burn_view",
            verdicts="gpucheck.bench.ci.verdicts:verdicts",
            seconds="gpucheck.bench.ci.verdicts:seconds",
            metrics="gpucheck.bench.records:burn_metrics",
            records="gpucheck.bench.records:records",
        ),
        "compare": Document(
            results=("gpucheck.bench.ci.model:RunComparison",),
            view="gpucheck.bench.ci.view",
            verdicts="gpucheck.bench.ci.verdicts:verdicts",
            seconds="gpucheck.bench.ci.verdicts:seconds",
            rows="gpucheck.bench.records:compared_rows",
            records="gpucheck.bench.records:records",
        ),
        "peaks": Document(
            results=("gpucheck.bench.boards:Peaks",), view="gpucheck.bench.peaks_view"
        ),
        "profile": Document(
            results=("gpucheck.bench.ci.profile_model:ProfileResult",),
            view="gpucheck.bench.ci.profile_view",
        ),
    }
)
