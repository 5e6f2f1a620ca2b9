"""toolkit-libraries: the loader's path against the driver and the GPUs."""

from __future__ import annotations

import pytest

from gpucheck.detect.checks.toolkit_libraries import check
from gpucheck.detect.machine import Machine
from gpucheck.detect.model import Finding
from gpucheck.drivers.evidence import (
    LibrariesReading,
    LibraryReading,
    SystemReading,
    ToolkitReading,
)
from gpucheck.drivers.readings import CudaReading, NvmlReading, ProbeFailure
from gpucheck.report.envelope import CheckStatus, Evidence, Host
from tests.fakes.probes import HERE, ON_WSL2, FakeProbes, gpu_reading, reading_of

CUDA_13 = ToolkitReading(path="/usr/local/cuda-13.0", version="13.0.1")
CUDA_12 = ToolkitReading(path="/usr/local/cuda-12.4", version="12.4.0")


def look(
    *toolkits: ToolkitReading,
    libraries: tuple[LibraryReading, ...] = (),
    driver: str = "580.95.05",
    capability: str = "9.0",
    **changes: object,
) -> Finding:
    system = SystemReading(libraries=LibrariesReading(found=libraries, toolkits=toolkits))
    rows = reading_of(gpu_reading(0, compute_capability=capability), driver_version=driver)
    values = {"system_reading": system, "readings": rows} | changes
    return check(Machine(FakeProbes(**values)))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("toolkit", "driver", "capability", "cause"),
    [
        (CUDA_13, "580.95.05", "9.0", None),
        (CUDA_13, "550.163.01", "9.0", "toolkit-newer-than-driver"),
        (CUDA_13, "580.95.05", "7.0", "toolkit-without-architecture"),
        (CUDA_12, "525.60.13", "5.0", None),
        (CUDA_12, "525.60.12", "5.0", "toolkit-newer-than-driver"),
    ],
)
def test_toolkits(toolkit: ToolkitReading, driver: str, capability: str, cause: str | None) -> None:
    used = {"LD_LIBRARY_PATH": f"/opt/other:{toolkit.path}/lib64"}
    found = look(toolkit, driver=driver, capability=capability, variables=used)
    lying_there = look(toolkit, driver=driver, capability=capability)

    assert found.cause == cause
    assert found.status is (CheckStatus.OK if cause is None else CheckStatus.WARN)
    assert (lying_there.status, lying_there.remedy) == (CheckStatus.OK, ())


@pytest.mark.parametrize(
    ("variables", "used"),
    [
        ({}, False),
        ({"CUDA_HOME": "/usr/local/cuda-13.0"}, True),
        ({"CUDA_PATH": "/usr/local/cuda/"}, True),
        ({"LD_LIBRARY_PATH": "/lib:/usr/local/cuda/lib64"}, True),
        ({"CUDA_HOME": "/usr/local/cuda-13.0-old"}, False),
        ({"LD_LIBRARY_PATH": "/usr/local/cuda-12.4/lib64"}, False),
    ],
)
def test_a_toolkit_that_nothing_leads_to_is_no_task(
    variables: dict[str, str], *, used: bool
) -> None:
    found = look(CUDA_13, driver="550.163.01", variables=variables)

    assert found.status is (CheckStatus.WARN if used else CheckStatus.OK)
    if not used:
        assert "need driver 580 or newer" in found.evidence[0].value


def test_a_driver_older_than_the_toolkit_s_own_is_a_remark() -> None:
    found = look(CUDA_12, driver="535.54.03")

    assert found.status is CheckStatus.OK
    assert "came with driver 550.54.14" in found.evidence[0].value


@pytest.mark.parametrize(
    ("driver", "cause"), [("528.33", None), ("527.41", "toolkit-newer-than-driver")]
)
def test_windows_drivers_have_numbers_of_their_own(driver: str, cause: str | None) -> None:
    used = {"CUDA_HOME": CUDA_12.path}
    assert look(CUDA_12, driver=driver, machine=ON_WSL2, variables=used).cause == cause


def test_of_no_windows_driver_is_it_known_that_cuda_13_needs_more() -> None:
    used = {"CUDA_HOME": CUDA_13.path}
    assert look(CUDA_13, driver="576.88", machine=ON_WSL2, variables=used).cause is None


@pytest.mark.parametrize(("kind", "cause"), [("stub", "stub-in-front"), ("compat", None)])
def test_a_compatibility_library_with_which_cuda_works_is_wanted(
    kind: str, cause: str | None
) -> None:
    library = LibraryReading(name="libcuda.so.1", path="/opt/x/libcuda.so.1", kind=kind)

    found = look(libraries=(library,), cuda_reading=CudaReading(device_count=1))

    assert found.cause == cause


@pytest.mark.parametrize(
    ("kinds", "cause"),
    [
        (("stub", "driver"), "stub-in-front"),
        (("compat", "driver"), "compat-in-front"),
        (("driver", "stub"), None),
        ((), None),
    ],
)
def test_the_first_libcuda_counts(kinds: tuple[str, ...], cause: str | None) -> None:
    libraries = tuple(
        LibraryReading(name="libcuda.so.1", path=f"/opt/{kind}/libcuda.so.1", kind=kind)
        for kind in kinds
    )

    found = look(libraries=libraries)

    assert found.cause == cause
    if cause is not None:
        assert found.remedy[0].startswith(f"Remove /opt/{kinds[0]} from LD_LIBRARY_PATH")


@pytest.mark.parametrize(("machine", "cause"), [(ON_WSL2, "linux-driver-in-wsl"), (HERE, None)])
def test_a_linux_driver_is_wrong_in_wsl_alone(machine: Host, cause: str | None) -> None:
    own = LibraryReading(name="libcuda.so.1", path="/usr/lib/wsl/lib/libcuda.so.1", kind="wsl")
    linux = LibraryReading(name="libcuda.so.1", path="/usr/lib64/libcuda.so.1")

    found = look(libraries=(own, linux), machine=machine)

    assert found.cause == cause
    if cause is not None:
        assert found.evidence == (Evidence("libcuda.so.1", "/usr/lib64/libcuda.so.1"),)
        assert look(libraries=(own,), machine=machine).cause is None


@pytest.mark.parametrize(
    ("asked", "offered", "cause"),
    [
        ("cuda>=13.1 brand=tesla,driver>=535", 13000, "image-newer-than-driver"),
        ("cuda>=13.0", 13000, None),
        ("cuda>=12.10", 13000, None),
        ("cuda>=12.9", 12080, "image-newer-than-driver"),
        ("cuda>=12.8", 12080, None),
        ("driver>=535", 13000, None),
        ("", 13000, None),
    ],
)
def test_what_an_image_was_made_for(asked: str, offered: int, cause: str | None) -> None:
    cuda = CudaReading(driver_version=offered, device_count=1)

    found = look(cuda_reading=cuda, variables={"NVIDIA_REQUIRE_CUDA": asked})

    assert found.cause == cause


def test_a_driver_that_hangs_is_not_asked_for_an_image() -> None:
    hung = ProbeFailure(code="driver-not-answering", message="no answer within 10 s")
    probes = FakeProbes(
        readings=NvmlReading(failure=hung), variables={"NVIDIA_REQUIRE_CUDA": "cuda>=99.0"}
    )

    assert check(Machine(probes)).cause is None
    assert "cuda" not in probes.asked


def test_what_was_not_recorded_is_not_checked() -> None:
    system = SystemReading(unavailable="the snapshot did not record it")

    assert look(system_reading=system).status is CheckStatus.SKIP
