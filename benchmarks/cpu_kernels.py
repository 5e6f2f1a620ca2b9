"""Comparison of the processor's kernels with PyTorch's, TensorFlow's, JAX' and SciPy's.

    python -m benchmarks.cpu_kernels --python PATH [--starts 9] [--output docs/measurements/cpu.md]

Each library runs in a process of its own (`--python` names a Python that has them and NumPy;
gpucheck needs none of them), with one thread and with one for each core. The processes take turns:
a round times every form of every library once, so that a slow moment falls on all of them. They are
started anew after a few rounds, because the pages that a process was given make it up to 5 % faster
or slower for its whole life. Each library's best form counts, preallocated ones included. The lead
is the median over the starts of one start's ratio, with the interval that holds the true median in
95 of 100 such runs.
Results are compared with float64 before anything is timed.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
TEMPERATURE = 0.6
LIBRARIES = ("gpucheck", "torch", "tensorflow", "jax", "scipy")
#: Edge of the square problem, by kernel.
SIZES = (("softmax", 1024), ("softmax", 4096), ("matmul", 2048), ("matmul float64", 2048))
#: What gpucheck should reach of the best other library, by kernel, edge and whether it has one
#: thread of several.
BARS = {
    ("softmax", 1024, False): 1.0, ("softmax", 1024, True): 1.0,
    ("softmax", 4096, False): 1.5, ("softmax", 4096, True): 1.4,
    ("matmul", 2048, False): 0.97, ("matmul", 2048, True): 0.97,
    ("matmul float64", 2048, False): 0.97, ("matmul float64", 2048, True): 0.97,
}  # fmt: skip
#: Threads spin for a while after their work, on cores that the next process uses.
PAUSE_S = 0.3
#: Rounds of one start, after a first one that does not count.
ROUNDS = 2
SPAN_S = 0.15

Forms = Mapping[str, Callable[[], Any]]
Matrix = Any
#: Median seconds of each start by kernel, edge, library and form.
Samples = Mapping[tuple[str, int, str, str], Sequence[float]]


def gpucheck_forms(kernel: str, left: Matrix, right: Matrix, threads: int) -> Forms:
    """Return gpucheck's cases of a kernel; they draw their own numbers."""
    from gpucheck.bench.case import CaseOrder, CpuCase
    from gpucheck.bench.kernels import KERNELS
    from gpucheck.bench.numerics import HostData
    from gpucheck.bench.request_model import BenchRequest
    from gpucheck.drivers.host.blas import Blas
    from gpucheck.drivers.host.clock import monotonic_s
    from gpucheck.drivers.host.cpu import LinuxCpu

    kernel = kernel.partition(" ")[0]
    made = KERNELS[kernel]
    order = CaseOrder(
        request=BenchRequest(temperature=TEMPERATURE),
        shape=made.shape(len(left)),
        dtype=str(left.dtype),
        data=HostData(0),
        cpu=LinuxCpu().facts(),
        clock=monotonic_s,
        blas=Blas(),
    )
    forms: dict[str, Callable[[], Any]] = {}
    for name in (kernel, "copy") if kernel == "softmax" else (kernel,):
        for case in KERNELS[name].cpu_cases(order):
            assert isinstance(case, CpuCase)
            if case.label.threads == threads and "naive" not in case.label.variant:
                case.prepare()
                case.run(1)
                assert case.check().ok, case.label.text
                label = f"{name} {case.label.variant.removesuffix('-1-thread')}"
                forms[label] = case.step
    return forms


def torch_forms(kernel: str, left: Matrix, right: Matrix, threads: int) -> Forms:
    """Return PyTorch's forms."""
    import torch

    torch.set_num_threads(threads)
    torch.set_grad_enabled(False)
    x, y = torch.from_numpy(left), torch.from_numpy(right)
    scaled, out = torch.empty_like(x), torch.empty_like(x)
    if kernel != "softmax":
        return {"mm(x, y, out=out)": lambda: torch.mm(x, y, out=out)}
    return {
        "softmax(x / T, -1)": lambda: torch.softmax(x / TEMPERATURE, -1),
        "softmax(div(x, T, out=t), -1, out=out)": lambda: torch.softmax(
            torch.div(x, TEMPERATURE, out=scaled), -1, out=out
        ),
        "softmax(mul(x, 1 / T, out=t), -1, out=out)": lambda: torch.softmax(
            torch.mul(x, 1 / TEMPERATURE, out=scaled), -1, out=out
        ),
    }


def tensorflow_forms(kernel: str, left: Matrix, right: Matrix, threads: int) -> Forms:
    """Return TensorFlow's forms: eager, as a graph, compiled by XLA."""
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(threads)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    x, y = tf.constant(left), tf.constant(right)

    def work() -> Any:
        return tf.nn.softmax(x / TEMPERATURE) if kernel == "softmax" else tf.matmul(x, y)

    return {
        "eager": work,
        "tf.function": tf.function(work),
        "tf.function, XLA": tf.function(work, jit_compile=True),
    }


def jax_forms(kernel: str, left: Matrix, right: Matrix, threads: int) -> Forms:
    """Return JAX' form; its CPU client uses as many threads as the process has CPUs."""
    import jax
    import jax.numpy as jnp

    x, y = jnp.asarray(left), jnp.asarray(right)
    if kernel != "softmax":
        product = jax.jit(jnp.matmul)
        return {"jit(matmul)": lambda: product(x, y).block_until_ready()}
    softmax = jax.jit(lambda numbers: jax.nn.softmax(numbers / TEMPERATURE, axis=-1))
    return {"jit(softmax(x / T))": lambda: softmax(x).block_until_ready()}


def scipy_forms(kernel: str, left: Matrix, right: Matrix, threads: int) -> Forms:
    """Return SciPy's forms."""
    import scipy.linalg
    import scipy.special

    if kernel != "softmax":
        x, y = np.asfortranarray(left), np.asfortranarray(right)
        out = np.empty_like(x)
        name = "sgemm" if left.dtype == np.float32 else "dgemm"
        product = getattr(scipy.linalg.blas, name)
        return {f"{name}(1, x, y, c=out)": lambda: product(1.0, x, y, c=out, overwrite_c=1)}
    divisor = np.float32(TEMPERATURE)
    return {"softmax(x / T)": lambda: scipy.special.softmax(left / divisor, axis=1)}


FORMS: Mapping[str, Callable[[str, Matrix, Matrix, int], Forms]] = {
    "gpucheck": gpucheck_forms,
    "torch": torch_forms,
    "tensorflow": tensorflow_forms,
    "jax": jax_forms,
    "scipy": scipy_forms,
}


def verify(kernel: str, left: Matrix, right: Matrix, forms: Forms) -> None:
    """Compare each form's first rows with float64; gpucheck's cases have checked themselves."""
    rows = left[:16].astype(np.float64)
    if kernel != "softmax":
        expected, bound = rows @ right.astype(np.float64), 2e-3
    else:
        raised = np.exp(rows / TEMPERATURE)
        expected, bound = raised / raised.sum(axis=1, keepdims=True), 1e-6
    for name, form in forms.items():
        found = form()
        if found is not None:
            np.testing.assert_allclose(np.asarray(found)[:16], expected, atol=bound, err_msg=name)


def child(library: str, threads: int) -> None:
    """Answer each line on stdin, [kernel, edge], with the seconds of each form."""
    made: dict[tuple[str, int], Forms] = {}
    numbers = np.random.default_rng(0)
    for line in sys.stdin:
        kernel, edge = json.loads(line)
        if (kernel, edge) not in made:
            made.clear()  # the memory of one problem at a time
            dtype = np.float64 if kernel.endswith("float64") else np.float32
            left, right = (numbers.standard_normal((edge, edge), dtype) for _ in range(2))
            forms = FORMS[library](kernel, left, right, threads)
            verify(kernel, left, right, forms)
            made[kernel, edge] = forms
        found = {name: seconds(form) for name, form in made[kernel, edge].items()}
        print(json.dumps(found), flush=True)


def seconds(work: Callable[[], object]) -> float:
    """Return the seconds of one call, averaged over a span; an uncounted call comes first."""
    work()
    start_s = time.perf_counter()
    count = 0
    while (now_s := time.perf_counter()) - start_s < SPAN_S or not count:
        work()
        count += 1
    return (now_s - start_s) / count


def start(library: str, threads: int, python: str) -> subprocess.Popen[str]:
    """Start a library's process on as many CPUs as it has threads."""
    cpus = sorted(os.sched_getaffinity(0))[:threads]
    counts = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
    quiet = {
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "JAX_PLATFORMS": "cpu",
        "CUDA_VISIBLE_DEVICES": "-1",
        "JAX_ENABLE_X64": "true",
    }
    chosen = sys.executable if library == "gpucheck" else python
    return subprocess.Popen(
        [chosen, "-m", "benchmarks.cpu_kernels",
         "--child", library, "--threads", str(threads)],
        cwd=ROOT, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL, env=os.environ | quiet | dict.fromkeys(counts, str(threads)),
        preexec_fn=lambda: os.sched_setaffinity(0, cpus),
    )  # fmt: skip


def measure(sizes: Sequence[tuple[str, int]], threads: int, starts: int, python: str) -> Samples:
    """Return the median seconds of each start by kernel, edge, library and form."""
    samples: dict[tuple[str, int, str, str], list[float]] = {}
    for _ in range(starts):
        processes = {name: start(name, threads, python) for name in LIBRARIES}
        for kernel, edge in sizes:
            rounds = [one_round(processes, kernel, edge) for _ in range(1 + ROUNDS)]
            for key in rounds[0]:  # the first prepares, compiles and warms up
                taken_s = statistics.median(found[key] for found in rounds[1:])
                samples.setdefault((kernel, edge, *key), []).append(taken_s)
        for process in processes.values():
            process.communicate()
    return samples


def one_round(
    processes: Mapping[str, subprocess.Popen[str]], kernel: str, edge: int
) -> dict[tuple[str, str], float]:
    """Return the seconds by library and form; the libraries take turns in a random order."""
    found: dict[tuple[str, str], float] = {}
    for library in random.sample(list(processes), len(processes)):
        process = processes[library]
        assert process.stdin is not None
        assert process.stdout is not None
        time.sleep(PAUSE_S)
        process.stdin.write(json.dumps([kernel, edge]) + "\n")
        process.stdin.flush()
        answer = process.stdout.readline()
        if not answer:
            sys.exit(f"{library} ended (code {process.wait()}): run it alone with --child")
        found |= {(library, form): taken_s for form, taken_s in json.loads(answer).items()}
    return found


def lead(others_s: Sequence[float], own_s: Sequence[float]) -> tuple[float, float, float]:
    """Return the median of the starts' ratios and the 95 % interval of that median.

    The interval is the sign test's: order statistics by the binomial distribution (1/2), which
    needs no assumption on how the ratios scatter.
    """
    ratios = sorted(other / own for other, own in zip(others_s, own_s, strict=True))
    count, below, rank = len(ratios), 0.0, 0
    while rank < count // 2 and (below := below + math.comb(count, rank) / 2**count) <= 0.025:
        rank += 1
    edge = max(0, rank - 1)
    return statistics.median(ratios), ratios[edge], ratios[count - 1 - edge]


def table(threads: int, samples: Samples) -> list[str]:
    """Return the rows of one number of threads, with gpucheck's lead over the best other."""
    found = {key: statistics.median(values) for key, values in samples.items()}
    alone = threads == 1 < len(os.sched_getaffinity(0))
    lines = []
    for kernel, edge in dict.fromkeys(key[:2] for key in found):
        mine = {key: s for key, s in found.items() if key[:2] == (kernel, edge)}
        copies = [s for key, s in mine.items() if key[3].startswith("copy")]
        timed = {key: s for key, s in mine.items() if not key[3].startswith("copy")}
        ranking = sorted(timed, key=timed.__getitem__)
        own = next(key for key in ranking if key[2] == "gpucheck")
        best = next(key for key in ranking if key[2] != "gpucheck")
        for key in ranking:
            (_, _, library, form), taken_s = key, timed[key]
            share = f"{min(copies) / taken_s:.0%}" if copies else ""
            cells = [kernel, edge, threads, library, f"`{form}`", f"{1e3 * taken_s:.2f}", share]
            lines.append("| " + " | ".join(str(cell) for cell in cells) + " |")
        if copies:
            lines.append(f"| copy | {edge} | {threads} | gpucheck | | {1e3 * min(copies):.2f} | |")
        bar = BARS[kernel, edge, alone]
        ratio, low, high = lead(samples[best], samples[own])
        verdict = "reached" if ratio >= bar else "missed"
        lines.append(
            f"| **{kernel}** | **{edge}** | **{threads}** | **gpucheck / best other** | "
            f"**{ratio:.3f}**, {low:.3f} to {high:.3f} (bar {bar:g}: {verdict}) | | |"
        )
    return lines


def versions(python: str) -> str:
    """Return the versions of all libraries."""
    names = ("numpy", "scipy", "torch", "tensorflow_cpu", "tensorflow", "jax", "numba")
    code = (
        "import importlib.metadata as m\n"
        f"for n in {names!r}:\n"
        "  try: print(n.replace('_', '-'), m.version(n))\n"
        "  except m.PackageNotFoundError: pass"
    )
    lines = []
    for who, program in (("gpucheck", sys.executable), ("the others", python)):
        done = subprocess.run([program, "-c", code], capture_output=True, text=True, check=True)
        lines.append(f"{who}: {', '.join(done.stdout.splitlines())}")
    return "; ".join(lines)


def main() -> None:
    """Print the tables, or write them with the machine and the versions."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--starts", type=int, default=9)
    parser.add_argument(
        "--python", default=sys.executable, help="a Python with the other libraries"
    )
    parser.add_argument("--output", type=Path)
    parser.add_argument("--kernel", nargs="+", choices=[name for name, _ in SIZES])
    parser.add_argument("--child", choices=LIBRARIES, help=argparse.SUPPRESS)
    parser.add_argument("--threads", type=int, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.child:
        child(chosen.child, chosen.threads)
        return
    from gpucheck.drivers.host.cpu import LinuxCpu

    count = len(os.sched_getaffinity(0))
    sizes = [size for size in SIZES if not chosen.kernel or size[0] in chosen.kernel]
    rows: list[str] = []
    for threads in dict.fromkeys((1, count)):
        rows += table(threads, measure(sizes, threads, chosen.starts, chosen.python))
    text = "\n".join(page(rows, chosen, f"{LinuxCpu().facts().model}, {count} CPUs"))
    if chosen.output:
        chosen.output.write_text(text + "\n", encoding="utf-8")
    print(text)


def page(rows: Sequence[str], chosen: argparse.Namespace, machine: str) -> list[str]:
    """Return the lines of the document."""
    return [
        "# The processor's kernels beside other libraries'",
        "",
        f"Written by `python -m benchmarks.cpu_kernels` on {date.today()}: {machine}; "
        f"{versions(chosen.python)}. float32 (or as it says), temperature {TEMPERATURE}; "
        f"medians of {chosen.starts} starts of {ROUNDS} rounds in which the libraries took turns, "
        "each in a process of its own. The share is that of gpucheck's own copy of the same bytes. "
        "The lead is the median of the starts' ratios, with its 95 % interval.",
        "",
        "| kernel | edge | threads | library | form | ms | of the copy |",
        "|--|--:|--:|--|--|--:|--:|",
        *rows,
    ]


if __name__ == "__main__":
    main()
