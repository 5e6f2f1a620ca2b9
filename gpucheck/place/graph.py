"""Operations of a graph: their devices, the transfers that this causes, and their execution.

Placing follows TensorFlow: an operation without a device gets the best one, and all kinds here have
GPU kernels. A constant without a device is made where it is used, if only one device uses it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from gpucheck.drivers.cupy.arrays import Array, ArrayDevice, as_our_error, open_cpu, open_gpu
from gpucheck.drivers.host.clock import Clock
from gpucheck.drivers.interface import Probes
from gpucheck.inventory.inventory import NEXT_STEP, UNDECIDED
from gpucheck.inventory.model import Gpu
from gpucheck.place.device_strings import parse_device
from gpucheck.place.model import PlacedDevice, PlacedOp, Placement, Transfer, Value, short_name
from gpucheck.place.placement import environment_for, resolve
from gpucheck.report.errors import (
    BadAnswerError,
    GpucheckError,
    InconclusiveError,
    MissingError,
)

CPU = "/cpu:0"
#: The CPU as a device, where the result is fetched.
_HOST = resolve(parse_device(CPU), (), soft=False)
#: A value with more numbers than this is not shown.
MOST_SHOWN = 4096


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
        """Return TensorFlow's name for this kind of operation."""
        if self.kind is OpKind.ADD:
            return "AddV2" if len(self.inputs) == 2 else "AddN"
        names = {OpKind.CONSTANT: "Const", OpKind.MATMUL: "MatMul"}
        return names.get(self.kind, self.kind.value.capitalize())


@dataclass(frozen=True, slots=True, kw_only=True)
class Graph:
    """Operations in an order in which each comes after its inputs; `fetch` is the result's name.

    `places` has the device of each operation by its name, once the graph is placed.
    """

    ops: tuple[GraphOp, ...]
    fetch: str
    path: str | None = None
    places: Mapping[str, PlacedDevice] = field(default_factory=dict)


# ---------------------------------------------------------------------------------- placement


def towers(specs: Sequence[str]) -> Graph:
    """Return the tutorials' graph: a 2x3 by a 3x2 matrix on each device, and their sum on the CPU.

    Source: TensorFlow's tutorial "Using GPUs" (2016), whose values these are.
    """
    ops: list[GraphOp] = []
    for number, spec in enumerate(specs):
        inside = f"tower_{number}/" if len(specs) > 1 else ""
        numbers = tuple(float(value) for value in range(1, 7))
        a, b, product = f"{inside}a", f"{inside}b", f"{inside}MatMul"
        ops += [
            GraphOp(name=a, kind=OpKind.CONSTANT, shape=(2, 3), values=numbers, device=spec),
            GraphOp(name=b, kind=OpKind.CONSTANT, shape=(3, 2), values=numbers, device=spec),
            GraphOp(name=product, kind=OpKind.MATMUL, shape=(2, 2), inputs=(a, b), device=spec),
        ]
    if len(specs) > 1:
        products = tuple(op.name for op in ops if op.kind is OpKind.MATMUL)
        total = GraphOp(name="sum", kind=OpKind.ADD, shape=(2, 2), inputs=products, device=CPU)
        ops.append(total)
    return Graph(ops=tuple(ops), fetch=ops[-1].name)


def place_graph(graph: Graph, gpus: Sequence[Gpu], *, soft: bool) -> Graph:
    """Give every operation its device.

    Raises:
        BadAnswerError: an operation names a device that does not exist.
        InconclusiveError: CUDA's order of the GPUs is unknown.
    """
    places: dict[str, PlacedDevice] = {}
    known: dict[str, PlacedDevice] = {}
    waiting = []
    for op in graph.ops:
        if op.kind is OpKind.CONSTANT and op.device is None:
            waiting.append(op)
            continue
        spec = op.device or ""
        if spec not in known:
            known[spec] = _resolve(graph, op, gpus, soft=soft)
        places[op.name] = known[spec]
    for op in waiting:
        users = {places[user.name].resolved: places[user.name] for user in _users(graph, op)}
        if len(users) == 1:
            places[op.name] = next(iter(users.values()))
        else:
            places[op.name] = known.setdefault("", _resolve(graph, op, gpus, soft=soft))
    return replace(graph, places=places)


def _users(graph: Graph, op: GraphOp) -> list[GraphOp]:
    return [user for user in graph.ops if op.name in user.inputs]


def _resolve(graph: Graph, op: GraphOp, gpus: Sequence[Gpu], *, soft: bool) -> PlacedDevice:
    try:
        return resolve(parse_device(op.device or ""), gpus, soft=soft)
    except (BadAnswerError, MissingError) as error:
        if graph.path is None:
            raise
        where = graph.path if op.device_line is None else f"{graph.path}:{op.device_line}"
        fact = f"{error.message[:1].lower()}{error.message[1:]}"
        explained = type(error)(
            code=error.code,
            message=f"{where}: Cannot assign a device for operation {op.name}: {fact}",
            remedy=error.remedy,
        )
        explained.details = error.details
        raise explained from None


def describe(graph: Graph) -> Placement:
    """Return the placement of a graph as a document shows it, before anything runs."""
    places = [graph.places[op.name] for op in graph.ops]
    chosen = tuple({(place.spec, place.resolved): place for place in places}.values())
    ops = tuple(
        PlacedOp(name=op.name, op=op.tensorflow_type, device=on.resolved, reason=on.reason)
        for op, on in zip(graph.ops, places, strict=True)
    )
    return Placement(
        devices=chosen,
        graph=graph.path,
        ops=ops,
        transfers=transfers_of(graph),
        environment=environment_for(chosen),
        advice=advise(graph),
    )


def transfers_of(graph: Graph) -> tuple[Transfer, ...]:
    """Return the transfers, each result to each device once; the last is the fetch.

    Constants are made where they are placed: that is no copy between devices.
    """
    names = {name: place.resolved for name, place in graph.places.items()}
    return _transfers(graph, names)


def _transfers(graph: Graph, places: Mapping[str, str]) -> tuple[Transfer, ...]:
    sizes = {op.name: op.size_bytes for op in graph.ops}
    needed = [(name, places[op.name]) for op in graph.ops for name in op.inputs]
    return tuple(
        Transfer(from_=places[name], to=target, what=name, bytes=sizes[name])
        for name, target in dict.fromkeys((*needed, (graph.fetch, _HOST.resolved)))
        if places[name] != target
    )


def advise(graph: Graph) -> tuple[str, ...]:
    """Name each operation that would copy fewer bytes on the device of one of its neighbours.

    Only a constant may move to the CPU to save a copy: anything else is slower there.
    """
    places = {name: place.resolved for name, place in graph.places.items()}
    now = _cost(graph, places)
    advice = []
    for op in graph.ops:
        neighbours = {places[name] for name in op.inputs}
        neighbours |= {places[user.name] for user in _users(graph, op)}
        costs = {
            device: _cost(graph, {**places, op.name: device})
            for device in sorted(neighbours - {places[op.name]})
            if op.kind is OpKind.CONSTANT or device != _HOST.resolved
        }
        better = min(costs, key=lambda device: costs[device], default=None)
        if better is not None and costs[better] < now:
            where = f"{graph.path}:{op.line}: " if graph.path and op.line else ""
            there, here = short_name(better), short_name(places[op.name])
            advice.append(
                f"{where}{op.name} on {there} instead of {here} "
                f"would copy {now - costs[better]} fewer bytes"
            )
    return tuple(advice)


def _cost(graph: Graph, places: Mapping[str, str]) -> int:
    return sum(move.bytes for move in _transfers(graph, places))


# ---------------------------------------------------------------------------------- execution


def run_graph(
    graph: Graph,
    placement: Placement,
    open_device: Callable[[PlacedDevice], ArrayDevice],
    clock: Clock,
) -> Placement:
    """Run the graph twice; return the value and the copy times of the second run.

    The first run loads libraries and compiles kernels.

    Raises:
        GpucheckError: a device cannot be opened, or fails in the run.
    """
    run = _Run(graph, open_device, clock)
    try:
        run.once()
        value = run.once()
    except GpucheckError:
        raise
    except Exception as error:  # NumPy's and CuPy's errors have no common base
        raise as_our_error(error) from error
    few = value.size <= MOST_SHOWN
    return replace(
        placement,
        ran=True,
        value=value_of(value.tolist()) if few else None,
        transfers=run.timed_transfers(),
        advice=(*placement.advice, *_own_advice(value)),
    )


def _own_advice(value: Any) -> Iterator[str]:
    """Yield notes about the value."""
    import numpy as np

    if value.size > MOST_SHOWN:
        yield f"The value has {value.size} numbers, too many to show."
    if not np.isfinite(value).all():
        yield "The value is not finite everywhere: a number was too large for float32."


class _Run:
    """State of a running graph: its devices, opened once, and the results so far."""

    def __init__(
        self, graph: Graph, open_device: Callable[[PlacedDevice], ArrayDevice], clock: Clock
    ) -> None:
        self._graph = graph
        self._clock = clock
        every = {place.resolved: place for place in (*graph.places.values(), _HOST)}
        self._devices = {name: open_device(place) for name, place in every.items()}
        self._results: dict[tuple[str, str], Array] = {}
        self._seconds: dict[tuple[str, str], float] = {}

    def once(self) -> Any:
        """Run every operation, then fetch the result to the host."""
        self._results.clear()
        for op in self._graph.ops:
            name = self._graph.places[op.name].resolved
            inputs = [self._at(given, name) for given in op.inputs]
            self._results[op.name, name] = compute(self._devices[name], op, inputs)
        return self._at(self._graph.fetch, _HOST.resolved)

    def _at(self, name: str, device: str) -> Array:
        """Return an operation's result on a device, copied there if needed."""
        if (name, device) not in self._results:
            home = self._graph.places[name].resolved
            self._devices[home].wait()
            began_s = self._clock()
            copied = self._devices[device].receive(self._results[name, home])
            self._seconds[name, device] = self._clock() - began_s
            self._results[name, device] = copied
        return self._results[name, device]

    def timed_transfers(self) -> tuple[Transfer, ...]:
        """Return the transfers with the time that each took last."""
        return tuple(
            replace(move, seconds=self._seconds[move.what, move.to])
            for move in transfers_of(self._graph)
        )


def open_placed(probes: Probes) -> Callable[[PlacedDevice], ArrayDevice]:
    """Return a function that opens the device of an operation.

    CuPy waits forever for a driver that hangs, so a child process asks the driver first.
    """

    def open_device(place: PlacedDevice) -> ArrayDevice:
        if place.kind == "CPU":
            return open_cpu()
        failure = probes.cuda().failure
        if failure is not None:
            error = InconclusiveError if failure.code in UNDECIDED else MissingError
            raise error(
                code=f"cuda-{failure.code.removeprefix('cuda-')}",
                message=f"The graph cannot run on a GPU: {failure.message}.",
                remedy=(NEXT_STEP,),
            )
        return open_gpu(place.cuda_index or 0)

    return open_device


def compute(device: ArrayDevice, op: GraphOp, inputs: list[Array]) -> Array:
    """Compute one operation on a device that has its inputs."""
    match op.kind:
        case OpKind.CONSTANT:
            return device.constant(op.shape, op.values)
        case OpKind.MATMUL:
            return device.matmul(inputs[0], inputs[1])
        case OpKind.ADD:
            return device.add(inputs)
        case OpKind.SOFTMAX:
            return device.softmax(inputs[0], op.temperature)
        case OpKind.RELU:
            return device.relu(inputs[0])
        case OpKind.SUM:
            return device.total(inputs[0], op.axis)


def value_of(numbers: Any) -> Value:
    """Return a number, or nested lists of them, as a document has it."""
    if isinstance(numbers, list):
        return tuple(map(value_of, numbers))
    return float(numbers)
