"""Placement: which device a program gets, claims on GPUs, and the command that runs on them."""

from gpucheck.report.documents import DOCUMENTS, Document

DOCUMENTS.update(
    {
        "claims": Document(results=("gpucheck.place.model:ClaimList",), view="gpucheck.place.view"),
        "place": Document(results=("gpucheck.place.model:Placement",), view="gpucheck.place.view"),
    }
)
