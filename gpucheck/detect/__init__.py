"""Usability of the GPUs: the checks, from the PCI bus to a running kernel, and the verdict."""

from gpucheck.report.documents import DOCUMENTS, Document

DOCUMENTS.update(
    {
        "detect": Document(
            results=("gpucheck.detect.model:Catalogue", "gpucheck.detect.model:Detection"),
            view="gpucheck.detect.view",
            verdicts="gpucheck.detect.mappings:verdicts",
            metrics="gpucheck.detect.mappings:metrics",
            records="gpucheck.detect.view:records",
        ),
        "log": Document(
            results=("gpucheck.detect.log:LogVerdict",), view="gpucheck.detect.log_view"
        ),
        "process": Document(
            results=("gpucheck.detect.model:ProcessAnswer",), view="gpucheck.detect.process_view"
        ),
        "wheel": Document(
            results=("gpucheck.detect.wheels:WheelChoices",), view="gpucheck.detect.wheels_view"
        ),
    }
)
