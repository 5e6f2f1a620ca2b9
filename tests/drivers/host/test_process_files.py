"""Files of one process, on pretended trees of /proc and of real children."""

from __future__ import annotations

import mmap
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucheck.drivers.evidence import AncestorReading, CgroupReading, MappedReading
from gpucheck.drivers.host import process_files
from gpucheck.drivers.host.process_files import NOT_ALLOWED, read_process, read_process_in_time
from tests.fakes.processes import CUDA, PID, add, map_line, write

# ------------------------------------------------------------------------------ what it is


def test_what_is_read_of_a_process(tmp_path: Path) -> None:
    add(tmp_path, 1, parent=0, name="systemd")
    add(tmp_path, opened=("/dev/nvidiactl", "/dev/nvidia0", "/dev/null", "/dev/nvidia0"))

    found = read_process(PID, tmp_path)

    assert (found.exists, found.pid, found.state, found.parent) == (True, PID, "S", 1)
    assert (found.name, found.thread_count, found.threads) == ("python", 3, {"S": 1})
    assert found.command == "python train.py '--token=***'"
    assert found.device_files == ("/dev/nvidia0", "/dev/nvidiactl")
    assert (found.mapped, found.frameworks, found.devices_present) == ((), (), False)
    assert found.unavailable == {}


def test_namespaces_that_it_does_not_share(tmp_path: Path) -> None:
    add(tmp_path)
    for folder, pid, mnt in (("self", 1, 2), (f"{PID}", 1, 3)):
        (tmp_path / "proc" / folder / "ns").mkdir(parents=True)
        (tmp_path / "proc" / folder / "ns/pid").symlink_to(f"pid:[{pid}]")
        (tmp_path / "proc" / folder / "ns/mnt").symlink_to(f"mnt:[{mnt}]")

    assert read_process(PID, tmp_path).own_namespaces == ("mnt",)


def test_no_such_process(tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()

    found = read_process(PID, tmp_path)

    assert (found.exists, found.ended, found.pid) == (False, False, PID)


def test_a_thread_stands_for_its_process(tmp_path: Path) -> None:
    add(tmp_path)
    add(tmp_path, 4720)
    (tmp_path / "proc/4720/status").write_text(f"Name:\tpython\nTgid:\t{PID}\n")

    assert read_process(4720, tmp_path).pid == PID


@pytest.mark.parametrize(
    ("after", "ended"),
    [
        (None, True),  # gone
        ("S 1 {zeros} 501", True),  # another process with its id
        ("Z 1 {zeros} 500", True),
        ("R 1 {zeros} 500", False),
    ],
)
def test_a_process_that_ends_while_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: str | None, ended: bool
) -> None:
    folder = add(tmp_path)
    read = process_files._cgroup

    def ending(process: Path, root: Path) -> CgroupReading | None:
        if after is None:
            (folder / "stat").unlink()
        else:
            zeros = " ".join(["0"] * 17)
            (folder / "stat").write_text(f"{PID} (python) {after.format(zeros=zeros)} 0\n")
        return read(process, root)

    monkeypatch.setattr(process_files, "_cgroup", ending)

    found = read_process(PID, tmp_path)

    assert (found.ended, found.exists) == (ended, not ended)


def test_a_zombie_is_read_as_one(tmp_path: Path) -> None:
    add(tmp_path, state="Z")

    found = read_process(PID, tmp_path)

    assert (found.exists, found.state, found.ended) == (True, "Z", False)
    assert (found.environment, found.mapped, found.device_files, found.cgroup) == (None,) * 4
    assert set(found.unavailable.values()) == {"it has ended"}


def test_of_a_process_whose_first_thread_has_ended_another_one_tells(tmp_path: Path) -> None:
    folder = add(tmp_path, state="Z")
    add(tmp_path, 4720, maps=map_line(CUDA), environ={"CUDA_VISIBLE_DEVICES": "1"},
        opened=("/dev/nvidia0",))  # fmt: skip
    (tmp_path / "proc/4720").rename(folder / "task/4720")
    (folder / "task/4720/root").unlink()
    (folder / "task/4720/root").symlink_to(tmp_path / "tree")
    (folder / "maps").write_text("")
    (folder / "fd").rmdir()
    (folder / "environ").unlink()

    found = read_process(PID, tmp_path)

    assert [each.path for each in found.mapped or ()] == [CUDA]
    assert found.environment == {"CUDA_VISIBLE_DEVICES": "1"}
    assert (found.device_files, found.devices_present) == (("/dev/nvidia0",), False)
    assert (found.cgroup is None, dict(found.unavailable)) == (False, {})
    assert (found.threads, found.state) == ({"S": 1, "Z": 1}, "Z")


def test_a_thread_of_the_kernel_has_no_files(tmp_path: Path) -> None:
    folder = add(tmp_path, name="kthreadd")
    words = (folder / "stat").read_text().split()
    words[8] = str(0x00208040)
    (folder / "stat").write_text(" ".join(words))

    found = read_process(PID, tmp_path)

    assert (found.exists, found.kernel_thread, found.mapped) == (True, True, None)
    assert found.unavailable["device_files"] == "a thread of the kernel has none"


def test_files_of_another_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = add(tmp_path, opened=("/dev/nvidia0",))

    def refuse(path: object, *rest: object) -> object:
        if str(path).startswith(str(folder)) and str(path).endswith(
            ("maps", "environ", "fd", "dev")
        ):
            raise PermissionError(13, "Permission denied")
        return None

    for module, name in ((process_files, "read_file"), (os, "listdir")):
        real = getattr(module, name)
        monkeypatch.setattr(module, name, lambda *given, real=real: refuse(*given) or real(*given))
    monkeypatch.setattr(os, "geteuid", lambda: 1000)

    found = read_process(PID, tmp_path)

    assert (found.mapped, found.environment, found.device_files, found.devices_present) == (
        *(None, None, None, None),
    )
    names = ("environment", "libraries", "frameworks", "device_files", "devices_present")
    assert found.unavailable == dict.fromkeys(names, NOT_ALLOWED)


def test_files_that_are_too_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    add(tmp_path, maps=map_line(CUDA))
    monkeypatch.setattr(process_files, "MOST_MAPS_BYTES", 20)

    assert read_process(PID, tmp_path).unavailable["libraries"] == "it is larger than 20 bytes"


# ------------------------------------------------------------------------------ its variables


def test_only_variables_about_gpus(tmp_path: Path) -> None:
    secret = {"AWS_SECRET_ACCESS_KEY": "x", "HOME": "/h"}
    add(tmp_path, environ=secret | {"CUDA_VISIBLE_DEVICES": "", "NVIDIA_VISIBLE_DEVICES": "all"})

    found = read_process(PID, tmp_path).environment

    assert found == {"CUDA_VISIBLE_DEVICES": "", "NVIDIA_VISIBLE_DEVICES": "all"}


def test_the_first_of_two_values_counts(tmp_path: Path) -> None:
    folder = add(tmp_path)
    (folder / "environ").write_bytes(b"CUDA_VISIBLE_DEVICES=1=2\0CUDA_VISIBLE_DEVICES=3\0noise\0")

    assert read_process(PID, tmp_path).environment == {"CUDA_VISIBLE_DEVICES": "1=2"}


def test_the_chain_of_parents(tmp_path: Path) -> None:
    add(tmp_path, 1, parent=0, name="systemd")
    tmux = add(tmp_path, 4690, name="tmux", environ={"CUDA_VISIBLE_DEVICES": "3", "A": "b"})
    add(tmp_path, 4700, parent=4690, name="bash")
    add(tmp_path, parent=4700)
    (tmux / "environ").unlink()

    found = read_process(PID, tmp_path).ancestors

    assert found == (
        AncestorReading(4700, "bash", {}),
        AncestorReading(4690, "tmux", None),
        AncestorReading(1, "systemd", {}),
    )


def test_the_chain_ends_at_a_parent_that_is_hidden(tmp_path: Path) -> None:
    add(tmp_path, parent=4700)
    add(tmp_path, 4700, parent=4690, name="bash")

    found = read_process(PID, tmp_path).ancestors

    assert found == (AncestorReading(4700, "bash", {}), AncestorReading(4690))


def test_a_circle_of_parents_ends(tmp_path: Path) -> None:
    add(tmp_path, parent=12)
    add(tmp_path, 12, parent=PID)

    assert [one.pid for one in read_process(PID, tmp_path).ancestors] == [12, PID]


def test_processes_below_it_that_hold_a_gpu(tmp_path: Path) -> None:
    add(tmp_path)
    add(tmp_path, 4712, parent=PID)
    add(tmp_path, 4713, parent=4712, opened=("/dev/nvidia-uvm",))

    found = read_process(PID, tmp_path)

    assert (found.descendants, found.holders) == ((4712, 4713), (4713,))


# ------------------------------------------------------------------------------ what it has loaded


def test_mapped_files(tmp_path: Path) -> None:
    conda = "/opt/a b/lib/libcudnn.so.9"
    text = (
        "00400000-00452000 r-xp 00000000 08:02 173521      /usr/bin/python3.12\n"
        + map_line(CUDA)
        + map_line(CUDA)  # its second segment
        + map_line(f"{conda} (deleted)", inode=8)
        + map_line("/lib/libcublas-1b2c3d4e.so.12", inode=9)
        + map_line("/lib/libcudaq.so.1", inode=10)
        + map_line("/dev/nvidiactl", device="00:05", inode=11)
        + "7ffd3a000000-7ffd3a021000 rw-p 00000000 00:00 0                          [stack]\n"
        + "torn line"
    )
    add(tmp_path, maps=text)

    assert read_process(PID, tmp_path).mapped == (
        MappedReading(CUDA, "fd:01 7"),
        MappedReading(conda, "fd:01 8", deleted=True),
        MappedReading("/lib/libcublas-1b2c3d4e.so.12", "fd:01 9"),
    )


@given(st.text(st.characters(codec="utf-8"), max_size=300), st.integers(0, 2**63))
def test_no_text_breaks_the_reader_of_mappings(
    tmp_path_factory: pytest.TempPathFactory, text: str, inode: int
) -> None:
    folder = tmp_path_factory.mktemp("maps")
    lines = f"{text}\n{map_line(f'/a{text}/libcuda.so.1', inode=inode)}"
    (folder / "maps").write_bytes(lines.encode())

    for found in process_files._mapped(folder):
        assert found.path.startswith("/")
        assert "\n" not in found.path


SITE = "/opt/venv/lib/python3.12/site-packages"


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        (
            {
                "torch/lib/libtorch_cpu.so": "",
                "torch/version.py": "__version__ = '2.14.0+cpu'\ncuda: Optional[str] = None\n",
            },
            ("pytorch", "2.14.0+cpu", None, False),
        ),
        (
            {
                "torch/lib/libtorch_cpu.so": "",
                "torch/lib/libtorch_cuda.so": "",
                "torch/version.py": "__version__ = '2.14.0'\ncuda: Optional[str] = '12.8'\n",
            },
            ("pytorch", "2.14.0", "12.8", True),
        ),
        (
            {
                "tensorflow/libtensorflow_framework.so.2": "",
                "tensorflow/python/platform/build_info.py": "build_info = OrderedDict("
                "[('cuda_version', '12.5.1'), ('is_cuda_build', True)])",
            },
            ("tensorflow", None, "12.5.1", True),
        ),
        (
            {
                "tensorflow/libtensorflow_cc.so.2": "",
                "tensorflow/python/platform/build_info.py": '{"is_cuda_build": False}',
            },
            ("tensorflow", None, None, False),
        ),
        ({"tensorflow/libtensorflow_cc.so.2": ""}, ("tensorflow", None, None, None)),
        (
            {"jaxlib/_jax.so": "", "jaxlib/version.py": '_version = "0.10.2"'},
            ("jax", "0.10.2", None, False),
        ),
        (
            {"jaxlib/_jax.so": "", "jax_plugins/xla_cuda12/xla_cuda_plugin.so": ""},
            ("jax", None, "12", True),
        ),
        (
            {"jaxlib/_jax.so": "", "../../../conda-meta/jaxlib-0.4.34-cuda126py312_0.json": ""},
            ("jax", None, None, True),
        ),
        (
            {"onnxruntime/capi/onnxruntime_pybind11_state.so": ""},
            ("onnxruntime", None, None, False),
        ),
        (
            {
                "onnxruntime/capi/onnxruntime_pybind11_state.so": "",
                "onnxruntime/capi/libonnxruntime_providers_cuda.so": "",
                "onnxruntime/capi/build_and_package_info.py": "__version__ = '1.24'\n"
                "cuda_version = '12.8'\n",
            },
            ("onnxruntime", "1.24", "12.8", True),
        ),
        (
            {"cupy/_core/core.so": "", "cupy/_version.py": "__version__ = '14.2.0'\n"},
            ("cupy", "14.2.0", None, True),
        ),
        ({"lib/libggml-base.so.0": ""}, ("ggml", None, None, False)),
        ({"lib/libggml.so": "", "lib/cuda_v13/libggml-cuda.so": ""}, ("ggml", None, None, True)),
    ],
)
def test_frameworks_by_their_files(
    tmp_path: Path, files: dict[str, str], expected: tuple[object, ...]
) -> None:
    paths = [
        write(tmp_path, os.path.normpath(f"{SITE}/{path}"), text) for path, text in files.items()
    ]
    add(tmp_path, maps=map_line(paths[0]) + map_line(paths[0], inode=8))

    [found] = read_process(PID, tmp_path).frameworks

    assert (found.name, found.version, found.cuda_build, found.gpu_build) == expected
    assert paths[0].startswith(found.path)


def test_a_folder_that_may_not_be_looked_at_is_not_for_cpus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path, f"{SITE}/torch/lib/libtorch_cpu.so")
    add(tmp_path, maps=map_line(path))
    real = Path.stat

    def stat(self: Path, **options: bool) -> os.stat_result:
        if self.name == "libtorch_cuda.so":
            raise PermissionError(13, "Permission denied")
        return real(self, **options)

    monkeypatch.setattr(Path, "stat", stat)

    assert read_process(PID, tmp_path).frameworks[0].gpu_build is None


def test_devices_that_it_sees(tmp_path: Path) -> None:
    add(tmp_path)
    write(tmp_path, "/dev/nvidia0")

    assert read_process(PID, tmp_path).devices_present is True


# ------------------------------------------------------------------------------ its control group


def group_files(root: Path, folder: str, **files: str) -> None:
    place = root / "sys/fs/cgroup" / folder
    place.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (place / name.replace("__", ".")).write_text(f"{text}\n")


def test_the_smallest_limit_on_the_way_counts(tmp_path: Path) -> None:
    add(tmp_path, cgroup="0::/pod/main\n")
    group_files(tmp_path, "", memory__max="max")
    group_files(tmp_path, "pod", memory__max="8589934592")
    group_files(
        *(tmp_path, "pod/main"),
        memory__max="max",
        memory__current="123",
        memory__events="low 0\noom 4\noom_kill 2\noom_group_kill 0",
    )

    assert read_process(PID, tmp_path).cgroup == CgroupReading(
        "/pod/main", memory_limit_bytes=8 << 30, memory_used_bytes=123, oom_kills=2
    )


@pytest.mark.parametrize(
    ("rules", "allowed"),
    [
        ("a *:* rwm", True),
        ("c 1:3 rwm\nc 195:* rw", True),
        ("c 195:255 m\nc 1:3 rwm", False),
        ("b 195:* rwm", False),
    ],
)
def test_device_rules_of_version_1(tmp_path: Path, rules: str, allowed: bool) -> None:
    add(tmp_path, cgroup="5:cpu,memory:/docker/a\n4:devices:/docker/a\n")
    group_files(tmp_path, "memory/docker/a", memory__limit_in_bytes="9223372036854771712")
    group_files(tmp_path, "devices/docker/a", devices__list=rules)

    found = read_process(PID, tmp_path).cgroup

    assert found == CgroupReading("/docker/a", allows_gpus=allowed)


@pytest.mark.parametrize("text", ["0::/../other\n", "0::/gone\n"])
def test_a_group_that_is_not_seen(tmp_path: Path, text: str) -> None:
    add(tmp_path, cgroup=text)

    found = read_process(PID, tmp_path).cgroup

    assert found is not None
    assert found.memory_limit_bytes is None


def test_no_group_has_a_reason(tmp_path: Path) -> None:
    add(tmp_path, cgroup="")

    found = read_process(PID, tmp_path)

    assert (found.cgroup, found.unavailable) == (None, {"cgroup": "the kernel names none"})


# ------------------------------------------------------------------------------ real children

#: Maps the files named, says so, and waits.
_CHILD = (
    "import mmap, sys\n"
    "files = [open(path, 'rb') for path in sys.argv[1:]]\n"
    "maps = [mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) for file in files]\n"
    "print('ready', flush=True)\n"
    "sys.stdin.read()\n"
)
Start = Callable[..., "subprocess.Popen[bytes]"]


@pytest.fixture
def start() -> Iterator[Start]:
    """Start children that have files mapped, and end them."""
    children: list[subprocess.Popen[bytes]] = []

    def begin(*paths: Path, **variables: str) -> subprocess.Popen[bytes]:
        child = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _CHILD, *map(str, paths)],
            env={"PATH": "/usr/bin:/bin", **variables},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        children.append(child)
        assert child.stdout is not None
        assert child.stdout.readline() == b"ready\n"
        return child

    yield begin
    for child in children:
        child.kill()
        child.communicate()


def test_a_real_child_with_a_replaced_library(tmp_path: Path, start: Start) -> None:
    library, other = tmp_path / "libcuda.so.570.1", tmp_path / "libcudnn.so.9"
    for file in (library, other):
        file.write_bytes(b"\x7fELF" + bytes(mmap.PAGESIZE))
    child = start(library, other, CUDA_VISIBLE_DEVICES="2", MY_SECRET="x")
    library.unlink()

    found = read_process(child.pid, Path("/"))

    assert found.exists is True
    assert found.environment == {"CUDA_VISIBLE_DEVICES": "2"}
    assert found.ancestors[0].pid == os.getpid()
    assert {(each.path, each.deleted) for each in found.mapped or ()} == {
        (str(library), True),
        (str(other), False),
    }


def test_a_real_zombie_and_a_stopped_child(start: Start) -> None:
    child = start()
    os.kill(child.pid, signal.SIGSTOP)
    os.waitpid(child.pid, os.WUNTRACED)
    stopped = read_process(child.pid, Path("/")).state
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)

    assert (stopped, read_process(child.pid, Path("/")).state) == ("T", "Z")


# ------------------------------------------------------------------------------ in time


def test_a_child_reads_the_same(tmp_path: Path) -> None:
    add(tmp_path, 1, parent=0, name="systemd")
    environ = {"CUDA_VISIBLE_DEVICES": "3"}
    add(tmp_path, opened=("/dev/nvidia0",), maps=map_line(CUDA), environ=environ)

    assert read_process_in_time(PID, tmp_path, deadline_s=600) == read_process(PID, tmp_path)


def test_a_process_that_does_not_answer(tmp_path: Path) -> None:
    add(tmp_path, opened=("/dev/nvidia0",), maps=map_line(CUDA))

    found = read_process_in_time(PID, tmp_path, deadline_s=0)

    assert (found.exists, found.state, found.name, found.parent) == (True, "S", "python", 1)
    assert (found.mapped, found.device_files, found.environment) == (None, None, None)
    assert found.unavailable["libraries"].startswith("no answer within 0 s")
    assert read_process_in_time(PID + 1, tmp_path, deadline_s=0).exists is False


def test_no_child_can_be_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    add(tmp_path)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))

    found = read_process_in_time(PID, tmp_path, deadline_s=600)

    assert found.unavailable["environment"].startswith("the process that reads them could not be")
