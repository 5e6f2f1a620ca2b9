from __future__ import annotations

import pytest

from gpucheck.probes.blas import BlasFacts, ThreadpoolBlas


@pytest.fixture(name="facts")
def _facts() -> BlasFacts:
    facts = ThreadpoolBlas().read()
    if facts is None:
        pytest.skip("threadpoolctl knows no BLAS in this NumPy")
    return facts


def test_the_loaded_blas_is_named(facts: BlasFacts) -> None:
    assert facts.name
    assert facts.threads >= 1


def test_a_limit_holds_inside_and_ends_outside(facts: BlasFacts) -> None:
    blas = ThreadpoolBlas()

    with blas.limited(1):
        inside = blas.read()

    assert inside is not None
    assert inside.threads == 1
    assert blas.read() == facts


def test_without_a_blas_there_is_nothing_to_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    class Empty:
        lib_controllers: tuple[object, ...] = ()

        def info(self) -> list[dict[str, object]]:
            return []

    blas = ThreadpoolBlas()
    monkeypatch.setattr(blas, "_controller", Empty())

    assert blas.read() is None
    with blas.limited(3):
        pass
