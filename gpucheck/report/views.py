"""Registry of the views: what each feature shows of its documents in the formats."""

from __future__ import annotations

from importlib import import_module
from types import MappingProxyType
from typing import Any

#: Document -> module of its view. `build(report, view)` returns the rich renderable of the table;
#: `rows(report, view)` the heading and the rows of CSV; `LINES` has a function of the result for
#: each format that is lines to copy.
VIEWS = MappingProxyType(
    {
        "list": "gpucheck.inventory.view",
        "detect": "gpucheck.detect.view",
        "place": "gpucheck.place.view",
        "claims": "gpucheck.place.view",
        "bench": "gpucheck.bench.view",
        "burn": "gpucheck.bench.burn_view",
        "compare": "gpucheck.bench.ci.view",
        "profile": "gpucheck.bench.ci.view",
        "memlimit": "gpucheck.memlimit.view",
    }
)


def open_view(command: str) -> Any:
    """Return the view module of a document."""
    return import_module(VIEWS[command])
