"""Choosing and holding in one go, from the answer of the machine to the answer of the command."""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import subprocess
import threading
from pathlib import Path

import pytest

import gpucheck
from gpucheck.drivers.evidence import HealthReading
from gpucheck.drivers.readings import (
    CudaDeviceReading,
    CudaReading,
    MigReading,
    NvmlReading,
    ProbeFailure,
    ProcessReading,
)
from gpucheck.inventory.visibility import digits_of
from gpucheck.place.claim_store import ClaimStore, Target, list_claims
from gpucheck.place.claims import ClaimOptions, open_claims, open_store
from gpucheck.place.lease import (
    explained_errors,
    find_gpus,
    hold_devices,
    lease_best,
    lease_named,
    request_of,
    suitable_gpus,
    targets_of,
)
from gpucheck.place.lock_files import DIRECTORY_VARIABLE
from gpucheck.place.model import PlacedDevice, Placement
from gpucheck.place.selection import ALLOW_BUSY_GPUS, Preference, SelectionRequest
from gpucheck.report.envelope import Answer, Failure
from gpucheck.report.errors import (
    BadAnswerError,
    ExitCode,
    GpucheckError,
    InconclusiveError,
    MissingError,
    WrongUseError,
)
from tests.fakes.gpus import row
from tests.fakes.probes import FakeProbes, gpu_reading, healthy, reading_of

HOLD = ClaimOptions(command="train")
LOOK = ClaimOptions(hold=False)


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    return {DIRECTORY_VARIABLE: str(tmp_path / "claims")}


def machine(count: int = 2) -> FakeProbes:
    return FakeProbes(readings=reading_of(*(gpu_reading(index) for index in range(count))))


def placement_of(answer: Answer) -> Placement:
    assert isinstance(answer.result, Placement)
    return answer.result


def test_a_chosen_gpu_is_held_for_the_command(environment: dict[str, str]) -> None:
    lease = lease_best(SelectionRequest(), HOLD, machine(), environment)
    placement = placement_of(lease.answer)

    assert placement.environment["CUDA_VISIBLE_DEVICES"] == placement.devices[0].uuid
    assert placement.environment["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    assert placement.environment["GPUCHECK_CLAIM_IDS"]
    assert [claim.uuid for claim in placement.claims] == [placement.devices[0].uuid]
    assert len(placement.candidates) == 2

    other = lease_best(SelectionRequest(), HOLD, machine(), environment)
    assert placement_of(other.answer).devices[0].uuid != placement.devices[0].uuid

    third = lease_best(SelectionRequest(), HOLD, machine(), environment)
    assert third.answer.exit_code is ExitCode.BAD
    assert third.answer.error is not None
    assert "held by" in third.answer.error.remedy[0]
    assert len(placement_of(third.answer).candidates) == 2
    lease.close()
    other.close()


def test_a_busy_gpu_that_was_left_out_has_advice(environment: dict[str, str]) -> None:
    busy = gpu_reading(0, processes=(ProcessReading(pid=7, type="compute"),))
    probes = FakeProbes(readings=reading_of(busy, gpu_reading(1)))

    some = lease_best(SelectionRequest(), LOOK, probes, environment)
    all_free = lease_best(SelectionRequest(), LOOK, machine(), environment)

    assert placement_of(some.answer).advice == (ALLOW_BUSY_GPUS,)
    assert placement_of(all_free.answer).advice == ()


def test_a_waiter_does_not_keep_a_process_to_ask_the_driver(environment: dict[str, str]) -> None:
    probes = machine()
    options = ClaimOptions(wait=True)

    lease_best(SelectionRequest(), options, probes, environment).close()

    assert probes.asked.count("close") == probes.asked.count("nvml")


@pytest.mark.parametrize(
    ("code", "error"),
    [("library-not-found", MissingError), ("driver-not-answering", InconclusiveError)],
)
def test_no_machine_no_choice(
    environment: dict[str, str], code: str, error: type[Exception]
) -> None:
    broken = FakeProbes(readings=NvmlReading(failure=ProbeFailure(code=code, message="so")))

    with pytest.raises(error):
        lease_best(SelectionRequest(), HOLD, broken, environment)


def test_an_invalid_request_asks_no_driver(environment: dict[str, str]) -> None:
    probes = machine()

    with pytest.raises(WrongUseError):
        lease_best(SelectionRequest(count=0), HOLD, probes, environment)

    assert probes.asked == []


def test_the_limit_of_the_cgroup_on_a_cards_memory_is_in_the_answer(
    environment: dict[str, str],
) -> None:
    capped = gpu_reading(0, memory_limit_bytes=2**30, memory_limit_source="dmem.max")
    probes = FakeProbes(readings=reading_of(capped, gpu_reading(1)))

    chosen = lease_best(SelectionRequest(), LOOK, probes, environment)
    named = lease_named(["/gpu:0"], LOOK, probes, environment, soft=False)

    for lease in (chosen, named):
        (cap,) = placement_of(lease.answer).memory_limits
        assert (cap.index, cap.memory_limit_bytes, cap.memory_limit_source) == (
            0,
            2**30,
            "dmem.max",
        )


def test_another_users_directory_is_a_warning(
    environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ClaimStore, "warning", lambda _: "it belongs to bob")

    chosen = lease_best(SelectionRequest(), LOOK, machine(), environment)
    named = lease_named(["/gpu:0"], HOLD, machine(), environment, soft=False)

    for lease in (chosen, named):
        (notice,) = [item for item in lease.answer.warnings if item.message == "it belongs to bob"]
        assert notice.code == "claims-directory-owner"
        lease.close()


def test_a_scheduler_has_given_them_away(environment: dict[str, str]) -> None:
    environment["SLURM_JOB_ID"] = "7"
    lease = lease_best(SelectionRequest(), HOLD, machine(), environment)

    assert lease.locks == ()
    assert [notice.code for notice in lease.answer.warnings] == ["no-claim-in-allocation"]
    assert open_store(ClaimOptions(claim=True), environment) is not None
    assert open_store(ClaimOptions(claim=False), {}) is None


@pytest.mark.parametrize("name", ["relative", "/proc/none"])
def test_where_claims_cannot_be_made_a_caller_can_do_without(name: str) -> None:
    environment = {DIRECTORY_VARIABLE: name}

    with pytest.raises(MissingError, match="Claims are not available") as chosen:
        lease_best(SelectionRequest(), HOLD, machine(), environment)
    with pytest.raises(MissingError, match="Claims are not available") as named:
        lease_named(["/gpu:0"], HOLD, machine(), environment, soft=False)
    with pytest.raises(MissingError, match="Claims are not available") as shown:
        open_claims(environment).try_turn()

    assert chosen.value.remedy == named.value.remedy
    assert chosen.value.remedy == (*shown.value.remedy, "Or run without claims: --no-claim.")


@pytest.mark.parametrize(
    ("missing", "said"),
    [
        ("There is no NVIDIA GPU in this machine.", "there is no NVIDIA GPU in this machine."),
        ("NVML cannot be loaded.", "NVML cannot be loaded."),
    ],
)
def test_a_missing_device_is_explained_by_the_missing_gpu(missing: str, said: str) -> None:
    failure = Failure(code="none", message=missing, remedy=("Look.",))

    with pytest.raises(BadAnswerError) as caught, explained_errors(failure):
        raise BadAnswerError(code="no-device", message="No device /gpu:1.", remedy=("Then this.",))

    assert caught.value.message == f"No device /gpu:1: {said}"
    assert caught.value.remedy == ("Look.", "Then this.")


def test_without_a_driver_it_is_not_the_claims_that_are_missing(
    environment: dict[str, str],
) -> None:
    failure = ProbeFailure(code="library-not-found", message="no NVML")

    with pytest.raises(MissingError) as caught:
        lease_best(
            SelectionRequest(), HOLD, FakeProbes(readings=NvmlReading(failure=failure)), environment
        )

    assert not any("--no-claim" in step for step in caught.value.remedy)


class TestNamed:
    def test_a_named_card_is_held(self, environment: dict[str, str]) -> None:
        specs = ["/gpu:0", "/cpu:0", "0"]
        first = lease_named(specs, HOLD, machine(), environment, soft=False)
        assert len(placement_of(first.answer).claims) == 1

        with pytest.raises(BadAnswerError, match=r"is not available: .*: held by") as caught:
            lease_named(specs, HOLD, machine(), environment, soft=False)
        assert "--wait" in caught.value.remedy[0]
        first.close()

    def test_a_card_that_is_missing_beside_others_is_missing(
        self, environment: dict[str, str]
    ) -> None:
        with pytest.raises(GpucheckError, match="/gpu:7"):
            lease_named(["/gpu:7"], HOLD, machine(), environment, soft=False)

    def test_soft_placement_warns_of_the_driver_that_it_does_without(
        self, environment: dict[str, str]
    ) -> None:
        failure = ProbeFailure(code="library-not-found", message="there is no NVML")
        probes = FakeProbes(readings=NvmlReading(failure=failure))

        soft = lease_named(["/gpu:0"], HOLD, probes, environment, soft=True)
        cpu = lease_named(["/cpu:0"], HOLD, probes, environment, soft=True)

        assert [device.soft for device in placement_of(soft.answer).devices] == [True]
        assert "nvml-library-not-found" in {notice.code for notice in soft.answer.warnings}
        assert cpu.answer.warnings == ()

    def test_the_cpu_needs_no_claim(self, environment: dict[str, str]) -> None:
        assert lease_named(["/cpu:0"], HOLD, machine(), environment, soft=False).locks == ()
        assert not ClaimStore(Path(environment[DIRECTORY_VARIABLE])).exists()

    def test_the_targets_of_devices(self) -> None:
        def placed(index: int | None, kind: str = "GPU", **changes: object) -> PlacedDevice:
            return PlacedDevice(spec="", resolved="", kind=kind, index=index, **changes)  # type: ignore[arg-type]

        devices = (
            placed(0, uuid="GPU-0"),
            placed(0, uuid="GPU-0"),
            placed(1, uuid="MIG-1", mig_instance=True),
            placed(2, uuid=None),
            placed(None, "CPU"),
        )
        gpus = [row(index) for index in range(3)]

        assert targets_of(devices, gpus) == (
            Target(card="GPU-0"),
            Target(card="GPU-1", instance="MIG-1"),
        )
        assert targets_of(devices[:1], [row(0, uuid=None)]) == ()

    def test_only_the_named_gpus_have_warnings(self, environment: dict[str, str]) -> None:
        rows = (gpu_reading(0), gpu_reading(1, compute_mode="prohibited"))
        probes = FakeProbes(readings=reading_of(*rows))
        found = {
            spec: lease_named([spec], LOOK, probes, environment, soft=False).answer.warnings
            for spec in ("/gpu:0", "/gpu:1")
        }

        assert [notice.code for notice in found["/gpu:1"]].count("compute-mode-prohibited") == 1
        assert "compute-mode-prohibited" not in [notice.code for notice in found["/gpu:0"]]

    def test_an_order_that_cuda_contradicts_is_refused(self, environment: dict[str, str]) -> None:
        probes = machine()
        first = CudaDeviceReading(ordinal=0, uuid_hex=digits_of(probes.readings.gpus[0].uuid or ""))
        probes.cuda_reading = CudaReading(device_count=1, devices=(first,))

        with pytest.raises(InconclusiveError, match="are not certain"):
            lease_named(["/gpu:0"], LOOK, probes, environment, soft=False)

    def test_two_share_it(self, environment: dict[str, str]) -> None:
        options = ClaimOptions(share=2)
        both = [
            lease_named(["/gpu:1"], options, machine(), environment, soft=False) for _ in range(2)
        ]

        store = ClaimStore(Path(environment[DIRECTORY_VARIABLE]))
        assert [claim.slot for claim in list_claims(store).claims] == [0, 1]
        for lease in both:
            lease.close()


LOST = ProbeFailure(code="gpu-is-lost", message="the GPU is lost", library_code=15)
HUNG = ProbeFailure(code="driver-not-answering", message="it did not answer in time")


def unwell(index: int, **changes: object) -> FakeProbes:
    """Return three cards of which one has something."""
    probes = machine(3)
    health = [healthy(n, **(changes if n == index else {})) for n in range(3)]
    probes.health_reading = HealthReading(gpus=tuple(health))
    return probes


def chosen(probes: FakeProbes, environment: dict[str, str], count: int) -> tuple[Answer, list[int]]:
    answer = lease_best(SelectionRequest(count=count), LOOK, probes, environment).answer
    return answer, [device.index or 0 for device in placement_of(answer).devices]


class TestCondition:
    """A card that detect finds something wrong with is given last, or not at all."""

    @pytest.mark.parametrize(
        "changes",
        [
            {"remapped_rows_failed": True},
            {"ecc_sram_threshold_exceeded": True},
            {"failure": LOST},
        ],
        ids=str,
    )
    def test_one_to_be_replaced_is_refused(
        self, environment: dict[str, str], changes: dict[str, object]
    ) -> None:
        answer, two = chosen(unwell(0, **changes), environment, 2)
        assert (two, answer.warnings) == ([1, 2], ())

        answer, three = chosen(unwell(0, **changes), environment, 3)
        assert (three, answer.exit_code) == ([], ExitCode.BAD)
        assert answer.error is not None
        assert "it is unfit for work" in answer.error.remedy[0]

    @pytest.mark.parametrize(
        "changes",
        [{"ecc_uncorrected_volatile": 7}, {"recovery_action": 1}, {"temperature_slowdown_c": 30}],
        ids=str,
    )
    def test_an_unwell_one_is_the_last(
        self, environment: dict[str, str], changes: dict[str, object]
    ) -> None:
        answer, two = chosen(unwell(0, **changes), environment, 2)
        assert (two, answer.warnings) == ([1, 2], ())
        assert "; a last resort: " in placement_of(answer).candidates[0].reason

        answer, three = chosen(unwell(0, **changes), environment, 3)
        assert three == [0, 1, 2]
        (notice,) = answer.warnings
        assert notice.code == "gpu-unwell"
        assert "GPU 0 was chosen only because" in notice.message

    def test_an_unread_condition_is_a_warning(self, environment: dict[str, str]) -> None:
        probes = machine(1)
        probes.health_reading = HealthReading(failure=HUNG)

        answer, found = chosen(probes, environment, 1)

        assert found == [0]
        assert [notice.code for notice in answer.warnings] == ["condition-unknown"]


def test_a_silent_card_does_not_take_the_others_away(environment: dict[str, str]) -> None:
    rows = (gpu_reading(0), gpu_reading(1, uuid=None, failure=HUNG), gpu_reading(2))
    readings = NvmlReading(gpu_count=3, gpus=rows, failure=HUNG)
    probes = FakeProbes(readings=readings)

    answer, found = chosen(probes, environment, 2)

    assert found == [0, 2]
    assert (answer.exit_code, answer.error) == (ExitCode.OK, None)
    assert any("CUDA may hang on this one too" in notice.message for notice in answer.warnings)
    assert "cuda" not in probes.asked


def test_two_cards_with_one_uuid_are_not_given(environment: dict[str, str]) -> None:
    rows = (gpu_reading(0), gpu_reading(1, uuid=gpu_reading(0).uuid), gpu_reading(2))
    probes = FakeProbes(readings=reading_of(*rows))

    answer, found = chosen(probes, environment, 1)
    assert found == [2]
    assert "GPUs 0 and 1 report the same UUID" in placement_of(answer).candidates[0].reason

    answer, found = chosen(probes, environment, 2)
    assert found == []


@pytest.mark.parametrize(
    ("prefer", "count", "reason"),
    [
        (Preference.NUMA, 1, "which CPUs are near"),
        (Preference.NUMA, 2, "which CPUs are near"),
        (Preference.NVLINK, 2, "no NVLink connects GPU 0 and GPU 1"),
        (Preference.NVLINK, 1, "a single GPU has no link"),
    ],
)
def test_an_unmet_preference_is_a_warning(
    environment: dict[str, str], prefer: Preference, count: int, reason: str
) -> None:
    request = SelectionRequest(count=count, prefer=prefer)

    answer = lease_best(request, LOOK, machine(), environment).answer

    (notice,) = [item for item in answer.warnings if item.code == "preference-not-honoured"]
    assert reason in notice.message


@pytest.mark.parametrize(("driver", "found"), [("550.54.15", 0), ("570.86.10", 2)])
def test_before_driver_570_a_program_sees_one_mig_instance(
    environment: dict[str, str], driver: str, found: int
) -> None:
    """The version is that of the machine that was looked at."""
    instances = tuple(
        MigReading(
            uuid=f"MIG-0000000{number}-0000-0000-0000-000000000000",
            gpu_instance_id=number,
            compute_instance_id=0,
            memory_total_bytes=10 << 30,
            memory_used_bytes=0,
        )
        for number in (1, 2)
    )
    card = gpu_reading(0, mig_enabled=True, mig_instances=instances)
    probes = FakeProbes(readings=reading_of(card, driver_version=driver))

    answer = lease_best(SelectionRequest(count=2), HOLD, probes, environment).answer

    assert len(placement_of(answer).devices) == found
    assert (answer.exit_code is ExitCode.OK) is (found == 2)
    reasons = {candidate.reason for candidate in placement_of(answer).candidates}
    assert any("only one MIG instance" in (reason or "") for reason in reasons) is (found == 0)


# ---------------------------------------------------------------------------------- Python


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ClaimStore:
    for name in ("SLURM_JOB_ID", "GPUCHECK_CLAIM_IDS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(DIRECTORY_VARIABLE, str(tmp_path / "claims"))
    return ClaimStore(tmp_path / "claims")


def test_chosen_ones_are_held_until_the_block_ends(store: ClaimStore) -> None:
    with hold_devices((), SelectionRequest(count=2), HOLD, soft=False, probes=machine()) as devices:
        held = list_claims(store).claims
        assert {claim.uuid for claim in held} == {device.uuid for device in devices}
        assert held[0].command

        with (
            pytest.raises(BadAnswerError, match="1 GPU was requested, but none fits"),
            hold_devices((), SelectionRequest(), HOLD, soft=False, probes=machine()),
        ):
            pass

    assert list_claims(store).claims == ()


def test_an_error_in_the_block_frees_them(store: ClaimStore) -> None:
    def work() -> None:
        with hold_devices(("/gpu:1",), None, HOLD, soft=False, probes=machine()) as (device,):
            assert device.cuda_index == 1
            raise KeyError(device.uuid)

    with pytest.raises(KeyError):
        work()

    assert list_claims(store).claims == ()


def test_a_block_inside_a_block_gets_other_gpus(store: ClaimStore) -> None:
    with (
        hold_devices((), SelectionRequest(), HOLD, soft=False, probes=machine()) as (outer,),
        hold_devices((), SelectionRequest(), HOLD, soft=False, probes=machine()) as (inner,),
    ):
        assert outer.uuid != inner.uuid

    assert list_claims(store).claims == ()


def test_threads_get_different_gpus(store: ClaimStore) -> None:
    wait = dataclasses.replace(HOLD, wait=True)
    present: list[str | None] = []
    most: list[int] = []

    def work() -> None:
        with hold_devices((), SelectionRequest(), wait, soft=False, probes=machine()) as (device,):
            present.append(device.uuid)
            most.append(present.count(device.uuid))
            present.remove(device.uuid)

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert most == [1] * 6
    assert list_claims(store).claims == ()


@pytest.mark.parametrize("wait", [False, True])
def test_no_descriptor_is_left_open(store: ClaimStore, wait: bool) -> None:
    options = dataclasses.replace(HOLD, wait=wait, timeout_s=0.0 if wait else None)

    def work() -> None:
        with hold_devices((), SelectionRequest(), options, soft=False, probes=machine()):
            with (
                pytest.raises(BadAnswerError),
                hold_devices((), SelectionRequest(count=2), options, soft=False, probes=machine()),
            ):
                pass
            with (
                pytest.raises(KeyError),
                hold_devices(("/gpu:1",), None, options, soft=False, probes=machine()),
            ):
                raise KeyError

    work()
    before = len(list(Path("/proc/self/fd").iterdir()))
    work()

    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_what_was_started_in_the_block_does_not_hold_on(store: ClaimStore) -> None:
    with hold_devices((), SelectionRequest(), HOLD, soft=False, probes=machine()):
        child = subprocess.Popen(["sleep", "600"])
    try:
        assert list_claims(store).claims == ()
    finally:
        child.kill()
        child.wait()


def test_a_function_can_be_decorated(store: ClaimStore) -> None:
    @hold_devices((), SelectionRequest(count=2), HOLD, soft=False, probes=machine())
    def work() -> int:
        return len(list_claims(store).claims)

    assert [work(), work()] == [2, 2]
    assert list_claims(store).claims == ()


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (ClaimOptions(share=0), "share takes 1 to 256"),
        (ClaimOptions(timeout_s=1), "needs wait=True"),
        (ClaimOptions(wait=True, timeout_s=-1), "takes seconds from 0 .* not -1"),
        (ClaimOptions(wait=True, timeout_s=float("nan")), "takes seconds from 0 .* not nan"),
    ],
)
def test_invalid_options(store: ClaimStore, options: ClaimOptions, problem: str) -> None:
    with (
        pytest.raises(WrongUseError, match=problem),
        hold_devices(("/gpu:0",), None, options, soft=False, probes=machine()),
    ):
        pass
    assert not store.exists()


def test_the_cpu_is_never_held(store: ClaimStore) -> None:
    failure = ProbeFailure(code="library-not-found", message="none")
    probes = FakeProbes(readings=NvmlReading(failure=failure))

    with hold_devices(("/gpu:0",), None, HOLD, soft=True, probes=probes) as (device,):
        assert device.kind == "CPU"
    assert not store.exists()


def test_a_missing_driver_is_the_error_itself(store: ClaimStore) -> None:
    failure = ProbeFailure(code="library-not-found", message="none")
    probes = FakeProbes(readings=NvmlReading(failure=failure))

    with (
        pytest.raises(MissingError) as caught,
        hold_devices(("/gpu:0",), None, HOLD, soft=False, probes=probes),
    ):
        pass
    missing = find_gpus(probes).error
    assert missing is not None
    assert (caught.value.code, caught.value.message) == (missing.code, missing.message)
    assert caught.value.remedy[: len(missing.remedy)] == missing.remedy
    assert "Only /cpu:0 exists here" in caught.value.remedy[-1]


def test_a_hung_driver_raises(store: ClaimStore) -> None:
    failure = ProbeFailure(code="driver-not-answering", message="none")
    probes = FakeProbes(readings=NvmlReading(failure=failure))

    with (
        pytest.raises(InconclusiveError),
        hold_devices(("/gpu:0",), None, HOLD, soft=True, probes=probes),
    ):
        pass
    assert "close" in probes.asked


@pytest.mark.parametrize(
    ("specs", "options"),
    [
        (("/gpu:0",), {"count": 1}),
        ((), {"count": 0}),
        ((), {"count": None, "prefer": "best"}),
        ((), {"count": None, "min_free": "much"}),
        ((), {"count": None, "share": 0}),
    ],
)
def test_wrong_use(specs: tuple[str, ...], options: dict[str, object]) -> None:
    with pytest.raises(WrongUseError):
        request_of(specs, options)


@pytest.mark.parametrize(
    ("specs", "options"),
    [
        ((0,), {}),
        ((None,), {}),
        ((), {"count": "2"}),
        ((), {"min_free": 8}),
        ((), {"max_utilization_percent": "10"}),
        ((), {"min_compute_capability": 9.0}),
        ((), {"name": 7}),
        ((), {"exclude": 0}),
        ((), {"exclude": (0,)}),
        ((), {"share": 1.5}),
    ],
    ids=str,
)
def test_an_argument_of_another_type(specs: tuple[str, ...], options: dict[str, object]) -> None:
    with pytest.raises(WrongUseError, match=r"takes .*, not "):
        request_of(specs, {"count": None, **options})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "wrong", [{"share": 1.5}, {"timeout_s": "1", "wait": True}, {"wait": 1}], ids=str
)
def test_a_claim_option_of_another_type(store: ClaimStore, wrong: dict[str, object]) -> None:
    options = ClaimOptions(**wrong)  # type: ignore[arg-type]
    with (
        pytest.raises(WrongUseError, match=r"takes .*, not "),
        hold_devices(("/gpu:0",), None, options, soft=False, probes=machine()),
    ):
        pass


def test_without_anything_one_gpu_is_chosen() -> None:
    request = request_of((), {"count": None})

    assert request is not None
    assert request.count == 1
    assert request_of(("/gpu:0",), {"count": None}) is None


def test_the_public_function_has_the_options_of_the_command() -> None:
    options = set(inspect.signature(gpucheck.place).parameters)

    assert options >= {"specs", "count", "min_free", "prefer", "share", "wait", "timeout_s"}


def test_which_gpus_could_fit_once_they_are_free(tmp_path: Path) -> None:
    busy = gpu_reading(1)._replace(processes=(ProcessReading(pid=7, type="compute"),))
    probes = FakeProbes(readings=reading_of(gpu_reading(0), busy))

    environment = {"GPUCHECK_CLAIMS_DIR": str(tmp_path / "claims")}
    every = suitable_gpus(SelectionRequest(count=1), probes, environment)
    held = lease_best(SelectionRequest(count=1), ClaimOptions(), probes, environment)
    with contextlib.closing(held):
        later = suitable_gpus(SelectionRequest(count=1), probes, environment)

    assert [(item.index, item.eligible) for item in every] == [(0, True), (1, False)]
    assert [(item.index, item.eligible) for item in later] == [(0, False), (1, False)]
    assert later[0].reason.startswith("held by ")
