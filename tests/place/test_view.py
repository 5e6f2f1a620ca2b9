"""Views of placements and claims on terminals of several widths, and as text for a shell."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from dataclasses import replace

import pytest

from gpucheck.place.model import (
    Candidate,
    Claim,
    ClaimList,
    Holder,
    PlacedDevice,
    PlacedOp,
    Placement,
    ProcessState,
    Transfer,
)
from gpucheck.report.envelope import Answer, Report
from gpucheck.report.formats import open_format
from gpucheck.report.formats.table import render
from gpucheck.report.text import View
from tests.fakes.reports import wrap
from tests.report.formats.recorded import in_sections, recorded

LOCAL = "/job:localhost/replica:0/task:0"
UUID = "GPU-00000002-1111-2222-3333-444444444444"

GPU = PlacedDevice(
    spec="/gpu:0",
    resolved=f"{LOCAL}/device:GPU:0",
    kind="GPU",
    cuda_index=0,
    index=2,
    uuid=UUID,
    name="NVIDIA A100",
    pci_bus_id="0000:1a:00.0",
    reason="CUDA device 0, the only visible one",
    names={"tensorflow": "/device:GPU:0", "cupy": "0", "jax": "0", "nvidia-smi": "2"},
)
CPU = PlacedDevice(
    spec="/gpu:7",
    resolved=f"{LOCAL}/device:CPU:0",
    kind="CPU",
    soft=True,
    reason="there is no /device:GPU:7; soft placement drops type and id, which leaves the CPU",
    names={"tensorflow": "/device:CPU:0"},
)
GRAPH = Placement(
    graph="g.toml",
    ops=(
        PlacedOp(name="a", op="Const", device=f"{LOCAL}/device:GPU:0"),
        PlacedOp(name="MatMul", op="MatMul", device=f"{LOCAL}/device:GPU:0"),
        PlacedOp(name="sum", op="AddV2", device=f"{LOCAL}/device:CPU:0"),
    ),
    transfers=(
        Transfer(
            from_=f"{LOCAL}/device:GPU:0", to=f"{LOCAL}/device:CPU:0", what="MatMul", bytes=16
        ),
    ),
    advice=("a elsewhere would copy less",),
)
ENVIRONMENT = {"CUDA_VISIBLE_DEVICES": UUID, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}


def shown(result: Placement | ClaimList, **view: object) -> str:
    command = "claims" if isinstance(result, ClaimList) else "place"
    return render(wrap(command, Answer(result=result)), View(**view))  # type: ignore[arg-type]


ALICE = ("alice: train.py",)
CANDIDATES = (
    Candidate(uuid="GPU-x", index=0, name="A100", eligible=False, reason="it is lost"),
    Candidate(
        uuid="GPU-y",
        index=1,
        name="A100",
        eligible=False,
        reason="in use by alice (train.py)",
        memory_free_bytes=2**30,
        used_by=ALICE,
    ),
    Candidate(
        uuid=UUID,
        index=2,
        name="A100",
        eligible=True,
        reason="80.0 GiB free, load 0 %",
        memory_free_bytes=80 * 2**30,
    ),
    Candidate(
        uuid="GPU-z",
        index=3,
        name="A100",
        eligible=True,
        reason="80.0 GiB free; a last resort: it is hot",
        memory_free_bytes=80 * 2**30,
        used_by=ALICE,
    ),
)
CHOSEN = Placement(
    devices=(replace(GPU, spec="--count 1 --name 'A 100'"),),
    candidates=CANDIDATES,
    environment=ENVIRONMENT,
)
CLAIM = Claim(
    uuid="GPU-00000002-1111-2222-3333-444444444444",
    path="/x",
    slot=1,
    share=4,
    held=True,
    pid=42,
    user="alice",
    command="python train.py --name \x1b[31m" + "x" * 200,
    since="2026-01-02T00:04:05Z",
    index=2,
)


def devices() -> dict[str, Placement]:
    odd = replace(GPU, spec="gpu; rm")
    claim = Claim(uuid=UUID, path="/run/x", slot=0, held=True)
    return {
        "a device": Placement(devices=(GPU,), environment=ENVIRONMENT),
        "several devices are a table": Placement(devices=(GPU, CPU, GPU)),
        "another GPU in its place": Placement(devices=(replace(GPU, spec="/gpu:5", soft=True),)),
        "the command is quoted for the shell": Placement(devices=(odd, odd)),
        "a value is quoted for the shell": Placement(devices=(CPU,), environment={"A": "x; y"}),
        "a held GPU is not called free": Placement(devices=(GPU,), claims=(claim,)),
        "the CPU alone": Placement(devices=(CPU,), environment={"CUDA_VISIBLE_DEVICES": ""}),
    }


def graphs() -> dict[str, Placement]:
    moved = replace(GRAPH.transfers[0], seconds=0.0123)
    planned = Placement(devices=(GPU,), ops=GRAPH.ops, transfers=GRAPH.transfers)
    return {
        "the tutorial's graph is planned beside a device": planned,
        "a graph that is planned": GRAPH,
        "a graph that ran": replace(
            GRAPH, devices=(GPU, GPU), ran=True, value=((1.0, 2.5),), transfers=(moved,)
        ),
        "a value that is too large to be shown": replace(GRAPH, ran=True, transfers=()),
    }


def choices() -> dict[str, Placement]:
    instance = Candidate(
        uuid="MIG-0", index=0, name="A100 MIG 1g.5gb", eligible=True, reason="",
        memory_free_bytes=2**30,
    )  # fmt: skip
    instances = [replace(instance, uuid=f"MIG-{number}") for number in range(3)]
    device = replace(GPU, uuid="MIG-0", index=0, spec="--count 1")
    return {
        "a choice": CHOSEN,
        "alike instances share a row": Placement(
            devices=(device,), candidates=(*instances, CANDIDATES[2])
        ),
        "no choice is told by its error alone": Placement(candidates=CANDIDATES),
    }


def claims() -> dict[str, ClaimList]:
    unknown = Claim(uuid="MIG-1", path="/y", slot=0, held=True)
    waiter = Holder(pid=7, user="bob", command="sleep 9", since="2026-01-02T03:01:00Z")
    states = {
        f"a claim of a process that is {state.value}": ClaimList(
            directory="/c", claims=(replace(CLAIM, process=state),)
        )
        for state in ProcessState
    }
    return {
        "no claim": ClaimList(directory="/run/lock/c"),
        "claims and a queue": ClaimList(
            directory="/c", claims=(unknown, CLAIM), waiting=2, queue=(waiter, Holder())
        ),
        **states,
    }


@pytest.mark.parametrize("situations", [devices, graphs, choices, claims])
def test_situations_are_as_recorded(
    situations: Callable[[], dict[str, Placement | ClaimList]],
) -> None:
    screens = {}
    for name, placement in situations().items():
        for words, verbosity in (("", 0), (", with -v", 1), (", quiet", -1)):
            screens[name + words] = shown(placement, width=90, verbosity=verbosity)
    text = in_sections(screens)

    assert text == recorded(f"place-view-{situations.__name__}", text)


@pytest.mark.parametrize("width", [20, 40, 80, 160])
def test_what_is_made_to_be_copied_is_never_broken(width: int) -> None:
    two = {"CUDA_VISIBLE_DEVICES": f"{UUID},GPU-{'3' * 36}", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    placement = Placement(devices=(GPU, CPU), environment=two)
    lines = shown(placement, width=width, verbosity=1).splitlines()

    assert "    " + " ".join(f"{name}={value}" for name, value in two.items()) in lines
    assert f"  {UUID} at 0000:1a:00.0" in lines
    assert "    gpucheck place --soft /gpu:0 /gpu:7 -- CMD" in lines
    whole = ("CUDA_VISIBLE_DEVICES", UUID, LOCAL, "gpucheck place")
    assert all(len(line) <= width for line in lines if not any(text in line for text in whole))


def test_control_characters_and_markup_of_outside_text_do_nothing() -> None:
    evil = PlacedDevice(
        spec="\x1b[2J[red]",
        resolved="r",
        kind="GPU",
        index=0,
        uuid="GPU-\x07",
        name="[bold]\x1b[31mcard",
        reason="\n\r",
        names={"cupy": "\x9b31m"},
    )

    text = shown(Placement(devices=(evil,), environment={"A": "\x1b"}), color=False, verbosity=1)

    assert all(line.isprintable() for line in text.splitlines())
    assert "[bold]" in text
    assert "\\x1b[2J[red]" in text


def test_ascii_only_is_ascii() -> None:
    named = PlacedDevice(spec="0", resolved="r", kind="GPU", index=0, name="Kärtchen …")

    assert shown(Placement(devices=(named,)), unicode=False).isascii()


def test_another_result_is_refused() -> None:
    with pytest.raises(TypeError):
        shown("not a placement")  # type: ignore[arg-type]


@pytest.mark.parametrize("since", [None, "soon", "2026-01-02T00:04:05", "2026-01-02T03:04:06Z"])
def test_a_claim_without_a_time_that_can_be_has_no_age(since: str | None) -> None:
    claims = ClaimList(directory="/c", claims=(replace(CLAIM, since=since),))

    assert shown(claims, width=90).endswith("  ?\n")


# ---------------------------------------------------------------------------------- for a shell


def report(*uuids: str, **environment: str) -> Report:
    devices = tuple(PlacedDevice(spec="", resolved="", kind="GPU", uuid=uuid) for uuid in uuids)
    return wrap("place", Answer(result=Placement(devices=devices, environment=environment)))


def formatted(name: str, made: Report) -> str:
    return open_format(name)(made, View())


def test_uuids_with_commas() -> None:
    made = report("GPU-1", "GPU-2", CUDA_VISIBLE_DEVICES="GPU-1,GPU-2")

    assert formatted("uuid", made) == "GPU-1,GPU-2\n"


def test_numbers_alone() -> None:
    assert formatted("index", report("GPU-1", CUDA_VISIBLE_DEVICES="3,1")) == "3,1\n"


def test_numbers_with_their_order() -> None:
    made = report("GPU-1", CUDA_DEVICE_ORDER="PCI_BUS_ID", CUDA_VISIBLE_DEVICES="3")

    assert formatted("env", made) == "CUDA_DEVICE_ORDER=PCI_BUS_ID CUDA_VISIBLE_DEVICES=3\n"


def test_a_shell_takes_it_word_for_word() -> None:
    nasty = "a'b $(echo x)\n"
    text = formatted("shell", report("GPU-1", CUDA_VISIBLE_DEVICES=nasty))
    script = text + 'printf %s "$CUDA_VISIBLE_DEVICES"'
    finished = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True)

    assert finished.stdout == nasty


@pytest.mark.parametrize("name", ["uuid", "index", "env", "shell"])
def test_no_choice_gives_no_text(name: str) -> None:
    assert formatted(name, report()) == ""
    assert formatted(name, report()._replace(result=None)) == ""
