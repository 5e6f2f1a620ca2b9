"""Registry of the benchmark kernels: one file and one line each."""

from __future__ import annotations

from gpucheck.bench.case import Kernel
from gpucheck.bench.kernels.batch import Batch
from gpucheck.bench.kernels.copy import Copy
from gpucheck.bench.kernels.launch import Launch
from gpucheck.bench.kernels.matmul import Matmul
from gpucheck.bench.kernels.p2p import PeerToPeer
from gpucheck.bench.kernels.softmax import Softmax
from gpucheck.bench.kernels.towers import Towers
from gpucheck.bench.kernels.train import Train
from gpucheck.bench.kernels.transfer import Transfer
from gpucheck.bench.kernels.triad import Triad

KERNELS: dict[str, Kernel] = {
    "matmul": Matmul(),
    "softmax": Softmax(),
    "copy": Copy(),
    "triad": Triad(),
    "transfer": Transfer(),
    "launch": Launch(),
    "train": Train(),
    "batch": Batch(),
    "towers": Towers(),
    "p2p": PeerToPeer(),
}
#: Kernels by what their rows show; `Kernel` describes each.
STREAMS, LINKS, BLAS_USERS, WHOLE_TRANSFERS, WITHOUT_HOST = (
    frozenset(name for name, kernel in KERNELS.items() if getattr(kernel, trait))
    for trait in ("streams", "measures_link", "uses_blas", "transfers_all", "runs_without_host")
)
