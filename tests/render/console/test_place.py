"""How a placement looks on terminals of several widths."""

from __future__ import annotations

import pytest

from gpucheck.models.errors import ExitCode
from gpucheck.models.placement import Claim, PlacedDevice, Placement
from gpucheck.models.report import Host, Report, Status
from gpucheck.render.base import View
from gpucheck.render.console import render

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
ENVIRONMENT = {"CUDA_VISIBLE_DEVICES": UUID, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}


def shown(placement: Placement, **view: object) -> str:
    report = Report(
        command="place",
        schema="gpucheck/place/1",
        time="2026-01-01T00:00:00Z",
        host=Host(),
        exit_code=ExitCode.OK,
        status=Status.OK,
        error=None,
        warnings=(),
        result=placement,
    )
    return render(report, View(**view))  # type: ignore[arg-type]


def test_a_placement_at_80_columns() -> None:
    assert shown(Placement(devices=(GPU, CPU), environment=ENVIRONMENT), width=80) == (
        "/gpu:0 is NVIDIA A100\n"
        "  why   CUDA device 0, the only visible one\n"
        "  full  /job:localhost/replica:0/task:0/device:GPU:0\n"
        "  UUID  GPU-00000002-1111-2222-3333-444444444444\n"
        "  bus   0000:1a:00.0\n"
        "  names /device:GPU:0 (TensorFlow), 0 (CuPy, JAX), 2 (nvidia-smi)\n"
        "/gpu:7 is replaced by the CPU\n"
        "  why   there is no /device:GPU:7; soft placement drops type and id, which\n"
        "        leaves the CPU\n"
        "  full  /job:localhost/replica:0/task:0/device:CPU:0\n"
        "  names /device:CPU:0 (TensorFlow)\n"
        "To show a program these GPUs and no other:\n"
        "  CUDA_VISIBLE_DEVICES=GPU-00000002-1111-2222-3333-444444444444\n"
        "  CUDA_DEVICE_ORDER=PCI_BUS_ID\n"
        "Nothing is held: another program may use them too.\n"
    )


@pytest.mark.parametrize("width", [20, 40, 80, 160])
def test_nothing_is_cut_off_or_too_wide(width: int) -> None:
    text = shown(Placement(devices=(GPU, CPU), environment=ENVIRONMENT), width=width)

    assert all(len(line) <= width for line in text.splitlines())
    joined = "".join(text.split())
    for fact in (UUID, GPU.resolved, "0000:1a:00.0", "PCI_BUS_ID"):
        assert fact in joined


def test_quiet_leaves_the_advice_out() -> None:
    text = shown(Placement(devices=(GPU,), environment=ENVIRONMENT), verbosity=-1)

    assert UUID in text
    assert "CUDA_VISIBLE_DEVICES" not in text


def test_a_held_gpu_is_not_called_free() -> None:
    claim = Claim(uuid=UUID, path="/run/x", slot=0, held=True)

    assert "Nothing is held" not in shown(Placement(devices=(GPU,), claims=(claim,)))


def test_the_cpu_alone() -> None:
    text = shown(Placement(devices=(CPU,), environment={"CUDA_VISIBLE_DEVICES": ""}))

    assert "To show a program no GPU:\n  CUDA_VISIBLE_DEVICES=\n" in text
    assert "Nothing is held" not in text


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
