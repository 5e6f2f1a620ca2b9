"""Readings for the checks, each taken at most once and only when a check needs it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

from gpucheck.drivers.evidence import (
    BuildReading,
    BuildsReading,
    GpuHealthReading,
    HealthReading,
    LaunchReading,
    SystemReading,
    TrialReading,
)
from gpucheck.drivers.interface import Probes
from gpucheck.drivers.readings import (
    HUNG,
    CudaReading,
    GpuReading,
    KernelReading,
    NvmlReading,
    NvmlRequest,
    ProbeFailure,
)
from gpucheck.inventory.condition import GONE
from gpucheck.inventory.inventory import see_visibility
from gpucheck.inventory.model import Visibility
from gpucheck.report.host import Host
from gpucheck.report.options import flag, made_of_options, option, words

#: Remedies if nothing more exact is known: the driver logs there what it met.
KERNEL_LOG = "Read the driver's messages in the kernel log: sudo dmesg | grep -i nvrm"
REBOOT = "Reboot."
UPGRADE = "Upgrade the driver."
VISIBLE = "CUDA_VISIBLE_DEVICES"


#: Questions of the command that are not for the verdict.
_QUESTIONS = "--wheel --pid --log"


@made_of_options
class DetectRequest(NamedTuple):
    """Options of one run of detect; without `python` the active environment's is checked."""

    only: tuple[str, ...] = words(
        "--only ID,...",
        "Run only these checks or layers.",
        group="What to check",
        not_with=_QUESTIONS,
    )
    skip: tuple[str, ...] = words(
        "--skip ID,...", "Skip these checks or layers.", not_with=_QUESTIONS
    )
    framework: str | None = option(
        "--framework NAME",
        "Fail if pytorch, tensorflow, jax, cupy, numba or onnxruntime cannot use a GPU.",
        not_with=_QUESTIONS,
    )
    expect_gpus: int | None = option(
        "--expect-gpus N", "Fail unless programs can use N GPUs.", not_with=_QUESTIONS
    )
    deep: bool = flag(
        "--deep", "Import every framework and run a kernel on every GPU.", not_with=_QUESTIONS
    )
    python: str | None = option(
        "--python PATH",
        "The Python whose frameworks to check"
        " [default: the active environment's, else the one in PATH].",
        not_with=_QUESTIONS,
    )
    quick: bool = flag(
        "--quick", "Ask NVML and files only; start no CUDA, no framework.", not_with=_QUESTIONS
    )


def ignore_progress(text: str) -> None:
    """Ignore a report of progress."""


Value = TypeVar("Value")


class ReadOnce(Generic[Value]):
    """A property that is read at its first use.

    Python 3.11's cached_property has one lock for all objects: a program's threads would wait for
    each other's drivers.
    """

    def __init__(self, read: Callable[[Any], Value]) -> None:
        self._read = read
        self.__doc__ = read.__doc__

    def __get__(self, machine: object, _: type) -> Value:
        """Read it, and let the value stand in the property's place."""
        value = vars(machine)[self._read.__name__] = self._read(machine)
        return value


class Machine:
    """Lazy readings over the probes, and the request; `tried` are the frameworks to import."""

    def __init__(
        self,
        probes: Probes,
        request: DetectRequest | None = None,
        tried: Sequence[str] = (),
        report_progress: Callable[[str], None] = ignore_progress,
    ) -> None:
        self._probes = probes
        self.request = request or DetectRequest()
        self.tried = tuple(tried)
        self._report_progress = report_progress

    def report_progress(self, text: str) -> None:
        """Say what is being done; a recording does nothing of it."""
        if not self.host.recorded:
            self._report_progress(text)

    @ReadOnce
    def host(self) -> Host:
        """The operating system."""
        return self._probes.host()

    @ReadOnce
    def environment(self) -> Mapping[str, str]:
        """The GPU-related environment variables."""
        return self._probes.environment()

    @ReadOnce
    def kernel(self) -> KernelReading:
        """PCI devices and kernel modules."""
        return self._probes.kernel()

    @ReadOnce
    def system(self) -> SystemReading:
        """What files show about the driver."""
        return self._probes.system()

    @ReadOnce
    def openings(self) -> Mapping[str, str | None]:
        """The error of opening each device node, None on success; read only after a failure."""
        return self._probes.open_nodes([node.path for node in self.system.nodes.nodes])

    @ReadOnce
    def nvml(self) -> NvmlReading:
        """The GPUs, as NVML reports them."""
        self.report_progress("asking NVML")
        return self._probes.nvml(NvmlRequest())

    @ReadOnce
    def absence(self) -> str | None:
        """The clause that there is no NVIDIA GPU; None where one may be here."""
        from gpucheck.inventory.without_nvml import explain_absence  # only where something is wrong

        failure = self.nvml.failure
        explained = explain_absence(failure, self._probes) if failure is not None else None
        return explained[0] if explained else None

    @ReadOnce
    def health(self) -> HealthReading:
        """The health of each GPU, as NVML reports it."""
        self.report_progress("reading each GPU's health")
        return self._probes.health()

    @ReadOnce
    def cuda(self) -> CudaReading:
        """The answer of libcuda in a fresh process with this environment."""
        self.report_progress("starting CUDA")
        return self._probes.cuda()

    @ReadOnce
    def cuda_unrestricted(self) -> CudaReading:
        """The answer of libcuda in a fresh process without CUDA_VISIBLE_DEVICES."""
        self.report_progress(f"starting CUDA without {VISIBLE}")
        return self._probes.cuda(unrestricted=True)

    @ReadOnce
    def visibility(self) -> Visibility:
        """What the variables leave visible; the driver decides where the rules do not."""
        return see_visibility(
            self.nvml.gpus, self.environment, self._probes, driver_version=self.nvml.driver_version
        )

    @ReadOnce
    def builds(self) -> BuildsReading:
        """The frameworks of the checked interpreter."""
        return self._probes.builds(self.request.python)

    def build(self, name: str) -> BuildReading | None:
        """Return one framework's build, or None if it is not installed."""
        return next((build for build in self.builds.builds or () if build.name == name), None)

    @ReadOnce
    def smoke_tests(self) -> Mapping[str, TrialReading]:
        """The results of the frameworks' smoke tests, by name."""
        present = [name for name in self.tried if self.build(name) is not None]
        if not present or self.is_hung:
            return {}
        tested = self._probes.try_frameworks(present, self.builds.python, self.report_progress)
        return {test.name: test for test in tested}

    @ReadOnce
    def launch(self) -> LaunchReading:
        """The result of the CUDA kernel self-test."""
        self.report_progress("running a kernel")
        return self._probes.launch(
            self.builds.python,
            through_cupy=self.build("cupy") is not None,
            every_gpu=self.request.deep,
            report_progress=self.report_progress,
        )

    @property
    def has_run_a_kernel(self) -> bool:
        """Whether a kernel has been launched, with the right result."""
        return "launch" in vars(self) and any(launch.right for launch in self.launch.launches)

    @property
    def reading_after_launch(self) -> NvmlReading:
        """The GPUs that answered, as NVML reports them after a kernel has run; empty before."""
        # Only a launch by another check counts: a run without that check starts no kernel.
        return self._nvml_after_launch if "launch" in vars(self) else NvmlReading()

    @ReadOnce
    def _nvml_after_launch(self) -> NvmlReading:
        answered = tuple(gpu.index for gpu in self.nvml.gpus if gpu.failure is None)
        failed = self.nvml.failure or self.health.failure
        if failed or not answered or not self.launch.launches:
            return NvmlReading()
        self.report_progress("checking that every GPU is still present")
        # The processes on each of them: that takes few calls, and a lost GPU answers none.
        return self._probes.nvml(NvmlRequest(processes_of=answered))

    @property
    def lost(self) -> Mapping[int, ProbeFailure]:
        """The GPUs that NVML has called lost so far, by index, with its first error."""
        listed = ((gpu.index, gpu.failure) for gpu in self.nvml.gpus)
        looked = ((gpu.index, gpu.failure) for gpu in self.health.gpus)
        later = ((gpu.index, gpu.failure) for gpu in self.reading_after_launch.gpus)
        lost: dict[int, ProbeFailure] = {}
        for index, failure in (*listed, *looked, *later):
            if failure is not None and failure.library_code in GONE:
                lost.setdefault(index, failure)
        return lost

    @property
    def gpus(self) -> tuple[tuple[GpuReading, GpuHealthReading], ...]:
        """The GPUs that answer, each with its health."""
        health = {gpu.index: gpu for gpu in self.health.gpus}
        return tuple(
            (gpu, health[gpu.index])
            for gpu in self.nvml.gpus
            if gpu.failure is None and gpu.index in health
        )

    @property
    def is_hung(self) -> bool:
        """Whether a library of the driver did not answer, and should not be called again."""
        failures = (self.nvml.failure, self.cuda.failure if not self.nvml.failure else None)
        return any(failure is not None and failure.code == HUNG for failure in failures)

    @property
    def is_wsl(self) -> bool:
        """Whether this is WSL2, where the Windows driver owns the GPU."""
        return self.host.is_wsl

    @property
    def is_jetson(self) -> bool:
        """Whether the GPU is part of the processor, and not on a PCI bus."""
        return self.system.platform.tegra is not None

    @property
    def is_container(self) -> bool:
        """Whether the kernel and its modules belong to a container's host."""
        return self.host.container is not None
