"""What will be measured: kernels, number formats, shapes that fit the memory, and the time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches

from gpucheck.core.bench.formats import FORMATS, UNSUPPORTED, canonical
from gpucheck.core.bench.kernel import Kernel
from gpucheck.models.bench import BenchGpu, BenchMode, BenchRequest
from gpucheck.models.errors import MissingError, WrongUseError

#: Share of the free memory that a group may take: the rest is for the system and other programs.
_HOST_SHARE, _GPU_SHARE = 0.5, 0.8

#: Seconds for all groups; the rest of the promised 10 and 60 seconds is for start-up and checks.
BUDGETS_S = {BenchMode.QUICK: 8.5, BenchMode.DEFAULT: 50.0, BenchMode.FULL: 300.0}
#: Rounds that the time is divided into: a row needs eight to be known (core/bench/rounds.py).
ROUNDS = {BenchMode.QUICK: 9, BenchMode.DEFAULT: 12, BenchMode.FULL: 20}
#: Longest warm-up of one case: a chip needs seconds to reach its steady clock and temperature.
WARMUPS_S = {BenchMode.QUICK: 0.2, BenchMode.DEFAULT: 1.0, BenchMode.FULL: 3.0}
#: Seconds of one operation over and over for its energy: the counter moves every tenth of a second.
ENERGY_S = {BenchMode.QUICK: 0.0, BenchMode.DEFAULT: 0.0, BenchMode.FULL: 5.0}

#: The kernels that show what a device can do at most; measured shortly even if nobody asks.
_LIMITS = {"copy": None, "matmul": "float32"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What takes part and what is free: on the host, and on the fullest of the GPUs.

    Bytes are None where unknown.
    """

    with_cpu: bool = True
    gpus: tuple[BenchGpu, ...] = ()
    host_bytes: int | None = None
    gpu_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """The cases of one kernel in one format at one shape, measured in turn with each other.

    `limit` marks a group that nobody asked for: it only shows what the devices can do at most.
    """

    kernel: Kernel
    dtype: str
    shape: tuple[int, ...]
    request: BenchRequest
    with_cpu: bool = True
    gpus: frozenset[int] = field(default_factory=frozenset)
    limit: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The groups in order, and what a person should know about the choice."""

    groups: tuple[Group, ...]
    notes: tuple[str, ...]
    budget_s: float


def make_plan(request: BenchRequest, kernels: Mapping[str, Kernel], machine: Machine) -> Plan:
    """Choose kernels, formats, shapes and times.

    Raises:
        WrongUseError: an unknown kernel or dtype, a size or budget that makes no sense, or an
            explicit size that does not fit the memory.
        MissingError: nothing of what is asked for can run on the devices that take part.
    """
    planning = _Planning(request, kernels, machine)
    budget_s = BUDGETS_S[request.mode] if request.budget_s is None else request.budget_s
    groups = planning.groups()
    notes = tuple(dict.fromkeys(planning.notes))
    return Plan(groups=(*planning.limits(groups), *groups), notes=notes, budget_s=budget_s)


class _Planning:
    """One plan on its way, with the statements that it calls for."""

    def __init__(
        self, request: BenchRequest, kernels: Mapping[str, Kernel], machine: Machine
    ) -> None:
        self._request = request
        self._kernels = kernels
        self._machine = machine
        self._dtypes = _asked_dtypes(request, kernels)
        self.notes: list[str] = []

    def groups(self) -> list[Group]:
        """Return the groups that are asked for and can be measured."""
        request = self._request
        chosen = _chosen_kernels(request, self._kernels)
        _check_numbers(request)
        lacking: list[str] = []
        found: list[Group] = []
        for kernel in chosen:
            kernel.validate(request)
            if kernel.gpus_needed > len(self._machine.gpus):
                lacking.append(kernel.id)
                continue
            for dtype in self._dtypes_of(kernel):
                group = self._group(kernel, dtype, request)
                found.extend([] if group is None else [group])
        if lacking:
            self.notes.append(_lacking_note(lacking, self._kernels))
        if not found:
            raise MissingError(
                code="nothing-to-measure",
                message=f"Nothing of this can be measured here: {'; '.join(self.notes)}.",
                remedy=("Run: gpucheck detect", "Choose another --dtype or kernel."),
            )
        return found

    def limits(self, groups: Sequence[Group]) -> list[Group]:
        """Return the short groups that show the devices' limits, where the others do not."""
        found = []
        for name, dtype in _LIMITS.items():
            kernel = self._kernels.get(name)
            covered = any(
                group.kernel.id == name and dtype in (None, group.dtype) for group in groups
            )
            if kernel is None or covered:
                continue
            short = replace(self._request, mode=BenchMode.QUICK, size=None)
            size = _largest_fitting(kernel, "float32", kernel.sizes[BenchMode.QUICK], self._machine)
            if size:
                gpus = self._machine.gpus if name == "copy" else ()
                found.append(
                    Group(
                        kernel=kernel,
                        dtype="float32",
                        shape=kernel.shape(_power_of_two(size)),
                        request=short,
                        with_cpu=self._machine.with_cpu,
                        gpus=frozenset(gpu.cuda_index for gpu in gpus),
                        limit=True,
                    )
                )
        return [group for group in found if group.with_cpu or group.gpus]

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

    def _group(self, kernel: Kernel, dtype: str, request: BenchRequest) -> Group | None:
        """Return the group with the devices that have the format, None if none has it."""
        refusals = {}
        cpu = kernel.cpu_refusal(dtype) if kernel.gpus_needed == 0 else None
        with_cpu = self._machine.with_cpu and kernel.gpus_needed == 0 and cpu is None
        if cpu is not None and self._machine.with_cpu and self._dtypes:
            refusals["cpu"] = cpu
        gpus = set()
        for gpu in self._machine.gpus:
            refusal = kernel.gpu_refusal(dtype, gpu)
            if refusal is None:
                gpus.add(gpu.cuda_index)
            else:
                refusals[f"gpu:{gpu.cuda_index}"] = refusal
        self.notes.extend(f"{kernel.id}: {refusal}" for refusal in refusals.values())
        if not with_cpu and not gpus:
            return None
        return Group(
            kernel=kernel,
            dtype=dtype,
            shape=kernel.shape(self._size(kernel, dtype)),
            request=request,
            with_cpu=with_cpu,
            gpus=frozenset(gpus),
        )

    def _size(self, kernel: Kernel, dtype: str) -> int:
        """Return the size to measure, and state it if it is smaller than the mode's."""
        request = self._request
        size = request.size or kernel.sizes[request.mode]
        if _fits(kernel, dtype, size, self._machine):
            return size
        largest = _largest_fitting(kernel, dtype, size, self._machine)
        if request.size is not None or largest < 1:
            raise WrongUseError(
                code="size-does-not-fit",
                message=f"{kernel.id} of size {size} does not fit into the free memory.",
                remedy=(f"The largest size that fits now is {largest}.",),
            )
        reduced = _power_of_two(largest)
        self.notes.append(
            f"{kernel.id}: size {size} does not fit into the free memory, measured at {reduced}"
        )
        return reduced


def _asked_dtypes(request: BenchRequest, kernels: Mapping[str, Kernel]) -> tuple[str, ...]:
    """Return the formats asked for by their one name.

    Raises:
        WrongUseError: a name that no kernel knows.
        MissingError: a format that is known and not supported.
    """
    asked = tuple(dict.fromkeys(canonical(name) for name in request.dtypes))
    for name in asked:
        if name in UNSUPPORTED:
            raise MissingError(
                code="unsupported-dtype",
                message=UNSUPPORTED[name],
                remedy=(f"Choose from: {', '.join(FORMATS)}.",),
            )
        if not any(name in kernel.dtypes[BenchMode.FULL] for kernel in kernels.values()):
            raise WrongUseError(
                code="unknown-dtype",
                message=f"No kernel can be measured in dtype {name!r}.",
                remedy=(f"Choose from: {', '.join(FORMATS)}.",),
            )
    return asked


def _lacking_note(lacking: Sequence[str], kernels: Mapping[str, Kernel]) -> str:
    """Say which kernels need more GPUs than there are."""
    by_need: dict[int, list[str]] = {}
    for name in lacking:
        by_need.setdefault(kernels[name].gpus_needed, []).append(name)
    said = [
        f"{' and '.join(names)} {'needs' if len(names) == 1 else 'need'} "
        f"{'a GPU' if count == 1 else f'{count} GPUs'}"
        for count, names in by_need.items()
    ]
    return f"{'; '.join(said)}: not measured"


def _chosen_kernels(request: BenchRequest, kernels: Mapping[str, Kernel]) -> Sequence[Kernel]:
    for name in request.kernels:
        if name not in kernels:
            raise WrongUseError(
                code="unknown-kernel",
                message=f"There is no kernel called {name!r}.{_meant(name, kernels)}",
                remedy=(f"Choose from: {', '.join(kernels)}.",),
            )
    # dict.fromkeys keeps the order and drops what was named twice.
    return [kernels[name] for name in dict.fromkeys(request.kernels or tuple(kernels))]


def _meant(name: str, kernels: Iterable[str]) -> str:
    """Return the kernel that was probably meant, as a question, if one comes close."""
    near = get_close_matches(name.lower(), kernels, n=1)
    return f" Did you mean {near[0]}?" if near else ""


def _check_numbers(request: BenchRequest) -> None:
    if request.size is not None and request.size < 1:
        raise WrongUseError(
            code="bad-size",
            message=f"A size must be at least 1, not {request.size}.",
            remedy=("Give the edge of the square problem, for example --size 4096.",),
        )
    if request.budget_s is not None and not 0 < request.budget_s < float("inf"):
        raise WrongUseError(
            code="bad-budget",
            message=f"A budget must be a positive number of seconds, not {request.budget_s:g}.",
            remedy=("Give seconds, for example --budget 30.",),
        )
    if request.seed < 0:
        raise WrongUseError(
            code="bad-seed",
            message=f"A seed must be zero or greater, not {request.seed}.",
            remedy=("Give a whole number, for example --seed 1.",),
        )


def _fits(kernel: Kernel, dtype: str, size: int, machine: Machine) -> bool:
    shape = kernel.shape(size)
    needs = (
        (kernel.host_bytes(shape, dtype, len(machine.gpus)), machine.host_bytes, _HOST_SHARE),
        (kernel.device_bytes(shape, dtype), machine.gpu_bytes, _GPU_SHARE),
    )
    return all(free is None or needed <= share * free for needed, free, share in needs)


def _largest_fitting(kernel: Kernel, dtype: str, limit: int, machine: Machine) -> int:
    """Return the largest size up to `limit` that fits, 0 if none does; memory grows with size."""
    low, high = 0, limit
    while low < high:
        middle = (low + high + 1) // 2
        if _fits(kernel, dtype, middle, machine):
            low = middle
        else:
            high = middle - 1
    return low


def _power_of_two(size: int) -> int:
    """Return the largest power of two up to `size`: those in between are slower mostly."""
    return 1 << (size.bit_length() - 1)
