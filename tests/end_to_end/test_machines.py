"""`gpucheck list` on whole machines: many GPUs, lost ones, MIG, old and hung drivers."""

from __future__ import annotations

import os
import signal
import subprocess
import textwrap
from pathlib import Path
from typing import Any

import pytest

from gpucheck.drivers.live import LiveProbes
from tests.architecture.house import ROOT
from tests.end_to_end.conftest import Pretend, Program, end_session
from tests.end_to_end.documents import assert_document, only_document
from tests.end_to_end.sessions import living, until_nobody_lives
from tests.fakes.machine import Machine, Process, load_machine, machine_names
from tests.hang_watch import wait_until

ANSWERING = (
    "a100-mig", "busy", "gb10", "geforce", "gpu-lost", "h100x8", "jetson-thor", "mixed-order",
    "old-driver", "p2p-bridge", "t4", "wsl2",
)  # fmt: skip
NOT_ANSWERING = {
    "no-driver": (4, "nvml-library-not-found"),
    "container-without-gpus": (4, "nvml-library-not-found"),
    "driver-not-loaded": (4, "nvml-driver-not-loaded"),
    "version-mismatch": (4, "nvml-version-mismatch"),
    "hung": (3, "nvml-driver-not-answering"),
    "hung-gpu": (3, "nvml-driver-not-answering"),
}


def test_every_machine_is_tried() -> None:
    assert {*ANSWERING, *NOT_ANSWERING} == set(machine_names())


@pytest.mark.parametrize("name", ANSWERING)
def test_readings_are_those_of_the_machine(pretend: Pretend, program: Program, name: str) -> None:
    machine = load_machine(name)

    ended = program("list", "--json", "--processes", env=pretend(machine))

    document = ended.document()
    assert ended.code == 0
    rows = document["result"]["gpus"]
    assert [row["index"] for row in rows] == list(range(len(machine.gpus)))
    for row, gpu in zip(rows, machine.gpus, strict=True):
        if row["state"] == "lost":
            continue
        assert row["uuid"] == gpu.uuid
        assert row["name"] == gpu.name
        assert row["pci_bus_id"] == gpu.pci_bus_id
        assert row["serial"] == gpu.serial
        assert row["compute_capability"] == gpu.compute_capability
        shared = name in ("gb10", "jetson-thor")
        total = machine.host.memory_total_kib << 10 if shared else gpu.memory_total_bytes
        assert row["memory_total_bytes"] == total
        assert row["memory_source"] == ("system" if shared else "driver")
        if shared:
            assert row["memory_free_bytes"] == machine.host.memory_available_kib << 10
            assert row["memory_used_bytes"] == total - row["memory_free_bytes"]
        assert row["temperature_c"] == gpu.temperature_c
        assert row["power_w"] == (None if gpu.power_mw is None else gpu.power_mw / 1000)
        assert row["ecc_mode"] == gpu.ecc_mode
        assert row["compute_mode"] == gpu.compute_mode
        assert row["persistence_mode"] == gpu.persistence_mode
        assert row["pcie"]["generation"] == gpu.pcie_generation
        assert row["pcie"]["width_max"] == gpu.pcie_width_max
        # WSL has no NVIDIA device in sysfs: there the driver tells it.
        assert row["numa_node"] == gpu.numa_node
    assert document["host"]["name"] == name
    assert document["host"]["driver_version"] == machine.driver.version
    cuda = machine.driver.cuda_version
    assert document["host"]["cuda_driver_version"] == f"{cuda // 1000}.{cuda % 1000 // 10}"


@pytest.mark.parametrize("name", NOT_ANSWERING)
def test_no_driver_that_answers_is_an_answer(pretend: Pretend, program: Program, name: str) -> None:
    code, error = NOT_ANSWERING[name]

    ended = program("list", "--json", env=pretend(name))

    document = ended.document()
    assert (ended.code, document["error"]["code"]) == (code, error)
    assert document["error"]["remedy"] == ["Run: gpucheck detect"]
    if name != "hung-gpu":
        assert document["result"]["gpus"] == []
    # One sentence on stderr, and the next step.
    first, second, *warnings = ended.said.splitlines()
    assert first == f"gpucheck: {document['error']['message']}"
    assert second == "  Run: gpucheck detect"
    assert all(line.startswith("gpucheck: warning: ") for line in warnings)


@pytest.mark.parametrize("name", ["no-driver", "hung"])
def test_a_table_without_gpus_says_so_on_stderr(
    pretend: Pretend, program: Program, name: str
) -> None:
    code, _ = NOT_ANSWERING[name]

    ended = program("list", env=pretend(name))

    assert ended.code == code
    # Nobody knows how many GPUs there are behind a driver that hangs.
    assert {"no-driver": "no GPU listed", "hung": "GPUs not known"}[name] in ended.text
    assert "The GPUs cannot be listed: " in ended.said
    assert "Run: gpucheck detect" in ended.said


@pytest.mark.parametrize("gpus", [8, 64])
def test_many_gpus(pretend: Pretend, program: Program, gpus: int) -> None:
    env = pretend("h100x8", gpus=gpus)

    document = program("list", "--json", env=env).document()
    table = program("list", env=env)

    rows = document["result"]["gpus"]
    assert [row["cuda_index"] for row in rows] == list(range(gpus))
    assert len({row["uuid"] for row in rows}) == gpus
    assert len({row["pci_bus_id"] for row in rows}) == gpus
    # One line each, and at most a few below them, however many GPUs there are.
    assert gpus + 2 <= len(table.text.splitlines()) <= gpus + 6
    assert f"{gpus} GPUs · {gpus} visible to CUDA" in table.text


@pytest.mark.parametrize("command", ["list", "snapshot"])
def test_documents_stay_small(pretend: Pretend, program: Program, command: str) -> None:
    ended = program(command, "--json", env=pretend("h100x8"))

    assert ended.code == 0
    assert len(ended.stdout) < {"list": 20_000, "snapshot": 60_000}[command]


def test_a_lost_gpu_keeps_its_row(pretend: Pretend, program: Program) -> None:
    env = pretend("gpu-lost")

    ended = program("list", "--json", env=env)
    table = program("list", env=env)

    document = ended.document()
    assert ended.code == 0
    assert document["status"] == "warn"
    states = [row["state"] for row in document["result"]["gpus"]]
    assert states == ["ok", "ok", "lost", "ok"]
    lost = document["result"]["gpus"][2]
    assert "fallen off the bus" in lost["error"]
    assert lost["uuid"] is None
    assert "(NVML error 15)" in lost["unavailable"]["uuid"]
    notices = [notice["code"] for notice in document["warnings"]]
    assert notices == ["gpu-lost", "cuda-order-unknown"]
    for row in document["result"]["gpus"]:
        assert (row["cuda_index"], row["visible"]) == (None, None)
        assert "visible" in row["unavailable"]
    assert "LOST" in table.text
    assert "GPU 2: the GPU has fallen off the bus" in table.text
    assert program("list", "--json", "--strict", env=env).code == 1


def test_a_gpu_lost_in_mid_reading_keeps_what_was_read(pretend: Pretend, program: Program) -> None:
    env = pretend("h100x8", fail=["nvmlDeviceGetPowerUsage gpu=5 15"])

    row = program("list", "--json", env=env).document()["result"]["gpus"][5]

    assert row["state"] == "lost"
    assert row["temperature_c"] is not None
    assert row["power_w"] is None
    assert row["memory_total_bytes"] is None


def test_mig_instances_are_rows(pretend: Pretend, program: Program) -> None:
    machine = load_machine("a100-mig")
    env = pretend(machine)

    document = program("list", "--json", env=env).document()
    table = program("list", "--processes", env=env).text

    split, whole = document["result"]["gpus"]
    assert split["mig"]["enabled"] is True
    assert [item["uuid"] for item in split["mig"]["instances"]] == [
        instance.uuid for instance in machine.gpus[0].mig
    ]
    assert [item["memory_total_bytes"] for item in split["mig"]["instances"]] == [
        instance.memory_total_bytes for instance in machine.gpus[0].mig
    ]
    assert whole["mig"] == {"enabled": False, "instances": []}
    # With MIG the rules do not decide; this driver shows one instance to a program.
    assert document["result"]["visibility"]["decided_by"] == "driver"
    assert [item["cuda_index"] for item in split["mig"]["instances"]] == [0, None, None]
    assert split["cuda_index"] is None
    assert whole["visible"] is False
    (process,) = split["processes"]
    assert process["mig_uuid"] == machine.gpus[0].mig[1].uuid
    assert table.count("MIG ") >= 3
    for profile in ("3g.20gb", "2g.10gb", "1g.5gb"):
        assert profile in table


def test_mig_without_instances(pretend: Pretend, program: Program) -> None:
    machine = load_machine("a100-mig").with_gpu(0, mig=(), processes=())

    document = program("list", "--json", env=pretend(machine)).document()

    row = document["result"]["gpus"][0]
    assert row["mig"] == {"enabled": True, "instances": []}
    assert row["visible"] is False
    assert "there is no instance" in row["hidden_reason"]


def with_processes(machine: Machine, count: int) -> Machine:
    processes = tuple(
        Process(
            pid=5000 + number,
            name="/usr/bin/python3",
            command=("/usr/bin/python3", "train.py", f"--rank={number}"),
            user="alice",
            uid=1001,
            memory_used_bytes=(number + 1) << 30,
            utilization_sm_percent=number + 1,
        )
        for number in range(count)
    )
    return machine.with_gpu(0, processes=processes)


def test_twelve_processes(pretend: Pretend, program: Program) -> None:
    env = pretend(with_processes(load_machine("h100x8"), 12))

    document = program("list", "--json", env=env).document()
    table = program("list", "--processes", env=env).text

    processes = document["result"]["gpus"][0]["processes"]
    assert [item["pid"] for item in processes] == list(range(5000, 5012))
    assert [item["memory_used_bytes"] >> 30 for item in processes] == list(range(1, 13))
    assert [item["utilization_sm_percent"] for item in processes] == list(range(1, 13))
    assert {item["user"] for item in processes} == {"alice"}
    assert processes[3]["command"] == "/usr/bin/python3 train.py --rank=3"
    assert {item["type"] for item in processes} == {"compute"}
    assert all(f"--rank={number}" in table for number in range(12))


def test_an_old_driver_gives_what_it_has(pretend: Pretend, program: Program) -> None:
    document = program("list", "--json", env=pretend("old-driver")).document()

    row = document["result"]["gpus"][0]
    assert row["state"] == "ok"
    assert row["memory_used_bytes"] == 5_368_709_120
    # The first form of the process list, which newer bindings no longer know.
    (process,) = row["processes"]
    assert (process["pid"], process["memory_used_bytes"]) == (2211, 5_360_320_512)
    assert process["user"] == "dave"
    assert document["result"]["gpus"][1]["processes"] == []
    assert "(NVML error 13)" in row["unavailable"]["architecture"]
    assert "processes" not in row["unavailable"]


# ------------------------------------------------------------------------------ drivers that hang


def test_a_hung_driver_is_inconclusive_within_its_deadline(
    pretend: Pretend, program: Program
) -> None:
    ended = program("list", "--json", "--deadline", "0.5", env=pretend("hung"))

    document = ended.document()
    assert ended.code == 3
    assert "did not answer within 0.5 s" in document["error"]["message"]


def test_a_hung_gpu_leaves_the_other_rows(pretend: Pretend, program: Program) -> None:
    machine = load_machine("hung-gpu")
    env = pretend(machine)

    ended = program("list", "--json", "--processes", "--deadline", "4", env=env)
    table = program("list", "--processes", "--deadline", "4", env=env)

    document = ended.document()
    assert (ended.code, table.code) == (3, 3)
    rows = document["result"]["gpus"]
    assert [row["state"] for row in rows] == ["ok", "error", "ok", "ok"]
    assert [row["temperature_c"] for row in rows] == [34, None, 34, 34]
    assert [row["uuid"] for row in rows if row["uuid"]] == [
        gpu.uuid for gpu in machine.gpus if gpu.index != 1
    ]
    said = "it did not answer in time (deadline 4 s)"
    assert rows[1]["error"] == said
    assert rows[1]["unavailable"]["temperature_c"] == said
    assert rows[1]["unavailable"]["processes"] == said
    assert document["error"]["message"] == (
        "Not every GPU can be listed: GPU 1 did not answer in time (deadline 4 s)."
    )
    # An empty list of what could not be listed is not "nobody".
    assert "No process uses the GPUs that answer." in table.text


def calls_in(log: Path) -> str:
    return log.read_text(encoding="ascii") if log.exists() else ""


def children_of(process: subprocess.Popen[bytes]) -> list[int]:
    path = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    return [int(pid) for pid in path.read_text(encoding="ascii").split()]


@pytest.mark.parametrize("arguments", [("list",), ("list", "--nonsense"), ("snapshot",)])
def test_no_hung_child_is_left_behind(
    pretend: Pretend, program: Program, arguments: tuple[str, ...]
) -> None:
    env = pretend("hung") | {"FAKE_HANG_IGNORES_TERM": "1"}

    with program.start(*arguments, "--deadline", "1", env=env) as process:
        process.communicate()

    until_nobody_lives(process.pid)


#: gpucheck on a kernel that does not let go of the child: SIGKILL has no effect there, neither ours
#: nor the one that the kernel sends for us.
UNKILLABLE = textwrap.dedent(
    """
    import sys
    from gpucheck.drivers import child
    child.START_WORKER = child.START_WORKER.replace(
        "start_child.run", "start_child.end_with_parent = abs; start_child.run"
    )
    child.Child._kill = staticmethod(lambda pid: None)
    from gpucheck.__main__ import main
    main()
    """
)


class StuckProgram(Program):
    """gpucheck where no child can be killed."""

    entry = ("-c", UNKILLABLE)


@pytest.mark.parametrize("format_", ["json", "table"])
def test_a_child_that_cannot_be_killed_is_left(pretend: Pretend, format_: str) -> None:
    stuck = StuckProgram()
    env = pretend("hung") | {"FAKE_HANG_IGNORES_TERM": "1"}
    arguments = ("list", "--format", format_, "--deadline", "0.5")

    with stuck.start(*arguments, env=env) as process:
        try:
            # It ends, and its pipes with it, though the child goes on.
            stdout, stderr = process.communicate()
            assert len(living(process.pid)) == 1
        finally:
            end_session(process.pid)

    assert process.returncode == 3
    assert b"did not answer within 0.5 s" in stderr
    if format_ == "json":
        assert_document(only_document(stdout.decode()), "list", 3)


def test_a_child_that_cannot_be_killed_does_not_stop_a_watch(pretend: Pretend) -> None:
    stuck = StuckProgram()
    arguments = ("list", "--json", "--watch", "0.1", "--deadline", "0.3")

    with stuck.start(*arguments, env=pretend("hung")) as process:
        try:
            assert process.stdout is not None
            codes = [only_document(process.stdout.readline().decode())["exit_code"] for _ in "123"]
            process.send_signal(signal.SIGINT)
            process.wait()
        finally:
            end_session(process.pid)

    assert codes == [3, 3, 3]
    assert process.returncode == 3


# ------------------------------------------------------------------------------ children that die

CRASHING = "int {name}(unsigned flags) {{ (void)flags; return *(volatile int *)0; }}\n"
DRIVER_VERSION = "int cuDriverGetVersion(int *version) { *version = 12000; return 0; }\n"


@pytest.fixture
def crashing(c_compiler: str, tmp_path: Path) -> Any:
    """Return the variables under which a library crashes in one of its functions."""

    def build(library: str, function: str, rest: str = "") -> dict[str, str]:
        source = tmp_path / "crash.c"
        source.write_text(CRASHING.format(name=function) + rest, encoding="ascii")
        command = [c_compiler, "-shared", "-fPIC", "-o", str(tmp_path / library), str(source)]
        subprocess.run(command, check=True)
        return {"LD_LIBRARY_PATH": str(tmp_path)}

    return build


def test_a_child_that_crashes(crashing: Any, program: Program) -> None:
    env = crashing("libnvidia-ml.so.1", "nvmlInitWithFlags")

    ended = program("list", "--json", env=env)

    document = ended.document()
    assert ended.code == 3
    assert document["error"]["code"] == "nvml-child-died"
    assert "was ended by SIGSEGV" in document["error"]["message"]
    assert document["result"]["gpus"] == []


def test_a_library_that_is_none(program: Program, tmp_path: Path) -> None:
    (tmp_path / "libnvidia-ml.so.1").write_bytes(b"")

    ended = program("list", "--json", env={"LD_LIBRARY_PATH": str(tmp_path)})

    assert ended.code == 4
    assert ended.document()["error"]["code"] == "nvml-library-not-found"


def test_a_child_that_dies_on_the_way_keeps_the_rows_before(
    pretend: Pretend, program: Program, call_log: Path
) -> None:
    machine = load_machine("hung-gpu")
    env = pretend(machine) | {"FAKE_CALL_LOG": str(call_log)}

    with program.start("list", "--json", "--deadline", "600", env=env) as process:
        wait_until(lambda: "nvmlDeviceGetTemperature 1" in calls_in(call_log))
        child, *_ = children_of(process)
        os.kill(child, signal.SIGSEGV)
        stdout, _ = process.communicate()

    document = only_document(stdout.decode())
    assert_document(document, "list", 3)
    assert document["error"]["code"] == "nvml-child-died"
    assert document["result"]["gpus"][0]["uuid"] == machine.gpus[0].uuid
    assert [row["state"] for row in document["result"]["gpus"]] == ["ok", *["error"] * 3]


# ---------------------------------------------------------------------------------------- libcuda


def test_a_hung_libcuda_leaves_the_rules(pretend: Pretend, program: Program) -> None:
    env = pretend("h100x8", hang=["cuInit"]) | {"CUDA_VISIBLE_DEVICES": "3,1"}

    ended = program("list", "--json", "--ask-driver", "--deadline", "4", env=env)

    document = ended.document()
    assert ended.code == 0
    visibility = document["result"]["visibility"]
    assert visibility["decided_by"] == "rules"
    ordinals = [row["cuda_index"] for row in document["result"]["gpus"]]
    assert ordinals == [None, 1, None, 0, None, None, None, None]
    (notice,) = document["warnings"]
    assert notice["code"] == "cuda-driver-silent"
    assert "the CUDA driver did not answer within 4 s" in notice["message"]


def test_a_hung_libcuda_leaves_an_open_question_open(pretend: Pretend, program: Program) -> None:
    env = pretend("mixed-order", hang=["cuInit"])

    ended = program("list", "--json", "--deadline", "4", env=env)

    document = ended.document()
    assert ended.code == 0
    assert [row["cuda_index"] for row in document["result"]["gpus"]] == [None, None]
    assert [row["visible"] for row in document["result"]["gpus"]] == [None, None]
    assert [notice["code"] for notice in document["warnings"]] == ["cuda-order-unknown"]
    for row in document["result"]["gpus"]:
        assert "did not answer" in row["unavailable"]["cuda_index"]


class HangingProgram(Program):
    """gpucheck in a process of its own, by the clock that forks of the command server have."""

    entry = (
        "-c",
        "from tests import hang_clock; hang_clock.install();"
        " from gpucheck.__main__ import main; main()",
    )


@pytest.mark.parametrize("arguments", [("list", "--ask-driver"), ("snapshot",)])
def test_no_hung_libcuda_is_left_behind(
    pretend: Pretend, call_log: Path, arguments: tuple[str, ...]
) -> None:
    env = pretend("t4", hang=["cuInit"]) | {
        "FAKE_HANG_IGNORES_TERM": "1",
        "FAKE_CALL_LOG": str(call_log),
    }

    with HangingProgram().start(*arguments, "--json", env=env, cwd=ROOT) as process:
        process.communicate()

    assert "cuInit" in calls_in(call_log)
    until_nobody_lives(process.pid)
    assert process.returncode == 0


def test_a_libcuda_that_crashes(crashing: Any, pretend: Pretend, program: Program) -> None:
    env = pretend("mixed-order")
    crash = crashing("libcuda.so.1", "cuInit", DRIVER_VERSION)["LD_LIBRARY_PATH"]
    env["LD_LIBRARY_PATH"] = f"{crash}:{env['LD_LIBRARY_PATH']}"

    document = program("list", "--json", env=env).document()

    (notice,) = document["warnings"]
    assert "the process that asks the CUDA driver was ended by SIGSEGV" in notice["message"]


def test_where_sys_is_masked_the_driver_tells_what_is_near(
    pretend: Pretend, program: Program, tmp_path: Path
) -> None:
    machine = load_machine("h100x8")
    env = pretend(machine, tree=False) | {"GPUCHECK_ROOT": str(tmp_path)}

    rows = program("list", "--json", env=env).document()["result"]["gpus"]

    assert [row["numa_node"] for row in rows] == [gpu.numa_node for gpu in machine.gpus]
    assert [row["cpu_affinity"] for row in rows] == [gpu.cpu_affinity for gpu in machine.gpus]


def test_the_condition_is_read_of_those_cards_and_of_nothing_more(
    pretend: Pretend, monkeypatch: pytest.MonkeyPatch, call_log: Path
) -> None:
    machine = load_machine("h100x8").with_gpu(2, ecc_uncorrected_volatile=7)
    lost = machine.broken(fail=["nvmlDeviceGetRemappedRows* gpu=3 15"])
    for key, value in (pretend(lost) | {"FAKE_CALL_LOG": str(call_log)}).items():
        monkeypatch.setenv(key, value)
    probes = LiveProbes(deadline_s=600.0)
    try:
        reading = probes.health([2, 3])
    finally:
        probes.close()

    assert reading.failure is None
    bad, gone = reading.gpus
    assert (bad.index, bad.ecc_uncorrected_volatile, bad.failure) == (2, 7, None)
    assert gone.failure is not None
    assert gone.failure.library_code == 15
    calls = [line.split() for line in call_log.read_text(encoding="ascii").splitlines()]
    assert {gpu for _, gpu in calls} <= {"-", "2", "3"}
    # The handle, the bindings' two forms of some, and a reading each.
    assert len([name for name, gpu in calls if gpu == "2"]) <= 18


@pytest.mark.parametrize("words", [(), ("--json",)], ids=str)
def test_without_a_driver_there_is_nothing_to_watch(
    pretend: Pretend, program: Program, words: tuple[str, ...]
) -> None:
    ended = program("list", "--watch", "0.1", *words, env=pretend("no-driver"))

    assert ended.code == 4
    if words:
        assert ended.document()["error"]["code"] == "nvml-library-not-found"
    else:
        assert ended.said.count("The GPUs cannot be listed") == 1


def test_where_every_card_is_lost_the_answer_is_a_bad_one(
    pretend: Pretend, program: Program
) -> None:
    env = pretend("h100x8", gpus=2, fail=["* 15"])

    ended = program("list", "--json", env=env)

    assert ended.code == 1
    document = ended.document()
    assert [row["state"] for row in document["result"]["gpus"]] == ["lost", "lost"]
    assert document["error"]["code"] == "no-gpu-answers"
    assert "None of the 2 GPUs answers" in document["error"]["message"]
    assert document["status"] == "fail"


def test_a_limit_of_shared_memory_is_one_of_the_systems(pretend: Pretend, program: Program) -> None:
    machine = load_machine("gb10")
    env = pretend(machine)

    document = program("memlimit", "30%", "--json", env=env).document("memlimit")
    table = program("list", env=env)

    (limit,) = document["result"]["gpus"]
    total = machine.host.memory_total_kib << 10
    assert limit["memory_total_bytes"] == total
    assert limit["limit_bytes"] == total * 30 // 100
    assert limit["memory_source"] == "system"
    assert [notice["code"] for notice in document["warnings"]] == ["memory-shared"]
    assert "GPU 0 shares the CPU's memory" in table.text
