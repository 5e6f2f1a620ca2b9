"""Fingerprint of a run: what must be the same for two runs to be comparable."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields

from gpucheck import __version__
from gpucheck.bench.ci.gate_model import ProfileUse
from gpucheck.bench.ci.profile_model import Profile
from gpucheck.bench.ci.run_model import ProcessRun
from gpucheck.bench.ci.saved_run_model import Fingerprint
from gpucheck.bench.model import BenchEnvironment, GpuTelemetry
from gpucheck.report.envelope import Host
from gpucheck.report.errors import WrongUseError

KEYS = tuple(field.name for field in fields(Fingerprint))
#: NVML's throttle reason for manually set clocks.
_LOCKED = "application-clocks"


def profile_key(profile: Profile | ProfileUse) -> str:
    """Return the identity of a profile: name, version and digest."""
    return f"{profile.name}/{profile.version}/{profile.digest[:12]}"


def fingerprints_of(runs: Sequence[ProcessRun], profile: str | None) -> dict[str, Fingerprint]:
    """Return the fingerprint of each device, from its first process that gave a document."""
    found: dict[str, Fingerprint] = {}
    for run in runs:
        if run.result is not None and run.device not in found:
            sensors = run.result.telemetry.gpus if run.result.telemetry is not None else ()
            known = next((gpu for gpu in sensors if gpu.uuid == run.gpu_uuid), None)
            environment = run.result.environment
            found[run.device] = fingerprint(run.device, environment, run.host, known, profile)
    return found


def fingerprint(
    device: str,
    environment: BenchEnvironment,
    host: Host,
    sensors: GpuTelemetry | None,
    profile: str | None,
) -> Fingerprint:
    """Return one device's fingerprint; a GPU's includes what the driver and CuPy report."""
    gpu = next((gpu for gpu in environment.gpus if f"gpu:{gpu.cuda_index}" == device), None)
    blas = f"{environment.blas_name or 'unknown'} {environment.blas_version or ''}".strip()
    threads = f", {environment.blas_threads} threads" if environment.blas_threads else ""
    return Fingerprint(
        board=gpu.name if gpu else None,
        pci_device_id=gpu.pci_device_id if gpu else None,
        vbios=sensors.vbios_version if sensors else None,
        driver=host.driver_version if gpu else None,
        cuda=host.cuda_driver_version if gpu else None,
        cupy=environment.cupy_version if gpu else None,
        cublas=environment.cublas_version if gpu else None,
        power_limit_w=sensors.power_limit_w if sensors else None,
        ecc=sensors.ecc_mode if sensors else None,
        clock_policy=_clock_policy(sensors) if sensors else None,
        cpu=environment.cpu_model,
        cores=environment.usable_cores,
        blas=f"{blas}{threads}",
        blas_architecture=environment.blas_architecture,
        variables=environment.variables,
        profile=profile,
        gpucheck=__version__,
    )


def _clock_policy(sensors: GpuTelemetry) -> str:
    return "set by somebody" if sensors.reasons.get(_LOCKED) else "default"


def differences(one: Fingerprint, other: Fingerprint) -> dict[str, str]:
    """Return the keys that differ, each with both values; unknown on both sides is no difference.

    A value known on one side only counts as a difference.
    """
    found = {}
    for key in KEYS:
        before, after = getattr(one, key), getattr(other, key)
        if before != after:
            found[key] = f"{key}: {_shown(before)} -> {_shown(after)}"
    return found


def _shown(value: object) -> str:
    if value is None:
        return "unknown"
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, Mapping):
        return " ".join(f"{name}={text}" for name, text in sorted(value.items())) or "none"
    return f"{value:g}" if isinstance(value, float) else str(value)


def allowed_keys(words: Sequence[str]) -> tuple[str, ...]:
    """Return the keys that may differ, by their names in the file.

    Raises:
        WrongUseError: there is no such key.
    """
    keys = tuple(dict.fromkeys(word.replace("-", "_").lower() for word in words))
    for word, key in zip(words, keys, strict=False):
        if key not in KEYS:
            raise WrongUseError(
                code="unknown-difference",
                message=f"--allow-difference has no key {word!r}.",
                remedy=(f"Choose from: {', '.join(KEYS)}.",),
            )
    return keys


def not_allowed(found: Mapping[str, str], allowed: Sequence[str]) -> tuple[str, ...]:
    """Return the differences that forbid a comparison."""
    return tuple(text for key, text in found.items() if key not in allowed)
