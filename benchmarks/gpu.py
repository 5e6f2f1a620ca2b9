"""Everything that gpucheck claims of a GPU, on the card at hand: one command, under eight minutes.

    python -m benchmarks.gpu [--out docs/measurements] [--seconds 440] [--only softmax,matmul]

Run from the checkout (or with PYTHONPATH=. there); it needs NumPy and CuPy, and takes PyTorch as
the rival where it is installed. Each part runs in a process of its own with a time of its own, and
writes every figure down at once: a part that fails, hangs or breaks the CUDA context costs its own
rest only. compute-sanitizer and the tests in tests/gpu run where they are installed. Writes
`<card>.json` and `<card>.md`, prints a short table last, and exits with 1 if a result was wrong.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.card.figures import Figure, Notebook, read_figures
from benchmarks.card.report import failures, is_short, summary, table, write

#: Seconds for each part, of which it may use fewer; in the order of the run.
BUDGETS = {
    "bandwidth": 40,
    "softmax": 160,
    "matmul": 70,
    "transfer": 25,
    "launch": 25,
    "towers": 20,
    "tests": 50,
    "variants": 60,
    "memcheck": 50,
    "racecheck": 40,
    "synccheck": 20,
    "initcheck": 20,
}
#: A part's process gets so much longer than the part before it is ended: it starts and cleans up.
GRACE_S = 30
_SANITIZERS = ("compute-sanitizer", "/usr/local/cuda/bin/compute-sanitizer")


def main() -> int:
    """Run all parts, or the one that a child is asked for, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("docs/measurements"))
    parser.add_argument("--seconds", type=float, default=440)
    parser.add_argument("--only", help="parts, by commas: " + ", ".join(BUDGETS))
    parser.add_argument("--share", type=float, default=1.0, help="shrink all sizes: for a trial")
    parser.add_argument("--part", help=argparse.SUPPRESS)
    parser.add_argument("--notes", type=Path, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.part:
        return run_part(chosen.part, chosen.notes, chosen.seconds, chosen.share)
    parts = chosen.only.split(",") if chosen.only else list(BUDGETS)
    unknown = [part for part in parts if part not in BUDGETS]
    if unknown:
        parser.error(f"there is no part {unknown[0]!r}: {', '.join(BUDGETS)}")
    return run_all(parts, chosen.out, chosen.seconds, chosen.share)


def run_part(part: str, notes: Path, seconds: float, share: float) -> int:
    """Run one part in this process; `facts` only tells what is there."""
    from benchmarks.card.rivals import torch_or_none
    from gpucheck.probes.cupy_device import open_gpus

    # The rival comes first: whose CUDA libraries are loaded first are the ones that both use.
    torch, said = (None, "") if part == "exercise" else torch_or_none()
    opened = open_gpus()
    if not opened.devices:
        print(opened.unavailable, file=sys.stderr)
        return 3
    if part == "facts":
        facts = opened.devices[0].facts
        told = {
            "card": facts.name,
            "GPUs": len(opened.devices),
            "compute capability": facts.compute_capability,
            "SMs": facts.sm_count,
            "L2 bytes": facts.l2_bytes,
            "memory bytes": facts.memory_total_bytes,
            "CuPy": opened.cupy_version,
            "cuBLAS": opened.cublas_version,
            "torch": said,
        }
        notes.write_text(json.dumps(told), encoding="utf-8")
        return 0
    from benchmarks.card.bench import Bench
    from benchmarks.card.parts import PARTS

    bench = Bench(
        gpus=tuple(opened.devices),
        torch=torch,
        notes=Notebook(notes, part, seconds),
        share=share,
    )
    PARTS[part](bench)
    return 0


def run_all(parts: Sequence[str], out: Path, seconds: float, share: float) -> int:
    """Run the parts one after the other and report what they wrote down."""
    end_s = time.monotonic() + seconds
    with tempfile.TemporaryDirectory() as folder:
        facts, problem = read_facts(Path(folder) / "facts.json", min(seconds, 120))
        if problem is not None:
            print(problem, file=sys.stderr)
            return 3
        facts |= {"seconds": round(seconds)}
        figures: list[Figure] = []
        remarks: list[str] = []
        paths = write(out, facts, figures, remarks)
        for part in parts:
            left_s = end_s - time.monotonic()
            if left_s < 5:
                remarks.append(f"{part}: not begun, the time was over")
                continue
            print(f"{part} ...", file=sys.stderr, flush=True)
            began_s = time.monotonic()
            found, remark = one_part(part, Path(folder), min(BUDGETS[part], left_s), share)
            figures += found
            remarks += [f"{part}: {remark}"] if remark else []
            print(f"{part}: {time.monotonic() - began_s:.0f} s", file=sys.stderr, flush=True)
            # After every part: what is there now is not lost if the next one takes all down.
            paths = write(out, facts, figures, remarks)
    print("\n".join(f"{name}: {value}" for name, value in facts.items()))
    print(f"all figures: {paths[0]} and {paths[1]}")
    print("\n".join([*remarks, *failures(figures)[:5]]))
    print(table([figure for figure in figures if is_short(figure)]))
    print(summary(figures))
    return int(any(figure.verdict == "wrong" for figure in figures))


def read_facts(notes: Path, seconds: float) -> tuple[dict[str, object], str | None]:
    """Return the card, its driver and the versions, or why there is nothing to measure."""
    ended = child(["-m", "benchmarks.gpu", "--part", "facts", "--notes", str(notes)], seconds)
    if not notes.exists():
        return {}, f"no GPU can be measured here: {ended.said}"
    told: dict[str, object] = json.loads(notes.read_text(encoding="utf-8"))
    told |= {
        "driver": driver_version(),
        "Python": platform.python_version(),
        "NumPy": importlib.metadata.version("numpy"),
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "command": "python -m benchmarks.gpu " + " ".join(sys.argv[1:]),
    }
    return told, None


def driver_version() -> str | None:
    """Return the kernel module's version, None where there is none to read."""
    try:
        text = Path("/proc/driver/nvidia/version").read_text(encoding="utf-8")
    except OSError:
        return None
    words = text.splitlines()[0].split()
    return next((word for word in words if word[:1].isdigit() and "." in word), None)


def one_part(
    part: str, folder: Path, seconds: float, share: float
) -> tuple[list[Figure], str | None]:
    """Return a part's figures, and a remark where it did not end well."""
    if part == "tests":
        return run_tests(seconds)
    if part.endswith("check"):
        return run_sanitizer(part, folder, seconds)
    notes = folder / f"{part}.jsonl"
    words = ["-m", "benchmarks.gpu", "--part", part, "--notes", str(notes)]
    words += ["--seconds", str(seconds), "--share", str(share)]
    ended = child(words, seconds + GRACE_S)
    remark = None if ended.code == 0 else f"ended early ({ended.how}): {ended.said}"
    return read_figures(notes), remark


def run_tests(seconds: float) -> tuple[list[Figure], str | None]:
    """Run the tests that need a card, where pytest is installed."""
    try:
        importlib.metadata.version("pytest")
    except importlib.metadata.PackageNotFoundError:
        return [], "pytest is not installed"
    words = [
        "-m",
        "pytest",
        "-q",
        "-m",
        "gpu",
        "-p",
        "no:cacheprovider",
        "tests/gpu/test_kernels.py",
    ]
    ended = child(words, seconds + GRACE_S)
    if ended.code == 0 and " passed" not in ended.said:
        return [], f"none was run: {ended.said}"
    figure = Figure(
        part="tests",
        name="accuracy of every kernel",
        unit="",
        ours=1.0,
        verified=ended.code == 0,
        details={"end": ended.said},
    )
    return [figure], None if ended.code == 0 else f"{ended.how}: {ended.said}"


def run_sanitizer(tool: str, folder: Path, seconds: float) -> tuple[list[Figure], str | None]:
    """Run every kernel once under one of compute-sanitizer's tools."""
    program = next(filter(None, map(shutil.which, _SANITIZERS)), None)
    if program is None:
        return [], "compute-sanitizer is not installed"
    notes = folder / f"{tool}.jsonl"
    command = [program, "--tool", tool, "--error-exitcode", "9", sys.executable]
    command += ["-m", "benchmarks.gpu", "--part", "exercise", "--notes", str(notes)]
    command += ["--seconds", str(seconds)]
    ended = child(command, seconds + GRACE_S, own_program=True)
    ran = read_figures(notes)
    if ended.code not in (0, 9) or not ran:
        return [], f"{ended.how}: {ended.said}"
    right = ended.code == 0 and all(figure.verified for figure in ran if figure.error is None)
    figure = Figure(
        part=tool,
        name=f"{len(ran)} launches watched",
        unit="",
        ours=1.0,
        verified=right,
        details={"end": ended.said},
    )
    return [figure], None


class Ended:
    """How a child process ended: its code (None if it was stopped) and the last that it wrote."""

    def __init__(self, code: int | None, text: str) -> None:
        self.code = code
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        self.said = lines[-1][:300] if lines else "it wrote nothing"

    @property
    def how(self) -> str:
        """Return the end in words."""
        if self.code is None:
            return "stopped after its time"
        return f"code {self.code}" if self.code >= 0 else f"signal {-self.code}"


def child(words: Sequence[str], seconds: float, *, own_program: bool = False) -> Ended:
    """Run Python (or a program) from the checkout, and stop it and its children after a time."""
    command = list(words) if own_program else [sys.executable, *words]
    with tempfile.TemporaryFile() as written:
        process = subprocess.Popen(
            command,
            stdout=written,
            stderr=subprocess.STDOUT,
            cwd=Path(__file__).parent.parent,
            env=environment(),
            start_new_session=True,
        )
        code: int | None
        try:
            code = process.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            code = None
            os.killpg(process.pid, 9)
            # A process that hangs in the driver cannot be ended, nor waited for.
            time.sleep(0.5)
            process.poll()
        written.seek(0)
        return Ended(code, written.read().decode(errors="replace"))


def environment() -> Mapping[str, str]:
    """Return this process' environment with the checkout on the path."""
    checkout = str(Path(__file__).parent.parent)
    path = os.pathsep.join(filter(None, (checkout, os.environ.get("PYTHONPATH"))))
    return {**os.environ, "PYTHONPATH": path, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}


if __name__ == "__main__":
    sys.exit(main())
