"""Graph files in TOML: each table is an operation, and errors name the line.

[a]
op = "constant"
shape = [2, 3]
value = [1, 2, 3, 4, 5, 6]

[product]
op = "matmul"
inputs = ["a", "b"]
device = "/gpu:0"      # or "auto", the default
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from gpucheck.drivers.host.toml_file import Required, Source, Table, parse_toml, read_text
from gpucheck.place.device_strings import parse_device
from gpucheck.place.graph import Graph, GraphOp, OpKind
from gpucheck.report.errors import WrongUseError
from gpucheck.report.text import did_you_mean, shown

#: Where the source has graphs, seen from its folder.
EXAMPLES = Path("configs/place")

MOST_OPS = 1000
MOST_DIMENSIONS = 4
#: Half a gigabyte in float32.
MOST_ELEMENTS = 1 << 27
_LARGEST_FLOAT32 = 3.4e38

_NAME = re.compile(r"[A-Za-z0-9_./-]{1,80}")
_KEYS = {
    OpKind.CONSTANT: {"shape", "value"},
    OpKind.MATMUL: {"inputs"},
    OpKind.ADD: {"inputs"},
    OpKind.SOFTMAX: {"inputs", "temperature"},
    OpKind.RELU: {"inputs"},
    OpKind.SUM: {"inputs", "axis"},
}
_EVERY_OP = {"op", "device"}


def read_graph(path: Path) -> Graph:
    """Read and check a graph file.

    Raises:
        WrongUseError: with the file, the line and the problem.
    """
    try:
        text = read_text(path, "graph")
    except WrongUseError as error:
        near = [*Path().glob("*.toml"), *EXAMPLES.glob("*.toml")]
        meant = "" if path.exists() else did_you_mean(str(path), map(str, near))
        error.message = f"{error.message} {meant}".strip()
        raise
    return parse_graph(text, shown(str(path)))


def parse_graph(text: str, path: str) -> Graph:
    """Check a graph's text; `path` stands in the messages.

    Raises:
        WrongUseError: with the file, the line and the problem.
    """
    document, source = parse_toml(text, path, "graph")
    fetch = document.pop("fetch", None)
    description = document.pop("description", "")
    if not isinstance(description, str):
        raise source.error(key="description", problem="description is text")
    if not document:
        raise source.error(problem="it has no operation")
    if len(document) > MOST_OPS:
        raise source.error(problem=f"it has more than {MOST_OPS} operations")
    ops = {name: _read_op(name, table, source) for name, table in document.items()}
    ordered = _order(ops, source)
    known: dict[str, GraphOp] = {}
    for op in ordered:
        known[op.name] = replace(op, shape=_shape_of(op, known, source))
    name = _fetched(fetch, ops, source)
    return Graph(ops=tuple(known.values()), fetch=name, path=path)


# ---------------------------------------------------------------------------------- operations


def _read_op(name: str, table: object, source: Source) -> GraphOp:
    if not isinstance(table, dict):
        # The tables of a list `[[a]]` are a[0], a[1] and so on.
        at = f"{name}[0]" if isinstance(table, list) and source.line_of(f"{name}[0]") else name
        problem = f"{shown(name)} is not an operation: write a table [{shown(name)}]"
        raise source.error(at, problem=problem)
    if not _NAME.fullmatch(name):
        raise source.error(name, problem="a name may have only letters, digits and _ . / -")
    if table and all(isinstance(inner, dict) for inner in table.values()):
        inner = f"{name}.{next(iter(table))}"
        problem = f'a name with a dot needs quotes: write ["{shown(inner)}"]'
        raise source.error(inner, problem=problem)
    keys = Table(table, source, name)
    kind: OpKind = keys.value("op", OpKind, Required(f'"{OpKind.CONSTANT}"'))
    for key in (*_KEYS[kind], *_EVERY_OP):
        keys.raw(key)
    keys.finish()
    shape: tuple[int, ...] = ()
    values: tuple[float, ...] = ()
    if kind is OpKind.CONSTANT:
        shape, values = _constant(name, table, source)
    return GraphOp(
        name=name,
        kind=kind,
        shape=shape,
        inputs=_inputs(keys, kind),
        device=_device(keys),
        values=values,
        temperature=_temperature(name, table, source),
        axis=keys.value("axis", int),
        line=source.line_of(name),
        device_line=source.line_of(name, "device"),
    )


def _inputs(keys: Table, kind: OpKind) -> tuple[str, ...]:
    if kind is OpKind.CONSTANT:
        return ()
    inputs: tuple[str, ...] = keys.value("inputs", tuple, Required('["..."]'))
    least, most = {OpKind.MATMUL: (2, 2), OpKind.ADD: (2, MOST_OPS)}.get(kind, (1, 1))
    if not least <= len(inputs) <= most:
        wanted = "2 or more inputs" if kind is OpKind.ADD else f"{least} input"
        wanted += "s" if kind is OpKind.MATMUL else ""
        problem = f"{kind} takes {wanted}, not {len(inputs)}"
        raise keys.source.error(keys.name, "inputs", problem=problem)
    return inputs


def _device(keys: Table) -> str | None:
    device: str | None = keys.value("device", str)
    if device is None or device == "auto":
        return None
    try:
        parse_device(device)
    except WrongUseError as error:
        problem = error.message.rstrip(".")
        raise keys.source.error(keys.name, "device", problem=problem) from None
    return device


def _temperature(name: str, table: Mapping[str, object], source: Source) -> float:
    value = _number(table.get("temperature", 1.0))
    if value is None or value <= 0:
        raise source.error(name, "temperature", problem="temperature is a number above 0")
    return value


def _number(value: object) -> float | None:
    """Return a number that float32 holds, else None."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if abs(value) < _LARGEST_FLOAT32 else None


def _constant(
    name: str, table: Mapping[str, object], source: Source
) -> tuple[tuple[int, ...], tuple[float, ...]]:
    """Return a constant's shape and its numbers: all of them, or one that fills it."""
    if "value" not in table:
        raise source.error(name, problem="a constant needs a value")
    value = table["value"]
    shape = _written_shape(name, table, source)
    if not isinstance(value, list):
        number = _number(value)
        if number is None:
            raise source.error(
                name, "value", problem="value must have numbers that fit into float32"
            )
        return shape or (), (number,)
    own = _shape_of_list(value)
    if own is None:
        raise source.error(
            name, "value", problem="value has no numbers, or rows of different lengths"
        )
    numbers = [_number(item) for item in _flat(value)]
    if None in numbers:
        raise source.error(name, "value", problem="value must have numbers that fit into float32")
    if shape is None:
        shape = own
    elif math.prod(shape) != len(numbers) or (len(own) > 1 and own != shape):
        problem = f"value has the shape {_form(own)}, but shape says {_form(shape)}"
        raise source.error(name, "value", problem=problem)
    return shape, tuple(number for number in numbers if number is not None)


def _written_shape(
    name: str, table: Mapping[str, object], source: Source
) -> tuple[int, ...] | None:
    if "shape" not in table:
        return None
    shape = table["shape"]
    whole = isinstance(shape, list) and all(
        isinstance(item, int) and not isinstance(item, bool) and item > 0 for item in shape
    )
    if not isinstance(shape, list) or not whole or len(shape) > MOST_DIMENSIONS:
        problem = f"shape is a list of at most {MOST_DIMENSIONS} whole numbers above 0"
        raise source.error(name, "shape", problem=problem)
    if math.prod(shape) > MOST_ELEMENTS:
        raise source.error(name, "shape", problem=f"a constant has at most {MOST_ELEMENTS} numbers")
    return tuple(shape)


def _shape_of_list(value: list[Any]) -> tuple[int, ...] | None:
    """Return the shape of nested lists, None where they are ragged, too deep or without numbers."""
    shape: list[int] = []
    level: list[Any] = [value]
    while all(isinstance(item, list) for item in level):
        lengths = {len(item) for item in level}
        if len(lengths) != 1 or len(shape) == MOST_DIMENSIONS:
            return None
        shape.append(lengths.pop())
        level = [item for row in level for item in row]
        if not level:
            return None
    if any(isinstance(item, list) for item in level):
        return None
    return tuple(shape)


def _flat(value: object) -> Iterator[object]:
    if isinstance(value, list):
        for item in value:
            yield from _flat(item)
    else:
        yield value


# ---------------------------------------------------------------------------------- the graph


def _order(ops: Mapping[str, GraphOp], source: Source) -> list[GraphOp]:
    """Return the operations after their inputs, else as they are written."""
    for op in ops.values():
        missing = [name for name in op.inputs if name not in ops]
        if missing:
            problem = f"its input {shown(missing[0])} is not an operation of this graph"
            raise source.error(op.name, "inputs", problem=problem)
    done: dict[str, GraphOp] = {}
    while len(done) < len(ops):
        ready = [
            op
            for op in ops.values()
            if op.name not in done and all(name in done for name in op.inputs)
        ]
        if not ready:
            cycle = _cycle(ops, done)
            path = " -> ".join([*cycle, cycle[0]])
            raise source.error(cycle[0], "inputs", problem=f"it depends on itself: {shown(path)}")
        done.update((op.name, op) for op in ready)
    return list(done.values())


def _cycle(ops: Mapping[str, GraphOp], done: Mapping[str, GraphOp]) -> list[str]:
    """Return a cycle among the operations that are never ready."""
    path: list[str] = []
    name = next(name for name in ops if name not in done)
    while name not in path:
        path.append(name)
        name = next(given for given in ops[name].inputs if given not in done)
    return path[path.index(name) :]


def _shape_of(op: GraphOp, known: Mapping[str, GraphOp], source: Source) -> tuple[int, ...]:
    shapes = [known[name].shape for name in op.inputs]
    match op.kind:
        case OpKind.CONSTANT:
            return op.shape
        case OpKind.MATMUL:
            left, right = shapes
            if len(left) != 2 or len(right) != 2 or left[1] != right[0]:
                problem = f"matmul cannot multiply {_form(left)} by {_form(right)}"
                raise source.error(op.name, "inputs", problem=problem)
            return _checked((left[0], right[1]), op, source)
        case OpKind.ADD:
            return _checked(_broadcast(op, shapes, source), op, source)
        case OpKind.SUM:
            return _without_axis(op, shapes[0], source)
        case _:
            if op.kind is OpKind.SOFTMAX and not shapes[0]:
                raise source.error(
                    op.name, "inputs", problem="softmax needs a row of numbers, not a single one"
                )
            return shapes[0]


def _checked(shape: tuple[int, ...], op: GraphOp, source: Source) -> tuple[int, ...]:
    if math.prod(shape) > MOST_ELEMENTS:
        problem = f"its result {_form(shape)} has more than {MOST_ELEMENTS} numbers"
        raise source.error(op.name, "inputs", problem=problem)
    return shape


def _broadcast(op: GraphOp, shapes: Sequence[tuple[int, ...]], source: Source) -> tuple[int, ...]:
    """Return the common shape by NumPy's rules: from the right, equal or 1."""
    rank = max(map(len, shapes))
    padded = [(1,) * (rank - len(shape)) + shape for shape in shapes]
    result = tuple(max(lengths) for lengths in zip(*padded, strict=True))
    for shape in padded:
        if any(length not in (1, whole) for length, whole in zip(shape, result, strict=True)):
            forms = ", ".join(map(_form, shapes[:6]))
            raise source.error(op.name, "inputs", problem=f"add cannot add the shapes {forms}")
    return result


def _without_axis(op: GraphOp, shape: tuple[int, ...], source: Source) -> tuple[int, ...]:
    if op.axis is None:
        return ()
    if not 0 <= op.axis < len(shape):
        problem = f"the shape {_form(shape)} has no axis {op.axis}"
        raise source.error(op.name, "axis", problem=problem)
    return shape[: op.axis] + shape[op.axis + 1 :]


def _fetched(fetch: object, ops: Mapping[str, GraphOp], source: Source) -> str:
    """Return the operation whose value is the result: the named one, or the last in the file."""
    if fetch is None:
        return list(ops)[-1]
    if not isinstance(fetch, str) or fetch not in ops:
        raise source.error(table="fetch", problem="fetch does not name an operation of this graph")
    return fetch


def _form(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape)) if shape else "of one number"
