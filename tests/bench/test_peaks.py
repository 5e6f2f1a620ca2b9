"""Peaks: of the boards that are here, with their sources, and never those of another board."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import gpucheck
from gpucheck.bench.boards import DTYPES, BoardPeaks, Peaks, load_boards
from gpucheck.bench.peaks import peaks_here, peaks_of_named, peaks_of_one
from gpucheck.cli.output import wrap
from gpucheck.data import read_table
from gpucheck.drivers.readings import GpuReading, NvmlReading, ProbeFailure
from gpucheck.report.codec import to_plain
from gpucheck.report.envelope import Answer
from gpucheck.report.errors import BadAnswerError, ExitCode, MissingError, WrongUseError
from tests.fakes.probes import HERE, FakeProbes, gpu_reading, reading_of
from tests.report.formats.recorded import in_lines, recorded
from tests.report.schemas import closed_validator


def h100(index: int, **changes: object) -> GpuReading:
    facts = {"name": "NVIDIA H100 80GB HBM3", "pci_device_id": "233010de", "power_limit_w": 700.0}
    return gpu_reading(index)._replace(**(facts | changes))


def look(*rows: GpuReading, dtypes: tuple[str, ...] = ()) -> tuple[Answer, Peaks]:
    answer = peaks_here(FakeProbes(readings=reading_of(*rows)), dtypes)
    assert isinstance(answer.result, Peaks)
    return answer, answer.result


def check_document(answer: Answer) -> None:
    report = wrap("peaks", answer._replace(host=HERE), time="2026-11-22T20:00:00Z")
    document = to_plain(report)
    closed_validator("peaks").validate(
        {
            **{"tool": {"name": "gpucheck", "version": "1"}},
            **{key: value for key, value in document.items() if key not in ("command", "version")},
        }
    )


def test_equal_cards_share_a_board() -> None:
    answer, found = look(h100(0), h100(1))

    (board,) = found.boards
    assert (answer.exit_code, answer.warnings) == (ExitCode.OK, ())
    assert board.name == "H100 SXM"
    assert [gpu.index for gpu in board.gpus] == [0, 1]
    assert board.compute["bfloat16"].flops_per_s == pytest.approx(989.4e12)
    assert board.compute["bfloat16"].dense
    assert board.memory.bytes_per_s == pytest.approx(3.35e12)
    assert {peak.source for peak in board.compute.values()} == {"datasheet"}


@pytest.mark.parametrize(
    ("limit_w", "percent", "warned"),
    [(400.0, 100.0, False), (350.0, 100.0, False), (375.0, 100.0, False), (310.0, 77.5, True)],
)
def test_a_board_that_is_delivered_with_several_limits_is_held_below_the_lowest(
    limit_w: float, percent: float, warned: bool
) -> None:
    changes = {"name": "NVIDIA H100 NVL", "pci_device_id": "232110de", "power_limit_w": limit_w}

    answer, found = look(h100(0, **changes))

    assert found.boards[0].gpus[0].power_limit_percent == pytest.approx(percent)
    assert bool(answer.warnings) is warned


def test_a_card_without_a_board_gets_no_other_ones_figures() -> None:
    answer, found = look(h100(0), h100(1, pci_device_id="ffff10de"))

    assert answer.exit_code is ExitCode.BAD
    assert answer.error is not None
    assert answer.error.code == "board-not-in-table"
    assert [board.name for board in found.boards] == ["H100 SXM"]
    assert [(gpu.index, gpu.reason) for gpu in found.unknown] == [
        (1, "the table of boards has no row for it")
    ]
    check_document(answer)


def test_three_unknown_cards_are_named_and_the_others_counted() -> None:
    odd = [h100(index, pci_device_id="ffff10de", name=None) for index in range(4)]
    three, four = look(*odd[:3])[0], look(*odd)[0]

    assert three.error is not None
    assert four.error is not None
    reason = "the table of boards has no row for it"
    named = ", ".join(f"GPU {index} (of unknown name): {reason}" for index in range(3))
    assert three.error.message == f"The peaks are not known of {named}."
    assert four.error.message == f"The peaks are not known of {named}, and 1 GPU more."


def test_why_a_card_has_no_board() -> None:
    lost = ProbeFailure(code="gpu-lost", message="the GPU is lost", library_code=15)
    answer, found = look(
        GpuReading(index=0, failure=lost), h100(1, name=None, pci_device_id=None), h100(2)
    )

    assert answer.error is not None
    assert (answer.exit_code, answer.error.code) == (ExitCode.BAD, "gpu-not-identified")
    assert answer.error.remedy[0].endswith("gpucheck detect")

    assert [gpu.reason for gpu in found.unknown] == [
        "it does not answer: the GPU is lost",
        "neither its PCI device id nor its name could be read",
    ]


@pytest.mark.parametrize(("limit_w", "held"), [(693.0, False), (692.9, True), (700.0, False)])
def test_a_power_limit_below_the_boards_is_a_warning(limit_w: float, held: bool) -> None:
    answer, found = look(h100(0), h100(1, power_limit_w=limit_w))

    assert bool(answer.warnings) is held
    assert found.boards[0].gpus[1].power_limit_percent == pytest.approx(limit_w / 7)
    if held:
        assert answer.warnings[0].message.startswith("GPU 1: limited to 692.9 W")


def test_gpus_with_one_limit_share_a_warning() -> None:
    answer, _ = look(*(h100(index, power_limit_w=500.0) for index in range(2)))

    assert [one.message.split(":")[0] for one in answer.warnings] == ["GPUs 0-1"]


def test_a_power_limit_that_was_not_read_is_no_warning() -> None:
    answer, found = look(h100(0, power_limit_w=None))

    assert not answer.warnings
    assert found.boards[0].gpus[0].power_limit_percent is None


def test_an_instance_has_a_share_of_its_board() -> None:
    answer, _ = look(h100(0), h100(1, mig_enabled=True), h100(2, mig_enabled=False))

    assert [notice.message.partition(";")[0] for notice in answer.warnings] == ["GPU 1: MIG is on"]


def test_a_vgpu_has_no_peaks_of_its_boards() -> None:
    answer, found = look(h100(0, name="GRID H100XM-40C", virtualization="vgpu"))

    assert (answer.exit_code, found.boards) == (ExitCode.BAD, ())
    assert answer.error is not None
    assert answer.error.code == "vgpu-has-a-share"
    assert answer.error.message == (
        "The peaks are not known of GPU 0 (GRID H100XM-40C): it is a vGPU, which has a share of "
        "its board."
    )
    check_document(answer)


def test_several_split_cards_share_a_warning() -> None:
    answer, _ = look(h100(0, mig_enabled=True), h100(1, mig_enabled=True))

    assert answer.warnings[0].message.startswith("GPUs 0-1: MIG is on")


def test_all_are_the_boards_of_the_table_each_with_the_dtype_or_why_not() -> None:
    answer = peaks_of_named(" All ", ("float16",))

    assert isinstance(answer.result, Peaks)
    assert [board.name for board in answer.result.boards] == [board.name for board in load_boards()]
    assert all(
        {*board.compute, *board.unavailable} == {"float16"} for board in answer.result.boards
    )


def test_dtypes_narrow_it() -> None:
    answer = peaks_of_named("A100 SXM 40 GB", ("float8", "tf32"))

    assert isinstance(answer.result, Peaks)
    (board,) = answer.result.boards
    assert answer.exit_code is ExitCode.OK
    assert list(board.compute) == ["tf32"]
    assert list(board.unavailable) == ["float8"]


def test_no_peak_in_what_was_asked_for_is_a_bad_answer() -> None:
    answer = peaks_of_named("T4", ("bfloat16",))

    assert answer.exit_code is ExitCode.BAD
    assert answer.error is not None
    assert answer.error.message == "No peak in bfloat16 is known of T4."


def test_an_unknown_dtype_is_wrong_use() -> None:
    with pytest.raises(WrongUseError, match="Did you mean 'float16'"):
        peaks_of_named("T4", ("floot16",))
    with pytest.raises(WrongUseError, match=f"in '{'x' * 100}'\\."):
        look(h100(0), dtypes=("x" * 101,))


@pytest.mark.parametrize(
    ("code", "exit_code"),
    [("library-not-found", ExitCode.MISSING), ("timeout", ExitCode.INCONCLUSIVE)],
)
def test_without_a_reading_there_is_no_answer(code: str, exit_code: ExitCode) -> None:
    failure = ProbeFailure(code=code, message="no", library_code=None)
    answer = peaks_here(FakeProbes(readings=NvmlReading(failure=failure)))

    assert (answer.result, answer.exit_code) == (None, exit_code)
    assert answer.error is not None


def test_the_whole_table_is_a_document() -> None:
    answer = peaks_of_named("ALL")

    assert isinstance(answer.result, Peaks)
    assert len(answer.result.boards) == len(load_boards())
    assert all(set(board.compute) <= set(DTYPES) for board in answer.result.boards)
    rated = [len(row["tflops"]) for row in read_table("peaks")["row"]]
    assert [len(board.compute) for board in answer.result.boards] == rated
    assert answer.result.boards[0].memory_sizes_gb == (16.0, 32.0)
    check_document(answer)


# ---------------------------------------------------------------------------------- in a program


def test_a_program_gets_the_only_board() -> None:
    board = peaks_of_one(FakeProbes(readings=reading_of(h100(0), h100(1))))

    assert isinstance(board, BoardPeaks)
    assert board.name == "H100 SXM"


def test_a_program_on_different_boards_has_to_name_one() -> None:
    rows = (h100(0), h100(1, pci_device_id="233510de"))

    with pytest.raises(BadAnswerError, match="different boards: H100 SXM, H200 SXM") as caught:
        peaks_of_one(FakeProbes(readings=reading_of(*rows)))

    assert "gpucheck.peaks('H100 SXM')" in caught.value.remedy[0]


def test_a_program_gets_no_guess() -> None:
    with pytest.raises(BadAnswerError, match="no row for it"):
        peaks_of_one(FakeProbes(readings=reading_of(h100(0), h100(1, pci_device_id="ffff10de"))))
    with pytest.raises(MissingError):
        peaks_of_one(FakeProbes())


def test_a_program_names_a_board_as_the_driver_does() -> None:
    assert gpucheck.peaks("NVIDIA H200").compute["float8"].flops_per_s == 1979e12
    with pytest.raises(WrongUseError, match="takes the name of a board, not 200"):
        gpucheck.peaks(200)  # type: ignore[arg-type]


ASKED: dict[str, Callable[[], Answer]] = {
    "a board": lambda: peaks_of_named("H100 SXM"),
    "a board of doubtful figures": lambda: peaks_of_named("T4", ("float32", "int8")),
    "no peak of a board": lambda: peaks_of_named("T4", ("bfloat16", "tf32")),
    "no peak of any": lambda: peaks_of_named("A100 SXM 80 GB", ("float8",)),
    "equal cards, one held down": lambda: peaks_here(
        FakeProbes(readings=reading_of(h100(0), h100(1, power_limit_w=350.0), h100(2)))
    ),
    "four boards without a format": lambda: peaks_here(
        FakeProbes(readings=reading_of(*(
            h100(at, name=name, pci_device_id=f"{device}10de")
            for at, (name, device) in enumerate((
                ("Tesla T4", "1eb8"), ("Tesla V100-SXM2-32GB", "1db5"),
                ("Tesla V100-PCIE-16GB", "1db4"), ("NVIDIA A100-SXM4-80GB", "20b2"),
            ))
        ))),
        ("float8",),
    ),
    "split cards": lambda: peaks_here(FakeProbes(readings=reading_of(
        h100(0, mig_enabled=True), h100(1), h100(2, mig_enabled=True)))),
    "unknown cards": lambda: peaks_here(FakeProbes(readings=reading_of(
        h100(0), *(h100(at, name=f"Card {at}", pci_device_id=None if at == 1 else "ffff10de")
                   for at in range(1, 6))))),
}  # fmt: skip


def test_answers_about_peaks_are_as_recorded() -> None:
    text = ""
    for name, ask in ASKED.items():
        answer = ask()
        assert isinstance(answer.result, Peaks)
        text += f"## {name}: {answer.exit_code.value}\n"
        text += in_lines([*answer.result.boards, *answer.result.unknown, *answer.warnings])
        text += in_lines([answer.error] if answer.error is not None else [])

    assert text == recorded("peaks-asked", text)
