"""`gpucheck bench` on pretended GPUs that are full, stuck, slowed down, or not what they seem."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest

from gpucheck.drivers.host.cpu import LinuxCpu
from tests.end_to_end.conftest import Ended, Pretend, Program, end_session
from tests.end_to_end.sessions import until_it_waits
from tests.fakes.libraries import cupy_environment
from tests.fakes.machine import Machine, load_machine

#: The modelled second is long.
ON_GPUS = ("--device", "gpu", "--quick", "--budget", "1", "--json")


class Bench:
    """Runs `gpucheck bench` on pretended GPUs."""

    def __init__(self, program: Program, pretend: Pretend, claims: Path) -> None:
        self._program = program
        self._pretend = pretend
        self._claims = claims

    def environment(
        self, script: str, gpus: int = 1, machine: Machine | None = None
    ) -> dict[str, str]:
        found = machine or load_machine("h100x8").with_small_memories()
        return {
            **self._pretend(found, gpus=gpus),
            **cupy_environment(script, time="modelled"),
            "GPUCHECK_CLAIMS_DIR": str(self._claims),
            "OPENBLAS_NUM_THREADS": "1",
        }

    def __call__(
        self,
        *arguments: str,
        script: str = "",
        gpus: int = 1,
        machine: Machine | None = None,
        **variables: str,
    ) -> Ended:
        environment = self.environment(script, gpus, machine) | variables
        return self._program("bench", *arguments, *ON_GPUS, env=environment)


@pytest.fixture(name="bench")
def _bench(program: Program, pretend: Pretend, tmp_path: Path) -> Bench:
    return Bench(program, pretend, tmp_path / "claims")


def codes(row: Any) -> set[str]:
    return {doubt["code"] for doubt in row["doubts"]}


def test_a_full_gpu_is_left_out_and_the_others_go_on(bench: Bench) -> None:
    document = bench(
        *("copy",),
        gpus=2,
        script="used gpu=0 bytes=90e9; slow memory=0.02",
        machine=load_machine("h100x8"),
    ).document("bench")

    rows = document["result"]["measurements"]
    assert document["exit_code"] == 3
    assert {row["error"]["code"] for row in rows if row["device"] == "gpu:0"} == {
        "gpu-memory-taken"
    }
    assert "process 41021" in document["error"]["message"]
    assert "holds 58.0 GiB" in document["error"]["message"]
    assert all(row["verified"]["ok"] for row in rows if row["device"] == "gpu:1")
    assert all(row["shape"] == [4096, 4096] for row in rows)


def test_a_size_that_cannot_fit_is_refused_and_says_who_is_in_the_way(bench: Bench) -> None:
    ended = bench(
        *("copy", "--size", "99999"), script="used bytes=10e9", machine=load_machine("h100x8")
    )

    assert ended.code == 2
    assert "The largest size that fits now is" in ended.said
    assert "process 41021" in ended.said


def test_a_small_copy_is_not_the_limit_of_the_memory(bench: Bench) -> None:
    """Beside the time of the shortest kernel; both are a hundred times what they are."""
    slow = "slow memory=0.01 kernel=100"
    result = bench("copy", "--size", "256", script=slow).document("bench")["result"]

    (limit,) = result["environment"]["rooflines"]
    assert limit["copy_bytes_per_s"] > 1.9e10
    assert all(row["percent_of_copy"] < 60 for row in result["measurements"])


def test_a_low_clock_that_the_driver_does_not_explain_is_doubted(bench: Bench) -> None:
    document = bench(
        *("matmul", "--dtype", "float32", "--size", "256"),
        script="throttle clock=0.6; slow compute=0.02",
        machine=load_machine("t4").with_small_memories(),
    ).document("bench")

    row = document["result"]["measurements"][0]
    (doubt,) = (doubt for doubt in row["doubts"] if doubt["code"] == "clock-low")
    assert doubt["facts"]["sm_clock_mhz"] == pytest.approx(954, rel=0.01)
    assert doubt["facts"]["clock_sm_max_mhz"] == 1590


@pytest.mark.parametrize(("override", "code"), [("0", 4), ("1", 0)])
def test_tf32_is_refused_where_the_environment_forbids_it(
    bench: Bench, override: str, code: int
) -> None:
    ended = bench(
        *("matmul", "--dtype", "tf32", "--size", "64"),
        script="slow launch=20 kernel=300",
        NVIDIA_TF32_OVERRIDE=override,
    )
    document = ended.document("bench")

    assert document["exit_code"] == code
    if code:
        assert "NVIDIA_TF32_OVERRIDE=0" in document["error"]["message"]
    else:
        found = document["result"]["environment"]["variables"]
        assert found["NVIDIA_TF32_OVERRIDE"] == "1"


@pytest.mark.skipif(
    (LinuxCpu().facts().memory_available_bytes or 0) < 12 * 2**30,
    reason="8 GiB of this machine would stay free beside such a GPU, and it has hardly more",
)
def test_a_gpu_without_memory_of_its_own_says_what_its_transfers_are(bench: Bench) -> None:
    script = "unified; slow launch=20 link=0.02 kernel=300"
    result = bench("transfer", "--size", "256", script=script).document("bench")["result"]

    assert result["environment"]["gpus"][0]["integrated"] is True
    assert any("not over PCIe" in note for note in result["notes"])
    assert not any("pcie-narrow" in codes(row) for row in result["measurements"])


@pytest.mark.parametrize("request_to_end", [None, signal.SIGTERM])
def test_a_second_ctrl_c_or_a_request_ends_what_hangs_and_reports_what_is_there(
    bench: Bench, request_to_end: signal.Signals | None
) -> None:
    environment = bench.environment("hang after=3000")
    arguments = ("copy", "triad", "--size", "512", "--device", "gpu", "--budget", "20", "--json")
    process = Program().start("bench", *arguments, env=environment)
    try:
        until_it_waits(process.pid, cpu_s=0.5)
        assert process.stderr is not None
        hint = "waiting for the GPU; Ctrl-C again"
        if request_to_end is None:
            process.send_signal(signal.SIGINT)
            hint = process.stderr.readline().decode()
        process.send_signal(request_to_end or signal.SIGINT)
        stdout, stderr = process.communicate()
    finally:
        end_session(process.pid)

    ended = Ended(code=process.returncode, stdout=stdout, stderr=stderr)
    assert "waiting for the GPU; Ctrl-C again" in hint
    assert ended.code == 130
    document = ended.document("bench")
    assert document["error"]["code"] == "interrupted"
    rows = document["result"]["measurements"]
    assert any(row["median_s"] is not None for row in rows)
    assert any(row["interrupted"] for row in rows)
