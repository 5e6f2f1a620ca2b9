"""The caps on a real card: what the plan promises, the framework's own allocator keeps."""

from __future__ import annotations

import importlib.util
import json
import sys

import pytest

pytestmark = pytest.mark.gpu

FRAMEWORKS = ("cupy", "torch", "jax")


@pytest.mark.slow
@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("amount", ["10%", "30%", "70%"])
def test_a_cap_holds(framework: str, amount: str, gpucheck_command) -> None:
    if importlib.util.find_spec(framework) is None:
        pytest.skip(f"{framework} is not installed")

    finished = gpucheck_command(
        "memlimit", amount, "--verify-with", framework, "--python", sys.executable, "--json",
        timeout_s=400,
    )  # fmt: skip

    found = finished.document["result"]["verification"]
    assert finished.code == 0, found
    assert found["held"] is True
    assert found["allocated_bytes"] <= found["limit_bytes"]


def test_a_plan_is_within_the_card(gpucheck_command) -> None:
    document = gpucheck_command("memlimit", "100%", "--json").document

    for gpu in document["result"]["gpus"]:
        assert 0 < gpu["limit_bytes"] <= gpu["memory_total_bytes"]
        assert gpu["memory_free_bytes"] is not None


def test_what_a_command_takes_is_seen(gpucheck_command, tmp_path) -> None:
    if importlib.util.find_spec("cupy") is None:
        pytest.skip("cupy is not installed")
    text = "import cupy, time; held = cupy.zeros(1 << 30, dtype='uint8'); time.sleep(4)"
    report = tmp_path / "report.json"

    finished = gpucheck_command(
        "memlimit", "2GiB", "-o", report, "--json", "--", sys.executable, "-c", text
    )

    assert finished.code == 0
    run = json.loads(report.read_text())["result"]["run"]
    if run["peak_bytes"] is None:
        pytest.skip(run["unavailable"]["peak_bytes"])
    assert 1 << 30 <= run["peak_bytes"] <= (2 << 30) + run["gpus"][0]["allowance_bytes"]
    assert run["exceeded"] is False
