"""Options of detect: some checks, a number of GPUs, one framework."""

from __future__ import annotations

from typing import Any

import pytest

from gpucheck.data import read_table
from gpucheck.detect.checks import CHECKS
from gpucheck.detect.checks.frameworks import NAMES
from gpucheck.detect.machine import DetectRequest
from gpucheck.detect.model import Catalogue, Detection, Layer, Verdict
from gpucheck.detect.run import BEYOND_NVML, choose_checks, describe_checks, detect
from gpucheck.drivers.evidence import BuildReading, BuildsReading, LaunchReading, TrialReading
from gpucheck.drivers.readings import (
    CudaDeviceReading,
    CudaReading,
    KernelReading,
    NvmlReading,
    PciDeviceReading,
    ProbeFailure,
)
from gpucheck.report.envelope import Answer, CheckStatus
from gpucheck.report.errors import ExitCode, WrongUseError
from tests.fakes.probes import FakeProbes, gpu_reading, healthy, reading_of

KERNEL = KernelReading(
    pci_devices=(PciDeviceReading(pci_bus_id="0000:10:00.0", vendor_id="0x10de", driver="nvidia"),),
    module_loaded=True,
    uvm_loaded=True,
)
CUDA = CudaReading(
    driver_version=13000, device_count=1, devices=(CudaDeviceReading(ordinal=0, uuid_hex="0" * 32),)
)
TORCH = BuildReading(name="pytorch", version="2.13.0", cuda_build="12.6", gpu_build=True)
HUNG = ProbeFailure(code="driver-not-answering", message="no answer within 10 s")


def machine(**changes: object) -> FakeProbes:
    values = {"kernel_reading": KERNEL, "readings": reading_of(gpu_reading(0))}
    return FakeProbes(**(values | {"cuda_reading": CUDA} | changes))  # type: ignore[arg-type]


def ids(request: DetectRequest) -> list[str]:
    return [check.ID for check in choose_checks(request)]


def result(answer: Answer) -> Detection:
    assert isinstance(answer.result, Detection)
    return answer.result


def status(answer: Answer, name: str) -> CheckStatus:
    return next(f.status for f in result(answer).checks if f.id == name)


def test_by_default_all_are_run_in_their_order() -> None:
    assert ids(DetectRequest()) == [check.ID for check in CHECKS]


def test_only_some_in_the_order_of_the_layers() -> None:
    assert ids(DetectRequest(only=("launch", "pci-device"))) == ["pci-device", "launch"]


def test_a_layer_s_name_stands_for_its_checks() -> None:
    health = {check.ID for check in CHECKS if check.LAYER == "health"}

    assert set(ids(DetectRequest(only=("health",)))) == health
    assert health.isdisjoint(ids(DetectRequest(skip=("health",))))


def test_the_framework_that_is_asked_for_is_always_looked_at() -> None:
    assert ids(DetectRequest(only=("nvml",), framework="torch")) == ["nvml", "pytorch"]


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (DetectRequest(only=("pcie",)), "unknown-check"),
        (DetectRequest(skip=("",)), "unknown-check"),
        (DetectRequest(only=("nvml",), skip=("nvml",)), "no-checks"),
        (DetectRequest(framework="caffe"), "unknown-framework"),
    ],
)
def test_what_is_not_known_is_wrong_use(request_: DetectRequest, code: str) -> None:
    with pytest.raises(WrongUseError) as raised:
        detect(machine(), request_)

    assert raised.value.code == code


@pytest.mark.parametrize("skip", [("launch",), ("cuda-driver", "launch")])
def test_without_the_proof_nothing_is_proven(skip: tuple[str, ...]) -> None:
    answer = detect(machine(), DetectRequest(skip=skip))

    assert answer.exit_code is ExitCode.OK
    usable = True if skip == ("launch",) else None
    assert result(answer).usable is usable


def test_chosen_checks_that_are_well_end_with_0() -> None:
    answer = detect(machine(), DetectRequest(only=("pcie-width",)))

    assert (answer.exit_code, result(answer).verdict) == (ExitCode.OK, Verdict.UNKNOWN)


def test_chosen_checks_that_could_not_look_end_with_3() -> None:
    answer = detect(machine(), DetectRequest(only=("xid",)))

    assert answer.exit_code is ExitCode.INCONCLUSIVE


def test_chosen_checks_do_not_touch_what_they_do_not_need() -> None:
    probes = machine()

    detect(probes, DetectRequest(only=("pci-device", "kernel-module")))

    assert set(probes.asked) == {"kernel", "system"}


@pytest.mark.parametrize(("expected", "code"), [(1, ExitCode.OK), (2, ExitCode.BAD)])
def test_expected_gpus(expected: int, code: ExitCode) -> None:
    answer = detect(machine(), DetectRequest(expect_gpus=expected))

    assert answer.exit_code is code
    assert result(answer).usable is True


def test_bad_health_is_1_although_the_gpu_is_usable() -> None:
    from gpucheck.drivers.evidence import HealthReading

    sick = HealthReading(gpus=(healthy(0, ecc_uncorrected_volatile=1),))

    answer = detect(machine(health_reading=sick))

    assert answer.exit_code is ExitCode.BAD
    assert (result(answer).usable, result(answer).first_failure) == (True, "ecc-errors")
    assert result(answer).conclusion.startswith("GPU usable, but unhealthy: GPU 0: 1 memory error")


# ------------------------------------------------------------------------------ frameworks


def with_torch(trial: TrialReading | None = None, **changes: object) -> FakeProbes:
    trials = {} if trial is None else {"pytorch": trial}
    builds = BuildsReading(python="python3", builds=(TORCH,))
    return machine(builds_reading=builds, trials=trials, **changes)


@pytest.mark.parametrize(
    ("trial", "code", "found"),
    [
        (TrialReading(name="pytorch", sees_gpu=True, computed=True), ExitCode.OK, "ok"),
        (TrialReading(name="pytorch", sees_gpu=True, computed=False), ExitCode.BAD, "fail"),
        (TrialReading(name="pytorch", sees_gpu=False, error="no"), ExitCode.BAD, "fail"),
        (TrialReading(name="pytorch", failure=HUNG), ExitCode.INCONCLUSIVE, "unknown"),
    ],
)
def test_one_framework_is_asked_for(trial: TrialReading, code: ExitCode, found: str) -> None:
    answer = detect(with_torch(trial), DetectRequest(framework="pytorch"))

    assert answer.exit_code is code
    assert status(answer, "pytorch") == found


def test_a_framework_that_cannot_only_warns_unless_it_is_asked_for() -> None:
    trial = TrialReading(name="pytorch", sees_gpu=False, error="no")

    answer = detect(with_torch(trial), DetectRequest(deep=True))

    assert answer.exit_code is ExitCode.OK
    assert result(answer).verdict is Verdict.USABLE
    assert status(answer, "pytorch") is CheckStatus.WARN
    assert "pytorch itself" in str(result(answer).checks)


def test_nobody_tries_frameworks_on_a_driver_that_hangs() -> None:
    probes = with_torch(readings=reading_of(failure=HUNG, gpu_count=None))

    answer = detect(probes, DetectRequest(deep=True))

    assert "trials" not in probes.asked
    assert status(answer, "pytorch") is CheckStatus.UNKNOWN
    assert answer.exit_code is ExitCode.INCONCLUSIVE


@pytest.mark.parametrize(("asked", "tried"), [("pytorch", {"pytorch"}), (None, {"pytorch", "jax"})])
def test_who_asks_for_one_framework_waits_for_no_other(asked: str | None, tried: set[str]) -> None:
    builds = BuildsReading(python="python3", builds=(TORCH, TORCH._replace(name="jax")))
    trials = {name: TrialReading(name=name, computed=True) for name in ("pytorch", "jax")}

    answer = detect(
        machine(builds_reading=builds, trials=trials), DetectRequest(framework=asked, deep=True)
    )

    computes = {c.id for c in result(answer).checks if "computes on it" in c.summary}
    assert computes == tried


def test_a_framework_that_is_not_installed() -> None:
    answer = detect(machine(), DetectRequest(framework="jax"))

    assert answer.exit_code is ExitCode.BAD
    assert result(answer).frameworks == ()
    assert "--python PATH" in result(answer).remedy[0]


def test_a_kernel_that_runs_outweighs_everything_below() -> None:
    answer = detect(machine(kernel_reading=KernelReading(pci_devices=(), module_loaded=False)))

    assert result(answer).usable is True
    assert status(answer, "pci-device") is CheckStatus.UNKNOWN
    assert result(answer).conclusion == "GPU usable"


def test_a_kernel_that_does_not_end_leaves_it_open() -> None:
    answer = detect(machine(launch_reading=LaunchReading(failure=HUNG)))

    assert (answer.exit_code, result(answer).usable) == (ExitCode.INCONCLUSIVE, None)


def test_a_healthy_machine_needs_no_table() -> None:
    read_table.cache_clear()

    assert detect(machine()).exit_code is ExitCode.OK
    assert read_table.cache_info().misses == 0


# ------------------------------------------------------------------------------ descriptions


def test_list_of_checks() -> None:
    listed = describe_checks().result

    assert isinstance(listed, Catalogue)
    assert [check.id for check in listed.catalogue] == [check.ID for check in CHECKS]
    assert all(check.question.endswith("?") for check in listed.catalogue)


def test_explanation_of_one() -> None:
    (described,) = describe_checks("row-remapping").result.catalogue  # type: ignore[union-attr]

    assert any("512" in rule for rule in described.about.rules)
    assert described.about.sources


def test_explanation_of_none() -> None:
    with pytest.raises(WrongUseError):
        describe_checks("nobody")


# ------------------------------------------------------------------------------ causes


def test_a_driver_that_stops_answering_about_health_is_warned_of_once() -> None:
    from gpucheck.drivers.evidence import HealthReading

    answer = detect(machine(health_reading=HealthReading(failure=HUNG)))

    assert answer.exit_code is ExitCode.OK
    assert (result(answer).verdict, result(answer).cause) == (
        Verdict.DEGRADED,
        "driver-not-answering",
    )
    assert [notice.code for notice in answer.warnings] == ["gpu-lost"]
    assert status(answer, "ecc-errors") is CheckStatus.SKIP


def test_a_note_is_no_warning_of_the_gpu() -> None:
    cpu_only = TORCH._replace(gpu_build=False, cuda_build=None)
    builds = BuildsReading(python="python3", builds=(cpu_only,))

    answer = detect(machine(builds_reading=builds))

    assert (answer.exit_code, result(answer).verdict) == (ExitCode.OK, Verdict.USABLE)
    assert result(answer).cause == "built-for-cpus"
    assert result(answer).conclusion == (
        "GPU usable; note: PyTorch 2.13.0 cannot use a GPU: it is built for CPUs only"
    )


@pytest.mark.parametrize(
    ("word", "offered"),
    [
        ("pcie", "'pcie-width' or 'pcie-generation' or 'pcie-replays'"),
        ("NVML_", "nvml"),
        ("recovery_action", "recovery-action"),
        ("zzz", None),
        ("", None),
    ],
)
def test_what_was_probably_meant_is_offered(word: str, offered: str | None) -> None:
    with pytest.raises(WrongUseError) as raised:
        describe_checks(word)

    first, *rest = raised.value.remedy
    assert ("Did you mean" in first) == (offered is not None) == bool(rest)
    assert offered is None or offered in first


def quick(probes: FakeProbes, **more: Any) -> Answer:
    return detect(probes, DetectRequest(quick=True, **more))


def test_quick_asks_nvml_and_files_only_and_claims_no_more() -> None:
    probes = machine()

    answer = quick(probes, expect_gpus=1)

    assert answer.exit_code is ExitCode.OK
    found = result(answer)
    assert (found.usable, found.verdict, found.first_failure) == (None, Verdict.UNKNOWN, None)
    assert found.conclusion.startswith("NVML only: ")
    assert found.conclusion.endswith("for 1 GPU; CUDA was not tried")
    assert not {finding.layer for finding in found.checks} & BEYOND_NVML
    assert set(probes.asked) <= {"nvml", "kernel", "system", "health", "kernel_log"}


def test_quick_fails_if_anything_did() -> None:
    answer = quick(machine(), expect_gpus=99)

    assert answer.exit_code is ExitCode.BAD
    assert result(answer).usable is None
    assert result(answer).conclusion == "NVML only: 99 GPUs expected, 1 answer"


def test_quick_is_inconclusive_if_nvml_does_not_answer() -> None:
    answer = quick(machine(readings=NvmlReading(failure=HUNG)))

    assert answer.exit_code is ExitCode.INCONCLUSIVE
    assert result(answer).conclusion == f"NVML only: {HUNG.message}"


@pytest.mark.parametrize("more", [{"deep": True}, {"framework": "torch"}, {"python": "/x"}])
def test_quick_contradicts_what_starts_a_framework(more: dict[str, Any]) -> None:
    with pytest.raises(WrongUseError) as raised:
        quick(machine(), **more)
    assert raised.value.code == "quick-and-more"


def test_an_xid_is_explained_by_its_number() -> None:
    answer = describe_checks("xid-79")

    assert isinstance(answer.result, Catalogue)
    (found,) = answer.result.catalogue
    assert (found.id, found.layer, answer.result.explained) == ("xid-79", "health", True)
    assert found.about.why.startswith("GPU has fallen off the bus")


@pytest.mark.parametrize("name", ["xid-0", "xid-9999", "xid-", "xid-123456"])
def test_an_xid_that_nobody_knows_is_wrong_use(name: str) -> None:
    with pytest.raises(WrongUseError):
        describe_checks(name)


def test_a_cause_is_explained_with_the_checks_that_find_it() -> None:
    answer = describe_checks("installation-broken")

    assert isinstance(answer.result, Catalogue)
    found = answer.result.catalogue
    assert {check.layer for check in found} == {Layer.FRAMEWORK}
    assert len(found) == len(NAMES)
    assert {cause.name for check in found for cause in check.causes} == {"installation-broken"}


def test_an_action_of_the_driver_is_explained_by_its_number() -> None:
    answer = describe_checks("recovery-action-2")

    assert isinstance(answer.result, Catalogue)
    assert [check.id for check in answer.result.catalogue] == ["recovery-action"]
