"""Machines of tests/data/checks: a row of a table made into probes."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from gpucheck.detect.checks import CHECKS
from gpucheck.detect.machine import DetectRequest, Machine
from gpucheck.detect.model import Finding
from gpucheck.drivers.evidence import (
    GpuHealthReading,
    HealthReading,
    LaunchReading,
    SystemReading,
)
from gpucheck.drivers.readings import CudaReading, GpuReading, KernelReading, NvmlReading
from gpucheck.report.codec import from_plain, to_plain
from tests.fakes.probes import (
    HERE,
    IN_DOCKER,
    ON_WSL2,
    FakeProbes,
    gpu_reading,
    healthy,
    reading_of,
)

TABLES = Path(__file__).parents[2] / "data" / "checks"
HOSTS = {"docker": IN_DOCKER, "wsl2": ON_WSL2}


class Situation(NamedTuple):
    """A machine, its probes, and what a check must not ask of them."""

    machine: Machine
    probes: FakeProbes
    never_asked: list[str]


def read_situations(check: str) -> dict[str, Situation]:
    """Return the machines on which a check is tried, by what is special about each.

    A row has parts of the readings of `FakeProbes` by short names (`nvml`, `cuda`, `kernel`,
    `system`, `launch`), in which "null" is None, and these abbreviations: `gpus` (how many, or how
    each differs from a healthy one) and `healths` beside them; `gpu` and `health`, the changes of
    the first of two; `cuda_gpus`, those that CUDA sees in its order; `cuda_fails` and `nvml_fails`,
    a code; `pci`, the devices on the bus; `log`, the kernel's lines; `nodes` and `denied`, the
    device files of a machine with two GPUs; `toolkits`, their versions; `libraries`, the kinds of
    libcuda in the loader's order, or a path of the driver's; `own_libcuda`, the driver's path.
    """
    text = (TABLES / f"{check}.toml").read_text(encoding="utf-8")
    return {name: _make_situation(row) for name, row in tomllib.loads(text).items()}


def _make_situation(written: Mapping[str, Any]) -> Situation:
    row = _with_nulls(written)
    host = row.pop("host", {})
    probes = FakeProbes(
        machine=HOSTS[host] if isinstance(host, str) else HERE._replace(**host),
        variables=row.pop("variables", {}),
        openings=row.pop("openings", {}),
    )
    request = DetectRequest(expect_gpus=row.pop("expect_gpus", None))
    never_asked, ask_cuda = row.pop("never_asked", []), row.pop("ask_cuda", False)
    _set_gpus(probes, row)
    _set_cuda(probes, row)
    _set_system(probes, row)
    if "launch" in row:
        probes.launch_reading = from_plain(LaunchReading, row.pop("launch"))
    assert not row, f"unknown keys: {', '.join(row)}"
    machine = Machine(probes, request)
    assert not ask_cuda or machine.cuda is probes.cuda_reading
    return Situation(machine, probes, never_asked)


def _with_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _with_nulls(part) for name, part in value.items()}
    if isinstance(value, list):
        return [_with_nulls(part) for part in value]
    return None if value == "null" else value


def _set_gpus(probes: FakeProbes, row: dict[str, Any]) -> None:
    gpus, healths = row.pop("gpus", None), row.pop("healths", None)
    if "gpu" in row or "health" in row:
        gpus, healths = [row.pop("gpu", {}), {}], [row.pop("health", {}), {}]
    nvml = row.pop("nvml", {})
    if "toolkits" in row or "libraries" in row or (nvml and "failure" not in nvml):
        gpus = 1 if gpus is None else gpus
    if "nvml_fails" in row:
        nvml["failure"] = _failure(row.pop("nvml_fails"), "NVML's words")
    changes = [{}] * gpus if isinstance(gpus, int) else gpus
    if changes is not None:
        rows = [
            from_plain(GpuReading, to_plain(gpu_reading(index)) | change)
            for index, change in enumerate(changes)
        ]
        nvml = to_plain(reading_of(*rows)) | nvml
    probes.readings = from_plain(NvmlReading, nvml)
    if healths is not None:
        probes.health_reading = HealthReading(
            gpus=tuple(
                from_plain(GpuHealthReading, to_plain(healthy(index)) | change)
                for index, change in enumerate(healths)
            )
        )


def _set_cuda(probes: FakeProbes, row: dict[str, Any]) -> None:
    cuda = row.pop("cuda", {})
    if "cuda_fails" in row:
        cuda["failure"] = _failure(row.pop("cuda_fails"), "CUDA's words")
    if "cuda_gpus" in row:
        seen = row.pop("cuda_gpus")
        uuids = [(gpu_reading(index).uuid or "")[4:].replace("-", "") for index in seen]
        devices = [{"ordinal": at, "uuid_hex": uuid} for at, uuid in enumerate(uuids)]
        cuda = {"driver_version": 13000, "device_count": len(seen), "devices": devices} | cuda
    elif "device_count" in cuda:
        cuda["devices"] = [{"ordinal": at} for at in range(cuda["device_count"])]
        cuda.setdefault("driver_version", None)
    if cuda:
        probes.cuda_reading = from_plain(CudaReading, cuda)
    other = row.pop("cuda_unrestricted_reading", None)
    if other is not None:
        probes.cuda_unrestricted_reading = from_plain(CudaReading, other)


def _set_system(probes: FakeProbes, row: dict[str, Any]) -> None:
    kernel, system = row.pop("kernel", None), row.pop("system", None)
    if "pci" in row:
        devices = [
            {"pci_bus_id": f"0000:{at:02x}:00.0", "vendor_id": "0x10de"} | device
            for at, device in enumerate(row.pop("pci"), start=1)
        ]
        kernel = {"pci_devices": devices} | (kernel or {})
    if kernel is not None:
        probes.kernel_reading = from_plain(KernelReading, kernel)
    parts: dict[str, Any] = {}
    if "log" in row:
        parts["log"] = {"lines": row.pop("log"), "source": "/dev/kmsg"}
    if "nodes" in row:
        denied = row.pop("denied", [])
        nodes = [
            {"path": f"/dev/nvidia{name}", "mode": "0660", "owner": 0, "group": 44,
             "accessible": name not in denied}
            for name in row.pop("nodes")
        ]  # fmt: skip
        expected = [f"/dev/nvidia{name}" for name in ("ctl", "0", "1", "-uvm")]
        parts["nodes"] = {"nodes": nodes, "expected": expected}
    found = [
        {"name": "libcuda.so.1", "path": kind, "kind": "driver"}
        if kind.startswith("/")
        else {"name": "libcuda.so.1", "path": f"/opt/{kind}/libcuda.so.1", "kind": kind}
        for kind in row.pop("libraries", [])
    ]
    if "own_libcuda" in row:
        path = row.pop("own_libcuda")
        found.append({"name": "libcuda.so.1", "path": path, "version": "580.1"})
    toolkits = [
        {"path": f"/usr/local/cuda-{version.rpartition('.')[0]}", "version": version}
        for version in row.pop("toolkits", [])
    ]
    if found or toolkits:
        parts["libraries"] = {"found": found, "toolkits": toolkits}
    for name, part in (system or {}).items():
        parts[name] = parts[name] | part if name in parts else part
    if system is not None or parts:
        probes.system_reading = from_plain(SystemReading, parts)


def _failure(code: str, message: str) -> dict[str, Any]:
    return {"code": code, "message": message, "function": "f", "library_code": 1}


def show_findings(findings: list[Finding]) -> str:
    """Return what a check finds, as text."""
    lines = []
    for finding in findings:
        cause = f" [{finding.cause}]" if finding.cause else ""
        gpu = f" {finding.gpu}" if finding.gpu else ""
        lines.append(f"{finding.status.value}{cause}{gpu}: {finding.summary}")
        lines += [f"    seen {item.source}: {item.value}" for item in finding.evidence]
        lines += [f"    {at}. {step}" for at, step in enumerate(finding.remedy, start=1)]
    return "\n".join(lines)


BY_ID = {check.ID: check for check in CHECKS}
