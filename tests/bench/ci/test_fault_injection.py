"""Each fault of the hardware, from a worker's document to the JUnit element, on a node of GPUs.

The documents are injected; profile, gates, verdict and report are the program's own. The same with
real processes is in tests/end_to_end/test_bench_ci.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any
from xml.etree import ElementTree

import pytest

from gpucheck.bench.ci.profiles import load_profile
from gpucheck.bench.ci.run import Benchmark, request_for, run_benchmark
from gpucheck.bench.ci.run_data import Node
from gpucheck.bench.model import Corruption, DtypeSpec, Extent, Measurement, Throughput, Verified
from gpucheck.bench.workers import worker_devices
from gpucheck.drivers.gpu import Board
from gpucheck.report.envelope import Answer, Failure
from gpucheck.report.errors import ExitCode
from gpucheck.report.formats.github import workflow_commands
from gpucheck.report.formats.junit import render
from gpucheck.report.text import View
from tests.fakes.bench_results import uuid_of
from tests.fakes.bench_runs import HOST, FakeWorkers, document, gpus, row
from tests.fakes.verdicts import report
from tests.report.formats.junit_rules import violations

NOISE = (0.995, 1.0, 1.005, 1.002, 0.998)
FP32 = DtypeSpec(input="float32", accumulate="float32", output="float32", math_mode="fp32")
#: What an H100 SXM reaches of the three figures that the profile asks for, and its peaks.
BF16_SPEED, FP32_SPEED, COPY_SPEED = 7.5e14, 5.0e13, 2.9e12
BOARD = Board(
    name="H100 SXM",
    source="datasheet",
    flops_per_s={"bfloat16": 989e12, "float32": 67e12},
    bytes_per_s=3.35e12,
)
LOST = Failure(code="gpu-lost", message="the GPU stopped answering during a product")
CALM = {
    "reading_count": 200,
    "clock_sm_mhz": Extent(low=1700, median=1750, high=1980),
    "temperature_c": Extent(low=50, median=60, high=65),
    "power_w": Extent(low=600, median=690, high=700),
}


def rows(device: str, factor: float, **changes: Any) -> list[Measurement]:
    """Return the three rows of a card at this factor of an H100's usual speed."""
    product = row(device, BF16_SPEED * factor, shape=(8192, 8192, 8192), **changes)
    single = row(device, FP32_SPEED * factor, shape=(8192, 8192, 8192), dtype=FP32, **changes)
    copy = row(device, 1e12, kernel="copy", variant="memcpy", dtype=FP32, **changes)
    speed = Throughput(value=COPY_SPEED * factor, unit="B/s")
    return [product, single, replace(copy, throughput=speed)]


def judged(fault: Mapping[str, Any]) -> Answer:
    """Run the shipped profile `acceptance` on a node whose GPU number 3 has the fault.

    Only a slow one needs seven others to be told from what GPUs differ by.
    """

    def script(order: Any, number: int, sequential: bool) -> dict[str, Any]:
        mine = dict(fault) if order.device == "gpu:3" else {}
        factor = mine.pop("factor", 1.0) * NOISE[number % 5]
        found = mine.pop("rows", None)
        sensors = {**CALM, **mine.pop("sensors", {})}
        check = Corruption(
            device=order.device,
            gpu_uuid=uuid_of(order.device),
            products=500,
            words=8192 * 8192,
            digest="0" * 16,
            reference_ok=True,
            dtype="bfloat16",
            shape=(8192, 8192, 8192),
        )
        given = rows(order.device, factor, **mine.pop("row", {})) if found is None else found
        made = document(
            order.device,
            1.0,
            rows=given,
            readings=sensors,
            corruption=(replace(check, **mine.pop("corruption", {})),),
        )
        assert not mine, mine
        for gpu in made["result"]["environment"]["gpus"]:
            gpu["board"] = _plain(BOARD)
        return made

    inventory = gpus(8 if "factor" in fault else 4)
    node = Node(
        gpus=tuple(map(_wide, inventory)),
        driver_version="580.95.05",
        pci_device_ids={gpu.index: "233010de" for gpu in inventory},
    )
    profile = load_profile("acceptance")
    benchmark = Benchmark(
        profile=profile,
        request=request_for(profile),
        devices=worker_devices(["gpu"], inventory),
        time="2026-11-21T03:32:00Z",
        node=node,
        host=HOST,
    )
    return run_benchmark(benchmark, FakeWorkers(script))[0]


def _plain(board: Board) -> Any:
    from gpucheck.report.codec import to_plain

    return to_plain(board)


def _wide(gpu: Any) -> Any:
    from gpucheck.inventory.model import PcieLink

    return gpu._replace(pcie=PcieLink(generation=5, generation_max=5, width=16, width_max=16))


def red(answer: Answer) -> dict[tuple[str, str], tuple[str, str | None]]:
    """Return element and type of every red case, by device and check."""
    found = report(answer.result, code=answer.exit_code, failure=answer.error)
    text = render(found, View())
    assert violations(text) == []
    errors = [line for line in workflow_commands(found) if line.startswith("::error")]
    assert bool(errors) is (answer.exit_code is not ExitCode.OK)
    return {
        (str(suite.get("name")).split()[-1], str(case.get("name"))): (child.tag, child.get("type"))
        for suite in ElementTree.fromstring(text)
        for case in suite.findall("testcase")
        for child in case
        if child.tag != "skipped"
    }


def test_a_healthy_node_is_accepted() -> None:
    answer = judged({})

    assert red(answer) == {}
    assert answer.exit_code is ExitCode.OK


WRONG = Verified(error=None, bound=1e-2, ok=False, reference="float64")
NAN = Failure(code="wrong-result", message="matmul gives a wrong result: it holds NaN or infinity")
THERMAL = {"reasons": {"hardware-thermal": 0.4}, "limited_s": {"hardware-thermal": 8.0}}
BRAKE = {"reasons": {"power-brake": 0.4}, "limited_s": {"power-brake": 8.0}}


@pytest.mark.parametrize(
    ("fault", "check", "element"),
    [
        ({"factor": 0.85}, "straggler", ("failure", "hardware")),
        ({"sensors": THERMAL}, "throttle-hardware-thermal", ("failure", "thermal")),
        ({"sensors": BRAKE}, "throttle-power-brake", ("failure", "power-cap")),
        ({"sensors": {"pcie_width": 8}}, "pcie", ("failure", "config")),
        ({"sensors": {"new_errors": {"ecc_uncorrected": 1}}}, "ecc", ("failure", "hardware")),
        (
            {"corruption": {"mismatches": 1, "first_index": 77, "largest_ulp": 1}},
            "corruption",
            ("failure", "hardware"),
        ),
        ({"corruption": {"digest": "f" * 16}}, "corruption", ("failure", "hardware")),
        (
            {"row": {"verified": WRONG, "error": NAN, "time_s": None, "throughput": None}},
            "not-finite",
            ("failure", "hardware"),
        ),
        (
            {"row": {"error": LOST, "time_s": None, "throughput": None, "verified": None}},
            "processes",
            ("failure", "hardware"),
        ),
        ({"rows": []}, "matmul", ("failure", None)),
    ],
    ids=[
        *("slow", "thermal", "power-brake", "pcie-x8", "ecc", "flipped-bit", "other-digest"),
        *("nan", "lost", "zero-samples"),
    ],
)
def test_a_fault_ends_with_its_class_its_code_and_its_element(
    fault: dict[str, Any], check: str, element: tuple[str, str | None]
) -> None:
    answer = judged(fault)
    found = red(answer)

    assert answer.exit_code is ExitCode.BAD, found
    assert {device for device, _ in found} <= {"gpu:3", "node"}, found
    mine = {
        type_ for (_, name), (tag, type_) in found.items() if check in name and tag == "failure"
    }
    assert mine, found
    if element[1] is not None:
        assert mine == {element[1]}, found
    assert answer.error is not None
