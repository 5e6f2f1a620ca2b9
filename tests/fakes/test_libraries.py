"""The pretended libraries, asked by the real pynvml and by ctypes in child processes."""

import contextlib
import importlib.util
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.libraries import CompilerMissingError, build_libraries, compiled, functions
from tests.fakes.machine import (
    ARCHITECTURES,
    BRANDS,
    COMPUTE_MODES,
    PATHS,
    Gpu,
    Machine,
    MachineError,
    cpus_of,
    load_machine,
    parse_machine,
)

pytestmark = pytest.mark.usefixtures("c_compiler")

HERE = Path(__file__).resolve().parent
NOT_SUPPORTED, GPU_IS_LOST, FUNCTION_NOT_FOUND = 3, 15, 13
ANSWERING = (
    "a100-mig",
    "busy",
    "geforce",
    "h100x8",
    "mixed-order",
    "old-driver",
    "p2p-bridge",
    "t4",
    "wsl2",
)
Call = list[Any]


def child_environment(machine: Machine, directory: Path, **extra: str) -> dict[str, str]:
    kept = {name: os.environ[name] for name in ("HOME", "PATH") if name in os.environ}
    return {**kept, "LANG": "C.UTF-8", **build_libraries(machine, directory), **extra}


@pytest.fixture
def ask(tmp_path: Path) -> Callable[..., list[Any]]:
    """Make pynvml calls on a machine: values, or ``{"error": …}`` where one failed."""

    def ask_machine(machine: Machine, calls: Iterable[Call], **variables: str) -> list[Any]:
        finished = subprocess.run(
            [sys.executable, str(HERE / "nvml_caller.py")],
            input=json.dumps([["nvmlInit"], *calls]),
            env=child_environment(machine, tmp_path, **variables),
            capture_output=True,
            encoding="utf-8",
            check=True,
        )
        return [each.get("value", each) for each in json.loads(finished.stdout)][1:]

    return ask_machine


@pytest.fixture
def cuda(tmp_path: Path) -> Callable[..., Any]:
    """Ask libcuda on a machine, with the environment variables given."""

    def ask_cuda(machine: Machine, **variables: str) -> Any:
        finished = subprocess.run(
            [sys.executable, "-I", "-S", str(HERE / "cuda_caller.py")],
            env=child_environment(machine, tmp_path, **variables),
            capture_output=True,
            encoding="utf-8",
            check=True,
        )
        return json.loads(finished.stdout)

    return ask_cuda


def whole(value: bool | None) -> int | None:
    return None if value is None else int(value)


def pair(first: Any, second: Any) -> list[Any] | None:
    return None if first is None else [first, second]


def masked(cpu_list: str | None, words: int) -> list[int] | None:
    if cpu_list is None:
        return None
    bits = sum(1 << cpu for cpu in cpus_of(cpu_list))
    return [bits >> 64 * word & (1 << 64) - 1 for word in range(words)]


#: The calls to pynvml about a GPU, and the machine's values; None = not supported.
READINGS: tuple[tuple[Call, Callable[[Gpu], Any]], ...] = (
    (["nvmlDeviceGetName"], lambda g: g.name),
    (["nvmlDeviceGetUUID"], lambda g: g.uuid),
    (["nvmlDeviceGetSerial"], lambda g: g.serial),
    (["nvmlDeviceGetIndex"], lambda g: g.index),
    (["nvmlDeviceGetMinorNumber"], lambda g: g.minor_number),
    (["nvmlDeviceGetBoardPartNumber"], lambda g: g.board_part_number),
    (["nvmlDeviceGetBoardId"], lambda g: g.board_id),
    (["nvmlDeviceGetVbiosVersion"], lambda g: g.vbios_version),
    (["nvmlDeviceGetInforomImageVersion"], lambda g: g.inforom_image_version),
    (["nvmlDeviceGetBrand"], lambda g: g.brand and BRANDS[g.brand]),
    (["nvmlDeviceGetArchitecture"], lambda g: g.architecture and ARCHITECTURES[g.architecture]),
    (
        ["nvmlDeviceGetCudaComputeCapability"],
        lambda g: [*map(int, g.compute_capability.split("."))],
    ),
    (["nvmlDeviceGetNumGpuCores"], lambda g: g.core_count),
    (["nvmlDeviceGetMemoryBusWidth"], lambda g: g.memory_bus_width_bits),
    (["nvmlDeviceGetBusType"], lambda g: 2),
    (
        ["nvmlDeviceGetMemoryInfo"],
        lambda g: {
            "total": g.memory_total_bytes,
            "free": g.memory_total_bytes - g.memory_used_bytes - g.memory_reserved_bytes,
            "used": g.memory_used_bytes + g.memory_reserved_bytes,
        },
    ),
    (
        ["nvmlDeviceGetMemoryInfo", 0x02000028],
        lambda g: {
            "version": 0x02000028,
            "total": g.memory_total_bytes,
            "reserved": g.memory_reserved_bytes,
            "free": g.memory_total_bytes - g.memory_used_bytes - g.memory_reserved_bytes,
            "used": g.memory_used_bytes,
        },
    ),
    (
        ["nvmlDeviceGetBAR1MemoryInfo"],
        lambda g: (
            g.bar1_total_bytes
            and {
                "bar1Total": g.bar1_total_bytes,
                "bar1Free": g.bar1_total_bytes - (g.bar1_used_bytes or 0),
                "bar1Used": g.bar1_used_bytes,
            }
        ),
    ),
    (
        ["nvmlDeviceGetUtilizationRates"],
        lambda g: (
            None
            if g.utilization_gpu_percent is None
            else {"gpu": g.utilization_gpu_percent, "memory": g.utilization_memory_percent}
        ),
    ),
    (["nvmlDeviceGetEncoderUtilization"], lambda g: pair(g.utilization_encoder_percent, 167000)),
    (["nvmlDeviceGetDecoderUtilization"], lambda g: pair(g.utilization_decoder_percent, 167000)),
    (["nvmlDeviceGetJpgUtilization"], lambda g: pair(g.utilization_jpeg_percent, 167000)),
    (["nvmlDeviceGetOfaUtilization"], lambda g: pair(g.utilization_ofa_percent, 167000)),
    (["nvmlDeviceGetTemperature", 0], lambda g: g.temperature_c),
    (["nvmlDeviceGetTemperatureV", 0], lambda g: g.temperature_c),
    (["nvmlDeviceGetTemperatureThreshold", 0], lambda g: g.temperature_shutdown_c),
    (["nvmlDeviceGetTemperatureThreshold", 1], lambda g: g.temperature_slowdown_c),
    (["nvmlDeviceGetTemperatureThreshold", 2], lambda g: g.temperature_memory_max_c),
    (["nvmlDeviceGetTemperatureThreshold", 3], lambda g: g.temperature_gpu_max_c),
    (["nvmlDeviceGetTemperatureThreshold", 4], lambda g: None),
    (["nvmlDeviceGetMarginTemperature"], lambda g: g.temperature_margin_c),
    (["nvmlDeviceGetNumFans"], lambda g: g.fan_count),
    (["nvmlDeviceGetFanSpeed"], lambda g: g.fan_percent),
    (["nvmlDeviceGetFanSpeed_v2", 0], lambda g: g.fan_percent),
    (["nvmlDeviceGetFanSpeedRPM"], lambda g: g.fan_rpm),
    (["nvmlDeviceGetPowerUsage"], lambda g: g.power_mw),
    (["nvmlDeviceGetPowerManagementLimit"], lambda g: g.power_limit_mw),
    (["nvmlDeviceGetEnforcedPowerLimit"], lambda g: g.power_limit_enforced_mw),
    (["nvmlDeviceGetPowerManagementDefaultLimit"], lambda g: g.power_limit_default_mw),
    (
        ["nvmlDeviceGetPowerManagementLimitConstraints"],
        lambda g: pair(g.power_limit_min_mw, g.power_limit_max_mw),
    ),
    (["nvmlDeviceGetPowerSource"], lambda g: g.power_source),
    (["nvmlDeviceGetTotalEnergyConsumption"], lambda g: g.energy_mj),
    (["nvmlDeviceGetClockInfo", 0], lambda g: g.clock_graphics_mhz),
    (["nvmlDeviceGetClockInfo", 1], lambda g: g.clock_sm_mhz),
    (["nvmlDeviceGetClockInfo", 2], lambda g: g.clock_memory_mhz),
    (["nvmlDeviceGetClockInfo", 3], lambda g: g.clock_video_mhz),
    (["nvmlDeviceGetMaxClockInfo", 0], lambda g: g.clock_graphics_max_mhz),
    (["nvmlDeviceGetMaxClockInfo", 1], lambda g: g.clock_sm_max_mhz),
    (["nvmlDeviceGetMaxClockInfo", 2], lambda g: g.clock_memory_max_mhz),
    (["nvmlDeviceGetMaxClockInfo", 3], lambda g: g.clock_video_max_mhz),
    (["nvmlDeviceGetApplicationsClock", 0], lambda g: g.clock_graphics_application_mhz),
    (["nvmlDeviceGetApplicationsClock", 2], lambda g: g.clock_memory_application_mhz),
    (
        ["nvmlDeviceGetSupportedMemoryClocks"],
        lambda g: g.clocks_memory_supported_mhz and [*g.clocks_memory_supported_mhz],
    ),
    (
        ["nvmlDeviceGetSupportedGraphicsClocks", 1],
        lambda g: g.clocks_graphics_supported_mhz and [*g.clocks_graphics_supported_mhz],
    ),
    (["nvmlDeviceGetCurrentClocksEventReasons"], lambda g: g.clock_event_reasons),
    (["nvmlDeviceGetCurrentClocksThrottleReasons"], lambda g: g.clock_event_reasons),
    (["nvmlDeviceGetSupportedClocksEventReasons"], lambda g: g.clock_event_reasons_supported),
    (["nvmlDeviceGetSupportedClocksThrottleReasons"], lambda g: g.clock_event_reasons_supported),
    (["nvmlDeviceGetPerformanceState"], lambda g: g.performance_state),
    (["nvmlDeviceGetPersistenceMode"], lambda g: whole(g.persistence_mode)),
    (["nvmlDeviceGetComputeMode"], lambda g: g.compute_mode and COMPUTE_MODES[g.compute_mode]),
    (["nvmlDeviceGetDisplayMode"], lambda g: whole(g.display_mode)),
    (["nvmlDeviceGetDisplayActive"], lambda g: whole(g.display_active)),
    (["nvmlDeviceGetAccountingMode"], lambda g: whole(g.accounting_mode)),
    (["nvmlDeviceGetVirtualizationMode"], lambda g: g.virtualization_mode),
    (["nvmlDeviceGetGspFirmwareVersion"], lambda g: g.gsp_firmware_version),
    (["nvmlDeviceGetGspFirmwareMode"], lambda g: pair(whole(g.gsp_mode), whole(g.gsp_mode))),
    (["nvmlDeviceGetEccMode"], lambda g: pair(whole(g.ecc_mode), whole(g.ecc_mode_pending))),
    (["nvmlDeviceGetTotalEccErrors", 0, 0], lambda g: g.ecc_corrected_volatile),
    (["nvmlDeviceGetTotalEccErrors", 1, 0], lambda g: g.ecc_uncorrected_volatile),
    (["nvmlDeviceGetTotalEccErrors", 0, 1], lambda g: g.ecc_corrected_aggregate),
    (["nvmlDeviceGetTotalEccErrors", 1, 1], lambda g: g.ecc_uncorrected_aggregate),
    (["nvmlDeviceGetMemoryErrorCounter", 1, 0, 7], lambda g: g.ecc_sram_uncorrected_volatile),
    (
        ["nvmlDeviceGetMemoryErrorCounter", 1, 1, 2],
        lambda g: (
            None
            if g.ecc_uncorrected_aggregate is None
            else g.ecc_uncorrected_aggregate - (g.ecc_sram_uncorrected_aggregate or 0)
        ),
    ),
    (
        ["nvmlDeviceGetRetiredPages", 0],
        lambda g: None if g.retired_pages_single_bit is None else [*g.retired_pages_single_bit],
    ),
    (
        ["nvmlDeviceGetRetiredPages", 1],
        lambda g: None if g.retired_pages_double_bit is None else [*g.retired_pages_double_bit],
    ),
    (["nvmlDeviceGetRetiredPagesPendingStatus"], lambda g: whole(g.retired_pages_pending)),
    (
        ["nvmlDeviceGetRemappedRows"],
        lambda g: (
            None
            if g.remapped_rows_corrected is None
            else [
                g.remapped_rows_corrected,
                g.remapped_rows_uncorrected,
                whole(g.remapped_rows_pending),
                whole(g.remapped_rows_failed),
            ]
        ),
    ),
    (
        ["nvmlDeviceGetRowRemapperHistogram"],
        lambda g: (
            g.row_remapper_histogram
            and dict(
                zip(
                    ("max", "high", "partial", "low", "none"), g.row_remapper_histogram, strict=True
                )
            )
        ),
    ),
    (["nvmlDeviceGetUnrepairableMemoryFlag_v1"], lambda g: whole(g.unrepairable_memory)),
    (
        ["nvmlDeviceGetRepairStatus"],
        lambda g: pair(whole(g.repair_channel_pending), whole(g.repair_tpc_pending)),
    ),
    (["nvmlDeviceGetCurrPcieLinkGeneration"], lambda g: g.pcie_generation),
    (["nvmlDeviceGetMaxPcieLinkGeneration"], lambda g: g.pcie_generation_max),
    (["nvmlDeviceGetGpuMaxPcieLinkGeneration"], lambda g: g.pcie_generation_gpu_max),
    (["nvmlDeviceGetCurrPcieLinkWidth"], lambda g: g.pcie_width),
    (["nvmlDeviceGetMaxPcieLinkWidth"], lambda g: g.pcie_width_max),
    (["nvmlDeviceGetPcieReplayCounter"], lambda g: g.pcie_replay_count),
    (["nvmlDeviceGetPcieThroughput", 0], lambda g: g.pcie_tx_kib_per_s),
    (["nvmlDeviceGetPcieThroughput", 1], lambda g: g.pcie_rx_kib_per_s),
    (["nvmlDeviceGetNumaNodeId"], lambda g: g.numa_node),
    (["nvmlDeviceGetCpuAffinity", 4], lambda g: masked(g.cpu_affinity, 4)),
    (["nvmlDeviceGetMemoryAffinity", 1, 0], lambda g: g.numa_node and [1 << g.numa_node]),
    (["nvmlDeviceGetMigMode"], lambda g: pair(whole(g.mig_mode), whole(g.mig_mode_pending))),
    (["nvmlDeviceGetMaxMigDeviceCount"], lambda g: g.mig_max_count if g.mig_mode else 0),
    (["nvmlDeviceIsMigDeviceHandle"], lambda g: 0),
)
#: Node 0 is a reading, so `and` must not turn it into an absent one.
ZERO_IS_A_VALUE = ("nvmlDeviceGetMemoryAffinity",)


@pytest.mark.parametrize("name", ANSWERING)
def test_every_reading_is_what_the_machine_file_says(
    name: str, ask: Callable[..., list[Any]]
) -> None:
    machine = load_machine(name)
    calls = [
        [call[0], {"gpu": gpu.index}, *call[1:]] for gpu in machine.gpus for call, _ in READINGS
    ]

    answers = iter(ask(machine, calls))

    wrong = []
    for gpu in machine.gpus:
        for call, reading in READINGS:
            expected = reading(gpu)
            if expected == 0 and call[0] in ZERO_IS_A_VALUE:
                expected = [1]
            symbol = call[0] + "_v2" * (call[1:] == [0x02000028])
            if symbol in machine.driver.missing:
                expected = {"error": FUNCTION_NOT_FOUND}
            elif expected is None:
                expected = {"error": NOT_SUPPORTED}
            found = next(answers)
            if found != expected:
                wrong.append((gpu.index, call, expected, found))
    assert wrong == []


def test_system_readings(ask: Callable[..., list[Any]]) -> None:
    machine = load_machine("t4").with_driver(excluded_pci_bus_ids=("0000:05:00.0",))
    answers = ask(
        machine,
        [
            ["nvmlSystemGetDriverVersion"],
            ["nvmlSystemGetNVMLVersion"],
            ["nvmlSystemGetCudaDriverVersion"],
            ["nvmlSystemGetCudaDriverVersion_v2"],
            ["nvmlDeviceGetCount"],
            ["nvmlGetExcludedDeviceCount"],
            ["nvmlErrorString", 15],
            ["nvmlErrorString", 12345],
        ],
    )
    assert answers == [
        "550.163.01",
        "12.550.163.01",
        12040,
        12040,
        1,
        1,
        "GPU is lost",
        "Unknown Error",
    ]


def test_pci_info_in_all_its_forms(ask: Callable[..., list[Any]]) -> None:
    gpu = {"gpu": 0}
    full, extended = ask(
        load_machine("h100x8"),
        [
            ["nvmlDeviceGetPciInfo", gpu],
            ["pci_info_ext", gpu, "nvmlPciInfoExt_v1_t"],
        ],
    )
    assert full == {
        "busIdLegacy": "0000:1B:00.0",
        "domain": 0,
        "bus": 0x1B,
        "device": 0,
        "pciDeviceId": 0x233010DE,
        "pciSubSystemId": 0x16C110DE,
        "busId": "00000000:1B:00.0",
    }
    assert (extended["baseClass"], extended["subClass"]) == (3, 2)
    assert extended["busId"] == "00000000:1B:00.0"


def test_handles_by_every_name_of_a_gpu(ask: Callable[..., list[Any]]) -> None:
    machine = load_machine("h100x8")
    gpu = machine.gpus[5]
    answers = ask(
        machine,
        [
            ["nvmlDeviceGetHandleByIndex", 5],
            ["nvmlDeviceGetHandleByUUID", gpu.uuid],
            ["nvmlDeviceGetHandleByUUIDV", gpu.uuid, 1],
            ["nvmlDeviceGetHandleBySerial", gpu.serial],
            ["nvmlDeviceGetHandleByPciBusId", "0000:c3:00.0"],
            ["nvmlDeviceGetHandleByPciBusId", "00000000:C3:00.0"],
            ["nvmlDeviceGetHandleByPciBusId", "c3:00.0"],
        ],
    )
    assert answers == [{"gpu": 5}] * 7


def test_handles_that_are_refused(ask: Callable[..., list[Any]]) -> None:
    answers = ask(
        load_machine("t4"),
        [
            ["nvmlDeviceGetHandleByIndex", 1],
            ["nvmlDeviceGetHandleByUUID", "GPU-nobody"],
            ["nvmlDeviceGetHandleByPciBusId", "0000:05:00.0"],
            ["nvmlDeviceGetHandleByPciBusId", "nonsense"],
            ["nvmlDeviceGetTemperature", {"gpu": 0}, 9],
            ["nvmlDeviceGetName", None],
        ],
    )
    assert [answer["error"] for answer in answers] == [2, 6, 6, 2, 2, 2]


def test_nothing_answers_before_init_or_after_shutdown(ask: Callable[..., list[Any]]) -> None:
    answers = ask(
        load_machine("t4"),
        [
            ["nvmlInit"],
            ["nvmlShutdown"],
            ["nvmlDeviceGetCount"],
            ["nvmlShutdown"],
            ["nvmlDeviceGetCount"],
            ["nvmlShutdown"],
        ],
    )
    assert answers == [None, None, 1, None, {"error": 1}, {"error": 1}]


def test_processes_of_every_type_and_generation(ask: Callable[..., list[Any]]) -> None:
    machine = load_machine("busy")
    calls = []
    for gpu in machine.gpus:
        for kind in ("Compute", "Graphics", "MPSCompute"):
            name = f"nvmlDeviceGet{kind}RunningProcesses"
            calls += [[name, {"gpu": gpu.index}], [name + "_v2", {"gpu": gpu.index}]]
            calls += [["first_generation", {"gpu": gpu.index}, name]]

    answers = iter(ask(machine, calls))

    for gpu in machine.gpus:
        for kind in ("compute", "graphics", "mps"):
            expected = [(p.pid, p.memory_used_bytes) for p in gpu.processes if p.type == kind]
            for _ in ("third", "second"):
                found = next(answers)
                assert [(p["pid"], p["usedGpuMemory"]) for p in found] == expected
                assert {p["gpuInstanceId"] for p in found} <= {0xFFFFFFFF}
            not_told = (1 << 64) - 1
            oldest = [tuple(p) for p in next(answers)]
            assert oldest == [(pid, not_told if used is None else used) for pid, used in expected]


def test_process_details_and_loads(ask: Callable[..., list[Any]]) -> None:
    machine = load_machine("busy")
    details, samples, loads = ask(
        machine,
        [
            ["nvmlDeviceGetRunningProcessDetailList", {"gpu": 1}, 0x1000018, 3],
            ["nvmlDeviceGetProcessUtilization", {"gpu": 1}, 0],
            ["nvmlDeviceGetProcessesUtilizationInfo", {"gpu": 1}, 0],
        ],
    )
    assert [p["pid"] for p in details] == [p.pid for p in machine.gpus[1].processes]
    working = [
        (
            p.pid,
            p.utilization_sm_percent,
            p.utilization_memory_percent,
            p.utilization_encoder_percent,
            p.utilization_decoder_percent,
        )
        for p in machine.gpus[1].processes
        if p.utilization_sm_percent or p.utilization_encoder_percent
    ]
    keys = ("pid", "smUtil", "memUtil", "encUtil", "decUtil")
    assert [tuple(s[key] for key in keys) for s in samples] == working
    assert [tuple(s[key] for key in keys) for s in loads] == working


def test_an_idle_gpu_has_no_process_samples(ask: Callable[..., list[Any]]) -> None:
    answers = ask(
        load_machine("t4"),
        [
            ["nvmlDeviceGetProcessUtilization", {"gpu": 0}, 0],
            ["nvmlDeviceGetComputeRunningProcesses", {"gpu": 0}],
        ],
    )
    assert answers == [{"error": 6}, []]


def test_names_may_be_any_bytes(ask: Callable[..., list[Any]]) -> None:
    machine = load_machine("busy").with_gpu(0, name="caf\udce9 \\ GPU\nx")
    answers = ask(
        machine,
        [
            ["nvmlSystemGetProcessName", 3003],
            ["nvmlSystemGetProcessName", 3005],
            ["nvmlSystemGetProcessName", 99999],
            ["nvmlDeviceGetName", {"gpu": 0}],
        ],
    )
    # pynvml itself cannot decode them, so callers must handle that.
    assert answers == [
        {"error": "UnicodeDecodeError"},
        "[red]markup[/red]\nline",
        {"error": 6},
        {"error": "UnicodeDecodeError"},
    ]


def test_a_driver_that_cannot_list_processes(ask: Callable[..., list[Any]]) -> None:
    answers = ask(
        load_machine("wsl2"),
        [
            ["nvmlDeviceGetComputeRunningProcesses", {"gpu": 0}],
            ["nvmlDeviceGetProcessUtilization", {"gpu": 0}, 0],
        ],
    )
    assert answers == [{"error": NOT_SUPPORTED}] * 2


@pytest.mark.parametrize("name", ["h100x8", "p2p-bridge", "mixed-order"])
def test_topology(name: str, ask: Callable[..., list[Any]]) -> None:
    machine = load_machine(name)
    pairs = [(one, two) for one in range(len(machine.gpus)) for two in range(len(machine.gpus))]
    handles = [({"gpu": one}, {"gpu": two}) for one, two in pairs]

    answers = ask(
        machine,
        [
            *(["nvmlDeviceGetTopologyCommonAncestor", *pair] for pair in handles),
            *(["nvmlDeviceGetP2PStatus", *pair, 2] for pair in handles),
        ],
    )

    assert answers[: len(pairs)] == [PATHS[machine.pcie_path(*pair)] for pair in pairs]
    linked = [one != two and machine.connection(one, two).startswith("NV") for one, two in pairs]
    assert answers[len(pairs) :] == [0 if link else 5 for link in linked]


def test_nearest_gpus(ask: Callable[..., list[Any]]) -> None:
    (nearest,) = ask(
        load_machine("p2p-bridge"),
        [["nvmlDeviceGetTopologyNearestGpus", {"gpu": 0}, PATHS["PXB"]]],
    )
    assert nearest == [{"gpu": 2}]


def test_nvlinks_to_switches_and_to_a_neighbour(ask: Callable[..., list[Any]]) -> None:
    gpu = {"gpu": 0}
    calls = [
        ["nvmlDeviceGetNvLinkState", gpu, 17],
        ["nvmlDeviceGetNvLinkState", gpu, 3],
        ["nvmlDeviceGetNvLinkState", gpu, 18],
        ["nvmlDeviceGetNvLinkVersion", gpu, 0],
        ["nvmlDeviceGetNvLinkRemoteDeviceType", gpu, 0],
        ["nvmlDeviceGetNvLinkRemoteDeviceType", gpu, 3],
        ["nvmlDeviceGetNvLinkErrorCounter", gpu, 0, 2],
        ["nvmlDeviceGetNvLinkCapability", gpu, 0, 0],
    ]
    broken = load_machine("h100x8").with_gpu(0, nvlink_inactive=(3,), nvlink_crc_flit_errors=7)
    assert ask(broken, calls) == [1, 0, {"error": 2}, 6, 2, 0xFF, 7, 1]
    assert broken.connection(0, 1) == "NV17"

    remote, state, beyond, none = ask(
        load_machine("p2p-bridge"),
        [
            ["nvmlDeviceGetNvLinkRemotePciInfo", gpu, 0],
            ["nvmlDeviceGetNvLinkState", gpu, 3],
            ["nvmlDeviceGetNvLinkState", gpu, 4],
            ["nvmlDeviceGetNvLinkState", {"gpu": 3}, 0],
        ],
    )
    assert remote["busId"] == "00000000:02:00.0"
    assert (state, beyond, none) == (1, {"error": 2}, {"error": NOT_SUPPORTED})


def test_field_values_come_from_other_readings_and_from_the_file(
    ask: Callable[..., list[Any]],
) -> None:
    text = (HERE.parent / "data" / "machines" / "h100x8.toml").read_text(encoding="utf-8")
    machine = parse_machine(
        text.replace("[[gpu]]", "[[gpu]]\nfields = {230 = 4, 194 = -3, 138 = 5000000000}", 1), "h"
    )
    first, second = ask(
        machine,
        [["field_values", {"gpu": gpu}, [230, 194, 138, 82, 83, 145, 999]] for gpu in (0, 1)],
    )
    energy = machine.gpus[0].energy_mj
    unsupported = {"error": NOT_SUPPORTED}
    assert first == [4, -3, 5_000_000_000, 71, energy, 0, unsupported]
    assert second == [0, unsupported, unsupported, 42, energy, 0, unsupported]


def test_health_structures(ask: Callable[..., list[Any]]) -> None:
    machine = load_machine("h100x8").with_gpu(
        1,
        fabric_state="in-progress",
        fabric_health_mask=5,
        fabric_health_summary=2,
        ecc_sram_uncorrected_aggregate=9,
        ecc_sram_threshold_exceeded=True,
        inforom_valid=False,
        violation_thermal_ns=123,
    )
    gpu = {"gpu": 1}
    second, third, first, sram, rows, inforom, violation = ask(
        machine,
        [
            ["fabric", gpu, "c_nvmlGpuFabricInfo_v2_t"],
            ["fabric", gpu, "c_nvmlGpuFabricInfo_v3_t"],
            ["fabric_first", gpu, "c_nvmlGpuFabricInfo_t"],
            ["sram", gpu, "c_nvmlEccSramErrorStatus_v1_t"],
            ["remapped_rows_v2", gpu, "c_nvmlRemappedRowsInfo_v2_t"],
            ["nvmlDeviceValidateInforom", gpu],
            ["nvmlDeviceGetViolationStatus", gpu, 1],
        ],
    )
    assert (second["state"], second["healthMask"]) == (2, 5)
    assert (third["state"], third["healthSummary"]) == (2, 2)
    assert first["state"] == 2
    assert (sram["aggregateUncSecDed"], sram["bThresholdExceeded"]) == (9, 1)
    assert rows["bPending"] == 0
    assert inforom == {"error": 14}
    assert violation["violationTime"] == 123


def test_mig_devices(ask: Callable[..., list[Any]]) -> None:
    machine = load_machine("a100-mig")
    calls: list[Call] = []
    for instance in machine.gpus[0].mig:
        handle = {"gpu": 0, "mig": instance.index}
        calls += [
            ["nvmlDeviceGetName", handle],
            ["nvmlDeviceGetUUID", handle],
            ["nvmlDeviceGetIndex", handle],
            ["nvmlDeviceIsMigDeviceHandle", handle],
            ["nvmlDeviceGetGpuInstanceId", handle],
            ["nvmlDeviceGetComputeInstanceId", handle],
            ["nvmlDeviceGetMemoryInfo", handle],
            ["nvmlDeviceGetAttributes", handle],
            ["nvmlDeviceGetDeviceHandleFromMigDeviceHandle", handle],
            ["nvmlDeviceGetComputeRunningProcesses", handle],
            ["nvmlDeviceGetTemperature", handle, 0],
            ["nvmlDeviceGetHandleByUUID", instance.uuid],
            [
                "nvmlDeviceGetHandleByUUID",
                f"MIG-{machine.gpus[0].uuid}/{instance.gpu_instance_id}/0",
            ],
        ]

    answers = iter(ask(machine, calls))

    for instance in machine.gpus[0].mig:
        one = [next(answers) for _ in range(13)]
        assert one[:6] == [
            f"NVIDIA A100-SXM4-40GB MIG {instance.profile}",
            instance.uuid,
            instance.index,
            1,
            instance.gpu_instance_id,
            0,
        ]
        assert one[6]["total"] == instance.memory_total_bytes
        assert one[7]["multiprocessorCount"] == instance.sm_count
        assert one[7]["memorySizeMB"] == instance.memory_total_bytes >> 20
        assert one[8] == {"gpu": 0}
        pids = [p.pid for p in machine.gpus[0].processes if p.mig == instance.index]
        assert [p["pid"] for p in one[9]] == pids
        assert one[10] == {"error": NOT_SUPPORTED}
        assert one[11:] == [{"gpu": instance.index}] * 2  # a MIG device gives its own index


def test_mig_handles_that_are_refused(ask: Callable[..., list[Any]]) -> None:
    (on_mig, past_max, whole_gpu, no_mig) = ask(
        load_machine("a100-mig"),
        [
            ["nvmlDeviceGetMigDeviceHandleByIndex", {"gpu": 0}, 3],
            ["nvmlDeviceGetMigDeviceHandleByIndex", {"gpu": 0}, 7],
            ["nvmlDeviceGetMigDeviceHandleByIndex", {"gpu": 1}, 0],
            ["nvmlDeviceGetGpuInstanceId", {"gpu": 1}],
        ],
    )
    assert [each["error"] for each in (on_mig, past_max, whole_gpu, no_mig)] == [6, 2, 6, 2]
    (turing,) = ask(load_machine("t4"), [["nvmlDeviceGetMigMode", {"gpu": 0}]])
    assert turing == {"error": NOT_SUPPORTED}


def test_a_parent_lists_the_processes_of_its_instances(ask: Callable[..., list[Any]]) -> None:
    (processes,) = ask(
        load_machine("a100-mig"), [["nvmlDeviceGetComputeRunningProcesses", {"gpu": 0}]]
    )
    assert [(p["pid"], p["gpuInstanceId"]) for p in processes] == [(7301, 5)]


@pytest.mark.parametrize(("name", "code"), [("driver-not-loaded", 9), ("version-mismatch", 18)])
def test_init_fails(name: str, code: int, ask: Callable[..., list[Any]]) -> None:
    assert ask(load_machine(name), [["nvmlInit"], ["nvmlDeviceGetCount"]]) == [
        {"error": code},
        {"error": 1},
    ]


def test_a_lost_gpu_gives_its_handle_and_nothing_else(ask: Callable[..., list[Any]]) -> None:
    calls = [
        [name, {"gpu": gpu}]
        for gpu in range(4)
        for name in ("nvmlDeviceGetName", "nvmlDeviceGetUUID", "nvmlDeviceGetPciInfo")
    ]
    answers = ask(load_machine("gpu-lost"), [["nvmlDeviceGetCount"], *calls])
    assert answers[0] == 4
    lost = [{"error": GPU_IS_LOST}] * 3
    assert answers[7:10] == lost
    assert not any("error" in answer for answer in [*answers[1:7], *answers[10:]])


def test_a_fault_may_concern_one_function_of_one_gpu(ask: Callable[..., list[Any]]) -> None:
    machine = load_machine("h100x8").broken(fail=["nvmlDeviceGetPowerUsage gpu=1 999"])
    answers = ask(machine, [["nvmlDeviceGetPowerUsage", {"gpu": gpu}] for gpu in range(3)])
    assert answers == [machine.gpus[0].power_mw, {"error": 999}, machine.gpus[2].power_mw]


def test_a_gpu_is_lost_in_mid_run(ask: Callable[..., list[Any]]) -> None:
    machine = load_machine("h100x8").broken(fail=["* gpu=1 15 after=2"])
    calls = [["nvmlDeviceGetTemperature", {"gpu": gpu}, 0] for gpu in (1, 0, 1, 1, 0, 1)]
    lost = {"error": GPU_IS_LOST}
    assert ask(machine, calls) == [61, 64, 61, lost, 64, lost]


def test_a_fault_on_giving_out_a_handle(ask: Callable[..., list[Any]]) -> None:
    machine = load_machine("h100x8").broken(fail=["nvmlDeviceGetHandleByIndex* gpu=6 4"])
    answers = ask(machine, [["nvmlDeviceGetHandleByIndex", index] for index in (5, 6, 7)])
    assert answers == [{"gpu": 5}, {"error": 4}, {"gpu": 7}]


def test_a_fault_of_the_second_gpu_of_a_pair(ask: Callable[..., list[Any]]) -> None:
    machine = load_machine("h100x8").broken(fail=["* gpu=3 15"])
    pair = [{"gpu": 0}, {"gpu": 3}]
    assert ask(machine, [["nvmlDeviceGetTopologyCommonAncestor", *pair]]) == [{"error": 15}]


def test_missing_symbols_are_not_in_the_library(ask: Callable[..., list[Any]]) -> None:
    calls = [
        ["nvmlDeviceGetMemoryInfo", {"gpu": 0}, 0x02000028],
        ["nvmlDeviceGetComputeRunningProcesses", {"gpu": 0}],
        ["nvmlDeviceGetComputeRunningProcesses_v2", {"gpu": 0}],
        ["nvmlDeviceGetArchitecture", {"gpu": 0}],
        ["nvmlDeviceGetMigMode", {"gpu": 0}],
        ["first_generation", {"gpu": 0}, "nvmlDeviceGetComputeRunningProcesses"],
    ]
    absent = {"error": FUNCTION_NOT_FOUND}
    assert ask(load_machine("old-driver"), calls) == [
        absent,
        {"error": "NVMLLibraryMismatchError"},
        absent,
        absent,
        absent,
        [[2211, 5_360_320_512]],
    ]


@pytest.mark.parametrize(
    "override",
    [
        {"missing": ["nvmlDeviceGetNonsense"]},
        {"fail": ["nvmlDeviceGetNonsense 3"]},
        {"fail": ["nvmlNonsense* 3"]},
        {"fail": ["nvmlDeviceGetName gpu=1 3"]},
        {"hang": ["nvmlDeviceGetNonsense"]},
    ],
)
def test_a_fault_without_a_function_or_gpu_is_refused(
    override: dict[str, list[str]], tmp_path: Path
) -> None:
    with pytest.raises(MachineError, match=r"Nonsense|not there"):
        build_libraries(load_machine("t4").broken(**override), tmp_path)


def test_nothing_can_be_changed(ask: Callable[..., list[Any]]) -> None:
    answers = ask(
        load_machine("t4"),
        [
            ["nvmlDeviceSetPersistenceMode", {"gpu": 0}, 1],
            ["nvmlDeviceSetPowerManagementLimit", {"gpu": 0}, 1],
            ["nvmlDeviceSetGpuLockedClocks", {"gpu": 0}, 1, 2],
            ["nvmlDeviceClearEccErrorCounts", {"gpu": 0}, 0],
        ],
    )
    assert answers == [{"error": 4}] * 4


def test_every_call_is_logged(ask: Callable[..., list[Any]], tmp_path: Path) -> None:
    log = tmp_path / "calls"
    ask(
        load_machine("h100x8"),
        [["nvmlDeviceGetName", {"gpu": 3}], ["nvmlDeviceGetCount"], ["nvmlShutdown"]],
        FAKE_CALL_LOG=str(log),
    )
    assert log.read_text().splitlines() == [
        "nvmlInitWithFlags -",
        "nvmlDeviceGetHandleByIndex_v2 3",
        "nvmlDeviceGetName 3",
        "nvmlDeviceGetCount_v2 -",
        "nvmlShutdown -",
    ]


@contextlib.contextmanager
def hanging_child(
    machine: Machine, program: str, call: str, directory: Path, **variables: str
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a program until it has made a call, and kill it at the end."""
    log = directory / "calls"
    os.mkfifo(log)
    environment = child_environment(machine, directory, FAKE_CALL_LOG=str(log), **variables)
    child = subprocess.Popen([sys.executable, "-c", program], env=environment)
    try:
        # The pipe shows the child's progress, however slow this machine is.
        with log.open() as lines:
            assert any(line == f"{call}\n" for line in lines)
            yield child
    finally:
        child.kill()
        child.wait()


def is_running(child: subprocess.Popen[bytes]) -> bool:
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.wait(timeout=0.3)
    return child.returncode is None


READ_TEMPERATURES = """
import pynvml
pynvml.nvmlInit()
for gpu in (0, 1, 2):
    pynvml.nvmlDeviceGetTemperature(pynvml.nvmlDeviceGetHandleByIndex(gpu), 0)
"""


@pytest.mark.parametrize("stubborn", ["", "1"])
def test_a_hanging_call_never_returns(stubborn: str, tmp_path: Path) -> None:
    with hanging_child(
        load_machine("hung-gpu"),
        READ_TEMPERATURES,
        "nvmlDeviceGetTemperature 1",
        tmp_path,
        FAKE_HANG_IGNORES_TERM=stubborn,
    ) as child:
        assert is_running(child)
        child.send_signal(signal.SIGTERM)
        if stubborn:
            assert is_running(child)
        else:
            assert child.wait() == -signal.SIGTERM


@pytest.mark.parametrize(
    ("program", "call"),
    [
        ("import pynvml; pynvml.nvmlInit()", "nvmlInitWithFlags -"),
        ("import ctypes; ctypes.CDLL('libcuda.so.1').cuInit(0)", "cuInit -"),
    ],
)
def test_nothing_answers_on_the_hung_machine(program: str, call: str, tmp_path: Path) -> None:
    with hanging_child(load_machine("hung"), program, call, tmp_path) as child:
        assert is_running(child)


@pytest.mark.parametrize("name", ["no-driver", "container-without-gpus"])
def test_libraries_may_be_absent(
    name: str, ask: Callable[..., list[Any]], cuda: Callable[..., Any]
) -> None:
    machine = load_machine(name)
    assert ask(machine, [["nvmlInit"]]) == [{"error": 12}]
    assert cuda(machine) == {"loaded": False}


def test_a_library_can_go_and_come_back_in_one_folder(
    ask: Callable[..., list[Any]],
) -> None:
    machine = load_machine("t4")
    for present, expected in ((True, None), (False, {"error": 12}), (True, None)):
        assert ask(machine.with_driver(nvml=present), [["nvmlInit"]]) == [expected]


def test_the_file_carries_the_drivers_version(tmp_path: Path) -> None:
    build_libraries(load_machine("t4"), tmp_path)
    assert (tmp_path / "lib" / "libnvidia-ml.so.1").resolve().name == "libnvidia-ml.so.550.163.01"


def test_variables_of_the_host_reach_the_child(tmp_path: Path) -> None:
    environment = build_libraries(load_machine("container-without-gpus"), tmp_path)
    assert environment["NVIDIA_VISIBLE_DEVICES"] == "all"


def test_parallel_builds_of_one_library_agree(tmp_path: Path) -> None:
    code = (
        "from tests.fakes.libraries import compiled; "
        "print(compiled('cublaslt').read_bytes().hex()[:9])"
    )
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache")}

    def build(_: int) -> str:
        return subprocess.run(
            [sys.executable, "-c", code],
            env=environment,
            cwd=HERE.parent.parent,
            capture_output=True,
            encoding="utf-8",
            check=True,
        ).stdout

    with ThreadPoolExecutor() as pool:
        assert list(pool.map(build, range(2))) == [build(0)] * 2
    (folder,) = (tmp_path / "cache").iterdir()
    assert folder.stat().st_mode & 0o077 == 0
    assert len(list(folder.iterdir())) == 1


def test_a_machine_without_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.fakes.libraries.compiler", lambda: None)
    with pytest.raises(CompilerMissingError):
        compiled("nvml")


def test_no_symbol_is_misspelt() -> None:
    source = importlib.util.find_spec("pynvml")
    assert source is not None
    assert source.origin is not None
    text = Path(source.origin).read_text(encoding="utf-8")
    called = set(re.findall(r'_nvmlGetFunctionPointer\("(\w+)"\)', text))
    known = {re.sub(r"_v\d+$", "", name) for name in called} | {"nvmlInit"}
    strange = {name for name in functions("nvml") if re.sub(r"_v\d+$", "", name) not in known}
    assert strange == set()


def test_sixty_four_gpus(ask: Callable[..., list[Any]]) -> None:
    machine = load_machine("h100x8").with_gpus(64)
    answers = ask(
        machine,
        [
            ["nvmlDeviceGetCount"],
            *(["nvmlDeviceGetUUID", {"gpu": gpu}] for gpu in range(64)),
            *(["nvmlDeviceGetPciInfo", {"gpu": gpu}] for gpu in range(64)),
        ],
    )
    assert answers[0] == 64
    assert answers[1:65] == [gpu.uuid for gpu in machine.gpus]
    bus_ids = [answer["busId"].lower()[4:] for answer in answers[65:]]
    assert bus_ids == [gpu.pci_bus_id for gpu in machine.gpus]
    assert bus_ids == sorted(set(bus_ids))


# CUDA: which devices a program sees.

MIG_GPU = "GPU-5d5ba0d6-d33d-2b2c-524d-9e3d8d2b8a77"
WHOLE_GPU = "GPU-9942190a-aa31-4ff1-4aa9-c388d80f85f1"
M0, M1, M2 = (instance.uuid for instance in load_machine("a100-mig").gpus[0].mig)


def seen(answer: Any) -> list[str]:
    assert answer["code"] in (0, 100)
    assert (answer["code"] == 0) == bool(answer["devices"])
    assert all(code == 0 for device in answer["devices"] for code in device["codes"])
    return [device["uuid"] for device in answer["devices"]]


@pytest.mark.parametrize(
    ("visible", "expected"),
    [
        (None, [0, 1, 2, 3, 4, 5, 6, 7]),
        ("", []),
        ("2,1", [2, 1]),
        ("0,2,-1,1", [0, 2]),
        ("-1", []),
        ("NoDevFiles", []),
        ("none", []),
        ("8", []),
        ("0,0", []),
        ("0,1,0", []),
        ("1gpu2,2ampere", [1, 2]),
        ("-0", [0]),
        ("+3", [3]),
        (" 4, 5", [4, 5]),
        ("0-2", [0]),
        ("1,U0", [1]),
        ("U2,1", [2]),
        ("U2", [2]),
        ("P5,P3", [5, 3]),
        ("U2,2", [2]),
        ("U2,P2", []),
        ("U2,GPU-ffffffff,U1", [2]),
        ("GPU-", []),
        ("GPU-ffffffff", []),
        ("99999999999999999999", []),
    ],
)
def test_cuda_visible_devices(
    visible: str | None, expected: list[int], cuda: Callable[..., Any]
) -> None:
    """U and P stand for the UUID of a GPU and for its first digits."""
    machine = load_machine("h100x8")
    variables = {}
    if visible is not None:
        text = re.sub(r"\bU(\d)", lambda m: machine.gpus[int(m[1])].uuid, visible)
        text = re.sub(r"\bP(\d)", lambda m: machine.gpus[int(m[1])].uuid[:12], text)
        variables["CUDA_VISIBLE_DEVICES"] = text

    answer = cuda(machine, **variables)

    assert seen(answer) == [machine.gpus[index].uuid[4:] for index in expected]


@pytest.mark.parametrize(
    ("order", "visible", "expected"),
    [
        (None, None, [1, 0]),
        (None, "0", [1]),
        (None, "1", [0]),
        ("FASTEST_FIRST", None, [1, 0]),
        ("PCI_BUS_ID", None, [0, 1]),
        ("PCI_BUS_ID", "0", [0]),
        ("PCI_BUS_ID", "1,0", [1, 0]),
    ],
)
def test_cuda_device_order(
    order: str | None, visible: str | None, expected: list[int], cuda: Callable[..., Any]
) -> None:
    machine = load_machine("mixed-order")
    given = {"CUDA_DEVICE_ORDER": order, "CUDA_VISIBLE_DEVICES": visible}
    answer = cuda(machine, **{key: value for key, value in given.items() if value is not None})
    assert seen(answer) == [machine.gpus[index].uuid[4:] for index in expected]


def test_equal_cards_keep_the_order_of_the_bus(cuda: Callable[..., Any]) -> None:
    machine = load_machine("h100x8")
    assert seen(cuda(machine)) == [gpu.uuid[4:] for gpu in machine.gpus]


@pytest.mark.parametrize(
    ("visible", "old", "new"),
    [
        (None, [M0], [M0, M1, M2, WHOLE_GPU]),
        (M0, [M0], [M0]),
        (M1, [M1], [M1]),
        (f"{M0},{M1}", [M0], [M0, M1]),
        ("0", [M0], [M0, M1, M2]),
        (MIG_GPU, [M0], [M0, M1, M2]),
        ("1", [WHOLE_GPU], [WHOLE_GPU]),
        (WHOLE_GPU, [WHOLE_GPU], [WHOLE_GPU]),
        ("0,1", [M0], [M0, M1, M2, WHOLE_GPU]),
        (f"MIG-{MIG_GPU}/1/0", [M0], [M0]),
        ("MIG-00000000-0000-0000-0000-000000000000", [], []),
        ("0:1", [M0], [M0, M1, M2]),
        (f"{M0},{M0}", [], []),
    ],
)
def test_mig_before_and_after_r570(
    visible: str | None, old: list[str], new: list[str], cuda: Callable[..., Any]
) -> None:
    before = load_machine("a100-mig")
    after = before.with_driver(version="570.172.08")
    variables = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    for machine, expected in ((before, old), (after, new)):
        assert seen(cuda(machine, **variables)) == [each[4:] for each in expected]


def test_mig_without_instances_shows_nothing(cuda: Callable[..., Any]) -> None:
    machine = load_machine("a100-mig").with_gpu(0, mig=(), processes=())
    assert seen(cuda(machine, CUDA_VISIBLE_DEVICES="0")) == []
    assert seen(cuda(machine)) == [WHOLE_GPU[4:]]


def test_what_cuda_says_about_a_device(cuda: Callable[..., Any]) -> None:
    machine = load_machine("mixed-order")
    answer = cuda(machine)
    gpu = machine.gpus[1]
    assert answer["before_init"] == 3
    assert answer["past_the_end"] == 101
    assert answer["version"] == 12080
    device = dict(answer["devices"][0])
    assert set(device.pop("codes")) == {0}
    assert device == {
        "name": gpu.name,
        "uuid": gpu.uuid[4:],
        "uuid_first": gpu.uuid[4:],
        "pci_bus_id": "0000:AF:00.0",
        "memory_total_bytes": gpu.cuda_memory_total_bytes,
        "compute_capability": "8.0",
        "clock_khz": 1_410_000,
        "multiprocessors": 108,
        "pci_bus": 0xAF,
        "pci_slot": 0,
        "memory_clock_khz": 1_215_000,
        "bus_width_bits": 5120,
        "l2_bytes": 41_943_040,
        "pci_domain": 0,
        "major": 8,
        "minor": 0,
    }


def test_the_first_uuid_function_names_the_parent(cuda: Callable[..., Any]) -> None:
    (device,) = cuda(load_machine("a100-mig"))["devices"]
    assert device["uuid_first"] == MIG_GPU[4:]
    assert device["uuid"] == M0[4:]
    assert device["multiprocessors"] == 42
    assert uuid.UUID(device["uuid"]).bytes[0] == 0xA1


def test_an_old_cuda_has_no_second_uuid_function(cuda: Callable[..., Any]) -> None:
    answer = cuda(load_machine("old-driver"))
    assert [len(device["codes"]) for device in answer["devices"]] == [16, 16]


@pytest.mark.parametrize(
    ("name", "code", "error_name"),
    [
        ("driver-not-loaded", 100, "CUDA_ERROR_NO_DEVICE"),
        ("version-mismatch", 803, "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH"),
    ],
)
def test_cuda_init_fails(name: str, code: int, error_name: str, cuda: Callable[..., Any]) -> None:
    answer = cuda(load_machine(name))
    assert (answer["code"], answer["error_name"]) == (code, error_name)
    assert answer["error_text"]
    assert answer["devices"] == []


# The command line, and other people's programs.


def by_hand(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tests.fakes.libraries", *words],
        cwd=HERE.parent.parent,
        capture_output=True,
        encoding="utf-8",
        check=False,
    )


def test_a_command_runs_on_the_machine() -> None:
    count = "import pynvml as n; n.nvmlInit(); raise SystemExit(n.nvmlDeviceGetCount())"
    assert by_hand("h100x8", "--", sys.executable, "-c", count).returncode == 8
    assert by_hand("h100x8", "--gpus", "13", "--", sys.executable, "-c", count).returncode == 13


def test_faults_can_be_given_by_hand(tmp_path: Path) -> None:
    name = "import pynvml as n; n.nvmlInit(); n.nvmlDeviceGetName(n.nvmlDeviceGetHandleByIndex(0))"
    failed = by_hand("t4", "--fail", "nvmlDeviceGetName 15", "--", sys.executable, "-c", name)
    assert "GPU is lost" in failed.stderr
    absent = by_hand("t4", "--missing", "nvmlDeviceGetName", "--", sys.executable, "-c", name)
    assert "Function Not Found" in absent.stderr
    tree = by_hand(
        "t4", "--tree", str(tmp_path), "--", "cat", f"{tmp_path}/sys/module/nvidia/version"
    )
    assert tree.stdout == "550.163.01\n"
    root = by_hand("t4", "--tree", str(tmp_path), "--", "printenv", "GPUCHECK_ROOT")
    assert root.stdout == f"{tmp_path}\n"


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (("nothing", "--", "true"), 125, "no such machine; there are a100-mig"),
        (("t4", "--fail", "nvmlDeviceGetName", "--", "true"), 125, "an error code is needed"),
        (("t4", "--hang", "nvmlDeviceGetName 3", "--", "true"), 125, "cannot read '3'"),
        (("no-driver", "--", "no-such-command"), 127, "No such file"),
    ],
)
def test_what_goes_wrong_by_hand(words: tuple[str, ...], code: int, text: str) -> None:
    finished = by_hand(*words)
    assert finished.returncode == code
    assert text in finished.stderr


def test_without_a_command_the_variables_are_printed() -> None:
    assert re.fullmatch(
        r"export LD_LIBRARY_PATH=\S+\nexport FAKE_MACHINE_FILE=\S+\n", by_hand("t4").stdout
    )


def program_path(name: str) -> str:
    found = shutil.which(name, path=f"{Path(sys.executable).parent}:{os.environ.get('PATH', '')}")
    if found is None:
        pytest.skip(f"{name} is not installed")
    return found


def test_nvitop_prints_every_gpu(tmp_path: Path) -> None:
    machine = load_machine("h100x8")
    finished = subprocess.run(
        [program_path("nvitop"), "-1", "--ascii"],
        env=child_environment(machine, tmp_path),
        capture_output=True,
        encoding="utf-8",
        check=True,
    )
    rows = finished.stdout.splitlines()
    for gpu in machine.gpus:
        bus_id = f"0000{gpu.pci_bus_id}".upper()
        (number,) = (at for at, row in enumerate(rows) if bus_id in row)
        assert "H100 80GB HBM3" in rows[number]
        assert f"{gpu.temperature_c}C" in rows[number + 1]
        assert f"{gpu.utilization_gpu_percent}%" in rows[number + 1]
    for gpu in machine.gpus:
        for process in gpu.processes:
            assert any(f"{gpu.index}   {process.pid} C" in row for row in rows)


def test_gpustat_reads_every_gpu(tmp_path: Path) -> None:
    machine = load_machine("h100x8")
    finished = subprocess.run(
        [program_path("gpustat"), "--json"],
        env=child_environment(machine, tmp_path),
        capture_output=True,
        encoding="utf-8",
        check=True,
    )
    document = json.loads(finished.stdout)
    assert document["driver_version"] == machine.driver.version
    found = [
        (gpu["uuid"], gpu["temperature.gpu"], gpu["power.draw"], gpu["memory.total"])
        for gpu in document["gpus"]
    ]
    assert found == [
        (gpu.uuid, gpu.temperature_c, (gpu.power_mw or 0) // 1000, gpu.memory_total_bytes >> 20)
        for gpu in machine.gpus
    ]
