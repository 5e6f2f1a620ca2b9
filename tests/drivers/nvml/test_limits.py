"""Limits of a cgroup through a scripted binding: what is asked, and every way it can fail."""

from __future__ import annotations

from typing import Any

import pynvml
import pytest

from gpucheck.drivers.nvml.binding import Binding, NvmlError
from gpucheck.drivers.nvml.gpu import UNLIMITED, GpuReader, answer_limits, get_limits, set_limits
from tests.fakes.pynvml_double import FakeNvml, Unsupporting, error

GROUP = "/sys/fs/cgroup/a"


def name_of_nvml(name: str) -> Any:
    """Return what the installed binding calls so; the oldest that we take knows no limits."""
    if not hasattr(pynvml, name):
        pytest.skip(f"this nvidia-ml-py has no {name}")
    return getattr(pynvml, name)


def binding(**answers: Any) -> Binding:
    structures = {
        name: name_of_nvml(name)
        for name in ("c_nvmlSetMemoryLimits_v1_t", "c_nvmlGetMemoryLimits_v1_t")
    }
    found = FakeNvml(nvmlDeviceGetHandleByUUID=lambda uuid: f"handle of {uuid}", **answers)
    vars(found).update(structures)
    return Binding(found)


def fill(soft: int, hard: int, used: int) -> Any:
    def get(_handle: object, limits: Any) -> None:
        limits.softLimit, limits.hardLimit, limits.currentUsed = soft, hard, used

    return get


def test_the_constants_are_those_of_nvml() -> None:
    assert name_of_nvml("NVML_DEVICE_MEMORY_LIMIT_MAX") == UNLIMITED


@pytest.mark.parametrize(
    ("told", "expected"),
    [((8, 9, 3), (8, 9, 3)), ((0, UNLIMITED, 3), (None, None, 3)), ((0, 0, 0), (None, 0, 0))],
)
def test_no_limit_is_none(
    told: tuple[int, int, int], expected: tuple[int | None, int | None, int]
) -> None:
    nvml = binding(nvmlDeviceGetMemoryLimits_v1=fill(*told))

    assert get_limits(nvml, "handle", GROUP) == expected


@pytest.mark.parametrize(
    ("wanted", "told"), [((8, 9), (8, 9)), ((None, None), (0, UNLIMITED)), ((None, 9), (0, 9))]
)
def test_none_clears_a_limit(wanted: tuple[int | None, int | None], told: tuple[int, int]) -> None:
    seen: list[Any] = []
    nvml = binding(nvmlDeviceSetMemoryLimits_v1=lambda *given: seen.append(given))

    set_limits(nvml, "handle", GROUP, *wanted)

    ((handle, limits),) = seen
    assert (handle, limits.nameSpace) == ("handle", GROUP)
    assert (limits.softLimit, limits.hardLimit) == told


def test_a_binding_without_the_functions_is_too_old() -> None:
    with pytest.raises(NvmlError) as caught:
        get_limits(Binding(FakeNvml()), "handle", GROUP)

    assert caught.value.slug == "binding-too-old"


def test_each_gpu_has_its_answer_and_its_handle_is_kept() -> None:
    nvml = binding(nvmlDeviceGetMemoryLimits_v1=fill(8, 9, 3))
    handles: dict[str, Any] = {"GPU-2": "kept"}
    request = {"group": GROUP, "gpus": {"GPU-1": None, "GPU-2": None}, "set": False}

    first, second = answer_limits(nvml, request, handles)

    assert first == {
        "part": "limit",
        "uuid": "GPU-1",
        "soft_bytes": 8,
        "hard_bytes": 9,
        "used_bytes": 3,
    }
    assert second["uuid"] == "GPU-2"
    assert handles == {"GPU-1": "handle of GPU-1", "GPU-2": "kept"}


@pytest.mark.parametrize("code", [1, 2, 3, 4, 6, 13, 15, 25, 999])
@pytest.mark.parametrize("sets", [True, False])
def test_every_code_is_the_failure_of_its_gpu(code: int, sets: bool) -> None:
    kind = "Set" if sets else "Get"
    nvml = binding(**{f"nvmlDevice{kind}MemoryLimits_v1": error(code)})
    request = {"group": GROUP, "gpus": {"GPU-1": (8, 9) if sets else None}, "set": sets}

    (document,) = answer_limits(nvml, request, {})

    assert document["failure"]["library_code"] == code


# ------------------------------------------------------------------- beside a card's own memory


class Memory:
    total, used, free = 100, 20, 80


def reading(limit: Any, **options: Any) -> tuple[dict[str, Any], list[tuple[Any, ...]]]:
    asked: list[tuple[Any, ...]] = []

    def memory(_handle: object, *version: Any) -> Memory:
        asked.append(version)
        return Memory()

    nvml = Unsupporting(
        nvmlDeviceGetHandleByIndex="handle",
        nvmlDeviceGetMemoryInfo=memory,
        nvmlDeviceGetMemoryLimits_v1=limit,
    )
    nvml.nvmlMemory_v2 = 2
    structure = "c_nvmlGetMemoryLimits_v1_t"
    setattr(nvml, structure, name_of_nvml(structure))
    reader = GpuReader(Binding(nvml), 0)
    return reader.read(process_utilization=False, **options), asked


def test_a_limited_cgroup_has_the_cards_memory_by_version_1() -> None:
    document, asked = reading(fill(8, 9, 3), limits_of=GROUP)

    assert (document["memory_limit_bytes"], document["memory_limit_used_bytes"]) == (9, 3)
    assert document["memory_limit_source"] == "nvml"
    assert asked == [()]


@pytest.mark.parametrize("code", [3, 6, 13])
def test_without_a_limit_the_memory_is_read_as_always(code: int) -> None:
    document, asked = reading(error(code), limits_of=GROUP)

    assert "memory_limit_bytes" not in document
    assert "memory_limit_bytes" not in document["unavailable"]
    assert asked == [(2,)]


def test_a_limit_that_cannot_be_told_has_its_reason() -> None:
    document, asked = reading(error(999), limits_of=GROUP)

    assert "NVML error 999" in document["unavailable"]["memory_limit_bytes"]
    assert asked == [(2,)]


def test_nobody_asks_where_no_limit_can_be() -> None:
    _, asked = reading(lambda *_: pytest.fail("asked"))

    assert asked == [(2,)]


def test_the_kernels_limit_leaves_version_2_out() -> None:
    _, asked = reading(lambda *_: pytest.fail("asked"), whole_card=True)

    assert asked == [()]
