"""`gpucheck place --run` on pretended GPUs, through the real code for CuPy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.conftest import Pretend, Program
from tests.fakes.libraries import cupy_environment

CASES = Path(__file__).parents[2] / "configs" / "place"

#: x goes from one GPU to the other and back, and the result to the CPU.
ROUND_TRIP = """
[x]
op = "constant"
value = [[1, 2], [3, 4]]
device = "/gpu:0"
[squared]
op = "matmul"
inputs = ["x", "x"]
device = "/gpu:1"
[back]
op = "add"
inputs = ["x", "squared"]
device = "/gpu:0"
[share]
op = "softmax"
inputs = ["back"]
temperature = 2
device = "/gpu:0"
[whole]
op = "sum"
inputs = ["share"]
axis = 1
device = "/gpu:0"
[positive]
op = "relu"
inputs = ["whole"]
device = "/gpu:0"
"""


@pytest.fixture
def unlike(pretend: Pretend) -> dict[str, str]:
    """Return a T4 and an A100, which CUDA numbers the other way round, and CuPy on them."""
    return pretend("mixed-order") | cupy_environment()


def run(program: Program, *words: str | Path, env: dict[str, str]) -> Any:
    return program("place", *words, "--run", "--json", env=env).document("place")["result"]


def moves(found: Any) -> list[tuple[str, str, str]]:
    return [
        (move["what"], *(move[end].rpartition("device:")[2] for end in ("from", "to")))
        for move in found["transfers"]
    ]


def test_two_towers(program: Program, unlike: dict[str, str]) -> None:
    found = run(program, "gpu:0", "cuda:1", env=unlike)

    assert found["ran"] is True
    assert found["value"] == [[44, 56], [98, 128]]
    assert moves(found) == [
        ("tower_0/MatMul", "GPU:0", "CPU:0"),
        ("tower_1/MatMul", "GPU:1", "CPU:0"),
    ]
    assert all(move["seconds"] > 0 for move in found["transfers"])
    assert [device["name"] for device in found["devices"]] == ["NVIDIA A100-SXM4-40GB", "Tesla T4"]


def test_the_log_form_and_the_mapping(program: Program, unlike: dict[str, str]) -> None:
    text = program("place", "gpu:1", "--run", env=unlike).text

    local = "/job:localhost/replica:0/task:0/device:GPU:1"
    assert f"\n  MatMul: (MatMul): {local}\n" in text
    assert f"\n  {local} -> device: 1, name: Tesla T4, pci bus id: 0000:3b:00.0\n" in text
    assert text.startswith("Value: [[22, 28], [49, 64]]\n")


@pytest.mark.parametrize("name", ["single-gpu", "manual-cpu"])
def test_the_tutorials(program: Program, unlike: dict[str, str], name: str) -> None:
    found = run(program, "--graph", CASES / f"{name}.toml", env=unlike)

    assert found["value"] == [[22, 28], [49, 64]]
    assert found["ops"][-1]["device"].endswith("GPU:0")


def test_from_one_gpu_to_the_other_and_back(
    program: Program, unlike: dict[str, str], tmp_path: Path
) -> None:
    path = tmp_path / "round-trip.toml"
    path.write_text(ROUND_TRIP, encoding="ascii")
    found = run(program, "--graph", path, env=unlike)

    assert found["value"] == pytest.approx([1, 1])
    assert moves(found) == [
        ("x", "GPU:0", "GPU:1"),
        ("squared", "GPU:1", "GPU:0"),
        ("positive", "GPU:0", "CPU:0"),
    ]
    assert "squared on /device:GPU:0 instead of /device:GPU:1" in found["advice"][0]


def test_nothing_is_opened_that_no_operation_is_on(
    program: Program, unlike: dict[str, str]
) -> None:
    env = unlike | cupy_environment("lost gpu=0")  # NVML's GPU 0 is CUDA's 1

    assert run(program, "/gpu:0", env=env)["value"] == [[22, 28], [49, 64]]


@pytest.mark.parametrize(
    ("script", "remedy"),
    [
        ("lost gpu=1 after=10", "gpucheck detect"),
        ("fail kernel=gemm error=cudaErrorIllegalAddress", "gpucheck detect"),
        ("oom gpu=1", "gpucheck list --processes"),
    ],
)
def test_a_gpu_that_gives_up(
    program: Program, unlike: dict[str, str], script: str, remedy: str
) -> None:
    env = unlike | cupy_environment(script)
    ended = program("place", "/gpu:0", "--run", "--json", env=env)

    assert ended.code == 3
    error = ended.document("place")["error"]
    assert error["code"] == "graph-failed"
    assert remedy in " ".join(error["remedy"])
