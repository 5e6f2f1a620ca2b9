"""Results of pretended worker processes: rows, sensors and whole runs, made of a few numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from gpucheck.bench.ci.model import ProcessRun
from gpucheck.bench.model import (
    BenchEnvironment,
    BenchResult,
    Corruption,
    Doubt,
    DtypeSpec,
    Extent,
    FrameworkUse,
    GpuTelemetry,
    Measurement,
    SampleSummary,
    Scope,
    Telemetry,
    Throughput,
    Verified,
)
from gpucheck.bench.request_model import BenchMode
from gpucheck.drivers.gpu import BenchGpu, Board
from gpucheck.report.envelope import Failure

FLOAT32 = DtypeSpec(input="float32", accumulate="float32", output="float32", math_mode="fp32")
BFLOAT16 = DtypeSpec(input="bfloat16", accumulate="float32", output="bfloat16", math_mode="bf16")
RIGHT = Verified(error=1e-7, bound=1e-5, ok=True, reference="pretended")
H100 = Board(
    name="H100 SXM",
    source="datasheet",
    flops_per_s={"bfloat16": 989.4e12, "float32": 67e12},
    high_flops_per_s={"bfloat16": 989.4e12, "float32": 67e12},
    bytes_per_s=3350e9,
    clock_mhz=1980,
    tensor_clock_mhz=1830,
)


def doubt(code: str, **facts: float) -> Doubt:
    """Return a doubt as the engine states it."""
    return Doubt(code=code, message=f"there was {code}", next="run it again", facts=dict(facts))


def measurement(
    kernel: str, value: float, *, device: str = "cpu", unit: str = "B/s", **changes: Any
) -> Measurement:
    """Return a row whose throughput is `value` in `unit`, one operation being 1e9 of them."""
    median_s = 1e9 / value
    row = Measurement(
        kernel=kernel,
        variant="numpy" if device == "cpu" else "memcpy",
        device=device,
        gpu_uuid=None if device == "cpu" else uuid_of(device),
        dtype=FLOAT32,
        shape=(4096, 4096),
        scope=Scope.RESIDENT,
        threads=2 if device == "cpu" else None,
        time_s=median_s,
        median_s=median_s,
        converged=True,
        round_medians_s=(1.1 * median_s, median_s, median_s, 0.9 * median_s),
        summary=SampleSummary(
            count=10,
            min_s=0.9 * median_s,
            p10_s=0.95 * median_s,
            median_s=median_s,
            p90_s=1.05 * median_s,
            max_s=1.1 * median_s,
            iqr_s=0.05 * median_s,
            outlier_count=0,
        ),
        throughput=Throughput(value=value, unit=unit),
        verified=RIGHT,
    )
    return replace(row, **changes)


def product(value: float, device: str = "gpu:0", **changes: Any) -> Measurement:
    """Return a row of a bfloat16 product on a GPU, `value` in TFLOP/s."""
    given = {"variant": "cublas", "dtype": BFLOAT16, "sm_clock_mhz": 1700.0, **changes}
    return measurement("matmul", 1e12 * value, device=device, unit="FLOP/s", **given)


def uuid_of(device: str) -> str:
    """Return a pretended GPU's UUID."""
    return f"GPU-{device.removeprefix('gpu:'):0>8}"


def gpu(device: str = "gpu:0", board: Board | None = H100) -> BenchGpu:
    """Return a pretended GPU as CUDA describes it."""
    return BenchGpu(
        cuda_index=int(device.removeprefix("gpu:")),
        uuid=uuid_of(device),
        name="NVIDIA H100 80GB HBM3",
        compute_capability="9.0",
        sm_count=132,
        l2_bytes=50 << 20,
        memory_total_bytes=80 << 30,
        memory_free_bytes=79 << 30,
        float32_math="fp32",
        pci_device_id="233010de",
        board=board,
    )


def sensors(device: str = "gpu:0", **changes: Any) -> GpuTelemetry:
    """Return the sensors of a GPU that is well."""
    found = GpuTelemetry(
        uuid=uuid_of(device),
        reading_count=100,
        period_s=0.05,
        clock_sm_mhz=Extent(low=1600, median=1700, high=1980),
        power_w=Extent(low=400, median=690, high=700),
        temperature_c=Extent(low=40, median=60, high=65),
        power_limit_w=700.0,
        power_limit_default_w=700.0,
        pcie_generation=5,
        pcie_width=16,
    )
    return replace(found, **changes)


def environment(gpus: Sequence[BenchGpu] = (), **changes: Any) -> BenchEnvironment:
    """Return where the pretended figures were taken."""
    found = BenchEnvironment(
        cpu_model="Pretended CPU",
        logical_cores=2,
        usable_cores=2,
        cpu_quota_cores=None,
        blas_name="fakeblas",
        blas_version="1.0",
        blas_architecture=None,
        blas_threads=2,
        numpy_version="2.0",
        cupy_version="14.0" if gpus else None,
        gpus=tuple(gpus),
        gpu_unavailable=None,
        load_average_1m=0.0,
        other_load_percent=0.0,
        steal_percent=0.0,
        parallel_efficiency=1.0,
        peak_memory_bytes=1 << 20,
        duration_s=12.5,
        seed=0,
        data="normal(0,1)",
        mode=BenchMode.QUICK,
        budget_s=1.0,
    )
    return replace(found, **changes)


def result_of(
    *rows: Measurement, telemetry: GpuTelemetry | None = None, **changes: Any
) -> BenchResult:
    """Return what a process brings that measured these rows."""
    devices = dict.fromkeys(row.device for row in rows if row.device != "cpu")
    found = BenchResult(
        measurements=rows,
        comparisons=(),
        environment=environment([gpu(device) for device in devices]),
        telemetry=Telemetry(gpus=(telemetry,)) if telemetry is not None else None,
    )
    return replace(found, **changes)


def copy_result() -> BenchResult:
    """Return a result with one row, the processor's copy at 1 GB/s."""
    return result_of(measurement("copy", 1e9))


def varied_result() -> BenchResult:
    """Return a result whose rows have every field of a row, or lack it: right, wrong, failed."""
    right = replace(
        measurement("copy", 1e9, ci95_s=(0.9, 1.1), repeat95_s=(0.8, 1.1), percent_of_copy=98.0),
        doubts=(doubt("host-busy"), doubt("bimodal")),
    )
    framework = FrameworkUse(name="pytorch", version="2.13", form="eager", python="/p")
    by_framework = product(
        *(700.0, "gpu:0"),
        framework=framework,
        percent_of_peak=70.5,
        joules_per_op=2.5,
        ci95_s=(1.2e-6, 1.6e-6),
        id="matmul/kept",
    )
    images = measurement("train", 2e9, unit="image/s", repeat95_s=(0.45, 0.7))
    launches = measurement("launch", 1e9, device="gpu:1", unit="launch/s", converged=False)
    wrong = measurement(
        "triad",
        1e9,
        device="gpu:7",
        verified=Verified(error=1.0, bound=1e-5, ok=False, reference="pretended"),
        scope=Scope.END_TO_END,
    )
    failed = measurement(
        *("softmax", 1e9),
        time_s=None,
        median_s=None,
        throughput=None,
        verified=None,
        error=Failure("out-of-memory", "No memory,\nat all."),
    )
    late = measurement("triad", 1e9, error=Failure("gpu-lost", "It fell silent."))
    found = result_of(right, by_framework, images, launches, wrong, failed, late)
    corruption = (
        Corruption(device="cpu", gpu_uuid=None, mismatches=0),
        Corruption(device="gpu:0", gpu_uuid=uuid_of("gpu:0"), mismatches=3),
    )
    # One row's GPU is not among those that are described.
    kept = found.environment.gpus[:2]
    return replace(found, corruption=corruption, environment=replace(found.environment, gpus=kept))


def run_of(
    result: BenchResult | None, number: int = 0, device: str = "cpu", **changes: Any
) -> ProcessRun:
    """Return a process that brought this."""
    uuid = None if device == "cpu" else uuid_of(device)
    run = ProcessRun(device=device, number=number, gpu_uuid=uuid, result=result)
    return replace(run, **changes)


def product_runs(values: Sequence[float], device: str = "gpu:0", **row: Any) -> list[ProcessRun]:
    """Return a GPU's processes, each with a product of so many TFLOP/s and calm sensors."""
    return [
        run_of(result_of(product(value, device, **row), telemetry=sensors(device)), at, device)
        for at, value in enumerate(values)
    ]
