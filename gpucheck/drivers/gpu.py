"""GPU as the benchmarks use it: the Protocol of its client, and the values that cross it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class Board:
    """Peaks of a GPU board.

    `source` is a datasheet or a computation; `sources` has it by dtype, and for `bytes_per_s`, if
    they differ. `computed` is true for a board that is not in the table. `flops_per_s` and
    `high_flops_per_s` are by dtype; they differ if only a range is known. They refer to
    `clock_mhz`, those of tensor cores to `tensor_clock_mhz`. `uncertainty` is what speaks against a
    value.
    """

    name: str
    source: str
    flops_per_s: dict[str, float] = field(default_factory=dict)
    high_flops_per_s: dict[str, float] = field(default_factory=dict)
    bytes_per_s: float | None = None
    clock_mhz: float | None = None
    tensor_clock_mhz: float | None = None
    uncertainty: dict[str, str] = field(default_factory=dict)
    sources: dict[str, str] = field(default_factory=dict)
    computed: bool = False

    def source_of(self, name: str) -> str:
        """Return the source of the peak in a dtype, or of `bytes_per_s`."""
        return self.sources.get(name, self.source)


#: Boards linked to the host by NVLink-C2C.
_GRACE = ("GH200", "GB200", "GB300")


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchGpu:
    """GPU that took part, as the CUDA runtime describes it.

    `pci_device_id` is NVML's: eight hexadecimal digits, the device and then the vendor.
    `integrated`: it shares the host's memory; None if the driver was not asked. `virtualization`
    is as in GpuReading. `unavailable` says why there is no `board`, or none of its figures in
    `board.bytes_per_s`.
    """

    cuda_index: int
    uuid: str | None
    name: str
    compute_capability: str
    sm_count: int
    l2_bytes: int
    memory_total_bytes: int
    memory_free_bytes: int
    float32_math: str
    clock_sm_max_mhz: float | None = None
    clock_memory_max_mhz: float | None = None
    memory_bus_bits: int | None = None
    pci_device_id: str | None = None
    integrated: bool | None = None
    virtualization: str | None = None
    board: Board | None = None
    unavailable: dict[str, str] = field(default_factory=dict)

    @property
    def device(self) -> str:
        """Return the device's name in rows and options."""
        return f"gpu:{self.cuda_index}"

    @property
    def is_mig(self) -> bool:
        """Return whether the device is a MIG instance of a card."""
        return (self.uuid or "").startswith("MIG-")

    @property
    def is_linked_chip_to_chip(self) -> bool:
        """Return whether its link to the host is NVLink: NVML's PCIe link carries no data then."""
        return any(name in self.name for name in _GRACE)

    @property
    def capability(self) -> tuple[int, int]:
        """Return the compute capability as two numbers, which compare."""
        major, _, minor = self.compute_capability.partition(".")
        return int(major), int(minor)


if TYPE_CHECKING:
    from numpy.typing import NDArray

    HostArray = NDArray[Any]


class GpuArray(Protocol):
    """An array in GPU memory, opaque but for its size."""

    @property
    def nbytes(self) -> int:
        """Return the size in bytes."""
        ...


#: A compiled kernel: call it with the grid, the block and the arguments (arrays, NumPy scalars).
GpuFunction = Callable[[int, int, tuple[object, ...]], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """Device time between two events; `starved` if the GPU may have waited for the host meanwhile.

    `sm_clock_mhz` is the actual SM clock over that time, None if it could not be read.
    """

    seconds: float
    starved: bool
    sm_clock_mhz: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Product:
    """How cuBLAS multiplies: the arithmetic, which factor is stored transposed, and the scaling.

    out = alpha (left right) + beta out; `math_mode` is one of fp64, fp32, tf32, fp16, bf16, fp8,
    int8. For fp8 only: each factor's numbers are multiplied by `factor_scale`, and
    `fast_accumulation` keeps sums in lower precision, which is faster on some GPUs.
    """

    math_mode: str = "fp32"
    left_transposed: bool = False
    right_transposed: bool = False
    alpha: float = 1.0
    beta: float = 0.0
    factor_scale: float = 1.0
    fast_accumulation: bool = False


#: The workspace of a float8 product: what cuBLAS' documentation advises for Hopper and later
#: (cublasSetWorkspace).
FLOAT8_WORKSPACE_BYTES = 32 * 2**20

#: By format: the factor that must divide a product's dimensions, since rows of int8 begin at
#: multiples of four bytes and those of float8 at multiples of sixteen (cuBLAS documentation,
#: cublasGemmEx and cublasLtMatmul).
PRODUCT_EDGES: Mapping[str, int] = MappingProxyType({"int8": 4, "float8": 16})

#: No preprocessor macros.
NO_DEFINES: Mapping[str, int] = MappingProxyType({})
#: The product without scaling or transposition, in float32.
PLAIN_PRODUCT = Product()


class GpuDevice(Protocol):
    """One GPU as the kernels use it. Every method raises GpucheckError for an error of CUDA.

    Arrays are C-contiguous; `storage` is NumPy's name of their type.
    """

    @property
    def facts(self) -> BenchGpu:
        """Return the card's facts; the free memory is as of the opening."""
        ...

    @property
    def cupy_version(self) -> str:
        """Return the version of the library behind this client."""
        ...

    def allocate(self, shape: tuple[int, ...], storage: str = "float32") -> GpuArray:
        """Allocate an array without initialising it."""
        ...

    def upload(self, host: HostArray) -> GpuArray:
        """Copy a host array into new GPU memory."""
        ...

    def clone(self, array: GpuArray) -> GpuArray:
        """Copy a GPU array into new GPU memory."""
        ...

    def download(self, array: GpuArray) -> HostArray:
        """Copy a GPU array to the host and wait for it."""
        ...

    def rows(self, array: GpuArray, low: int, high: int) -> GpuArray:
        """Return rows of an array, in the same memory."""
        ...

    def poison(self, array: GpuArray) -> None:
        """Fill an array with NaN, or with a conspicuous number if its type has no NaN."""
        ...

    def copy(self, source: GpuArray, out: GpuArray) -> None:
        """Enqueue the driver's own copy within GPU memory."""
        ...

    def multiply(
        self, left: GpuArray, right: GpuArray, out: GpuArray, product: Product = PLAIN_PRODUCT
    ) -> None:
        """Enqueue a matrix product by cuBLAS."""
        ...

    def softmax(self, source: GpuArray, out: GpuArray, temperature: float) -> None:
        """Enqueue a row softmax written with the library's array operations."""
        ...

    def compile(
        self, source: str, name: str, defines: Mapping[str, int] = NO_DEFINES
    ) -> GpuFunction:
        """Compile CUDA C++ and return its `extern "C"` kernel `name`; calls enqueue a launch."""
        ...

    def capture(self, enqueue: Callable[[], None]) -> Callable[[], None]:
        """Capture what `enqueue` enqueues as a graph and return its launcher; nothing runs yet."""
        ...

    def launch_empty(self, count: int, *, waiting: bool = False) -> None:
        """Enqueue `count` launches of an empty kernel, waiting for each if asked to."""
        ...

    def span(self, enqueue: Callable[[], None], *, held: bool = True) -> Span:
        """Run what `enqueue` enqueues, wait for it, and return its device time by CUDA events.

        `held` keeps the GPU waiting until all is enqueued. Without it the time includes the host's
        part, for work that the host shares (copies of pageable memory).
        """
        ...

    def pinned(self, shape: tuple[int, ...], storage: str = "float32") -> HostArray:
        """Allocate a page-locked host array."""
        ...

    def send(self, host: HostArray, array: GpuArray) -> None:
        """Enqueue the copy of a host array into a GPU array."""
        ...

    def fetch(self, array: GpuArray, host: HostArray) -> None:
        """Enqueue the copy of a GPU array into a host array."""
        ...

    def exchange(
        self, sent: HostArray, target: GpuArray, source: GpuArray, fetched: HostArray
    ) -> None:
        """Enqueue a copy to the GPU and one from it, at the same time."""
        ...

    def side_by_side(self, works: Sequence[Callable[[], None]]) -> None:
        """Enqueue pieces of work that may run concurrently; later work waits for all of them."""
        ...

    def copy_from(self, peer: GpuDevice, source: GpuArray, out: GpuArray) -> None:
        """Enqueue the copy of another GPU's array into one of this GPU."""
        ...

    def reaches(self, peer: GpuDevice) -> bool:
        """Enable direct reads of the other GPU's memory; return whether that is possible."""
        ...

    def memory_used_bytes(self) -> int:
        """Return the GPU memory that this process's arrays occupy."""
        ...

    def synchronize(self) -> None:
        """Wait until everything enqueued has run."""
        ...

    def release(self) -> None:
        """Give unused memory back to the driver."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenedGpus:
    """The GPUs that can be measured, or why there are none, and what to do about it.

    `refused` gives the reason, by CUDA index, for each GPU that could not be opened while others
    could. `silent` means that the driver did not answer, so it is unknown whether there is a GPU.
    `busy` means that another process holds every GPU that could not be opened. `names` are those of
    the GPUs that the driver shows, if none could be opened. `for_frameworks` are facts of GPUs that
    could not be opened here, by the driver: a framework may bring what is missing.
    """

    devices: Sequence[GpuDevice] = ()
    for_frameworks: Sequence[BenchGpu] = ()
    unavailable: str | None = None
    remedy: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    refused: Mapping[int, str] = field(default_factory=dict)
    silent: bool = False
    busy: bool = False
    cupy_version: str | None = None
    cublas_version: str | None = None
