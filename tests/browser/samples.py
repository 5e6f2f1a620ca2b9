"""Reports whose pages are looked at in a browser: every recording that comes along, and a
pretended node with everything a benchmark can show. No figure in them was measured."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from gpucheck.bench.ci.baseline import row_series, saved_run
from gpucheck.bench.ci.compare import compare_runs, conclude_comparison
from gpucheck.bench.model import (
    BenchResult,
    BurnDevice,
    BurnEnd,
    BurnResult,
    Comparison,
    ComparisonSide,
    Corruption,
    DtypeSpec,
    Extent,
    FrameworkUse,
    GateClass,
    GateStatus,
    GpuTelemetry,
    Measurement,
    Roofline,
    SensorHistory,
    Telemetry,
)
from gpucheck.cli.examples import EXAMPLES, find_recording
from gpucheck.detect.run import detect
from gpucheck.drivers import open_probes
from gpucheck.fleet.collect import Collected
from gpucheck.fleet.documents import Entry
from gpucheck.fleet.report import report as fleet_report
from gpucheck.inventory.condition import read_condition
from gpucheck.inventory.inventory import judge_list, take_inventory
from gpucheck.inventory.model import GpuProcess, Inventory
from gpucheck.report.envelope import Failure, Notice, Report
from gpucheck.report.errors import ExitCode
from gpucheck.report.formats.html import render
from gpucheck.report.host import Host
from gpucheck.report.text import View
from tests.fakes.bench_results import (
    BFLOAT16,
    FLOAT32,
    doubt,
    environment,
    gpu,
    measurement,
    result_of,
    sensors,
    uuid_of,
)
from tests.fakes.bench_runs import runs_of
from tests.fakes.reports import wrap
from tests.fakes.verdicts import HOSTILE, gate
from tests.fakes.verdicts import report as bench_report
from tests.fleet import documents as fleet

_GPUS = tuple(f"gpu:{number}" for number in range(8))
#: The one GPU of the pretended node that is hot.
_HOT = 5
_WAYS = {"to-gpu-pinned": 55e9, "from-gpu-pinned": 52e9, "to-gpu-pageable": 12e9}
_REMEDY = ("Install it: pip install 'gpucheck-cli[plot]'",)


def page_of(name: str) -> str:
    """Return the page of a sample."""
    report, view = SAMPLES[name]()
    return render(report, view)


# ------------------------------------------------------------------------------- recordings


def _detected(example: str) -> tuple[Report, View]:
    probes = open_probes(find_recording(f"example:{example}"))
    return wrap("detect", detect(probes)), View(source=f"example:{example}")


def _listed(example: str) -> tuple[Report, View]:
    probes = open_probes(find_recording(f"example:{example}"))
    answer = judge_list(take_inventory(probes))
    if isinstance(answer.result, Inventory):
        answer = answer._replace(result=read_condition(answer.result, probes))
    return wrap("list", answer), View(source=f"example:{example}", processes=True)


# ------------------------------------------------------------------------------- benchmarks


def _row(
    kernel: str, device: str, rate: float, dtype: DtypeSpec = FLOAT32, **changes: object
) -> Measurement:
    """Return a row of this rate in FLOP/s or B/s, the hot GPU's slower by an eighth."""
    number = -1 if device == "cpu" else int(device[4:])
    rate *= 0.875 if number == _HOT else 1 + 0.002 * math.sin(7 * number)
    unit = "B/s" if kernel in ("copy", "transfer") else "FLOP/s"
    found = measurement(kernel, rate, device=device, unit=unit, dtype=dtype)
    median = found.time_s or 1.0
    rounds = tuple(median * (1 + 0.004 * math.sin(3 * n + number)) for n in range(12))
    ends = (0.998 * median, 1.002 * median)
    found = replace(
        *(found,),
        **{"round_medians_s": rounds, "ci95_s": ends, "repeat95_s": (0.99 * median, 1.01 * median)},
        variant={"matmul": "cublas", "transfer": "to-gpu-pinned"}.get(kernel, "kernel")
        if device != "cpu"
        else "blas",
    )
    return replace(found, **changes)  # type: ignore[arg-type]


def _rows() -> list[Measurement]:
    rows = []
    sizes = {"shape": (4096, 4096, 4096), "flops": 10**9, "bytes_moved": 1_500_000}
    thin = {"flops": 10**9, "bytes_moved": 8 * 10**8}
    for device in ("cpu", *_GPUS):
        fast = 1.0 if device != "cpu" else 0.008
        rows.append(_row("matmul", device, 55e12 * fast, **sizes, percent_of_peak=82.0))
        if device != "cpu":
            doubts = (doubt("throttled"),) if device == f"gpu:{_HOT}" else ()
            more = {**sizes, "percent_of_peak": 71.0, "doubts": doubts}
            rows.append(_row("matmul", device, 702e12, BFLOAT16, **more))
        rows.append(_row("softmax", device, 2.4e12 * fast, **thin, percent_of_copy=93.0))
        rows.append(_row("copy", device, 2.9e12 * fast, flops=None))
    for exponent in range(12, 28, 3):
        shape = (2**exponent // 4,)
        for way, best in (
            ("to-gpu-pinned", 55e9),
            ("from-gpu-pinned", 52e9),
            ("to-gpu-pageable", 12e9),
        ):
            speed = best * 2**exponent / (2**exponent + 2**17)
            rows.append(_row("transfer", "gpu:0", speed, shape=shape, variant=way))
    for name, share in (("pytorch", 68.0), ("jax", 64.0)):
        use = FrameworkUse(name=name, version="2.13.0", form="compiled", python="/usr/bin/python3")
        more = {**sizes, "percent_of_peak": share, "framework": use}
        rows.append(_row("matmul", "gpu:0", 1e13 * share, BFLOAT16, **more))
        more = {**thin, "percent_of_copy": share + 9, "framework": use}
        rows.append(_row("softmax", "gpu:0", 2e12, **more))
    return sorted(rows, key=lambda row: (row.kernel, row.dtype.input))


def _comparisons() -> tuple[Comparison, ...]:
    found = []
    for edge in (32, 64, 128, 256, 512, 1024, 2048, 4096):
        resident = 300 * edge**3 / (edge**3 + 512**3)
        cpu = ComparisonSide(device="cpu", variant="blas", threads=2, time_s=1.0, dtype=FLOAT32)
        other = replace(cpu, device="gpu:0", variant="cublas", threads=None)
        found.append(
            Comparison(
                kernel="matmul",
                dtype=FLOAT32,
                shape=(edge, edge, edge),
                cpu=cpu,
                gpu=other,
                speedup_resident=resident,
                speedup_end_to_end=resident / (1 + 4096 / edge),
                speedup_amortised=resident / 2,
                reuse_count=10,
                break_even=3,
                sentence="",
            )
        )
    return tuple(found)


def _sensors(device: str, seconds: float) -> GpuTelemetry:
    """Return the sensors of a GPU over so many seconds: the hot one is held down from 40 % on."""
    hot, parts = device == f"gpu:{_HOT}", 120
    number = int(device[4:])
    warm = [1 - math.exp(-8 * place / parts) for place in range(parts)]
    late = [place > 0.4 * parts for place in range(parts)]
    clocks = [1410.0 if hot and slow else 1755.0 - 5 * number for slow in late]
    history = SensorHistory(
        part_s=seconds / parts,
        clock_sm_mhz=tuple(clocks),
        power_w=tuple(
            round(120 + 560 * w - 90 * (hot and s), 1) for w, s in zip(warm, late, strict=True)
        ),
        temperature_c=tuple(round(34 + (53 if hot else 31 + number) * w) for w in warm),
        limited={"power-cap": ((0.1 * seconds, 0.38 * seconds),)}
        | ({"hardware-thermal": ((0.41 * seconds, seconds),)} if hot else {}),
    )
    heat = sorted(one for one in history.temperature_c if one is not None)
    extent = Extent(low=heat[0], median=heat[parts // 2], high=heat[-1])
    return sensors(device, history=history, temperature_c=extent)


def node(seconds: float = 300.0) -> BenchResult:
    """Return a run of eight GPUs, one of them hot, with so many seconds of sensors."""
    rooflines = Roofline(
        device="cpu",
        threads=2,
        copy_bytes_per_s=25e9,
        gemm_flops_per_s=0.5e12,
        gemm_dtype="float32",
    )
    found = result_of(
        *_rows(),
        comparisons=_comparisons(),
        environment=environment([gpu(one) for one in _GPUS], rooflines=(rooflines,)),
        headline="each of 8 GPUs reaches 45 (softmax) to 120 (matmul) times the CPU's speed",
        notes=("the sizes are the mode's own",),
    )
    gpus = tuple(_sensors(one, seconds) for one in _GPUS)
    return replace(found, telemetry=Telemetry(gpus=gpus))


def _judged() -> tuple[Report, View]:
    gates = [gate(device=one) for one in _GPUS if one != f"gpu:{_HOT}"]
    hot = gate(
        GateStatus.FAIL,
        device=f"gpu:{_HOT}",
        class_=GateClass.THERMAL,
        reason="12.5 % too slow: the driver held the clock down by heat",
    )
    found = replace(node(), gates=(hot, *gates))
    return bench_report(found, code=ExitCode.BAD), View()


def _burned() -> tuple[Report, View]:
    def device(name: str) -> BurnDevice:
        hot = name == f"gpu:{_HOT}"
        check = Corruption(
            device=name, gpu_uuid=uuid_of(name), products=900, words=10**6, reference_ok=True
        )
        return BurnDevice(
            device=name,
            gpu_uuid=uuid_of(name),
            name="NVIDIA H100 80GB HBM3",
            corruption=replace(check, dtype="float32", shape=(8192, 8192)),
            flops_per_s=41e12 if hot else 50e12,
            first_flops_per_s=50e12,
            last_flops_per_s=39e12 if hot else 49.5e12,
            telemetry=_sensors(name, 60.0),
        )

    result = BurnResult(
        asked_s=60.0,
        duration_s=60.2,
        ended_by=BurnEnd.TIME,
        temperature_limit_c=89.0,
        devices=tuple(map(device, _GPUS)),
        gates=tuple(gate(device=one, name="corruption") for one in _GPUS),
    )
    return bench_report(result, command="burn"), View()


def _compared() -> tuple[Report, View]:
    noise = (0.99, 1.0, 1.01, 1.005, 0.995)
    runs = []
    for slow in (1.0, 0.9):
        speeds = {one: [7e14 * n * (slow if one == "gpu:5" else 1) for n in noise] for one in _GPUS}
        found = runs_of(speeds)
        runs.append(saved_run(found, row_series(found), time="2026-11-21T03:32:00Z", profile=None))
    files = (Path("before.json"), Path("after.json"))
    return wrap("compare", conclude_comparison(compare_runs(*runs, files=files), Host())), View()


#: What would run, load, hide the page or leave its place if a browser took it for more than text.
PAYLOADS = (
    HOSTILE.replace("alert(1)", "window.owned=1") + '"><img src=x onerror=window.owned=1>',
    "</style><style>*{display:none!important}</style><link rel=stylesheet href=http://x.invalid/a>",
    "</title></text></svg><svg onload=window.owned=2><foreignObject><body onload=window.owned=2>",
    "--><!--<iframe srcdoc='<script>parent.owned=3</script>'></iframe>]]><?xml-stylesheet href=x?>",
    "javascript:window.owned=4//data:text/html,<script>owned=4</script> {{7*7}} ${7*7} &lt;b&gt;",
    "\u05d0\u05d1\u05d2 \u202e\u2066\u200f 580 \u0627\u0644 \u2028\u2029\x85 \ufeff\uff1c +ADw-",
    "Z" + "\u0300\u0489\u20dd\ufe0f" * 60,
    "\U0001f468\u200d\U0001f469" * 60 + "\u3164" * 200,
)


def _hostile() -> tuple[Report, View]:
    evil = PAYLOADS[0]
    found = node()
    rows = [
        replace(
            *(row,),
            variant=PAYLOADS[number % len(PAYLOADS)],
            doubts=(replace(doubt("x"), message=PAYLOADS[number % len(PAYLOADS)]),),
        )
        for number, row in enumerate(found.measurements)
    ]
    gpus = tuple(
        replace(one, name=PAYLOADS[number % len(PAYLOADS)] + "W" * 1_000_000)
        for number, one in enumerate(found.environment.gpus)
    )
    found = replace(
        found,
        measurements=tuple(rows),
        environment=replace(found.environment, gpus=gpus, cpu_model=evil),
        notes=("n" * 1_000_000, "\u0301" * 1_000_000, *PAYLOADS),
        headline=evil,
    )
    return bench_report(found, host=evil, warnings=(Notice("x", evil),)), View()


def _listed_hostile() -> tuple[Report, View]:
    """Return a list whose cards, processes and users have names that would be code."""
    report, view = _listed("h100x8")
    assert isinstance(report.result, Inventory)
    who = [
        GpuProcess(pid=4000 + number, type="compute", name=text, user=text, command=text)
        for number, text in enumerate(PAYLOADS)
    ]
    gpus = tuple(
        gpu._replace(name=text, processes=(process,), unavailable={"fan_percent": text})
        for gpu, text, process in zip(report.result.gpus, PAYLOADS, who, strict=True)
    )
    return report._replace(result=report.result._replace(gpus=gpus)), view


def _fleet() -> tuple[Report, View]:
    """Return nodes in four racks: slow, failed, missing and different ones, and one that nobody
    expects, whose name would be code."""
    expected = tuple(f"gpu{number:03}" for number in range(63))
    collected, hosts = Collected(expected), (*expected, HOSTILE[:60])
    for number, host in enumerate(hosts):
        if number % 29 == 7:
            continue
        speeds = [1 + 0.004 * math.sin(number + 3 * index) for index in range(8)]
        speeds[number % 8] *= 0.85 if number % 17 == 5 else 1
        vbios = "96.00.88" if number == 40 else "96.00.99"
        documents = [fleet.bench(host, speeds, tests=("copy", "matmul"), vbios=vbios)]
        if number % 23 == 11 or number == 63:
            documents.append(fleet.detect(host, failing={"gpu-lost": HOSTILE}))
        for document in documents:
            collected.add(Entry("results.jsonl", number + 1, document))
    racks: dict[str, str | None] = {
        host: f"rack{number // 16}" for number, host in enumerate(expected)
    }
    return wrap("fleet", fleet_report(collected, racks, Host())), View()


def _failed() -> tuple[Report, View]:
    failure = Failure(
        "nvml-driver-not-loaded",
        "The NVIDIA driver is not loaded.",
        ("Load it: sudo modprobe nvidia", "See what the kernel says: sudo dmesg"),
    )
    return bench_report(None, code=ExitCode.MISSING, failure=failure, command="list"), View()


#: Name -> the report of a page and its view.
SAMPLES: dict[str, Callable[[], tuple[Report, View]]] = {
    **{f"detect-{one}": (lambda one=one: _detected(one)) for one in EXAMPLES},  # type: ignore[misc]
    **{f"list-{one}": (lambda one=one: _listed(one)) for one in EXAMPLES},  # type: ignore[misc]
    "bench": lambda: (bench_report(node()), View()),
    "bench-judged": _judged,
    "bench-without-charts": lambda: (bench_report(node()), View(chart_remedy=_REMEDY)),
    "burn": _burned,
    "compare": _compared,
    "fleet": _fleet,
    "hostile": _hostile,
    "hostile-list": _listed_hostile,
    "failed": _failed,
}
