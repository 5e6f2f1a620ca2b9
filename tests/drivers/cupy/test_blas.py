"""Products by cuBLAS and cuBLASLt: with a pretended library, and compared with the real one."""

from __future__ import annotations

import ctypes
import itertools
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpucheck.drivers.cupy import blas
from gpucheck.report.errors import MissingError
from tests.conftest import scrubbed_environment
from tests.drivers.cupy.wheels import wheels
from tests.fakes.cupy_child import run_lines

#: Each compiles a library, or starts a process that loads it, CuPy's double and NumPy.
pytestmark = pytest.mark.slow

HEAD = """
import numpy as np
from gpucheck.bench.numerics import FORMATS, decode, encode
from gpucheck.report.errors import GpucheckError
from gpucheck.drivers.cupy.device import open_gpus
from gpucheck.drivers.gpu import Product
from cupy._pretended import cublaslt

opened = open_gpus([0])
gpu = opened.devices[0]
plain = Product(math_mode="fp8", right_transposed=True)

def factors(m, k, n):
    rng = np.random.default_rng(1)
    sides = [rng.standard_normal(shape, dtype=np.float32) for shape in ((m, k), (n, k))]
    return [encode(side, FORMATS["float8"]) for side in sides]

def multiplied(m, k, n, product):
    left, right = factors(m, k, n)
    out = gpu.allocate((m, n), "uint16")
    gpu.poison(out)
    gpu.multiply(gpu.upload(left), gpu.upload(right), out, product)
    wanted = decode(left, "float8").astype(float) @ decode(right, "float8").astype(float).T
    return decode(gpu.download(out), "bfloat16") / wanted

def refused(*arguments):
    try:
        multiplied(*arguments)
    except GpucheckError as error:
        return {"code": error.code, "message": error.message, "remedy": error.remedy}
"""

Child = Callable[..., Any]


@pytest.fixture(name="child")
def _child(c_compiler: str, tmp_path: Path) -> Child:
    """Run lines that fill the dictionary `said`, and return it."""

    def run(lines: str, machine: str = "h100x8", **settings: Any) -> Any:
        return run_lines(HEAD, lines, tmp_path, machine, **settings)

    return run


@pytest.mark.parametrize("shape", [(16, 16, 16), (64, 96, 32), (32, 256, 160)])
def test_a_product_is_right_for_every_shape_and_takes_the_scale_out(
    child: Child, shape: tuple[int, int, int]
) -> None:
    said = child(
        f"""
        from dataclasses import replace

        # The numbers are stored times 16: without a scale both factors are that much larger.
        said["plain"] = float(np.median(multiplied(*{shape}, plain)))
        scaled = replace(plain, factor_scale=1 / 16)
        said["scaled"] = float(np.median(multiplied(*{shape}, scaled)))
        said["doubled"] = float(np.median(multiplied(*{shape}, replace(scaled, alpha=2.0))))
        """
    )

    assert said == {
        "plain": pytest.approx(256, rel=1e-3),
        "scaled": pytest.approx(1, rel=1e-3),
        "doubled": pytest.approx(2, rel=1e-3),
    }


def test_the_library_is_told_the_types_the_layout_and_the_stream(child: Child) -> None:
    said = child(
        """
        from dataclasses import replace

        multiplied(64, 96, 32, plain)
        said["slow"] = dict(cublaslt.last)
        multiplied(64, 96, 32, replace(plain, fast_accumulation=True))
        said["fast"] = cublaslt.last["fast"]
        said["stream"] = gpu._stream.ptr
        """
    )

    # Columns of its matrices are rows of ours: C' = B' A' is 32 x 64.
    assert {
        "m": 32,
        "n": 64,
        "k": 96,
        "a_type": 28,
        "b_type": 28,
        "d_type": 14,
        "compute_type": 68,
        "scale_type": 0,
        "transa": 1,
        "transb": 0,
        "fast": 0,
        "alpha": 1.0,
        "beta": 0.0,
        "stream": said["stream"],
    }.items() <= said["slow"].items()
    assert said["slow"]["a_scale"] == said["slow"]["b_scale"] != 0
    assert said["fast"] == 1


def test_everything_is_destroyed_when_the_memory_is_given_back(child: Child) -> None:
    said = child(
        """
        import cupy

        said["living"] = []
        for edges in ((16, 16, 16), (16, 16, 16), (32, 32, 32)):
            multiplied(*edges, plain)
            said["living"].append(cublaslt.living())
        gpu.release()
        gpu.release()
        said["released"] = cublaslt.living()
        said["pool"] = cupy.get_default_memory_pool().total_bytes()
        said["again"] = float(np.median(multiplied(16, 16, 16, plain)))
        """
    )

    # A handle; a product and three layouts for each shape. What was searched with is gone.
    assert said["living"] == [5, 5, 9]
    assert said["released"] == said["pool"] == 0
    assert said["again"] == pytest.approx(256, rel=1e-3)


def test_a_program_that_never_multiplies_float8_never_loads_it(child: Child) -> None:
    said = child(
        """
        gpu.multiply(gpu.allocate((4, 4)), gpu.allocate((4, 4)), gpu.allocate((4, 4)))
        gpu.release()
        said["living"] = cublaslt.living()
        """
    )

    assert said["living"] == 0


def test_edges_and_layouts_that_it_does_not_have_are_named(child: Child) -> None:
    said = child(
        """
        from dataclasses import replace

        said["edge"] = refused(64, 40, 32, plain)
        said["small"] = refused(8, 16, 16, plain)
        said["layout"] = refused(32, 32, 32, replace(plain, right_transposed=False))
        said["left"] = refused(32, 32, 32, replace(plain, left_transposed=True))
        said["living"] = cublaslt.living() if cublaslt._kept else 0
        """
    )

    assert said["edge"]["code"] == said["small"]["code"] == "edge-unsupported"
    assert said["edge"]["message"] == (
        "cuBLAS multiplies float8 only where all edges are multiples of 16, not 40"
    )
    assert said["edge"]["remedy"] == ["Choose --size 32."]
    assert said["small"]["remedy"] == ["Choose --size 16."]
    assert said["layout"]["code"] == said["left"]["code"] == "layout-unsupported"
    assert said["living"] == 0


@pytest.mark.parametrize("machine", ["t4", "a100-mig"])
def test_a_gpu_without_float8_is_told_so_by_the_library_and_gets_no_other_product(
    child: Child, machine: str
) -> None:
    said = child(
        """
        said["error"] = refused(16, 16, 16, plain)
        gpu.release()
        said["living"] = cublaslt.living()
        """,
        machine,
    )

    assert said["error"]["code"] == "float8-unsupported"
    assert "of this shape for this GPU" in said["error"]["message"]
    assert said["living"] == 0


def test_without_the_library_it_is_said_what_to_install(child: Child) -> None:
    said = child('said["error"] = refused(16, 16, 16, plain)', variables={"FAKE_CUBLASLT": ""})

    assert said["error"]["code"] == "cublaslt-missing"
    assert "libcublasLt.so.12 cannot be used" in said["error"]["message"]
    assert "[cuda12]" in said["error"]["remedy"][0]


def test_memory_that_runs_out_and_a_gpu_that_is_lost_are_told_apart(child: Child) -> None:
    lost = child('said["error"] = refused(16, 16, 16, plain)', script="fail kernel=gemm")
    # Two factors, the product, the scale: what fails is the workspace.
    full = child('said["error"] = refused(1024, 1024, 1024, plain)', script="oom after=3")

    assert lost["error"]["code"] == "gpu-lost"
    assert "CUBLAS_STATUS_EXECUTION_FAILED (cublasLtMatmul)" in lost["error"]["message"]
    assert full["error"]["code"] == "gpu-out-of-memory"


def test_a_library_that_lacks_a_function_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    binding = SimpleNamespace(getVersion=lambda handle: 130400)
    device = SimpleNamespace(get_cublas_handle=lambda: 7)
    cupy = SimpleNamespace(cuda=SimpleNamespace(cublas=binding, device=device))
    asked: list[str] = []

    def load(name: str) -> object:
        asked.append(name)
        return SimpleNamespace()

    monkeypatch.setattr(ctypes, "CDLL", load)

    with pytest.raises(MissingError) as caught:
        blas.load_cublaslt(cupy)

    assert asked == ["libcublasLt.so.13"]
    assert caught.value.code == "cublaslt-missing"
    assert "cublasLtCreate" in caught.value.message


# ---- against the real one, where its wheel is installed; no GPU is needed ----


CONSTANTS = (
    "CUDA_R_32F",
    "CUDA_R_16BF",
    "CUDA_R_8F_E4M3",
    "CUBLAS_COMPUTE_32F",
    "CUBLAS_OP_N",
    "CUBLAS_OP_T",
    "CUBLASLT_MATMUL_DESC_TRANSA",
    "CUBLASLT_MATMUL_DESC_TRANSB",
    "CUBLASLT_MATMUL_DESC_A_SCALE_POINTER",
    "CUBLASLT_MATMUL_DESC_B_SCALE_POINTER",
    "CUBLASLT_MATMUL_DESC_FAST_ACCUM",
    "CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES",
)
#: By arithmetic, the names of what `_GEMM_TYPES` has as numbers: factors, product, computation.
GEMM_NAMES = {
    "fp64": ("CUDA_R_64F", "CUDA_R_64F", "CUBLAS_COMPUTE_64F"),
    "fp32": ("CUDA_R_32F", "CUDA_R_32F", "CUBLAS_COMPUTE_32F"),
    "tf32": ("CUDA_R_32F", "CUDA_R_32F", "CUBLAS_COMPUTE_32F_FAST_TF32"),
    "fp16": ("CUDA_R_16F", "CUDA_R_16F", "CUBLAS_COMPUTE_32F"),
    "bf16": ("CUDA_R_16BF", "CUDA_R_16BF", "CUBLAS_COMPUTE_32F"),
    "int8": ("CUDA_R_8I", "CUDA_R_32I", "CUBLAS_COMPUTE_32I"),
}


def test_the_numbers_are_those_of_the_header(c_compiler: str, tmp_path: Path) -> None:
    includes = wheels().includes
    named = sorted({*CONSTANTS, *itertools.chain(*GEMM_NAMES.values())})
    lines = "".join(f'printf("{name} %d\\n", (int){name});' for name in named)
    fields = {"algorithm": "algo", "workspace_bytes": "workspaceSize", "waves": "wavesCount"}
    offsets = "".join(
        f'printf("{ours} %zu\\n", offsetof(cublasLtMatmulHeuristicResult_t, {theirs}));'
        for ours, theirs in fields.items()
    )
    source = tmp_path / "numbers.c"
    source.write_text(
        "#include <cublasLt.h>\n#include <stddef.h>\n#include <stdio.h>\nint main(void) {"
        f'{lines}{offsets}printf("size %zu\\n", sizeof(cublasLtMatmulHeuristicResult_t));'
        "return 0; }\n"
    )
    # Headers of other wheels, and what C does not understand: others of that name, found first.
    words = ("__host__", "__device__", "__device_builtin__", "__cudart_builtin__", "CUDARTAPI")
    stubs = {
        "crt/host_defines.h": "".join(f"#define {word}\n" for word in words)
        + "#define __align__(n) __attribute__((aligned(n)))\n#define __builtin_align__ __align__\n",
        "cuda_fp16.h": "typedef short __half;",
        "cuda_bf16.h": "",
        "cuComplex.h": "typedef struct { float x, y; } cuComplex;"
        "typedef struct { double x, y; } cuDoubleComplex;",
    }
    for name, text in stubs.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    given = [f"-I{place}" for place in (tmp_path, *includes)]
    subprocess.run([c_compiler, *given, str(source), "-o", str(tmp_path / "numbers")], check=True)

    said = subprocess.run([tmp_path / "numbers"], capture_output=True, text=True, check=True)

    found = {name: int(value) for name, value in map(str.split, said.stdout.splitlines())}
    for arithmetic, names in GEMM_NAMES.items():
        assert blas._GEMM_TYPES[arithmetic][:3] == tuple(map(found.get, names)), arithmetic
    found = {name: value for name, value in found.items() if name in {*CONSTANTS, *fields, "size"}}
    ours = {name: getattr(blas, name) for name in CONSTANTS}
    ours |= {name: getattr(blas.Heuristic, name).offset for name in fields}
    assert found == ours | {"size": ctypes.sizeof(blas.Heuristic)}


def test_the_real_library_takes_every_attribute_in_the_size_that_it_is_given() -> None:
    cublas = wheels().cublas
    lines = f"""
    import ctypes
    from contextlib import ExitStack
    from gpucheck.drivers.cupy import blas

    ctypes.CDLL({str(cublas)!r})
    # Loaded with it, and found by its name alone.
    library = blas.CublasLt("libcublasLt.so." + {cublas.name.rpartition(".")[2]!r})
    with ExitStack() as kept:
        product = library.create(kept, "MatmulDesc", blas.CUBLAS_COMPUTE_32F, blas.CUDA_R_32F)
        for attribute, value in (
            (blas.CUBLASLT_MATMUL_DESC_TRANSA, ctypes.c_int32(blas.CUBLAS_OP_T)),
            (blas.CUBLASLT_MATMUL_DESC_TRANSB, ctypes.c_int32(blas.CUBLAS_OP_N)),
            (blas.CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, ctypes.c_void_p(0x1000)),
            (blas.CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, ctypes.c_void_p(0x1000)),
            (blas.CUBLASLT_MATMUL_DESC_FAST_ACCUM, ctypes.c_int8(1)),
        ):
            library.set("MatmulDesc", product, attribute, value)
        library.create(kept, "MatrixLayout", blas.CUDA_R_8F_E4M3, 64, 32, 64)
        preference = library.create(kept, "MatmulPreference")
        library.set(
            "MatmulPreference",
            preference,
            blas.CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
            ctypes.c_size_t(1 << 25),
        )
        try:
            wrong = ctypes.c_int(1)
            library.set("MatmulDesc", product, blas.CUBLASLT_MATMUL_DESC_FAST_ACCUM, wrong)
        except blas.CublasLtError as error:
            print(error)
    """

    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(lines)],
        env=scrubbed_environment(),
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    refused = "CUBLAS_STATUS_INVALID_VALUE (cublasLtMatmulDescSetAttribute)"
    assert done.stdout.strip() == refused
