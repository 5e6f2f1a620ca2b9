"""Wheel of a framework that runs on these GPUs with this driver: the rule, over data/wheels.toml.

`choose` takes values and returns values. `gpucheck detect --wheel` asks it before anything is
installed, and the checks of the frameworks ask it for their remedies.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from functools import cache
from typing import NamedTuple

from gpucheck.data import read_table
from gpucheck.detect.cuda_versions import (
    MINIMUM_WINDOWS_DRIVER,
    OLDEST_CAPABILITY,
    Version,
    cuda_of_driver,
    has_only_ptx,
    holds_code_for,
    parse_version,
)
from gpucheck.detect.machine import Machine
from gpucheck.detect.remedies import adapt
from gpucheck.drivers.evidence import BuildsReading
from gpucheck.drivers.interface import Probes
from gpucheck.inventory.inventory import complete_host, cuda_version
from gpucheck.report.codec import from_plain
from gpucheck.report.envelope import Answer, Failure, Notice
from gpucheck.report.errors import ExitCode
from gpucheck.report.text import count_of, framework_title

#: The words before a row's own, by installer.
INSTALLERS: Mapping[str, str] = {
    "pip": "pip install",
    "uv": "uv pip install",
    "conda": "conda install",
    "pixi": "pixi add",
}
#: The processor where none is recorded.
X86 = "x86_64"


class Build(NamedTuple):
    """Build of a framework: a row of data/wheels.toml, whose head describes the fields."""

    id: str
    framework: str
    name: str
    versions: tuple[str, str]
    cuda: str
    machines: tuple[str, ...]
    architectures: tuple[str, ...]
    driver: str
    wheels: tuple[str, ...]
    install: Mapping[str, tuple[str, ...]]
    source: str
    date: str
    oldest_capability: str | None = None
    package: str | None = None
    python: str | None = None


class Driver(NamedTuple):
    """The NVIDIA driver: its version and the newest CUDA that it knows; null: not read.

    `windows`: it is the Windows driver around WSL2, which counts in other numbers.
    """

    version: str | None = None
    cuda: str | None = None
    windows: bool = False


class WheelGpu(NamedTuple):
    """GPU to choose for; `index` is NVML's, null where the GPU was found on the PCI bus alone."""

    index: int | None = None  # type: ignore[assignment]
    name: str | None = None
    compute_capability: str | None = None
    pci_bus_id: str | None = None


class Fit(StrEnum):
    """Whether a build has code for the GPUs, and runs with the driver."""

    ALL = "all"
    SOME = "some"
    NONE = "none"


class LeftOut(NamedTuple):
    """GPU that the chosen build has no code for; `served_by` has, by id (null: none does)."""

    gpu: WheelGpu
    served_by: str | None
    reason: str


class PassedOver(NamedTuple):
    """Newer builds, by id, that were not chosen, all for the same reason."""

    builds: tuple[str, ...]
    reason: str


class WheelChoice(NamedTuple):
    """The build of one framework for these GPUs, and how it is installed.

    `commands` are by installer; `arguments` are the words that pip and uv take alike.
    `compiled_at_first_use` are the GPUs, by compute capability, that it has only PTX for.
    `driver_needed` says which driver it needs if it could not be told whether this one is that.
    """

    framework: str
    fit: Fit
    sentence: str
    build: Build | None = None
    commands: Mapping[str, str] = {}
    arguments: tuple[str, ...] = ()
    left_out: tuple[LeftOut, ...] = ()
    passed_over: tuple[PassedOver, ...] = ()
    compiled_at_first_use: tuple[str, ...] = ()
    driver_needed: str | None = None
    remedy: tuple[str, ...] = ()


class WheelChoices(NamedTuple):
    """Result of `gpucheck detect --wheel`: a choice for each framework that was asked for.

    `machine` is the processor, x86_64 or aarch64; null if it is not recorded (x86_64 is assumed).
    """

    gpus: tuple[WheelGpu, ...]
    driver: Driver
    machine: str | None
    choices: tuple[WheelChoice, ...]


@cache
def builds_of(framework: str) -> tuple[Build, ...]:
    """Return the builds of a framework, in the order of the table."""
    return tuple(
        from_plain(Build, {**row, "date": row["date"].isoformat()})
        for row in read_table("wheels")["row"]
        if row["framework"] == framework
    )


# ------------------------------------------------------------------------------------ one build


def serves(build: Build, capability: str, driver: Driver) -> bool:
    """Return whether a build has code for GPUs of this compute capability, or compiles it.

    PTX counts where the driver can compile it, which one for an older CUDA cannot. Source: NVIDIA,
    "CUDA Compatibility": minor version compatibility leaves PTX out.
    """
    if has_only_ptx(build.architectures, capability) and _is_newer_than_driver(build, driver):
        return False
    own = parse_version(capability)
    oldest = parse_version(build.oldest_capability)
    if own is None or (oldest is not None and own < oldest):
        return False
    if not build.architectures:
        return own >= OLDEST_CAPABILITY[_number(build.cuda)[0]]
    return holds_code_for(build.architectures, capability) is True


def runs_with(build: Build, driver: Driver) -> bool | None:
    """Return whether a build runs with a driver; None if what was read does not tell.

    Source: NVIDIA, "CUDA Compatibility": a driver runs all of its CUDA's major version and of
    earlier ones, from a first release on.
    """
    major = _number(build.cuda)[0]
    least = MINIMUM_WINDOWS_DRIVER.get(major) if driver.windows else parse_version(build.driver)
    version, cuda = parse_version(driver.version), parse_version(driver.cuda)
    if version is not None and least is not None:
        return version >= least
    return None if cuda is None else cuda[0] >= major


def _number(version: str) -> Version:
    return parse_version(version) or ()


def _is_newer_than_driver(build: Build, driver: Driver) -> bool:
    """Return whether a build's CUDA is newer than the driver's own: what it compiles may fail."""
    cuda = parse_version(driver.cuda)
    return cuda is not None and _number(build.cuda) > cuda


def lacks_python(build: Build, version: str | None) -> bool:
    """Return whether the command of a build cannot be resolved for a version of Python."""
    fits = [
        parse_version(limit) or () for limit in (build.python or "").split() if limit[0].isdigit()
    ]
    own = parse_version(version)
    return bool(fits and own) and not fits[0] <= (own or ())[:2] <= fits[-1]


def commands_of(build: Build) -> dict[str, str]:
    """Return the command of each installer that is documented to have this build."""
    words = {"uv": build.install["pip"], **build.install}
    return {
        name: f"{start} {shlex.join(words[name])}"
        for name, start in INSTALLERS.items()
        if name in words
    }


def label(build: Build) -> str:
    """Return the name of a build: "PyTorch 2.14 for CUDA 12.6 (cu126)"."""
    return f"{product(build)} for CUDA {build.cuda} ({build.name})"


def product(build: Build) -> str:
    """Return the package or framework of a build, with its version: "PyTorch 2.14"."""
    return f"{build.package or framework_title(build.framework)} {build.versions[1]}"


# ------------------------------------------------------------------------------------ the choice


def choose(
    framework: str,
    gpus: Sequence[WheelGpu],
    driver: Driver,
    machine: str | None = None,
    python: str | None = None,
) -> WheelChoice:
    """Return the build that serves the most of these GPUs; of several, the newest version.

    Builds that are not published for this version of Python count only where no other has code.
    Of one version's builds it takes the newest CUDA that the driver itself knows, since code that
    is compiled while a program runs may need that. GPUs of unknown compute capability do not count.
    """
    known = [gpu for gpu in gpus if gpu.compute_capability]
    published = [build for build in builds_of(framework) if (machine or X86) in build.machines]
    if not published:
        title = framework_title(framework)
        sentence = f"{title} has no build with GPU code for {machine or X86} processors"
        remedy = f"Build {title} from its source, or use a machine with another processor."
        return WheelChoice(framework, Fit.NONE, sentence, remedy=(remedy,))
    runs = [build for build in published if runs_with(build, driver) is not False]
    if not runs:
        return _without_build(framework, known, driver, published)
    fitting, among = [build for build in runs if not lacks_python(build, python)], "this driver"
    if len(fitting) < len(runs) and any(_served(build, known, driver) for build in fitting):
        runs, among = fitting, "this driver and Python"

    def order(build: Build) -> tuple[object, ...]:
        return (
            len(_served(build, known, driver)),
            _number(build.versions[1]),
            not _is_newer_than_driver(build, driver),
            _number(build.cuda),
        )

    best = max(runs, key=order)
    served = _served(best, known, driver)
    if not served:
        return _without_build(framework, known, driver, published)
    left = tuple(
        _left_out(gpu, best, known, driver, runs, among) for gpu in known if gpu not in served
    )
    needed = _needed(best, driver) if runs_with(best, driver) is None else None
    return WheelChoice(
        framework=framework,
        fit=Fit.SOME if left else Fit.ALL,
        sentence=label(best)
        + (f" runs on {len(served)} of {count_of(len(known))}" if left else "")
        + (f", with {needed}" if needed else ""),
        build=best,
        commands=commands_of(best),
        arguments=best.install["pip"],
        left_out=left,
        passed_over=_passed_over(best, served, driver, python, published),
        compiled_at_first_use=tuple(
            build for build in _capabilities(served) if has_only_ptx(best.architectures, build)
        ),
        driver_needed=needed,
    )


def _capabilities(gpus: Sequence[WheelGpu]) -> list[str]:
    """Return the compute capabilities of some GPUs, each once, the oldest first."""
    return sorted({gpu.compute_capability or "" for gpu in gpus}, key=_number)


def _served(build: Build, gpus: Sequence[WheelGpu], driver: Driver) -> list[WheelGpu]:
    return [gpu for gpu in gpus if serves(build, gpu.compute_capability or "", driver)]


def _left_out(
    gpu: WheelGpu,
    best: Build,
    gpus: Sequence[WheelGpu],
    driver: Driver,
    runs: Sequence[Build],
    among: str,
) -> LeftOut:
    """Say which other build has code for a GPU, and that it serves no more GPUs.

    `among` names what the builds were chosen by.
    """
    gap = f"this build {_gap(best, [gpu], driver)}"
    others = [build for build in runs if _served(build, [gpu], driver)]
    if not others:
        return LeftOut(gpu, None, f"{gap}, nor has any other build for {among}")
    other = max(
        others, key=lambda build: (len(_served(build, gpus, driver)), _number(build.versions[1]))
    )
    also = _served(other, gpus, driver)
    lost = _capabilities(
        [other_gpu for other_gpu in _served(best, gpus, driver) if other_gpu not in also]
    )
    name = label(other).rpartition(" (")[0]
    reason = f"{gap}; {name} has it, but none for {', '.join(lost)}"
    return LeftOut(gpu, other.id, f"{reason}, and no build serves both")


def _passed_over(
    best: Build,
    served: Sequence[WheelGpu],
    driver: Driver,
    python: str | None,
    published: Sequence[Build],
) -> tuple[PassedOver, ...]:
    """Say why each build that is newer than the chosen one was not, the newest first."""

    def age(build: Build) -> tuple[Version, Version]:
        return _number(build.versions[1]), _number(build.cuda)

    alike: dict[tuple[str, str], list[Build]] = {}
    for build in sorted(published, key=age, reverse=True):
        if age(build) > age(best):
            why = _why_not(build, served, driver, python)
            alike.setdefault((build.versions[1], why), []).append(build)
    return tuple(
        PassedOver(
            tuple(build.id for build in builds),
            f"{product(builds[0])} ({', '.join(build.name for build in builds)}) {why}",
        )
        for (_, why), builds in alike.items()
    )


def _why_not(build: Build, served: Sequence[WheelGpu], driver: Driver, python: str | None) -> str:
    """Return why a build does not take the place of one that serves these GPUs."""
    also = _served(build, served, driver)
    lacking = [gpu for gpu in served if gpu not in also]
    if lacking:
        return _gap(build, lacking, driver)
    if runs_with(build, driver) is False:
        return f"needs {_needed(build, driver)}"
    if lacks_python(build, python):
        return f"needs Python {build.python}"
    return f"runs too, but its CUDA {build.cuda} is newer than the driver's {driver.cuda}"


def _gap(build: Build, gpus: Sequence[WheelGpu], driver: Driver) -> str:
    """Return the code that a build lacks for these GPUs, none of which it serves."""
    shown = ", ".join(_capabilities(gpus))
    if _served(build, gpus, Driver()) == list(gpus):
        return (
            f"has only PTX for compute capability {shown}, which the driver's CUDA {driver.cuda} is"
            f" too old to compile"
        )
    return f"has no code for compute capability {shown}"


def _needed(build: Build, driver: Driver, gpus: Sequence[WheelGpu] = ()) -> str:
    """Return the driver that a build needs for these GPUs, in the numbers of this platform."""
    if any(has_only_ptx(build.architectures, gpu.compute_capability) for gpu in gpus):
        return f"a driver for CUDA {build.cuda} or newer"
    if not driver.windows:
        return f"driver {build.driver} or newer"
    return f"a Windows driver for CUDA {_number(build.cuda)[0]}"


def _without_build(
    framework: str, known: Sequence[WheelGpu], driver: Driver, published: Sequence[Build]
) -> WheelChoice:
    """Return the choice where the driver is too old for every build with code, or none has it."""
    title = framework_title(framework)
    useful = [build for build in published if _served(build, known, Driver())]
    if useful:
        easiest = min(useful, key=lambda build: _number(build.driver))
        sentence = f"No build of {title} runs with driver {driver.version or driver.cuda}"
        need = _needed(easiest, driver, known)
        remedy = f"Upgrade the driver: {label(easiest)} needs {need}."
    else:
        shown = ", ".join(_capabilities(known))
        sentence = f"No build of {title} has code for compute capability {shown}"
        remedy = f"Build {title} from its source for these GPUs, or use another GPU."
    return WheelChoice(framework, Fit.NONE, sentence, remedy=(remedy,))


# ------------------------------------------------------------------------------- what was read


def driver_of(machine: Machine) -> Driver:
    """Return the driver by NVML, or by its loaded kernel module where NVML does not answer."""
    read = machine.nvml.cuda_driver_version
    version = machine.nvml.driver_version or machine.kernel.module_version
    cuda = None if machine.is_wsl else cuda_of_driver(version)
    return Driver(version, cuda if read is None else cuda_version(read), windows=machine.is_wsl)


def gpus_of(machine: Machine) -> tuple[WheelGpu, ...]:
    """Return the GPUs by NVML; without it those on the PCI bus, by the table of boards."""
    if machine.nvml.gpus:
        return tuple(
            WheelGpu(
                index=gpu.index,
                name=gpu.name,
                compute_capability=gpu.compute_capability or _board(gpu.pci_device_id)[1],
                pci_bus_id=gpu.pci_bus_id,
            )
            for gpu in machine.nvml.gpus
        )
    return tuple(
        WheelGpu(None, *_board(gpu.device_id), pci_bus_id=gpu.pci_bus_id)
        for gpu in machine.kernel.pci_devices or ()
    )


def _board(device_id: str | None) -> tuple[str | None, str | None]:
    """Return name and compute capability of a board by its PCI device id; None, None if unknown."""
    digits = (device_id or "").lower().removeprefix("0x")[:4]
    for row in read_table("peaks")["row"]:
        if digits in row["pci_device_ids"]:
            return row["name"], row["rates"].partition("-")[0]
    return None, None


def choose_for(machine: Machine, framework: str) -> WheelChoice | Failure:
    """Return the build for a machine, or why there is nothing to choose by."""
    gpus = gpus_of(machine)
    failure = _nothing_to_judge_by(machine, gpus)
    if failure is not None:
        return failure
    processor = machine.system.platform.machine
    python = machine.builds.python_version
    return choose(framework, gpus, driver_of(machine), processor, python)


def advise(probes: Probes, frameworks: Iterable[str]) -> Answer:
    """Choose a build of each framework for the machine.

    The exit code is 0 if each has one, 1 if one has none, and 3 if there is nothing to choose by:
    no GPU's compute capability is known, or it is a Jetson.
    """
    machine = Machine(probes)
    gpus, driver = gpus_of(machine), driver_of(machine)
    host = complete_host(machine.host, machine.nvml)
    failure = _nothing_to_judge_by(machine, gpus)
    if failure is not None:
        return Answer(result=None, exit_code=ExitCode.INCONCLUSIVE, host=host, error=failure)
    processor = machine.system.platform.machine
    builds = machine.builds
    # gpucheck's own may be installed apart from all environments.
    python = None if builds.named_by == "gpucheck" else builds.python_version
    chosen = (choose(name, gpus, driver, processor, python) for name in frameworks)
    choices = tuple(choice._replace(remedy=adapt(machine, choice.remedy)) for choice in chosen)
    return Answer(
        result=WheelChoices(gpus, driver, processor, choices),
        exit_code=ExitCode.BAD if any(c.fit is Fit.NONE for c in choices) else ExitCode.OK,
        host=host,
        warnings=(*_notices(gpus, processor, choices), *_unfit_pythons(builds, python, choices)),
    )


def _nothing_to_judge_by(machine: Machine, gpus: Sequence[WheelGpu]) -> Failure | None:
    if machine.is_jetson:
        return Failure(
            code="jetson",
            message="This is a Jetson, and the table holds no builds for it.",
            remedy=("Take NVIDIA's own wheels for this release of JetPack.",),
        )
    if any(gpu.compute_capability for gpu in gpus):
        return None
    message = "There is no GPU here to choose a build for."
    if gpus:
        message = (
            f"The compute capability of {count_of(len(gpus))} is not known, nor which build fits."
        )
    return Failure(
        code="nothing-to-judge-by",
        message=message,
        remedy=(
            "See what is wrong here: gpucheck detect",
            "Or ask for another machine: gpucheck detect --wheel torch --from FILE",
        ),
    )


def _notices(
    gpus: Sequence[WheelGpu], processor: str | None, choices: Sequence[WheelChoice]
) -> Iterator[Notice]:
    """Yield the warnings, which --strict must not pass."""
    for gpu in gpus:
        if not gpu.compute_capability:
            message = f"{gpu_label(gpu)}: its compute capability is not known, so it did not count."
            yield Notice(code="gpu-not-read", message=message)
    if processor is None:
        message = "The processor is not recorded: builds for x86_64 were chosen from."
        yield Notice(code="machine-not-recorded", message=message)
    for choice in choices:
        for left in choice.left_out:
            message = f"{choice.framework}: {gpu_label(left.gpu)} is left out: {left.reason}."
            yield Notice(code="gpu-left-out", message=message)
        if choice.driver_needed:
            message = (
                f"{choice.framework}: this build needs {choice.driver_needed}: it was not read."
            )
            yield Notice(code="driver-not-read", message=message)


def _unfit_pythons(
    builds: BuildsReading, version: str | None, choices: Sequence[WheelChoice]
) -> Iterator[Notice]:
    """Yield the builds whose commands fail, or take another build, in the active environment."""
    by = f", by {builds.named_by}," if builds.named_by else ""
    for choice in choices:
        if choice.build is not None and lacks_python(choice.build, version):
            message = (
                f"{choice.framework}: this build needs Python {choice.build.python}, and"
                f" {builds.python or 'the one here'}{by} is {version}."
            )
            yield Notice(code="python-does-not-fit", message=message)


def gpu_label(gpu: WheelGpu) -> str:
    """Return a GPU's name: "GPU 1 (Tesla P40)"; by its bus id if it has no index."""
    number = f"GPU {gpu.pci_bus_id}" if gpu.index is None else f"GPU {gpu.index}"
    return f"{number} ({gpu.name})" if gpu.name else number
