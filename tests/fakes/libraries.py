"""Pretended driver libraries: compiled once, driven by a machine file, loaded by the real pynvml.

``python -m tests.fakes.libraries h100x8 -- nvitop -1`` runs a command on a pretended machine.
"""

import argparse
import functools
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.fakes.machine import (
    ARCHITECTURES,
    BRANDS,
    COMPUTE_MODES,
    FABRIC_STATES,
    PATHS,
    PROCESS_TYPES,
    Gpu,
    Machine,
    MachineError,
    cpus_of,
    load_machine,
)
from tests.fakes.tree import write_tree

NATIVE = Path(__file__).resolve().parent / "native"
CUPY = Path(__file__).resolve().parent / "cupy"
SONAMES = {
    "nvml": "libnvidia-ml.so.1",
    "cuda": "libcuda.so.1",
    "cublaslt": "libcublasLt.so.12",
}
FLAGS = ("-std=c11", "-O1", "-g", "-fPIC", "-shared", "-fvisibility=hidden", "-pthread",
         "-Wall", "-Wextra", "-Werror")  # fmt: skip

_EXPORTED = re.compile(r"^(?:API [\w ]+?[ *]|[A-Z_]+\()((?:nvml|cu)[A-Z]\w+)", re.MULTILINE)
_NAMES = {
    "architecture": ARCHITECTURES,
    "brand": BRANDS,
    "compute_mode": COMPUTE_MODES,
    "fabric_state": FABRIC_STATES,
}
_ENOUGH_FOR_DLOPEN = "import ctypes, sys; ctypes.CDLL(sys.argv[1])"


class CompilerMissingError(RuntimeError):
    """No C compiler: the tests that need the libraries are skipped."""

    def __init__(self) -> None:
        """Say what to install."""
        super().__init__("no C compiler found (cc, gcc or clang)")


@functools.cache
def compiler() -> str | None:
    """Find the system's C compiler, or None."""
    return next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)


@functools.cache
def functions(library: str) -> frozenset[str]:
    """Name the symbols that a pretended library ("nvml" or "cuda") can export."""
    text = (NATIVE / f"{library}.c").read_text(encoding="utf-8")
    names = set(_EXPORTED.findall(text))
    for base in re.findall(r"^LIST_PROCESSES\((\w+)", text, re.MULTILINE):
        names |= {f"{base}_v2", f"{base}_v3"}
    return frozenset(names)


def build_libraries(machine: Machine, directory: Path) -> dict[str, str]:
    """Put the machine and its libraries into `directory`; return a child's extra environment.

    Raises CompilerMissingError, or MachineError when a fault or a missing symbol has no function.
    """
    _check_symbols(machine)
    directory.mkdir(parents=True, exist_ok=True)
    description = directory / "machine.txt"
    _replace_file(description, flatten(machine))
    libraries = directory / "lib"
    libraries.mkdir(exist_ok=True)
    for library, present in (("nvml", machine.driver.nvml), ("cuda", machine.driver.cuda)):
        _install(library, machine, libraries, present=present)
    paths = [str(libraries), *filter(None, [os.environ.get("LD_LIBRARY_PATH")])]
    return {
        **machine.host.variables,
        "LD_LIBRARY_PATH": ":".join(paths),
        "FAKE_MACHINE_FILE": str(description),
    }


def cupy_environment(script: str = "", *, time: str = "virtual", seed: int = 0) -> dict[str, str]:
    """Return a child's extra environment for the pretended CuPy, with a script of its GPUs' events.

    The child also needs the environment of `build_libraries`; README.md describes the script.
    """
    cublaslt = "" if compiler() is None else str(compiled("cublaslt"))
    paths = [str(CUPY), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {
        "PYTHONPATH": ":".join(paths),
        # cuBLAS loads it by this path; afterwards it is found by its name.
        "FAKE_CUBLASLT": cublaslt,
        "FAKE_GPU_SCRIPT": script,
        "FAKE_GPU_TIME": time,
        "FAKE_GPU_SEED": str(seed),
        "FAKE_GPU_CACHE": str(cache() / "preprocessed"),
    }


def flatten(machine: Machine) -> bytes:
    """Write a machine as the "key value" lines that the C side reads."""
    lines = [*_driver_lines(machine), f"gpu.count {len(machine.gpus)}"]
    for number, fault in enumerate(machine.faults):
        index = -1 if fault.gpu is None else fault.gpu
        code = -2 if fault.dies else -1 if fault.code is None else fault.code
        lines.append(f"fault.{number} {fault.function} {index} {code} {fault.after}")
    for gpu in machine.gpus:
        lines += _gpu_lines(machine, gpu)
    return "".join(f"{line}\n" for line in lines).encode("utf-8", "surrogateescape")


def _driver_lines(machine: Machine) -> Iterator[str]:
    driver = machine.driver
    yield f"driver.version {driver.version}"
    yield f"driver.nvml_version {driver.nvml_version}"
    yield f"driver.cuda_version {driver.cuda_version}"
    yield f"driver.process_list {int(driver.process_list)}"
    yield f"driver.wrong_results {int(driver.wrong_results)}"
    yield f"driver.memory_limits {driver.memory_limits}"
    yield f"driver.excluded_count {len(driver.excluded_pci_bus_ids)}"
    names = {
        process.pid: process.name
        for gpu in machine.gpus
        for process in gpu.processes
        if process.name is not None
    }
    for pid, name in names.items():
        yield f"pid.{pid}.name {_escaped(name)}"


def _gpu_lines(machine: Machine, gpu: Gpu) -> Iterator[str]:
    prefix = f"gpu.{gpu.index}"
    yield from _scalar_lines(prefix, gpu)
    for number, value in {**_implied_fields(gpu), **gpu.fields}.items():
        yield f"{prefix}.field.{number} {_field_type(value)} {value}"
    for number, growth in gpu.fields_growth.items():
        yield f"{prefix}.field_growth.{number} {growth}"
    if gpu.cpu_affinity is not None:
        yield f"{prefix}.cpu_mask {_mask(cpus_of(gpu.cpu_affinity))}"
    if gpu.numa_node is not None:
        yield f"{prefix}.memory_mask {_mask((gpu.numa_node,))}"
    for instance in gpu.mig:
        yield from _scalar_lines(f"{prefix}.mig.{instance.index}", instance)
    for number, process in enumerate(gpu.processes):
        used = -1 if process.memory_used_bytes is None else process.memory_used_bytes
        mig = -1 if process.mig is None else process.mig
        kind = PROCESS_TYPES.index(process.type)
        yield (
            f"{prefix}.process.{number} {process.pid} {kind} {mig} {used}"
            f" {process.utilization_sm_percent} {process.utilization_memory_percent}"
            f" {process.utilization_encoder_percent} {process.utilization_decoder_percent}"
        )
    yield from _neighbour_lines(machine, gpu, prefix)


def _scalar_lines(prefix: str, thing: object) -> Iterator[str]:
    for name in thing.__dataclass_fields__:  # type: ignore[attr-defined]
        value = getattr(thing, name)
        if isinstance(value, str):
            number = _NAMES.get(name, {}).get(value)
            yield f"{prefix}.{name} {_escaped(value) if number is None else number}"
        elif isinstance(value, int):
            yield f"{prefix}.{name} {int(value)}"
        elif isinstance(value, tuple) and all(isinstance(item, int) for item in value):
            yield f"{prefix}.{name} {' '.join(map(str, value))}"


def _neighbour_lines(machine: Machine, gpu: Gpu, prefix: str) -> Iterator[str]:
    others = range(len(machine.gpus))
    links = machine.links(gpu.index)
    levels = [PATHS[machine.pcie_path(gpu.index, other)] for other in others]
    linked = [
        other != gpu.index and machine.nvlinks_between(gpu.index, other) > 0 for other in others
    ]
    ok, chipset, not_supported = 0, 1, 5
    read = [
        ok if link or level < PATHS["SYS"] else chipset
        for link, level in zip(linked, levels, strict=True)
    ]
    yield f"{prefix}.topology {' '.join(map(str, levels))}"
    yield f"{prefix}.p2p_read {' '.join(map(str, read))}"
    yield f"{prefix}.p2p_nvlink {' '.join(str(ok if link else not_supported) for link in linked)}"
    yield f"{prefix}.nvlink.count {len(links)}"
    for link in links:
        remote_type = 2 if link.remote_gpu is None else 0
        yield (
            f"{prefix}.nvlink.{link.number} {int(link.active)} {remote_type}"
            f" {link.remote_pci_bus_id}"
        )


def _implied_fields(gpu: Gpu) -> dict[int, int]:
    """Return the field values that repeat another reading."""
    readings = {
        1: gpu.ecc_mode,
        2: gpu.ecc_mode_pending,
        3: gpu.ecc_corrected_volatile,
        4: gpu.ecc_uncorrected_volatile,
        5: gpu.ecc_corrected_aggregate,
        6: gpu.ecc_uncorrected_aggregate,
        31: gpu.retired_pages_pending,
        74: gpu.violation_power_ns,
        75: gpu.violation_thermal_ns,
        76: gpu.violation_sync_boost_ns,
        77: gpu.violation_board_limit_ns,
        78: gpu.violation_low_utilization_ns,
        79: gpu.violation_reliability_ns,
        82: gpu.temperature_memory_c,
        83: gpu.energy_mj,
        94: gpu.pcie_replay_count,
        142: gpu.remapped_rows_corrected,
        143: gpu.remapped_rows_uncorrected,
        144: gpu.remapped_rows_pending,
        145: gpu.remapped_rows_failed,
        186: gpu.power_mw,
        230: gpu.recovery_action,
    }
    return {number: int(value) for number, value in readings.items() if value is not None}


def _field_type(value: int) -> str:
    if value < 0:
        return "si"
    return "ui" if value < 1 << 32 else "ull"


def _mask(numbers: Sequence[int]) -> str:
    words = [0] * (max(numbers, default=0) // 64 + 1)
    for number in numbers:
        words[number // 64] |= 1 << number % 64
    return " ".join(map(str, words))


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n")


def _check_symbols(machine: Machine) -> None:
    known = functions("nvml") | functions("cuda")
    wanted = [("missing", name) for name in machine.driver.missing]
    wanted += [("faults", fault.function) for fault in machine.faults]
    for where, pattern in wanted:
        found = any(
            name.startswith(pattern[:-1]) if pattern.endswith("*") else name == pattern
            for name in known
        )
        if not found:
            problem = f"the pretended libraries have no function {pattern!r}"
            raise MachineError(where=f"{machine.name} {where}", problem=problem)
    for fault in machine.faults:
        if fault.gpu is not None and fault.gpu >= len(machine.gpus):
            problem = f"{fault} names a GPU that is not there"
            raise MachineError(where=f"{machine.name} faults", problem=problem)


def _install(library: str, machine: Machine, directory: Path, *, present: bool) -> None:
    """Put one library into the child's search path, under the real one's two names."""
    soname = directory / SONAMES[library]
    if present:
        versioned = soname.with_suffix("." + machine.driver.version)
        content = compiled(library, machine.driver.missing).read_bytes()
        _replace_file(versioned, content)
        _replace_link(soname, versioned.name)
    elif _host_has(soname.name):
        # On a machine with a driver, an unreadable library first in the path hides the real one.
        _replace_file(soname, b"")
    else:
        soname.unlink(missing_ok=True)


# Replaced, never overwritten: a running child may have mapped the old file.


def _replace_file(path: Path, content: bytes) -> None:
    scratch = path.with_name(f".{path.name}.{os.getpid()}")
    scratch.write_bytes(content)
    scratch.replace(path)


def _replace_link(path: Path, target: str) -> None:
    scratch = path.with_name(f".{path.name}.{os.getpid()}")
    scratch.unlink(missing_ok=True)
    scratch.symlink_to(target)
    scratch.replace(path)


@functools.cache
def _host_has(soname: str) -> bool:
    command = [sys.executable, "-c", _ENOUGH_FOR_DLOPEN, soname]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def compiled(library: str, missing: Sequence[str] = ()) -> Path:
    """Compile a library without the `missing` symbols, or reuse a compiled one."""
    command = compiler()
    if command is None:
        raise CompilerMissingError
    sources = [NATIVE / f"{library}.c", NATIVE / "machine.c"]
    absent = sorted(functions(library) & set(missing))
    digest = hashlib.sha256(repr((command, FLAGS, absent)).encode())
    for source in (*sources, NATIVE / "machine.h"):
        digest.update(source.read_bytes())
    target = cache() / f"{library}-{digest.hexdigest()[:24]}.so"
    if not target.exists():
        _compile(command, sources, absent, SONAMES[library], target)
    return target


def _compile(
    command: str, sources: Sequence[Path], absent: Sequence[str], soname: str, target: Path
) -> None:
    # Built under another name, then renamed: parallel test workers see all of it or nothing.
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        script = Path(scratch) / "exports.map"
        hidden = "".join(f" {name};" for name in absent)
        script.write_text(f"{{ global: nvml*; cu*; local:{hidden} *; }};\n", encoding="utf-8")
        built = Path(scratch) / target.name
        subprocess.run(
            [command, *FLAGS, f"-Wl,--version-script={script}", f"-Wl,-soname,{soname}",
             "-o", str(built), *map(str, sources)],
            check=True,
        )  # fmt: skip
        built.replace(target)


@functools.cache
def cache() -> Path:
    """Return this user's own folder for compiled files, which are the same for every test."""
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = base / "gpucheck-tests"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = folder.stat()
        safe = status.st_uid == os.getuid() and not status.st_mode & 0o022
    except OSError:
        safe = False
    return folder if safe and os.access(folder, os.W_OK) else Path(tempfile.mkdtemp())


def _arguments(words: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    parser = argparse.ArgumentParser(
        prog="python -m tests.fakes.libraries",
        description="Run a command on a simulated machine.",
        usage="%(prog)s MACHINE [options] -- COMMAND [ARGUMENT ...]",
    )
    parser.add_argument("machine", help="name or path of a machine file")
    parser.add_argument("--gpus", type=int, metavar="N", help="give the machine N GPUs")
    parser.add_argument("--fail", action="append", default=[], metavar="'FUNCTION [gpu=N] CODE'")
    parser.add_argument("--hang", action="append", default=[], metavar="'FUNCTION [gpu=N]'")
    parser.add_argument("--die", action="append", default=[], metavar="'FUNCTION [gpu=N]'")
    parser.add_argument("--missing", action="append", default=[], metavar="SYMBOL")
    parser.add_argument("--cupy", action="store_true", help="put the pretended CuPy in front")
    parser.add_argument("--script", default="", help="what happens on its GPUs; implies --cupy")
    parser.add_argument("--tree", type=Path, help="write /proc, /sys and /dev below this folder")
    here = list(words)
    cut = here.index("--") if "--" in here else len(here)
    return parser.parse_args(here[:cut]), here[cut + 1 :]


def _directory_of(machine: Machine) -> Path:
    """Return a folder by the machine's name, since the command replaces us before any clean-up."""
    text = repr(machine).encode("utf-8", "surrogatepass")
    return cache() / f"machine-{hashlib.sha256(text).hexdigest()[:24]}"


def main(words: Sequence[str]) -> int:
    """Run the command; it replaces this process."""
    options, command = _arguments(words)
    try:
        machine = load_machine(options.machine)
        if options.gpus is not None:
            machine = machine.with_gpus(options.gpus)
        machine = machine.broken(
            fail=options.fail, hang=options.hang, missing=options.missing, die=options.die
        )
        directory = _directory_of(machine)
        environment = {**os.environ, **build_libraries(machine, directory)}
        if options.tree is not None:
            environment["GPUCHECK_ROOT"] = os.fspath(write_tree(machine, options.tree).absolute())
        if options.cupy or options.script:
            chosen = os.environ.get("FAKE_GPU_TIME", "virtual")
            environment |= cupy_environment(options.script, time=chosen)
    except (MachineError, CompilerMissingError) as error:
        sys.stderr.write(f"{error}\n")
        return 125
    if not command:
        names = (
            "LD_LIBRARY_PATH",
            "FAKE_MACHINE_FILE",
            *(["GPUCHECK_ROOT"] if options.tree else []),
        )
        sys.stdout.write("".join(f"export {name}={environment[name]}\n" for name in names))
        return 0
    try:
        os.execvpe(command[0], command, environment)
    except OSError as error:
        sys.stderr.write(f"{command[0]}: {error.strerror}\n")
        return 127


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
