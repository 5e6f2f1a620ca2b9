"""Time and memory of `gpucheck fleet report` over thousands of documents.

    python -m benchmarks.fleet_report --nodes 10000 [--kind bench|detect] [--pipe] [--folder DIR]

The documents are those of a simulated node of eight H100: what `bench --quick --samples summary`
and `detect` print there, with another name, GPUs and slightly other speeds for each node. They
lie in files, a hundred in a folder, or come through a pipe, which needs no disk. Measured are the
report's own process and its peak memory; `--parsers` compares ways to parse one document.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path

#: Different speeds; the nodes take them in turn.
VARIANTS = 16
COMMANDS = {
    "bench": ("bench", "--quick", "--samples", "summary", "--json"),
    "detect": ("detect", "--json"),
}


def template(kind: str) -> bytes:
    """Return what a command prints on the simulated node."""
    cupy = ["--cupy"] if kind == "bench" else []
    program = [sys.executable, "-m", "gpucheck", *COMMANDS[kind]]
    finished = subprocess.run(
        [sys.executable, "-m", "tests.fakes.libraries", "h100x8", *cupy, "--", *program],
        capture_output=True,
        check=True,
    )
    return finished.stdout


def variants(text: bytes) -> list[tuple[bytes, bytes, list[bytes]]]:
    """Return the document with several speeds, its host's name and its GPUs' UUIDs."""
    found = []
    for seed in range(VARIANTS):
        document, draw = json.loads(text), random.Random(seed)
        document["host"]["name"] = "simulated-node-000000"
        result = document["result"]
        for row in result.get("measurements", ()):
            row["doubts"] = [one for one in row["doubts"] if one["code"] != "gpu-shared"]
            if row["time_s"] and row["throughput"]:
                factor = draw.gauss(1, 0.01)
                row["time_s"] /= factor
                row["throughput"]["value"] *= factor
        for sensor in (result.get("telemetry") or {}).get("gpus", ()):
            sensor["other_processes"] = []
        gpus = result["gpus"] if "gpus" in result else result["environment"]["gpus"]
        uuids = [gpu["uuid"].encode() for gpu in gpus]
        written = json.dumps(document, separators=(",", ":")).encode()
        found.append((written, b"simulated-node-000000", uuids))
    return found


def documents(text: bytes, nodes: int) -> Iterator[tuple[str, bytes]]:
    """Yield a name and a document for each node, made from pieces so that it costs little."""
    pieces = []
    for written, host, uuids in variants(text):
        cuts: list[bytes | int] = [written]
        for number, known in enumerate((host, *uuids)):
            cuts = [part for one in cuts for part in _cut(one, known, number)]
        pieces.append(cuts)
    for node in range(nodes):
        name = f"node{node:06d}"
        words = [name.encode()]
        words += [f"GPU-{uuid.UUID(int=8 * node + gpu)}".encode() for gpu in range(8)]
        parts = pieces[node % VARIANTS]
        yield name, b"".join(words[one] if isinstance(one, int) else one for one in parts)


def _cut(part: bytes | int, name: bytes, number: int) -> list[bytes | int]:
    """Return a part without a name in it: the number stands where the name did."""
    if isinstance(part, int):
        return [part]
    found: list[bytes | int] = []
    for one in part.split(name):
        found += [one, number]
    return found[:-1]


def write(folder: Path, text: bytes, nodes: int) -> int:
    """Write the documents, a hundred in a folder, and return their bytes."""
    size = 0
    for number, (name, document) in enumerate(documents(text, nodes)):
        inner = folder / f"{number // 100:04d}"
        inner.mkdir(exist_ok=True)
        (inner / f"{name}.json").write_bytes(document)
        size += len(document)
    return size


def measured(words: Sequence[str], feed: Iterator[bytes] | None) -> tuple[int, float, float, float]:
    """Return the exit code, seconds of wall and of processor, and MiB of the report's process."""
    began = time.monotonic()
    command = [sys.executable, "-m", "gpucheck", "fleet", "report", *words]
    with subprocess.Popen(
        command,
        stdin=None if feed is None else subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as process:
        if feed is not None:
            assert process.stdin is not None
            for document in feed:
                process.stdin.write(document + b"\n")
            process.stdin.close()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    wall = time.monotonic() - began
    return process.returncode, wall, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024


def parsers(text: bytes) -> None:
    """Print how long one document takes with each parser that is installed, the best of many."""
    for name in ("json", "orjson", "msgspec.json"):
        try:
            module = __import__(name, fromlist=["loads"])
        except ImportError:
            print(f"{name}: not installed")
            continue
        loads = getattr(module, "loads", None) or module.decode
        times = []
        for _ in range(50):
            began = time.perf_counter()
            loads(text)
            times.append(time.perf_counter() - began)
        print(f"{name}: {1e3 * min(times):.2f} ms for {len(text):,} bytes")


def main() -> None:
    """Measure one report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nodes", type=int, default=10_000)
    parser.add_argument("--kind", choices=COMMANDS, default="bench")
    parser.add_argument("--pipe", action="store_true", help="feed them through a pipe")
    parser.add_argument("--folder", type=Path, help="where the files are written for a while")
    parser.add_argument("--format", default="json")
    parser.add_argument("--parsers", action="store_true", help="compare parsers, and end")
    given = parser.parse_args()
    text = template(given.kind)
    if given.parsers:
        parsers(text)
        return
    words = ["--format", given.format]
    if given.pipe:
        size = len(text) * given.nodes
        feed = (document for _, document in documents(text, given.nodes))
        code, wall, cpu, peak = measured(["-", *words], feed)
    else:
        folder = Path(tempfile.mkdtemp(prefix="fleet-report-", dir=given.folder))
        try:
            size = write(folder, text, given.nodes)
            code, wall, cpu, peak = measured([str(folder), *words], None)
        finally:
            shutil.rmtree(folder)
    print(
        f"| {given.kind} | {given.nodes:,} | {size / given.nodes / 1000:.0f} kB "
        f"| {'pipe' if given.pipe else 'files'} | {wall:.1f} s | {cpu:.1f} s | {peak:.0f} MiB |"
    )
    if code not in (0, 1):
        sys.exit(f"the report ended with code {code}")


if __name__ == "__main__":
    main()
