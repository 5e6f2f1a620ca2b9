"""NVML binding: errors, older forms, bus ids."""

from __future__ import annotations

import pynvml
import pytest

from gpucheck.drivers.nvml.binding import REASONS, Binding, NvmlError, kernel_bus_id
from tests.fakes.pynvml_double import FakeNvml, error


def test_every_code_of_the_binding_has_a_reason() -> None:
    codes = {
        value
        for name, value in vars(pynvml).items()
        if name.startswith("NVML_ERROR_") and isinstance(value, int)
    }

    assert codes <= set(REASONS)
    slugs = [slug for slug, _ in REASONS.values()]
    assert len(set(slugs)) == len(slugs)


@pytest.mark.parametrize(
    ("failure", "slug", "code", "reason"),
    [
        (error(3), "not-supported", 3, "not supported by this GPU (NVML error 3)"),
        (error(15), "gpu-is-lost", 15, None),
        (error(4711), "unlisted", 4711, "NVML returned an unknown code (NVML error 4711)"),
        (UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad"), "not-utf8", None,
         "the driver's text is not UTF-8"),
        (ValueError("x"), "binding-failed", None, "the binding failed with ValueError"),
        (ZeroDivisionError(), "binding-failed", None, None),
        (OSError(), "binding-failed", None, None),
        (AttributeError("x"), "binding-failed", None, None),
    ],
)  # fmt: skip
def test_every_failure_of_a_call_is_an_nvml_error(
    failure: Exception, slug: str, code: int | None, reason: str | None
) -> None:
    binding = Binding(FakeNvml(nvmlDeviceGetName=failure))

    with pytest.raises(NvmlError) as caught:
        binding.ask("nvmlDeviceGetName", "handle")

    failed = caught.value
    assert (failed.slug, failed.code, failed.function) == (slug, code, "nvmlDeviceGetName")
    assert reason is None or failed.reason() == reason
    assert binding.calls == 1


def test_a_function_that_the_binding_lacks() -> None:
    binding = Binding(FakeNvml())

    with pytest.raises(NvmlError) as caught:
        binding.ask("nvmlDeviceGetSomethingNew")

    assert caught.value.slug == "binding-too-old"
    assert binding.calls == 0


@pytest.mark.parametrize(
    ("code", "asked"),
    [
        (13, ["new", "old", "old"]),  # the library lacks it: never asked again
        (25, ["new", "old", "old"]),
        (3, ["new", "old", "new", "old"]),  # this GPU lacks it: another may have it
        (999, ["new", "new"]),  # it failed: the older form would not help
    ],
)
def test_the_newest_form_is_asked_first_and_remembered(code: int, asked: list[str]) -> None:
    nvml = FakeNvml(new=error(code), old=7)
    binding = Binding(nvml)
    forms = (("new", ()), ("old", ()))

    for _ in range(2):
        try:
            binding.ask_newest("key", forms, "handle")
        except NvmlError as failed:
            if failed.code != 999:
                raise

    assert nvml.calls == asked


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("00000000:1A:00.0", "0000:1a:00.0"),
        ("0000:1A:00.0", "0000:1a:00.0"),
        ("00010000:0F:00.0", "10000:0f:00.0"),
        ("0000000A:FF:1F.7", "000a:ff:1f.7"),
    ],
)
def test_bus_ids_in_the_kernels_form(given: str, expected: str) -> None:
    assert kernel_bus_id(given) == expected
