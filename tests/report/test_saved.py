"""Documents read back: the records that they came from, or one sentence of what is wrong."""

from __future__ import annotations

import copy
import gzip
import io
import json
import tarfile
import tomllib
import zipfile
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpucheck.cli.commands import TO_EVALUATE, formats_of, load_documents
from gpucheck.report.codec import to_plain
from gpucheck.report.documents import DOCUMENTS
from gpucheck.report.formats import open_format
from gpucheck.report.formats.json import document
from gpucheck.report.saved import (
    DocumentError,
    SavedDocument,
    read_document,
    unpacked,
)
from gpucheck.report.text import View
from tests.fakes.documents import NAMES, PRETENDED, documents, pretended
from tests.sampling import examples
from tests.schemas import NOTES, RESULTS

MOST = 1 << 20


def encoded(plain: Any) -> bytes:
    return json.dumps(plain).encode()


def read(plain: Any) -> SavedDocument:
    return read_document(encoded(plain), MOST, load_documents())


def refused(content: bytes, most_bytes: int = MOST) -> DocumentError:
    with pytest.raises(DocumentError) as caught:
        read_document(content, most_bytes, load_documents())
    return caught.value


def changed(name: str, **fields: Any) -> dict[str, Any]:
    """Return a document with other values in its envelope."""
    return {**documents()[name], **fields}


# ----------------------------------------------------------------------------------- what is ours


def test_there_is_a_document_of_every_kind() -> None:
    kinds = {plain["schema"].split("/")[1] for plain in documents().values()}

    assert sorted(documents()) == NAMES
    assert kinds == {*RESULTS} - {"snapshot"}


@pytest.mark.parametrize("name", NAMES)
def test_a_document_is_read_back_whole(name: str) -> None:
    report, plain, ignored = read(documents()[name])

    assert document(report) == plain == documents()[name]
    assert ignored == ()


@pytest.mark.parametrize("name", PRETENDED)
def test_the_records_are_the_same_again(name: str) -> None:
    report = pretended()[name]

    assert read(document(report))[0] == report


@pytest.mark.parametrize("name", NAMES)
def test_fields_of_a_newer_version_are_left_out_and_named(name: str) -> None:
    plain = copy.deepcopy(documents()[name])
    plain["later"] = 1
    plain["host"]["rack"] = {"deep": [1]}
    if plain["result"] is not None:
        plain["result"]["zz_new"] = "x"

    report, _, ignored = read(plain)

    assert document(report) == documents()[name]
    expected = ["$.host.rack", "$.later"] + ["$.result.zz_new"] * (plain["result"] is not None)
    assert sorted(ignored) == expected


def test_fields_that_came_later_have_defaults() -> None:
    """An older document lacks what schemas.toml calls `later`."""
    notes = tomllib.loads(NOTES.read_text(encoding="utf-8"))
    for name, types in RESULTS.items():
        for record in _records(*types):
            later = {
                *notes.get(record.__name__, {}).get("later", ()),
                *notes.get(f"{name}.{record.__name__}", {}).get("later", ()),
            }
            fields = {key.rstrip("_") for key in _without_default(record)}
            assert later & fields <= SINCE_THE_FIRST.get(record.__name__, set()), record


#: The schemas do not require them, but every version has written them.
SINCE_THE_FIRST = {
    "ClaimList": {"directory"},
    "ComparedRow": {"first_count", "second_count"},
    "Comparison": {"sentence"},
    "ComparisonSide": {"threads", "dtype"},
    "Detection": {"conclusion"},
    "Gate": {"device"},
    "RunGpu": {"index"},
}


def _records(*roots: type) -> Iterator[Any]:
    from tests.schemas import _uses

    yield from _uses(roots)


def _without_default(record: Any) -> set[str]:
    from gpucheck.report.codec import _required

    return set(_required(record))


# ------------------------------------------------------------------------------- what is not ours


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "is empty"),
        (b" \n", "is empty"),
        (b"\x89PNG\r\n\x1a\n" * 9, "is not JSON, or was cut off: it is not text"),
        (b"\x00\xff\xfe\x01" * 9, "is not JSON, or was cut off: Expecting value"),
        (b'{"schema": "gpucheck/li', "is not JSON, or was cut off: Unterminated string"),
        (b"[" * 100_000, "is not JSON, or was cut off: too deep"),
        (b"[1]", "is JSON, but not a gpucheck document"),
        (b"{}", "is not a gpucheck document: it has no schema"),
        (b'{"schema": 7}', "is not a gpucheck document: its schema is '7'"),
        (b'{"schema": "sarif"}', "is not a gpucheck document: its schema is 'sarif'"),
        (b'{"schema": "gpucheck/list/1", "x": NaN}', "NaN is not a number in JSON"),
        (b'{"schema": "gpucheck/list/1"}', "is damaged: $.tool: is missing"),
        (b'{"a": 1}\n{"a": 2}\n', "holds 2 documents, one on each line"),
        (gzip.compress(b'{"schema": 7}')[:-6], "is packed by gzip, and was cut off"),
        (b"\x1f\x8b" + bytes(30), "is packed by gzip, and damaged"),
        (b"9" * 5000, "is not JSON, or was cut off"),
    ],
    ids=lambda value: value[:30] if isinstance(value, str) else "",
)
def test_what_is_no_document_is_said_in_a_sentence(content: bytes, problem: str) -> None:
    assert problem in refused(content).problem


def test_archives_are_to_be_unpacked() -> None:
    packed, taped = io.BytesIO(), io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("detect.json", "{}")
    with tarfile.open(fileobj=taped, mode="w:gz") as archive:
        archive.addfile(tarfile.TarInfo("detect.json"))

    assert refused(packed.getvalue()).problem == "is a zip archive"
    assert refused(taped.getvalue()).problem == "is a tar archive"


def test_a_gzip_file_is_unpacked_within_bounds() -> None:
    content = encoded(documents()["detect"])

    _, plain, _ = read_document(gzip.compress(content), MOST, load_documents())

    assert plain == documents()["detect"]
    assert refused(gzip.compress(bytes(MOST + 1))).problem == "is larger than 1 MiB"
    assert refused(bytes(MOST + 1)).problem == "is larger than 1 MiB"
    assert unpacked(gzip.compress(bytes(MOST)), MOST) == bytes(MOST)


@pytest.mark.parametrize("schema", ["gpucheck/list/2", "gpucheck/planets/1"])
def test_another_schema_is_named_with_who_wrote_it(schema: str) -> None:
    tool = {"name": "gpucheck", "version": "9.1"}

    error = refused(encoded(changed("list", schema=schema, tool=tool)))

    assert error.problem == (
        f"is a {schema} document, written by gpucheck 9.1, which gpucheck 0.1.0 does not know"
    )
    assert "newer one" in error.remedy[0]


def test_a_kept_run_has_nothing_to_show() -> None:
    error = refused(b'{"schema": "gpucheck/baseline/1"}')

    assert error.problem.startswith("is a run that bench --save kept")
    assert "gpucheck compare FIRST SECOND" in error.remedy[0]


@pytest.mark.parametrize(
    ("name", "path", "value", "problem"),
    [
        ("list", "gpus.0.memory_total_bytes", -1, "must be at least 0"),
        ("list", "gpus.0.temperature_c", 3.5, "must be a whole number of at most 64 bits"),
        ("list", "gpus.0.memory_total_bytes", 10**30, "must be a whole number"),
        ("list", "gpus.0.name", 7, "must be text"),
        ("list", "gpus.0.state", "fine", "must be one of ok, lost, error"),
        ("bench", "measurements.0.median_s", -0.5, "must be at least 0"),
        ("bench", "measurements.0.shape", "4096", "must be a list"),
        ("detect", "checks.0.summary", None, "must be text"),
        ("detect", "checks", {}, "must be a list"),
        ("peaks", "boards.0.gpus", None, "must be a list"),
    ],
)
def test_a_wrong_value_is_named_with_its_path(
    name: str, path: str, value: Any, problem: str
) -> None:
    plain = copy.deepcopy(dict(documents()[name]))
    *way, last = path.split(".")
    place: Any = plain["result"]
    for step in way:
        place = place[int(step) if step.isdecimal() else step]
    place[last] = value

    said = refused(encoded(plain)).problem

    where = "".join(f"[{step}]" if step.isdecimal() else f".{step}" for step in path.split("."))
    assert said.startswith(f"is damaged: $.result{where}: {problem}")


@pytest.mark.parametrize(
    ("field", "value"),
    [("time", "yesterday"), ("exit_code", 77), ("status", "fine"), ("result", {"gpus": 1})],
)
def test_the_envelope_is_judged_too(field: str, value: Any) -> None:
    assert refused(encoded(changed("error", **{field: value}))).problem.startswith(
        f"is damaged: $.{field}: must"
    )


def test_a_damaged_document_of_another_version_says_so() -> None:
    tool = {"name": "gpucheck", "version": "0.2.0"}

    error = refused(encoded(changed("list", tool=tool, host=None)))

    assert "is damaged (written by gpucheck 0.2.0; this is 0.1.0): $.host" in error.problem
    assert error.remedy


# ---------------------------------------------------------------------------------------- fuzzing

NASTY = st.sampled_from(
    [
        *(None, True, 0, -1, 1, 2**63, 2**64 - 1, 10**30, 1e308, -1e308, 5e-324, -0.0),
        *("", "x", "\x1b[31m\n", "\ud800", "gpu:99999999999", "pass", "a" * 5000),
        *([], {}, [1], ["a"], [[1]], {"a": 1}, [0, 0], [5, 1]),
    ]
).map(copy.deepcopy)


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Yield every container in a document with each of its keys."""
    keys = value if isinstance(value, dict) else range(len(value))
    for key in list(keys):
        yield value, key
        if isinstance(value[key], dict | list):
            yield from _places(value[key])


@st.composite
def mutated(draw: st.DrawFn) -> Any:
    """Return a document of which one to three values are others, missing, or there twice."""
    plain = copy.deepcopy(dict(documents()[draw(st.sampled_from(NAMES))]))
    for _ in range(draw(st.integers(1, 3))):
        places = list(_places(plain))
        holder, key = places[draw(st.integers(0, len(places) - 1))]
        how = draw(st.sampled_from(["other", "other", "missing", "twice"]))
        if how == "other":
            holder[key] = draw(NASTY)
        elif how == "missing":
            del holder[key]
        elif isinstance(holder[key], list):
            holder[key] *= 2
    return plain


@settings(max_examples=examples(60))
@given(mutated(), st.sampled_from([20, 80, 160]), st.sampled_from([-1, 0, 1]))
def test_a_changed_document_is_shown_or_refused_in_a_sentence(
    plain: Any, width: int, verbosity: int
) -> None:
    try:
        report = read(plain)[0]
    except DocumentError:
        return
    view = View(width=width, verbosity=verbosity, saved="saved")
    for name in formats_of(report.command) if DOCUMENTS[report.command].view else ():
        if name in TO_EVALUATE:
            continue
        try:
            text = open_format(name)(report, view)
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
            continue  # `show` says that its values contradict each other
        assert "\x1b" not in text


def test_reading_changes_nothing() -> None:
    plain = documents()["detect"]
    before = copy.deepcopy(plain)

    report, _, _ = read(plain)

    assert plain == before
    assert to_plain(report.result) == plain["result"]
