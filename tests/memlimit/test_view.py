"""Terminal view of a memory limit, at several widths."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpucheck.memlimit.model import (
    Culprit,
    GpuMemoryLimit,
    LimitedRun,
    Mechanism,
    MemoryLimit,
    MemoryRequest,
    Overhead,
    RunGpu,
    Software,
    Strength,
    Verification,
    Way,
)
from gpucheck.report.envelope import TOOL, Failure, Host, Report, Status
from gpucheck.report.errors import ExitCode
from gpucheck.report.formats.table import render
from gpucheck.report.text import View

GPU = GpuMemoryLimit(
    uuid="GPU-1",
    memory_total_bytes=85520809984,
    limit_bytes=25656242995,
    allocator_limit_bytes=25656242995,
    cuda_index=1,
    index=0,
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


def shown(limit: MemoryLimit, error: Failure | None = None, **view: object) -> str:
    report = Report(
        command="memlimit",
        schema="gpucheck/memlimit/1",
        tool=TOOL,
        time="2026-01-01T00:00:00Z",
        host=Host(name="node", driver_version="575.1", cuda_driver_version="12.9"),
        exit_code=ExitCode.OK,
        status=Status.OK,
        error=error,
        warnings=(),
        result=limit,
    )
    return render(report, View(**view))  # type: ignore[arg-type]


HEAD = "node · driver 575.1 · CUDA 12.9 · NVIDIA H100 80GB HBM3\n\n"


def test_a_glance_at_80_columns() -> None:
    overhead = Overhead(included=False, context_bytes=1 << 29, library_bytes=1 << 26, sources=())

    assert shown(replace(LIMIT, gpus=(GPU,), overhead=overhead), width=80) == (
        f"{HEAD}"
        "30% is 23.9 GiB of the 79.6 GiB on GPU 0\n"
        "nvidia-smi shows about 576 MiB more, for the CUDA context and libraries;\n"
        "--include-overhead counts that in.\n"
        "To run a program under it and watch its peak:\n"
        "    gpucheck memlimit 30% -- CMD\n"
        "\n"
        "What limits each framework (installed: not checked):\n"
        "  cupy: environment variables\n"
        "  any other CUDA program: nothing but MPS or MIG holds it\n"
        "\n"
        "--verify proves the limit; --code FRAMEWORK and --format shell are for programs\n"
        "of your own; -v says how each framework is limited, how strictly, and why.\n"
    )


def test_everything_at_80_columns() -> None:
    assert shown(LIMIT, width=80, verbosity=1) == (
        "node · driver 575.1 · CUDA 12.9 · NVIDIA H100 80GB HBM3, 1 unreadable GPU\n"
        "\n"
        "30% of each visible GPU\n"
        "GPU  CUDA  name                      limit        of        bytes\n"
        "0    1     NVIDIA H100 80GB HBM3  23.9 GiB  79.6 GiB  25656242995\n"
        "2    -     GPU-2                         -         -            -\n"
        "\n"
        "framework               strength   applies  by\n"
        "cupy                    allocator  yes      CUPY_GPU_MEMORY_LIMIT\n"
        "    default pool only\n"
        "any other CUDA program  none       no       nothing but MPS or MIG holds it\n"
        "\n"
        "The settings (--format shell prints only these lines):\n"
        "export CUPY_GPU_MEMORY_LIMIT=30%\n"
    )


def test_quiet_is_the_limit_alone() -> None:
    assert shown(replace(LIMIT, gpus=(GPU,)), verbosity=-1) == (
        "30% is 23.9 GiB of the 79.6 GiB on GPU 0\n"
    )


@pytest.mark.parametrize("width", [20, 40, 63, 64, 80, 160])
def test_a_limit_fits(width: int) -> None:
    lines = shown(LIMIT, width=width, unicode=False).splitlines()

    assert all(line.isascii() for line in lines)
    assert all(len(line) <= width for line in lines if "gpucheck memlimit" not in line)


class TestEqualGpus:
    EIGHT = tuple(replace(GPU, cuda_index=n, index=n, uuid=f"GPU-{n}") for n in (0, 1, 2, 5))

    @pytest.mark.parametrize(("verbosity", "exact"), [(0, ""), (1, " (25656242995 bytes)")])
    def test_are_one_sentence(self, verbosity: int, exact: str) -> None:
        text = shown(replace(LIMIT, gpus=self.EIGHT), verbosity=verbosity, width=200)

        assert f"30% is 23.9 GiB{exact} of the 79.6 GiB on each of 4 GPUs (0-2,5)\n" in text
        assert "· 4 × NVIDIA H100 80GB HBM3\n" in text

    def test_unlike_ones_have_rows_of_their_own(self) -> None:
        other = replace(GPU, index=9, memory_total_bytes=10, limit_bytes=5)
        limit = replace(whole(), gpus=(*self.EIGHT, other), verifications=())
        text = shown(limit, width=200, verbosity=1)

        assert "0-2,5  4 × NVIDIA H100 80GB HBM3  23.9 GiB  79.6 GiB  25656242995\n" in text

    @pytest.mark.parametrize(
        ("changes", "line"),
        [
            ({"limit_bytes": None, "memory_total_bytes": None}, "30% of an unknown total on GPU 0"),
            ({"memory_total_bytes": None}, "30% is 23.9 GiB of an unknown total on GPU 0"),
            ({"mig_instance": True}, "30% is 23.9 GiB of the 79.6 GiB on MIG instance 1"),
            ({"index": None, "cuda_index": None}, "30% is 23.9 GiB of the 79.6 GiB on GPU"),
        ],
    )
    def test_the_sentence(self, changes: dict[str, object], line: str) -> None:
        gpu = replace(GPU, **changes)  # type: ignore[arg-type]

        assert f"\n{line}\n" in shown(replace(LIMIT, gpus=(gpu,)))


@pytest.mark.parametrize(
    ("mib", "share"), [(1, "less than 1 %"), (407, "less than 1 %"), (408, "1 %"), (1000, "1 %")]
)
def test_an_amount_in_bytes_is_shown_as_a_share(mib: int, share: str) -> None:
    request = MemoryRequest(text=f"{mib}MiB", bytes=mib << 20)
    gpus = (replace(GPU, limit_bytes=mib << 20),)

    assert f"\n{request.text} is {share} of the " in shown(
        replace(LIMIT, request=request, gpus=gpus)
    )


def test_the_command_has_what_was_asked_for() -> None:
    overhead = Overhead(included=True, context_bytes=1, library_bytes=1, sources=())
    chosen = {"CUDA_VISIBLE_DEVICES": "GPU-1"}
    limit = replace(LIMIT, gpus=(GPU,), environment=chosen, overhead=overhead)

    assert "    gpucheck memlimit 30% --gpu GPU-1 --include-overhead -- CMD\n" in shown(limit)


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
        lines = shown(self.limit(installed=True), width=width, verbosity=1).splitlines()

        name, _, value = self.LONG.partition("=")
        assert f"export {name}='{value} $x'" in lines
        assert self.CODE in lines

    def test_are_left_out_at_a_glance(self) -> None:
        text = shown(self.limit(installed=True))

        assert self.CODE not in text
        assert "export" not in text

    def test_the_trap_is_shown_with_tensorflow(self) -> None:
        assert "0.3 there means 0 bytes" in shown(self.limit(installed=True))
        assert "0.3 there means 0 bytes" not in shown(self.limit(installed=None))
        in_bytes = replace(self.limit(installed=True), request=MemoryRequest(text="8GiB", bytes=8))
        assert "0.3 there means 0 bytes" not in shown(in_bytes)

    def test_quiet_leaves_the_frameworks_out(self) -> None:
        assert "tensorflow" not in shown(self.limit(installed=True), verbosity=-1)


class TestTheTable:
    def test_what_is_set_for_another_python_is_neither_yes_nor_no(self) -> None:
        elsewhere = replace(LIMIT, mechanisms=(replace(CUPY, applies=False, installed=False),))

        assert "cupy       allocator  not here  CUPY" in shown(elsewhere, verbosity=1)

    def test_a_cap_that_is_missing_is_marked(self) -> None:
        missing = replace(CUPY, applies=False, installed=True)
        limit = replace(LIMIT, mechanisms=(missing,), environment={})

        assert "    ! default pool only\n" in shown(limit, verbosity=1)


class TestAtAGlance:
    SOFTWARE = Software(interpreter="/bin/py", python="3.11.1", frameworks={"torch": "2.9.1"})

    def limit(self, *mechanisms: Mechanism, **changes: object) -> str:
        found = replace(LIMIT, software=self.SOFTWARE, mechanisms=mechanisms, **changes)  # type: ignore[arg-type]
        return shown(found, width=100)

    def test_each_installed_framework_has_a_line(self) -> None:
        here = replace(CUPY, installed=True)
        by_hook = replace(
            here, framework="pytorch", by=Way.CODE, applies=False, by_hook=True, setting="x"
        )
        absent = replace(here, framework="jax", mechanism="JAX", applies=False, installed=False)

        text = self.limit(here, by_hook, absent, OTHER)

        assert "What limits each framework of /bin/py:\n" in text
        assert "  cupy: CUPY_GPU_MEMORY_LIMIT\n" in text
        assert "  pytorch 2.9.1: the import hook\n" in text
        assert "makes a CUDA context on each of the 2 GPUs" in text
        assert "jax" not in text

    def test_a_cpu_only_build_is_not_limited(self) -> None:
        here = replace(CUPY, installed=True)
        software = replace(
            self.SOFTWARE, frameworks={"torch": "2.9.1+cpu", "cupy": "14"}, for_cpus=("torch",)
        )
        torch = replace(here, framework="pytorch")

        text = shown(replace(LIMIT, software=software, mechanisms=(here, torch)), width=100)

        assert "  pytorch 2.9.1+cpu: a CPU-only build: uses no GPU\n" in text
        assert "  cupy 14" in text

    def test_without_a_framework_all_are_grouped(self) -> None:
        cupy = replace(CUPY, applies=False, installed=False)
        jax = replace(cupy, framework="jax")

        text = self.limit(cupy, jax)

        assert "Your Python, /bin/py, has none of these frameworks; --python chooses" in text
        assert "  cupy, jax: environment variables\n" in text

    def test_a_soft_limit_and_a_missing_one_are_marked_with_their_reasons(self) -> None:
        soft = replace(CUPY, installed=True, strength=Strength.SOFT, reason="it is soft")
        missing = replace(
            CUPY, framework="jax", mechanism="X", applies=False, installed=True, reason="both set"
        )

        text = self.limit(soft, missing)

        assert "  cupy: CUPY_GPU_MEMORY_LIMIT\n    ! a soft limit: it is soft\n" in text
        assert "! jax is not limited: both set\n" in text

    def test_a_total_that_is_not_known(self) -> None:
        assert "such as 8GiB, limits more frameworks" in self.limit(CUPY)

    @pytest.mark.parametrize("included", [False, True])
    def test_what_nvidia_smi_will_show(self, included: bool) -> None:
        overhead = Overhead(included=included, context_bytes=1 << 30, library_bytes=0, sources=())
        text = self.limit(CUPY, overhead=overhead, gpus=(GPU,))

        assert ("About 1.0 GiB of that is reserved for" in text) is included
        assert ("nvidia-smi shows about 1.0 GiB more" in text) is not included

    def test_an_overhead_that_the_card_has_no_room_for(self) -> None:
        overhead = Overhead(included=False, context_bytes=1 << 30, library_bytes=0, sources=())
        full = replace(GPU, allocator_limit_bytes=GPU.memory_total_bytes)

        assert "more than the card has" in self.limit(CUPY, overhead=overhead, gpus=(full,))

    def test_a_limit_that_is_less_than_a_context(self) -> None:
        for size, less in ((GPU.limit_bytes or 0, True), ((GPU.limit_bytes or 0) - 1, False)):
            overhead = Overhead(included=False, context_bytes=size, library_bytes=0, sources=())

            text = self.limit(CUPY, overhead=overhead, gpus=(GPU,))

            assert ("more than the limit itself" in " ".join(text.split())) is less


def test_a_run_is_shown_instead_of_the_hints() -> None:
    gpu = RunGpu(
        uuid="GPU-1",
        index=0,
        limit_bytes=1 << 30,
        allowance_bytes=0,
        peak_bytes=2 << 30,
        exceeded=True,
        cuda_index=1,
    )
    culprit = Culprit(pid=7, name="py\x1b", uuid="GPU-1", memory_used_bytes=1 << 30)
    run = LimitedRun(
        exit_code=143,
        peak_bytes=2 << 30,
        exceeded=True,
        action="terminated",
        gpus=(gpu,),
        culprits=(culprit,),
        unavailable={"later_readings": "memory is no longer watched: x"},
    )

    text = shown(replace(LIMIT, run=run))

    assert (
        "! The command ended with 143. Exceeded the limit: peak 2.0 GiB of 1.0 GiB on\n"
        "  GPU 0; the watcher terminated it.\n"
        "  py\\x1b (7) had 1.0 GiB when the limit was exceeded\n"
        "  memory is no longer watched: x\n"
        "30% of each"
    ) in text
    assert "--format shell" not in text
    assert "ended with 143" in shown(replace(LIMIT, run=run), verbosity=1)


def test_a_run_of_which_nothing_is_known() -> None:
    run = LimitedRun(
        exit_code=0,
        peak_bytes=None,
        exceeded=None,
        action=None,
        unavailable={"peak_bytes": "--watch off"},
    )

    assert "The command ended with 0. The peak is unknown: --watch off.\n" in shown(
        replace(LIMIT, run=run)
    )
    unseen = replace(run, peak_bytes=0, unavailable={})
    assert "No process of the command was seen on a GPU." in shown(replace(LIMIT, run=unseen))


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
                deviation_bytes=-5,
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


def test_overhead_and_software() -> None:
    lines = shown(whole(), width=200, verbosity=1).splitlines()

    assert lines[6:8] == [
        "nvidia-smi shows about 576 MiB more, for the CUDA context (512 MiB) and libraries (64 MiB)"
        "; --include-overhead counts that in.",
        "For /bin/python: torch 2.13",
    ]


def test_proofs_are_shown_instead_of_the_plan() -> None:
    text = shown(whole(), width=200)

    assert text.endswith(
        "cupy 14.2.0: the limit holds\n"
        "    by CUPY_GPU_MEMORY_LIMIT\n"
        "    100 B of 105 B allocated\n"
        "    7 B more refused with OutOfMemoryError: at the limit, to within 7 B\n"
        "    NVML does not report what the process took: only the allocator's own count is known\n"
        "✗ jax\\x1b: the limit does not hold\n"
        "    nothing was refused\n"
        "? torch: not proven\n"
        "    the card was full\n"
    )
    assert "export" not in text
    assert "export" in shown(whole(), width=200, verbosity=1)


def test_what_the_error_says_is_not_said_twice() -> None:
    failure = Failure(code="x", message="It could not be tried: the card was full.")

    assert "the card was full" not in shown(whole(), failure)
    assert "the card was full" in shown(whole(), failure._replace(message="Something else."))


def test_gpus_with_the_same_outcome_share_a_block() -> None:
    first, *_ = whole().verifications
    found = [
        replace(first, cuda_index=n, uuid=f"GPU-{n}", overhead_bytes=n << 20) for n in (0, 1, 2)
    ]
    found[1] = replace(found[1], held=False, allocated_bytes=300, reason="no limit")
    gpus = tuple(replace(GPU, index=n, cuda_index=n) for n in (0, 1, 2))
    limit = replace(whole(), gpus=gpus, verifications=tuple(found))

    text = shown(limit, width=200)

    assert "cupy 14.2.0: the limit holds on GPU 0,2\n" in text
    assert "✗ cupy 14.2.0: the limit does not hold on GPU 1\n" in text
    assert "    2.0 MiB outside the allocator, by NVML\n" in text


def test_a_budget_that_the_card_does_not_have() -> None:
    tight = replace(GPU, allocator_limit_bytes=GPU.memory_total_bytes)

    assert "more than the card has" in shown(
        replace(whole(), gpus=(tight,)), width=200, verbosity=1
    )


def test_sources_are_shown_without_issue_numbers_where_more_is_asked_for() -> None:
    source = "context: 256 MiB (RTX 3090, PyTorch 2.7, InvokeAI#9413), 400 MB (pytorch#107667), up"
    overhead = Overhead(included=False, context_bytes=1, library_bytes=1, sources=(source,))
    limit = replace(whole(), overhead=overhead)

    seen = "  context: 256 MiB (RTX 3090, PyTorch 2.7), 400 MB, up\n"
    assert seen in shown(limit, verbosity=1)
    assert seen not in shown(limit)


@pytest.mark.parametrize("width", [20, 40, 80])
def test_a_whole_report_fits(width: int) -> None:
    text = shown(whole(), width=width, unicode=False)

    assert text.isascii()
    assert all(len(line) <= width for line in text.splitlines() if not line.startswith("export"))


def test_another_result_is_refused() -> None:
    with pytest.raises(TypeError):
        shown("not a limit")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("deviation", "said"),
    [
        (-(16 << 20), "16.0 MiB below the limit, to within 16.0 MiB"),
        (-1, "at the limit, to within 16.0 MiB"),
        (3 << 30, "3.0 GiB above the limit, to within 16.0 MiB"),
    ],
)
def test_the_distance_of_the_refusal_is_shown(deviation: int, said: str) -> None:
    first = replace(whole().verifications[0], deviation_bytes=deviation, refused_bytes=16 << 20)

    text = shown(replace(whole(), verifications=(first,)), width=200)

    assert f"refused with OutOfMemoryError: {said}\n" in text
