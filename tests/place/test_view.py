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


def test_a_placement_at_80_columns() -> None:
    assert shown(Placement(devices=(GPU, CPU), environment=ENVIRONMENT), width=80) == (
        "/gpu:0 is NVIDIA A100, CUDA device 0, the only visible one\n"
        "  GPU-00000002-1111-2222-3333-444444444444 at 0000:1a:00.0\n"
        "  TensorFlow /device:GPU:0, CuPy/JAX 0, nvidia-smi 2\n"
        "/gpu:7 is replaced by the CPU\n"
        "  there is no /device:GPU:7; soft placement drops type and id, which leaves the\n"
        "  CPU\n"
        "  TensorFlow /device:CPU:0\n"
        "To show a program only this GPU, put this before it:\n"
        "  CUDA_VISIBLE_DEVICES=GPU-00000002-1111-2222-3333-444444444444 "
        "CUDA_DEVICE_ORDER=PCI_BUS_ID\n"
        "That holds nothing. To hold it until the program ends, put this before it:\n"
        "  gpucheck place --soft /gpu:0 /gpu:7 --\n"
    )


def test_names_are_broken_between_libraries_alone() -> None:
    lines = shown(Placement(devices=(GPU,)), width=32).splitlines()

    assert lines[3:5] == ["  TensorFlow /device:GPU:0,", "  CuPy/JAX 0, nvidia-smi 2"]


def test_the_tutorials_graph_is_one_line() -> None:
    planned = Placement(devices=(GPU,), ops=GRAPH.ops, transfers=GRAPH.transfers)

    assert shown(planned).endswith(
        "--run computes a small graph there (3 operations, 16 bytes copied); -v shows it.\n"
    )
    assert "MatMul" not in shown(planned)
    assert "MatMul: (MatMul)" in shown(planned, verbosity=1)
    assert "graph" not in shown(planned, verbosity=-1)


def test_what_holds_a_gpu_is_quoted_for_the_shell() -> None:
    odd = replace(GPU, spec="gpu; rm")

    assert "  gpucheck place 'gpu; rm' --\n" in shown(Placement(devices=(odd, odd)))


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
        devices=(GPU,),
        ran=True,
        value=((1.0, 2.5),),
        transfers=(replace(GRAPH.transfers[0], seconds=0.0123),),
    )
    text = shown(ran, width=40)

    assert f"  {LOCAL}/device:GPU:0 -> device: 0, name: NVIDIA A100, pci bus id: 0000:1a" in text
    assert f"Operations:\n  a: (Const): {LOCAL}/device:GPU:0\n" in text
    assert "12.3 ms" in text
    assert "Value: [[1, 2.5]]\n" in text


def test_a_graph_without_a_value_still_ran() -> None:
    """A value may be too large to be shown."""
    assert "Planned, not run" not in shown(replace(GRAPH, ran=True, transfers=()))


def test_a_choice() -> None:
    candidates = (
        Candidate(uuid="GPU-x", index=0, name="A100", eligible=False, reason="it is lost"),
        Candidate(uuid=UUID, index=2, name="A100", eligible=True, reason="80 GiB free"),
        Candidate(uuid="MIG-1", index=3, name="A100", eligible=True, reason="5 GiB free"),
    )
    chosen = Placement(devices=(GPU,), candidates=candidates)

    assert shown(chosen).splitlines()[:3] == [
        "chosen GPU 2 A100  80 GiB free",
        "fits   GPU 3 MIG-1 5 GiB free",
        "no     GPU 0 A100  it is lost",
    ]
    assert "/gpu:0 is NVIDIA A100" not in shown(chosen)
    assert shown(chosen).endswith("To hold them, add -- COMMAND.\n")
    assert f"chosen GPU 2 A100  {UUID} 80 GiB free" in shown(chosen, verbosity=1, width=100)
    assert "/gpu:0 is NVIDIA A100" in shown(chosen, verbosity=1)


@pytest.mark.parametrize("verbosity", [0, 1])
@pytest.mark.parametrize("width", [20, 40, 80, 160])
def test_what_is_made_to_be_copied_is_never_broken(width: int, verbosity: int) -> None:
    two = {"CUDA_VISIBLE_DEVICES": f"{UUID},GPU-{'3' * 36}", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    placement = Placement(devices=(GPU, CPU), environment=two)
    lines = shown(placement, width=width, verbosity=verbosity).splitlines()

    assert "  " + " ".join(f"{name}={value}" for name, value in two.items()) in lines
    assert f"  {UUID} at 0000:1a:00.0" in lines
    assert "  gpucheck place --soft /gpu:0 /gpu:7 --" in lines
    whole = ("CUDA_VISIBLE_DEVICES", UUID, LOCAL, "gpucheck place")
    assert all(len(line) <= width for line in lines if not any(text in line for text in whole))


def test_a_value_that_the_shell_would_read_is_quoted() -> None:
    text = shown(Placement(devices=(CPU,), environment={"A": "x; y"}))

    assert "  A='x; y'\n" in text


def test_quiet_leaves_the_advice_out() -> None:
    text = shown(Placement(devices=(GPU,), environment=ENVIRONMENT), verbosity=-1)

    assert UUID in text
    assert "CUDA_VISIBLE_DEVICES" not in text


def test_a_held_gpu_is_not_called_free() -> None:
    claim = Claim(uuid=UUID, path="/run/x", slot=0, held=True)

    assert "No GPU is held" not in shown(Placement(devices=(GPU,), claims=(claim,)))


def test_the_cpu_alone() -> None:
    text = shown(Placement(devices=(CPU,), environment={"CUDA_VISIBLE_DEVICES": ""}))

    assert "To hide all GPUs from a program, put this before it:\n  CUDA_VISIBLE_DEVICES=\n" in text
    assert "No GPU is held" not in text


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

    text = shown(Placement(devices=(evil,), environment={"A": "\x1b"}), color=False)

    assert all(line.isprintable() for line in text.splitlines())
    assert "[bold]" in text
    assert "\\x1b[2J[red]" in text


def test_ascii_only_is_ascii() -> None:
    named = PlacedDevice(spec="0", resolved="r", kind="GPU", index=0, name="Kärtchen …")

    assert shown(Placement(devices=(named,)), unicode=False).isascii()


def test_another_result_is_refused() -> None:
    with pytest.raises(TypeError):
        shown("not a placement")  # type: ignore[arg-type]


def test_names_are_broken_only_where_the_width_ends() -> None:
    names = "  TensorFlow /device:GPU:0, CuPy/JAX 0, nvidia-smi 2"
    uuid = f"  {UUID} at 0000:1a:00.0"
    fits = shown(Placement(devices=(GPU,)), width=len(names)).splitlines()
    breaks = shown(Placement(devices=(GPU,)), width=len(names) - 1).splitlines()

    assert names in fits
    assert "  TensorFlow /device:GPU:0, CuPy/JAX 0," in breaks
    assert "  nvidia-smi 2" in breaks
    assert uuid in fits
    assert uuid in breaks  # to be copied, so it is never broken
    assert uuid in shown(Placement(devices=(GPU,)), width=20).splitlines()


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
    since="2026-01-02T03:04:05Z",
)


def test_no_claims() -> None:
    assert shown(ClaimList(directory="/run/lock/c"), width=60) == (
        "No GPU is held.\nThe locks are in /run/lock/c\n"
    )


def test_a_claim_and_a_queue() -> None:
    unknown = Claim(uuid="MIG-1", path="/y", slot=0, held=True)
    waiter = Holder(pid=7, user="bob", command="sleep 9", since="2026-01-02T03:04:06Z")
    claims = ClaimList(directory="/c", claims=(CLAIM, unknown), waiting=2, queue=(waiter, Holder()))

    assert shown(claims, width=60) == (
        "GPU-00000002-1111-2222-3333-444444444444, 2 of 4\n"
        "  alice, process 42, since 2026-01-02T03:04:05Z\n"
        f"  python train.py --name \\x1b[31m{'x' * 26}…\n"
        "MIG-1\n"
        "  an unknown user, process ?, since ?\n"
        "2 processes wait in this order:\n"
        "  bob, process 7, since 2026-01-02T03:04:06Z\n"
        "  sleep 9\n"
        "  an unknown user, process ?, since ?\n"
        "The locks are in /c\n"
    )


@pytest.mark.parametrize(
    ("state", "remark"),
    [
        (ProcessState.RUNNING, "process 42, since"),
        (ProcessState.ENDED, "process 42 (ended, but its children"),
        (ProcessState.ELSEWHERE, "process 42 (in another PID namespace)"),
    ],
)
def test_the_state_of_a_claims_process(state: ProcessState, remark: str) -> None:
    claims = ClaimList(directory="/c", claims=(replace(CLAIM, process=state),))

    assert remark in shown(claims, width=60)


def test_verbose_claims_are_whole() -> None:
    text = shown(ClaimList(directory="/c", claims=(CLAIM,)), width=60, verbosity=1)

    assert f"{'x' * 200}\n" in text
    assert "  /x\n" in text


# ---------------------------------------------------------------------------------- for a shell


def report(*uuids: str, **environment: str) -> Report:
    devices = tuple(PlacedDevice(spec="", resolved="", kind="GPU", uuid=uuid) for uuid in uuids)
    return wrap("place", Answer(result=Placement(devices=devices, environment=environment)))


def formatted(name: str, made: Report) -> str:
    return open_format(name)(made, View())


def test_uuids_with_commas() -> None:
    made = report("GPU-1", "GPU-2", CUDA_VISIBLE_DEVICES="GPU-1,GPU-2")

    assert formatted("uuid", made) == "GPU-1,GPU-2\n"


def test_indices_never_without_their_order() -> None:
    made = report("GPU-1", CUDA_DEVICE_ORDER="PCI_BUS_ID", CUDA_VISIBLE_DEVICES="3")

    assert formatted("index", made) == "CUDA_DEVICE_ORDER=PCI_BUS_ID CUDA_VISIBLE_DEVICES=3\n"


def test_a_shell_takes_it_word_for_word() -> None:
    nasty = "a'b $(echo x)\n"
    text = formatted("shell", report("GPU-1", CUDA_VISIBLE_DEVICES=nasty))
    script = text + 'printf %s "$CUDA_VISIBLE_DEVICES"'
    finished = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True)

    assert finished.stdout == nasty


@pytest.mark.parametrize("name", ["uuid", "index", "shell"])
def test_no_choice_gives_no_text(name: str) -> None:
    assert formatted(name, report()) == ""
    assert formatted(name, report()._replace(result=None)) == ""
