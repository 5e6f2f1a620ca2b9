"""Metrics of a report for monitoring systems: a name, a help text and samples with labels."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

Number = int | float | bool | None


class Sample(NamedTuple):
    """Value under its labels; a label without text is absent, and a value that is None is left out.

    The machine's name is added as the label `hostname`, unless the sample has its own.
    """

    labels: Mapping[str, str | None]
    value: Number


class Metric(NamedTuple):
    """Gauge in a base unit: seconds, bytes, ratios (not percent), celsius, watts, hertz.

    `name` begins with `gpucheck_` and ends with the unit. The label sets of `samples` are unique.
    Metrics of two documents have different names: node-exporter refuses files that both hold the
    same sample.
    """

    name: str
    help: str
    samples: tuple[Sample, ...]


def gauge(
    name: str, text: str, samples: Iterable[tuple[Mapping[str, str | None], Number]]
) -> Metric:
    """Return a metric of these labels and values."""
    return Metric(name, text, tuple(Sample(*each) for each in samples))


def gpu_labels(
    *,
    index: int | None = None,
    uuid: str | None = None,
    pci_bus_id: str | None = None,
    name: str | None = None,
) -> dict[str, str | None]:
    """Return the labels of a GPU in DCGM-exporter's spelling, so that its series join ours.

    `index` is NVML's. Source: dcgm-exporter, internal/pkg/rendermetrics/render_metrics.go. Bus ids
    stand there as DCGM has them, with eight digits of the domain and in upper case.
    """
    domain, colon, rest = (pci_bus_id or "").partition(":")
    return {
        "gpu": None if index is None else str(index),
        "UUID": uuid,
        "pci_bus_id": f"{domain:0>8}:{rest}".upper() if colon else pci_bus_id,
        "modelName": name,
    }


def ratio(percent: float | None) -> float | None:
    """Return percent as a share of one, which is Prometheus' base unit."""
    return None if percent is None else percent / 100
