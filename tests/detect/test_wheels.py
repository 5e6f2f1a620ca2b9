"""Choice of a framework's build: the table against real wheels, and the rule over all boards."""

from __future__ import annotations

import json
import tomllib
from itertools import product
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpucheck.data import read_table
from gpucheck.detect.checks.frameworks import NAMES
from gpucheck.detect.cuda_versions import MATCHING_DRIVER, MINIMUM_DRIVER, parse_version
from gpucheck.detect.wheels import (
    Build,
    Driver,
    Fit,
    WheelChoice,
    WheelChoices,
    WheelGpu,
    advise,
    builds_of,
    choose,
    commands_of,
    lacks_python,
    runs_with,
    serves,
)
from gpucheck.drivers.cupy.install import extra
from gpucheck.drivers.evidence import BuildsReading, PlatformReading, SystemReading
from gpucheck.drivers.readings import KernelReading, NvmlReading, PciDeviceReading
from gpucheck.report.envelope import Answer
from gpucheck.report.errors import ExitCode
from gpucheck.report.formats.table import render
from gpucheck.report.text import View
from tests.fakes.probes import IN_DOCKER, ON_WSL2, FakeProbes, gpu_reading, reading_of
from tests.fakes.reports import wrap
from tests.report.formats.recorded import in_sections, recorded
from tests.sampling import examples

CHOICES = Path(__file__).parents[1] / "data" / "wheel_choices.toml"
CONTENTS = Path(__file__).parents[1] / "data" / "wheels.jsonl"
DOCUMENT = Path(__file__).parents[2] / "docs" / "reference" / "wheels.md"
EVERY = [build for name in NAMES for build in builds_of(name)]
#: The boards of the table, and GPUs that are older than they, or newer.
CAPABILITIES = sorted(
    {row["rates"].partition("-")[0] for row in read_table("peaks")["row"]}
    | {"3.0", "3.5", "3.7", "5.0", "5.2", "6.0", "6.1", "8.7", "10.3", "11.0", "12.1", "13.0"},
    key=lambda text: tuple(map(int, text.split("."))),
)
#: Drivers as they came with a CUDA, one that is too old for all, and none.
DRIVERS = [
    Driver(),
    Driver("390.157", "9.1"),
    *(
        Driver(".".join(map(str, own)), f"{cuda[0]}.{cuda[1]}")
        for cuda, own in MATCHING_DRIVER.items()
    ),
    Driver("610.10", "13.4"),
]
DRIVER_580 = Driver("580.95.05", "13.0")


def cards(*capabilities: str | None) -> tuple[WheelGpu, ...]:
    return tuple(
        WheelGpu(index, f"card {index}", capability)
        for index, capability in enumerate(capabilities)
    )


def chosen(
    *capabilities: str, driver: Driver = DRIVER_580, framework: str = "pytorch", on: str = "x86_64"
) -> WheelChoice:
    return choose(framework, cards(*capabilities), driver, on)


# ------------------------------------------------------------------------------------ the table


def test_the_table_says_what_real_wheels_contain() -> None:
    found = {}
    for line in CONTENTS.read_text().splitlines():
        wheel = json.loads(line)
        machine = "aarch64" if "aarch64" in wheel["wheel"] else "x86_64"
        found[f"{wheel['package']} {wheel['version']}", machine] = wheel
    claimed = {
        (name, on): build for build in EVERY for on in build.machines for name in build.wheels
    }

    assert claimed.keys() == found.keys()
    assert {key: list(build.architectures) for key, build in claimed.items()} == {
        key: wheel["architectures"] for key, wheel in found.items()
    }
    assert not [
        key
        for key, build in claimed.items()
        if found[key]["cuda"] and not found[key]["cuda"].startswith(build.cuda)
    ]


@pytest.mark.parametrize("build", EVERY, ids=lambda build: build.id)
def test_a_row_s_versions_enclose_those_that_were_read(build: Build) -> None:
    first, last = (parse_version(version) or () for version in build.versions)
    read = [parse_version(name.partition(" ")[2]) or () for name in build.wheels]

    assert () < first <= last
    assert all(first <= version and version[: len(last)] <= last for version in read)


@pytest.mark.parametrize("build", EVERY, ids=lambda build: build.id)
def test_a_row_can_be_installed_and_needs_no_older_driver_than_its_cuda(build: Build) -> None:
    (major, *_) = parse_version(build.cuda) or ()
    commands = commands_of(build)

    assert (parse_version(build.driver) or ()) >= MINIMUM_DRIVER[major]
    assert set(build.machines) <= {"x86_64", "aarch64"}
    assert commands["pip"].startswith("pip install ")
    assert commands["uv"].startswith("uv pip install ")
    if build.framework == "pytorch":
        assert commands["pip"].endswith(f"/whl/{build.name}")
        assert commands["uv"].endswith(f" --torch-backend={build.name}")


def test_every_row_is_somebody_s_build() -> None:
    # The build that still has Volta is for those who have a newer GPU beside it.
    several = [*((one,) for one in CAPABILITIES), ("7.0", "12.0")]
    taken = {
        found.build.id
        for name, driver, on in product(NAMES, DRIVERS[::2], ("x86_64", "aarch64"))
        for gpus in several
        if (found := chosen(*gpus, driver=driver, framework=name, on=on)).build
    }

    assert taken == {build.id for build in EVERY}


# ------------------------------------------------------------------------------------ the rule


def choice_of(row: str) -> WheelChoice:
    """Return what is chosen for a row of the table."""
    framework, capabilities, driver, *on = (part.strip() for part in row.split("|"))
    version, cuda, *system = (None if word == "-" else word for word in driver.split())
    known = Driver(version, cuda, windows=bool(system))
    return chosen(
        *capabilities.split(), driver=known, framework=framework, on=on[0] if on else "x86_64"
    )


def show_choice(found: WheelChoice) -> str:
    lines = [f"{found.fit.value}: {found.build.id if found.build else 'no build'}", found.sentence]
    lines += [f"passed over: {each.reason}" for each in found.passed_over]
    lines += [f"left out: {each.gpu.name}: {each.reason}" for each in found.left_out]
    lines += [f"compiled at first use: {each}" for each in found.compiled_at_first_use]
    lines += [f"needs {found.driver_needed}"] if found.driver_needed else []
    lines += found.remedy
    return "".join(f"    {line}\n" for line in lines)


def test_choices_are_as_recorded() -> None:
    table = tomllib.loads(CHOICES.read_text(encoding="utf-8"))
    text = in_sections(
        {
            name: "".join(f"{row}\n{show_choice(choice_of(row))}" for row in rows)
            for name, rows in table.items()
        }
    )

    assert text == recorded("wheel-choices", text)


@pytest.mark.parametrize(
    ("thread", "capabilities", "driver", "on", "version", "name"),
    [
        ("astral-sh/uv#14742", ("6.1",), Driver("570.26", "12.8"), "x86_64", "2.14", "cu126"),
        ("hvoss-tech/AutoForge#59", ("6.1",), Driver(), "x86_64", "2.14", "cu126"),
        ("unslothai/unsloth#7814", ("7.0",), DRIVER_580, "x86_64", "2.14", "cu126"),
        ("unslothai/unsloth#5876", ("7.0", "10.0"), DRIVER_580, "x86_64", "2.10", "cu128"),
        ("open-edge-platform/geti#7106", ("7.0",), Driver(), "x86_64", "2.14", "cu126"),
        ("Nerogar/OneTrainer#755", ("12.0",), DRIVER_580, "x86_64", "2.15", "cu130"),
        ("Nerogar/OneTrainer#1088", ("12.1",), DRIVER_580, "aarch64", "2.15", "cu130"),
        ("Comfy-Org/ComfyUI#16438", ("6.1",), Driver(), "x86_64", "2.14", "cu126"),
    ],
)
def test_a_case_from_a_public_thread_is_answered_as_the_document_says(
    thread: str, capabilities: tuple[str, ...], driver: Driver, on: str, version: str, name: str
) -> None:
    found = chosen(*capabilities, driver=driver, on=on)

    (row,) = [
        line for line in DOCUMENT.read_text().splitlines() if line.startswith(f"| {thread} |")
    ]
    assert found.fit is Fit.ALL
    assert found.build is not None
    assert (found.build.versions[1], found.build.name) == (version, name)
    assert f"| PyTorch {version}, {name}" in row


@pytest.mark.parametrize(
    ("version", "named_by", "said"),
    [
        (
            "3.10.13",
            "VIRTUAL_ENV",
            ["needs Python 3.12 to 3.14, and /v/bin/python, by VIRTUAL_ENV, is 3.10.13."],
        ),
        ("3.12.0", "VIRTUAL_ENV", []),
        ("3.15.0", None, ["needs Python 3.12 to 3.14, and /v/bin/python"]),
        ("3.10.13", "gpucheck", []),
        (None, None, []),
    ],
)
def test_a_python_that_the_build_is_not_published_for_is_said(
    version: str | None, named_by: str | None, said: list[str]
) -> None:
    builds = BuildsReading(python="/v/bin/python", python_version=version, named_by=named_by)
    probes = FakeProbes(
        readings=reading_of(gpu_reading(0), driver_version="580.95.05"), builds_reading=builds
    )

    warnings = advise(probes, ["jax"]).warnings

    found = [each.message for each in warnings if each.code == "python-does-not-fit"]
    assert [words in message for message, words in zip(found, said, strict=True)] == [True] * len(
        said
    )


def test_the_newest_build_that_fits_the_python_is_chosen() -> None:
    def found(version: str | None, named_by: str = "VIRTUAL_ENV") -> WheelChoice:
        builds = BuildsReading(python="/v/bin/python", python_version=version, named_by=named_by)
        readings = reading_of(gpu_reading(0), driver_version="580.95.05")
        answer = advise(FakeProbes(readings=readings, builds_reading=builds), ["onnxruntime"])
        assert "python-does-not-fit" not in {each.code for each in answer.warnings}
        (choice,) = answer.result.choices
        return choice

    newest, older = found("3.12.1"), found("3.10.13")

    assert newest == found(None) == found("3.10.13", named_by="gpucheck")
    assert newest.build is not None
    assert older.build is not None
    assert lacks_python(newest.build, "3.10.13")
    assert not lacks_python(older.build, "3.10.13")
    assert f"needs Python {newest.build.python}" in older.passed_over[0].reason


def test_code_of_the_same_major_version_is_said_to_run_on_a_card() -> None:
    probes = FakeProbes(
        readings=reading_of(gpu_reading(0, compute_capability="8.9"), driver_version="570.10")
    )

    text = render(wrap("wheel", advise(probes, ["pytorch"])), View(width=200))

    assert "sm_80, sm_86, sm_90; sm_86 runs on 8.9 (from the wheel" in text


@pytest.mark.parametrize(
    ("python", "version", "lacking"),
    [
        ("3.9 and 3.10", "3.11.7", True),
        ("3.9 and 3.10", "3.10", False),
        ("3.10 to 3.14", "3.9.1", True),
        (None, "3.8", False),
    ],
)
def test_the_pythons_of_a_row(python: str | None, version: str, *, lacking: bool) -> None:
    assert lacks_python(EVERY[0]._replace(python=python), version) is lacking


@settings(max_examples=examples(60))
@given(
    st.sampled_from(NAMES),
    st.lists(st.sampled_from(CAPABILITIES), min_size=1, max_size=4),
    st.sampled_from(DRIVERS),
    st.sampled_from(["x86_64", "aarch64", None]),
)
def test_no_build_would_have_been_better(
    framework: str, capabilities: list[str], driver: Driver, on: str | None
) -> None:
    gpus = cards(*capabilities)
    found = choose(framework, gpus, driver, on)
    running = [
        build
        for build in builds_of(framework)
        if (on or "x86_64") in build.machines and runs_with(build, driver) is not False
    ]
    reached = {
        build.id: sum(serves(build, each, driver) for each in capabilities) for build in running
    }
    most = max(reached.values(), default=0)

    assert found.sentence
    assert (found.fit is Fit.NONE) is (most == 0)
    if found.build is None:
        assert (found.arguments, found.commands) == ((), {})
        return
    left = [each.gpu for each in found.left_out]
    assert reached[found.build.id] == most == len(gpus) - len(left)
    assert all(
        serves(found.build, gpu.compute_capability or "", driver) is (gpu not in left)
        for gpu in gpus
    )
    assert (found.fit is Fit.ALL) is (not left)
    best = parse_version(found.build.versions[1])
    assert best == max(
        parse_version(each.versions[1]) or () for each in running if reached[each.id] == most
    )


@pytest.mark.parametrize("cuda", [12000, 12090, 13000, 13020])
@pytest.mark.parametrize("capability", ["5.0", "7.0", "7.5", "9.0", "12.0"])
def test_gpucheck_s_own_extra_is_the_same_build(cuda: int, capability: str) -> None:
    major, minor = map(int, capability.split("."))
    driver = Driver(None, f"{cuda // 1000}.{cuda % 1000 // 10}")

    found = chosen(capability, driver=driver, framework="cupy").build

    assert found
    assert extra(cuda, (major, minor)) == found.name.removeprefix("cupy-").removesuffix("x")


# ------------------------------------------------------------------------------- what was read


def asked(probes: FakeProbes, framework: str = "pytorch") -> tuple[Answer, WheelChoices]:
    answer = advise(probes, [framework])
    assert isinstance(answer.result, WheelChoices)
    return answer, answer.result


def system(machine: str | None = "x86_64", tegra: str | None = None) -> SystemReading:
    return SystemReading(platform=PlatformReading(machine=machine, tegra=tegra))


def test_a_machine_that_a_build_serves() -> None:
    readings = reading_of(gpu_reading(0, compute_capability="9.0"), driver_version="580.95.05")
    readings = readings._replace(cuda_driver_version=13000)

    answer, found = asked(FakeProbes(readings=readings, system_reading=system()))

    assert (answer.exit_code, answer.warnings) == (ExitCode.OK, ())
    assert found.driver == DRIVER_580
    assert found.choices[0].build == builds_of("pytorch")[1]


def test_cards_of_the_pci_bus_where_there_is_no_driver() -> None:
    bus = KernelReading(
        pci_devices=(
            PciDeviceReading("0000:01:00.0", "0x10de", "0x1db1"),
            PciDeviceReading("0000:02:00.0", "0x10de", "0xffff"),
        )
    )

    answer, found = asked(
        FakeProbes(readings=NvmlReading(), kernel_reading=bus, system_reading=system())
    )

    assert [gpu.compute_capability for gpu in found.gpus] == ["7.0", None]
    assert found.choices[0].build is not None
    assert found.choices[0].build.id == "pytorch-cu126"
    assert [(notice.code, notice.message) for notice in answer.warnings] == [
        (
            "gpu-not-read",
            "GPU 0000:02:00.0: its compute capability is not known, so it did not count.",
        ),
        (
            "driver-not-read",
            "pytorch: this build needs driver 525.60.13 or newer: it was not read.",
        ),
    ]
    assert answer.exit_code is ExitCode.OK


def test_the_loaded_module_tells_the_driver_where_nvml_does_not() -> None:
    bus = KernelReading(
        pci_devices=(PciDeviceReading("0000:01:00.0", "0x10de", "0x1db1"),),
        module_version="580.95.05",
    )
    probes = FakeProbes(kernel_reading=bus, system_reading=system())

    assert asked(probes)[1].driver == DRIVER_580
    probes.machine = ON_WSL2
    assert asked(probes)[1].driver == Driver("580.95.05", None, windows=True)


def test_windows_and_an_unrecorded_processor_are_told() -> None:
    readings = reading_of(gpu_reading(0, compute_capability="8.9"), driver_version="560.94")
    probes = FakeProbes(readings=readings, machine=ON_WSL2, system_reading=system(None))

    answer, found = asked(probes)

    assert found.driver.windows
    assert [notice.code for notice in answer.warnings] == ["machine-not-recorded"]


def test_in_a_container_the_driver_is_the_host_s() -> None:
    readings = reading_of(gpu_reading(0, compute_capability="9.0"), driver_version="450.80.02")

    _, found = asked(FakeProbes(readings=readings, machine=IN_DOCKER, system_reading=system()))

    assert found.choices[0].remedy[0].startswith("On the host: upgrade the driver: PyTorch 2.14")


def test_one_of_several_frameworks_without_a_build_is_a_bad_answer() -> None:
    readings = reading_of(gpu_reading(0, compute_capability="3.5"), driver_version="580.95.05")

    answer = advise(FakeProbes(readings=readings, system_reading=system()), ["cupy", "pytorch"])

    assert isinstance(answer.result, WheelChoices)
    assert [choice.fit for choice in answer.result.choices] == [Fit.ALL, Fit.NONE]
    assert answer.exit_code is ExitCode.BAD


@pytest.mark.parametrize(
    ("probes", "code", "seen"),
    [
        (FakeProbes(), "nothing-to-judge-by", "There is no GPU here to choose a build for."),
        (
            FakeProbes(
                readings=reading_of(gpu_reading(0, compute_capability=None, pci_device_id=None))
            ),
            "nothing-to-judge-by",
            "The compute capability of 1 GPU is not known, nor which build fits.",
        ),
        (
            FakeProbes(
                readings=reading_of(gpu_reading(0)), system_reading=system(tegra="tegra234")
            ),
            "jetson",
            "the table holds no builds for it.",
        ),
    ],
)
def test_nothing_to_judge_by_is_no_answer(probes: FakeProbes, code: str, seen: str) -> None:
    answer = advise(probes, ["pytorch"])

    assert (answer.result, answer.exit_code) == (None, ExitCode.INCONCLUSIVE)
    assert answer.error is not None
    assert answer.error.code == code
    assert answer.error.message.endswith(seen)
    assert answer.error.remedy
