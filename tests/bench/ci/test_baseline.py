"""Saved runs: made, read back, extended, and told apart by their fingerprint."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpucheck.bench.ci.baseline import (
    KEYS,
    allowed_keys,
    check_same_temperature,
    check_temperature,
    counterpart_of,
    differences,
    fingerprint,
    fingerprints_of,
    framework_text,
    not_allowed,
    read_run,
    read_saved_run,
    row_id,
    row_series,
    saved_run,
    to_text,
    with_session,
)
from gpucheck.bench.ci.model import CarriedDoubt, Fingerprint, SavedRun, Series
from gpucheck.bench.environment import VARIABLES
from gpucheck.bench.model import Direction, Doubt, ProfileUse, Scope, Verified
from gpucheck.bench.request_model import BenchRequest
from gpucheck.report.codec import to_plain
from gpucheck.report.envelope import Failure
from gpucheck.report.errors import WrongUseError
from gpucheck.report.host import Host
from tests.fakes.bench import PYTORCH
from tests.fakes.bench_results import environment
from tests.fakes.bench_runs import document, row, runs_of
from tests.fakes.framework_rows import FACTS
from tests.report.schemas import closed_validator
from tests.sampling import examples

TIME = "2026-11-21T03:32:00Z"
SPEEDS = {"gpu:0": [7.0e14, 7.1e14, 7.05e14], "gpu:1": [6.9e14, 7.0e14, 7.0e14]}


def saved(**changes: Any) -> SavedRun:
    runs = runs_of(SPEEDS, **changes)
    return saved_run(runs, row_series(runs), time=TIME, profile=None)


# ------------------------------------------------------------------------------- variables


def environment_with(**variables: str) -> Fingerprint:
    (first, *_) = runs_of(SPEEDS)
    assert first.result is not None
    environment = replace(first.result.environment, variables=variables)
    run = replace(first, result=replace(first.result, environment=environment))
    return fingerprints_of((run,), None)[run.device]


def test_a_variable_that_decides_about_arithmetic_forbids_the_comparison() -> None:
    with_it = environment_with(NVIDIA_TF32_OVERRIDE="0", OMP_NUM_THREADS="2")

    assert differences(with_it, environment_with()) == {
        "variables": "variables: NVIDIA_TF32_OVERRIDE=0 OMP_NUM_THREADS=2 -> none"
    }
    assert (
        differences(with_it, environment_with(OMP_NUM_THREADS="2", NVIDIA_TF32_OVERRIDE="0")) == {}
    )


def test_the_kernels_of_the_blas_and_what_forces_them_are_in_the_fingerprint() -> None:
    (first, *_) = runs_of(SPEEDS)
    assert first.result is not None

    def with_kernels_for(core: str) -> Fingerprint:
        assert first.result is not None
        environment = replace(first.result.environment, blas_architecture=core)
        run = replace(first, result=replace(first.result, environment=environment))
        return fingerprints_of((run,), None)[run.device]

    found = differences(with_kernels_for("SkylakeX"), with_kernels_for("Haswell"))
    assert found == {"blas_architecture": "blas_architecture: SkylakeX -> Haswell"}
    forcing = {"OPENBLAS_CORETYPE", "NPY_DISABLE_CPU_FEATURES", "MKL_ENABLE_INSTRUCTIONS"}
    assert forcing | {"BLIS_NUM_THREADS", "OPENBLAS_L2_SIZE"} <= set(VARIABLES)


def test_a_file_that_says_nothing_of_variables_is_not_taken_to_have_had_none() -> None:
    old = replace(environment_with(), variables=None)

    assert differences(old, environment_with()) == {"variables": "variables: unknown -> none"}


# ------------------------------------------------------------------------------- what is kept


def test_a_series_has_one_median_for_each_process() -> None:
    first, second = row_series(runs_of(SPEEDS))

    assert (first.device, first.values) == ("gpu:0", (7.0e14, 7.1e14, 7.05e14))
    assert (first.unit, first.direction) == ("FLOP/s", Direction.HIGHER)
    assert second.device == "gpu:1"


def test_processes_that_measured_all_at_once_count_alone() -> None:
    alone = runs_of({"gpu:0": [9.0e14]}, together=False)
    at_once = runs_of({"gpu:0": [7.0e14]})

    assert row_series((*alone, *at_once))[0].values == (7.0e14,)
    assert row_series(alone)[0].values == (9.0e14,)


def test_a_wrong_result_has_no_speed() -> None:
    wrong = Verified(error=0.5, bound=1e-2, ok=False, reference="float64")
    rows = [row("gpu:0", 7e14, verified=wrong)]

    assert row_series(runs_of({"gpu:0": [7e14]}, rows=rows)) == ()


def test_a_row_with_an_error_or_of_another_device_has_none() -> None:
    rows = [
        row("gpu:0", 7e14, error=Failure(code="gpu-lost", message="gone")),
        row("cpu", 1e11),
    ]

    assert row_series(runs_of({"gpu:0": [7e14]}, rows=rows)) == ()


def test_a_row_without_a_rate_is_judged_by_its_time() -> None:
    (series,) = row_series(runs_of({"gpu:0": [7e14]}, rows=[row("gpu:0", 7e14, throughput=None)]))

    assert (series.unit, series.direction) == ("s", Direction.LOWER)


def test_every_detail_that_tells_rows_apart_is_in_the_id() -> None:
    plain = row("gpu:0", 1e14)
    others = [
        replace(plain, shape=(8, 8, 8)),
        replace(plain, scope=Scope.END_TO_END),
        replace(plain, threads=2),
        replace(plain, variant="cublas-nt"),
        replace(plain, parameters={"temperature": 0.7}),
        replace(plain, dtype=replace(plain.dtype, input="float32", math_mode="tf32")),
        replace(plain, framework=PYTORCH),
        replace(plain, framework=replace(PYTORCH, form="compile")),
        replace(plain, framework=replace(PYTORCH, name="jax")),
    ]

    assert row_id(plain) == "matmul/cublas/bfloat16/4096x4096x4096"
    assert len({row_id(one) for one in [plain, *others]}) == 10


def test_a_later_version_of_a_framework_is_the_same_row() -> None:
    plain = replace(row("gpu:0", 1e14), framework=PYTORCH)
    later = replace(plain, framework=replace(PYTORCH, version="9.9", python="/elsewhere/python"))

    assert row_id(later) == row_id(plain)


def test_nothing_measured_is_not_saved() -> None:
    runs = runs_of({"gpu:0": [7e14]}, rows=[])

    with pytest.raises(WrongUseError, match="nothing to save"):
        saved_run(runs, row_series(runs), time=TIME, profile=None)


def test_doubts_are_kept_with_the_device() -> None:
    assert saved(doubts=("host-busy", "bimodal")).devices[0].doubts == ("bimodal", "host-busy")


def test_a_row_lacks_a_figure_only_if_no_process_has_one() -> None:
    late = Failure(code="no-time", message="no time was left")
    one = [row("gpu:0", 7e14), row("gpu:0", 7e14, variant="never", error=late)]
    other = [row("gpu:0", 7e14, error=late), row("gpu:0", 7e14, variant="never", error=late)]
    runs = [*runs_of({"gpu:0": [7e14]}, rows=one), *runs_of({"gpu:0": [7e14]}, rows=other)]

    (device,) = saved_run(runs, row_series(runs), time=TIME, profile=None).devices

    assert device.failures == {row_id(one[1]): late}


# ------------------------------------------------------------------------------- fingerprints


def test_the_fingerprint_of_a_gpu_names_what_decides_its_speed() -> None:
    found = fingerprints_of(runs_of(SPEEDS), "acceptance/1")["gpu:0"]

    assert found == Fingerprint(
        board="NVIDIA H100 80GB HBM3",
        pci_device_id="233010de",
        vbios="96.00",
        driver="580.95.05",
        cuda="13.0",
        cupy="14.0",
        cublas="12.9.0",
        power_limit_w=700.0,
        ecc=True,
        clock_policy="default",
        cpu="Pretended CPU",
        cores=2,
        blas="fakeblas 1.0, 2 threads",
        variables={},
        profile="acceptance/1",
        gpucheck=found.gpucheck,
    )


def test_the_fingerprint_of_the_processor_knows_no_gpu() -> None:
    found = fingerprints_of(runs_of({"cpu": [1e11]}), None)["cpu"]

    assert (found.board, found.driver, found.ecc, found.clock_policy) == (None,) * 4
    assert found.cpu == "Pretended CPU"
    of_one = fingerprint("cpu", replace(environment(), blas_threads=1), Host(), None, None)
    assert (of_one.blas or "").endswith(", 1 thread")


def test_clocks_that_somebody_set_are_another_policy() -> None:
    runs = runs_of({"gpu:0": [7e14]}, readings={"reasons": {"application-clocks": 0.2}})

    assert fingerprints_of(runs, None)["gpu:0"].clock_policy == "set by somebody"


@pytest.mark.parametrize("key", KEYS)
def test_every_key_is_compared(key: str) -> None:
    values: dict[str, Any] = {
        "power_limit_w": (700.0, 500.0),
        "ecc": (True, False),
        "cores": (2, 4),
        "frameworks": ({"pytorch": "2.12"}, {"pytorch": "2.13"}),
    }
    one, other = values.get(key, ("a", "b"))
    before, after = Fingerprint(**{key: one}), Fingerprint(**{key: other})

    found = differences(before, after)

    assert set(found) == {key}
    assert " -> " in found[key]
    assert not_allowed(found, [key]) == ()
    assert not_allowed(found, []) == (found[key],)
    assert differences(before, before) == {}


def test_what_is_known_on_one_side_only_differs() -> None:
    assert differences(Fingerprint(vbios="1"), Fingerprint()) == {"vbios": "vbios: 1 -> unknown"}


def test_a_framework_that_one_side_alone_measured_forbids_nothing() -> None:
    torch, both = {"pytorch": "2.12"}, {"pytorch": "2.12", "jax": "0.10"}

    for before, after in ((None, torch), (torch, None), (torch, both), ({"jax": "1"}, torch)):
        assert not differences(Fingerprint(frameworks=before), Fingerprint(frameworks=after))
    changed = differences(
        Fingerprint(frameworks=both), Fingerprint(frameworks={"jax": "0.11", "cupy": "14"})
    )
    assert changed == {"frameworks": "frameworks: jax 0.10 -> 0.11"}


def test_version_blas_threads_and_arithmetic_of_a_framework_are_in_the_fingerprint() -> None:
    broken = replace(FACTS[1], failure=Failure(code="framework-broken", message="no"))
    facts = (FACTS[0], broken)
    found = fingerprint("cpu", environment(frameworks=facts), Host(), None, None)

    assert found.frameworks == {"pytorch": "2.13.0, MKL 2024.2, 2 threads, allow_tf32 False"}
    assert framework_text(replace(FACTS[0], threads_intra=1)).endswith("1 thread, allow_tf32 False")
    assert fingerprint("cpu", environment(), Host(), None, None).frameworks is None


@settings(max_examples=examples(10))
@given(st.text(max_size=40))
def test_an_unknown_key_is_wrong_use(word: str) -> None:
    known = {key.replace("_", "-") for key in KEYS} | set(KEYS)
    if word.lower() in known or word.lower().replace("-", "_") in KEYS:
        return
    with pytest.raises(WrongUseError):
        allowed_keys([word])


def test_keys_are_read_as_people_write_them() -> None:
    assert allowed_keys(["power-limit-w", "Driver", "driver"]) == ("power_limit_w", "driver")
    with pytest.raises(WrongUseError, match="no key 'bord'"):
        allowed_keys(["driver", "driver", "bord"])


# ------------------------------------------------------------------------------- against it


def against(run: SavedRun, now: Fingerprint, device: str) -> tuple[dict[str, str], list[Series]]:
    """Return how a device differs from its counterpart, and the series of that."""
    counterpart, differing, series = counterpart_of(run, device, now)
    assert counterpart is not None
    return differing, series


def test_a_run_of_the_same_machine_can_be_held_against_it() -> None:
    for device, now in fingerprints_of(runs_of(SPEEDS), None).items():
        differing, series = against(saved(), now, device)

        assert differing == {}
        assert {one.device for one in series} == {device}


def test_one_gpus_baseline_serves_its_identical_neighbours() -> None:
    runs = runs_of({"gpu:0": [7e14, 7e14, 7e14]})
    one = saved_run(runs, row_series(runs), time=TIME, profile=None)
    now = fingerprints_of(runs_of(SPEEDS), None)

    for device in ("gpu:0", "gpu:1"):
        (found,) = against(one, now[device], device)[1]
        assert (found.device, found.values) == (device, (7e14, 7e14, 7e14))


def test_another_driver_is_named_unless_it_is_allowed() -> None:
    now = replace(fingerprints_of(runs_of(SPEEDS), None)["gpu:1"], driver="590.1")

    differing, _ = against(saved(), now, "gpu:1")

    assert not_allowed(differing, ()) == ("driver: 580.95.05 -> 590.1",)
    assert not_allowed(differing, ["driver"]) == ()


def test_a_device_that_is_not_in_it_has_no_counterpart() -> None:
    now = fingerprints_of(runs_of({"cpu": [1e11]}), None)["cpu"]

    assert counterpart_of(saved(), "cpu", now) == (None, {}, [])


def written(folder: Path, plain: Any) -> Path:
    path = folder / "run.json"
    path.write_text(json.dumps(plain), encoding="utf-8")
    return path


# ---------------------------------------------------------------------------------- saved runs


def test_a_file_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    path.write_text(to_text(saved()), encoding="utf-8")

    assert read_saved_run(path) == saved()


def test_disturbed_rows_are_marked_in_the_file_and_stay_so(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    busy = saved(doubts=("gpu-shared",))
    path.write_text(to_text(busy), encoding="utf-8")

    plain = json.loads(path.read_text(encoding="utf-8"))
    assert {one["disturbed"] for one in plain["series"]} == {"gpu-shared"}
    closed_validator("baseline").validate(plain)
    # A file that was written before rows were marked is judged as it is read.
    for one in plain["series"]:
        del one["disturbed"]
    path.write_text(json.dumps(plain), encoding="utf-8")
    assert read_saved_run(path) == busy
    # One disturbed session disturbs the whole.
    joined = with_session(busy, with_session(saved(), saved()))
    assert all(one.disturbed for one in joined.series)


def test_the_file_holds_to_its_schema_and_has_a_series_a_line() -> None:
    text = to_text(saved())

    closed_validator("baseline").validate(json.loads(text))
    assert sum('"values"' in line for line in text.splitlines()) == 2


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is empty"),
        (" \n", "is empty"),
        ("{", "is not JSON"),
        ("[" * 100_000, "is not JSON"),
        ("[]", "is not a saved run"),
        ("null", "is not a saved run"),
        ('{"schema": 3}', "is not a saved run"),
        ('{"schema": "gpucheck/bench/1"}', "is a report of one process"),
        ('{"schema": "gpucheck/list/1"}', "is a gpucheck/list/1 document"),
        (f'{{"schema": "{"s" * 50}"}}', f"is a {'s' * 40} document, not gpucheck/baseline/1"),
        ('{"schema": "gpucheck/baseline/2"}', "is a gpucheck/baseline/2 document"),
        ('{"schema": "gpucheck/baseline/1"}', "is damaged"),
    ],
)
def test_what_is_no_saved_run_is_refused(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "run.json"
    path.write_text(text, encoding="utf-8")

    with pytest.raises(WrongUseError, match=said):
        read_saved_run(path)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *(("values", one) for one in ([], [0.0], [-1.0], [1.0, 0.0], ["x"], [None], [True])),
        *(("values", [one]) for one in (float("inf"), float("nan"), 10**400)),
        *(("tolerance_percent", one) for one in (0, -1.0, 100.0, 1e9, "5", None)),
        *(("repeat_factor", one) for one in (0.5, -1.0, float("nan"))),
        *(("sessions", one) for one in ([4], [0, 5], [-1, 6], [1.0, 4.0], [1, 3], [1, 5])),
    ],
)
def test_figures_that_cannot_be_are_refused(tmp_path: Path, key: str, value: Any) -> None:
    plain = json.loads(to_text(saved()))
    plain["series"][1][key] = value

    with pytest.raises(WrongUseError, match=rf"series\[1\]\.{key}"):
        read_saved_run(written(tmp_path, plain))


def test_a_file_that_was_cut_off_is_refused_wherever_that_was(tmp_path: Path) -> None:
    text, path = to_text(saved()), tmp_path / "run.json"

    for end in range(0, len(text) - 2, 37):
        path.write_text(text[:end], encoding="utf-8")
        with pytest.raises(WrongUseError, match=r"cut off|is empty"):
            read_run(path)


def test_an_unknown_field_is_refused_with_the_version_that_wrote_it(tmp_path: Path) -> None:
    plain = json.loads(to_text(saved())) | {"surprise": 1}
    newer = plain | {"tool": {"name": "gpucheck", "version": "9.0"}}

    with pytest.raises(WrongUseError, match=r"is damaged: .*surprise"):
        read_saved_run(written(tmp_path, plain))
    with pytest.raises(WrongUseError, match=r"written by gpucheck 9\.0.*surprise"):
        read_saved_run(written(tmp_path, newer))


def test_a_file_without_the_later_fields_is_read(tmp_path: Path) -> None:
    plain = json.loads(to_text(saved()))
    del plain["exit_code"]
    for series in plain["series"]:
        del series["repeat_factor"]
    for device in plain["devices"]:
        del device["fingerprint"]["variables"]

    found = read_saved_run(written(tmp_path, plain))

    assert found.exit_code is None
    assert [one.values for one in found.series] == [one.values for one in saved().series]


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(WrongUseError, match="cannot be read"):
        read_saved_run(tmp_path / "none.json")


def test_bytes_that_are_no_text_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    path.write_bytes(b"\xff\xfe{}")

    with pytest.raises(WrongUseError, match="is not JSON"):
        read_saved_run(path)


JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@settings(max_examples=examples(20))
@given(key=st.sampled_from(["tool", "time", "devices", "series", "profile", "host"]), value=JSON)
def test_whatever_stands_in_a_field_is_a_run_or_wrong_use(
    tmp_path_factory: pytest.TempPathFactory, key: str, value: object
) -> None:
    plain = json.loads(to_text(saved())) | {key: value}
    path = written(tmp_path_factory.getbasetemp(), plain)

    try:
        found = read_run(path)
    except WrongUseError:
        return
    assert to_plain(getattr(found, key)) == value


# ------------------------------------------------------------------------------------- reports


def test_a_file_of_a_newer_kind_is_not_to_be_written_anew(tmp_path: Path) -> None:
    newer = {"schema": "gpucheck/baseline/2", "tool": {"name": "gpucheck", "version": "9.0"}}

    with pytest.raises(WrongUseError, match=r"written by gpucheck 9\.0") as caught:
        read_run(written(tmp_path, newer))

    assert caught.value.remedy == ("Read it with the gpucheck that wrote it, or a newer one.",)


def test_a_report_of_bench_is_a_run_of_one_process(tmp_path: Path) -> None:
    rows = [row("gpu:0", 7e14, repeat95_s=(1.9e-4, 2.1e-4), time_s=2e-4)]
    found = read_run(written(tmp_path, document("gpu:0", 7e14, rows=rows, exit_code=0)))

    (series,) = found.series
    assert (series.values, series.device) == ((7e14,), "gpu:0")
    assert series.repeat_factor == pytest.approx(1.05)
    assert found.devices[0].fingerprint.board == "NVIDIA H100 80GB HBM3"
    assert (found.time, found.exit_code, found.profile) == ("2026-11-21T03:32:00Z", 0, None)


def test_each_device_of_a_report_has_its_rows(tmp_path: Path) -> None:
    rows = [row("gpu:0", 7e14), row("cpu", 1e11)]
    found = read_run(written(tmp_path, document("gpu:0", 7e14, rows=rows)))

    assert [(one.device, one.values) for one in found.series] == [
        ("gpu:0", (7e14,)),
        ("cpu", (1e11,)),
    ]
    assert [one.device for one in found.devices] == ["gpu:0", "cpu"]
    assert found.devices[1].fingerprint.board is None


def test_the_profile_of_a_report_is_part_of_its_fingerprint(tmp_path: Path) -> None:
    use = ProfileUse(
        name="cpu", version=1, path="cpu.toml", digest="ab" * 32, processes=3, max_processes=3
    )
    found = read_run(written(tmp_path, document("cpu", 1e11, profile=use)))

    assert found.profile == "cpu/1/abababababab"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"result": None}, "is a report without figures"),
        ({"result": {}}, "is damaged"),
        ({"host": 3}, "is damaged"),
    ],
)
def test_a_report_without_figures_is_refused(
    tmp_path: Path, changes: dict[str, Any], said: str
) -> None:
    with pytest.raises(WrongUseError, match=said):
        read_run(written(tmp_path, document("cpu", 1e11) | changes))


def test_a_report_is_no_baseline(tmp_path: Path) -> None:
    path = written(tmp_path, document("cpu", 1e11))

    with pytest.raises(WrongUseError, match="is a report of one process") as caught:
        read_saved_run(path)

    assert "--save" in caught.value.remedy[0]


# ------------------------------------------------------------------- softmax's temperature


def of_softmax(*temperatures: float) -> SavedRun:
    (first, *_) = row_series(runs_of(SPEEDS))
    names = [f"softmax/numpy/float32/64x64/temperature={one}" for one in temperatures]
    series = [replace(first, id=name) for name in names]
    return saved_run(runs_of(SPEEDS), series or [first], time="2026-11-21T03:32:00Z", profile=None)


def test_a_baseline_of_another_temperature_is_refused_with_both_values() -> None:
    with pytest.raises(WrongUseError) as caught:
        check_temperature(of_softmax(0.7), BenchRequest(temperature=0.6))

    assert caught.value.message == (
        "The baseline was measured with temperature 0.7, this run uses 0.6: "
        "give --temperature 0.7 or save a new baseline."
    )


@pytest.mark.parametrize(
    ("saved", "request_"),
    [
        ((0.7,), BenchRequest(temperature=0.7)),
        ((0.7, 0.6), BenchRequest(temperature=0.6)),
        ((0.7,), BenchRequest(kernels=("matmul",), temperature=0.6)),
        ((), BenchRequest(temperature=0.6)),
    ],
)
def test_a_baseline_without_softmax_or_of_the_same_temperature_is_taken(
    saved: tuple[float, ...], request_: BenchRequest
) -> None:
    check_temperature(of_softmax(*saved), request_)


def test_two_files_of_different_temperatures_are_not_compared() -> None:
    check_same_temperature(of_softmax(0.7), of_softmax(0.7))
    check_same_temperature(of_softmax(0.7), of_softmax())
    with pytest.raises(WrongUseError, match=r"temperature 0\.7, the second with 0\.6\."):
        check_same_temperature(of_softmax(0.7), of_softmax(0.6))


@pytest.mark.parametrize("factors", [(1.1, 1.3), (1.3, 1.1), (None, 1.3), (1.3, None)])
def test_the_session_that_repeats_worse_says_how_far_runs_are_apart(
    factors: tuple[float | None, float | None],
) -> None:
    first, second = (
        replace(run, series=tuple(replace(one, repeat_factor=factor) for one in run.series))
        for run, factor in zip((saved(), saved()), factors, strict=True)
    )

    joined = with_session(first, second)

    assert {one.repeat_factor for one in joined.series} == {1.3}


def test_a_later_session_adds_its_processes_to_the_first_ones_doubt() -> None:
    def session(message: str, processes: int) -> SavedRun:
        doubt = Doubt(code="host-busy", message=message, next="run it when the machine is idle")
        carried = (CarriedDoubt(doubt=doubt, processes=processes),)
        run = saved()
        return replace(run, series=tuple(replace(one, doubts=carried) for one in run.series))

    joined = with_session(session("first", 2), session("second", 3))

    with pytest.raises(WrongUseError, match="is not in it"):
        with_session(replace(joined, devices=joined.devices[:0]), session("second", 3))
    failed = replace(session("third", 1), exit_code=1)
    for first, second in ((failed, joined), (replace(joined, exit_code=3), failed)):
        assert with_session(first, second).exit_code == 1
    assert with_session(replace(joined, exit_code=0), replace(joined, exit_code=3)).exit_code == 3
    assert joined.series
    for one in joined.series:
        assert [(each.doubt.message, each.processes) for each in one.doubts] == [("first", 5)]
