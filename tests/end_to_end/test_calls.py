"""No question is put to NVML twice: what the pretended library logged is what was asked."""

from __future__ import annotations

import signal
from collections import Counter
from pathlib import Path

import pytest

from gpucheck.cli import COMPLETING
from tests.end_to_end.conftest import Pretend, Program
from tests.fakes.machine import Machine, load_machine
from tests.hang_watch import wait_until

#: NVML's own protocol for lists is to ask for the length, then for the content.
TWO_STEPS = ("RunningProcesses_v3", "nvmlDeviceGetProcessUtilization")

#: Readings of one GPU: identity 7, load and memory 3, temperature and fan 2, power 2, clocks 2,
#: modes 5, PCIe 4, MIG 1, lists 2 x 3, load by process 2; and the handle.
MOST_CALLS_PER_GPU = 36
#: Initialise, three versions, count the GPUs.
CALLS_OF_ALL = 5
#: What tables and documents judge a card's health by.
MOST_CALLS_OF_HEALTH = 20


def calls_in(log: Path) -> Counter[tuple[str, str]]:
    """Return how often each (function, GPU index or "-") was called."""
    lines = log.read_text(encoding="ascii").splitlines()
    return Counter((function, gpu) for function, gpu in map(str.split, lines))


@pytest.mark.parametrize("gpus", [1, 8, 64])
def test_each_reading_is_one_call(
    pretend: Pretend, program: Program, call_log: Path, gpus: int
) -> None:
    env = pretend("h100x8", gpus=gpus) | {"FAKE_CALL_LOG": str(call_log)}

    # Its load by process is asked for too; the health is not, whose questions are partly the same.
    ended = program("list", "--json", env=env)

    assert ended.code == 0
    calls = calls_in(call_log)
    twice = {call for call, count in calls.items() if count > 1}
    assert {call for call in twice if not call[0].endswith(TWO_STEPS)} == set()
    assert {calls[call] for call in twice} <= {2}
    assert calls.total() <= CALLS_OF_ALL + gpus * MOST_CALLS_PER_GPU
    # Nobody asked libcuda: initialising it takes seconds.
    assert not [name for name, _ in calls if name.startswith("cu")]


def test_a_plain_table_asks_for_no_load_by_process(
    pretend: Pretend, program: Program, call_log: Path
) -> None:
    env = pretend("h100x8") | {"FAKE_CALL_LOG": str(call_log)}

    assert program("list", env=env).code == 0

    names = {name for name, _ in calls_in(call_log)}
    assert "nvmlDeviceGetUUID" in names
    assert "nvmlDeviceGetProcessUtilization" not in names
    assert not [name for name in names if "NvLink" in name or "Topology" in name]


def test_the_health_of_a_document_is_few_more(
    pretend: Pretend, program: Program, call_log: Path
) -> None:
    env = pretend("h100x8") | {"FAKE_CALL_LOG": str(call_log)}

    assert program("list", "--json", "--processes", env=env).code == 0

    most = MOST_CALLS_PER_GPU + MOST_CALLS_OF_HEALTH
    assert calls_in(call_log).total() <= CALLS_OF_ALL + 8 * most


def test_mig_instances_are_asked_once_each(
    pretend: Pretend, program: Program, call_log: Path
) -> None:
    machine = load_machine("a100-mig")
    env = pretend(machine) | {"FAKE_CALL_LOG": str(call_log)}

    assert program("list", "--json", env=env).code == 0

    calls = calls_in(call_log)
    instances = len(machine.gpus[0].mig)
    for name in ("nvmlDeviceGetUUID", "nvmlDeviceGetName", "nvmlDeviceGetMemoryInfo_v2"):
        assert calls[name, "0"] == 1 + instances
        assert calls[name, "1"] == 1
    assert calls["nvmlDeviceGetGpuInstanceId", "0"] == instances
    assert calls["nvmlDeviceGetMigDeviceHandleByIndex", "0"] == machine.gpus[0].mig_max_count


def test_topology_asks_each_pair_and_each_link_once(
    pretend: Pretend, program: Program, call_log: Path
) -> None:
    machine = load_machine("h100x8")
    env = pretend(machine) | {"FAKE_CALL_LOG": str(call_log)}

    assert program("list", "--json", "--topology", env=env).code == 0

    calls = calls_in(call_log)
    by_name: Counter[str] = Counter()
    for (name, _), count in calls.items():
        by_name[name] += count
    links = 8 * len(machine.links(0))
    assert links == 8 * 18
    assert by_name["nvmlDeviceGetHandleByIndex_v2"] == 8
    assert by_name["nvmlDeviceGetTopologyCommonAncestor"] == 8 * 7 / 2
    # And once for each GPU the link after the last, which tells that it was the last.
    assert by_name["nvmlDeviceGetNvLinkState"] <= links + 8
    assert by_name["nvmlDeviceGetNvLinkRemotePciInfo_v2"] == links


def test_an_older_form_is_found_once(pretend: Pretend, program: Program, call_log: Path) -> None:
    env = pretend("old-driver", gpus=8) | {"FAKE_CALL_LOG": str(call_log)}

    assert program("list", "--json", env=env).code == 0

    # What the library does not have cannot be logged: only what is there was called, once a GPU.
    calls = calls_in(call_log)
    assert {calls["nvmlDeviceGetMemoryInfo", str(gpu)] for gpu in range(8)} == {1}
    assert not [name for name, _ in calls if name.endswith(("_v3", "MemoryInfo_v2"))
                and "Processes" in name]  # fmt: skip


def test_a_form_that_one_gpu_lacks_is_still_asked_of_the_next(
    pretend: Pretend, program: Program, call_log: Path
) -> None:
    refused = ["nvmlDeviceGetMemoryInfo_v2 gpu=0 3"]
    env = pretend("h100x8", fail=refused) | {"FAKE_CALL_LOG": str(call_log)}

    document = program("list", "--json", env=env).document()

    calls = calls_in(call_log)
    assert calls["nvmlDeviceGetMemoryInfo", "0"] == 1
    assert {calls["nvmlDeviceGetMemoryInfo", str(gpu)] for gpu in range(1, 8)} == {0}
    # Version 1 counts the reserve as used; on the other cards it is told apart.
    used = [row["memory_used_bytes"] for row in document["result"]["gpus"]]
    assert used[0] > used[1]


def test_nothing_is_asked_of_a_lost_gpu_after_it_says_so(
    pretend: Pretend, program: Program, call_log: Path
) -> None:
    env = pretend("gpu-lost") | {"FAKE_CALL_LOG": str(call_log)}

    assert program("list", "--json", "--topology", "--processes", env=env).code == 0

    lost = {name: count for (name, gpu), count in calls_in(call_log).items() if gpu == "2"}
    nvml = {name: count for name, count in lost.items() if name.startswith("nvml")}
    assert nvml == {"nvmlDeviceGetHandleByIndex_v2": 1, "nvmlDeviceGetUUID": 1}


def test_watching_initialises_once(pretend: Pretend, program: Program, call_log: Path) -> None:
    env = pretend("h100x8") | {"FAKE_CALL_LOG": str(call_log)}

    with program.start("list", "--watch", "0.1", "--json", env=env) as process:
        assert process.stdout is not None
        documents = [process.stdout.readline() for _ in range(4)]
        process.send_signal(signal.SIGINT)
        documents += process.stdout.readlines()
        code = process.wait()

    calls = calls_in(call_log)
    assert code == 0
    assert calls["nvmlInitWithFlags", "-"] == 1
    # Each round asks each reading once; one round may have begun and not been shown.
    rounds = calls["nvmlDeviceGetCount_v2", "-"]
    assert len(documents) <= rounds <= len(documents) + 1
    assert calls["nvmlDeviceGetTemperature", "0"] in (len(documents), rounds)


def test_a_snapshot_asks_once_too(pretend: Pretend, program: Program, call_log: Path) -> None:
    env = pretend("h100x8") | {"FAKE_CALL_LOG": str(call_log)}

    assert program("snapshot", env=env).code == 0

    calls = calls_in(call_log)
    assert calls["nvmlInitWithFlags", "-"] == 1
    assert {calls["nvmlDeviceGetUUID", str(gpu)] for gpu in range(8)} == {1}
    assert calls["cuInit", "-"] == 1


@pytest.mark.parametrize("command", ["list", "snapshot"])
def test_nothing_on_the_machine_is_changed(
    pretend: Pretend, program: Program, call_log: Path, command: str
) -> None:
    env = pretend("a100-mig") | {"FAKE_CALL_LOG": str(call_log)}

    assert program(command, "--json", env=env).code == 0

    names = {name for name, _ in calls_in(call_log)}
    assert names
    changing = ("Set", "Reset", "Clear", "Create", "Destroy", "Modify", "Freeze", "Register")
    assert not [name for name in names if any(word in name for word in changing)]


def asleep(gpus: int, wake_ms: int) -> tuple[Machine, dict[str, str]]:
    """Return a machine whose GPUs sleep, and the variable that says how long each takes to wake."""
    machine = load_machine("h100x8").with_gpus(gpus)
    for index in range(gpus):
        machine = machine.with_gpu(index, persistence_mode=False)
    return machine, {"FAKE_WAKE_MS": str(wake_ms)}


BY_BUS = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}


@pytest.mark.parametrize(
    ("machine", "variables", "times"),
    [
        # The rules are certain: nothing is started that `list` does not start.
        ("t4", {}, 0),
        ("h100x8", BY_BUS, 0),
        ("h100x8", BY_BUS | {"CUDA_VISIBLE_DEVICES": "3,0"}, 0),
        # CUDA's own order decides, or the rules leave a question.
        ("h100x8", {}, 1),
        ("mixed-order", {}, 1),
        ("a100-mig", BY_BUS, 1),
        ("gpu-lost", BY_BUS, 1),
    ],
)
@pytest.mark.parametrize(
    "words", [("place", "/gpu:0", "--no-claim"), ("memlimit", "30%")], ids=" ".join
)
def test_cuda_starts_once_and_only_where_it_decides(
    pretend: Pretend,
    program: Program,
    call_log: Path,
    machine: str,
    variables: dict[str, str],
    times: int,
    words: tuple[str, ...],
) -> None:
    env = pretend(machine) | {"FAKE_CALL_LOG": str(call_log)} | variables

    program(*words, env=env)

    calls = calls_in(call_log)
    assert calls["nvmlInitWithFlags", "-"] == 1
    assert calls["cuInit", "-"] == times


@pytest.mark.parametrize(("machine", "times"), [("t4", 0), ("h100x8", 1), ("mixed-order", 1)])
def test_an_index_needs_no_second_answer_of_cuda(
    pretend: Pretend, program: Program, call_log: Path, machine: str, times: int
) -> None:
    env = pretend(machine) | {"FAKE_CALL_LOG": str(call_log)}

    ended = program("place", "/gpu:0", "--no-claim", "--format", "index", env=env)

    assert (ended.code, ended.text) == (0, "0\n")
    assert calls_in(call_log)["cuInit", "-"] == times


@pytest.mark.parametrize("machine", ["t4", "h100x8"])
def test_a_proof_shares_cudas_answer_with_the_plan(
    pretend: Pretend, program: Program, call_log: Path, machine: str
) -> None:
    env = pretend(machine) | {"FAKE_CALL_LOG": str(call_log)}

    program("memlimit", "30%", "--verify-with", "cupy", env=env)  # which is not installed

    assert calls_in(call_log)["cuInit", "-"] == 1


@pytest.mark.parametrize("words", [("place", "/gpu:0", "--no-claim"), ("memlimit", "30%")])
def test_cuda_starts_beside_nvml(
    pretend: Pretend, program: Program, call_log: Path, words: tuple[str, ...]
) -> None:
    """NVML does not get beyond the last GPU, and CUDA has been asked all the same."""
    env = pretend("h100x8", hang=["nvmlDeviceGetHandleByIndex_v2 gpu=7"])
    call_log.touch()

    with program.start(
        *words, "--deadline", "600", env=env | {"FAKE_CALL_LOG": str(call_log)}
    ) as process:
        wait_until(lambda: ("cuInit", "-") in calls_in(call_log) or process.poll() is not None)
        assert process.poll() is None
        process.terminate()
        process.communicate()


def test_sleeping_gpus_lengthen_the_quick_deadline(pretend: Pretend, program: Program) -> None:
    # 3.6 s, of the 17 that eight GPUs get, not of the three that would do for those awake.
    machine, waking = asleep(8, 450)

    ended = program("detect", "--quick", "-v", env=pretend(machine) | waking)

    assert ended.code == 0
    assert "8 GPUs" in ended.text


def test_completion_does_not_wait_for_sleeping_gpus(
    pretend: Pretend, program: Program, call_log: Path
) -> None:
    machine, waking = asleep(8, 2000)
    env = pretend(machine) | waking | {COMPLETING: "fish", "FAKE_CALL_LOG": str(call_log)}

    ended = program("--", "place", "/g", env=env)

    assert (ended.code, ended.said) == (0, "")
    # It has a second for the GPUs, of which each takes two.
    calls = call_log.read_text(encoding="ascii").splitlines()
    assert "nvmlDeviceGetHandleByIndex_v2 0" in calls
    assert "nvmlDeviceGetHandleByIndex_v2 7" not in calls
