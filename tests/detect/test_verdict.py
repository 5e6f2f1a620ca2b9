"""Verdicts on whole machines: the conclusion, the first broken layer, the line of each layer."""

from __future__ import annotations

import pytest

from gpucheck.detect.checks import CHECKS
from gpucheck.detect.model import Detection, Finding, Layer, Verdict
from gpucheck.detect.run import detect
from gpucheck.detect.verdict import conclude, is_health_unknown
from gpucheck.drivers.cuda.worker import REASONS
from gpucheck.drivers.evidence import (
    BuildReading,
    BuildsReading,
    HealthReading,
    LaunchedReading,
    LaunchReading,
    NodeReading,
    NodesReading,
    PlatformReading,
    SystemReading,
)
from gpucheck.drivers.nvml import binding as nvml_binding
from gpucheck.drivers.readings import (
    CudaDeviceReading,
    CudaReading,
    KernelReading,
    NvmlReading,
    PciDeviceReading,
    ProbeFailure,
)
from gpucheck.drivers.recorded import RecordedProbes, Snapshot
from gpucheck.report.envelope import Answer, CheckStatus
from gpucheck.report.errors import ExitCode
from gpucheck.report.host import Host
from tests.fakes.probes import HERE, IN_DOCKER, ON_WSL2, FakeProbes, gpu_reading, reading_of

# ------------------------------------------------------------------------------ parts of machines


def bus(*drivers: str | None, loaded: bool | None = True) -> KernelReading:
    devices = tuple(
        PciDeviceReading(pci_bus_id=f"0000:{at:02x}:00.0", vendor_id="0x10de", driver=driver)
        for at, driver in enumerate(drivers, start=16)
    )
    return KernelReading(pci_devices=devices, module_loaded=loaded, module_version="580.95.05")


ON_BUS = bus("nvidia")
EMPTY_BUS = bus(loaded=False)
#: A sandbox that shows no PCI device and no module.
MASKED = KernelReading(pci_devices=(), module_loaded=False)
UNREADABLE = KernelReading(pci_unavailable="/sys/bus/pci/devices: No such file or directory")

NVML = reading_of(gpu_reading(0))
CUDA = CudaReading(
    driver_version=13000, device_count=1, devices=(CudaDeviceReading(ordinal=0, uuid_hex="0" * 32),)
)


def nvml_fails(code: str, number: int | None = None) -> NvmlReading:
    return NvmlReading(failure=ProbeFailure(code=code, message="NVML broke", library_code=number))


def cuda_fails(code: str, number: int | None = None) -> CudaReading:
    return CudaReading(failure=ProbeFailure(code=code, message="CUDA broke", library_code=number))


NO_NVML = nvml_fails("library-not-found", 12)
HUNG_NVML = nvml_fails("driver-not-answering")
HUNG_CUDA = cuda_fails("driver-not-answering")
NO_CUDA = cuda_fails("library-not-found")
NO_DEVICE = cuda_fails("no-device", 100)
LOST = ProbeFailure(code="gpu-is-lost", message="it is gone", library_code=15)
HALF_LOST = reading_of(gpu_reading(0), gpu_reading(1, failure=LOST))


def answer_of(
    kernel: KernelReading, nvml: NvmlReading, cuda: CudaReading, machine: Host = HERE
) -> tuple[Answer, FakeProbes]:
    probes = FakeProbes(machine=machine, readings=nvml, cuda_reading=cuda, kernel_reading=kernel)
    if kernel is EMPTY_BUS:
        probes.system_reading = SystemReading()  # without a driver there are no nodes
    if machine is ON_WSL2:
        probes.system_reading = SystemReading(platform=PlatformReading(dxg=True))
    return detect(probes), probes


def detection(answer: Answer) -> Detection:
    assert isinstance(answer.result, Detection)
    return answer.result


#: The checks that this table is about; every one has tests of its own.
SPINE = ("pci-device", "kernel-module", "nvml", "cuda-driver")


def statuses(answer: Answer) -> str:
    """Return the statuses of the spine in order."""
    by_id = {finding.id: finding.status.value for finding in detection(answer).checks}
    return " ".join(by_id[name] for name in SPINE)


# --------------------------------------------------------------------------------- the table

OK, BAD, OPEN = ExitCode.OK, ExitCode.BAD, ExitCode.INCONCLUSIVE


@pytest.mark.parametrize(
    ("kernel", "nvml", "cuda", "code", "verdict", "first", "found"),
    [
        pytest.param(ON_BUS, NVML, CUDA, OK, "usable", None, "ok ok ok ok", id="healthy"),
        pytest.param(
            EMPTY_BUS, NO_NVML, NO_CUDA, BAD, "unusable", "pci-device", "fail skip skip skip",
            id="no GPU at all",
        ),
        pytest.param(
            bus("nouveau", loaded=False), NO_NVML, NO_CUDA, BAD, "unusable", "kernel-module",
            "ok fail skip skip", id="nouveau holds it",
        ),
        pytest.param(
            bus(None, loaded=False), nvml_fails("driver-not-loaded", 9), NO_DEVICE, BAD, "unusable",
            "kernel-module", "ok fail skip skip", id="module not loaded",
        ),
        pytest.param(
            ON_BUS, nvml_fails("version-mismatch", 18), cuda_fails("driver-mismatch", 803), BAD,
            "unusable", "nvml", "ok ok fail skip", id="upgraded under our feet",
        ),
        pytest.param(
            ON_BUS, NO_NVML, NO_CUDA, BAD, "unusable", "nvml", "ok ok fail skip",
            id="container without driver",
        ),
        pytest.param(
            ON_BUS, reading_of(), NO_DEVICE, BAD, "unusable", "nvml", "ok ok fail skip",
            id="driver without GPU",
        ),
        pytest.param(
            ON_BUS, NVML, NO_DEVICE, BAD, "unusable", "cuda-driver", "ok ok ok fail",
            id="CUDA sees nothing",
        ),
        pytest.param(
            ON_BUS, NVML, cuda_fails("unknown", 999), BAD, "unusable", "cuda-driver",
            "ok ok ok fail", id="uvm not loaded",
        ),
        pytest.param(
            ON_BUS, HALF_LOST, CUDA, BAD, "degraded", "gpu-lost", "ok ok warn ok",
            id="one of two lost",
        ),
        pytest.param(
            ON_BUS, reading_of(gpu_reading(0, failure=LOST)), CUDA, BAD, "unusable", "nvml",
            "ok ok fail ok", id="the only one lost, which CUDA still counts",
        ),
        pytest.param(
            ON_BUS, reading_of(gpu_reading(0, failure=LOST)), NO_DEVICE, BAD, "unusable", "nvml",
            "ok ok fail skip", id="the only one lost",
        ),
        pytest.param(
            ON_BUS, HUNG_NVML, CUDA, OPEN, "unknown", None, "ok ok unknown skip", id="NVML hangs",
        ),
        pytest.param(
            ON_BUS, NVML, HUNG_CUDA, OPEN, "unknown", None, "ok ok ok unknown", id="CUDA hangs",
        ),
        pytest.param(
            ON_BUS, nvml_fails("nvml-child-died"), CUDA, OK, "usable", None, "ok ok unknown ok",
            id="NVML's process died, CUDA works",
        ),
        pytest.param(
            ON_BUS, NO_NVML, CUDA, OK, "degraded", None, "ok ok warn ok",
            id="container without utility capability",
        ),
        pytest.param(
            MASKED, NVML, CUDA, OK, "usable", None, "unknown unknown ok ok",
            id="masked bus, CUDA works",
        ),
        pytest.param(
            MASKED, NVML, NO_DEVICE, BAD, "unusable", "cuda-driver", "unknown unknown ok fail",
            id="masked bus, NVML works, CUDA does not",
        ),
        pytest.param(
            MASKED, HUNG_NVML, CUDA, OPEN, "unknown", None, "unknown unknown unknown skip",
            id="masked bus, NVML hangs",
        ),
        pytest.param(
            UNREADABLE, NVML, CUDA, OK, "usable", None, "unknown unknown ok ok",
            id="unreadable bus, CUDA works",
        ),
        pytest.param(
            UNREADABLE, NO_NVML, NO_CUDA, BAD, "unusable", "nvml", "unknown unknown fail skip",
            id="unreadable bus, no driver",
        ),
        pytest.param(
            UNREADABLE, HUNG_NVML, CUDA, OPEN, "unknown", None, "unknown unknown unknown skip",
            id="unreadable bus, NVML hangs",
        ),
        pytest.param(
            ON_BUS, NO_NVML, HUNG_CUDA, BAD, "unusable", "nvml", "ok ok fail skip",
            id="no NVML, CUDA hangs",
        ),
    ],
)  # fmt: skip
def test_machine(
    kernel: KernelReading,
    nvml: NvmlReading,
    cuda: CudaReading,
    code: ExitCode,
    verdict: str,
    first: str | None,
    found: str,
) -> None:
    answer, _ = answer_of(kernel, nvml, cuda)

    assert statuses(answer) == found
    assert answer.exit_code is code
    result = detection(answer)
    assert result.verdict == verdict
    assert result.usable is {"usable": True, "degraded": True, "unusable": False}.get(verdict)
    assert result.first_failure == first
    assert bool(result.remedy) == (code is not OK or nvml is NO_NVML)


@pytest.mark.parametrize(
    ("nvml", "cuda", "code", "first", "found"),
    [
        (NVML, CUDA, OK, None, "skip skip ok ok"),
        (nvml_fails("operating-system", 17), NO_CUDA, BAD, "nvml", "skip skip fail skip"),
        (NVML, NO_CUDA, BAD, "cuda-driver", "skip skip ok fail"),
        (HUNG_NVML, CUDA, OPEN, None, "skip skip unknown skip"),
    ],
    ids=["healthy", "old Windows driver", "no libcuda", "hung"],
)
def test_wsl(
    nvml: NvmlReading, cuda: CudaReading, code: ExitCode, first: str | None, found: str
) -> None:
    answer, _ = answer_of(
        KernelReading(pci_devices=(), module_loaded=False), nvml, cuda, machine=ON_WSL2
    )

    assert (answer.exit_code, detection(answer).first_failure) == (code, first)
    assert statuses(answer) == found


# ------------------------------------------------------------------------------ what is asked


@pytest.mark.parametrize("kernel", [ON_BUS, MASKED, UNREADABLE])
def test_a_hung_nvml_leaves_cuda_unasked(kernel: KernelReading) -> None:
    _, probes = answer_of(kernel, HUNG_NVML, CUDA)

    assert set(probes.asked) == {"kernel", "system", "nvml", "builds"}


def test_a_driver_that_hangs_on_the_way_leaves_cuda_unasked() -> None:
    hung = ProbeFailure(code="driver-not-answering", message="no answer within 10 s")
    answer, probes = answer_of(ON_BUS, reading_of(gpu_reading(0), gpu_count=2, failure=hung), CUDA)

    assert not {"cuda", "health", "launch"} & set(probes.asked)
    assert answer.exit_code is OPEN


@pytest.mark.parametrize("nvml", [NVML, NO_NVML, nvml_fails("nvml-child-died")])
def test_otherwise_everything_is_asked_once(nvml: NvmlReading) -> None:
    _, probes = answer_of(EMPTY_BUS, nvml, CUDA)

    # NVML alone is asked again, after the kernel: whether every GPU is still there.
    assert {name for name in probes.asked if probes.asked.count(name) > 1} <= {"nvml"}
    assert {"kernel", "nvml", "cuda"} <= set(probes.asked)


def test_files_are_looked_at_before_any_library_is_called() -> None:
    _, probes = answer_of(ON_BUS, NVML, CUDA)

    libraries = [probes.asked.index(name) for name in ("nvml", "health", "cuda", "launch")]
    assert max(probes.asked.index("kernel"), probes.asked.index("system")) < min(libraries)


# ------------------------------------------------------------------------------ every failure

NVML_CODES = {slug: number for number, (slug, _) in nvml_binding.REASONS.items()}
NVML_OURS = ("nvml-child-died", "binding-missing", "binding-too-old", "unlisted", "not-recorded")
CUDA_CODES = {slug: number for number, (slug, _) in REASONS.items()}
CUDA_OURS = ("cuda-child-died", "library-not-found", "function-not-found", "error", "not-recorded")


@pytest.mark.parametrize("cuda", [NO_CUDA, NO_DEVICE, HUNG_CUDA], ids=["none", "no-device", "hung"])
@pytest.mark.parametrize("kernel", [ON_BUS, EMPTY_BUS, UNREADABLE], ids=["bus", "empty", "blind"])
def test_no_failure_of_nvml_is_ok(kernel: KernelReading, cuda: CudaReading) -> None:
    for code in (*NVML_CODES, *NVML_OURS):
        answer, _ = answer_of(kernel, nvml_fails(code, NVML_CODES.get(code)), cuda)

        result = detection(answer)
        assert answer.exit_code in (BAD, OPEN), code
        assert result.verdict in (Verdict.UNUSABLE, Verdict.UNKNOWN), code
        assert (result.first_failure is None) == (answer.exit_code is OPEN), code
        assert result.remedy, code
        by_id = {finding.id: finding.status for finding in result.checks}
        assert CheckStatus.OK not in (by_id["nvml"], by_id["cuda-driver"]), code


@pytest.mark.parametrize("kernel", [ON_BUS, MASKED, UNREADABLE], ids=["bus", "masked", "blind"])
def test_no_failure_of_cuda_is_ok(kernel: KernelReading) -> None:
    for code in (*CUDA_CODES, *CUDA_OURS):
        answer, _ = answer_of(kernel, NVML, cuda_fails(code, CUDA_CODES.get(code)))

        result = detection(answer)
        undecided = code in ("cuda-child-died", "not-recorded")
        assert answer.exit_code is (OPEN if undecided else BAD), code
        assert result.first_failure == (None if undecided else "cuda-driver"), code
        # The fake says the same of every code; of these there is more to say.
        is_refined = code in ("system-not-ready", "fabric-not-ready")
        assert result.conclusion.endswith("CUDA broke") or is_refined
        assert result.remedy, code


def test_cuda_without_a_device_is_a_failure_without_an_error() -> None:
    answer, _ = answer_of(ON_BUS, NVML, CudaReading(driver_version=13000, device_count=0))

    assert (answer.exit_code, detection(answer).first_failure) == (BAD, "cuda-driver")
    assert detection(answer).remedy


# ----------------------------------------------------------------------------------- the words


@pytest.mark.parametrize(
    ("kernel", "nvml", "cuda", "conclusion"),
    [
        (ON_BUS, NVML, CUDA, "GPU usable"),
        (ON_BUS, HALF_LOST, CUDA, "1 of 2 GPUs usable: GPU 1 (0000:11:00.0) fell off the bus"),
        (EMPTY_BUS, NO_NVML, NO_CUDA, "GPU not usable: no NVIDIA GPU is on the PCI bus"),
        (UNREADABLE, HUNG_NVML, CUDA, "Cannot tell whether a GPU is usable: NVML broke"),
    ],
)
def test_conclusion(
    kernel: KernelReading, nvml: NvmlReading, cuda: CudaReading, conclusion: str
) -> None:
    answer, _ = answer_of(kernel, nvml, cuda)

    assert detection(answer).conclusion == conclusion


def test_gpus_that_were_not_counted_have_no_count() -> None:
    """The driver worked, and hung when it was asked which GPUs are lost."""
    hung = ProbeFailure(code="driver-not-answering", message="NVML broke")
    reading = HealthReading(failure=hung)
    probes = FakeProbes(
        readings=NVML, cuda_reading=CUDA, kernel_reading=ON_BUS, health_reading=reading
    )

    conclusion = detection(detect(probes)).conclusion

    assert conclusion.startswith("GPU usable, with warnings: not checked: NVML broke")


def test_what_was_not_reached_says_why() -> None:
    answer, _ = answer_of(EMPTY_BUS, NO_NVML, NO_CUDA)

    summaries = {f.summary for f in detection(answer).checks if f.id in SPINE[1:]}
    assert summaries == {"not reached: pci-device failed"}


#: NVML's codes that only a running driver gives; of these the first two may be the nodes' alone.
WITNESSES = (4, 17, 8, 11, 14, 15, 16, 18, 20, 27)
NO_NODES = SystemReading()
ONLY_CONTROL = SystemReading(nodes=NodesReading(nodes=(NodeReading(path="/dev/nvidiactl"),)))


def sandboxed(
    kernel: KernelReading,
    nvml: NvmlReading,
    cuda: CudaReading = NO_CUDA,
    *,
    nodes: SystemReading | None = NO_NODES,
    machine: Host = IN_DOCKER,
) -> Detection:
    """Return what is said where the signs of a driver may be hidden."""
    probes = FakeProbes(machine=machine, readings=nvml, cuda_reading=cuda, kernel_reading=kernel)
    if nodes is not None:
        probes.system_reading = nodes
    return detection(detect(probes))


@pytest.mark.parametrize("number", WITNESSES)
@pytest.mark.parametrize("kernel", [MASKED, bus("nvidia", loaded=False)], ids=["bus", "module"])
@pytest.mark.parametrize("machine", [HERE, IN_DOCKER], ids=["host", "container"])
def test_an_error_of_a_running_driver_outweighs_what_is_not_seen(
    kernel: KernelReading, number: int, machine: Host
) -> None:
    nvml = nvml_fails(nvml_binding.REASONS[number][0], number)

    with_nodes = sandboxed(kernel, nvml, nodes=None, machine=machine)
    without = sandboxed(kernel, nvml, machine=machine)

    assert with_nodes.first_failure == "nvml"
    assert without.first_failure == ("device-nodes" if number in (4, 17) else "nvml")
    assert "NVML" in with_nodes.conclusion or "NVML" in str(with_nodes.checks)
    bus_says = next(each.summary for each in with_nodes.checks if each.id == "pci-device")
    said = f"yet a driver is present (NVML error {number})"
    assert bus_says.endswith(said) is (kernel is MASKED)


@pytest.mark.parametrize("number", sorted({*nvml_binding.REASONS} - {*WITNESSES, 10}))
def test_other_errors_outweigh_an_empty_bus_only_beside_a_control_node(number: int) -> None:
    nvml = nvml_fails(nvml_binding.REASONS[number][0], number)

    assert sandboxed(MASKED, nvml).first_failure == "pci-device"
    beside = sandboxed(MASKED, nvml, nodes=None)
    # That the module is not loaded is the driver's own word there.
    assert beside.first_failure == ("kernel-module" if number == 9 else "nvml")
    bus_says = next(each.summary for each in beside.checks if each.id == "pci-device")
    assert bus_says.endswith("yet /dev/nvidiactl exists")


@pytest.mark.parametrize("number", [803, 804])
def test_a_mismatch_that_cuda_finds_is_of_a_running_driver(number: int) -> None:
    slug = REASONS[number][0]

    found = sandboxed(MASKED, NO_NVML, cuda_fails(slug, number), nodes=ONLY_CONTROL)

    by_id = {each.id: each for each in found.checks}
    assert by_id["pci-device"].status is by_id["kernel-module"].status is CheckStatus.UNKNOWN
    assert found.first_failure not in ("pci-device", "kernel-module")


def test_nodes_that_a_driver_left_behind_do_not_speak_for_it() -> None:
    on_a_host = sandboxed(bus("nvidia", loaded=False), NO_NVML, nodes=None, machine=HERE)

    assert on_a_host.first_failure == "kernel-module"


def test_an_upgraded_host_driver_means_a_new_container() -> None:
    found = sandboxed(MASKED, nvml_fails("version-mismatch", 18), nodes=None)

    assert (found.first_failure, found.cause) == ("nvml", "version-mismatch")
    assert found.remedy[0].startswith("Recreate the container")


NO_UVM = SystemReading(
    nodes=NodesReading(
        nodes=tuple(
            NodeReading(path=f"/dev/nvidia{name}", mode="0666", accessible=True)
            for name in ("0", "ctl")
        )
    )
)
ALL_LOST = reading_of(gpu_reading(0, failure=LOST))


@pytest.mark.parametrize(
    ("nvml", "first", "code"),
    [
        (nvml_fails("version-mismatch", 18), "nvml", BAD),
        (nvml_fails("gpu-is-lost", 15), "nvml", BAD),
        (nvml_fails("unknown", 999), "nvml", BAD),
        (ALL_LOST, "nvml", BAD),
        (HUNG_NVML, None, OPEN),
        # Where NVML works it is what CUDA lacks.
        (NVML, "uvm-node", BAD),
    ],
)
def test_a_missing_uvm_is_a_remark_beside_a_broken_nvml(
    nvml: NvmlReading, first: str | None, code: ExitCode
) -> None:
    probes = FakeProbes(readings=nvml, cuda_reading=cuda_fails("unknown", 999),
                        kernel_reading=ON_BUS, system_reading=NO_UVM)  # fmt: skip

    answer = detect(probes)

    result = detection(answer)
    assert (result.first_failure, answer.exit_code) == (first, code)
    (uvm,) = [found for found in result.checks if found.id == "uvm-node"]
    assert uvm.status is (CheckStatus.WARN if nvml is not NVML else CheckStatus.FAIL)
    assert "uvm" not in result.conclusion or nvml is NVML


def test_a_misread_sign_gives_no_advice() -> None:
    answer, _ = answer_of(MASKED, NVML, CUDA)

    by_id = {finding.id: finding for finding in detection(answer).checks}
    pci, module = by_id["pci-device"], by_id["kernel-module"]
    seen = "as far as can be seen here, yet a kernel runs"
    assert pci.summary == f"no NVIDIA GPU is on the PCI bus {seen}"
    assert module.summary == f"the nvidia kernel module is not loaded {seen}"
    assert (pci.remedy, pci.cause) == (module.remedy, module.cause) == ((), None)
    assert answer.warnings == ()
    assert detection(answer).conclusion == "GPU usable"


def test_a_missing_nvml_beside_a_working_cuda_keeps_its_advice() -> None:
    answer, _ = answer_of(ON_BUS, NO_NVML, CUDA)

    assert "libnvidia-ml1" in " ".join(detection(answer).remedy)


def test_every_check_has_its_finding_in_order() -> None:
    answer, _ = answer_of(ON_BUS, NVML, CUDA)

    found = [(finding.id, finding.layer) for finding in detection(answer).checks]
    assert list(dict.fromkeys(found)) == [(check.ID, check.LAYER) for check in CHECKS]


def test_the_driver_s_versions_stand_in_the_envelope() -> None:
    answer, _ = answer_of(ON_BUS, NVML, CUDA)

    assert (answer.host.driver_version, answer.host.cuda_driver_version) == ("580.95.05", "13.0")


def test_a_sign_that_is_outweighed_does_not_read_like_a_fault() -> None:
    probes = FakeProbes(readings=NVML, cuda_reading=CUDA, kernel_reading=MASKED)

    signs = [f for f in detection(detect(probes)).checks if f.id in SPINE[:2]]

    assert [(f.remedy, f.cause) for f in signs] == [((), None), ((), None)]
    assert all("as far as can be seen here, yet" in f.summary for f in signs)


def test_what_was_not_recorded_is_not_guessed() -> None:
    empty = Snapshot(time="2026-01-02T03:04:05Z", host=Host(), environment={})

    answer = detect(RecordedProbes(empty))

    assert answer.exit_code is OPEN
    assert statuses(answer) == "unknown unknown unknown unknown"
    assert detection(answer).conclusion.endswith("the snapshot did not record it")
    assert detection(answer).remedy == ("Record the machine again: gpucheck snapshot FILE",)


# ------------------------------------------------------------------- what CuPy itself has shown

LACKING = BuildReading(
    name="cupy",
    distributions=("cupy-cuda12x",),
    version="14.2.0",
    cuda_build="12",
    gpu_build=True,
    missing_libraries=("libnvrtc.so.12",),
)


@pytest.mark.parametrize(
    ("through", "status", "sees"),
    [("cupy", CheckStatus.OK, True), ("libcuda", CheckStatus.WARN, None)],
)
def test_a_kernel_that_ran_through_cupy_outweighs_what_its_files_look_like(
    through: str, status: CheckStatus, sees: bool | None
) -> None:
    launches = (LaunchedReading(ordinal=0, right=True, first_launch_s=1e-3, second_launch_s=1e-5),)
    probes = FakeProbes(
        readings=NVML,
        cuda_reading=CUDA,
        kernel_reading=ON_BUS,
        builds_reading=BuildsReading(python="/usr/bin/python3", builds=(LACKING,)),
        launch_reading=LaunchReading(through=through, launches=launches),
    )

    found = detection(detect(probes))

    (cupy,) = (finding for finding in found.checks if finding.id == "cupy")
    assert cupy.status is status
    assert "libnvrtc.so.12" in cupy.summary
    assert bool(cupy.remedy) is (status is CheckStatus.WARN)
    assert [framework.sees_gpu for framework in found.frameworks] == [sees]


@pytest.mark.parametrize(
    ("code", "message", "says"),
    [
        ("import-not-finished", "it was still being imported after 120 s", "python -X importtime"),
        ("compile-not-finished", "it had not compiled and run a kernel after 60 s", "once more"),
        ("fails-on-the-gpu", "RuntimeError: no nvrtc", "python -c"),
        # CUDA 12's compiler on a GPU of CUDA 13.
        (
            "fails-on-the-gpu",
            "CompileException: nvrtc: error: invalid value for --gpu-architecture (-arch)",
            "cupy-cuda13x",
        ),
    ],
)
def test_what_cupy_does_late_or_wrong_is_a_finding_of_its_own(
    code: str, message: str, says: str
) -> None:
    build = LACKING._replace(missing_libraries=())
    ran = LaunchedReading(ordinal=0, right=True, first_launch_s=0.02, second_launch_s=1e-5)
    failure = ProbeFailure(code=code, message=message)
    probes = FakeProbes(
        readings=NVML,
        cuda_reading=CUDA,
        kernel_reading=ON_BUS,
        builds_reading=BuildsReading(python="/usr/bin/python3", builds=(build,)),
        launch_reading=LaunchReading(through="libcuda", launches=(ran,), cupy_failure=failure),
    )

    answer = detect(probes)

    result = detection(answer)
    (cupy,) = (finding for finding in result.checks if finding.id == "cupy")
    assert (cupy.status, cupy.cause) == (CheckStatus.WARN, code)
    assert says in " ".join(cupy.remedy)
    # It is no word against the driver.
    assert (answer.exit_code, result.verdict) == (OK, Verdict.USABLE)
    assert statuses(answer) == "ok ok ok ok"


def test_what_cupys_files_lack_says_more_than_its_failure() -> None:
    ran = LaunchedReading(ordinal=0, right=True, first_launch_s=0.02, second_launch_s=1e-5)
    failure = ProbeFailure(code="fails-on-the-gpu", message="RuntimeError: no nvrtc")
    probes = FakeProbes(
        readings=NVML,
        cuda_reading=CUDA,
        kernel_reading=ON_BUS,
        builds_reading=BuildsReading(python="/usr/bin/python3", builds=(LACKING,)),
        launch_reading=LaunchReading(through="libcuda", launches=(ran,), cupy_failure=failure),
    )

    found = detection(detect(probes))

    (cupy,) = (finding for finding in found.checks if finding.id == "cupy")
    assert cupy.status is CheckStatus.WARN
    assert "libnvrtc.so.12" in cupy.summary
    assert "RuntimeError" not in cupy.summary


# ------------------------------------------------------------------------------ the line of health


PASSED, UNREAD = CheckStatus.OK, CheckStatus.UNKNOWN


def health_findings(**found: CheckStatus) -> tuple[Finding, ...]:
    return tuple(
        Finding(
            id=name.replace("_", "-"), layer=Layer.HEALTH, status=status, summary=f"{name} says"
        )
        for name, status in found.items()
    )


@pytest.mark.parametrize(
    ("findings", "status", "summary"),
    [
        (health_findings(fan=PASSED), PASSED, "1 check passed"),
        (health_findings(fan=PASSED, xid=PASSED), PASSED, "2 checks passed"),
        (health_findings(fan=PASSED, xid=UNREAD), PASSED, "1 check passed; not checked: xid"),
        # The log alone makes no GPU well.
        (health_findings(fan=UNREAD, xid=PASSED), UNREAD, "fan says"),
    ],
)
def test_the_line_of_health(
    findings: tuple[Finding, ...], status: CheckStatus, summary: str
) -> None:
    (layer,) = conclude(findings).layers

    assert (layer.status, layer.summary) == (status, summary)


@pytest.mark.parametrize(
    ("findings", "unknown"),
    [
        (health_findings(fan=UNREAD), True),
        (health_findings(fan=UNREAD, xid=PASSED), True),
        (health_findings(fan=PASSED, xid=UNREAD), False),
        (health_findings(fan=CheckStatus.SKIP), False),
        ((), False),
    ],
)
def test_health_that_nobody_read_is_not_known(findings: tuple[Finding, ...], unknown: bool) -> None:
    assert is_health_unknown(findings) is unknown


@pytest.mark.parametrize(
    ("status", "conclusion"),
    [
        (PASSED, "The selected checks passed; whether a GPU is usable was not checked"),
        (CheckStatus.SKIP, "None of the selected checks could be made"),
    ],
)
def test_selected_checks_that_prove_nothing(status: CheckStatus, conclusion: str) -> None:
    assert conclude(health_findings(fan=status), partial=True).conclusion == conclusion
