"""Record of a whole machine as the probes saw it (contract: snapshot/1)."""

from collections.abc import Mapping
from typing import NamedTuple

from gpucheck.drivers.evidence import BuildsReading, HealthReading, SystemReading
from gpucheck.drivers.readings import CudaReading, KernelReading, NvmlReading, ProcessIdentity
from gpucheck.report.envelope import Host


class Snapshot(NamedTuple):
    """A machine as the probes saw it; null parts were not recorded.

    `cuda_unrestricted` is libcuda's answer without CUDA_VISIBLE_DEVICES, if that is set.
    """

    time: str
    host: Host
    environment: Mapping[str, str]
    kernel: KernelReading | None = None
    nvml: NvmlReading | None = None
    cuda: CudaReading | None = None
    processes: tuple[ProcessIdentity, ...] = ()
    redacted: bool = False
    system: SystemReading | None = None
    cuda_unrestricted: CudaReading | None = None
    health: HealthReading | None = None
    builds: BuildsReading | None = None
