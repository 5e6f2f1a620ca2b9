"""Documents of synthetic nodes, as small as the report of a fleet needs them."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

H100 = "NVIDIA H100 80GB HBM3"


def gpu_uuid(host: str, index: int) -> str:
    return f"GPU-{uuid.uuid5(uuid.NAMESPACE_DNS, f'{host}/{index}')}"


def envelope(
    host: str,
    command: str,
    result: Any,
    *,
    code: int = 0,
    time: str = "2026-11-22T03:00:00Z",
    **more: Any,
) -> dict[str, Any]:
    status = {0: "ok", 1: "fail"}.get(code, "unknown")
    return {
        "schema": f"gpucheck/{command}/1",
        "tool": {"name": "gpucheck", "version": "0.1.0"},
        "time": time,
        "host": {"name": host, "driver_version": "580.95.05", "kernel": "6.8.0", "recorded": False},
        "status": status,
        "exit_code": code,
        "error": None,
        "warnings": [],
        "result": result,
        **more,
    }


def detect(
    host: str, *, failing: Mapping[str, str] | None = None, gpus: int = 8, **more: Any
) -> dict[str, Any]:
    failing = failing or {}
    checks = [{"id": "nvml", "status": "ok", "summary": "driver answers", "gpu": None}]
    checks += [
        {"id": name, "status": "fail", "summary": cause, "cause": cause, "gpu": None}
        for name, cause in failing.items()
    ]
    found = [
        {"index": index, "uuid": gpu_uuid(host, index), "name": H100, "pci_bus_id": None}
        for index in range(gpus)
    ]
    result = {"usable": not failing, "verdict": "usable", "checks": checks, "gpus": found}
    return envelope(host, "detect", result, code=1 if failing else 0, **more)


def bench(
    host: str,
    speeds: Sequence[float] = (1.0,) * 8,
    *,
    tests: Sequence[str] = ("copy",),
    power_limit_w: float = 700.0,
    name: str = H100,
    driver: str = "580.95.05",
    busy: Sequence[int] = (),
    vbios: str = "96.00.99.00.01",
    **more: Any,
) -> dict[str, Any]:
    """Return a run whose speeds are shares of 3 TB/s, one for each GPU."""
    rows = [
        {
            "kernel": test, "variant": "kernel", "device": f"gpu:{index}", "scope": "resident",
            "gpu_uuid": gpu_uuid(host, index), "id": f"{test}/kernel/-/-/float32/1024/resident",
            "time_s": 1e-3 / speed, "throughput": {"value": 3e12 * speed, "unit": "B/s"},
            "doubts": [], "verified": {"ok": True},
        }
        for test in tests
        for index, speed in enumerate(speeds)
    ]  # fmt: skip
    sensors = [
        {
            "uuid": gpu_uuid(host, index), "power_limit_w": power_limit_w, "ecc_mode": True,
            "vbios_version": vbios, "pcie_generation": 5, "pcie_width": 16,
            "reasons": {"power-cap": 0.4}, "temperature_c": {"low": 40, "median": 60, "high": 70},
            "clock_sm_mhz": {"low": 1500, "median": 1700, "high": 1980}, "new_errors": {},
            "other_processes": [4711] if index in busy else [],
        }
        for index in range(len(speeds))
    ]  # fmt: skip
    gpus = [
        {
            "cuda_index": index, "uuid": gpu_uuid(host, index), "name": name,
            "memory_total_bytes": 85520809984,
        }
        for index in range(len(speeds))
    ]  # fmt: skip
    result = {
        "measurements": rows, "environment": {"gpus": gpus}, "telemetry": {"gpus": sensors},
        "gates": [], "corruption": [],
    }  # fmt: skip
    found = envelope(host, "bench", result, **more)
    found["host"]["driver_version"] = driver
    return found


def write(path: Path, document: object) -> None:
    path.write_text(json.dumps(document))
