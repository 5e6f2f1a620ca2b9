"""The child's readings of health: growing counters, unavailable fields, a lost GPU."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest

from gpucheck.drivers.nvml.binding import Binding
from gpucheck.drivers.nvml.health import NVLINK_BY_LINK, read_health
from tests.fakes.pynvml_double import COLD, FakeNvml, error

Field = int | tuple[int, int]
ULL, SIGNED = 3, 5


def field_value(code: int, value: int) -> SimpleNamespace:
    union = {f"{kind}Val": value for kind in ("d", "ui", "ul", "ull", "sll", "si")}
    return SimpleNamespace(nvmlReturn=code, valueType=ULL, value=SimpleNamespace(**union))


def fields_of(tell: Callable[[Field, int], tuple[int, int]]) -> Callable[..., Any]:
    """Answer nvmlDeviceGetFieldValues; `tell` gets the field and the number of its reads."""
    asked: dict[Field, int] = {}

    def answer(handle: object, wanted: list[Field]) -> list[SimpleNamespace]:
        found = []
        for key in wanted:
            found.append(field_value(*tell(key, asked.get(key, 0))))
            asked[key] = asked.get(key, 0) + 1
        return found

    return answer


def health(
    tell: Callable[[Field, int], tuple[int, int]], *, links: int = 0, **answers: Any
) -> dict[str, Any]:
    """Return the document of one GPU with so many active links."""
    nvml = FakeNvml(
        nvmlDeviceGetCount=1,
        nvmlDeviceGetHandleByIndex="handle",
        nvmlDeviceGetFieldValues=fields_of(tell),
        nvmlDeviceGetNvLinkState=lambda handle, link: 1 if link < links else error(2),
        **answers,
    )
    (document,) = read_health(Binding(nvml), 0.0)
    return document


def still(key: Field, times: int) -> tuple[int, int]:
    """Return a value that never grows for every field but those of NVLink 5."""
    number = key[0] if isinstance(key, tuple) else key
    return (3, 0) if number in (213, 214) else (0, 7)


def test_counters_that_stand_still() -> None:
    found = health(still, links=2)

    assert found["nvlink_errors_grown"] == {"CRC": 0, "replay": 0, "recovery": 0}
    assert (found["pcie_replays_grown"], set(found["throttled_ns"].values())) == (0, {0})
    assert found["nvlinks_active"] == 2


@pytest.mark.parametrize(
    ("growing", "kind", "grown"),
    [
        # Of the whole GPU, and of each of its two links.
        ({38: 3}, "CRC", 3),
        ({38: 3, 45: 4}, "CRC", 7),
        ({52: 1}, "replay", 1),
        ({59: 2}, "recovery", 2),
        ({163: 5}, "CRC", 10),
        ({161: 500}, "replay", 1000),
        ({162: 1}, "recovery", 2),
        # Both count the same errors.
        ({52: 2, 161: 1}, "replay", 2),
        # They were reset meanwhile.
        ({161: -1}, "replay", 0),
    ],
)
def test_nvlink_errors_that_grow(growing: dict[int, int], kind: str, grown: int) -> None:
    def tell(key: Field, times: int) -> tuple[int, int]:
        number = key[0] if isinstance(key, tuple) else key
        return 0, 100 + times * growing.get(number, 0)

    assert health(tell, links=2)["nvlink_errors_grown"][kind] == grown


def test_nvlink_5_counts_its_recoveries_by_link_alone() -> None:
    """The older counters are not offered on Blackwell, and the totals of these have no field."""
    growth = {213: 2, 214: 1}

    def tell(key: Field, times: int) -> tuple[int, int]:
        number, of_link = key if isinstance(key, tuple) else (key, None)
        if of_link is None or number not in growth:
            return (3, 0) if 161 <= number <= 163 or number in (38, 45, 52, 59) else (0, 7)
        return 0, 100 + times * growth[number]

    found = health(tell, links=2)

    assert found["nvlink_errors_grown"] == {"successful recovery": 4, "failed recovery": 2}


def test_the_counters_of_nvlink_5_are_those_of_the_binding() -> None:
    prefix = "NVML_FI_DEV_NVLINK_COUNT_LINK_RECOVERY"
    if not hasattr(pynvml, f"{prefix}_FAILED_EVENTS"):
        pytest.skip("this nvidia-ml-py is older than the counters of NVLink 5")

    assert NVLINK_BY_LINK["successful recovery"] == getattr(pynvml, f"{prefix}_SUCCESSFUL_EVENTS")
    assert NVLINK_BY_LINK["failed recovery"] == getattr(pynvml, f"{prefix}_FAILED_EVENTS")


def test_without_links_no_link_is_asked() -> None:
    def tell(key: Field, times: int) -> tuple[int, int]:
        assert not isinstance(key, tuple)
        return 0, 7

    found = health(tell)

    assert found["nvlink_errors_grown"] is None
    assert "not supported" in found["unavailable"]["nvlink_errors_grown"]


@pytest.mark.parametrize("lost", [15, 16])
@pytest.mark.parametrize("field", [230, 94, 161], ids=["one", "first sample", "second sample"])
def test_a_field_that_says_that_the_gpu_is_lost(lost: int, field: int) -> None:
    def tell(key: Field, times: int) -> tuple[int, int]:
        number = key[0] if isinstance(key, tuple) else key
        goes = number == field and (times or field != 161)
        return (lost, 0) if goes else (0, 7)

    found = health(tell, links=1)

    assert found["failure"]["library_code"] == lost
    assert f"(NVML error {lost})" in found["unavailable"]["pcie_replays_grown"]


@pytest.mark.parametrize(
    ("code", "reason"),
    [(3, "not supported by this GPU"), (999, "(NVML error 999)"), (4, "(NVML error 4)")],
)
def test_a_field_that_is_refused_says_why(code: int, reason: str) -> None:
    def tell(key: Field, times: int) -> tuple[int, int]:
        return (code, 0) if key in (94, 230) else (0, 7)

    found = health(tell)

    assert found["pcie_replays_grown"] is None
    assert found.get("recovery_action") is None
    assert reason in found["unavailable"]["pcie_replays_grown"]
    assert reason in found["unavailable"]["recovery_action"]
    assert found["throttled_ns"] is not None


def test_temperatures_below_zero_and_beyond_all_cards() -> None:
    def tell(key: Field, times: int) -> tuple[int, int]:
        return 0, COLD if key == 82 else 7

    found = health(tell, nvmlDeviceGetTemperatureThreshold=300, nvmlDeviceGetMarginTemperature=COLD)

    assert (found["temperature_memory_c"], found["temperature_margin_c"]) == (-5, -5)
    assert found.get("temperature_slowdown_c") is None
    assert "300 C, which is impossible" in found["unavailable"]["temperature_slowdown_c"]


#: A card at 60 C with 30 C left, whose limits lie 2 C below a margin of 0 and at it.
TLIMIT = {194: -2, 196: 0}


@pytest.mark.parametrize("threshold", [0, 49, error(3), error(26)])
def test_limits_of_a_card_without_thresholds_are_counted_from_its_margin(threshold: Any) -> None:
    found = health(
        lambda key, times: (0, TLIMIT.get(key, 7)) if isinstance(key, int) else (3, 0),
        nvmlDeviceGetTemperatureThreshold=threshold,
        nvmlDeviceGetMarginTemperature=30,
        nvmlDeviceGetTemperature=60,
    )

    assert (found["temperature_slowdown_c"], found["temperature_gpu_max_c"]) == (92, 90)
    assert found.get("temperature_memory_max_c") is None


def test_a_threshold_of_zero_is_unread_where_the_card_has_no_margin() -> None:
    found = health(
        lambda key, times: (3, 0) if key in TLIMIT else (0, 7),
        nvmlDeviceGetTemperatureThreshold=0,
        nvmlDeviceGetTemperature=60,
    )

    for name in ("temperature_slowdown_c", "temperature_gpu_max_c", "temperature_memory_max_c"):
        assert found.get(name) is None
        assert "a limit of 0 C, which is impossible" in found["unavailable"][name]
