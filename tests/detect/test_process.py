"""Which GPU a process uses, or why it uses none: every reason, and what cannot be told."""

from __future__ import annotations

from typing import Any

import pytest

from gpucheck.detect.model import (
    LoadedLibrary,
    ProcessAnswer,
    UsedGpu,
)
from gpucheck.detect.process import Scene, explain_process, judge
from gpucheck.drivers.evidence import (
    AncestorReading,
    CgroupReading,
    MappedFrameworkReading,
    MappedReading,
    ProcessFilesReading,
)
from gpucheck.drivers.host.process_files import NOT_ALLOWED
from gpucheck.drivers.readings import (
    GpuReading,
    KernelReading,
    MigReading,
    NvmlReading,
    ProbeFailure,
    ProcessReading,
)
from gpucheck.report.envelope import Evidence
from gpucheck.report.errors import ExitCode, WrongUseError
from tests.fakes.probes import FakeProbes

PID = 4711
CUDA = MappedReading("/usr/lib/libcuda.so.570.133.20", "fd:01 7")
TORCH = "/opt/venv/lib/python3.12/site-packages/torch"
TMUX = AncestorReading(4690, "tmux", {"CUDA_VISIBLE_DEVICES": ""})
BASH = AncestorReading(4000, "bash", {})
SILENT = ProbeFailure(code="driver-not-answering", message="NVML did not answer within 13 s")
ABSENT = ProbeFailure(code="nvml-not-loaded", message="the driver is not loaded")


def process(**changes: Any) -> ProcessFilesReading:
    """Return a program on the host that has opened the driver and holds nothing on a GPU."""
    return ProcessFilesReading(
        pid=PID,
        found=True,
        state="S",
        name="python",
        user="alice",
        command="python train.py",
        thread_count=12,
        threads={"S": 12},
        environment={},
        ancestors=(BASH,),
        mapped=(CUDA,),
        device_files=("/dev/nvidia0", "/dev/nvidiactl"),
        devices_present=True,
        initial_namespace=True,
    )._replace(**changes)


def gpu(index: int, *pids: int, **changes: Any) -> GpuReading:
    listed = tuple(ProcessReading(pid, "compute", 1 << 30) for pid in pids)
    reading = GpuReading(index, uuid=f"GPU-{index}", name="NVIDIA H100", processes=listed)
    return reading._replace(pci_bus_id=f"0000:0{index}:00.0", **changes)


def nvml(*gpus: GpuReading, **changes: Any) -> NvmlReading:
    reading = NvmlReading(gpu_count=len(gpus), gpus=gpus, driver_version="570.133.20")
    return reading._replace(**changes)


def answer(
    reading: ProcessFilesReading,
    listed: NvmlReading | None = None,
    kernel: KernelReading | None = None,
) -> ProcessAnswer:
    loaded = KernelReading(module_loaded=True, module_version="570.133.20")
    return judge(Scene(reading, listed or nvml(gpu(0), gpu(1)), kernel or loaded))


def ids(found: ProcessAnswer) -> list[str]:
    return [obstacle.id for obstacle in found.obstacles]


# ------------------------------------------------------------------------------ it uses one


def test_it_uses_two_gpus() -> None:
    found = answer(process(), nvml(gpu(0, 9), gpu(1, PID), gpu(2, PID)))

    assert (found.uses_gpu, found.cause, found.remedy, found.obstacles) == (True, None, (), ())
    assert found.gpus == (
        UsedGpu(1, PID, "GPU-1", "NVIDIA H100", 1 << 30),
        UsedGpu(2, PID, "GPU-2", "NVIDIA H100", 1 << 30),
    )
    assert found.conclusion == (
        "PID 4711 (train.py) uses GPU 1 (NVIDIA H100, 1.0 GiB), GPU 2 (NVIDIA H100, 1.0 GiB)."
    )


def test_more_gpus_than_fit_a_sentence() -> None:
    found = answer(process(), nvml(*(gpu(number, PID) for number in range(6))))

    assert len(found.gpus) == 6
    assert found.conclusion.endswith("GPU 3 (NVIDIA H100, 1.0 GiB), 2 more.")


def test_four_gpus_fit() -> None:
    assert "more" not in answer(process(), nvml(*(gpu(n, PID) for n in range(4)))).conclusion


def test_a_process_below_it_uses_one() -> None:
    found = answer(process(descendants=(4712, 4713)), nvml(gpu(0, 4713)))

    assert found.uses_gpu is True
    assert found.conclusion == (
        "PID 4711 (train.py) uses no GPU itself, but a process below it does (PID 4713):"
        " GPU 0 (NVIDIA H100, 1.0 GiB)."
    )


def test_in_several_lists_it_is_one_use() -> None:
    twice = (ProcessReading(PID, "compute"), ProcessReading(PID, "graphics", 5))
    card = gpu(0)._replace(processes=(*twice, ProcessReading(PID, "mps", 6)))

    [found] = answer(process(), nvml(card)).gpus

    assert found.memory_used_bytes == 5


def test_a_mig_instance() -> None:
    instances = (MigReading("MIG-a", gpu_instance_id=1, compute_instance_id=0),
                 MigReading("MIG-b", gpu_instance_id=2, compute_instance_id=0))  # fmt: skip
    listed = ProcessReading(PID, "compute", None, gpu_instance_id=2, compute_instance_id=0)
    card = gpu(0, mig_enabled=True, mig_instances=instances, processes=())
    found = answer(process(), nvml(card._replace(processes=(listed,))))

    assert [(one.uuid, one.mig) for one in found.gpus] == [("MIG-b", True)]
    assert "uses a MIG instance of GPU 0 (NVIDIA H100)." in found.conclusion


def test_what_may_break_it_is_said_although_it_runs() -> None:
    copies = (MappedReading("/a/libcudnn.so.9", "1 1"), MappedReading("/b/libcudnn.so.9.10", "1 2"))
    reading = process(mapped=(CUDA, *copies), state="T", environment={"CUDA_VISIBLE_DEVICES": ""})

    found = answer(reading, nvml(gpu(0, PID)))

    assert ids(found) == ["loaded-twice"]
    assert "libcudnn.so.9 is loaded from 2 files" in found.obstacles[0].summary


# ------------------------------------------------------------------------------ why not


@pytest.mark.parametrize(
    ("changes", "cause", "words"),
    [
        ({"state": "Z", "threads": {"Z": 1}, "mapped": None}, "ended", "it has ended"),
        ({"kernel_thread": True, "mapped": None}, "kernel-thread", "it is a thread of the kernel"),
        ({"environment": {"CUDA_VISIBLE_DEVICES": ""}}, "hidden-devices", "hides every GPU"),
        (
            {"environment": {"CUDA_VISIBLE_DEVICES": "7"}},
            "hidden-devices",
            'CUDA_VISIBLE_DEVICES="7" hides every GPU from it (',
        ),
        ({"devices_present": False}, "no-device-files", "was started without one."),
        (
            {"devices_present": False, "environment": {"NVIDIA_VISIBLE_DEVICES": "void"}},
            "no-device-files",
            "(NVIDIA_VISIBLE_DEVICES=void)",
        ),
        (
            {"cgroup": CgroupReading("/docker/a", allows_gpus=False)},
            "devices-denied",
            "device rules of its control group",
        ),
        (
            {"mapped": (MappedReading("/cuda/lib64/stubs/libcuda.so", "1 1"),)},
            "stub-library",
            "/cuda/lib64/stubs/libcuda.so",
        ),
        (
            {"mapped": (MappedReading("/usr/lib/libcuda.so.560.1", "1 1", deleted=True),)},
            "driver-mismatch",
            "libcuda 560.1, and the kernel runs 570.133.20 (the file was replaced",
        ),
        ({"state": "T"}, "stopped", "it is stopped"),
        ({"state": "t"}, "stopped", "it is stopped"),
        ({"mapped": ()}, "driver-not-loaded", "GPU, or its loader found no libcuda."),
        ({}, "no-context", "has loaded libcuda, but has nothing on a GPU"),
    ],
)
def test_why_it_uses_none(changes: dict[str, Any], cause: str, words: str) -> None:
    found = answer(process(**changes))

    assert (found.uses_gpu, found.cause) == (False, cause)
    assert found.conclusion.startswith("PID 4711 (train.py) does not use a GPU: ")
    assert words in found.conclusion
    assert bool(found.remedy) is (cause not in ("ended", "kernel-thread"))


@pytest.mark.parametrize("changes", [{"state": "Z", "threads": {"Z": 1}}, {"kernel_thread": True}])
def test_without_a_program_nothing_else_is_in_its_way(changes: dict[str, Any]) -> None:
    hidden = process(environment={"CUDA_VISIBLE_DEVICES": ""}, devices_present=False, **changes)

    found = answer(hidden, nvml(failure=SILENT))

    assert (found.uses_gpu, len(found.obstacles)) == (False, 1)


@pytest.mark.parametrize(
    "changes",
    [
        {"environment": {"CUDA_VISIBLE_DEVICES": "0"}},
        {"environment": {"CUDA_VISIBLE_DEVICES": "GPU-1"}},
        {"environment": {"NVIDIA_VISIBLE_DEVICES": "void"}},
        {"mapped": (MappedReading("/usr/local/cuda/compat/libcuda.so.580.1", "1 1"),)},
        {"mapped": (MappedReading("/usr/lib/wsl/lib/libcuda.so.1.1", "1 1"),)},
        {"cgroup": CgroupReading("/a", allows_gpus=None)},
        {"state": "Z", "threads": {"S": 1, "Z": 1}},
        {"devices_present": None},
    ],
)
def test_what_is_no_obstacle(changes: dict[str, Any]) -> None:
    assert answer(process(**changes)).cause == "no-context"


@pytest.mark.parametrize(
    ("path", "host", "steps"),
    [
        ("/system.slice/docker-9f2c.scope", True, 4),
        ("/kubepods.slice/pod1/cri-containerd-1.scope", None, 4),
        ("/machine.slice/libpod-1.scope", True, 4),
        ("/user.slice/session-1.scope", True, 2),
        ("/docker/9f2c", False, 2),
    ],
)
def test_a_container_may_have_lost_its_gpus(path: str, host: bool | None, steps: int) -> None:
    reading = process(
        cgroup=CgroupReading(path), device_files=("/dev/nvidiactl",), initial_namespace=host
    )
    (found,) = (each for each in answer(reading).obstacles if each.id == "no-context")

    assert len(found.remedy) == steps
    assert any("docker exec" in step for step in found.remedy) is (steps == 4)


def test_the_first_obstacle_is_the_cause_and_the_others_are_named() -> None:
    cpu = MappedFrameworkReading("pytorch", TORCH, "2.14.0+cpu", None, gpu_build=False)
    reading = process(
        mapped=(), frameworks=(cpu,), environment={"CUDA_VISIBLE_DEVICES": ""}, state="T"
    )

    found = answer(reading)

    assert ids(found) == ["hidden-devices", "built-for-cpus", "stopped"]


@pytest.mark.parametrize(
    ("reading", "kernel", "cause"),
    [
        (nvml(failure=ABSENT), KernelReading(module_loaded=False), "no-driver"),
        (nvml(), None, "no-gpu"),
    ],
)
def test_a_machine_without_gpus(
    reading: NvmlReading, kernel: KernelReading | None, cause: str
) -> None:
    found = answer(process(device_files=None, mapped=None), reading, kernel)

    assert (found.uses_gpu, found.cause) == (False, cause)


@pytest.mark.parametrize(
    ("value", "cause"),
    [("", "hidden-devices"), ("-1", "hidden-devices"), ("0", "driver-not-loaded")],
)
def test_what_hides_everything_needs_no_list_of_gpus(value: str, cause: str) -> None:
    reading = process(mapped=(), device_files=(), environment={"CUDA_VISIBLE_DEVICES": value})

    assert answer(reading, nvml(failure=SILENT)).cause == cause


def test_the_evidence_of_the_cause() -> None:
    zombie = answer(process(state="Z", threads={"Z": 1}, mapped=()))
    orphan = answer(process(state="Z", threads={"Z": 1}, mapped=(), ancestors=()))
    broken = answer(process(device_files=()), nvml(failure=ABSENT._replace(function="nvmlInit")))
    apart = process(devices_present=False, environment={"NVIDIA_VISIBLE_DEVICES": "none"})

    assert zombie.obstacles[0].evidence == (Evidence("parent", "PID 4000 (bash)"),)
    assert orphan.obstacles[0].evidence == ()
    assert broken.obstacles[0].evidence == (Evidence("nvmlInit", "the driver is not loaded"),)
    assert answer(apart).obstacles[0].evidence[1:] == (Evidence("NVIDIA_VISIBLE_DEVICES", "none"),)
    assert len(answer(process(devices_present=False)).obstacles[0].evidence) == 1


# ------------------------------------------------------------------------------ who set it


@pytest.mark.parametrize(
    ("ancestors", "origin", "seen"),
    [
        ((BASH,), ".", "it was started with it; its parent, PID 4000 (bash), was started without"),
        ((), ".", "it was started with it; no parent of it was started without it"),
        (
            (TMUX, BASH),
            ", and came from PID 4690 (tmux).",
            "PID 4690 (tmux) was started with it; its parent, PID 4000 (bash), was started without",
        ),
        (
            (TMUX._replace(pid=1, name=None), TMUX, BASH),
            ", and came from PID 4690 (tmux).",
            "PID 4690 (tmux) was started with it",
        ),
        (
            (TMUX, BASH._replace(environment={"CUDA_VISIBLE_DEVICES": "3"})),
            ", and came from PID 4690 (tmux).",
            'its parent, PID 4000 (bash), was started with "3"',
        ),
        (
            (TMUX, BASH._replace(environment=None)),
            ", and came from PID 4690 (tmux).",
            "the variables of PID 4000 (bash), above it, could not be read",
        ),
        (
            (BASH._replace(environment=None),),
            ".",
            "it was started with it; the variables of PID 4000 (bash), above it, could not be read",
        ),
    ],
)
def test_who_brought_the_variable(
    ancestors: tuple[AncestorReading, ...], origin: str, seen: str
) -> None:
    found = answer(process(ancestors=ancestors, environment={"CUDA_VISIBLE_DEVICES": ""}))

    assert found.conclusion.endswith(f'CUDA_VISIBLE_DEVICES="" hides every GPU from it{origin}')
    assert seen in found.obstacles[0].evidence[0].value


# ------------------------------------------------------------------------------ its frameworks


def framework(name: str, *, gpu_build: bool | None) -> MappedFrameworkReading:
    return MappedFrameworkReading(name, f"/site/{name}", "1.2", gpu_build=gpu_build)


def test_a_build_for_cpus() -> None:
    found = answer(process(mapped=(), frameworks=(framework("pytorch", gpu_build=False),)))

    assert found.cause == "built-for-cpus"
    assert found.frameworks == (
        MappedFrameworkReading("pytorch", "/site/pytorch", "1.2", None, False),
    )
    assert "PyTorch 1.2 is built for CPUs" in found.conclusion
    assert found.remedy[0].endswith("gpucheck detect --wheel torch")


def test_a_build_for_cpus_beside_one_with_cuda_decides_nothing() -> None:
    both = (framework("pytorch", gpu_build=True), framework("onnxruntime", gpu_build=False))

    found = answer(process(mapped=(), frameworks=both))

    assert (found.cause, ids(found)) == (
        "driver-not-loaded",
        ["driver-not-loaded", "built-for-cpus"],
    )
    assert "PyTorch 1.2 is loaded and could" in found.conclusion


def test_a_build_for_cpus_of_a_program_with_its_own_cuda_decides_nothing() -> None:
    found = answer(process(frameworks=(framework("ggml", gpu_build=False),)))

    assert (found.cause, found.obstacles[1].remedy) == ("no-context", ())


def test_a_build_that_could_not_be_read_is_not_for_cpus() -> None:
    found = answer(process(mapped=(), frameworks=(framework("pytorch", gpu_build=None),)))

    assert found.cause == "driver-not-loaded"
    assert "could" not in found.conclusion


@pytest.mark.parametrize(
    ("variable", "names", "cause"),
    [
        ("JAX_PLATFORMS=cpu", ("jax",), "told-to-use-cpu"),
        ("JAX_PLATFORM_NAME=CPU", ("jax",), "told-to-use-cpu"),
        ("JAX_PLATFORMS=cuda,cpu", ("jax",), "driver-not-loaded"),
        ("JAX_PLATFORMS=gpu", ("jax",), "driver-not-loaded"),
        ("JAX_PLATFORMS=", ("jax",), "driver-not-loaded"),
        ("JAX_PLATFORMS=cpu", (), "driver-not-loaded"),
        ("JAX_PLATFORMS=cpu", ("jax", "pytorch"), "driver-not-loaded"),
    ],
)
def test_jax_is_told_to_use_the_cpu(variable: str, names: tuple[str, ...], cause: str) -> None:
    reading = process(
        mapped=(),
        environment=dict([variable.split("=")]),
        frameworks=tuple(framework(name, gpu_build=True) for name in names),
    )

    assert answer(reading).cause == cause


def cuda_libraries(*left_out: str) -> tuple[MappedReading, ...]:
    names = ("libcudart.so.12", "libcublas.so.12.8.4", "libcublasLt.so.12", "libcufft.so.11",
             "libcusolver.so.11", "libcusparse.so.12")  # fmt: skip
    return tuple(MappedReading(f"/lib/{n}", f"1 {n}") for n in names if n not in left_out)


@pytest.mark.parametrize(
    ("name", "left_out", "words"),
    [
        (
            "tensorflow",
            ("libcufft.so.11",),
            "TensorFlow 2.21 needs libcufft.so.11, and has not loaded it.",
        ),
        (
            "jax",
            ("libcufft.so.11", "libcudart.so.12"),
            "JAX 2.21 needs libcudart.so.12, libcufft.so.11, and has not loaded them.",
        ),
    ],
)
def test_a_framework_that_went_on_without_its_libraries(
    name: str, left_out: tuple[str, ...], words: str
) -> None:
    loaded = MappedFrameworkReading(name, f"/site/{name}", "2.21", "12.5.1", gpu_build=True)
    reading = process(mapped=(CUDA, *cuda_libraries(*left_out)), frameworks=(loaded,))

    found = answer(reading)

    assert found.cause == "libraries-not-loaded"
    assert words in found.conclusion


@pytest.mark.parametrize(
    ("name", "cuda", "mapped", "cause"),
    [
        ("tensorflow", "12.5.1", (CUDA, *cuda_libraries()), "no-context"),
        ("tensorflow", None, (CUDA,), "no-context"),
        ("tensorflow", "12.5.1", (), "driver-not-loaded"),
        ("pytorch", "12.8", (CUDA,), "no-context"),
    ],
)
def test_libraries_that_nothing_needs(
    name: str, cuda: str | None, mapped: tuple[MappedReading, ...], cause: str
) -> None:
    loaded = MappedFrameworkReading(name, f"/site/{name}", "2.21", cuda, gpu_build=True)

    assert answer(process(mapped=mapped, frameworks=(loaded,))).cause == cause


# ------------------------------------------------------------------------------ its libraries


def test_one_library_twice() -> None:
    mapped = (
        MappedReading("/conda/libcudart.so.12.4.99", "1 1"),
        MappedReading("/wheel/libcudart-1b2c3d4e.so.12", "1 2"),
        MappedReading("/wheel/libcudart.so.11.0", "1 3"),  # another major version
        MappedReading("/wheel/libnccl.so.2", "1 4"),
        MappedReading("/link/libnccl.so.2", "1 4"),  # the same file
        MappedReading("/a/libnvJitLink.so.12", "1 5"),
        MappedReading("/b/libnvJitLink.so.12", "1 6"),  # made to stand beside one another
    )
    found = answer(process(mapped=(CUDA, *mapped)))

    [twice] = [one for one in found.obstacles if one.id == "loaded-twice"]
    assert twice.summary.startswith("libcudart.so.12 is loaded from 2 files")
    assert [each.value for each in twice.evidence] == [mapped[0].path, mapped[1].path]
    assert not twice.hinders


def test_two_drivers_in_one_process() -> None:
    other = MappedReading("/compat/libcuda.so.1", "1 2")

    assert (
        "libcuda is loaded from 2 files"
        in answer(process(mapped=(CUDA, other))).obstacles[1].summary
    )


def test_a_replaced_library() -> None:
    gone = MappedReading("/a/libcublas.so.12", "1 1", deleted=True)

    found = answer(process(mapped=(CUDA, gone)))

    assert ids(found) == ["no-context", "library-replaced"]
    assert found.obstacles[1].evidence[0].value == "/a/libcublas.so.12 (deleted)"


def test_the_libraries_with_their_versions() -> None:
    mapped = (
        CUDA,
        MappedReading("/usr/lib/libnvidia-ml.so.1", "1 1"),
        MappedReading("/a/libcudnn_ops.so.9.10.2", "1 2"),
        MappedReading("/a/libcudnn_ops.so.9.10.2", "1 2"),
        MappedReading("/a/libtorch_cpu.so", "1 3"),
    )

    assert answer(process(mapped=mapped)).libraries == (
        LoadedLibrary("libcuda", CUDA.path, "570.133.20"),
        LoadedLibrary("libnvidia-ml", "/usr/lib/libnvidia-ml.so.1"),
        LoadedLibrary("libcudnn_ops", "/a/libcudnn_ops.so.9.10.2", "9.10.2"),
    )


# ------------------------------------------------------------------------------ cannot be told


@pytest.mark.parametrize(
    ("changes", "reading", "words"),
    [
        ({"found": None, "device_files": None}, nvml(gpu(0)), "the snapshot recorded no processes"),
        ({}, nvml(failure=SILENT), "NVML does not answer (NVML did not answer within 13 s)"),
        ({}, nvml(failure=ABSENT), "NVML does not answer"),  # but the module is loaded
        ({}, nvml(gpu(0), gpu(1, failure=SILENT)), "NVML does not list every process"),
        ({}, nvml(gpu(0, unavailable={"processes": "no"})), "NVML does not list every process"),
        (
            {"initial_namespace": False},
            nvml(gpu(0)),
            "no ids of this PID namespace; it holds /dev/nvidia0, /dev/nvidiactl open.",
        ),
        (
            {"initial_namespace": False, "device_files": ("/dev/nvidia-uvm",)},
            nvml(gpu(0)),
            "it holds /dev/nvidia-uvm open, as a program that has started CUDA does.",
        ),
        (
            {"initial_namespace": False, "device_files": (), "holders": (4720,)},
            nvml(gpu(0)),
            "below it PID 4720 holds the driver's files open.",
        ),
        (
            {"initial_namespace": False, "device_files": None},
            nvml(gpu(0)),
            "and its open files could not be read.",
        ),
        ({"device_files": ("/dev/dxg",)}, nvml(gpu(0)), "NVML does not list every process"),
    ],
)
def test_what_cannot_be_told(changes: dict[str, Any], reading: NvmlReading, words: str) -> None:
    found = answer(process(**changes), reading)

    assert (found.uses_gpu, found.cause) == (None, None)
    assert found.conclusion.startswith("Whether PID 4711 (train.py) uses a GPU cannot be told: ")
    assert words in found.conclusion


@pytest.mark.parametrize(
    ("changes", "listed", "remedy"),
    [
        ({"initial_namespace": False}, nvml(gpu(0)), "Ask on the host, with its id there: "),
        ({"unavailable": {"libraries": NOT_ALLOWED}}, nvml(failure=SILENT), "Ask as its user"),
        ({"unavailable": {"libraries": NOT_ALLOWED}}, nvml(gpu(0, PID)), ""),
        ({"unavailable": {"cgroup": "the kernel names none"}}, nvml(failure=SILENT), ""),
        ({}, nvml(failure=SILENT), ""),
    ],
)
def test_whom_to_ask_instead(changes: dict[str, Any], listed: NvmlReading, remedy: str) -> None:
    steps = answer(process(**changes), listed).remedy

    assert bool(steps) is bool(remedy)
    assert all(step.startswith(remedy) for step in steps)


def test_without_the_driver_s_files_it_uses_none_whatever_nvml_says() -> None:
    found = answer(process(device_files=(), mapped=()), nvml(failure=SILENT))

    assert (found.uses_gpu, found.cause) == (False, "driver-not-loaded")


def test_ids_of_the_host_are_nobody_here() -> None:
    """A process with such an id is another one, unless it holds a GPU open."""
    here = process(initial_namespace=False, device_files=())

    assert answer(here, nvml(gpu(0, PID))).uses_gpu is False
    assert answer(here._replace(device_files=("/dev/nvidia0",)), nvml(gpu(0, PID))).uses_gpu is True


def test_children_are_not_taken_for_ids_of_the_host() -> None:
    here = process(initial_namespace=False, descendants=(4712,))

    assert answer(here, nvml(gpu(0, 4712))).uses_gpu is None


def test_files_of_another_user() -> None:
    hidden = dict.fromkeys(("libraries", "environment", "device_files"), NOT_ALLOWED)
    reading = process(mapped=None, environment=None, device_files=None, unavailable=hidden)

    found = answer(reading)

    assert (found.uses_gpu, found.cause, found.libraries, found.frameworks) == (
        *(False, None, None, None),
    )
    assert found.conclusion.endswith("the files that say why could not be read.")
    assert found.remedy[0].endswith("sudo gpucheck detect --pid 4711")


# ------------------------------------------------------------------------------ the command


@pytest.mark.parametrize(
    ("reading", "listed", "code", "error"),
    [
        (process(), nvml(gpu(0, PID)), ExitCode.OK, None),
        (process(), nvml(gpu(0)), ExitCode.BAD, None),
        (process(), nvml(failure=SILENT), ExitCode.INCONCLUSIVE, None),
        (process(mapped=None), nvml(gpu(0)), ExitCode.INCONCLUSIVE, None),
        (ProcessFilesReading(PID), nvml(gpu(0)), ExitCode.INCONCLUSIVE, "not-recorded"),
        (ProcessFilesReading(PID), nvml(gpu(0, PID)), ExitCode.OK, None),
    ],
)
def test_exit_codes(
    reading: ProcessFilesReading, listed: NvmlReading, code: ExitCode, error: str | None
) -> None:
    found = explain_process(FakeProbes(readings=listed, process_reading=reading), PID)

    assert found.exit_code is code
    assert (found.error and found.error.code) == error
    assert found.host.driver_version == "570.133.20"


@pytest.mark.parametrize(("ended", "code"), [(False, "no-such-process"), (True, "process-ended")])
def test_no_such_process(ended: bool, code: str) -> None:
    gone = ProcessFilesReading(PID, found=False, ended=ended)
    probes = FakeProbes(process_reading=gone)

    with pytest.raises(WrongUseError) as caught:
        explain_process(probes, PID)

    assert caught.value.code == code
    assert "nvml" not in probes.asked
