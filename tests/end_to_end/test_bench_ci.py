"""Faults of the hardware through real worker processes: the class, the code, the JUnit element.

The driver and CuPy are pretended; everything of ours is the program as it is used.
"""

from __future__ import annotations

import dataclasses
import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from tests.end_to_end.conftest import Ended, Pretend, Program
from tests.end_to_end.sessions import living, until_nobody_lives
from tests.fakes.libraries import cupy_environment
from tests.fakes.machine import Machine, load_machine
from tests.hang_watch import wait_until
from tests.report.formats.junit_rules import violations
from tests.report.schemas import validator

#: No product is measured, so that a fault of `gemm` meets the repeated products: one is repeated at
#: least, however busy the machine. A copy that waits for a processor fails no share of a peak.
PROFILE = """
[profile]
schema = 1
name = "tiny"
version = 1
description = "the smallest check that has everything"
[match]
device = "gpu"
[inventory]
pcie_full = true
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
corruption_seconds = 0.1
[[check]]
id = "copy"
kernel = "copy"
together = true
percent_of_peak = 5
tolerance_percent = 10
source = "a test"
date = "2026-11-21"
[stability]
straggler_percent = 30
corruption = 0
[stability.throttle_s]
hardware-thermal = 0
power-brake = 0
"""

#: Workers run side by side; threads that spin would take each other's time.
ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1"}

#: A board that no table knows, with an L2 of few buffers and so little bandwidth (2.6 GB/s) that
#: the processes mostly sleep: small arrays take it long, and are compared on the processor.
SLOW: dict[str, Any] = {
    "name": "NVIDIA X1",
    "pci_device_id": 0x7F0110DE,
    "l2_bytes": 1 << 20,
    "memory_bus_width_bits": 16,
    "clock_memory_mhz": 655,
    "clock_memory_max_mhz": 655,
}

Run = Callable[..., Ended]


@pytest.fixture(name="profile")
def _profile(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.toml"
    path.write_text(PROFILE, encoding="utf-8")
    return path


@pytest.fixture(name="bench")
def _bench(program: Program, pretend: Pretend, tmp_path: Path) -> Run:
    def run(*arguments: Any, script: str = "", machine: Machine | None = None) -> Ended:
        found = machine or quiet(3)
        environment = pretend(found) | cupy_environment(script, time="real")
        # Other tests pretend the same GPUs: their claims are not ours.
        environment["GPUCHECK_CLAIMS_DIR"] = str(tmp_path / "claims")
        environment |= ONE_THREAD
        return program(
            *("bench", *arguments, "--junit", tmp_path / "junit.xml"),
            env=environment,
        )

    return run


def quiet(count: int, **of_the_second: Any) -> Machine:
    """Return GPUs that nobody else uses, the second one (if there is one) changed."""
    machine = load_machine("h100x8").with_gpus(count)
    gpus = [dataclasses.replace(gpu, processes=(), **SLOW) for gpu in machine.gpus]
    gpus[1:2] = [dataclasses.replace(gpu, **of_the_second) for gpu in gpus[1:2]]
    return dataclasses.replace(machine, gpus=tuple(gpus))


def elements(folder: Path) -> dict[tuple[str, str], tuple[str, str | None]]:
    """Return the red and skipped cases: element and type, by device and check."""
    text = (folder / "junit.xml").read_text(encoding="utf-8")
    assert violations(text) == []
    found = {}
    for suite in ElementTree.fromstring(text):
        for case in suite.findall("testcase"):
            for child in case:
                device = str(suite.get("name")).split()[-1]
                found[device, str(case.get("name"))] = (child.tag, child.get("type"))
    return found


def gates(ended: Ended, status: str) -> set[tuple[str, str, str | None]]:
    document = json.loads(ended.text)
    assert document["exit_code"] == ended.code
    validator("bench").validate(document)
    return {
        (gate["device"], gate["id"], gate["class"])
        for gate in document["result"]["gates"]
        if gate["status"] == status
    }


def test_a_healthy_node_passes(bench: Run, profile: Path, tmp_path: Path) -> None:
    ended = bench("--profile", profile, "--json", machine=quiet(2))

    assert (ended.code, gates(ended, "fail")) == (0, set()), ended.said
    assert elements(tmp_path) == {}


def test_a_node_with_a_missing_gpu_is_not_measured(bench: Run, profile: Path) -> None:
    profile.write_text(PROFILE.replace("[inventory]", "count = 2\n[inventory]"), encoding="utf-8")

    ended = bench("--profile", profile, "--json", machine=quiet(1))

    assert ended.code == 1
    assert gates(ended, "fail") == {("node", "match-count", "hardware")}
    assert json.loads(ended.text)["result"]["measurements"] == []


def test_a_lost_gpu_is_told_of_all_its_processes(bench: Run, profile: Path, tmp_path: Path) -> None:
    ended = bench("--profile", profile, "--json", script="lost after=400", machine=quiet(1))

    assert ended.code == 1, ended.said
    failed = gates(ended, "fail")
    assert {one for one in failed if "processes" in one[1]} == {("gpu:0", "processes", "hardware")}
    assert elements(tmp_path)["gpu:0", "processes"] == ("failure", "hardware")


def test_each_fault_is_told_with_its_class_of_the_gpu_that_has_it(
    bench: Run, profile: Path, tmp_path: Path
) -> None:
    machine = quiet(3, clock_event_reasons=0x40 | 0x80, pcie_width=8)
    script = (
        "slow gpu=0 memory=0.3; "
        "flip gpu=1 kernel=gemm after=1 times=1; nan gpu=2 kernel=gemm after=1 times=1"
    )

    ended = bench("--profile", profile, "--json", script=script, machine=machine)

    assert ended.code == 1, ended.said
    failed = gates(ended, "fail")
    assert {one for one in failed if one[0] in ("gpu:1", "gpu:2")} == {
        ("gpu:1", "corruption", "hardware"),
        ("gpu:1", "inventory-pcie-full", "config"),
        ("gpu:1", "inventory-pcie-width", "config"),
        ("gpu:1", "throttle-hardware-thermal", "thermal"),
        ("gpu:1", "throttle-power-brake", "power-cap"),
        ("gpu:2", "corruption", "hardware"),
    }
    assert {device for device, _, _ in failed} <= {"gpu:0", "gpu:1", "gpu:2", "node"}
    slow = {(id_, class_) for device, id_, class_ in failed if device in ("gpu:0", "node")}
    assert [class_ for id_, class_ in slow if "straggler" in id_] == ["hardware"], failed
    assert not any(id_ == "corruption" for id_, _ in slow)
    red = elements(tmp_path)
    assert {found for (device, _), found in red.items() if device == "gpu:1"} == {
        ("failure", class_) for class_ in ("hardware", "config", "thermal", "power-cap")
    }
    assert {found for (device, _), found in red.items() if device == "gpu:2"} == {
        ("failure", "hardware")
    }
    assert ("failure", "hardware") in {
        found for (_, check), found in red.items() if "straggler" in check
    }


def test_no_gpu_is_a_red_case_and_code_4(program: Program, tmp_path: Path, profile: Path) -> None:
    ended = program("bench", "--profile", profile, "--junit", tmp_path / "junit.xml", env={})

    assert ended.code == 4
    assert list(elements(tmp_path)) == [("run", "bench")]


def test_saved_and_held_against_it(bench: Run, tmp_path: Path) -> None:
    what = ("copy", "--size", "512", "--quick", "--budget", "4")
    many = (*what, "--device", "gpu:1", "--processes", "2")
    saved = bench(*many, "--save", tmp_path / "before.json")
    assert saved.code == 0, saved.said

    again = bench(
        *(*many, "--baseline", tmp_path / "before.json", "--save", tmp_path / "after.json"),
        *("--json",),
        script="slow memory=0.3",
    )

    failed = gates(again, "fail")
    assert again.code == 1, again.said
    assert {device for device, _, _ in failed} == {"gpu:1"}
    assert [one["code"] for one in json.loads(again.text)["warnings"]] == ["not-saved"]
    assert not (tmp_path / "after.json").exists()


def test_in_github_actions_only_we_write_the_summary(program: Program, tmp_path: Path) -> None:
    """The workers see the same environment, and a file of defaults that would start workers."""
    summary, defaults = tmp_path / "summary.md", tmp_path / "defaults.toml"
    defaults.write_text("[bench]\nprocesses = 2\nsize = 64\n", encoding="utf-8")
    ended = program(
        *("bench", "copy", "--quick", "--budget", "0.5", "--device", "cpu"),
        env={
            "GITHUB_ACTIONS": "true",
            "GITHUB_STEP_SUMMARY": str(summary),
            "GPUCHECK_CONFIG": str(defaults),
        },
    )

    assert ended.code == 0, ended.said
    assert summary.read_text(encoding="utf-8").count("## gpucheck bench on ") == 1


def test_a_burn_finds_the_flipped_bit(bench: Run, tmp_path: Path) -> None:
    ended = bench(
        *("--burn", "1", "--size", "256", "--device", "gpu", "--json"),
        # Products that take long, for which the workers sleep.
        script="flip gpu=1 kernel=gemm after=5 times=1; slow compute=0.0001",
        machine=quiet(2),
    )
    document = json.loads(ended.text)
    validator("burn").validate(document)

    assert ended.code == 1
    checks = [one["corruption"] for one in document["result"]["devices"]]
    assert [one["mismatches"] for one in checks] == [0, 1]
    assert checks[1]["first_index"] is not None
    assert len({one["digest"] for one in checks}) == 1
    red = {case: found for case, found in elements(tmp_path).items() if found[0] != "skipped"}
    assert red == {("gpu:1", "corruption"): ("failure", "hardware")}


def test_a_burn_leaves_a_full_gpu_alone_and_says_who_fills_it(bench: Run, tmp_path: Path) -> None:
    ended = bench(
        *("--burn", "1", "--size", "256", "--device", "gpu", "--json"),
        script="used gpu=0 bytes=90e9",
        machine=load_machine("h100x8").with_gpus(2),
    )
    document = json.loads(ended.text)
    validator("burn").validate(document)

    assert ended.code == 3, ended.said
    first, second = document["result"]["devices"]
    assert first["failure"]["code"] == "gpu-memory-taken"
    assert "process 41021" in first["failure"]["message"]
    assert (first["corruption"]["products"], second["failure"]) == (0, None)
    assert any("gpu:1 was shared: process 41022" in note for note in document["result"]["notes"])
    assert elements(tmp_path)["gpu:0", "alive"] == ("error", "environment")


def test_a_report_of_one_process_is_compared_by_how_far_runs_are_apart(
    program: Program, tmp_path: Path
) -> None:
    what = ("copy", "--quick", "--size", "64", "--budget", "1", "--device", "cpu", "--json", "-q")
    report = tmp_path / "a.json"
    assert program("bench", *what, "--output", report, env={}).code == 0

    ended = program("compare", report, report, "--json", env={})

    document = ended.document("compare")
    rows = document["result"]["rows"]
    assert rows
    statuses = {row["status"] for row in rows}
    expected = 1 if "fail" in statuses else 3 if "inconclusive" in statuses else 0
    assert document["exit_code"] == expected, statuses
    for row in rows:
        assert (row["first_count"], row["second_count"]) == (1, 1)
        assert row["ratio"] == 1
        assert row["by_repeat"] is (row["interval"] is not None)


def test_a_burn_stops_at_the_limit(bench: Run, tmp_path: Path) -> None:
    words = ("--burn", "60", "--size", "256", "--burn-limit", "40", "--json")
    ended = bench(*words, machine=quiet(1))
    document = json.loads(ended.text)

    assert ended.code == 1
    assert document["result"]["ended_by"] == "temperature"
    assert ("failure", "thermal") in elements(tmp_path).values()


def has_computed(pid: int) -> bool:
    """Return whether a process is past its beginning: it has taken 0.3 s of a processor."""
    try:
        words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return False
    return int(words[11]) + int(words[12]) > 0.3 * os.sysconf("SC_CLK_TCK")


BURN = ("--burn", "120", "--size", "128")
PROCESSES = ("matmul", "--size", "128", "--processes", "3", "--budget", "60")


@pytest.mark.parametrize(("arguments", "number"), [
    (BURN, signal.SIGINT), (BURN, signal.SIGKILL), (PROCESSES, signal.SIGTERM)
])  # fmt: skip
def test_nothing_is_left_running(
    program: Program, tmp_path: Path, arguments: tuple[str, ...], number: signal.Signals
) -> None:
    words = ("bench", *arguments, "--device", "cpu", "--json", "--junit", tmp_path / "junit.xml")
    with program.start(*words, env=ONE_THREAD) as process:
        wait_until(lambda: any(map(has_computed, living(process.pid))))
        os.kill(process.pid, number)
        stdout, stderr = process.communicate()

    until_nobody_lives(process.pid)
    if number is signal.SIGKILL:
        return
    assert process.returncode == 130, stderr.decode()
    assert json.loads(stdout)["exit_code"] == 130
    assert elements(tmp_path)
