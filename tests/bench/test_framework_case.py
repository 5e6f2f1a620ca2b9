"""Cases of frameworks: every kernel, form and device is asked for, computed and checked."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpucheck.bench.case import Case
from gpucheck.bench.framework_case import framework_cases
from gpucheck.bench.frameworks import (
    FORMS,
    Framework,
    Frameworks,
    interpreters_of,
    open_frameworks,
    parse_framework,
)
from gpucheck.bench.kernels import KERNELS
from gpucheck.bench.model import Scope
from gpucheck.bench.request_model import BenchMode, BenchRequest
from gpucheck.drivers.python.framework_bench import LACKS, MISSING
from gpucheck.report.envelope import Failure
from gpucheck.report.errors import BadAnswerError, MissingError, WrongUseError
from tests.fakes.bench import FakeClock, FakeGpu, order
from tests.fakes.libraries import build_libraries, compiler, cupy_environment
from tests.fakes.machine import load_machine

STAND_INS = Path(__file__).parents[1] / "fakes" / "frameworks"
NAMED = [name for name in FORMS if name != "cupy"]
EDGE = 16


class Opened:
    """Frameworks of a test, and what their stand-ins were asked for."""

    def __init__(self, frameworks: Frameworks, calls: Path) -> None:
        self.frameworks = frameworks
        self._calls = calls

    def take_calls(self) -> list[str]:
        """Return the calls since the last time."""
        found = self._calls.read_text(encoding="utf-8").splitlines()
        self._calls.write_text("", encoding="utf-8")
        return found


@pytest.fixture(name="opened")
def _opened(tmp_path: Path) -> Iterator[Callable[..., Opened]]:
    calls = tmp_path / "calls"
    closing: list[Any] = []

    def opened(
        *names: str, gpus: Sequence[FakeGpu] = (), same_math: bool = False, **variables: str
    ) -> Opened:
        calls.write_text("", encoding="utf-8")
        environment = {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(STAND_INS),
            "FRAMEWORK_CALLS": str(calls),
            "FAKE_CARD": "Fake GPU",
            "FAKE_FRAMEWORK": f"gpus={len(gpus)}",
            **variables,
        }
        texts = tuple(f"{name}={sys.executable}" for name in names)
        request = BenchRequest(frameworks=texts, same_math=same_math)
        facts = [gpu.facts for gpu in gpus]
        block = open_frameworks(request, environment, threads=2, gpus=facts)
        frameworks = block.__enter__()
        closing.append(block)
        frameworks.wait(lambda text: None)
        return Opened(frameworks, calls)

    yield opened
    for block in closing:
        block.__exit__(None, None, None)


def cases_of(
    framework: Framework, kernel: str, gpu: FakeGpu | None, dtype: str = "float32", **more: Any
) -> Sequence[Case]:
    made = KERNELS[kernel]
    shape = made.shape(more.pop("size", EDGE))
    taken = order(shape=shape, dtype=dtype, **more)
    return framework_cases(made, taken, framework, gpu and gpu.facts)


def measured(case: Case) -> None:
    """Take a case through a slice, as the engine does."""
    try:
        case.prepare()
        case.poison()
        assert case.run(1) > 0
        assert case.check().ok, case.label.text
        assert case.run(2) > 0
        assert case.check().ok, case.label.text
    finally:
        case.release()


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMED)
def test_processor_runs_every_kernel_in_every_form(
    name: str, opened: Callable[..., Opened]
) -> None:
    (framework,) = opened(name).frameworks.members

    forms: dict[str, list[str]] = {}
    for kernel in ("matmul", "softmax", "copy", "transfer", "train", "batch"):
        cases = cases_of(framework, kernel, None)
        forms[kernel] = [case.label.framework.form for case in cases if case.label.framework]
        for case in cases:
            measured(case)
            assert case.label.device == "cpu"
            assert case.label.threads == 2
            assert case.label.variant == kernel
            assert case.label.framework == framework.use(case.label.framework.form)

    assert forms["matmul"] == forms["softmax"] == list(FORMS[name])
    assert forms["transfer"] == []
    assert "eager-out" not in forms["train"]
    assert len(set(forms["batch"])) == 1 < len(forms["batch"])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "product", "waits"),
    [
        ("pytorch", "matmul float32 on cuda:1 out=False tf32=False", "synchronize cuda:1"),
        ("tensorflow", "matmul float32 on /device:GPU:1 tf32=True", "sync_devices"),
        ("jax", "matmul float32 on gpu:1 precision=None", "block_until_ready on gpu:1"),
    ],
)
def test_second_gpu_runs_every_kernel_in_every_form(
    name: str, product: str, waits: str, opened: Callable[..., Opened]
) -> None:
    clock = FakeClock()
    gpus = [FakeGpu(clock, cuda_index=number, l2_bytes=2**12) for number in range(2)]
    found = opened(name, gpus=gpus)
    (framework,) = found.frameworks.members

    kinds = set()
    for kernel in ("matmul", "softmax", "copy", "transfer", "train", "batch"):
        found.take_calls()
        for case in cases_of(framework, kernel, gpus[1]):
            measured(case)
            assert (case.label.device, case.label.gpu_uuid) == ("gpu:1", gpus[1].facts.uuid)
            kinds.add((kernel, case.label.variant, case.label.scope))
        calls = found.take_calls()
        assert any(waits in call for call in calls), kernel
        if kernel == "matmul":
            assert product in calls

    assert ("matmul", "matmul", Scope.END_TO_END) in kinds
    assert ("train", "copied", Scope.END_TO_END) in kinds
    assert ("transfer", "to-gpu-pageable", Scope.RESIDENT) in kinds
    assert (("transfer", "from-gpu-pinned", Scope.RESIDENT) in kinds) is (name == "pytorch")


def test_inputs_rotate_so_that_none_stays_in_the_cache(opened: Callable[..., Opened]) -> None:
    gpu = FakeGpu(FakeClock(), l2_bytes=2**20)
    found = opened("pytorch", gpus=[gpu])
    case = cases_of(found.frameworks.members[0], "copy", gpu)[0]
    found.take_calls()

    measured(case)

    walked = case.walked_and_cache_bytes
    assert walked is not None
    sets, copies = walked[0] // case.work.bytes_moved, 3  # of one run, and of two at once
    assert found.take_calls().count("clone float32 on cuda:0") == sets - 1 + copies


@pytest.mark.slow
@pytest.mark.skipif(compiler() is None, reason="no C compiler for the pretended driver")
def test_cupy_runs_every_kernel_on_a_second_gpu(
    opened: Callable[..., Opened], tmp_path: Path
) -> None:
    machine = load_machine("t4").with_gpu(0, name="Fake GPU").with_gpus(2)
    pretended = build_libraries(machine, tmp_path / "lib") | cupy_environment()
    fakes = [FakeGpu(FakeClock(), cuda_index=number, l2_bytes=2**12) for number in range(2)]
    gpus: list[Any] = [SimpleNamespace(facts=replace(fake.facts, uuid=None)) for fake in fakes]
    (framework,) = opened("cupy", gpus=gpus, **pretended).frameworks.members

    kinds = set()
    for kernel in ("matmul", "softmax", "copy", "transfer", "train", "batch"):
        dtypes = ("float32", "float16") if kernel in ("matmul", "softmax") else ("float32",)
        for dtype in dtypes:
            for case in cases_of(framework, kernel, gpus[1], dtype):
                measured(case)
                form = case.label.framework and case.label.framework.form
                kinds.add((kernel, case.label.variant, form, case.label.scope))

    assert ("softmax", "softmax", "eager-out", Scope.RESIDENT) in kinds
    assert ("softmax", "softmax", "eager", Scope.END_TO_END) in kinds
    assert ("copy", "copy", "eager-out", Scope.RESIDENT) in kinds
    assert ("transfer", "from-gpu-pinned", "eager-out", Scope.RESIDENT) in kinds
    assert ("train", "copied", "eager", Scope.END_TO_END) in kinds


def test_rows_of_a_framework_that_uses_tf32_say_so_and_have_its_bound(
    opened: Callable[..., Opened],
) -> None:
    gpu = FakeGpu(FakeClock())
    tensorflow, pytorch = opened("tensorflow", "pytorch", gpus=[gpu]).frameworks.members

    default = cases_of(tensorflow, "matmul", gpu)[0]
    assert default.label.dtype.math_mode == "tf32"
    assert cases_of(tensorflow, "matmul", None)[0].label.dtype.math_mode == "fp32"
    assert cases_of(pytorch, "matmul", gpu)[0].label.dtype.math_mode == "fp32"
    # The row of float32 is that of tf32: there is no second one.
    assert cases_of(tensorflow, "matmul", gpu, "tf32") == ()
    asked = cases_of(pytorch, "matmul", gpu, "tf32")[0]
    assert asked.label.dtype.math_mode == "tf32"
    measured(asked)
    older = FakeGpu(FakeClock(), compute_capability="7.5")
    assert cases_of(tensorflow, "matmul", older)[0].label.dtype.math_mode == "fp32"


def test_same_math_turns_reduced_precision_off(opened: Callable[..., Opened]) -> None:
    gpu = FakeGpu(FakeClock())
    found = opened("tensorflow", "pytorch", "jax", gpus=[gpu], same_math=True)

    for framework in found.frameworks.members:
        found.take_calls()
        case = cases_of(framework, "matmul", gpu)[0]
        measured(case)
        products = [call for call in found.take_calls() if call.startswith("matmul")]
        assert case.label.dtype.math_mode == "fp32"
        assert all("tf32=False" in call or "precision=highest" in call for call in products)
    facts = {one.name: one.math_settings for one in found.frameworks.facts()}
    assert facts["pytorch"]["allow_bf16_reduced_precision_reduction"] == "False"
    assert facts["tensorflow"]["tensor_float_32_execution_enabled"] == "False"
    assert facts["jax"]["jax_default_matmul_precision"] == "highest"


@pytest.mark.parametrize("dtype", ["float64", "float16", "bfloat16"])
def test_further_formats_are_verified_too(dtype: str, opened: Callable[..., Opened]) -> None:
    for framework in opened("pytorch", "tensorflow", "jax").frameworks.members:
        for case in cases_of(framework, "matmul", None, dtype):
            measured(case)
            assert case.label.dtype.input == dtype


def test_a_wrong_product_is_found(opened: Callable[..., Opened]) -> None:
    (framework,) = opened("pytorch", FAKE_FRAMEWORK="run=wrong").frameworks.members
    case = cases_of(framework, "matmul", None)[0]

    case.prepare()
    case.poison()
    case.run(1)

    assert not case.check().ok
    case.release()


def test_a_gpu_that_the_framework_does_not_see_is_the_rows_error(
    opened: Callable[..., Opened],
) -> None:
    gpu = FakeGpu(FakeClock())
    (framework,) = opened("jax", gpus=[gpu], FAKE_FRAMEWORK="gpus=0").frameworks.members
    case = cases_of(framework, "copy", gpu)[0]

    with pytest.raises(BadAnswerError, match=r"JAX 0\.99\.0 .* does not see gpu:0, Fake") as caught:
        case.prepare()

    assert caught.value.code == LACKS
    case.release()


class Timed:
    """Process of a framework whose product of each edge takes so many seconds."""

    interpreter = SimpleNamespace(path="/bin/python")
    running = True

    def __init__(self, seconds: dict[int, float]) -> None:
        self.facts: dict[str, object] = {}
        self.name = "pytorch"
        self.forms: list[str] = []
        self.loops: list[int] = []
        self._seconds, self._edge = seconds, 0

    def ask(self, request: dict[str, Any], deadline_s: float) -> dict[str, Any]:
        if request["ask"] == "prepare":
            self._edge = request["output"]["shape"][0]
            self.forms.append(request["form"])
        if request["ask"] == "run":
            self.loops.append(request["loops"])
        if request["ask"] == "run" and self._edge not in self._seconds:
            raise BadAnswerError(code="framework-died", message="it was ended")
        return {"seconds": self._seconds.get(self._edge), "handed_s": 0.0}


@pytest.mark.parametrize(
    ("seconds", "edge", "expected_s"),
    [
        # Growing by 16 with each doubling, where the work grows by 8.
        ({256: 0.01, 512: 0.1, 1024: 1.6}, 2048, 25.6),
        ({256: 0.01, 512: 0.3}, 2048, 0.3 * 30**2),
        ({256: 0.3}, 2048, 0.3 * 8**3),
        ({256: 1e-3, 512: 2e-3}, 1024, 16e-3),
        ({}, 256, None),
        ({256: 0.01}, 2048, None),  # it died
    ],
)
def test_a_16_bit_product_is_tried_out_before_it_takes_the_time_of_all_others(
    seconds: dict[int, float], edge: int, expected_s: float | None
) -> None:
    process: Any = Timed(seconds)
    framework = Framework(process=process)

    found = [
        case.trial_s() for case in cases_of(framework, "matmul", None, dtype="float16", size=edge)
    ]

    wanted = None if expected_s is None else pytest.approx(expected_s)
    assert found == [wanted] * len(FORMS["pytorch"])
    tried = 0 if expected_s is None and not seconds else max(1, len(seconds))
    assert process.forms[:tried] == ["eager"] * tried
    assert process.loops == [1] * len(process.loops)
    assert [case.trial_s() for case in cases_of(framework, "matmul", None, size=edge)] == [None] * 3


def test_training_on_the_processor_copies_nothing_and_names_batch_and_rate() -> None:
    process: Any = Timed({})

    cases = cases_of(Framework(process=process), "train", None)

    assert {case.label.variant for case in cases} == {"train"}
    assert all(case.parameters() == {"batch": EDGE, "rate": 0.1} for case in cases)


def test_a_gpu_is_the_frameworks_if_name_and_uuid_are_the_drivers() -> None:
    gpu = FakeGpu(FakeClock()).facts
    digits = (gpu.uuid or "").removeprefix("GPU-")
    process: Any = Timed({})
    process.gpu_uuids = (gpu.uuid,)
    framework = Framework(process=process)

    for seen, place in (
        ({"name": gpu.name, "uuid": digits}, "gpu:0"),
        ({"name": gpu.name, "uuid": "1" * len(digits)}, None),
        ({"name": gpu.name}, "gpu:0"),
        ({"name": "another"}, None),
    ):
        process.facts["gpus"] = [seen]
        assert framework.place_of(gpu) == place


def test_a_framework_numbers_gpus_in_the_order_in_which_it_was_given_them() -> None:
    gpu = FakeGpu(FakeClock(), cuda_index=2).facts
    process: Any = Timed({})
    process.facts["gpus"] = [{"name": gpu.name}] * 3
    framework = Framework(process=process)

    for given, place in (
        ((gpu.uuid,), "gpu:0"),
        (("GPU-another", gpu.uuid), "gpu:1"),
        (("GPU-another",), "gpu:2"),
        (("GPU-another",) * 3 + (gpu.uuid,), None),
    ):
        process.gpu_uuids = given
        assert framework.place_of(gpu) == place


def test_quick_measures_one_form(opened: Callable[..., Opened]) -> None:
    (framework,) = opened("pytorch").frameworks.members

    cases = cases_of(framework, "softmax", None, request=BenchRequest(mode=BenchMode.QUICK))

    assert [case.label.framework.form for case in cases if case.label.framework] == ["eager"]


def test_a_framework_that_failed_has_one_row_that_says_why(
    opened: Callable[..., Opened],
) -> None:
    found = opened("pytorch", "numpy", FAKE_FRAMEWORK="import=fail")
    pytorch, numpy = found.frameworks.members

    (case,) = cases_of(pytorch, "matmul", None)
    with pytest.raises(BadAnswerError, match="cannot be imported"):
        case.prepare()
    case.release()

    assert numpy.failure is None
    facts = found.frameworks.facts()[0]
    assert facts.version is None
    assert isinstance(facts.failure, Failure)
    assert facts.unavailable["blas"] == facts.failure.message


def test_a_framework_without_a_row_says_why(opened: Callable[..., Opened]) -> None:
    found = opened("numpy", "cupy", "jax").frameworks

    assert list(found.without_rows({"numpy", "cupy"}, on_gpus=False)) == [
        "JAX has none of these kernels and formats: not measured"
    ]
    numpy, cupy = found.without_rows({"jax"}, on_gpus=True)
    assert numpy == "NumPy computes on the CPU alone, in float32 and float64: not measured"
    assert re.fullmatch(r"CuPy is not installed in .*python.*: not measured", cupy)
    found.members[1].failure = None
    assert list(found.without_rows({"jax", "numpy"}, on_gpus=False)) == [
        "CuPy computes on GPUs alone, and no GPU takes part: not measured"
    ]


def test_frameworks_that_are_all_missing_are_an_error(opened: Callable[..., Opened]) -> None:
    with pytest.raises(MissingError, match=r"CuPy is not installed in .*python") as caught:
        opened("cupy")

    assert caught.value.code == MISSING


def test_facts_name_libraries_threads_and_settings(opened: Callable[..., Opened]) -> None:
    (facts,) = opened("tensorflow").frameworks.facts()

    assert facts.python == sys.executable
    assert (facts.version, facts.build) == ("2.99.0-stand-in", "CUDA 12.5.1")
    assert facts.libraries["cuDNN"] == "9"
    assert (facts.threads_intra, facts.threads_inter) == (2, 1)
    assert facts.failure is None
    assert facts.unavailable == {}


@pytest.mark.parametrize(
    ("text", "code"),
    [("keras", "unknown-framework"), ("", "unknown-framework"), ("jax=", "no-such-python")],
)
def test_what_is_no_framework_is_wrong_use(text: str, code: str) -> None:
    with pytest.raises(WrongUseError) as caught:
        parse_framework(text)

    assert caught.value.code == code


def test_one_framework_with_two_pythons_is_wrong_use() -> None:
    with pytest.raises(WrongUseError) as caught:
        interpreters_of(("jax=/a/python", "JAX=/b/python"), {})

    assert caught.value.code == "framework-twice"
    assert len(interpreters_of((f"numpy={sys.executable}",) * 2, {})) == 1


def test_a_python_that_cannot_be_run_is_wrong_use() -> None:
    request = BenchRequest(frameworks=("jax=/no/such/python",))

    with (
        pytest.raises(WrongUseError, match="--framework jax: '/no/such/python' is not a program"),
        open_frameworks(request, {}, threads=1, gpus=()),
    ):
        raise AssertionError
