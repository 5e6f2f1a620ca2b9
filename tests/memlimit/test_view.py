"""Terminal view of a memory limit, at several widths."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

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
from gpucheck.report.envelope import TOOL, Failure, Report, Status
from gpucheck.report.errors import ExitCode
from gpucheck.report.formats.table import render
from gpucheck.report.host import Host
from gpucheck.report.text import View
from tests.report.formats.recorded import in_sections, recorded

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


SOFTWARE = Software(interpreter="/bin/py", python="3.11.1", frameworks={"torch": "2.9.1"})
HERE = replace(CUPY, installed=True)
ABSENT = replace(CUPY, applies=False, installed=False)
MISSING = replace(CUPY, applies=False, installed=True)
LONG = "a:b," * 40 + "per_process_memory_fraction:0.3 $x"
CODE = "for each in " + "x" * 100 + ": set(each)"


def overhead(
    context_bytes: int = 1 << 30, *, included: bool = False, sources: tuple[str, ...] = ()
) -> Overhead:
    return Overhead(
        included=included, context_bytes=context_bytes, library_bytes=1 << 26, sources=sources
    )


def changed(**changes: Any) -> MemoryLimit:
    """Return the limit of one card, with these changes to the card or to the limit."""
    card = {name: value for name, value in changes.items() if hasattr(GPU, name)}
    limit = {name: value for name, value in changes.items() if name not in card}
    return replace(LIMIT, **{"gpus": (replace(GPU, **card),), **limit})


def by_code(*, installed: bool | None) -> Mechanism:
    return replace(
        CUPY, framework="tensorflow", mechanism="code", setting=CODE, applies=False, by=Way.CODE,
        installed=installed, reason="a line in the program",
    )  # fmt: skip


def to_copy(*, installed: bool | None) -> MemoryLimit:
    """Return settings and a line of code that are wider than any terminal."""
    mechanisms = (CUPY, by_code(installed=installed))
    return replace(LIMIT, mechanisms=mechanisms, environment={"PYTORCH_ALLOC_CONF": LONG})


def cards() -> dict[str, MemoryLimit]:
    four = tuple(replace(GPU, cuda_index=n, index=n, uuid=f"GPU-{n}") for n in (0, 1, 2, 5))
    other = replace(GPU, index=9, memory_total_bytes=10, limit_bytes=5)
    size = GPU.limit_bytes or 0
    full = GPU.memory_total_bytes
    return {
        "one card, and what nvidia-smi will show": changed(overhead=overhead()),
        "a card and one that cannot be read": LIMIT,
        "alike cards are one sentence": replace(LIMIT, gpus=four),
        "unlike ones have rows of their own": replace(LIMIT, gpus=(*four, other)),
        "nothing is known of the card": changed(limit_bytes=None, memory_total_bytes=None),
        "a total that is not known": changed(memory_total_bytes=None),
        "a MIG instance": changed(mig_instance=True),
        "a card without a number": changed(index=None, cuda_index=None),
        "the command has what was asked for": changed(
            environment={"CUDA_VISIBLE_DEVICES": "GPU-1"}, overhead=overhead(included=True)
        ),
        "an overhead for which the card has no room": changed(
            overhead=overhead(), allocator_limit_bytes=full
        ),
        "a limit just above its overhead": changed(overhead=overhead(size - 1 - (1 << 26))),
        "a limit that is no more than its overhead": changed(overhead=overhead(size - (1 << 26))),
    }


def frameworks() -> dict[str, MemoryLimit]:
    by_hook = replace(
        HERE, framework="pytorch", by=Way.CODE, applies=False, by_hook=True, setting="x"
    )
    both_set = replace(MISSING, framework="jax", mechanism="X", reason="both set")
    for_cpus = replace(
        SOFTWARE, frameworks={"torch": "2.9.1+cpu", "cupy": "14"}, for_cpus=("torch",)
    )
    found = {
        "each installed framework has a line": (HERE, by_hook, ABSENT, OTHER),
        "without a framework all are grouped": (ABSENT, replace(ABSENT, framework="jax")),
        "a soft limit and a missing one have their reasons": (
            replace(HERE, strength=Strength.SOFT, reason="it is soft"), both_set,
        ),
    }  # fmt: skip
    limits = {
        name: replace(LIMIT, software=SOFTWARE, mechanisms=mechanisms)
        for name, mechanisms in found.items()
    }
    in_bytes = replace(to_copy(installed=True), request=MemoryRequest(text="8GiB", bytes=8))
    return limits | {
        "a CPU-only build is not limited": replace(
            LIMIT, software=for_cpus, mechanisms=(HERE, replace(HERE, framework="pytorch"))
        ),
        "what is set for another Python is neither yes nor no": replace(
            LIMIT, mechanisms=(ABSENT,)
        ),
        "a cap that is missing is marked": replace(LIMIT, mechanisms=(MISSING,), environment={}),
        "TensorFlow's trap": to_copy(installed=True),
        "no trap where TensorFlow is not known to be there": to_copy(installed=None),
        "no trap for bytes": in_bytes,
    }


def runs() -> dict[str, MemoryLimit]:
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
    stopped = LimitedRun(
        exit_code=143,
        peak_bytes=2 << 30,
        exceeded=True,
        action="terminated",
        gpus=(gpu,),
        culprits=(culprit,),
        unavailable={"later_readings": "memory is no longer watched: x"},
    )
    unknown = LimitedRun(
        exit_code=0,
        peak_bytes=None,
        exceeded=None,
        action=None,
        unavailable={"peak_bytes": "--watch off"},
    )
    found = {
        "a run is shown instead of the hints": stopped,
        "a run of which nothing is known": unknown,
        "a run that no GPU saw": replace(unknown, peak_bytes=0, unavailable={}),
    }
    return {name: replace(LIMIT, run=run) for name, run in found.items()}


def proofs() -> dict[str, MemoryLimit]:
    first, *_ = whole().verifications
    many = [
        replace(first, cuda_index=n, uuid=f"GPU-{n}", overhead_bytes=n << 20) for n in (0, 1, 2)
    ]
    many[1] = replace(many[1], held=False, allocated_bytes=300, reason="no limit")
    gpus = tuple(replace(GPU, index=n, cuda_index=n) for n in (0, 1, 2))
    distances = {
        "a refusal below the limit": -(16 << 20),
        "a refusal at the limit": -1,
        "a refusal above the limit": 3 << 30,
    }
    source = "context: 256 MiB (RTX 3090, PyTorch 2.7, InvokeAI#9413), 400 MB (pytorch#107667), up"
    found = {
        name: replace(first, deviation_bytes=deviation, refused_bytes=16 << 20)
        for name, deviation in distances.items()
    }
    return {
        "proofs are shown instead of the plan": whole(),
        "GPUs with the same outcome share a block": replace(
            whole(), gpus=gpus, verifications=tuple(many)
        ),
        "sources without issue numbers": replace(whole(), overhead=overhead(1, sources=(source,))),
        **{name: replace(whole(), verifications=(proof,)) for name, proof in found.items()},
    }


@pytest.mark.parametrize("situations", [cards, frameworks, runs, proofs])
def test_situations_are_as_recorded(situations: Callable[[], dict[str, MemoryLimit]]) -> None:
    screens = {}
    for name, limit in situations().items():
        screens[name] = shown(limit, width=100)
        screens[f"{name}, with -v"] = shown(limit, width=100, verbosity=1)
    text = in_sections(screens)

    assert text == recorded(f"memlimit-view-{situations.__name__}", text)


@pytest.mark.parametrize(
    ("mib", "share"), [(1, "less than 1 %"), (407, "less than 1 %"), (408, "1 %"), (1000, "1 %")]
)
def test_an_amount_in_bytes_is_shown_as_a_share(mib: int, share: str) -> None:
    request = MemoryRequest(text=f"{mib}MiB", bytes=mib << 20)

    text = shown(changed(request=request, limit_bytes=mib << 20))

    assert f"\n{request.text} is {share} of the " in text


def test_quiet_is_the_limit_alone() -> None:
    assert shown(changed(mechanisms=to_copy(installed=True).mechanisms), verbosity=-1) == (
        "30% is 23.9 GiB of the 79.6 GiB on GPU 0\n"
    )


@pytest.mark.parametrize("width", [20, 40, 63, 64, 80, 160])
def test_only_what_is_to_be_copied_is_wider_than_the_terminal(width: int) -> None:
    for limit in (LIMIT, whole()):
        lines = shown(limit, width=width, unicode=False).splitlines()

        assert all(line.isascii() for line in lines)
        assert all(len(line) <= width for line in lines if "gpucheck memlimit" not in line)
    lines = shown(to_copy(installed=True), width=width, verbosity=1).splitlines()
    assert f"export PYTORCH_ALLOC_CONF='{LONG}'" in lines
    assert CODE in lines


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


def test_what_the_error_says_is_not_said_twice() -> None:
    failure = Failure(code="x", message="It could not be tried: the card was full.")

    assert "the card was full" not in shown(whole(), failure)
    assert "the card was full" in shown(whole(), failure._replace(message="Something else."))


def test_another_result_is_refused() -> None:
    with pytest.raises(TypeError):
        shown("not a limit")  # type: ignore[arg-type]
