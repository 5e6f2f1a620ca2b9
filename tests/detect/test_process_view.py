"""What a terminal shows of one process."""

from __future__ import annotations

from typing import Any

from gpucheck.detect.model import (
    CgroupReading,
    LoadedLibrary,
    MappedFrameworkReading,
    Obstacle,
    ProcessAnswer,
    UsedGpu,
)
from gpucheck.detect.process_view import MOST_OF_A_COMMAND
from gpucheck.report.envelope import TOOL, Evidence, Report, Status
from gpucheck.report.errors import ExitCode
from gpucheck.report.formats import open_format
from gpucheck.report.text import View
from tests.fakes.probes import HERE

FOUND = ProcessAnswer(pid=4711, uses_gpu=True, conclusion="PID 4711 uses GPU 0.", state="sleeping")


def shown(found: ProcessAnswer, code: ExitCode = ExitCode.OK, **view: Any) -> list[str]:
    """Return the lines, without those that are empty."""
    report = Report(
        command="process",
        schema="gpucheck/process/1",
        tool=TOOL,
        time="2026-01-02T03:04:05Z",
        host=HERE,
        exit_code=code,
        status=Status.OK,
        error=None,
        warnings=(),
        result=found,
    )
    text = open_format("table")(report, View(width=100, **view))
    return [line.rstrip() for line in text.splitlines() if line.strip()]


def test_the_facts() -> None:
    found = FOUND._replace(
        user="alice",
        threads=1,
        command="python train.py",
        frameworks=(
            MappedFrameworkReading("pytorch", "/t", "2.14", "12.8", gpu_build=True),
            MappedFrameworkReading("cupy", "/c", "14", None, gpu_build=True),
            MappedFrameworkReading("jax", "/j", None, None, gpu_build=False),
        ),
        libraries=(
            LoadedLibrary("libcuda", "/usr/lib/libcuda.so.570.1", "570.1", deleted=True),
            LoadedLibrary("libnvidia-ml", "/usr/lib/libnvidia-ml.so.1"),
        ),
        device_files=("/dev/nvidia0",),
        environment={"CUDA_VISIBLE_DEVICES": "0", "CUDA_CACHE_PATH": "/x"},
        cgroup=CgroupReading("/pod", 8 << 30, 1 << 30, oom_kills=1),
    )

    assert shown(found)[1:] == [
        "✓ PID 4711 uses GPU 0.",
        "process    user alice, sleeping, 1 thread",
        "command    python train.py",
        "frameworks PyTorch 2.14 (CUDA 12.8), CuPy 14 (has CUDA), JAX (for CPUs)",
        "libraries  libcuda 570.1 (replaced on disk), libnvidia-ml",
        "files open /dev/nvidia0",
        "variables  CUDA_VISIBLE_DEVICES='0'",
        "cgroup     /pod, memory 1.0 GiB of 8.0 GiB, 1 process killed for memory",
    ]
    assert "           /usr/lib/libcuda.so.570.1" in shown(found, verbosity=1)


def test_a_framework_whose_files_could_not_be_read() -> None:
    lines = shown(FOUND._replace(frameworks=(MappedFrameworkReading("onnxruntime", "/o"),)))

    assert "frameworks ONNX Runtime (not known whether it has CUDA)" in lines


def test_where_there_is_nothing() -> None:
    found = FOUND._replace(
        state=None, libraries=(), frameworks=(), device_files=(), environment={},
        cgroup=CgroupReading("/"), own_namespaces=("pid", "mnt"),
    )  # fmt: skip

    assert shown(found)[2:] == [
        "libraries  none of NVIDIA's",
        "files open none of the driver",
        "variables  started with none about GPUs (what it set later cannot be seen)",
        "namespaces PID and mount of its own: it may be in a container",
        "cgroup     /",
    ]


def test_a_long_command_is_cut_unless_all_is_asked_for() -> None:
    fits, long = "a" * MOST_OF_A_COMMAND, "b" * (MOST_OF_A_COMMAND + 1)

    assert "..." not in "".join(shown(FOUND._replace(command=fits)))
    assert "".join(shown(FOUND._replace(command=long))).endswith("...")
    assert "..." not in "".join(shown(FOUND._replace(command=long), verbosity=1))


def test_processes_below_it_are_told_apart() -> None:
    below = (UsedGpu(0, 5, memory_used_bytes=1 << 30), UsedGpu(1, 6))

    assert "uses       GPU 0 by PID 5 1.0 GiB, GPU 1 by PID 6" in shown(FOUND._replace(gpus=below))
    own = FOUND._replace(gpus=(UsedGpu(0, 4711),))
    assert not any(line.startswith("uses") for line in shown(own))


def test_what_was_not_read_stands_once_for_each_reason() -> None:
    gaps = {"libraries": "no", "device_files": "no", "cgroup": "gone"}
    found = FOUND._replace(uses_gpu=None, unavailable=gaps)

    lines = shown(found, ExitCode.INCONCLUSIVE)

    assert lines[1] == "? PID 4711 uses GPU 0."
    assert lines[-1] == "? not read: libraries, device files (no); cgroup (gone)"


def test_obstacles_with_their_first_evidence() -> None:
    seen = tuple(Evidence("maps", str(number)) for number in range(3))
    first = Obstacle("hidden-devices", "a", True, seen)
    other = Obstacle("loaded-twice", "two files", False, seen, ("Remove one.",))
    found = FOUND._replace(uses_gpu=False, cause="hidden-devices", obstacles=(first, other))

    lines = shown(found, ExitCode.BAD)

    assert lines[1:8] == [
        "✗ PID 4711 uses GPU 0.",
        "    seen maps: 0",
        "    seen maps: 1",
        "! two files",
        "    seen maps: 0",
        "    seen maps: 1",
        "    → Remove one.",
    ]
    assert len([line for line in shown(found, ExitCode.BAD, verbosity=1) if "seen" in line]) == 6
    assert shown(found, ExitCode.BAD, verbosity=-1) == ["✗ PID 4711 uses GPU 0."]
