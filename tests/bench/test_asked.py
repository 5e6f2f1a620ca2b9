"""Which devices a benchmark is asked for."""

from __future__ import annotations

import pytest

from gpucheck.bench.asked import asked_devices
from gpucheck.drivers.gpu import OpenedGpus
from gpucheck.report.errors import InconclusiveError, MissingError, WrongUseError


@pytest.mark.parametrize(("silent", "kind"), [(True, InconclusiveError), (False, MissingError)])
def test_without_an_answer_it_is_unknown_whether_there_is_a_gpu(
    silent: bool, kind: type[Exception]
) -> None:
    with pytest.raises(kind, match="the reason"):
        asked_devices(["gpu:0"], OpenedGpus(unavailable="the reason", silent=silent))


def test_the_processor_is_there_whatever_the_gpus_are() -> None:
    assert asked_devices(["all"], OpenedGpus(unavailable="the reason")) == (True, [])


@pytest.mark.parametrize("name", ["gpu0", "gpu:", "gpu:-1", "gpu:x", "gpu:٣", "", "CPU"])
def test_what_is_no_device_is_refused(name: str) -> None:
    with pytest.raises(WrongUseError, match="does not know"):
        asked_devices([name], OpenedGpus())


def test_a_gpu_that_another_process_has_is_not_missing() -> None:
    with pytest.raises(InconclusiveError) as caught:
        asked_devices(["gpu:0"], OpenedGpus(unavailable="busy", remedy=("see who",), busy=True))

    assert caught.value.code == "gpu-busy"
    assert caught.value.remedy[0] == "see who"
