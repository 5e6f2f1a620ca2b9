"""The pretended CuPy: what it refuses as a card would, what it computes, and that CuPy has it.

Each test runs lines of Python in a process of its own, on a pretended machine.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import scrubbed_environment
from tests.fakes.cupy_child import run_lines
from tests.fakes.libraries import CUPY, cupy_environment
from tests.fakes.machine import Machine, load_machine

NAMES = Path(__file__).with_name("cupy_names.py")
HEAD = """
import sys
import numpy as np
import cupy
from cupy.cuda import runtime

def refused(function, *arguments, **keywords):
    try:
        function(*arguments, **keywords)
    except Exception as error:
        return f"{type(error).__module__}.{type(error).__qualname__}: {error}"
    return None
"""

Child = Callable[..., Any]


@pytest.fixture(name="child")
def _child(c_compiler: str, tmp_path: Path) -> Child:
    """Run lines that fill the dictionary `said`, and return it."""

    def run(lines: str, machine: str | Machine = "h100x8", **settings: Any) -> Any:
        return run_lines(HEAD, lines, tmp_path, machine, **settings)

    return run


def test_devices_are_those_of_the_pretended_libcuda(child: Child) -> None:
    said = child(
        """
        said["count"] = runtime.getDeviceCount()
        found = runtime.getDeviceProperties(1)
        said["uuid"] = found["uuid"].hex()
        said["name"] = found["name"].decode()
        said["missing"] = refused(runtime.setDevice, 2)
        with cupy.cuda.Device(1):
            said["memory"] = runtime.memGetInfo()
        """,
        variables={"CUDA_VISIBLE_DEVICES": "6,5"},
    )

    gpu = load_machine("h100x8").gpus[5]
    assert said["count"] == 2
    assert said["uuid"] == gpu.uuid.removeprefix("GPU-").replace("-", "")
    assert said["name"] == gpu.name
    assert "cudaErrorInvalidDevice: invalid device ordinal" in said["missing"]
    free, total = said["memory"]
    assert total == gpu.cuda_memory_total_bytes
    assert free == total - gpu.memory_used_bytes - (500 << 20)


@pytest.mark.parametrize(
    ("machine", "variables", "name"),
    [
        ("no-driver", {}, "cudaErrorInsufficientDriver"),
        ("h100x8", {"CUDA_VISIBLE_DEVICES": ""}, "cudaErrorNoDevice"),
        ("h100x8", {"FAKE_CUPY_CUDA": "14"}, "cudaErrorInsufficientDriver"),
    ],
)
def test_no_device_is_cuda_s_own_error(
    child: Child, machine: str, variables: dict[str, str], name: str
) -> None:
    said = child('said["error"] = refused(runtime.getDeviceCount)', machine, variables=variables)

    assert name in said["error"]


def test_arrays_compute_what_numpy_computes(child: Child) -> None:
    said = child(
        """
        host = np.arange(12, dtype=np.float32).reshape(3, 4)
        one = cupy.asarray(host)
        def same(found, wanted):
            return bool(np.allclose(found.get(), wanted, equal_nan=True))
        said["scaled"] = same(cupy.exp(one / np.float32(7)), np.exp(host / 7))
        said["scalar"] = same(np.float32(2) * one - 1, 2 * host - 1)
        said["rows"] = same(one.max(axis=1, keepdims=True), host.max(axis=1, keepdims=True))
        said["total"] = same(one.sum(), host.sum())
        said["product"] = same(one @ one.T, host @ host.T)
        said["part"] = same(one[1:3, ::2], host[1:3, ::2])
        said["kept"] = str((one * np.float32(2)).dtype)
        out = cupy.empty_like(one)
        cupy.divide(one, cupy.full((3, 1), 4, dtype="float32"), out=out)
        said["out"] = same(out, host / 4)
        said["unwritten"] = bool(np.isnan(cupy.empty(1 << 20, "float32").get()).all())
        out[1] = 5
        said["assigned"] = out.get()[1].tolist()
        said["implicit"] = refused(np.asarray, one)
        said["mixed"] = refused(lambda: one + host)
        """
    )

    for name in ("scaled", "scalar", "rows", "total", "product", "part", "out", "unwritten"):
        assert said[name], name
    assert said["kept"] == "float32"
    assert said["assigned"] == [5, 5, 5, 5]
    assert "Implicit conversion" in said["implicit"]
    assert "TypeError" in said["mixed"]


def test_copies_demand_what_cupy_demands(child: Child) -> None:
    said = child(
        """
        one = cupy.zeros((2, 3), dtype="float32")
        said["type"] = refused(one.set, np.zeros((2, 3)))
        said["shape"] = refused(one.set, np.zeros((3, 2), np.float32))
        said["out"] = refused(one.get, out=np.zeros((2, 3)))
        said["view"] = refused(one.T.set, np.zeros((3, 2), np.float32))
        """
    )

    assert "float64 array cannot be set to float32 array" in said["type"]
    assert "Shape mismatch" in said["shape"]
    assert "float32 array" in said["out"]
    assert "non-contiguous" in said["view"]


def test_the_pool_counts_limits_and_keeps(child: Child) -> None:
    said = child(
        """
        pool = cupy.get_default_memory_pool()
        said["limit"] = pool.get_limit()
        one = cupy.empty(1000, "uint8")
        said["used"] = [pool.used_bytes(), pool.total_bytes()]
        said["refused"] = refused(cupy.empty, 1 << 20, "uint8")
        del one
        said["kept"] = [pool.used_bytes(), pool.total_bytes(), pool.n_free_blocks()]
        pool.free_all_blocks()
        said["freed"] = pool.total_bytes()
        pool.set_limit(size=0)
        huge = cupy.empty(12 * 10**9, "uint8")
        said["card"] = refused(cupy.empty, 12 * 10**9, "uint8")
        with cupy.cuda.Device(1):
            said["other"] = pool.get_limit()
            pool.set_limit(fraction=0.5)
            said["half"] = pool.get_limit()
        """,
        variables={"CUPY_GPU_MEMORY_LIMIT": "1000000"},
    )

    assert said["limit"] == said["other"] == 1_000_000
    assert said["used"] == [1024, 1024]
    wanted = "cupy.cuda.memory.OutOfMemoryError: Out of memory allocating 1,048,576 bytes "
    assert said["refused"].startswith(wanted)
    assert "limit set to: 1,000,000 bytes" in said["refused"]
    assert said["kept"] == [0, 1024, 1]
    assert said["freed"] == 0
    assert "Out of memory allocating 12,000,000,000 bytes" in said["card"]
    assert said["half"] == load_machine("h100x8").gpus[1].cuda_memory_total_bytes // 2


def test_the_driver_knows_where_a_context_is(child: Child) -> None:
    said = child(
        """
        from gpucheck.drivers.cuda.in_process import active_devices

        said["before"] = active_devices()
        with cupy.cuda.Device(2):
            held = cupy.empty(1, "uint8")
        said["after"] = active_devices()
        """
    )

    assert said == {"before": [], "after": [2]}


def test_freed_memory_serves_its_own_stream_only(child: Child) -> None:
    said = child(
        """
        pool = cupy.get_default_memory_pool()
        with cupy.cuda.Stream(non_blocking=True):
            cupy.empty(1 << 20, "uint8")
        cupy.empty(1 << 20, "uint8")
        said["total"] = pool.total_bytes()
        """
    )

    assert said["total"] == 2 << 20


KERNEL = r"""
typedef unsigned short word;
#define PARAMETERS const float4 *x, float4* __restrict__ y, long long packs
extern "C" __global__ void __launch_bounds__(256) copy(PARAMETERS) {}
extern "C" __global__ void other(const word* x) {}
"""


#: A launch, and the words that refuse it. The last one ends the context.
REFUSED = [
    ("(1,), (256,), (x, y)", "takes 3 arguments, not 2"),
    ("(1,), (256,), (x, y, 2.0)", "is int64, but float64"),
    ("(1,), (256,), (x, y, np.int32(2))", "is int64, but int32"),
    ("(1,), (256,), (x, wide, np.int64(2))", "points to float32, the array is float64"),
    ("(1,), (256,), (x[::2], y, np.int64(2))", "not contiguous"),
    ("(1,), (256,), (x[1:], y, np.int64(1))", "misaligned"),
    ("(1,), (256,), (x, np.zeros(8, np.float32), np.int64(2))", "is a pointer, not ndarray"),
    ("(1,), (512,), (x, y, np.int64(2))", "CUDA_ERROR_INVALID_VALUE"),
    ("(0,), (256,), (x, y, np.int64(2))", "CUDA_ERROR_INVALID_VALUE"),
    ("(1,), (256,), (x, y, np.int64(2**20))", "cudaErrorIllegalAddress"),
]


def test_a_launch_that_would_crash_is_refused(child: Child) -> None:
    said = child(
        f"""
        x, y = cupy.zeros(8, "float32"), cupy.zeros(8, "float32")
        wide = cupy.zeros(8)
        kernel = cupy.RawKernel({KERNEL!r}, "copy")
        said["errors"] = [{", ".join(f"refused(kernel, {launch})" for launch, _ in REFUSED)}]
        """
    )

    told = zip(REFUSED, said["errors"], strict=True)
    assert [(launch, error) for (launch, words), error in told if words not in error] == []


def test_a_kernel_that_nobody_wrote_in_numpy_ends_the_program(child: Child) -> None:
    said = child(
        f"""
        kernel = cupy.RawKernel({KERNEL!r}, "other")
        try:
            kernel((1,), (1,), (cupy.zeros(2, "uint16"),))
        except BaseException as error:
            said["error"] = [type(error).__name__, isinstance(error, Exception), str(error)]
        missing = cupy.RawKernel({KERNEL!r}, "nowhere")
        said["compile"] = refused(missing.compile)
        """
    )

    name, ordinary, text = said["error"]
    assert (name, ordinary) == ("FakeIncompleteError", False)
    assert "no kernel 'other'" in text
    assert "cupy.cuda.compiler.CompileException" in said["compile"]


def test_every_kernel_of_gpucheck_is_known(child: Child) -> None:
    package = Path(__file__).parents[2] / "gpucheck"
    sources = sorted(str(path) for path in package.rglob("*.cu"))

    said = child(
        f"""
        from pathlib import Path
        from cupy._pretended.kernels import implementation
        from cupy._pretended.signature import read

        # softmax.cu is compiled for one of its kernels.
        each = ("-DSOFTMAX_SHORT", "-DSOFTMAX_LONG", "-DSOFTMAX_ONLINE")
        for path in {sources}:
            found = read(Path(path).read_text(), each, (9, 0)).kernels
            for name in found:
                implementation(name)
            said[Path(path).name] = sorted(found)
        """
    )

    assert len(said) == len(sources) > 3
    assert said["timing.cu"] == ["hold", "step", "tick"]
    assert said["softmax.cu"] == ["softmax_long", "softmax_online", "softmax_short"]
    assert all(said.values())


def test_cublas_is_found_by_cupy_and_not_by_its_own_name(child: Child) -> None:
    said = child(
        """
        import importlib
        said["by name"] = refused(importlib.import_module, "cupy_backends.cuda.libs.cublas")
        said["by cupy"] = cupy.cuda.cublas.getVersion(cupy.cuda.device.get_cublas_handle())
        """
    )

    assert "libcublas.so" in str(said["by name"])
    assert said["by cupy"] == 120900


def test_gemm_is_column_major_and_strict(child: Child) -> None:
    said = child(
        """
        from cupy_backends.cuda.libs import cublas

        handle = cupy.cuda.device.get_cublas_handle()
        a, b = np.arange(6, dtype=np.float32).reshape(2, 3), np.ones((3, 4), np.float32)
        a_gpu, b_gpu, c = cupy.asarray(a), cupy.asarray(b), cupy.empty((2, 4), "float32")
        scales = np.array([1, 0], np.float32)
        alpha, beta = scales.ctypes.data, scales.ctypes.data + 4
        def gemm(lda=4, ldb=3, ldc=4, kind=0, compute=68, hand=handle):
            cublas.gemmEx(hand, 0, 0, 4, 2, 3, alpha, b_gpu.data.ptr, kind, lda, a_gpu.data.ptr,
                          kind, ldb, beta, c.data.ptr, 0, ldc, compute, -1)
        gemm()
        said["right"] = bool((c.get() == a @ b).all())
        said["lda"] = refused(gemm, lda=3)
        said["types"] = refused(gemm, kind=1)
        said["compute"] = refused(gemm, compute=72)
        said["handle"] = refused(gemm, hand=1)
        stream = cupy.cuda.Stream(non_blocking=True)
        with stream:
            stream.begin_capture()
            said["capture"] = refused(gemm)
            said["wait"] = refused(stream.synchronize)
            stream.end_capture()
        """
    )

    assert said["right"]
    assert "CUBLAS_STATUS_INVALID_VALUE" in said["lda"]
    assert "CUBLAS_STATUS_NOT_SUPPORTED" in said["types"]
    assert "CUBLAS_STATUS_NOT_SUPPORTED" in said["compute"]
    assert "CUBLAS_STATUS_NOT_INITIALIZED" in said["handle"]
    assert "calling cuBLAS API during stream capture" in said["capture"]
    assert "cudaErrorStreamCaptureUnsupported" in said["wait"]


@pytest.mark.parametrize("kinds", [(2, "float16", 2), (14, "uint16", 14), (3, "int8", 10)])
def test_gemm_in_the_short_formats_is_near_float64(
    child: Child, kinds: tuple[int, str, int]
) -> None:
    kind, storage, result = kinds
    said = child(
        f"""
        from cupy_backends.cuda.libs import cublas

        kind, storage, result = {kind}, {storage!r}, {result}
        rng = np.random.default_rng(1)
        wide = np.rint(rng.standard_normal((64, 64)) * 30 if kind == 3 else
                       rng.standard_normal((64, 64)) * 8).astype(np.float32)
        stored = (wide.view(np.uint32) >> 16).astype(np.uint16) if kind == 14 else (
            wide.astype(storage))
        one, out = cupy.asarray(stored), cupy.empty((64, 64), "int32" if kind == 3 else storage)
        integer = kind == 3
        scales = np.array([1, 0], np.int32 if integer else np.float32)
        cublas.gemmEx(cupy.cuda.device.get_cublas_handle(), 0, 0, 64, 64, 64, scales.ctypes.data,
                      one.data.ptr, kind, 64, one.data.ptr, kind, 64, scales.ctypes.data + 4,
                      out.data.ptr, result, 64, 72 if integer else 68, -1)
        found = out.get()
        if kind == 14:
            found = (found.astype(np.uint32) << 16).view(np.float32)
        wanted = wide.astype(np.float64) @ wide.astype(np.float64)
        said["error"] = float(np.abs(found - wanted).max() / np.abs(wanted).max())
        """
    )

    assert said["error"] <= {"float16": 2e-3, "uint16": 1e-2, "int8": 0.0}[storage]


def test_streams_and_arrays_belong_to_their_device(child: Child) -> None:
    said = child(
        """
        here = cupy.zeros(4, "float32")
        stream = cupy.cuda.Stream()
        begin = cupy.cuda.Event()
        with cupy.cuda.Device(1):
            said["stream"] = refused(stream.use)
            said["array"] = refused(lambda: here + 1)
            said["moved"] = cupy.asarray(here).device.id
            said["event"] = refused(begin.record, cupy.cuda.Stream())
        """,
        script="no-peers",
    )

    assert "does not match with the current device (1)" in said["stream"]
    assert "Peer access is unavailable between these devices." in said["array"]
    assert said["moved"] == 1
    assert "cudaErrorInvalidResourceHandle" in said["event"]


def test_events_carry_the_model_s_time_and_graphs_replay(child: Child) -> None:
    said = child(
        """
        import time
        stream = cupy.cuda.Stream(non_blocking=True)
        one, two = cupy.zeros(1 << 26, "uint8"), cupy.empty(1 << 26, "uint8")
        begin, end = cupy.cuda.Event(), cupy.cuda.Event()
        def copy():
            runtime.memcpyAsync(two.data.ptr, one.data.ptr, one.nbytes, 3, stream.ptr)
        with stream:
            stream.begin_capture()
            copy()
            graph = stream.end_capture()
            said["recorded"] = bool((two.get()[:4] == 0).all())
            started = time.perf_counter()
            begin.record(stream)
            for _ in range(10):
                graph.launch(stream)
            end.record(stream)
            said["early"] = refused(cupy.cuda.get_elapsed_time, begin, end)
            said["queued_s"] = time.perf_counter() - started
            stream.synchronize()
            said["waited_s"] = time.perf_counter() - started
        said["copied"] = bool((two.get()[:4] == 0).all())
        said["elapsed_ms"] = cupy.cuda.get_elapsed_time(begin, end)
        """
    )

    assert not said["recorded"]
    assert said["copied"]
    assert "cudaErrorNotReady" in said["early"]
    bandwidth = 10 * 2 * (1 << 26) / (said["elapsed_ms"] / 1e3)
    assert bandwidth == pytest.approx(0.92 * 2 * 2619e6 * 5120 / 8, rel=0.05)
    assert said["queued_s"] < 1e-4 < said["waited_s"]


def test_a_stream_that_waits_for_a_recording_one_joins_its_graph(child: Child) -> None:
    said = child(
        """
        main, lane = cupy.cuda.Stream(non_blocking=True), cupy.cuda.Stream(non_blocking=True)
        one, two = cupy.zeros(1 << 26, "uint8"), cupy.empty(1 << 26, "uint8")
        with main:
            main.begin_capture()
            lane.wait_event(main.record())
            runtime.memcpyAsync(two.data.ptr, one.data.ptr, one.nbytes, 3, lane.ptr)
            main.wait_event(lane.record())
            graph = main.end_capture()
            said["recorded"] = bool((two.get()[:4] == 0).all())
            begin, end = cupy.cuda.Event(), cupy.cuda.Event()
            begin.record(main)
            graph.launch(main)
            end.record(main)
            main.synchronize()
        said["copied"] = bool((two.get()[:4] == 0).all())
        said["elapsed_ms"] = cupy.cuda.get_elapsed_time(begin, end)
        """
    )

    assert not said["recorded"]
    assert said["copied"]
    assert said["elapsed_ms"] > 0.03


def test_a_lost_gpu_answers_nothing_any_more(child: Child) -> None:
    said = child(
        """
        one = cupy.zeros(4)
        said["errors"] = [refused(one.get) for _ in range(3)]
        with cupy.cuda.Device(1):
            said["other"] = refused(cupy.zeros, 4)
        """,
        script="lost gpu=0 after=3 error=cudaErrorECCUncorrectable",
    )

    assert "cudaErrorECCUncorrectable" in said["errors"][-1]
    assert said["errors"][-1] == said["errors"][-2]
    assert said["other"] is None


def test_an_unknown_statement_is_refused(child: Child) -> None:
    with pytest.raises(AssertionError, match="'losst' is none of"):
        child("", script="losst gpu=0")
    with pytest.raises(AssertionError, match="lost takes"):
        child("", script="lost kernel=copy")


def test_the_driver_lists_what_this_process_takes(child: Child, tmp_path: Path) -> None:
    listed = tmp_path / "processes"
    said = child(
        """
        import os
        held = cupy.empty(1 << 30, "uint8")
        said["pid"] = os.getpid()
        said["line"] = open(os.environ["FAKE_PROCESSES_FILE"]).read()
        """,
        variables={"FAKE_PROCESSES_FILE": str(listed), "FAKE_GPU_REPORTS": "1"},
    )

    used = (1 << 30) + (500 << 20)
    assert said["line"] == f"0 {said['pid']} 0 -1 {used} 0 0 0 0\n"


# ---- against the real one ----

#: What gpucheck uses of CuPy.
USED = """
cupy.RawKernel cupy.RawKernel.compile cupy.RawModule cupy.arange cupy.array cupy.asarray
cupy.asnumpy cupy.copyto cupy.divide cupy.empty cupy.exp cupy.full cupy.get_default_memory_pool
cupy.get_default_pinned_memory_pool cupy.maximum cupy.ndarray.copy cupy.ndarray.data
cupy.ndarray.device cupy.ndarray.dtype cupy.ndarray.fill cupy.ndarray.get cupy.ndarray.max
cupy.ndarray.nbytes cupy.ndarray.reshape cupy.ndarray.set cupy.ndarray.shape cupy.ndarray.sum
cupy.cuda.Device cupy.cuda.Device.synchronize cupy.cuda.Device.use cupy.cuda.Event
cupy.cuda.Event.done cupy.cuda.Event.record cupy.cuda.Event.synchronize cupy.cuda.Graph.launch
cupy.cuda.Graph.upload
cupy.cuda.MemoryPointer.memset_async cupy.cuda.PinnedMemoryPool.free_all_blocks
cupy.cuda.MemoryPool cupy.cuda.MemoryPool.free_all_blocks cupy.cuda.MemoryPool.get_limit
cupy.cuda.MemoryPool.set_limit cupy.cuda.MemoryPool.total_bytes cupy.cuda.MemoryPool.used_bytes
cupy.cuda.Stream cupy.cuda.Stream.begin_capture cupy.cuda.Stream.end_capture
cupy.cuda.Stream.null cupy.cuda.Stream.ptr cupy.cuda.Stream.record cupy.cuda.Stream.synchronize
cupy.cuda.Stream.use cupy.cuda.Stream.wait_event cupy.cuda.device.get_cublas_handle
cupy.cuda.get_current_stream
cupy.cuda.get_elapsed_time cupy.cuda.memory.OutOfMemoryError cupy.cuda.runtime.CUDARuntimeError
cupy.cuda.runtime.deviceCanAccessPeer cupy.cuda.runtime.deviceEnablePeerAccess
cupy.cuda.runtime.getDeviceCount cupy.cuda.runtime.getDeviceProperties
cupy.cuda.runtime.memGetInfo cupy.cuda.runtime.memcpyAsync
cupy.cuda.runtime.memcpyDeviceToDevice cupy.cuda.runtime.memcpyPeerAsync
cupy.cuda.runtime.runtimeGetVersion cupy.cuda.runtime.setDevice cupyx.empty_pinned
cupy.cuda.cublas.gemmEx cupy.cuda.cublas.getVersion
"""
#: Attributes of instances: nothing to be found on the class.
OF_INSTANCES = {
    "cupy.ndarray.data",
    "cupy.ndarray.dtype",
    "cupy.ndarray.shape",
    "cupy.cuda.Stream.ptr",
}


def described(python: str, names: list[str], variables: Mapping[str, str]) -> dict[str, Any]:
    done = subprocess.run(
        [python, str(NAMES)],
        input="\n".join(names),
        env=scrubbed_environment(variables),
        capture_output=True,
        text=True,
        check=True,
    )
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def public_names(folder: Path) -> list[str]:
    """Return what the pretended runtime module offers beyond what gpucheck uses."""
    text = (folder / "cupy" / "cuda" / "runtime.py").read_text(encoding="utf-8")
    return [line.strip(' ",') for line in text.partition("__all__")[2].splitlines() if '"' in line]


def test_what_gpucheck_uses_is_there() -> None:
    found = described(sys.executable, USED.split(), cupy_environment())

    absent = {name for name, what in found.items() if isinstance(what, str)}
    assert absent <= OF_INSTANCES


def test_names_and_parameters_are_those_of_the_real_cupy() -> None:
    python = os.environ.get("GPUCHECK_CUPY_PYTHON")
    if python is None:
        pytest.skip("no real CuPy to compare with: GPUCHECK_CUPY_PYTHON names its Python")
    names = [*USED.split(), *(f"cupy.cuda.runtime.{name}" for name in public_names(CUPY))]

    ours = described(sys.executable, names, cupy_environment())
    theirs = described(python, names, {})

    for name, parameters in theirs.items():
        if isinstance(parameters, str):
            # Without the libraries of CUDA the real binding of cuBLAS cannot be imported.
            assert "libcublas" in parameters or name in OF_INSTANCES, (name, parameters)
            continue
        mine = ours[name]
        # What Cython documents of a property looks like a function of no parameters.
        assert (mine is None) is (parameters is None) or not parameters, (name, parameters)
        if isinstance(mine, list) and parameters is not None and "args" not in {*mine, *parameters}:
            # The same names in the same order; what nobody here uses may be left out.
            assert mine == [one for one in parameters if one in mine], (name, parameters)
