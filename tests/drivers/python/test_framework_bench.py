"""A framework's child: its steps with real arrays, its ends, and what it leaves behind."""

from __future__ import annotations

import fcntl
import os
import select
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gpucheck.drivers.python.framework_bench import (
    BROKEN,
    DIED,
    FAILED,
    LACKS,
    MISSING,
    OUT_OF_MEMORY,
    SILENT,
    CompiledFolder,
    FrameworkProcess,
    SharedBytes,
    framework_environment,
)
from gpucheck.drivers.python.interpreters import Interpreter
from gpucheck.report.errors import BadAnswerError

STAND_INS = Path(__file__).parents[2] / "fakes" / "frameworks"
EDGE = 8
Start = Callable[..., FrameworkProcess]
TRIAL = "gpucheck detect --framework pytorch --deep"


@pytest.fixture(name="start")
def _start() -> Iterator[Start]:
    started: list[FrameworkProcess] = []

    def start(name: str, *, gpu: bool = False, same_math: bool = False, **words: Any) -> Any:
        import_s = words.pop("import_s", 60.0)
        environment = {"PATH": os.environ["PATH"], **words}
        if name != "numpy":
            environment.setdefault("PYTHONPATH", str(STAND_INS))
        process = FrameworkProcess(
            name=name,
            interpreter=Interpreter(words.pop("python", sys.executable)),
            threads=1,
            gpu=gpu,
            same_math=same_math,
            environment=environment,
            import_s=import_s,
        )
        started.append(process)
        process.wait()
        return process

    yield start
    for process in started:
        process.close()


class Product:
    """A product of two small matrices, as a case asks for it."""

    def __init__(self, dtype: str = "float32", **more: Any) -> None:
        numbers = np.random.default_rng(0).standard_normal((2, EDGE, EDGE))
        self.left, self.right = numbers.astype(dtype)
        self.shared = [SharedBytes(self.left.nbytes) for _ in range(3)]
        for shared, array in zip(self.shared, (self.left, self.right), strict=False):
            shared.write(array)
        given = [
            {**shared.place, "shape": [EDGE, EDGE], "dtype": dtype} for shared in self.shared[:2]
        ]
        self.request = {
            "ask": "prepare",
            "kernel": "matmul",
            "form": "eager",
            "device": "cpu",
            "math": "default",
            "end_to_end": False,
            "way": "",
            "sets": 1,
            "parameters": {},
            "inputs": given,
            "output": {**self.shared[2].place, "shape": [EDGE, EDGE]},
            **more,
        }

    def prepare(self, process: FrameworkProcess) -> None:
        process.ask(self.request, 60)
        process.ask({"ask": "poison"}, 60)

    def result(self, process: FrameworkProcess) -> Any:
        process.ask({"ask": "fetch"}, 60)
        return self.shared[2].array(str(self.left.dtype), (EDGE, EDGE)).copy()


@pytest.mark.parametrize("name", ["numpy", "pytorch"])
@pytest.mark.parametrize("form", ["eager", "eager-out"])
def test_a_product_is_prepared_run_fetched_and_released(start: Start, name: str, form: str) -> None:
    process, product = start(name), Product(form=form)

    product.prepare(process)
    ran = process.ask({"ask": "run", "loops": 3}, 60)

    assert 0 < ran["handed_s"] <= ran["seconds"]
    np.testing.assert_allclose(product.result(process), product.left @ product.right, rtol=1e-5)
    process.ask({"ask": "release"}, 60)
    with pytest.raises(BadAnswerError, match="nothing is prepared"):
        process.ask({"ask": "run", "loops": 1}, 60)
    assert process.running


def test_a_result_that_was_not_computed_cannot_be_fetched(start: Start) -> None:
    process, product = start("numpy"), Product()
    product.prepare(process)

    with pytest.raises(BadAnswerError, match="no operation has run") as caught:
        product.result(process)

    assert caught.value.code == FAILED


def test_facts_are_those_of_the_framework(start: Start) -> None:
    facts = start("pytorch").facts

    assert facts["version"] == "2.99.0+stand-in"
    assert facts["blas"] == "MKL 2024.2"
    assert facts["libraries"]["oneDNN"] == "3.7.1"
    assert (facts["threads_intra"], facts["threads_inter"]) == (1, 1)
    assert facts["float32_math"] == "fp32"
    assert facts["gpus"] == []  # hidden: no GPU takes part


@pytest.mark.parametrize(
    ("words", "code", "said", "remedy"),
    [
        (
            {"FAKE_FRAMEWORK": "import=fail"},
            BROKEN,
            "libtorch.so: cannot open shared object file",
            TRIAL,
        ),
        ({"FAKE_FRAMEWORK": "import=exit"}, BROKEN, "was ended by SIGSEGV", TRIAL),
        ({"FAKE_FRAMEWORK": "import=hang", "import_s": 0.2}, SILENT, "still being imported", ""),
        ({"python": "/bin/false"}, BROKEN, "is it a Python?", "--framework pytorch=PATH/bin/"),
        ({"python": "/bin/cat"}, BROKEN, "is it a Python?", "--framework pytorch=PATH/bin/"),
    ],
)
def test_a_framework_that_cannot_be_imported_says_why(
    start: Start, words: dict[str, Any], code: str, said: str, remedy: str
) -> None:
    with pytest.raises(BadAnswerError) as caught:
        start("pytorch", **words)

    assert caught.value.code == code
    assert said in caught.value.message
    assert remedy in "".join(caught.value.remedy)


@pytest.mark.parametrize(
    ("program", "said", "remedy"),
    [
        ("import os\nos._exit(7)", ", ended with code 7 while importing it", TRIAL),
        ("import os\nos.kill(os.getpid(), 7)", "was ended by SIGBUS", "install it again"),
        ("__version__ = '1.4.0'", "pytorch 1.4.0 cannot be measured: AttributeError: ", "another"),
        ("raise MemoryError", "pytorch cannot be imported: MemoryError", TRIAL),
        ("print('{}')\nimport no_such", "ModuleNotFoundError: No module named 'no_such'", TRIAL),
    ],
)
def test_a_framework_that_fails_in_its_own_way_is_broken(
    program: str, said: str, remedy: str, start: Start, tmp_path: Path
) -> None:
    (tmp_path / "torch.py").write_text(program, encoding="utf-8")

    with pytest.raises(BadAnswerError) as caught:
        start("pytorch", PYTHONPATH=str(tmp_path))

    assert caught.value.code == BROKEN
    assert said in caught.value.message
    assert remedy in "".join(caught.value.remedy)


def test_the_trial_of_an_import_takes_the_python_that_was_named() -> None:
    named = Interpreter("/my tf/python", named_by="--framework")
    found, other = (
        FrameworkProcess(name=name, interpreter=named, threads=1, environment={}).trial
        for name in ("tensorflow", "numpy")
    )

    assert found == "gpucheck detect --framework tensorflow --deep --python '/my tf/python'"
    assert other == "'/my tf/python' -c 'import numpy'"


def test_requests_pass_whatever_a_framework_does_with_standard_input(
    start: Start, tmp_path: Path
) -> None:
    reads = "import sys\nassert sys.stdin.read() == ''\nsys.stdin.close()\n"
    standard = f"{reads}exec(open({str(STAND_INS / 'torch.py')!r}).read())\n"
    (tmp_path / "torch.py").write_text(standard, encoding="utf-8")
    path = f"{tmp_path}:{STAND_INS}"

    process = start("pytorch", PYTHONPATH=path, PYTHONIOENCODING="utf-16")

    Product().prepare(process)


def test_a_framework_that_is_not_installed_is_missing(start: Start) -> None:
    with pytest.raises(BadAnswerError, match="cupy is not installed in") as caught:
        start("cupy")

    assert caught.value.code == MISSING
    assert "--framework cupy=PATH/bin/python" in caught.value.remedy[0]


@pytest.mark.parametrize(
    ("fault", "deadline_s", "code"),
    [("exit", 60, DIED), ("hang", 0.2, SILENT), ("memory", 60, OUT_OF_MEMORY)],
)
def test_a_run_that_fails_leaves_the_next_case_a_framework(
    start: Start, fault: str, deadline_s: float, code: str
) -> None:
    process, product = start("pytorch", FAKE_FRAMEWORK=f"run={fault}"), Product()
    product.prepare(process)

    with pytest.raises(BadAnswerError) as caught:
        process.ask({"ask": "run", "loops": 1}, deadline_s)

    assert caught.value.code == code
    copied = Product(kernel="copy").request
    process.ask({**copied, "inputs": copied["inputs"][:1]}, 60)  # started again if it has ended
    process.ask({"ask": "run", "loops": 1}, 60)


def test_what_a_framework_lacks_is_told_apart_from_its_failures(start: Start) -> None:
    process = start("numpy")

    with pytest.raises(BadAnswerError) as caught:
        process.ask({**Product().request, "math": "tf32"}, 60)

    assert caught.value.code == LACKS


def test_pytorch_before_2_0_lacks_its_compiled_form_alone(start: Start, tmp_path: Path) -> None:
    old = f"import sys; sys.path.append({str(STAND_INS)!r})\n"
    old += f"exec(open({str(STAND_INS / 'torch.py')!r}).read())\ndel compile\n"
    (tmp_path / "torch.py").write_text(old, encoding="utf-8")
    process = start("pytorch", PYTHONPATH=str(tmp_path))

    with pytest.raises(BadAnswerError, match=r"torch\.compile came with PyTorch 2\.0") as caught:
        process.ask(Product(form="torch.compile").request, 60)

    assert caught.value.code == LACKS
    Product().prepare(process)


def test_an_interrupted_request_ends_the_child(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    process, product = start("pytorch", FAKE_FRAMEWORK="run=hang"), Product()
    product.prepare(process)
    pid = process.pid
    assert pid is not None

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(FrameworkProcess, "_answer", interrupt)
    monkeypatch.setattr("gpucheck.drivers.child._REAP_S", 240.0)  # a busy machine kills late
    with pytest.raises(KeyboardInterrupt):
        process.ask({"ask": "run", "loops": 1}, 60)

    assert not process.running
    assert not Path(f"/proc/{pid}").exists()


def test_environment_leaves_the_card_to_all_and_hides_it_from_a_run_without() -> None:
    users = {"PATH": "/bin", "OMP_NUM_THREADS": "64", "JAX_PLATFORMS": "cuda"}
    users["JAX_PLATFORM_NAME"] = "gpu"

    def environment_of(**settings: Any) -> dict[str, str]:
        process = FrameworkProcess(
            name="jax", interpreter=Interpreter("python"), environment=users, **settings
        )
        return framework_environment(process)

    found = environment_of(threads=3, gpu=True, folder="/c")

    assert found["OMP_NUM_THREADS"] == found["MKL_NUM_THREADS"] == "3"
    assert found["TF_FORCE_GPU_ALLOW_GROWTH"] == "true"
    assert found["XLA_PYTHON_CLIENT_PREALLOCATE"] == "false"
    assert found["TORCHINDUCTOR_CACHE_DIR"] == found["TMPDIR"] == "/c"
    assert "JAX_PLATFORMS" not in found  # the processor takes part too
    assert "CUDA_VISIBLE_DEVICES" not in found
    hidden = environment_of(threads=3)
    assert (hidden["CUDA_VISIBLE_DEVICES"], hidden["JAX_PLATFORMS"]) == ("-1", "cpu")
    assert not any("JAX_PLATFORM_NAME" in given for given in (found, hidden))


def test_what_a_framework_has_started_ends_with_its_process(start: Start, tmp_path: Path) -> None:
    # A compiler, in a session of its own; its process id comes when it runs.
    told = tmp_path / "pid"
    (tmp_path / "sitecustomize.py").write_text(
        "import subprocess, pathlib\n"
        "one = subprocess.Popen(['sleep', '600'], start_new_session=True)\n"
        f"pathlib.Path({str(told)!r}).write_text(str(one.pid))\n"
    )
    process = start("numpy", PYTHONPATH=str(tmp_path))
    compiler = os.pidfd_open(int(told.read_text()))

    process.close()

    ended, _, _ = select.select([compiler], [], [], 10)
    os.close(compiler)
    assert ended


def test_folder_is_private_and_disappears(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    folder = CompiledFolder()
    made = Path(folder.path)
    (made / "code.so").touch()

    assert made.stat().st_mode & 0o777 == 0o700
    folder.close()
    assert list(tmp_path.iterdir()) == []


def test_folder_of_a_killed_run_is_deleted_by_the_next_but_not_one_in_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    left = tmp_path / "gpucheck-compiled-left"
    left.mkdir()
    (left / "code.so").touch()
    in_use = tmp_path / "gpucheck-compiled-in-use"
    in_use.mkdir()
    descriptor = os.open(in_use, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)

    CompiledFolder().close()

    os.close(descriptor)
    assert list(tmp_path.iterdir()) == [in_use]


def test_processes_that_a_framework_leaves_end_with_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    folder, left = CompiledFolder(), tmp_path / "gpucheck-compiled-left"
    left.mkdir()
    others = f"{folder.path}-others"
    sleeping = {
        path: subprocess.Popen(["sleep", "600"], env={"TMPDIR": path}, start_new_session=True)
        for path in (folder.path, str(left), others)
    }

    CompiledFolder().close()
    assert sleeping[str(left)].wait() == -signal.SIGKILL
    assert sleeping[folder.path].poll() is None
    folder.close()

    assert sleeping[folder.path].wait() == -signal.SIGKILL
    assert sleeping[others].poll() is None
    sleeping[others].kill()
    sleeping[others].wait()
