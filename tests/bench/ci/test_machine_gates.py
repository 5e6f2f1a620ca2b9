"""What a machine must be and have: each thing that is lacking fails its gate."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gpucheck.bench.ci.gates import exit_status, judge, judge_machine
from gpucheck.bench.ci.run_data import Node, RunData
from gpucheck.bench.model import GateClass, GateStatus
from gpucheck.inventory.model import MigState
from gpucheck.report.errors import ExitCode
from tests.fakes.bench_results import product, product_runs, result_of, run_of, sensors
from tests.fakes.gates import GOOD, HAVE, HEAD, gate, node, profile_of, run_data


@pytest.mark.parametrize(
    ("gpu", "name", "class_"),
    [
        ({"memory_total_bytes": 64 << 30}, "inventory-memory", GateClass.HARDWARE),
        ({"ecc_mode": False}, "inventory-ecc", GateClass.CONFIG),
        ({"persistence_mode": False}, "inventory-persistence", GateClass.CONFIG),
        ({"power_limit_w": 500.0}, "inventory-power-limit", GateClass.POWER_CAP),
    ],
    ids=["memory", "ecc", "persistence", "power"],
)
def test_each_thing_that_is_lacking_fails_its_gate(
    gpu: dict[str, Any], name: str, class_: GateClass
) -> None:
    found = run_data(product_runs(GOOD), HAVE, node=node(1, **gpu))

    assert (gate(found, name).status, gate(found, name).class_) == (GateStatus.FAIL, class_)


@pytest.mark.parametrize(
    ("links", "status", "class_"),
    [
        (18, GateStatus.PASS, None),
        (17, GateStatus.FAIL, GateClass.HARDWARE),
        (None, GateStatus.INCONCLUSIVE, GateClass.SOFTWARE),
    ],
)
def test_the_fewest_links_to_another_gpu_decide(
    links: int | None, status: GateStatus, class_: GateClass | None
) -> None:
    machine = node()
    wired = replace(machine, gpus=(replace(machine.gpus[0], nvlink_links=links),))
    found = gate(run_data(product_runs(GOOD), HAVE, node=wired), "inventory-nvlink")

    assert (found.status, found.class_) == (status, class_)
    assert found.measured == links


@pytest.mark.parametrize(
    ("unread", "name"),
    [
        ("memory_total_bytes", "inventory-memory"),
        ("ecc_mode", "inventory-ecc"),
        ("persistence_mode", "inventory-persistence"),
        ("power_limit_w", "inventory-power-limit"),
    ],
)
def test_a_thing_that_is_unknown_is_undecided(unread: str, name: str) -> None:
    found = run_data(product_runs(GOOD), HAVE, node=node(1, **{unread: None}))

    assert gate(found, name).status is GateStatus.INCONCLUSIVE


@pytest.mark.parametrize(
    "name", ["inventory-pcie-generation", "inventory-pcie-width", "inventory-pcie-full"]
)
def test_a_link_that_was_not_read_under_load_is_undecided(name: str) -> None:
    runs = [run_of(result_of(product(value)), at, "gpu:0") for at, value in enumerate(GOOD)]

    found = gate(run_data(runs, HAVE), name)

    assert found.status is GateStatus.INCONCLUSIVE
    assert "no process read its sensors" in (found.reason or "")


def test_without_gpus_it_is_unknown_whether_they_are_alike() -> None:
    found = RunData(profile=profile_of(HEAD + "[inventory]\nidentical_gpus = true\n"))

    assert gate(found, "inventory-identical", "node").status is GateStatus.INCONCLUSIVE


def test_a_machine_that_has_everything_passes() -> None:
    found = run_data(product_runs(GOOD), HAVE)

    assert {one.status for one in judge(found)} == {GateStatus.PASS}


def test_pcie_x8_under_load_is_config() -> None:
    narrow = sensors(pcie_width=8)
    runs = [run_of(result_of(product(value), telemetry=narrow), at, "gpu:0")
            for at, value in enumerate(GOOD)]  # fmt: skip
    found = run_data(runs, HAVE)

    failed = {one.id: one.class_ for one in judge(found) if one.status is GateStatus.FAIL}
    assert failed == {
        "inventory-pcie-width": GateClass.CONFIG,
        "inventory-pcie-full": GateClass.CONFIG,
    }
    assert gate(found, "inventory-pcie-full").measured == 50


def test_one_different_gpu_is_named() -> None:
    odd = node(3)
    gpus = (*odd.gpus[:2], replace(odd.gpus[2], gpu=odd.gpus[2].gpu._replace(name="H200")))
    runs = [run for at in range(3) for run in product_runs(GOOD, f"gpu:{at}")]
    found = run_data(runs, HAVE, node=replace(odd, gpus=gpus))

    only = gate(found, "inventory-identical", "node")
    assert (only.status, only.class_, only.measured) == (GateStatus.FAIL, GateClass.CONFIG, 2)
    assert (only.reason or "").startswith("gpu:2 differs")


@pytest.mark.parametrize(
    ("match", "machine", "name"),
    [
        ('pci_device_ids = ["20b2"]', node(), "match-board"),
        ('names = ["NVIDIA A100*"]', node(), "match-board"),
        ("count = 8", node(7), "match-count"),
        ("mig = false", node(1, mig=MigState(enabled=True)), "match-mig"),
        ('min_driver = "600"', node(), "match-driver"),
    ],
    ids=["id", "name", "count", "mig", "driver"],
)
def test_a_machine_that_the_profile_is_not_for(match: str, machine: Node, name: str) -> None:
    text = HEAD + f"[match]\n{match}\n[stability]\nspread_percent = 5\n"
    found = RunData(profile=profile_of(text), node=machine)

    gates = judge_machine(found)

    assert {one.id for one in gates if one.status is GateStatus.FAIL} == {name}
    assert exit_status(gates)[0] is ExitCode.BAD


@pytest.mark.parametrize(
    ("match", "status"),
    [
        ('names = ["NVIDIA H100*"]', GateStatus.PASS),
        ('pci_device_ids = ["2330"]', GateStatus.PASS),
        ('pci_device_ids = ["2330"]\nnames = ["NVIDIA H100*"]', GateStatus.PASS),
    ],
)
def test_a_board_is_matched_by_its_id_or_by_its_name(match: str, status: GateStatus) -> None:
    text = HEAD + f"[match]\n{match}\n[stability]\nspread_percent = 5\n"

    (found,) = judge_machine(RunData(profile=profile_of(text), node=node()))

    assert (found.id, found.status) == ("match-board", status)


@pytest.mark.parametrize(
    ("wanted", "found", "status"),
    [
        ("false", None, GateStatus.PASS),  # a board without MIG does not report the mode
        ("true", None, GateStatus.INCONCLUSIVE),
        ("false", False, GateStatus.PASS),
        ("true", False, GateStatus.FAIL),
        ("true", True, GateStatus.PASS),
    ],
)
def test_a_mig_mode_that_is_not_reported_is_off(
    wanted: str, found: bool | None, status: GateStatus
) -> None:
    text = HEAD + f"[match]\nmig = {wanted}\n[stability]\nspread_percent = 5\n"
    machine = node(1, mig=MigState(enabled=found))

    (only,) = judge_machine(RunData(profile=profile_of(text), node=machine))

    assert (only.id, only.status) == ("match-mig", status)


@pytest.mark.parametrize(
    ("key", "name"),
    [("ecc_mode", "inventory-ecc"), ("persistence_mode", "inventory-persistence")],
)
def test_a_mode_that_was_refused_has_the_drivers_reason(key: str, name: str) -> None:
    unread = {key: None, "unavailable": {key: "not supported (NVML 3)"}}
    found = run_data(product_runs(GOOD), HAVE, node=node(1, **unread))

    assert "not supported (NVML 3)" in (gate(found, name).reason or "")


@pytest.mark.parametrize(("count", "class_"), [(7, GateClass.HARDWARE), (9, GateClass.CONFIG)])
def test_gpus_that_are_missing_blame_the_hardware_and_too_many_the_profile(
    count: int, class_: GateClass
) -> None:
    text = HEAD + "[match]\ncount = 8\n[stability]\nspread_percent = 5\n"

    (only,) = judge_machine(RunData(profile=profile_of(text), node=node(count)))

    assert (only.status, only.class_, only.measured) == (GateStatus.FAIL, class_, count)


def test_a_board_that_nobody_knows_is_undecided() -> None:
    text = HEAD + '[match]\npci_device_ids = ["2330"]\n[stability]\nspread_percent = 5\n'
    machine = node()
    unknown = replace(machine, gpus=(replace(machine.gpus[0], pci_device_id=None),))

    (found,) = judge_machine(RunData(profile=profile_of(text), node=unknown))

    assert found.status is GateStatus.INCONCLUSIVE
    assert "NVIDIA H100 80GB HBM3 (no PCI device id)" in (found.reason or "")
