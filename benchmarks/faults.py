"""Fault sweep: each NVML and CUDA function that a command calls fails, hangs, is missing, or dies.

Failing with every code is swept in one process: forked probe children read the broken machine, and
the whole command line answers from what they said. Hanging, missing and dying are swept with real
processes on the pretended libraries. Each outcome must have a documented exit code and exactly one
valid document, end in time, leave no process behind, and never call a GPU usable that is not.

    python -m benchmarks.faults --output faults.jsonl     # may be stopped, and goes on where it was
    python -m benchmarks.faults --output faults.jsonl --table
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import io
import itertools
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, cast
from unittest import mock

from gpucheck.cli import main as run_gpucheck
from gpucheck.drivers import live
from gpucheck.drivers.evidence import BuildsReading, HealthReading, LaunchReading
from gpucheck.drivers.python.frameworks import Software, read_frameworks
from gpucheck.drivers.readings import CudaReading, NvmlReading, NvmlRequest
from gpucheck.memlimit import plan as memlimit_plan
from tests.conftest import scrubbed_environment
from tests.end_to_end.documents import assert_document, only_document
from tests.end_to_end.sweeping import NVML_CODES, Forks
from tests.end_to_end.test_faults import CUDA_CODES
from tests.fakes.libraries import build_libraries
from tests.fakes.machine import Machine, load_machine
from tests.fakes.tree import write_tree

#: What is run, by the name in the table.
COMMANDS: Mapping[str, tuple[str, ...]] = {
    "detect": ("detect", "--json"),
    "list": ("list", "--json", "--topology", "--processes", "--ask-driver"),
    "place --count": ("place", "--count", "1", "--json"),
    "place /gpu:0": ("place", "/gpu:0", "--json"),
    "memlimit": ("memlimit", "30%", "--json"),
}
#: Documented exit codes (README).
CODES: Mapping[str, frozenset[int]] = {
    "detect": frozenset({0, 1, 3}),
    "list": frozenset({0, 1, 3, 4}),
    "place --count": frozenset({0, 1, 3, 4}),
    "place /gpu:0": frozenset({0, 1, 3, 4}),
    "memlimit": frozenset({0, 1, 3, 4}),
}
#: Without these no program runs a kernel; the others describe a device, or give something back.
DECISIVE = frozenset(
    {
        "cuInit", "cuDeviceGetCount", "cuDeviceGet", "cuLaunchKernel",
        "cuCtxSynchronize", "cuModuleLoadData", "cuModuleGetFunction", "cuMemAlloc_v2",
        "cuMemcpyHtoD_v2", "cuMemcpyDtoH_v2", "cuCtxSetCurrent", "cuDevicePrimaryCtxRetain",
    }
)  # fmt: skip
LOST = frozenset({15, 16})
KINDS = ("fail", "hang", "missing", "die")
#: Of a driver that hangs, and for a run that must end.
DEADLINE_S = 3.0
MOST_S = 120.0
MARK = "GPUCHECK_SWEEP"


class Case(NamedTuple):
    """One fault and one command; `gpu` is the one that it befalls, None for all."""

    command: str
    machine: str
    function: str
    kind: str
    code: int | None = None
    gpu: int | None = None

    @property
    def fault(self) -> str:
        """The fault as the pretended driver reads it."""
        words = [self.function]
        words += [] if self.gpu is None else [f"gpu={self.gpu}"]
        words += [] if self.code is None else [str(self.code)]
        return " ".join(words)


class Outcome(NamedTuple):
    """How a run ended: its code, its text, its seconds, and how many processes it left behind."""

    exit_code: int
    stdout: str
    stderr: str
    seconds: float = 0.0
    left: int = 0


def machines() -> dict[str, Machine]:
    """Return a machine with two whole GPUs that are free, and one with MIG instances."""
    whole = load_machine("h100x8").with_gpus(2)
    free = tuple(
        dataclasses.replace(gpu, processes=(), memory_used_bytes=0, utilization_gpu_percent=0)
        for gpu in whole.gpus
    )
    return {
        "whole": dataclasses.replace(whole, gpus=free),
        "split": load_machine("a100-mig").with_gpus(2),
    }


def broken(machine: Machine, case: Case) -> Machine:
    """Return the machine with the fault of a case."""
    faults = {case.kind: [case.function if case.kind == "missing" else case.fault]}
    return machine.broken(**faults)


# ---------------------------------------------------------------------------------- what is called


class Bench:
    """The pretended machines, their libraries and files, and what each command calls on them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.machines = machines()
        self.roots = {
            name: str(write_tree(machine, folder / f"root-{name}"))
            for name, machine in self.machines.items()
        }
        (folder / "claims").mkdir()
        (folder / "claims").chmod(0o1777)

    def environment(self, name: str, machine: Machine | None = None) -> dict[str, str]:
        """Return the variables under which a program sees a machine, or a broken one instead."""
        libraries = tempfile.mkdtemp(dir=self.folder)
        found = build_libraries(machine or self.machines[name], Path(libraries))
        claims = str(self.folder / "claims")
        return {**found, "GPUCHECK_ROOT": self.roots[name], "GPUCHECK_CLAIMS_DIR": claims}

    def called(self) -> dict[str, dict[str, dict[str, bool]]]:
        """Return by command and machine the functions called, and whether for a single GPU."""
        found: dict[str, dict[str, dict[str, bool]]] = defaultdict(dict)
        for command, name in itertools.product(COMMANDS, self.machines):
            log = self.folder / "calls.log"
            log.unlink(missing_ok=True)
            run_process(COMMANDS[command], {**self.environment(name), "FAKE_CALL_LOG": str(log)})
            of_gpu: dict[str, bool] = {}
            for line in log.read_text(encoding="ascii").splitlines():
                function, gpu = line.split()
                of_gpu[function] = of_gpu.get(function, False) or gpu != "-"
            found[command][name] = of_gpu
        return found


def cases(bench: Bench, kinds: Sequence[str]) -> Iterator[Case]:
    """Yield every case: a function is broken on the first machine on which it is called."""
    for command, by_machine in bench.called().items():
        seen: set[str] = set()
        for name, functions in by_machine.items():
            for position, (function, of_gpu) in enumerate(sorted(functions.items())):
                if function in seen:
                    continue
                seen.add(function)
                for kind in kinds:
                    yield from _cases_of(Case(command, name, function, kind), position, of_gpu)


def _cases_of(case: Case, position: int, of_gpu: bool) -> Iterator[Case]:
    """Yield a case for each code, for one GPU and for all of them in turn."""
    codes: Iterable[int | None] = (None,)
    if case.kind == "fail":
        codes = NVML_CODES if case.function.startswith("nvml") else CUDA_CODES
    for number, code in enumerate(codes):
        one = of_gpu and case.kind != "missing" and (position + number) % 2 == 0
        yield case._replace(code=code, gpu=0 if one else None)
        if code in LOST and of_gpu:  # both of them: what is lost decides
            yield case._replace(code=code, gpu=None if one else 0)


# ---------------------------------------------------------------------------------- failing codes


T = TypeVar("T")


class Forked(live.LiveProbes):
    """A machine whose drivers answer from forks; files are read as ever."""

    def __init__(self, bench: Bench, name: str) -> None:
        super().__init__(root=Path(bench.roots[name]))
        variables = bench.environment(name)
        self._healthy = bench.machines[name]
        self._server = Forks(variables, Path(tempfile.mkdtemp(dir=bench.folder)))
        self._cuda_healthy = self._server.cuda(self._healthy)
        self._launch_healthy = self._server.launch(self._healthy)
        self._now = self._healthy
        self._nvml_broken = False
        self._known: dict[object, Any] = {}

    def break_(self, machine: Machine, *, nvml: bool) -> None:
        """Be this machine from now on; `nvml` says which of the two libraries is broken."""
        if machine != self._now:
            self._now, self._nvml_broken, self._known = machine, nvml, {}

    def end(self) -> None:
        """End the server."""
        self._server.__exit__()

    def _asked(self, key: object, ask: Callable[[], T]) -> T:
        if key not in self._known:
            self._known[key] = ask()
        return cast("T", self._known[key])

    def nvml(self, question: NvmlRequest) -> NvmlReading:
        """Ask a fork."""
        return self._asked(question, lambda: self._server.nvml(self._now, question))

    def health(self, gpus: Sequence[int] | None = None) -> HealthReading:
        """Ask a fork about every GPU."""
        return self._asked("health", lambda: self._server.health(self._now))

    def cuda(self, *, unrestricted: bool = False) -> CudaReading:
        """Ask a fork, if it is libcuda that is broken; nothing restricts it here."""
        if self._nvml_broken:
            return self._cuda_healthy
        return self._asked("cuda", lambda: self._server.cuda(self._now))

    def launch(self, python: str | None, **_: object) -> LaunchReading:
        """Ask a fork, if it is libcuda that is broken."""
        if self._nvml_broken:
            return self._launch_healthy
        return self._asked("launch", lambda: self._server.launch(self._now))

    def open_nodes(self, paths: Sequence[str]) -> Mapping[str, str | None]:
        """Every node can be opened."""
        return dict.fromkeys(paths)

    def builds(self, python: str | None) -> BuildsReading:
        """No framework is installed."""
        return BuildsReading(python=sys.executable, builds=())

    def close(self) -> None:
        """The next command asks the same server."""


def run_forked(forked: Forked, machine: Machine, case: Case) -> Outcome:
    """Run a command in this process, on what forks say of a broken machine."""
    import gpucheck.drivers

    forked.break_(machine, nvml=case.function.startswith("nvml"))
    stdout, stderr = io.StringIO(), io.StringIO()
    before = gpucheck.drivers.open_probes
    gpucheck.drivers.open_probes = lambda *_, **__: forked
    try:
        with contextlib.redirect_stdout(stdout), contextlib.redirect_stderr(stderr):
            code = run_gpucheck(COMMANDS[case.command])
    finally:
        gpucheck.drivers.open_probes = before
    return Outcome(code, stdout.getvalue(), stderr.getvalue())


# ---------------------------------------------------------------------------------- real processes


def run_process(words: Sequence[str], variables: Mapping[str, str]) -> Outcome:
    """Run a command as a shell would, and count what it leaves behind."""
    mark = f"{os.getpid()}-{random.random()}"
    started = time.monotonic()
    process = subprocess.Popen(
        [sys.executable, "-m", "gpucheck", *words],
        env=scrubbed_environment({**variables, MARK: mark}),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        stdout, stderr = process.communicate(timeout=MOST_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        stdout, stderr = process.communicate()
    seconds = time.monotonic() - started
    return Outcome(process.returncode, stdout.decode(), stderr.decode(), seconds, left_behind(mark))


def left_behind(mark: str, within_s: float = 5.0) -> int:
    """Count the processes that bear the mark and do not end within a while."""
    end = time.monotonic() + within_s
    while True:
        found = 0
        for path in Path("/proc").glob("[0-9]*/environ"):
            with contextlib.suppress(OSError):
                found += f"{MARK}={mark}".encode() in path.read_bytes()
        if not found or time.monotonic() > end:
            return found
        time.sleep(0.05)


def run_case(bench: Bench, case: Case) -> Outcome:
    """Run a case with real processes."""
    machine = broken(bench.machines[case.machine], case)
    words = COMMANDS[case.command]
    if case.kind == "hang":
        words = (*words, "--deadline", f"{DEADLINE_S:g}")
    return run_process(words, bench.environment(case.machine, machine))


# ---------------------------------------------------------------------------------- judgement


def problems(case: Case, outcome: Outcome) -> list[str]:
    """Return what is wrong with an outcome."""
    found = []
    if outcome.exit_code not in CODES[case.command]:
        found.append(f"exit code {outcome.exit_code}")
    if "Traceback" in outcome.stderr:
        found.append("traceback")
    if outcome.left:
        found.append(f"{outcome.left} processes left")
    if outcome.seconds >= MOST_S:
        found.append("did not end")
    try:
        document = only_document(outcome.stdout)
        assert_document(document, case.command.partition(" ")[0], outcome.exit_code)
    except (AssertionError, ValueError) as error:
        return [*found, f"document: {str(error).splitlines()[0] if str(error) else 'none'}"]
    return [*found, *wrongly_well(case, outcome.exit_code, document["result"])]


def wrongly_well(case: Case, exit_code: int, result: Any) -> Iterator[str]:
    """Yield what a document says is well that is not."""
    whole_library = case.gpu is None
    lost = case.kind == "fail" and case.code in LOST and case.function.startswith("nvmlDevice")
    of_gpus = lost and case.function != "nvmlDeviceGetCount_v2"
    if case.command == "detect":
        decisive = case.function in DECISIVE
        if decisive and whole_library and result["usable"] is True:
            yield "usable without a function that every program needs"
        if of_gpus and exit_code == 0:
            yield "a lost GPU is well"
        if case.kind == "hang" and result["verdict"] == "usable":
            yield "usable with a driver that hangs"
    elif of_gpus and case.function.startswith("nvmlDeviceGetHandle") and result is not None:
        first = (result.get("gpus") or result.get("devices") or [{}])[0]
        if case.command == "list" and first.get("state") == "ok":
            yield "a lost GPU is listed as well"
        if case.command == "place --count" and first.get("index") == 0:
            yield "a lost GPU is chosen"


# ---------------------------------------------------------------------------------- sweeping


def sweep(output: Path, kinds: Sequence[str], *, share: float = 1.0, seed: int = 1) -> int:
    """Run the cases that have no line in the file yet; return how many went wrong."""
    done = {tuple(line["case"]) for line in lines_of(output)}
    chosen = random.Random(seed)
    wrong = 0
    with tempfile.TemporaryDirectory() as scratch, output.open("a", encoding="utf-8") as file:
        bench = Bench(Path(scratch))
        os.environ.update({"GPUCHECK_CLAIMS_DIR": str(bench.folder / "claims")})
        with forked_machines(bench) as forked:
            # The commands on one machine follow each other, and share what forks said of it.
            for case in sorted(cases(bench, kinds), key=lambda case: str(case[1:])):
                if chosen.random() >= share or tuple(case) in done:
                    continue
                if case.kind == "fail":
                    machine = broken(bench.machines[case.machine], case)
                    os.environ["GPUCHECK_ROOT"] = bench.roots[case.machine]
                    outcome = run_forked(forked[case.machine], machine, case)
                else:
                    outcome = run_case(bench, case)
                found = problems(case, outcome)
                wrong += bool(found)
                line = {"case": case, "exit_code": outcome.exit_code, "problems": found,
                        "seconds": round(outcome.seconds, 3)}  # fmt: skip
                file.write(json.dumps(line) + "\n")
                file.flush()
                if found:
                    print(*case, "->", outcome.exit_code, found, flush=True)
    return wrong


@contextlib.contextmanager
def forked_machines(bench: Bench) -> Iterator[dict[str, Forked]]:
    """Yield the machines that answer from forks; frameworks are read once for all runs."""
    found = {name: Forked(bench, name) for name in bench.machines}
    known: list[Software] = []

    def read_once(*arguments: Any) -> Software:
        if not known:
            known.append(read_frameworks(*arguments))
        return known[0]

    try:
        with mock.patch.object(memlimit_plan, "read_frameworks", read_once):
            yield found
    finally:
        for forked in found.values():
            forked.end()


def lines_of(output: Path) -> list[dict[str, Any]]:
    """Return what was written so far."""
    if not output.exists():
        return []
    return [json.loads(line) for line in output.read_text(encoding="utf-8").splitlines()]


def table(lines: Iterable[Mapping[str, Any]]) -> str:
    """Return the table of all runs: by command and kind, how often each exit code came."""
    rows: dict[tuple[str, str], list[Mapping[str, Any]]] = defaultdict(list)
    for line in lines:
        case = Case(*line["case"])
        rows[case.command, case.kind].append(line)
    text = [
        "| command | fault | functions | runs | exit codes | longest | wrong |",
        "|--|--|--|--|--|--|--|",
    ]
    for command, kind in itertools.product(COMMANDS, KINDS):
        found = rows.get((command, kind))
        if not found:
            continue
        functions = {Case(*line["case"]).function for line in found}
        codes = Counter(line["exit_code"] for line in found)
        said = ", ".join(f"{code}: {count}" for code, count in sorted(codes.items()))
        longest = max(line["seconds"] for line in found)
        shown = f"{longest:.1f} s" if longest else ""
        wrong = sum(bool(line["problems"]) for line in found)
        text.append(
            f"| {command} | {kind} | {len(functions)} | {len(found)} | {said} | {shown} | {wrong} |"
        )
    return "\n".join(text)


def main(words: Sequence[str]) -> int:
    """Sweep, or print the table of what was swept; 1 if anything was wrong."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--output", type=Path, default=Path("faults.jsonl"))
    parser.add_argument("--kind", action="append", choices=KINDS, default=[])
    parser.add_argument("--share", type=float, default=1.0, help="of the cases, drawn by --seed")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--table", action="store_true", help="print the table, run nothing")
    options = parser.parse_args(words)
    if not options.table:
        sweep(options.output, options.kind or KINDS, share=options.share, seed=options.seed)
    lines = lines_of(options.output)
    print(table(lines))
    return 1 if any(line["problems"] for line in lines) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
