"""GPU memory limits: the bytes on each GPU, the mechanisms that enforce them, and the proof.

A share is of the total that NVML reports. CuPy, JAX and PyTorch multiply a fraction by CUDA's
total, which is slightly smaller, so the same fraction never exceeds the limit there.
"""

from gpucheck.report.documents import DOCUMENTS, Document

DOCUMENTS.update(
    {
        "memlimit": Document(
            results=("gpucheck.memlimit.model:MemoryLimit",), view="gpucheck.memlimit.view"
        ),
    }
)
