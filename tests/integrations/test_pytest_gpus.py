"""What the options and the marker of the pytest plug-in mean, decided without a process."""

from __future__ import annotations

from typing import Any

import pytest

from gpucheck.integrations import pytest_gpus as module
from gpucheck.integrations.diagnose import Diagnosis
from gpucheck.integrations.pytest_gpus import Needs, Refusal, needs_of, refused, shown, unmet
from gpucheck.place.placement import CudaDevice
from gpucheck.place.selection import ALLOW_BUSY_GPUS
from gpucheck.report.envelope import CheckStatus, Failure
from gpucheck.report.errors import WrongUseError
from tests.fakes.gpus import GIB, sized_row

MARK = pytest.mark.gpucheck


def card(
    index: int, gib: int | None = 8, capability: str | None = "9.0", **more: Any
) -> CudaDevice:
    total = None if gib is None else gib * GIB
    return CudaDevice(
        sized_row(index, total, uuid=f"GPU-{index:08x}-1", compute_capability=capability, **more)
    )


def needs(**arguments: Any) -> Needs:
    return needs_of(MARK(**arguments).mark)


def test_a_plain_marker_needs_one_gpu_of_any_kind() -> None:
    assert needs_of(MARK.mark) == Needs()
    assert unmet(Needs(), [card(0, None, None)], [card(0, None, None)]) is None


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        ({"count": 0}, "count takes 1 or more, not 0"),
        ({"count": "2"}, "count"),
        ({"count": True}, "count"),
        ({"memory": 8}, "memory takes a text"),
        ({"memory": "8 apples"}, "8 apples"),
        ({"memory": "30%"}, "not the share '30%'"),
        ({"capability": 9.0}, "capability takes a text"),
        ({"capability": "nine"}, "nine"),
        ({"counts": 1}, "not counts"),
    ],
)
def test_a_marker_that_makes_no_sense_is_wrong_use(arguments: dict[str, Any], word: str) -> None:
    with pytest.raises(WrongUseError, match=word):
        needs(**arguments)


def test_a_marker_takes_no_position() -> None:
    with pytest.raises(WrongUseError, match="not 2"):
        needs_of(MARK(2).mark)


@pytest.mark.parametrize(
    ("arguments", "device", "met"),
    [
        ({"memory": "8GiB"}, card(0, 8), True),
        ({"memory": "8193MiB"}, card(0, 8), False),
        ({"memory": "1GiB"}, card(0, None), False),
        ({"capability": "9.0"}, card(0), True),
        ({"capability": "9.1"}, card(0), False),
        ({"capability": "9.0"}, card(0, capability="10.0"), True),
        ({"capability": "9.0"}, card(0, capability=None), False),
        ({"count": 2}, card(0), False),
    ],
)
def test_a_gpu_meets_what_is_known_of_it(
    arguments: dict[str, Any], device: CudaDevice, met: bool
) -> None:
    assert (unmet(needs(**arguments), [device], [device]) is None) == met


def test_every_gpu_of_the_process_must_do() -> None:
    small, large = card(0, 8), card(1, 80)

    assert unmet(needs(count=2, memory="8GiB"), [small, large], [small, large]) is None
    refusal = unmet(needs(memory="80GiB"), [small, large], [small, large])

    assert refusal is not None


def test_what_this_machine_does_not_have_is_skipped() -> None:
    refusal = unmet(needs(count=3, memory="8GiB", capability="9.0"), [card(0)], [card(0), card(1)])

    assert refusal == Refusal(
        "the test needs 3 GPUs with 8GiB of memory and compute capability 9.0:"
        " this machine has 2 of them",
        skips=True,
    )
    none = unmet(needs(capability="99.0"), [card(0)], [card(0)])
    assert none is not None
    assert none.text.endswith("this machine has none of them")


def test_what_another_process_might_have_got_fails_with_the_command() -> None:
    arguments = {"count": 2, "memory": "8GiB", "capability": "9.0"}

    refusal = unmet(needs(**arguments), [card(0)], [card(0), card(1)])

    assert refusal is not None
    assert not refusal.skips
    assert "its process got GPU-00000000 (index 0)" in refusal.text
    assert refusal.text.endswith(
        "Run: pytest --gpucheck --gpucheck-count 2 --gpucheck-memory 8GiB --gpucheck-capability 9.0"
    )


def test_a_hidden_gpu_is_none_that_the_test_might_have_got() -> None:
    refusal = unmet(needs(count=2), [card(0)], [card(0), card(1, visible=False)])

    assert refusal is not None
    assert refusal.skips


def test_nothing_that_fits_is_skipped_and_waiting_in_vain_is_not() -> None:
    reasons = ("GPU 0: used by alice (train.py) without a claim", ALLOW_BUSY_GPUS, "Wait.")

    none = refused(Failure("nothing-fits", "1 GPU was requested, but none fits.", ("x", "Wait.")))
    late = refused(Failure("wait-timeout", "Nothing became free within 3 s.", reasons))

    assert none == Refusal("1 GPU was requested, but none fits (x)", skips=True)
    assert late == Refusal(
        "Nothing became free within 3 s (GPU 0: used by alice (train.py) without a claim);"
        " --gpucheck-memory 8GiB takes a GPU in use that has so much free",
        skips=False,
    )


@pytest.mark.parametrize(
    ("found", "refusal"),
    [
        (None, Refusal("no usable GPU: libcuda is not there", skips=True)),
        (
            Diagnosis(status=CheckStatus.FAIL, message="GPU not usable: it is broken."),
            Refusal("no usable GPU: it is broken (see: gpucheck detect)", skips=True),
        ),
        (
            Diagnosis(status=CheckStatus.UNKNOWN, message="Cannot tell: it hangs."),
            Refusal("no usable GPU: Cannot tell: it hangs (see: gpucheck detect)", skips=False),
        ),
    ],
)
def test_detect_s_cause_in_one_line(
    found: Diagnosis | None, refusal: Refusal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "diagnose", lambda *_, **__: found)

    assert module.no_gpu("libcuda is not there.") == refusal


def test_a_gpu_is_shown_by_the_beginning_of_its_uuid() -> None:
    assert shown("GPU-3f2a91bc-7d4e-5a6b", 2) == "GPU-3f2a91bc (index 2)"
