"""Cases that a framework runs in its own process, on the same inputs and with the same checks."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from gpucheck.bench.case import (
    EVENT_SPAN_S,
    HOST_SPAN_S,
    Case,
    CaseLabel,
    CaseOrder,
    Kernel,
    Work,
    cpu_label,
    least_seconds,
)
from gpucheck.bench.frameworks import (
    COMPILED,
    CPU_ONLY,
    FORMS,
    GPU_ONLY,
    Framework,
    dtypes_of,
)
from gpucheck.bench.gpu_case import gpu_label, set_count
from gpucheck.bench.kernels import matmul, softmax
from gpucheck.bench.kernels.batch import batch_sizes
from gpucheck.bench.kernels.copy import verify_copy
from gpucheck.bench.mnist import CLASSES, INPUTS
from gpucheck.bench.model import DtypeSpec, Fact, Scope, Verified
from gpucheck.bench.numerics import FORMATS, STORAGES
from gpucheck.bench.request_model import BenchMode
from gpucheck.bench.training import RATE, TrainingPlan, TrainingState, batch_count, step_work
from gpucheck.drivers.gpu import BenchGpu
from gpucheck.drivers.python.framework_bench import (
    FIRST_RUN_S,
    LACKS,
    PREPARE_S,
    RELEASE_S,
    RUN_S,
    SharedBytes,
)
from gpucheck.report.errors import BadAnswerError, GpucheckError
from gpucheck.report.text import framework_title

if TYPE_CHECKING:
    from numpy.typing import NDArray

    HostArray = NDArray[Any]

#: First compute capability with tf32.
_FIRST_TF32 = (8, 0)
#: Share of the free GPU memory that the sets of inputs may use: a framework keeps what it once had.
_SETS_SHARE = 0.1
#: Formats that a framework may multiply a thousand times slower than float32 on processors without
#: instructions for them, and the edges to try that out with, until one takes so many seconds.
_TRIED, _TRIAL_EDGES, _LONG_TRIAL_S = ("bfloat16", "float16"), (256, 512, 1024), 0.2
_FLOAT32 = FORMATS["float32"].spec
#: A run that takes this many times as long as the last one has hung.
_SLOWER = 50.0


def framework_cases(
    kernel: Kernel, order: CaseOrder, framework: Framework, gpu: BenchGpu | None
) -> Sequence[Case]:
    """Return a framework's cases of a kernel on one device, None for the processor.

    A framework that failed has one, whose row tells why.
    """
    if order.dtype not in dtypes_of(framework.name, kernel.id):
        return ()
    if framework.name in (GPU_ONLY if gpu is None else CPU_ONLY):
        return ()
    if gpu is None and (kernel.gpus_needed or order.dtype == "tf32"):
        return ()
    order = replace(order, framework=framework, gpu=gpu)
    if order.dtype == "tf32" and float32_math(order) == "tf32":
        return ()  # its float32 row is that row
    forms = _forms_of(kernel.id, framework.name)
    if order.request.mode is BenchMode.QUICK or framework.failure is not None:
        forms = forms[:1]
    cases = [case for form in forms for case in _cases(kernel, replace(order, form=form))]
    return cases[:1] if framework.failure is not None else cases


def _forms_of(kernel: str, name: str) -> tuple[str, ...]:
    """Return the forms that a kernel has.

    Training allocates, a transfer is not compiled, XLA has no copy for TensorFlow, and a sweep of
    batches shows one form.
    """
    if kernel == "batch":
        return _SWEPT.get(name, FORMS[name][:1])
    lacking = {"train": {"eager-out"}, "transfer": COMPILED, "copy": {"tf.function-xla"}}
    return tuple(form for form in FORMS[name] if form not in lacking.get(kernel, ()))


def _cases(kernel: Kernel, order: CaseOrder) -> Sequence[Case]:
    """Return the cases of one form."""
    name = framework_of(order).name
    if kernel.id == "train":
        ways = ("train",) if order.gpu is None else ("train", "copied")
        return [FrameworkTraining(kernel, order, way, order.shape[0]) for way in ways]
    if kernel.id == "batch":
        sizes = batch_sizes(order.shape[0], order.request.mode)
        return [FrameworkTraining(kernel, order, "batch", size) for size in sizes]
    if kernel.id == "transfer":
        memories = ("pageable",) if name in ("tensorflow", "jax") else _MEMORIES
        return [
            FrameworkTransfer(kernel, order, f"{way}-{memory}")
            for way in ("to-gpu", "from-gpu")
            for memory in memories
        ]
    if kernel.id == "copy":
        return [FrameworkCopy(kernel, order)]
    made = FrameworkMatmul if kernel.id == "matmul" else FrameworkSoftmax
    cases: list[Case] = [made(kernel, order)]
    if order.gpu is not None and order.form == FORMS[name][0]:
        cases.append(made(kernel, order, end_to_end=True))
    return cases


_MEMORIES = ("pinned", "pageable")
#: The form of a framework's sweep over batches, where it is not the first one.
_SWEPT = {"tensorflow": ("tf.function",)}


def framework_of(order: CaseOrder) -> Framework:
    """Return the framework of an order that has one."""
    assert order.framework is not None
    return order.framework


def float32_math(order: CaseOrder) -> str:
    """Return the arithmetic that a framework uses by default for float32 products: fp32, tf32."""
    if order.gpu is None or order.gpu.capability < _FIRST_TF32:
        return "fp32"
    return str(framework_of(order).process.facts.get("float32_math", "fp32"))


class FrameworkCase(Case):
    """Base of the cases of frameworks: the requests to the child, and the shared memory.

    A kernel adds its inputs, its parameters and its check.
    """

    #: Name of the operation in requests, if it is not the kernel's.
    request_kernel = ""
    output_storage = "float32"
    way = ""
    #: A run walks through more inputs than a GPU's cache holds.
    rotates = True
    #: The host waits for each operation, even where the data stays on the GPU.
    waits = False

    def __init__(
        self,
        kernel: Kernel,
        order: CaseOrder,
        spec: DtypeSpec = _FLOAT32,
        *,
        variant: str = "",
        end_to_end: bool = False,
    ) -> None:
        self._order = order
        self._framework = framework_of(order)
        self._kernel = kernel
        self._end_to_end = end_to_end
        self.work: Work = kernel.work(order.shape, order.dtype)
        self.label = self._label(variant or kernel.id, spec)
        if end_to_end:
            self.label = replace(self.label, scope=Scope.END_TO_END)
        self._shared: list[SharedBytes] = []
        self._out: SharedBytes | None = None
        self._has_run = False
        self._per_loop_s = 0.0
        self._handed_s = self._total_s = 0.0

    def _label(self, variant: str, spec: DtypeSpec) -> CaseLabel:
        gpu, use = self._order.gpu, self._framework.use(self._order.form)
        if gpu is not None:
            made = gpu_label(self._order, self._kernel.id, variant, gpu, spec)
        else:
            made = cpu_label(self._order, self._kernel.id, variant, self._order.cpu.threads, spec)
        return replace(made, framework=use, parameters=self.row_parameters())

    @property
    def compiles(self) -> bool:
        """Return whether the first run compiles."""
        return self._order.form in COMPILED

    @property
    def shortest_span_s(self) -> float:
        """Return the shortest span that the host's clock measures accurately."""
        return HOST_SPAN_S if self._order.gpu is None else 2 * EVENT_SPAN_S

    @property
    def least_s(self) -> float | None:
        """Return the seconds that the processor needs for an operation at least."""
        if self._order.gpu is not None:
            return None
        return least_seconds(self._order.cpu, self.label, self.work)

    @property
    def sets(self) -> int:
        """Return the number of input sets to rotate through: more than one on a GPU alone."""
        gpu = self._order.gpu
        if gpu is None or self._end_to_end or not self.rotates:
            return 1
        moved = max(1, self.work.bytes_moved)
        affordable = int(_SETS_SHARE * gpu.memory_free_bytes // moved)
        return max(1, min(set_count(moved, gpu), affordable))

    @property
    def walked_and_cache_bytes(self) -> tuple[int, int] | None:
        """Return the memory that a run walks through, and the device's last cache."""
        if self._end_to_end or not self._kernel.limited_by_memory:
            return None
        if self._order.gpu is not None:
            return self.sets * self.work.bytes_moved, self._order.gpu.l2_bytes
        cache_bytes = self._order.cpu.last_level_bytes
        return None if cache_bytes is None else (self.work.bytes_moved, cache_bytes)

    @property
    def facts(self) -> Mapping[str, Fact]:
        """Return the row's clock, and the share of the time in which the host handed over work."""
        if self._order.gpu is None or not self._total_s:
            return {}
        facts: dict[str, Fact] = {"timed_by": "host"}
        if self.queues:
            facts["enqueue_share"] = self._handed_s / self._total_s
        return facts

    @property
    def queues(self) -> bool:
        """Return whether operations follow each other on the GPU without waiting for each."""
        on_gpu = self._order.gpu is not None and not self.waits
        return on_gpu and self.label.scope is Scope.RESIDENT

    @property
    def math(self) -> str:
        """Return the arithmetic to set: the framework's default, or tf32."""
        return "tf32" if self._order.dtype == "tf32" else "default"

    def row_parameters(self) -> dict[str, Fact]:
        """Return the parameters of the row."""
        return {}

    def parameters(self) -> dict[str, Fact]:
        """Return the parameters of the operation."""
        return self.row_parameters()

    @abstractmethod
    def inputs(self) -> Sequence[tuple[HostArray, str]]:
        """Return the inputs as they are stored, each with its format."""

    @property
    def output_shape(self) -> tuple[int, ...]:
        """Return the shape of the output, which most have of the input."""
        return self._order.shape

    @abstractmethod
    def verify(self, out: HostArray) -> Verified:
        """Compare an output with float64."""

    def prepare(self) -> None:
        """Hand over the inputs, which the framework copies to where it computes."""
        device = self._device()
        given = []
        for array, dtype in self.inputs():
            shared = SharedBytes(array.nbytes)
            self._shared.append(shared)
            shared.write(array)
            given.append({**shared.place, "shape": list(array.shape), "dtype": dtype})
        itemsize = {"uint16": 2, "float16": 2, "float64": 8}.get(self.output_storage, 4)
        self._out = SharedBytes(math.prod(self.output_shape) * itemsize)
        self._ask(
            {
                "ask": "prepare",
                "kernel": self.request_kernel or self._kernel.id,
                "form": self._order.form,
                "device": device,
                "math": self.math,
                "end_to_end": self._end_to_end,
                "way": self.way,
                "sets": self.sets,
                "parameters": self.parameters(),
                "inputs": given,
                "output": {**self._out.place, "shape": list(self.output_shape)},
            },
            PREPARE_S,
        )
        # They have been copied: only one copy of the inputs should take memory.
        self._close(self._shared)

    def _device(self) -> str:
        """Return the device by the framework's own number."""
        framework, gpu = self._framework, self._order.gpu
        if framework.failure is not None:
            failure = framework.failure
            raise BadAnswerError(code=failure.code, message=failure.message, remedy=failure.remedy)
        if gpu is None:
            return "cpu"
        place = framework.place_of(gpu)
        if place is None:
            build = framework.process.facts.get("build")
            title = f"{framework_title(framework.name)} {framework.version} (build: {build})"
            raise BadAnswerError(
                code=LACKS,
                message=f"{title} does not see {gpu.device}, {gpu.name}",
                remedy=(f"Run: {framework.process.trial}",),
            )
        return place

    def poison(self) -> None:
        """Fill preallocated outputs with NaN, and forget the last result."""
        self._ask({"ask": "poison"}, PREPARE_S)

    def run(self, loops: int) -> float:
        """Run the operation `loops` times and return the seconds until the last has finished."""
        expected_s = _SLOWER * self._per_loop_s * loops
        deadline_s = max(RUN_S, expected_s) if self._has_run else FIRST_RUN_S
        answer = self._ask({"ask": "run", "loops": loops}, deadline_s)
        self._has_run = True
        seconds = float(answer["seconds"])
        self._per_loop_s = seconds / loops
        self._handed_s, self._total_s = float(answer["handed_s"]), seconds
        return seconds

    def check(self) -> Verified:
        """Fetch the output of the last run and compare it with float64."""
        return self.verify(self.fetch())

    def fetch(self) -> HostArray:
        """Return the output of the last run."""
        assert self._out is not None
        self._ask({"ask": "fetch"}, PREPARE_S)
        return self._out.array(self.output_storage, self.output_shape)

    def release(self) -> None:
        """Let the framework free its arrays, and free the shared memory."""
        self._close(self._shared)
        if self._out is not None:
            self._out.close()
            self._out = None
        if self._framework.process.running:
            self._ask({"ask": "release"}, RELEASE_S)

    def _ask(self, request: dict[str, Any], deadline_s: float) -> dict[str, Any]:
        return self._framework.process.ask(request, deadline_s)

    @staticmethod
    def _close(shared: list[SharedBytes]) -> None:
        for file in shared:
            file.close()
        shared.clear()


class FrameworkMatmul(FrameworkCase):
    """Matrix product of a framework."""

    def __init__(self, kernel: Kernel, order: CaseOrder, *, end_to_end: bool = False) -> None:
        form = FORMATS[order.dtype]
        if order.dtype == "float32" and float32_math(order) == "tf32":
            form = FORMATS["tf32"]
        self._form = form
        self.output_storage = STORAGES[form.output]
        super().__init__(kernel, order, form.spec, end_to_end=end_to_end)

    @property
    def output_shape(self) -> tuple[int, ...]:
        """Return (m, n)."""
        return (self._order.shape[0], self._order.shape[2])

    def inputs(self) -> Sequence[tuple[HostArray, str]]:
        """Return A and B; frameworks know tf32 as float32, as it is stored."""
        stored = self._form.spec.input
        return [(array, stored) for array in matmul.draw_inputs(self._order)]

    def trial_s(self) -> float | None:
        """Return the seconds of a 16-bit product on the processor, as smaller ones grow.

        Those that leave the caches grow faster than their work. All forms call the same product.
        """
        framework, edge = self._framework, min(self._order.shape)
        key = (self._order.dtype, edge)
        if self._order.gpu is not None or self._order.dtype not in _TRIED or framework.failure:
            return None
        if key not in framework.trials_s:
            try:
                framework.trials_s[key] = self._grown_s(edge)
            except GpucheckError:  # its row will say why
                framework.trials_s[key] = None
        return framework.trials_s[key]

    def _grown_s(self, edge: int) -> float | None:
        tried: list[tuple[int, float]] = []
        for smaller in _TRIAL_EDGES:
            if 2 * smaller <= edge and (not tried or tried[-1][1] < _LONG_TRIAL_S):
                tried.append((smaller, self._seconds_of(smaller, again=not tried)))
        if not tried:
            return None
        last, seconds = tried[-1]
        growth = 2.0**3
        if len(tried) > 1:
            growth = max(growth, seconds / tried[-2][1])
        return float(seconds * growth ** math.log2(edge / last))

    def _seconds_of(self, edge: int, *, again: bool) -> float:
        """Return the seconds of a smaller product; the very first one loads libraries."""
        order = replace(self._order, shape=(edge, edge, edge), form="eager")
        case = FrameworkMatmul(self._kernel, order)
        try:
            case.prepare()
            seconds = case.run(1)
            return case.run(1) if again else seconds
        finally:
            case.release()

    def verify(self, out: HostArray) -> Verified:
        """Compare an output with float64."""
        return matmul.verify_product(self._order, out, form=self._form)


class FrameworkSoftmax(FrameworkCase):
    """Softmax of a framework, with a temperature."""

    def __init__(self, kernel: Kernel, order: CaseOrder, *, end_to_end: bool = False) -> None:
        form = FORMATS[order.dtype]
        self.output_storage = form.storage
        spec = replace(form.spec, accumulate="float32", math_mode="fp32")
        super().__init__(kernel, order, spec, end_to_end=end_to_end)

    def row_parameters(self) -> dict[str, Fact]:
        """Return the temperature."""
        return {"temperature": self._order.request.temperature}

    def inputs(self) -> Sequence[tuple[HostArray, str]]:
        """Return the input."""
        return [(softmax.draw_input(self._order), self._order.dtype)]

    def verify(self, out: HostArray) -> Verified:
        """Compare an output with float64."""
        return softmax.verify_order(self._order, out)


class FrameworkCopy(FrameworkCase):
    """Copy by a framework within a device's memory."""

    def inputs(self) -> Sequence[tuple[HostArray, str]]:
        """Return the source."""
        return [(self._order.data.normal(self._kernel.id, self._order.shape), "float32")]

    def verify(self, out: HostArray) -> Verified:
        """Count the numbers that differ."""
        return verify_copy(self.inputs()[0][0], out)


class FrameworkTransfer(FrameworkCopy):
    """Copy by a framework between host and GPU."""

    #: Nothing of it is read again from a cache, and some frameworks wait for each copy.
    rotates = False
    waits = True

    def __init__(self, kernel: Kernel, order: CaseOrder, way: str) -> None:
        self.way = way
        super().__init__(kernel, order, variant=way)

    def inputs(self) -> Sequence[tuple[HostArray, str]]:
        """Return the source: the numbers of gpucheck's own transfers."""
        source = self._order.data.normal("transfer", (math.prod(self._order.shape),))
        return [(source.reshape(self._order.shape), "float32")]


class FrameworkTraining(FrameworkCase):
    """Steps of softmax regression, as a framework's tutorials write them.

    `way` is the kernel's name with the data in place, `copied` with each batch sent for its step.
    """

    request_kernel = "train"
    #: The batches are walked through in turn.
    rotates = False

    def __init__(self, kernel: Kernel, order: CaseOrder, way: str, batch: int) -> None:
        plan = TrainingPlan(kernel=kernel.id, batch=batch, trained=kernel.id == "train")
        self._training = TrainingState(order, plan)
        self._batch = batch
        self.way = way
        super().__init__(kernel, order, variant=way)
        self.work = step_work(batch)
        self.label = replace(self.label, shape=(batch,))
        if way == "copied":
            self.label = replace(self.label, scope=Scope.END_TO_END)

    @property
    def output_shape(self) -> tuple[int, ...]:
        """Return the shape of the weights."""
        return (INPUTS, CLASSES)

    @property
    def facts(self) -> Mapping[str, Fact]:
        """Return the source of the images, the memory, the accuracy, and the host's share."""
        return self._training.facts() | dict(super().facts)

    def parameters(self) -> dict[str, Fact]:
        """Return the batch and the learning rate."""
        return {"batch": self._batch, "rate": RATE}

    def inputs(self) -> Sequence[tuple[HostArray, str]]:
        """Return the images of all batches, and their classes."""
        import numpy as np

        dataset = self._training.load()
        count = batch_count(dataset, self._batch) * self._batch
        classes = np.argmax(dataset.targets[:count], axis=1).astype(np.int32)
        return [(dataset.images[:count], "float32"), (classes, "int32")]

    def poison(self) -> None:
        """Begin with weights of zero."""
        self._training.steps_done = 0
        super().poison()

    def run(self, loops: int) -> float:
        """Run so many steps and return their seconds."""
        seconds = super().run(loops)
        self._training.steps_done += loops
        return seconds

    def check(self) -> Verified:
        """Compare the weights after a few steps from zero with float64."""

        def walk(steps: int) -> None:
            self._ask({"ask": "run", "loops": steps}, FIRST_RUN_S)
            self._training.steps_done += steps

        def zero() -> None:
            FrameworkCase.poison(self)

        return self._training.check(zero, walk, lambda: self.fetch().copy())

    def verify(self, out: HostArray) -> Verified:
        """Raise TypeError: `check` compares the weights."""
        raise TypeError
