"""Caps on a real card: the framework's own allocator keeps what the plan promises."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator

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
    )  # fmt: skip

    result = finished.document["result"]
    gpu = result["gpus"][0]
    is_crowded = gpu["memory_free_bytes"] < gpu["limit_bytes"] + gpu["context_estimate_bytes"]
    if finished.code == 4 or (finished.code == 3 and is_crowded):  # a build for processors; others
        pytest.skip(finished.document["error"]["message"])
    found = result["verification"]
    assert finished.code == 0, found
    assert found["held"] is True
    assert found["allocated_bytes"] <= found["limit_bytes"]
    # The real limit is known to 16 MiB, and NVML's figure was judged where the driver tells it.
    assert found["refused_bytes"] == 16 << 20
    assert found["deviation_bytes"] == found["allocated_bytes"] - found["limit_bytes"]
    assert found["nvml_bytes"] is None or found["nvml_bytes"] <= found["nvml_most_bytes"]


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


#: Takes memory through the driver alone, 16 MiB at a time, and says how much it got.
TAKE = """
import ctypes
cuda = ctypes.CDLL("libcuda.so.1")
device, context, place, taken = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_uint64(), 0
code = cuda.cuInit(0)
assert code == 0, f"cuInit: CUDA error {code}"
cuda.cuDeviceGet(ctypes.byref(device), 0)
assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device) == 0
cuda.cuCtxSetCurrent(context)
while taken < 1 << 31 and cuda.cuMemAlloc_v2(ctypes.byref(place), ctypes.c_size_t(1 << 24)) == 0:
    taken += 1 << 24
print(taken)
"""


#: cuda.h: cudaErrorMps*, from "connection failed" to "client terminated". A container without the
#: host's IPC has no MPS, however healthy its card.
MPS_REFUSES = range(805, 811)


@pytest.fixture(name="daemon")
def _daemon() -> Iterator[dict[str, str]]:
    """Start an MPS daemon of this test's own, and yield the variables of its clients."""
    control = shutil.which("nvidia-cuda-mps-control")
    if control is None:
        pytest.skip("nvidia-cuda-mps-control is not here")
    # The path of a socket has at most 107 characters.
    with tempfile.TemporaryDirectory(prefix="mps", dir="/tmp") as folder:
        folders = {
            "CUDA_MPS_PIPE_DIRECTORY": f"{folder}/pipe",
            "CUDA_MPS_LOG_DIRECTORY": f"{folder}/log",
        }
        environment = {**os.environ, **folders}
        if subprocess.run([control, "-d"], env=environment, check=False).returncode:
            pytest.skip("the MPS daemon does not start here")
        yield environment
        subprocess.run([control], input="quit\n", text=True, env=environment, check=False)


@pytest.mark.slow
@pytest.mark.parametrize("key", ["uuid", "ordinal"])
def test_mps_takes_limits_by_uuid_and_by_ordinal(
    key: str, daemon: dict[str, str], gpucheck_command
) -> None:
    gpus = gpucheck_command("list", "--json").document["result"]["gpus"]
    first = next(gpu for gpu in gpus if gpu["cuda_index"] == 0)
    device = first["uuid"] if key == "uuid" else "0"
    limit = {"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": f"{device}=1G"}

    done = subprocess.run(
        [sys.executable, "-c", TAKE],
        env={**daemon, **limit},
        capture_output=True,
        text=True,
        check=False,
    )

    refusal = re.search(r"cuInit: CUDA error (\d+)", done.stderr)
    if refusal is not None and int(refusal[1]) in MPS_REFUSES:
        pytest.skip(f"MPS takes no client here: {refusal[0]}")
    assert done.returncode == 0, done.stderr
    # It counts the context too.
    assert int(done.stdout) < 1 << 30
