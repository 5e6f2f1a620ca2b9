"""The registry of benchmark kernels: one file and one line each."""

from __future__ import annotations

from gpucheck.core.bench.kernel import Kernel
from gpucheck.core.bench.kernels.matmul import Matmul
from gpucheck.core.bench.kernels.softmax import Softmax

KERNELS: dict[str, Kernel] = {
    "matmul": Matmul(),
    "softmax": Softmax(),
}
