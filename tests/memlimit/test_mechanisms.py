"""Mechanisms that depend on versions, existing settings, MPS and MIG."""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucheck.drivers.python.frameworks import Software
from gpucheck.inventory.model import Gpu, MigInstance, MigState
from gpucheck.memlimit.mechanisms import WRITERS, write_code
from gpucheck.memlimit.mechanisms.hard import MPS_LIMIT
from gpucheck.memlimit.mechanisms.setting import NO_COMMAND, Presence
from gpucheck.memlimit.model import MemoryLimit, estimate_overhead
from gpucheck.memlimit.plan import plan_limit
from gpucheck.report.codec import from_plain
from gpucheck.report.errors import GpucheckError, WrongUseError
from gpucheck.report.text import framework_name
from gpucheck.report.units import parse_amount
from tests.fakes.gpus import sized_row
from tests.memlimit.hook.limited_python import run_limited
from tests.report.formats.recorded import in_lines, in_sections, recorded

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


TABLE = Path(__file__).parents[1] / "data" / "memory_plans.toml"
#: What may be seen of the daemon of MPS.
DAEMON = {True: RUNNING, False: (False, "none"), "unknown": (None, "who knows"), None: None}


def in_bytes(value: Any) -> Any:
    """Return a value of the table: sizes with a unit are bytes, and "null" is None."""
    unit = {"GiB": GIB, "MiB": MIB}.get(value[-3:]) if isinstance(value, str) else None
    return int(value[:-3]) * unit if unit else None if value == "null" else value


def plans_of(row: dict[str, Any]) -> Iterator[tuple[str, Callable[[], MemoryLimit]]]:
    """Yield the plans of a row, each with what is its own."""
    gpus = []
    for at, changes in enumerate(row.get("gpus", [])):
        fields = {name: in_bytes(value) for name, value in changes.items()}
        mig = {"mig": from_plain(MigState, fields.pop("mig"))} if "mig" in fields else {}
        total = fields.pop("memory_total_bytes", 80 * GIB)
        gpus.append(card(fields.pop("index", at), total, **fields, **mig))
    own = {name: row[name] for name in ("hook", "include_overhead") if name in row}
    name, values = row.get("variable"), row.get("values", [None])
    framework, versions = row.get("framework"), row.get("versions", [None])
    amounts = row.get("amounts", [row.get("amount")])
    for amount, value, version in product(amounts, values, versions):
        env = row.get("env", {}) | ({name: value} if name else {})
        found = {framework: version} if framework else row.get("found")
        label = " ".join(repr(each) for each in (amount, value, version) if each is not None)
        settings = {"env": env, "found": found, "mps": DAEMON[row.get("mps")]} | own
        yield label, partial(plan, amount, *gpus, **settings)


def show_plan(make_plan: Callable[[], MemoryLimit], shown: list[str]) -> str:
    """Return the environment of a plan and the mechanisms to be shown, or why there is none."""
    try:
        limit = make_plan()
    except GpucheckError as error:
        return f"{error.code}: {error.message}\n"
    told = [f"{key}={value}\n" for key, value in limit.environment.items()]
    rows = [row for row in limit.mechanisms if {row.framework, row.mechanism, "*"} & {*shown}]
    return "".join(told) + in_lines([*rows, *(limit.gpus if "gpus" in shown else ())])


def test_plans_are_as_recorded() -> None:
    sections = {}
    for name, row in tomllib.loads(TABLE.read_text(encoding="utf-8")).items():
        told = [
            f"{label}\n{show_plan(make_plan, row.get('show', []))}"
            for label, make_plan in plans_of(row)
        ]
        sections[name] = "\n".join(told)
    text = in_sections(sections)

    assert text == recorded("memory-plans", text)


class TestPytorch:
    @given(st.text(max_size=40))
    def test_any_text_that_is_there_is_survived(self, theirs: str) -> None:
        limit = plan("30%", env={CONF: theirs}, found={"torch": "2.12.0"})

        assert "per_process_memory_fraction" in limit.environment[CONF]


class TestOverhead:
    def test_a_limit_below_the_overhead_is_wrong_use(self) -> None:
        with pytest.raises(WrongUseError) as caught:
            plan("512MiB", include_overhead=True)

        assert caught.value.code == "less-than-the-overhead"

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
