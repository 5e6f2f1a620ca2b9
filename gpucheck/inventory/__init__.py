"""GPUs of this machine: which there are, what each layer calls them, and which are hidden."""

from gpucheck.report.documents import DOCUMENTS, Document

DOCUMENTS.update(
    {
        "list": Document(
            results=("gpucheck.inventory.model:Inventory",),
            view="gpucheck.inventory.view",
            metrics="gpucheck.inventory.metrics:metrics",
            rows="gpucheck.inventory.view:rows",
            records="gpucheck.inventory.view:records",
        ),
        "snapshot": Document(results=("gpucheck.drivers.recorded:Snapshot",)),
    }
)
