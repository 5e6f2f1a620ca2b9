"""Both numberings, who uses a GPU, why one is hidden, and what a broken driver leaves of it all."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucheck.drivers.nvml.binding import REASONS
from gpucheck.drivers.readings import (
    LIMIT_FIELDS,
    CudaDeviceReading,
    CudaReading,
    KernelReading,
    MigReading,
    NvmlReading,
    PairReading,
    PciDeviceReading,
    ProbeFailure,
    ProcessIdentity,
    ProcessReading,
    TopologyReading,
)
from gpucheck.inventory.columns import COLUMNS
from gpucheck.inventory.inventory import (
    cuda_version,
    judge_list,
    keep,
    keep_user,
    list_gpus,
    select_gpus,
    sort_gpus,
    take_inventory,
)
from gpucheck.inventory.model import (
    DecidedBy,
    Gpu,
    GpuProcess,
    GpuState,
    Inventory,
    MigInstance,
    MigState,
    PcieLink,
    Topology,
    TopologyLink,
    Visibility,
)
from gpucheck.report.envelope import Answer
from gpucheck.report.errors import (
    BadAnswerError,
    ExitCode,
    InconclusiveError,
    MissingError,
    WrongUseError,
)
from tests.fakes.gpus import row
from tests.fakes.probes import FakeProbes, gpu_reading, reading_of

LOST = ProbeFailure(code="gpu-is-lost", message="it fell off the bus", library_code=15)
HUNG = ProbeFailure(code="driver-not-answering", message="the driver did not answer within 10 s")
MIG = (
    MigReading(uuid="MIG-a", name="1g.5gb", gpu_instance_id=7, compute_instance_id=0),
    MigReading(uuid="MIG-b", name="1g.5gb", gpu_instance_id=8, compute_instance_id=0),
)
T4_A100 = reading_of(gpu_reading(0, name="Tesla T4"), gpu_reading(1, name="NVIDIA A100-SXM4-40GB"))


def uuid(index: int) -> str:
    return gpu_reading(index).uuid or ""


def said(*uuids: str) -> CudaReading:
    devices = tuple(
        CudaDeviceReading(ordinal=ordinal, uuid_hex=text.partition("-")[2].replace("-", ""))
        for ordinal, text in enumerate(uuids)
    )
    return CudaReading(device_count=len(devices), devices=devices)


def found(answer: Answer) -> Inventory:
    assert isinstance(answer.result, Inventory)
    return answer.result


def take(probes: FakeProbes, **request: bool) -> Inventory:
    return found(take_inventory(probes, **request))


def gpus_of(*rows: object, **probes: object) -> tuple[Gpu, ...]:
    return take(FakeProbes(readings=reading_of(*rows), **probes)).gpus  # type: ignore[arg-type]


def codes(answer: Answer) -> list[str]:
    return [notice.code for notice in answer.warnings]


# --------------------------------------------------------------------------------- a good list


def test_a_healthy_machine() -> None:
    probes = FakeProbes(readings=reading_of(gpu_reading(0), gpu_reading(1)))

    answer = take_inventory(probes)

    assert answer.exit_code is ExitCode.OK
    assert answer.error is None
    assert answer.warnings == ()
    assert [(g.index, g.cuda_index, g.visible, g.state) for g in found(answer).gpus] == [
        (0, 0, True, GpuState.OK),
        (1, 1, True, GpuState.OK),
    ]
    assert (answer.host.name, answer.host.driver_version) == ("node1", "580.95.05")
    assert answer.host.cuda_driver_version == "13.0"


def test_alike_gpus_do_not_start_the_cuda_driver() -> None:
    probes = FakeProbes(readings=reading_of(gpu_reading(0), gpu_reading(1)))

    take(probes)

    assert probes.asked == ["nvml", "kernel"]


def test_nested_readings_keep_their_reasons() -> None:
    [gpu] = gpus_of(
        gpu_reading(
            0,
            pcie_width=None,
            mig_enabled=None,
            unavailable={"pcie_width": "no right", "mig_enabled": "not here", "pci_device_id": "x"},
        )
    )

    assert gpu.pcie == PcieLink(generation=5, generation_max=5, width=None, width_max=16)
    assert gpu.unavailable["pcie.width"] == "no right"
    assert gpu.unavailable["mig.enabled"] == "not here"
    assert "pci_device_id" not in gpu.unavailable


#: Null without a reason wherever nobody asks who holds memory that no listed process owns.
NOT_ASKED_FOR = ("memory_unaccounted_bytes", "holders", "troubles", *LIMIT_FIELDS)


def test_every_null_has_its_reason() -> None:
    lost = gpu_reading(0, **dict.fromkeys(("fan_percent",), None))
    [gpu] = gpus_of(lost)

    empty = {name for name in Gpu._fields if getattr(gpu, name) is None}

    assert empty - set(gpu.unavailable) == {"hidden_reason", "error", *NOT_ASKED_FOR}


# -------------------------------------------------------------------------- the two numberings


def test_unlike_gpus_are_numbered_by_the_driver() -> None:
    probes = FakeProbes(readings=T4_A100, cuda_reading=said(uuid(1), uuid(0)))

    inventory = take(probes)

    assert inventory.visibility.decided_by is DecidedBy.DRIVER
    assert [(gpu.index, gpu.cuda_index) for gpu in inventory.gpus] == [(0, 1), (1, 0)]


def test_bus_order_needs_no_driver() -> None:
    probes = FakeProbes(readings=T4_A100, variables={"CUDA_DEVICE_ORDER": "PCI_BUS_ID"})

    inventory = take(probes)

    assert [(gpu.index, gpu.cuda_index) for gpu in inventory.gpus] == [(0, 0), (1, 1)]
    assert "cuda" not in probes.asked


def test_a_silent_driver_leaves_the_ordinals_open() -> None:
    answer = take_inventory(FakeProbes(readings=T4_A100))

    assert answer.exit_code is ExitCode.OK
    assert codes(answer) == ["cuda-order-unknown"]
    for gpu in found(answer).gpus:
        assert (gpu.cuda_index, gpu.visible, gpu.hidden_reason) == (None, None, None)
        assert "no libcuda in this fake" in gpu.unavailable["cuda_index"]
        assert gpu.unavailable["visible"] == gpu.unavailable["cuda_index"]


def test_a_silent_driver_leaves_what_is_hidden_open_too() -> None:
    probes = FakeProbes(readings=T4_A100, variables={"CUDA_VISIBLE_DEVICES": "1"})

    gpus = take(probes).gpus

    assert {gpu.visible for gpu in gpus} == {None}
    assert all("no libcuda in this fake" in gpu.unavailable["visible"] for gpu in gpus)


def test_the_driver_is_asked_on_request() -> None:
    probes = FakeProbes(readings=reading_of(gpu_reading(0)), cuda_reading=said(uuid(0)))

    inventory = take(probes, ask_driver=True)

    assert inventory.visibility.decided_by is DecidedBy.DRIVER
    assert "cuda" in probes.asked


ALIKE = reading_of(gpu_reading(0), gpu_reading(1))
ON_THE_BUS = KernelReading(
    pci_devices=tuple(PciDeviceReading(gpu.pci_bus_id or "", "0x10de") for gpu in ALIKE.gpus)
)


@pytest.mark.parametrize(
    ("readings", "variables", "asked"),
    [
        (reading_of(gpu_reading(0)), {}, False),
        (ALIKE, {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}, False),
        (ALIKE, {}, True),
        (ALIKE, {"CUDA_DEVICE_ORDER": "FASTEST_FIRST"}, True),
        (reading_of(gpu_reading(0, mig_enabled=True)), {}, True),
        (reading_of(gpu_reading(0), gpu_reading(1, uuid=None)), {}, True),
    ],
)
def test_a_command_that_names_devices_asks_the_driver_where_the_rules_are_not_certain(
    readings: NvmlReading, variables: dict[str, str], asked: bool
) -> None:
    probes = FakeProbes(readings=readings, variables=variables)

    take(probes, names_devices=True)

    assert ("cuda" in probes.asked) is asked


@pytest.mark.parametrize(
    ("request_", "variables", "first"),
    [
        ({"names_devices": True}, {}, ["kernel", "start_cuda", "nvml", "cuda"]),
        ({"names_devices": True}, {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}, ["kernel", "nvml"]),
        ({"ask_driver": True}, {}, ["start_cuda", "nvml", "cuda"]),
        ({}, {}, ["nvml"]),
    ],
)
def test_cuda_is_started_before_nvml_is_asked_where_it_will_be_needed(
    request_: dict[str, bool], variables: dict[str, str], first: list[str]
) -> None:
    probes = FakeProbes(readings=ALIKE, variables=variables, kernel_reading=ON_THE_BUS)

    take(probes, **request_)

    assert probes.asked[: len(first)] == first
    assert probes.asked.count("start_cuda") == first.count("start_cuda")


def test_a_driver_asked_in_vain_leaves_the_rules_and_says_so() -> None:
    probes = FakeProbes(readings=reading_of(gpu_reading(0)))

    answer = take_inventory(probes, ask_driver=True)

    assert found(answer).visibility.decided_by is DecidedBy.RULES
    assert found(answer).gpus[0].cuda_index == 0
    assert codes(answer) == ["cuda-driver-silent"]


# --------------------------------------------------------------------------------- hidden GPUs


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "CUDA_VISIBLE_DEVICES is empty"),
        ("0", "not named in CUDA_VISIBLE_DEVICES='0'"),
        ("0,9", "not named in CUDA_VISIBLE_DEVICES='0,9'"),
        ("0,9,1", "not named in CUDA_VISIBLE_DEVICES='0,9,1' before the invalid entry '9'"),
        ("none", "CUDA_VISIBLE_DEVICES='none' names no GPU: neither an ordinal nor a UUID"),
        (
            "0,0",
            "CUDA_VISIBLE_DEVICES='0,0' names no GPU:"
            " a device is named twice, which empties the whole list",
        ),
    ],
)
def test_why_a_gpu_is_hidden(text: str, reason: str) -> None:
    gpus = gpus_of(gpu_reading(0), gpu_reading(1), variables={"CUDA_VISIBLE_DEVICES": text})

    assert (gpus[1].visible, gpus[1].cuda_index) == (False, None)
    assert gpus[1].hidden_reason == reason
    assert gpus[1].unavailable["cuda_index"] == reason


def test_the_driver_may_hide_what_no_variable_hides() -> None:
    gpus = take(FakeProbes(readings=T4_A100, cuda_reading=said(uuid(0)))).gpus

    assert gpus[1].hidden_reason == "not enumerated by the CUDA driver"


def test_a_dropped_entry_is_a_warning() -> None:
    probes = FakeProbes(
        readings=reading_of(gpu_reading(0), gpu_reading(1)),
        variables={"CUDA_VISIBLE_DEVICES": "1,7"},
    )

    [warning] = take_inventory(probes).warnings

    assert warning.code == "visible-devices-entry"
    assert "'7' is dropped: out of range: there are 2 GPUs" in warning.message


def test_nothing_visible_hides_a_nameless_gpu_as_well() -> None:
    [gpu] = gpus_of(gpu_reading(0, uuid=None), variables={"CUDA_VISIBLE_DEVICES": ""})

    assert (gpu.visible, gpu.hidden_reason) == (False, "CUDA_VISIBLE_DEVICES is empty")


# ------------------------------------------------------------------------------------------ MIG


def test_instances_have_cuda_s_numbers() -> None:
    other = (MigReading(uuid="MIG-c", gpu_instance_id=1, compute_instance_id=0),)
    probes = FakeProbes(
        readings=reading_of(
            gpu_reading(0, mig_enabled=True, mig_instances=MIG),
            gpu_reading(1),
            gpu_reading(2, mig_enabled=True, mig_instances=other),
        ),
        cuda_reading=CudaReading(
            device_count=1, devices=(CudaDeviceReading(ordinal=0, uuid_hex="b"),)
        ),
    )

    first, second, third = take(probes).gpus

    assert [instance.cuda_index for instance in first.mig.instances] == [None, 0]
    assert (first.visible, first.cuda_index, first.hidden_reason) == (True, None, None)
    assert first.unavailable["cuda_index"] == "CUDA numbers its MIG instances instead"
    assert (second.visible, second.hidden_reason) == (
        False,
        "not enumerated by the CUDA driver beside a MIG instance",
    )
    assert third.visible is False


def test_mig_without_a_driver_s_word_leaves_all_visibility_open() -> None:
    split = gpu_reading(0, mig_enabled=True, mig_instances=MIG)

    gpus = gpus_of(split, gpu_reading(1))

    assert [gpu.visible for gpu in gpus] == [None, None]


def test_mig_without_an_instance_is_a_reason() -> None:
    probes = FakeProbes(
        readings=reading_of(gpu_reading(0, mig_enabled=True), gpu_reading(1)),
        cuda_reading=said(uuid(1)),
    )

    assert take(probes).gpus[0].hidden_reason == "MIG is enabled, but there is no instance"


def test_unread_instances_are_not_taken_for_none() -> None:
    unread = gpu_reading(0, mig_enabled=True, unavailable={"mig_instances": "no right"})
    probes = FakeProbes(readings=reading_of(unread, gpu_reading(1)), cuda_reading=said(uuid(1)))

    reason = take(probes).gpus[0].hidden_reason or ""
    assert reason.startswith("not enumerated by the CUDA driver")


# ------------------------------------------------------------------------------------ processes


def compute(pid: int, used: int | None = None, **place: int) -> ProcessReading:
    return ProcessReading(pid=pid, type="compute", memory_used_bytes=used, **place)


def graphics(pid: int, used: int | None = None) -> ProcessReading:
    return ProcessReading(pid=pid, type="graphics", memory_used_bytes=used)


def test_a_process_in_two_lists_is_one_row() -> None:
    listed = (compute(9, 100), compute(3), graphics(9, 100), graphics(4, 5))

    [gpu] = gpus_of(gpu_reading(0, processes=listed))

    assert [(p.pid, p.type, p.memory_used_bytes) for p in gpu.processes] == [
        (3, "compute", None),
        (4, "graphics", 5),
        (9, "compute+graphics", 100),
    ]


@pytest.mark.parametrize(("first", "second"), [(None, 7), (7, None), (7, 7)])
def test_one_list_may_know_the_memory(first: int | None, second: int | None) -> None:
    [gpu] = gpus_of(gpu_reading(0, processes=(compute(9, first), graphics(9, second))))

    assert gpu.processes[0].memory_used_bytes == 7


def test_a_process_on_two_instances_is_two_rows() -> None:
    on_a = compute(9, 1, gpu_instance_id=7, compute_instance_id=0)
    on_b = compute(9, 2, gpu_instance_id=8, compute_instance_id=0)
    row = gpu_reading(0, mig_enabled=True, mig_instances=MIG, processes=(on_b, on_a))

    [gpu] = gpus_of(row)

    assert {(p.mig_uuid, p.memory_used_bytes) for p in gpu.processes} == {
        ("MIG-a", 1),
        ("MIG-b", 2),
    }


def test_a_process_of_an_unknown_instance_keeps_its_row() -> None:
    stray = compute(9, 1, gpu_instance_id=99, compute_instance_id=0)

    [gpu] = gpus_of(gpu_reading(0, mig_enabled=True, mig_instances=MIG, processes=(stray,)))

    assert [(p.pid, p.mig_uuid) for p in gpu.processes] == [(9, None)]


def test_who_runs_a_process() -> None:
    anna = ProcessIdentity(
        pid=9, name="python", user="anna", command="python train.py", age_s=7200.5
    )
    listed = gpu_reading(0, processes=(compute(9, 1), compute(10, 1)))

    [gpu] = gpus_of(listed, people={9: anna})

    assert [(p.name, p.user, p.command, p.age_s, p.namespace) for p in gpu.processes] == [
        ("python", "anna", "python train.py", 7200.5, "own"),
        (None, None, None, None, "unknown"),
    ]
    assert gpu.unavailable["processes.age_s"] == "/proc does not show when every process started"


def test_utilization_of_a_process() -> None:
    row = gpu_reading(0, processes=(compute(9, 1), compute(8, 1)), process_utilization={"9": 40})

    [gpu] = gpus_of(row)

    assert [(p.pid, p.utilization_sm_percent) for p in gpu.processes] == [(8, None), (9, 40)]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({}, "not requested"),
        ({"process_utilization": {"9": 40}}, "the driver has no sample of every process"),
        ({"unavailable": {"process_utilization": "no permission"}}, "no permission"),
    ],
)
def test_a_utilization_that_is_missing_has_its_reason(
    changes: dict[str, object], reason: str
) -> None:
    [gpu] = gpus_of(gpu_reading(0, processes=(compute(9, 1), compute(8, 1)), **changes))

    assert gpu.unavailable["processes.utilization_sm_percent"] == reason
    assert "process_utilization" not in gpu.unavailable


# ----------------------------------------------------------------------------------- the kernel


def test_numa_node_and_cores_are_found_by_bus_id() -> None:
    devices = tuple(
        PciDeviceReading(
            pci_bus_id=f"0000:{bus}:00.0", vendor_id="0x10de", numa_node=node, cpu_affinity=cpus
        )
        for bus, node, cpus in (("11", 1, "16-31"), ("10", 0, "0-15"))
    )
    kernel = KernelReading(pci_devices=devices)

    gpus = gpus_of(gpu_reading(0), gpu_reading(1), gpu_reading(2), kernel_reading=kernel)

    assert [(gpu.numa_node, gpu.cpu_affinity) for gpu in gpus] == [
        (0, "0-15"),
        (1, "16-31"),
        (None, None),
    ]
    assert gpus[2].unavailable["numa_node"]


def test_what_the_kernel_knows_needs_no_reason_of_nvml_s() -> None:
    device = PciDeviceReading(
        pci_bus_id="0000:10:00.0", vendor_id="0x10de", numa_node=1, cpu_affinity="0-15"
    )
    reasons = {"numa_node": "not supported", "cpu_affinity": "not supported"}

    [gpu] = gpus_of(
        gpu_reading(0, unavailable=reasons), kernel_reading=KernelReading(pci_devices=(device,))
    )

    assert (gpu.numa_node, gpu.cpu_affinity) == (1, "0-15")
    assert {*reasons}.isdisjoint(gpu.unavailable)


@pytest.mark.parametrize(
    ("bus", "kernel", "reason"),
    [
        (None, {}, "its PCI bus id is not known"),
        ("0000:10:00.0", {}, "the kernel does not report it"),
        ("0000:11:00.0", {}, "the kernel does not list the GPU"),
        ("0000:10:00.0", {"pci_devices": None, "pci_unavailable": "no sysfs"}, "no sysfs"),
    ],
)
def test_a_numa_node_that_is_missing_has_its_reason(
    bus: str | None, kernel: dict[str, object], reason: str
) -> None:
    device = PciDeviceReading(pci_bus_id="0000:10:00.0", vendor_id="0x10de")
    reading = KernelReading(**{"pci_devices": (device,), **kernel})  # type: ignore[arg-type]

    [gpu] = gpus_of(gpu_reading(0, pci_bus_id=bus), kernel_reading=reading)

    assert (gpu.numa_node, gpu.unavailable["numa_node"]) == (None, reason)


def without_memory(reason: str) -> dict[str, object]:
    return {"memory_total_bytes": None, "unavailable": {"memory_total_bytes": reason}}


@pytest.mark.parametrize(
    ("changes", "source"),
    [
        ({}, "driver"),
        ({"memory_total_bytes": None, "unavailable": {}}, "driver"),
        (without_memory("no permission (NVML error 4)"), "driver"),
        (without_memory("not supported (NVML error 3)"), "system"),
        (without_memory("not supported (NVML 3)"), "system"),  # as older recordings say it
        ({**without_memory("not supported (NVML error 3)"), "failure": LOST}, "driver"),
    ],
)
def test_memory_without_a_size_of_its_own_is_the_systems(
    changes: dict[str, object], source: str
) -> None:
    kernel = KernelReading(memory_total_bytes=100, memory_available_bytes=30)

    [gpu] = gpus_of(gpu_reading(0, **changes), kernel_reading=kernel)

    assert gpu.memory_source == source
    if source == "system":
        memory = (gpu.memory_total_bytes, gpu.memory_used_bytes, gpu.memory_free_bytes)
        assert memory == (100, 70, 30)
        assert "memory_total_bytes" not in gpu.unavailable
        # A kernel before 3.14 does not say how much is available.
        [old] = gpus_of(
            gpu_reading(0, **changes), kernel_reading=kernel._replace(memory_available_bytes=None)
        )
        assert (old.memory_total_bytes, old.memory_used_bytes, old.memory_free_bytes) == (
            100,
            None,
            None,
        )


def test_topology_comes_on_request() -> None:
    topology = TopologyReading(pairs=(PairReading(from_=0, to=1, level=20),))
    readings = reading_of(gpu_reading(0), gpu_reading(1), topology=topology)

    inventory = take(FakeProbes(readings=readings), topology=True)

    assert inventory.topology is not None
    assert inventory.topology.links[0].kind == "PXB"


def test_a_topology_that_was_not_read_is_a_warning() -> None:
    probes = FakeProbes(readings=reading_of(gpu_reading(0)))

    assert codes(take_inventory(probes, topology=True)) == ["topology-unknown"]


# ------------------------------------------------------------------------------ broken machines


def test_a_lost_gpu_keeps_its_row() -> None:
    lost = gpu_reading(1, uuid=None, name=None, failure=LOST, unavailable={"name": LOST.message})
    answer = take_inventory(FakeProbes(readings=reading_of(gpu_reading(0), lost)))

    first, second = found(answer).gpus

    assert (answer.exit_code, answer.error) == (ExitCode.OK, None)
    assert (first.state, second.state) == (GpuState.OK, GpuState.LOST)
    assert second.error == LOST.message
    assert second.unavailable["name"] == LOST.message
    assert codes(answer) == ["gpu-lost", "cuda-order-unknown"]


@pytest.mark.parametrize("code", ["reset-required", "driver-not-answering"])
def test_another_failure_of_a_gpu_is_an_error(code: str) -> None:
    failure = ProbeFailure(code=code, message="text")

    [gpu] = gpus_of(gpu_reading(0, failure=failure))

    assert (gpu.state, gpu.error) == (GpuState.ERROR, "text")


def test_a_gpu_that_answers_nothing_basic_is_an_error() -> None:
    nothing = gpu_reading(
        0, uuid=None, name=None, memory_total_bytes=None, unavailable={"uuid": "no right"}
    )

    [gpu] = gpus_of(nothing)

    assert (gpu.state, gpu.error) == (GpuState.ERROR, "no right")


def test_a_driver_that_hangs_on_the_way_leaves_rows_for_the_rest() -> None:
    readings = reading_of(gpu_reading(0), gpu_count=3, failure=HUNG)
    probes = FakeProbes(readings=readings)

    answer = take_inventory(probes)

    assert answer.exit_code is ExitCode.INCONCLUSIVE
    assert answer.error is not None
    assert answer.error.code == "nvml-driver-not-answering"
    assert [(gpu.index, gpu.state) for gpu in found(answer).gpus] == [
        (0, GpuState.OK),
        (1, GpuState.ERROR),
        (2, GpuState.ERROR),
    ]
    silent = found(answer).gpus[2]
    empty = {name for name in Gpu._fields if getattr(silent, name) is None}
    assert empty - set(silent.unavailable) == {"hidden_reason", *NOT_ASKED_FOR}
    assert silent.error == HUNG.message


def test_silent_gpus_are_one_warning() -> None:
    readings = reading_of(gpu_reading(0), gpu_count=4, failure=HUNG)

    first, *_ = take_inventory(FakeProbes(readings=readings)).warnings

    assert first.code == "gpu-error"
    assert first.message.startswith("GPUs 1, 2, 3 do not answer: ")


@pytest.mark.parametrize("ask_driver", [True, False])
def test_a_hung_driver_is_not_asked_again(*, ask_driver: bool) -> None:
    readings = reading_of(gpu_reading(0), gpu_count=2, failure=HUNG)
    probes = FakeProbes(readings=readings)

    answer = take_inventory(probes, ask_driver=ask_driver)

    assert "cuda" not in probes.asked
    assert (found(answer).visibility.open_question or "").endswith(
        "CUDA was not asked, because it may hang on that GPU too"
    )


def test_without_gpus_nothing_else_is_looked_at() -> None:
    probes = FakeProbes(readings=NvmlReading(failure=HUNG))

    take(probes, ask_driver=True)

    assert probes.asked == ["start_cuda", "nvml"]  # what was started is not waited for


#: These leave it open whether there are GPUs; after all others there is no driver to list them.
UNDECIDED = {"timeout", "driver-not-answering", "nvml-child-died", "not-recorded"}
CODES = {slug: number for number, (slug, _) in REASONS.items()}
FAILURES = {*CODES, *UNDECIDED, "binding-missing", "binding-failed", "binding-too-old", "unlisted"}


@pytest.mark.parametrize("code", sorted(FAILURES))
def test_every_failure_ends_in_an_empty_list_a_sentence_and_the_next_step(code: str) -> None:
    failure = ProbeFailure(code=code, message="the reason", library_code=CODES.get(code))
    probes = FakeProbes(readings=NvmlReading(failure=failure))

    answer = take_inventory(probes)

    expected = ExitCode.INCONCLUSIVE if code in UNDECIDED else ExitCode.MISSING
    assert answer.exit_code is expected
    assert found(answer).gpus == ()
    assert answer.error is not None
    assert answer.error.code == f"nvml-{code.removeprefix('nvml-')}"
    number = f" (NVML error {CODES[code]})" if code in CODES else ""
    assert answer.error.message == f"The GPUs cannot be listed: the reason{number}."
    assert answer.error.remedy == ("Run: gpucheck detect",)


def test_no_gpu_is_said_as_such() -> None:
    answer = take_inventory(FakeProbes(readings=reading_of()))

    assert answer.exit_code is ExitCode.MISSING
    assert answer.error is not None
    assert answer.error.code == "nvml-no-gpu"


def test_programs_get_the_gpus_or_an_exception() -> None:
    assert len(list_gpus(FakeProbes(readings=reading_of(gpu_reading(0))))) == 1
    with pytest.raises(MissingError, match="cannot be listed"):
        list_gpus(FakeProbes(readings=reading_of()))
    with pytest.raises(InconclusiveError, match="did not answer"):
        list_gpus(FakeProbes(readings=NvmlReading(failure=HUNG)))


# --------------------------------------------------------------------------- cards that hang


@pytest.mark.parametrize(
    ("broken", "expected"),
    [
        ((), (ExitCode.OK, None)),
        ((0,), (ExitCode.OK, None)),
        ((0, 1), (ExitCode.BAD, "None of the 2 GPUs answers: it fell off the bus.")),
    ],
)
def test_a_list_of_silent_gpus_is_a_bad_answer(
    broken: tuple[int, ...], expected: tuple[ExitCode, str | None]
) -> None:
    rows = (gpu_reading(at, failure=LOST if at in broken else None) for at in range(2))
    answer = judge_list(take_inventory(FakeProbes(readings=reading_of(*rows))))

    assert (answer.exit_code, answer.error and answer.error.message) == expected


def test_one_silent_gpu_is_a_bad_answer_too() -> None:
    readings = reading_of(gpu_reading(0, failure=LOST))
    answer = judge_list(take_inventory(FakeProbes(readings=readings)))

    assert answer.error is not None
    assert answer.error.message == "The GPU does not answer: it fell off the bus."
    assert answer.error.code == "no-gpu-answers"


def test_a_list_that_failed_keeps_its_failure() -> None:
    failed = take_inventory(FakeProbes(readings=NvmlReading(failure=HUNG)))

    assert judge_list(failed) is failed


# ----------------------------------------------------------------------- filters and order


RULES = Visibility(cuda_visible_devices=None, cuda_device_order=None, decided_by=DecidedBy.RULES)


def gpu(index: int, **changes: object) -> Gpu:
    uuid = f"GPU-{index:x}aa1111-2222-3333-4444-555555555555"
    bus = f"0000:{index + 10:02x}:00.0"
    return row(index, **{"uuid": uuid, "pci_bus_id": bus, **changes})


def inventory(*gpus: Gpu, topology: Topology | None = None) -> Inventory:
    return Inventory(gpus=gpus, visibility=RULES, topology=topology)


FOUR = inventory(*(gpu(index) for index in range(4)))
INSTANCE = MigInstance(uuid="MIG-9999", name="1g.5gb")


def indices(found: Inventory) -> list[int]:
    return [gpu.index for gpu in found.gpus]


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        ((), [0, 1, 2, 3]),
        (("2",), [2]),
        (("02",), [2]),
        (("3", "1"), [1, 3]),
        (("1", "1"), [1]),
        (("GPU-2aa1111-2222-3333-4444-555555555555",), [2]),
        (("GPU-2",), [2]),
        (("gpu-2AA",), [2]),
        (("GPU-",), [0, 1, 2, 3]),
        (("0000:0b:00.0",), [1]),
        (("00000000:0B:00.0",), [1]),
        (("0b:00.0",), [1]),
        (("0", "0c:00.0", "GPU-3"), [0, 2, 3]),
    ],
)
def test_names(wanted: tuple[str, ...], expected: list[int]) -> None:
    assert indices(select_gpus(FOUR, wanted)) == expected


def test_a_large_pci_domain() -> None:
    found = inventory(gpu(0), gpu(1, pci_bus_id="10001:0b:00.0"))

    assert indices(select_gpus(found, ["10001:0b:00.0"])) == [1]
    assert indices(select_gpus(found, ["00010001:0b:00.0"])) == [1]


def test_a_mig_instance_names_its_gpu() -> None:
    split = inventory(gpu(0), gpu(1, mig=MigState(enabled=True, instances=(INSTANCE,))))

    assert indices(select_gpus(split, ["MIG-99"])) == [1]


@pytest.mark.parametrize("name", ["4", "GPU-f", "MIG-1", "0000:99:00.0", "9" * 5000])
def test_nobody_has_that_name(name: str) -> None:
    with pytest.raises(BadAnswerError, match=r"only GPUs 0-3\.") as caught:
        select_gpus(FOUR, [name])

    assert caught.value.code == "no-such-gpu"


@pytest.mark.parametrize("name", ["x", "-1", "1.0", "GPU", "0b:00", "\u0661", "", "0 1", "cuda:0"])
def test_that_is_no_name(name: str) -> None:
    with pytest.raises(WrongUseError, match="index, its UUID or its PCI bus id"):
        select_gpus(FOUR, [name])


def test_without_gpus_there_is_nothing_to_choose_from() -> None:
    assert select_gpus(inventory(), ["0"]) == inventory()


@given(st.text(max_size=20))
def test_any_text_is_a_name_or_refused_with_a_sentence(name: str) -> None:
    message = None
    found = inventory()
    try:
        found = select_gpus(FOUR, [name])
    except (WrongUseError, BadAnswerError) as error:
        message = error.message

    assert bool(found.gpus) != (message is not None)
    assert message is None or message.endswith(".")
    assert set(indices(found)) <= {0, 1, 2, 3}


LINKS = Topology(
    links=tuple(TopologyLink(from_=a, to=b, kind="SYS") for a in range(4) for b in range(a + 1, 4))
)


def test_links_among_those_kept_stay() -> None:
    found = select_gpus(FOUR._replace(topology=LINKS), ["0", "2"])

    assert found.topology is not None
    assert [(link.from_, link.to) for link in found.topology.links] == [(0, 2)]


def test_keep_by_any_rule() -> None:
    assert indices(keep(FOUR, lambda item: item.index % 2 == 1)) == [1, 3]


def test_of_user() -> None:
    anna, bert = GpuProcess(pid=1, type="compute", user="anna"), GpuProcess(pid=2, type="mps")
    both = gpu(0, processes=(anna, bert))
    found = keep_user(inventory(both, gpu(1, processes=(bert,)), gpu(2), topology=LINKS), "anna")

    assert indices(found) == [0]
    assert found.gpus[0].processes == (anna,)
    assert found.topology == Topology(links=())


def test_of_nobody_is_of_everybody() -> None:
    assert keep_user(FOUR, None) is FOUR


def by_temperature(item: Gpu) -> int | None:
    return item.temperature_c


@pytest.mark.parametrize(
    ("descending", "expected"), [(False, [1, 2, 4, 3, 0]), (True, [3, 2, 4, 1, 0])]
)
def test_ties_keep_their_order_and_nulls_come_last(
    *, descending: bool, expected: list[int]
) -> None:
    degrees = (None, 30, 40, 50, 40)
    found = inventory(*(gpu(i, temperature_c=value) for i, value in enumerate(degrees)))

    ordered = sort_gpus(found, by_temperature, descending=descending)

    assert indices(ordered) == expected


@given(
    degrees=st.lists(st.none() | st.integers(-40, 120), max_size=8),
    descending=st.booleans(),
)
def test_sorting_keeps_the_set(degrees: list[int | None], *, descending: bool) -> None:
    found = inventory(*(gpu(i, temperature_c=value) for i, value in enumerate(degrees)))

    ordered = sort_gpus(found, by_temperature, descending=descending)

    assert sorted(indices(ordered)) == indices(found)
    values = [item.temperature_c for item in ordered.gpus if item.temperature_c is not None]
    assert values == sorted(values, reverse=descending)


@pytest.mark.parametrize("name", COLUMNS)
def test_every_column_can_be_sorted_by(name: str) -> None:
    full = gpu(1, temperature_c=40, power_w=1.5, mig=MigState(enabled=True), error="x", serial="1")

    found = sort_gpus(inventory(gpu(0), full, gpu(2)), COLUMNS[name].value, descending=True)

    assert sorted(indices(found)) == [0, 1, 2]


@pytest.mark.parametrize(
    ("number", "version"), [(12020, "12.2"), (11080, "11.8"), (13000, "13.0"), (12090, "12.9")]
)
def test_cudas_number_becomes_its_version(number: int, version: str) -> None:
    assert cuda_version(number) == version
