"""Records to JSON values and, strictly, back."""

from __future__ import annotations

import json
import math
import re
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from functools import cache
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucheck.drivers.readings import PairReading
from gpucheck.drivers.recorded import Snapshot
from gpucheck.report.codec import DecodeError, from_plain, is_record, to_plain


class Color(StrEnum):
    """An enum as in the documents."""

    RED = "red"
    BLUE = "blue"


class Inner(NamedTuple):
    """A named tuple as on the start-up path."""

    count: int
    color: Color = Color.RED


@dataclass(frozen=True, slots=True, kw_only=True)
class Outer:
    """A dataclass as elsewhere, with every kind of field."""

    text: str
    number: float
    flag: bool
    maybe: int | None
    from_: int = 0
    inner: Inner | None = None
    many: tuple[Inner, ...] = ()
    pair: tuple[float, float] | None = None
    table: Mapping[str, int] = field(default_factory=dict)
    fact: str | int | float = 0
    anything: object = None


PLAIN: dict[str, Any] = {"text": "x", "number": 1.5, "flag": True, "maybe": 3}


# -------------------------------------------------------------------------------------- to plain


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_json_cannot_say_is_null(value: float) -> None:
    assert to_plain(value) is None
    assert to_plain(Outer(text="", number=value, flag=True, maybe=None))["number"] is None


def test_a_trailing_underscore_is_dropped() -> None:
    plain = to_plain(PairReading(from_=1, to=2, level=None))

    assert plain == {"from": 1, "to": 2, "level": None, "unavailable": None}
    assert from_plain(PairReading, plain) == PairReading(from_=1, to=2, level=None)


def test_every_kind_of_value() -> None:
    class Level(IntEnum):
        LOW = 1

    given_ = {"a": (Color.BLUE, Level.LOW), "b": [True, None, 1, 1.5], "c": Inner(count=1)}

    assert to_plain(given_) == {
        "a": ["blue", 1],
        "b": [True, None, 1, 1.5],
        "c": {"count": 1, "color": "red"},
    }


def test_what_is_no_value_is_refused() -> None:
    with pytest.raises(TypeError, match="bytes"):
        to_plain({"a": b"x"})


@pytest.mark.parametrize(
    ("kind", "expected"), [(Inner, True), (Outer, True), (tuple, False), (dict, False)]
)
def test_records(kind: type, *, expected: bool) -> None:
    assert is_record(kind) is expected


# ------------------------------------------------------------------------------------ from plain


def decode(**changes: object) -> Outer:
    return from_plain(Outer, PLAIN | changes)


def test_defaults_may_be_left_out() -> None:
    assert decode() == Outer(text="x", number=1.5, flag=True, maybe=3)


@pytest.mark.parametrize(
    ("name", "plain", "value"),
    [
        ("number", 2, 2.0),
        ("maybe", None, None),
        ("from", 4, 4),
        ("inner", {"count": 1, "color": "blue"}, Inner(count=1, color=Color.BLUE)),
        ("inner", None, None),
        ("many", [{"count": 1}, {"count": 2}], (Inner(count=1), Inner(count=2))),
        ("pair", [1, 2.5], (1.0, 2.5)),
        ("table", {"a": 1}, {"a": 1}),
        ("fact", "x", "x"),
        ("fact", 1, 1),
        ("fact", 1.5, 1.5),
        ("anything", [{"x": None}], [{"x": None}]),
    ],
)
def test_accepted(name: str, plain: object, value: object) -> None:
    found = getattr(decode(**{name: plain}), {"from": "from_"}.get(name, name))

    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    ("changes", "where", "problem"),
    [
        ({"text": None}, "$.text", "must be text"),
        ({"text": 1}, "$.text", "must be text"),
        ({"text": True}, "$.text", "must be text"),
        ({"number": "1"}, "$.number", "must be a finite number"),
        ({"number": True}, "$.number", "must be a finite number"),
        ({"number": math.nan}, "$.number", "must be a finite number"),
        ({"number": math.inf}, "$.number", "must be a finite number"),
        ({"number": 10**400}, "$.number", "must be a finite number"),
        ({"number": None}, "$.number", "must be a finite number"),
        ({"flag": 1}, "$.flag", "must be true or false"),
        ({"flag": None}, "$.flag", "must be true or false"),
        ({"maybe": False}, "$.maybe", "must be a whole number of at most 64 bits"),
        ({"maybe": 1.0}, "$.maybe", "must be a whole number of at most 64 bits"),
        ({"maybe": 2**64}, "$.maybe", "must be a whole number of at most 64 bits"),
        ({"maybe": "3"}, "$.maybe", "must be a whole number of at most 64 bits"),
        ({"inner": []}, "$.inner", "must be an object"),
        ({"inner": {}}, "$.inner.count", "is missing"),
        ({"inner": {"count": 1, "color": "green"}}, "$.inner.color", "must be one of red, blue"),
        ({"inner": {"count": 1, "color": None}}, "$.inner.color", "must be one of red, blue"),
        ({"inner": {"count": 1, "color": []}}, "$.inner.color", "must be one of red, blue"),
        ({"inner": {"count": 1, "size": 2}}, "$.inner.size", "is not a known field"),
        ({"many": {}}, "$.many", "must be a list"),
        ({"many": None}, "$.many", "must be a list"),
        ({"many": [{"count": 1}, {"count": "1"}]}, "$.many[1].count",
         "must be a whole number of at most 64 bits"),
        ({"pair": [1]}, "$.pair", "must have 2 items, has 1"),
        ({"pair": [1, 2, 3]}, "$.pair", "must have 2 items, has 3"),
        ({"pair": [1, "2"]}, "$.pair[1]", "must be a finite number"),
        ({"table": {"a": "1"}}, "$.table.a", "must be a whole number of at most 64 bits"),
        ({"table": [1]}, "$.table", "must be an object"),
        ({"fact": None}, "$.fact", "must be a finite number"),
        ({"fact": False}, "$.fact", "must be a finite number"),
        ({"from_": 1}, "$.from_", "is not a known field"),
        ({"b": 1, "a": 2}, "$.a", "is not a known field"),
    ],
)  # fmt: skip
def test_refused(changes: dict[str, object], where: str, problem: str) -> None:
    with pytest.raises(DecodeError) as caught:
        decode(**changes)

    assert (caught.value.where, caught.value.problem) == (where, problem)
    assert str(caught.value) == f"{where}: {problem}"


@pytest.mark.parametrize("name", sorted(PLAIN))
def test_a_missing_field_is_named(name: str) -> None:
    plain = {key: value for key, value in PLAIN.items() if key != name}

    with pytest.raises(DecodeError, match=rf"\$\.{name}: is missing"):
        from_plain(Outer, plain)


@pytest.mark.parametrize("value", [None, [], "x", 1, True])
def test_only_an_object_is_a_record(value: object) -> None:
    with pytest.raises(DecodeError, match="result: must be an object"):
        from_plain(Outer, value, where="result")


# ------------------------------------------------------------------------------------ properties

TEXT = st.text(max_size=8)
SCALARS: dict[Any, st.SearchStrategy[Any]] = {
    bool: st.booleans(),
    float: st.floats(allow_nan=False, allow_infinity=False),
    int: st.integers(-(2**63), 2**64 - 1),
    str: TEXT,
    type(None): st.none(),
}


@cache
def values_of(hint: Any) -> st.SearchStrategy[Any]:
    """Draw any value that a field with this annotation may have."""
    arms = typing.get_args(hint)
    if hint in SCALARS:
        return SCALARS[hint]
    if typing.get_origin(hint) is tuple:
        return st.lists(values_of(arms[0]), max_size=1).map(tuple)
    if typing.get_origin(hint) is Mapping:
        return st.dictionaries(TEXT, values_of(arms[1]), max_size=1)
    if arms:
        # Null first: most of a large record is then small.
        return st.one_of([values_of(arm) for arm in reversed(arms)])
    fields = {name: values_of(inner) for name, inner in typing.get_type_hints(hint).items()}
    return st.builds(hint, **fields)


SNAPSHOTS = values_of(Snapshot)


@given(SNAPSHOTS)
def test_a_snapshot_survives_the_round_trip(snapshot: Snapshot) -> None:
    text = json.dumps(to_plain(snapshot), allow_nan=False)

    assert from_plain(Snapshot, json.loads(text)) == snapshot


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
)


@given(snapshot=SNAPSHOTS, data=st.data())
def test_a_damaged_snapshot_is_refused_or_read_never_fatal(
    snapshot: Snapshot, data: st.DataObject
) -> None:
    plain = to_plain(snapshot)
    place: Any = plain
    while True:
        keys = list(place) if isinstance(place, dict) else list(range(len(place)))
        if not keys:
            break
        key = data.draw(st.sampled_from(keys))
        if not isinstance(place[key], dict | list) or data.draw(st.booleans()):
            place[key] = data.draw(JSON)
            break
        place = place[key]

    try:
        found = from_plain(Snapshot, plain)
    except DecodeError as error:
        assert error.where.startswith("$.")  # noqa: PT017 - either outcome is right
    else:
        assert isinstance(found, Snapshot)


Nested = float | tuple["Nested", ...]


class Tree(NamedTuple):
    value: Nested | None = None


def test_a_type_may_contain_itself() -> None:
    tree = Tree(((1.0, 2.0), (3.0, (4.0,))))

    assert from_plain(Tree, to_plain(tree)) == tree
    with pytest.raises(DecodeError, match=re.escape("$.value[1][0]")):
        from_plain(Tree, {"value": [1.0, ["x"]]})
