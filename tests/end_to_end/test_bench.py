"""`gpucheck bench` as a person calls it, on the processor alone: documents, codes, refusals."""

from __future__ import annotations

import csv
import json
import math
import os
import re
import signal
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from tests.end_to_end.conftest import Ended, Program
from tests.enough_time import has_every_row, with_enough_time

ON_CPU = ("--device", "cpu", "--size", "64")
#: For every row: as long as that takes.
ALL_ROWS = ("--device", "cpu", "--size", "64", "--quick", "--json")


Bench = Callable[..., Ended]


@pytest.fixture(name="bench")
def _bench(program: Program) -> Bench:
    def run(*arguments: str, **variables: str) -> Ended:
        return program("bench", *arguments, env=variables)

    return run


def result_of(ended: Ended) -> Any:
    assert ended.code == 0, ended.said
    return ended.document("bench")["result"]


def measured(bench: Bench, *words: str, seconds: float) -> Any:
    """Return the result of a run in which every row had time."""
    found = with_enough_time(
        lambda seconds: bench(*words, "--budget", str(seconds)).document("bench"),
        seconds,
        is_whole=has_every_row,
    )
    assert found["exit_code"] == 0
    return found["result"]


def test_every_row_is_verified_and_can_be_recomputed_from_its_samples(bench: Bench) -> None:
    result = measured(bench, *ALL_ROWS, seconds=3)

    assert {row["kernel"] for row in result["measurements"]} == {
        "matmul", "softmax", "copy", "triad", "train", "batch", "towers"
    }  # fmt: skip
    for row in result["measurements"]:
        assert row["verified"]["ok"], row["kernel"]
        assert row["verified"]["error"] <= row["verified"]["bound"]
        rounds, left = [], row["samples_s"]
        for size in row["round_sizes"]:
            rounds.append(statistics.median(left[:size]))
            left = left[size:]
        assert left == []
        assert row["round_medians_s"] == pytest.approx(rounds)
        assert row["median_s"] == pytest.approx(statistics.median(rounds))
        if row["ci95_s"] is not None:
            low, high = row["ci95_s"]
            assert low <= row["time_s"] <= high
        figures = {"wall": row["samples_s"], "cpu": row["cpu_samples_s"]}
        assert row["time_s"] == min(figures[row["clock"]])
        codes = {doubt["code"] for doubt in row["doubts"]}
        assert row["converged"] == (not codes & {"unconverged", "host-busy", "quota-reached"})


def test_a_summary_has_the_rounds_and_the_seed_and_the_fill_are_told(bench: Bench) -> None:
    options = ("--samples", "summary", "--seed", "7", "--fill", "zeros", "--json")
    ended = with_enough_time(
        lambda seconds: bench("copy", *ON_CPU, "--budget", str(seconds), *options),
        seconds=1,
        is_whole=lambda ended: ended.code == 0,
    )
    result = result_of(ended)

    assert result["environment"]["seed"] == 7
    assert result["environment"]["data"] == "zeros"
    # A busy machine has no time for rows of several threads.
    measured = [row for row in result["measurements"] if row["summary"] is not None]
    assert measured
    for row in measured:
        assert row["samples_s"] == row["warmup_s"] == []
        assert row["summary"]["count"] > 0
        assert row["round_medians_s"]
        assert "zeros" in {doubt["code"] for doubt in row["doubts"]}


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("sofmax",), 2, "Did you mean 'softmax'?"),
        (("matmul", "--size", "10000000"), 2, "does not fit into the free memory"),
        (("matmul", "--size", "0"), 2, "at least 1"),
        (("softmax", "--temperature", "nan"), 2, "temperature between"),
        (("--budget", "0"), 2, "A budget takes seconds above 0"),
        (("--budget", "inf"), 2, "A budget takes seconds above 0"),
        (("--seed", "-1"), 2, "zero or greater"),
        (("towers", "--towers", "65"), 2, "2 to 64"),
        (("--device", "tpu"), 2, "does not know the device"),
        (("--dtype", "float13"), 2, "No kernel can be measured"),
        (("--quick", "--full"), 2, "contradict"),
        (("--from", "machine.json"), 2, "snapshot"),
        (("matmul", "--dtype", "fp8"), 4, "NumPy multiplies float8 without BLAS"),
        (("matmul", "--dtype", "int8"), 4, "NumPy multiplies int8 without BLAS"),
        (("transfer",), 4, "measured here: transfer needs a GPU."),
    ],
)
def test_what_makes_no_sense_is_refused_in_one_sentence(
    bench: Bench, arguments: tuple[str, ...], code: int, words: str
) -> None:
    device = () if "--device" in arguments else ("--device", "cpu")

    ended = bench(*arguments, *device, "--json")

    assert ended.code == code
    error = ended.document("bench")["error"]
    assert words in error["message"]
    assert error["message"].endswith((".", "?"))
    assert ended.said.splitlines()[0] == f"gpucheck: {error['message']}"


def test_the_largest_size_that_fits_is_told_and_fits(bench: Bench) -> None:
    ended = bench("softmax", "--device", "cpu", "--size", "10000000", "--json")
    (step,) = ended.document("bench")["error"]["remedy"]

    assert int(step.rstrip(".").split()[-1]) > 64


def idx(path: Path, *shape: int) -> None:
    head = b"\x00\x00\x08" + bytes([len(shape)])
    sizes = b"".join(edge.to_bytes(4, "big") for edge in shape)
    path.write_bytes(head + sizes + bytes(number % 10 for number in range(math.prod(shape))))


def test_training_takes_mnist_and_says_so(bench: Bench, tmp_path: Path) -> None:
    idx(tmp_path / "train-images-idx3-ubyte", 300, 28, 28)
    idx(tmp_path / "train-labels-idx1-ubyte", 300)
    path = tmp_path / "train-images-idx3-ubyte"

    result = measured(bench, "train", *ALL_ROWS, "--data", str(path), seconds=1.5)

    assert {row["facts"]["images"] for row in result["measurements"]} == {"file"}
    assert "images from the file" in result["conclusions"][0]["sentence"]


@pytest.mark.parametrize("name", ["missing.npz", "short-images-idx3-ubyte", "text.npz"])
def test_a_malformed_data_file_is_refused(bench: Bench, tmp_path: Path, name: str) -> None:
    if name != "missing.npz":
        (tmp_path / name).write_bytes(b"\x00\x00\x08\x03 too short")

    ended = bench("train", "--device", "cpu", "--data", str(tmp_path / name))

    assert (ended.code, ended.text) == (2, "")
    assert name in ended.said


def wait_for_work(pid: int, seconds: float) -> None:
    """Wait until a process has taken so much of the processor, however busy the machine is."""
    ticks = 0
    while ticks < seconds * os.sysconf("SC_CLK_TCK"):
        time.sleep(0.05)
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
        ticks = int(fields[11]) + int(fields[12])


def test_an_interrupt_keeps_what_was_measured(program: Program, tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    options = ("--device", "cpu", "--size", "64", "--budget", "60", "--json", "--output", str(path))
    process = program.start("bench", "copy", *options, env={"OPENBLAS_NUM_THREADS": "1"})
    wait_for_work(process.pid, seconds=1.5)

    process.send_signal(signal.SIGINT)
    out, err = process.communicate()

    assert (process.returncode, out) == (130, b"")
    assert b"Interrupted" in err
    rows = json.loads(path.read_text())["result"]["measurements"]
    assert any(row["median_s"] is not None for row in rows)
    assert any(row["interrupted"] for row in rows)


def test_the_table_fits_the_terminal(bench: Bench) -> None:
    ended = with_enough_time(
        lambda seconds: bench(
            *("softmax", "--quick", "--device", "cpu", "--size", "64", "--budget", str(seconds)),
            COLUMNS="40",
            LC_ALL="C.UTF-8",
        ),
        seconds=1,
        is_whole=lambda ended: ended.code == 0 and "too short" not in ended.said + ended.text,
    )

    assert (ended.code, ended.said) == (0, "")
    assert max(len(line) for line in ended.text.splitlines()) <= 40
    assert "softmax 64 × 64, float32, temperature 0.6" in " ".join(ended.text.split())


#: gpucheck whose products compute once for each output, and then less: nothing, or half of it.
STOPPING = """
import itertools
from gpucheck.bench.kernels import matmul
from gpucheck.__main__ import main

shares = itertools.cycle((0.0, 0.5))

class Stopping(matmul.CpuMatmul):
    def prepare(self):
        super().prepare()
        self.rows, self.share = len(self._out), next(shares)

    def step(self):
        self._left, self._out, everything = self._left[:self.rows], self._out[:self.rows], self._out
        if self.rows:
            super().step()
        self._out, self.rows = everything, int(len(everything) * self.share)

matmul.CpuMatmul = Stopping
main()
"""


class StoppingProgram(Program):
    """gpucheck with products that later compute none or half of their rows."""

    entry = ("-c", STOPPING)


@pytest.mark.parametrize(
    ("arguments", "codes"),
    [
        (("copy", "matmul", "--size", "1024", "--budget", "0.3"), {0}),
        (("copy", "matmul", "--size", "1024", "--budget", "0.3", "--strict"), {0, 1}),
        (("matmul", "--size", "4096", "--budget", "0.001"), {3}),
    ],
)
def test_junit_is_red_exactly_where_the_code_is_not_0(
    arguments: tuple[str, ...], codes: set[int], tmp_path: Path, bench: Bench
) -> None:
    """The time is too short for some rows or for all; the code says whether that is bad."""
    path = tmp_path / "bench.xml"

    ended = bench(*arguments, "--device", "cpu", "--json", "--junit", str(path))

    assert ended.code in codes, ended.said
    suite = ElementTree.parse(path).getroot()[0]
    red = [case for case in suite.iter("testcase") if {"failure", "error"} & {c.tag for c in case}]
    counted = int(suite.attrib["failures"]) + int(suite.attrib["errors"])
    assert (bool(red), bool(counted)) == (ended.code != 0, ended.code != 0)
    if ended.code == 0:
        late = [row for row in result_of(ended)["measurements"] if row["time_s"] is None]
        assert int(suite.attrib["skipped"]) == len(list(suite.iter("skipped"))) == len(late)


def test_a_product_that_stops_working_is_wrong_and_has_no_speed(
    tmp_path: Path, program: Program
) -> None:
    files = {name: tmp_path / name for name in ("bench.xml", "bench.prom", "bench.html", "summary")}
    saved = tmp_path / "bench.json"
    ended = StoppingProgram()(
        *("bench", "matmul", "--dtype", "float32", *ON_CPU, "--budget", "6"),
        *("--json", "--output", saved),
        *("--junit", files["bench.xml"], "--prometheus", files["bench.prom"]),
        *("--html", files["bench.html"], "--github"),
        env={"GITHUB_STEP_SUMMARY": str(files["summary"]), "OPENBLAS_NUM_THREADS": "1"},
    )
    shown = {
        form: program("show", saved, "--format", form, env={}).text
        for form in ("table", "jsonl", "csv", "markdown")
    }

    assert ended.code == 1, ended.said
    assert "Traceback" not in ended.said
    wrong = json.loads(saved.read_text())["result"]["measurements"]
    assert len(wrong) > 1
    for row in wrong:
        assert row["error"]["code"] == "wrong-result"
        assert (row["median_s"], row["throughput"], row["summary"]) == (None, None, None)
        assert (row["round_medians_s"], row["converged"]) == ([], False)
        assert row["samples_s"]
    for row in csv.DictReader(shown["csv"].splitlines()):
        assert (row["verified"], row["median_s"], row["throughput"]) == ("false", "", "")
        assert row["time_s"] == ""
    lines = map(json.loads, shown["jsonl"].splitlines())
    rows = [line for line in lines if "verified" in line]
    assert rows
    for row in rows:
        assert (row["verified"]["ok"], row["time_s"], row["throughput"]) == (False, None, None)
    pages = [shown["table"], shown["markdown"], files["bench.html"].read_text()]
    assert all("WRONG" in page for page in pages)
    written = [*pages, *(at.read_text() for at in files.values())]
    assert not [text for text in written if re.search(r"[GT]FLOP/s", text)]
    assert files["bench.xml"].read_text().count('type="wrong-result"') >= 1
    assert "::error" in ended.text + ended.said
