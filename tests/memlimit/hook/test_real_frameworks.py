"""Programs with the real frameworks run under the hook as if it were not there, without a GPU.

The frameworks are looked for in this Python and in those that GPUCHECK_FRAMEWORK_PYTHONS lists
(paths with colons between them); what none of them has is skipped.
"""

from __future__ import annotations

import os
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from gpucheck.drivers.python.frameworks import read_frameworks
from gpucheck.drivers.python.interpreters import Interpreter
from gpucheck.memlimit.environment import hook_folder
from tests.memlimit.hook.limited_python import GIB, Ran, payload, run_limited

PYTHONS = [
    sys.executable,
    *filter(None, os.environ.get("GPUCHECK_FRAMEWORK_PYTHONS", "").split(":")),
]

#: What a program does with each, and what it prints on a machine without a GPU.
PROGRAMS = {
    "torch": "import torch; print(torch.ones(3).sum().item(), torch.cuda.device_count() >= 0)",
    "tensorflow": "import tensorflow as tf; print(float(tf.reduce_sum(tf.ones([3]))))",
    "jax": "import jax.numpy as jnp; print(float(jnp.ones(3).sum()))",
    "cupy": "import cupy; print(cupy.__name__)",
    "onnxruntime": "import onnxruntime; print(type(onnxruntime.get_available_providers()))",
}
#: What shows that the import alone has not started CUDA.
NOT_STARTED = {
    "torch": "import torch; print(torch.cuda.is_initialized())",
    "tensorflow": (
        "import tensorflow as tf; from tensorflow.python.eager import context;"
        " print(context.context()._initialized or bool(context.context()._physical_devices))"
    ),
}
SPAWN = """
import multiprocessing

def work(queue):
    import {module}
    queue.put({module}.__name__)

if __name__ == "__main__":
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    worker = context.Process(target=work, args=(queue,))
    worker.start()
    print(queue.get())
    worker.join()
"""
QUIET = {"TF_CPP_MIN_LOG_LEVEL": "3", "JAX_PLATFORMS": "cpu"}


@cache
def python_with(module: str) -> str:
    for python in PYTHONS:
        found = read_frameworks(Interpreter(path=python), {"PATH": os.environ["PATH"]}).frameworks
        if found is not None and module in found:
            return python
    pytest.skip(f"no Python here has {module}: see GPUCHECK_FRAMEWORK_PYTHONS")


def run(module: str, program: str | list[str], tmp_path: Path, **options: Any) -> Ran:
    """Run a program in a Python that has the module; `options` are those of `run_limited`."""
    env = {**QUIET, "HOME": str(tmp_path), **options.pop("env", {})}
    python = python_with(module)
    return run_limited(program, tmp_path, python=python, stand_ins=None, env=env, **options)


@pytest.mark.slow
@pytest.mark.parametrize("module", PROGRAMS)
def test_a_program_runs_unchanged(module: str, tmp_path: Path) -> None:
    limited = run(module, PROGRAMS[module], tmp_path)
    free = run(module, PROGRAMS[module], tmp_path, hook=False)

    assert limited.code == 0, limited.stderr
    assert limited.stdout == free.stdout
    assert "gpucheck" not in limited.stderr


@pytest.mark.slow
@pytest.mark.parametrize("module", NOT_STARTED)
def test_importing_starts_no_cuda(module: str, tmp_path: Path) -> None:
    ran = run(module, NOT_STARTED[module], tmp_path)

    assert (ran.code, ran.stdout) == (0, "False\n"), ran.stderr


@pytest.mark.slow
def test_a_cpu_build_of_pytorch_fails_as_ever_when_cuda_is_asked_for(tmp_path: Path) -> None:
    program = """
import torch
if torch.version.cuda is None:
    try:
        torch.zeros(1, device="cuda")
    except AssertionError as error:
        print(error)
else:
    print("Torch not compiled with CUDA enabled")
"""
    ran = run("torch", program, tmp_path)

    assert ran.stdout == "Torch not compiled with CUDA enabled\n"
    assert "gpucheck" not in ran.stderr


@pytest.mark.slow
def test_tensorflow_lets_a_program_choose_its_devices(tmp_path: Path) -> None:
    program = """
import tensorflow as tf
for gpu in tf.config.list_physical_devices("GPU"):
    tf.config.experimental.set_memory_growth(gpu, True)
(cpu,) = tf.config.list_physical_devices("CPU")
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
print(len(tf.config.list_logical_devices("CPU")))
"""
    ran = run("tensorflow", program, tmp_path)

    assert (ran.code, ran.stdout) == (0, "2\n"), ran.stderr


@pytest.mark.slow
@pytest.mark.parametrize("module", PROGRAMS)
def test_a_spawned_worker_imports_it(module: str, tmp_path: Path) -> None:
    (tmp_path / "spawning.py").write_text(SPAWN.format(module=module))

    ran = run(module, ["spawning.py"], tmp_path)

    assert (ran.code, ran.stdout) == (0, f"{module}\n"), ran.stderr
    assert "gpucheck" not in ran.stderr


@pytest.mark.slow
@pytest.mark.parametrize("module", PROGRAMS)
def test_an_isolated_python_and_its_child_run_unchanged(module: str, tmp_path: Path) -> None:
    """The first Python reads no PYTHONPATH; the one that it starts does again."""
    program = f"""
import subprocess, sys
print([type(each).__name__ for each in sys.meta_path].count("Finder"))
done = subprocess.run([sys.executable, "-c", {PROGRAMS[module]!r}], capture_output=True, text=True)
print(done.stdout, "gpucheck" in done.stderr, done.returncode)
"""
    ran = run(module, program, tmp_path, options=["-I"])

    free = run(module, PROGRAMS[module], tmp_path, hook=False)
    assert ran.stdout == f"0\n{free.stdout} False 0\n"


@pytest.mark.slow
@pytest.mark.parametrize("module", PROGRAMS)
def test_without_site_it_is_missing_as_it_always_is(module: str, tmp_path: Path) -> None:
    limited = run(module, f"import {module}", tmp_path, options=["-S"])
    free = run(module, f"import {module}", tmp_path, options=["-S"], hook=False)

    assert (limited.code, limited.stdout) == (free.code, free.stdout)
    assert "gpucheck" not in limited.stderr


@pytest.mark.slow
def test_a_sitecustomize_that_imports_pytorch_itself_is_no_trouble(tmp_path: Path) -> None:
    folder = tmp_path / "users"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text("import torch; print('users', torch.ones(2).sum())\n")
    env = {"PYTHONPATH": f"{hook_folder()}:{folder}"}

    ran = run("torch", "import torch; print(torch.cuda.is_initialized())", tmp_path, env=env)

    assert (ran.code, ran.stdout) == (0, "users tensor(2.)\nFalse\n"), ran.stderr
    assert "gpucheck" not in ran.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("theirs", "after"),
    [
        ({}, 0.3),
        ({"XLA_PYTHON_CLIENT_MEM_FRACTION": "0.95"}, 0.3),
        ({"XLA_PYTHON_CLIENT_MEM_FRACTION": "0.2"}, 0.2),
        ({"XLA_CLIENT_MEM_FRACTION": "0.9"}, 0.3),
    ],
)
def test_jax_gives_its_gpus_a_fraction_within_the_limit(
    tmp_path: Path, theirs: dict[str, str], after: float
) -> None:
    program = f"""
import os
os.environ.update({theirs!r})
import jax
from jaxlib import xla_client
print(xla_client.generate_pjrt_gpu_plugin_options()["memory_fraction"])
"""
    limit = payload(GIB, jax={"variable": "XLA_CLIENT_MEM_FRACTION", "value": "0.3"})
    env = {"XLA_CLIENT_MEM_FRACTION": "0.3"}

    ran = run("jax", program, tmp_path, limit=limit, env=env)

    assert (ran.code, ran.stdout, ran.stderr) == (0, f"{after}\n", "")
