"""Every kind of mistake in a profile: its code, its line, and a fix that says what to do."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucheck.bench.ci.profile_model import Problem
from gpucheck.bench.ci.profiles import lint, parse_profile, read_profile
from gpucheck.report.errors import WrongUseError
from gpucheck.version import __version__
from tests.architecture.house import ROOT
from tests.report.formats.recorded import in_lines, recorded

GOOD = """\
[profile]
schema = 1
name = "nodes"
version = 3
description = "our nodes"
requires_gpucheck = "0.0.1"

[match]
device = "gpu"
pci_device_ids = ["2330"]
names = ["NVIDIA H100*"]
count = 8
mig = false
min_driver = "535"

[inventory]
memory_total_gib = 79
ecc = true
pcie_generation = 5
pcie_width = 16
nvlink_links = 18
power_limit_w = 700
identical_gpus = true

[run]
mode = "quick"
size = 8192
seconds = 10
processes = 5
max_processes = 10
data = "normal"
alone = true
together = true
corruption_seconds = 5

[[check]]
kernel = "matmul"
id = "matmul-bfloat16"
dtype = "bfloat16"
variant = "cublas"
value = 795
unit = "TFLOP/s"
tolerance_percent = 7
warn_percent = 3
source = "a fleet of 40 nodes"
date = "2026-11-21"

[[check]]
id = "copy"
kernel = "copy"
percent_of_peak = 80
tolerance_percent = 5
source = "a fleet of 40 nodes"
date = 2026-11-21

[[check]]
id = "softmax"
kernel = "softmax"
baseline = true
tolerance_percent = 5

[stability]
max_temperature_c = 85
straggler_percent = 5
spread_percent = 10
new_ecc_uncorrected = 0
corruption = 0
[stability.throttle_s]
hardware-thermal = 0
"""

#: What is replaced, by what, the mistake's code, the text of its line, and a part of its fix.
MISTAKES = [
    ("[profile]\n", "[profil]\n", "missing-table", None, "[profile]"),
    ("[stability]\n", "[stabilty]\n", "unknown-table", "[stabilty]", "Did you mean 'stability'?"),
    ("seconds = 10", "secnods = 10", "unknown-key", "secnods", "Did you mean 'seconds'?"),
    ("version = 3\n", "", "missing-key", "[profile]", "version = 1"),
    ("version = 3", 'version = "three"', "wrong-type", "version = ", "version = 1"),
    ("ecc = true", "ecc = 1", "wrong-type", "ecc = 1", "ecc = true"),
    ("count = 8", "count = 0", "out-of-range", "count = 0", "between 1 and"),
    ("seconds = 10", "seconds = nan", "out-of-range", "seconds = nan", "between 0.5"),
    ("schema = 1", "schema = 2", "newer-schema", "schema = 2", "newer gpucheck"),
    ('name = "nodes"', 'name = "Our Nodes"', "bad-name", "Our Nodes", "a-z"),
    ('"0.0.1"', '"99.0"', "newer-gpucheck", "99.0", "newer gpucheck"),
    ('"0.0.1"', '"soon"', "bad-version", "soon", "0.1.0"),
    ('"535"', '"R535"', "bad-version", "R535", "580.95.05"),
    ('["2330"]', '["0x2330"]', "bad-device-id", "0x2330", "four hexadecimal digits"),
    ("max_processes = 10", "max_processes = 4", "contradiction", "max_processes", "larger"),
    ("corruption_seconds = 5\n", "", "never-measured", "[run]", "corruption_seconds = 5"),
    ("straggler_percent = 5", "healthy_spread_percent = 2", "contradiction", "healthy_spread",
     "straggler_percent = 5"),
    ("straggler_percent = 5", "straggler_percent = 5\nhealthy_spread_percent = 30", "out-of-range",
     "= 30", "between 0.1"),
    ('mode = "quick"', 'mode = "quik"', "unknown-choice", "quik", "Did you mean 'quick'?"),
    ('id = "copy"', 'id = "softmax"', "twice", 'id = "softmax"', "its own"),
    ('id = "copy"', 'id = "copy!"', "bad-name", "copy!", "a-z"),
    ('kernel = "copy"', 'kernel = "cpoy"', "unknown-kernel", "cpoy", "Did you mean 'copy'?"),
    ('"bfloat16"', '"bfloat"', "unknown-dtype", '"bfloat"', "Did you mean 'bfloat16'?"),
    ('kernel = "copy"', 'kernel = "copy"\ndtype = "bfloat16"', "unknown-dtype", '"bfloat16"',
     "Choose from"),
    ("baseline = true\n", "", "no-expectation", 'id = "softmax"', "baseline = true"),
    ("value = 795", "value = 795\nbaseline = true", "two-expectations", "baseline", "keep one"),
    ('unit = "TFLOP/s"\n', "", "no-unit", "value = 795", "unit ="),
    ('unit = "TFLOP/s"', 'unit = "GB/s"', "wrong-unit", "GB/s", "Choose from"),
    ('unit = "TFLOP/s"', 'unit = "TFLOPS"', "wrong-unit", "TFLOPS", "Did you mean 'TFLOP/s'?"),
    ("value = 795", "value = 0", "out-of-range", "value = 0", "between 1e-30"),
    ("percent_of_peak = 80", "percent_of_peak = 0", "out-of-range", "= 0", "between 0.1"),
    ("percent_of_peak = 80", 'percent_of_peak = { "H100 SMX" = 80 }', "unknown-board", "SMX",
     "Did you mean 'H100 SXM'?"),
    ("tolerance_percent = 7\n", "", "missing-key", "[[check]]", "tolerance_percent = 5"),
    ("tolerance_percent = 7", "tolerance_percent = 100", "out-of-range", "= 100", "between 0"),
    ('together = true\ncorruption_seconds = 5\n\n[[check]]\nkernel',
     'corruption_seconds = 5\n\n[[check]]\ntogether = true\nkernel', "never-measured", "together",
     "together = true in [run]"),
    ("alone = true", "alone = false", "never-measured", "[[check]]", "alone = true"),
    ('"2026-11-21"', '"21.11.2026"', "bad-date", "21.11.2026", "2026-11-21"),
    ("warn_percent = 3", 'direction = "lower"', "contradiction", "direction", "remove it"),
    ("warn_percent = 3", 'metric = "fact"', "no-fact", "metric", "fact ="),
    ("warn_percent = 3", 'fact = "accuracy"', "contradiction", "fact =", "metric = "),
    ("warn_percent = 3", 'on_missing = "pass"', "unknown-choice", "on_missing", "fail"),
    ("warn_percent = 3", 'device = "cpu"', "other-device", "device", "gpu"),
    ("baseline = true", 'baseline = true\nphase = "steady"', "not-in-baseline", "phase", "whole"),
    ('kernel = "copy"', 'kernel = "transfer"', "no-peak", "percent_of_peak", "baseline"),
    ("hardware-thermal = 0", "hardware-termal = 0", "unknown-reason", "termal",
     "Did you mean 'hardware-thermal'?"),
    ("max_temperature_c = 85", "max_temperature_c = 500", "out-of-range", "= 500", "between 20"),
    ("[run]\n", "[[run]]\n", "wrong-type", "[[run]]", "[run]"),
    ("warn_percent = 3", 'framework = "torch"', "unknown-framework", "framework", "pytorch"),
    ("warn_percent = 3", 'form = "eager"', "contradiction", "form", "framework"),
    ("baseline = true", 'baseline = true\nframework = "pytorch"\nform = "compiled"',
     "unknown-form", "form =", "torch.compile"),
]  # fmt: skip


def mistakes_in(text: str) -> tuple[Problem, ...]:
    return lint(*parse_profile(text, "p.toml"))


def test_a_good_profile_has_no_mistake() -> None:
    profile, problems = parse_profile(GOOD, "p.toml")

    assert lint(profile, problems) == ()
    assert [check.id for check in profile.checks] == ["matmul-bfloat16", "copy", "softmax"]


@pytest.mark.parametrize(
    ("old", "new", "code", "at", "mend"),
    MISTAKES,
    ids=[f"{case[2]}: {case[1][:30].strip()!r}" for case in MISTAKES],
)
def test_each_mistake_is_found_at_its_line_with_a_mend(
    old: str, new: str, code: str, at: str | None, mend: str
) -> None:
    assert old in GOOD
    text = GOOD.replace(old, new, 1)

    found = mistakes_in(text)

    mistakes = [one for one in found if one.code == code]
    assert mistakes, [(one.code, one.message) for one in found]
    assert any(mend in one.mend for one in mistakes), [one.mend for one in mistakes]
    if at is not None:
        lines = [number for number, line in enumerate(text.split("\n"), start=1) if at in line]
        assert any(one.line in lines for one in mistakes), [one.line for one in mistakes]


#: Further mistakes.
OTHERS = [
    ("percent_of_peak = 80", "value = 2600"),
    ('kernel = "copy"', 'kernel = "copy"\nscope = "end-to-end"'),
    ("schema = 1", "schema = 1000001"),
    ('device = "gpu"', 'device = "cpu"'),
    ("count = 8", "count = 1025"),
]  # fmt: skip

#: What a run shows by its verdict: limits that no board misses or reaches, rows that it lacks.
ALLOWED = [
    ('pci_device_ids = ["2330"]\nnames = ["NVIDIA H100*"]\n', ""),
    ('["2330"]\nnames = ["NVIDIA H100*"]', '["abcd"]'),
    ("H100*", "A100*"),
    ("memory_total_gib = 79", "memory_total_gib = 8"),
    ("\nprocesses = 5", "\nprocesses = 1"),
    ("count = 8", "count = 1"),
    ("value = 795", "value = 3000"),
    ("percent_of_peak = 80", 'percent_of_peak = { "L4" = 80 }'),
    ("tolerance_percent = 7", "tolerance_percent = 60"),
    ('source = "a fleet of 40 nodes"\ndate = "2026-11-21"\n', ""),
    ('kernel = "softmax"', 'kernel = "p2p"'),
    ("baseline = true", 'baseline = true\nframework = "pytorch"\nform = "torch.compile"'),
]  # fmt: skip


@pytest.mark.parametrize(("old", "new"), ALLOWED)
def test_what_a_good_limit_is_stays_with_the_author(old: str, new: str) -> None:
    assert old in GOOD

    assert mistakes_in(GOOD.replace(old, new, 1)) == ()


def test_every_mistake_is_told_as_recorded() -> None:
    text = ""
    for old, new, *_ in (*MISTAKES, *OTHERS):
        assert old in GOOD
        text += f"## {old!r} -> {new!r}\n"
        text += in_lines(mistakes_in(GOOD.replace(old, new, 1)))
    text = text.replace(__version__, "VERSION")

    assert text == recorded("profile-mistakes", text)


@pytest.mark.parametrize("form", ["", 'form = "torch.compile"\n'])
def test_a_check_may_name_a_framework_and_its_form(form: str) -> None:
    more = f'baseline = true\nframework = "pytorch"\n{form}'
    text = GOOD.replace("baseline = true", more).replace('"quick"', '"default"')

    profile, problems = parse_profile(text, "p.toml")

    assert lint(profile, problems) == ()
    assert profile.frameworks == ("pytorch",)


def test_there_are_more_than_twenty_kinds() -> None:
    assert len({code for _, _, code, _, _ in MISTAKES}) >= 20


def test_all_mistakes_are_told_at_once_by_line() -> None:
    text = GOOD.replace("count = 8", "count = 0").replace("TFLOP/s", "TFLOPS")

    found = mistakes_in(text)

    assert {"out-of-range", "wrong-unit"} <= {one.code for one in found}
    lines = [one.line or 0 for one in found]
    assert lines == sorted(lines)


@pytest.mark.parametrize(
    "demand", ["[inventory]\necc = true\n", "[stability]\nspread_percent = 3\n"]
)
def test_a_processors_profile_asks_for_no_gpu(demand: str) -> None:
    text = f'[profile]\nschema = 1\nname = "x"\nversion = 1\n[match]\ndevice = "cpu"\n{demand}'

    assert "gpu-key-for-cpu" in {one.code for one in mistakes_in(text)}


@pytest.mark.parametrize(
    ("text", "line"),
    [("[profile\n", 1), ('[profile]\nname = "a\n', 2), ("a = 1\na = 2\n", 2), ("x = \n", 1)],
)
def test_what_is_not_toml_names_its_line(text: str, line: int) -> None:
    with pytest.raises(WrongUseError, match=rf"p\.toml:{line}: "):
        mistakes_in(text)


@given(st.text(alphabet="[]={}\"'#.\n abcheck0123-_profile", max_size=120))
def test_any_text_is_judged_or_refused_with_a_sentence(text: str) -> None:
    problems: tuple[Problem, ...] = ()
    with contextlib.suppress(WrongUseError):
        problems = mistakes_in(text)
        assert problems
    assert all(one.message and one.mend for one in problems)


@given(
    st.dictionaries(
        st.sampled_from(
            [
                "value",
                "id",
                "dtype",
                "baseline",
                "unit",
                "percent_of_peak",
                "tolerance_percent",
                "date",
                "parameters",
                "per",
            ]
        ),
        st.sampled_from(
            ["1", "-1", "true", '"x"', "[]", "{}", "1e300", "nan", "inf", "2026-01-01"]
        ),
    )
)
def test_any_value_in_a_check_is_judged(values: dict[str, str]) -> None:
    lines = "\n".join(f"{key} = {value}" for key, value in values.items())
    text = f'[profile]\nschema = 1\nname = "x"\nversion = 1\n[[check]]\nkernel = "copy"\n{lines}\n'

    found = mistakes_in(text)

    assert all(one.mend for one in found)


@pytest.mark.parametrize(
    "path", sorted((ROOT / "configs" / "bench").glob("*.toml")), ids=lambda path: path.stem
)
def test_what_comes_with_the_program_has_no_mistake(path: Path) -> None:
    profile, problems = read_profile(path)

    assert lint(profile, problems) == ()
    assert profile.name == path.stem


def test_an_empty_head_lacks_its_keys() -> None:
    found = mistakes_in("[profile]\n[inventory]\necc = true\n")

    missing = [one.where for one in found if one.code == "missing-key"]
    assert missing == ["profile.name", "profile.schema", "profile.version"]


@pytest.mark.parametrize("number", [10**400, -(10**400)], ids=["large", "small"])
def test_a_number_that_no_computer_holds_is_out_of_range(number: int) -> None:
    found = mistakes_in(GOOD.replace("count = 8", f"count = {number}"))

    (mistake,) = [one for one in found if one.code == "out-of-range"]
    shown = "inf" if number > 0 else "-inf"
    assert mistake.message == f"count = {shown} is not between 1 and 1024"


def test_parameters_are_texts_and_numbers() -> None:
    at = 'kernel = "softmax"'
    text = GOOD.replace(at, f'{at}\nparameters = {{ a = "x", b = 0.5, c = 2 }}')
    kept, problems = parse_profile(text, "p.toml")
    refused = mistakes_in(GOOD.replace(at, f"{at}\nparameters = {{ d = true, e = [1] }}"))

    assert lint(kept, problems) == ()
    assert kept.checks[-1].parameters == {"a": "x", "b": 0.5, "c": 2}
    wrong = {one.where for one in refused if one.code == "wrong-type"}
    assert wrong == {"check[2].parameters.d", "check[2].parameters.e"}
