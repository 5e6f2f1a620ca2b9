"""Which options of `gpucheck place` go together."""

from __future__ import annotations

import pytest

from gpucheck.cli.output import Context
from gpucheck.cli.place_options import PlaceOptions, check
from gpucheck.report.errors import WrongUseError

ALONE = Context(command="place", json=False)
WITH_COMMAND = ALONE._replace(child=("true",))


def refusal(context: Context, explicit: str = "", **options: object) -> str:
    given = PlaceOptions(explicit=frozenset(explicit.split()), **options)  # type: ignore[arg-type]
    with pytest.raises(WrongUseError) as caught:
        check(given, context)
    return caught.value.message


def accepted(context: Context, explicit: str = "", **options: object) -> None:
    check(PlaceOptions(explicit=frozenset(explicit.split()), **options), context)  # type: ignore[arg-type]


def test_nothing_asked_says_what_to_ask() -> None:
    assert refusal(ALONE).startswith("Name a device such as /gpu:0")


def test_two_questions() -> None:
    assert refusal(ALONE, specs=("0",), count=1) == "Give only one of these: a device, --count."


@pytest.mark.parametrize(
    ("name", "value"),
    [("min_free", "1GiB"), ("prefer", "idle"), ("name", "x"), ("exclude", ("0",))],
)
def test_what_chooses_needs_a_count(name: str, value: object) -> None:
    option = name.replace("_", "-")
    assert refusal(ALONE, name, specs=("0",), **{name: value}).startswith(
        f"--{option} is for choosing"
    )
    accepted(ALONE, name, count=1, **{name: value})
    # A default out of a file is for those questions that it fits.
    accepted(ALONE, "", specs=("0",), **{name: value})


@pytest.mark.parametrize(("name", "value"), [("claim", True), ("wait", True), ("share", 2)])
def test_what_holds_needs_a_command(name: str, value: object) -> None:
    assert refusal(ALONE, name, specs=("0",), **{name: value}).startswith(
        f"--{name} is for holding"
    )
    accepted(WITH_COMMAND, name, specs=("0",), **{name: value})
    accepted(ALONE, "", specs=("0",), **{name: value})


def test_a_choice_may_wait_and_share_without_a_command_but_not_claim() -> None:
    accepted(ALONE, "wait share", count=1, wait=True, share=2)
    accepted(ALONE, "claim", count=1, claim=False)
    assert refusal(ALONE, "claim", count=1, claim=True).startswith("--claim is for holding")


@pytest.mark.parametrize("seconds", [-1.0, float("nan"), float("inf")])
def test_a_timeout_is_a_time(seconds: float) -> None:
    assert "takes seconds" in refusal(WITH_COMMAND, count=1, wait=True, timeout_s=seconds)
    assert "needs --wait" in refusal(WITH_COMMAND, count=1, timeout_s=1.0)


@pytest.mark.parametrize("question", [{"claims": True}, {"specs": ("0",), "run": True}])
def test_what_takes_no_command(question: dict[str, object]) -> None:
    assert "takes no command" in refusal(WITH_COMMAND, **question)
