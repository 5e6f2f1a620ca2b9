"""Views of placements and claims on terminals of several widths, and as text for a shell."""

from __future__ import annotations

import subprocess
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


def test_a_device_takes_four_lines() -> None:
    assert shown(Placement(devices=(GPU,), environment=ENVIRONMENT), width=80) == (
        "/gpu:0 is NVIDIA A100, CUDA device 0, the only visible one\n"
        "  TensorFlow /device:GPU:0, CuPy/JAX 0, nvidia-smi 2\n"
        "It is not held. To hold it for a command, which sees only this GPU:\n"
        "    gpucheck place /gpu:0 -- CMD\n"
    )


def test_several_devices_are_a_table() -> None:
    assert shown(Placement(devices=(GPU, CPU, GPU)), width=80) == (
        "! /gpu:7 does not exist here: the CPU takes its place\n"
        "device card        TensorFlow    CuPy JAX nvidia-smi\n"
        "/gpu:0 NVIDIA A100 /device:GPU:0 0    0   2\n"
        "/gpu:7 the CPU     /device:CPU:0 -    -   -\n"
        "It is not held. To hold it for a command, which sees only this GPU:\n"
        "    gpucheck place --soft /gpu:0 /gpu:7 -- CMD\n"
    )


def test_what_takes_the_place_of_another_device() -> None:
    text = shown(Placement(devices=(replace(GPU, spec="/gpu:5", soft=True),)), width=80)

    assert text.startswith(
        "! /gpu:5 does not exist here: NVIDIA A100 (CUDA device 0) takes its place\n"
    )


def test_the_tutorials_graph_is_shown_to_who_asks_for_more() -> None:
    planned = Placement(devices=(GPU,), ops=GRAPH.ops, transfers=GRAPH.transfers)

    assert "--run" not in shown(planned)
    assert "Planned, not run (--run does that):" in shown(planned, verbosity=1)
    assert "MatMul: (MatMul)" in shown(planned, verbosity=1)


def test_what_holds_a_gpu_is_quoted_for_the_shell() -> None:
    odd = replace(GPU, spec="gpu; rm")

    assert "    gpucheck place 'gpu; rm' -- CMD\n" in shown(Placement(devices=(odd, odd)))


def test_a_graph_that_is_planned() -> None:
    assert shown(GRAPH) == (
        "Planned, not run (--run does that):\n"
        "  /device:GPU:0 a, MatMul\n"
        "  /device:CPU:0 sum\n"
        "Copies, 16 bytes:\n"
        "  MatMul: /device:GPU:0 -> /device:CPU:0, 16 bytes\n"
        "a elsewhere would copy less\n"
    )


def test_all_of_a_plan() -> None:
    text = shown(GRAPH, verbosity=1, width=20)

    assert f"  MatMul: (MatMul): {LOCAL}/device:GPU:0\n" in text
    assert "Planned, not run" in " ".join(text.split())


def test_a_graph_that_ran() -> None:
    ran = replace(
        GRAPH,
        devices=(GPU, GPU),
        ran=True,
        value=((1.0, 2.5),),
        transfers=(replace(GRAPH.transfers[0], seconds=0.0123),),
    )
    text = shown(ran, width=40)

    mapping = f"  {LOCAL}/device:GPU:0 -> device: 0, name: NVIDIA A100, pci bus id: 0000:1a:00.0\n"
    assert f"Device mapping:\n{mapping}Operations:\n  a: (Const): {LOCAL}/device:GPU:0\n" in text
    assert "12.3 ms" in text
    assert text.startswith("Value: [[1, 2.5]]\n")


def test_a_graph_without_a_value_still_ran() -> None:
    """A value may be too large to be shown."""
    assert "Planned, not run" not in shown(replace(GRAPH, ran=True, transfers=()))


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


def test_a_choice() -> None:
    assert shown(CHOSEN).endswith(
        "GPU 2: 80.0 GiB free\n"
        "It is not held. To hold it for a command, which sees only this GPU:\n"
        "    gpucheck place --count 1 --name 'A 100' -- CMD\n"
        "\n"
        "GPU      free  used by\n"
        "2    80.0 GiB  nobody (chosen)\n"
        "3    80.0 GiB  alice: train.py (a last resort: it is hot)\n"
        "0           -  it is lost\n"
        "1     1.0 GiB  alice: train.py\n"
    )
    assert "4 × A100" in shown(CHOSEN)
    assert shown(CHOSEN, verbosity=-1) == "GPU 2: 80.0 GiB free\n"


def test_all_of_a_choice() -> None:
    text = shown(CHOSEN, verbosity=1)

    assert f"  {UUID}, 80.0 GiB free, load 0 %\n" in text
    assert f"    CUDA_VISIBLE_DEVICES={UUID} CUDA_DEVICE_ORDER=PCI_BUS_ID\n" in text


def test_instances_are_named_by_their_profile_and_alike_ones_share_a_row() -> None:
    instances = tuple(
        Candidate(
            uuid=f"MIG-{number}",
            index=0,
            name="A100 MIG 1g.5gb",
            eligible=True,
            reason="",
            memory_free_bytes=2**30,
        )
        for number in range(3)
    )
    device = replace(GPU, uuid="MIG-0", index=0, spec="--count 1")
    lines = shown(Placement(devices=(device,), candidates=(*instances, CANDIDATES[2]))).splitlines()

    assert "2 × A100" in lines[0]
    assert "GPU 0 (MIG-0): 1.0 GiB free" in lines
    assert lines[-3:] == [
        "0    MIG 1g.5gb       1.0 GiB  nobody (chosen)",
        "0    2 × MIG 1g.5gb   1.0 GiB  nobody",
        "2    A100            80.0 GiB  nobody",
    ]


def test_no_choice_is_told_by_its_error_alone() -> None:
    assert shown(Placement(candidates=CANDIDATES)) == ""


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


def test_a_value_that_the_shell_would_read_is_quoted() -> None:
    text = shown(Placement(devices=(CPU,), environment={"A": "x; y"}), verbosity=1)

    assert "    A='x; y'\n" in text


def test_quiet_leaves_the_advice_out() -> None:
    text = shown(Placement(devices=(GPU,), environment=ENVIRONMENT), verbosity=-1)

    assert text.count("\n") == 2


def test_a_held_gpu_is_not_called_free() -> None:
    claim = Claim(uuid=UUID, path="/run/x", slot=0, held=True)

    assert "not held" not in shown(Placement(devices=(GPU,), claims=(claim,)))


def test_the_cpu_alone() -> None:
    cpu = Placement(devices=(CPU,), environment={"CUDA_VISIBLE_DEVICES": ""})
    hides = "To hide all GPUs from a program and hold nothing, put this before it:\n"

    assert f"{hides}    CUDA_VISIBLE_DEVICES=\n" in shown(cpu, verbosity=1)
    assert "not held" not in shown(cpu)


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


# ---------------------------------------------------------------------------------- claims

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


def test_no_claims() -> None:
    assert shown(ClaimList(directory="/run/lock/c"), width=60) == "No GPU is held.\n"


def test_claims_and_a_queue() -> None:
    unknown = Claim(uuid="MIG-1", path="/y", slot=0, held=True)
    waiter = Holder(pid=7, user="bob", command="sleep 9", since="2026-01-02T03:01:00Z")
    claims = ClaimList(directory="/c", claims=(unknown, CLAIM), waiting=2, queue=(waiter, Holder()))

    lines = shown(claims, width=90).splitlines()
    assert [" ".join(line.split()) for line in lines] == [
        "2 GPUs are held, 2 processes wait.",
        "GPU UUID held by for",
        "2 GPU-00000002-1111-2222-3333-444444444444, 2 of 4 alice: train.py 3 h",
        "- MIG-1 an unknown user: process ? ?",
        "Waiting, in this order:",
        "1. bob: sleep, for 3 min",
        "2. an unknown user: process ?, for ?",
    ]


@pytest.mark.parametrize(
    ("state", "remark"),
    [
        (ProcessState.RUNNING, "3 h\n"),
        (ProcessState.ENDED, "    it has ended, but its children run\n"),
        (ProcessState.ELSEWHERE, "    it is in another PID namespace\n"),
    ],
)
def test_the_state_of_a_claims_process(state: ProcessState, remark: str) -> None:
    claims = ClaimList(directory="/c", claims=(replace(CLAIM, process=state),))

    assert shown(claims, width=90).endswith(remark)


@pytest.mark.parametrize("since", [None, "soon", "2026-01-02T00:04:05", "2026-01-02T03:04:06Z"])
def test_a_claim_without_a_time_that_can_be_has_no_age(since: str | None) -> None:
    claims = ClaimList(directory="/c", claims=(replace(CLAIM, since=since),))

    assert shown(claims, width=90).endswith("  ?\n")


def test_verbose_claims_are_whole() -> None:
    text = shown(ClaimList(directory="/c", claims=(CLAIM,)), width=60, verbosity=1)

    assert "    process 42, since 2026-01-02T00:04:05Z\n" in text
    assert "".join(text.split()).count("x" * 200) == 1
    assert "    /x\n" in text
    assert text.endswith("The locks are in /c\n")


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
