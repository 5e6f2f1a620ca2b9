"""Registry of the documents: what each one's feature has for readers and formats.

A feature registers its documents in its `__init__.py`, so they are known as soon as anything of it
is imported, and no module here names a feature. What is registered is imported when it is used.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any, NamedTuple


class Document(NamedTuple):
    """What a feature has for one document: modules, and `module:name` of what stands in them.

    `results` are the records of a saved one's result, of which it has one; None if nothing saves
    it. `view` is the module of its view. There `blocks(report, view)` yields what the table shows;
    `LINES` has a function of the result for each format that is lines to copy; `line(result)` is
    the sentence of the format `line`; `charts(report, view)` yields the charts (report/charts.py)
    that --html and --plot draw, each only if the document has its values; `headline(report)` is the
    `Headline` of a page, where `blocks` have none; `shown_codes(report)` are the codes of the error
    and the warnings that `blocks` shows, so that they are not repeated.

    The others are mappings for formats of other systems: `verdicts(result)` and `seconds(result)`
    for JUnit and GitHub (report/verdicts.py), `metrics(report)` for Prometheus (`gauge` of
    report/formats/prometheus.py), `rows(report, view)`, the heading and the rows, for CSV,
    `records(result)`, pairs of a word and a record, for JSON lines.
    """

    results: tuple[str, ...] | None
    view: str | None = None
    verdicts: str | None = None
    seconds: str | None = None
    metrics: str | None = None
    rows: str | None = None
    records: str | None = None


#: Name in the schema -> the document, of the features that are imported; and what fails without
#: one.
DOCUMENTS: dict[str, Document] = {"error": Document(results=())}


def open_view(name: str) -> Any:
    """Return the view module of a document."""
    module = DOCUMENTS[name].view
    assert module is not None, name
    return import_module(module)


def open_mapping(mapping: str, name: str) -> Any:
    """Return the function of a mapping for a document; None if the document has none."""
    document = DOCUMENTS.get(name)
    place = None if document is None else getattr(document, mapping)
    return None if place is None else _load(place)


def result_types(document: Document) -> tuple[type, ...]:
    """Return the records of a saved document's result."""
    return tuple(map(_load, document.results or ()))


def _load(place: str) -> Any:
    module, _, name = place.partition(":")
    return getattr(import_module(module), name)
