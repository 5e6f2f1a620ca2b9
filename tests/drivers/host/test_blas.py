from __future__ import annotations

import subprocess
import sys
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import pytest

from gpucheck.drivers.host.blas import Blas, BlasFacts
from tests.conftest import scrubbed_environment


@pytest.fixture(name="facts")
def _facts() -> BlasFacts:
    facts = Blas().read()
    if facts is None:
        pytest.skip("threadpoolctl knows no BLAS in this NumPy")
    return facts


def test_the_loaded_blas_is_named(facts: BlasFacts) -> None:
    assert facts.name
    assert facts.threads >= 1


def test_a_limit_holds_inside_and_ends_outside(facts: BlasFacts) -> None:
    blas = Blas()

    with blas.limited(1):
        inside = blas.read()

    assert inside is not None
    assert inside.threads == 1
    assert blas.read() == facts


class Controller:
    """What threadpoolctl has found, by default nothing."""

    lib_controllers: tuple[object, ...] = ()

    def __init__(self, *found: dict[str, object]) -> None:
        self._found = found

    def info(self) -> list[dict[str, object]]:
        return list(self._found)


def test_the_loaded_blas_keeps_to_one_thread_where_that_is_its_limit(facts: BlasFacts) -> None:
    assert Blas().keeps_to_one


class Unlimited(Controller):
    """A BLAS that goes on with all of its threads."""

    lib_controllers = (object(),)

    def __init__(self, threads: int) -> None:
        super().__init__({"user_api": "blas", "internal_api": "blis", "num_threads": threads})

    def limit(self, **_: object) -> AbstractContextManager[None]:
        return nullcontext()


@pytest.mark.parametrize("controller", [Unlimited(2), Controller()], ids=["ignores it", "unknown"])
def test_a_limit_without_effect_is_noticed(
    controller: Controller, monkeypatch: pytest.MonkeyPatch
) -> None:
    import numpy

    monkeypatch.setattr(numpy, "show_config", lambda mode: {})
    blas = Blas()
    monkeypatch.setattr(blas, "_controller", controller)

    assert not blas.keeps_to_one


def test_without_a_blas_there_is_nothing_to_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    blas = Blas()
    monkeypatch.setattr(blas, "_controller", Controller())

    assert blas.read() is None
    with blas.limited(3):
        pass


@pytest.mark.parametrize(
    ("built_with", "name"),
    [
        ({"name": "blas", "found": True}, "netlib"),
        ({"name": "none"}, "none"),
        ({"name": "armpl", "found": True}, None),
        (None, None),
    ],
)
def test_what_has_no_threads_is_named_as_numpy_was_built(
    built_with: dict[str, object] | None, name: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    blas = Blas()
    monkeypatch.setattr(blas, "_controller", Controller())
    found = {} if built_with is None else {"blas": built_with}
    monkeypatch.setattr("numpy.show_config", lambda mode: {"Build Dependencies": found})

    facts = blas.read()

    assert (facts and facts.name) == name


def test_flexiblas_with_the_reference_blas_behind_it_is_that(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    entry = {"user_api": "blas", "internal_api": "flexiblas", "num_threads": 1}
    blas = Blas()
    monkeypatch.setattr(blas, "_controller", Controller({**entry, "current_backend": "NETLIB"}))

    facts = blas.read()

    assert facts is not None
    assert facts.name == "netlib"


PROGRAM = """
import os, sys
sys.path.insert(0, sys.argv[1])
asked = []
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "numpy":
            asked.append(os.environ.get("OPENBLAS_THREAD_TIMEOUT"))
sys.meta_path.insert(0, Finder())
from gpucheck.drivers.host.blas import load_numpy
load_numpy()
import numpy
print(asked, os.environ.get("OPENBLAS_THREAD_TIMEOUT"))
"""


@pytest.mark.parametrize(("own", "said"), [(None, "['18'] None"), ("26", "['26'] 26")])
def test_numpy_is_loaded_with_a_blas_that_soon_sleeps_unless_the_user_says_else(
    own: str | None, said: str
) -> None:
    environment = scrubbed_environment() | ({"OPENBLAS_THREAD_TIMEOUT": own} if own else {})

    finished = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(Path(__file__).parents[3])],
        capture_output=True,
        text=True,
        check=True,
        env=environment,
    )

    assert finished.stdout.strip() == said


def test_a_blas_that_ends_its_process_for_lack_of_address_space_is_an_error(tmp_path: Path) -> None:
    # OpenBLAS calls exit(1) then: no exception comes out of it.
    (tmp_path / "numpy.py").write_text("import os\nos._exit(1)\n")
    program = f"""
import resource, sys
sys.path[:0] = [{str(tmp_path)!r}, {str(Path(__file__).parents[3])!r}]
from gpucheck.drivers.host.blas import load_numpy
from gpucheck.report.errors import GpucheckError
resource.setrlimit(resource.RLIMIT_AS, (1 << 40, 1 << 40))
try:
    load_numpy()
except GpucheckError as error:
    print(error.code, int(error.exit_code))
"""

    finished = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )

    assert finished.stdout.strip() == "system-limit 3"
