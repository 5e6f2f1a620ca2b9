"""Client of the children that call libcuda: the devices that a program sees, and the self-test."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from gpucheck.drivers.child import Child, ChildDiedError, ChildError, ask_once, explain
from gpucheck.drivers.evidence import LaunchedReading, LaunchReading
from gpucheck.drivers.readings import HUNG, CudaReading, ProbeFailure
from gpucheck.report.codec import DecodeError, from_plain

WORKER = "gpucheck.drivers.cuda.worker"
CUPY_SCRIPT = str(Path(__file__).with_name("cupy_kernel_test_child.py"))
LISTING = (
    (HUNG, "the CUDA driver did not answer within {}"),
    ("cuda-child-died", "the process that asks the CUDA driver {}"),
)
LAUNCHING = (
    (HUNG, "the kernel was not run within {}"),
    ("launch-died", "the process that runs the kernel {}"),
)
#: For CuPy's first three kernels, which take 2 s each where two processors are busy.
COMPILE_S = 60.0
#: The code and the text of a timeout, by the last stage that CuPy finished.
LATE = {
    None: ("import-not-finished", "it was still being imported after {}"),
    "imported": ("compile-not-finished", "it had not compiled and run a kernel after {}"),
    "compiled": ("fails-on-the-gpu", "it did not finish a kernel that it had compiled within {}"),
}
#: After these the driver is not used again.
UNDECIDED = frozenset({HUNG, "launch-died"})


def read_cuda(
    *, deadline_s: float, environment: Mapping[str, str] | None = None, child: Child | None = None
) -> CudaReading:
    """Ask libcuda what a program with `environment` (default: ours) would see.

    `child` is one that has already been started with it.
    """
    return ask_once(
        CudaReading, lambda: child or Child(WORKER, environment=environment), deadline_s, LISTING
    )


# ------------------------------------------------------------------------------- kernel self-test


def run_kernel(
    python: str | None,
    environment: Mapping[str, str],
    *,
    through_cupy: bool,
    every_gpu: bool,
    deadline_s: float,
    report_progress: Callable[[str], None],
) -> LaunchReading:
    """Run a kernel on the first GPU that can, or on each; then run it there through CuPy.

    `deadline_s` bounds the driver's part. If CuPy runs the kernel where libcuda could not (a
    driver without its compiler, say), the GPU passes all the same. A late or failing CuPy never
    counts against the driver: it has a child of its own with its own deadlines, because its import
    reads hundreds of files, and it compiles its first kernels.
    """
    reading = _launch_by_libcuda(environment, every_gpu, deadline_s)
    failure = reading.failure
    if not through_cupy or (failure is not None and failure.code in UNDECIDED):
        return reading
    right = [launch.ordinal for launch in reading.launches if launch.right]
    report_progress("running a kernel through CuPy")
    launches, cupy_failure = _launch_by_cupy(
        python, environment, right or [0], deadline_s, report_progress
    )
    if cupy_failure is None and not all(launch.right for launch in launches):
        cupy_failure = ProbeFailure(
            code="fails-on-the-gpu", message="the result of its kernel is wrong"
        )
    if cupy_failure is not None:
        return reading._replace(cupy_failure=cupy_failure)
    if right:
        return reading._replace(through="cupy")
    if failure is None and reading.launches:
        wrong = ProbeFailure(code="wrong-result", message="the result is wrong")
        failure = reading.launches[0].failure or wrong
    return LaunchReading(through="cupy", launches=launches, libcuda_failure=failure)


def _launch_by_libcuda(
    environment: Mapping[str, str], every_gpu: bool, deadline_s: float
) -> LaunchReading:
    # Our kernel is PTX. A program with code for this GPU does not need the driver's compiler.
    allowed = {name: text for name, text in environment.items() if name != "CUDA_DISABLE_PTX_JIT"}
    devices = "every" if every_gpu else "first"
    return ask_once(
        LaunchReading, lambda: Child(WORKER, devices, environment=allowed), deadline_s, LAUNCHING
    )


def _launch_by_cupy(
    python: str | None,
    environment: Mapping[str, str],
    ordinals: Sequence[int],
    deadline_s: float,
    report_progress: Callable[[str], None],
) -> tuple[tuple[LaunchedReading, ...], ProbeFailure | None]:
    """Return the result on these devices, and why CuPy failed if it did."""
    from gpucheck.drivers.python.frameworks import IMPORT_S
    from gpucheck.drivers.python.interpreters import user_environment

    patience_s = {None: IMPORT_S, "imported": COMPILE_S, "compiled": deadline_s}
    stage: str | None = None
    words = [str(ordinal) for ordinal in ordinals]
    waiting = len(words)
    try:
        with Child(
            CUPY_SCRIPT,
            *words,
            interpreter=(python or sys.executable,),
            environment=user_environment(environment),
        ) as child:
            report_progress("importing CuPy")
            while True:
                answer: dict[str, Any] = next(child.documents(patience_s[stage]))
                if "launches" in answer:
                    return from_plain(LaunchReading, answer).launches, None
                if "error" in answer:
                    return (), ProbeFailure(code="fails-on-the-gpu", message=str(answer["error"]))
                waiting -= answer["stage"] == "compiled"
                # For a further device it may have to compile again.
                stage = "imported" if waiting else "compiled"
                report_progress("running a kernel through CuPy")
    except (DecodeError, KeyError) as error:
        failure: ChildError = ChildDiedError(str(error))
    except ChildError as error:
        failure = error
    return (), explain(failure, (LATE[stage], ("trial-died", "the process that runs CuPy {}")))
