"""What fits, what is best, and the reason that each of the others is given."""

from __future__ import annotations

import contextlib
import itertools
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucheck.inventory.model import (
    DecidedBy,
    EntryStatus,
    Gpu,
    GpuProcess,
    GpuState,
    Inventory,
    MigInstance,
    MigState,
    Topology,
    TopologyLink,
    Visibility,
    VisibilityEntry,
)
from gpucheck.inventory.visibility import NOT_BESIDE_OTHERS, ONE_MIG
from gpucheck.place.selection import (
    GpuSelector,
    Preference,
    SelectionRequest,
    allowed_uuids,
    best,
    capability_of,
    check_request,
    selectable_devices,
    target_of,
)
from gpucheck.report.errors import BadAnswerError, WrongUseError
from gpucheck.report.units import parse_amount
from tests.fakes.gpus import GIB, row


def split_gpu(index: int, **changes: object) -> Gpu:
    instances = tuple(
        MigInstance(
            uuid=f"MIG-{index}-{number}",
            name="H100 MIG 1g.10gb",
            memory_total_bytes=10 * GIB,
            memory_used_bytes=number * GIB,
        )
        for number in range(2)
    )
    mig = MigState(enabled=True, instances=instances)
    return row(index, mig=mig, cuda_index=None, **changes)


def seen(text: str | None = None, *uuids: str) -> Visibility:
    entries = tuple(
        VisibilityEntry(text=uuid, status=EntryStatus.KEPT, uuid=uuid, reason="") for uuid in uuids
    )
    return Visibility(text, None, DecidedBy.RULES, entries=entries, visible=uuids)


def selector(
    *gpus: Gpu,
    visibility: Visibility | None = None,
    links: tuple[TopologyLink, ...] = (),
    driver: str = "580.1",
    **request: object,
) -> GpuSelector:
    inventory = Inventory(gpus, visibility or seen(), Topology(links=links))
    made = GpuSelector(
        request=SelectionRequest(**request),  # type: ignore[arg-type]
        look=lambda: (inventory, {}, driver),
    )
    made.survey()
    return made


def reason(gpu: Gpu, **request: object) -> str:
    found = selector(gpu, **request)
    assert found.choose({}) == []
    (candidate,) = found.candidates
    assert not candidate.eligible
    return candidate.reason


class TestEligibility:
    @pytest.mark.parametrize(
        ("gpu", "request_", "why"),
        [
            (row(0, state=GpuState.LOST), {}, "lost"),
            (row(0, state=GpuState.ERROR), {}, "no answer to NVML"),
            (row(0, state=GpuState.ERROR, error="it needs a reset"), {}, "it needs a reset"),
            (row(0, uuid=None), {}, "UUID cannot be read"),
            (row(0, mig=MigState(enabled=True)), {}, "no instance"),
            (row(0, compute_mode="prohibited"), {}, "forbids"),
            (row(0), {"exclude": ("0",)}, "excluded"),
            (row(0), {"exclude": ("GPU-0",)}, "excluded"),
            (row(0), {"exclude": ("00:00.0",)}, "excluded"),
            (row(0), {"name": "A100"}, "its name is NVIDIA H100"),
            (row(0), {"min_compute_capability": "10.0"}, "capability is 9.0"),
            (row(0, compute_capability=None), {"min_compute_capability": "1.0"}, "cannot be read"),
            (row(0), {"min_free": parse_amount("75GiB")}, "only 70.0 GiB is free"),
            (row(0), {"min_free": parse_amount("80GiB")}, "only 70.0 GiB is free"),
            (row(0), {"min_free": parse_amount("100GiB")}, "it has only 80.0 GiB"),
            (row(0, memory_free_bytes=None), {"min_free": parse_amount("1GiB")}, "cannot be read"),
            (row(0, utilization_gpu_percent=7), {"max_utilization_percent": 5}, "load is 7 %"),
            (row(0, utilization_gpu_percent=None), {"max_utilization_percent": 5}, "be read"),
            (row(0, visible=False, hidden_reason="it is in another cgroup"), {}, "cgroup"),
        ],
    )
    def test_a_reason_for_each(self, gpu: Gpu, request_: dict[str, object], why: str) -> None:
        assert why in reason(gpu, **request_)

    def test_a_process_without_a_claim(self) -> None:
        gpu = row(0, processes=(GpuProcess(pid=7, type="compute"),))

        assert reason(gpu) == "in use by process 7"
        assert selector(gpu, share=2).choose({})
        assert selector(gpu, min_free=parse_amount("1GiB")).choose({})

    def test_users_and_programs_are_named_and_alike_ones_once(self) -> None:
        train = GpuProcess(pid=7, type="compute", user="alice", command="python train.py")
        processes = (
            GpuProcess(pid=9, type="compute", name="serve"),
            train,
            train._replace(pid=8, command="python train.py --rank 1"),
            GpuProcess(pid=10, type="compute", user="bob", name="python"),
            GpuProcess(pid=11, type="compute", user="bob"),
        )
        gpu = row(0, processes=processes)

        assert reason(gpu) == (
            "in use by alice (train.py), process 9 (serve), bob (python) and 1 more"
        )
        found = selector(gpu)
        found.choose({})
        assert found.candidates[0].used_by == (
            "alice: train.py",
            "process 9 (serve)",
            "bob: python",
            "process 11",
        )

    def test_a_request_is_asked_for_by_its_options(self) -> None:
        request = SelectionRequest(
            count=2,
            min_free=parse_amount("8GiB"),
            max_utilization_percent=50.0,
            min_compute_capability="8.0",
            name="A 100",
            exclude=("0", "3"),
            prefer=Preference.COOL,
            share=2,
        )

        assert SelectionRequest().words == ("--count", "1")
        assert " ".join(request.words) == (
            "--count 2 --min-free 8GiB --max-utilization 50 --min-compute-capability 8.0"
            " --name A 100 --exclude 0,3 --prefer cool --share 2"
        )

    def test_our_own_process_is_no_competitor(self) -> None:
        gpu = row(0, processes=(GpuProcess(pid=os.getpid(), type="compute"),))

        assert selector(gpu).choose({})

    def test_limits_are_included(self) -> None:
        assert selector(row(0), min_free=parse_amount("70GiB")).choose({})
        assert selector(row(0), max_utilization_percent=0).choose({})
        assert selector(row(0), min_compute_capability="9.0").choose({})

    @pytest.mark.parametrize(
        ("gpu", "countable"),
        [(row(0), True), (row(0, state=GpuState.LOST), False), (split_gpu(0), False)],
    )
    def test_only_whole_gpus_that_answer_are_countable(self, gpu: Gpu, countable: bool) -> None:
        found = selector(gpu)
        found.choose({})

        assert {item.countable for item in found.candidates} == {countable}

    def test_what_an_eligible_one_offers(self) -> None:
        found = selector(row(0), split_gpu(1, temperature_c=50), row(2, temperature_c=None))
        found.choose({})

        assert [item.reason for item in found.candidates] == [
            "70.0 GiB free, load 0 %, 40 C",
            "10.0 GiB free",
            "9.0 GiB free",
            "70.0 GiB free, load 0 %",
        ]

    def test_a_desktop_is_no_competitor(self) -> None:
        assert selector(row(0, processes=(GpuProcess(pid=7, type="graphics"),))).choose({})

    def test_what_is_held(self) -> None:
        found = selector(row(0), row(1))

        assert [target.uuid for target in found.choose({"GPU-0": "held by alice"})] == ["GPU-1"]
        assert found.candidates[0].reason == "held by alice"

    def test_too_few_says_why_for_each(self) -> None:
        found = selector(row(0), row(1), count=2)
        assert found.choose({"GPU-1": "held by alice"}) == []

        error = found.failure()
        assert error.message == "2 GPUs were requested, but only 1 fits."
        assert error.remedy[0] == "GPU 1: held by alice"

    def test_two_of_three_are_said_to_fit(self) -> None:
        found = selector(row(0), row(1), count=3)
        found.choose({})

        assert found.failure().message == "3 GPUs were requested, but only 2 fit."

    def test_what_can_never_fit_is_not_waited_for(self) -> None:
        found = selector(row(0), row(1, name="T4"), name="H100", min_free=parse_amount("75GiB"))

        assert [target.uuid for target in found.possible] == ["GPU-0"]


class TestVisibleSet:
    def test_only_the_inherited_ones(self) -> None:
        gpus = (row(0, visible=False), row(1), row(2, visible=False))
        found = selector(*gpus, visibility=seen("1", "GPU-1"))

        assert [target.uuid for target in found.choose({})] == ["GPU-1"]
        assert "not named in" in found.candidates[0].reason

    def test_none_at_all(self) -> None:
        assert selector(row(0, visible=False), visibility=seen("")).choose({}) == []

    def test_unset_is_everything(self) -> None:
        assert allowed_uuids(seen(None)) is None

    def test_instances_of_a_named_card(self) -> None:
        found = selector(split_gpu(0), row(1), visibility=seen("0", "GPU-0"), count=2)

        assert [target.uuid for target in found.choose({})] == ["MIG-0-0", "MIG-0-1"]

    def test_one_named_instance(self) -> None:
        found = selector(split_gpu(0), visibility=seen("MIG-0-1", "MIG-0-1"))

        (target,) = found.choose({})
        assert (target.card, target.instance) == ("GPU-0", "MIG-0-1")

    def test_an_old_driver_shows_one_instance(self) -> None:
        assert selector(split_gpu(0), driver="525.1").choose({})
        assert selector(split_gpu(0), driver="525.1", count=2).choose({}) == []
        assert selector(split_gpu(0), driver="570.1", count=2).choose({})

    @pytest.mark.parametrize(("driver", "expected"), [("525.1", "GPU-1"), ("570.1", "MIG-0-0")])
    def test_a_gpu_that_an_old_driver_hides_beside_an_instance(
        self, driver: str, expected: str
    ) -> None:
        found = selector(split_gpu(0), row(1, visible=False), driver=driver)

        assert [target.uuid for target in found.choose({})] == [expected]
        assert ("CUDA does not see it" in found.candidates[-1].reason) == (expected != "GPU-1")
        assert selector(row(0), row(1, visible=False), driver=driver, count=2).choose({}) == []

    def test_a_second_instance_that_the_driver_would_hide(self) -> None:
        entries = [
            VisibilityEntry(text=uuid, status=status, uuid=uuid, reason=why)
            for uuid, status, why in (
                ("MIG-0-0", EntryStatus.KEPT, ""),
                ("MIG-0-1", EntryStatus.DROPPED, ONE_MIG),
                ("GPU-3", EntryStatus.DROPPED, NOT_BESIDE_OTHERS),
                ("GPU-1", EntryStatus.DROPPED, "the list has ended"),
            )
        ]
        inherited = seen("MIG-0-0,MIG-0-1,GPU-3,GPU-1")._replace(entries=tuple(entries))

        allowed = {"MIG-0-0", "MIG-0-1", "GPU-3"}
        assert allowed_uuids(inherited) == allowed
        assert allowed_uuids(inherited._replace(visible=("GPU-2",))) == {*allowed, "GPU-2"}
        assert allowed_uuids(inherited._replace(visible=None)) == allowed

    def test_exclude_an_instance(self) -> None:
        (target,) = selector(split_gpu(0), exclude=("mig-0-0",)).choose({})

        assert target.instance == "MIG-0-1"

    @pytest.mark.parametrize("unread", ["uuid of the instance", "uuid of the card"])
    def test_an_instance_that_cannot_be_named_is_not_chosen(self, unread: str) -> None:
        whole = split_gpu(0)
        if unread == "uuid of the card":
            gpus = selectable_devices([whole._replace(uuid=None)])
        else:
            first, second = whole.mig.instances
            mig = whole.mig._replace(instances=(first._replace(uuid=None), second))
            gpus = selectable_devices([whole._replace(mig=mig)])

        named = [target_of(item) is not None for item in gpus]

        assert named == ([False, False] if unread == "uuid of the card" else [False, True])

    def test_an_instance_tells_no_load(self) -> None:
        found = selector(split_gpu(0), max_utilization_percent=100)

        assert found.choose({}) == []
        assert "reports no load" in found.candidates[0].reason


def preferred(prefer: Preference, *gpus: Gpu, count: int = 1, **more: object) -> list[int]:
    made = selector(*gpus, prefer=prefer, count=count, **more)
    made.choose({})
    return [item.gpu.index for item in made.chosen]


class TestPreference:
    def test_free_memory(self) -> None:
        gpus = (row(0), row(1, memory_free_bytes=79 * GIB), row(2, memory_free_bytes=None))

        assert preferred(Preference.FREE_MEMORY, *gpus) == [1]
        assert preferred(Preference.FREE_MEMORY, *gpus, count=2) == [0, 1]

    def test_idle(self) -> None:
        gpus = (row(0, utilization_gpu_percent=None), row(1, utilization_gpu_percent=9), row(2))

        assert preferred(Preference.IDLE, *gpus) == [2]

    def test_cool(self) -> None:
        gpus = (row(0, temperature_c=60), row(1, temperature_c=None), row(2, temperature_c=30))

        assert preferred(Preference.COOL, *gpus) == [2]

    def test_numa_keeps_them_on_one_node(self) -> None:
        gpus = (row(0, numa_node=0), row(1, numa_node=1), row(2), row(3, numa_node=1))

        assert preferred(Preference.NUMA, *gpus, count=2) == [1, 3]

    def test_nvlink_takes_the_pair_with_the_bridge(self) -> None:
        gpus = tuple(row(index) for index in range(4))
        links = (
            TopologyLink(0, 1, "SYS"),
            TopologyLink(0, 2, "NODE"),
            TopologyLink(0, 3, "PIX"),
            TopologyLink(1, 2, "NV4"),
            TopologyLink(1, 3, None),
            TopologyLink(2, 3, "SYS"),
        )

        assert preferred(Preference.NVLINK, *gpus, count=2, links=links) == [1, 2]

    def test_paths_without_nvlink_are_ranked_by_their_hops(self) -> None:
        kinds = ["PIX", "PXB", "PHB", "NODE", "SYS", None]
        gpus = tuple(row(index) for index in range(4))
        for nearer, further in itertools.pairwise(kinds):
            links = (TopologyLink(0, 1, further), TopologyLink(2, 3, nearer))

            assert preferred(Preference.NVLINK, *gpus, count=2, links=links) == [2, 3], nearer

    def test_ties_go_to_the_lower_load_and_then_the_lower_index(self) -> None:
        gpus = (row(0, utilization_gpu_percent=5), row(1), row(2))

        for prefer in Preference:
            assert preferred(prefer, *gpus) == [1]

    def test_the_preference_for_idle_counts_processes_first(self) -> None:
        busy = row(0, processes=(GpuProcess(pid=7, type="compute"),))
        gpus = (busy, row(1, utilization_gpu_percent=90))

        assert preferred(Preference.IDLE, *gpus, share=2) == [1]

    def test_several_of_one_node_honour_the_preference(self) -> None:
        near = {"numa_node": 1, "cpu_affinity": "0-1"}
        made = selector(row(0, **near), row(1, **near), prefer=Preference.NUMA, count=2)
        made.choose({})
        assert list(made.notices()) == []

        made = selector(
            row(0, **near), row(1, **near | {"numa_node": 0}), prefer=Preference.NUMA, count=2
        )
        made.choose({})
        (notice,) = made.notices()
        assert "GPU 0 and GPU 1 are not known to share a NUMA node" in notice.message

    @pytest.mark.parametrize(("gpus", "notices"), [(1, 0), (2, 1)])
    def test_a_single_gpu_has_no_link(self, gpus: int, notices: int) -> None:
        made = selector(*(row(index) for index in range(gpus)), prefer=Preference.NVLINK)
        made.choose({})

        assert len(list(made.notices())) == notices

    @pytest.mark.parametrize(
        ("count", "changes", "notices"),
        [
            (1, {}, 1),
            (1, {"numa_node": 0}, 1),
            (1, {"cpu_affinity": "0-1"}, 0),
            (2, {}, 1),
            (2, {"numa_node": 0}, 0),
        ],
    )
    def test_one_gpu_is_near_by_its_cpus_and_several_by_their_node(
        self, count: int, changes: dict[str, object], notices: int
    ) -> None:
        gpus = [row(index, **changes) for index in range(2)]
        made = selector(*gpus, prefer=Preference.NUMA, count=count)
        made.choose({})

        assert len(list(made.notices())) == notices

    @pytest.mark.parametrize(("degrees", "notices"), [(None, 1), (30, 0)])
    def test_cool_needs_a_temperature(self, degrees: int | None, notices: int) -> None:
        made = selector(row(0, temperature_c=degrees), prefer=Preference.COOL)
        made.choose({})

        assert len(list(made.notices())) == notices

    @given(st.integers(1, 5), st.sampled_from(list(Preference)))
    def test_always_as_many_as_asked_each_once(self, count: int, prefer: Preference) -> None:
        gpus = selectable_devices([row(index, numa_node=index % 2) for index in range(5)])
        chosen = best(gpus, SelectionRequest(count=count, prefer=prefer), None)

        assert len({item.uuid for item in chosen}) == count


class TestWords:
    @pytest.mark.parametrize(("text", "pair"), [("9.0", (9, 0)), ("10.3", (10, 3))])
    def test_capabilities_are_numbers(self, text: str, pair: tuple[int, int]) -> None:
        assert capability_of(text) == pair

    @given(st.text())
    def test_any_capability(self, text: str) -> None:
        with contextlib.suppress(WrongUseError):
            assert min(capability_of(text)) >= 0

    @pytest.mark.parametrize(
        "wrong",
        [
            {"count": 0},
            {"count": 1025},
            {"share": 0},
            {"share": 257},
            {"max_utilization_percent": 101},
            {"max_utilization_percent": -1},
            {"max_utilization_percent": float("nan")},
            {"min_compute_capability": "nine"},
            {"name": "("},
            {"name": "*"},
            {"name": "(.*)*[^A]"},
            {"name": "(a|b)+c"},
            {"name": "(a){2,}"},
            {"name": ".*.*.*.*.*z"},
        ],
    )
    def test_an_invalid_request(self, wrong: dict[str, object]) -> None:
        with pytest.raises(WrongUseError):
            check_request(SelectionRequest(**wrong))  # type: ignore[arg-type]

    @pytest.mark.parametrize(
        "name", ["A100.*", "(A100|H100)", r"\(.*\)*", "[*+{)]*[]*]*", ".*A.*1.*0.*", "A100*"]
    )
    def test_an_expression_that_ends_soon(self, name: str) -> None:
        check_request(SelectionRequest(name=name))

    def test_the_limits_of_a_request_belong_to_it(self) -> None:
        for count, share, percent in ((1, 1, 0), (1024, 256, 100)):
            check_request(
                SelectionRequest(count=count, share=share, max_utilization_percent=percent)
            )


def test_each_reason_stands_once_and_wait_only_where_it_helps() -> None:
    inventory = Inventory(gpus=(row(0), row(1)), visibility=seen())

    def failure(count: int) -> BadAnswerError:
        selector = GpuSelector(
            request=SelectionRequest(count=count), look=lambda: (inventory, {}, None)
        )
        selector.survey()
        selector.choose({"GPU-0": "held by x", "GPU-1": "held by x"})
        return selector.failure()

    assert failure(2).remedy == (
        "GPUs 0-1: held by x",
        "Ask for less, or wait: add --wait.",
    )
    assert failure(3).remedy[-1] == "Waiting would not help: only 2 can ever fit, so ask for less."
    # There is less than one only of what was asked for besides.
    assert failure(1).remedy[-1] == "Wait: add --wait."


def test_what_is_hidden_may_be_shown_again() -> None:
    hidden = row(0, visible=False, hidden_reason="CUDA_VISIBLE_DEVICES='-1' names no GPU")
    inventory = Inventory(gpus=(hidden,), visibility=seen())
    selector = GpuSelector(request=SelectionRequest(), look=lambda: (inventory, {}, None))
    selector.survey()
    selector.choose({})

    assert selector.failure().remedy[-1] == (
        "Waiting would not help: allow more GPUs in CUDA_VISIBLE_DEVICES (see: gpucheck list)."
    )


def test_other_reasons_come_before_the_queue() -> None:
    busy = row(1, processes=(GpuProcess(pid=7, type="compute"),))
    selector = GpuSelector(
        request=SelectionRequest(),
        look=lambda: (Inventory(gpus=(row(0), busy), visibility=seen()), {}, None),
    )
    selector.survey()

    assert selector.choose({}, behind=2) == []
    assert [item.reason for item in selector.candidates] == [
        "2 others are already waiting for it",
        "in use by process 7",
    ]


def test_no_advice_to_ask_for_less_where_none_can_fit() -> None:
    inventory = Inventory(
        gpus=(row(0, state=GpuState.LOST), row(1, state=GpuState.LOST)),
        visibility=Visibility(
            cuda_visible_devices=None, cuda_device_order=None, decided_by=DecidedBy.RULES
        ),
    )
    selector = GpuSelector(request=SelectionRequest(count=2), look=lambda: (inventory, {}, None))
    selector.survey()
    selector.choose({})

    failure = selector.failure()

    assert failure.message == "2 GPUs were requested, but none fits."
    assert failure.remedy == (
        "GPUs 0-1: lost",
        "Waiting would not help: no GPU here can ever fit.",
    )
