"""`gpucheck bench` on pretended GPUs, as a process: the real program, a pretended CuPy and driver.

Time is modelled (tests/fakes/README.md), so that what must come out can be reckoned from the
machine file: an H100's memory moves 2 x 2619 MHz x 5120 bits = 3.35 TB/s, of which the model gives
92 %.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.conftest import Ended, Pretend, Program
from tests.enough_time import with_enough_time
from tests.fakes.libraries import cupy_environment
from tests.fakes.machine import Gpu, Machine, load_machine

#: The H100's hardware by the machine file, in bytes and operations a second.
H100_MEMORY = 2 * 2619e6 * 5120 / 8
H100_FP32 = 2 * 16896 * 1980e6
H100_TENSOR = 4096 * 132 * 1980e6
H100_LINK = 16 * 3.938e9
#: The modelled second is long: little time is enough for a few rows, and the tests stay short.
BRIEF, MORE = ("--quick", "--budget", "1"), ("--quick", "--budget", "3")
#: Fewer kernels go into a modelled second: those that take the processor longest.
UNHURRIED = "slow launch=20 kernel=100"
#: What of them the model reaches, where no script says otherwise.
MEMORY, GEMM, LINK = 0.92, 0.78, 0.88
#: A card so slow that small arrays take it long: ours are computed and compared on the processor.
SLOW = 0.01
SLOWER = 0.0002
SLOWED = f"slow memory={SLOW} compute={SLOW}"


@dataclass(frozen=True, slots=True)
class Bench:
    """Runs `gpucheck bench` on pretended GPUs."""

    program: Program
    pretend: Pretend
    claims: Path

    def __call__(
        self,
        *arguments: str,
        machine: str | Machine = "h100x8",
        gpus: int | None = 1,
        script: str = "",
        time: str = "modelled",
        variables: Mapping[str, str] | None = None,
    ) -> Ended:
        """Run it to its end; the claims are of these tests alone."""
        if isinstance(machine, str):
            machine = load_machine(machine).with_small_memories()
        environment = {
            **self.pretend(quiet(machine), gpus=gpus),
            **cupy_environment(script, time=time),
            "GPUCHECK_CLAIMS_DIR": str(self.claims),
            # Several tests run side by side; threads that spin would take each other's time.
            "OPENBLAS_NUM_THREADS": "1",
            **(variables or {}),
        }
        return self.program("bench", *arguments, env=environment)

    def document(self, *arguments: str, **settings: Any) -> Any:
        """Run it and return its document, checked against the schema."""
        return self(*arguments, "--json", **settings).document("bench")


def quiet(machine: Machine) -> Machine:
    """Return the machine without programs on its GPUs, and no clock held down."""

    def alone(gpu: Gpu) -> Gpu:
        reasons = 0 if gpu.clock_event_reasons else None
        return replace(gpu, processes=(), clock_event_reasons=reasons)

    return replace(machine, gpus=tuple(map(alone, machine.gpus)))


@pytest.fixture(name="bench", scope="module")
def _bench(program: Program, pretend: Pretend, tmp_path_factory: pytest.TempPathFactory) -> Bench:
    return Bench(program, pretend, tmp_path_factory.mktemp("bench") / "claims")


@pytest.fixture(name="healthy", scope="module")
def _healthy(bench: Bench) -> Any:
    """Return what one good GPU measures with each kernel's own formats."""
    return bench.document(
        *("copy", "triad", "softmax", "matmul", "--size", "512"),
        *("--device", "gpu:0", *MORE),
        script=SLOWED,
    )


@pytest.fixture(name="every_format", scope="module")
def _every_format(bench: Bench) -> Any:
    """Return what one good GPU measures in all formats."""
    return bench.document(
        *("matmul", "softmax", "--size", "256", "--device", "gpu:0", *MORE),
        *("--dtype", "float64,float32,tf32,float16,bfloat16,int8,float8"),
        script=f"slow memory=0.004 compute={SLOWER}",
    )


def rows_of(document: Any) -> dict[tuple[str, ...], Any]:
    """Return the rows by kernel, variant, input format and scope."""
    return {
        (row["kernel"], row["variant"], row["dtype"]["math_mode"], row["scope"], row["device"]): row
        for row in document["result"]["measurements"]
    }


def codes(row: Any) -> set[str]:
    return {doubt["code"] for doubt in row["doubts"]}


def speed(row: Any) -> float:
    """Return a good row's throughput."""
    assert row["error"] is None, row["error"]
    assert row["verified"]["ok"]
    return float(row["throughput"]["value"])


def near(expected: float, share: float = 0.05) -> Any:
    """Return what is at most so much less than expected: launches take their time too."""
    return pytest.approx(expected * (1 - share / 2), abs=expected * (share / 2 + 0.01))


def test_bandwidth_and_products_are_the_machine_model_s(healthy: Any) -> None:
    assert healthy["exit_code"] == 0
    rows = rows_of(healthy)
    here = ("resident", "gpu:0")
    for variant in ("memcpy", "kernel"):
        row = rows["copy", variant, "fp32", *here]
        assert speed(row) == near(SLOW * H100_MEMORY * MEMORY)
        assert row["percent_of_peak"] == pytest.approx(100 * speed(row) / 3.35e12, rel=0.01)
        assert row["sm_clock_mhz"] == pytest.approx(1980, rel=1e-3)
        assert row["facts"]["launched_as"] == "graph"
    assert speed(rows["triad", "kernel", "fp32", *here]) == near(SLOW * H100_MEMORY * MEMORY)
    fused, naive = rows["softmax", "fused", "fp32", *here], rows["softmax", "naive", "fp32", *here]
    assert speed(fused) == near(SLOW * H100_MEMORY * MEMORY, 0.25)
    assert speed(fused) > 3 * speed(naive)
    assert speed(rows["matmul", "cublas", "fp32", *here]) == near(SLOW * H100_FP32 * GEMM)
    uuids = {row["gpu_uuid"] for row in rows.values()}
    assert uuids == {load_machine("h100x8").gpus[0].uuid}


def test_launches_cost_what_the_model_says(bench: Bench) -> None:
    document = bench.document("launch", "--device", "gpu:0", "--quick", "--budget", "0.4")

    times = {row["variant"]: row["median_s"] for row in document["result"]["measurements"]}
    assert times["graph"] == pytest.approx(1.4e-6, rel=0.1)
    assert times["stream"] == pytest.approx(2.2e-6, rel=0.1)
    assert times["round-trip"] > 2 * times["stream"]


def test_every_format_has_its_own_arithmetic(every_format: Any) -> None:
    peaks = {"fp64": 0.5 * H100_FP32, "fp32": H100_FP32, "tf32": H100_TENSOR / 2}
    peaks |= {"fp16": H100_TENSOR, "bf16": H100_TENSOR, "int8": 2 * H100_TENSOR}
    peaks["fp8"] = 2 * H100_TENSOR
    work = 2 * 256**3

    rows = [
        row
        for row in every_format["result"]["measurements"]
        if row["kernel"] == "matmul" and row["scope"] == "resident"
    ]
    found = {row["dtype"]["math_mode"]: speed(row) for row in rows}
    # A launch and the pause before it take two microseconds, which the fast formats feel.
    expected = {
        mode: work / (work / (SLOWER * peak * GEMM) + 2.1e-6) for mode, peak in peaks.items()
    }
    assert found == pytest.approx(expected, rel=0.05)
    assert not any("other-precision" in codes(row) for row in rows)


def test_every_format_of_softmax_is_right(bench: Bench, every_format: Any) -> None:
    unaligned = bench.document(
        *("softmax", "--size", "100", "--device", "gpu:0", *MORE),
        *("--dtype", "float32,float16,bfloat16"),
        script=UNHURRIED,
    )

    for document in (every_format, unaligned):
        rows = [row for row in document["result"]["measurements"] if row["variant"] == "fused"]
        assert {row["dtype"]["input"] for row in rows} == {"float32", "float16", "bfloat16"}
        assert all(speed(row) > 0 for row in rows)


def test_transfers_fit_the_link_s_latency_and_bandwidth(bench: Bench) -> None:
    document = bench.document(
        *("transfer", "--size", "1024", "--device", "gpu:0", "--budget", "1.5"),
        script="slow link=0.2",
    )

    rows = [row for row in document["result"]["measurements"] if row["shape"] == [1024, 1024]]
    by_variant = {row["variant"]: speed(row) for row in rows}
    assert by_variant["to-gpu-pinned"] == near(0.2 * H100_LINK * LINK)
    assert by_variant["both-ways-pinned"] == near(0.4 * H100_LINK * LINK)
    assert by_variant["from-gpu-pageable"] == near(9e9)
    fits = {found["code"]: found["facts"] for found in document["result"]["conclusions"]}
    for code in ("transfer-fit-to-gpu", "transfer-fit-from-gpu"):
        assert fits[code]["bandwidth_bytes_per_s"] == near(0.2 * H100_LINK * LINK)
        assert 4e-6 < fits[code]["latency_s"] < 6e-6


def test_training_learns_and_batches_are_compared(bench: Bench) -> None:
    document = bench.document(
        *("train", "batch", "--device", "gpu:0", *MORE),
        script=UNHURRIED,
        machine=load_machine("h100x8"),
    )

    assert document["exit_code"] == 0
    rows = document["result"]["measurements"]
    assert all(row["verified"]["ok"] for row in rows)
    accuracies = [row["facts"]["accuracy"] for row in rows if "accuracy" in row["facts"]]
    assert accuracies
    assert min(accuracies) > 0.8
    assert "knee" in {found["code"] for found in document["result"]["conclusions"]}


def test_towers_are_gpus_where_there_are_several(bench: Bench) -> None:
    document = bench.document(
        *("towers", "--device", "gpu", *MORE),
        gpus=2,
        script=UNHURRIED,
        machine=load_machine("h100x8"),
    )

    rows = document["result"]["measurements"]
    assert all(row["verified"]["ok"] for row in rows)
    assert {row["facts"].get("simulated") for row in rows} == {None, "no"}
    assert [row["variant"] for row in rows] == ["1-tower", "2-towers", "1-tower"]
    # Alone or together, they are timed in the same way.
    assert {row["facts"]["timed_by"] for row in rows} == {"host"}


def assert_copied(document: Any, route: str, rate: float) -> None:
    rows = [row for row in document["result"]["measurements"] if row["kernel"] == "p2p"]
    assert [row["device"] for row in rows] == ["gpu:0", "gpu:1"]
    assert {row["facts"]["route"] for row in rows} == {route}
    for row in rows:
        assert speed(row) == near(rate)


def test_copies_go_over_nvlink_and_a_slow_gpu_is_seen(bench: Bench) -> None:
    document = bench.document(
        *("copy", "p2p", "--size", "512", "--device", "gpu", *BRIEF),
        gpus=2,
        script=f"slow memory={SLOW}; slow gpu=1 memory={SLOW / 2}; slow link=0.02",
    )

    assert_copied(document, "direct", 0.02 * 18 * 25e9 * LINK)
    rows = rows_of(document)
    healthy, slow = (
        rows["copy", "kernel", "fp32", "resident", f"gpu:{number}"] for number in (0, 1)
    )
    # A launch takes both equally long.
    assert speed(slow) == pytest.approx(speed(healthy) / 2, rel=0.1)
    assert slow["percent_of_peak"] < SLOW * 50 < healthy["percent_of_peak"]


def test_copies_go_through_the_host_and_a_throttled_clock_is_measured(bench: Bench) -> None:
    document = bench.document(
        *("matmul", "p2p", "--dtype", "float32", "--size", "512", "--device", "gpu", *BRIEF),
        gpus=2,
        script=f"no-peers; throttle clock=0.6; slow compute={SLOW} link=0.1",
    )

    assert_copied(document, "through the host", 0.1 * H100_LINK * 0.45)
    row = rows_of(document)["matmul", "cublas", "fp32", "resident", "gpu:0"]
    assert row["sm_clock_mhz"] == pytest.approx(0.6 * 1980, rel=1e-3)
    assert speed(row) == near(0.6 * SLOW * H100_FP32 * GEMM)


# ---- what goes wrong ----


def failed_rows(document: Any, code: str) -> list[Any]:
    return [
        row
        for row in document["result"]["measurements"]
        if row["error"] is not None and row["error"]["code"] == code
    ]


def test_a_gpu_lost_in_mid_run_leaves_the_other_s_rows(bench: Bench) -> None:
    document = bench.document(
        *("copy", "triad", "--size", "1024", "--device", "gpu", *BRIEF),
        gpus=2,
        script="lost gpu=1 after=300",
    )

    assert document["exit_code"] == 1
    assert document["error"]["code"] == "gpu-lost"
    lost = failed_rows(document, "gpu-lost")
    assert {row["device"] for row in lost} == {"gpu:1"}
    good = [row for row in document["result"]["measurements"] if row["device"] == "gpu:0"]
    assert len(good) == 3
    assert all(speed(row) > 0 for row in good)


def test_a_gpu_that_cannot_be_opened_is_named_and_the_others_measured(bench: Bench) -> None:
    ended = bench(
        *("launch", "--device", "gpu", *BRIEF),
        gpus=3,
        script=f"lost gpu=1; {UNHURRIED}",
    )

    assert ended.code == 1
    assert "gpu:0 stream" in ended.text
    assert "gpu:2 stream" in ended.text
    assert "gpu:1: the GPU stopped answering" in ended.said


def test_memory_that_runs_out_fails_its_rows_only(bench: Bench) -> None:
    document = bench.document(
        *("copy", "matmul", "--size", "1024", "--device", "gpu:0", *BRIEF),
        script="oom after=10",
    )

    assert document["exit_code"] == 1
    assert document["error"]["code"] == "gpu-out-of-memory"
    # Each row wants three rounds and fails in the one in which the memory runs out, alone.
    full = failed_rows(document, "gpu-out-of-memory")
    assert 0 < len(full) <= len(document["result"]["measurements"])
    assert "Out of memory allocating" in full[0]["error"]["message"]


def test_a_flipped_bit_is_caught_in_every_kernel(bench: Bench) -> None:
    kernels = {"copy": "copy", "triad": "triad", "gemm": "matmul", "softmax_short": "softmax"}

    document = bench.document(
        *(*kernels.values(), "--size", "512", "--device", "gpu:0", *BRIEF),
        script="; ".join(
            [UNHURRIED, *(f"flip kernel={kernel} times=100000" for kernel in kernels)]
        ),
    )

    assert document["exit_code"] == 1
    wrong = {row["kernel"]: row["verified"] for row in failed_rows(document, "wrong-result")}
    assert wrong.keys() == set(kernels.values())
    assert not any(verified["ok"] or verified["error"] is None for verified in wrong.values())


def test_a_nan_is_caught_in_every_format(bench: Bench) -> None:
    document = bench.document(
        *("copy", "matmul", "--dtype", "float32,fp8", "--size", "256", "--device", "gpu:0", *BRIEF),
        script=f"nan kernel=memcpy times=100000; nan kernel=gemm times=100000; {UNHURRIED}",
    )

    assert document["exit_code"] == 1
    wrong = {
        (row["kernel"], row["dtype"]["math_mode"]): row["verified"]
        for row in failed_rows(document, "wrong-result")
    }
    assert wrong.keys() == {("copy", "fp32"), ("matmul", "fp32"), ("matmul", "fp8")}
    for (kernel, _), verified in wrong.items():
        assert verified["ok"] is False
        assert (verified["error"] is None) is (kernel == "matmul")


def test_a_wrong_number_that_comes_late_is_caught_at_the_end(bench: Bench) -> None:
    document = bench.document(
        *("triad", "--size", "1024", "--device", "gpu:0", *BRIEF),
        script="flip kernel=triad after=150 times=100000",
    )

    (row,) = document["result"]["measurements"]
    assert row["samples_s"]
    assert row["error"]["code"] == "wrong-result"


def test_a_kernel_that_stops_working_is_wrong_though_its_last_result_was_right(
    bench: Bench,
) -> None:
    kernels = {"copy": "copy", "triad": "triad", "gemm": "matmul", "softmax_short": "softmax"}

    document = bench.document(
        *(*kernels.values(), "--size", "512", "--dtype", "float32", "--device", "gpu:0", *BRIEF),
        script="; ".join([UNHURRIED, *(f"skip kernel={kernel} after=20" for kernel in kernels)]),
    )

    assert document["exit_code"] == 1
    wrong = failed_rows(document, "wrong-result")
    assert {row["kernel"] for row in wrong} == set(kernels.values())
    assert not any(row["median_s"] or row["throughput"] for row in wrong)


def test_ctrl_c_keeps_what_was_measured(bench: Bench) -> None:
    ended = bench(
        *("copy", "triad", "--device", "gpu:0", *BRIEF),
        script="interrupt after=4000",
    )

    assert ended.code == 130
    assert "Traceback" not in ended.said
    assert "TB/s" in ended.text
    assert re.search(
        r"^gpucheck: Interrupted after [\d.]+ s: \d rows? of 3 measured\.$", ended.said, re.M
    )
    assert ended.said.count("nterrupted") == 1


# ---- sizes and devices ----


def test_a_size_that_does_not_fit_is_refused_with_the_largest_that_does(bench: Bench) -> None:
    ended = bench("copy", "--size", "500000", "--device", "gpu:0", "--quick")

    assert ended.code == 2
    assert "does not fit" in ended.said
    assert "largest" in ended.said
    assert not ended.stdout


@pytest.mark.parametrize(("dtype", "step", "fits"), [("int8", 4, 500), ("fp8", 16, 496)])
def test_a_format_whose_edges_cublas_does_not_take_says_which(
    bench: Bench, dtype: str, step: int, fits: int
) -> None:
    ended = bench("matmul", "--dtype", dtype, "--size", "501", "--device", "gpu:0", *BRIEF)

    assert ended.code == 2
    assert f"multiples of {step}, not 501" in ended.said
    assert f"--size {fits}" in ended.said


def test_formats_that_a_size_does_not_have_are_left_out_and_that_is_noted(bench: Bench) -> None:
    document = bench.document(
        *("matmul", "--dtype", "float32,fp8", "--size", "500", "--device", "gpu:0", *BRIEF),
        script=UNHURRIED,
    )

    assert document["exit_code"] == 0
    assert {row["dtype"]["input"] for row in document["result"]["measurements"]} == {"float32"}
    assert any(
        "float8 only where edges are multiples of 16" in one for one in document["result"]["notes"]
    )


# ---- float8, and whether tensor cores ran ----


def test_float8_is_right_and_twice_as_fast_and_says_how_it_added(bench: Bench) -> None:
    document = bench.document(
        *("matmul", "--dtype", "fp8", "--size", "256", "--device", "gpu:0", "--budget", "1"),
        script=f"slow memory=0.01 compute={SLOWER}",
    )

    assert document["exit_code"] == 0
    rows = rows_of(document)
    plain, fast = (
        rows["matmul", variant, "fp8", "resident", "gpu:0"]
        for variant in ("cublaslt-nt", "cublaslt-nt-fast-accum")
    )
    # A launch and the pause before it take two microseconds.
    work = 2 * 256**3
    assert speed(plain) == pytest.approx(
        work / (work / (2 * SLOWER * H100_TENSOR * GEMM) + 2.1e-6), rel=0.05
    )
    assert speed(rows["matmul", "cublaslt-nt", "fp8", "end-to-end", "gpu:0"]) < speed(plain)
    assert plain["dtype"] == {
        "input": "float8",
        "accumulate": "float32",
        "output": "bfloat16",
        "math_mode": "fp8",
    }
    assert fast["dtype"]["accumulate"] == "float32 (fast)"
    assert fast["verified"]["bound"] > plain["verified"]["bound"] > plain["verified"]["error"] > 0
    assert plain["limits"]["peak"] == "H100 SXM, datasheet"
    assert plain["percent_of_peak"] == pytest.approx(100 * speed(plain) / 1979e12)


def test_a_card_without_float8_notes_the_reason_and_measures_the_rest(bench: Bench) -> None:
    ended = bench("matmul", "--dtype", "fp8", "--device", "gpu", *BRIEF, machine="t4")
    both = bench.document(
        *("matmul", "--dtype", "fp8,float16", "--device", "gpu", "--size", "256", *BRIEF),
        machine="t4",
        script=UNHURRIED,
    )

    assert ended.code == 4
    assert "does not support float8: it needs compute capability 8.9" in ended.said
    assert both["exit_code"] == 0
    assert {row["dtype"]["input"] for row in both["result"]["measurements"]} == {"float16"}
    assert any("8.9" in note for note in both["result"]["notes"])


def test_without_cublaslt_the_rows_say_what_to_install_and_are_not_replaced(bench: Bench) -> None:
    ended = bench(
        *("matmul", "--dtype", "fp8,bfloat16", "--size", "256", "--device", "gpu:0", "--json"),
        *BRIEF,
        script=UNHURRIED,
        variables={"FAKE_CUBLASLT": ""},
    )

    document = ended.document("bench")
    rows = document["result"]["measurements"]
    missing = [row for row in rows if row["dtype"]["input"] == "float8"]
    assert len(missing) == 2
    assert {row["error"]["code"] for row in missing} == {"cublaslt-missing"}
    assert all(row["median_s"] is None for row in missing)
    assert "[cuda12]" in missing[0]["error"]["remedy"][0]
    assert all(row["error"] is None for row in rows if row not in missing)
    assert ended.code == 1


def test_arithmetic_that_is_not_what_the_row_says_is_doubted(bench: Bench) -> None:
    """float32 and tf32 change places."""
    document = bench.document(
        *("matmul", "--dtype", "tf32,float32,float16,float8", "--size", "128"),
        *("--device", "gpu:0", *MORE),
        script=f"{UNHURRIED}; instead of=tf32 runs=fp32; instead of=fp32 runs=tf32",
    )

    rows = document["result"]["measurements"]
    exchanged = {"tf32", "fp32"}
    assert len(rows) == 8
    assert document["exit_code"] == 1
    for row in rows:
        mode = row["dtype"]["math_mode"]
        assert ("other-precision" in codes(row)) is (mode in exchanged)
        # More digits than asked for are no wrong result.
        assert (row["error"] is not None) is (mode == "fp32")


def test_tensor_cores_that_do_not_run_are_doubted(bench: Bench) -> None:
    document = bench.document(
        *("matmul", "--dtype", "float16", "--size", "640", "--device", "gpu:0", *BRIEF),
        machine="t4",
        script="slow compute=0.03",
    )

    row = rows_of(document)["matmul", "cublas", "fp16", "resident", "gpu:0"]
    assert "tensor-cores-unused" in codes(row)


@pytest.mark.parametrize(
    ("device", "variables", "words"),
    [
        ("gpu:4", {}, "there is no gpu:4"),
        ("gpu", {"CUDA_VISIBLE_DEVICES": ""}, "no GPU"),
    ],
)
def test_a_gpu_that_is_not_there(
    bench: Bench, device: str, variables: dict[str, str], words: str
) -> None:
    ended = bench("copy", "--device", device, "--quick", variables=variables)

    assert ended.code == 4
    assert words in ended.said


def test_visible_devices_decide_which_gpu_is_number_0(bench: Bench) -> None:
    document = bench.document(
        *("launch", "--device", "gpu:0", *BRIEF),
        gpus=4,
        script=UNHURRIED,
        variables={"CUDA_VISIBLE_DEVICES": "3,1"},
    )

    uuids = {row["gpu_uuid"] for row in document["result"]["measurements"]}
    assert uuids == {load_machine("h100x8").gpus[3].uuid}


def test_a_mig_instance_is_measured_against_its_own_limits(bench: Bench) -> None:
    document = bench.document(
        *("copy", "--size", "512", "--device", "gpu", *BRIEF),
        machine="a100-mig",
        gpus=None,
        script=SLOWED,
    )

    (gpu,) = document["result"]["environment"]["gpus"]
    assert gpu["name"].endswith("MIG 3g.20gb")
    assert gpu["uuid"] == load_machine("a100-mig").gpus[0].mig[0].uuid
    rows = document["result"]["measurements"]
    assert all(speed(row) < SLOW * 0.5 * 1.555e12 for row in rows)
    assert gpu["pci_device_id"] == "20b010de"
    assert gpu["board"]["bytes_per_s"] is None
    reason = "a MIG instance has a share of the memory"
    assert gpu["unavailable"] == {"board.bytes_per_s": reason}
    assert {row["unavailable"]["percent_of_peak"] for row in rows} == {reason}


def test_a_vgpu_is_held_against_no_board(bench: Bench) -> None:
    small = load_machine("h100x8").with_small_memories()
    machine = small.with_gpu(0, name="GRID H100XM-40C", virtualization_mode=2)
    document = bench.document(
        *("copy", "--size", "512", "--device", "gpu:0", *BRIEF), machine=machine, script=SLOWED
    )

    result = document["result"]
    (gpu,) = result["environment"]["gpus"]
    reason = "it is a vGPU, which has a share of its board"
    assert (gpu["board"], gpu["unavailable"]) == (None, {"board": reason})
    assert result["measurements"][0]["percent_of_peak"] is None
    assert result["measurements"][0]["unavailable"]["percent_of_peak"] == reason
    assert f"gpu:0: its peaks are unknown: {reason}" in result["notes"]


def test_an_unknown_board_gets_computed_limits(bench: Bench) -> None:
    small = load_machine("t4").with_small_memories()
    machine = small.with_gpu(0, name="NVIDIA X1", pci_device_id=0x7F0110DE)

    document = bench.document(
        *("copy", "--size", "256", "--device", "gpu:0", *BRIEF), machine=machine, script=SLOWED
    )

    (gpu,) = document["result"]["environment"]["gpus"]
    assert gpu["name"] == "NVIDIA X1"
    row = document["result"]["measurements"][0]
    assert row["percent_of_peak"] == near(100 * SLOW * MEMORY)


def test_several_gpus_and_the_processor_in_real_intervals(bench: Bench) -> None:
    words = ("copy", "--device", "all", "--quick", "--size", "512", "-v")
    ended = with_enough_time(
        lambda seconds: bench(
            *(*words, "--budget", str(seconds)),
            gpus=2,
            time="virtual",
            script="slow memory=0.5 kernel=5",
        ),
        seconds=2,
        is_whole=lambda ended: "times faster" in ended.text,
    )

    assert ended.code == 0, ended.said
    for number in range(2):
        assert f"gpu:{number} memcpy" in ended.text
    assert "times faster" in ended.text


def test_the_report_says_what_a_person_must_know(bench: Bench) -> None:
    words = ("copy", "matmul", "--dtype", "float32", "--size", "512")
    ended = bench(*words, "--device", "gpu:0", *BRIEF, script="slow compute=0.03")

    assert ended.code == 0, ended.said
    for words in (
        "TB/s",
        "TFLOP/s",
        "% of peak",
        "NVIDIA H100 80GB HBM3",
        "right against float64",
    ):
        assert words in ended.text
