"""The pretended libraries, asked by the real pynvml and by ctypes in child processes."""

import contextlib
import importlib.util
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.libraries import CompilerMissingError, build_libraries, compiled, functions
from tests.fakes.machine import (
    Machine,
    MachineError,
    load_machine,
)
from tests.report.formats.recorded import in_sections, recorded

pytestmark = pytest.mark.usefixtures("c_compiler")

HERE = Path(__file__).resolve().parent


def read_toml(name: str) -> dict[str, Any]:
    return tomllib.loads((HERE.parent / "data" / f"{name}.toml").read_text(encoding="utf-8"))


TABLE = read_toml("nvml_calls")
Call = list[Any]


def child_environment(machine: Machine, directory: Path, **extra: str) -> dict[str, str]:
    kept = {name: os.environ[name] for name in ("HOME", "PATH") if name in os.environ}
    return {**kept, "LANG": "C.UTF-8", **build_libraries(machine, directory), **extra}


def answers_of(
    machine: Machine, calls: Iterable[Call], folder: Path, **variables: str
) -> list[Any]:
    """Make pynvml calls on a machine: values, or ``{"error": …}`` where one failed."""
    finished = subprocess.run(
        [sys.executable, str(HERE / "nvml_caller.py")],
        input=json.dumps([["nvmlInit"], *calls]),
        env=child_environment(machine, folder, **variables),
        capture_output=True,
        encoding="utf-8",
        check=True,
    )
    return [each.get("value", each) for each in json.loads(finished.stdout)][1:]


@pytest.fixture
def ask(tmp_path: Path) -> Callable[..., list[Any]]:
    """Return what makes calls on a machine."""
    return lambda machine, calls, **variables: answers_of(machine, calls, tmp_path, **variables)


@pytest.fixture
def cuda(tmp_path: Path) -> Callable[..., Any]:
    """Ask libcuda on a machine, with the environment variables given."""

    def ask_cuda(machine: Machine, **variables: str) -> Any:
        finished = subprocess.run(
            [sys.executable, "-I", "-S", str(HERE / "cuda_caller.py")],
            env=child_environment(machine, tmp_path, **variables),
            capture_output=True,
            encoding="utf-8",
            check=True,
        )
        return json.loads(finished.stdout)

    return ask_cuda


def changed(row: dict[str, Any]) -> Machine:
    """Return the machine of a row, with the row's changes."""
    machine = load_machine(row["machine"]).broken(fail=row.get("fail", ()))
    machine = machine.with_driver(**_in_tuples(row.get("driver", {})))
    for index in (0, 1):
        readings = _in_tuples(row.get(f"gpu_{index}", {}))
        if "fields" in readings:
            readings["fields"] = dict(readings["fields"])
        machine = machine.with_gpu(index, **readings) if readings else machine
    return machine.with_gpus(row["gpus"]) if "gpus" in row else machine


def _in_tuples(values: dict[str, Any]) -> dict[str, Any]:
    return {key: tuple(v) if isinstance(v, list) else v for key, v in values.items()}


def spelt(machine: Machine, value: Any) -> Any:
    """Return an argument of a call; `UUID 5` and the like stand for names of the machine."""
    if not isinstance(value, str):
        return value
    word, _, number = value.rpartition(" ")
    mig = machine.gpus[0].mig if machine.gpus else ()
    names: dict[str, Callable[[int], str | None]] = {
        "UUID": lambda at: machine.gpus[at].uuid,
        "SERIAL": lambda at: machine.gpus[at].serial,
        "MIG": lambda at: mig[at].uuid,
        "OLD MIG": lambda at: f"MIG-{machine.gpus[0].uuid}/{mig[at].gpu_instance_id}/0",
    }
    return names[word](int(number)) if word in names else None if value == "null" else value


def shown(call: Call, answer: Any) -> str:
    """Return a call and its answer as a line, without the moments that stand in some."""
    name, *arguments = call
    for part in answer if isinstance(answer, list) else [answer]:
        if isinstance(part, dict):
            part.pop("timeStamp", None)
            part.pop("referenceTime", None)
    return f"{name} {json.dumps(arguments)[1:-1]} -> {json.dumps(answer)}\n"


@pytest.mark.parametrize("name", TABLE["readings"]["machines"])
def test_every_reading_of_a_machine_is_as_recorded(
    name: str, ask: Callable[..., list[Any]]
) -> None:
    machine, calls = load_machine(name), TABLE["readings"]["calls"]
    gpus = [{"gpu": gpu.index} for gpu in machine.gpus]

    answers = iter(ask(machine, [[call[0], gpu, *call[1:]] for call in calls for gpu in gpus]))
    text = ""
    for call in calls:
        said = [next(answers) for _ in gpus]
        # A reading that is the same on all GPUs stands there once.
        text += shown(call, said[0] if said.count(said[0]) == len(said) > 1 else said)

    assert text == recorded(f"nvml-{name}", text)


def test_calls_are_answered_as_recorded(tmp_path: Path) -> None:
    sections = {}
    for number, (name, row) in enumerate(TABLE.items()):
        if name == "readings":
            continue
        machine = changed(row)
        folder = tmp_path / str(number)
        folder.mkdir()
        calls = [[spelt(machine, value) for value in call] for call in row["calls"]]
        said = zip(calls, answers_of(machine, calls, folder), strict=True)
        sections[name] = "".join(shown(call, answer) for call, answer in said)
    text = in_sections(sections)

    assert text == recorded("nvml-calls", text)


def test_readings_are_those_of_the_machine_file(ask: Callable[..., list[Any]]) -> None:
    """A few, so that the recorded ones are known to come from there."""
    machine = load_machine("h100x8").with_gpu(3, temperature_c=77, fan_percent=12, power_mw=5)
    calls = ("nvmlDeviceGetFanSpeed", "nvmlDeviceGetPowerUsage", "nvmlDeviceGetUUID")

    answers = ask(machine, [[name, {"gpu": 3}] for name in calls])

    assert answers == [12, 5, machine.gpus[3].uuid]


def test_names_may_be_any_bytes(ask: Callable[..., list[Any]]) -> None:
    machine = load_machine("busy").with_gpu(0, name="caf\udce9 \\ GPU\nx")
    answers = ask(
        machine,
        [
            ["nvmlSystemGetProcessName", 3003],
            ["nvmlSystemGetProcessName", 3005],
            ["nvmlSystemGetProcessName", 99999],
            ["nvmlDeviceGetName", {"gpu": 0}],
        ],
    )
    # pynvml itself cannot decode them, so callers must handle that.
    assert answers == [
        {"error": "UnicodeDecodeError"},
        "[red]markup[/red]\nline",
        {"error": 6},
        {"error": "UnicodeDecodeError"},
    ]


@pytest.mark.parametrize(
    "override",
    [
        {"missing": ["nvmlDeviceGetNonsense"]},
        {"fail": ["nvmlDeviceGetNonsense 3"]},
        {"fail": ["nvmlNonsense* 3"]},
        {"fail": ["nvmlDeviceGetName gpu=1 3"]},
        {"hang": ["nvmlDeviceGetNonsense"]},
    ],
)
def test_a_fault_without_a_function_or_gpu_is_refused(
    override: dict[str, list[str]], tmp_path: Path
) -> None:
    with pytest.raises(MachineError, match=r"Nonsense|not there"):
        build_libraries(load_machine("t4").broken(**override), tmp_path)


def test_every_call_is_logged(ask: Callable[..., list[Any]], tmp_path: Path) -> None:
    log = tmp_path / "calls"
    ask(
        load_machine("h100x8"),
        [["nvmlDeviceGetName", {"gpu": 3}], ["nvmlDeviceGetCount"], ["nvmlShutdown"]],
        FAKE_CALL_LOG=str(log),
    )
    assert log.read_text().splitlines() == [
        "nvmlInitWithFlags -",
        "nvmlDeviceGetHandleByIndex_v2 3",
        "nvmlDeviceGetName 3",
        "nvmlDeviceGetCount_v2 -",
        "nvmlShutdown -",
    ]


@contextlib.contextmanager
def hanging_child(
    machine: Machine, program: str, call: str, directory: Path, **variables: str
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a program until it has made a call, and kill it at the end."""
    log = directory / "calls"
    os.mkfifo(log)
    environment = child_environment(machine, directory, FAKE_CALL_LOG=str(log), **variables)
    child = subprocess.Popen([sys.executable, "-c", program], env=environment)
    try:
        # The pipe shows the child's progress, however slow this machine is.
        with log.open() as lines:
            assert any(line == f"{call}\n" for line in lines)
            yield child
    finally:
        child.kill()
        child.wait()


def is_running(child: subprocess.Popen[bytes]) -> bool:
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.wait(timeout=0.3)
    return child.returncode is None


READ_TEMPERATURES = """
import pynvml
pynvml.nvmlInit()
for gpu in (0, 1, 2):
    pynvml.nvmlDeviceGetTemperature(pynvml.nvmlDeviceGetHandleByIndex(gpu), 0)
"""


@pytest.mark.parametrize("stubborn", ["", "1"])
def test_a_hanging_call_never_returns(stubborn: str, tmp_path: Path) -> None:
    with hanging_child(
        load_machine("hung-gpu"),
        READ_TEMPERATURES,
        "nvmlDeviceGetTemperature 1",
        tmp_path,
        FAKE_HANG_IGNORES_TERM=stubborn,
    ) as child:
        assert is_running(child)
        child.send_signal(signal.SIGTERM)
        if stubborn:
            assert is_running(child)
        else:
            assert child.wait() == -signal.SIGTERM


@pytest.mark.parametrize(
    ("program", "call"),
    [
        ("import pynvml; pynvml.nvmlInit()", "nvmlInitWithFlags -"),
        ("import ctypes; ctypes.CDLL('libcuda.so.1').cuInit(0)", "cuInit -"),
    ],
)
def test_nothing_answers_on_the_hung_machine(program: str, call: str, tmp_path: Path) -> None:
    with hanging_child(load_machine("hung"), program, call, tmp_path) as child:
        assert is_running(child)


def test_a_library_can_go_and_come_back_in_one_folder(
    ask: Callable[..., list[Any]],
) -> None:
    machine = load_machine("t4")
    for present, expected in ((True, None), (False, {"error": 12}), (True, None)):
        assert ask(machine.with_driver(nvml=present), [["nvmlInit"]]) == [expected]


def test_the_file_carries_the_drivers_version(tmp_path: Path) -> None:
    build_libraries(load_machine("t4"), tmp_path)
    assert (tmp_path / "lib" / "libnvidia-ml.so.1").resolve().name == "libnvidia-ml.so.550.163.01"


def test_variables_of_the_host_reach_the_child(tmp_path: Path) -> None:
    environment = build_libraries(load_machine("container-without-gpus"), tmp_path)
    assert environment["NVIDIA_VISIBLE_DEVICES"] == "all"


def test_parallel_builds_of_one_library_agree(tmp_path: Path) -> None:
    code = (
        "from tests.fakes.libraries import compiled; "
        "print(compiled('cublaslt').read_bytes().hex()[:9])"
    )
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache")}

    def build(_: int) -> str:
        return subprocess.run(
            [sys.executable, "-c", code],
            env=environment,
            cwd=HERE.parent.parent,
            capture_output=True,
            encoding="utf-8",
            check=True,
        ).stdout

    with ThreadPoolExecutor() as pool:
        assert list(pool.map(build, range(2))) == [build(0)] * 2
    (folder,) = (tmp_path / "cache").iterdir()
    assert folder.stat().st_mode & 0o077 == 0
    assert len(list(folder.iterdir())) == 1


def test_a_machine_without_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.fakes.libraries.compiler", lambda: None)
    with pytest.raises(CompilerMissingError):
        compiled("nvml")


def test_no_symbol_is_misspelt() -> None:
    source = importlib.util.find_spec("pynvml")
    assert source is not None
    assert source.origin is not None
    text = Path(source.origin).read_text(encoding="utf-8")
    called = set(re.findall(r'_nvmlGetFunctionPointer\("(\w+)"\)', text))
    known = {re.sub(r"_v\d+$", "", name) for name in called} | {"nvmlInit"}
    strange = {name for name in functions("nvml") if re.sub(r"_v\d+$", "", name) not in known}
    assert strange == set()


# CUDA: which devices a program sees.


def seen_by(answer: Any) -> list[str]:
    assert answer["code"] in (0, 100)
    assert (answer["code"] == 0) == bool(answer["devices"])
    assert all(code == 0 for device in answer["devices"] for code in device["codes"])
    return [device["uuid"] for device in answer["devices"]]


def visible(machine: Machine, text: str) -> str:
    """Return a value of the variable, in which U2, P2 and M2 stand for names of the machine."""
    mig = machine.gpus[0].mig
    text = re.sub(r"\bU(\d)", lambda m: machine.gpus[int(m[1])].uuid, text)
    text = re.sub(r"\bP(\d)", lambda m: machine.gpus[int(m[1])].uuid[:12], text)
    return re.sub(r"\bM(\d)", lambda m: mig[int(m[1])].uuid, text)


def test_the_devices_that_cuda_shows_are_as_recorded(cuda: Callable[..., Any]) -> None:
    text = ""
    for name, row in read_toml("cuda_visible").items():
        known = load_machine(name)
        names = {gpu.uuid[4:]: str(gpu.index) for gpu in known.gpus}
        names |= {part.uuid[4:]: f"0:{part.index}" for gpu in known.gpus for part in gpu.mig}
        for version, order in product(row.get("versions", [""]), row.get("orders", [""])):
            machine = known.with_driver(version=version) if version else known
            for value in row["values"]:
                variables = {"CUDA_DEVICE_ORDER": order} if order else {}
                if value != "unset":
                    variables["CUDA_VISIBLE_DEVICES"] = visible(machine, value)
                seen = " ".join(names[uuid] for uuid in seen_by(cuda(machine, **variables)))
                text += f"{name} {version} {order} {value!r}: {seen or 'none'}\n"

    assert text == recorded("cuda-visible", text)


def test_what_cuda_says_about_its_devices_is_as_recorded(cuda: Callable[..., Any]) -> None:
    without = load_machine("a100-mig").with_gpu(0, mig=(), processes=())
    names = ("mixed-order", "a100-mig", "old-driver", "driver-not-loaded", "version-mismatch")
    said = {name: json.dumps(cuda(load_machine(name)), indent=1) for name in names}
    said["a100-mig without instances"] = json.dumps(cuda(without), indent=1)
    text = in_sections(said)

    assert text == recorded("cuda-devices", text)
    assert seen_by(cuda(without, CUDA_VISIBLE_DEVICES="0")) == []


# The command line, and other people's programs.


def by_hand(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tests.fakes.libraries", *words],
        cwd=HERE.parent.parent,
        capture_output=True,
        encoding="utf-8",
        check=False,
    )


def test_a_command_runs_on_the_machine() -> None:
    count = "import pynvml as n; n.nvmlInit(); raise SystemExit(n.nvmlDeviceGetCount())"
    assert by_hand("h100x8", "--", sys.executable, "-c", count).returncode == 8
    assert by_hand("h100x8", "--gpus", "13", "--", sys.executable, "-c", count).returncode == 13


def test_faults_can_be_given_by_hand(tmp_path: Path) -> None:
    name = "import pynvml as n; n.nvmlInit(); n.nvmlDeviceGetName(n.nvmlDeviceGetHandleByIndex(0))"
    failed = by_hand("t4", "--fail", "nvmlDeviceGetName 15", "--", sys.executable, "-c", name)
    assert "GPU is lost" in failed.stderr
    absent = by_hand("t4", "--missing", "nvmlDeviceGetName", "--", sys.executable, "-c", name)
    assert "Function Not Found" in absent.stderr
    tree = by_hand(
        "t4", "--tree", str(tmp_path), "--", "cat", f"{tmp_path}/sys/module/nvidia/version"
    )
    assert tree.stdout == "550.163.01\n"
    root = by_hand("t4", "--tree", str(tmp_path), "--", "printenv", "GPUCHECK_ROOT")
    assert root.stdout == f"{tmp_path}\n"


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (("nothing", "--", "true"), 125, "no such machine; there are a100-mig"),
        (("t4", "--fail", "nvmlDeviceGetName", "--", "true"), 125, "an error code is needed"),
        (("t4", "--hang", "nvmlDeviceGetName 3", "--", "true"), 125, "cannot read '3'"),
        (("no-driver", "--", "no-such-command"), 127, "No such file"),
    ],
)
def test_what_goes_wrong_by_hand(words: tuple[str, ...], code: int, text: str) -> None:
    finished = by_hand(*words)
    assert finished.returncode == code
    assert text in finished.stderr


def test_without_a_command_the_variables_are_printed() -> None:
    assert re.fullmatch(
        r"export LD_LIBRARY_PATH=\S+\nexport FAKE_MACHINE_FILE=\S+\n", by_hand("t4").stdout
    )


def program_path(name: str) -> str:
    found = shutil.which(name, path=f"{Path(sys.executable).parent}:{os.environ.get('PATH', '')}")
    if found is None:
        pytest.skip(f"{name} is not installed")
    return found


def test_nvitop_prints_every_gpu(tmp_path: Path) -> None:
    machine = load_machine("h100x8")
    finished = subprocess.run(
        [program_path("nvitop"), "-1", "--ascii"],
        env=child_environment(machine, tmp_path),
        capture_output=True,
        encoding="utf-8",
        check=True,
    )
    rows = finished.stdout.splitlines()
    for gpu in machine.gpus:
        bus_id = f"0000{gpu.pci_bus_id}".upper()
        (number,) = (at for at, row in enumerate(rows) if bus_id in row)
        assert "H100 80GB HBM3" in rows[number]
        assert f"{gpu.temperature_c}C" in rows[number + 1]
        assert f"{gpu.utilization_gpu_percent}%" in rows[number + 1]
    for gpu in machine.gpus:
        for process in gpu.processes:
            assert any(f"{gpu.index}   {process.pid} C" in row for row in rows)


def test_gpustat_reads_every_gpu(tmp_path: Path) -> None:
    machine = load_machine("h100x8")
    finished = subprocess.run(
        [program_path("gpustat"), "--json"],
        env=child_environment(machine, tmp_path),
        capture_output=True,
        encoding="utf-8",
        check=True,
    )
    document = json.loads(finished.stdout)
    assert document["driver_version"] == machine.driver.version
    found = [
        (gpu["uuid"], gpu["temperature.gpu"], gpu["power.draw"], gpu["memory.total"])
        for gpu in document["gpus"]
    ]
    assert found == [
        (gpu.uuid, gpu.temperature_c, (gpu.power_mw or 0) // 1000, gpu.memory_total_bytes >> 20)
        for gpu in machine.gpus
    ]
