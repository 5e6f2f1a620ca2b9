"""Framework smoke test: imports one framework and lets it compute on a GPU. Run by path.

It runs in the interpreter that has the framework (Python 3.8 or newer, otherwise standard library
only). After the import it reports and waits for a line: imports may run in parallel, but work on
the GPU may not, since each framework takes memory as if it were alone.
"""

from __future__ import annotations

import json
import os
import re
import sys
import time

TYPE_CHECKING = False  # the name that type checkers know, without the import of typing
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

#: Otherwise frameworks take most of the memory, or log every step.
QUIET = {
    "TF_FORCE_GPU_ALLOW_GROWTH": "true",
    "TF_CPP_MIN_LOG_LEVEL": "0",
    "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
    "NVIDIA_TF32_OVERRIDE": "0",
}
#: Words by which lines about GPUs are found in a framework's log.
TELLING = ("cuda", "gpu", "dlopen", "cudnn", "driver", "libcu", "nvml", "nvidia")
MOST_CHARACTERS = 1000
SEPARATOR = " | "


def try_pytorch() -> Callable[[dict[str, Any]], None]:
    """Import torch; then look for devices and multiply."""
    import torch

    def work(answer: dict[str, Any]) -> None:
        answer["version"] = str(torch.__version__)
        answer["cuda_build"] = torch.version.cuda
        answer["architectures"] = list(torch.cuda.get_arch_list())
        answer["sees_gpu"] = bool(torch.cuda.is_available())
        if not answer["sees_gpu"]:
            # is_available() hides the reason; the initialisation raises it.
            torch.cuda.init()
            return
        answer["devices"] = [
            torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())
        ]
        left = torch.arange(64.0, device="cuda").reshape(8, 8)
        answer["computed"] = bool(torch.equal((left @ left).cpu(), left.cpu() @ left.cpu()))

    return work


def try_tensorflow() -> Callable[[dict[str, Any]], None]:
    """Import TensorFlow; then list physical devices and multiply."""
    import tensorflow as tf

    def work(answer: dict[str, Any]) -> None:
        built = tf.sysconfig.get_build_info()
        answer["version"] = str(tf.__version__)
        answer["cuda_build"] = built.get("cuda_version")
        answer["architectures"] = list(built.get("cuda_compute_capabilities", ()))
        devices = tf.config.list_physical_devices("GPU")
        answer["devices"] = [device.name for device in devices]
        answer["sees_gpu"] = bool(devices)
        if devices:
            with tf.device("/GPU:0"):
                left = tf.reshape(tf.range(64.0), (8, 8))
                product = tf.matmul(left, left).numpy()
            left = left.numpy()
            answer["computed"] = bool((product == left @ left).all())

    return work


def try_jax() -> Callable[[dict[str, Any]], None]:
    """Import JAX; then list devices and multiply."""
    import jax

    def work(answer: dict[str, Any]) -> None:
        answer["version"] = str(jax.__version__)
        devices = [device for device in jax.devices() if device.platform in ("gpu", "cuda")]
        answer["devices"] = [str(device.device_kind) for device in devices]
        answer["sees_gpu"] = bool(devices)
        if devices:
            left = jax.device_put(jax.numpy.arange(64.0).reshape(8, 8), devices[0])
            product = jax.jit(lambda x: (x * 3 + 7).sum())(left)
            answer["computed"] = float(product) == 3 * 2016 + 64 * 7

    return work


def try_cupy() -> Callable[[dict[str, Any]], None]:
    """Import CuPy; then count devices and compute."""
    import cupy

    def work(answer: dict[str, Any]) -> None:
        answer["version"] = str(cupy.__version__)
        version = cupy.cuda.runtime.runtimeGetVersion()
        answer["cuda_build"] = f"{version // 1000}.{version % 1000 // 10}"
        count = cupy.cuda.runtime.getDeviceCount()
        answer["sees_gpu"] = count > 0
        names = [cupy.cuda.runtime.getDeviceProperties(number)["name"] for number in range(count)]
        answer["devices"] = [name.decode("utf-8", "replace") for name in names]
        values = cupy.arange(64)
        answer["computed"] = int((values * 3 + 7).sum()) == 3 * 2016 + 64 * 7

    return work


def try_numba() -> Callable[[dict[str, Any]], None]:
    """Import Numba's CUDA target; then run a kernel."""
    import numba
    import numpy
    from numba import cuda

    def work(answer: dict[str, Any]) -> None:
        answer["version"] = str(numba.__version__)
        answer["sees_gpu"] = bool(cuda.is_available())
        if not answer["sees_gpu"]:
            answer["error"] = str(cuda.cuda_error() or "")
            return
        answer["devices"] = [str(device.name) for device in cuda.gpus]

        @cuda.jit  # type: ignore[untyped-decorator, unused-ignore]
        def fill(values: Any) -> None:
            at = cuda.grid(1)
            if at < values.size:
                values[at] = 3 * at + 7

        values = cuda.to_device(numpy.zeros(64, dtype=numpy.int32))
        fill[1, 64](values)
        answer["computed"] = int(values.copy_to_host().sum()) == 3 * 2016 + 64 * 7

    return work


def try_onnxruntime() -> Callable[[dict[str, Any]], None]:
    """Import ONNX Runtime; then run a model of one operation on the CUDA provider."""
    import numpy
    import onnxruntime

    # Without this call it does not search NVIDIA's wheels.
    preload = getattr(onnxruntime, "preload_dlls", None)
    if preload is not None:
        preload()

    def work(answer: dict[str, Any]) -> None:
        answer["version"] = str(onnxruntime.__version__)
        wanted = "CUDAExecutionProvider"
        if wanted not in onnxruntime.get_available_providers():
            have = ", ".join(onnxruntime.get_available_providers())
            answer["error"] = f"this build offers only {have}"
            return
        session = onnxruntime.InferenceSession(doubling_model(), providers=[wanted])
        # It falls back to the CPU without an error.
        answer["sees_gpu"] = wanted in session.get_providers()
        if answer["sees_gpu"]:
            values = numpy.arange(4, dtype=numpy.float32)
            (result,) = session.run(None, {"x": values})
            answer["devices"] = [wanted]
            answer["computed"] = bool((result == values + values).all())

    return work


def doubling_model() -> bytes:
    """Return the ONNX model `y = x + x` for four floats, written by hand. Source: onnx.proto."""

    def field(number: int, content: bytes) -> bytes:
        return bytes([number << 3 | 2, len(content)]) + content

    def integer(number: int, value: int) -> bytes:
        return bytes([number << 3, value])

    def tensor(name: bytes) -> bytes:
        shape = field(2, field(1, integer(1, 4)))
        return field(1, name) + field(2, field(1, integer(1, 1) + shape))

    node = field(1, b"x") + field(1, b"x") + field(2, b"y") + field(4, b"Add")
    graph = field(1, node) + field(2, b"g") + field(11, tensor(b"x")) + field(12, tensor(b"y"))
    return integer(1, 8) + field(7, graph) + field(8, integer(2, 13))


TESTS = {
    "pytorch": try_pytorch,
    "tensorflow": try_tensorflow,
    "jax": try_jax,
    "cupy": try_cupy,
    "numba": try_numba,
    "onnxruntime": try_onnxruntime,
}


class Log:
    """The framework's standard error, kept in memory."""

    def __init__(self) -> None:
        self._descriptor = os.memfd_create("log")
        os.dup2(self._descriptor, 2)

    def telling(self) -> list[str]:
        """Return the lines about GPUs, each once."""
        size = os.lseek(self._descriptor, 0, os.SEEK_END)
        os.lseek(self._descriptor, max(0, size - (1 << 16)), os.SEEK_SET)
        text = os.read(self._descriptor, 1 << 16).decode("utf-8", "replace")
        lines = [" ".join(line.split()) for line in plain(text).splitlines()]
        chosen = [line for line in lines if any(word in line.lower() for word in TELLING)]
        return list(dict.fromkeys(chosen))


#: The parts of cuDNN 9 that it opens by name when a program first needs them; the kind without the
#: second line compiles all of its kernels itself. Source: NVIDIA, "cuDNN API overview".
CUDNN_PARTS = ("graph", "heuristic", "engines_runtime_compiled")
CUDNN_KERNELS = ("ops", "cnn", "adv", "engines_precompiled")


def find_cudnn_fault() -> str | None:
    """Return which part of the cuDNN that is loaded cannot be opened, None if all can.

    A small product needs none of them: without this, a deleted part would not be noticed.
    """
    import ctypes

    with open("/proc/self/maps", encoding="utf-8", errors="replace") as file:  # noqa: PTH123
        match = re.search(r"(/.*/)libcudnn\.so\.9[.\d]*$", file.read(), re.MULTILINE)
    if match is None:
        return None
    paths = {part: f"{match[1]}libcudnn_{part}.so.9" for part in (*CUDNN_PARTS, *CUDNN_KERNELS)}
    compiles_all = not any(os.path.exists(paths[part]) for part in CUDNN_KERNELS)  # noqa: PTH110
    for part in CUDNN_PARTS if compiles_all else paths:
        try:
            ctypes.CDLL(paths[part])
        except OSError as error:
            return f"cuDNN cannot open a part of itself: {error}"
    return None


def plain(text: str) -> str:
    """Return text without terminal colour codes. Source: ECMA-48, 5.4."""
    return re.sub(r"\x1b\[[0-?]*[ -/]*[@-~]", "", text)


def together(error: str, lines: list[str]) -> str:
    """Return an error and as many of the log's last lines as fit, uncut."""
    kept: list[str] = []
    left = MOST_CHARACTERS - len(error)
    for line in reversed(lines):
        left -= len(SEPARATOR) + len(line)
        if left < 0:
            break
        kept.insert(0, line)
    # A single line that is too long is cut at its end.
    telling = kept or ([] if error else lines[-1:])
    return SEPARATOR.join([*[error] * bool(error), *telling])[:MOST_CHARACTERS]


def explain(error: BaseException) -> str:
    """Return an exception as one line."""
    lines = (type(error).__name__ + (": " + str(error) if str(error) else "")).splitlines()
    return plain(" ".join(line.strip() for line in lines if line.strip()))[:MOST_CHARACTERS]


def main() -> None:
    """Import, report it, wait for a line, compute, and write the result."""
    own = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120
    sys.path[:] = [entry for entry in sys.path if entry not in ("", own)]
    os.chdir("/")
    os.environ.update(QUIET)
    out = os.fdopen(os.dup(1), "w", encoding="ascii")
    log = Log()
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)

    def write_answer(document: dict[str, Any]) -> None:
        out.write(json.dumps(document) + "\n")
        out.flush()

    name = sys.argv[1]
    answer: dict[str, Any] = {"name": name, "sees_gpu": False}
    started = time.perf_counter()
    try:
        work = TESTS[name]()
    except BaseException as error:
        write_answer({**answer, "error": explain(error)})
        return
    answer["import_s"] = time.perf_counter() - started
    write_answer({"imported": True})
    sys.stdin.readline()
    try:
        work(answer)
        fault = find_cudnn_fault() if name in ("pytorch", "tensorflow", "jax") else None
        if fault is not None:
            answer["computed"], answer["error"] = False, fault
    except BaseException as error:
        answer["error"] = explain(error)
    if not answer.get("computed"):
        raised = " ".join(plain(answer.get("error") or "").split())
        answer["error"] = together(raised, log.telling()) or None
    write_answer(answer)


if __name__ == "__main__":
    main()
