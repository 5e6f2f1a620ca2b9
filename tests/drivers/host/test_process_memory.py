"""Memory by process: overlapping lists, MIG instances, and missing figures."""

from __future__ import annotations

from gpucheck.drivers.host.process_memory import memory_by_process
from gpucheck.drivers.readings import GpuReading, MigReading, ProcessReading


def process(pid: int, size: int | None, **changes: object) -> ProcessReading:
    return ProcessReading(pid=pid, type="compute", memory_used_bytes=size, **changes)  # type: ignore[arg-type]


def gpu(*processes: ProcessReading, **changes: object) -> GpuReading:
    return GpuReading(index=0, uuid="GPU-0", processes=processes, **changes)  # type: ignore[arg-type]


def test_each_process_on_each_gpu() -> None:
    other = GpuReading(index=1, uuid="GPU-1", processes=(process(7, 30),))

    assert memory_by_process([gpu(process(7, 10), process(8, 20)), other]) == {
        "GPU-0": {7: 10, 8: 20},
        "GPU-1": {7: 30},
    }


def test_lists_that_overlap_count_once() -> None:
    assert memory_by_process([gpu(process(7, 10), process(7, 12), process(7, None))]) == {
        "GPU-0": {7: 12}
    }


def test_what_is_not_told_is_null() -> None:
    assert memory_by_process([gpu(process(7, None))]) == {"GPU-0": {7: None}}


def test_an_instance_is_a_device_of_its_own() -> None:
    migs = tuple(
        MigReading(uuid=f"MIG-{n}", gpu_instance_id=n, compute_instance_id=0) for n in (1, 2)
    )
    inside = process(7, 10, gpu_instance_id=2, compute_instance_id=0)
    unknown = process(8, 20, gpu_instance_id=5, compute_instance_id=0)

    found = memory_by_process([gpu(inside, unknown, process(9, 30), mig_instances=migs)])

    assert found == {"MIG-2": {7: 10}, "GPU-0": {8: 20, 9: 30}}
