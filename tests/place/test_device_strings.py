"""Device strings by the tables of TensorFlow, PyTorch, Theano and CuPy."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucheck.place.device_strings import parse_device
from gpucheck.report.errors import WrongUseError

LOCAL = "/job:localhost/replica:0/task:0"


class TestGrammar:
    @pytest.mark.parametrize(
        ("text", "canonical"),
        [
            ("/gpu:0", "/device:GPU:0"),
            ("/GPU:0", "/device:GPU:0"),
            ("/device:GPU:0", "/device:GPU:0"),
            ("/device:gpu:0", "/device:GPU:0"),
            ("gpu:0", "/device:GPU:0"),
            ("//gpu:0", "/device:GPU:0"),
            ("/gpu:0/", "/device:GPU:0"),
            ("/cpu", "/device:CPU:*"),
            ("cpu", "/device:CPU:*"),
            ("/cpu:*", "/device:CPU:*"),
            ("/gpu:*", "/device:GPU:*"),
            ("/device:GPU:*", "/device:GPU:*"),
            (f"{LOCAL}/gpu:1", f"{LOCAL}/device:GPU:1"),
            (f"{LOCAL}/device:GPU:1", f"{LOCAL}/device:GPU:1"),
            ("/device:GPU:0/job:x", "/job:x/device:GPU:0"),
            ("/gpu:01", "/device:GPU:1"),
            ("/gpu: 1", "/device:GPU:1"),
            ("/gpu:+1", "/device:GPU:1"),
            ("/gpu:-1", "/device:GPU:-1"),
            ("/job:*", "/job:*"),
            ("/tpu:0", "/device:TPU:0"),
            ("/device:NPU:3", "/device:NPU:3"),
            ("", ""),
            ("/", ""),
        ],
    )
    def test_tensorflow(self, text: str, canonical: str) -> None:
        spec = parse_device(text)

        assert spec.canonical == canonical
        assert spec.text == text

    @pytest.mark.parametrize(
        ("text", "attribute"),
        [
            ("/device:GPU", "device"),
            ("/device:", "device"),
            ("/device:GPU:0:1", "device"),
            ("/foo:0", "foo"),
            ("/cuda:0", "cuda"),
            ("/mps:0", "mps"),
            ("/Device:GPU:0", "Device"),
            ("/JOB:x", "JOB"),
            (" /gpu:0", " "),
            ("/ gpu:0", " gpu"),
            ("/gpu:0:1", "gpu"),
            ("/job", "job"),
            ("cuda:-1", "cuda"),
            ("cuda:01", "cuda"),
            ("Cuda:0", "Cuda"),
        ],
    )
    def test_an_unknown_attribute(self, text: str, attribute: str) -> None:
        with pytest.raises(WrongUseError) as caught:
            parse_device(text)

        assert caught.value.message == (
            f"Unknown attribute '{attribute}' is encountered while parsing the device spec: "
            f"'{text}'."
        )
        assert caught.value.exit_code == 2
        assert caught.value.remedy
        assert ("in lower case" in caught.value.remedy[0]) is (attribute in ("Device", "JOB"))
        if attribute == "cuda":
            said = "without a slash" if text.startswith("/") else "a leading zero"
            assert said in caught.value.remedy[0]

    def test_two_types(self) -> None:
        said = "Multiple device types are not allowed while parsing the device spec: /gpu:0/cpu:0."
        with pytest.raises(WrongUseError) as caught:
            parse_device("/gpu:0/cpu:0")

        assert caught.value.message == said

    @pytest.mark.parametrize(
        ("text", "number"),
        [("/gpu:a", "a"), ("/gpu:0x1", "0x1"), ("/task:x", "x"), ("/replica:*", "*")],
    )
    def test_no_number(self, text: str, number: str) -> None:
        said = f"invalid literal for int() with base 10: '{number}'"
        with pytest.raises(WrongUseError) as caught:
            parse_device(text)

        assert caught.value.message.startswith(said)

    @pytest.mark.parametrize(
        ("text", "index"),
        [
            ("cuda", None),
            ("cuda:1", 1),
            ("cuda0", 0),
            ("gpu1", 1),
            ("gpu,0", 0),
            ("0", 0),
            ("12", 12),
        ],
    )
    def test_other_libraries(self, text: str, index: int | None) -> None:
        spec = parse_device(text)

        assert (spec.kind, spec.index, spec.uuid) == ("GPU", index, None)

    @pytest.mark.parametrize(
        "text", ["/gpu:\x1b[31m", "/\x1b:0", "/gpu:0/cpu\n:1/\x07", "x" * 2000]
    )
    def test_a_message_is_one_printable_line(self, text: str) -> None:
        with pytest.raises(WrongUseError) as caught:
            parse_device(text)

        assert caught.value.message.isprintable()
        assert len(caught.value.message) < 400

    def test_a_long_text_is_cut(self) -> None:
        with pytest.raises(WrongUseError) as caught:
            parse_device("x" * 81)

        assert f"'{'x' * 77}...'" in caught.value.message

    @given(st.text() | st.text(alphabet="/:*,0123456789-+ _cpugdatskjobrelivxCPUG"))
    def test_any_text_is_a_device_or_wrong_use(self, text: str) -> None:
        with contextlib.suppress(WrongUseError):
            spec = parse_device(text)
            again = parse_device(spec.canonical)
            assert again.canonical == spec.canonical


class TestUuids:
    @pytest.mark.parametrize(
        "text",
        [
            "GPU-756a79d4-4cf2-5e9f-88b6-03d84e3e737d",
            "gpu-756a",
            "MIG-a1e3a6c4-1f35-5b0b-9a52-6f2f2bd2ec01",
            "MIG-GPU-9942190a-aa31-4ff1-4aa9-c388d80f85f1/1/0",
        ],
    )
    def test_whole_or_only_the_beginning(self, text: str) -> None:
        spec = parse_device(text)

        assert (spec.kind, spec.index) == ("GPU", None)
        assert spec.uuid == text

    @pytest.mark.parametrize("text", ["gpu-1", "GPU-", "MIG-", "GPU-12-", "MIG-GPU-abc"])
    def test_too_short_to_be_meant(self, text: str) -> None:
        with pytest.raises(WrongUseError, match="too short for a UUID"):
            parse_device(text)

    @pytest.mark.parametrize("text", ["GPU-nothex", "GPU:756a", "CPU-756a79d4", "/GPU-756a79d4"])
    def test_what_is_none(self, text: str) -> None:
        with pytest.raises(WrongUseError):
            parse_device(text)


def test_a_string_without_end_is_not_read() -> None:
    with pytest.raises(WrongUseError, match="longer than 1000 characters"):
        parse_device("GPU-" + "a" * 997)


def test_a_list_is_refused_with_its_words() -> None:
    with pytest.raises(WrongUseError) as caught:
        parse_device("0,1")

    assert caught.value.remedy == ("Write each device as a separate word: 0 1",)
