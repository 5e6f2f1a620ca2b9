"""pytest plug-in: a GPU of its own for each test process, with `--gpucheck`; docs/pytest.md.

pytest imports this file in every suite of an environment that has gpucheck. So it only knows the
options, the marker and the fixtures; what they do is imported once a suite asks for it.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

TYPE_CHECKING = False  # the name that type checkers know, without the import of typing
if TYPE_CHECKING:
    from gpucheck.place.model import PlacedDevice

MARKER = (
    "gpucheck(count=1, memory='8GiB', capability='9.0'): the test needs GPUs; with --gpucheck they"
    " belong to its process alone, and it is skipped where there are none"
)
TIMEOUT_S = 300.0


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options, and the key that turns the plug-in on for a suite."""
    parser.addini("gpucheck", "Claim a GPU for each test process, as --gpucheck does.", type="bool")
    add = parser.getgroup("gpucheck", "a GPU for each test process").addoption
    add("--gpucheck", action="store_true", help="Claim a GPU for each test process.")
    add("--gpucheck-required", action="store_true", help="Fail the tests that would be skipped.")
    add(
        "--gpucheck-timeout",
        type=float,
        default=TIMEOUT_S,
        metavar="SECONDS",
        help="How long a process waits for its GPUs (default: %(default)g).",
    )
    add(
        "--gpucheck-count",
        type=int,
        default=1,
        metavar="N",
        help="GPUs for each process (default: %(default)d).",
    )
    add("--gpucheck-memory", metavar="AMOUNT", help="Memory that must be free on each: 8GiB.")
    add("--gpucheck-capability", metavar="X.Y", help="The least compute capability.")
    add(
        "--gpucheck-share",
        type=int,
        default=1,
        metavar="N",
        help="Processes that may share a GPU (default: %(default)d).",
    )


def is_active(config: pytest.Config) -> bool:
    """Return whether this suite asks for GPUs."""
    return bool(config.getoption("gpucheck") or config.getini("gpucheck"))


@pytest.hookimpl(hookwrapper=True)  # a wrapper runs before xdist deals with its options
def pytest_cmdline_main(config: pytest.Config) -> Iterator[None]:
    """Let xdist start no more processes than there are GPUs for them."""
    if is_active(config):
        from gpucheck.integrations.pytest_workers import limit_workers

        limit_workers(config)
    yield


@pytest.hookimpl(tryfirst=True)  # before other plug-ins and the suite's conftest.py start CUDA
def pytest_configure(config: pytest.Config) -> None:
    """Claim the GPUs of this process, before any test module is imported."""
    config.addinivalue_line("markers", MARKER)
    if is_active(config):
        from gpucheck.integrations.pytest_workers import configure

        configure(config)
    elif config.getoption("gpucheck_required"):
        message = (
            "--gpucheck-required needs --gpucheck, or `gpucheck = true` in pytest's configuration."
        )
        raise pytest.UsageError(message)


@pytest.fixture(scope="session")
def gpucheck_gpus(request: pytest.FixtureRequest) -> tuple[PlacedDevice, ...]:
    """GPUs of this test process, in CUDA's order: uuid, name, index (NVML's), cuda_index."""
    if not is_active(request.config):
        pytest.skip("it needs a GPU of its own: run pytest with --gpucheck")
    from gpucheck.integrations.pytest_gpus import gpus_of

    return gpus_of(request.config)


@pytest.fixture(scope="session")
def gpucheck_gpu(gpucheck_gpus: tuple[PlacedDevice, ...]) -> PlacedDevice:
    """GPU of this test process, the first if it has several."""
    return gpucheck_gpus[0]
