"""What a limit by the driver takes: each prerequisite alone, and what NVML's refusals point to."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from gpucheck.drivers.host.cgroups import OwnCgroup
from gpucheck.drivers.readings import ProbeFailure
from gpucheck.memlimit.hard import (
    HardFacts,
    choose_place,
    error_of,
    missing_prerequisites,
    refused_limit,
)
from gpucheck.report.envelope import Failure

GROUP = Path("/sys/fs/cgroup/user.slice/gpucheck-1-1")
ALL_WELL = HardFacts(
    os_name="Ubuntu 24.04.3 LTS",
    kernel="6.8.0-71-generic",
    driver_version="615.71.09",
    is_root=True,
    group=OwnCgroup(version=2, folder=Path("/sys/fs/cgroup/user.slice")),
    place="own",
    python="/venv/bin/python",
    words=("/venv/bin/gpucheck", "memlimit", "8GiB", "--hard", "--", "my program"),
    search_path="/venv/bin:/usr/bin",
)


def failure(code: str) -> ProbeFailure:
    return ProbeFailure(code=code, message=f"said {code}")


def test_nothing_is_missing() -> None:
    assert missing_prerequisites(ALL_WELL) == []


@pytest.mark.parametrize("version", [None, "", "614.99.99", "580.95.05", "R615"])
def test_an_older_driver(version: str | None) -> None:
    (found,) = missing_prerequisites(replace(ALL_WELL, driver_version=version))

    assert found.code == "no-hard-limit-driver"
    said = f"the driver is {version}" if version else "the driver's version is unknown"
    assert found.message == f"{said}, and 615 or newer is needed"
    assert found.remedy[0].endswith("sudo apt install nvidia-open")


@pytest.mark.parametrize(
    ("os_name", "step"),
    [
        ("Debian GNU/Linux 13", "sudo apt install nvidia-open"),
        ("Red Hat Enterprise Linux 10.1", "sudo dnf install nvidia-open"),
        ("SUSE Linux Enterprise Server 16", "sudo zypper install nvidia-open"),
        ("Arch Linux", "Install NVIDIA driver 615 or newer, then reboot."),
    ],
)
def test_the_driver_of_each_system(os_name: str, step: str) -> None:
    (found,) = missing_prerequisites(replace(ALL_WELL, driver_version="570.1", os_name=os_name))

    assert found.remedy[0].endswith(step)


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("binding-too-old", "binding"),
        ("function-not-found", "function"),
        ("not-found", None),
        ("not-supported", None),
        ("gpu-is-lost", "nvml"),
        ("driver-not-answering", "nvml"),
    ],
)
def test_what_a_first_question_to_nvml_shows(code: str, expected: str | None) -> None:
    found = missing_prerequisites(replace(ALL_WELL, failure=failure(code)))

    assert [each.code for each in found] == ([f"no-hard-limit-{expected}"] if expected else [])


def test_an_older_binding_is_not_an_older_driver() -> None:
    (found,) = missing_prerequisites(replace(ALL_WELL, failure=failure("binding-too-old")))

    assert found.remedy[0] == "/venv/bin/python -m pip install -U 'nvidia-ml-py>=13.615'"


@pytest.mark.parametrize(("version", "said"), [(1, "is version 1"), (None, "is not mounted")])
def test_another_version_of_cgroups(version: int | None, said: str) -> None:
    group = OwnCgroup(version=version)

    (found,) = missing_prerequisites(replace(ALL_WELL, group=group, place=None))

    assert found.code == "no-hard-limit-cgroup"
    assert said in found.message


@pytest.mark.parametrize(
    ("os_name", "step"), [("Rocky Linux 8.10", "sudo grubby"), ("Ubuntu 20.04", "sudo update-grub")]
)
def test_each_system_switches_version_2_on_in_its_way(os_name: str, step: str) -> None:
    facts = replace(ALL_WELL, group=OwnCgroup(version=1), place=None, os_name=os_name)

    (found,) = missing_prerequisites(facts)

    assert step in found.remedy[0]
    assert "systemd.unified_cgroup_hierarchy=1" in found.remedy[0]


def test_a_user_gets_the_whole_command() -> None:
    (found,) = missing_prerequisites(replace(ALL_WELL, is_root=False))

    command = "/venv/bin/gpucheck memlimit 8GiB --hard -- 'my program'"
    assert found.remedy[0] == f"sudo -E env PATH=/venv/bin:/usr/bin {command}"


def test_a_place_is_missing_only_for_those_who_may_make_one() -> None:
    problem = Failure("delegation", "no group may be made", ("step",))
    facts = replace(ALL_WELL, place=problem)

    assert missing_prerequisites(facts) == [problem]
    (found,) = missing_prerequisites(replace(facts, is_root=False))
    assert found.code == "no-hard-limit-root"


@pytest.mark.parametrize(("indices", "said"), [((1,), "GPU 1 is"), ((0, 2), "GPUs 0,2 are")])
def test_mig(indices: tuple[int, ...], said: str) -> None:
    (found,) = missing_prerequisites(replace(ALL_WELL, mig_indices=indices))

    assert found.message.startswith(said)


@pytest.mark.parametrize(
    ("code", "kernel", "expected"),
    [
        ("no-permission", "6.8.0", "root"),
        ("not-found", "6.14.0", "delegation"),
        ("not-supported", "6.13.9", "kernel"),
        ("not-supported", "6.14.0", "kernel"),
        ("not-supported", "unknown", "kernel"),
        ("function-not-found", "6.8.0", "function"),
        ("invalid-argument", "6.8.0", "nvml"),
        ("unknown", "6.8.0", "nvml"),
    ],
)
def test_what_a_refused_limit_points_to(code: str, kernel: str, expected: str) -> None:
    found = refused_limit(replace(ALL_WELL, kernel=kernel), failure(code), GROUP)

    assert found.code == f"no-hard-limit-{expected}"
    # Only a kernel before dmem is to blame for its age.
    assert ("(6.14)" in found.message) == (code == "not-supported" and kernel != "6.14.0")


def test_dmem_is_switched_on_for_the_group_above() -> None:
    found = refused_limit(ALL_WELL, failure("not-found"), GROUP)

    assert (
        found.remedy[0] == "echo +dmem | sudo tee /sys/fs/cgroup/user.slice/cgroup.subtree_control"
    )


def test_the_error_names_all_and_ends_with_the_way_that_needs_none() -> None:
    found = missing_prerequisites(replace(ALL_WELL, driver_version="580.1", is_root=False))

    error = error_of(found, "8GiB", ("my program",))

    assert error.code == "no-hard-limit-driver"
    assert "615 or newer is needed; only root may" in error.message
    assert len(error.remedy) == 3
    assert error.remedy[-1].endswith("gpucheck memlimit 8GiB -- 'my program'")


# ------------------------------------------------------------------------ where the group is made


@pytest.fixture
def root(tmp_path: Path) -> Path:
    mount = tmp_path / "sys/fs/cgroup"
    (mount / "own").mkdir(parents=True)
    (mount / "cgroup.controllers").write_text("cpu\n")
    return tmp_path


def reading(root: Path) -> OwnCgroup:
    return OwnCgroup(version=2, folder=root / "sys/fs/cgroup/own")


def with_dmem(root: Path, *enabled: str) -> None:
    mount = root / "sys/fs/cgroup"
    (mount / "cgroup.controllers").write_text("cpu dmem\n")
    for name in enabled:
        (mount / name / "cgroup.subtree_control").write_text("dmem\n")


def test_without_systemd_a_writable_group_is_ours(root: Path) -> None:
    assert choose_place(root, reading(root), "/usr/bin/systemd-run") == "own"


def test_under_systemd_a_scope_is_made(root: Path) -> None:
    (root / "run/systemd/system").mkdir(parents=True)

    assert choose_place(root, reading(root), "/usr/bin/systemd-run") == "scope"
    found = choose_place(root, reading(root), None)
    assert isinstance(found, Failure)
    own = root / "sys/fs/cgroup/own"
    assert found.message == f"no group may be made below {own}: it is not delegated to us"
    assert "systemd-run --scope -p Delegate=yes" in found.remedy[0]


def test_a_group_that_systemd_delegates_is_ours(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (root / "run/systemd/system").mkdir(parents=True)
    above = root / "sys/fs/cgroup/own"
    own = above / "below"
    own.mkdir()

    def getxattr(path: Path, name: str) -> bytes:
        if (path, name) == (above, "trusted.delegate"):
            return b"1"
        raise OSError

    monkeypatch.setattr(os, "getxattr", getxattr)

    assert choose_place(root, OwnCgroup(version=2, folder=own), None) == "own"
    beside = OwnCgroup(version=2, folder=above.parent)
    assert isinstance(choose_place(root, beside, None), Failure)


def test_with_dmem_the_group_above_must_have_it_on(root: Path) -> None:
    with_dmem(root)
    found = choose_place(root, reading(root), None)
    assert isinstance(found, Failure)
    assert found.remedy[0].endswith("own/cgroup.subtree_control")

    (root / "run/systemd/system").mkdir(parents=True)
    found = choose_place(root, reading(root), "systemd-run")
    assert isinstance(found, Failure)
    assert found.remedy[0].endswith("sys/fs/cgroup/cgroup.subtree_control")

    with_dmem(root, ".")
    assert choose_place(root, reading(root), "systemd-run") == "scope"


def test_dmem_that_is_on_for_our_children(root: Path) -> None:
    with_dmem(root, "own")

    assert choose_place(root, reading(root), None) == "own"


def test_a_group_outside_of_what_is_mounted(root: Path) -> None:
    (root / ".dockerenv").touch()

    found = choose_place(root, OwnCgroup(version=2), None)

    assert isinstance(found, Failure)
    assert "below /sys/fs/cgroup: it is not delegated" in found.message
    assert "docker run --privileged" in found.remedy[0]
