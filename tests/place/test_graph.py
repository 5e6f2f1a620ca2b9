"""Where operations are placed, what is copied for that, and the values of the tutorials."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpucheck.drivers.cupy.arrays import ArrayDevice, open_cpu
from gpucheck.drivers.readings import CudaReading, ProbeFailure
from gpucheck.inventory.model import Gpu
from gpucheck.place import graph
from gpucheck.place.graph import (
    describe,
    open_placed,
    place_graph,
    run_graph,
    towers,
    transfers_of,
)
from gpucheck.place.graph_file import parse_graph, read_graph
from gpucheck.place.model import PlacedDevice, Placement
from gpucheck.report.errors import BadAnswerError, InconclusiveError, MissingError, WrongUseError
from tests.fakes.gpus import row
from tests.fakes.probes import FakeProbes

CASES = Path(__file__).parents[2] / "configs" / "place"
GPUS = tuple(row(index) for index in range(4))
ONE = ((22.0, 28.0), (49.0, 64.0))
TWO = ((44.0, 56.0), (98.0, 128.0))


class Clock:
    """Each look is one second later."""

    def __init__(self) -> None:
        self.looks = 0

    def __call__(self) -> float:
        self.looks += 1
        return float(self.looks)


def short(resolved: str) -> str:
    return resolved.rpartition("/")[2].removeprefix("device:")


def run(graph_file: str, gpus: tuple[Gpu, ...], *, soft: bool = False) -> Placement:
    placed = place_graph(read_graph(CASES / graph_file), gpus, soft=soft)
    return run_graph(placed, describe(placed), lambda _: open_cpu(), Clock())


class TestTutorials:
    @pytest.mark.parametrize(
        ("name", "value"),
        [("single-gpu", ONE), ("manual-cpu", ONE), ("one-of-many", ONE), ("towers", TWO)],
    )
    @pytest.mark.parametrize("gpus", [GPUS, ()], ids=["4-gpus", "no-gpu"])
    def test_values(self, name: str, value: object, gpus: tuple[Gpu, ...]) -> None:
        assert run(f"{name}.toml", gpus, soft=True).value == value

    def test_where_they_lie(self) -> None:
        def places(name: str) -> list[str]:
            return [short(op.device) for op in run(name, GPUS).ops]

        assert places("single-gpu.toml") == ["GPU:0"] * 3
        assert places("manual-cpu.toml") == ["CPU:0", "CPU:0", "GPU:0"]
        assert places("one-of-many.toml") == ["GPU:2"] * 3
        assert sorted(places("towers.toml")) == ["CPU:0", *["GPU:2"] * 3, *["GPU:3"] * 3]

    def test_a_missing_gpu_names_the_line_and_the_devices(self) -> None:
        with pytest.raises(BadAnswerError) as caught:
            run("one-of-many.toml", GPUS[:1])

        assert "one-of-many.toml:9: Cannot assign a device for operation a:" in caught.value.message
        assert "there is no '/gpu:2' here" in caught.value.message
        assert "Only /cpu:0 and /gpu:0 exist here" in caught.value.remedy[0]

    @pytest.mark.parametrize(("specs", "value"), [(["0"], ONE), (["/gpu:0", "cuda:1"], TWO)])
    def test_specs_are_towers(self, specs: list[str], value: object) -> None:
        placed = place_graph(towers(specs), GPUS, soft=False)

        assert run_graph(placed, describe(placed), lambda _: open_cpu(), Clock()).value == value


@pytest.mark.parametrize(("count", "kinds"), [(1, "MatMul"), (2, "AddV2"), (3, "AddN")])
def test_towers_have_the_names_and_types_of_tensorflow(count: int, kinds: str) -> None:
    ops = towers(["/gpu:2"] * count).ops

    inside = [f"tower_{number}/" for number in range(count)] if count > 1 else [""]
    names = [f"{tower}{name}" for tower in inside for name in ("a", "b", "MatMul")]
    assert [op.name for op in ops] == names + (["sum"] if count > 1 else [])
    assert [op.tensorflow_type for op in ops[:3]] == ["Const", "Const", "MatMul"]
    assert ops[-1].tensorflow_type == kinds
    assert [op.shape for op in ops[:3]] == [(2, 3), (3, 2), (2, 2)]


def test_each_device_of_a_graph_is_listed_once_in_the_order_of_use() -> None:
    placed = place_graph(towers(["/gpu:2", "/gpu:1", "/gpu:2"]), GPUS, soft=False)

    assert [short(one.resolved) for one in describe(placed).devices] == ["GPU:2", "GPU:1", "CPU:0"]


class TestTransfers:
    def test_constants_by_hand_on_the_cpu(self) -> None:
        placement = run("manual-cpu.toml", GPUS)

        assert [(t.what, short(t.from_), short(t.to), t.bytes) for t in placement.transfers] == [
            ("a", "CPU:0", "GPU:0", 24),
            ("b", "CPU:0", "GPU:0", 24),
            ("MatMul", "GPU:0", "CPU:0", 16),
        ]
        assert [t.seconds for t in placement.transfers] == [1.0] * 3
        assert [line.partition(": ")[2] for line in placement.advice] == [
            "a on /device:GPU:0 instead of /device:CPU:0 would copy 24 fewer bytes",
            "b on /device:GPU:0 instead of /device:CPU:0 would copy 24 fewer bytes",
        ]

    def test_towers_move_their_products_alone(self) -> None:
        placement = run("towers.toml", GPUS)

        assert [(t.bytes, short(t.to)) for t in placement.transfers] == [(16, "CPU:0")] * 2
        assert placement.advice == ()

    def test_a_result_is_copied_to_a_device_once(self) -> None:
        text = (
            "[a]\nop='constant'\nvalue=[[1,2],[3,4]]\ndevice='/cpu:0'\n"
            "[b]\nop='matmul'\ninputs=['a','a']\ndevice='/gpu:0'\n"
            "[c]\nop='relu'\ninputs=['a']\ndevice='/gpu:0'\n"
        )
        placed = place_graph(parse_graph(text, "g"), GPUS, soft=False)

        assert [t.what for t in transfers_of(placed)] == ["a", "c"]

    def test_a_layer_that_hops_to_another_card_and_back(self) -> None:
        text = (
            "[a]\nop='constant'\nvalue=[[1,2],[3,4]]\ndevice='/gpu:0'\n"
            "[b]\nop='relu'\ninputs=['a']\ndevice='/gpu:1'\n"
            "[c]\nop='relu'\ninputs=['b']\ndevice='/gpu:0'\n"
        )
        placed = place_graph(parse_graph(text, "g"), GPUS, soft=False)

        best = "g:5: b on /device:GPU:0 instead of /device:GPU:1 would copy 32 fewer bytes"
        assert best in describe(placed).advice

    def test_a_constant_is_made_where_it_is_used(self) -> None:
        text = (
            "[a]\nop='constant'\nvalue=[1,2]\n[b]\nop='relu'\ninputs=['a']\ndevice='/gpu:3'\n"
            "[d]\nop='constant'\nvalue=[1,2]\n"
        )
        placed = place_graph(parse_graph(text, "g"), GPUS, soft=False)

        assert {name: short(place.resolved) for name, place in placed.places.items()} == {
            "a": "GPU:3",
            "b": "GPU:3",
            "d": "GPU:0",
        }


class Recorder(ArrayDevice):
    """NumPy in the place of a GPU; writes down what it was made to do."""

    def __init__(self, name: str, log: list[str]) -> None:
        import numpy

        super().__init__(numpy, bring=numpy.copy)
        self.name, self.log = name, log

    def matmul(self, left: object, right: object) -> object:
        self.log.append(f"{self.name} matmul")
        return super().matmul(left, right)

    def receive(self, array: object) -> object:
        self.log.append(f"{self.name} receive")
        return super().receive(array)


def test_every_operation_runs_where_it_is_placed() -> None:
    log: list[str] = []

    def open_device(place: PlacedDevice) -> ArrayDevice:
        return Recorder(short(place.resolved), log)

    placed = place_graph(towers(["/gpu:2", "/gpu:3"]), GPUS, soft=False)
    run_graph(placed, describe(placed), open_device, Clock())

    once = ["GPU:2 matmul", "GPU:3 matmul", "CPU:0 receive", "CPU:0 receive"]
    assert log == once * 2


def test_the_other_operations() -> None:
    text = (
        "[x]\nop='constant'\nvalue=[[-1, 1], [3, 3]]\n"
        "[r]\nop='relu'\ninputs=['x']\n[s]\nop='softmax'\ninputs=['r']\ntemperature=0.5\n"
        "[t]\nop='add'\ninputs=['s','s','x']\n[u]\nop='sum'\ninputs=['t']\n"
    )
    placed = place_graph(parse_graph(text, "g"), (), soft=False)
    value = run_graph(placed, describe(placed), lambda _: open_cpu(), Clock()).value

    assert value == pytest.approx(10.0)


def test_a_cold_softmax_does_not_overflow() -> None:
    text = "[x]\nop='constant'\nvalue=[3e4, 1]\n[s]\nop='softmax'\ninputs=['x']\ntemperature=1e-4\n"
    placed = place_graph(parse_graph(text, "g"), (), soft=False)

    assert run_graph(placed, describe(placed), lambda _: open_cpu(), Clock()).value == (1.0, 0.0)


def test_a_large_value_is_left_out() -> None:
    def run_shape(shape: str) -> Placement:
        text = f"[x]\nop='constant'\nvalue=1\nshape={shape}\n"
        placed = place_graph(parse_graph(text, "g"), (), soft=False)
        return run_graph(placed, describe(placed), lambda _: open_cpu(), Clock())

    assert run_shape("[64, 64]").value == ((1.0,) * 64,) * 64
    assert run_shape("[64, 64]").advice == ()
    assert run_shape("[4097]").value is None
    assert run_shape("[4097]").advice == ("The value has 4097 numbers, too many to show.",)


def test_what_a_library_raises_is_an_error_of_ours() -> None:
    placed = place_graph(towers(["/cpu:0"]), (), soft=False)

    class Broken(Recorder):
        def matmul(self, left: object, right: object) -> object:
            raise MemoryError("no more\nreally")

    with pytest.raises(InconclusiveError, match=r"MemoryError: no more\.$"):
        run_graph(placed, describe(placed), lambda _: Broken("x", []), Clock())


@pytest.mark.parametrize(
    ("code", "error"), [("library-not-found", MissingError), ("timeout", InconclusiveError)]
)
def test_a_driver_that_does_not_answer_is_met_before_cupy(
    code: str, error: type[Exception]
) -> None:
    failure = ProbeFailure(code=code, message="it is so")
    open_device = open_placed(FakeProbes(cuda_reading=CudaReading(failure=failure)))
    placed = place_graph(towers(["/gpu:0"]), GPUS, soft=False)

    with pytest.raises(error, match="it is so"):
        run_graph(placed, describe(placed), open_device, Clock())


def test_each_gpu_is_opened_by_its_cuda_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graph, "open_gpu", lambda number: f"GPU {number}")
    open_device = open_placed(FakeProbes(cuda_reading=CudaReading(device_count=4)))
    placed = place_graph(towers(["/gpu:2", "/cpu:0"]), GPUS, soft=False)

    assert open_device(placed.places["tower_0/a"]) == "GPU 2"
    assert isinstance(open_device(placed.places["tower_1/a"]), ArrayDevice)


def test_a_bad_string_is_wrong_use() -> None:
    with pytest.raises(WrongUseError):
        place_graph(towers(["/gpu:x"]), GPUS, soft=True)
