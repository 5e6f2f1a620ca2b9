"""The contract on a real card: the promises of the fakes must hold with a driver."""

from __future__ import annotations

import pytest

from tests.fakes.gpus import NOTHING_TO_TELL

pytestmark = pytest.mark.gpu

#: Strings whose meaning the documented rules decide on any machine with at least one GPU.
DECIDED = ("", "-1", "0", "0,-1", "0,99", "99", "GPU-ffffffff")


def test_list_knows_the_card_and_both_of_its_numbers(gpucheck_command) -> None:
    finished = gpucheck_command("list", "--json")
    document = finished.document
    gpu = next(gpu for gpu in document["result"]["gpus"] if gpu["cuda_index"] == 0)

    assert finished.code == 0
    assert gpu["state"] == "ok"
    assert gpu["uuid"].startswith("GPU-")
    assert gpu["memory_total_bytes"] > gpu["memory_used_bytes"] >= 0
    assert gpu["visible"] is True
    assert document["host"]["driver_version"]
    absent = {name for name, value in gpu.items() if value is None}
    assert absent <= set(gpu["unavailable"]) | NOTHING_TO_TELL


def test_the_rules_agree_with_the_driver(gpucheck_command) -> None:
    """Join NVML and libcuda by UUID on the real libraries."""
    by_rules = gpucheck_command("list", "--json").document["result"]
    by_driver = gpucheck_command("list", "--json", "--ask-driver").document["result"]

    assert by_driver["visibility"]["decided_by"] == "driver"
    if by_rules["visibility"]["decided_by"] == "rules":
        assert by_rules["visibility"]["visible"] == by_driver["visibility"]["visible"]


@pytest.mark.parametrize("text", DECIDED)
def test_one_string_means_the_same_to_the_rules_and_to_the_driver(
    text: str, gpucheck_command
) -> None:
    environment = {"CUDA_VISIBLE_DEVICES": text, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    ruled = gpucheck_command("list", "--json", env=environment).document["result"]["visibility"]
    asked = gpucheck_command("list", "--json", "--ask-driver", env=environment)

    if ruled["open_question"] is None and ruled["decided_by"] == "rules":
        assert asked.document["result"]["visibility"]["visible"] == ruled["visible"]


def test_the_card_is_usable(gpucheck_command) -> None:
    finished = gpucheck_command("detect", "--json")
    result = finished.document["result"]
    failed = [check for check in result["checks"] if check["status"] == "fail"]

    assert result["usable"] is True
    # A card that works may still be hot, or have an Xid in the log of its host: that is its health.
    assert {check["layer"] for check in failed} <= {"health", "framework"}, failed
    assert finished.code == (0 if result["first_failure"] is None else 1)


def test_hiding_the_card_is_found_out(gpucheck_command) -> None:
    finished = gpucheck_command("detect", "--json", env={"CUDA_VISIBLE_DEVICES": ""})

    assert finished.code == 1
    assert finished.document["result"]["first_failure"] == "visibility"


def test_the_first_gpu_is_placed_on_it(gpucheck_command) -> None:
    gpus = gpucheck_command("list", "--json").document["result"]["gpus"]
    first = next(gpu for gpu in gpus if gpu["cuda_index"] == 0)

    placed = gpucheck_command("place", "/gpu:0", "--json").document["result"]["devices"][0]

    assert placed["uuid"] == first["uuid"]


def test_bench_verifies_every_row_on_the_card(gpucheck_command) -> None:
    pytest.importorskip("cupy")
    words = ("bench", "--quick", "--budget", "60", "--require-gpu", "--json")
    finished = gpucheck_command(*words)
    rows = finished.document["result"]["measurements"]
    on_card = [row for row in rows if row["device"].startswith("gpu:")]

    assert finished.code == 0, finished.stderr
    assert {row["kernel"] for row in on_card} >= {"matmul", "softmax", "copy", "transfer", "train"}
    assert [row for row in on_card if row["error"]] == []
    assert all(row["verified"]["ok"] for row in on_card)
    assert finished.document["result"]["comparisons"]


def test_a_snapshot_answers_like_the_machine(gpucheck_command, tmp_path) -> None:
    file = tmp_path / "machine.json"
    recorded = gpucheck_command("snapshot", str(file))
    from_file = gpucheck_command("list", "--from", str(file), "--json").document["result"]["gpus"]
    live = gpucheck_command("list", "--json").document["result"]["gpus"]

    assert recorded.code == 0
    assert [gpu["uuid"] for gpu in from_file] == [gpu["uuid"] for gpu in live]


def test_bench_works_without_a_home_and_leaves_nothing_there(gpucheck_command) -> None:
    pytest.importorskip("cupy")
    words = ("bench", "copy", "--quick", "--budget", "10", "--device", "gpu:0", "--json")

    finished = gpucheck_command(*words, env={"HOME": "/proc/nowhere"})

    rows = finished.document["result"]["measurements"]
    assert finished.code == 0, finished.stderr
    errors = [row["error"] and row["error"]["code"] for row in rows]
    assert None in errors
    assert {*errors} <= {None, "no-time"}  # as on a busy machine


def test_the_uuid_that_bench_finds_is_nvmls() -> None:
    pytest.importorskip("cupy")
    from gpucheck.drivers.cupy.device import open_gpus

    nvml = pytest.importorskip("pynvml")
    opened = open_gpus((0,))
    if not opened.devices:
        pytest.skip(f"no GPU can be measured: {opened.unavailable}")
    nvml.nvmlInit()

    handle = nvml.nvmlDeviceGetHandleByUUID(opened.devices[0].facts.uuid)

    assert nvml.nvmlDeviceGetUUID(handle) == opened.devices[0].facts.uuid
