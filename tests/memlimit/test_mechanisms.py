"""Mechanisms that depend on versions, existing settings, MPS and MIG."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucheck.drivers.python.frameworks import Software
from gpucheck.inventory.model import Gpu, MigInstance, MigState
from gpucheck.memlimit.mechanisms import WRITERS, write_code
from gpucheck.memlimit.mechanisms.hard import MPS_LIMIT
from gpucheck.memlimit.mechanisms.setting import NO_COMMAND, Presence
from gpucheck.memlimit.model import Mechanism, MemoryLimit, Strength, Way, estimate_overhead
from gpucheck.memlimit.plan import plan_limit
from gpucheck.report.errors import WrongUseError
from gpucheck.report.text import framework_name
from gpucheck.report.units import parse_amount
from tests.fakes.gpus import sized_row
from tests.memlimit.hook.limited_python import run_limited
from tests.report.formats.recorded import in_lines, recorded

GIB = 1024**3
MIB = 1024**2
CONF, CONF_OLD = "PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"
TF_FREE = "TF_DEVICE_MIN_SYS_MEMORY_IN_MB"
RUNNING = (True, "it runs")


def card(index: int = 0, total: int | None = 80 * GIB, **changes: object) -> Gpu:
    return sized_row(index, total, **({"memory_free_bytes": total} | changes))


def plan(
    text: str,
    *gpus: Gpu,
    env: Mapping[str, str] | None = None,
    found: Mapping[str, str] | None = None,
    mps: Presence | None = None,
    hook: bool | None = None,
    include_overhead: bool = False,
) -> MemoryLimit:
    reading = (
        Software(reason="not known")
        if found is None
        else Software(interpreter="/bin/python", frameworks=found)
    )
    return plan_limit(
        parse_amount(text),
        gpus or (card(),),
        environment=env,
        software=reading,
        mps=mps,
        hook=NO_COMMAND if hook is None else (hook, "because"),
        include_overhead=include_overhead,
        cuda_version="13.0",
    )


def by_name(limit: MemoryLimit, name: str) -> Mechanism:
    (found,) = [each for each in limit.mechanisms if each.mechanism == name]
    return found


class TestPytorch:
    @pytest.mark.parametrize("version", ["2.10.0", "2.13.0+cu130", "2.14.1a0+git1", "3.0"])
    def test_the_variable_from_2_10_on(self, version: str) -> None:
        limit = plan("30%", found={"torch": version})

        assert limit.environment[CONF] == "per_process_memory_fraction:0.3"
        assert by_name(limit, CONF).applies

    @pytest.mark.parametrize("version", ["2.9.1", "1.13.1+cu117", "", "odd", "2"])
    def test_never_for_an_older_or_unknown_one(self, version: str) -> None:
        limit = plan("30%", found={"torch": version}, hook=True)

        assert CONF not in limit.environment
        assert "fatal" in by_name(limit, CONF).reason
        assert by_name(limit, "set_per_process_memory_fraction").applies

    def test_of_unequal_limits_the_smallest_holds_for_every_gpu(self) -> None:
        gpus = (
            card(index, None, memory_limit_bytes=size * GIB, memory_limit_source="nvml")
            for index, size in enumerate((10, 20))
        )

        limit = plan("50%", *gpus)

        line = by_name(limit, "set_per_process_memory_fraction").setting
        assert line is not None
        assert f"min(1.0, {5 * GIB} / torch" in line

    def test_never_where_the_python_is_not_known_or_has_none(self) -> None:
        for found in (None, {}):
            limit = plan("30%", found=found)

            assert CONF not in limit.environment
            assert not by_name(limit, CONF).applies

    def test_the_hook_is_not_needed_where_the_variable_is_enough(self) -> None:
        limit = plan("30%", found={"torch": "2.10.0"}, hook=True)

        assert not by_name(limit, "set_per_process_memory_fraction").applies

    @pytest.mark.parametrize(
        ("theirs", "after"),
        [
            ("", "per_process_memory_fraction:0.3"),
            ("max_split_size_mb:64", "max_split_size_mb:64,per_process_memory_fraction:0.3"),
            (
                "roundup_power2_divisions:[256:1,512:2],",
                "roundup_power2_divisions:[256:1,512:2],per_process_memory_fraction:0.3",
            ),
            ("per_process_memory_fraction:0.2,a:b", "per_process_memory_fraction:0.2,a:b"),
            ("a:b,per_process_memory_fraction:0.9,c:d", "a:b,per_process_memory_fraction:0.3,c:d"),
            ("per_process_memory_fraction:nonsense", "per_process_memory_fraction:0.3"),
            ("a:b, per_process_memory_fraction : 1.0", "a:b, per_process_memory_fraction : 0.3"),
        ],
    )
    @pytest.mark.parametrize("name", [CONF, CONF_OLD])
    def test_existing_settings_are_merged(self, name: str, theirs: str, after: str) -> None:
        limit = plan("30%", env={name: theirs}, found={"torch": "2.12.0"})

        assert limit.environment == {**limit.environment, name: after}
        assert len({CONF, CONF_OLD} & limit.environment.keys()) == 1

    def test_of_two_variables_the_one_that_is_read_is_edited(self) -> None:
        limit = plan("30%", env={CONF: "a:b", CONF_OLD: "c:d"}, found={"torch": "2.12.0"})

        assert CONF not in limit.environment
        assert limit.environment[CONF_OLD] == "c:d,per_process_memory_fraction:0.3"

    def test_an_empty_older_name_still_hides_the_newer_one(self) -> None:
        limit = plan("30%", env={CONF: "a:b", CONF_OLD: ""}, found={"torch": "2.12.0"})

        assert CONF not in limit.environment
        assert limit.environment[CONF_OLD] == "per_process_memory_fraction:0.3"

    @pytest.mark.parametrize("hook", [True, False])
    def test_the_asynchronous_backend_is_limited_by_code_only(self, hook: bool) -> None:
        env = {CONF: "backend: cudaMallocAsync"}
        limit = plan("30%", env=env, found={"torch": "2.12.0"}, hook=hook)

        assert CONF not in limit.environment
        assert not by_name(limit, CONF).applies
        assert by_name(limit, "set_per_process_memory_fraction").applies is hook

    @pytest.mark.parametrize("value", ["1", "0", ""])
    def test_without_its_allocator_nothing_limits_it(self, value: str) -> None:
        env = {"PYTORCH_NO_CUDA_MEMORY_CACHING": value}
        limit = plan("30%", env=env, found={"torch": "2.12.0"}, hook=True)

        for name in (CONF, "set_per_process_memory_fraction"):
            assert not by_name(limit, name).applies
            assert by_name(limit, name).setting is None
            assert "PYTORCH_NO_CUDA_MEMORY_CACHING" in by_name(limit, name).reason

    @given(st.text(max_size=40))
    def test_any_text_that_is_there_is_survived(self, theirs: str) -> None:
        limit = plan("30%", env={CONF: theirs}, found={"torch": "2.12.0"})

        assert "per_process_memory_fraction" in limit.environment[CONF]

    def test_where_only_the_program_will_know_the_total_the_line_asks_it(self) -> None:
        limit = plan("8GiB", card(memory_total_bytes=None), hook=True)
        found = by_name(limit, "set_per_process_memory_fraction")

        assert found.by_hook
        assert f"{8 * GIB} / torch.cuda.get_device_properties(device)" in (found.setting or "")
        ast.parse(found.setting or "")

    def test_without_a_total_there_is_no_fraction_and_the_first_obstacle_is_named(self) -> None:
        unknown = card(memory_total_bytes=None)

        alone, old = (plan("8GiB", unknown, found={"torch": one}) for one in ("2.12.0", "2.5.0"))

        needs = "it needs a fraction, and a GPU's total is unknown"
        assert by_name(alone, CONF).reason == needs
        assert CONF not in alone.environment
        assert not by_name(alone, CONF).applies
        assert by_name(old, CONF).reason not in ("", needs)


class TestTensorflow:
    def test_what_has_to_stay_free_is_counted_from_now(self) -> None:
        limit = plan("30%", card(memory_free_bytes=70 * GIB))

        assert limit.environment[TF_FREE] == str((70 - 24) * 1024)

    def test_the_tightest_gpu_decides(self) -> None:
        limit = plan("8GiB", card(0, memory_free_bytes=79 * GIB), card(1))

        assert limit.environment[TF_FREE] == str(72 * 1024)

    @pytest.mark.parametrize(("free_mib", "left"), [(8193, "1"), (8192, None)])
    def test_the_last_mib_above_the_limit_is_left(self, free_mib: int, left: str | None) -> None:
        limit = plan("8GiB", card(memory_free_bytes=free_mib * MIB))

        assert limit.environment.get(TF_FREE) == left

    @pytest.mark.parametrize(
        ("amount", "included", "left"),
        [
            ("512MiB", False, str(80 * 1024 - 512)),
            # TensorFlow would find less free than this beside its context, and ignore it.
            ("511MiB", False, None),
            # The context is part of the limit, and comes off the pool by itself.
            ("1GiB", True, str(80 * 1024 - 1024 + 64)),
        ],
    )
    def test_the_context_is_made_before_tensorflow_looks_at_what_is_free(
        self, amount: str, included: bool, left: str | None
    ) -> None:
        limit = plan(amount, include_overhead=included)

        assert limit.environment.get(TF_FREE) == left
        found = by_name(limit, TF_FREE)
        assert found.applies == (left is not None)
        assert (left is None) == ("its context takes more than the limit" in found.reason)

    def test_a_gpu_on_which_there_is_nothing_to_leave_is_no_matter(self) -> None:
        limit = plan("8GiB", card(0, memory_free_bytes=7 * GIB), card(1))

        assert limit.environment[TF_FREE] == str(72 * 1024)

    def test_a_number_that_one_gpu_would_ignore_is_none(self) -> None:
        limit = plan("8GiB", card(0, memory_free_bytes=10 * GIB), card(1))

        assert TF_FREE not in limit.environment
        assert "no single number" in by_name(limit, TF_FREE).reason

    def test_the_other_allocator_has_a_soft_limit(self) -> None:
        limit = plan("30%", env={"TF_GPU_ALLOCATOR": "cuda_malloc_async"}, hook=True)

        for name in (TF_FREE, "set_logical_device_configuration"):
            assert by_name(limit, name).strength is Strength.SOFT
            assert "memory is released" in by_name(limit, name).reason

    def test_nothing_where_less_than_the_limit_is_free(self) -> None:
        limit = plan("30%", card(memory_free_bytes=GIB))

        assert TF_FREE not in limit.environment

    def test_nothing_where_the_free_memory_is_not_known(self) -> None:
        assert TF_FREE not in plan("30%", card(memory_free_bytes=None)).environment

    @pytest.mark.parametrize(
        ("theirs", "after", "why"),
        [
            ("57344", "57344", "leaves as much, so it is kept"),
            ("81408", "81408", "leaves as much, so it is kept"),
            ("81409", "57344", "replaces 81409, which TensorFlow ignores here"),
            ("57343", "57344", "replaces 57343, which leaves less"),
            ("0", "57344", "replaces 0, which leaves less"),
            ("-1", "57344", "replaces -1, which TensorFlow ignores here"),
            ("x", "57344", "replaces x, which TensorFlow ignores here"),
            ("9" * 14, "57344", "which TensorFlow ignores here"),
            ("0" * 9 + "57343", "57344", f"replaces {'0' * 9}57343, which leaves less"),
            ("0" * 10 + "57343", "57344", f"replaces {'0' * 10}57343, which TensorFlow ignores"),
            ("9" * 20, "57344", "which TensorFlow ignores here"),
            ("", "57344", "the MiB to leave of what is free now"),
        ],
    )
    def test_a_setting_that_leaves_more_is_kept(self, theirs: str, after: str, why: str) -> None:
        limit = plan("30%", env={TF_FREE: theirs})

        assert limit.environment[TF_FREE] == after
        assert why in by_name(limit, TF_FREE).reason


class TestHook:
    @pytest.mark.parametrize(("hook", "applies"), [(True, True), (False, False), (None, False)])
    def test_a_line_of_code_applies_with_the_hook_alone(
        self, hook: bool | None, applies: bool
    ) -> None:
        limit = plan("30%", hook=hook)

        for name in ("gpu_mem_limit", "set_logical_device_configuration"):
            assert by_name(limit, name).applies is applies

    def test_without_the_limit_of_each_gpu_there_is_no_hook(self) -> None:
        limit = plan("30%", card(0), card(1, memory_total_bytes=None), hook=True)

        found = by_name(limit, "set_per_process_memory_fraction")
        assert (found.applies, found.by_hook) == (False, False)
        assert "one is unknown" in found.reason
        assert plan("8GiB", card(1, memory_total_bytes=None), hook=True).mechanisms[-3].by_hook

    def test_a_missing_framework_is_reported(self) -> None:
        limit = plan("30%", found={"jax": "0.10.2"}, hook=True)

        assert not by_name(limit, "gpu_mem_limit").applies
        assert "/bin/python has no onnxruntime" in by_name(limit, "gpu_mem_limit").reason
        assert not by_name(limit, "CUPY_GPU_MEMORY_LIMIT").applies
        assert by_name(limit, "XLA_CLIENT_MEM_FRACTION").applies


class TestWhatARowTells:
    def test_the_way_and_whether_it_is_installed(self) -> None:
        limit = plan("30%", found={"torch": "2.12.0"}, env={CONF: "a:b"}, mps=RUNNING)

        assert by_name(limit, CONF).by is Way.ENVIRONMENT
        assert (by_name(limit, CONF).installed, by_name(limit, CONF).inherited) == (True, "a:b")
        assert by_name(limit, "gpu_mem_limit").by is Way.CODE
        assert by_name(limit, "gpu_mem_limit").installed is False
        assert by_name(limit, MPS_LIMIT).by is Way.DRIVER
        assert by_name(limit, "none").by is Way.NOBODY

    def test_frameworks_of_an_unknown_python_are_unknown(self) -> None:
        assert {each.installed for each in plan("30%").mechanisms} == {None}

    def test_the_reason_begins_with_the_missing_framework(self) -> None:
        here, elsewhere = (
            by_name(plan("30%", found=found), "CUPY_GPU_MEMORY_LIMIT").reason
            for found in ({"cupy": "14"}, {})
        )

        assert here.startswith("default pool only")
        assert elsewhere == f"/bin/python has no cupy; {here}"


class TestJax:
    @pytest.mark.parametrize(
        ("version", "name"),
        [
            ("0.4.30", "XLA_PYTHON_CLIENT_MEM_FRACTION"),
            ("0.10.2", "XLA_CLIENT_MEM_FRACTION"),
            ("1.0", "XLA_CLIENT_MEM_FRACTION"),
            ("0.9.2", "XLA_PYTHON_CLIENT_MEM_FRACTION"),
            ("", "XLA_PYTHON_CLIENT_MEM_FRACTION"),
            ("odd", "XLA_PYTHON_CLIENT_MEM_FRACTION"),
            ("1", "XLA_PYTHON_CLIENT_MEM_FRACTION"),
            ("0.10rc1", "XLA_PYTHON_CLIENT_MEM_FRACTION"),
        ],
    )
    def test_the_name_that_the_version_reads(self, version: str, name: str) -> None:
        limit = plan("30%", found={"jax": version})

        assert limit.environment[name] == "0.3"


class TestMps:
    def test_it_is_set_where_a_daemon_runs(self) -> None:
        limit = plan("30%", mps=RUNNING)

        assert limit.environment[MPS_LIMIT] == f"GPU-0={24 * 1024}M"
        assert by_name(limit, MPS_LIMIT).applies

    def test_it_is_set_but_not_promised_where_that_cannot_be_seen(self) -> None:
        limit = plan("30%", mps=(None, "who knows"))

        assert MPS_LIMIT in limit.environment
        assert not by_name(limit, MPS_LIMIT).applies

    def test_it_is_not_set_where_there_is_none(self) -> None:
        limit = plan("30%", mps=(False, "none"))

        assert MPS_LIMIT not in limit.environment

    @pytest.mark.parametrize(("oldest", "applies"), [("6.1", False), ("7.0", True)])
    def test_cards_before_volta_have_none(self, oldest: str, applies: bool) -> None:
        hidden = card(2, visible=False, cuda_index=None, compute_capability="3.0")
        untold = card(3, cuda_index=2, compute_capability=None)
        cards = (card(1), card(compute_capability=oldest), hidden, untold)
        limit = plan("30%", *cards, mps=RUNNING)

        assert by_name(limit, MPS_LIMIT).applies is applies

    @pytest.mark.parametrize(
        ("theirs", "after"),
        [
            ("GPU-0=1G", "GPU-0=1G"),
            ("GPU-0=99G", "GPU-0=8192M"),
            ("GPU-7=512MB", "GPU-7=512MB,GPU-0=8192M"),
            ("0=1G", "0=1G,GPU-0=8192M"),
            ("GPU-0=8192M", "GPU-0=8192M"),
            ("GPU-0=8193M", "GPU-0=8192M"),
            (" GPU-0=8388608kB", "GPU-0=8388608kB"),
            ("0=" + "9" * 19 + "G", "0=" + "9" * 19 + "G,GPU-0=8192M"),
        ],
    )
    def test_existing_entries_are_only_tightened(self, theirs: str, after: str) -> None:
        limit = plan("8GiB", env={MPS_LIMIT: theirs}, mps=RUNNING)

        assert limit.environment[MPS_LIMIT] == after

    @pytest.mark.parametrize(
        "theirs",
        ["1G", "0=lots", "0=1G,,", "=", "0=1", "0=1T1G", "0=\u0661G", "0=" + "9" * 20 + "G"],
    )
    def test_entries_that_cannot_be_read_are_left(self, theirs: str) -> None:
        limit = plan("8GiB", env={MPS_LIMIT: theirs}, mps=RUNNING)

        assert MPS_LIMIT not in limit.environment
        assert not by_name(limit, MPS_LIMIT).applies


class TestMig:
    @pytest.mark.parametrize(("amount", "applies"), [("100%", True), ("50%", False)])
    def test_the_instance_is_hard_where_it_is_the_limit(self, amount: str, applies: bool) -> None:
        instance = MigInstance(
            uuid="MIG-1", name="1g.10gb", memory_total_bytes=10 * GIB, cuda_index=0
        )
        mig = MigState(enabled=True, instances=(instance,))

        limit = plan(amount, card(cuda_index=None, mig=mig))

        found = by_name(limit, "MIG instance")
        assert (found.applies, found.strength) == (applies, Strength.HARD)

    def test_a_whole_gpu_beside_it_decides_nothing(self) -> None:
        instance = MigInstance(
            uuid="MIG-1", name="1g.10gb", memory_total_bytes=10 * GIB, cuda_index=0
        )
        split = card(cuda_index=None, mig=MigState(enabled=True, instances=(instance,)))

        limit = plan("10GiB", split, card(1))

        assert by_name(limit, "MIG instance").applies

    def test_other_programs_have_no_mechanism(self) -> None:
        rows = plan("30%", found={"numba": "0.61"}).mechanisms

        numba, other = (row for row in rows if row.strength is Strength.NONE)
        assert (numba.framework, numba.applies, numba.installed) == ("numba", False, True)
        assert (other.framework, other.applies, other.by) == (
            "any other CUDA program", False, Way.NOBODY
        )  # fmt: skip

    def test_a_whole_gpu_has_no_such_row(self) -> None:
        assert all(each.mechanism != "MIG instance" for each in plan("50%").mechanisms)


class TestOverhead:
    def test_every_setting_keeps_to_what_is_left(self) -> None:
        limit = plan("30%", found={"torch": "2.12.0"}, include_overhead=True, mps=RUNNING)

        left = 24 * GIB - estimate_overhead("13.0").total_bytes
        assert limit.gpus[0].allocator_limit_bytes == left
        share = left / (80 * GIB)
        assert float(limit.environment["XLA_PYTHON_CLIENT_MEM_FRACTION"]) == pytest.approx(share)
        assert float(limit.environment["CUPY_GPU_MEMORY_LIMIT"][:-1]) == pytest.approx(100 * share)
        assert float(limit.environment[CONF].rpartition(":")[2]) == pytest.approx(share)
        # MPS counts the context itself: it gets the whole limit.
        assert limit.environment[MPS_LIMIT] == f"GPU-0={24 * 1024}M"

    def test_bytes_are_lowered_as_they_are(self) -> None:
        limit = plan("8GiB", include_overhead=True)

        left = 8 * GIB - estimate_overhead("13.0").total_bytes
        assert limit.environment["CUPY_GPU_MEMORY_LIMIT"] == str(left)

    def test_a_limit_below_the_overhead_is_wrong_use(self) -> None:
        with pytest.raises(WrongUseError) as caught:
            plan("512MiB", include_overhead=True)

        assert caught.value.code == "less-than-the-overhead"

    def test_one_byte_above_the_overhead_is_left(self) -> None:
        total = estimate_overhead("13.0").total_bytes

        assert plan(f"{total + 1}B", include_overhead=True).gpus[0].allocator_limit_bytes == 1
        with pytest.raises(WrongUseError, match="about 576 MiB outside its allocator"):
            plan(f"{total}B", include_overhead=True)

    def test_drivers_before_lazy_loading_take_more(self) -> None:
        assert estimate_overhead("11.6").context_bytes > estimate_overhead("11.7").context_bytes
        assert estimate_overhead("11") == estimate_overhead("11.0") == estimate_overhead("11.6")
        assert estimate_overhead("12") == estimate_overhead(None) == estimate_overhead("13.0")


# -------------------------------------------------------------------------------------------- code


def on_two(text: str, total: int | None = 80 * GIB, **environment: str) -> MemoryLimit:
    return plan(text, card(0, total), card(1, total), env=environment)


@pytest.mark.parametrize("framework", WRITERS)
@pytest.mark.parametrize("amount", ["30%", "8GiB", "100%"])
def test_lines_are_python_and_name_no_percentage(framework: str, amount: str) -> None:
    tree = ast.parse(write_code(framework, on_two(amount)))

    numbers = [node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)]
    assert 30 not in numbers
    assert 8 not in numbers


def test_tensorflow_gets_mebibytes_and_the_others_bytes() -> None:
    limit = on_two("8GiB")

    assert "sizes = [8192, 8192]" in write_code("tensorflow", limit)
    for framework in ("pytorch", "cupy", "onnxruntime"):
        assert str([8 * GIB] * 2) in write_code(framework, limit)


def test_jax_gets_the_name_that_is_set() -> None:
    limit = on_two("30%", XLA_PYTHON_CLIENT_MEM_FRACTION="0.9")

    assert 'os.environ["XLA_PYTHON_CLIENT_MEM_FRACTION"] = "0.3"' in write_code("jax", limit)


@pytest.mark.parametrize(
    ("framework", "limit"),
    [
        ("caffe", on_two("30%")),
        ("", on_two("30%")),
        ("pytorch", on_two("30%", None)),
        ("tensorflow", on_two(f"{2**20 - 1}B")),
        ("jax", on_two("8GiB", None)),
        ("jax", on_two("30%", XLA_PYTHON_CLIENT_ALLOCATOR="platform")),
    ],
)
def test_what_cannot_be_written_is_refused(framework: str, limit: MemoryLimit) -> None:
    with pytest.raises(WrongUseError) as caught:
        write_code(framework, limit)

    assert caught.value.message.endswith(".")
    if framework == "jax":
        jax = [each for each in limit.mechanisms if each.framework == "jax"]
        assert caught.value.message == f"JAX cannot be limited here: {jax[0].reason}."


def test_tensorflow_counts_whole_mebibytes() -> None:
    assert "sizes = [1, 1]" in write_code("tensorflow", on_two(f"{2**21 - 1}B"))
    with pytest.raises(WrongUseError, match="whole MiB, and 1048575 bytes are less than one"):
        write_code("tensorflow", plan("1048575B", card()))


class TestCodeThatRuns:
    """The printed code against stand-ins of the frameworks, on a small and a large card."""

    CARDS = {"GPU-small": 16 * GIB, "GPU-large": 40 * GIB}  # noqa: RUF012

    def limits_after(
        self, framework: str, amount: str, tmp_path: Path, selected: tuple[str, ...] | None
    ) -> dict[str, int]:
        """Return the bytes to which the printed code holds each card, by UUID."""
        gpus = [card(n, size, uuid=uuid) for n, (uuid, size) in enumerate(self.CARDS.items())]
        limit = plan_limit(parse_amount(amount), gpus, environment={}, selected=selected)
        code = write_code(framework, limit)
        started = f"{code}jax.devices()\n" if framework == "jax" else code
        cards = ",".join(f"{uuid}={size}" for uuid, size in self.CARDS.items())
        ran = run_limited(started, tmp_path, hook=False, env={"STUB_CARDS": cards})
        assert (ran.code, ran.stderr) == (0, "")
        ((_, visible),) = ran.calls("card")
        held: dict[str, int] = {}
        for event in ran.events:
            match event:
                case ["tensorflow", "set_logical", gpu, [mib]]:
                    held[visible[int(gpu[-1])]] = mib * MIB
                case ["torch", "set_per_process_memory_fraction", fraction, number]:
                    held[visible[number]] = round(fraction * self.CARDS[visible[number]])
                case ["cupy", "set_limit", number, size]:
                    held[visible[number]] = size
                case ["jax", "options", new, old]:
                    fraction = float(new or old)
                    held |= {uuid: round(fraction * self.CARDS[uuid]) for uuid in visible}
                case ["onnxruntime", "create", [[_, options], _], _]:
                    held[visible[options["device_id"]]] = options["gpu_mem_limit"]
        return held

    @pytest.mark.parametrize("framework", WRITERS)
    @pytest.mark.parametrize("uuid", CARDS)
    def test_the_selected_card_alone_is_limited(
        self, framework: str, uuid: str, tmp_path: Path
    ) -> None:
        held = self.limits_after(framework, "25%", tmp_path, (uuid,))

        assert held == {uuid: self.CARDS[uuid] // 4}

    @pytest.mark.parametrize("framework", sorted(set(WRITERS) - {"onnxruntime"}))
    @pytest.mark.parametrize("selected", [None, ("GPU-large", "GPU-small")])
    def test_each_of_two_unlike_cards_has_its_own_limit(
        self, framework: str, selected: tuple[str, ...] | None, tmp_path: Path
    ) -> None:
        held = self.limits_after(framework, "25%", tmp_path, selected)

        assert held == {uuid: size // 4 for uuid, size in self.CARDS.items()}

    @pytest.mark.parametrize("selected", [None, ("GPU-large", "GPU-small")])
    def test_onnx_runtime_gets_the_limit_of_the_first(
        self, selected: tuple[str, ...] | None, tmp_path: Path
    ) -> None:
        held = self.limits_after("onnxruntime", "25%", tmp_path, selected)

        first = selected[0] if selected else "GPU-small"
        assert held == {first: self.CARDS[first] // 4}

    @pytest.mark.parametrize("framework", WRITERS)
    def test_an_amount_in_bytes_is_exceeded_on_no_card(
        self, framework: str, tmp_path: Path
    ) -> None:
        held = self.limits_after(framework, "12GiB", tmp_path, None)

        assert held
        assert max(held.values()) <= 12 * GIB


def test_code_names_the_cards_that_it_limits() -> None:
    gpus = [card(n, uuid=f"GPU-{n}", name="NVIDIA H100\n") for n in range(3)]
    limit = plan_limit(parse_amount("30%"), gpus, environment={}, selected=("GPU-2", "GPU-0"))

    code = write_code("torch", limit)

    assert code.startswith("# 30% of GPU 2 (NVIDIA H100\\n); GPU 0 (NVIDIA H100\\n)\nimport os\n")
    assert 'os.environ["CUDA_VISIBLE_DEVICES"] = "GPU-2,GPU-0"' in code


def test_code_for_like_cards_is_for_any_machine() -> None:
    assert "os.environ" not in write_code("tensorflow", on_two("30%"))


@pytest.mark.parametrize("name", ["tf", "TF", "torch", "onnx"])
def test_other_names_of_frameworks(name: str) -> None:
    assert write_code(name, on_two("30%")) == write_code(framework_name(name), on_two("30%"))


ALL = {
    "torch": "2.12.0", "jax": "0.10.2", "tensorflow": "2.21.0", "cupy": "14.2.0",
    "onnxruntime": "1.25.0",
}  # fmt: skip
PLANS = {
    "a share, a command": lambda: plan("30%", found=ALL, hook=True, mps=RUNNING, env={}),
    "bytes, no command": lambda: plan(
        "8GiB", found=ALL, mps=(False, "none runs"), env={}
    ),
    "unequal cards": lambda: plan("8GiB", card(0), card(1, 10 * GIB), found=ALL, hook=True, env={}),
    "a card of unknown size": lambda: plan(
        "30%", card(0), card(1, None), found=ALL, hook=True, mps=RUNNING
    ),
    "overhead included": lambda: plan(
        "8GiB", found=ALL, hook=True, mps=RUNNING, include_overhead=True, env={}
    ),
    "old frameworks, settings of the user": lambda: plan(
        "30%",
        found={"torch": "2.5.0", "jax": "0.4.30", "tensorflow": "2.10.0", "cupy": "9.0.0"},
        hook=False,
        mps=(None, "it may hide"),
        env={
            CONF_OLD: "max_split_size_mb:64", MPS_LIMIT: "GPU-7=1G", TF_FREE: "100",
            "CUPY_GPU_MEMORY_LIMIT": "90%", "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
            "TF_GPU_ALLOCATOR": "cuda_malloc_async",
        },
    ),
    "a MIG instance": lambda: plan(
        "50%",
        card(0, cuda_index=None, mig=MigState(enabled=True, instances=(MigInstance(
            uuid="MIG-1", name="1g.10gb", memory_total_bytes=10 * GIB, cuda_index=0),))),
        found=ALL,
        hook=True,
        mps=RUNNING,
    ),
    "an unknown Python": lambda: plan("30%", env={}),
}  # fmt: skip


@pytest.mark.parametrize("name", PLANS)
def test_every_mechanism_of_a_plan_is_as_recorded(name: str) -> None:
    limit = PLANS[name]()
    told = [*(f"{key}={value}\n" for key, value in limit.environment.items())]
    text = "".join(told) + in_lines([*limit.mechanisms, *limit.gpus])

    assert text == recorded(f"memlimit-{name.replace(',', '').replace(' ', '-')}", text)
