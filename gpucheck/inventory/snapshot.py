"""Snapshot of a machine, to be looked at elsewhere."""

from __future__ import annotations

from gpucheck.drivers.interface import NvmlRequest, Probes
from gpucheck.drivers.recorded import Snapshot
from gpucheck.inventory.inventory import HUNG, complete_host, nvml_failure
from gpucheck.inventory.redaction import redact
from gpucheck.report.envelope import Answer, Notice
from gpucheck.report.errors import ExitCode

VISIBLE = "CUDA_VISIBLE_DEVICES"


def record(probes: Probes) -> Snapshot:
    """Take every reading once; a failed probe is recorded with its failure."""
    # What the kernel shows comes first: NVML may load modules and create device nodes.
    kernel = probes.kernel()
    system = probes.system()
    nvml = probes.nvml(NvmlRequest(topology=True, process_utilization=True))
    # A driver that hangs NVML hangs libcuda too: one deadline is enough.
    hung = nvml.failure is not None and nvml.failure.code == HUNG
    cuda = None if hung else probes.cuda()
    environment = dict(probes.environment())
    hidden = cuda is not None and not cuda.device_count and VISIBLE in environment
    pids = {process.pid for gpu in nvml.gpus for process in gpu.processes}
    return Snapshot(
        time=probes.time(),
        host=complete_host(probes.host(), nvml),
        environment=environment,
        kernel=kernel,
        nvml=nvml,
        cuda=cuda,
        processes=tuple(probes.identify(pids).values()),
        system=system,
        cuda_unrestricted=probes.cuda_unrestricted() if hidden else None,
        health=probes.health() if nvml.failure is None else None,
        builds=probes.builds(None),
    )


def take_snapshot(probes: Probes, *, redacted: bool) -> Answer:
    """Return the recording; that of a machine without GPUs is complete too (exit code 0)."""
    snapshot = record(probes)
    if redacted:
        snapshot = redact(snapshot)
    nvml = snapshot.nvml
    notices: tuple[Notice, ...] = ()
    if nvml is not None and nvml.failure is not None:
        said = nvml_failure(nvml.failure, nvml.gpus).message
        message = f"The snapshot has no full GPU readings. {said}"
        notices = (Notice(code="no-gpu-readings", message=message),)
    return Answer(result=snapshot, exit_code=ExitCode.OK, host=snapshot.host, warnings=notices)
