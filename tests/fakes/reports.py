"""Finished reports of pretended machines, and strategies that generate reports."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from gpucheck.cli import output
from gpucheck.drivers.readings import (
    CudaDeviceReading,
    CudaReading,
    KernelReading,
    MigReading,
    NvlinkReading,
    PairReading,
    PciDeviceReading,
    ProbeFailure,
    ProcessIdentity,
    ProcessReading,
    TopologyReading,
)
from gpucheck.inventory.inventory import take_inventory
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
from gpucheck.report.envelope import Answer, Report
from gpucheck.report.errors import ExitCode
from gpucheck.report.host import Host
from tests.fakes.probes import FakeProbes, gpu_reading, reading_of

GIB = 1 << 30
LOST = ProbeFailure(
    code="gpu-is-lost",
    message="the GPU has fallen off the bus or is otherwise inaccessible",
    library_code=15,
)


def wrap(command: str, answer: Answer) -> Report:
    """Wrap an answer in its command's envelope."""
    return output.wrap(command, answer, time="2026-01-02T03:04:05Z")


def eventful_machine() -> FakeProbes:
    """Return a machine with everything: busy, slow link, split, hidden, lost, foreign processes."""
    rows = (
        gpu_reading(
            0,
            memory_used_bytes=75 * GIB,
            utilization_gpu_percent=100,
            processes=(
                ProcessReading(pid=4242, type="compute", memory_used_bytes=60 * GIB),
                ProcessReading(pid=77, type="graphics"),
            ),
            process_utilization={"4242": 98},
        ),
        gpu_reading(1, pcie_generation=3, pcie_width=8, serial=None),
        gpu_reading(
            2,
            name="NVIDIA A100-SXM4-40GB",
            memory_total_bytes=40 * GIB,
            memory_used_bytes=None,
            mig_enabled=True,
            mig_instances=(
                _instance("a", "3g.20gb", 20 * GIB, 5 * GIB, 1),
                _instance("b", "1g.5gb", 5 * GIB, 10 << 20, 2),
            ),
            processes=(
                ProcessReading(
                    pid=9,
                    type="compute",
                    memory_used_bytes=5 * GIB,
                    gpu_instance_id=1,
                    compute_instance_id=0,
                ),
            ),
            unavailable={"memory_used_bytes": "no permission to read it (NVML error 4)"},
        ),
        gpu_reading(
            3,
            failure=LOST,
            **dict.fromkeys(UNREAD_WHEN_LOST),
            unavailable=dict.fromkeys((*UNREAD_WHEN_LOST, "processes"), LOST.message),
        ),
    )
    command = "python3 train.py --data /data/imagenet --model resnet50 --epochs 100 --lr 0.1"
    ordinals = (rows[1].uuid, rows[0].uuid, _mig_uuid("b"))
    return FakeProbes(
        readings=reading_of(*rows, topology=_wiring()),
        people={
            4242: ProcessIdentity(
                pid=4242, name="python3", user="anna", command=command, age_s=7260.0
            ),
            77: ProcessIdentity(pid=77, namespace="other"),
            9: ProcessIdentity(pid=9, name="jup\x1b[2Jyter", user="b\u00e9atrice"),
        },
        kernel_reading=KernelReading(
            pci_devices=tuple(
                PciDeviceReading(
                    pci_bus_id=f"0000:{at + 16:02x}:00.0",
                    vendor_id="0x10de",
                    driver="nvidia",
                    numa_node=at // 2,
                    cpu_affinity=f"{at // 2 * 32}-{at // 2 * 32 + 31}",
                )
                for at in range(4)
            ),
            module_loaded=True,
            module_version="580.95.05",
        ),
        cuda_reading=CudaReading(
            driver_version=13000,
            device_count=3,
            devices=tuple(
                CudaDeviceReading(ordinal=at, uuid_hex=(uuid or "")[4:].replace("-", ""))
                for at, uuid in enumerate(ordinals)
            ),
        ),
        variables={"CUDA_VISIBLE_DEVICES": f"1,0,{_mig_uuid('b')}"},
    )


UNREAD_WHEN_LOST = (
    "memory_total_bytes",
    "memory_used_bytes",
    "memory_free_bytes",
    "utilization_gpu_percent",
    "utilization_memory_percent",
    "temperature_c",
    "power_w",
    "power_limit_w",
    "clock_sm_mhz",
    "clock_sm_max_mhz",
    "performance_state",
    "pcie_generation",
    "pcie_generation_max",
    "pcie_width",
    "pcie_width_max",
)


def _mig_uuid(digit: str) -> str:
    return "MIG-" + "-".join(digit * length for length in (8, 4, 4, 4, 12))


def _instance(digit: str, profile: str, total: int, used: int, number: int) -> MigReading:
    return MigReading(
        uuid=_mig_uuid(digit),
        name=f"NVIDIA A100-SXM4-40GB MIG {profile}",
        memory_total_bytes=total,
        memory_used_bytes=used,
        gpu_instance_id=number,
        compute_instance_id=0,
    )


def _wiring() -> TopologyReading:
    """Return GPUs 0 and 1 with four NVLinks, the rest over PCIe, the lost one unreadable."""
    pairs = [
        PairReading(from_=a, to=b, level=20 if b < 2 else 50) for b in range(3) for a in range(b)
    ]
    pairs += [PairReading(from_=a, to=3, level=None, unavailable="it is lost") for a in range(3)]
    links = [
        NvlinkReading(
            gpu=gpu,
            link=link,
            active=True,
            remote_type="gpu",
            remote_pci_bus_id=f"0000:{17 - gpu:02x}:00.0",
        )
        for gpu in range(2)
        for link in range(4)
    ]
    return TopologyReading(pairs=tuple(pairs), nvlinks=tuple(links))


def list_report(probes: FakeProbes | None = None, **request: bool) -> Report:
    """Return the answer of `gpucheck list --ask-driver`: with a lost card only CUDA has numbers."""
    machine: Any = probes or eventful_machine()  # it has the methods of our probes
    if not request.get("topology"):
        machine.readings = machine.readings._replace(topology=None)
    asked = request.pop("ask_driver", True)
    return wrap(
        "list", take_inventory(machine, ask_driver=asked, topology=request.get("topology", False))
    )


# ------------------------------------------------------------------------------- any report

#: Any text, often with terminal control codes.
NASTY = st.text(max_size=40) | st.sampled_from(
    ["\x1b[31mred", "a\nb", "\r", "\t", "\x9b2J", "\u202eevil", "\u4e2d" * 30, "e\u0301", "\x00"]
)
COUNTS = st.integers(0, 1 << 50)


def maybe(strategy: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Return the strategy, and null."""
    return st.none() | strategy


PERCENT = st.integers(0, 100)
WATTS = st.floats(0, 2000)
INSTANCES = st.builds(
    MigInstance,
    uuid=maybe(NASTY),
    name=maybe(NASTY),
    memory_total_bytes=maybe(COUNTS),
    memory_used_bytes=maybe(COUNTS),
    cuda_index=maybe(st.integers(0, 64)),
)
PROCESSES = st.builds(
    GpuProcess,
    pid=st.integers(1, 1 << 22),
    type=st.sampled_from(["compute", "graphics", "compute+graphics", "mps"]) | NASTY,
    name=maybe(NASTY),
    user=maybe(NASTY),
    command=maybe(NASTY),
    memory_used_bytes=maybe(COUNTS),
    utilization_sm_percent=maybe(PERCENT),
    mig_uuid=maybe(NASTY),
    age_s=maybe(st.floats(0, 1e9)),
    namespace=st.sampled_from(["own", "other", "unknown"]),
)
LINKS = st.builds(
    PcieLink,
    generation=maybe(st.integers(1, 7)),
    generation_max=maybe(st.integers(1, 7)),
    width=maybe(st.integers(1, 16)),
    width_max=maybe(st.integers(1, 16)),
)


def gpus(index: int) -> st.SearchStrategy[Gpu]:
    """Return any GPU of this index."""
    return st.builds(
        Gpu,
        index=st.just(index),
        cuda_index=maybe(st.integers(0, 64)),
        visible=maybe(st.booleans()),
        hidden_reason=maybe(NASTY),
        uuid=maybe(NASTY),
        name=maybe(NASTY),
        serial=maybe(NASTY),
        pci_bus_id=maybe(NASTY),
        architecture=maybe(NASTY),
        compute_capability=maybe(NASTY),
        memory_total_bytes=maybe(COUNTS),
        memory_used_bytes=maybe(COUNTS),
        memory_free_bytes=maybe(COUNTS),
        utilization_gpu_percent=maybe(PERCENT),
        utilization_memory_percent=maybe(PERCENT),
        temperature_c=maybe(st.integers(-40, 200)),
        fan_percent=maybe(PERCENT),
        power_w=maybe(WATTS),
        power_limit_w=maybe(WATTS),
        clock_sm_mhz=maybe(COUNTS),
        clock_sm_max_mhz=maybe(COUNTS),
        performance_state=maybe(st.integers(0, 15)),
        persistence_mode=maybe(st.booleans()),
        compute_mode=maybe(NASTY),
        ecc_mode=maybe(st.booleans()),
        pcie=LINKS,
        numa_node=maybe(st.integers(0, 9)),
        cpu_affinity=maybe(NASTY),
        mig=st.builds(
            MigState,
            enabled=maybe(st.booleans()),
            instances=st.lists(INSTANCES, max_size=2).map(tuple),
        ),
        processes=st.lists(PROCESSES, max_size=2).map(tuple),
        state=st.sampled_from(GpuState),
        error=maybe(NASTY),
        unavailable=st.dictionaries(st.sampled_from(["processes", "mig.instances"]), NASTY),
    )


@st.composite
def any_list(draw: st.DrawFn) -> Report:
    """Any list, including ones that no machine would give."""
    count = draw(st.integers(0, 3))
    kinds = maybe(st.sampled_from(["NV18", "SYS"]) | NASTY)
    links = (
        TopologyLink(from_=a, to=b, kind=draw(kinds), unavailable=draw(maybe(NASTY)))
        for b in range(count)
        for a in range(b)
    )
    inventory = Inventory(
        gpus=tuple(draw(gpus(index)) for index in range(count)),
        visibility=Visibility(
            cuda_visible_devices=draw(maybe(NASTY)),
            cuda_device_order=None,
            decided_by=DecidedBy.RULES,
        ),
        topology=draw(maybe(st.just(Topology(links=tuple(links))))),
    )
    host = Host(name=draw(maybe(NASTY)), driver_version=draw(maybe(NASTY)))
    return wrap("list", Answer(result=inventory, exit_code=ExitCode.OK, host=host))
