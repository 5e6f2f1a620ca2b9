"""Inside a cgroup whose GPU memory the driver limits: said first, with no two totals confused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.conftest import Program
from tests.end_to_end.test_calls import calls_in
from tests.fakes.cgroups import Capping, capping_machine
from tests.fakes.machine import load_machine

pytestmark = pytest.mark.usefixtures("c_compiler")

GIB = 1 << 30
#: The T4's, by NVML's version 1.
TOTAL = 16106127360
KEY = "nvidia/00000000:00:04.0/vidmem"
SENTENCE = "GPU 0: 8.0 GiB of 15.0 GiB is your cgroup's limit, not the card's ({}); out of memory"
SEEN = {"memory_limit_seen_bytes": 8 * GIB, "memory_limit_used_bytes": 2 * GIB}


def by_dmem(folder: Path, *, parent: bool = False) -> Capping:
    """Return a T4 below a group that the kernel limits, or below one whose parent it limits."""
    own = f"{KEY} {'max' if parent else 8 * GIB}\n"
    files = {"cgroup.controllers": "dmem\n", "pod/box/dmem.max": own,
             "pod/dmem.max": f"{KEY} {8 * GIB if parent else 'max'}\n",
             f"pod/{'' if parent else 'box/'}dmem.current": f"{KEY} {2 * GIB}\n"}  # fmt: skip
    machine = load_machine("t4").with_gpu(0, **({} if parent else SEEN))
    return capping_machine(folder, machine=machine, back_end="dmem", group="/pod/box", files=files)


def by_driver(folder: Path) -> Capping:
    """Return a T4 below a group that the driver itself limits."""
    capping = capping_machine(folder, machine=load_machine("t4").with_gpu(0, **SEEN), group="/box")
    capping.state.mkdir()
    group = str(capping.mount / "box")
    value = 14695981039346656037
    for byte in group.encode():
        value = (value ^ byte) * 1099511628211 % 2**64
    (capping.state / f"0-{value:016x}").write_text(f"0 {8 * GIB} {group}\n")
    return capping


def row(program: Program, capping: Capping) -> Any:
    return program("list", "--json", env=capping.env).document()["result"]["gpus"][0]


@pytest.mark.parametrize(
    ("kind", "source"),
    [("dmem", "dmem.max"), ("parent", "dmem.max of a parent"), ("driver", "nvml")],
)
def test_every_command_says_it_first(
    program: Program, tmp_path: Path, kind: str, source: str
) -> None:
    if kind == "driver":
        capping = by_driver(tmp_path)
    else:
        capping = by_dmem(tmp_path, parent=kind == "parent")

    claims = str(tmp_path / "claims")
    gpu = row(program, capping)

    assert (gpu["memory_total_bytes"], gpu["memory_limit_bytes"]) == (TOTAL, 8 * GIB)
    assert (gpu["memory_limit_used_bytes"], gpu["memory_limit_source"]) == (2 * GIB, source)
    said = SENTENCE.format(source)
    if kind != "dmem":
        assert said in " ".join(program("list", env=capping.env).text.split())
        return
    for words in (("list",), ("detect",), (), ("place", "/gpu:0"), ("memlimit", "50%")):
        shown = " ".join(program(*words, env=capping.env | {"COLUMNS": "200"}).text.split())
        assert said in shown
    for words in (("place", "/gpu:0"), ("memlimit", "50%")):
        told = program(*words, "--", "true", env=capping.env | {"GPUCHECK_CLAIMS_DIR": claims}).said
        assert told.startswith(f"gpucheck: {said}")
    # Said before the device and before the plan.
    assert program("place", "/gpu:0", env=capping.env).text.startswith("! GPU 0: 8.0 GiB of 15.0")


def test_a_share_is_of_the_limit_and_that_is_said(program: Program, tmp_path: Path) -> None:
    capping = by_dmem(tmp_path)

    ended = program("memlimit", "50%", "--json", env=capping.env)
    shown = program("memlimit", "50%", env=capping.env).text

    result = ended.document("memlimit")["result"]
    (gpu,) = result["gpus"]
    assert (gpu["limit_bytes"], gpu["memory_total_bytes"]) == (4 * GIB, TOTAL)
    assert gpu["memory_limit_bytes"] == 8 * GIB
    assert result["environment"]["XLA_PYTHON_CLIENT_MEM_FRACTION"] == "0.5"
    assert "50% is 4.0 GiB of the 8.0 GiB that your cgroup may use on GPU 0" in shown


def test_cuda_reports_the_whole_card_below_a_limited_parent(
    program: Program, tmp_path: Path
) -> None:
    capping = by_dmem(tmp_path, parent=True)

    ended = program("memlimit", "50%", "--json", env=capping.env)

    result = ended.document("memlimit")["result"]
    assert result["gpus"][0]["limit_bytes"] == 4 * GIB
    fraction = float(result["environment"]["XLA_PYTHON_CLIENT_MEM_FRACTION"])
    assert abs(fraction * TOTAL - 4 * GIB) < 1 << 20


def test_more_than_the_cgroup_may_use_is_refused(program: Program, tmp_path: Path) -> None:
    ended = program("memlimit", "9GiB", env=by_dmem(tmp_path).env)

    assert ended.code == 2
    assert "9GiB is more than the 8.0 GiB that your cgroup may use of GPU 0" in ended.said


def test_what_is_left_of_the_limit_is_free_for_place(program: Program, tmp_path: Path) -> None:
    capping = by_dmem(tmp_path)
    claims = {"GPUCHECK_CLAIMS_DIR": str(tmp_path / "claims")}

    fits = program("place", "--count", "1", "--min-free", "6GiB", env=capping.env | claims)
    too_much = program("place", "--count", "1", "--min-free", "7GiB", env=capping.env | claims)

    assert (fits.code, too_much.code) == (0, 1)


def test_a_total_that_may_be_the_limit_is_not_taken_for_the_cards(
    program: Program, tmp_path: Path
) -> None:
    files = {"cgroup.controllers": "dmem\n", "dmem.max": f"{KEY} {TOTAL}\n"}
    capping = capping_machine(tmp_path, back_end="dmem", files=files)

    gpu = row(program, capping)

    assert gpu["memory_total_bytes"] is None
    assert "of the cgroup, not of the card" in gpu["unavailable"]["memory_total_bytes"]


@pytest.mark.parametrize(
    ("version", "back_end", "expected"),
    [("580.95.05", "misc", 0), ("615.71.09", "dmem", 0), ("615.71.09", "misc", 1)],
)
def test_nvml_is_asked_only_where_it_alone_can_know(
    program: Program, tmp_path: Path, version: str, back_end: str, expected: int
) -> None:
    files = {"dmem.max": f"{KEY} max\n"} if back_end == "dmem" else {}
    capping = capping_machine(tmp_path, version=version, back_end=back_end, files=files)
    log = tmp_path / "calls.log"

    assert program("list", "--json", env=capping.env | {"FAKE_CALL_LOG": str(log)}).code == 0

    calls = calls_in(log)
    assert calls["nvmlDeviceGetMemoryLimits_v1", "0"] == expected
    assert calls["nvmlDeviceGetMemoryInfo_v2", "0"] == 1
    assert calls["nvmlDeviceGetMemoryInfo", "0"] == 0


def test_a_recording_keeps_the_limit(program: Program, tmp_path: Path) -> None:
    capping = by_dmem(tmp_path)
    file = tmp_path / "machine.json"
    assert program("snapshot", str(file), env=capping.env).code == 0

    ended = program("list", "--from", str(file), env={})

    assert "is your cgroup's limit" in ended.text
