"""Device placement of graph operations, and the transfers it causes.

Placing follows TensorFlow: an operation without a device gets the best one, and all kinds here have
GPU kernels. A constant without a device is made where it is used, if only one device uses it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gpucheck.inventory.model import Gpu
from gpucheck.place.device_strings import parse_device
from gpucheck.place.graph_model import Graph, GraphOp, OpKind
from gpucheck.place.model import PlacedDevice, PlacedOp, Placement, Transfer
from gpucheck.place.placement import environment_for, resolve
from gpucheck.report.errors import BadAnswerError

CPU = "/cpu:0"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedGraph:
    """A graph and the device of each of its operations, by the operation's name."""

    graph: Graph
    places: Mapping[str, PlacedDevice]
    host: PlacedDevice


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


def place_graph(graph: Graph, gpus: Sequence[Gpu], *, soft: bool) -> PlacedGraph:
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
    host = resolve(parse_device(CPU), gpus, soft=False)
    return PlacedGraph(graph=graph, places=places, host=host)


def _users(graph: Graph, op: GraphOp) -> list[GraphOp]:
    return [user for user in graph.ops if op.name in user.inputs]


def _resolve(graph: Graph, op: GraphOp, gpus: Sequence[Gpu], *, soft: bool) -> PlacedDevice:
    try:
        return resolve(parse_device(op.device or ""), gpus, soft=soft)
    except BadAnswerError as error:
        if graph.path is None:
            raise
        where = graph.path if op.device_line is None else f"{graph.path}:{op.device_line}"
        fact = f"{error.message[:1].lower()}{error.message[1:]}"
        raise BadAnswerError(
            code=error.code,
            message=f"{where}: Cannot assign a device for operation {op.name}: {fact}",
            remedy=error.remedy,
        ) from None


def describe(placed: PlacedGraph) -> Placement:
    """Return the placement as a document shows it, before anything runs."""
    graph = placed.graph
    devices = list(dict.fromkeys(_key(placed.places[op.name]) for op in graph.ops))
    shown = {_key(place): place for place in placed.places.values()}
    ops = tuple(
        PlacedOp(
            name=op.name,
            op=op.tensorflow_type,
            device=placed.places[op.name].resolved,
            reason=placed.places[op.name].reason,
        )
        for op in graph.ops
    )
    chosen = tuple(shown[key] for key in devices)
    return Placement(
        devices=chosen,
        graph=graph.path,
        ops=ops,
        transfers=transfers_of(placed),
        environment=environment_for(chosen),
        advice=advise(placed),
    )


def _key(device: PlacedDevice) -> tuple[str, str]:
    return (device.spec, device.resolved)


def transfers_of(placed: PlacedGraph) -> tuple[Transfer, ...]:
    """Return the transfers, each result to each device once; the last is the fetch.

    Constants are made where they are placed: that is no copy between devices.
    """
    names = {name: place.resolved for name, place in placed.places.items()}
    return tuple(_transfers(placed.graph, names, placed.host.resolved))


def _transfers(graph: Graph, places: Mapping[str, str], host: str) -> list[Transfer]:
    sizes = {op.name: op.size_bytes for op in graph.ops}
    moves: dict[tuple[str, str], Transfer] = {}
    for op in graph.ops:
        for name in op.inputs:
            _add_move(moves, name, places[name], places[op.name], sizes[name])
    _add_move(moves, graph.fetch, places[graph.fetch], host, sizes[graph.fetch])
    return list(moves.values())


def _add_move(
    moves: dict[tuple[str, str], Transfer], name: str, source: str, target: str, size: int
) -> None:
    if source != target:
        moves.setdefault((name, target), Transfer(from_=source, to=target, what=name, bytes=size))


def advise(placed: PlacedGraph) -> tuple[str, ...]:
    """Name each operation that would copy fewer bytes on the device of one of its neighbours.

    Only a constant may move to the CPU to save a copy: anything else is slower there.
    """
    graph, host = placed.graph, placed.host.resolved
    places = {name: place.resolved for name, place in placed.places.items()}
    now = _cost(graph, places, host)
    found = []
    for op in graph.ops:
        neighbours = {places[name] for name in op.inputs}
        neighbours |= {places[user.name] for user in _users(graph, op)}
        costs = {
            device: _cost(graph, {**places, op.name: device}, host)
            for device in sorted(neighbours - {places[op.name]})
            if op.kind is OpKind.CONSTANT or device != host
        }
        better = min(costs, key=lambda device: costs[device], default=None)
        if better is not None and costs[better] < now:
            where = f"{graph.path}:{op.line}: " if graph.path and op.line else ""
            found.append(
                f"{where}{op.name} on {_short(better)} instead of {_short(places[op.name])} "
                f"would copy {now - costs[better]} fewer bytes"
            )
    return tuple(found)


def _cost(graph: Graph, places: Mapping[str, str], host: str) -> int:
    return sum(move.bytes for move in _transfers(graph, places, host))


def _short(resolved: str) -> str:
    return f"/{resolved.rpartition('/')[2]}"
