"""How a memory limit looks on terminals of several widths."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpucheck.models.errors import ExitCode
from gpucheck.models.memory import (
    GpuMemoryLimit,
    Mechanism,
    MemoryLimit,
    MemoryRequest,
    Overhead,
    Software,
    Strength,
    Verification,
)
from gpucheck.models.report import Host, Report, Status
from gpucheck.render.base import View
from gpucheck.render.console import render

GPU = GpuMemoryLimit(
    uuid="GPU-1",
    memory_total_bytes=85520809984,
    limit_bytes=25656242995,
    allocator_limit_bytes=25656242995,
    cuda_index=0,
    index=1,
    name="NVIDIA H100 80GB HBM3",
)
UNKNOWN = GpuMemoryLimit(
    uuid="GPU-2",
    memory_total_bytes=None,
    limit_bytes=None,
    allocator_limit_bytes=None,
    index=2,
)
CUPY = Mechanism(
    framework="cupy",
    mechanism="CUPY_GPU_MEMORY_LIMIT",
    setting="CUPY_GPU_MEMORY_LIMIT=30%",
    strength=Strength.ALLOCATOR,
    applies=True,
    reason="default pool only",
)
OTHER = Mechanism(
    framework="any other CUDA program",
    mechanism="none",
    setting=None,
    strength=Strength.NONE,
    applies=False,
    reason="cudaMalloc knows no limit",
)
LIMIT = MemoryLimit(
    request=MemoryRequest(text="30%", fraction=0.3),
    gpus=(GPU, UNKNOWN),
    mechanisms=(CUPY, OTHER),
    environment={"CUPY_GPU_MEMORY_LIMIT": "30%"},
)


def shown(limit: MemoryLimit, **view: object) -> str:
    report = Report(
        command="memlimit",
        schema="gpucheck/memlimit/1",
        time="2026-01-01T00:00:00Z",
        host=Host(),
        exit_code=ExitCode.OK,
        status=Status.OK,
        error=None,
        warnings=(),
        result=limit,
    )
    return render(report, View(**view))  # type: ignore[arg-type]


def test_a_limit_at_80_columns() -> None:
    assert shown(LIMIT, width=80) == (
        "30% of each visible GPU\n"
        "CUDA  Name                      Total     Limit        Bytes\n"
        "   0  NVIDIA H100 80GB HBM3  79.6 GiB  23.9 GiB  25656242995\n"
        "   -  GPU-2                         -         -            -\n"
        "✓ cupy: applied (allocator); default pool only\n"
        "    CUPY_GPU_MEMORY_LIMIT=30%\n"
        "- any other CUDA program: not applied (none); cudaMalloc knows no limit\n"
        "An allocator's limit leaves out the CUDA context and what libraries allocate\n"
        "beside it: nvidia-smi shows some hundred MiB more.\n"
    )


def test_a_limit_at_40_columns_in_ascii() -> None:
    text = shown(LIMIT, width=40, unicode=False)

    assert text.startswith(
        "30% of each visible GPU\n"
        "CUDA 0 NVIDIA H100 80GB HBM3\n"
        "  23.9 GiB of 79.6 GiB\n"
        "  25656242995 bytes\n"
        "CUDA - GPU-2\n"
    )
    assert "+ cupy: applied (allocator)" in text


@pytest.mark.parametrize("width", [20, 40, 63, 64, 80, 160])
def test_bytes_are_never_cut_off(width: int) -> None:
    text = shown(LIMIT, width=width)

    assert all(len(line) <= width for line in text.splitlines())
    assert "25656242995" in text


def test_quiet_leaves_the_caveat_out() -> None:
    assert "nvidia-smi" not in shown(LIMIT, verbosity=-1)


def test_control_characters_and_markup_of_outside_text_do_nothing() -> None:
    evil = GpuMemoryLimit(
        uuid=None,
        memory_total_bytes=1,
        limit_bytes=1,
        allocator_limit_bytes=1,
        cuda_index=0,
        name="[red]\x1b[31m",
    )
    limit = MemoryLimit(
        request=MemoryRequest(text="30%\x1b"), gpus=(evil,), mechanisms=(), environment={}
    )

    for width in (40, 80):
        text = shown(limit, width=width)
        assert all(line.isprintable() for line in text.splitlines())
        assert "[red]\\x1b[31m" in text


def whole() -> MemoryLimit:
    overhead = Overhead(
        included=False, context_bytes=1 << 29, library_bytes=1 << 26, sources=("a",)
    )
    return replace(
        LIMIT,
        overhead=overhead,
        software=Software(interpreter="/bin/python", python="3.11.1", frameworks={"torch": "2.13"}),
        verifications=(
            Verification(
                framework="cupy",
                version="14.2.0",
                mechanism="CUPY_GPU_MEMORY_LIMIT",
                allocated_bytes=100,
                refused_bytes=7,
                refused_with="OutOfMemoryError",
                held=True,
            ),
            Verification(
                framework="jax\x1b",
                allocated_bytes=None,
                refused_bytes=None,
                refused_with=None,
                held=False,
                reason="nothing was refused",
            ),
            Verification(
                framework="torch",
                allocated_bytes=None,
                refused_bytes=None,
                refused_with=None,
                held=None,
                reason="the card was full",
            ),
        ),
    )


def test_budget_software_and_proofs() -> None:
    lines = shown(whole(), width=200).splitlines()

    assert lines[4:7] == [
        "Budget: not known without the GPU's total",
        "Budget: allocators 23.9 GiB, context about 512.0 MiB, libraries about 64.0 MiB:"
        " 24.5 GiB of 79.6 GiB",
        "For /bin/python: torch 2.13",
    ]
    assert lines[-4:-1] == [
        "✓ cupy 14.2.0: the cap holds; 100 bytes allocated; 7 more refused with OutOfMemoryError;"
        " by CUPY_GPU_MEMORY_LIMIT",
        "✗ jax\\x1b: the cap does not hold; nothing was refused",
        "? torch: not tried; the card was full",
    ]


def test_a_budget_that_the_card_does_not_have() -> None:
    tight = replace(GPU, allocator_limit_bytes=GPU.memory_total_bytes)

    assert "more than there is" in shown(replace(whole(), gpus=(tight,)), width=200)


def test_sources_are_shown_where_more_is_asked_for() -> None:
    assert "\n  a\n" in shown(whole(), verbosity=1)
    assert "\n  a\n" not in shown(whole())


@pytest.mark.parametrize("width", [20, 40, 80])
def test_a_whole_report_fits(width: int) -> None:
    text = shown(whole(), width=width, unicode=False)

    assert text.isascii()
    assert all(len(line) <= width for line in text.splitlines())


def test_another_result_is_refused() -> None:
    with pytest.raises(TypeError):
        shown("not a limit")  # type: ignore[arg-type]
