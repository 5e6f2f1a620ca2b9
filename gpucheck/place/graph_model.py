"""Graph of operations, from a file or the tutorials."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class OpKind(StrEnum):
    """What an operation computes."""

    CONSTANT = "constant"
    MATMUL = "matmul"
    ADD = "add"
    SOFTMAX = "softmax"
    RELU = "relu"
    SUM = "sum"


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphOp:
    """One operation on float32 arrays.

    `device` is a device string, or null for `auto`. `values` holds a constant's numbers in row
    order, or one number that fills it. `line` is where the operation stands in its file, and
    `device_line` where its device does.
    """

    name: str
    kind: OpKind
    shape: tuple[int, ...]
    inputs: tuple[str, ...] = ()
    device: str | None = None
    values: tuple[float, ...] = ()
    temperature: float = 1.0
    axis: int | None = None
    line: int | None = None
    device_line: int | None = None

    @property
    def size_bytes(self) -> int:
        """Return the bytes of the result in float32."""
        elements = 1
        for length in self.shape:
            elements *= length
        return 4 * elements

    @property
    def tensorflow_type(self) -> str:
        """Return what TensorFlow's log calls this kind of operation."""
        if self.kind is OpKind.ADD:
            return "AddV2" if len(self.inputs) == 2 else "AddN"
        names = {OpKind.CONSTANT: "Const", OpKind.MATMUL: "MatMul"}
        return names.get(self.kind, self.kind.value.capitalize())


@dataclass(frozen=True, slots=True, kw_only=True)
class Graph:
    """Operations in an order in which each comes after its inputs; `fetch` is the result's name."""

    ops: tuple[GraphOp, ...]
    fetch: str
    path: str | None = None
