"""Error codes with several causes: what the environment adds to the codes of NVML and CUDA."""

from __future__ import annotations

import pytest

from gpucheck.detect.checks import cuda_driver, nvml
from gpucheck.detect.machine import Machine
from gpucheck.detect.model import Finding
from gpucheck.drivers.evidence import (
    GpuHealthReading,
    HealthReading,
    KernelLogReading,
    LibrariesReading,
    LibraryReading,
    ModuleReading,
    NodeOpening,
    NodeReading,
    PlatformReading,
    SystemReading,
)
from gpucheck.drivers.readings import (
    CudaReading,
    KernelReading,
    MigReading,
    NvmlReading,
    ProbeFailure,
)
from gpucheck.report.envelope import CheckStatus, Host
from tests.fakes.probes import HERE, IN_DOCKER, FakeProbes, gpu_reading, reading_of

REFUSED = (NodeOpening(path="/dev/nvidiactl", error="EPERM"),)


def nvml_says(code: str, machine: Host = HERE, **changes: object) -> Finding:
    failure = ProbeFailure(code=code, message="NVML's words", library_code=1)
    reading = NvmlReading(failure=failure, library_path="/usr/lib/libnvidia-ml.so.580.95.05")
    return nvml.check(Machine(FakeProbes(machine=machine, readings=reading, **changes)))  # type: ignore[arg-type]


def cuda_says(
    code: str, machine: Host = HERE, path: str | None = None, **changes: object
) -> Finding:
    failure = ProbeFailure(code=code, message="CUDA's words", library_code=1)
    reading = CudaReading(failure=failure, library_path=path)
    return cuda_driver.check(Machine(FakeProbes(machine=machine, cuda_reading=reading, **changes)))  # type: ignore[arg-type]


def test_a_mismatch_of_two_versions_that_read_alike_is_nvml_s_word() -> None:
    found = nvml_says("version-mismatch", kernel_reading=KernelReading(module_version="580.95.05"))

    assert "NVML reports" in found.summary
    assert found.summary.endswith("but both read as 580.95.05")


def test_a_mismatch_names_both_versions() -> None:
    kernel = KernelReading(module_version="575.64.05")

    found = nvml_says("version-mismatch", kernel_reading=kernel)

    assert "version 580.95.05" in found.summary
    assert "version 575.64.05" in found.summary
    assert found.remedy[0].startswith("Reboot")


@pytest.mark.parametrize(
    ("module", "step"),
    [("590.44.01", "Recreate the container"), ("575.64.05", "Reboot"), (None, "Recreate")],
)
def test_in_a_container_a_mismatch_is_of_the_container_or_of_its_host(
    module: str | None, step: str
) -> None:
    kernel = KernelReading(module_version=module)

    found = nvml_says("version-mismatch", IN_DOCKER, kernel_reading=kernel)

    assert found.remedy[0].startswith(step)


@pytest.mark.parametrize(
    "code", ["unknown", "no-permission", "operating-system", "no-gpu", "gpu-not-found"]
)
def test_a_container_that_lost_its_devices(code: str) -> None:
    found = nvml_says(code, IN_DOCKER, openings=REFUSED)

    assert "device cgroup lost them" in found.summary
    assert found.evidence[-1].value == "EPERM"
    assert found.remedy[0].startswith("Recreate the container")


def test_a_slurm_job_without_gpus() -> None:
    found = nvml_says("no-permission", openings=REFUSED, variables={"SLURM_JOB_ID": "1"})

    assert found.remedy == ("Request GPUs from Slurm: --gpus=1 (or --gres=gpu:1).",)


def test_a_healthy_node_changes_nothing() -> None:
    opened = (NodeOpening(path="/dev/nvidiactl"),)

    assert nvml_says("unknown", IN_DOCKER, openings=opened).summary == "NVML's words"


@pytest.mark.parametrize(
    ("capabilities", "says"),
    [("compute", "without the `utility` capability"), ("all", "without GPUs"),
     ("compute, utility", "without GPUs")],
)  # fmt: skip
def test_a_container_without_nvml(capabilities: str, says: str) -> None:
    variables = {"NVIDIA_DRIVER_CAPABILITIES": capabilities}

    assert says in nvml_says("library-not-found", IN_DOCKER, variables=variables).summary


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


# ------------------------------------------------------------------------------ CUDA's refusals


def test_35_of_a_driver_that_is_none() -> None:
    old = ProbeFailure(code="insufficient-driver", message="too old", library_code=35)

    def look(version: int | None) -> Finding:
        reading = CudaReading(driver_version=version, failure=old)
        return cuda_driver.check(Machine(FakeProbes(cuda_reading=reading)))

    assert look(0).cause == "no-driver"
    assert "install the NVIDIA driver" in look(0).remedy[0]
    assert look(11040).cause == look(None).cause == "insufficient-driver"


def test_every_code_of_mps_has_its_steps() -> None:
    for number in cuda_driver.MPS_CODES:
        failure = ProbeFailure(code="error", message="MPS", library_code=number)
        probes = FakeProbes(
            cuda_reading=CudaReading(failure=failure),
            variables={"CUDA_MPS_PIPE_DIRECTORY": "/tmp/mps"},
        )

        found = cuda_driver.check(Machine(probes))

        assert found.evidence[-1].value == "'/tmp/mps'"
        assert "MPS" in found.remedy[0]


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


# ------------------------------------------------------------------------------ the driver's words


@pytest.mark.parametrize(
    ("line", "cause"),
    [
        # The driver's messages are of several lines, which some logs keep apart.
        ("NVRM: installed in this system is not supported by open", "open-module-on-old-gpu"),
        ("NVRM: installed in this system requires use of the NVIDIA open kernel modules.",
         "proprietary-module-on-new-gpu"),
        ("NVRM: installed in this system is not supported by the", "gpu-not-supported"),
        ("NVRM: The NVIDIA GPU (PCI ID: 10de:1b38) installed in this system is not supported by"
         " the NVIDIA 595.45 driver release.", "gpu-not-supported"),
        ("NVRM: BAR1 is 0M @ 0x0 (PCI:0000:01:00.0)", "no-memory-window"),
        ("NVRM: The NVIDIA probe routine was not called for 1 device(s).",
         "taken-by-another-driver"),
        ("NVRM: GPU 0000:01:00.0 is already bound to NovaCore.", "taken-by-another-driver"),
        ("NVRM: GPU at PCI:0000:01:00: GPU has fallen off the bus.", "fell-off-the-bus"),
        ("Direct firmware load for nvidia/595.45/gsp_ga10x.bin failed with error -2",
         "gsp-firmware"),
        ("NVRM: RmInitAdapter failed! (0x22:0x56:894)", "gpu-init-failed"),
    ],
)  # fmt: skip
def test_a_driver_without_gpus_says_why_in_the_log(line: str, cause: str) -> None:
    log = KernelLogReading(lines=("NVRM: loading", line), source="/dev/kmsg")

    found = nvml_says("gpu-not-found", system_reading=SystemReading(log=log))

    assert found.cause == cause
    assert found.evidence[-1].value == line
    assert found.remedy


# ------------------------------------------------------------------------------ other machines


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


def test_a_jetson_needs_no_nvml() -> None:
    tegra = SystemReading(platform=PlatformReading(tegra="R36"))

    missing = nvml_says("library-not-found", system_reading=tegra)
    refused = nvml_says("driver-not-loaded", system_reading=tegra)

    assert (missing.status, refused.status) == (CheckStatus.SKIP, CheckStatus.FAIL)


def test_gpus_that_answer_are_named_beside_one_that_does_not() -> None:
    silent = ProbeFailure(code="driver-not-answering", message="GPU 1 did not answer")
    reading = reading_of(
        gpu_reading(0), gpu_reading(1)._replace(failure=silent), gpu_reading(2)
    )._replace(failure=silent)

    found = nvml.check(Machine(FakeProbes(readings=reading)))

    assert found.status is CheckStatus.UNKNOWN
    assert (found.evidence[-1].source, found.evidence[-1].value) == ("GPUs that answer", "0, 2")


def test_an_nvml_that_is_missing_beside_a_loaded_module_is_installed() -> None:
    kernel = KernelReading(module_loaded=True, module_version="580.95.05")

    found = nvml_says("library-not-found", kernel_reading=kernel)

    assert "kernel module is loaded" in found.summary
    assert "580.95.05" in found.remedy[0]


def test_no_gpu_in_a_slurm_job_is_asked_of_slurm() -> None:
    assert "Slurm" in nvml_says("no-gpu", variables={"SLURM_JOB_ID": "1"}).remedy[0]
    assert "Slurm" not in nvml_says("no-gpu").remedy[0]


@pytest.mark.parametrize(("name", "offered"), [("NVIDIA A10", True), ("NVIDIA GeForce X", False)])
def test_a_compatibility_package_is_for_data_centre_gpus(name: str, *, offered: bool) -> None:
    failure = ProbeFailure(code="insufficient-driver", message="too old", library_code=35)
    reading = CudaReading(driver_version=12020, failure=failure)
    rows = reading_of(gpu_reading(0, name=name))

    found = cuda_driver.check(Machine(FakeProbes(cuda_reading=reading, readings=rows)))

    assert (cuda_driver.COMPAT in found.remedy) is offered
