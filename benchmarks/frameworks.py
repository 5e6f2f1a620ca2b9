"""Frameworks' rows beside gpucheck's own on this processor, held against a plain timing.

    python -m benchmarks.frameworks --framework NAME[=PYTHON] ... [--budget 130] [--takes 1]

It runs `gpucheck bench --framework`, and before and after it each framework by itself in
`plain_timing.py`, which shares no code with gpucheck: a plain time should lie within the row's
`repeat95_s`, where 19 of 20 further runs are expected. The document goes to frameworks.json in the
folder of --output, the table to frameworks.md; `python -m tests.pictures` draws the picture.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from gpucheck.bench.ci.processes import read_document
from gpucheck.bench.environment import blas_text
from gpucheck.bench.framework_conclusions import compile_seconds
from gpucheck.bench.model import BenchResult, FrameworkFacts, Measurement
from gpucheck.report.text import duration, framework_title, rate

ROOT = Path(__file__).resolve().parents[1]
KERNELS = ("matmul", "softmax", "train")
#: The form that plain_timing.py times in each framework, and its kernels.
PLAIN_FORMS = {
    "pytorch": "eager", "tensorflow": "tf.function", "jax": "jax.jit", "numpy": "eager",
}  # fmt: skip
PLAIN_KERNELS = ("matmul", "softmax")
#: Edges of the kernels' square problems in the default mode, which plain_timing.py is given.
EDGES = (2048, 4096)
#: Threads spin for a while after their work, on cores that the next process uses.
PAUSE_S = 0.5

Plain = dict[tuple[str, str], list[float]]


def plain_times(frameworks: Mapping[str, str], threads: int, into: Plain) -> None:
    """Time each framework by itself, once, in its own interpreter."""
    counts = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
    variables = os.environ | dict.fromkeys(counts, str(threads))
    script = str(ROOT / "benchmarks" / "plain_timing.py")
    for name, python in frameworks.items():
        time.sleep(PAUSE_S)
        words = [python, script, name, str(threads), *map(str, EDGES)]
        done = subprocess.run(
            words, capture_output=True, text=True, env=variables, timeout=120, check=False
        )
        if done.returncode:
            print(f"plain_timing.py {name}: {done.stderr.strip()[-500:]}", file=sys.stderr)
            continue
        for kernel, seconds in json.loads(done.stdout.splitlines()[-1]).items():
            into.setdefault((name, kernel), []).append(seconds)


def words_of(chosen: argparse.Namespace) -> list[str]:
    """Return the words of the command that is measured, without the paths of interpreters."""
    named = [word for one in chosen.framework for word in ("--framework", one.partition("=")[0])]
    fixed = ["--device", "cpu", "--dtype", "float32"]
    return ["bench", *KERNELS, *fixed, *named, "--budget", f"{chosen.budget:g}"]


def run_bench(chosen: argparse.Namespace) -> dict[str, Any]:
    """Return the document of the run."""
    words = words_of(chosen)
    given = iter(chosen.framework)
    words = [next(given) if words[at - 1] == "--framework" else word
             for at, word in enumerate(words)]  # fmt: skip
    command = [sys.executable, "-m", "gpucheck", *words, "--samples", "summary", "--json"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, cwd=ROOT, check=False)
    if done.returncode not in (0, 1):
        sys.exit(f"gpucheck ended with code {done.returncode}: {done.stdout[:2000]}")
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def without_places(document: dict[str, Any]) -> dict[str, Any]:
    """Return the document without the host's name and the paths of interpreters."""
    document["host"]["name"] = None
    result = document["result"]
    used = [row["framework"] for row in result["measurements"]]
    for one in result["comparisons"]:
        used += [one[side]["framework"] for side in ("cpu", "gpu")]
    for one in [*filter(None, used), *result["environment"]["frameworks"]]:
        one["python"] = f"{one['name']}/bin/python"
    return document


# ------------------------------------------------------------------------------- the page


def page(result: BenchResult, command: str, plain: Plain, time_utc: str) -> Iterator[str]:
    """Yield the lines of the document."""
    found = result.environment
    load = f"{found.other_load_percent or 0:.0f} % taken by other programs"
    yield "# Frameworks beside gpucheck's own kernels, on a processor"
    yield ""
    yield (
        f"Written by `python -m benchmarks.frameworks` on {time_utc[:10]}: {found.cpu_model}, "
        f"{found.usable_cores} CPUs, {load}; NumPy {found.numpy_version} with {blas_text(found)}, "
        f"{found.blas_threads} threads. The command, in which each framework had its interpreter:"
    )
    yield ""
    yield f"    {command}"
    yield ""
    yield "![gpucheck bench --framework on a processor](../pictures/frameworks.svg)"
    yield ""
    yield "| framework | version | build | BLAS | libraries | threads, intra/inter | arithmetic |"
    yield "|--|--|--|--|--|--|--|"
    for one in found.frameworks:
        yield line(facts_cells(one))
    yield ""
    yield (
        "Each row's time is its fastest sample, of rounds in which all rows took turns; ± is where "
        "19 of 20 further runs are expected. The share is of the best copy, or product, of this "
        "run with as many threads. Compiling is outside of the samples."
    )
    yield ""
    yield "| kernel | size | threads | who | time | ± | speed | of limit | compiling | doubts |"
    yield "|--|--|--:|--|--:|--:|--:|--:|--:|--|"
    for row in sorted(result.measurements, key=place):
        yield line(row_cells(row))
    said = [one.sentence for one in result.conclusions]
    if said:
        yield ""
        yield "What the run says of itself:"
        yield ""
        for sentence in said:
            yield f"- {sentence}"
    yield from held(result, plain)


def place(row: Measurement) -> tuple[int, int, float]:
    """Return a row's place in the table: by kernel, threads and time."""
    return KERNELS.index(row.kernel), row.threads or 0, row.time_s or float("inf")


def line(cells: Sequence[object]) -> str:
    """Return a row of a table."""
    return f"| {' | '.join(str(cell).replace('|', '/') for cell in cells)} |"


def facts_cells(one: FrameworkFacts) -> list[str]:
    """Return what a framework says of itself."""
    if one.failure is not None:
        return [framework_title(one.name), "", one.failure.message, "", "", "", ""]
    libraries = ", ".join(f"{name} {version}" for name, version in one.libraries.items())
    math = ", ".join(f"{name} {value}" for name, value in one.math_settings.items())
    threads = f"{one.threads_intra or 'unknown'}/{one.threads_inter or 'unknown'}"
    return [
        *(framework_title(one.name), one.version or "unknown", one.build or "unknown"),
        *(one.blas or "unknown", libraries, threads, math),
    ]


def row_cells(row: Measurement) -> list[str]:
    """Return a measured row, or why there is none."""
    own = row.variant.removesuffix("-1-thread")
    who = f"gpucheck {own}" if row.framework is None else row.framework.text
    size = "x".join(map(str, row.shape))
    head = [row.kernel, size, str(row.threads or ""), who]
    if row.time_s is None or row.throughput is None:
        why = row.error.message if row.error is not None else "not measured"
        return [*head, "", "", "", "", "", why]
    spread = ""
    if row.repeat95_s is not None:
        percent = 50 * (row.repeat95_s[1] - row.repeat95_s[0]) / row.time_s
        spread = f"{percent:.1f} %" if percent < 99.5 else ">99 %"
    share = row.percent_of_copy if row.percent_of_copy is not None else row.percent_of_peak
    compiled = row.facts.get("compile_s", compile_seconds(row))
    return [
        *(*head, duration(row.time_s), spread),
        rate(row.throughput.value, row.throughput.unit),
        "" if share is None else f"{share:.0f} %",
        duration(float(compiled)) if compiled is not None else "",
        ", ".join(doubt.code for doubt in row.doubts),
    ]


def held(result: BenchResult, plain: Plain) -> Iterator[str]:
    """Yield the comparison with the plain timing."""
    pairs = list(_pairs(result, plain))
    if not pairs:
        return
    inside = sum(row.repeat95_s is not None and row.repeat95_s[0] <= taken <= row.repeat95_s[1]
                 for row, taken, _ in pairs)  # fmt: skip
    yield ""
    yield "## Held against a plain timing"
    yield ""
    yield (
        "`benchmarks/plain_timing.py` times the same operations with a few lines in each "
        "framework, and shares no code with gpucheck. It ran before and after; its figure is the "
        f"median of the fastest of each run. {inside} of {len(pairs)} lie within the interval for "
        "a further run."
    )
    yield ""
    yield "| kernel | form | bench | expected of a further run | plain | its runs | plain / bench |"
    yield "|--|--|--:|--|--:|--|--:|"
    for row, taken, runs in pairs:
        assert row.framework is not None
        assert row.time_s is not None
        low, high = row.repeat95_s or (None, None)
        span = f"{duration(low)} to {duration(high)}" if low is not None and high else "no interval"
        each = ", ".join(duration(one) for one in runs)
        cells = [row.kernel, row.framework.text, duration(row.time_s), span]
        yield line([*cells, duration(taken), each, f"{taken / row.time_s:.2f}"])


def _pairs(result: BenchResult, plain: Plain) -> Iterator[tuple[Measurement, float, list[float]]]:
    """Yield each row that was timed plainly too, with the plain median and its runs."""
    threads = max((row.threads or 0 for row in result.measurements), default=0)
    for row in result.measurements:
        use = row.framework
        if use is None or row.threads != threads or row.time_s is None:
            continue
        edge = dict(zip(PLAIN_KERNELS, EDGES, strict=True)).get(row.kernel)
        runs = plain.get((use.name, row.kernel))
        if runs and row.shape[0] == edge and use.form == PLAIN_FORMS[use.name]:
            yield row, statistics.median(runs), runs


def main() -> None:
    """Measure, and write the document and the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--framework", action="append", required=True, metavar="NAME[=PYTHON]")
    parser.add_argument("--budget", type=float, default=130.0, help="seconds of gpucheck's run")
    parser.add_argument("--takes", type=int, default=1, help="plain runs before, and after")
    parser.add_argument("--output", type=Path, default=ROOT / "docs" / "measurements")
    chosen = parser.parse_args()
    given = dict(one.partition("=")[::2] for one in chosen.framework)
    pythons = {name: python or sys.executable for name, python in given.items()}
    threads, plain = len(os.sched_getaffinity(0)), Plain()
    for _ in range(chosen.takes):
        plain_times(pythons, threads, plain)
    document = without_places(run_bench(chosen))
    for _ in range(chosen.takes):
        plain_times(pythons, threads, plain)
    result, _, _ = read_document(document)
    if result is None:
        sys.exit(f"gpucheck measured nothing: {document['error']}")
    text = json.dumps(document, ensure_ascii=False) + "\n"
    (chosen.output / "frameworks.json").write_text(text, encoding="utf-8")
    command = shlex.join(["gpucheck", *words_of(chosen)])
    lines = [*page(result, command, plain, document["time"])]
    (chosen.output / "frameworks.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
