"""Sentences about variables that mean something else than they seem to."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucheck.drivers.readings import CudaDeviceReading, CudaReading, GpuReading, MigReading
from gpucheck.inventory.advice import advise, hides_on_purpose
from gpucheck.inventory.visibility import apply_rules, join_driver
from tests.fakes.probes import gpu_reading

ALIKE = [gpu_reading(index) for index in range(4)]
UNLIKE = [gpu_reading(0, name="Tesla T4", pci_device_id="1eb810de"), gpu_reading(1)]
SPLIT = [
    gpu_reading(
        0,
        mig_enabled=True,
        mig_instances=tuple(
            MigReading(uuid=f"MIG-{n}", gpu_instance_id=n, compute_instance_id=0) for n in range(3)
        ),
    ),
    gpu_reading(1),
]


def codes(
    text: str | None = None,
    order: str | None = None,
    gpus: list[GpuReading] = ALIKE,
    **environment: str,
) -> list[str]:
    return [notice.code for notice in advise(apply_rules(text, order, gpus), gpus, environment)]


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("all", "visible-devices-all"),
        ("ALL", "visible-devices-all"),
        ("0-2", "visible-devices-range"),
        ("3, 0-2", "visible-devices-range"),
        ('"0,1"', "visible-devices-quotes"),
        ("'0'", "visible-devices-quotes"),
        ("0, 1", "visible-devices-blanks"),
        ("\t0", "visible-devices-blanks"),
        ("0;1", "visible-devices-rest"),
        ("0 1", "visible-devices-rest"),
        ("0:1", "visible-devices-rest"),
        ("1,0gpu", "visible-devices-rest"),
    ],
)
def test_values_that_do_not_mean_what_they_seem_to(text: str, code: str) -> None:
    assert code in codes(text)


def test_of_the_word_all_nothing_more_is_said() -> None:
    assert codes("all") == ["visible-devices-all"]


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("", "visible-devices-empty"),
        ("0,0", "visible-devices-entry"),
        ("9", "visible-devices-entry"),
        ("0,9,1", "visible-devices-entry"),
        ("-1,0", "visible-devices-entry"),
        ("nothing", "visible-devices-entry"),
    ],
)
def test_gpus_that_are_hidden_by_mistake(text: str, code: str) -> None:
    assert codes(text) == [code]


@pytest.mark.parametrize("text", ["-1", " -2 ", "none", "NONE", "NoDevFiles"])
def test_gpus_that_are_hidden_on_purpose(text: str) -> None:
    assert set(codes(text)) <= {"visible-devices-blanks"}
    assert hides_on_purpose(apply_rules(text, None, ALIKE))


def test_an_empty_value_hides_nothing_where_there_is_no_gpu() -> None:
    assert advise(apply_rules("", None, []), [], {}) == []


@pytest.mark.parametrize("text", [None, "0", "0,1", "-1", "GPU-00000000", "1,0"])
def test_values_that_do(text: str | None) -> None:
    assert codes(text) == []


@pytest.mark.parametrize(
    ("text", "order", "expected"),
    [
        ("0", None, ["ordinal-on-unlike-gpus"]),
        ("0", "FASTEST_FIRST", ["ordinal-on-unlike-gpus"]),
        ("0", "PCI_BUS_ID", []),
        ("GPU-00000000", None, []),
        (None, None, []),
        ("-1", None, []),
        (None, "PCI_BUS_I", ["device-order-unknown"]),
    ],
)
def test_an_index_on_a_box_of_unlike_cards(
    text: str | None, order: str | None, expected: list[str]
) -> None:
    assert codes(text, order, UNLIKE) == expected


@pytest.mark.parametrize(
    ("text", "environment", "expected"),
    [
        (None, {"SLURM_JOB_ID": "7"}, ["slurm-without-gpus"]),
        ("NoDevFiles", {"SLURM_JOB_ID": "7"}, ["slurm-without-gpus"]),
        ("0,1", {"SLURM_JOB_ID": "7", "SLURM_JOB_GPUS": "4,5"}, ["slurm-numbers"]),
        ("0,1", {"SLURM_JOB_ID": "7", "SLURM_JOB_GPUS": "0,1"}, []),
        ("0,1", {"SLURM_JOB_ID": "7"}, []),
        ("0", {"SLURM_JOB_ID": "7", "SLURM_JOB_GPUS": "4,5", "SLURM_STEP_GPUS": "0"}, []),
        ("GPU-00000000", {"SLURM_JOB_ID": "7", "SLURM_JOB_GPUS": "4"}, []),
        ("0", {"SLURM_JOB_GPUS": "4"}, []),
        (None, {"NVIDIA_VISIBLE_DEVICES": "void"}, []),
        (None, {"NVIDIA_VISIBLE_DEVICES": "0,void"}, []),
        (None, {"NVIDIA_VISIBLE_DEVICES": ""}, []),
        (None, {"NVIDIA_VISIBLE_DEVICES": "none"}, []),
        (None, {"NVIDIA_VISIBLE_DEVICES": "all"}, []),
        ("7", {"NVIDIA_VISIBLE_DEVICES": "4,7"}, ["visible-devices-entry", "container-numbers"]),
        ("1", {"NVIDIA_VISIBLE_DEVICES": "4,7"}, []),
        ("7", {"NVIDIA_VISIBLE_DEVICES": "all"}, ["visible-devices-entry"]),
        ("0", {"CUDA_MPS_PIPE_DIRECTORY": "/tmp/mps"}, ["mps-numbers"]),
        ("GPU-00000000", {"CUDA_MPS_PIPE_DIRECTORY": "/tmp/mps"}, []),
        (None, {"CUDA_MPS_PIPE_DIRECTORY": "/tmp/mps"}, []),
    ],
)
def test_what_around_cuda_explains_it(
    text: str | None, environment: dict[str, str], expected: list[str]
) -> None:
    assert codes(text, **environment) == expected


@pytest.mark.parametrize("value", ["void", "0,void", "", " , ", "none"])
def test_a_container_without_gpus_is_explained(value: str) -> None:
    assert codes(None, gpus=[], NVIDIA_VISIBLE_DEVICES=value) == ["container-without-gpus"]


def enumerated(*gpus: GpuReading) -> CudaReading:
    return CudaReading(
        device_count=len(gpus),
        devices=tuple(
            CudaDeviceReading(ordinal=n, uuid_hex=(gpu.uuid or "")[4:].replace("-", ""))
            for n, gpu in enumerate(gpus)
        ),
    )


def test_a_driver_that_disagrees_is_a_finding() -> None:
    joined = join_driver(apply_rules("0,1", None, ALIKE), enumerated(ALIKE[1]), ALIKE)

    assert joined is not None
    notice = advise(joined, ALIKE, {})[-1]
    assert notice.code == "driver-disagrees-with-rules"
    assert str(ALIKE[0].uuid) in notice.message
    assert notice.message.endswith(f"sees 2 devices; the driver leaves out {ALIKE[0].uuid}.")


@pytest.mark.parametrize(
    ("text", "gpus", "environment", "part"),
    [
        ("", ALIKE[:1], {}, "which hides the GPU: unset"),
        ("", ALIKE, {}, "which hides all 4 GPUs: unset it to see them, or write -1"),
        ("9", ALIKE[:1], {}, "the entry '9' is dropped: out of range: there is 1 GPU."),
        ("9", ALIKE, {}, "there are 4 GPUs, so CUDA sees none of the 4 GPUs."),
        ("a" * 80, ALIKE, {}, f"CUDA_VISIBLE_DEVICES='{'a' * 80}': the entry '{'a' * 80}' is"),
        (
            "a" * 81,
            ALIKE,
            {},
            f"CUDA_VISIBLE_DEVICES='{'a' * 77}...': the entry '{'a' * 77}...' is",
        ),
        ("7", ALIKE, {"NVIDIA_VISIBLE_DEVICES": "4,7"}, "numbers in CUDA_VISIBLE_DEVICES='7' name"),
    ],
)
def test_a_notice_names_the_value_and_its_effect(
    text: str, gpus: list[GpuReading], environment: dict[str, str], part: str
) -> None:
    found = advise(apply_rules(text, None, gpus), gpus, environment)

    assert part in found[-1].message


@given(
    st.none() | st.text(),
    st.none() | st.text(),
    st.dictionaries(
        st.sampled_from(
            ["SLURM_JOB_ID", "SLURM_JOB_GPUS", "NVIDIA_VISIBLE_DEVICES", "CUDA_MPS_PIPE_DIRECTORY"]
        ),
        st.text(),
    ),
    st.sampled_from([None, "525.1", "580.1", "9" * 50]),
    st.sampled_from([ALIKE, UNLIKE, SPLIT, []]),
)
def test_any_text_never_raises(
    text: str | None,
    order: str | None,
    environment: dict[str, str],
    driver: str | None,
    gpus: list[GpuReading],
) -> None:
    found = apply_rules(text, order, gpus, driver_version=driver)

    assert all(notice.message.isprintable() for notice in advise(found, gpus, environment))
    visible = found.visible or ()
    assert len(set(visible)) == len(visible)
