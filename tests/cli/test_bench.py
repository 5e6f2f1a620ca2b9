"""Options that a profile or a burn has no use for are refused and never silently dropped."""

from __future__ import annotations

import pytest

from gpucheck.bench.request_model import BenchMode, BenchRequest, Fill, SampleDetail
from gpucheck.cli import main
from gpucheck.cli.bench import check_burn_options, check_peaks_options, check_profile_options
from gpucheck.report.errors import WrongUseError


def test_a_plain_request_goes_with_a_profile() -> None:
    request = BenchRequest(devices=("gpu:1",), samples=SampleDetail.SUMMARY)

    check_profile_options(request, corruption=0.0, processes=None, burn=None)


@pytest.mark.parametrize(
    ("request_", "named"),
    [
        (BenchRequest(mode=BenchMode.QUICK), "--quick and --full"),
        (BenchRequest(seed=3), "--seed"),
        (BenchRequest(budget_s=0.0), "--budget"),
        (BenchRequest(kernels=("copy",), size=4), "the kernels, --size"),
    ],
)
def test_what_the_profile_decides_is_refused(request_: BenchRequest, named: str) -> None:
    with pytest.raises(WrongUseError, match=f"omit {named}"):
        check_profile_options(request_, corruption=0.0)


def test_a_burn_with_a_profile_is_refused() -> None:
    with pytest.raises(WrongUseError, match="omit --burn"):
        check_profile_options(BenchRequest(), burn=10.0)


def test_a_burn_takes_its_product_and_its_devices() -> None:
    request = BenchRequest(devices=("gpu:1",), size=64, seed=1, fill=Fill.ZEROS)

    check_burn_options(request, corruption=0.0, save=None)


@pytest.mark.parametrize(
    ("request_", "more", "named"),
    [
        (BenchRequest(kernels=("softmax",)), {}, "the kernels"),
        (BenchRequest(dtypes=("int8",), size=64), {}, "--dtype"),
        (BenchRequest(), {"corruption": 5.0}, "--corruption"),
        (BenchRequest(), {"save": "run.json"}, "--save"),
        (BenchRequest(), {"processes": 3}, "--processes"),
    ],
)
def test_a_burn_refuses_the_options_that_it_has_no_use_for(
    request_: BenchRequest, more: dict[str, object], named: str
) -> None:
    with pytest.raises(WrongUseError, match=f"omit {named}") as caught:
        check_burn_options(request_, **more)

    assert "--size" in caught.value.remedy[0]


def test_peaks_take_dtypes() -> None:
    check_peaks_options(BenchRequest(dtypes=("int8",)), peaks=True, save=None, corruption=0.0)


@pytest.mark.parametrize(
    ("request_", "more", "named"),
    [
        (BenchRequest(kernels=("copy",), dtypes=("int8",)), {}, "the kernels."),
        (BenchRequest(), {"burn": 2.0, "save": "run.json"}, "--burn, --save."),
    ],
)
def test_peaks_refuse_what_measures(
    request_: BenchRequest, more: dict[str, object], named: str
) -> None:
    with pytest.raises(WrongUseError, match=f"omit {named}"):
        check_peaks_options(request_, peaks=True, **more)


def test_a_sweep_is_answered_with_the_option_for_a_size(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["bench", "--sweep"]) == 2

    said = capsys.readouterr().err
    assert "No such option: --sweep. One run measures one size: --size N." in said
    assert "--seed" not in said
