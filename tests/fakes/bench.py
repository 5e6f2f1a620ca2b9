"""Stand-ins for what the benchmark touches: clock, processor, BLAS, cases, and a GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from gpucheck.bench.case import Case, CaseLabel, CaseOrder, Work
from gpucheck.bench.model import DtypeSpec, Fact, FrameworkUse, Verified
from gpucheck.bench.numerics import FORMATS, HostData, decode, encode
from gpucheck.bench.request_model import BenchRequest
from gpucheck.drivers.gpu import BenchGpu, GpuArray, GpuDevice, GpuFunction, Product, Span
from gpucheck.drivers.host.blas import Blas, BlasFacts
from gpucheck.drivers.host.cpu import CpuFacts, CpuLoad, LinuxCpu
from gpucheck.drivers.nvml.sensors import NvmlSensors, SensorBatch
from gpucheck.report.errors import GpucheckError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    HostArray = NDArray[Any]

FLOAT32 = DtypeSpec(input="float32", accumulate="float32", output="float32", math_mode="fp32")
RIGHT = Verified(error=1e-7, bound=1e-5, ok=True, reference="scripted")
_PLAIN = Product()
PYTORCH = FrameworkUse(name="pytorch", version="2.13.0", form="eager", python="/usr/bin/python3")
WRONG = Verified(error=0.5, bound=1e-5, ok=False, reference="scripted")


class FakeClock:
    """A clock that moves only when told to, from an arbitrary point on, as real clocks do."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        """Return the scripted time."""
        return 64.0 + self.seconds


@dataclass
class FakeCpu(LinuxCpu):
    """A processor with scripted facts and an idle or a busy host."""

    cores: int = 2
    memory_available_bytes: int | None = 2**34
    busy_s: Iterator[float] = field(default_factory=lambda: iter(()))

    def facts(self) -> CpuFacts:
        """Return the scripted facts."""
        return CpuFacts(
            model="Fake CPU",
            logical_cores=self.cores,
            usable_cores=self.cores,
            quota_cores=None,
            l2_bytes=2**20,
            last_level_bytes=2**20,
            memory_available_bytes=self.memory_available_bytes,
        )

    def load(self) -> CpuLoad:
        """Return the next scripted reading, an idle one when the script is over."""
        return CpuLoad(load_average_1m=0.0, busy_s=next(self.busy_s, 0.0), steal_s=0.0, own_s=0.0)

    def peak_memory_bytes(self) -> int | None:
        """Return a fixed number."""
        return 2**27


class FakeBlas(Blas):
    """A BLAS that notes the limits it was given."""

    keeps_to_one = True

    def __init__(self) -> None:
        self.limits: list[int] = []

    def read(self) -> BlasFacts | None:
        """Return scripted facts."""
        return BlasFacts(name="fakeblas", version="1.0", architecture=None, threads=2)

    def limited(self, threads: int) -> AbstractContextManager[object]:
        """Note the limit."""
        self.limits.append(threads)
        return nullcontext()


def label(device: str = "cpu", variant: str = "scripted") -> CaseLabel:
    """Return a label for a case without a kernel behind it."""
    return CaseLabel(kernel="fake", variant=variant, device=device, shape=(8,), dtype=FLOAT32)


class FakeCase(Case):
    """A case that takes the scripted seconds for one operation, one after the other.

    An exception in the script is raised at its place. `checks` are the answers of `check`; the last
    one is repeated.
    """

    work = Work(flops=100, bytes_moved=100, unit="FLOP/s")
    shortest_span_s = 1e-3
    starved_share = 0.0
    sm_clock_mhz: float | None = None
    cpu_s: float | None = None
    loop_step = 1
    walked_and_cache_bytes: tuple[int, int] | None = None
    facts: Mapping[str, Fact] = MappingProxyType({})

    def __init__(
        self,
        script: Iterable[float | BaseException],
        clock: FakeClock | None = None,
        *,
        label: CaseLabel | None = None,
        checks: Iterable[Verified | BaseException] = (RIGHT,),
        prepare: Callable[[], None] | None = None,
    ) -> None:
        self.label = label or _DEFAULT_LABEL
        self.runs: list[int] = []
        self.events: list[str] = []
        self._script = iter(script)
        self._clock = clock
        self._checks = list(checks)
        self._prepare = prepare

    def prepare(self) -> None:
        """Do what the script says."""
        self.events.append("prepare")
        if self._prepare is not None:
            self._prepare()

    def poison(self) -> None:
        """Note it."""
        self.events.append("poison")

    def run(self, loops: int) -> float:
        """Return the next scripted time, times the loops."""
        self.runs.append(loops)
        self.events.append("run")
        step = next(self._script)
        if isinstance(step, BaseException):
            raise step
        if self._clock is not None:
            self._clock.seconds += step * loops
        return step * loops

    def check(self) -> Verified:
        """Return the next scripted answer."""
        self.events.append("check")
        answer = self._checks.pop(0) if len(self._checks) > 1 else self._checks[0]
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def release(self) -> None:
        """Note it."""
        self.events.append("release")


_DEFAULT_LABEL = label()


class ScriptedSensors(NvmlSensors):
    """Sensors that know the same facts of every GPU, and read what `read` returns."""

    def __init__(
        self,
        facts: Mapping[str, Any],
        read: Callable[[], SensorBatch],
        *,
        joules: Iterator[float] | None = None,
    ) -> None:
        super().__init__()
        self._facts = facts
        self._read = read
        self._joules = joules or iter(())
        self.closed = False

    def start(self, uuids: Sequence[str]) -> Mapping[str, Mapping[str, Any]]:
        """Return the facts of each."""
        return dict.fromkeys(uuids, self._facts)

    def window(self) -> SensorBatch:
        """Return the next readings."""
        return self._read()

    def joules(self, uuid: str) -> float | None:
        """Return the next scripted counter."""
        return next(self._joules, None)

    def close(self) -> None:
        """Note it."""
        self.closed = True


class FakeArray:
    """GPU memory that is host memory."""

    def __init__(self, values: HostArray) -> None:
        self.values = values

    @property
    def nbytes(self) -> int:
        """Return the size in bytes."""
        return int(self.values.nbytes)


class FakeGpu:
    """A GPU that computes with NumPy and takes the scripted seconds for each operation.

    `failures` maps a method's name to the errors it raises, one at each call, until none is left.
    `wrong_by` is added to what every operation writes. In a captured graph nothing runs until it
    is launched.
    """

    cupy_version = "0.0-fake"

    def __init__(
        self,
        clock: FakeClock,
        *,
        cuda_index: int = 0,
        operation_s: float = 1e-4,
        l2_bytes: int = 2**20,
        memory_free_bytes: int = 2**33,
        float32_math: str = "fp32",
        compute_capability: str = "9.0",
        sm_clock_mhz: float | None = 1500.0,
        failures: dict[str, list[GpucheckError]] | None = None,
        wrong_by: float = 0.0,
    ) -> None:
        self._clock = clock
        self._operation_s = operation_s
        self._failures = failures or {}
        self._wrong_by = wrong_by
        self._sm_clock_mhz = sm_clock_mhz
        self._pending = 0
        self._capturing: list[Callable[[], None]] | None = None
        self.launches: list[tuple[int, int]] = []
        self.captured = 0
        self.released = 0
        self.facts = BenchGpu(
            cuda_index=cuda_index,
            uuid=f"GPU-{cuda_index:08d}",
            name="Fake GPU",
            compute_capability=compute_capability,
            sm_count=132,
            l2_bytes=l2_bytes,
            memory_total_bytes=2**34,
            memory_free_bytes=memory_free_bytes,
            float32_math=float32_math,
        )

    def allocate(self, shape: tuple[int, ...], storage: str = "float32") -> GpuArray:
        """Allocate host memory."""
        self._may_fail("allocate")
        return FakeArray(np.zeros(shape, dtype=storage))

    def upload(self, host: HostArray) -> GpuArray:
        """Copy."""
        self._may_fail("upload")
        return FakeArray(host.copy())

    def clone(self, array: GpuArray) -> GpuArray:
        """Copy."""
        return FakeArray(_values(array).copy())

    def download(self, array: GpuArray) -> HostArray:
        """Copy."""
        self._may_fail("download")
        return _values(array).copy()

    def rows(self, array: GpuArray, low: int, high: int) -> GpuArray:
        """Return a view."""
        return FakeArray(_values(array)[low:high])

    def poison(self, array: GpuArray) -> None:
        """Fill with NaN, or with what stands for it."""
        values = _values(array)
        values.fill(np.nan if values.dtype.kind == "f" else 0x7FC0 if values.itemsize == 2 else -9)

    def copy(self, source: GpuArray, out: GpuArray) -> None:
        """Copy, with one number wrong if so scripted."""
        self._run(lambda: self._write(out, _values(source)))

    def multiply(
        self, left: GpuArray, right: GpuArray, out: GpuArray, product: Product = _PLAIN
    ) -> None:
        """Multiply in float64 and round to the output's format."""
        self._may_fail("multiply")
        name = {"bf16": "bfloat16", "fp8": "float8"}.get(product.math_mode, "")
        written = "bfloat16" if name else ""
        # Decoding takes float8's scale out, as the product is told to.
        assert product.factor_scale == (1 / FORMATS[name].scale if name == "float8" else 1.0)

        def work() -> None:
            one, other = (decode(_values(side), name).astype(np.float64) for side in (left, right))
            one = one.T if product.left_transposed else one
            other = other.T if product.right_transposed else other
            result = product.alpha * (one @ other)
            if product.beta:
                result = result + product.beta * _values(out)
            self._write(out, result, bits=written)

        self._run(work)

    def softmax(self, source: GpuArray, out: GpuArray, temperature: float) -> None:
        """Compute the softmax in float64."""
        self._run(lambda: self._write(out, _softmax(_values(source) / temperature)))

    def compile(
        self, source: str, name: str, defines: Mapping[str, int] = MappingProxyType({})
    ) -> GpuFunction:
        """Return what the kernels of our own sources compute, in NumPy."""
        self._may_fail("compile")
        assert name.rsplit("_", 1)[0] in source
        form = ("float32", "float16", "bfloat16")[defines.get("ELEMENT", 0)]

        def launch(grid: int, block: int, args: tuple[Any, ...]) -> None:
            self.launches.append((grid, block))
            self._run(lambda: self._kernel(name, form, args))

        return launch

    def _kernel(self, name: str, form: str, args: tuple[Any, ...]) -> None:
        if name == "copy":
            self._write(args[1], _values(args[0]))
        elif name == "triad":
            self._write(args[2], args[3] * _values(args[0]) + _values(args[1]))
        elif name == "gradient":
            logits = _values(args[0])
            self._write(args[0], _softmax(logits.astype(np.float64)) - _values(args[1]))
        elif name == "forward":
            images, weights, targets = (_values(side).astype(np.float64) for side in args[:3])
            self._write(args[3], _softmax(images @ weights) - targets)
        elif name == "project":
            images, errors, out = (_values(side).astype(np.float64) for side in args[:3])
            self._write(args[2], float(args[3]) * (images.T @ errors) + (out if args[4] else 0))
        elif name == "merge":
            weights, steps = _values(args[0]), _values(args[1])
            towers = steps.reshape(-1, *weights.shape)[: int(args[2])]
            self._write(args[0], weights - towers.sum(axis=0))
        else:
            assert name.startswith("softmax")
            wide = decode(_values(args[0]), form).astype(np.float64)
            self._write(args[1], _softmax(wide * (float(args[4]) * np.log(2))), bits=form)

    def capture(self, enqueue: Callable[[], None]) -> Callable[[], None]:
        """Keep what is enqueued instead of running it; the launch runs it all."""
        self._may_fail("capture")
        self.captured += 1
        kept: list[Callable[[], None]] = []
        self._capturing = kept
        try:
            enqueue()
        finally:
            self._capturing = None

        def launch() -> None:
            for work in kept:
                work()
            self._pending += len(kept)

        return launch

    def launch_empty(self, count: int, *, waiting: bool = False) -> None:
        """Take the time of so many operations, twice that if waiting."""
        for _ in range(count):
            self._run(lambda: None)
        if self._capturing is None:
            self.synchronize_cost(count * (2 if waiting else 1))

    def span(self, enqueue: Callable[[], None], *, held: bool = True) -> Span:
        """Run it and return the scripted time of what was enqueued."""
        self._may_fail("span")
        self._pending = 0
        enqueue()
        self.synchronize_cost(self._pending)
        seconds = self._pending * self._operation_s
        return Span(seconds=seconds, starved=False, sm_clock_mhz=self._sm_clock_mhz)

    def synchronize_cost(self, operations: int) -> None:
        """Let the clock run on by so many operations."""
        self._clock.seconds += operations * self._operation_s

    def pinned(self, shape: tuple[int, ...], storage: str = "float32") -> HostArray:
        """Allocate host memory."""
        return np.zeros(shape, dtype=storage)

    def send(self, host: HostArray, array: GpuArray) -> None:
        """Copy, in the time of one operation."""
        self._write(array, host)
        self.synchronize_cost(1)
        self._pending += 1

    def fetch(self, array: GpuArray, host: HostArray) -> None:
        """Copy, in the time of two operations: the kernel before it is waited for as well."""
        host[...] = _values(array)
        if self._wrong_by:
            host.flat[0] += self._wrong_by
        self.synchronize_cost(2)
        self._pending += 1

    def exchange(
        self, sent: HostArray, target: GpuArray, source: GpuArray, fetched: HostArray
    ) -> None:
        """Copy both ways."""
        self.send(sent, target)
        self.fetch(source, fetched)

    def side_by_side(self, works: Sequence[Callable[[], None]]) -> None:
        """Run one after the other."""
        for work in works:
            work()

    def copy_from(self, peer: GpuDevice, source: GpuArray, out: GpuArray) -> None:
        """Copy."""
        assert peer is not self
        self.copy(source, out)

    def reaches(self, peer: GpuDevice) -> bool:
        """Return that neighbours do."""
        return abs(peer.facts.cuda_index - self.facts.cuda_index) == 1

    def memory_used_bytes(self) -> int:
        """Return a fixed number."""
        return 2**20

    def synchronize(self) -> None:
        """Do nothing: everything has run."""

    def release(self) -> None:
        """Count it."""
        self.released += 1

    def _run(self, work: Callable[[], None]) -> None:
        if self._capturing is not None:
            self._capturing.append(work)
            return
        work()
        self._pending += 1

    def _write(self, out: object, result: HostArray, bits: str = "") -> None:
        """Write a result, one number of it wrong if so scripted."""
        values = _values(out)
        result = np.array(result)
        result.flat[0] += self._wrong_by
        values[...] = encode(result, FORMATS["bfloat16"]) if bits == "bfloat16" else result

    def _may_fail(self, method: str) -> None:
        waiting = self._failures.get(method)
        if waiting:
            raise waiting.pop(0)


def _softmax(scaled: HostArray) -> HostArray:
    wide = scaled.astype(np.float64)
    raised = np.exp(wide - wide.max(axis=1, keepdims=True))
    return np.asarray(raised / raised.sum(axis=1, keepdims=True))


def _values(array: object) -> HostArray:
    assert isinstance(array, FakeArray)
    return array.values


def order(
    shape: tuple[int, ...],
    *,
    clock: FakeClock | None = None,
    dtype: str = "float32",
    request: BenchRequest | None = None,
    gpus: Sequence[GpuDevice] = (),
) -> CaseOrder:
    """Return an order for a kernel's cases on the fake processor."""
    request = request or BenchRequest()
    return CaseOrder(
        request=request,
        shape=shape,
        dtype=dtype,
        data=HostData(0, request.fill),
        cpu=FakeCpu().facts(),
        clock=clock or FakeClock(),
        blas=FakeBlas(),
        gpus=gpus,
    )
