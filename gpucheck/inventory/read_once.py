"""Machine that is read once for several answers, which then agree; perhaps redacted.

What a snapshot holds is answered from it. What no snapshot holds, because something runs for it or
is opened, is asked of the machine itself, and redacted by the same stand-ins: so whatever is
derived from these readings has no name that a redacted snapshot has not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from gpucheck.drivers.evidence import HolderReading, HoldersReading, LaunchReading
from gpucheck.drivers.interface import NvmlRequest, Probes
from gpucheck.drivers.readings import CudaReading, NvmlReading, ProcessIdentity
from gpucheck.drivers.recorded import RecordedProbes
from gpucheck.inventory.snapshot import Redactor, record, redact
from gpucheck.report.envelope import Host


class ReadOnce(RecordedProbes):
    """Probes over a recording of this machine; `redactor` is None where names may stay."""

    def __init__(self, probes: Probes, redactor: Redactor | None) -> None:
        self.real = record(probes)
        self.snapshot = self.real if redactor is None else redact(self.real, redactor)
        super().__init__(self.snapshot)
        self._probes = probes
        self._redactor = redactor

    def host(self) -> Host:
        """Return the host, recorded only if the machine itself is a recording."""
        return self.snapshot.host._replace(recorded=self._probes.host().recorded)

    def nvml(self, request: NvmlRequest) -> NvmlReading:
        """Return the recorded reading; the processes after a launch are asked for anew."""
        if request.processes_of is None:
            return super().nvml(request)
        reading = self._probes.nvml(request)
        if self._redactor is None:
            return reading
        found: NvmlReading = self._redactor.sentences(self._redactor.nvml(reading))
        return found

    def cuda(self, *, unrestricted: bool = False) -> CudaReading:
        """Return libcuda's answer; the one without the variable need not be recorded."""
        if not unrestricted or self.snapshot.cuda_unrestricted is not None:
            return super().cuda(unrestricted=unrestricted)
        reading = self._probes.cuda(unrestricted=True)
        if self._redactor is None:
            return reading
        found: CudaReading = self._redactor.sentences(self._redactor.cuda(reading))
        return found

    def open_nodes(self, paths: Sequence[str]) -> Mapping[str, str | None]:
        """Open the device files behind these paths."""
        real, shown = self.real.system, self.snapshot.system
        if real is None or shown is None:
            return {}
        behind = {
            ours.path: node.path
            for node, ours in zip(real.nodes.nodes, shown.nodes.nodes, strict=True)
        }
        wanted = {path: behind[path] for path in paths if path in behind}
        opened = self._probes.open_nodes(list(wanted.values()))
        return {path: self._text(opened[node]) for path, node in wanted.items() if node in opened}

    def launch(
        self,
        python: str | None,
        *,
        through_cupy: bool,
        every_gpu: bool,
        report_progress: Callable[[str], None],
    ) -> LaunchReading:
        """Run a kernel with the interpreter whose path may be redacted."""
        reading = self._probes.launch(
            None if self.real.builds is None else self.real.builds.python,
            through_cupy=through_cupy,
            every_gpu=every_gpu,
            report_progress=report_progress,
        )
        if self._redactor is None:
            return reading
        found: LaunchReading = self._redactor.everything(reading)
        return found

    def device_holders(self) -> HoldersReading:
        """Search for the processes that hold a device file open."""
        reading = self._probes.device_holders()
        return reading._replace(
            holders=tuple(map(self._holder, reading.holders)),
            unavailable=self._text(reading.unavailable),
        )

    def _holder(self, holder: HolderReading) -> HolderReading:
        if self._redactor is None:
            return holder
        who = self._redactor.process(
            ProcessIdentity(
                pid=holder.pid,
                namespace="own",
                name=holder.name,
                user=holder.user,
                command=holder.command,
            )
        )
        return holder._replace(name=who.name, user=who.user, command=who.command)

    def _text(self, text: str | None) -> str | None:
        if self._redactor is None or text is None:
            return text
        found: str = self._redactor.everything(text)
        return found
