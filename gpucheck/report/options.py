"""Declarations of options: what a command line may say, beside the values that it sets.

A parameter's default declares one, and so does a field's of a request that is made of options:
`size: int | None = option("--size N", "Edge of the arrays.")`. The command line makes of it what
its parser, its help, its completion and its file of defaults need.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from os import PathLike, fspath
from typing import Any, NamedTuple, TypeVar, get_args, get_type_hints

from gpucheck.report.errors import WrongUseError, check_argument

T = TypeVar("T")


class Option(NamedTuple):
    """Declaration of an option or argument; one whose default is `...` must be given.

    `usage` has its words and the name of its value: "--device, -d LIST"; an argument has no words.
    One whose default is a tuple may be given several times, and with `commas` between its values.
    `group` is its heading in --help, and that of those declared after it. `not_with` names the
    options that it contradicts.
    """

    usage: str
    help: str
    default: Any = None
    group: str | None = None
    commas: bool = False
    not_with: str = ""

    @property
    def words(self) -> list[str]:
        """Return what may be typed: "--device" and "-d"."""
        return [word.strip(",") for word in self.usage.split() if word.startswith("-")]

    @property
    def value_name(self) -> str | None:
        """Return the name of its value; None for a flag, and for a choice that names its values."""
        last = self.usage.split()[-1] if self.words else self.usage
        return None if last in self.words else last

    @property
    def repeats(self) -> bool:
        """Return whether it may be given several times."""
        return isinstance(self.default, tuple) or self.usage.endswith("...")

    @property
    def long(self) -> str:
        """Return its long word, such as "--device"; nothing for an argument."""
        return self.words[0].partition("/")[0] if self.words else ""


def option(usage: str, text: str, default: Any = None, **more: Any) -> Any:
    """Declare an option or argument as the default of a parameter or field, which has its type."""
    return Option(usage, text, default, **more)


def flag(usage: str, text: str, **more: Any) -> Any:
    """Declare an option without a value."""
    return Option(usage, text, default=False, **more)


def words(usage: str, text: str, default: tuple[str, ...] = (), **more: Any) -> Any:
    """Declare an option that may be given several times, or with commas between its values."""
    return Option(usage, text, default, **{"commas": True, **more})


def made_of_options(kind: type[T]) -> type[T]:
    """Move the declarations out of a request's defaults to its OPTIONS, where the values stay.

    It is a named tuple, or a class that is not yet a dataclass.
    """
    defaults: Mapping[str, Any] = getattr(kind, "_field_defaults", None) or vars(kind)
    options = {name: item for name, item in defaults.items() if isinstance(item, Option)}
    if issubclass(kind, tuple):
        values = (getattr(item, "default", item) for item in defaults.values())
        kind.__new__.__defaults__ = tuple(value for value in values if value is not ...)
    else:
        for name, item in options.items():
            if item.default is ...:
                delattr(kind, name)
            else:
                setattr(kind, name, item.default)
    kind.OPTIONS = options  # type: ignore[attr-defined]
    return kind


def options_of(kind: object) -> Mapping[str, Option]:
    """Return the declarations of a request by the names of its fields; of others none."""
    options: Mapping[str, Option] = getattr(kind, "OPTIONS", {})
    return options


def command_words(request: Any, leave_out: Collection[str] = ()) -> list[str]:
    """Return the words of a command line that ask for what a request does not have by default."""
    typed: list[str] = []
    for name, item in options_of(request).items():
        value = getattr(request, name)
        if name in leave_out or value == item.default:
            continue
        if isinstance(value, float) and float(f"{value:g}") == value:
            value = f"{value:g}"
        values = [",".join(value)] if item.commas else value if item.repeats else [value]
        for part in values:
            text = str(getattr(part, "text", part))  # an amount as it was written
            typed += [item.long] if value is True else [item.long, text] if item.long else [text]
    return typed


# ------------------------------------------------------------------------ arguments in Python


def check_arguments(kind: type, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a request from the arguments of a call, checked by the fields' types.

    An argument has the name of its field, or that of its option; the others are no fields.

    Raises:
        WrongUseError: one has another type, or a word that it does not take.
    """
    options, types = options_of(kind), get_type_hints(kind)
    fields = {item.long.removeprefix("--"): name for name, item in options.items()}
    values = {}
    for argument, value in arguments.items():
        name = fields.get(argument, argument)
        if name in types:
            values[name] = _checked(argument, value, types[name], options.get(name))
    return values


def _checked(name: str, value: Any, kind: Any, declared: Option | None) -> Any:
    from enum import StrEnum
    from numbers import Integral, Real

    from gpucheck.report.units import Amount, parse_amount

    kinds = get_args(kind) or (kind,)
    if value is None and type(None) in kinds:
        return None
    if declared is not None and declared.repeats:
        wants = "a text, or several in a list"
        check_argument(name, value, wants, str, Iterable)
        texts = [value] if isinstance(value, str) else list(value)
        for text in texts:
            check_argument(name, text, wants, str)
        return (split_words(texts) if declared.commas else tuple(texts)) or declared.default
    if issubclass(kinds[0], StrEnum):
        if value not in list(kinds[0]):
            message = f"{name} takes {', '.join(kinds[0])}, not {str(value)[:40]!r}."
            raise WrongUseError(code="usage", message=message)
        return kinds[0](value)
    if kinds[0] is Amount:
        check_argument(name, value, "a text such as '8GiB' or '30%'", str)
        return parse_amount(value)
    if declared is not None and "FILE" in declared.usage:
        check_argument(name, value, "a path", str, PathLike)
        return fspath(value)
    types = {
        bool: ("True or False", bool),
        int: ("a whole number", Integral),
        float: ("a number", Real),
        str: ("a text", str),
    }
    check_argument(name, value, *types[kinds[0]])
    return value


def split_words(values: Iterable[str]) -> tuple[str, ...]:
    """Return the words of an option that may be given several times, or with commas."""
    return tuple(word.strip() for value in values for word in value.split(",") if word.strip())
