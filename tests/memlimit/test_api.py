"""`gpucheck.limit_memory` in a separate program, with stand-ins for the frameworks."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import scrubbed_environment
from tests.fakes.libraries import build_libraries
from tests.fakes.machine import load_machine

ROOT = Path(__file__).parents[2]
STAND_INS = ROOT / "tests" / "data" / "frameworks"
LIMIT = 4831838208
#: The pretended driver keeps no contexts: the stand-in for CuPy is on the first GPU.
ON_GPU_0 = "import gpucheck.memlimit.api as api; api.active_devices = lambda: [0]\n"


@pytest.fixture
def run(c_compiler: str, tmp_path: Path) -> Any:
    """Run a program on a T4; return its stdout and what the stand-ins noted."""
    libraries = build_libraries(load_machine("t4"), tmp_path / "driver")
    log = tmp_path / "events.jsonl"

    def program(text: str, **env: str) -> tuple[str, list[list[Any]]]:
        done = subprocess.run(
            [sys.executable, "-c", "import gpucheck, os, sys\n" + text],
            env=scrubbed_environment(
                {
                    **libraries,
                    "PYTHONPATH": f"{STAND_INS}:{ROOT}",
                    "PYTHONDONTWRITEBYTECODE": "1",
                    "STUB_LOG": str(log),
                    "STUB_TOTAL_BYTES": "16106127360",
                    **env,
                }
            ),
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        lines = log.read_text().splitlines() if log.exists() else []
        return done.stdout, [json.loads(line)[1:] for line in lines]

    return program


def test_what_is_imported_later_is_capped(run: Any) -> None:
    text = """
gpucheck.limit_memory("30%")
import cupy, torch, tensorflow as tf
cupy.empty(1); torch.empty(1, device="cuda"); tf.zeros([1])
"""
    _, events = run(text)

    assert ["cupy", "pool", 0, LIMIT] in events
    assert ["torch", "cuda-init"] in events  # its variable is read at this moment
    assert ["tensorflow", "set_logical", "/physical_device:GPU:0", [LIMIT >> 20]] in events


def test_what_is_imported_already_is_capped_and_cuda_not_started(run: Any) -> None:
    text = """
import torch
gpucheck.limit_memory("30%")
print(torch.cuda.is_initialized())
torch.empty(1, device="cuda")
"""
    stdout, events = run(text)

    assert stdout == "False\n"
    fractions = [event[2] for event in events if event[1].startswith("set_per")]
    assert fractions == [pytest.approx(0.3)]


def test_what_has_started_already_is_capped_at_once(run: Any) -> None:
    text = """
import torch
torch.empty(1, device="cuda")
gpucheck.limit_memory("30%")
"""
    _, events = run(text)

    assert [event[1] for event in events][-2:] == [
        "set_per_process_memory_fraction",
        "set_device",
    ]


@pytest.mark.parametrize("imported", ["before", "after"])
def test_jax_is_capped_though_the_program_says_otherwise(run: Any, imported: str) -> None:
    lines = ["import jax", 'gpucheck.limit_memory("30%")']
    widened = 'os.environ["XLA_PYTHON_CLIENT_MEM_FRACTION"] = "0.9"'
    order = lines if imported == "before" else reversed(lines)

    _, events = run("\n".join((*order, widened, "jax.devices()")))

    assert events == [["jax", "options", None, "0.3"]]


def test_as_a_context_manager_the_limit_of_cupy_ends(run: Any) -> None:
    text = f"""
{ON_GPU_0}
import cupy
cupy.empty(1)
pool = cupy.get_default_memory_pool()
pool.set_limit(size=10 << 30)
with gpucheck.limit_memory("30%") as limit:
    print(pool.get_limit(), limit.plan.gpus[0].limit_bytes, os.environ["CUPY_GPU_MEMORY_LIMIT"])
print(pool.get_limit(), os.environ.get("CUPY_GPU_MEMORY_LIMIT"))
print([type(finder).__name__ for finder in sys.meta_path].count("Finder"))
"""
    stdout, _ = run(text)

    assert stdout == f"{LIMIT} {LIMIT} 30%\n{10 << 30} None\n0\n"


def test_a_limit_ends_without_the_one_around_it_or_inside_it(run: Any) -> None:
    text = f"""
{ON_GPU_0}
import cupy
cupy.empty(1)
def show():
    pool = cupy.get_default_memory_pool().get_limit() >> 20
    finders = [type(finder).__name__ for finder in sys.meta_path].count("Finder")
    print(pool, os.environ.get("CUPY_GPU_MEMORY_LIMIT"), finders)
with gpucheck.limit_memory("30%"):
    with gpucheck.limit_memory("20%"):
        show()
    show()
show()
first, second = gpucheck.limit_memory("30%"), gpucheck.limit_memory("20%")
first.release()
show()
first.release()
second.release()
show()
"""
    stdout, _ = run(text)

    inner, outer, none = "3072 20% 1", f"{LIMIT >> 20} 30% 1", "0 None 0"
    assert stdout.splitlines() == [inner, outer, none, inner, none]


def test_a_framework_gets_the_limit_around_it_again(run: Any) -> None:
    text = """
with gpucheck.limit_memory("30%"):
    with gpucheck.limit_memory("20%"):
        pass
    import tensorflow as tf
    tf.zeros([1])
"""
    _, events = run(text)

    assert ["tensorflow", "set_logical", "/physical_device:GPU:0", [LIMIT >> 20]] in events


def test_a_pool_that_is_first_used_inside_has_no_limit_after(run: Any) -> None:
    text = f"""
import cupy
with gpucheck.limit_memory("30%"):
    cupy.empty(1)
    {ON_GPU_0}
print(cupy.get_default_memory_pool().get_limit())
"""
    stdout, _ = run(text)

    assert stdout == "0\n"


def test_a_tighter_limit_of_the_program_is_kept(run: Any) -> None:
    text = f"""
{ON_GPU_0}
import cupy
pool = cupy.get_default_memory_pool()
pool.set_limit(size=5)
gpucheck.limit_memory("30%")
print(pool.get_limit())
"""
    assert run(text)[0] == "5\n"


def test_variables_that_were_there_come_back(run: Any) -> None:
    text = """
with gpucheck.limit_memory("30%"):
    print(os.environ["CUPY_GPU_MEMORY_LIMIT"])
    os.environ["XLA_CLIENT_MEM_FRACTION"] = "0.1"
print(os.environ["CUPY_GPU_MEMORY_LIMIT"], os.environ["XLA_CLIENT_MEM_FRACTION"])
"""
    assert run(text, CUPY_GPU_MEMORY_LIMIT="90%")[0] == "30%\n90% 0.1\n"


def test_a_wrong_amount_is_an_exception(run: Any) -> None:
    text = """
from gpucheck.report.errors import WrongUseError
for amount in ("1", 0.0):
    try:
        gpucheck.limit_memory(amount)
    except WrongUseError as error:
        print(error.code, error)
"""
    one, none = run(text)[0].splitlines()
    assert "1 what?" in one
    assert none.startswith("bad-amount limit_memory takes a text such as")


def test_it_needs_no_framework_and_loads_nothing_heavy(run: Any) -> None:
    text = """
gpucheck.limit_memory("8GiB", include_overhead=True)
print(sorted({"numpy", "cupy", "pynvml", "rich", "typer", "torch"} & set(sys.modules)))
"""
    assert run(text)[0] == "[]\n"
