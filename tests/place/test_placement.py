"""The cards that device strings come to mean, and how a program is shown just these."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucheck.drivers.readings import CudaDeviceReading, CudaReading, ProbeFailure
from gpucheck.inventory.model import Gpu, GpuProcess, GpuState, MigInstance, MigState
from gpucheck.inventory.visibility import digits_of
from gpucheck.place.device_strings import parse_device
from gpucheck.place.model import PlacedDevice
from gpucheck.place.placement import (
    CudaDevice,
    check_nameable,
    environment_by_index,
    place_devices,
    prohibited,
    resolve,
    visible_devices,
)
from gpucheck.report.errors import (
    BadAnswerError,
    GpucheckError,
    InconclusiveError,
    MissingError,
    WrongUseError,
)
from tests.fakes.gpus import row

LOCAL = "/job:localhost/replica:0/task:0"


def card(index: int, cuda_index: int | None = None, **changes: object) -> Gpu:
    numbers = {"cuda_index": cuda_index, "visible": cuda_index is not None}
    return row(index, **{**numbers, **changes})


#: NVML's 2 is CUDA's 0, NVML's 1 is hidden, NVML's 0 is CUDA's 1.
SWAPPED = (card(0, 1), card(1, None), card(2, 0))


def sees(*gpus: Gpu) -> Callable[[], CudaReading]:
    """Return what asks a CUDA that enumerates these."""
    devices = tuple(
        CudaDeviceReading(ordinal=n, uuid_hex=digits_of(gpu.uuid or ""))
        for n, gpu in enumerate(gpus)
    )
    return lambda: CudaReading(device_count=len(devices), devices=devices)


def at(text: str, gpus: tuple[Gpu, ...] = SWAPPED, *, soft: bool = False) -> PlacedDevice:
    return resolve(parse_device(text), gpus, soft=soft)


class TestAnyText:
    @given(st.text(alphabet="/:*,0123456789-+cpugdatskjob"), st.booleans())
    def test_any_text_resolves_or_is_an_error_of_ours(self, text: str, soft: bool) -> None:
        with contextlib.suppress(WrongUseError, BadAnswerError, MissingError):
            placed = at(text, soft=soft)
            assert placed.resolved.startswith(LOCAL)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("/cpu:0", "the CPU, which every process has"),
        ("", "no type was given, and CUDA device 0 is the best device"),
        ("/gpu:*", "CUDA device 0, the lowest of 2 visible ones"),
        ("/gpu:0", "CUDA device 0, one of 2 visible ones"),
        ("GPU-0000", "CUDA device 1, one of 2 visible ones"),
    ],
)
def test_each_device_has_its_reason(text: str, reason: str) -> None:
    gpus = tuple(gpu._replace(uuid=f"GPU-{gpu.index:04}-1") for gpu in SWAPPED)

    assert at(text, gpus).reason == reason


def test_a_single_device_has_its_reason_too() -> None:
    assert at("/gpu:0", (card(0, 0),)).reason == "CUDA device 0, the only visible one"


class TestVisibleDevices:
    def test_they_come_by_cuda_ordinal(self) -> None:
        assert [device.gpu.index for device in visible_devices(SWAPPED)] == [2, 0]

    def test_a_mig_instance_counts_instead_of_its_gpu(self) -> None:
        instance = MigInstance(uuid="MIG-a", name="1g.10gb", memory_total_bytes=7, cuda_index=0)
        other = MigInstance(uuid="MIG-b", name="1g.10gb", memory_total_bytes=7)
        gpu = card(0, None, visible=True, mig=MigState(enabled=True, instances=(instance, other)))

        (device,) = visible_devices([gpu])

        assert (device.gpu, device.instance) == (gpu, instance)
        assert (device.uuid, device.cuda_index, device.memory_total_bytes) == ("MIG-a", 0, 7)

    def test_a_lost_gpu_is_none(self) -> None:
        assert visible_devices([card(0, None, visible=True, state=GpuState.LOST)]) == ()

    def test_visible_without_an_ordinal_comes_last(self) -> None:
        gpus = [card(0, None, visible=True), card(1, 0)]

        assert [device.gpu.index for device in visible_devices(gpus)] == [1, 0]

    def test_unknown_visibility(self) -> None:
        gpus = [card(0, None, visible=None, unavailable={"visible": "the driver decides"})]

        with pytest.raises(InconclusiveError, match="the driver decides"):
            visible_devices(gpus)

    def test_nothing_is_nothing(self) -> None:
        assert visible_devices([]) == ()
        assert visible_devices([card(0, None)]) == ()


class TestResolve:
    @pytest.mark.parametrize("text", ["/gpu:0", "cuda:0", "cuda0", "0", "gpu,0", "/gpu:*", "cuda"])
    def test_every_name_of_a_card_is_that_card(self, text: str) -> None:
        placed = at(text)

        assert (placed.index, placed.cuda_index, placed.uuid) == (2, 0, "GPU-2")
        assert placed.resolved == f"{LOCAL}/device:GPU:0"
        assert not placed.soft
        assert placed.spec == text

    def test_a_resolved_device_and_its_names_resolve_to_itself(self) -> None:
        placed = at("/gpu:1")

        again = [at(placed.resolved), *(at(placed.names[n]) for n in ("pytorch", "theano", "cupy"))]

        assert {device.uuid for device in again} == {"GPU-0"}
        assert placed.names["nvidia-smi"] == "0"
        assert placed.names["cuda-visible-devices"] == "GPU-0"

    def test_the_cpu_needs_no_gpu_and_no_order(self) -> None:
        unknown = (card(0, None, visible=None),)

        for text in ("/cpu:0", "cpu", "/cpu:*"):
            assert at(text, unknown).resolved == f"{LOCAL}/device:CPU:0"

    def test_nothing_asked_is_the_best_device(self) -> None:
        assert at("").uuid == "GPU-2"
        assert at("/job:localhost", ()).kind == "CPU"
        assert not at("", ()).soft

    def test_a_card_by_its_uuid_or_the_beginning_of_it(self) -> None:
        gpus = tuple(card(n, n, uuid=f"GPU-abcd{n}0") for n in range(2))

        assert at("gpu-ABCD1", gpus).cuda_index == 1
        assert at("GPU-abcd00", gpus).names["cuda-visible-devices"] == "GPU-abcd00"
        with pytest.raises(BadAnswerError, match="2 visible GPUs have a UUID"):
            at("GPU-abcd", gpus)
        with pytest.raises(BadAnswerError, match=r"There is no 'GPU-ffff' here\.") as caught:
            at("GPU-ffff", gpus)
        assert "/gpu:0 to /gpu:1" in caught.value.remedy[0]
        assert at("GPU-ffff", gpus, soft=True).cuda_index == 0

    def test_a_missing_device_and_tensorflows_words_for_it(self) -> None:
        with pytest.raises(BadAnswerError) as caught:
            at("/gpu:2")

        assert caught.value.message == "There is no '/gpu:2' here."
        assert caught.value.details == (
            "In TensorFlow's words: could not satisfy device specification "
            f"'{LOCAL}/device:GPU:2'.",
        )
        assert caught.value.remedy[0] == (
            "Only /cpu:0 and /gpu:0 to /gpu:1 exist here: name one of them, or pass --soft."
        )
        assert "1 GPU is hidden" in caught.value.remedy[1]
        assert caught.value.exit_code == 1

    @pytest.mark.parametrize("text", ["/gpu:0", "/gpu:*", "/tpu:0", "/cpu:1", "cuda:0", "0"])
    def test_without_gpus(self, text: str) -> None:
        with pytest.raises(GpucheckError, match="There is no ") as caught:
            at(text, ())

        assert caught.value.exit_code == (1 if text in ("/tpu:0", "/cpu:1") else 4)
        assert caught.value.remedy[0] == "Only /cpu:0 exists here: name it, or pass --soft."

    def test_a_number_is_that_of_cuda_and_no_place_in_a_list(self) -> None:
        gpus = (card(0, 0), card(1, 1), card(2, None, uuid=None, state=GpuState.LOST), card(3, 3))

        assert at("/gpu:3", gpus).index == 3
        assert at("/gpu:3", gpus).reason == "CUDA device 3, one of 3 that answer"
        with pytest.raises(BadAnswerError, match="'/gpu:2' can only be GPU 2, which is lost") as it:
            at("/gpu:2", gpus)
        assert "/cpu:0, /gpu:0, /gpu:1 and /gpu:3" in it.value.remedy[0]
        with pytest.raises(BadAnswerError, match="There is no '/gpu:4' here"):
            at("/gpu:4", gpus)

    @pytest.mark.parametrize(
        ("others", "step"),
        [
            ({}, "Set CUDA_DEVICE_ORDER=PCI_BUS_ID."),
            ({"state": GpuState.LOST}, "Run: gpucheck detect"),
            ({"uuid": "GPU-0"}, "Run: gpucheck detect"),
        ],
    )
    def test_an_order_that_no_variable_can_settle(
        self, others: dict[str, object], step: str
    ) -> None:
        gpus = (card(0, None, visible=None), card(1, None, visible=None, **others))

        with pytest.raises(InconclusiveError) as caught:
            visible_devices(gpus)
        assert caught.value.remedy[0] == step

    def test_two_gpus_with_one_uuid_are_refused(self) -> None:
        gpus = (card(0, 0, uuid="GPU-abcd"), card(1, 1, uuid="GPU-abcd"))

        for text in ("/gpu:0", "GPU-abcd"):
            with pytest.raises(InconclusiveError, match="GPUs 0 and 1 report the same"):
                at(text, gpus)

    @pytest.mark.parametrize("text", ["/gpu:7", "/cpu:9", "/tpu:0", "cuda:5", "99"])
    def test_soft_placement_drops_type_and_id(self, text: str) -> None:
        with_gpus, without = at(text, soft=True), at(text, (), soft=True)

        assert with_gpus.resolved == f"{LOCAL}/device:GPU:0"
        assert without.resolved == f"{LOCAL}/device:CPU:0"
        assert with_gpus.soft
        assert without.soft
        assert "soft placement" in with_gpus.reason

    def test_soft_placement_names_the_uuid_that_is_missing_as_it_was_written(self) -> None:
        assert at("GPU-abcd", soft=True).reason.startswith("there is no GPU-abcd; soft placement")
        assert at("gpu:7", soft=True).reason.startswith("there is no /device:GPU:7; soft")

    def test_soft_changes_nothing_where_the_device_exists(self) -> None:
        assert at("/gpu:1", soft=True) == at("/gpu:1")

    @pytest.mark.parametrize("soft", [True, False])
    @pytest.mark.parametrize(
        ("text", "full"),
        [
            ("/job:worker/cpu:0", "/job:worker/replica:0/task:0/device:CPU:0"),
            ("/task:3/cpu:0", "/job:localhost/replica:0/task:3/device:CPU:0"),
            ("/replica:1", "/job:localhost/replica:1/task:0/device:CPU:0"),
            ("/job:worker/task:1", "/job:worker/replica:0/task:1/device:CPU:0"),
            ("/job:worker/gpu", "/job:worker/replica:0/task:0/device:GPU:0"),
        ],
    )
    def test_another_task_is_never_here(self, text: str, full: str, soft: bool) -> None:
        with pytest.raises(BadAnswerError) as caught:
            at(text, soft=soft)

        assert caught.value.message == f"{full} unknown device."

    @pytest.mark.parametrize("text", ["/gpu:-1", "/cpu:-1", "/task:-1/cpu:0"])
    @pytest.mark.parametrize("soft", [True, False])
    def test_a_negative_number_is_malformed(self, text: str, soft: bool) -> None:
        with pytest.raises(WrongUseError, match="Malformed device specification"):
            at(text, soft=soft)

    def test_an_unknown_order_is_an_error(self) -> None:
        reason = "the order is the driver's"
        gpus = tuple(
            card(i, None, visible=True, unavailable={"cuda_index": reason}) for i in range(2)
        )

        with pytest.raises(InconclusiveError, match=reason):
            at("/gpu:0", gpus)

    def test_a_single_visible_gpu_has_no_order(self) -> None:
        assert at("/gpu:0", (card(0, None, visible=True),)).cuda_index == 0


class TestPlaceDevices:
    def test_towers_by_uuid_in_the_order_asked(self) -> None:
        placement = place_devices(["/gpu:1", "/gpu:0", "/cpu:0", "cuda:1"], SWAPPED, soft=False)

        assert [device.kind for device in placement.devices] == ["GPU", "GPU", "CPU", "GPU"]
        assert placement.environment == {
            "CUDA_VISIBLE_DEVICES": "GPU-0,GPU-2",
            "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        }

    def test_the_cpu_alone_shows_no_gpu(self) -> None:
        placement = place_devices(["/cpu:0"], SWAPPED, soft=False)

        assert placement.environment["CUDA_VISIBLE_DEVICES"] == "-1"

    def test_without_a_uuid_there_is_no_certain_name(self) -> None:
        gpus = (card(0, 1, uuid=None), card(3, 0))

        assert place_devices(["0", "1"], gpus, soft=False).environment == {}

    def test_an_instance_without_a_uuid_cannot_be_shown_alone(self) -> None:
        instances = (MigInstance(uuid=None, name="1g.10gb", cuda_index=0),)
        gpu = card(0, None, visible=True, mig=MigState(enabled=True, instances=instances))

        assert place_devices(["0"], [gpu], soft=False).environment == {}

    def test_a_bad_string_among_good_ones(self) -> None:
        with pytest.raises(WrongUseError):
            place_devices(["/gpu:0", "/gpu:x"], SWAPPED, soft=True)


class TestVariables:
    def test_by_index_only_where_cuda_counts_alike(self) -> None:
        placed = place_devices(["/gpu:0", "/gpu:0", "/cpu:0"], SWAPPED, soft=False)
        lost = card(3, None, state=GpuState.LOST)
        split = card(3, None, mig=MigState(enabled=True))
        same = card(3, 2, pci_bus_id="0000:02:00.0")

        assert environment_by_index(placed, SWAPPED, sees(*SWAPPED), ordered=True) == {
            "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
            "CUDA_VISIBLE_DEVICES": "2",
        }
        for other, reason in (
            (lost, "GPU 3 is lost"),
            (split, "GPU 3 is split by MIG"),
            (same, "bus id of its own"),
        ):
            gpus = (*SWAPPED, other)
            with pytest.raises(InconclusiveError, match=reason):
                environment_by_index(placed, gpus, sees(*gpus), ordered=True)

    @pytest.mark.parametrize("ordered", [True, False])
    def test_the_index_of_an_only_gpu_is_certain(self, ordered: bool) -> None:
        def unasked() -> CudaReading:
            raise AssertionError

        placed = place_devices(["/gpu:0"], (card(0, 0),), soft=False)
        found = environment_by_index(
            placed, (card(0, 0, pci_bus_id=None),), unasked, ordered=ordered
        )

        assert found["CUDA_VISIBLE_DEVICES"] == "0"

    def test_indices_follow_the_bus_and_not_nvmls_order(self) -> None:
        buses = ("0000:31:00.0", "0000:b1:00.0", "0000:18:00.0", "10000:01:00.0")
        gpus = tuple(card(n, n, pci_bus_id=bus) for n, bus in enumerate(buses))
        placed = place_devices(["/gpu:0", "/gpu:2", "/gpu:3"], gpus, soft=False)

        found = environment_by_index(placed, gpus, sees(*gpus), ordered=True)

        assert found["CUDA_VISIBLE_DEVICES"] == "1,0,3"

    def test_without_the_order_they_are_the_numbers_that_cuda_gives_here(self) -> None:
        gpus = tuple(card(n, n, uuid=f"GPU-{n:032x}") for n in range(3))
        placed = place_devices(["/gpu:0", "/gpu:2"], gpus, soft=False)
        fastest_first = sees(gpus[2], gpus[0], gpus[1])

        found = environment_by_index(placed, gpus, fastest_first, ordered=False)

        assert found == {"CUDA_VISIBLE_DEVICES": "1,0"}

    @pytest.mark.parametrize("ordered", [True, False])
    def test_two_cards_of_one_uuid_make_indices_uncertain(self, ordered: bool) -> None:
        gpus = tuple(card(n, n, uuid=f"GPU-{n:032x}") for n in range(2))
        placed = place_devices(["/gpu:0"], gpus, soft=False)
        alike = tuple(gpu._replace(uuid=gpus[0].uuid) for gpu in gpus)

        with pytest.raises(InconclusiveError, match="are not the same"):
            environment_by_index(placed, alike, sees(*alike), ordered=ordered)

    @pytest.mark.parametrize("ordered", [True, False])
    def test_a_card_that_cuda_leaves_out_makes_indices_uncertain(self, ordered: bool) -> None:
        gpus = tuple(card(n, n, uuid=f"GPU-{n:032x}") for n in range(3))
        placed = place_devices(["/gpu:2"], gpus, soft=False)
        silent = CudaReading(failure=ProbeFailure(code="timeout", message="it is asleep"))

        with pytest.raises(InconclusiveError, match="CUDA leaves out GPU 1, and nothing hides it"):
            environment_by_index(placed, gpus, sees(gpus[0], gpus[2]), ordered=ordered)
        with pytest.raises(InconclusiveError, match="it is asleep"):
            environment_by_index(placed, gpus, lambda: silent, ordered=ordered)

    def test_a_card_without_a_name(self) -> None:
        nameless = PlacedDevice(spec="", resolved="", kind="GPU", index=3)
        cpu = PlacedDevice(spec="", resolved="", kind="CPU")

        check_nameable([cpu], by_uuid=True)
        check_nameable([nameless], by_uuid=False)
        with pytest.raises(BadAnswerError, match="UUID of GPU 3"):
            check_nameable([nameless], by_uuid=True)
        with pytest.raises(BadAnswerError, match="UUID of GPU 3"):
            check_nameable([replace(nameless, mig_instance=True)], by_uuid=False)


def test_a_prohibited_compute_mode_is_a_warning() -> None:
    gpus = (card(0, 0), card(1, 1, compute_mode="prohibited"), card(2, 2, compute_mode="default"))

    (notice,) = prohibited(gpus)

    assert notice.code == "compute-mode-prohibited"
    assert "GPU 1 accepts no program" in notice.message
    assert "sudo nvidia-smi -i 1 -c DEFAULT" in notice.message


def test_an_instance_has_the_processes_that_compute_on_it_and_a_card_all_of_them() -> None:
    instances = tuple(MigInstance(uuid=f"MIG-{number}", name="1g") for number in range(2))
    processes = tuple(
        GpuProcess(pid=pid, type=kind, mig_uuid=uuid)
        for pid, kind, uuid in (
            (1, "compute", "MIG-0"),
            (2, "compute", "MIG-1"),
            (3, "compute", None),
            (4, "graphics", "MIG-0"),
        )
    )
    whole = card(0, 0, processes=processes)
    split = whole._replace(mig=MigState(enabled=True, instances=instances))

    assert CudaDevice(whole).pids == {1, 2, 3}
    assert [CudaDevice(split, one).pids for one in instances] == [{1}, {2}]
