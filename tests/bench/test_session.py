"""One benchmark in this process: what is asked and opened, and that mistakes cost no measuring."""

from __future__ import annotations

import contextlib
import math
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpucheck.bench import plan, scheduler, session
from gpucheck.bench.model import BenchGpu, BenchResult, Corruption, Measurement, Verified
from gpucheck.bench.request_model import BenchMode, BenchRequest
from gpucheck.bench.sampler import Sampler, describe_deviation
from gpucheck.bench.session import (
    bench_here,
    conclude,
    hold_gpus,
    measure,
    open_session,
    target_of,
)
from gpucheck.cli.output import wrap
from gpucheck.drivers.gpu import OpenedGpus
from gpucheck.drivers.readings import CudaDeviceReading, CudaReading, MigReading, NvmlReading
from gpucheck.place.claim_store import ClaimStore, Target, list_claims
from gpucheck.place.lock_files import DIRECTORY_VARIABLE
from gpucheck.report.envelope import Answer, Failure
from gpucheck.report.errors import (
    ExitCode,
    GpucheckError,
    InconclusiveError,
    MissingError,
    WrongUseError,
)
from gpucheck.report.host import Host
from gpucheck.report.options import check_arguments
from tests.architecture.house import ROOT
from tests.enough_time import with_enough_time
from tests.fakes.bench_results import gpu as bench_gpu
from tests.fakes.bench_runs import row
from tests.fakes.probes import FakeProbes, gpu_reading, reading_of
from tests.fakes.verdicts import result

CPU = BenchRequest(devices=("cpu",), kernels=("copy",), mode=BenchMode.QUICK, size=64, budget_s=1.0)


class Opening:
    """Notes what was to be opened, and opens nothing."""

    def __init__(self) -> None:
        self.asked: list[tuple[Sequence[int] | None, Mapping[int, str]]] = []

    def __call__(
        self, asked: Sequence[int] | None = None, *, uuids: Mapping[int, str] | None = None
    ) -> OpenedGpus:
        self.asked.append((asked, uuids or {}))
        return OpenedGpus(unavailable="it is only noted")


@pytest.fixture(name="opening")
def _opening(monkeypatch: pytest.MonkeyPatch) -> Opening:
    opening = Opening()
    monkeypatch.setattr(session, "open_gpus", opening)
    return opening


def machine(*uuids: str, **changes: Any) -> FakeProbes:
    """Return GPUs that CUDA and NVML both see."""
    devices = [
        CudaDeviceReading(ordinal=at, uuid_hex=uuid.partition("-")[2].replace("-", ""))
        for at, uuid in enumerate(uuids)
    ]
    return FakeProbes(
        readings=reading_of(*(gpu_reading(at, **changes) for at in range(len(uuids)))),
        cuda_reading=CudaReading(device_count=len(devices), devices=tuple(devices)),
    )


FIRST, SECOND = (str(gpu_reading(at).uuid) for at in range(2))


def asked_of(devices: tuple[str, ...], probes: FakeProbes, opening: Opening) -> Any:
    with open_session(BenchRequest(devices=devices), probes, {}):
        pass
    (found,) = opening.asked
    return found


def test_the_processor_alone_wakes_no_driver_and_products_are_repeated_after_it(
    opening: Opening, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan, "_LIMITS", {})  # rows that nobody asked for are large
    # Beside other programs a row of several threads waits for longer than this test measures.
    monkeypatch.setattr(scheduler, "_BUSY", math.inf)
    loaded: list[bool] = []
    # Before anything imports NumPy: its threads must not spin into the next measurement.
    monkeypatch.setattr(session, "load_numpy", lambda: loaded.append(opening.asked == []))
    probes = machine(FIRST)
    environment = {"NVIDIA_TF32_OVERRIDE": "0", DIRECTORY_VARIABLE: str(tmp_path / "claims")}

    def measured(budget_s: float) -> BenchResult:
        request = replace(CPU, budget_s=budget_s)
        with open_session(request, probes, environment) as opened:
            return measure(opened, corruption_s=0.01)

    result = with_enough_time(
        measured, 1.0, is_whole=lambda found: all(row.time_s for row in found.measurements)
    )

    assert all(row.time_s for row in result.measurements)
    assert loaded[0]
    assert opening.asked == []
    assert "cuda" not in probes.asked
    # The variables are those that were given, not those of this process.
    assert result.environment.variables == {"NVIDIA_TF32_OVERRIDE": "0"}
    (check,) = result.corruption
    assert (check.device, check.mismatches, check.shape) == ("cpu", 0, (64, 64, 64))
    assert check.products > 0


def test_a_name_that_is_not_a_device_opens_nothing(opening: Opening) -> None:
    probes = machine(FIRST)

    with (
        pytest.raises(WrongUseError, match="tpu"),
        open_session(BenchRequest(devices=("gpu:0", "tpu")), probes, {}),
    ):
        pass

    assert (opening.asked, probes.asked) == ([], [])


@pytest.mark.parametrize(
    ("devices", "indices"),
    [
        (("gpu:1",), [1]),
        (("cpu", "gpu:0", "gpu:1"), [0, 1]),
        (("gpu",), None),
        (("all",), None),
        (("gpu:1", "gpu"), None),
    ],
)
def test_only_the_requested_gpus_are_opened(
    opening: Opening, devices: tuple[str, ...], indices: list[int] | None
) -> None:
    asked, uuids = asked_of(devices, machine(FIRST, SECOND), opening)

    assert asked == indices
    assert uuids == {0: FIRST, 1: SECOND}


def test_a_mig_device_keeps_its_kind_of_uuid(opening: Opening) -> None:
    mig = "MIG-11111111-2222-3333-4444-555555555555"
    probes = machine(mig, mig_instances=(MigReading(uuid=mig),))

    _, uuids = asked_of(("gpu",), probes, opening)

    assert uuids == {0: mig}


WHOLE = CudaDeviceReading(
    ordinal=0,
    uuid_hex=FIRST.partition("-")[2].replace("-", ""),
    name="NVIDIA H100 80GB HBM3",
    compute_capability="9.0",
    memory_total_bytes=80 << 30,
    sm_count=132,
    l2_bytes=0,
)
NEEDED = ("name", "compute_capability", "memory_total_bytes", "sm_count", "l2_bytes")


def test_frameworks_get_the_drivers_facts_of_gpus_that_cannot_be_opened(
    opening: Opening, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[Sequence[Any]] = []

    @contextmanager
    def note(*_: object, gpus: Sequence[Any], **__: object) -> Iterator[Any]:
        found.append(gpus)
        yield SimpleNamespace(pids=())

    monkeypatch.setattr(session, "open_frameworks", note)
    half = [WHOLE._replace(**{name: None}) for name in NEEDED]
    devices = (
        WHOLE,
        WHOLE._replace(ordinal=1, uuid_hex=None, integrated=True),
        *(one._replace(ordinal=at) for at, one in enumerate(half, start=2)),
    )
    free = {"memory_free_bytes": 70 << 30}

    for frameworks, names in [(("pytorch",), ("gpu",)), (("pytorch",), ("gpu:1",)), ((), ("gpu",))]:
        probes = machine(FIRST, **free)
        probes.cuda_reading = CudaReading(device_count=len(devices), devices=devices)
        request = BenchRequest(devices=names, frameworks=frameworks)
        with open_session(request, probes, {}):
            pass

    first, second = (
        BenchGpu(
            cuda_index=at,
            uuid=uuid,
            name="NVIDIA H100 80GB HBM3",
            compute_capability="9.0",
            sm_count=132,
            l2_bytes=0,
            memory_total_bytes=80 << 30,
            memory_free_bytes=free_bytes,
            float32_math="fp32",
            clock_sm_max_mhz=clock,
            integrated=integrated,
        )
        for at, uuid, free_bytes, clock, integrated in [
            (0, FIRST, 70 << 30, 1980, None),
            (1, None, 80 << 30, None, True),
        ]
    )
    assert found == [[first, second], [second], []]


def test_a_driver_that_fails_is_not_touched_in_this_process(opening: Opening) -> None:
    with (
        open_session(BenchRequest(devices=("gpu",)), FakeProbes(), {}) as opened,
        pytest.raises(MissingError, match="no libcuda in this fake"),
    ):
        measure(opened)

    assert opening.asked == []


@pytest.mark.parametrize(
    ("opened", "kind"),
    [
        (OpenedGpus(unavailable="CuPy is not installed"), MissingError),
        (OpenedGpus(unavailable="another process has it", busy=True), InconclusiveError),
        (OpenedGpus(unavailable="no answer", silent=True), InconclusiveError),
        (OpenedGpus(), MissingError),
    ],
)
def test_a_required_gpu_that_cannot_be_measured_ends_it_before_measuring(
    opened: OpenedGpus, kind: type[GpucheckError], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "open_gpus", lambda *_, **__: opened)
    said = opened.unavailable or "no GPU was requested"

    with (
        pytest.raises(kind, match=f"A GPU is required, but none can be measured: {said}") as raised,
        open_session(BenchRequest(), machine("GPU-aa"), {}, require_gpu=True),
    ):
        pytest.fail("it was opened")

    assert raised.value.code == "gpu-required"


def test_the_host_has_the_drivers_version() -> None:
    probes = FakeProbes(readings=NvmlReading(driver_version="580.95.05", cuda_driver_version=13000))

    with open_session(CPU, probes, {}) as opened:
        host = opened.run_environment.host

    assert (host.driver_version, host.cuda_driver_version) == ("580.95.05", "13.0")


def test_a_mistake_in_the_repetition_costs_no_measuring(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(session.Bench, "run", lambda *_: pytest.fail("it was measured"))
    request = BenchRequest(devices=("cpu",), kernels=("launch",), size=10**7)

    with open_session(request, FakeProbes(), {}) as opened, pytest.raises(WrongUseError) as caught:
        measure(opened, corruption_s=1.0)

    assert caught.value.code == "size-does-not-fit"


def test_an_interrupted_run_repeats_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Sampler, "take_slice", interrupted)

    with open_session(CPU, FakeProbes(), {}) as opened:
        result = measure(opened, corruption_s=10.0)

    assert result.interrupted
    assert result.corruption == ()


@pytest.mark.parametrize("seconds", [-1.0, float("inf"), float("nan")])
def test_an_invalid_repetition_time_is_refused(seconds: float) -> None:
    with open_session(CPU, FakeProbes(), {}) as opened, pytest.raises(WrongUseError):
        measure(opened, corruption_s=seconds)


READING = reading_of(gpu_reading(0), gpu_reading(1))
UUIDS = [gpu.uuid for gpu in READING.gpus if gpu.uuid is not None]


@pytest.fixture(name="environment")
def _environment(tmp_path: Path) -> dict[str, str]:
    return {DIRECTORY_VARIABLE: str(tmp_path / "claims")}


def held(environment: dict[str, str]) -> dict[str, str | None]:
    claims = list_claims(ClaimStore(Path(environment[DIRECTORY_VARIABLE]))).claims
    return {claim.uuid: claim.command for claim in claims}


ANOTHER = """
import sys
from gpucheck.bench.session import hold_gpus
from tests.fakes.probes import gpu_reading, reading_of
reading = reading_of(gpu_reading(0))
with hold_gpus([reading.gpus[0].uuid], reading, {sys.argv[1]: sys.argv[2]}, "trainer --long"):
    print("held", flush=True)
    sys.stdin.read()
"""


@contextmanager
def another_holds_the_first(environment: dict[str, str]) -> Iterator[None]:
    """Let another process hold the first GPU while the block runs."""
    with subprocess.Popen(
        [sys.executable, "-c", ANOTHER, DIRECTORY_VARIABLE, environment[DIRECTORY_VARIABLE]],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=ROOT,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        yield
        process.communicate()


def test_measured_gpus_are_claimed_until_the_block_ends(environment: dict[str, str]) -> None:
    with hold_gpus(UUIDS, READING, environment, "gpucheck bench") as claims:
        assert held(environment) == dict.fromkeys(UUIDS, "gpucheck bench")
        assert claims == ({}, ())

    assert held(environment) == {}


def test_the_claim_of_another_is_reported_and_the_other_gpus_are_claimed(
    environment: dict[str, str],
) -> None:
    with (
        another_holds_the_first(environment),
        hold_gpus(UUIDS, READING, environment, "gpucheck bench") as claims,
    ):
        assert claims[0].keys() == {UUIDS[0]}
        assert "(trainer)" in claims[0][UUIDS[0]]
        assert held(environment)[UUIDS[1]] == "gpucheck bench"


def test_a_claim_of_this_program_is_not_another_s(
    environment: dict[str, str],
) -> None:
    with hold_gpus(UUIDS[:1], READING, environment, "gpucheck.place in a program"):
        with hold_gpus(UUIDS, READING, environment, "gpucheck.bench in it") as claims:
            assert claims == ({}, ())

        assert held(environment) == {UUIDS[0]: "gpucheck.place in a program"}

    assert held(environment) == {}


def test_an_error_in_the_block_frees_them(environment: dict[str, str]) -> None:
    with pytest.raises(KeyError), hold_gpus(UUIDS, READING, environment, "gpucheck bench"):
        raise KeyError

    assert held(environment) == {}


def test_where_claims_cannot_be_made_that_is_a_note(tmp_path: Path) -> None:
    place = tmp_path / "a file"
    place.write_text("")

    with hold_gpus(UUIDS, READING, {DIRECTORY_VARIABLE: str(place)}, "gpucheck bench") as claims:
        assert len(claims[1]) == 1
        assert "not claimed" in claims[1][0]
        assert claims[0] == {}


def test_nothing_is_claimed_inside_a_schedulers_allocation(environment: dict[str, str]) -> None:
    with hold_gpus(UUIDS, READING, environment | {"SLURM_JOB_ID": "1"}, "bench") as claims:
        assert claims == ({}, ())
        assert held(environment) == {}


def test_without_a_gpu_no_directory_is_made(environment: dict[str, str]) -> None:
    with hold_gpus([], READING, environment, "gpucheck bench"):
        assert not Path(environment[DIRECTORY_VARIABLE]).exists()


def test_a_mig_instance_is_found_by_its_digits() -> None:
    digits = "0123abcd-0000-1111-2222-333344445555"
    card = gpu_reading(0)._replace(mig_instances=(MigReading(uuid=f"MIG-{digits}"),))
    reading = reading_of(card)

    assert card.uuid is not None
    assert target_of(f"GPU-{digits}", reading) == Target(card=card.uuid, instance=f"MIG-{digits}")
    assert target_of(card.uuid.upper().replace("GPU", "GPU"), reading) == Target(card=card.uuid)
    assert target_of("GPU-99999999-0000-1111-2222-333344445555", reading) is None


TAKEN = Failure(code="gpu-memory-taken", message="the memory of gpu:0 is taken")
NO_TIME = Failure(code="no-time", message="the time was over")
LOST = Failure(code="gpu-lost", message="the GPU stopped answering")
STUCK = Failure(code="clock-stuck", message="the clock cannot be trusted")
BUSY = Failure(code="gpu-busy", message="another process has the GPU for itself")
WRONG = Verified(error=0.5, bound=1e-2, ok=False, reference="float64")
CLEAN = Corruption(device="gpu:0", gpu_uuid=None, products=10, words=64, reference_ok=True)


def found(*rows: Measurement, corruption: tuple[Corruption, ...] = (), **more: Any) -> BenchResult:
    return replace(result(), measurements=rows, corruption=corruption, **more)


def concluded(result_: BenchResult) -> Answer:
    return conclude(result_, Host())


GOOD = row("cpu", 1e11)
UNMEASURED = row("gpu:0", 1e14, time_s=None, throughput=None, verified=None)


@pytest.mark.parametrize(
    ("rows", "duration_s", "message"),
    [
        ((UNMEASURED,), 9.94, "Interrupted after 9.9 s: 0 rows of 1 measured."),
        ((GOOD, UNMEASURED), 9.95, "Interrupted after 10 s: 1 row of 2 measured."),
        ((GOOD, GOOD, UNMEASURED), 0.04, "Interrupted after 0.0 s: 2 rows of 3 measured."),
    ],
)
def test_an_interrupt_counts_the_rows_that_were_measured(
    rows: tuple[Measurement, ...], duration_s: float, message: str
) -> None:
    stopped = found(*rows, interrupted=True)
    environment = replace(stopped.environment, duration_s=duration_s)

    answer = concluded(replace(stopped, environment=environment))

    assert answer.error is not None
    assert answer.error.message == message


@pytest.mark.parametrize(
    ("result_", "code", "said"),
    [
        (found(GOOD), ExitCode.OK, None),
        (found(GOOD, corruption=(CLEAN,)), ExitCode.OK, None),
        (found(GOOD, interrupted=True), ExitCode.INTERRUPTED, "interrupted"),
        (found(GOOD, replace(UNMEASURED, device="cpu", error=NO_TIME)), ExitCode.OK, None),
        (found(GOOD, replace(UNMEASURED, error=NO_TIME)), ExitCode.INCONCLUSIVE, "no-time"),
        (found(replace(UNMEASURED, error=NO_TIME)), ExitCode.INCONCLUSIVE, "nothing-measured"),
        (found(replace(UNMEASURED, error=TAKEN)), ExitCode.INCONCLUSIVE, "nothing-measured"),
        (found(GOOD, replace(UNMEASURED, error=LOST)), ExitCode.BAD, "gpu-lost"),
        (found(GOOD, replace(UNMEASURED, error=STUCK)), ExitCode.INCONCLUSIVE, "clock-stuck"),
        (found(GOOD, replace(UNMEASURED, error=BUSY)), ExitCode.INCONCLUSIVE, "gpu-busy"),
        (found(row("gpu:0", 1e14, verified=WRONG)), ExitCode.BAD, "wrong-result"),
        (
            found(GOOD, corruption=(replace(CLEAN, mismatches=1),)),
            ExitCode.BAD,
            "silent-corruption",
        ),
        (found(GOOD, corruption=(replace(CLEAN, failure=LOST),)), ExitCode.BAD, "gpu-lost"),
        (
            found(GOOD, corruption=(replace(CLEAN, products=0, failure=TAKEN),)),
            ExitCode.INCONCLUSIVE,
            "gpu-memory-taken",
        ),
        (
            found(replace(UNMEASURED, error=NO_TIME), corruption=(replace(CLEAN, mismatches=1),)),
            ExitCode.BAD,
            "silent-corruption",
        ),
    ],
)
def test_the_worst_that_was_found_decides(
    result_: BenchResult, code: ExitCode, said: str | None
) -> None:
    answer = concluded(result_)

    assert answer.exit_code is code
    assert (answer.error.code if answer.error else None) == said


def test_where_nothing_was_measured_the_error_says_why_and_what_to_do() -> None:
    late = NO_TIME._replace(remedy=("Give more time: --budget 20.",))

    answer = concluded(found(replace(UNMEASURED, error=late)))

    message = "Nothing was measured: the time was over."
    assert answer.error == Failure(code="nothing-measured", message=message, remedy=late.remedy)


def test_times_without_any_interval_are_a_warning() -> None:
    bare = replace(GOOD, ci95_s=None)
    known = replace(GOOD, ci95_s=(0.9, 1.0))

    assert concluded(found(known, bare)).warnings == ()
    assert concluded(found(UNMEASURED)).warnings == ()
    answer = concluded(found(bare, UNMEASURED))
    assert [notice.code for notice in answer.warnings] == ["nothing-settled"]
    assert answer.exit_code is ExitCode.OK
    assert wrap("bench", answer, time="", strict=True).exit_code is ExitCode.BAD


def test_without_any_gpu_the_processors_figures_are_enough() -> None:
    none = replace(result().environment, gpus=(), gpu_unavailable="CuPy is not installed")

    answer = concluded(found(GOOD, environment=none))

    assert (answer.exit_code, answer.error) == (ExitCode.OK, None)


def test_a_busy_gpu_among_others_decides_nothing_and_hides_nothing() -> None:
    refused = replace(
        result().environment, gpus=(bench_gpu(),), gpu_unavailable="gpu:1: busy", gpu_silent=True
    )

    busy = concluded(found(GOOD, environment=refused))
    corrupt = concluded(
        found(GOOD, environment=refused, corruption=(replace(CLEAN, mismatches=1),))
    )
    broken = concluded(found(GOOD, environment=replace(refused, gpu_silent=False)))

    assert (busy.exit_code, busy.error and busy.error.code) == (
        ExitCode.INCONCLUSIVE,
        "gpu-refused",
    )
    assert corrupt.error is not None
    assert corrupt.error.code == "silent-corruption"
    assert broken.exit_code is ExitCode.BAD


def test_a_copy_that_is_wrong_counts_its_numbers() -> None:
    counted = Verified(error=2.0, bound=0.0, ok=False, reference="the source, bit by bit")

    assert describe_deviation(counted) == "2 of its numbers differ from the source, bit by bit"
    assert describe_deviation(WRONG) == "its deviation from float64 is 0.5; at most 0.01 is allowed"


def requested(**changes: Any) -> BenchRequest:
    plain = BenchRequest()
    given = {
        "device": "cpu",
        "size": None,
        "dtype": (),
        "mode": "quick",
        "budget_s": None,
        "seed": plain.seed,
        "fill": "normal",
        "temperature": plain.temperature,
        "towers": plain.towers,
        "data_file": None,
    }
    arguments = {"kernels": ["copy"], **given, **changes}
    return BenchRequest(**check_arguments(BenchRequest, arguments))


def test_the_arguments_become_a_request() -> None:
    assert requested() == BenchRequest(kernels=("copy",), devices=("cpu",), mode=BenchMode.QUICK)
    changed = requested(device=["cpu, gpu:0"], dtype="tf32,int8", data_file=Path("images"), seed=3)
    assert changed.devices == ("cpu", "gpu:0")
    assert changed.dtypes == ("tf32", "int8")
    assert changed.data_file == "images"
    assert changed.seed == 3
    assert requested(device=()).devices == ("all",)


@pytest.mark.parametrize(
    "wrong",
    [{"size": 1.5}, {"seed": "1"}, {"budget_s": "2"}, {"data_file": 3}, {"mode": "slow"}],
)
def test_arguments_of_another_kind_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(WrongUseError):
        requested(**wrong)


def test_the_probes_are_closed_after_a_benchmark_and_after_a_mistake(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(session.Bench, "run", lambda *_: result())
    for devices in ("cpu", "tpu"):
        probes = machine()
        request, found = replace(CPU, devices=(devices,)), None
        with contextlib.suppress(WrongUseError):
            found = bench_here(request, probes, corruption_s=0, require_gpu=False)
        assert found == (result() if devices == "cpu" else None)
        assert probes.asked[-1] == "close"


def test_an_interrupted_call_interrupts_its_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    stopped = replace(result(), interrupted=True)
    monkeypatch.setattr(session.Bench, "run", lambda *_: stopped)
    probes = machine()

    with pytest.raises(KeyboardInterrupt):
        bench_here(CPU, probes, corruption_s=0, require_gpu=False)

    assert probes.asked[-1] == "close"
