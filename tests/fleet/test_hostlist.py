"""Lists of hosts in Slurm's notation: written out, folded, and refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucheck.fleet import hostlist
from gpucheck.fleet.hostlist import MOST_HOSTS, expand, fold, read_expected
from gpucheck.report.errors import WrongUseError
from gpucheck.report.text import printable


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("a", "a"),
        ("a,b", "a b"),
        (" a , b ", "a b"),
        ("a[1-3]", "a1 a2 a3"),
        ("a[08-11]", "a08 a09 a10 a11"),
        ("a[01-02,10]", "a01 a02 a10"),
        ("r[1-2]n[1-2]", "r1n1 r1n2 r2n1 r2n2"),
        ("a[1-2]-ib.local,c", "a1-ib.local a2-ib.local c"),
        ("a,a,a[1-1],a1", "a a1"),
        ("10.0.0.[1-2]", "10.0.0.1 10.0.0.2"),
        ("", ""),
    ],
)
def test_list_is_written_out(text: str, hosts: str) -> None:
    assert list(expand(text)) == hosts.split()


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        *((text, "its brackets do not match") for text in ("a[", "a]", "a[[1]]", "a[1", "a]1[")),
        ("a[]", "[] is no range such as [01-16,20]"),
        ("a[1-]", "[1-] is no range such as [01-16,20]"),
        (f"a[{'x' * 70}]", f"[{'x' * 60}] is no range such as [01-16,20]"),
        ("a[3-1]", "the range 3-1 runs backwards"),
        ("a b", "'a b' is no name of a host"),
        ("a;b", "'a;b' is no name of a host"),
        ("ä", "'ä' is no name of a host"),
        (f"a,{'ö' * 70}", f"'{'ö' * 60}' is no name of a host"),
        ("a\x00", "'a\\\\x00' is no name of a host"),
    ],
)
def test_malformed_list_is_refused(text: str, problem: str) -> None:
    with pytest.raises(WrongUseError) as caught:
        expand(text)
    assert caught.value.code == "bad-hostlist"
    assert caught.value.message.isprintable()
    assert caught.value.message.startswith(f"The list of hosts {printable(text[:60])!r} cannot be")
    assert caught.value.message.endswith(f" read: {problem}.")


@pytest.mark.parametrize(
    "text", ["a[1-999999999]", "a[1-99999]b[1-99999]", "a[1-99999,1-99999,1-3]"]
)
def test_bomb_is_refused_before_it_is_written_out(text: str) -> None:
    with pytest.raises(WrongUseError, match=str(MOST_HOSTS)):
        expand(text)


def test_all_parts_together_name_no_more_than_one_may(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hostlist, "MOST_HOSTS", 10)

    assert len(expand("a[1-5],b[1-5],a1")) == 10
    assert len(expand("a[1-10]")) == len(expand("a[1-5]b[1-2]")) == 10
    with pytest.raises(WrongUseError):
        expand("a[1-5],b[1-6]")
    with pytest.raises(WrongUseError):  # they would all be one host, after any time
        expand("a[1,1,1,1]b[1,1,1]")


@pytest.mark.parametrize(
    ("hosts", "text"),
    [
        ("a", "a"),
        ("a1 a2 a3 a5", "a[1-3,5]"),
        ("a09 a10 a11", "a[09-11]"),
        ("a9 a10", "a[9-10]"),
        ("a1", "a1"),
        ("r1n1 r1n2 r2n1", "r1n[1-2],r2n1"),
        ("", ""),
    ],
)
def test_hosts_are_folded(hosts: str, text: str) -> None:
    assert fold(hosts.split()) == text


@given(st.sets(st.from_regex(r"[a-z]{0,2}[0-9]{0,3}[a-z]{0,1}", fullmatch=True), max_size=30))
def test_folding_loses_no_host(names: set[str]) -> None:
    names.discard("")
    assert set(expand(fold(names))) == names


def test_a_file_of_hosts_names_no_more_than_one_may(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hostlist, "MOST_HOSTS", 10)
    path = tmp_path / "hosts"
    path.write_text(f"a[1-9] {'r' * 150}\nb\n")

    found = read_expected(f"@{path}")

    assert len(found) == 10
    assert found == {f"a{number}": "r" * 100 for number in range(1, 10)} | {"b": None}
    path.write_text("a[1-9]\nb[1-2]\n")
    with pytest.raises(WrongUseError, match="more than 10 hosts"):
        read_expected(f"@{path}")
