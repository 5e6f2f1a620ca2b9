from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gpucheck.bench.claiming import Claims, hold_gpus, target_of
from gpucheck.drivers.readings import MigReading
from gpucheck.place.claim_store import ClaimStore, Target
from gpucheck.place.claims import list_claims
from gpucheck.place.lock_files import DIRECTORY_VARIABLE
from tests.architecture.house import ROOT
from tests.fakes.probes import gpu_reading, reading_of

READING = reading_of(gpu_reading(0), gpu_reading(1))
UUIDS = [gpu.uuid for gpu in READING.gpus if gpu.uuid is not None]


@pytest.fixture(name="environment")
def _environment(tmp_path: Path) -> dict[str, str]:
    return {DIRECTORY_VARIABLE: str(tmp_path / "claims")}


def held(environment: dict[str, str]) -> dict[str, str | None]:
    claims = list_claims(ClaimStore(Path(environment[DIRECTORY_VARIABLE]))).claims
    return {claim.uuid: claim.command for claim in claims}


ANOTHER = """
import sys
from gpucheck.bench.claiming import hold_gpus
from tests.bench.test_claiming import READING, UUIDS
with hold_gpus(UUIDS[:1], READING, {sys.argv[1]: sys.argv[2]}, "a long training"):
    print("held", flush=True)
    sys.stdin.read()
"""


@contextmanager
def another_holds_the_first(environment: dict[str, str]) -> Iterator[None]:
    """Let another process hold the first GPU while the block runs."""
    with subprocess.Popen(
        [sys.executable, "-c", ANOTHER, DIRECTORY_VARIABLE, environment[DIRECTORY_VARIABLE]],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=ROOT,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        yield
        process.communicate()


def test_what_is_measured_is_held_until_the_block_ends(environment: dict[str, str]) -> None:
    with hold_gpus(UUIDS, READING, environment, "gpucheck bench") as claims:
        assert held(environment) == dict.fromkeys(UUIDS, "gpucheck bench")
        assert claims == Claims()

    assert held(environment) == {}


def test_a_card_of_somebody_elses_is_told_and_the_others_are_held(
    environment: dict[str, str],
) -> None:
    with (
        another_holds_the_first(environment),
        hold_gpus(UUIDS, READING, environment, "gpucheck bench") as claims,
    ):
        assert claims.others.keys() == {UUIDS[0]}
        assert "a long training" in claims.others[UUIDS[0]]
        assert held(environment)[UUIDS[1]] == "gpucheck bench"


def test_a_card_that_this_program_holds_is_not_somebody_elses(
    environment: dict[str, str],
) -> None:
    with hold_gpus(UUIDS[:1], READING, environment, "gpucheck.place in a program"):
        with hold_gpus(UUIDS, READING, environment, "gpucheck.bench in it") as claims:
            assert claims == Claims()

        assert held(environment) == {UUIDS[0]: "gpucheck.place in a program"}

    assert held(environment) == {}


def test_an_error_in_the_block_frees_them(environment: dict[str, str]) -> None:
    with pytest.raises(KeyError), hold_gpus(UUIDS, READING, environment, "gpucheck bench"):
        raise KeyError

    assert held(environment) == {}


def test_where_claims_cannot_be_made_that_is_a_note(tmp_path: Path) -> None:
    place = tmp_path / "a file"
    place.write_text("")

    with hold_gpus(UUIDS, READING, {DIRECTORY_VARIABLE: str(place)}, "gpucheck bench") as claims:
        assert len(claims.notes) == 1
        assert "not claimed" in claims.notes[0]
        assert claims.others == {}


def test_a_schedulers_allocation_is_claim_enough(environment: dict[str, str]) -> None:
    with hold_gpus(UUIDS, READING, environment | {"SLURM_JOB_ID": "1"}, "bench") as claims:
        assert claims == Claims()
        assert held(environment) == {}


def test_without_a_gpu_no_directory_is_made(environment: dict[str, str]) -> None:
    with hold_gpus([], READING, environment, "gpucheck bench"):
        assert not Path(environment[DIRECTORY_VARIABLE]).exists()


def test_a_mig_instance_is_found_by_its_digits() -> None:
    digits = "0123abcd-0000-1111-2222-333344445555"
    card = gpu_reading(0)._replace(mig_instances=(MigReading(uuid=f"MIG-{digits}"),))
    reading = reading_of(card)

    assert card.uuid is not None
    assert target_of(f"GPU-{digits}", reading) == Target(card=card.uuid, instance=f"MIG-{digits}")
    assert target_of(card.uuid.upper().replace("GPU", "GPU"), reading) == Target(card=card.uuid)
    assert target_of("GPU-99999999-0000-1111-2222-333344445555", reading) is None
