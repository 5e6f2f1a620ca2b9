"""Strict reading of machine files, and the meaning of the repository's machines."""

import dataclasses
import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fakes.machine import (
    Machine,
    MachineError,
    cpus_of,
    load_machine,
    machine_names,
    parse_fail,
    parse_hang,
    parse_machine,
)

GPU = """
name = "A"
pci_device_id = 1
compute_capability = "9.0"
sm_count = 1
memory_total_bytes = 10
"""
ONE_GPU = f"[[gpu]]{GPU}"


@pytest.mark.parametrize("name", machine_names())
def test_every_machine_file_loads_and_says_what_it_is(name: str) -> None:
    machine = load_machine(name)
    assert machine.name == name
    assert machine.description.endswith(".")
    assert machine.gpus


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("nonsense = 1", "unknown key 'nonsense'"),
        ("= 1", "is no TOML"),
        (ONE_GPU + "temprature_c = 3", "Did you mean 'temperature_c'?"),
        (ONE_GPU + 'temperature_c = "hot"', "expected int, found str"),
        (ONE_GPU + "temperature_c = true", "expected int, found bool"),
        (ONE_GPU + "temperature_c = 4.5", "expected int, found float"),
        (ONE_GPU.replace("sm_count = 1", 'sm_count = "unsupported"'), "found str"),
        ('[[gpu]]\nname = "A"', "memory_total_bytes missing"),
        (ONE_GPU + 'pci_bus_id = "1:2"', "is no PCI bus id"),
        (ONE_GPU + 'pci_bus_id = "0000:1A:00.0"', "is no PCI bus id"),
        (ONE_GPU + 'architecture = "hoper"', "none of kepler"),
        (ONE_GPU + "memory_used_bytes = 11", "more memory is used"),
        (ONE_GPU + "row_remapper_histogram = [1]", "five numbers"),
        (ONE_GPU + 'mig = [{profile = "x"}]', "memory_total_bytes, sm_count missing"),
        (
            ONE_GPU
            + 'mig = [{profile = "x", gpu_instance_id = 1, memory_total_bytes = 1, sm_count = 1}]',
            "without mig_mode",
        ),
        (ONE_GPU + 'count = "two"', "expected int"),
        (ONE_GPU + 'uuid = "GPU-1"\n' + ONE_GPU + 'uuid = "GPU-1"', "the same uuid"),
        (
            ONE_GPU + 'pci_bus_id = "0000:20:00.0"\n' + ONE_GPU + 'pci_bus_id = "0000:01:00.0"',
            "order of their PCI bus ids",
        ),
        (ONE_GPU + "[[process]]\npid = 1\non = [{gpu = 1}]", "there is no GPU 1"),
        (ONE_GPU + '[[process]]\npid = 1\non = [{gpu = 0, type = "x"}]', "none of compute"),
        (ONE_GPU + "[[process]]\npid = 1\non = [{gpu = 0, mig = 0}]", "has no MIG 0"),
        (ONE_GPU + '[topology]\npaths = [{gpus = [0, 1], kind = "PIX"}]', "not two GPUs"),
        (ONE_GPU + '[topology]\nsame_node = "NEAR"', "none of internal"),
        ('faults = ["break nvmlInit"]', "none of fail, hang"),
        ('faults = ["fail nvmlInit"]', "error code is needed"),
        ('[host]\nenvironment = "moon"', "none of bare-metal"),
        ("[driver]\ncuda_version = true", "expected int, found bool"),
    ],
)
def test_a_wrong_machine_file_is_refused_with_the_reason(text: str, problem: str) -> None:
    with pytest.raises(MachineError) as refused:
        parse_machine(text, "wrong")
    assert problem in str(refused.value)
    assert str(refused.value).startswith("wrong.toml")


def test_an_unknown_machine_is_named_with_the_known_ones() -> None:
    with pytest.raises(MachineError, match="there are a100-mig, busy"):
        load_machine("h1000")


def test_defaults_hold_where_a_gpu_says_nothing() -> None:
    text = f"[defaults]{GPU}temperature_c = 5\n[[gpu]]\n[[gpu]]\ntemperature_c = 6\n"
    text += '[[gpu]]\ntemperature_c = "unsupported"\n'
    machine = parse_machine(text, "m")
    assert [gpu.temperature_c for gpu in machine.gpus] == [5, 6, None]


def test_repeated_gpus_have_identities_of_their_own_and_always_the_same() -> None:
    text = f"[[gpu]]{GPU}count = 20\n"
    machine = parse_machine(text, "m")
    for what in ("uuid", "serial", "pci_bus_id", "minor_number"):
        assert len({getattr(gpu, what) for gpu in machine.gpus}) == 20
    assert machine == parse_machine(text, "m")
    assert machine.gpus[0].uuid != parse_machine(text, "other").gpus[0].uuid
    assert all(uuid.UUID(gpu.uuid.removeprefix("GPU-")) for gpu in machine.gpus)


@pytest.mark.parametrize("name", ["h100x8", "a100-mig", "geforce"])
@pytest.mark.parametrize("count", [0, 1, 8, 64])
def test_a_machine_can_have_any_number_of_gpus(name: str, count: int) -> None:
    machine = load_machine(name)
    grown = machine.with_gpus(count)
    kept = min(count, len(machine.gpus))
    assert grown.gpus[:kept] == machine.gpus[:kept]
    assert [gpu.index for gpu in grown.gpus] == list(range(count))
    instances = [instance.uuid for gpu in grown.gpus for instance in gpu.mig]
    assert len(set(instances)) == len(instances)


def test_a_machine_without_gpus_cannot_grow() -> None:
    with pytest.raises(MachineError, match="cannot be made to have 2"):
        parse_machine("", "empty").with_gpus(2)


def test_overrides_leave_the_machine_as_it_was() -> None:
    machine = load_machine("t4")
    changed = machine.with_gpu(0, temperature_c=95).with_driver(cuda=False)
    changed = changed.broken(fail=["nvmlInit 9"], hang=["cuInit"], missing=["nvmlDeviceGetName"])
    assert (changed.gpus[0].temperature_c, changed.driver.cuda) == (95, False)
    assert [str(fault) for fault in changed.faults] == ["nvmlInit* 9", "cuInit"]
    assert changed.driver.missing == ("nvmlDeviceGetName",)
    assert machine == load_machine("t4")


def test_an_unknown_reading_cannot_be_changed() -> None:
    with pytest.raises(MachineError, match="temprature_c"):
        load_machine("t4").with_gpu(0, temprature_c=1)


def test_raw_bytes_of_a_name_survive() -> None:
    machine = parse_machine(ONE_GPU.replace('"A"', r"'caf\xe9 \xff é'"), "m")
    assert machine.gpus[0].name.encode("utf-8", "surrogateescape") == b"caf\xe9 \xff \xc3\xa9"


def test_connections_are_named_as_nvidia_smi_does() -> None:
    machine = load_machine("p2p-bridge")
    row = [machine.connection(0, other) for other in range(6)]
    assert row == ["internal", "NV4", "PXB", "NODE", "SYS", "SYS"]
    assert machine.connection(4, 5) == "PHB"
    assert load_machine("h100x8").connection(0, 7) == "NV18"


@pytest.mark.parametrize(
    ("text", "function", "gpu", "code", "after"),
    [
        ("nvmlInit 9", "nvmlInit*", None, 9, 0),
        ("* gpu=2 15", "*", 2, 15, 0),
        ("nvmlDeviceGetName 15 gpu=1 after=30", "nvmlDeviceGetName", 1, 15, 30),
        ("cuInit code=100", "cuInit", None, 100, 0),
    ],
)
def test_failures_are_written_in_words(
    text: str, function: str, gpu: int | None, code: int, after: int
) -> None:
    fault = parse_fail(text)
    assert (fault.function, fault.gpu, fault.code, fault.after) == (function, gpu, code, after)
    assert parse_fail(str(fault)) == fault
    assert not fault.hangs


@pytest.mark.parametrize("text", ["", "3", "nvmlInit x", "nvmlInit gpu=-1 3", "a 1 2", "a b=1 3"])
def test_a_failure_that_cannot_be_read_is_refused(text: str) -> None:
    with pytest.raises(MachineError):
        parse_fail(text)


def test_a_hang_has_no_code() -> None:
    assert parse_hang("nvmlDeviceGetName gpu=1").hangs
    with pytest.raises(MachineError, match="cannot read '3'"):
        parse_hang("nvmlDeviceGetName 3")


@given(st.sets(st.integers(0, 255)))
def test_a_cpu_list_is_the_cpus_it_names(cpus: set[int]) -> None:
    assert set(cpus_of(",".join(map(str, sorted(cpus))))) == cpus


def test_a_cpu_list_of_ranges() -> None:
    assert cpus_of("0-3,8,10-11") == (0, 1, 2, 3, 8, 10, 11)
    assert cpus_of("") == ()


def test_machines_cannot_be_changed() -> None:
    machine = load_machine("t4")
    with pytest.raises(dataclasses.FrozenInstanceError):
        machine.name = "other"  # type: ignore[misc]
    with pytest.raises(TypeError):
        machine.gpus[0].fields[1] = 2  # type: ignore[index]
    assert isinstance(machine, Machine)
