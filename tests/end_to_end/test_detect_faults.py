"""Faults of every function that detect calls: a verdict, never a crash, never "ok"."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from pathlib import Path

import pytest

from gpucheck.detect.model import Detection, Finding, Verdict
from gpucheck.detect.run import detect
from gpucheck.drivers.evidence import HealthReading, LaunchReading
from gpucheck.drivers.readings import (
    CudaReading,
    KernelReading,
    NvmlReading,
    NvmlRequest,
    PciDeviceReading,
)
from gpucheck.report.codec import to_plain
from gpucheck.report.envelope import CheckStatus
from gpucheck.report.errors import ExitCode
from tests.end_to_end.conftest import ForkServers, Pretend, Program
from tests.end_to_end.sweeping import NVML_CODES
from tests.end_to_end.test_faults import CUDA_CODES
from tests.fakes.machine import Machine, load_machine
from tests.fakes.probes import FakeProbes
from tests.sampling import sampled

PLAIN = NvmlRequest()
GPUS = 2

#: What each health function is asked for: the check that must not be "ok" without it.
JUDGED_BY = {
    "nvmlDeviceGetCurrentClocksEventReasons": "clock-throttling",
    "nvmlDeviceGetTotalEccErrors": "ecc-errors",
    "nvmlDeviceGetRemappedRows": "row-remapping",
    "nvmlDeviceGetUnrepairableMemoryFlag_v1": "memory-repair",
    "nvmlDeviceGetNvLinkState": "nvlink",
    "nvmlDeviceGetGpuFabricInfoV": "fabric",
    "nvmlDeviceGetPowerManagementDefaultLimit": "power-limit",
    "nvmlDeviceGetVbiosVersion": "vbios-versions",
    "nvmlDeviceGetFieldValues": "throttled-time",
}
#: And of the readings that every listing takes.
JUDGED_BY_LISTING = {
    "nvmlDeviceGetTemperature": "temperature",
    "nvmlDeviceGetCurrPcieLinkWidth": "pcie-width",
    "nvmlDeviceGetMaxPcieLinkWidth": "pcie-width",
    "nvmlDeviceGetCurrPcieLinkGeneration": "pcie-generation",
    "nvmlDeviceGetPersistenceMode": "persistence-mode",
    "nvmlDeviceGetComputeMode": "compute-mode",
    "nvmlDeviceGetEnforcedPowerLimit": "power-limit",
}
#: Not supported, no permission, unknown to the driver, lost, unknown: each is treated differently.
KINDS_OF_CODES = (3, 4, 13, 15, 999)
#: No device, the driver and its library do not fit, out of memory, an error of ECC, unknown.
SPECIAL_CUDA_CODES = (2, 100, 214, 803, 999)
#: The older name of a function is asked after these.
OLDER_NAME = {"nvmlDeviceGetCurrentClocksEventReasons": {13}}
#: NVML's codes of a GPU that is lost or needs a reset.
LOST = frozenset({15, 16})
#: A refusal that is an answer.
ANSWERS = {"nvmlDeviceValidateInforom": {14}}


def machine_of_two() -> Machine:
    return load_machine("h100x8").with_gpus(GPUS)


def judged(
    machine: Machine,
    *,
    nvml: NvmlReading,
    health: HealthReading,
    cuda: CudaReading,
    launch: LaunchReading | None = None,
) -> tuple[Detection, ExitCode]:
    """Return what detect says of readings, and that it is a document."""
    devices = tuple(
        PciDeviceReading(pci_bus_id=gpu.pci_bus_id, vendor_id="0x10de", driver="nvidia")
        for gpu in machine.gpus
    )
    kernel = KernelReading(pci_devices=devices, module_loaded=True, uvm_loaded=True)
    answer = detect(
        FakeProbes(
            kernel_reading=kernel,
            readings=nvml,
            health_reading=health,
            cuda_reading=cuda,
            launch_reading=launch,
        )
    )
    assert isinstance(answer.result, Detection)
    assert to_plain(answer.result)
    return answer.result, answer.exit_code


def finding(result: Detection, name: str) -> Finding:
    return next(found for found in result.checks if found.id == name)


@pytest.fixture(scope="module")
def called(
    pretend: Pretend, program: Program, tmp_path_factory: pytest.TempPathFactory
) -> set[str]:
    """Return the functions that one run of the real command calls on two healthy GPUs."""
    log = tmp_path_factory.mktemp("calls") / "calls.log"
    env = pretend(machine_of_two()) | {"FAKE_CALL_LOG": str(log)}

    assert program("detect", env=env).code == 0

    return {line.split()[0] for line in log.read_text(encoding="ascii").splitlines()}


def test_the_tables_name_functions_that_are_called(called: set[str]) -> None:
    assert {*JUDGED_BY, *JUDGED_BY_LISTING} <= called


@pytest.mark.parametrize("function", sorted({*JUDGED_BY, *JUDGED_BY_LISTING}))
def test_a_judged_function_fails_with_every_code(forks: ForkServers, function: str) -> None:
    codes = sampled(NVML_CODES, 3, always=KINDS_OF_CODES)

    assert wrongly_ok(forks, function, codes) == []


def test_every_other_function_fails_with_the_codes_that_differ_in_kind(
    forks: ForkServers, called: set[str]
) -> None:
    """The list's own sweep gives each of these every code; here the verdict must survive."""
    judged_elsewhere = {*JUDGED_BY, *JUDGED_BY_LISTING}
    others = (name for name in called if name.startswith("nvml") and name not in judged_elsewhere)

    assert all(wrongly_ok(forks, name, KINDS_OF_CODES) == [] for name in sorted(others))


def wrongly_ok(forks: ForkServers, function: str, codes: Iterable[int]) -> list[object]:
    """Return the codes with which the check that needs this function is still "ok"."""
    machine = machine_of_two()
    server = forks.on(machine)
    cuda = server.cuda(machine)
    failures: list[object] = []
    check = JUDGED_BY.get(function) or JUDGED_BY_LISTING.get(function)
    tolerated = OLDER_NAME.get(function, set()) | ANSWERS.get(function, set())
    for code in codes:
        broken = machine.broken(fail=[f"{function} {code}"])
        nvml, health = server.nvml(broken, PLAIN), server.health(broken)
        result, exit_code = judged(machine, nvml=nvml, health=health, cuda=cuda)
        if code in LOST and function.startswith(("nvmlInit", "nvmlDevice")):
            # Every GPU is lost: that counts, whatever CUDA still sees of them.
            assert (result.usable, exit_code) == (False, ExitCode.BAD), (function, code)
            continue
        # CUDA works, so that a GPU is usable whatever else NVML says.
        assert result.usable is True, (function, code)
        if check is not None and code not in tolerated:
            found = finding(result, check)
            if found.status is CheckStatus.OK:
                failures.append((function, code, found.summary))
    return failures


@pytest.mark.parametrize("function", ["nvmlInitWithFlags", "nvmlDeviceGetCount_v2"])
def test_without_nvml_and_cuda_nothing_is_usable(forks: ForkServers, function: str) -> None:
    machine = machine_of_two()
    server = forks.on(machine)
    cuda = server.cuda(machine.broken(fail=["cuInit 100"]))
    for code in sampled(NVML_CODES, 3, always=KINDS_OF_CODES):
        broken = machine.broken(fail=[f"{function} {code}"])

        result, exit_code = judged(
            machine, nvml=server.nvml(broken, PLAIN), health=server.health(broken), cuda=cuda
        )

        assert exit_code in (ExitCode.BAD, ExitCode.INCONCLUSIVE), code
        assert result.usable is not True
        assert result.remedy
        assert {f.status for f in result.checks if f.layer == "health"} <= {
            CheckStatus.SKIP,
            CheckStatus.UNKNOWN,
        }


def test_every_function_of_the_cuda_driver_fails_with_every_code(
    forks: ForkServers, called: set[str]
) -> None:
    machine = machine_of_two()
    server = forks.on(machine)
    nvml, health = server.nvml(machine, PLAIN), server.health(machine)
    # What only describes a device leaves a gap; the rest decides.
    decisive = {"cuInit", "cuDeviceGetCount", "cuDeviceGet", "cuDriverGetVersion"}
    codes = sampled(CUDA_CODES, 12, always=SPECIAL_CUDA_CODES)
    questions = list(itertools.product(sorted(called & decisive), codes))
    machines = (machine.broken(fail=[f"{function} {code}"]) for function, code in questions)
    for question, cuda in zip(questions, server.cuda_each(machines), strict=True):
        launch = LaunchReading(failure=cuda.failure)

        result, exit_code = judged(machine, nvml=nvml, health=health, cuda=cuda, launch=launch)

        assert exit_code is ExitCode.BAD, question
        assert result.verdict is Verdict.UNUSABLE
        assert result.first_failure == "cuda-driver"
        assert result.remedy, question
        assert finding(result, "launch").status is CheckStatus.SKIP


#: What gives something back is not judged.
RELEASING = {"cuMemFree_v2", "cuDevicePrimaryCtxRelease_v2"}
#: Asked before the launch by the process that counts devices.
SHARED = {"cuInit", "cuDeviceGetCount", "cuDeviceGet", "cuDriverGetVersion"}


def test_every_step_of_the_launch_fails_with_every_code(
    forks: ForkServers, called: set[str]
) -> None:
    machine = machine_of_two()
    server = forks.on(machine)
    nvml, health, cuda = server.nvml(machine, PLAIN), server.health(machine), server.cuda(machine)
    steps = {"cuLaunchKernel", "cuCtxSynchronize", "cuModuleLoadData", "cuModuleGetFunction",
             "cuMemAlloc_v2", "cuMemcpyHtoD_v2", "cuMemcpyDtoH_v2", "cuCtxSetCurrent",
             "cuDevicePrimaryCtxRetain", *RELEASING, *SHARED}  # fmt: skip
    asked = {name for name in called if name.startswith("cu")}
    assert steps - asked == set()
    codes = sampled(CUDA_CODES, 8, always=SPECIAL_CUDA_CODES)
    questions = list(itertools.product(sorted(steps - {"cuDriverGetVersion"}), codes))
    machines = (machine.broken(fail=[f"{function} {code}"]) for function, code in questions)
    for question, launch in zip(questions, server.launch_each(machines), strict=True):
        result, exit_code = judged(machine, nvml=nvml, health=health, cuda=cuda, launch=launch)

        found = finding(result, "launch")
        if question[0] in RELEASING:
            assert found.status is CheckStatus.OK
            continue
        assert found.status is CheckStatus.FAIL, question
        assert (exit_code, result.first_failure) == (ExitCode.BAD, "launch")
        assert found.remedy


@pytest.mark.parametrize("symbol", ["cuLaunchKernel", "cuModuleLoadData", "cuMemAlloc_v2"])
def test_a_driver_that_lacks_a_function_cannot_launch(forks: ForkServers, symbol: str) -> None:
    machine = machine_of_two().broken(missing=[symbol])

    launch = forks.on(machine).launch(machine)

    assert launch.launches[0].failure is not None
    assert symbol in launch.launches[0].failure.message


def test_a_gpu_that_is_lost_in_mid_health_keeps_the_others(forks: ForkServers) -> None:
    machine = machine_of_two()
    broken = machine.broken(fail=["nvmlDeviceGetVbiosVersion gpu=0 15"])

    health = forks.on(machine).health(broken)

    lost, well = health.gpus
    assert lost.failure is not None
    assert lost.failure.code == "gpu-is-lost"
    assert lost.vbios_version is None
    assert (well.failure, well.recovery_action) == (None, 0)


@pytest.mark.parametrize("name", ["nvmlDeviceGetTotalEccErrors", "nvmlDeviceGetNvLinkState"])
def test_health_that_hangs_ends_with_the_deadline(
    pretend: Pretend, program: Program, name: str, tmp_path: Path
) -> None:
    env = pretend(machine_of_two(), hang=[f"{name} gpu=1"])

    ended = program("detect", "--json", "--deadline", "1", env=env)

    document = ended.document("detect")
    health = {c["id"]: c["status"] for c in document["result"]["checks"] if c["layer"] == "health"}
    assert "ok" not in {health[name] for name in ("ecc-errors", "nvlink", "fabric")}
