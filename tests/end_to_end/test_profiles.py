"""`gpucheck bench --profile` on pretended GPUs: demands on the machine, and causes told apart."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.conftest import Pretend, Program
from tests.end_to_end.test_bench_gpu import quiet
from tests.fakes.libraries import cupy_environment
from tests.fakes.machine import Machine, load_machine

#: 60 % of the H100's float32 peak; the model reaches a little more at this size.
PROFILE = """
[profile]
schema = 1
name = "tiny"
version = 1
[match]
count = 2
[inventory]
pcie_width = 16
nvlink_links = 18
identical_gpus = true
[run]
mode = "quick"
size = 512
seconds = 0.5
processes = 3
max_processes = 3
together = true
alone = false
[[check]]
id = "matmul-float32"
kernel = "matmul"
together = true
percent_of_peak = 60
tolerance_percent = 10
source = "the model"
date = "2026-11-21"
[stability]
new_ecc_uncorrected = 0
[stability.throttle_s]
hardware-thermal = 0
power-brake = 0
"""
TWO = quiet(load_machine("h100x8")).with_gpus(2)
Run = Callable[..., tuple[int, Any]]


@pytest.fixture(name="run")
def _run(program: Program, pretend: Pretend, tmp_path: Path) -> Run:
    profile = tmp_path / "tiny.toml"
    profile.write_text(PROFILE)

    def run(machine: Machine, script: str = "") -> tuple[int, Any]:
        environment = {
            **pretend(machine),
            **cupy_environment(script, time="virtual"),
            "GPUCHECK_CLAIMS_DIR": str(tmp_path / "claims"),
            # Workers run side by side; threads that spin would take each other's time.
            "OPENBLAS_NUM_THREADS": "1",
        }
        ended = program("bench", "--profile", profile, "--json", env=environment, timeout_s=300)
        return ended.code, ended.document("bench")

    return run


def bad(document: Any) -> dict[tuple[str, str], str]:
    """Return the class of every gate that failed, by its name and device."""
    return {
        (gate["id"], gate["device"]): gate["class"]
        for gate in document["result"]["gates"]
        if gate["status"] == "fail"
    }


def test_heat_power_a_narrow_link_and_slowness_are_told_apart(run: Run) -> None:
    machine = TWO.with_gpu(0, clock_event_reasons=0x40 | 0x80, pcie_width=8)

    code, document = run(machine, script="slow gpu=1 compute=0.7")

    assert code == 1, document["error"]
    assert bad(document) == {
        ("throttle-hardware-thermal", "gpu:0"): "thermal",
        ("inventory-pcie-width", "gpu:0"): "config",
        ("throttle-power-brake", "gpu:0"): "power-cap",
        ("matmul-float32", "gpu:1"): "hardware",
    }
    passed = {
        (gate["id"], gate["device"])
        for gate in document["result"]["gates"]
        if gate["status"] == "pass"
    }
    assert ("matmul-float32", "gpu:0") in passed
    assert document["result"]["profile"]["processes"] == 3


def test_a_node_with_a_missing_gpu_is_not_measured(run: Run) -> None:
    code, document = run(TWO.with_gpus(1))

    assert code == 1
    assert bad(document) == {("match-count", "node"): "hardware"}
    assert document["result"]["measurements"] == []
