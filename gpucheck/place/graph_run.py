"""Execution of a placed graph on its devices, with the time of each copy."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from gpucheck.drivers.cupy.arrays import Array, ArrayDevice, as_our_error, open_cpu, open_gpu
from gpucheck.drivers.host.clock import Clock
from gpucheck.drivers.interface import Probes
from gpucheck.drivers.readings import CudaReading
from gpucheck.inventory.inventory import NEXT_STEP, UNDECIDED
from gpucheck.place.graph import PlacedGraph, transfers_of
from gpucheck.place.graph_model import GraphOp, OpKind
from gpucheck.place.model import PlacedDevice, Placement, Transfer, Value
from gpucheck.report.errors import GpucheckError, InconclusiveError, MissingError

#: A value with more numbers than this is not shown.
MOST_SHOWN = 4096


def run_graph(
    placed: PlacedGraph,
    placement: Placement,
    open_device: Callable[[PlacedDevice], ArrayDevice],
    clock: Clock,
) -> Placement:
    """Run the graph twice; return the value and the copy times of the second run.

    The first run loads libraries and compiles kernels.

    Raises:
        GpucheckError: a device cannot be opened, or fails in the run.
    """
    run = _Run(placed, open_device, clock)
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
        value=as_value(value) if few else None,
        transfers=run.timed_transfers(),
        advice=(*placement.advice, *_remarks(value)),
    )


def _remarks(value: Any) -> Iterator[str]:
    """Yield notes about the value."""
    import numpy as np

    if value.size > MOST_SHOWN:
        yield f"The value has {value.size} numbers, too many to show."
    if not np.isfinite(value).all():
        yield "The value is not finite everywhere: a number was too large for float32."


class _Run:
    """State of a running graph: its devices, opened once, and the results so far."""

    def __init__(
        self,
        placed: PlacedGraph,
        open_device: Callable[[PlacedDevice], ArrayDevice],
        clock: Clock,
    ) -> None:
        self._placed = placed
        self._clock = clock
        every = {place.resolved: place for place in (*placed.places.values(), placed.host)}
        self._devices = {name: open_device(place) for name, place in every.items()}
        self._results: dict[tuple[str, str], Array] = {}
        self._seconds: dict[tuple[str, str], float] = {}

    def once(self) -> Any:
        """Run every operation, then fetch the result to the host."""
        self._results.clear()
        for op in self._placed.graph.ops:
            name = self._placed.places[op.name].resolved
            inputs = [self._at(given, name) for given in op.inputs]
            self._results[op.name, name] = compute(self._devices[name], op, inputs)
        return self._at(self._placed.graph.fetch, self._placed.host.resolved)

    def _at(self, name: str, device: str) -> Array:
        """Return an operation's result on a device, copied there if needed."""
        if (name, device) not in self._results:
            home = self._placed.places[name].resolved
            self._devices[home].wait()
            began_s = self._clock.now_s()
            copied = self._devices[device].receive(self._results[name, home])
            self._seconds[name, device] = self._clock.now_s() - began_s
            self._results[name, device] = copied
        return self._results[name, device]

    def timed_transfers(self) -> tuple[Transfer, ...]:
        """Return the transfers with the time that each took last."""
        return tuple(
            replace(move, seconds=self._seconds[move.what, move.to])
            for move in transfers_of(self._placed)
        )


def open_placed(probes: Probes) -> Callable[[PlacedDevice], ArrayDevice]:
    """Return a function that opens the device of an operation.

    CuPy waits forever for a driver that hangs, so a child process asks the driver first.
    """
    asked: list[CudaReading] = []

    def open_device(place: PlacedDevice) -> ArrayDevice:
        if place.kind == "CPU":
            return open_cpu()
        if not asked:
            asked.append(probes.cuda())
        failure = asked[0].failure
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


def as_value(array: Any) -> Value:
    """Return a host array as nested tuples of numbers."""
    return _as_tuples(array.tolist())


def _as_tuples(value: Any) -> Value:
    if isinstance(value, list):
        return tuple(_as_tuples(item) for item in value)
    return float(value)
