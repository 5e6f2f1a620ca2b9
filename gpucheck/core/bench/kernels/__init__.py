"""The registry of benchmark kernels: one file and one line each."""

from __future__ import annotations

from gpucheck.core.bench.kernel import Kernel
from gpucheck.core.bench.kernels.batch import Batch
from gpucheck.core.bench.kernels.copy import Copy
from gpucheck.core.bench.kernels.launch import Launch
from gpucheck.core.bench.kernels.matmul import Matmul
from gpucheck.core.bench.kernels.p2p import PeerToPeer
from gpucheck.core.bench.kernels.softmax import Softmax
from gpucheck.core.bench.kernels.towers import Towers
from gpucheck.core.bench.kernels.train import Train
from gpucheck.core.bench.kernels.transfer import Transfer
from gpucheck.core.bench.kernels.triad import Triad

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
