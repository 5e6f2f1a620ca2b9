"""Classes of causes: which doubt, clock or power limit explains a figure."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from gpucheck.bench.ci.diagnosis import Diagnosis, ruling
from gpucheck.bench.ci.model import CarriedDoubt, GateClass, GateStatus
from gpucheck.bench.ci.run_data import MetricValues
from tests.fakes.bench_results import doubt, gpu, product


def figures(
    code: str = "power-capped",
    *,
    clock_mhz: float | None = 1400.0,
    values: Sequence[float] = (630.0,) * 5,
    processes: int = 5,
    board: bool = True,
) -> MetricValues:
    """Return figures of a GPU of which so many processes had a doubt."""
    return MetricValues(
        device="gpu:0",
        gpu_uuid=None,
        rows=(product(630, sm_clock_mhz=clock_mhz),),
        values=tuple(values),
        gpu=gpu() if board else None,
        doubts=(CarriedDoubt(doubt=doubt(code), processes=processes),),
    )


def failing(own: MetricValues, limit: float, *peers_mhz: float | None) -> Diagnosis:
    peers = [figures(clock_mhz=clock) for clock in peers_mhz]
    return ruling(GateStatus.FAIL, own, limit, peers)


@pytest.mark.parametrize(
    ("limit", "peers_mhz", "usual"),
    [
        # The board's clock, 1830 MHz, unless two peers show another one.
        (800.0, (), "1830 MHz"),
        (800.0, (1700.0,), "1830 MHz"),
        (760.0, (1700.0, 1700.0), "1700 MHz"),
        (760.0, (1700.0, None, 1700.0), "1700 MHz"),
        # At the clock of the others it would have missed its limit too.
        (770.0, (1700.0, 1700.0), None),
        (630.0, (1400.0, 1400.0), None),
    ],
)
def test_a_power_limit_explains_what_the_usual_clock_would_pass(
    limit: float, peers_mhz: tuple[float | None, ...], usual: str | None
) -> None:
    found = failing(figures(), limit, *peers_mhz)

    assert found.class_ is (GateClass.HARDWARE if usual is None else GateClass.POWER_CAP)
    assert usual is None or f"{usual} is usual" in found.sentence


@pytest.mark.parametrize(
    "unread",
    [figures(clock_mhz=None), figures(values=()), figures(board=False)],
    ids=["own-clock", "values", "usual-clock"],
)
def test_a_clock_that_nobody_read_explains_nothing(unread: MetricValues) -> None:
    assert failing(unread, 700.0).class_ is GateClass.HARDWARE


@pytest.mark.parametrize(("processes", "blamed"), [(2, False), (3, True)])
def test_a_cause_is_seen_in_half_of_the_processes(processes: int, blamed: bool) -> None:
    found = failing(figures("clocks-locked", processes=processes, board=False), 700.0)

    assert (found.class_ is GateClass.CONFIG) is blamed


def test_noise_is_named_by_any_process_that_had_it() -> None:
    found = ruling(GateStatus.INCONCLUSIVE, figures("bimodal", processes=1), 700.0)

    assert found.class_ is GateClass.NOISE
    assert found.sentence.endswith("; there was bimodal")
    assert found.repeat_helps
