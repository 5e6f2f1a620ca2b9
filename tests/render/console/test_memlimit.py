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
    Way,
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
    reason="nothing but MPS or MIG holds it",
    by=Way.NOBODY,
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
        "\n"
        "  Framework               Strength   Applies   By\n"
        "✓ cupy                    allocator  yes       CUPY_GPU_MEMORY_LIMIT\n"
        "- any other CUDA program  none       no        nothing but MPS or MIG holds it\n"
        "\n"
        "The settings (--format shell prints these lines alone):\n"
        "export CUPY_GPU_MEMORY_LIMIT=30%\n"
        "\n"
        "With -- CMD a program runs under it, watched; with --verify it is proved.\n"
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
    assert "+ cupy" in text
    assert "\n    CUPY_GPU_MEMORY_LIMIT\n" in text


@pytest.mark.parametrize("width", [20, 40, 63, 64, 80, 160])
def test_bytes_are_never_cut_off(width: int) -> None:
    text = shown(LIMIT, width=width)

    assert all(len(line) <= width for line in text.splitlines() if not line.startswith("export"))
    assert "25656242995" in text


class TestEqualGpus:
    EIGHT = tuple(replace(GPU, cuda_index=n, index=n, uuid=f"GPU-{n}") for n in (0, 1, 2, 5))

    def test_are_one_row(self) -> None:
        text = shown(replace(LIMIT, gpus=self.EIGHT))

        assert "0-2,5  4 × NVIDIA H100 80GB HBM3  79.6 GiB" in text
        assert text.count("H100") == 1

    def test_are_one_block_where_it_is_narrow_and_rows_where_more_is_asked_for(self) -> None:
        narrow = shown(replace(LIMIT, gpus=self.EIGHT), width=40, unicode=False)

        assert "CUDA 0-2,5 4 x NVIDIA H100 80GB HBM3\n" in narrow
        assert shown(replace(LIMIT, gpus=self.EIGHT), verbosity=1).count("H100") == 4

    def test_unlike_ones_have_rows_and_budgets_of_their_own(self) -> None:
        other = replace(GPU, cuda_index=9, memory_total_bytes=10, limit_bytes=5)
        text = shown(replace(whole(), gpus=(*self.EIGHT, other), verifications=()), width=200)

        assert text.count("H100") == 2
        assert "Budget of GPU 0-2,5: 23.9 GiB" in text
        assert "Budget of GPU 9: 23.9 GiB" in text


class TestLinesToCopy:
    LONG = "PYTORCH_ALLOC_CONF=" + "a:b," * 40 + "per_process_memory_fraction:0.3"
    CODE = "for each in " + "x" * 100 + ": set(each)"

    def limit(self, *, installed: bool | None) -> MemoryLimit:
        by_code = replace(
            CUPY, framework="tensorflow", mechanism="code", setting=self.CODE, applies=False,
            by=Way.CODE, installed=installed, reason="a line in the program",
        )  # fmt: skip
        name, _, value = self.LONG.partition("=")
        return replace(LIMIT, mechanisms=(CUPY, by_code), environment={name: value + " $x"})

    @pytest.mark.parametrize("width", [20, 64, 80])
    def test_are_never_broken(self, width: int) -> None:
        lines = shown(self.limit(installed=True), width=width).splitlines()

        name, _, value = self.LONG.partition("=")
        assert f"export {name}='{value} $x'" in lines
        assert self.CODE in lines

    def test_what_is_not_installed_is_left_out_and_named(self) -> None:
        text = shown(self.limit(installed=False))

        assert self.CODE not in text
        assert "Left out: tensorflow. -v shows everything, with reasons." in text
        assert self.CODE in shown(self.limit(installed=False), verbosity=1)

    def test_the_trap_is_told_where_tensorflow_may_be(self) -> None:
        assert "0.3 there means 0 bytes" in shown(self.limit(installed=None))
        assert "0.3 there means 0 bytes" not in shown(self.limit(installed=False))
        in_bytes = replace(self.limit(installed=True), request=MemoryRequest(text="8GiB", bytes=8))
        assert "0.3 there means 0 bytes" not in shown(in_bytes)

    def test_quiet_is_the_table_alone(self) -> None:
        text = shown(self.limit(installed=True), verbosity=-1)

        assert "export" not in text
        assert "CUPY_GPU_MEMORY_LIMIT" in text


class TestReasons:
    @pytest.mark.parametrize(
        ("changes", "is_told"),
        [
            ({}, False),
            ({"inherited": "90%"}, True),
            ({"applies": False, "installed": True}, True),
            ({"applies": False, "installed": None}, True),
            ({"applies": False, "installed": False}, False),
        ],
    )
    def test_are_told_where_they_are_not_the_expected_ones(
        self, changes: dict[str, object], is_told: bool
    ) -> None:
        limit = replace(LIMIT, mechanisms=(replace(CUPY, **changes), OTHER))  # type: ignore[arg-type]

        assert ("\n    default pool only\n" in shown(limit)) is is_told
        assert "\n    default pool only\n" in shown(limit, verbosity=1)

    def test_what_is_set_for_another_python_is_neither_yes_nor_no(self) -> None:
        elsewhere = replace(CUPY, applies=False, installed=False)

        assert "- cupy  allocator  not here" in shown(replace(LIMIT, mechanisms=(elsewhere,)))

    def test_a_cap_that_is_missing_is_marked(self) -> None:
        missing = replace(CUPY, applies=False, installed=True)
        limit = replace(LIMIT, mechanisms=(missing,), environment={})

        assert "✗ cupy  allocator  no" in shown(limit)


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
                limit_bytes=105,
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


def test_budget_and_software() -> None:
    lines = shown(whole(), width=200).splitlines()

    assert lines[4:7] == [
        "Budget of GPU 0: 23.9 GiB for allocators, about 512.0 MiB for the context and 64.0 MiB for"
        " libraries: nvidia-smi shows about 24.5 GiB; --include-overhead keeps that within the"
        " limit.",
        "Budget of GPU -: not known without the GPU's total",
        "For /bin/python: torch 2.13",
    ]


def test_proofs_are_told_in_the_place_of_the_plan() -> None:
    text = shown(whole(), width=200)

    assert text.endswith(
        "✓ cupy 14.2.0: the cap holds\n"
        "    by CUPY_GPU_MEMORY_LIMIT\n"
        "    100 of 105 bytes allocated\n"
        "    7 bytes more refused with OutOfMemoryError\n"
        "✗ jax\\x1b: the cap does not hold\n"
        "    nothing was refused\n"
        "? torch: not proved\n"
        "    the card was full\n"
    )
    assert "export" not in text
    assert "export" in shown(whole(), width=200, verbosity=1)


def test_the_same_on_several_gpus_is_told_once() -> None:
    first, *_ = whole().verifications
    found = [
        replace(first, cuda_index=n, uuid=f"GPU-{n}", overhead_bytes=n << 20) for n in (0, 1, 2)
    ]
    found[1] = replace(found[1], held=False, allocated_bytes=300, reason="no limit")
    limit = replace(whole(), gpus=(GPU,) * 3, verifications=tuple(found))

    text = shown(limit, width=200)

    assert "✓ cupy 14.2.0: the cap holds on GPU 0, 2\n" in text
    assert "✗ cupy 14.2.0: the cap does not hold on GPU 1\n" in text
    assert "    2.0 MiB beside the allocator, by NVML\n" in text


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
    assert all(len(line) <= width for line in text.splitlines() if not line.startswith("export"))


def test_another_result_is_refused() -> None:
    with pytest.raises(TypeError):
        shown("not a limit")  # type: ignore[arg-type]
