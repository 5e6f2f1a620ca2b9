"""A sample of the sweep of faults: benchmarks/faults.py runs all of them."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator

import pytest

from benchmarks.faults import (
    COMMANDS,
    Bench,
    Case,
    Forked,
    Outcome,
    broken,
    forked_machines,
    problems,
    run_case,
    run_forked,
    table,
)
from tests.end_to_end.sweeping import NVML_CODES
from tests.end_to_end.test_faults import CUDA_CODES

#: Of each way in which a function is asked: at the start, of the driver, of a GPU, for its health.
FUNCTIONS = (
    "nvmlInitWithFlags", "nvmlDeviceGetCount_v2", "nvmlDeviceGetHandleByIndex_v2",
    "nvmlSystemGetDriverVersion", "nvmlDeviceGetUUID", "nvmlDeviceGetMemoryInfo_v2",
    "nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetTemperature",
    "nvmlDeviceGetFieldValues", "nvmlDeviceGetTotalEccErrors", "nvmlDeviceGetNvLinkState",
    "cuInit", "cuDeviceGetCount", "cuDeviceGetUuid_v2", "cuMemAlloc_v2", "cuLaunchKernel",
)  # fmt: skip
SAMPLE = 24


@pytest.fixture(scope="module")
def bench(c_compiler: str, tmp_path_factory: pytest.TempPathFactory) -> Bench:
    return Bench(tmp_path_factory.mktemp("bench"))


@pytest.fixture(scope="module")
def forked(bench: Bench) -> Iterator[dict[str, Forked]]:
    with forked_machines(bench) as machines:
        yield machines


def drawn() -> list[Case]:
    """Draw codes by a fixed seed, for one GPU or for both."""
    found = []
    for command, function in itertools.product(COMMANDS, FUNCTIONS):
        codes = NVML_CODES if function.startswith("nvml") else CUDA_CODES
        for code, gpu in itertools.product(codes, (0, None)):
            found.append(Case(command, "whole", function, "fail", code, gpu))
    return random.Random(14).sample(found, SAMPLE)


@pytest.mark.slow
def test_a_sample_of_every_function_with_every_code(
    bench: Bench, forked: dict[str, Forked], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPUCHECK_ROOT", bench.roots["whole"])
    monkeypatch.setenv("GPUCHECK_CLAIMS_DIR", str(bench.folder / "claims"))
    wrong = {}
    for case in drawn():
        machine = broken(bench.machines[case.machine], case)
        found = problems(case, run_forked(forked[case.machine], machine, case))
        wrong |= {case: found} if found else {}

    assert wrong == {}


@pytest.mark.parametrize(
    "case",
    [
        Case("detect", "whole", "nvmlDeviceGetVbiosVersion", "die"),
        Case("detect", "whole", "cuModuleLoadData", "missing"),
        Case("list", "whole", "nvmlDeviceGetUUID", "die", gpu=0),
        Case("place --count", "whole", "nvmlDeviceGetMemoryInfo_v2", "missing"),
    ],
    ids=lambda case: "-".join(case[:4]).replace(" ", ""),
)
def test_processes(bench: Bench, case: Case) -> None:
    assert problems(case, run_case(bench, case)) == []


def outcome(exit_code: int = 0, **changes: object) -> Outcome:
    return Outcome(exit_code, "{}\n", "")._replace(**changes)


@pytest.mark.parametrize(
    ("case", "ended", "said"),
    [
        (Case("list", "whole", "cuInit", "die"), outcome(70), "exit code 70"),
        (Case("list", "whole", "cuInit", "die"), outcome(stderr="Traceback"), "traceback"),
        (Case("list", "whole", "cuInit", "die"), outcome(left=2), "2 processes left"),
        (Case("list", "whole", "cuInit", "hang"), outcome(seconds=1e3), "did not end"),
        (Case("list", "whole", "cuInit", "die"), outcome(stdout=""), "document"),
        (Case("list", "whole", "cuInit", "die"), outcome(stdout="{}\n{}\n"), "document"),
    ],
)
def test_what_is_wrong_is_seen(case: Case, ended: Outcome, said: str) -> None:
    assert any(said in found for found in problems(case, ended))


def test_the_table_counts_runs_functions_and_codes() -> None:
    lines = [
        {"case": [*Case("list", "whole", name, "die")], "exit_code": 3, "problems": wrong,
         "seconds": 1.5}
        for name, wrong in (("cuInit", []), ("nvmlDeviceGetUUID", ["traceback"]))
    ]  # fmt: skip

    assert table(lines).splitlines()[2:] == ["| list | die | 2 | 2 | 3: 2 | 1.5 s | 1 |"]
