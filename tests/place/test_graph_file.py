"""Graph files: what is read of them, and the line that every error names."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucheck.drivers.host.toml_file import find_lines
from gpucheck.place.graph import Graph, OpKind
from gpucheck.place.graph_file import parse_graph, read_graph
from gpucheck.report.errors import WrongUseError
from tests.architecture.house import ROOT

GOOD = """\
description = "two layers"
fetch = "out"

[x]
op = "constant"
shape = [2, 3]
value = [
  [1, 2, 3],
  [4, 5, 6],
]

[w]
op = "constant"
shape = [3, 2]
value = 0.5

[out]  # written before what it needs
op = "softmax"
inputs = ["hidden"]
temperature = 2.0

[hidden]
op = "relu"
inputs = ["product"]

[product]
op = "matmul"
inputs = ["x", "w"]
device = "/gpu:0"

[all]
op = "sum"
inputs = ["out"]
axis = 0
"""


def parse(text: str) -> Graph:
    return parse_graph(text, "g.toml")


def complaint(text: str) -> str:
    with pytest.raises(WrongUseError) as caught:
        parse(text)
    assert caught.value.message.isprintable()
    return " ".join((caught.value.message, *caught.value.remedy))


def test_a_whole_graph() -> None:
    graph = parse(GOOD)
    ops = {op.name: op for op in graph.ops}

    assert [op.name for op in graph.ops] == ["x", "w", "product", "hidden", "out", "all"]
    assert graph.fetch == "out"
    assert ops["x"].values == (1, 2, 3, 4, 5, 6)
    assert ops["w"].values == (0.5,)
    assert ops["product"].shape == (2, 2)
    assert ops["product"].device == "/gpu:0"
    assert ops["hidden"].device is None
    assert (ops["out"].temperature, ops["out"].line) == (2.0, 17)
    assert ops["all"].shape == (2,)


def test_the_last_operation_is_the_result() -> None:
    assert parse("[a]\nop = 'constant'\nvalue = 1\n[b]\nop='relu'\ninputs=['a']").fetch == "b"


def add(one: str, other: str) -> str:
    head = "[a]\nop='constant'\nvalue=1\nshape=%s\n[b]\nop='constant'\nvalue=1\nshape=%s\n"
    return head % (one, other) + "[c]\nop = 'add'\ninputs = ['a', 'b']\n"


@pytest.mark.parametrize(
    ("one", "other", "shape"),
    [
        ("[2,3]", "[2,3]", (2, 3)),
        ("[2,3]", "[3]", (2, 3)),
        ("[2,1]", "[1,5]", (2, 5)),
        ("[]", "[4]", (4,)),
    ],
)
def test_add_broadcasts_as_numpy_does(one: str, other: str, shape: tuple[int, ...]) -> None:
    (last,) = [op for op in parse(add(one, other)).ops if op.kind is OpKind.ADD]

    assert last.shape == shape


X = "[x]\nop = 'constant'\nshape = [2, 3]\nvalue = 1\n"


@pytest.mark.parametrize(
    ("text", "line", "why"),
    [
        ("", None, "no operation"),
        ("[a\n", 1, "Expected"),
        ("[a]\nop = 'relu'\n[a]\n", 3, "twice"),
        ("\n\n[a]\n", 3, "op is missing"),
        ("[a]\nop = 'conv'", 2, "'conv' is not a choice for op"),
        ("[a]\nop = 7", 2, "'7' is not a choice for op"),
        ("a = 1", 1, "write a table"),
        ('["a b"]\nop="relu"', 1, "letters, digits"),
        (
            X + "[b]\nop = 'relu'\n\ninput = ['x']",
            8,
            "there is no key 'input' here. Did you mean 'inputs'?",
        ),
        (X + "[b]\nop = 'relu'", 5, "inputs is missing"),
        (X + "[b]\nop = 'relu'\ninputs = ['x', 'x']", 7, "takes 1 input, not 2"),
        (X + "[b]\nop = 'matmul'\ninputs = ['x']", 7, "takes 2 inputs, not 1"),
        (X + "[b]\nop = 'matmul'\ninputs = ['x', 'x', 'x']", 7, "takes 2 inputs, not 3"),
        (X + "[b]\nop = 'add'\ninputs = ['x']", 7, "takes 2 or more inputs"),
        (X + "[b]\nop = 'relu'\ninputs = ['y']", 7, "y is not an operation"),
        (X + "[b]\nop = 'matmul'\ninputs = ['x', 'x']", 7, "cannot multiply 2x3 by 2x3"),
        (X + "[b]\nop = 'softmax'\ninputs = ['x']\ntemperature = 0", 8, "above 0"),
        (X + "[b]\nop = 'softmax'\ninputs = ['x']\ntemperature = nan", 8, "above 0"),
        (X + "[b]\nop = 'sum'\ninputs = ['x']\naxis = 2", 8, "the shape 2x3 has no axis 2"),
        (X + "[b]\nop = 'sum'\ninputs = ['x']\naxis = 0.5", 8, "whole number"),
        (X + "device = '/gpu:x'", 5, "invalid literal"),
        (X + "device = 7", 5, "device must be a string"),
        ("fetch = 'y'\n" + X, 1, "fetch does not name an operation"),
        (add("[2,3]", "[2]"), 11, "cannot add the shapes 2x3, 2"),
        ("[a]\nop = 'constant'\nvalue = [[1, 2], [3]]", 3, "different lengths"),
        ("[a]\nop = 'constant'\nvalue = []", 3, "different lengths"),
        ("[a]\nop = 'constant'\nvalue = [1, 2]\nshape = [3]", 3, "shape 2, but shape says 3"),
        ("[a]\nop = 'constant'\nvalue = 'x'", 3, "numbers"),
        ("[a]\nop = 'constant'\nvalue = [true]", 3, "numbers"),
        ("[a]\nop = 'constant'\nvalue = [[], []]", 3, "no numbers"),
        ("[a]\nop = 'constant'\nvalue = 3.4e38", 3, "float32"),
        ("[a]\nop = 'constant'\nvalue = [-inf]", 3, "float32"),
        ("[a]\nop = 'constant'\nshape = [2]", 1, "needs a value"),
        ("[a]\nop = 'constant'\nvalue = 1\nshape = [0]", 4, "whole numbers above 0"),
        ("[a]\nop = 'constant'\nvalue = 1\nshape = [99999, 99999]", 4, "at most"),
        ("[a]\nop = 'constant'\nvalue = " + "[" * 9 + "]" * 9, 3, "different lengths"),
        (
            "[a]\nop='relu'\ninputs=['c']\n[b]\nop='relu'\ninputs=['a']\n[c]\nop='relu'\n"
            "inputs=['b']\n",
            3,
            "a -> c -> b -> a",
        ),
        ("[a]\nop = 'relu'\ninputs = ['a']", 3, "a -> a"),
        ("\n[[a]]\nop = 'constant'\nvalue = 1", 2, "write a table [a]"),
        ("a = []", 1, "write a table [a]"),
        ("\n[a.b]\nop = 'constant'\nvalue = 1", 2, 'write ["a.b"]'),
        ("a = {}", 1, "op is missing"),
    ],
)
def test_an_error_names_its_line(text: str, line: int | None, why: str) -> None:
    said = complaint(text)

    where = "g.toml:" if line is None else f"g.toml:{line}: "
    assert said.startswith(where)
    assert why in said


def test_lines_are_not_confused_by_lists_and_long_texts() -> None:
    text = 'd = """\n[no]\nop = 1\n"""\n[a]\nvalue = [\n  [1],\n  ["]"],\n]\nop = 2\n'

    assert find_lines(text) == {("d", ""): 1, ("a", ""): 5, ("a", "value"): 6, ("a", "op"): 10}


@pytest.mark.parametrize(
    ("content", "why"),
    [(b"\xff", ":1 cannot be read: it is not UTF-8"), (b"x" * (1 << 20) + b"x", "larger")],
)
def test_files_that_cannot_be_read(tmp_path: Path, content: bytes, why: str) -> None:
    path = tmp_path / "g.toml"
    path.write_bytes(content)

    with pytest.raises(WrongUseError, match=why):
        read_graph(path)


@pytest.mark.parametrize("name", [".", "nothing", "a\0b"])
def test_what_is_no_file(tmp_path: Path, name: str) -> None:
    with pytest.raises(WrongUseError, match=r"a directory|no such file|null"):
        read_graph(tmp_path / name)


def test_a_name_without_its_path_gets_the_example(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)

    with pytest.raises(WrongUseError) as caught:
        read_graph(Path("manual-cpu"))

    assert caught.value.message == (
        "The graph manual-cpu cannot be read: there is no such file."
        " Did you mean 'configs/place/manual-cpu.toml'?"
    )


#: Pieces that get past the parser more often than random text does.
PIECES = st.sampled_from(
    [
        "[a]\n",
        "[b]\n",
        "[c.d]\n",
        "op = 'constant'\n",
        "op = 'matmul'\n",
        "op = 'sum'\n",
        "op='add'\n",
        "inputs = ['a']\n",
        "inputs = ['a', 'b']\n",
        "value = 1\n",
        "shape = [2, 2]\n",
        "value = [[1, 2], [3, 4]]\n",
        "device = 'auto'\n",
        "device = '/gpu:0'\n",
        "axis = 1\n",
        "temperature = 0.5\n",
        "fetch = 'a'\n",
        "value = {x = 1}\n",
        "value = 1979-05-27\n",
        "shape = [1e9]\n",
        "[[a]]\n",
        "op = []\n",
        "op = {}\n",
        "\0",
        "\u2028",
    ]
)


@given(st.text() | st.lists(PIECES, max_size=12).map("".join))
def test_any_text_is_a_graph_or_wrong_use(text: str) -> None:
    with contextlib.suppress(WrongUseError):
        graph = parse(text)
        assert graph.fetch in {op.name for op in graph.ops}


@given(st.binary(max_size=200))
def test_any_file_is_a_graph_or_wrong_use(content: bytes) -> None:
    import tempfile

    with tempfile.NamedTemporaryFile() as file:
        file.write(content)
        file.flush()
        with contextlib.suppress(WrongUseError):
            read_graph(Path(file.name))


@pytest.mark.parametrize("text", ["[a]\nop = " + "[" * 5000, "a = 1" + "0" * 10_000])
def test_text_that_breaks_parsers(text: str) -> None:
    complaint(text)


def test_a_constant_has_at_most_four_dimensions() -> None:
    four, five = (
        f"[a]\nop = 'constant'\nvalue = 1\nshape = [{', '.join('2' * count)}]" for count in (4, 5)
    )

    assert parse(four).ops[0].shape == (2, 2, 2, 2)
    assert "at most 4 whole numbers" in complaint(five)


def test_nested_lists_have_at_most_four_dimensions() -> None:
    four, five = (
        f"[a]\nop = 'constant'\nvalue = {'[' * depth}1, 2{']' * depth}" for depth in (4, 5)
    )

    assert parse(four).ops[0].shape == (1, 1, 1, 2)
    assert "different lengths" in complaint(five)


def test_what_is_allowed_at_most_is_allowed() -> None:
    square, column = [8192, 16384], [[16384, 1], [1, 8193]]
    ops = "".join(f"[a{number}]\nop = 'constant'\nvalue = 1\n" for number in range(1000))

    assert len(parse(ops).ops) == 1000
    assert "more than 1000" in complaint(ops + "[b]\nop = 'constant'\nvalue = 1\n")
    assert parse(f"[a]\nop = 'constant'\nvalue = 1\nshape = {square}").ops[0].shape == (8192, 16384)
    assert parse(add("[16384, 1]", "[1, 8192]")).ops[-1].shape == (16384, 8192)
    assert "more than 134217728" in complaint(add(*map(str, column)))
