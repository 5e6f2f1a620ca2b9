"""Client of the libcuda child: one question, one fresh process, one deadline."""

from __future__ import annotations

from collections.abc import Mapping

from gpucheck.drivers.child import Child, ChildDiedError, ChildSilentError
from gpucheck.drivers.readings import CudaReading, ProbeFailure
from gpucheck.report.codec import from_plain

WORKER = "gpucheck.drivers.cuda.worker"


def read_cuda(*, deadline_s: float, environment: Mapping[str, str] | None = None) -> CudaReading:
    """Ask libcuda what a program with `environment` (default: ours) would see."""
    child = None
    try:
        child = Child(WORKER, environment=environment)
        return from_plain(CudaReading, next(child.documents(deadline_s)))
    except ChildSilentError:
        message = f"the CUDA driver did not answer within {deadline_s:g} s"
        return CudaReading(failure=ProbeFailure(code="driver-not-answering", message=message))
    except ChildDiedError as error:
        message = f"the process that asks the CUDA driver {error.how}"
        return CudaReading(failure=ProbeFailure(code="cuda-child-died", message=message))
    finally:
        if child is not None:
            child.close()
