"""Codec between records (named tuples, dataclasses) and plain JSON values, strict about types."""

from __future__ import annotations

import itertools
import math
import sys
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from functools import cache
from typing import Any, TypeVar

T = TypeVar("T")
#: Receives the paths of unknown fields; None refuses them.
_Ignored = list[str] | None


#: Classes whose values are plain already; asked first, since they are most of a document.
_PLAIN = frozenset({str, int, bool, type(None)})


class DecodeError(ValueError):
    """A plain value that does not fit the record; `where` is a JSON path."""

    def __init__(self, where: str, problem: str) -> None:
        super().__init__(f"{where}: {problem}")
        self.where = where
        self.problem = problem


def to_plain(value: object) -> Any:
    """Return `value` as dicts, lists, strings, numbers, booleans and null.

    A field named `from_` becomes `from`. Infinities and NaN have no JSON form and become null.
    """
    cls: Any = type(value)
    if cls in _PLAIN:
        return value
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, (str, int)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if is_record(cls):
        return {key: to_plain(getattr(value, name)) for name, key in _field_keys(cls)}
    if isinstance(value, Mapping):
        return {str(key): to_plain(item) for key, item in value.items()}
    if isinstance(value, tuple | list | frozenset | set):
        return [to_plain(item) for item in value]
    raise TypeError(type(value).__name__)


def is_record(cls: type) -> bool:
    """Return whether values of this class have named fields."""
    return hasattr(cls, "_fields") or hasattr(cls, "__dataclass_fields__")


@cache
def _field_keys(cls: Any) -> tuple[tuple[str, str], ...]:
    names = getattr(cls, "_fields", None) or tuple(cls.__dataclass_fields__)
    return tuple((name, name.rstrip("_")) for name in names)


def from_plain(
    cls: type[T], value: object, *, where: str = "$", ignored: list[str] | None = None
) -> T:
    """Build `cls` from plain values, refusing wrong types and missing keys.

    Unknown keys are refused too, unless `ignored` receives their JSON paths.

    Raises:
        DecodeError: with the JSON path of the first thing that does not fit.
    """
    hint: Any = cls
    return typing.cast("T", _decoder(hint)(value, (None, where), ignored))


@cache
def _hints(cls: type) -> dict[str, Any]:
    hints = typing.get_type_hints(cls)
    for name in {name for hint in hints.values() for name in _own_names(hint)}:
        _RECURSIVE[name] = getattr(sys.modules[cls.__module__], name)
    return hints


#: Types that contain themselves, by the name that stands in them: `float | tuple["Value", ...]`.
_RECURSIVE: dict[str, Any] = {}


def _own_names(hint: Any) -> Iterator[str]:
    """Yield the names that stand for types inside a type."""
    if isinstance(hint, typing.ForwardRef):
        yield hint.__forward_arg__
    elif typing.get_origin(hint) is not typing.Literal:
        for arm in typing.get_args(hint):
            yield from _own_names(arm)


#: Where a value stands in its document: the path of what it is part of, and its own last piece.
#: Only an error or an unknown field asks for the text of it.
_Path = tuple[Any, str] | None
_Decoder = Callable[[object, _Path, _Ignored], object]


def _where(path: _Path) -> str:
    pieces = []
    while path is not None:
        path, piece = path
        pieces.append(piece)
    return "".join(reversed(pieces))


@cache
def _decoder(hint: Any) -> _Decoder:
    """Return the decoder of a type's values."""
    if isinstance(hint, str | typing.ForwardRef):
        return _recursive_decoder(hint if isinstance(hint, str) else hint.__forward_arg__)
    if hint is Any or hint is object:
        return lambda value, path, ignored: value
    origin, arms = typing.get_origin(hint), typing.get_args(hint)
    if origin in (types.UnionType, typing.Union):
        return _union_decoder(arms)
    if origin is tuple:
        return _tuple_decoder(arms)
    if origin in (dict, Mapping):
        return _mapping_decoder(arms[1])
    if isinstance(hint, type) and is_record(hint):
        return _record_decoder(hint)
    if isinstance(hint, type) and issubclass(hint, Enum):
        return _enum_decoder(hint)
    return lambda value, path, ignored: _decode_scalar(hint, value, path)


def _recursive_decoder(name: str) -> _Decoder:
    """Return a decoder that finds its type with each value: the type contains itself."""
    return lambda value, path, ignored: _decoder(_RECURSIVE[name])(value, path, ignored)


def _union_decoder(arms: tuple[Any, ...]) -> _Decoder:
    takes_none = type(None) in arms
    *others, last = [_decoder(arm) for arm in arms if arm is not type(None)]

    def decode(value: object, path: _Path, ignored: _Ignored) -> object:
        if value is None and takes_none:
            return None
        for other in others:
            try:
                return other(value, path, ignored)
            except DecodeError:
                continue
        return last(value, path, ignored)

    return decode


def _tuple_decoder(arms: tuple[Any, ...]) -> _Decoder:
    decoders = [_decoder(arm) for arm in arms if arm is not Ellipsis]
    is_endless = arms[-1:] == (Ellipsis,)

    def decode(value: object, path: _Path, ignored: _Ignored) -> object:
        items = _expect(list, value, path, "a list")
        if not is_endless and len(items) != len(decoders):
            problem = f"must have {len(decoders)} items, has {len(items)}"
            raise DecodeError(_where(path), problem)
        arm_decoders = itertools.repeat(decoders[0]) if is_endless else decoders
        return tuple(
            decode_item(item, (path, f"[{i}]"), ignored)
            for i, (decode_item, item) in enumerate(zip(arm_decoders, items, strict=False))
        )

    return decode


def _mapping_decoder(arm: Any) -> _Decoder:
    decode_item = _decoder(arm)

    def decode(value: object, path: _Path, ignored: _Ignored) -> object:
        items = _expect(dict, value, path, "an object").items()
        return {str(key): decode_item(item, (path, f".{key}"), ignored) for key, item in items}

    return decode


def _enum_decoder(kind: type[Enum]) -> _Decoder:
    def decode(value: object, path: _Path, ignored: _Ignored) -> object:
        try:
            return kind(value)
        except ValueError:
            known = ", ".join(str(member.value) for member in kind)
            raise DecodeError(_where(path), f"must be one of {known}") from None

    return decode


@cache
def _fields(cls: type) -> dict[str, tuple[str, str, _Decoder]]:
    """Return by key in JSON the name of each field, its piece of a path, and its decoder."""
    hints = _hints(cls)
    return {key: (name, f".{key}", _decoder(hints[name])) for name, key in _field_keys(cls)}


def _record_decoder(cls: type) -> _Decoder:
    build: Callable[..., object] = cls

    def decode(value: object, path: _Path, ignored: _Ignored) -> object:
        given = _expect(dict, value, path, "an object")
        fields = _fields(cls)  # only now: a record may contain itself
        arguments = {
            name: decode_field(given[key], (path, piece), ignored)
            for key, (name, piece, decode_field) in fields.items()
            if key in given
        }
        if len(arguments) < len(given):
            unknown = [f"{_where(path)}.{key}" for key in sorted(given.keys() - fields.keys())]
            if ignored is None:
                raise DecodeError(unknown[0], "is not a known field")
            ignored += unknown
        absent = [name for name in _required(cls) if name not in arguments]
        if absent:
            first = f"{_where(path)}.{absent[0].rstrip('_')}"
            raise DecodeError(first, "is missing")
        return build(**arguments)

    return decode


@cache
def _required(cls: type) -> tuple[str, ...]:
    import inspect  # only what reads documents needs it, and it takes long to import

    parameters = inspect.signature(cls).parameters.values()
    return tuple(item.name for item in parameters if item.default is item.empty)


_WORDS: dict[Any, str] = {
    str: "text",
    int: "a whole number of at most 64 bits",
    float: "a finite number",
    bool: "true or false",
}


def _decode_scalar(hint: Any, value: object, path: _Path) -> object:
    if hint is str and type(value) is str:
        return value
    if isinstance(value, bool) and hint is not bool:
        raise DecodeError(_where(path), f"must be {_WORDS[hint]}")
    # Larger numbers can neither be converted nor shown, and no count is that large.
    fits = not isinstance(value, int) or -(2**63) <= value < 2**64
    if hint is float and isinstance(value, int) and fits:
        return float(value)
    if not fits or (isinstance(value, float) and not math.isfinite(value)):
        raise DecodeError(_where(path), f"must be {_WORDS[hint]}")
    return _expect(hint, value, path, _WORDS[hint])


def _expect(kind: type[T], value: object, path: _Path, word: str) -> T:
    if not isinstance(value, kind):
        raise DecodeError(_where(path), f"must be {word}")
    return value
