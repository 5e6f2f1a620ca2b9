"""The public API of the package, as a program uses it."""

from __future__ import annotations

import copy
import inspect
import json
import pickle
import re
import subprocess
import sys
from collections.abc import Callable
from fractions import Fraction
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, get_args, get_type_hints

import pytest

import gpucheck
from gpucheck.bench.model import BenchResult
from gpucheck.bench.sampler import Sampler
from gpucheck.cli.app import key_of
from gpucheck.cli.options import own_options
from gpucheck.drivers.readings import NvmlReading, ProbeFailure
from gpucheck.inventory.inventory import list_gpus
from gpucheck.report.errors import GpucheckError, InconclusiveError, MissingError, WrongUseError
from gpucheck.report.units import Amount
from tests.architecture.house import ROOT
from tests.conftest import scrubbed_environment
from tests.fakes.libraries import build_libraries, cupy_environment
from tests.fakes.machine import load_machine
from tests.fakes.probes import FakeProbes, gpu_reading, reading_of

PROGRAM = """
import sys, gpucheck
print([(gpu.index, gpu.cuda_index, gpu.name) for gpu in gpucheck.devices()])
try:
    gpucheck.peaks()
except gpucheck.BadAnswerError as error:
    print(error.message)
print(sorted({"numpy", "cupy", "pynvml", "rich", "typer"} & set(sys.modules)))
"""


def test_devices_and_peaks_ask_the_driver_and_import_nothing_heavy(
    c_compiler: str, tmp_path: Path
) -> None:
    environment = scrubbed_environment(
        {"PYTHONPATH": str(ROOT), **build_libraries(load_machine("mixed-order"), tmp_path)}
    )

    finished = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, check=True
    )

    assert finished.stdout.splitlines() == [
        "[(0, 1, 'Tesla T4'), (1, 0, 'NVIDIA A100-SXM4-40GB')]",
        "This machine has different boards: T4, A100 SXM 40 GB.",
        "[]",
    ]


def test_a_machine_without_a_driver_is_an_exception_that_says_so() -> None:
    failure = ProbeFailure(code="library-not-found", message="it is not there", library_code=12)

    with pytest.raises(MissingError) as caught:
        list_gpus(FakeProbes(readings=NvmlReading(failure=failure)))

    assert caught.value.message == "The GPUs cannot be listed: it is not there (NVML error 12)."


def test_a_hung_driver_is_not_a_missing_one() -> None:
    failure = ProbeFailure(code="driver-not-answering", message="nothing came")

    with pytest.raises(InconclusiveError):
        list_gpus(FakeProbes(readings=NvmlReading(failure=failure)))


def test_the_gpus_come_in_nvml_order() -> None:
    found = list_gpus(FakeProbes(readings=reading_of(gpu_reading(0), gpu_reading(1))))

    assert [gpu.index for gpu in found] == [0, 1]


def test_the_version_is_a_release() -> None:
    assert gpucheck.__version__.split(".")[0].isdigit()


# -------------------------------------------------------------------------------------- names

FUNCTIONS = ("bench", "devices", "diagnose", "limit_memory", "peaks", "place")
DOCUMENT = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")


def types_in(kind: Any, found: set[type] | None = None) -> set[type]:
    """Return the types of ours that a type is, holds, or is annotated with, to any depth."""
    found = set() if found is None else found
    for argument in get_args(kind):
        types_in(argument, found)
    if isinstance(kind, type) and kind.__module__.startswith("gpucheck.") and kind not in found:
        found.add(kind)
        for annotation in get_type_hints(kind, localns={"Host": gpucheck.Host}).values():
            types_in(annotation, found)
    return found


def test_each_type_of_a_result_has_a_public_name() -> None:
    errors = [getattr(gpucheck, name) for name in gpucheck.__all__ if name.endswith("Error")]
    results = (
        gpucheck.Gpu,
        gpucheck.PlacedDevice,
        gpucheck.LimitedMemory,
        gpucheck.BenchResult,
        gpucheck.Diagnosis,
        gpucheck.BoardPeaks,
    )
    types = set[type]().union(
        *(types_in(kind) for kind in (*results, gpucheck.MemoryLimit, *errors))
    )

    assert {kind.__name__ for kind in types} | {*FUNCTIONS, "__version__"} == set(gpucheck.__all__)
    assert types == {getattr(gpucheck, kind.__name__) for kind in types}


def test_each_public_name_is_in_the_documentation_and_no_other() -> None:
    named = re.findall(r"`gpucheck\.(\w+)", DOCUMENT) + re.findall(r"^\| `(\w+)\(", DOCUMENT, re.M)

    assert {*named, "__version__"} == set(gpucheck.__all__)


@pytest.mark.parametrize(
    "again", [copy.copy, copy.deepcopy, lambda error: pickle.loads(pickle.dumps(error))]
)
def test_an_error_reaches_another_process_whole(again: Callable[[object], object]) -> None:
    error = MissingError(code="no-gpu", message="There is no GPU.", remedy=("Buy one.",))
    error.details = ("In any shop.",)
    error.add_note("rank 3")

    found = again(error)

    assert isinstance(found, MissingError)
    assert (str(found), vars(found)) == ("There is no GPU.", vars(error))


def test_a_function_that_uses_the_package_can_be_sent_to_another_process() -> None:
    """cloudpickle sends the modules that a script's function names; it knows plain ones only."""
    assert pickle.loads(pickle.dumps(gpucheck)) is gpucheck


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="'nonsense'"):
        gpucheck.nonsense  # noqa: B018


def test_a_folder_does_not_hide_the_function_of_its_name() -> None:
    for name in ("bench", "place"):
        setattr(gpucheck, name, ModuleType(f"gpucheck.{name}"))

    assert inspect.isfunction(gpucheck.bench)
    assert inspect.isfunction(gpucheck.place)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_each_function_says_what_it_does_and_what_it_raises(name: str) -> None:
    function = getattr(gpucheck, name)
    text = inspect.getdoc(function) or ""

    assert "Raises:\n    GpucheckError: " in text


def test_bench_says_what_each_argument_is() -> None:
    words = set(re.findall(r"\w+", inspect.getdoc(gpucheck.bench) or ""))

    assert set(inspect.signature(gpucheck.bench).parameters) <= words


def test_importing_the_package_loads_nothing_of_it_but_itself() -> None:
    program = """
import sys
before = set(sys.modules)
import gpucheck
print(set(sys.modules) - before - {"__future__"})
"""

    finished = subprocess.run(
        [sys.executable, "-c", program],
        env=scrubbed_environment({"PYTHONPATH": str(ROOT)}),
        capture_output=True,
        text=True,
        check=True,
    )

    assert finished.stdout.strip() == "{'gpucheck'}"


# -------------------------------------------------------------------------------------- bench

BENCH = """
import json, sys, gpucheck
from gpucheck.report.codec import to_plain
result = gpucheck.bench(*json.loads(sys.argv[1]), **json.loads(sys.argv[2]))
print(json.dumps(to_plain(result)))
"""


def benched(*kernels: str, environment: dict[str, str], **options: Any) -> Any:
    """Return what a program of its own got, whose processor time nobody else shares."""
    finished = subprocess.run(
        [sys.executable, "-c", BENCH, json.dumps(kernels), json.dumps(options)],
        env=scrubbed_environment({"PYTHONPATH": str(ROOT), **environment}),
        capture_output=True,
        text=True,
        check=False,
    )
    assert finished.stderr == ""
    return json.loads(finished.stdout)


def test_bench_takes_what_the_command_takes() -> None:
    options = own_options(import_module("gpucheck.cli.bench").command)
    keys = {key_of(name, item) for name, item in options.items()}
    ours = inspect.signature(gpucheck.bench).parameters

    assert {*ours} - {*options} - keys == {"mode"}
    defaults = {name: item.default for name, item in ours.items() if name in options}
    del defaults["kernels"]
    assert len(defaults) > 8
    assert defaults == {name: options[name].default for name in defaults}


@pytest.mark.slow
def test_bench_measures_the_processor() -> None:
    result = gpucheck.bench(
        *("copy", "matmul"), device=["cpu"], mode="quick", size=64, budget_s=1.0, corruption_s=0.01
    )

    assert isinstance(result, BenchResult)
    # A busy machine has no time for rows of several threads.
    measured = [
        row for row in result.measurements if row.error is None or row.error.code != "no-time"
    ]
    assert measured
    assert {row.kernel for row in result.measurements} == {"copy", "matmul"}
    assert all(row.verified is not None and row.verified.ok for row in measured)
    assert all((row.time_s or 0) > 0 for row in measured)
    assert [(check.device, check.mismatches) for check in result.corruption] == [("cpu", 0)]


@pytest.mark.slow
def test_bench_measures_pretended_gpus_and_claims_them(c_compiler: str, tmp_path: Path) -> None:
    machine = load_machine("h100x8").with_gpus(2).with_small_memories()
    environment = {
        **build_libraries(machine, tmp_path / "libraries"),
        **cupy_environment("slow launch=20 kernel=100", time="modelled"),
        "GPUCHECK_CLAIMS_DIR": str(tmp_path / "claims"),
    }

    result = benched(
        "copy", environment=environment, device="gpu:1", mode="quick", size=64, budget_s=1.0
    )

    assert {row["device"] for row in result["measurements"]} == {"gpu:1"}
    assert all(row["verified"]["ok"] for row in result["measurements"])
    assert [gpu["cuda_index"] for gpu in result["environment"]["gpus"]] == [1]
    assert list((tmp_path / "claims").iterdir()), "it was measured without a claim"


@pytest.mark.parametrize(
    ("options", "kind", "code"),
    [
        ({"mode": "fast"}, WrongUseError, "usage"),
        ({"fill": "ones"}, WrongUseError, "usage"),
        ({"device": "tpu"}, WrongUseError, "bad-device"),
        ({"size": 0}, WrongUseError, "bad-size"),
        ({"dtype": ["float12"]}, WrongUseError, "unknown-dtype"),
        ({"corruption_s": -1.0}, WrongUseError, "bad-corruption"),
        ({"corruption_s": float("nan")}, WrongUseError, "bad-corruption"),
        ({"budget_s": float("inf")}, WrongUseError, "bad-budget"),
    ],
)
def test_what_makes_no_sense_is_an_exception_before_anything_is_measured(
    options: dict[str, Any], kind: type[GpucheckError], code: str
) -> None:
    with pytest.raises(kind) as caught:
        gpucheck.bench("copy", **{"device": "cpu", **options})

    assert caught.value.code == code


@pytest.mark.parametrize("options", [{"device": "gpu"}, {"require_gpu": True}])
def test_a_gpu_that_is_asked_for_and_is_not_here_is_an_exception(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpucheck.drivers.open_probes", FakeProbes)

    with pytest.raises(MissingError, match="no libcuda in this fake"):
        gpucheck.bench("copy", mode="quick", size=64, budget_s=0.1, **options)


def test_ctrl_c_ends_the_program_that_called(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Sampler, "take_slice", interrupted)

    with pytest.raises(KeyboardInterrupt):
        gpucheck.bench("copy", device="cpu", mode="quick", size=64)


# ---------------------------------------------------------------------------------- wrong kinds


@pytest.mark.parametrize("amount", [30, 1, True, None, 0.0, -0.3, 1.5, float("nan"), b"30%"])
def test_an_amount_of_another_kind_is_wrong_use(amount: object) -> None:
    with pytest.raises(gpucheck.WrongUseError, match="limit_memory takes a text such as '30%'"):
        gpucheck.limit_memory(amount)  # type: ignore[arg-type]


@pytest.mark.parametrize(("amount", "share"), [(0.3, "3/10"), (1.0, "1"), (0.05, "1/20")])
def test_a_float_is_a_share(monkeypatch: pytest.MonkeyPatch, amount: float, share: str) -> None:
    from gpucheck.memlimit import api

    seen: list[Amount] = []

    def plan(wanted: Amount, *_: object, **__: object) -> None:
        seen.append(wanted)
        raise MissingError(code="enough", message="Seen.")

    monkeypatch.setattr(api, "plan_limit", plan)
    probes = FakeProbes(readings=reading_of(gpu_reading(0)))

    with pytest.raises(MissingError):
        api.limit_memory(amount, probes=probes)

    assert [item.share for item in seen] == [Fraction(share)]


@pytest.mark.parametrize(
    ("words", "options"),
    [
        ((0,), {}),
        ((), {"count": "2"}),
        (("/cpu:0",), {"soft": "no"}),
        (("/cpu:0",), {"claim": "no"}),
        (("/cpu:0",), {"wait": 1}),
    ],
    ids=str,
)
def test_a_device_of_another_kind_is_wrong_use(
    words: tuple[object, ...], options: dict[str, object]
) -> None:
    with pytest.raises(gpucheck.WrongUseError, match=r"takes .*, not "):
        gpucheck.place(*words, **options).__enter__()  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "options", [{"framework": 3}, {"deadline_s": "20"}, {"deadline_s": True}], ids=str
)
def test_a_diagnosis_of_another_kind_is_wrong_use(options: dict[str, Any]) -> None:
    with pytest.raises(gpucheck.WrongUseError, match=r"takes .*, not "):
        gpucheck.diagnose(**options)


@pytest.mark.parametrize(
    ("kernels", "options"),
    [
        (("matmul",), {"size": "big"}),
        (("matmul",), {"size": 3.5}),
        ((7,), {}),
        ((), {"device": 0}),
        ((), {"device": [0]}),
        ((), {"dtype": 32}),
        ((), {"budget_s": "10"}),
        ((), {"seed": None, "temperature": "hot"}),
        ((), {"data_file": 3}),
        ((), {"same_math": "no"}),
        ((), {"require_gpu": "no"}),
        ((), {"corruption_s": "10"}),
    ],
    ids=str,
)
def test_a_measurement_of_another_kind_is_wrong_use(
    kernels: tuple[object, ...], options: dict[str, object]
) -> None:
    with pytest.raises(gpucheck.WrongUseError, match=r"takes .*, not "):
        gpucheck.bench(*kernels, **options)  # type: ignore[arg-type]
