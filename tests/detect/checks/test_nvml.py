"""nvml: whether the driver answers, and for every GPU."""

from __future__ import annotations

import pytest

from gpucheck.detect.checks.nvml import check
from gpucheck.detect.findings import make_trouble
from gpucheck.detect.machine import Machine
from gpucheck.detect.model import Finding
from gpucheck.drivers.evidence import (
    KernelLogReading,
    LibrariesReading,
    LibraryReading,
    PlatformReading,
    SystemReading,
)
from gpucheck.drivers.nvml.binding import REASONS
from gpucheck.drivers.readings import KernelReading, NvmlReading, PciDeviceReading, ProbeFailure
from gpucheck.report.envelope import CheckStatus, Host
from tests.fakes.probes import HERE, IN_DOCKER, ON_WSL2, FakeProbes, gpu_reading, reading_of

LOST = ProbeFailure(code="gpu-is-lost", message="it fell off the bus", library_code=15)
CODES = {slug: number for number, (slug, _) in REASONS.items()}
#: Failures that do not come from NVML itself.
OURS = {
    "driver-not-answering",
    "nvml-child-died",
    "not-recorded",
    "binding-missing",
    "binding-too-old",
    "binding-failed",
    "unlisted",
}
UNDECIDED = {"driver-not-answering", "nvml-child-died", "not-recorded", "timeout"}


def look(reading: NvmlReading) -> Finding:
    return check(Machine(FakeProbes(readings=reading)))


@pytest.mark.parametrize(("count", "word"), [(1, "1 GPU"), (8, "8 GPUs")])
def test_every_gpu_answers(count: int, word: str) -> None:
    found = look(reading_of(*(gpu_reading(index) for index in range(count))))

    assert found.status is CheckStatus.OK
    assert found.summary == f"driver 580.95.05 answers for {word}"


@pytest.mark.parametrize(("on", "words"), [(True, "; confidential computing is on"), (False, "")])
def test_confidential_computing_is_named(on: bool, words: str) -> None:
    found = look(reading_of(gpu_reading(0))._replace(confidential_computing=on))

    assert found.status is CheckStatus.OK
    assert found.summary == f"driver 580.95.05 answers for 1 GPU{words}"
    assert len(found.evidence) == on


def test_some_gpus_are_silent() -> None:
    found = look(reading_of(gpu_reading(0), gpu_reading(1, failure=LOST)))

    assert found.status is CheckStatus.WARN
    assert found.summary == "1 of 2 GPUs does not answer: it fell off the bus"
    assert [(item.source, item.value) for item in found.evidence] == [
        ("NVML, GPU 1", "it fell off the bus")
    ]
    assert found.remedy == make_trouble("nvml", "gpu-is-lost").remedy


def test_two_gpus_of_one_uuid_are_no_healthy_machine() -> None:
    twins = (gpu_reading(0), gpu_reading(1, uuid="GPU-a"), gpu_reading(2, uuid="GPU-a"))

    found = look(reading_of(*twins))

    assert (found.status, found.cause) == (CheckStatus.WARN, "same-uuid")
    assert found.summary.startswith("GPUs 1 and 2 report the same UUID")


def test_every_gpu_is_silent() -> None:
    found = look(reading_of(gpu_reading(0, failure=LOST)))

    assert found.status is CheckStatus.FAIL


def test_a_silent_gpu_of_unknown_cause_has_a_next_step() -> None:
    odd = ProbeFailure(code="unlisted", message="code 4711", library_code=4711)

    assert look(reading_of(gpu_reading(0, failure=odd))).remedy


def test_no_gpu() -> None:
    found = look(reading_of())

    assert found.status is CheckStatus.FAIL
    assert found.summary == "NVML answers, but lists no GPU"
    assert found.remedy


def test_every_failure() -> None:
    for code in sorted({*CODES, *OURS}):
        failure = ProbeFailure(
            code=code, message="the reason", function="nvmlInit", library_code=CODES.get(code)
        )

        found = look(NvmlReading(failure=failure))

        expected = CheckStatus.UNKNOWN if code in UNDECIDED else CheckStatus.FAIL
        assert found.status is expected
        own = {"no-permission": "NVML refuses this user (no permission)"}
        assert found.summary == own.get(code, "the reason")
        assert found.cause == code
        number = f"NVML error {CODES[code]}" if code in CODES else code
        module = (
            [("/sys/module/nvidia/version", "unreadable")] if code == "version-mismatch" else []
        )
        seen = [(item.source, item.value) for item in found.evidence]
        assert seen == [("nvmlInit", number), *module]
        assert found.remedy


def test_a_driver_that_stops_on_the_way_is_not_ok() -> None:
    hung = ProbeFailure(code="driver-not-answering", message="no answer within 10 s")

    found = look(reading_of(gpu_reading(0), gpu_count=2, failure=hung))

    assert found.status is CheckStatus.UNKNOWN


# ------------------------------------------------------------------------------ explanations


REFUSED = {"/dev/nvidiactl": "EPERM"}


def nvml_says(code: str, machine: Host = HERE, **changes: object) -> Finding:
    failure = ProbeFailure(code=code, message="NVML's words", library_code=1)
    reading = NvmlReading(failure=failure, library_path="/usr/lib/libnvidia-ml.so.580.95.05")
    return check(Machine(FakeProbes(machine=machine, readings=reading, **changes)))  # type: ignore[arg-type]


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
    opened = {"/dev/nvidiactl": None}

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
    ("line", "cause"),
    [
        # The driver's messages are of several lines, which some logs keep apart.
        ("NVRM: installed in this system is not supported by open", "open-module-on-old-gpu"),
        ("NVRM: installed in this system requires use of the NVIDIA open kernel modules.",
         "proprietary-module-on-new-gpu"),
        ("NVRM: installed in this system is not supported by the", "gpu-not-supported"),
        ("NVRM: The NVIDIA GPU (PCI ID: 10de:1b38) installed in this system is not supported by"
         " the NVIDIA 595.45 driver release.", "gpu-not-supported"),
        ("NVRM:  supported through the NVIDIA 580.xx Legacy drivers. Please", "gpu-not-supported"),
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

    found = check(Machine(FakeProbes(readings=reading)))

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


def test_a_mismatch_without_a_path_goes_by_the_installed_library_of_nvml() -> None:
    libraries = LibrariesReading(
        found=(
            LibraryReading(name="libcuda.so.1", path="/a/libcuda.so.1", version="550.1"),
            LibraryReading(name="libnvidia-ml.so.1", path="/a/libnvidia-ml.so.1", version="570.2"),
        )
    )
    failure = ProbeFailure(code="version-mismatch", message="NVML's words", library_code=18)
    probes = FakeProbes(
        readings=NvmlReading(failure=failure),
        kernel_reading=KernelReading(module_version="580.95.05"),
        system_reading=SystemReading(libraries=libraries),
    )

    found = check(Machine(probes))

    assert "library is version 570.2, but the loaded kernel module" in found.summary


@pytest.mark.parametrize(
    ("machine", "drivers", "status"),
    [
        (HERE, ("nvidia", "nvidia"), "warn"),
        (HERE, ("nvidia", None), "warn"),
        (HERE, ("nvidia", "vfio-pci"), "ok"),
        (HERE, ("nvidia",), "ok"),
        (IN_DOCKER, ("nvidia", "nvidia"), "ok"),
    ],
)
def test_gpus_on_the_bus_that_are_not_listed(
    machine: Host, drivers: tuple[str | None, ...], status: str
) -> None:
    devices = tuple(
        PciDeviceReading(pci_bus_id=f"0000:{n:02x}:00.0", vendor_id="0x10de", driver=driver)
        for n, driver in enumerate(drivers)
    )
    probes = FakeProbes(
        machine=machine,
        readings=reading_of(gpu_reading(0)),
        kernel_reading=KernelReading(pci_devices=devices),
    )

    found = check(Machine(probes))

    assert found.status == status
    assert (found.cause == "gpus-missing") is (status == "warn")


@pytest.mark.parametrize(
    ("code", "machine", "before"),
    [
        ("unknown", IN_DOCKER, True),
        ("unknown", HERE, False),
        ("operating-system", IN_DOCKER, False),
    ],
)
def test_a_container_that_worked_before(code: str, machine: Host, *, before: bool) -> None:
    found = nvml_says(code, machine)

    assert found.remedy[0].startswith("If it worked before: recreate") is before


@pytest.mark.parametrize(
    ("machine", "cause"),
    [
        (ON_WSL2, "wsl-library-path"),
        (HERE, "library-not-in-the-path"),
        (IN_DOCKER, "container-without-gpus"),
    ],
)
def test_a_library_that_is_on_disk_and_not_loaded(machine: Host, cause: str) -> None:
    library = LibraryReading(name="libnvidia-ml.so.1", path="/opt/libnvidia-ml.so.1")
    system = SystemReading(libraries=LibrariesReading(found=(library,)))

    found = nvml_says("library-not-found", machine, system_reading=system)

    assert found.cause == cause
    assert ("/opt/libnvidia-ml.so.1", "present, not loaded") in found.evidence
    assert found.remedy
