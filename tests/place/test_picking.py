"""Choosing and holding in one go, from the answer of the machine to the answer of the command."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpucheck.drivers.evidence import HealthReading
from gpucheck.drivers.readings import MigReading, NvmlReading, ProbeFailure
from gpucheck.inventory.inventory import list_gpus
from gpucheck.place.claim_files import DIRECTORY_VARIABLE
from gpucheck.place.claim_list import list_claims
from gpucheck.place.claim_store import LockDirectory
from gpucheck.place.model import ChoiceRequest, Placement, Preference
from gpucheck.place.picking import Wish, hold_named, open_store, pick_gpus
from gpucheck.place.placement import place_devices
from gpucheck.report.envelope import Answer
from gpucheck.report.errors import BadAnswerError, ExitCode, InconclusiveError, MissingError
from tests.fakes.probes import FakeProbes, gpu_reading, healthy, reading_of

HOLD = Wish(hold=True, command="train")


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    return {DIRECTORY_VARIABLE: str(tmp_path / "claims")}


def machine(count: int = 2) -> FakeProbes:
    return FakeProbes(readings=reading_of(*(gpu_reading(index) for index in range(count))))


def placement_of(answer: Answer) -> Placement:
    assert isinstance(answer.result, Placement)
    return answer.result


def test_a_chosen_card_is_held_and_the_command_told(environment: dict[str, str]) -> None:
    picked = pick_gpus(ChoiceRequest(), HOLD, machine(), environment)
    placement = placement_of(picked.answer)

    assert placement.environment["CUDA_VISIBLE_DEVICES"] == placement.devices[0].uuid
    assert placement.environment["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    assert placement.environment["GPUCHECK_CLAIM_IDS"]
    assert [claim.uuid for claim in placement.claims] == [placement.devices[0].uuid]
    assert len(placement.candidates) == 2

    other = pick_gpus(ChoiceRequest(), HOLD, machine(), environment)
    assert placement_of(other.answer).devices[0].uuid != placement.devices[0].uuid

    third = pick_gpus(ChoiceRequest(), HOLD, machine(), environment)
    assert third.answer.exit_code is ExitCode.BAD
    assert third.answer.error is not None
    assert "held by" in third.answer.error.remedy[0]
    assert len(placement_of(third.answer).candidates) == 2
    picked.held.close()
    other.held.close()


def test_a_waiter_does_not_keep_a_process_to_ask_the_driver(environment: dict[str, str]) -> None:
    probes = machine()
    wish = Wish(hold=True, wait=True)

    pick_gpus(ChoiceRequest(), wish, probes, environment).held.close()

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
        pick_gpus(ChoiceRequest(), HOLD, broken, environment)


def test_a_scheduler_has_given_them_away(environment: dict[str, str]) -> None:
    environment["SLURM_JOB_ID"] = "7"
    picked = pick_gpus(ChoiceRequest(), HOLD, machine(), environment)

    assert picked.held.locks == ()
    assert [notice.code for notice in picked.answer.warnings] == ["no-claim-in-allocation"]
    assert open_store(Wish(claim=True), environment) is not None
    assert open_store(Wish(claim=False), {}) is None


class TestNamed:
    def test_a_named_card_is_held(self, environment: dict[str, str]) -> None:
        gpus = list_gpus(machine())
        answer = Answer(result=place_devices(["/gpu:0", "/cpu:0", "0"], gpus, soft=False))

        first = hold_named(answer, gpus, HOLD, environment)
        assert len(placement_of(first.answer).claims) == 1

        with pytest.raises(BadAnswerError, match=r"is not available: .*: held by") as caught:
            hold_named(answer, gpus, HOLD, environment)
        assert "--wait" in caught.value.remedy[0]
        first.held.close()

    def test_the_cpu_needs_no_claim(self, environment: dict[str, str]) -> None:
        gpus = list_gpus(machine())
        answer = Answer(result=place_devices(["/cpu:0"], gpus, soft=False))

        assert hold_named(answer, gpus, HOLD, environment).held.locks == ()
        assert not LockDirectory(Path(environment[DIRECTORY_VARIABLE])).exists()

    def test_two_share_it(self, environment: dict[str, str]) -> None:
        gpus = list_gpus(machine())
        answer = Answer(result=place_devices(["/gpu:1"], gpus, soft=False))
        wish = Wish(hold=True, share=2)

        both = [hold_named(answer, gpus, wish, environment) for _ in range(2)]

        store = LockDirectory(Path(environment[DIRECTORY_VARIABLE]))
        assert [claim.slot for claim in list_claims(store).claims] == [0, 1]
        for picked in both:
            picked.held.close()


LOST = ProbeFailure(code="gpu-is-lost", message="the GPU is lost", library_code=15)
HUNG = ProbeFailure(code="driver-not-answering", message="it did not answer in time")


def unwell(index: int, **changes: object) -> FakeProbes:
    """Return three cards of which one has something."""
    probes = machine(3)
    health = [healthy(n, **(changes if n == index else {})) for n in range(3)]
    probes.health_reading = HealthReading(gpus=tuple(health))
    return probes


def chosen(probes: FakeProbes, environment: dict[str, str], count: int) -> tuple[Answer, list[int]]:
    answer = pick_gpus(ChoiceRequest(count=count), Wish(), probes, environment).answer
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

    def test_a_condition_that_was_not_read_is_said(self, environment: dict[str, str]) -> None:
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
def test_a_preference_that_cannot_be_honoured_is_said(
    environment: dict[str, str], prefer: Preference, count: int, reason: str
) -> None:
    request = ChoiceRequest(count=count, prefer=prefer)

    answer = pick_gpus(request, Wish(), machine(), environment).answer

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

    answer = pick_gpus(ChoiceRequest(count=2), HOLD, probes, environment).answer

    assert len(placement_of(answer).devices) == found
    assert (answer.exit_code is ExitCode.OK) is (found == 2)
    reasons = {candidate.reason for candidate in placement_of(answer).candidates}
    assert any("only one MIG instance" in (reason or "") for reason in reasons) is (found == 0)
