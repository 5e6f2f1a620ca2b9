"""Which row a check is about, and what its figure in a process is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from gpucheck.bench.ci.profile_model import Check, Metric, Phase, Statistic, Target
from gpucheck.bench.ci.run_data import metric_values, value_of
from gpucheck.bench.model import Direction, Measurement, Scope, Throughput
from gpucheck.report.envelope import Failure
from tests.fakes.bench import PYTORCH
from tests.fakes.bench_results import measurement, product, result_of, run_of

COPY = Check(
    id="copy",
    kernel="copy",
    dtype="float32",
    target=Target.CPU,
    baseline=True,
    tolerance_percent=5.0,
    unit="GB/s",
    direction=Direction.HIGHER,
)
ROW = measurement("copy", 10e9)


def chosen(*processes: Sequence[Measurement], **check: Any) -> tuple[float, ...]:
    runs = [run_of(result_of(*rows), number) for number, rows in enumerate(processes)]
    return metric_values(replace(COPY, **check), "cpu", runs).values


def test_every_process_gives_one_figure_in_the_checks_unit() -> None:
    assert chosen([ROW], [measurement("copy", 12e9)]) == (10.0, 12.0)


def test_the_row_with_the_most_threads_is_taken_even_if_it_is_slower() -> None:
    one_thread = measurement("copy", 20e9, threads=1, variant="numpy-1-thread")

    assert chosen([one_thread, ROW]) == (10.0,)


def test_of_a_sweep_the_largest_size_is_taken() -> None:
    small = measurement("copy", 99e9, shape=(8, 8))

    assert chosen([small, ROW]) == (10.0,)


def test_all_processes_are_compared_in_the_same_variant() -> None:
    other = measurement("copy", 11e9, variant="other")
    faster_once = measurement("copy", 9e9, variant="other")

    # `other` is faster in one process and slower in two: a mixture would be neither's noise.
    found = chosen([ROW, other], [ROW, faster_once], [ROW, faster_once])

    assert found == (10.0, 10.0, 10.0)


def test_a_variant_that_is_named_is_taken() -> None:
    other = measurement("copy", 11e9, variant="other")

    assert chosen([ROW, other], variant="other") == (11.0,)
    assert chosen([ROW, other], variant="numpy") == (10.0,)


@pytest.mark.parametrize(
    "changes",
    [
        {"kernel": "triad"},
        {"dtype": replace(ROW.dtype, math_mode="tf32")},
        {"dtype": replace(ROW.dtype, input="float64")},
        {"scope": Scope.END_TO_END},
        {"time_s": None},
    ],
)
def test_rows_of_something_else_are_not_taken(changes: dict[str, Any]) -> None:
    assert chosen([replace(ROW, **changes)]) == ()


def test_parameters_that_are_named_must_fit() -> None:
    warm = measurement("copy", 10e9, parameters={"temperature": 0.7})

    assert chosen([warm], parameters={"temperature": 0.7}) == (10.0,)
    assert chosen([warm], parameters={"temperature": 1.0}) == ()


def test_tf32_is_no_float32() -> None:
    row = product(700, dtype=replace(ROW.dtype, math_mode="tf32"))
    check = replace(COPY, kernel="matmul", dtype="tf32", unit="TFLOP/s", target=Target.GPU)

    assert metric_values(check, "gpu:0", [run_of(result_of(row), 0, "gpu:0")]).values == (700.0,)


@pytest.mark.parametrize(
    ("changes", "value"),
    [
        ({}, 10.0),
        ({"statistic": Statistic.P10}, 10.0 / 1.05),
        ({"statistic": Statistic.P90}, 10.0 / 0.95),
        ({"phase": Phase.FIRST}, 10.0 / 1.1),
        ({"phase": Phase.STEADY}, 10.0 / 0.95),
        ({"metric": Metric.TIME, "unit": "ms"}, 100.0),
        ({"metric": Metric.TIME, "unit": "ms", "statistic": Statistic.P10}, 95.0),
        ({"metric": Metric.TIME, "unit": "ms", "statistic": Statistic.P90}, 105.0),
        ({"metric": Metric.FACT, "fact": "accuracy", "unit": ""}, 0.9),
        ({"metric": Metric.FACT, "fact": "loss", "unit": ""}, None),
    ],
)
def test_the_figure_is_what_the_check_asks_for(
    changes: dict[str, Any], value: float | None
) -> None:
    row = replace(ROW, facts={"accuracy": 0.9, "loss": "text"})

    found = value_of(replace(COPY, **changes), row)

    assert found == (None if value is None else pytest.approx(value))


@pytest.mark.parametrize("phase", [Phase.FIRST, Phase.STEADY])
def test_a_phase_without_rounds_has_no_figure(phase: Phase) -> None:
    assert value_of(replace(COPY, phase=phase), replace(ROW, round_medians_s=())) is None


def test_the_figure_under_the_load_of_all_is_kept_apart() -> None:
    alone = run_of(result_of(ROW), 0)
    together = run_of(result_of(measurement("copy", 8e9)), 0, together=True)

    assert metric_values(COPY, "cpu", [alone, together]).values == (10.0,)
    assert metric_values(replace(COPY, together=True), "cpu", [alone, together]).values == (8.0,)


def test_who_has_no_company_is_alone_and_together() -> None:
    alone = run_of(result_of(ROW), 0)

    assert metric_values(replace(COPY, together=True), "cpu", [alone]).values == (10.0,)


def test_the_shipped_checks_have_units_that_their_kernels_count() -> None:
    from gpucheck.bench.ci.limits import UNITS, known_units, scale_of

    assert known_units(Metric.THROUGHPUT, "matmul", "bfloat16") == tuple(UNITS["FLOP/s"])
    assert known_units(Metric.TIME, "matmul", "bfloat16") == tuple(UNITS["s"])
    assert known_units(Metric.FACT, "matmul", "bfloat16") == ()
    assert known_units(Metric.THROUGHPUT, "nothing", "bfloat16") == ()
    assert scale_of("TFLOP/s") == 1e12
    assert scale_of("apples") == 1.0


# ------------------------------------------------------------------------------ frameworks

EAGER = measurement("copy", 12e9, framework=PYTORCH)
COMPILED = measurement("copy", 14e9, framework=replace(PYTORCH, form="torch.compile"))
JAX = measurement("copy", 16e9, framework=replace(PYTORCH, name="jax", form="jax.jit"))


@pytest.mark.parametrize(
    ("check", "value"),
    [
        ({}, 10.0),
        ({"framework": "pytorch"}, 14.0),
        ({"framework": "pytorch", "form": "eager"}, 12.0),
        ({"framework": "jax"}, 16.0),
    ],
    ids=["own", "fastest-form", "one-form", "another"],
)
def test_a_check_is_about_the_rows_of_its_framework(check: dict[str, str], value: float) -> None:
    assert chosen([EAGER, ROW, COMPILED, JAX], **check) == (value,)


def test_a_framework_that_was_not_measured_has_no_figure() -> None:
    assert chosen([ROW, JAX], framework="pytorch") == ()
    assert chosen([EAGER], framework="pytorch", form="torch.compile") == ()
    assert chosen([EAGER]) == ()


def test_every_process_gives_the_same_form() -> None:
    slow_once = replace(COMPILED, time_s=0.5, throughput=Throughput(value=2e9, unit="B/s"))

    found = chosen([EAGER, COMPILED], [EAGER, COMPILED], [EAGER, slow_once], framework="pytorch")

    assert found == (14.0, 14.0, 2.0)


def test_why_there_is_no_figure_is_said_by_the_rows_of_that_framework() -> None:
    gone = Failure(code="framework-missing", message="PyTorch is not installed")
    rows = [replace(EAGER, time_s=None, throughput=None, error=gone), ROW]
    runs = [run_of(result_of(*rows))]

    asked = metric_values(replace(COPY, framework="pytorch"), "cpu", runs)

    assert asked.failures == (gone,)
    assert metric_values(COPY, "cpu", runs).failures == ()
