"""Pool of worker processes: an order for each device, a stream of documents from each.

A worker reads its order from its arguments and writes JSON documents, one a line. Documents whose
`part` is `ready` or `progress` are followed by others; any other is its last. A worker that dies,
hangs or writes anything else counts as a failure; the others go on. However a pool ends, none of
its processes is left.

Workers begin together or one by one, at a start barrier: a lock on a shared file. The file has no
name, so it disappears with the starter. Workers open it through /proc among the starter's
descriptors, which only its own user can do. A ready worker marks itself in the file and waits for
its lock. The starter releases the lock once all are ready. Workers that share it then begin
together; those that want it exclusively begin one after the other. The kernel releases a lock when
its holder dies, so a dead worker blocks nobody.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpucheck.bench.plan import check_device_names
from gpucheck.drivers.child import Child, ChildDiedError
from gpucheck.drivers.host.cpu import parse_cpu_list, running_on
from gpucheck.drivers.interrupts import DeferredStops
from gpucheck.inventory.model import Gpu
from gpucheck.report.envelope import Failure
from gpucheck.report.errors import MissingError

#: Error codes of a failed worker, beyond the errors in its own documents.
WORKER_DIED, WORKER_SILENT, WORKER_LATE = "worker-died", "worker-silent", "worker-late"
WORKER_NO_DOCUMENT, WORKER_INTERRUPTED = "worker-no-document", "worker-interrupted"
#: Importing CuPy and opening a sleeping GPU takes seconds; a hanging driver never ends.
START_S = 120.0
#: Time to exit after the last document; only a hanging driver takes longer.
_LEAVE_S = 2.0
_LOOK_S = 0.02
#: Programs on each core that make any process late.
_CROWD = 3.0
_MORE_FOLLOW = ("ready", "progress")
#: Endings of a process that regards its work as done.
_ENDED_WELL = ("ended with code 0", "closed its output")
_START_VARIABLE = "GPUCHECK_START"
_DEFAULTS_VARIABLE = "GPUCHECK_CONFIG"
_PACKAGE = Path(__file__).resolve().parents[1]


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerDevice:
    """Device with a process of its own, the arguments of that process, and its CPUs.

    The CPUs are those near the device; None leaves the process on the CPUs of its parent.
    """

    device: str
    gpu_uuid: str | None = None
    cpus: frozenset[int] | None = None
    arguments: tuple[str, ...] = ()


def worker_devices(devices: Sequence[str], gpus: Sequence[Gpu]) -> tuple[WorkerDevice, ...]:
    """Return a worker for each device named: `cpu`, `gpu:N`, `gpu` and `all` for every GPU.

    A GPU that CUDA does not see has none; an unknown `gpu:N` gets one, whose process reports that.
    Of a card that is split, the MIG instances are the GPUs.

    Raises:
        WrongUseError: a name is not a device.
    """
    check_device_names(devices)
    visible = visible_gpus(gpus)
    workers: dict[str, WorkerDevice] = {}
    for device in devices:
        for name in visible if device in ("gpu", "all") else [device]:
            gpu = visible.get(name)
            cpus = parse_cpu_list(gpu.cpu_affinity) or None if gpu is not None else None
            uuid = gpu.uuid if gpu is not None else None
            workers[name] = WorkerDevice(device=name, gpu_uuid=uuid, cpus=cpus)
    return tuple(workers.values())


def visible_gpus(gpus: Sequence[Gpu]) -> dict[str, Gpu]:
    """Return the GPUs that CUDA sees; a MIG instance is its card, by its own UUID and number."""
    every = [
        item
        for gpu in gpus
        for item in (
            gpu,
            *(gpu._replace(uuid=mig.uuid, cuda_index=mig.cuda_index) for mig in gpu.mig.instances),
        )
    ]
    by_index = {item.cuda_index: item for item in every if item.cuda_index is not None}
    return {f"gpu:{number}": by_index[number] for number in sorted(by_index)}


def select_worker_devices(
    devices: Sequence[str], gpus: Sequence[Gpu], *, require_gpu: bool = False
) -> tuple[WorkerDevice, ...]:
    """Return the devices that get processes of their own.

    `all` means every GPU, or the processor if there is none: it would disturb GPUs.

    Raises:
        MissingError: GPUs are requested or required, and CUDA sees none.
    """
    named = [name for name in devices if name != "all"]
    targets = worker_devices([*named, *(["gpu"] if "all" in devices else [])], gpus)
    if not targets and "all" in devices and not require_gpu:
        targets = worker_devices(["cpu"], gpus)
    if not targets or (require_gpu and all(item.device == "cpu" for item in targets)):
        message = "No GPU is visible to CUDA, so none can be measured."
        instead = () if require_gpu else ("Measure the processor with: --device cpu",)
        remedy = ("Run: gpucheck detect", *instead)
        raise MissingError(code="no-gpu", message=message, remedy=remedy)
    return targets


#: Document of a process, or why it ended without its last one.
WorkerAnswer = dict[str, Any] | Failure


class StartBarrier:
    """Starter's side of the barrier: hold the workers, count the ready ones, release them."""

    def __init__(self, *, sequential: bool) -> None:
        self._kind = "exclusive" if sequential else "shared"
        self._lock = os.memfd_create("gpucheck-start")
        fcntl.flock(self._lock, fcntl.LOCK_EX)

    @property
    def variables(self) -> Mapping[str, str]:
        """Return the environment variables for the workers."""
        return {_START_VARIABLE: f"{self._kind}:/proc/{os.getpid()}/fd/{self._lock}"}

    def ready(self) -> int:
        """Return how many workers are ready."""
        return os.fstat(self._lock).st_size

    def release(self) -> None:
        """Release the workers."""
        fcntl.flock(self._lock, fcntl.LOCK_UN)

    def close(self) -> None:
        """Close the file; it disappears with the last worker."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


@contextlib.contextmanager
def wait_for_start(environment: Mapping[str, str]) -> Iterator[None]:
    """Wait for the start if this process's parent holds it back; otherwise do nothing.

    An exclusive lock lasts as long as the block.
    """
    kind, _, path = environment.get(_START_VARIABLE, "").partition(":")
    if not path:
        yield
        return
    try:
        lock = os.open(path, os.O_RDWR | os.O_APPEND)
    except OSError:  # the starter has gone, and nobody waits for the answer
        yield
        return
    try:
        os.write(lock, b".")
        fcntl.flock(lock, fcntl.LOCK_EX if kind == "exclusive" else fcntl.LOCK_SH)
        yield
    finally:
        os.close(lock)


class WorkerPool:
    """Processes of this package, one for each device. No method raises for a failing worker.

    `module` is run with each order's arguments; `task` is what its processes do to a device.
    `command` replaces the program in tests.
    """

    def __init__(self, module: str, task: str, *, command: Sequence[str] = ()) -> None:
        self._task = task
        self._command = tuple(command) or (sys.executable, "-P", "-m", module)
        self._barrier: StartBarrier | None = None
        self._children: dict[str, Child] = {}
        self._leaving: list[Child] = []
        self._failed: list[tuple[str, WorkerAnswer]] = []
        #: Devices whose process has sent a document that others must follow.
        self._unfinished: set[str] = set()

    @property
    def running(self) -> tuple[str, ...]:
        """Return the devices whose last document is still to come."""
        return tuple(self._children)

    def start(self, orders: Sequence[WorkerDevice], *, sequential: bool = False) -> None:
        """Start a process for each order, held back at the barrier.

        Signals are held back until each start is recorded.
        """
        self._barrier = StartBarrier(sequential=sequential)
        environment = {**worker_environment(os.environ), **self._barrier.variables}
        with DeferredStops():
            for order in orders:
                with running_on(order.cpus):
                    try:
                        self._children[order.device] = Child(
                            self._command[-1],
                            *order.arguments,
                            environment=environment,
                            interpreter=self._command[:-1],
                        )
                    except ChildDiedError as error:
                        answer = self.failure(order.device, WORKER_DIED, error.how)
                        self._failed.append((order.device, answer))

    def ready(self) -> int:
        """Return how many processes have reached the barrier."""
        return self._barrier.ready() if self._barrier is not None else 0

    def begin(self) -> None:
        """Release the processes from the barrier."""
        if self._barrier is not None:
            self._barrier.release()

    def answers(self, wait_s: float) -> Sequence[tuple[str, WorkerAnswer]]:
        """Return the answers that have come, by device, waiting at most `wait_s` for the first."""
        answers, self._failed = self._failed, []
        devices = {child.fileno(): device for device, child in self._children.items()}
        poll = select.poll()
        for descriptor in devices:
            poll.register(descriptor, select.POLLIN)
        for descriptor, _ in poll.poll(0 if answers else wait_s * 1000):
            device = devices[descriptor]
            answers.extend((device, answer) for answer in self._read(device))
        return answers

    def _read(self, device: str) -> Iterator[WorkerAnswer]:
        child = self._children[device]
        try:
            while (document := child.next_document(0.0)) is not None:
                yield document
                if document.get("part") not in _MORE_FOLLOW:
                    # It now releases its GPU, and with it the claim.
                    self._leaving.append(self._children.pop(device))
                    return
                self._unfinished.add(device)
        except ChildDiedError as error:
            self.drop(device)
            if error.how in _ENDED_WELL and device not in self._unfinished:
                yield self.failure(device, WORKER_NO_DOCUMENT, "ended without a document")
            else:
                yield self.failure(device, WORKER_DIED, error.how)

    def failure(self, device: str, code: str, how: str, remedy: tuple[str, ...] = ()) -> Failure:
        """Return the answer for a process that failed."""
        message = f"the process that {self._task} {device} {how}"
        return Failure(code=code, message=message, remedy=remedy)

    def drop(self, device: str) -> None:
        """Kill a device's process, if it is still there."""
        child = self._children.pop(device, None)
        if child is not None:
            child.abandon()

    def stop(self) -> None:
        """Ask all that are left to stop; each sends its last document."""
        for child in self._children.values():
            child.ask({"ask": "stop"})

    def close(self) -> None:
        """End what is left, and give those that have finished a moment to exit."""
        with DeferredStops():
            for device in list(self._children):
                self.drop(device)
            end = time.monotonic() + _LEAVE_S
            for child in self._leaving:
                child.finish(max(0.0, end - time.monotonic()))
            if self._barrier is not None:
                self._barrier.close()


class Workers:
    """Rounds of `gpucheck bench` in worker processes, each reporting its progress in lines."""

    def __init__(
        self,
        *,
        report_progress: Callable[[str], None] = lambda text: None,
        start_s: float = START_S,
        command: Sequence[str] = (),
    ) -> None:
        self._report_progress = report_progress
        self._start_s = start_s
        self._command = command

    def round(
        self, orders: Sequence[WorkerDevice], *, sequential: bool, deadline_s: float
    ) -> Sequence[WorkerAnswer]:
        """Return an answer for each order, in parallel or one by one (`sequential`).

        `deadline_s` covers all measurements. Never raises: an interrupt gives the answers so far,
        and the failure `worker-interrupted` for the others.
        """
        pool = WorkerPool("gpucheck", "measured", command=self._command)
        answers: dict[str, WorkerAnswer] = {}
        try:
            pool.start(orders, sequential=sequential)
            self._hold_back(pool, answers, len(orders))
            crowd = self._gather(pool, answers, deadline_s)
            code, how, remedy = _no_answer(crowd, deadline_s)
        except KeyboardInterrupt:
            code, how, remedy = WORKER_INTERRUPTED, "was interrupted", ()
        finally:
            pool.close()
        return [
            answers[order.device]
            if order.device in answers
            else pool.failure(order.device, code, how, remedy)
            for order in orders
        ]

    def _hold_back(self, pool: WorkerPool, answers: dict[str, WorkerAnswer], count: int) -> None:
        """Wait until every process is ready or has ended, then let them measure."""
        end = time.monotonic() + self._start_s * crowding(len(pool.running))
        while pool.running and time.monotonic() < end and pool.ready() < len(pool.running):
            self._report_progress(f"{pool.ready()} of {count} processes are ready")
            answers.update(pool.answers(_LOOK_S))
        pool.begin()

    def _gather(
        self, pool: WorkerPool, answers: dict[str, WorkerAnswer], deadline_s: float
    ) -> str | None:
        """Read until all have answered or the deadline is over; return who shared the CPU."""
        answers.update(pool.answers(0.0))
        crowd = None
        end = time.monotonic() + deadline_s
        while pool.running and (left_s := end - time.monotonic()) > 0:
            self._report_progress(f"measuring {', '.join(pool.running)}")
            answers.update(pool.answers(min(left_s, 0.5)))
            # The load may have ended by the time that somebody is missed.
            crowd = crowd_on_the_host(len(pool.running)) or crowd
        return crowd or crowd_on_the_host(len(pool.running))


def _no_answer(crowd: str | None, deadline_s: float) -> tuple[str, str, tuple[str, ...]]:
    """Return the code, the end and the remedy of processes that missed the deadline.

    `crowd` is how many programs shared the CPU, None if it was not overloaded.
    """
    how = f"gave no answer within {deadline_s:g} s"
    if crowd is None:
        return WORKER_SILENT, how, ()
    return WORKER_LATE, f"{how}, while {crowd}", ("run it again when the machine is idle",)


def crowding(processes: int) -> float:
    """Return how many times as long as alone so many processes at once need on these processors.

    What each does there (importing, compiling, drawing inputs, checking results) is what its time
    for measuring leaves out. With a processor for each it is 1.
    """
    return max(1.0, processes / len(os.sched_getaffinity(0)))


def crowd_on_the_host(own: int) -> str | None:
    """Return how many programs share the CPU, or None if it is not overloaded.

    The load average counts processes that run, wait to run or sleep in the kernel, over the last
    minute; `own` are our processes, which may hang there.
    """
    try:
        load, cores = os.getloadavg()[0], len(os.sched_getaffinity(0))
    except OSError:
        return None
    if load < _CROWD * cores + own:
        return None
    return f"{load:.0f} programs shared {cores} {'core' if cores == 1 else 'cores'}"


def worker_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return our environment with this package on the path, and without a defaults file.

    A worker ignores its working directory (-P), where any file could have the name of a library. It
    gets every option explicitly: defaults with --profile or --save must not apply to it.
    """
    given = environment.get("PYTHONPATH", "").split(os.pathsep)
    absolute = [entry for entry in given if entry.startswith("/")]
    path = dict.fromkeys([str(_PACKAGE.parent), *absolute])
    kept = {name: value for name, value in environment.items() if name != _DEFAULTS_VARIABLE}
    return {**kept, "PYTHONPATH": os.pathsep.join(path)}
