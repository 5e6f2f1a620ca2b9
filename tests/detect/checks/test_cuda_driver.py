"""cuda-driver: whether a program that starts now sees a GPU."""

from __future__ import annotations

import pytest

from gpucheck.detect.checks.cuda_driver import MPS_CODES, check
from gpucheck.detect.checks.nvml import OLD_CONTAINER
from gpucheck.detect.machine import Machine
from gpucheck.detect.model import Finding
from gpucheck.drivers.cuda.worker import REASONS
from gpucheck.drivers.evidence import (
    GpuHealthReading,
    HealthReading,
    KernelLogReading,
    LibrariesReading,
    LibraryReading,
    ModuleReading,
    NodeReading,
    SystemReading,
)
from gpucheck.drivers.readings import (
    CudaDeviceReading,
    CudaReading,
    KernelReading,
    MigReading,
    ProbeFailure,
)
from gpucheck.report.envelope import CheckStatus, Host
from tests.fakes.probes import HERE, IN_DOCKER, ON_WSL2, FakeProbes, gpu_reading, reading_of

CODES = {slug: number for number, (slug, _) in REASONS.items()}
#: Failures that libcuda has no code for, and the word for a code that is not in the table.
OURS = {
    "library-not-found",
    "function-not-found",
    "error",
    "driver-not-answering",
    "cuda-child-died",
    "not-recorded",
}
UNDECIDED = {"driver-not-answering", "cuda-child-died", "not-recorded"}


def look(reading: CudaReading, variables: dict[str, str] | None = None) -> Finding:
    return check(Machine(FakeProbes(cuda_reading=reading, variables=variables or {})))


def sees(count: int, version: int | None = 12080) -> CudaReading:
    devices = tuple(CudaDeviceReading(ordinal=ordinal) for ordinal in range(count))
    return CudaReading(driver_version=version, device_count=count, devices=devices)


@pytest.mark.parametrize(
    ("reading", "summary"),
    [
        (sees(1), "CUDA 12.8 starts and sees 1 GPU"),
        (sees(8), "CUDA 12.8 starts and sees 8 GPUs"),
        (sees(1, version=None), "CUDA ? starts and sees 1 GPU"),
    ],
)
def test_works(reading: CudaReading, summary: str) -> None:
    found = look(reading)

    assert found.status is CheckStatus.OK
    assert found.summary == summary


@pytest.mark.parametrize("reading", [sees(0), CudaReading(driver_version=12080)])
def test_no_device_without_an_error(reading: CudaReading) -> None:
    found = look(reading)

    assert found.status is CheckStatus.FAIL
    assert found.summary == "CUDA starts, but sees no GPU"
    assert found.remedy


def test_every_failure() -> None:
    for code in sorted({*CODES, *OURS}):
        failure = ProbeFailure(
            code=code, message="the reason", function="cuInit", library_code=CODES.get(code)
        )

        found = look(CudaReading(failure=failure))

        expected = CheckStatus.UNKNOWN if code in UNDECIDED else CheckStatus.FAIL
        assert found.status is expected
        # What only other evidence can tell apart is said in the check's own words.
        said = "confidential computing or a fabric manager is not set up"
        refined = {"system-not-ready": said, "fabric-not-ready": said}
        assert found.summary.endswith(refined.get(code, "the reason"))
        number = f"CUDA {CODES[code]}" if code in CODES else code
        assert (found.evidence[0].source, found.evidence[0].value) == ("cuInit", number)
        assert found.remedy


@pytest.mark.parametrize("text", ["", "-1", "9"])
def test_the_variable_is_the_first_suspect(text: str) -> None:
    failure = ProbeFailure(code="no-device", message="none", library_code=100)

    found = look(CudaReading(failure=failure), {"CUDA_VISIBLE_DEVICES": text})

    assert found.evidence[1].source == "CUDA_VISIBLE_DEVICES"
    assert found.evidence[1].value == repr(text)
    assert found.remedy[0].startswith("Unset CUDA_VISIBLE_DEVICES")


def test_an_unset_variable_is_no_suspect() -> None:
    failure = ProbeFailure(code="no-device", message="none", library_code=100)

    assert not any("Unset" in step for step in look(CudaReading(failure=failure)).remedy)


# ------------------------------------------------------------------------------ left out


def left_out(
    *seen: int, gpus: int = 3, changes: dict[str, object] | None = None, **variables: str
) -> Finding:
    """Return what is said where CUDA sees these of the GPUs that NVML lists."""
    rows = [gpu_reading(index) for index in range(gpus)]
    rows[-1] = rows[-1]._replace(**(changes or {}))
    devices = tuple(
        CudaDeviceReading(ordinal=at, uuid_hex=(gpu_reading(index).uuid or "")[4:].replace("-", ""))
        for at, index in enumerate(seen)
    )
    cuda = CudaReading(driver_version=13000, device_count=len(seen), devices=devices)
    probes = FakeProbes(readings=reading_of(*rows), cuda_reading=cuda, variables=variables)
    return check(Machine(probes))


LOST = ProbeFailure(code="gpu-is-lost", message="it is gone", library_code=15)


@pytest.mark.parametrize(
    ("seen", "changes", "variables", "status"),
    [
        ((0, 1, 2), {}, {}, "ok"),
        ((2, 0, 1), {}, {}, "ok"),
        ((0, 1), {}, {}, "warn"),
        ((0, 1), {"uuid": None}, {}, "ok"),  # nobody can tell which ones they are
        ((0, 1), {}, {"CUDA_VISIBLE_DEVICES": "0,1"}, "ok"),
        ((0,), {}, {"CUDA_VISIBLE_DEVICES": "0,2"}, "warn"),
        # Each of these has a check of its own.
        ((0, 1), {"failure": LOST}, {}, "ok"),
        ((0, 1), {"compute_mode": "prohibited"}, {}, "ok"),
        ((0, 1), {"mig_enabled": True, "mig_instances": (MigReading(uuid="MIG-1"),)}, {}, "ok"),
        # What the rules leave open, only the driver knows.
        ((0,), {"name": "Tesla T4"}, {"CUDA_VISIBLE_DEVICES": "0,2"}, "ok"),
    ],
)
def test_a_gpu_that_cuda_leaves_out_is_named(
    seen: tuple[int, ...], changes: dict[str, object], variables: dict[str, str], status: str
) -> None:
    found = left_out(*seen, changes=changes, **variables)

    assert found.status == status
    if status == "warn":
        assert "it leaves out GPU 2 (0000:12:00.0), and nothing hides it" in found.summary
        assert found.cause == "gpu-left-out"


# ------------------------------------------------------------------------------ explanations


REFUSED = {"/dev/nvidiactl": "EPERM"}


def cuda_says(
    code: str, machine: Host = HERE, path: str | None = None, **changes: object
) -> Finding:
    failure = ProbeFailure(code=code, message="CUDA's words", library_code=1)
    reading = CudaReading(failure=failure, library_path=path)
    return check(Machine(FakeProbes(machine=machine, cuda_reading=reading, **changes)))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("code", "path", "says"),
    [
        ("compat-not-supported", "/usr/local/cuda/compat/libcuda.so.1", "/usr/local/cuda/compat"),
        ("stub-library", "/usr/local/cuda/lib64/stubs/libcuda.so", "/usr/local/cuda/lib64/stubs"),
        ("driver-mismatch", "/opt/copied/libcuda.so.550.1", "/opt/copied"),
    ],
)
def test_the_wrong_libcuda_is_named(code: str, path: str, says: str) -> None:
    own = LibraryReading(name="libcuda.so.1", path="/usr/lib64/libcuda.so.1", version="580.1")
    system = SystemReading(libraries=LibrariesReading(found=(own,)))

    found = cuda_says(code, path=path, system_reading=system)

    assert found.remedy[0].startswith(f"Remove {says} from LD_LIBRARY_PATH")
    assert any(item.value == own.path for item in found.evidence)


@pytest.mark.parametrize("code", ["compat-not-supported", "driver-mismatch"])
@pytest.mark.parametrize("machine", [HERE, IN_DOCKER], ids=["host", "container"])
def test_an_old_container_is_advised_to_be_made_anew_only_where_it_is_one(
    code: str, machine: Host
) -> None:
    found = cuda_says(code, machine, path="/usr/lib64/libcuda.so.1")

    old_container = code == "driver-mismatch" and machine is IN_DOCKER
    assert (found.remedy == OLD_CONTAINER) is old_container


def test_802_on_an_nvswitch_machine_is_the_fabric_manager() -> None:
    rows = reading_of(gpu_reading(0))

    found = cuda_says("system-not-ready", system_reading=SystemReading(nvswitches=4), readings=rows)

    assert "fabric manager" in found.summary
    assert "580.95.05" in found.remedy[1]


@pytest.mark.parametrize("code", ["system-not-ready", "unknown"])
def test_the_conflict_with_address_randomisation(code: str) -> None:
    log = KernelLogReading(lines=("nvidia-uvm: request_free_mem_region() err -34",))

    found = cuda_says(code, system_reading=SystemReading(log=log, nvswitches=4))

    assert "uvm_disable_hmm=1" in found.remedy[0]


def test_999_in_a_container_that_lost_its_devices() -> None:
    assert "device cgroup" in cuda_says("unknown", IN_DOCKER, openings=REFUSED).summary


def test_35_of_a_driver_that_is_none() -> None:
    old = ProbeFailure(code="insufficient-driver", message="too old", library_code=35)

    def look(version: int | None) -> Finding:
        reading = CudaReading(driver_version=version, failure=old)
        return check(Machine(FakeProbes(cuda_reading=reading)))

    assert look(0).cause == "no-driver"
    assert "install the NVIDIA driver" in look(0).remedy[0]
    assert look(11040).cause == look(None).cause == "insufficient-driver"


def test_every_code_of_mps_has_its_steps() -> None:
    for number in MPS_CODES:
        failure = ProbeFailure(code=REASONS[number][0], message="MPS", library_code=number)
        probes = FakeProbes(
            cuda_reading=CudaReading(failure=failure),
            variables={"CUDA_MPS_PIPE_DIRECTORY": "/tmp/mps"},
        )

        found = check(Machine(probes))

        assert found.evidence[-1].value == "'/tmp/mps'"
        assert any("MPS" in step for step in found.remedy)


def test_the_driver_s_own_folder_is_not_taken_out_of_the_path() -> None:
    found = cuda_says("driver-mismatch", path="/usr/lib/x86_64-linux-gnu/libcuda.so.580.1")

    assert found.remedy == ("Reboot, so that the kernel module of the installed driver is loaded.",)


@pytest.mark.parametrize(
    ("code", "last"),
    [
        ("driver-mismatch", "Reboot, so that the kernel module of the installed driver is loaded."),
        ("compat-not-supported", "Or upgrade the driver: then no compatibility library is needed."),
        ("stub-library", "Remove /opt/copied from LD_LIBRARY_PATH (and from /etc/ld.so.conf.d)."),
    ],
)
def test_each_wrong_library_has_its_own_last_step(code: str, last: str) -> None:
    assert cuda_says(code, path="/opt/copied/libcuda.so.1").remedy[-1] == last


def test_mig_instances_that_this_user_may_not_use() -> None:
    cap = NodeReading(path="/dev/nvidia-caps/nvidia-cap12", mode="0400", accessible=False)
    nodes = FakeProbes().system_reading.nodes._replace(caps=(cap,))
    instance = MigReading(uuid="MIG-1")
    rows = reading_of(gpu_reading(0, mig_enabled=True, mig_instances=(instance,)))

    found = cuda_says("no-device", system_reading=SystemReading(nodes=nodes), readings=rows)

    assert found.cause == "mig-not-permitted"
    assert found.evidence[-1].source == cap.path


def test_a_log_that_may_not_be_read_leaves_the_conflict_possible() -> None:
    module = ModuleReading(hmm_disabled=False)
    hidden = SystemReading(module=module, log=KernelLogReading(unavailable="EPERM"))
    seen = hidden._replace(log=KernelLogReading(lines=()))

    def steps(system: SystemReading) -> str:
        return " ".join(cuda_says("unknown", system_reading=system).remedy)

    assert "uvm_disable_hmm" in steps(hidden)
    assert "uvm_disable_hmm" not in steps(seen)


def test_802_where_the_gpus_wait_for_a_fabric_that_is_on_no_bus() -> None:
    waiting = HealthReading(gpus=(GpuHealthReading(index=0, fabric_state=2),))

    found = cuda_says(
        "system-not-ready", readings=reading_of(gpu_reading(0)), health_reading=waiting
    )

    assert found.cause == "fabric-not-ready"
    assert "nvlsm" in found.remedy[-1]


def test_46_where_the_modes_let_programs_in_does_not_advise_to_change_them() -> None:
    default = reading_of(gpu_reading(0, compute_mode="default"))
    exclusive = reading_of(gpu_reading(0, compute_mode="exclusive-process"))

    free = cuda_says("devices-unavailable", readings=default)
    taken = cuda_says("devices-unavailable", readings=exclusive)

    assert "-c 0" not in " ".join(free.remedy)
    assert "-c 0" in " ".join(taken.remedy)


@pytest.mark.parametrize(("name", "offered"), [("NVIDIA A10", True), ("NVIDIA GeForce X", False)])
def test_a_compatibility_package_is_for_data_centre_gpus(name: str, *, offered: bool) -> None:
    failure = ProbeFailure(code="insufficient-driver", message="too old", library_code=35)
    reading = CudaReading(driver_version=12020, failure=failure)
    rows = reading_of(gpu_reading(0, name=name))

    found = check(Machine(FakeProbes(cuda_reading=reading, readings=rows)))

    assert any("cuda-compat" in step for step in found.remedy) is offered


@pytest.mark.parametrize(
    ("machine", "loaded", "message", "installed"),
    [
        (HERE, True, "libcuda.so.1: cannot open shared object file", True),
        (HERE, False, "libcuda.so.1: cannot open shared object file", False),
        (HERE, True, "libcuda.so.1: invalid ELF header", False),
        (IN_DOCKER, True, "libcuda.so.1: cannot open shared object file", False),
    ],
)
def test_a_missing_library_beside_a_loaded_module_is_installed(
    machine: Host, message: str, *, loaded: bool, installed: bool
) -> None:
    failure = ProbeFailure(code="library-not-found", message=message)
    probes = FakeProbes(
        machine=machine,
        readings=reading_of(gpu_reading(0)),
        cuda_reading=CudaReading(failure=failure),
        kernel_reading=KernelReading(module_loaded=loaded, module_version="580.95.05"),
    )

    found = check(Machine(probes))

    assert ("is not installed, though" in found.summary) is installed
    assert any("Install the driver's libraries" in step for step in found.remedy) is installed


@pytest.mark.parametrize(
    ("machine", "variables", "nvml_works", "cause"),
    [
        (ON_WSL2, {}, True, "wsl-library-path"),
        (IN_DOCKER, {"NVIDIA_DRIVER_CAPABILITIES": "utility"}, True, "container-without-compute"),
        (IN_DOCKER, {"NVIDIA_DRIVER_CAPABILITIES": "all"}, True, "library-not-found"),
        (IN_DOCKER, {}, False, "container-without-gpus"),
        (HERE, {"NVIDIA_DRIVER_CAPABILITIES": "utility"}, False, "library-not-found"),
    ],
)
def test_where_the_library_is_missing(
    machine: Host, variables: dict[str, str], cause: str, *, nvml_works: bool
) -> None:
    rows = reading_of(gpu_reading(0))
    failure = ProbeFailure(code="library-not-found", message="none")
    probes = FakeProbes(
        machine=machine,
        variables=variables,
        readings=rows if nvml_works else rows._replace(failure=failure),
        cuda_reading=CudaReading(failure=failure),
    )

    assert check(Machine(probes)).cause == cause


def test_the_module_s_version_is_evidence_of_a_wrong_library() -> None:
    kernel = KernelReading(module_version="580.95.05")
    own = LibraryReading(name="libcuda.so.1", path="/usr/lib/libcuda.so.1")
    system = SystemReading(libraries=LibrariesReading(found=(own,)))

    found = cuda_says(
        "driver-mismatch", path="/opt/x/libcuda.so.1", kernel_reading=kernel, system_reading=system
    )

    assert ("/sys/module/nvidia/version", "580.95.05") in found.evidence
    assert ("the driver's own", "/usr/lib/libcuda.so.1") in found.evidence


@pytest.mark.parametrize(("error", "lost"), [("EPERM", True), ("ENODEV", False)])
def test_only_a_refused_opening_means_that_the_devices_are_lost(error: str, *, lost: bool) -> None:
    opened = {"/dev/nvidiactl": error}

    for code in ("no-device", "unknown"):
        found = cuda_says(code, IN_DOCKER, openings=opened)

        assert (found.cause == "device-cgroup-lost") is lost
        assert ("open /dev/nvidiactl", error) in found.evidence


@pytest.mark.parametrize(
    ("code", "variables", "works"),
    [
        ("no-device", {"CUDA_VISIBLE_DEVICES": "7"}, True),
        ("no-device", {}, False),
        ("error", {"CUDA_VISIBLE_DEVICES": "7"}, False),
    ],
)
def test_only_a_variable_that_hides_every_device_is_looked_past(
    code: str, variables: dict[str, str], *, works: bool
) -> None:
    found = cuda_says(
        code, variables=variables, cuda_unrestricted_reading=CudaReading(device_count=2)
    )

    assert (found.status is CheckStatus.OK) is works
    assert ("without CUDA_VISIBLE_DEVICES" in found.summary) is works
