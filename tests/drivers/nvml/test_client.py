"""NVML binding, its child as a script, and the parent's reading of the child's lines."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest

from gpucheck.drivers.child import Child, ChildDiedError
from gpucheck.drivers.interface import NvmlQuestion
from gpucheck.drivers.nvml import nvml_gpu_child
from gpucheck.drivers.nvml import start as nvml_start
from gpucheck.drivers.nvml.client import MOST_GIVEN_UP, NvmlSession, assemble
from gpucheck.drivers.nvml.nvml_child import Session
from gpucheck.drivers.nvml.nvml_door_child import REASONS, Door, Refusal
from gpucheck.drivers.nvml.nvml_gpu_child import NO_INSTANCE, GpuReader, first_forms, kernel_bus_id
from gpucheck.drivers.nvml.nvml_topology_child import TopologyReader
from gpucheck.drivers.readings import GpuReading, NvmlReading, ProbeFailure
from tests.conftest import scrubbed_environment

EVERYTHING = NvmlQuestion(topology=True, process_utilization=True)


class FakeNvml(SimpleNamespace):
    """A binding whose functions are plain values, errors, or functions of the arguments."""

    NVMLError = pynvml.NVMLError
    NVML_ERROR_FUNCTION_NOT_FOUND = pynvml.NVML_ERROR_FUNCTION_NOT_FOUND

    def __init__(self, **answers: Any) -> None:
        super().__init__()
        self.calls: list[str] = []
        for name, answer in answers.items():
            setattr(self, name, self._function(name, answer))

    def _function(self, name: str, answer: Any) -> Any:
        def call(*arguments: Any) -> Any:
            self.calls.append(name)
            found = answer(*arguments) if callable(answer) else answer
            if isinstance(found, Exception):
                raise found
            return found

        return call


def error(code: int) -> pynvml.NVMLError:
    return pynvml.NVMLError(code)


# ------------------------------------------------------------------------------------------- door


def test_every_code_of_the_binding_has_a_reason() -> None:
    codes = {
        value
        for name, value in vars(pynvml).items()
        if name.startswith("NVML_ERROR_") and isinstance(value, int)
    }

    assert codes <= set(REASONS)
    slugs = [slug for slug, _ in REASONS.values()]
    assert len(set(slugs)) == len(slugs)


@pytest.mark.parametrize(
    ("failure", "slug", "code", "reason"),
    [
        (error(3), "not-supported", 3, "not supported by this GPU (NVML 3)"),
        (error(15), "gpu-is-lost", 15, None),
        (error(4711), "unlisted", 4711, "NVML returned an unknown code (NVML 4711)"),
        (UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad"), "not-utf8", None,
         "the driver's text is not UTF-8"),
        (ValueError("x"), "binding-failed", None, "the binding failed with ValueError"),
        (ZeroDivisionError(), "binding-failed", None, None),
        (OSError(), "binding-failed", None, None),
        (AttributeError("x"), "binding-failed", None, None),
    ],
)  # fmt: skip
def test_every_failure_of_a_call_is_a_refusal(
    failure: Exception, slug: str, code: int | None, reason: str | None
) -> None:
    door = Door(FakeNvml(nvmlDeviceGetName=failure))

    with pytest.raises(Refusal) as caught:
        door.ask("nvmlDeviceGetName", "handle")

    refusal = caught.value
    assert (refusal.slug, refusal.code, refusal.function) == (slug, code, "nvmlDeviceGetName")
    assert reason is None or refusal.reason() == reason
    assert door.calls == 1


def test_a_function_that_the_binding_lacks() -> None:
    door = Door(FakeNvml())

    with pytest.raises(Refusal) as caught:
        door.ask("nvmlDeviceGetSomethingNew")

    assert caught.value.slug == "binding-too-old"
    assert door.calls == 0


@pytest.mark.parametrize(
    ("code", "asked"),
    [
        (13, ["new", "old", "old"]),  # the library lacks it: never asked again
        (25, ["new", "old", "old"]),
        (3, ["new", "old", "new", "old"]),  # this GPU lacks it: another may have it
        (999, ["new", "new"]),  # it failed: the older form would not help
    ],
)
def test_the_newest_form_is_asked_first_and_remembered(code: int, asked: list[str]) -> None:
    nvml = FakeNvml(new=error(code), old=7)
    door = Door(nvml)
    forms = (("new", ()), ("old", ()))

    for _ in range(2):
        try:
            door.ask_newest("key", forms, "handle")
        except Refusal as refusal:
            if refusal.code != 999:
                raise

    assert nvml.calls == asked


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("00000000:1A:00.0", "0000:1a:00.0"),
        ("0000:1A:00.0", "0000:1a:00.0"),
        ("00010000:0F:00.0", "10000:0f:00.0"),
        ("0000000A:FF:1F.7", "000a:ff:1f.7"),
    ],
)
def test_bus_ids_in_the_kernels_form(given: str, expected: str) -> None:
    assert kernel_bus_id(given) == expected


# ---------------------------------------------------------------------------------------- readings


def read(nvml: FakeNvml) -> dict[str, Any]:
    nvml.nvmlDeviceGetHandleByIndex = lambda index: "handle"
    door = Door(nvml)
    door.added.update(first_forms(nvml))
    return GpuReader(door, nvml, Refusal, 0).read(process_utilization=True)


@pytest.mark.parametrize(
    ("function", "answer", "field", "value"),
    [
        ("nvmlDeviceGetPowerUsage", 71_500, "power_w", 71.5),
        ("nvmlDeviceGetPowerUsage", 0, "power_w", 0.0),
        ("nvmlDeviceGetFanSpeed", 0, "fan_percent", 0),
        ("nvmlDeviceGetPersistenceMode", 0, "persistence_mode", False),
        ("nvmlDeviceGetPersistenceMode", 1, "persistence_mode", True),
        ("nvmlDeviceGetEccMode", [0, 1], "ecc_mode", False),
        ("nvmlDeviceGetMigMode", [0, 1], "mig_enabled", False),
        ("nvmlDeviceGetPerformanceState", 0, "performance_state", 0),
        ("nvmlDeviceGetArchitecture", 9, "architecture", "Hopper"),
        ("nvmlDeviceGetArchitecture", 99, "architecture", "unknown (99)"),
        ("nvmlDeviceGetComputeMode", 3, "compute_mode", "exclusive-process"),
        ("nvmlDeviceGetComputeMode", 9, "compute_mode", "unknown (9)"),
        ("nvmlDeviceGetCudaComputeCapability", (12, 1), "compute_capability", "12.1"),
    ],
)
def test_answers_become_values(function: str, answer: Any, field: str, value: Any) -> None:
    document = read(FakeNvml(**{function: answer}))

    assert document[field] == value
    assert field not in document["unavailable"]


@pytest.mark.parametrize(
    ("function", "answer", "field"),
    [
        ("nvmlDeviceGetPerformanceState", 32, "performance_state"),  # NVML's own "unknown"
        ("nvmlDeviceGetPowerUsage", "much", "power_w"),
        ("nvmlDeviceGetCudaComputeCapability", (9,), "compute_capability"),
        ("nvmlDeviceGetEccMode", [], "ecc_mode"),
        ("nvmlDeviceGetPciInfo", SimpleNamespace(busId="?", pciDeviceId=1), "pci_bus_id"),
        ("nvmlDeviceGetPciInfo", SimpleNamespace(busId="0000:01:00.0"), "pci_device_id"),
        ("nvmlDeviceGetUtilizationRates", None, "utilization_gpu_percent"),
    ],
)
def test_answers_of_a_strange_shape_are_gaps(function: str, answer: Any, field: str) -> None:
    document = read(FakeNvml(**{function: answer}))

    assert document.get(field) is None
    assert document["unavailable"][field]
    assert document["failure"] is None


COLD = (1 << 32) - 5


@pytest.mark.parametrize(("answer", "value"), [(0, 0), (41, 41), (COLD, -5), ((1 << 32) - 60, -60)])
def test_a_temperature_may_be_below_zero(answer: int, value: int) -> None:
    document = read(FakeNvml(nvmlDeviceGetTemperature=answer))

    assert document["temperature_c"] == value


GIB = 1 << 30


def memory(total: int, used: int, free: int) -> SimpleNamespace:
    return SimpleNamespace(total=total * GIB, used=used * GIB, free=free * GIB)


@pytest.mark.parametrize(
    ("function", "answer", "fields", "said"),
    [
        ("nvmlDeviceGetTemperature", 1 << 31, ["temperature_c"], "-2147483648 C"),
        ("nvmlDeviceGetTemperature", 201, ["temperature_c"], "201 C"),
        (
            "nvmlDeviceGetUtilizationRates",
            SimpleNamespace(gpu=250, memory=3),
            ["utilization_gpu_percent", "utilization_memory_percent"],
            "250 %",
        ),
        (
            "nvmlDeviceGetMemoryInfo",
            memory(80, 160, 0),
            ["memory_total_bytes", "memory_used_bytes", "memory_free_bytes"],
            "171798691840 bytes used",
        ),
        ("nvmlDeviceGetMemoryInfo", memory(80, 0, 81), ["memory_free_bytes"], "free of"),
    ],
)
def test_what_cannot_be_is_not_passed_on(
    function: str, answer: Any, fields: list[str], said: str
) -> None:
    document = read(FakeNvml(**{function: answer}))

    assert [document.get(field) for field in fields] == [None] * len(fields)
    assert all(said in document["unavailable"][field] for field in fields)
    assert all("which is impossible" in document["unavailable"][field] for field in fields)
    assert document["failure"] is None


@pytest.mark.parametrize("code", [15, 16])
def test_a_gpu_that_is_gone_is_asked_no_more(code: int) -> None:
    nvml = FakeNvml(nvmlDeviceGetUUID="GPU-1", nvmlDeviceGetName=error(code), nvmlDeviceGetSerial=1)

    document = read(nvml)

    assert document["uuid"] == "GPU-1"
    assert document["failure"]["library_code"] == code
    assert nvml.calls == ["nvmlDeviceGetUUID", "nvmlDeviceGetName"]
    assert document["unavailable"]["memory_total_bytes"].endswith(f"(NVML {code})")


def process(pid: int, **values: Any) -> SimpleNamespace:
    return SimpleNamespace(**{"pid": pid, "usedGpuMemory": 1, **values})


def lists(**answers: Any) -> dict[str, Any]:
    """Return the three process lists in their newest form, empty by default."""
    names = {"compute": "Compute", "graphics": "Graphics", "mps": "MPSCompute"}
    return {
        f"nvmlDeviceGet{word}RunningProcesses_v3": answers.get(kind, [])
        for kind, word in names.items()
    }


def test_processes_of_all_kinds() -> None:
    nvml = FakeNvml(
        **lists(
            compute=[process(1, gpuInstanceId=NO_INSTANCE, computeInstanceId=NO_INSTANCE)],
            graphics=[process(2, usedGpuMemory=None)],
            mps=[process(3, gpuInstanceId=5, computeInstanceId=0)],
        )
    )

    first, second, third = read(nvml)["processes"]

    assert (first["type"], first["gpu_instance_id"], first["compute_instance_id"]) == (
        "compute", None, None,
    )  # fmt: skip
    assert (second["type"], second["memory_used_bytes"]) == ("graphics", None)
    assert (third["gpu_instance_id"], third["compute_instance_id"]) == (5, 0)


@pytest.mark.parametrize(
    ("answers", "pids", "reason"),
    [
        ({"compute": [process(1)], "graphics": error(3), "mps": error(13)}, [1], None),
        ({"compute": error(3), "graphics": [process(2)]}, [2],
         "not supported by this GPU (NVML 3)"),
        ({"compute": [process(1)], "graphics": error(999)}, [1],
         "the graphics processes: the driver reported an unknown internal error (NVML 999)"),
        ({"compute": error(4), "mps": error(999)}, [], "no permission to read it (NVML 4)"),
    ],
)  # fmt: skip
def test_a_list_that_is_refused_leaves_the_others(
    monkeypatch: pytest.MonkeyPatch, answers: dict[str, Any], pids: list[int], reason: str | None
) -> None:
    def not_in_the_library(*_: object) -> None:
        raise error(13)

    monkeypatch.setattr(nvml_gpu_child, "_list_v1", not_in_the_library)

    document = read(FakeNvml(**lists(**answers)))

    assert [item["pid"] for item in document["processes"]] == pids
    assert document["unavailable"].get("processes") == reason


def test_the_newest_sample_of_a_process_counts() -> None:
    samples = [
        SimpleNamespace(pid=1, timeStamp=10, smUtil=50),
        SimpleNamespace(pid=1, timeStamp=30, smUtil=0),
        SimpleNamespace(pid=1, timeStamp=20, smUtil=99),
        SimpleNamespace(pid=2, timeStamp=5, smUtil=7),
    ]

    found = read(FakeNvml(nvmlDeviceGetProcessUtilization=samples))
    nothing = read(FakeNvml(nvmlDeviceGetProcessUtilization=error(6)))

    assert found["process_utilization"] == {"1": 0, "2": 7}
    assert nothing["process_utilization"] == {}
    assert "process_utilization" not in nothing["unavailable"]


def test_empty_mig_slots_do_not_end_the_list() -> None:
    def by_slot(handle: str, slot: int) -> Any:
        return {0: error(6), 1: "mig1", 2: error(2), 3: "mig3", 4: error(999), 5: "mig5"}[slot]

    nvml = FakeNvml(
        nvmlDeviceGetMigMode=[1, 1],
        nvmlDeviceGetMaxMigDeviceCount=6,
        nvmlDeviceGetMigDeviceHandleByIndex=by_slot,
        nvmlDeviceGetUUID=lambda handle: f"MIG-{handle}",
    )

    document = read(nvml)

    assert [item["uuid"] for item in document["mig_instances"]] == ["MIG-mig1", "MIG-mig3"]
    assert "(NVML 999)" in document["unavailable"]["mig_instances"]


def child_session(nvml: FakeNvml) -> Session:
    return Session(Door(nvml), nvml, Refusal)


def test_system_versions_may_be_missing_but_the_count_may_not() -> None:
    nvml = FakeNvml(nvmlSystemGetDriverVersion=error(999), nvmlDeviceGetCount=3)

    system = child_session(nvml).read_system()
    with pytest.raises(Refusal):
        child_session(FakeNvml(nvmlDeviceGetCount=error(15))).read_system()

    assert system["gpu_count"] == 3
    assert "(NVML 999)" in system["unavailable"]["driver_version"]


def read_topology(nvml: FakeNvml, handles: list[Any]) -> dict[str, Any]:
    """Read the topology as the child does."""
    return TopologyReader(Door(nvml), Refusal, kernel_bus_id, handles).read()


def test_topology_of_a_gpu_that_does_not_answer() -> None:
    lost = Refusal(*("nvmlDeviceGetUUID", 15, "gpu-is-lost", "gone"))
    nvml = FakeNvml(nvmlDeviceGetTopologyCommonAncestor=50, nvmlDeviceGetNvLinkState=error(2))

    found = read_topology(nvml, ["a", lost, "c"])

    assert [(pair["from"], pair["to"], pair["level"]) for pair in found["pairs"]] == [
        (0, 1, None), (0, 2, 50), (1, 2, None),
    ]  # fmt: skip
    assert found["pairs"][0]["unavailable"] == "gone (NVML 15)"
    assert found["nvlinks"] == []


@pytest.mark.parametrize(
    ("answers", "link"),
    [
        ({"Type": 2, "PciInfo": SimpleNamespace(busId=b"00000000:05:00.0")},
         {"active": True, "remote_type": "switch", "remote_pci_bus_id": "0000:05:00.0"}),
        ({"Type": error(13), "PciInfo": SimpleNamespace(busId="00000000:05:00.0")},
         {"active": True, "remote_type": None, "remote_pci_bus_id": "0000:05:00.0"}),
        ({"Type": 2, "PciInfo": error(999)},
         {"active": True, "remote_type": "switch", "remote_pci_bus_id": None}),
        ({"Type": 0, "PciInfo": SimpleNamespace(busId="nonsense")},
         {"active": True, "remote_type": "gpu", "remote_pci_bus_id": None,
          "unavailable": "the driver's answer could not be read (ValueError)"}),
    ],
)  # fmt: skip
def test_the_other_end_of_a_link(answers: dict[str, Any], link: dict[str, Any]) -> None:
    nvml = FakeNvml(
        nvmlDeviceGetNvLinkState=lambda handle, number: 1 if number == 0 else error(2),
        nvmlDeviceGetNvLinkRemoteDeviceType=answers["Type"],
        nvmlDeviceGetNvLinkRemotePciInfo=answers["PciInfo"],
    )

    found = read_topology(nvml, ["a"])

    assert found["nvlinks"] == [{"gpu": 0, "link": 0, **link}]


# ------------------------------------------------------------------------------ the child's script


def ask_script(directory: str, cwd: Path, **environment: str) -> dict[str, Any]:
    """Run the child as the parent does, where NVML cannot start; return the failure."""
    finished = subprocess.run(
        [sys.executable, "-I", "-S", nvml_start.SCRIPT, directory],
        input="{}\n",
        capture_output=True,
        encoding="ascii",
        cwd=cwd,
        env=scrubbed_environment(environment),
        timeout=60,
        check=True,
    )
    found: dict[str, Any] = json.loads(finished.stdout.splitlines()[-1])
    assert found["part"] == "failure"
    return found


PLANTED = "open('taken', 'w')\nclass NVMLError(Exception): pass\n"


def test_nothing_is_taken_from_the_current_directory(tmp_path: Path) -> None:
    (tmp_path / "pynvml.py").write_text(PLANTED, encoding="ascii")

    said = ask_script("", tmp_path)

    assert said["code"] == "binding-missing"
    assert not (tmp_path / "taken").exists()


@pytest.mark.parametrize("content", ["raise ImportError", "print 'python 2'", "1 / 0"])
def test_a_binding_that_cannot_be_imported(tmp_path: Path, content: str) -> None:
    folder = tmp_path / "site"
    folder.mkdir()
    (folder / "pynvml.py").write_text(content, encoding="ascii")

    said = ask_script(str(folder), tmp_path)

    assert said["code"] == "binding-missing"
    assert "cannot be imported" in said["message"]


def test_a_driver_that_writes_to_stdout_does_not_spoil_the_answer(tmp_path: Path) -> None:
    folder = tmp_path / "site"
    folder.mkdir()
    noisy = "import os\nclass NVMLError(Exception): value = 9\n"
    noisy += "def nvmlInit():\n    print('hello', flush=True)\n    os.write(1, b'noise')\n"
    noisy += "    raise NVMLError\n"
    (folder / "pynvml.py").write_text(noisy, encoding="ascii")

    said = ask_script(str(folder), tmp_path)

    assert (said["code"], said["library_code"]) == ("driver-not-loaded", 9)


@pytest.mark.parametrize("form", ["pynvml.py", "pynvml"])
def test_the_binding_is_found_on_the_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "full").mkdir()
    if form.endswith(".py"):
        (tmp_path / "full" / form).touch()
    else:
        (tmp_path / "full" / form).mkdir()
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "pynvml.py").touch()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setattr(sys, "path", ["", str(tmp_path / "empty"), str(tmp_path / "full")])

    assert nvml_start.binding_directory() == str(tmp_path / "full")
    monkeypatch.setattr(sys, "path", ["", str(tmp_path / "empty")])
    assert nvml_start.binding_directory() == ""


def test_a_child_started_early_is_taken_once_or_discarded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[FakeChild] = []

    def start() -> FakeChild:
        made.append(FakeChild([]))
        return made[-1]

    monkeypatch.setattr(nvml_start, "start", start)
    nvml_start.start_early()
    early = nvml_start.take()
    later = nvml_start.take()
    nvml_start.start_early()
    nvml_start.discard()
    nvml_start.discard()

    assert [early, later] == made[:2]
    assert [child.closed for child in made] == [False, False, True]


def test_an_early_start_that_fails_is_told_when_it_is_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def start() -> Child:
        raise ChildDiedError("could not be started: no memory")

    monkeypatch.setattr(nvml_start, "start", start)
    nvml_start.start_early()

    reading = NvmlSession().read(EVERYTHING, deadline_s=1)

    assert reading.failure == ProbeFailure(
        code="nvml-child-died",
        message="the process that asks NVML could not be started: no memory",
    )


# -------------------------------------------------------------------------------------- the parent


class FakeChild:
    """A child that yields these documents, raises the errors among them, and is silent at None."""

    def __init__(self, script: list[Any]) -> None:
        self._script = iter(script)
        self.asked: list[Any] = []
        self.waits: list[float] = []
        self.closed = False

    def ask(self, request: Any) -> None:
        self.asked.append(request)

    def next_document(self, wait_s: float) -> dict[str, Any] | None:
        self.waits.append(wait_s)
        item = next(self._script)
        if isinstance(item, Exception):
            raise item
        return None if item is None else dict(item)

    def close(self) -> None:
        self.closed = True

    abandon = close


SYSTEM = {"part": "system", "driver_version": "1", "gpu_count": 2, "unavailable": {}}
GPU = {"part": "gpu", "index": 0, "uuid": "GPU-0", "unavailable": {}, "failure": None}
END = {"part": "end", "nvml_calls": 9}


def session(*script: Any) -> tuple[NvmlSession, FakeChild]:
    child = FakeChild(list(script))
    return NvmlSession(child), child  # type: ignore[arg-type]


def test_a_session_asks_as_often_as_it_is_asked() -> None:
    opened, child = session(SYSTEM, GPU, END, SYSTEM, GPU, {"part": "end", "nvml_calls": 18})

    first = opened.read(EVERYTHING, deadline_s=1)
    second = opened.read(NvmlQuestion(), deadline_s=1)

    assert (first.nvml_calls, second.nvml_calls) == (9, 18)
    assert first.gpus == second.gpus == (GpuReading(index=0, uuid="GPU-0", unavailable={}),)
    assert child.asked == [
        {"topology": True, "process_utilization": True, "processes_of": None, "sysfs": ""},
        {"topology": False, "process_utilization": False, "processes_of": None, "sysfs": ""},
    ]
    assert not child.closed


@pytest.mark.parametrize(
    ("trouble", "code", "words"),
    [
        (None, "driver-not-answering", "GPU 1 did not answer in time (deadline 1.5 s)"),
        (ChildDiedError("was ended by SIGSEGV"), "nvml-child-died", "was ended by SIGSEGV"),
    ],
)
def test_what_came_before_the_trouble_is_kept(
    trouble: Exception | None, code: str, words: str
) -> None:
    opened, child = session(SYSTEM, GPU, trouble)

    reading = opened.read(NvmlQuestion(), deadline_s=1.5)

    assert (reading.gpu_count, reading.gpus[0].uuid) == (2, "GPU-0")
    assert reading.failure is not None
    assert reading.failure.code == code
    assert words in reading.failure.message
    assert child.closed


def gpu(index: int) -> dict[str, Any]:
    return GPU | {"index": index, "uuid": f"GPU-{index}"}


def sessions(monkeypatch: pytest.MonkeyPatch, *scripts: list[Any]) -> list[FakeChild]:
    """Let every child that a session takes be the next of these."""
    children = [FakeChild(script) for script in scripts]
    waiting = iter(children)
    monkeypatch.setattr("gpucheck.drivers.nvml.client.take", lambda: next(waiting))
    return children


FOUR = SYSTEM | {"gpu_count": 4}


def test_a_driver_that_does_not_start() -> None:
    opened, child = session(None)

    reading = opened.read(EVERYTHING, deadline_s=1.5)

    assert reading.failure is not None
    assert reading.failure.message == "the NVIDIA driver did not answer within 1.5 s"
    assert child.waits == [pytest.approx(1.5, abs=0.5)]
    assert child.closed


def test_the_gpus_behind_one_that_hangs_are_asked_by_another_child(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pairs = {"part": "topology", "pairs": [], "nvlinks": []}
    first, second = sessions(
        monkeypatch,
        [FOUR, gpu(0), None],
        [FOUR, gpu(2), gpu(3), pairs, END],
    )

    reading = NvmlSession().read(EVERYTHING, deadline_s=10)

    assert [row.uuid for row in reading.gpus] == ["GPU-0", None, "GPU-2", "GPU-3"]
    hung = reading.gpus[1]
    assert hung.failure is not None
    assert hung.failure.code == "driver-not-answering"
    assert set(hung.unavailable.values()) == {"it did not answer in time (deadline 10 s)"}
    assert reading.failure is not None
    assert reading.failure.message == "GPU 1 did not answer in time (deadline 10 s)"
    assert reading.topology is not None
    assert (first.closed, second.closed) == (True, False)
    assert [request.get("first") for request in first.asked + second.asked] == [None, 2]
    assert second.asked[0]["silent"] == [1]
    # The driver as a whole gets all the time, a GPU with others behind it half of it.
    assert first.waits[0] == pytest.approx(10, abs=1)
    assert first.waits[2] == pytest.approx(5, abs=1)


def test_one_gpu_has_all_the_time_and_needs_no_other_child() -> None:
    opened, child = session(SYSTEM | {"gpu_count": 1}, None)

    reading = opened.read(NvmlQuestion(), deadline_s=10)

    assert child.waits[1] == pytest.approx(10, abs=1)
    assert reading.failure is not None
    assert reading.failure.message == "GPU 0 did not answer in time (deadline 10 s)"
    assert len(reading.gpus) == 1


@pytest.mark.parametrize(
    ("second", "behind"),
    [
        ([None], "the NVIDIA driver did not answer within 10 s"),
        ([{"part": "system"}, {"part": "failure", "code": "unknown", "message": "error 999"}],
         "error 999"),
        ([ChildDiedError("was ended by SIGSEGV")],
         "the process that asks NVML was ended by SIGSEGV"),
    ],
)  # fmt: skip
def test_the_driver_may_stop_answering_after_a_gpu(
    monkeypatch: pytest.MonkeyPatch, second: list[Any], behind: str
) -> None:
    sessions(monkeypatch, [FOUR, gpu(0), None], second)

    reading = NvmlSession().read(NvmlQuestion(), deadline_s=10)

    assert reading.failure is not None
    assert reading.failure.code == "driver-not-answering"
    assert reading.failure.message == (
        f"GPU 1 did not answer in time (deadline 10 s); and after that: {behind}"
    )
    assert [row.index for row in reading.gpus] == [0, 1]


def test_only_so_many_gpus_are_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    eight = SYSTEM | {"gpu_count": 8}
    children = sessions(monkeypatch, *([eight, None] for _ in range(8)))

    reading = NvmlSession().read(NvmlQuestion(), deadline_s=1)

    assert sum(bool(child.asked) for child in children) == 1 + MOST_GIVEN_UP
    assert [row.index for row in reading.gpus] == [0, 1, 2]
    assert reading.failure is not None
    assert reading.failure.message.startswith("GPUs 0, 1, 2 did not answer in time")
    assert reading.failure.message.endswith("the NVIDIA driver did not answer within 1 s")


def test_who_is_on_a_gpu_is_not_asked_of_another_child() -> None:
    opened, _ = session(None)

    reading = opened.read(NvmlQuestion(processes_of=(3,)), deadline_s=1)

    assert reading.failure is not None
    assert reading.failure.code == "driver-not-answering"
    assert reading.gpus == ()


def test_the_child_skips_what_is_given_up_and_what_was_read() -> None:
    nvml = FakeNvml(
        nvmlDeviceGetCount=3,
        nvmlDeviceGetHandleByIndex=lambda index: f"handle{index}",
        nvmlDeviceGetTopologyCommonAncestor=50,
        nvmlDeviceGetNvLinkState=error(2),
    )
    request = {"topology": True, "first": 2, "silent": [1]}

    documents = list(child_session(nvml).answer(request))

    assert [part.get("index") for part in documents if part["part"] == "gpu"] == [2]
    (topology,) = [part for part in documents if part["part"] == "topology"]
    levels = {(pair["from"], pair["to"]): pair["level"] for pair in topology["pairs"]}
    assert levels == {(0, 1): None, (0, 2): 50, (1, 2): None}
    assert nvml.calls.count("nvmlDeviceGetHandleByIndex") == 2


def test_a_refusal_to_initialise() -> None:
    failure = {"function": "nvmlInit", "library_code": 9, "code": "driver-not-loaded"}
    opened, _ = session({"part": "failure", **failure, "message": "not loaded"})

    reading = opened.read(EVERYTHING, deadline_s=1)

    assert reading == NvmlReading(failure=ProbeFailure(**failure, message="not loaded"))


def test_parts_are_put_together() -> None:
    gpu = GPU | {
        "processes": [{"pid": 1, "type": "compute"}],
        "mig_instances": [{"uuid": "MIG-1", "unavailable": {"name": "why"}}],
        "failure": {"code": "gpu-is-lost", "message": "gone", "library_code": 15, "function": "f"},
    }
    topology = {
        "part": "topology",
        "pairs": [{"from": 0, "to": 1, "level": 10, "unavailable": None}],
        "nvlinks": [{"gpu": 0, "link": 0, "active": False, "unavailable": "why"}],
    }

    reading = assemble([dict(SYSTEM), gpu, topology, dict(END)], None)

    (found,) = reading.gpus
    assert found.processes[0].pid == 1
    assert found.mig_instances[0].unavailable == {"name": "why"}
    assert found.failure is not None
    assert found.failure.library_code == 15
    assert reading.topology is not None
    assert (reading.topology.pairs[0].from_, reading.topology.pairs[0].to) == (0, 1)
    assert reading.topology.nvlinks[0].unavailable == "why"
