"""Fleet: the documents of many machines read together, compared and judged."""

from gpucheck.report.documents import DOCUMENTS, Document

DOCUMENTS.update(
    {
        "fleet": Document(
            results=("gpucheck.fleet.model:FleetReport",),
            view="gpucheck.fleet.view",
            verdicts="gpucheck.fleet.view:verdicts",
            metrics="gpucheck.fleet.view:metrics",
            records="gpucheck.fleet.view:records",
        ),
    }
)
