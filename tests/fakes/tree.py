"""/proc, /sys, /dev and /etc of a machine, as plain files under a root of the test's choice."""

import os
from collections.abc import Iterable
from pathlib import Path, PurePosixPath

from tests.fakes.machine import Gpu, Machine, Process, cpus_of

TICKS_PER_S = 100
"""The unit of times in /proc; psutil asks the running kernel, which says 100 on all our Linuxes."""
PAGE_BYTES = 4096
RESIDENT_BYTES = 256 << 20
"""Memory that every pretended process holds."""

_SPEEDS = {1: "2.5", 2: "5.0", 3: "8.0", 4: "16.0", 5: "32.0", 6: "64.0"}
_SECURE_BOOT = "sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c"
_NVSWITCHES = 4
_INFORMATION = (
    "Model: \t\t {model}\nIRQ:   \t\t {irq}\nGPU UUID: \t {uuid}\nVideo BIOS: \t {vbios}\n"
    "Bus Type: \t PCIe\nDMA Size: \t 47 bits\nDMA Mask: \t 0x7fffffffffff\n"
    "Bus Location: \t {bus_id}\nDevice Minor: \t {minor}\nGPU Firmware: \t {firmware}\n"
    "GPU Excluded:\t {excluded}\n"
)
_PARAMS = (
    "ResmanDebugLevel: 4294967295\nRmLogonRC: 1\nModifyDeviceFiles: 1\nDeviceFileUID: 0\n"
    "DeviceFileGID: 0\nDeviceFileMode: 438\nEnableMSI: 1\nRegistryDwords: \"\"\n"
    'ExcludedGpus: "{excluded}"\n'
)  # fmt: skip


def write_tree(machine: Machine, root: Path) -> Path:
    """Write the machine's files below `root` and return `root`."""
    tree = _Tree(root)
    _write_system(tree, machine)
    _write_cpus(tree, machine)
    _write_pci(tree, machine)
    _write_modules(tree, machine)
    _write_driver(tree, machine)
    _write_device_nodes(tree, machine)
    _write_libraries(tree, machine)
    for process in _processes(machine):
        _write_process(tree, process)
    return root


class _Tree:
    """Writes files below a root."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._folders: set[str] = set()

    def file(self, path: str, content: str | bytes = "") -> None:
        """Write one file; text keeps raw bytes that came as surrogate escapes."""
        data = content if isinstance(content, bytes) else content.encode("utf-8", "surrogateescape")
        self.folder(path.rpartition("/")[0])
        (self.root / path).write_bytes(data)

    def folder(self, path: str) -> None:
        """Make one folder."""
        if path not in self._folders:
            (self.root / path).mkdir(parents=True, exist_ok=True)
            self._folders.add(path)

    def link(self, path: str, target: str) -> None:
        """Link `path` to `target`, both from the root, relatively: the tree can be moved."""
        folder = path.rpartition("/")[0]
        self.folder(folder)
        place = self.root / path
        place.unlink(missing_ok=True)
        place.symlink_to(os.path.relpath(target, folder or "."))

    def values(self, folder: str, values: Iterable[tuple[str, object]]) -> None:
        """Write one small file for each present value."""
        for name, value in values:
            if value is not None:
                self.file(f"{folder}/{name}", f"{value}\n")


def _write_system(tree: _Tree, machine: Machine) -> None:
    host = machine.host
    name, _, rest = host.os.partition(" ")
    version = next((word for word in rest.split() if word[0].isdigit()), "")
    tree.file(
        "etc/os-release",
        f'PRETTY_NAME="{host.os}"\nNAME="{name}"\nVERSION_ID="{version}"\nID={name.lower()}\n',
    )
    users = {(p.user, p.uid) for p in _processes(machine)} | {("root", 0)}
    tree.file("etc/passwd", "".join(f"{u}:x:{i}:{i}::/:/bin/sh\n" for u, i in sorted(users)))
    tree.values(
        "proc/sys/kernel",
        [("osrelease", host.kernel), ("ostype", "Linux"), ("hostname", machine.name),
         ("arch", host.processor),
         ("dmesg_restrict", 1)],
    )  # fmt: skip
    tree.file("proc/version", f"Linux version {host.kernel} (builder) #1 SMP\n")
    tree.file("proc/cmdline", "BOOT_IMAGE=/boot/vmlinuz root=/dev/sda1 ro\n")
    tree.file("proc/uptime", "86400.00 86400.00\n")
    tree.file("proc/loadavg", "0.10 0.08 0.07 1/200 1234\n")
    available_kib = host.memory_available_kib
    tree.file("proc/meminfo", f"MemTotal: {host.memory_total_kib} kB\nMemFree: 201326592 kB\n"
              f"MemAvailable: {available_kib} kB\nSwapTotal: 0 kB\nSwapFree: 0 kB\n")  # fmt: skip
    container = host.environment == "container"
    if container:
        tree.file(".dockerenv")
    root_mount = "overlay overlay" if container else "ext4 /dev/sda1"
    tree.file("proc/1/mountinfo", f"1 0 0:1 / / rw,relatime - {root_mount} rw\n")
    tree.file("proc/1/cgroup", "0::/\n" if container else "0::/init.scope\n")
    tree.link("proc/self", "proc/1")
    if host.secure_boot is not None:
        tree.file(_SECURE_BOOT, bytes([6, 0, 0, 0, host.secure_boot]))


def _write_cpus(tree: _Tree, machine: Machine) -> None:
    cpus = sorted(cpu for cpu_list in machine.host.numa_cpus for cpu in cpus_of(cpu_list))
    everything = f"0-{cpus[-1]}" if len(cpus) > 1 else "0"
    tree.values(
        "sys/devices/system/cpu",
        [("online", everything), ("possible", everything), ("present", everything)],
    )
    nodes = len(machine.host.numa_cpus)
    tree.file("sys/devices/system/node/online", f"0-{nodes - 1}\n" if nodes > 1 else "0\n")
    for node, cpu_list in enumerate(machine.host.numa_cpus):
        tree.file(f"sys/devices/system/node/node{node}/cpulist", f"{cpu_list}\n")
    counters = "0 0 0 0 0 0 0 0 0 0"
    lines = [f"cpu  {counters}", *(f"cpu{cpu} {counters}" for cpu in cpus)]
    lines += ["intr 0", "ctxt 0", f"btime {machine.host.boot_time_s}", "processes 1"]
    tree.file("proc/stat", "\n".join(lines) + "\n")
    hypervisor = " hypervisor" if machine.host.environment == "wsl2" else ""
    tree.file(
        "proc/cpuinfo",
        "\n".join(
            f"processor\t: {cpu}\nvendor_id\t: GenuineIntel\nmodel name\t: Pretended CPU\n"
            f"flags\t\t: fpu sse2 avx2{hypervisor}\n"
            for cpu in cpus
        ),
    )


def _write_pci(tree: _Tree, machine: Machine) -> None:
    if machine.host.environment == "wsl2":
        _write_wsl_adapter(tree)
        return
    tree.folder("sys/bus/pci/devices")
    for gpu in machine.gpus:
        folder = _write_bridge(tree, gpu)
        tree.values(folder, _pci_values(machine, gpu))
        lost = any(
            fault.function == "*"
            and fault.gpu == gpu.index
            and fault.code == 15
            and not fault.after
            for fault in machine.faults
        )
        header = gpu.pci_device_id.to_bytes(4, "big")
        config = b"\xff" * 64 if lost else bytes([header[3], header[2], header[1], header[0]])
        tree.file(f"{folder}/config", config.ljust(64, b"\0"))
        _enlist(tree, gpu.pci_bus_id, folder, gpu.bound_driver)
    for bus_id in machine.driver.excluded_pci_bus_ids:
        folder = f"sys/devices/pci{bus_id[:7]}/{bus_id}"
        tree.values(folder, [("vendor", "0x10de"), ("device", "0x2330"), ("class", "0x030200")])
        _enlist(tree, bus_id, folder, "nvidia")
    if machine.topology.nvswitch_links:
        for number in range(_NVSWITCHES):
            bus_id = f"0000:{0x05 + number:02x}:00.0"
            folder = f"sys/devices/pci0000:00/{bus_id}"
            tree.values(folder, [("vendor", "0x10de"), ("device", "0x22a3"), ("class", "0x068000")])
            _enlist(tree, bus_id, folder, "nvidia-nvswitch")


def _write_wsl_adapter(tree: _Tree) -> None:
    bus_id = "0ee6:00:00.0"
    folder = f"sys/devices/LNXSYSTM:00/{bus_id}"
    tree.values(folder, [("vendor", "0x1414"), ("device", "0x008e"), ("class", "0x030200")])
    _enlist(tree, bus_id, folder, "dxgkrnl")


def _write_bridge(tree: _Tree, gpu: Gpu) -> str:
    """Write the port above a GPU, unless it is on the root bus; return the GPU's folder."""
    domain, bus, _ = gpu.pci_bus_id.split(":")
    root = f"sys/devices/pci{domain}:00"
    if bus == "00":
        return f"{root}/{gpu.pci_bus_id}"
    port_id = f"{domain}:00:{1 + gpu.index % 31:02x}.0"
    port = f"{root}/{port_id}"
    tree.values(
        port,
        [("vendor", "0x8086"), ("device", "0x352a"), ("class", "0x060400"),
         ("current_link_speed", _speed(gpu.pcie_generation)),
         ("current_link_width", gpu.pcie_width),
         ("max_link_speed", _speed(gpu.pcie_generation_max)),
         ("max_link_width", gpu.pcie_width_max)],
    )  # fmt: skip
    _enlist(tree, port_id, port, "pcieport")
    return f"{port}/{gpu.pci_bus_id}"


def _pci_values(machine: Machine, gpu: Gpu) -> list[tuple[str, object]]:
    device, vendor = gpu.pci_device_id >> 16, gpu.pci_device_id & 0xFFFF
    every_cpu = ",".join(machine.host.numa_cpus)
    return [
        ("vendor", f"0x{vendor:04x}"),
        ("device", f"0x{device:04x}"),
        ("subsystem_vendor", f"0x{gpu.pci_subsystem_id & 0xFFFF:04x}"),
        ("subsystem_device", f"0x{gpu.pci_subsystem_id >> 16:04x}"),
        ("revision", "0xa1"),
        ("class", f"0x{gpu.pci_class:06x}"),
        ("numa_node", -1 if gpu.numa_node is None else gpu.numa_node),
        ("local_cpulist", gpu.cpu_affinity or every_cpu),
        ("current_link_speed", _speed(gpu.pcie_generation)),
        ("current_link_width", gpu.pcie_width),
        ("max_link_speed", _speed(gpu.pcie_generation_gpu_max or gpu.pcie_generation_max)),
        ("max_link_width", gpu.pcie_width_max),
        ("power/runtime_status", "active"),
        ("enable", 1),
    ]


def _speed(generation: int | None) -> str | None:
    return None if generation is None else f"{_SPEEDS[generation]} GT/s PCIe"


def _enlist(tree: _Tree, bus_id: str, folder: str, driver: str) -> None:
    tree.link(f"sys/bus/pci/devices/{bus_id}", folder)
    if driver != "none":
        tree.folder(f"sys/bus/pci/drivers/{driver}")
        tree.link(f"{folder}/driver", f"sys/bus/pci/drivers/{driver}")


def _write_modules(tree: _Tree, machine: Machine) -> None:
    driver, kernel = machine.driver, machine.host.kernel
    tree.folder("sys/module")
    loaded = {gpu.bound_driver.replace("-", "_") for gpu in machine.gpus} - {"none", "nvidia"}
    if driver.module_loaded:
        loaded.add("nvidia")
        taint = "OE" if driver.module_open else "POE"
        tree.values(
            "sys/module/nvidia",
            [("version", _module_version(machine)), ("refcnt", 2), ("taint", taint),
             ("initstate", "live")],
        )  # fmt: skip
    if driver.uvm_loaded:
        loaded.add("nvidia_uvm")
        tree.file("sys/module/nvidia_uvm/parameters/uvm_disable_hmm", "N\n")
    for module in sorted(loaded):
        tree.folder(f"sys/module/{module}")
    lines = [f"{module} 1048576 2 - Live 0x0000000000000000\n" for module in sorted(loaded)]
    tree.file("proc/modules", "".join(lines))
    installed = (driver.nvml or driver.module_loaded) and machine.host.environment != "wsl2"
    modules = ["kernel/drivers/gpu/drm/nouveau/nouveau.ko:"]
    if installed and machine.host.environment == "bare-metal":
        modules += ["updates/dkms/nvidia.ko:", "updates/dkms/nvidia-uvm.ko: updates/dkms/nvidia.ko"]
        for module in ("nvidia", "nvidia-uvm"):
            tree.file(f"lib/modules/{kernel}/updates/dkms/{module}.ko")
    if machine.host.environment == "bare-metal":
        tree.file(f"lib/modules/{kernel}/modules.dep", "\n".join(modules) + "\n")


def _module_version(machine: Machine) -> str:
    return machine.driver.module_version or machine.driver.version


def _write_driver(tree: _Tree, machine: Machine) -> None:
    driver = machine.driver
    majors = ["  1 mem", "  5 /dev/tty"]
    if driver.module_loaded:
        majors += ["195 nvidia", "195 nvidiactl"]
        flavour = "Open Kernel Module for x86_64" if driver.module_open else "x86_64 Kernel Module"
        version = _module_version(machine)
        tree.file(
            "proc/driver/nvidia/version",
            f"NVRM version: NVIDIA UNIX {flavour}  {version}  Tue Sep 23 10:11:16 UTC 2025\n"
            "GCC version:  gcc version 12.3.0\n",
        )
        excluded = ",".join(driver.excluded_pci_bus_ids)
        tree.file("proc/driver/nvidia/params", _PARAMS.format(excluded=excluded))
        for gpu in machine.gpus:
            if gpu.bound_driver == "nvidia":
                _write_information(tree, gpu)
        for bus_id in driver.excluded_pci_bus_ids:
            text = _INFORMATION.format(
                model="Unknown", irq=0, uuid="GPU-????????-????-????-????-????????????",
                vbios="??.??.??.??.??", bus_id=bus_id, minor=len(machine.gpus), firmware="N/A",
                excluded="Yes",
            )  # fmt: skip
            tree.file(f"proc/driver/nvidia/gpus/{bus_id}/information", text)
    if driver.uvm_loaded:
        majors.append("505 nvidia-uvm")
    tree.file("proc/devices", "Character devices:\n" + "\n".join(majors) + "\n\nBlock devices:\n")


def _write_information(tree: _Tree, gpu: Gpu) -> None:
    text = _INFORMATION.format(
        model=gpu.name, irq=16 + gpu.index, uuid=gpu.uuid, vbios=gpu.vbios_version or "??",
        bus_id=gpu.pci_bus_id, minor=gpu.minor_number, firmware=gpu.gsp_firmware_version or "N/A",
        excluded="No",
    )  # fmt: skip
    tree.file(f"proc/driver/nvidia/gpus/{gpu.pci_bus_id}/information", text)


def _write_device_nodes(tree: _Tree, machine: Machine) -> None:
    tree.folder("dev")
    if machine.host.environment == "wsl2":
        tree.file("dev/dxg")
    if not machine.driver.device_nodes:
        return
    minors = [gpu.minor_number for gpu in machine.gpus if gpu.bound_driver == "nvidia"]
    names = ["nvidiactl", "nvidia-modeset", *(f"nvidia{minor}" for minor in minors)]
    if machine.driver.uvm_loaded:
        names += ["nvidia-uvm", "nvidia-uvm-tools"]
    if machine.topology.nvswitch_links:
        names += ["nvidia-nvswitchctl", *(f"nvidia-nvswitch{n}" for n in range(_NVSWITCHES))]
    if any(gpu.mig for gpu in machine.gpus):
        names += ["nvidia-caps/nvidia-cap1", "nvidia-caps/nvidia-cap2"]
    for name in names:
        tree.file(f"dev/{name}")
        (tree.root / "dev" / name).chmod(0o666)


def _write_libraries(tree: _Tree, machine: Machine) -> None:
    """Write empty library files, whose names contain the driver's version."""
    wsl = machine.host.environment == "wsl2"
    folder = "usr/lib/wsl/lib" if wsl else "usr/lib/x86_64-linux-gnu"
    tree.folder(folder)
    present = {"libnvidia-ml.so": machine.driver.nvml, "libcuda.so": machine.driver.cuda}
    for name in [name for name, there in present.items() if there]:
        versioned = f"{folder}/{name}.{machine.driver.version}"
        tree.file(versioned)
        tree.link(f"{folder}/{name}.1", versioned)


def _processes(machine: Machine) -> list[Process]:
    """List each visible process once, and the first process of all."""
    init = Process(pid=1, command=("/sbin/init",), name="/sbin/init", parent_pid=0)
    found = {1: init}
    for gpu in machine.gpus:
        found.update({p.pid: p for p in gpu.processes if p.visible})
    return list(found.values())


def _write_process(tree: _Tree, process: Process) -> None:
    folder = f"proc/{process.pid}"
    command = process.command or ((process.name,) if process.name else ())
    short = PurePosixPath(command[0]).name if command else "unknown"
    comm = short.encode("utf-8", "surrogateescape")[:15]
    tree.file(f"{folder}/cmdline", "".join(f"{word}\0" for word in command))
    tree.file(f"{folder}/comm", comm + b"\n")
    name = comm.replace(b"\\", b"\\\\").replace(b"\n", b"\\n")
    ids = "\t".join([str(process.uid)] * 4)
    resident_kib = RESIDENT_BYTES >> 10
    status = (
        f"\nUmask:\t0022\nState:\tS (sleeping)\nTgid:\t{process.pid}\nNgid:\t0\n"
        f"Pid:\t{process.pid}\nPPid:\t{process.parent_pid}\nTracerPid:\t0\n"
        f"Uid:\t{ids}\nGid:\t{ids}\nVmRSS:\t{resident_kib} kB\nThreads:\t1\n"
        f"voluntary_ctxt_switches:\t1\nnonvoluntary_ctxt_switches:\t1\n"
    )
    tree.file(f"{folder}/status", b"Name:\t" + name + status.encode())
    started = round(process.started_s * TICKS_PER_S)
    # Fields 3 to 52 of proc(5); the 22nd is the start.
    before = ["S", str(process.parent_pid), str(process.pid), str(process.pid), *["0"] * 15]
    stat = " ".join([*before, str(started), *["0"] * 30])
    tree.file(f"{folder}/stat", f"{process.pid} (".encode() + comm + f") {stat}\n".encode())
    pages = RESIDENT_BYTES // PAGE_BYTES
    tree.file(f"{folder}/statm", f"{2 * pages} {pages} 0 0 0 {pages} 0\n")
    tree.file(f"{folder}/environ")
