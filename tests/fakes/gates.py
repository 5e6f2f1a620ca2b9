"""Profiles, nodes and processes that gates are decided from, with the faults one wants."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from gpucheck.bench.ci.baseline import profile_key, saved_run
from gpucheck.bench.ci.gates import judge, series_of, settled
from gpucheck.bench.ci.model import ProcessRun, Reference
from gpucheck.bench.ci.profile_model import Profile
from gpucheck.bench.ci.profiles import lint, parse_profile
from gpucheck.bench.ci.run_data import Node, RunData
from gpucheck.bench.ci.verdicts import exit_status
from gpucheck.bench.model import Gate
from gpucheck.inventory.model import Gpu, MigState, PcieLink
from gpucheck.report.errors import ExitCode
from tests.fakes.bench_results import measurement, result_of, run_of, uuid_of
from tests.report.formats.recorded import in_lines

HEAD = '[profile]\nschema = 1\nname = "test"\nversion = 1\n'
NODE = (
    HEAD
    + """
[match]
pci_device_ids = ["2330"]
[run]
seconds = 5
processes = 5
[[check]]
id = "matmul"
kernel = "matmul"
dtype = "bfloat16"
value = 700
unit = "TFLOP/s"
tolerance_percent = 5
warn_percent = 2
source = "test"
date = "2026-11-21"
"""
)
CPU = (
    HEAD
    + """
[match]
device = "cpu"
[run]
seconds = 1
[[check]]
id = "copy"
kernel = "copy"
device = "cpu"
baseline = true
tolerance_percent = 5
"""
)
PEERS = "\n[stability]\nstraggler_percent = 5\nspread_percent = 8\n"
HAVE = """
[inventory]
memory_total_gib = 79
ecc = true
persistence_mode = true
pcie_generation = 5
pcie_width = 16
pcie_full = true
nvlink_links = 18
power_limit_w = 700
identical_gpus = true
"""
GOOD = (701.0, 699.0, 702.0, 698.0, 700.0)
SLOW = tuple(0.9 * value for value in GOOD)


def profile_of(text: str) -> Profile:
    """Return a profile from its text, which must be good."""
    profile, problems = parse_profile(text, "p.toml")
    assert lint(profile, problems) == ()
    return profile


def node(count: int = 1, **gpu: Any) -> Node:
    """Return a node of such GPUs, with the changes given."""
    gpus = tuple(
        Gpu(
            index=at,
            cuda_index=at,
            uuid=uuid_of(f"gpu:{at}"),
            name="NVIDIA H100 80GB HBM3",
            memory_total_bytes=80 << 30,
            power_limit_w=700.0,
            ecc_mode=True,
            persistence_mode=True,
            pcie=PcieLink(generation_max=5, width_max=16),
            mig=MigState(enabled=False),
        )._replace(**gpu)
        for at in range(count)
    )
    return Node(
        gpus=gpus,
        driver_version="580.95.05",
        pci_device_ids=dict.fromkeys(range(count), "233010de"),
        nvlink_links=dict.fromkeys(range(count), 18),
    )


def run_data(runs: Sequence[ProcessRun], extra: str = "", **changes: Any) -> RunData:
    """Return what a run on GPUs brought."""
    count = len({run.device for run in runs})
    found = RunData(profile=profile_of(NODE + extra), node=node(count), runs=runs)
    return replace(found, **changes)


def gate(found: RunData, name: str, device: str = "gpu:0") -> Gate:
    """Return the one gate of this name on a device."""
    (only,) = [one for one in judge(found) if (one.id, one.device) == (name, device)]
    return only


def code(found: RunData) -> ExitCode:
    """Return what the gates come to."""
    return exit_status(judge(found))[0]


def cpu_runs(values: Sequence[float], **row: Any) -> list[ProcessRun]:
    """Return processes that copied at so many GB/s."""
    return [
        run_of(result_of(measurement("copy", 1e9 * value, **row)), at)
        for at, value in enumerate(values)
    ]


def cpu_run_data(values: Sequence[float], reference: Reference | None, **row: Any) -> RunData:
    """Return what a run on the processor brought."""
    return RunData(profile=profile_of(CPU), runs=cpu_runs(values, **row), reference=reference)


def saved(values: Sequence[float] = GOOD, **fingerprint: Any) -> Reference:
    """Return such a run as it was saved, on a machine whose fingerprint differs in this."""
    return reference_of(cpu_run_data(values, None), **fingerprint)


def reference_of(data: RunData, **fingerprint: Any) -> Reference:
    """Return a run as it was saved."""
    key = profile_key(data.profile)
    run = saved_run(data.runs, series_of(data), time="2026-11-21T03:32:00Z", profile=key)
    devices = (
        replace(device, fingerprint=replace(device.fingerprint, **fingerprint))
        for device in run.devices
    )
    return Reference(run=replace(run, devices=tuple(devices)), path=Path("a.json"))


def show_gates(found: RunData, *names: str) -> str:
    """Return the gates of these names as text, and what all of them come to."""
    gates = judge(found)
    shown = [gate for gate in gates if gate.id in names or not names]
    worth = "more processes may help" if not settled(gates) else "settled"
    return f"{in_lines(shown)}exit code {int(exit_status(gates)[0])}, {worth}"
