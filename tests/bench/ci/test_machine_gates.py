"""Gates on the machine and the run: each thing that is lacking, and each fault, fails its gate."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from gpucheck.bench.ci.gates import judge, judge_machine
from gpucheck.bench.ci.model import ProcessRun
from gpucheck.bench.ci.run_data import Node, RunData
from gpucheck.bench.model import (
    Corruption,
    Direction,
    Extent,
    GpuTelemetry,
    Measurement,
    Verified,
)
from gpucheck.inventory.model import MigState
from gpucheck.report.envelope import Failure
from tests.fakes.bench import PYTORCH
from tests.fakes.bench_results import product, product_runs, result_of, run_of, sensors, uuid_of
from tests.fakes.gates import GOOD, HAVE, HEAD, NODE, node, profile_of, run_data, show_gates
from tests.report.formats.recorded import in_lines, in_sections, recorded

CALM = """
[stability]
max_temperature_c = 80
max_clock_drop_percent = 20
new_ecc_uncorrected = 0
new_pcie_replays = 10
[stability.throttle_s]
hardware-thermal = 0
power-brake = 0
"""
SLOWDOWN = "\n[stability.throttle_s]\nhardware-slowdown = 0\n"
#: A run, and the gates that it is about; none are all.
Situations = dict[str, tuple[RunData, list[str]]]


def sensed(
    telemetry: GpuTelemetry | None, extra: str, *, count: int = 5, good: int = 0, **row: Any
) -> RunData:
    """Return what processes bring whose sensors read this, after some good ones."""
    runs = product_runs(GOOD)[:good]
    result = result_of(product(700, **row), telemetry=telemetry)
    runs += [run_of(result, good + at, "gpu:0") for at in range(count)]
    return run_data(runs, extra)


def inventory() -> Situations:
    def having(**gpu: Any) -> RunData:
        return run_data(product_runs(GOOD), HAVE, node=node(1, **gpu))

    def wired(links: dict[int, int]) -> RunData:
        machine = replace(node(), nvlink_links=links)
        return run_data(product_runs(GOOD), HAVE, node=machine)

    lacks: dict[str, tuple[str, Any]] = {
        "memory": ("memory_total_bytes", 64 << 30),
        "ecc": ("ecc_mode", False),
        "persistence": ("persistence_mode", False),
        "power-limit": ("power_limit_w", 500.0),
    }
    why = "not supported (NVML error 3)"
    found: Situations = {"everything": (run_data(product_runs(GOOD), HAVE), [])}
    for name, (key, value) in lacks.items():
        gate = [f"inventory-{name}"]
        refused = having(**{key: None, "unavailable": {key: why}})
        found[f"{name}: too little"] = (having(**{key: value}), gate)
        found[f"{name}: unknown"] = (having(**{key: None}), gate)
        found[f"{name}: refused"] = (refused, gate)
    for links in (18, 17, None):
        data = wired({} if links is None else {0: links})
        found[f"{links} links to another GPU"] = (data, ["inventory-nvlink"])
    odd = node(3)
    odd = replace(odd, gpus=(*odd.gpus[:2], odd.gpus[2]._replace(name="H200")))
    runs = [run for at in range(3) for run in product_runs(GOOD, f"gpu:{at}")]
    alone = RunData(profile=profile_of(HEAD + "[inventory]\nidentical_gpus = true\n"))
    found["one GPU is different"] = (run_data(runs, HAVE, node=odd), ["inventory-identical"])
    four = node(4)
    two_models = [gpu._replace(name="H200") if gpu.index > 2 else gpu for gpu in four.gpus]
    two_models[2] = two_models[2]._replace(name="L40S")
    four = replace(four, gpus=two_models)
    found["two GPUs are different"] = (run_data(runs, HAVE, node=four), ["inventory-identical"])
    found["no GPU, so none is alike"] = (alone, ["inventory-identical"])
    pcie = [f"inventory-pcie-{word}" for word in ("generation", "width", "full")]
    found["a link that nobody read under load"] = (sensed(None, HAVE), pcie)
    half_read = sensors(pcie_width=None)
    found["a link of which only the generation was read"] = (sensed(half_read, HAVE), pcie)
    found["eight lanes under load"] = (sensed(sensors(pcie_width=8), HAVE), [])
    links_seen = [{"pcie_generation": 5, "pcie_width": 8}, {"pcie_generation": 3, "pcie_width": 16}]
    two = [
        run_of(result_of(product(7e14), telemetry=sensors(**link)), at, "gpu:0")
        for at, link in enumerate(links_seen)
    ]
    found["the fastest link of all processes counts"] = (run_data(two, HAVE), pcie)
    return found


def results() -> Situations:
    def verified(found: float | None, **changes: Any) -> Measurement:
        bad = Verified(error=found, bound=1e-5, ok=False, reference="float64")
        return product(700, verified=bad, **changes)

    def beside_good(*rows: Measurement, extra: str = "") -> RunData:
        last = run_of(result_of(*rows, telemetry=sensors()), 5, "gpu:0")
        return run_data([*product_runs(GOOD), last], extra)

    wrong = {"time_s": None, "error": Failure("wrong-result", "it is wrong")}
    late = {
        "time_s": None, "verified": None, "throughput": None,
        "error": Failure("no-time", "the time was over", ("give more time",)),
    }  # fmt: skip
    gates = ["results", "not-finite"]
    theirs = verified(0.5, framework=PYTORCH)
    return {
        "a wrong result": (beside_good(verified(0.5, **wrong)), gates),
        "NaN": (beside_good(verified(None, **wrong)), gates),
        "a framework is wrong where the card is right": (beside_good(theirs, product(700)), gates),
        "a framework is wrong, and so is the card": (beside_good(theirs, verified(0.5)), gates),
        "NaN that no profile allows": (
            beside_good(verified(None), extra="\n[stability]\nnot_finite = 0\n"), gates,
        ),
        "NaN as often as the profile allows": (
            beside_good(verified(None), extra="\n[stability]\nnot_finite = 1\n"), gates,
        ),
        "the time did not reach them": (sensed(sensors(), "", **late), gates),
    }  # fmt: skip


def repeated_products() -> Situations:
    def repeated(device: str = "gpu:0", **changes: Any) -> ProcessRun:
        check = Corruption(
            device=device, gpu_uuid=uuid_of(device), products=100, words=64, digest="aa",
            reference_ok=True, dtype="bfloat16", shape=(8, 8, 8),
        )  # fmt: skip
        checks = (replace(check, **changes),)
        row = product(700, device)
        return run_of(result_of(row, telemetry=sensors(device), corruption=checks), 0, device)

    def run(*runs: ProcessRun) -> tuple[RunData, list[str]]:
        text = NODE.replace("seconds = 5", "seconds = 5\ncorruption_seconds = 5")
        profile = profile_of(text + "\n[stability]\ncorruption = 0\n")
        count = len({run.device for run in runs})
        return RunData(profile=profile, node=node(count), runs=runs), ["corruption"]

    lost = Failure("gpu-lost", "the GPU stopped answering")
    taken = Failure("gpu-memory-taken", "the memory is taken", ("see who",))
    return {
        "equal bits": run(repeated()),
        "one flipped bit": run(repeated(mismatches=1, first_index=17, largest_ulp=4096)),
        "a GPU that differs from its twins": run(
            repeated("gpu:0"), repeated("gpu:1"), repeated("gpu:2", digest="bb")
        ),
        "of two twins the wrong one is unknown": run(repeated(), repeated("gpu:1", digest="bb")),
        "processes that compute other bits": run(repeated(), repeated(digest="bb"), repeated()),
        "a flipped bit, and then the GPU was lost": run(
            repeated(mismatches=1, not_finite=1, failure=lost)
        ),
        "a wrong first product, and then the GPU was lost": run(
            repeated(products=0, reference_ok=False, failure=lost)
        ),
        "a GPU that others fill": run(
            repeated(products=0, digest=None, reference_ok=None, failure=taken)
        ),
        "a GPU that others fill for one of two processes": run(
            repeated(products=0, digest=None, reference_ok=None),
            repeated(products=0, digest=None, reference_ok=None, failure=taken),
        ),
        "never compared": run(*product_runs(GOOD)),
    }


def sensor_readings() -> Situations:
    hot = sensors(temperature_c=Extent(low=40, median=80, high=92))
    faults: dict[str, dict[str, Any]] = {
        "held down by heat": {"limited_s": {"hardware-thermal": 0.2}},
        "held down by the power brake": {"reasons": {"power-brake": 0.5}},
        "an ECC error": {"new_errors": {"ecc_uncorrected": 1}},
        "PCIe replays": {"new_errors": {"pcie_replays": 11}},
    }
    found: Situations = {
        name: (sensed(sensors(**changes), CALM, count=1, good=5), [])
        for name, changes in faults.items()
    }
    names = ("reasons", "limited_s.hardware-thermal", "new_errors.ecc_uncorrected")
    for why in ("not supported by this GPU (NVML error 3)", "the GPU is lost (NVML error 15)"):
        silent = sensors(unavailable=dict.fromkeys(names, why))
        seen = replace(silent, new_errors={"ecc_uncorrected": 1})
        runs = [
            run_of(result_of(product(700), telemetry=reading), at, "gpu:0")
            for at, reading in enumerate((seen, silent, silent, silent, silent))
        ]
        found[f"not told: {why}"] = (sensed(silent, CALM), [])
        found[f"an error before that: {why}"] = (run_data(runs, CALM), ["new-ecc-uncorrected"])
    for reasons in (
        {"hardware-slowdown": 0.01},
        {"hardware-slowdown": 0.01, "power-cap": 0.9},
        {"hardware-slowdown": 0.01, "hardware-thermal": 0.01},
        {"hardware-slowdown": 0.5, "power-brake": 0.5},
    ):
        data = sensed(sensors(reasons=reasons), SLOWDOWN)
        found[f"a slowdown by {reasons}"] = (data, ["throttle-hardware-slowdown"])
    # Half of 40 readings, each 0.25 s after the last.
    read = replace(sensors(reasons={"power-brake": 0.5}), reading_count=40, period_s=0.25)
    counted = replace(read, limited_s={"power-brake": 7.0})
    return found | {
        "calm": (run_data(product_runs(GOOD), CALM), []),
        "hot, though the speed is good": (sensed(hot, CALM), ["temperature"]),
        "no sensors": (sensed(None, CALM), []),
        "seconds that were read": (sensed(read, CALM), ["throttle-power-brake"]),
        "seconds that were counted": (sensed(counted, CALM), ["throttle-power-brake"]),
    }


@pytest.mark.parametrize("group", [inventory, results, repeated_products, sensor_readings])
def test_gates_of_a_run_are_as_recorded(group: Callable[[], Situations]) -> None:
    shown = {name: show_gates(data, *names) for name, (data, names) in group().items()}
    text = in_sections(shown)

    assert text == recorded(f"gates-of-{group.__name__.replace('_', '-')}", text)


def test_a_gate_has_one_direction_whether_it_is_decided_or_not() -> None:
    directions: dict[str, set[Direction]] = {}
    for data, _ in inventory().values():
        for gate in judge(data):
            directions.setdefault(gate.id, set()).add(gate.direction)

    higher = {name for name, seen in directions.items() if Direction.HIGHER in seen}
    assert all(len(seen) == 1 for seen in directions.values())
    assert {"inventory-pcie-width", "inventory-ecc", "inventory-memory"} <= higher
    assert "inventory-identical" not in higher


def matches() -> dict[str, tuple[str, Node]]:
    """Return what a profile is for, and the machine."""
    mig = {
        f"MIG {wanted} is asked for, and it is {enabled}": (
            f"mig = {wanted}", node(1, mig=MigState(enabled=enabled)),
        )
        for wanted, enabled in (
            # A board without MIG does not report the mode.
            ("false", None), ("true", None), ("false", False), ("true", False), ("true", True),
        )
    }  # fmt: skip
    reasons = (
        "not supported (NVML error 3)", "the driver did not answer in time (NVML error 10)",
    )  # fmt: skip
    unread = {
        f"no MIG is asked for, and: {why}": (
            "mig = false",
            node(1, mig=MigState(enabled=None), unavailable={"mig.enabled": why}),
        )
        for why in reasons
    }
    nobody = replace(node(), pci_device_ids={})
    left_out = {
        f"one of eight, {count} left out by an option": (
            "count = 8", replace(node(1), left_out=count),
        )
        for count in (7, 6, 8)
    }  # fmt: skip
    return {
        "another board by its id": ('pci_device_ids = ["20b2"]', node()),
        "another board by its name": ('names = ["NVIDIA A100*"]', node()),
        "the board by its name": ('names = ["NVIDIA H100*"]', node()),
        "the board by its id": ('pci_device_ids = ["2330"]', node()),
        "the board by both": ('pci_device_ids = ["2330"]\nnames = ["NVIDIA H100*"]', node()),
        "a board that nobody knows": ('pci_device_ids = ["2330"]', nobody),
        "seven of eight": ("count = 8", node(7)),
        "nine instead of eight": ("count = 8", node(9)),
        "MIG is on": ("mig = false", node(1, mig=MigState(enabled=True))),
        "an older driver": ('min_driver = "600"', node()),
        **mig,
        **unread,
        **left_out,
    }


def test_whether_a_profile_is_for_a_machine_is_as_recorded() -> None:
    shown = {}
    for name, (match, machine) in matches().items():
        text = HEAD + f"[match]\n{match}\n[stability]\nspread_percent = 5\n"
        gates: Sequence[Any] = judge_machine(RunData(profile=profile_of(text), node=machine))
        shown[name] = in_lines(gates)
    text = in_sections(shown)

    assert text == recorded("gates-of-matches", text)
