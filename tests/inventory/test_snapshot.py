"""What a recording holds and fails to hold, and what strangers may see of it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucheck.drivers.evidence import (
    BuildsReading,
    EarlierBootReading,
    HolderReading,
    HoldersReading,
    KernelLogReading,
    LaunchReading,
    LibrariesReading,
    LibraryReading,
    SystemReading,
)
from gpucheck.drivers.readings import (
    CudaDeviceReading,
    CudaReading,
    GpuReading,
    KernelReading,
    MigReading,
    NvmlReading,
    NvmlRequest,
    ProbeFailure,
    ProcessIdentity,
    ProcessReading,
)
from gpucheck.drivers.recorded import RecordedProbes, Snapshot
from gpucheck.inventory.snapshot import ReadOnce, Redactor, contents, record, redact, take_snapshot
from gpucheck.inventory.visibility import apply_rules, digits_of, join_driver
from gpucheck.report.codec import from_plain, to_plain
from gpucheck.report.errors import ExitCode
from gpucheck.report.host import Host
from tests.fakes.probes import FakeProbes, gpu_reading, reading_of

HUNG = ProbeFailure(code="driver-not-answering", message="the driver did not answer within 10 s")
MISSING = ProbeFailure(code="library-not-found", message="no libnvidia-ml.so.1", library_code=12)


def busy() -> FakeProbes:
    process = ProcessReading(pid=9, type="compute", memory_used_bytes=1)
    return FakeProbes(
        readings=reading_of(gpu_reading(0, processes=(process,))),
        cuda_reading=CudaReading(driver_version=13000, device_count=0),
        kernel_reading=KernelReading(module_loaded=True),
        variables={"CUDA_VISIBLE_DEVICES": "0"},
        people={9: ProcessIdentity(pid=9, name="python", user="anna")},
    )


def test_everything_is_recorded() -> None:
    found = record(busy())

    assert found.time == "2026-01-02T03:04:05Z"
    assert (found.host.name, found.host.driver_version) == ("node1", "580.95.05")
    assert found.environment == {"CUDA_VISIBLE_DEVICES": "0"}
    assert found.kernel == busy().kernel_reading
    assert found.nvml == busy().readings
    assert found.cuda == busy().cuda_reading
    assert [process.user for process in found.processes] == ["anna"]
    assert found.redacted is False
    assert contents(found) == "driver 580.95.05, NVIDIA H100 80GB HBM3, 1 process on it"
    assert contents(found._replace(nvml=None)) == "no GPU"


def test_a_recording_of_a_recording_is_the_same() -> None:
    once = record(busy())

    assert record(RecordedProbes(once)) == once


def test_a_recording_survives_json() -> None:
    once = record(busy())

    assert from_plain(Snapshot, to_plain(once)) == once


def test_all_that_nvml_knows_is_requested(monkeypatch: pytest.MonkeyPatch) -> None:
    requests: list[NvmlRequest] = []
    probes = busy()
    monkeypatch.setattr(probes, "nvml", lambda one: requests.append(one) or probes.readings)

    record(probes)

    assert requests == [NvmlRequest(topology=True, process_utilization=True)]


@pytest.mark.parametrize(
    ("variables", "count", "expected"),
    [
        ({"CUDA_VISIBLE_DEVICES": "9"}, 0, True),
        ({"CUDA_VISIBLE_DEVICES": "0"}, 1, False),
        ({}, 0, False),
    ],
)
def test_cuda_is_also_asked_without_the_variable_where_that_may_hide_all(
    variables: dict[str, str], count: int, expected: bool
) -> None:
    everything = CudaReading(driver_version=13000, device_count=8)
    probes = FakeProbes(
        readings=reading_of(gpu_reading(0)),
        variables=variables,
        cuda_reading=CudaReading(driver_version=13000, device_count=count),
        cuda_unrestricted_reading=everything,
    )

    assert record(probes).cuda_unrestricted == (everything if expected else None)


@pytest.mark.parametrize("failure", [None, MISSING])
def test_health_is_read_where_nvml_answers(failure: ProbeFailure | None) -> None:
    found = record(FakeProbes(readings=reading_of(gpu_reading(0), failure=failure)))

    assert (found.health is None) is (failure is not None)


def test_a_driver_that_hangs_is_not_asked_by_another_library() -> None:
    probes = FakeProbes(readings=NvmlReading(failure=HUNG))

    found = record(probes)

    assert found.cuda is None
    assert "cuda" not in probes.asked


def test_a_driver_that_is_missing_is_recorded_as_such() -> None:
    answer = take_snapshot(FakeProbes(readings=NvmlReading(failure=MISSING)), redacted=False)

    assert answer.exit_code is ExitCode.OK
    assert isinstance(answer.result, Snapshot)
    assert answer.result.nvml == NvmlReading(failure=MISSING)
    [notice] = answer.warnings
    assert notice.code == "no-gpu-readings"
    assert "no libnvidia-ml.so.1 (NVML error 12)" in notice.message


def test_redaction_covers_the_envelope() -> None:
    answer = take_snapshot(busy(), redacted=True)

    assert isinstance(answer.result, Snapshot)
    assert answer.result.redacted is True
    assert answer.host.name == answer.result.host.name == "host"


# -------------------------------------------------------------------------------- redaction

A = "GPU-9942190a-aa31-4ff1-4aa9-c388d80f85f1"
B = "GPU-9e8d35e3-a134-0fdd-0e01-23811fdbd293"
M0 = "MIG-a1e3a6c4-1f35-5b0b-9a52-6f2f2bd2ec01"
M1 = "MIG-b7c8e2de-5a42-54e0-8fd9-3b1b8b30d402"
#: A GPU that CUDA names and NVML does not.
LOST = "GPU-0b5c1d2e-3333-4444-5555-666677778888"
ALIAS_A = "GPU-00000001-0000-4000-8000-000000000001"
ALIAS_M0 = "MIG-00000001-0000-5000-8000-000000000001"

SPLIT = (
    gpu_reading(0, uuid=A, mig_enabled=False),
    gpu_reading(
        1,
        uuid=B,
        mig_enabled=True,
        mig_instances=(
            MigReading(uuid=M0, gpu_instance_id=1, compute_instance_id=0),
            MigReading(uuid=M1, gpu_instance_id=2, compute_instance_id=0),
        ),
    ),
)


def snapshot(
    *gpus: GpuReading, environment: Mapping[str, str] | None = None, **changes: object
) -> Snapshot:
    values: dict[str, object] = {
        "time": "2026-01-02T03:04:05Z",
        "host": Host(name="annas-box", os="Debian", kernel="6.1.0"),
        "environment": environment or {},
        "nvml": reading_of(*gpus),
    }
    return Snapshot(**(values | changes))  # type: ignore[arg-type]


def cuda(*uuids: str) -> CudaReading:
    devices = tuple(
        CudaDeviceReading(ordinal=ordinal, uuid_hex=digits_of(uuid))
        for ordinal, uuid in enumerate(uuids)
    )
    return CudaReading(device_count=len(devices), devices=devices)


def gpus_of(found: Snapshot) -> tuple[GpuReading, ...]:
    assert found.nvml is not None
    return found.nvml.gpus


def variable(text: str, *gpus: GpuReading, name: str = "CUDA_VISIBLE_DEVICES") -> str:
    return redact(snapshot(*gpus, environment={name: text})).environment[name]


# ------------------------------------------------------------------------------------- readings


def test_names_become_stand_ins() -> None:
    people = (
        ProcessIdentity(pid=1, name="python", user="anna", command="python train.py --key s3cret"),
        ProcessIdentity(pid=2, name="Xorg", user="root", command=None),
        ProcessIdentity(pid=3, name="python", user="root", command="python"),
        ProcessIdentity(pid=4, namespace="other"),
        ProcessIdentity(pid=5, name=None, user="bert", command="/home/bert/x"),
    )

    found = redact(snapshot(*SPLIT, processes=people))

    assert found.host == Host(name="host", os="Debian", kernel="6.1.0")
    assert [(p.name, p.user, p.command) for p in found.processes] == [
        ("process-1", "user-1", "process-1"),
        ("process-2", "user-2", None),
        ("process-1", "user-2", "process-1"),
        (None, None, None),
        (None, "user-3", "process-3"),
    ]
    assert [gpu.serial for gpu in gpus_of(found)] == ["serial-1", "serial-2"]


def test_what_explains_stays() -> None:
    found = redact(snapshot(*SPLIT))

    for before, after in zip(SPLIT, gpus_of(found), strict=True):
        assert after._replace(uuid="", serial="", mig_instances=()) == before._replace(
            uuid="", serial="", mig_instances=()
        )


def test_nvml_and_cuda_agree_on_the_stand_ins() -> None:
    found = redact(snapshot(*SPLIT, cuda=cuda(M1, A, LOST)))

    assert found.cuda is not None
    joined = join_driver(apply_rules(None, None, gpus_of(found)), found.cuda, gpus_of(found))

    assert joined is not None
    assert joined.visible == (
        "MIG-00000002-0000-5000-8000-000000000002",
        ALIAS_A,
        "GPU-00000003-0000-4000-8000-000000000003",
    )


def test_what_was_not_recorded_stays_absent() -> None:
    empty = Snapshot(time="t", host=Host(), environment={})

    assert redact(empty) == empty._replace(redacted=True)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("libcuda.so.1: cannot open shared object file", None),
        ("/sys/bus/pci/devices: Permission denied", None),
        ("/dev/nvidia0 refused it", None),
        ("could not be loaded: /home/anna m/libcuda.so.1: file too short",
         "could not be loaded: (path): file too short"),
        ("/mnt/anna/sys/bus: No such file", "(path): No such file"),
        ("'/home/anna/venv/bin/python' is not there", "'(path)' is not there"),
        ("anna may not do that on annas-box", "user-1 may not do that on host"),
        ("nannas stay", None),
        ("eve may, and no means no", "user-2 may, and no means no"),
    ],
)  # fmt: skip
def test_sentences_lose_names_and_paths(before: str, after: str | None) -> None:
    failure = ProbeFailure(code="x", message=before)
    gpu = gpu_reading(0, failure=failure, unavailable={"name": before})
    mig = MigReading(unavailable={"name": before})
    found = redact(
        snapshot(
            gpu._replace(mig_instances=(mig,)),
            processes=(
                ProcessIdentity(pid=1, user="anna"),
                ProcessIdentity(pid=2, user="eve"),
                ProcessIdentity(pid=3, user="no"),
            ),
            kernel=KernelReading(pci_unavailable=before),
            cuda=CudaReading(failure=failure),
        )
    )

    expected = before if after is None else after
    [row] = gpus_of(found)
    assert row.failure is not None
    assert found.cuda is not None
    assert found.cuda.failure is not None
    assert found.kernel is not None
    assert {
        row.failure.message,
        row.unavailable["name"],
        row.mig_instances[0].unavailable["name"],
        found.cuda.failure.message,
        found.kernel.pci_unavailable,
    } == {expected}


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (
            "NVRM: Xid (PCI:0000:1a:00): 79, pid=9, name=train.py, GPU has fallen off the bus.",
            "NVRM: Xid (PCI:0000:1a:00): 79, pid=4194305, name=redacted,"
            " GPU has fallen off the bus.",
        ),
        (
            "NVRM: Xid (PCI:0000:1a:00): 31, pid=9, name=my train, annas data, Ch 00000008, intr 0",
            "NVRM: Xid (PCI:0000:1a:00): 31, pid=4194305, name=redacted",
        ),
        ("NVRM: GPU serial 04711 at 0000:1a:00.0", "NVRM: GPU serial redacted at 0000:1a:00.0"),
        (
            "nvidia: anna@example.org 10.1.2.3 fe80::1:2 00:1b:44:11:3a:b7 at 12:34:56 v535.129.03",
            "nvidia: (address) (address) (address) (address) at 12:34:56 v535.129.03",
        ),
        (f"NVRM: GPU at PCI:0000:1a:00: {A}", f"NVRM: GPU at PCI:0000:1a:00: {ALIAS_A}"),
        (f"NVRM: GPU at PCI:0000:1b:00: {LOST}", "NVRM: GPU at PCI:0000:1b:00: GPU-ffffffff-0001"),
        ("NVRM: GPU Board Serial Number: 04711", "NVRM: GPU Board Serial Number: redacted"),
        ("NVRM: S/N 04711 SN=04712", "NVRM: S/N redacted SN=redacted"),
        (
            "Nov  1 03:01:00 box9 kernel: nvidia 0000:1a:00.0: on",
            "Nov  1 03:01:00 host kernel: nvidia 0000:1a:00.0: on",
        ),
        ("2026-11-21T03:01:00Z box9 kernel: NVRM: x", "2026-11-21T03:01:00Z host kernel: NVRM: x"),
        ("nvidia: disk 01234567-89AB-cdef-0123-456789abcdef", "nvidia: disk (uuid)"),
        ("PID: 9 Comm: train Tainted: P nvidia", "PID: 4194305 Comm: redacted Tainted: P nvidia"),
        (
            'audit: auid="anna-m" comm="my nvidia train" exe=tool res=1',
            "audit: auid=redacted comm=redacted exe=redacted res=1",
        ),
        (
            "train[9]: segfault at 0 ip 7f in libnvidia-ml.so.1[7f+1]",
            "redacted[4194305]: segfault at 0 ip 7f in libnvidia-ml.so.1[7f+1]",
        ),
        (
            "NVRM: API mismatch: the client 'my train' (pid 9) has the version 1",
            "NVRM: API mismatch: the client redacted (pid 4194305) has the version 1",
        ),
        (
            "Out of memory: Killed process 9 (my train) total-vm:1kB",
            "Out of memory: Killed process 4194305 redacted total-vm:1kB",
        ),
        ("nvidia: /data/x fe80::dead:beef:cafe:2 y", "nvidia: (path)"),
        ("/etc/modprobe.d/nv.conf: blacklist nvidia", None),
        ("/usr/lib/x86_64-linux-gnu/libcuda.so.1", None),
        ("/opt/anna/lib/libcuda.so.1", "(path)"),
    ],
)
def test_lines_of_the_log_lose_names_and_paths(before: str, after: str | None) -> None:
    def system(line: str) -> SystemReading:
        earlier = EarlierBootReading(lines=(line,), ages_s=(9.0,))
        return SystemReading(log=KernelLogReading(lines=(line,), ages_s=(8.0,), earlier=earlier))

    found = redact(snapshot(*SPLIT, system=system(before)))

    assert found.system == system(before if after is None else after)


def test_each_process_id_of_the_log_has_one_stand_in() -> None:
    lines = (
        "NVRM: Xid (PCI:0000:1a:00): 31, pid=9, name=a",
        "NVRM: Xid (PCI:0000:1a:00): 31, pid=8, name=b",
        "NVRM: Xid (PCI:0000:1a:00): 13, pid=9, name=a",
    )
    log = KernelLogReading(lines=lines, ages_s=(3.0, 2.0, 1.0))

    once = redact(snapshot(*SPLIT, system=SystemReading(log=log)))

    assert once.system is not None
    assert [re.findall(r"pid=(\d+)", line) for line in once.system.log.lines or ()] == [
        ["4194305"], ["4194306"], ["4194305"],
    ]  # fmt: skip
    assert redact(once) == once


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("/usr/lib/x86_64-linux-gnu/libcuda.so.1", None),
        ("/usr/local/cuda-12.4/lib64/libcudart.so.12", None),
        (f"/usr/lib/{A}/libcuda.so.1", f"/usr/lib/{ALIAS_A}/libcuda.so.1"),
        (f"/usr/lib/{LOST}/libcuda.so.1", "/usr/lib/GPU-ffffffff-0001/libcuda.so.1"),
        ("/opt/anna/lib/libcuda.so.1", "(path)"),
        ("/usr/local/anna/lib/libcuda.so.1", "(path)"),
        ("/dev/nvidia0", None),
        ("/dev/nvidia-caps/nvidia-cap1", None),
        ("/dev/shm/anna.sock", "(path)"),
        ("/dev/mapper/anna-home", "(path)"),
        ("~anna/lib/libcuda.so.1", "(path)"),
        ("~/lib/libcuda.so.1", "(path)"),
        ("/proc/9/root/srv/anna/libcuda.so.1", "(path)"),
        ("/sys/fs/cgroup/user.slice/anna", "(path)"),
        ("/usr/users/anna/libcuda.so.1", "(path)"),
        ("/var/log/kern.log", None),
        ("/var/log/anna.log", "(path)"),
        ("C:\\Users\\Anna\\nvcuda.dll", "(path)"),
        ("\\\\server\\anna\\nvcuda.dll", "(path)"),
    ],
)
def test_evidence_loses_paths(before: str, after: str | None) -> None:
    reading = cuda(A)._replace(library_path=before)

    found = redact(snapshot(*SPLIT, cuda_unrestricted=reading, cuda=reading))

    assert found.cuda_unrestricted == found.cuda
    assert found.cuda is not None
    assert found.cuda.library_path == (before if after is None else after)


def test_every_form_of_the_hosts_name_goes() -> None:
    redactor = Redactor()
    redactor.hosts.of("box9.lab.example.org")

    said = "box9 box9.lab.example.org, db.lab.example.org. In lab.example.org; box91 /usr/local"
    assert redactor.text(said) == "host host, host. In domain; box91 /usr/local"


def test_a_version_of_four_numbers_is_no_address() -> None:
    builds = BuildsReading(python="/usr/bin/python3", python_version="12.4.5.8")

    assert redact(snapshot(builds=builds)).builds == builds


# ------------------------------------------------------------------------------------ variables


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("", ""),
        ("0,1", "0,1"),
        (" 1 , +0", " 1 , +0"),
        ("0x1f,010", "0x1f,010"),
        ("0-2", "0-2"),
        ("0:1", "0:1"),
        ("1anna", "1?"),
        ("all", "all"),
        ("NoDevFiles", "NoDevFiles"),
        ("anna", "redacted"),
        ("/var/run/nvidia-container-devices", "redacted"),
        (A, ALIAS_A),
        (f"{A} , 1", f"{ALIAS_A} , 1"),
        ("GPU-99", "GPU-00000001"),
        ("GPU-9", "GPU-"),
        ("GPU-9,GPU-", "GPU-,GPU-0"),
        ("GPU-1,GPU-2,GPU-1", "GPU-ffffffff-0001,GPU-ffffffff-0002,GPU-ffffffff-0001"),
        (A.upper(), ALIAS_A.replace("GPU", "gpu")),
        ("gpu-99", "gpu-00000001"),
        (M0, ALIAS_M0),
        ("MIG-a", "MIG-00000001"),
        (f"MIG-{B}/1/0", "MIG-GPU-00000002-0000-4000-8000-000000000002/1/0"),
        ("MIG-GPU-9e/1/0", "MIG-GPU-00000002/1/0"),
        ("MIG-1", "MIG-ffffffff-0001"),
    ],
)
def test_lists_of_devices_keep_their_meaning(before: str, after: str) -> None:
    assert variable(before, *SPLIT) == after
    assert variable(before, *SPLIT, name="NVIDIA_VISIBLE_DEVICES") == after


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("CUDA_DEVICE_ORDER", "PCI_BUS_ID"),
        ("CUPY_GPU_MEMORY_LIMIT", "30%"),
        ("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True"),
        ("XLA_PYTHON_CLIENT_MEM_FRACTION", ".30"),
        ("SLURM_JOB_GPUS", "0,3"),
        ("SLURM_JOB_GPUS", "0-3"),
        ("PYTORCH_ALLOC_CONF", "backend:cudaMallocAsync,roundup_power2_divisions:[256:1,>:2]"),
        ("PYTORCH_ALLOC_CONF", "max_split_size_mb:512, garbage_collection_threshold:0.8"),
        ("NVIDIA_DRIVER_CAPABILITIES", "compute,utility"),
        ("XLA_PYTHON_CLIENT_ALLOCATOR", "platform"),
        ("TF_GPU_MEMORY_LIMIT", "8192MiB"),
        ("NVIDIA_REQUIRE_CUDA", "cuda>=13.0 brand=tesla,driver>=535,driver<536"),
        ("CUDA_DEVICE_MEMORY_LIMIT_0", "4g"),
    ],
)
def test_settings_stay(name: str, value: str) -> None:
    assert variable(value, name=name) == value


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("LD_LIBRARY_PATH", "/home/anna/lib"),
        ("CUDA_HOME", "/home/anna/cuda"),
        ("CUDA_MPS_PIPE_DIRECTORY", "x"),
        ("NVIDIA_REQUIRE_CUDA", "brand=annas"),
        ("SLURM_JOB_ID", "4711"),
        ("XLA_FLAGS", "--xla_dump_to=/home/anna"),
        ("CUDA_DEVICE_ORDER", "annas-box"),
        ("JAX_PLATFORMS", "/home/anna/plugin.so"),
        ("JAX_PLATFORMS", "cpu,anna"),
        ("SLURM_JOB_GPUS", "annas-gpu"),
        ("COMPUTE_PROFILE", "s3cret"),
        ("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True,anna:1"),
        ("XLA_PYTHON_CLIENT_ALLOCATOR", "annas_allocator"),
    ],
)
def test_other_values_go(name: str, value: str) -> None:
    assert variable(value, name=name) == "redacted"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("/usr/local/cuda", "/usr/local/cuda"),
        ("/usr/local/cuda-13.0/lib64", "/usr/local/cuda-13.0/lib64"),
        ("/opt/a:/opt/b:/usr/local/cuda/bin:/opt/a", "redacted:/usr/local/cuda/bin:redacted"),
        ("/usr/local/cuda-anna/lib64", "redacted"),
        ("/usr/local/cuda/anna", "redacted"),
        ("/home/anna/usr/local/cuda", "redacted"),
    ],
)
def test_where_a_toolkit_is_installed_stays(before: str, after: str) -> None:
    assert variable(before, name="LD_LIBRARY_PATH") == after
    assert variable(after, name="CUDA_HOME") == after


# ----------------------------------------------------------------------------------- properties

NAMES = st.from_regex(r"\Az[a-z0-9]{5,9}z\Z")
DIGITS = st.text("89abcdef", min_size=32, max_size=32)
UUIDS = DIGITS.map(lambda d: "-".join((d[:8], d[8:12], d[12:16], d[16:20], d[20:])))
ENTRIES = (
    "0", "1", "-1", "9", "00", "0x1", "", " ", "1 ", "none", "2foo", "GPU-", "GPU-8", "GPU-9a",
    "gpu-9", "GPU-zz", "GPU-yy", "MIG-", "MIG-8", "MIG-zz",
)  # fmt: skip


@st.composite
def machines(draw: st.DrawFn) -> tuple[Snapshot, list[str]]:
    """A recording full of names, and those names."""
    secrets = draw(st.lists(NAMES, min_size=6, max_size=6, unique=True))
    host, user, other, process, command, serial = secrets
    uuids = draw(st.lists(UUIDS, min_size=4, max_size=4, unique=True))
    gpu, second, mig, lost = f"GPU-{uuids[0]}", f"GPU-{uuids[1]}", f"MIG-{uuids[2]}", uuids[3]
    split = draw(st.booleans())
    instance = MigReading(uuid=mig, gpu_instance_id=1, compute_instance_id=0)
    broken = f"could not read /home/{user}/{command}/x: refused to {other} on {host}"
    failure = draw(st.sampled_from([None, ProbeFailure(code="gpu-is-lost", message=broken)]))
    rows = (
        gpu_reading(0, uuid=gpu, serial=serial, unavailable={"fan_percent": broken}),
        gpu_reading(
            1,
            uuid=draw(st.sampled_from([second, None])),
            mig_enabled=split,
            mig_instances=(instance,) if split else (),
            failure=failure,
        ),
    )
    named = (gpu, second, mig, gpu[:9], second[:7], gpu.upper(), f"MIG-{second}/1/0", f" {gpu}")
    listed = st.lists(st.sampled_from([*ENTRIES, *named, user, command]), max_size=5)
    environment = {
        "CUDA_VISIBLE_DEVICES": ",".join(draw(listed)),
        "CUDA_DEVICE_ORDER": draw(st.sampled_from(["PCI_BUS_ID", user])),
        "LD_LIBRARY_PATH": f"/home/{user}",
        "XLA_FLAGS": command,
        "TF_GPU_ALLOCATOR": other,
    }
    found = Snapshot(
        time="2026-01-02T03:04:05Z",
        host=Host(name=host),
        environment=environment,
        kernel=KernelReading(pci_unavailable=broken),
        nvml=reading_of(*rows, failure=failure),
        cuda=cuda(gpu, f"GPU-{lost}")._replace(library_path=f"/opt/{user}/libcuda.so.1"),
        cuda_unrestricted=cuda(f"GPU-{lost}", gpu),
        system=SystemReading(
            libraries=LibrariesReading(
                found=(LibraryReading(name="libcuda.so.1", path=f"/home/{user}/libcuda.so.1"),)
            ),
            log=KernelLogReading(
                lines=(f"{host} kernel: NVRM: {gpu}, name={command}, serial number {serial}",)
            ),
        ),
        builds=BuildsReading(python=f"/home/{user}/venv/bin/python"),
        processes=(
            ProcessIdentity(pid=1, name=process, user=user, command=f"{process} {command}"),
            ProcessIdentity(pid=2, name=None, user=other, command=command),
        ),
    )
    return found, [*secrets, *uuids, *(uuid.replace("-", "") for uuid in uuids)]


def by_rules(found: Snapshot) -> tuple[str, ...] | None:
    environment = found.environment
    order = environment["CUDA_DEVICE_ORDER"]
    return apply_rules(environment["CUDA_VISIBLE_DEVICES"], order, gpus_of(found)).visible


def positions(found: Snapshot, visible: tuple[str, ...] | None) -> list[object] | None:
    """Say which devices are visible without their names."""
    places: dict[str | None, object] = {}
    for gpu in gpus_of(found):
        places[gpu.uuid] = gpu.index
        places |= {each.uuid: (gpu.index, at) for at, each in enumerate(gpu.mig_instances)}
    return None if visible is None else [places[uuid] for uuid in visible]


@given(machines())
def test_no_name_remains_twice_is_once_and_the_same_devices_are_visible(
    machine: tuple[Snapshot, list[str]],
) -> None:
    before, secrets = machine
    after = redact(before)

    text = json.dumps(to_plain(after))
    assert [secret for secret in secrets if secret in text.lower()] == []
    assert not re.search(r"/home", text)
    assert redact(after) == after
    assert positions(after, by_rules(after)) == positions(before, by_rules(before))


def test_a_reading_that_failed_keeps_its_code() -> None:
    failure = ProbeFailure(code="timeout", message="it timed out", function="f", library_code=10)
    found = snapshot(nvml=NvmlReading(failure=failure))

    assert redact(found) == found._replace(host=found.host._replace(name="host"), redacted=True)


SAID = "/home/anna/lib: broken"
FAILURE = ProbeFailure(code="x", message=SAID)
HOLDER = HolderReading(
    pid=9, state="orphaned", name="python", user="anna", command="python s.py", minors=(0,)
)


def machine() -> FakeProbes:
    process = ProcessReading(pid=9, type="compute", memory_used_bytes=1)
    return FakeProbes(
        readings=reading_of(gpu_reading(0, processes=(process,))),
        cuda_unrestricted_reading=CudaReading(failure=FAILURE),
        launch_reading=LaunchReading(failure=FAILURE),
        holders_reading=HoldersReading(holders=(HOLDER,), unavailable=SAID),
        people={9: ProcessIdentity(pid=9, name="python", user="anna")},
    )


@pytest.mark.parametrize("builds", [None, BuildsReading(python="/home/anna/v/bin/python")])
def test_a_kernel_is_run_by_the_python_that_was_found(builds: BuildsReading | None) -> None:
    pythons: list[str | None] = []
    probes = machine()
    found = ReadOnce(probes, Redactor())
    found.real = found.real._replace(builds=builds)

    def launch(python: str | None, **how: object) -> LaunchReading:
        pythons.append(python)
        return LaunchReading()

    probes.launch = launch  # type: ignore[method-assign]
    found.launch("(path)", through_cupy=False, every_gpu=False, report_progress=lambda _: None)

    assert pythons == [builds and builds.python]


@pytest.mark.parametrize("redacts", [False, True])
def test_what_no_snapshot_holds_is_asked_anew(redacts: bool) -> None:
    found = ReadOnce(machine(), Redactor() if redacts else None)

    said = "(path): broken" if redacts else SAID
    uuid = gpu_reading(0).uuid
    [gpu] = found.nvml(NvmlRequest(processes_of=(0,))).gpus
    assert (gpu.uuid == uuid) is not redacts
    assert [process.pid for process in gpu.processes] == [9]
    assert found.nvml(NvmlRequest()).gpus[0].uuid == gpu.uuid
    unrestricted = found.cuda(unrestricted=True).failure
    launched = found.launch(
        None, through_cupy=False, every_gpu=False, report_progress=lambda _: None
    ).failure
    assert unrestricted is not None
    assert launched is not None
    assert {unrestricted.message, launched.message} == {said}
    holders = found.device_holders()
    [holder] = holders.holders
    assert (holder.pid, holder.state, holder.minors) == (9, "orphaned", (0,))
    assert holder.user == ("user-1" if redacts else "anna")
    assert (holder.command is None or "s.py" not in holder.command) is redacts
    assert holders.unavailable == said
