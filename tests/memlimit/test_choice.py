"""GPU selection by `memlimit --gpu`."""

from __future__ import annotations

import pytest

from gpucheck.inventory.model import Gpu, MigInstance, MigState
from gpucheck.memlimit.choice import choose_gpus
from gpucheck.report.errors import BadAnswerError, WrongUseError


def card(index: int, **changes: object) -> Gpu:
    fields: dict[str, object] = {
        "index": index, "cuda_index": index, "visible": True, "uuid": f"GPU-{index}aaa"
    }  # fmt: skip
    return Gpu(**{**fields, **changes})  # type: ignore[arg-type]


CARDS = (card(0), card(1), card(2))


def test_none_named_are_all() -> None:
    assert choose_gpus((), CARDS) is None


def test_none_visible_is_for_the_plan_to_tell() -> None:
    assert choose_gpus(("0",), (card(0, visible=False, cuda_index=None),)) is None
    assert choose_gpus(("0",), ()) is None


@pytest.mark.parametrize("spec", ["/gpu:1", "cuda:1", "1", "GPU-1aaa", "gpu-1AAA", "/device:GPU:1"])
def test_one_card_by_each_of_its_names(spec: str) -> None:
    choice = choose_gpus((spec, spec), CARDS)

    assert choice is not None
    assert choice.uuids == ("GPU-1aaa",)
    assert choice.environment["CUDA_VISIBLE_DEVICES"] == "GPU-1aaa"


def test_several_keep_their_order() -> None:
    choice = choose_gpus(("2", "0"), CARDS)

    assert choice is not None
    assert choice.environment["CUDA_VISIBLE_DEVICES"] == "GPU-2aaa,GPU-0aaa"


def test_an_instance() -> None:
    instance = MigInstance(
        uuid="MIG-7777", name="1g", memory_total_bytes=1, memory_used_bytes=0, cuda_index=0
    )
    split = card(0, cuda_index=None, mig=MigState(enabled=True, instances=(instance,)))

    choice = choose_gpus(("mig-7777",), (split,))

    assert choice is not None
    assert choice.uuids == ("MIG-7777",)


@pytest.mark.parametrize("spec", ["", "/", "gpu:*", "/gpu", "/job:localhost", "/cpu:0", "cpu"])
def test_what_names_no_single_gpu_is_wrong_use(spec: str) -> None:
    with pytest.raises(WrongUseError) as caught:
        choose_gpus((spec,), CARDS)

    assert caught.value.code == "not-a-gpu"


@pytest.mark.parametrize("spec", ["/gpu:3", "99", "GPU-9999", "MIG-1111"])
def test_what_is_not_there_is_said_without_the_options_of_place(spec: str) -> None:
    with pytest.raises(BadAnswerError) as caught:
        choose_gpus((spec,), CARDS)

    assert caught.value.code == "no-such-gpu"
    assert "--soft" not in f"{caught.value.message}{caught.value.remedy}"
    assert "gpucheck list" in caught.value.remedy[0]


def test_the_beginning_of_two_is_neither() -> None:
    cards = (card(0, uuid="GPU-abcd0"), card(1, uuid="GPU-abcd1"))

    with pytest.raises(BadAnswerError, match="2 visible GPUs"):
        choose_gpus(("GPU-abcd",), cards)


def test_a_card_without_a_uuid_cannot_be_named() -> None:
    with pytest.raises(BadAnswerError, match="no readable UUID"):
        choose_gpus(("0",), (card(0, uuid=None),))
