"""Machine code of kernels that move much memory: `python -m benchmarks.machine_code`.

It compiles them by NVRTC for some architectures, disassembles them, and writes
docs/measurements/machine_code.md. No GPU is needed: nothing is run, and nothing is timed.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from benchmarks.card.variants import launches, variants_text
from gpucheck.bench.bits import ELEMENTS
from gpucheck.bench.kernels.softmax import SoftmaxRows, source_text
from gpucheck.bench.numerics import FORMATS
from gpucheck.bench.sdc import SOURCE
from tests.bench.nvrtc import Nvrtc, find_disassembler, find_nvrtc, loads_in_flight

PAGE = Path(__file__).parent.parent / "docs" / "measurements" / "machine_code.md"
ARCHITECTURES = (75, 80, 90, 100, 120)
#: What CuPy 14 adds of its own accord (cupy/cuda/compiler.py).
CUPY_OPTIONS = ("-ftz=true", "--device-as-default-execution-space")
_SM_COUNT = 132
_REGISTERS_PER_SM = 65536
#: Threads that an SM holds at most, where they are not 2048.
_MOST_THREADS = {75: 1024, 120: 1536}
_SOFTMAX = {"float32": 0, "float16": 1, "bfloat16": 2}
#: Rows of the softmax in the table, with the launches of them: what is chosen, and every variant.
_ROWS = (
    ("float32", 1024, "chosen"),
    ("bfloat16", 1024, "chosen"),
    ("float32", 4096, "chosen"),
    ("bfloat16", 4096, "chosen"),
    ("float32", 32768, "chosen"),
    ("bfloat16", 32768, "chosen"),
    ("float32", 262_144, "chosen"),
    ("bfloat16", 262_144, "chosen"),
    ("float32", 32768, "1 block per SM, prefetching"),
    ("bfloat16", 32768, "1 block per SM, prefetching"),
    ("float32", 32768, "clusters of 2 that stay"),
    ("bfloat16", 32768, "clusters of 2 that stay"),
    ("bfloat16", 32768, "raw packs"),
    ("bfloat16", 65536, "raw packs"),
    ("float32", 262_144, "clusters of 8"),
    ("bfloat16", 262_144, "clusters of 8"),
    ("float32", 262_144, "clusters of 8 that stay"),
    ("bfloat16", 262_144, "clusters of 8 that stay"),
)
_HEAD = """# Machine code

Registers of a thread, what is spilled to local memory, fences (`MEMBAR`), and the loads of 16 bytes
that a thread has under way before it needs the first. {versions}; written by

```sh
python3 -m benchmarks.machine_code
```

Nothing was run on a GPU, and nothing here is a speed. The softmax is described in
[softmax.md](softmax.md); `differ` compares the products of `bench --burn`. KiB under way are those
of an SM whose registers hold as many blocks as they can.
"""
_COLUMNS = (
    *("cc", "kernel", "launch", "format", "row of", "threads"),
    *("registers", "spilled bytes", "fences", "loads under way", "KiB under way"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """Kernel to compile, and what the table says of it."""

    name: str
    launch: str
    dtype: str
    columns: str
    text: str
    block: int
    defines: Mapping[str, int]


def kernels(architecture: int) -> Iterator[Kernel]:
    """Yield the kernels that an architecture can run."""
    for dtype in ("float32", "bfloat16"):
        yield Kernel(
            name="differ",
            launch="chosen",
            dtype=dtype,
            columns="",
            text=SOURCE.read_text(encoding="utf-8"),
            block=256,
            defines={"ELEMENT": ELEMENTS[dtype]},
        )
    for dtype, columns, label in _ROWS:
        itemsize = FORMATS[dtype].itemsize
        rows = SoftmaxRows(rows=4096, columns=columns, itemsize=itemsize, aligned=True)
        launch = launches(rows, divmod(architecture, 10), _SM_COUNT).get(label)
        if launch is not None:
            yield Kernel(
                name=launch.name,
                launch=label,
                dtype=dtype,
                columns=str(columns),
                text=source_text() + ("" if label == "chosen" else variants_text()),
                block=launch.block,
                defines={"ELEMENT": _SOFTMAX[dtype], **launch.defines},
            )


def row(nvrtc: Nvrtc, disassembler: str, kernel: Kernel, architecture: int) -> str:
    """Return the table's row of a kernel."""
    defines = (f"-D{name}={value}" for name, value in kernel.defines.items())
    target = f"--gpu-architecture=sm_{architecture}"
    found = nvrtc.compile(kernel.text, target, "--std=c++17", *CUPY_OPTIONS, *defines)
    if found.code:
        sys.exit(found.log)
    with tempfile.TemporaryDirectory() as folder:
        lines = found.lines(disassembler, Path(folder), kernel.name)
    fences = sum(line.startswith("MEMBAR") for line in lines)
    loads = loads_in_flight(lines)
    # The hardware hands out registers by eight for each thread.
    blocks = _REGISTERS_PER_SM // (-(-found.registers // 8) * 8 * kernel.block)
    blocks = min(blocks, _MOST_THREADS.get(architecture, 2048) // kernel.block)
    kib = blocks * kernel.block * loads * 16 / 1024
    cells = (
        *(f"{architecture // 10}.{architecture % 10}", kernel.name, kernel.launch, kernel.dtype),
        *(kernel.columns, kernel.block, found.registers, found.local_bytes, fences, loads),
        f"{kib:.0f}",
    )
    return f"| {' | '.join(map(str, cells))} |"


def main() -> int:
    """Write the page; return 4 without a compiler or a disassembler."""
    library, disassembler = find_nvrtc(), find_disassembler()
    if library is None or disassembler is None:
        print("It takes nvidia-cuda-nvrtc-cu12 and nvidia-cuda-nvdisasm.", file=sys.stderr)
        return 4
    nvrtc = Nvrtc(library)
    said = subprocess.run([disassembler, "--version"], capture_output=True, text=True, check=True)
    release = said.stdout.rpartition("release ")[2].partition(",")[0]
    lines = [
        _HEAD.format(versions=f"NVRTC {nvrtc.version()}, nvdisasm {release}"),
        f"| {' | '.join(_COLUMNS)} |",
        "|" + "--|" * len(_COLUMNS),
    ]
    for architecture in ARCHITECTURES:
        found = kernels(architecture)
        lines += [row(nvrtc, disassembler, kernel, architecture) for kernel in found]
    PAGE.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
