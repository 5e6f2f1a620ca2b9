"""CUDA_VISIBLE_DEVICES and CUDA_DEVICE_ORDER: by the command, and against another reading."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

from gpucheck.inventory.visibility import apply_rules
from tests.end_to_end.conftest import Ended, ForkServers, Pretend, Program
from tests.fakes.machine import Machine, load_machine
from tests.sampling import THOROUGH, sampled

H100 = load_machine("h100x8")
MIXED = load_machine("mixed-order")
MIG = load_machine("a100-mig")


def uuid(index: int) -> str:
    return H100.gpus[index].uuid


def shown(program: Program, env: dict[str, str], *arguments: str) -> Any:
    """Return the list's document without what changes from second to second."""
    document = program("list", "--json", *arguments, env=env).document()
    return document["result"]


@pytest.mark.parametrize(
    ("text", "ordinals"),
    [
        (None, {0: 0, 1: 1, 2: 2, 3: 3, 4: 4, 5: 5, 6: 6, 7: 7}),
        ("", {}),
        ("3,1,2", {3: 0, 1: 1, 2: 2}),
        ("2,-1,0", {2: 0}),
        (f"{uuid(5)[:12]},{uuid(2)[:14]}", {5: 0, 2: 1}),
    ],
    ids=str,
)
def test_eight_like_cards(
    pretend: Pretend, program: Program, call_log: Path, text: str | None, ordinals: dict[int, int]
) -> None:
    env = pretend(H100) | {"FAKE_CALL_LOG": str(call_log)}
    if text is not None:
        env["CUDA_VISIBLE_DEVICES"] = text

    result = shown(program, env)

    assert result["visibility"]["decided_by"] == "rules"
    assert result["visibility"]["cuda_visible_devices"] == text
    for row in result["gpus"]:
        assert row["cuda_index"] == ordinals.get(row["index"])
        assert row["visible"] is (row["index"] in ordinals)
        assert (row["hidden_reason"] is None) is row["visible"]
    names = [entry["text"] for entry in result["visibility"]["entries"]]
    assert names == (text.split(",") if text else [])
    # The rules decide, so the driver is not asked.
    assert "cuInit" not in call_log.read_text(encoding="ascii")


@pytest.mark.parametrize("text", [None, "3,1,2", uuid(5)])
def test_the_driver_agrees_when_asked(
    pretend: Pretend, program: Program, call_log: Path, text: str | None
) -> None:
    env = pretend(H100) | ({} if text is None else {"CUDA_VISIBLE_DEVICES": text})

    by_rules = shown(program, env)
    by_driver = shown(program, env | {"FAKE_CALL_LOG": str(call_log)}, "--ask-driver")

    assert "cuInit" in call_log.read_text(encoding="ascii")
    assert by_driver["visibility"]["decided_by"] == "driver"
    numbers = ("index", "cuda_index", "visible")
    for one, two in zip(by_rules["gpus"], by_driver["gpus"], strict=True):
        assert [one[name] for name in numbers] == [two[name] for name in numbers]
    assert by_rules["visibility"]["visible"] == by_driver["visibility"]["visible"]


@pytest.mark.parametrize(
    ("order", "text", "ordinals", "decided_by"),
    [
        (None, None, [1, 0], "driver"),
        ("FASTEST_FIRST", None, [1, 0], "driver"),
        ("PCI_BUS_ID", None, [0, 1], "rules"),
        (None, "0", [None, 0], "driver"),
        ("PCI_BUS_ID", "0", [0, None], "rules"),
        ("PCI_BUS_ID", "1,0", [1, 0], "rules"),
        (None, "1,0", [0, 1], "driver"),
        # A UUID names the card whatever the order is.
        (None, MIXED.gpus[0].uuid, [0, None], "rules"),
        (None, "", [None, None], "rules"),
        (None, "-1", [None, None], "rules"),
        ("pci_bus_id", None, [1, 0], "driver"),
        ("", None, [1, 0], "driver"),
    ],
    ids=str,
)
def test_unlike_cards(
    pretend: Pretend,
    program: Program,
    order: str | None,
    text: str | None,
    ordinals: list[int | None],
    decided_by: str,
) -> None:
    given = {"CUDA_DEVICE_ORDER": order, "CUDA_VISIBLE_DEVICES": text}
    env = pretend(MIXED) | {name: value for name, value in given.items() if value is not None}

    result = shown(program, env)

    assert result["visibility"]["cuda_device_order"] == order
    assert result["visibility"]["decided_by"] == decided_by
    assert [row["cuda_index"] for row in result["gpus"]] == ordinals


INSTANCES = [instance.uuid for instance in MIG.gpus[0].mig]


@pytest.mark.parametrize(
    ("text", "instances", "whole", "decided_by"),
    [
        (None, [0, None, None], None, "driver"),
        (INSTANCES[1], [None, 0, None], None, "rules"),
        (f"MIG-{MIG.gpus[0].uuid}/5/0", [None, 0, None], None, "rules"),
        (f"{INSTANCES[2]},{INSTANCES[0]}", [None, None, 0], None, "driver"),
        (MIG.gpus[1].uuid, [None, None, None], 0, "rules"),
        (MIG.gpus[0].uuid, [0, None, None], None, "driver"),
        ("", [None, None, None], None, "rules"),
        ("MIG-ffffffff-0000-0000-0000-000000000000", [None, None, None], None, "rules"),
    ],
    ids=str,
)
def test_mig_instances(
    pretend: Pretend,
    program: Program,
    text: str | None,
    instances: list[int | None],
    whole: int | None,
    decided_by: str,
) -> None:
    env = pretend(MIG) | ({} if text is None else {"CUDA_VISIBLE_DEVICES": text})

    result = shown(program, env)

    split, other = result["gpus"]
    assert result["visibility"]["decided_by"] == decided_by
    assert [item["cuda_index"] for item in split["mig"]["instances"]] == instances
    assert split["cuda_index"] is None
    assert split["visible"] is any(item is not None for item in instances)
    assert other["cuda_index"] == whole
    assert other["visible"] is (whole is not None)


def test_visible_leaves_the_hidden_out(pretend: Pretend, program: Program) -> None:
    env = pretend(H100) | {"CUDA_VISIBLE_DEVICES": "6,2"}

    result = shown(program, env, "--visible")
    table = program("list", env=env).text

    assert [row["index"] for row in result["gpus"]] == [2, 6]
    assert "GPUs 0-1,3-5,7 are hidden from CUDA: not named in CUDA_VISIBLE_DEVICES='6,2'" in table
    assert "8 GPUs · 2 visible to CUDA" in table


@pytest.mark.parametrize(
    ("text", "words"),
    [("1,x,2", "the entry 'x' and all after it are dropped"), ("1,1", "the entry '1' is dropped")],
)
def test_a_dropped_entry_is_a_warning(
    pretend: Pretend, program: Program, text: str, words: str
) -> None:
    env = pretend(H100) | {"CUDA_VISIBLE_DEVICES": text}

    ended: Ended = program("list", "--json", env=env)

    assert ended.code == 0
    (notice,) = ended.document()["warnings"]
    assert words in notice["message"]
    assert words in ended.said


@pytest.mark.parametrize(
    "text",
    ["\x1b[31m0", "0\n1", "GPU-" + "f" * 5000, ",".join(["0"] * 3000), "é", "0\udcff", "%s%n"],
    ids=range(7),
)
def test_strange_texts(pretend: Pretend, program: Program, text: str) -> None:
    env = pretend(H100) | {"CUDA_VISIBLE_DEVICES": text}

    document = program("list", "--json", env=env).document()
    table = program("list", env=env)

    assert len(document["result"]["gpus"]) == 8
    assert table.code == 0
    assert b"\x1b" not in table.stdout + table.stderr
    assert all(len(line) <= 80 for line in table.text.splitlines())


# ------------------------------------------------------------------- against the other reading


def words_for(machine: Machine) -> list[str]:
    """Return entries of every kind that the rules tell apart, valid ones for this machine first."""
    first, last = machine.gpus[0], machine.gpus[-1]
    words = [
        "0", "1", str(len(machine.gpus) - 1), str(len(machine.gpus)), "-1", "x", "",
        first.uuid, last.uuid, last.uuid[:13], "GPU-", "GPU-ffffffff-0000",
        " 1", "1 ", "+1", "1x", "1.5", "01", "0x1", "99999999999999999999", "4294967296",
        "GPU", "gpu-" + first.uuid[4:], first.uuid.upper(), f" {first.uuid}", "all", "none",
    ]  # fmt: skip
    for instance in first.mig:
        words += [instance.uuid, f"MIG-{first.uuid}/{instance.gpu_instance_id}/0"]
    if first.mig:
        words += ["MIG-", "MIG-ffffffff", first.mig[0].uuid[:12], f"MIG-{first.uuid}/9/9"]
    return list(dict.fromkeys(words))


def texts_for(machine: Machine) -> list[str | None]:
    """Return every list of one or two entries, and those of three whose entries are plainest."""
    words = words_for(machine)
    plain = [*words[:2], *words[3:5], *words[6:9], *(mig.uuid for mig in machine.gpus[0].mig[:1])]
    lists = [
        *itertools.product(words),
        *itertools.product(words, repeat=2),
        *itertools.product(plain, repeat=3),
    ]
    return [None, *dict.fromkeys(",".join(entries) for entries in lists)]


MACHINES = {
    "alike": (H100.with_gpus(3), ["FASTEST_FIRST"]),
    "unlike": (MIXED, [None, "PCI_BUS_ID"]),
    "single": (load_machine("t4"), ["FASTEST_FIRST"]),
    "mig": (MIG, [None]),
    "mig-newer-driver": (MIG.with_driver(version="580.95.05"), ["PCI_BUS_ID"]),
}


@pytest.mark.parametrize("name", MACHINES)
def test_the_rules_agree_with_the_driver_wherever_they_decide(
    forks: ForkServers, name: str
) -> None:
    machine, orders = MACHINES[name]
    server = forks.on(machine)
    gpus = server.nvml(machine).gpus
    decided, differ = 0, []

    single = [None, *words_for(machine)]
    pairs = itertools.product(texts_for(machine), orders)
    for text, order in sampled(pairs, 60, always=[*itertools.product(single, orders)]):
        rules = apply_rules(text, order, gpus)
        if rules.visible is None:
            assert rules.open_question
            continue
        variables = {"CUDA_VISIBLE_DEVICES": text, "CUDA_DEVICE_ORDER": order}
        driver = server.cuda(machine, variables)
        decided += 1
        found = [device.uuid_hex for device in driver.devices]
        expected = [item[4:].replace("-", "") for item in rules.visible]
        if found != expected:
            differ.append((text, order, expected, found))

    assert differ == []
    # Not agreement by never deciding.
    assert decided > (300 if THOROUGH else 40)


@pytest.mark.parametrize(
    ("text", "code"), [("-1", 0), ("none", 0), ("NoDevFiles", 0), ("", 1), ("9", 1), ("0,0", 1)]
)
def test_only_hiding_all_by_mistake_is_a_warning(
    pretend: Pretend, program: Program, text: str, code: int
) -> None:
    env = pretend(H100) | {"CUDA_VISIBLE_DEVICES": text}
    ended = program("list", "--strict", "--json", env=env)

    assert ended.code == code
    assert all(gpu["hidden_reason"] for gpu in ended.document()["result"]["gpus"])
