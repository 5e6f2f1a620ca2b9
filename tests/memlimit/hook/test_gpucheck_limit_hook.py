"""Import hook: one call with the right value at the right moment, and no program breaks."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest

from gpucheck.memlimit.hook.gpucheck_limit_hook import Limit, cap_providers
from tests.memlimit.hook.limited_python import GIB, STAND_INS, Ran, payload, run_limited

CUDA = "CUDAExecutionProvider"
CPU = "CPUExecutionProvider"


def limit_of(*sizes: int, **changes: object) -> Limit:
    return Limit(json.loads(payload(*sizes, **changes)))


def older_torch(tmp_path: Path, version: str) -> Path:
    """Return stand-ins with another version of PyTorch."""
    folder = tmp_path / "frameworks"
    shutil.copytree(STAND_INS, folder)
    (folder / "torch" / "version.py").write_text(f"__version__ = '{version}'\n")
    return folder


class TestWhichLimit:
    def test_by_ordinal_while_the_visible_devices_are_the_planned_ones(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1,0")

        limit = limit_of(10, 20, visible="1,0")

        assert [limit.bytes_of(0), limit.bytes_of(1), limit.bytes_of(2)] == [10, 20, 10]

    def test_the_smallest_where_a_launcher_chose_other_devices(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")

        assert limit_of(20, 10, visible=None).bytes_of(0) == 10

    def test_a_uuid_decides_whatever_the_order(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")

        assert limit_of(20, 10).bytes_of(0, "0") == 20
        assert limit_of(20, 10).bytes_of(0, "GPU-1") == 10
        assert limit_of(20, 10).bytes_of(0, "GPU-9") == 10


class TestPytorch:
    def test_nothing_happens_at_import(self, tmp_path: Path) -> None:
        ran = run_limited("import torch, torch.cuda", tmp_path)

        assert ran.calls("torch") == [["_lazy_call"]]
        assert (ran.code, ran.stderr) == (0, "")

    def test_the_cap_is_set_once_when_the_program_starts_cuda(self, tmp_path: Path) -> None:
        program = "import torch; torch.empty(1, device='cuda'); torch.empty(1, device='cuda')"

        ran = run_limited(program, tmp_path)

        assert ran.calls("torch") == [
            ["_lazy_call"],
            ["cuda-init"],
            ["set_per_process_memory_fraction", 0.25, 0],
            ["set_device", 0],
        ]

    def test_the_allocator_then_refuses(self, tmp_path: Path) -> None:
        program = """
import torch
held = torch.empty(4 << 30, device="cuda")
try:
    torch.empty(1, device="cuda")
except torch.cuda.OutOfMemoryError:
    print("refused")
"""
        assert run_limited(program, tmp_path).stdout == "refused\n"

    def test_every_gpu_gets_its_own_fraction_by_uuid(self, tmp_path: Path) -> None:
        ran = run_limited(
            "import torch; torch.empty(1, device='cuda')",
            tmp_path,
            limit=payload(4 * GIB, 8 * GIB),
            env={"STUB_DEVICES": "2", "STUB_UUIDS": "1,0", "CUDA_VISIBLE_DEVICES": "1,0"},
        )

        fractions = [call[1:] for call in ran.calls("torch") if call[0].startswith("set_per")]
        assert fractions == [[0.5, 0], [0.25, 1]]

    def test_a_rank_caps_its_own_gpu_alone(self, tmp_path: Path) -> None:
        program = """
import torch
torch.empty(1, device="cuda")
torch.cuda.set_device(2)
torch.cuda.set_device(2)
"""
        env = {"STUB_DEVICES": "4", "LOCAL_RANK": "2"}

        ran = run_limited(program, tmp_path, env=env)

        capped = [call[2] for call in ran.calls("torch") if call[0].startswith("set_per")]
        assert capped == [0, 2]

    def test_a_limit_above_the_total_is_the_whole_card(self, tmp_path: Path) -> None:
        ran = run_limited(
            "import torch; torch.empty(1, device='cuda')", tmp_path, limit=payload(99 * GIB)
        )

        assert ["set_per_process_memory_fraction", 1.0, 0] in ran.calls("torch")

    def test_the_environment_comes_first(self, tmp_path: Path) -> None:
        value = "per_process_memory_fraction:0.25"
        torch = {"variable": "PYTORCH_ALLOC_CONF", "value": value, "before": None}

        ran = run_limited(
            "import torch; torch.empty(1, device='cuda')",
            tmp_path,
            limit=payload(4 * GIB, torch=torch),
            env={"PYTORCH_ALLOC_CONF": value},
        )

        assert ran.calls("torch") == [["_lazy_call"], ["cuda-init"]]

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True"),
            ("PYTORCH_CUDA_ALLOC_CONF", ""),
            ("PYTORCH_ALLOC_CONF", "per_process_memory_fraction:0.9"),
            ("PYTORCH_ALLOC_CONF", "per_process_memory_fraction:0.255"),
            ("PYTORCH_ALLOC_CONF", "backend:cudaMallocAsync,per_process_memory_fraction:0.25"),
        ],
    )
    @pytest.mark.parametrize("when", ["before", "after"])
    def test_a_program_that_sets_its_own_variable_is_capped_by_code(
        self, tmp_path: Path, name: str, value: str, when: str
    ) -> None:
        ours = "per_process_memory_fraction:0.25"
        torch = {"variable": "PYTORCH_ALLOC_CONF", "value": ours, "before": None}
        lines = ["import torch", f"import os; os.environ[{name!r}] = {value!r}"]
        program = "\n".join(lines if when == "after" else reversed(lines))

        ran = run_limited(
            f"{program}\ntorch.empty(1, device='cuda')",
            tmp_path,
            limit=payload(4 * GIB, torch=torch),
            env={"PYTORCH_ALLOC_CONF": ours},
        )

        assert (ran.code, ran.stderr) == (0, "")
        assert ran.calls("torch").count(["set_per_process_memory_fraction", 0.25, 0]) == 1

    def test_settings_beside_ours_do_not_matter(self, tmp_path: Path) -> None:
        ours = "a:b, per_process_memory_fraction:0.25"
        torch = {"variable": "PYTORCH_CUDA_ALLOC_CONF", "value": ours, "before": "a:b"}

        ran = run_limited(
            "import torch; torch.empty(1, device='cuda')",
            tmp_path,
            limit=payload(4 * GIB, torch=torch),
            env={"PYTORCH_CUDA_ALLOC_CONF": ours, "PYTORCH_ALLOC_CONF": "c:d"},
        )

        assert ran.calls("torch") == [["_lazy_call"], ["cuda-init"]]

    def test_without_its_allocator_it_is_one_warning(self, tmp_path: Path) -> None:
        env = {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}

        ran = run_limited("import torch; torch.empty(1, device='cuda')", tmp_path, env=env)

        assert ran.code == 0
        assert ran.stderr.count("\n") == 1
        assert "PYTORCH_NO_CUDA_MEMORY_CACHING" in ran.stderr
        assert not [call for call in ran.calls("torch") if call[0].startswith("set_per")]

    @pytest.mark.parametrize("version", ["2.9.1", "1.8.0", "odd"])
    @pytest.mark.parametrize("before", [None, "expandable_segments:True"])
    def test_the_fatal_key_is_removed_for_an_older_pytorch(
        self, tmp_path: Path, version: str, before: str | None
    ) -> None:
        value = ",".join(filter(None, [before, "per_process_memory_fraction:0.25"]))
        torch = {"variable": "PYTORCH_ALLOC_CONF", "value": value, "before": before}
        program = """
import os, torch
print(os.environ.get("PYTORCH_ALLOC_CONF"))
torch.empty(1, device="cuda")
"""
        ran = run_limited(
            program,
            tmp_path,
            limit=payload(4 * GIB, torch=torch),
            stand_ins=older_torch(tmp_path, version),
            env={"PYTORCH_ALLOC_CONF": value},
        )

        assert (ran.code, ran.stdout) == (0, f"{before}\n")
        if version != "odd":
            assert ["set_per_process_memory_fraction", 0.25, 0] in ran.calls("torch")

    def test_a_forked_worker_is_capped_and_so_is_a_spawned_one(self, tmp_path: Path) -> None:
        (tmp_path / "workers.py").write_text("""
import multiprocessing, sys
import torch

def work():
    torch.empty(1, device="cuda")

if __name__ == "__main__":
    worker = multiprocessing.get_context(sys.argv[1]).Process(target=work)
    worker.start()
    worker.join()
    sys.exit(worker.exitcode)
""")
        for method in ("fork", "spawn"):
            ran = run_limited(["workers.py", method], tmp_path)

            assert (ran.code, ran.stderr) == (0, "")
            assert ["set_per_process_memory_fraction", 0.25, 0] in ran.calls("torch")


class TestTensorflow:
    def test_nothing_happens_at_import(self, tmp_path: Path) -> None:
        assert run_limited("import tensorflow", tmp_path).calls("tensorflow") == []

    def test_devices_are_configured_once_just_before_they_start(self, tmp_path: Path) -> None:
        program = "import tensorflow as tf; tf.zeros([1]); tf.zeros([1])"

        ran = run_limited(program, tmp_path)

        calls = [call for call in ran.calls("tensorflow") if call[0] != "zeros"]
        assert calls == [
            ["list_physical_devices"],
            ["set_logical", "/physical_device:GPU:0", [4096]],
            ["devices-start"],
        ]

    def test_memory_growth_of_the_program_still_works(self, tmp_path: Path) -> None:
        program = """
import os
import tensorflow as tf
for gpu in tf.config.list_physical_devices("GPU"):
    tf.config.experimental.set_memory_growth(gpu, True)
tf.zeros([1])
print(os.environ["TF_FORCE_GPU_ALLOW_GROWTH"])
"""
        ran = run_limited(program, tmp_path)

        # Real TensorFlow drops growth where there are logical devices, unless this is set.
        assert (ran.code, ran.stdout, ran.stderr) == (0, "true\n", "")
        assert ["set_logical", "/physical_device:GPU:0", [4096]] in ran.calls("tensorflow")

    def test_devices_of_the_programs_own_stay(self, tmp_path: Path) -> None:
        program = """
import tensorflow as tf
(gpu,) = tf.config.list_physical_devices("GPU")
device = tf.config.LogicalDeviceConfiguration(memory_limit=100)
tf.config.set_logical_device_configuration(gpu, [device])
tf.zeros([1])
"""
        ran = run_limited(program, tmp_path)

        sizes = [call[2] for call in ran.calls("tensorflow") if call[0] == "set_logical"]
        assert sizes == [[100]]
        assert ran.stderr == ""

    @pytest.mark.parametrize(
        ("sizes", "said"), [("[4000, 97]", "4097 MiB"), ("[None]", "all memory"), ("[4096]", "")]
    )
    def test_wider_devices_of_the_programs_own_are_warned_of(
        self, tmp_path: Path, sizes: str, said: str
    ) -> None:
        program = f"""
import tensorflow as tf
(gpu,) = tf.config.list_physical_devices("GPU")
devices = [tf.config.LogicalDeviceConfiguration(memory_limit=mib) for mib in {sizes}]
tf.config.set_logical_device_configuration(gpu, devices)
tf.zeros([1])
"""
        ran = run_limited(program, tmp_path)

        assert ran.code == 0
        assert ran.stderr.count("tensorflow is not held to the limit") == bool(said)
        assert said in ran.stderr

    def test_less_than_a_mebibyte_is_not_set(self, tmp_path: Path) -> None:
        program = "import tensorflow as tf; tf.zeros([1])"

        ran = run_limited(program, tmp_path, limit=payload(1000))

        assert ran.code == 0
        assert "whole MiB" in ran.stderr


class TestCupy:
    @pytest.mark.parametrize(
        ("theirs", "after"),
        [
            ("20%", "20%"),
            ("30%", "30%"),
            ("30.1%", "30%"),
            ("0", "30%"),
            ("0%", "30%"),
            ("", "30%"),
            ("0.3", "30%"),
            (str(4 * GIB), str(4 * GIB)),
            (str(4 * GIB + 1), "30%"),
        ],
    )
    def test_a_wider_variable_is_narrowed_and_a_tighter_one_kept(
        self, tmp_path: Path, theirs: str, after: str
    ) -> None:
        program = f"""
import os
os.environ["CUPY_GPU_MEMORY_LIMIT"] = "{theirs}"
import cupy
print(os.environ["CUPY_GPU_MEMORY_LIMIT"])
"""
        ran = run_limited(program, tmp_path, limit=payload(4 * GIB, cupy="30%"))

        assert (ran.stdout, ran.stderr) == (f"{after}\n", "")

    @pytest.mark.parametrize("size", [None, str(4 * GIB)])
    def test_a_program_that_lost_it_gets_it_back(self, tmp_path: Path, size: str | None) -> None:
        ran = run_limited("import cupy; cupy.empty(1)", tmp_path, limit=payload(4 * GIB, cupy=size))

        assert ran.calls("cupy") == [["pool", 0, 4 * GIB]]


class TestJax:
    NEW, OLD = "XLA_CLIENT_MEM_FRACTION", "XLA_PYTHON_CLIENT_MEM_FRACTION"

    def run(self, tmp_path: Path, name: str, *lines: str) -> Ran:
        """Run a program whose environment and limit have 0.3 under this name."""
        program = "\n".join(("import os", *lines, "import jax; jax.devices()"))
        limit = payload(GIB, jax={"variable": name, "value": "0.3"})
        return run_limited(program, tmp_path, limit=limit, env={name: "0.3"})

    @pytest.mark.parametrize("name", [NEW, OLD])
    def test_the_variable_is_read_as_it_is(self, tmp_path: Path, name: str) -> None:
        ran = self.run(tmp_path, name)

        read = ["options", "0.3", None] if name == self.NEW else ["options", None, "0.3"]
        assert (ran.calls("jax"), ran.stderr) == ([read], "")

    @pytest.mark.parametrize(
        ("theirs", "after"), [("0.95", "0.3"), ("0.2", "0.2"), (".1", ".1"), ("0", "0.3")]
    )
    @pytest.mark.parametrize("name", [NEW, OLD])
    def test_the_programs_own_fraction_is_narrowed_under_its_name(
        self, tmp_path: Path, name: str, theirs: str, after: str
    ) -> None:
        other = self.OLD if name == self.NEW else self.NEW

        ran = self.run(tmp_path, name, f"os.environ['{other}'] = '{theirs}'")

        read = [after, None] if other == self.NEW else [None, after]
        assert (ran.code, ran.calls("jax"), ran.stderr) == (0, [["options", *read]], "")

    def test_one_that_is_set_after_the_import_counts_too(self, tmp_path: Path) -> None:
        ran = self.run(tmp_path, self.NEW, "import jax", f"os.environ['{self.OLD}'] = '0.9'")

        assert ran.calls("jax") == [["options", None, "0.3"]]

    def test_a_program_that_lost_it_gets_it_back(self, tmp_path: Path) -> None:
        ran = self.run(tmp_path, self.OLD, f"del os.environ['{self.OLD}']")

        assert ran.calls("jax") == [["options", None, "0.3"]]

    def test_two_of_the_programs_own_are_its_mistake(self, tmp_path: Path) -> None:
        both = (f"os.environ['{name}'] = '0.1'" for name in (self.NEW, self.OLD))

        ran = self.run(tmp_path, self.OLD, *both)

        assert ran.code == 1
        assert "specified together" in ran.stderr

    def test_what_is_no_number_is_left_to_jax(self, tmp_path: Path) -> None:
        ran = self.run(tmp_path, self.OLD, f"os.environ['{self.OLD}'] = 'half'")

        assert ran.code == 1
        assert "could not convert string to float: 'half'" in ran.stderr


class TestOnnxruntime:
    @pytest.mark.parametrize(
        ("asked", "given"),
        [
            ([CUDA, CPU], [[CUDA, {"gpu_mem_limit": "7"}], [CPU, {}]]),
            ([(CUDA, {"device_id": 1})], [[CUDA, {"device_id": 1, "gpu_mem_limit": "5"}]]),
            ([(CUDA, {"gpu_mem_limit": "6"})], [[CUDA, {"gpu_mem_limit": "6"}]]),
            ([(CUDA, {"gpu_mem_limit": 99})], [[CUDA, {"gpu_mem_limit": "7"}]]),
            ([CPU], [CPU]),
            (None, [[CUDA, {"gpu_mem_limit": "7"}], [CPU, {}]]),
        ],
    )
    def test_the_cuda_provider_gets_a_limit(
        self, asked: object, given: object, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)

        providers, options = cap_providers(asked, None, [CUDA, CPU], limit_of(7, 5))

        assert json.loads(json.dumps(providers)) == given
        assert options is None

    def test_options_given_beside_the_names_are_kept(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        options = [{"device_id": "0"}, {}]

        providers, beside = cap_providers([CUDA, CPU], options, [CUDA, CPU], limit_of(7))

        assert providers == [(CUDA, {"device_id": "0", "gpu_mem_limit": "7"}), (CPU, {})]
        assert beside is None
        assert options == [{"device_id": "0"}, {}]

    def test_arguments_that_do_not_fit_are_left_to_onnxruntime(self) -> None:
        assert cap_providers([CUDA], [{}, {}], [CUDA], limit_of(7)) == ([CUDA], [{}, {}])

    def test_a_build_without_cuda_is_left_alone(self) -> None:
        assert cap_providers(None, None, [CPU], limit_of(7)) == (None, None)

    def test_a_session_is_created_and_recreated_with_the_limit(self, tmp_path: Path) -> None:
        program = f"""
import onnxruntime
session = onnxruntime.InferenceSession("m.onnx", providers=["{CUDA}"])
session.set_providers(["{CPU}"])
session.set_providers(["{CUDA}"])
"""
        ran = run_limited(program, tmp_path, limit=payload(7))

        capped = [[CUDA, {"gpu_mem_limit": "7"}]]
        assert [call[1] for call in ran.calls("onnxruntime")] == [capped, [CPU], capped]

    def test_session_options_with_providers_decide(self, tmp_path: Path) -> None:
        program = """
import onnxruntime
class Options:
    def has_providers(self): return True
onnxruntime.InferenceSession("m.onnx", sess_options=Options())
"""
        ran = run_limited(program, tmp_path)

        assert ran.calls("onnxruntime") == [["create", None, None]]


class TestSurprises:
    @pytest.mark.parametrize("text", ["{", "[]", '{"gpus": []}', "null", payload()])
    def test_a_limit_that_cannot_be_read_is_one_warning(self, tmp_path: Path, text: str) -> None:
        program = "import torch, torch; torch.empty(1, device='cuda'); print('ran')"

        ran = run_limited(program, tmp_path, limit=text)

        assert (ran.code, ran.stdout) == (0, "ran\n")
        assert ran.stderr.startswith("gpucheck: warning: torch is not held to the limit: ")
        assert ran.stderr.count("\n") == 1

    def test_a_framework_that_has_changed_is_one_warning(self, tmp_path: Path) -> None:
        program = "import torch; torch.empty(1, device='cuda'); print('ran')"

        ran = run_limited(program, tmp_path, env={"STUB_BREAK_TORCH": "1"})

        assert (ran.code, ran.stdout) == (0, "ran\n")
        assert ran.stderr.count("\n") == 1
        assert "_lazy_call" in ran.stderr

    def test_a_call_that_fails_later_is_one_warning(self, tmp_path: Path) -> None:
        program = """
import torch
def broken(*arguments):
    raise RuntimeError("no\\nnever")
torch.cuda.set_per_process_memory_fraction = broken
torch.empty(1, device="cuda")
print("ran")
"""
        ran = run_limited(program, tmp_path)

        assert (ran.code, ran.stdout) == (0, "ran\n")
        assert ran.stderr == (
            "gpucheck: warning: torch is not held to the limit: RuntimeError: no\\nnever\n"
        )

    def test_a_framework_whose_import_fails_fails_as_it_would(self, tmp_path: Path) -> None:
        (tmp_path / "torch.py").write_text("raise ImportError('libcudart.so.12 is not there')\n")
        program = """
for _ in range(2):
    try:
        import torch
    except ImportError as error:
        print(error)
"""
        ran = run_limited(program, tmp_path, stand_ins=tmp_path)

        assert ran.stdout == "libcudart.so.12 is not there\n" * 2
        assert ran.stderr == ""

    def test_a_framework_that_is_not_there_is_not_found(self, tmp_path: Path) -> None:
        program = """
import importlib.util
print([importlib.util.find_spec(name) for name in ("torch", "cupy")])
"""
        assert run_limited(program, tmp_path, stand_ins=None).stdout == "[None, None]\n"

    def test_looking_for_a_framework_does_nothing(self, tmp_path: Path) -> None:
        program = """
import importlib.util
spec = importlib.util.find_spec("torch")
import torch
print(type(torch.__spec__.loader).__name__, torch.__loader__ is torch.__spec__.loader)
print("exec_module" in vars(torch.__spec__.loader))
"""
        ran = run_limited(program, tmp_path)

        assert ran.stdout == "SourceFileLoader True\nFalse\n"
        assert ran.calls("torch") == [["_lazy_call"]]

    def test_another_finder_that_asks_all_finders_does_no_harm(self, tmp_path: Path) -> None:
        program = """
import importlib.util, sys

class Nosy:
    busy = False
    def find_spec(self, name, path=None, target=None):
        if self.busy:
            return None
        self.busy = True
        try:
            return importlib.util.find_spec(name)
        finally:
            self.busy = False

sys.meta_path.insert(0, Nosy())
import torch
"""
        assert run_limited(program, tmp_path).calls("torch") == [["_lazy_call"]]

    def test_without_stderr_a_warning_is_no_error(self, tmp_path: Path) -> None:
        program = "import sys; sys.stderr = None; import torch; print('ran')"

        assert run_limited(program, tmp_path, limit="{").stdout == "ran\n"

    def test_only_the_frameworks_that_are_asked_for(self, tmp_path: Path) -> None:
        ran = run_limited("import torch", tmp_path, limit=payload(1, frameworks=["cupy"]))

        assert ran.events == []


def test_this_process_has_no_hook() -> None:
    assert not any(type(finder).__name__ == "Finder" for finder in sys.meta_path)
