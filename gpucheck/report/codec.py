"""Codec between records (named tuples, dataclasses) and plain JSON values, strict about types."""

from __future__ import annotations

import inspect
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
    if isinstance(value, Enum):
        return value.value
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    cls: Any = type(value)
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
    return typing.cast("T", _decode(cls, value, where, ignored))


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


@cache
def _form(hint: Any) -> tuple[Any, tuple[Any, ...]]:
    """Return what a type is made of: `tuple` and `(int, ...)` for `tuple[int, ...]`."""
    return typing.get_origin(hint), typing.get_args(hint)


def _decode(hint: Any, value: object, where: str, ignored: _Ignored) -> object:
    if isinstance(hint, str | typing.ForwardRef):
        hint = _RECURSIVE[hint if isinstance(hint, str) else hint.__forward_arg__]
    origin, arms = _form(hint)
    if hint is Any or hint is object:
        return value
    if origin in (types.UnionType, typing.Union):
        return _decode_union(arms, value, where, ignored)
    if origin is tuple:
        return _decode_tuple(arms, value, where, ignored)
    if origin in (dict, Mapping):
        items = _expect(dict, value, where, "an object").items()
        return {str(key): _decode(arms[1], item, f"{where}.{key}", ignored) for key, item in items}
    if isinstance(hint, type) and is_record(hint):
        return _decode_record(hint, value, where, ignored)
    if isinstance(hint, type) and issubclass(hint, Enum):
        try:
            return hint(value)
        except ValueError:
            known = ", ".join(str(member.value) for member in hint)
            raise DecodeError(where, f"must be one of {known}") from None
    return _decode_scalar(hint, value, where)


def _decode_union(arms: tuple[Any, ...], value: object, where: str, ignored: _Ignored) -> object:
    if value is None and type(None) in arms:
        return None
    *others, last = [arm for arm in arms if arm is not type(None)]
    for arm in others:
        try:
            return _decode(arm, value, where, ignored)
        except DecodeError:
            continue
    return _decode(last, value, where, ignored)


def _decode_tuple(
    arms: tuple[Any, ...], value: object, where: str, ignored: _Ignored
) -> tuple[object, ...]:
    items = _expect(list, value, where, "a list")
    if len(arms) == 2 and arms[1] is Ellipsis:
        return tuple(
            _decode(arms[0], item, f"{where}[{i}]", ignored) for i, item in enumerate(items)
        )
    if len(items) != len(arms):
        raise DecodeError(where, f"must have {len(arms)} items, has {len(items)}")
    pairs = zip(arms, items, strict=True)
    return tuple(
        _decode(arm, item, f"{where}[{i}]", ignored) for i, (arm, item) in enumerate(pairs)
    )


def _decode_record(cls: type, value: object, where: str, ignored: _Ignored) -> object:
    given = dict(_expect(dict, value, where, "an object"))
    hints = _hints(cls)
    arguments = {}
    for name, key in _field_keys(cls):
        if key in given:
            arguments[name] = _decode(hints[name], given.pop(key), f"{where}.{key}", ignored)
    if given and ignored is None:
        first = f"{where}.{min(given)}"
        raise DecodeError(first, "is not a known field")
    if ignored is not None:
        ignored += [f"{where}.{key}" for key in sorted(given)]
    absent = [name for name in _required(cls) if name not in arguments]
    if absent:
        first = f"{where}.{absent[0].rstrip('_')}"
        raise DecodeError(first, "is missing")
    build: Callable[..., object] = cls
    return build(**arguments)


@cache
def _required(cls: type) -> tuple[str, ...]:
    parameters = inspect.signature(cls).parameters.values()
    return tuple(item.name for item in parameters if item.default is item.empty)


_WORDS: dict[Any, str] = {
    str: "text",
    int: "a whole number of at most 64 bits",
    float: "a finite number",
    bool: "true or false",
}


def _decode_scalar(hint: Any, value: object, where: str) -> object:
    if isinstance(value, bool) and hint is not bool:
        raise DecodeError(where, f"must be {_WORDS[hint]}")
    # Larger numbers can neither be converted nor shown, and no count is that large.
    fits = not isinstance(value, int) or -(2**63) <= value < 2**64
    if hint is float and isinstance(value, int) and fits:
        return float(value)
    if not fits or (isinstance(value, float) and not math.isfinite(value)):
        raise DecodeError(where, f"must be {_WORDS[hint]}")
    return _expect(hint, value, where, _WORDS[hint])


def _expect(kind: type[T], value: object, where: str, word: str) -> T:
    if not isinstance(value, kind):
        raise DecodeError(where, f"must be {word}")
    return value
