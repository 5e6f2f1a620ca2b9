"""Every NVML and libcuda function fails in turn with every code: rows stay, reasons are given."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpucheck.cli import output
from gpucheck.drivers.child import Child, ChildDiedError
from gpucheck.drivers.nvml.client import NvmlSession
from gpucheck.drivers.nvml.start import WORKER, binding_directory
from gpucheck.drivers.readings import CudaReading, GpuReading, NvmlReading
from gpucheck.inventory.inventory import take_inventory
from gpucheck.report.formats.json import document as as_document
from tests.conftest import scrubbed_environment
from tests.end_to_end.conftest import ForkServers, Pretend, Program
from tests.end_to_end.documents import assert_document
from tests.end_to_end.sweeping import EVERYTHING, NVML_CODES
from tests.fakes.machine import Connection, Machine, Process, Topology, load_machine
from tests.fakes.probes import FakeProbes
from tests.hang_watch import wait_until
from tests.sampling import THOROUGH, sampled

#: CUresult of cuda.h.
CUDA_CODES = (
    *range(1, 9), 34, 35, 36, 46, 50, 52, *range(100, 103), *range(200, 229), *range(300, 305),
    400, 401, 402, 500, 600, *range(700, 725), *range(800, 811), *range(900, 917), 999,
)  # fmt: skip

#: The GPU that has MIG instances, processes of each kind and NVLinks, so every function is asked
#: about it; the others must not notice that it fails.
BROKEN = 0

#: Codes that mean something of their own to one of our questions, or that some driver gives often;
#: the others differ in their sentence alone.
TREATED = (2, 3, 4, 6, 7, 9, 13, 14, 15, 16, 25, 26, 999)

#: Of these, what an older form of the function may answer, or what ends a reading, on every GPU.
TREATED_FOR_ALL = (13, 15)

LOST, RESET_REQUIRED = 15, 16
OLDER_FORM = {3, 13, 25, 26}
#: Of these, what is true of the driver for every GPU.
OF_THE_LIBRARY = {13, 25, 26}

#: What each symbol is asked for: fields of a reading that fall away with it, and no others.
READS: dict[str, set[str]] = {
    "nvmlDeviceGetUUID": {"uuid"},
    "nvmlDeviceGetName": {"name"},
    "nvmlDeviceGetSerial": {"serial"},
    "nvmlDeviceGetPciInfo_v3": {"pci_bus_id", "pci_device_id"},
    "nvmlDeviceGetArchitecture": {"architecture"},
    "nvmlDeviceGetCudaComputeCapability": {"compute_capability"},
    "nvmlDeviceGetUtilizationRates": {"utilization_gpu_percent", "utilization_memory_percent"},
    "nvmlDeviceGetTemperature": {"temperature_c"},
    "nvmlDeviceGetFanSpeed": {"fan_percent"},
    "nvmlDeviceGetPowerUsage": {"power_w"},
    "nvmlDeviceGetEnforcedPowerLimit": {"power_limit_w"},
    "nvmlDeviceGetClockInfo": {"clock_sm_mhz"},
    "nvmlDeviceGetMaxClockInfo": {"clock_sm_max_mhz"},
    "nvmlDeviceGetPerformanceState": {"performance_state"},
    "nvmlDeviceGetPersistenceMode": {"persistence_mode"},
    "nvmlDeviceGetComputeMode": {"compute_mode"},
    "nvmlDeviceGetVirtualizationMode": {"virtualization"},
    "nvmlDeviceGetEccMode": {"ecc_mode"},
    "nvmlDeviceGetCurrPcieLinkGeneration": {"pcie_generation"},
    "nvmlDeviceGetMaxPcieLinkGeneration": {"pcie_generation_max"},
    "nvmlDeviceGetCurrPcieLinkWidth": {"pcie_width"},
    "nvmlDeviceGetMaxPcieLinkWidth": {"pcie_width_max"},
    "nvmlDeviceGetMigMode": {"mig_enabled", "mig_instances"},
    "nvmlDeviceGetMaxMigDeviceCount": {"mig_instances"},
    "nvmlDeviceGetMigDeviceHandleByIndex": {"mig_instances"},
    "nvmlDeviceGetMemoryInfo": {"memory_total_bytes", "memory_used_bytes", "memory_free_bytes"},
    "nvmlDeviceGetMemoryInfo_v2": {"memory_total_bytes", "memory_used_bytes", "memory_free_bytes"},
    "nvmlDeviceGetProcessUtilization": {"process_utilization"},
    **{
        f"nvmlDeviceGet{kind}RunningProcesses{form}": {"processes"}
        for kind in ("Compute", "Graphics", "MPSCompute")
        for form in ("", "_v2", "_v3")
    },
}
#: Asked of the MIG instances only.
READS_OF_INSTANCES = {
    "nvmlDeviceGetGpuInstanceId": "gpu_instance_id",
    "nvmlDeviceGetComputeInstanceId": "compute_instance_id",
}
#: These are asked of the instances too, and leave them with a gap of the same name.
SHARED_WITH_INSTANCES = {
    "nvmlDeviceGetUUID", "nvmlDeviceGetName", "nvmlDeviceGetMemoryInfo_v2",
    "nvmlDeviceGetMemoryInfo",
}  # fmt: skip
SYSTEM = {
    "nvmlSystemGetDriverVersion": "driver_version",
    "nvmlSystemGetNVMLVersion": "nvml_version",
    "nvmlSystemGetCudaDriverVersion": "cuda_driver_version",
}
TOPOLOGY = {
    "nvmlDeviceGetTopologyCommonAncestor",
    "nvmlDeviceGetNvLinkState",
    "nvmlDeviceGetNvLinkRemoteDeviceType",
    "nvmlDeviceGetNvLinkRemotePciInfo_v2",
}
NO_ROWS = {"nvmlInitWithFlags", "nvmlDeviceGetCount_v2"}
HANDLE = "nvmlDeviceGetHandleByIndex_v2"

#: A refusal that is the plain answer "there is none", and so leaves no gap.
NONE_THERE = {
    "nvmlDeviceGetProcessUtilization": {6},
    "nvmlDeviceGetMigDeviceHandleByIndex": {2, 6},
    **{
        f"nvmlDeviceGet{kind}RunningProcesses{form}": {3, 13}
        for kind in ("Graphics", "MPSCompute")
        for form in ("", "_v2", "_v3")
    },
}


def rich_machine() -> Machine:
    """Return three GPUs; the first has MIG instances, all kinds of processes, and NVLinks."""
    machine = load_machine("a100-mig").with_gpus(3)
    processes = (
        *machine.gpus[BROKEN].processes,
        Process(pid=11, memory_used_bytes=1 << 20, utilization_sm_percent=5),
        Process(pid=12, type="graphics", memory_used_bytes=2 << 20),
        Process(pid=13, type="mps", memory_used_bytes=3 << 20),
    )
    links = (Connection(gpus=(0, 1), kind="NV4"), Connection(gpus=(1, 2), kind="NV2"))
    grown = machine.with_gpu(BROKEN, processes=processes, fan_percent=30, utilization_gpu_percent=1,
                             utilization_memory_percent=1)  # fmt: skip
    return dataclasses.replace(grown, topology=Topology(paths=links))


def old_machine() -> Machine:
    """Return a machine whose library has only the first forms of some functions."""
    return load_machine("old-driver").with_gpus(3)


def calls_in(log: Path) -> Counter[tuple[str, str]]:
    """Return how often each (function, GPU index or "-") was called."""
    lines = log.read_text(encoding="ascii").splitlines()
    return Counter((function, gpu) for function, gpu in map(str.split, lines))


Calls = dict[str, Counter[tuple[str, str]]]


@pytest.fixture(scope="session")
def called(pretend: Pretend, program: Program, tmp_path_factory: pytest.TempPathFactory) -> Calls:
    """Return what a real `list` calls, by the machine, on new and old drivers.

    Without a card's health, which is swept with `detect`.
    """
    found = {}
    for machine in (rich_machine(), old_machine()):
        log = tmp_path_factory.mktemp("log") / "calls"
        env = pretend(machine) | {"FAKE_CALL_LOG": str(log)}
        ended = program("list", "--json", "--topology", "--ask-driver", env=env)
        assert ended.code == 0
        found[machine.name] = calls_in(log)
    return found


def nvml_functions(calls: Counter[tuple[str, str]]) -> list[str]:
    return sorted({name for name, _ in calls if name.startswith("nvml")})


def listed(nvml: NvmlReading, cuda: CudaReading | None = None, **request: bool) -> Any:
    """Return the document that `list` makes of readings, through JSON."""
    probes = FakeProbes(readings=nvml) if cuda is None else FakeProbes(nvml, cuda_reading=cuda)
    answer = take_inventory(probes, topology=True, process_utilization=True, **request)
    report = output.wrap("list", answer, time=probes.time())
    return json.loads(json.dumps(as_document(report), allow_nan=False))


def gaps(reading: GpuReading, sound: GpuReading) -> set[str]:
    """Return the fields that differ from those of the sound machine."""
    return {
        name
        for name in GpuReading._fields
        if name not in ("unavailable", "failure") and getattr(reading, name) != getattr(sound, name)
    }


def check_gpu(
    reading: GpuReading, sound: GpuReading, function: str, code: int, *, ends: bool
) -> None:
    """Check one GPU of which `function` was asked and failed with `code`.

    `ends`: the code means that nothing more can be asked of this GPU.
    """
    changed = gaps(reading, sound)
    named = f"(NVML error {code})"
    told = {name for name, reason in reading.unavailable.items() if named in reason}
    asked = READS.get(function, set())
    if function == "nvmlDeviceGetMigMode":
        asked = asked - {"mig_instances"}  # they follow from the mode, which has the reason
        changed -= {"mig_instances"}
    if ends or function == HANDLE:
        assert reading.failure is not None
        assert reading.failure.library_code == code
        # What was read before is kept; everything from there on is gone with this one reason.
        assert changed - {"mig_instances"} <= told
        assert asked <= told
        return
    assert reading.failure is None
    check_instances(reading, function, named)
    if function in SHARED_WITH_INSTANCES or function in READS_OF_INSTANCES:
        changed -= {"mig_instances"}
    assert changed <= asked
    older = function in OLDER_FORMS and code in OLDER_FORM
    if older or code in NONE_THERE.get(function, set()):
        assert told & changed == set()
        return
    assert asked <= told
    for name in asked:
        value = getattr(reading, name)
        assert value is None or all(item in getattr(sound, name) for item in value)


def check_instances(reading: GpuReading, function: str, named: str) -> None:
    """Check that the MIG instances that could be listed say themselves what they lack."""
    if function in READS_OF_INSTANCES:
        field = READS_OF_INSTANCES[function]
        assert all(getattr(mig, field) is None for mig in reading.mig_instances)
        assert all(named in mig.unavailable[field] for mig in reading.mig_instances)
    if function in SHARED_WITH_INSTANCES - OLDER_FORMS:
        assert all(named in "".join(mig.unavailable.values()) for mig in reading.mig_instances)


#: Newest forms, which have an older one behind them.
OLDER_FORMS = {
    "nvmlDeviceGetMemoryInfo_v2",
    *(
        f"nvmlDeviceGet{kind}RunningProcesses{form}"
        for kind in ("Compute", "Graphics", "MPSCompute")
        for form in ("_v2", "_v3")
    ),
}


def test_the_sweep_knows_every_function_that_list_calls(called: Calls) -> None:
    known = {*READS, *READS_OF_INSTANCES, *SYSTEM, *TOPOLOGY, *NO_ROWS, HANDLE}

    every = {name for calls in called.values() for name in nvml_functions(calls)}

    assert every <= known
    assert len(every) >= 40


#: Codes that each mean something else; on the old driver, that a form is missing.
SWEPT = [
    *((rich_machine, code) for code in sampled(NVML_CODES, 2, always=TREATED)),
    *((old_machine, code) for code in sampled(NVML_CODES, 0, always=(3, 13))),
]


@pytest.mark.parametrize(("make", "code"), SWEPT)
def test_every_nvml_function_failing(
    forks: ForkServers, called: Calls, make: Any, code: int
) -> None:
    machine = make()
    broken = BROKEN if machine.name == "a100-mig" else 0
    server = forks.on(machine)
    sound = server.nvml(machine)
    normal = listed(sound)
    calls = called[machine.name]
    questions = list(sweep(called, machine.name, code, broken))
    machines = (machine.broken(fail=[f"{name} {where} {code}"]) for name, where in questions)

    found = []
    readings = server.nvml_each(machines)
    for (function, where), reading in zip(questions, readings, strict=True):
        try:
            asked = {int(gpu) for name, gpu in calls if name == function and gpu != "-"}
            asked &= {broken} if where else asked
            check_reading(reading, sound, function, code, asked)
            check_document(listed(reading), normal, function, code)
        except AssertionError as error:
            found.append(f"{function} {where or 'on all'}: {error}")
    assert not found, "\n".join(found)


def sweep(called: Calls, machine: str, code: int, broken: int) -> Iterator[tuple[str, str]]:
    """Yield each function with the GPU that it fails for: with every code for one GPU.

    A code that nobody treats in a way of its own is not tried on all GPUs at once as well, nor on
    the old driver for a function that the new one has too.
    """
    for function in nvml_functions(called[machine]):
        of_no_gpu = function in SYSTEM or function in NO_ROWS
        elsewhere = any(
            function in nvml_functions(called[name]) for name in called.keys() - {machine}
        )
        if code not in TREATED and machine != "a100-mig" and elsewhere:
            continue
        if not of_no_gpu:
            yield function, f"gpu={broken}"
        if of_no_gpu or code in (TREATED if THOROUGH else TREATED_FOR_ALL):
            yield function, ""


def check_reading(
    reading: NvmlReading, sound: NvmlReading, function: str, code: int, asked: set[int]
) -> None:
    """Check everything that NVML said while `function` fails for the GPUs `asked`."""
    named = f"(NVML error {code})"
    if function in NO_ROWS:
        assert reading.failure is not None
        assert reading.failure.library_code == code
        assert reading.gpus == ()
        return
    assert reading.failure is None
    if function in SYSTEM:
        assert getattr(reading, SYSTEM[function]) is None
        assert named in reading.unavailable[SYSTEM[function]]
    for gpu, before in zip(reading.gpus, sound.gpus, strict=True):
        if gpu.index in asked and function not in TOPOLOGY:
            check_gpu(gpu, before, function, code, ends=code in (LOST, RESET_REQUIRED))
        elif function in OLDER_FORMS and code in OF_THE_LIBRARY:
            assert gaps(gpu, before) <= READS[function]  # the older form is asked of them too
        else:
            assert gpu == before


def check_document(document: Any, normal: Any, function: str, code: int) -> None:
    """Check what `list` makes of it: every row, an exit code of the contract, and the links."""
    assert document["exit_code"] in (0, 3, 4)
    assert_document(document, "list", document["exit_code"])
    if function in NO_ROWS:
        return
    assert document["exit_code"] == 0
    assert len(document["result"]["gpus"]) == len(normal["result"]["gpus"])
    for link, before in zip(
        document["result"]["topology"]["links"],
        normal["result"]["topology"]["links"],
        strict=True,
    ):
        gone = link["kind"] is None and f"(NVML error {code})" in link["unavailable"]
        no_links = function == "nvmlDeviceGetNvLinkState" and code in (2, 3, 13)
        # Only where NVML says "there is no such link" may an NVLink turn into the path on PCIe.
        assert link == before or gone or no_links


def test_every_nvml_function_hanging(
    pretend: Pretend,
    forks: ForkServers,
    called: Calls,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def no_second_child() -> Child:
        raise ChildDiedError("could not be started")

    monkeypatch.setattr("gpucheck.drivers.nvml.client.take", no_second_child)
    machine = rich_machine()
    sound = forks.on(machine).nvml(machine)
    functions = nvml_functions(called[machine.name])

    found = []
    for first in range(0, len(functions), 8):
        waiting = [
            HungChild(pretend(machine, hang=[name]), tmp_path / name, name)
            for name in functions[first : first + 8]
        ]
        for child in waiting:
            try:
                check_hung(child.reading(), sound, child.function)
            except AssertionError as error:
                found.append(f"{child.function}: {error}")
    assert not found, "\n".join(found)


class HungChild:
    """An NVML child that was asked for everything on a machine where one function hangs."""

    def __init__(self, environment: dict[str, str], log: Path, function: str) -> None:
        self.function = function
        self._log = log
        variables = scrubbed_environment({**environment, "FAKE_CALL_LOG": str(log)})
        self._child = Child(WORKER, binding_directory(), environment=variables)
        self._child.ask(EVERYTHING._asdict())

    def reading(self) -> NvmlReading:
        """Return what came before the hang, once it has begun: no deadline has to be guessed."""
        called = f"{self.function} "
        wait_until(lambda: self._log.exists() and called in self._log.read_text())
        return NvmlSession(self._child).read(EVERYTHING, deadline_s=0.1)


def check_hung(reading: NvmlReading, sound: NvmlReading, function: str) -> None:
    """Check that what was read before the hang is there, and that the rest has the reason."""
    assert reading.failure is not None
    assert reading.failure.code == "driver-not-answering"
    finished = len(sound.gpus) if function in TOPOLOGY else 0
    assert tuple(gpu for gpu in reading.gpus if gpu.failure is None) == sound.gpus[:finished]
    document = listed(reading)
    assert_document(document, "list", 3)
    assert "did not answer" in document["error"]["message"]
    counted = function not in NO_ROWS and function not in SYSTEM
    assert len(document["result"]["gpus"]) == (len(sound.gpus) if counted else 0)


def test_libraries_with_hardly_a_symbol(pretend: Pretend, program: Program, called: Calls) -> None:
    machine = rich_machine()
    kept = {*NO_ROWS, HANDLE}
    gone = [name for name in nvml_functions(called[machine.name]) if name not in kept]
    older = [name for name in {*OLDER_FORMS, "nvmlDeviceGetMemoryInfo"} if name not in gone]
    plain = [name.removesuffix("_v3") for name in gone if name.endswith("Processes_v3")]

    ended = program("list", "--json", env=pretend(machine, missing=[*gone, *older, *plain]))

    document = ended.document()
    assert (ended.code, document["error"]["code"]) == (1, "no-gpu-answers")
    assert len(document["result"]["gpus"]) == 3
    for row in document["result"]["gpus"]:
        assert row["state"] == "error"
        assert row["error"] == "this driver version does not offer it (NVML error 13)"
        assert (
            row["unavailable"]["processes"]
            == "this driver version does not offer it (NVML error 13)"
        )


def test_failing_functions_through_the_command(
    pretend: Pretend, program: Program, called: Calls
) -> None:
    machine = rich_machine()
    functions = nvml_functions(called[machine.name])
    # Over the functions each code; for one GPU, then for all. The sweep above asks the children
    # about every function: here is to be seen that the command takes their answers.
    for position, function in sampled(enumerate(functions), 8):
        code = NVML_CODES[position % len(NVML_CODES)]
        everywhere = position // 2 % 2 == 1
        where = "" if everywhere or function in {*NO_ROWS, *SYSTEM} else f"gpu={BROKEN}"
        env = pretend(machine, fail=[f"{function} {where} {code}"])

        ended = program("list", "--json", "--topology", env=env)

        assert ended.code in (0, 3, 4), (function, code)
        document = ended.document()
        if function not in NO_ROWS:
            assert len(document["result"]["gpus"]) == len(machine.gpus), (function, code)


OF_NO_DEVICE = {"cuInit", "cuDriverGetVersion", "cuDeviceGetCount"}


@pytest.mark.parametrize("where", ["gpu=1", ""], ids=["one-gpu", "all-gpus"])
def test_every_libcuda_function_failing(forks: ForkServers, called: Calls, where: str) -> None:
    machine = load_machine("t4").with_gpus(3)
    server = forks.on(machine)
    nvml = server.nvml(machine)
    functions = sorted({name for name, _ in called["a100-mig"] if name.startswith("cu")})
    assert len(functions) >= 8
    if where:
        functions = [name for name in functions if name not in OF_NO_DEVICE]
    questions = [
        (name, code)
        for name in functions
        for code in sampled(CUDA_CODES, 2 if where else 4, always=(100, 999))
    ]
    machines = (machine.broken(fail=[f"{name} {where} {code}"]) for name, code in questions)

    found = []
    for (function, code), reading in zip(questions, server.cuda_each(machines), strict=True):
        document = listed(nvml, reading, ask_driver=True)
        try:
            check_cuda(reading, document, function, code, machine)
        except AssertionError as error:
            found.append(f"{function} {where or 'on all'} {code}: {error}")
    assert not found, "\n".join(found)


def check_cuda(
    reading: CudaReading, document: Any, function: str, code: int, machine: Machine
) -> None:
    """Check that every row stays, numbered by the rules where the driver could not be asked."""
    assert_document(document, "list", 0)
    said = reading.failure
    reasons = [text for device in reading.devices for text in device.unavailable.values()]
    named = f"CUDA {code})"
    told = (said is not None and named in said.message) or any(named in text for text in reasons)
    assert told
    visibility = document["result"]["visibility"]
    ordinals = [row["cuda_index"] for row in document["result"]["gpus"]]
    if said is not None and said.library_code == 100 and function in ("cuInit", "cuDeviceGetCount"):
        assert visibility["decided_by"] == "driver"
        assert ordinals == [None] * len(machine.gpus)
        return
    assert ordinals == list(range(len(machine.gpus)))
    decided = "driver" if said is None and all(d.uuid_hex for d in reading.devices) else "rules"
    assert visibility["decided_by"] == decided
    assert (decided == "driver") == (document["warnings"] == [])
