"""What the gates mean together: nothing good is invented, whatever the processes bring."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucheck.bench.ci.gate_model import GateClass, GateStatus
from gpucheck.bench.ci.gates import judge, series_of, settled, verdict
from gpucheck.bench.ci.run_data import Facts
from gpucheck.bench.model import Verified
from gpucheck.bench.workers import WORKER_DIED, WORKER_LATE, WORKER_SILENT
from gpucheck.report.envelope import Failure
from gpucheck.report.errors import ExitCode
from tests.fakes.bench_results import (
    doubt,
    product,
    product_runs,
    result_of,
    run_of,
    sensors,
    uuid_of,
)
from tests.fakes.gates import COMPANY, GOOD, HAVE, NODE, code, facts, gate, node, profile_of


def test_zero_samples_never_pass() -> None:
    runs = [run_of(result_of(telemetry=sensors()), at, "gpu:0") for at in range(5)]
    found = facts(runs)

    assert gate(found, "matmul").status is GateStatus.FAIL
    assert gate(found, "results").status is GateStatus.INCONCLUSIVE
    assert code(found) is ExitCode.BAD


def test_no_gate_at_all_is_inconclusive() -> None:
    assert verdict(())[0] is ExitCode.INCONCLUSIVE


def test_only_skipped_gates_are_inconclusive() -> None:
    skipped = replace(gate(facts(product_runs(GOOD)), "matmul"), status=GateStatus.SKIP)

    assert verdict((skipped,))[0] is ExitCode.INCONCLUSIVE


@pytest.mark.parametrize(
    ("failure", "status", "class_"),
    [
        (Failure("gpu-lost", "the GPU stopped answering"), GateStatus.FAIL, GateClass.HARDWARE),
        (Failure("cupy-missing", "no CuPy"), GateStatus.FAIL, GateClass.SOFTWARE),
        (Failure("gpu-out-of-memory", "full"), GateStatus.INCONCLUSIVE, GateClass.ENVIRONMENT),
        (Failure("memory-shared", "no room"), GateStatus.INCONCLUSIVE, GateClass.ENVIRONMENT),
        (Failure("gpu-busy", "in use"), GateStatus.INCONCLUSIVE, GateClass.ENVIRONMENT),
        (Failure(WORKER_DIED, "died"), GateStatus.FAIL, GateClass.SOFTWARE),
        (Failure(WORKER_SILENT, "silent"), GateStatus.INCONCLUSIVE, GateClass.SOFTWARE),
        (Failure(WORKER_LATE, "late"), GateStatus.INCONCLUSIVE, GateClass.ENVIRONMENT),
    ],
    ids=lambda value: getattr(value, "code", None),
)
def test_a_process_that_failed_is_a_verdict(
    failure: Failure, status: GateStatus, class_: GateClass
) -> None:
    found = facts([run_of(None, at, "gpu:0", failure=failure) for at in range(5)])

    processes = gate(found, "processes")
    assert (processes.status, processes.class_) == (status, class_)
    assert (gate(found, "matmul").status, gate(found, "matmul").class_) == (status, class_)
    assert code(found) is (ExitCode.BAD if status is GateStatus.FAIL else ExitCode.INCONCLUSIVE)


def test_a_gpu_lost_in_mid_run_is_hardware_though_others_gave_figures() -> None:
    lost = product(700, median_s=None, error=Failure("gpu-lost", "it fell off the bus"))
    runs = [*product_runs(GOOD), run_of(result_of(lost, telemetry=sensors()), 5, "gpu:0")]
    found = facts(runs)

    assert gate(found, "processes").class_ is GateClass.HARDWARE
    assert code(found) is ExitCode.BAD


def test_a_format_that_the_gpu_has_not_is_skipped() -> None:
    old = result_of(product(1))
    old = replace(
        old,
        measurements=(),
        environment=replace(
            old.environment,
            gpus=(replace(old.environment.gpus[0], compute_capability="7.0"),),
        ),
    )
    found = facts([run_of(old, at, "gpu:0") for at in range(5)])

    assert gate(found, "matmul").status is GateStatus.SKIP
    assert "bfloat16" in (gate(found, "matmul").reason or "")


def test_gates_are_named_once() -> None:
    runs = [run for at in range(8) for run in product_runs(GOOD, f"gpu:{at}")]
    gates = judge(facts(runs, COMPANY + HAVE))

    names = [(one.id, one.device) for one in gates]
    assert len(names) == len(set(names))


# ---------------------------------------------------------------------------------- any run


DOUBTS = st.sampled_from(
    [
        "host-busy",
        "gpu-shared",
        "throttled",
        "power-capped",
        "clocks-locked",
        "new-errors",
        "bimodal",
    ]
)
ROWS = st.builds(
    lambda value, codes, ok: product(
        value,
        doubts=tuple(doubt(code) for code in codes),
        verified=Verified(error=0.0 if ok else None, bound=1.0, ok=ok, reference="r"),
    ),
    st.floats(1.0, 2000.0),
    st.lists(DOUBTS, max_size=2),
    st.booleans(),
)
FAILED = st.sampled_from(["gpu-lost", "cupy-missing", WORKER_DIED, WORKER_SILENT, "gpu-error"])


@given(
    st.lists(
        st.tuples(st.integers(0, 2), st.one_of(ROWS, FAILED, st.none()), st.booleans()), max_size=12
    )
)
def test_whatever_processes_bring_each_gate_is_explained_and_nothing_good_is_invented(
    brought: list[tuple[int, Any, bool]],
) -> None:
    runs = []
    for number, (at, what, with_sensors) in enumerate(brought):
        device = f"gpu:{at}"
        if what is None or isinstance(what, str):
            failure = None if what is None else Failure(what, "it failed")
            runs.append(run_of(None, number, device, failure=failure))
            continue
        row = replace(what, device=device, gpu_uuid=uuid_of(device))
        found = result_of(row, telemetry=sensors(device) if with_sensors else None)
        runs.append(run_of(found, number, device))
    judged = Facts(profile=profile_of(NODE + COMPANY), node=node(3), runs=runs)

    gates = judge(judged)

    assert len({(one.id, one.device) for one in gates}) == len(gates)
    for one in gates:
        if one.status in (GateStatus.FAIL, GateStatus.INCONCLUSIVE):
            assert one.reason
            assert one.class_ is not None
        if one.status is GateStatus.PASS:
            assert one.measured is not None
            assert one.class_ is None
    if verdict(gates)[0] is ExitCode.OK:
        assert all(run.result is not None for run in runs)
    settled(gates)
    series_of(judged)
