"""Choice of the repeated product: the format that loads a device most, at an edge that fits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from gpucheck.bench.case import Case, CaseOrder, KernelBase, Work
from gpucheck.bench.formats import FORMATS
from gpucheck.bench.kernels.matmul import Matmul, missing_format
from gpucheck.bench.model import BenchMode, BenchRequest
from gpucheck.bench.plan import Resources, make_plan
from gpucheck.drivers.gpu import BenchGpu, GpuDevice
from gpucheck.drivers.host.cpu import CpuFacts
from gpucheck.report.envelope import Failure

#: Formats, those that load a GPU most first.
HEAVIEST = ("bfloat16", "float16", "float32")
#: Edges of the matrices: large enough to load the whole device, small enough for most.
_GPU_EDGE, _CPU_EDGE = 8192, 1024


class RepeatedProduct(KernelBase):
    """Product as `make_plan` sees it: one format, one size for every mode, no rows."""

    id = "product"

    def __init__(self, dtype: str, edge: int) -> None:
        self.dtypes: Mapping[BenchMode, Sequence[str]] = MappingProxyType(
            dict.fromkeys(BenchMode, (dtype,))
        )
        self.sizes: Mapping[BenchMode, int] = MappingProxyType(dict.fromkeys(BenchMode, edge))

    def shape(self, size: int) -> tuple[int, ...]:
        """Return (m, k, n) for square matrices of edge `size`."""
        return Matmul().shape(size)

    def work(self, shape: tuple[int, ...], dtype: str) -> Work:
        """Return the work of one product."""
        return Matmul().work(shape, dtype)

    def host_bytes(self, shape: tuple[int, ...], dtype: str, gpu_count: int) -> int:
        """Return the bytes for drawing, keeping and checking, as for the timed product."""
        return Matmul().host_bytes(shape, dtype, gpu_count)

    def device_bytes(self, shape: tuple[int, ...], dtype: str) -> int:
        """Return the bytes of both factors, the first product, and the one compared with it."""
        m, k, n = shape
        factors = FORMATS[dtype].itemsize * (m * k + k * n)
        return 2 * self.work(shape, dtype).bytes_moved - factors

    def gpu_cases(self, order: CaseOrder, gpu: GpuDevice) -> Sequence[Case]:
        """Return no case: this product is not timed."""
        return ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedProduct:
    """Product to repeat on one device; `taken` is set if others hold the memory for it.

    `notes` tell the user about the choice.
    """

    dtype: str
    shape: tuple[int, ...]
    notes: tuple[str, ...] = ()
    taken: Failure | None = None


def plan_product(
    gpu: BenchGpu | None,
    request: BenchRequest,
    cpu: CpuFacts,
    *,
    held: str | None = None,
) -> PlannedProduct:
    """Choose the product for a GPU, or for the CPU if `gpu` is None.

    `held` names the holders of the GPU's memory, if known.

    Raises:
        WrongUseError: the size or seed is invalid, or the size does not fit into memory.
        InconclusiveError: the host has no memory left.
    """
    dtype = "float32" if gpu is None else heaviest_format(gpu)
    product = RepeatedProduct(dtype, _CPU_EDGE if gpu is None else _GPU_EDGE)
    machine = Resources(
        with_cpu=gpu is None,
        gpus=() if gpu is None else (gpu,),
        host_bytes=cpu.memory_available_bytes,
        holders={} if gpu is None or held is None else {gpu.uuid or "": held},
    )
    asked = BenchRequest(kernels=(product.id,), size=request.size, seed=request.seed)
    plan = make_plan(asked, {product.id: product}, machine)
    (group,) = plan.groups
    return PlannedProduct(
        dtype=dtype,
        shape=group.shape,
        notes=() if group.taken else plan.notes,
        taken=next(iter(group.taken.values()), None),
    )


def heaviest_format(gpu: BenchGpu) -> str:
    """Return the format that loads this GPU most."""
    fitting = (name for name in HEAVIEST if missing_format(FORMATS[name], gpu) is None)
    return next(fitting, "float32")
