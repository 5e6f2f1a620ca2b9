"""Plan of a benchmark: kernels, number formats, shapes that fit into memory, and time."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from gpucheck.bench.case import Kernel
from gpucheck.bench.frameworks import GPU_ONLY, UNNAMED, dtypes_of
from gpucheck.bench.gpu_case import ROTATION_IN_L2
from gpucheck.bench.numerics import FORMATS, canonical
from gpucheck.bench.request_model import BenchMode, BenchRequest
from gpucheck.bench.roofline import are_alike
from gpucheck.drivers.cupy.errors import BUSY
from gpucheck.drivers.gpu import BenchGpu, OpenedGpus
from gpucheck.inventory.condition import RESERVED_BYTES, spare_bytes
from gpucheck.report.envelope import Failure
from gpucheck.report.errors import InconclusiveError, MissingError, WrongUseError, check_seconds
from gpucheck.report.text import did_you_mean, group_by

#: Variable that makes NVIDIA's libraries silently compute tf32 in float32.
TF32_OVERRIDE = "NVIDIA_TF32_OVERRIDE"
#: Seconds for all groups; start-up and checks take the rest of the promised 10 and 60 seconds.
BUDGETS_S = {BenchMode.QUICK: 8.5, BenchMode.DEFAULT: 50.0, BenchMode.FULL: 300.0}
#: Rounds that the time is divided into. In recorded runs 16 rounds of 5 ms settle more rows of a
#: processor than 9 of 30 ms: all that need one thread, and 94 % of the others instead of 62 %.
ROUNDS = {BenchMode.QUICK: 16, BenchMode.DEFAULT: 16, BenchMode.FULL: 24}
#: Target half-width of each row's interval, as a share of the median: "15 ms, give or take 10 %" is
#: an answer. Rows continue to 1 % while there is time (bench/stats.py).
PRECISIONS = {BenchMode.QUICK: 0.1, BenchMode.DEFAULT: 0.1, BenchMode.FULL: 0.03}
#: Longest warm-up of one case: a chip needs seconds to reach its steady clock and temperature.
WARMUPS_S = {BenchMode.QUICK: 0.2, BenchMode.DEFAULT: 1.0, BenchMode.FULL: 3.0}
#: Seconds that an operation repeats for its energy: the counter moves every tenth of a second.
ENERGY_S = {BenchMode.QUICK: 0.0, BenchMode.DEFAULT: 0.0, BenchMode.FULL: 5.0}
#: Kernels that show a device's limits; measured briefly even if not requested.
_LIMITS = {"copy": None, "matmul": "float32"}
#: Share of the free memory that a group may use; the system and other programs keep the rest.
_HOST_SHARE, _GPU_SHARE = 0.5, 0.8
#: A GPU whose free memory holds less than this part of the size is left out, since it would shrink
#: the size for the others too.
_LEAST_PART = 1 / 16
#: Shortest useful operation where memory limits it: a graph takes a microsecond to start the next.
_LEAST_OPERATION_S = 100e-6
#: Largest edge (2 GiB) of the copy that shows a processor's limit; it must exceed the caches.
_LARGEST_LIMIT = 16384
#: Times that a framework holds an operation's bytes: inputs, results, temporaries, the handover.
FRAMEWORK_COPIES = 4
#: Error of a row whose GPU has too little free memory.
MEMORY_TAKEN = "gpu-memory-taken"
#: Error where no GPU can be measured, or none by gpucheck itself.
NO_GPU = "no-gpu"


@dataclass(frozen=True, slots=True, kw_only=True)
class Resources:
    """Devices of a run, and the host's free memory and last-level cache; None if unknown.

    `holders` names the processes that hold a GPU's memory, by UUID; `variables` are those of the
    environment. `frameworks` are the names of those that are measured too.
    """

    with_cpu: bool = True
    gpus: tuple[BenchGpu, ...] = ()
    host_bytes: int | None = None
    cache_bytes: int | None = None
    holders: Mapping[str, str] = field(default_factory=dict)
    variables: Mapping[str, str] = field(default_factory=dict)
    frameworks: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Cases of one kernel in one format at one shape, measured alternately.

    `limit` marks a group that was not requested: it only shows the devices' limits. `taken` are
    GPUs whose memory others hold, with the error of their rows. `frameworks_on_cpu`: the processor
    is measured by the frameworks, even where gpucheck has no kernel of its own.
    """

    kernel: Kernel
    dtype: str
    shape: tuple[int, ...]
    request: BenchRequest
    with_cpu: bool = True
    gpus: frozenset[int] = field(default_factory=frozenset)
    limit: bool = False
    taken: Mapping[int, Failure] = field(default_factory=dict)
    frameworks_on_cpu: bool = False

    @property
    def bytes_moved(self) -> int:
        """Return the bytes that one operation moves."""
        return self.kernel.work(self.shape, self.dtype).bytes_moved


class Plan:
    """Plan of a benchmark: groups in order, notes on the choice, and the budget.

    Raises:
        WrongUseError: an unknown kernel or dtype, an invalid size or budget, or an explicit size
            that does not fit into memory.
        MissingError: nothing requested can run on the devices that take part.
        InconclusiveError: the host has too little memory for the smallest size.
    """

    def __init__(
        self, request: BenchRequest, kernels: Mapping[str, Kernel], resources: Resources
    ) -> None:
        self._request = request
        self._kernels = kernels
        self._resources = resources
        self._dtypes = _requested_dtypes(request, kernels)
        self._notes: list[str] = []
        self.budget_s = BUDGETS_S[request.mode] if request.budget_s is None else request.budget_s
        groups = self._requested_groups()
        self.notes = tuple(dict.fromkeys(self._notes))
        # Groups that were not requested must not take time from requested ones.
        self.groups = (*groups, *self._limits(groups))

    def _requested_groups(self) -> list[Group]:
        """Return the requested groups that can be measured."""
        request = self._request
        chosen = _requested_kernels(request, self._kernels)
        check_numbers(request)
        too_few_gpus: list[str] = []
        groups: list[Group] = []
        for kernel in chosen:
            kernel.validate(request)
            if kernel.gpus_needed > len(self._resources.gpus):
                too_few_gpus.append(kernel.id)
                continue
            for dtype in self._dtypes_of(kernel):
                group = self._group(kernel, dtype)
                groups.extend([] if group is None else [group])
        reasons = [*self._notes]
        if too_few_gpus:
            needs = _needed_gpus(too_few_gpus, self._kernels)
            reasons.append(needs)
            self._notes.append(f"{needs}: not measured")
        if not groups:
            raise MissingError(
                code="nothing-to-measure",
                message=f"Nothing requested can be measured here: {'; '.join(reasons)}.",
                remedy=("Run: gpucheck detect", "Choose another --dtype or kernel."),
            )
        return groups

    def _limits(self, groups: Sequence[Group]) -> list[Group]:
        """Return the short groups that show the devices' limits if no requested group does."""
        limits: list[Group] = []
        for name, dtype in _LIMITS.items():
            kernel = self._kernels.get(name)
            if kernel is None:
                continue
            same = [
                group
                for group in groups
                if group.kernel.id == name and dtype in (None, group.dtype)
            ]
            if name == "copy":
                limits.extend(self._copy_limit(kernel, same))
                limits.extend(self._cached_copies(kernel, [*groups, *limits]))
            # A smaller product does not reach a device's limit.
            elif all(
                math.prod(group.shape) < math.prod(kernel.shape(kernel.sizes[BenchMode.QUICK]))
                for group in same
            ):
                limits.extend(self._limit(kernel, kernel.sizes[BenchMode.QUICK], (), cpu=True))
        return [group for group in limits if group.with_cpu or group.gpus]

    def _copy_limit(self, kernel: Kernel, requested: Sequence[Group]) -> Sequence[Group]:
        """Return the copy for devices without a requested copy larger than their cache."""
        edge = kernel.sizes[BenchMode.QUICK]
        beyond = grow_beyond_cache(kernel, edge, self._resources.cache_bytes)
        gpus = [
            gpu
            for gpu in self._resources.gpus
            if self._taken(kernel, "float32", gpu, edge) is None
            and not self._shown(requested, kernel, edge, gpu)
        ]
        cpu = self._resources.with_cpu and not self._shown(requested, kernel, beyond, None)
        return self._limit(kernel, beyond if cpu else edge, gpus, cpu=cpu)

    def _cached_copies(self, kernel: Kernel, groups: Sequence[Group]) -> list[Group]:
        """Return copies of as many bytes as the processor's groups that its cache may hold have."""
        on_cpu = [group for group in groups if group.with_cpu or group.frameworks_on_cpu]
        sizes = [group.bytes_moved for group in on_cpu if group.kernel is kernel]
        copies: list[Group] = []
        for group in on_cpu:
            moved = group.bytes_moved
            cached = moved < ROTATION_IN_L2 * (self._resources.cache_bytes or 0)
            if (
                group.kernel.limited_by_memory
                and cached
                and not any(are_alike(moved, size) for size in sizes)
            ):
                edge = math.isqrt(moved // kernel.work((1, 1), "float32").bytes_moved)
                copies.append(self._limit_group(kernel, max(1, edge), (), cpu=True))
                sizes.append(moved)
        return copies

    def _shown(
        self, requested: Sequence[Group], kernel: Kernel, edge: int, gpu: BenchGpu | None
    ) -> bool:
        """Return whether a group measures this device (None: the processor) at this size."""
        there = (gpu,) if gpu is not None else ()
        size = power_of_two(largest_fitting(kernel, "float32", edge, self._resources, there) or 1)
        return any(
            math.prod(group.shape) >= math.prod(kernel.shape(size))
            and (group.with_cpu if gpu is None else gpu.cuda_index in group.gpus)
            for group in requested
        )

    def _limit(
        self, kernel: Kernel, edge: int, gpus: Sequence[BenchGpu], *, cpu: bool
    ) -> Sequence[Group]:
        size = largest_fitting(kernel, "float32", edge, self._resources, gpus)
        return (self._limit_group(kernel, power_of_two(size), gpus, cpu=cpu),) if size else ()

    def _limit_group(
        self, kernel: Kernel, edge: int, gpus: Sequence[BenchGpu], *, cpu: bool
    ) -> Group:
        return Group(
            kernel=kernel,
            dtype="float32",
            shape=kernel.shape(edge),
            request=replace(self._request, mode=BenchMode.QUICK, size=None),
            with_cpu=self._resources.with_cpu and cpu,
            gpus=frozenset(gpu.cuda_index for gpu in gpus),
            limit=True,
        )

    def _dtypes_of(self, kernel: Kernel) -> Sequence[str]:
        if not self._dtypes:
            return kernel.dtypes[self._request.mode]
        known = [name for name in self._dtypes if name in kernel.dtypes[BenchMode.FULL]]
        if not known and kernel.id in self._request.kernels:
            raise WrongUseError(
                code="unknown-dtype",
                message=f"bench cannot measure {kernel.id} in dtype {', '.join(self._dtypes)}.",
                remedy=(f"Choose from: {', '.join(kernel.dtypes[BenchMode.FULL])}.",),
            )
        return known

    def _group(self, kernel: Kernel, dtype: str) -> Group | None:
        """Return the group with the devices that support the format, None if none does."""
        refusals, request = {}, self._request
        cpu = kernel.cpu_refusal(dtype) if kernel.gpus_needed == 0 else None
        with_cpu = self._resources.with_cpu and kernel.gpus_needed == 0 and cpu is None
        by_frameworks = (
            self._resources.with_cpu
            and kernel.gpus_needed == 0
            and dtype != "tf32"
            and any(
                name not in GPU_ONLY and dtype in dtypes_of(name, kernel.id)
                for name in self._resources.frameworks
            )
        )
        forbidden = None
        if dtype == "tf32" and self._resources.variables.get(TF32_OVERRIDE) == "0":
            forbidden = (
                f"{TF32_OVERRIDE}=0 makes cuBLAS compute tf32 in float32; unset it to measure tf32"
            )
        if cpu is not None and not by_frameworks and self._resources.with_cpu and self._dtypes:
            refusals["cpu"] = cpu
        size = request.size or kernel.sizes[request.mode]
        gpus: list[BenchGpu] = []
        taken: dict[int, Failure] = {}
        for gpu in self._resources.gpus:
            refusal = forbidden or kernel.gpu_refusal(dtype, gpu)
            refusal = refusal or kernel.size_refusal(dtype, size)
            full = self._taken(kernel, dtype, gpu, size)
            if refusal is not None:
                refusals[gpu.device] = refusal
            elif full is not None:
                taken[gpu.cuda_index] = full
            else:
                gpus.append(gpu)
        self._notes.extend(f"{kernel.id}: {refusal}" for refusal in refusals.values())
        self._notes.extend(failure.message for failure in taken.values())
        if not with_cpu and not by_frameworks and not gpus and not taken:
            return None
        if with_cpu or by_frameworks or gpus:
            size = self._size(kernel, dtype, gpus)
        return Group(
            kernel=kernel,
            dtype=dtype,
            shape=kernel.shape(size),
            request=request,
            with_cpu=with_cpu,
            gpus=frozenset(gpu.cuda_index for gpu in gpus),
            taken=taken,
            frameworks_on_cpu=by_frameworks,
        )

    def _taken(self, kernel: Kernel, dtype: str, gpu: BenchGpu, size: int) -> Failure | None:
        exact = self._request.size is not None
        return lacking_memory(kernel, dtype, gpu, size, self._resources, exact=exact)

    def _size(self, kernel: Kernel, dtype: str, gpus: Sequence[BenchGpu]) -> int:
        """Return the size to measure, and note it if it is smaller than the mode's.

        Raises:
            WrongUseError: a requested size does not fit; the error names the largest that does.
            InconclusiveError: not even the smallest size fits.
        """
        request = self._request
        size = request.size or long_enough(kernel, dtype, request.mode, gpus)
        if fits(kernel, dtype, size, self._resources, gpus):
            return size
        largest = _largest(kernel, dtype, size, self._resources, gpus)
        if request.size is None:
            reduced = power_of_two(largest)
            self._notes.append(
                f"{kernel.id} {dtype}: size {size} does not fit into the free memory; "
                f"measured at {reduced}"
            )
            return reduced
        holders = self._resources.holders
        held = [
            f"gpu:{gpu.cuda_index}: {holders[gpu.uuid or '']}."
            for gpu in gpus
            if (gpu.uuid or "") in holders
        ]
        raise WrongUseError(
            code="size-does-not-fit",
            message=f"{kernel.id} {dtype} of size {size} does not fit into the free memory.",
            remedy=(f"The largest size that fits now is {largest}.", *held),
        )


def _requested_dtypes(request: BenchRequest, kernels: Mapping[str, Kernel]) -> tuple[str, ...]:
    """Return the canonical names of the requested formats.

    Raises:
        WrongUseError: no kernel supports a name.
    """
    requested = tuple(dict.fromkeys(canonical(name) for name in request.dtypes))
    for name in requested:
        if not any(name in kernel.dtypes[BenchMode.FULL] for kernel in kernels.values()):
            raise WrongUseError(
                code="unknown-dtype",
                message=f"No kernel can be measured in dtype {name!r}."
                f" {did_you_mean(name, FORMATS)}".strip(),
                remedy=(f"Choose from: {', '.join(FORMATS)}.",),
            )
    return requested


def _requested_kernels(request: BenchRequest, kernels: Mapping[str, Kernel]) -> Sequence[Kernel]:
    """Return the kernels that were named, else all; with frameworks those that they have."""
    every = [name for name in kernels if not request.frameworks or name in UNNAMED]
    for name in request.kernels:
        if name not in kernels:
            suggestion = did_you_mean(name, kernels)
            raise WrongUseError(
                code="unknown-kernel",
                message=f"There is no kernel called {name!r}. {suggestion}".strip(),
                remedy=(f"Choose from: {', '.join(kernels)}.",),
            )
    # dict.fromkeys keeps the order and drops duplicates.
    return [kernels[name] for name in dict.fromkeys(request.kernels or every)]


def _needed_gpus(too_few_gpus: Sequence[str], kernels: Mapping[str, Kernel]) -> str:
    """Return the needs of the kernels that need more GPUs than there are."""
    by_need = group_by(too_few_gpus, lambda name: kernels[name].gpus_needed)
    said = [
        f"{' and '.join(names)} {'needs' if len(names) == 1 else 'need'} "
        f"{'a GPU' if count == 1 else f'{count} GPUs'}"
        for count, names in by_need.items()
    ]
    return "; ".join(said)


def check_numbers(request: BenchRequest) -> None:
    """Check size, budget and seed.

    Raises:
        WrongUseError: one of them is invalid.
    """
    if request.size is not None and request.size < 1:
        raise WrongUseError(
            code="bad-size",
            message=f"A size must be at least 1, not {request.size}.",
            remedy=("Give the edge of the square problem, for example --size 4096.",),
        )
    if request.budget_s is not None:
        remedy = ("Give seconds, for example --budget 30.",)
        check_seconds("A budget", request.budget_s, code="bad-budget", remedy=remedy)
    if request.seed < 0:
        raise WrongUseError(
            code="bad-seed",
            message=f"A seed must be zero or greater, not {request.seed}.",
            remedy=("Give a whole number, for example --seed 1.",),
        )


def select_devices(devices: Sequence[str], gpus: OpenedGpus) -> tuple[bool, Sequence[BenchGpu]]:
    """Return whether to measure the processor, and the facts of the GPUs to measure.

    Raises:
        WrongUseError: a name is not a device.
        MissingError: none of them is on this machine.
        InconclusiveError: the driver does not answer, or another process has exclusive use of the
            GPU.
    """
    check_device_names(devices)
    facts = [*(gpu.facts for gpu in gpus.devices), *gpus.for_frameworks]
    known = {gpu.device: gpu for gpu in facts}
    with_cpu, chosen = False, {}
    for name in devices:
        if name in ("cpu", "all"):
            with_cpu = True
        if name in ("gpu", "all"):
            chosen.update(known)
        elif name in known:
            chosen[name] = known[name]
    if not with_cpu and not chosen:
        error = InconclusiveError if gpus.silent or gpus.busy else MissingError
        raise error(
            code=BUSY if gpus.busy else NO_GPU,
            message=f"No GPU can be measured: {(gpus.unavailable or 'none found').rstrip('.')}.",
            remedy=(
                *(gpus.remedy or ("Run: gpucheck detect",)),
                "Measure the processor instead: --device cpu",
            ),
        )
    return with_cpu, list(chosen.values())


def check_device_names(devices: Sequence[str]) -> None:
    """Check the device names before any device is used.

    Raises:
        WrongUseError: a name is not a device.
    """
    for name in devices:
        if name not in ("cpu", "gpu", "all") and not (
            name.startswith("gpu:") and name[4:].isascii() and name[4:].isdigit()
        ):
            raise WrongUseError(
                code="bad-device",
                message=f"bench does not know the device {name!r}."
                f" {did_you_mean(name, ('cpu', 'gpu', 'gpu:0', 'all'))}".strip(),
                remedy=("Choose from: cpu, gpu, gpu:0 (and so on), all.",),
            )


def lacking_memory(
    kernel: Kernel, dtype: str, gpu: BenchGpu, size: int, resources: Resources, *, exact: bool
) -> Failure | None:
    """Return the error of a GPU on which other processes leave too little memory.

    With `exact` the user chose the size: only a GPU that fits no size is left out, and a size that
    does not fit the others is refused. A GPU that is too small even when empty has no error.
    """
    least = 1 if exact else max(1, int(_LEAST_PART * size))
    needed = kernel.device_bytes(kernel.shape(least), dtype)
    if needed <= _GPU_SHARE * gpu.memory_free_bytes:
        return None
    if needed > _GPU_SHARE * gpu.memory_total_bytes:
        return None
    free, total = gpu.memory_free_bytes / 2**30, gpu.memory_total_bytes / 2**30
    who = resources.holders.get(gpu.uuid or "", "the driver does not say who holds the rest")
    return Failure(
        code=MEMORY_TAKEN,
        message=f"gpu:{gpu.cuda_index} has too little free memory: {free:.1f} of {total:.1f} GiB; "
        f"{who}",
        remedy=("List them: gpucheck list --processes", "Run it again when they have ended."),
    )


def _largest(
    kernel: Kernel, dtype: str, size: int, resources: Resources, gpus: Sequence[BenchGpu]
) -> int:
    largest = largest_fitting(kernel, dtype, size, resources, gpus)
    if largest < 1 and any(gpu.integrated for gpu in gpus):
        raise InconclusiveError(
            code="memory-shared",
            message=f"{kernel.id} is not measured: the GPU shares the system's memory, of which at "
            f"least {RESERVED_BYTES / 2**30:.0f} GiB must stay available. Filling it would stop "
            "the whole machine.",
            remedy=(
                "End the programs that use the memory, and run it again.",
                "Measure the processor instead: --device cpu",
            ),
        )
    if largest < 1:
        raise InconclusiveError(
            code="memory-taken",
            message=f"{kernel.id} cannot be measured: hardly any memory is free.",
            remedy=("End the programs that use the memory, and run it again.",),
        )
    return largest


def fits(
    kernel: Kernel, dtype: str, size: int, resources: Resources, gpus: Sequence[BenchGpu]
) -> bool:
    """Return whether a size fits into the free memory of the host and of these GPUs.

    Memory that a GPU shares with the host counts for both and must never fill up.
    """
    shape = kernel.shape(size)
    host = kernel.host_bytes(shape, dtype, len(resources.gpus))
    # One framework at a time holds its own inputs and results, beside what is handed over.
    extra = FRAMEWORK_COPIES * kernel.work(shape, dtype).bytes_moved if resources.frameworks else 0
    host += extra
    if resources.host_bytes is not None and host > _HOST_SHARE * resources.host_bytes:
        return False
    needed = kernel.device_bytes(shape, dtype) + len(resources.frameworks) * extra
    if not all(needed <= _GPU_SHARE * gpu.memory_free_bytes for gpu in gpus):
        return False
    sharing = sum(bool(gpu.integrated) for gpu in gpus)
    return not sharing or host + sharing * needed <= spare_bytes(resources.host_bytes or 0)


def long_enough(kernel: Kernel, dtype: str, mode: BenchMode, gpus: Sequence[BenchGpu]) -> int:
    """Return the default edge: the mode's, doubled for fast memory.

    It is doubled until an operation takes a tenth of a millisecond at the fastest board's
    bandwidth. The quick mode has no time for that; the default mode stops at the full mode's edge.
    """
    edge, most = kernel.sizes[mode], kernel.sizes[BenchMode.FULL]
    if not kernel.limited_by_memory or mode is BenchMode.QUICK:
        return edge
    if mode is BenchMode.FULL:
        most *= 2
    fastest = max((gpu.board.bytes_per_s or 0.0 for gpu in gpus if gpu.board), default=0.0)
    wanted = _LEAST_OPERATION_S * fastest
    while 2 * edge <= most and kernel.work(kernel.shape(edge), dtype).bytes_moved < wanted:
        edge *= 2
    return edge


def grow_beyond_cache(kernel: Kernel, edge: int, cache_bytes: int | None) -> int:
    """Return the edge, doubled until one operation walks through several times the cache."""
    wanted = ROTATION_IN_L2 * (cache_bytes or 0)
    while edge < _LARGEST_LIMIT and kernel.work(kernel.shape(edge), "float32").bytes_moved < wanted:
        edge *= 2
    return edge


def largest_fitting(
    kernel: Kernel, dtype: str, limit: int, resources: Resources, gpus: Sequence[BenchGpu]
) -> int:
    """Return the largest size up to `limit` that fits, 0 if none does; memory grows with size."""
    low, high = 0, limit
    while low < high:
        middle = (low + high + 1) // 2
        if fits(kernel, dtype, middle, resources, gpus):
            low = middle
        else:
            high = middle - 1
    return low


def power_of_two(size: int) -> int:
    """Return the largest power of two up to `size`; sizes in between are mostly slower."""
    return 1 << (size.bit_length() - 1)
