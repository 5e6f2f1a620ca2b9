"""Fuzzing of all parsers: the suite's properties of any text, bytes or document, a million times.

    python -m benchmarks.fuzz --inputs 1000000 --seed 1    # docs/measurements/fuzzing.md

Each property runs with its share of the inputs, which Hypothesis draws from the seed: a parser must
answer, or refuse in a sentence of ours. The suite holds the same properties with 30 inputs each.
The exit code is 1 if one failed, or looked at nothing; its smallest input is printed.
"""

from __future__ import annotations

import argparse
import re
import sys
from typing import NamedTuple

from benchmarks.sweeps import run_tests

PASSING = re.compile(r"(\d+) passing")


class Property(NamedTuple):
    """Property of a parser: its test, and its share of the inputs.

    Those whose input is a whole machine or document take a hundred times as long as a line.
    """

    parser: str
    test: str
    share: int = 20


PROPERTIES = (
    Property("amount", "report/test_units.py::test_any_text_is_an_amount_or_wrong_use"),
    Property(
        "amount, nearly", "report/test_units.py::test_nearly_amounts_are_amounts_or_wrong_use"
    ),
    Property("device string", "place/test_device_strings.py"),
    Property("device string, resolved", "place/test_placement.py", 10),
    Property("graph", "place/test_graph_file.py::test_any_text_is_a_graph_or_wrong_use"),
    Property("graph file", "place/test_graph_file.py::test_any_file_is_a_graph_or_wrong_use"),
    Property("compute capability", "place/test_selection.py -k test_any_capability"),
    Property("name of a claim", "place/test_claim_store.py::test_any_name_is_a_slot_or_none"),
    Property(
        "CUDA_VISIBLE_DEVICES",
        "inventory/test_visibility.py::test_any_text_gives_distinct_known_devices_or_a_question",
        4,
    ),
    Property(
        "CUDA_VISIBLE_DEVICES, entries",
        "inventory/test_visibility.py::test_every_entry_has_its_verdict_in_order",
        4,
    ),
    Property(
        "name of a GPU",
        "inventory/test_inventory.py::test_any_text_is_a_name_or_refused_with_a_sentence",
    ),
    Property("advice", "inventory/test_advice.py::test_any_text_never_raises", 4),
    Property("snapshot, any JSON", "drivers/test_recorded.py", 4),
    Property(
        "snapshot, damaged",
        "report/test_codec.py::test_a_damaged_snapshot_is_refused_or_read_never_fatal",
        1,
    ),
    Property(
        "saved document, changed",
        "report/test_saved.py::test_a_changed_document_is_shown_or_refused_in_a_sentence",
        1,
    ),
    Property(
        "saved run",
        "bench/ci/test_baseline.py::test_whatever_stands_in_a_field_is_a_run_or_wrong_use",
        1,
    ),
    Property("key of a difference", "bench/ci/test_baseline.py::test_an_unknown_key_is_wrong_use"),
    Property(
        "profile",
        "bench/ci/test_profile_lint.py::test_any_text_is_judged_or_refused_with_a_sentence",
        4,
    ),
    Property("MNIST file", "bench/test_mnist.py::test_any_bytes_are_read_or_refused", 10),
    Property(
        "TOML, lines", "drivers/host/test_toml_file.py::test_any_file_has_lines_within_it", 10
    ),
    Property("log", "detect/test_log.py::test_any_bytes_are_read", 4),
    Property("log, blocks", "detect/test_log.py::test_blocks_do_not_matter", 4),
    Property("Xid", "detect/test_xids.py::test_any_text_is_a_line_or_none"),
    Property("line of the kernel", "drivers/host/test_kernel_log.py"),
    Property("version of CUDA", "detect/test_cuda_versions.py::test_any_text"),
    Property(
        "/proc of processors", "drivers/host/test_cpu.py::test_no_text_in_proc_is_an_error", 10
    ),
    Property(
        "list of processors", "drivers/host/test_cpu.py::test_any_text_is_a_list_of_cpus_or_none"
    ),
    Property(
        "mappings of a process",
        "drivers/host/test_process_files.py::test_no_text_breaks_the_reader_of_mappings",
        10,
    ),
    Property("list of hosts", "fleet/test_hostlist.py::test_folding_loses_no_host", 4),
    Property(
        "document of a node",
        "fleet/test_node_facts.py::test_nothing_in_a_document_ends_the_reading",
        4,
    ),
    Property("variables of frameworks", "memlimit/test_plan.py -k test_any_inherited_text"),
    Property("variables of PyTorch", "memlimit/test_mechanisms.py -k test_any_text_that_is_there"),
)


def fuzz(item: Property, inputs: int, seed: int) -> tuple[int, float, str]:
    """Return how many inputs passed, the seconds, and what failed ("" if nothing did)."""
    test, *narrowed = item.test.split()
    options = (f"--hypothesis-seed={seed}", "--hypothesis-show-statistics", "--no-header")
    ended, took_s = run_tests(
        *options, f"tests/{test}", *narrowed, GPUCHECK_TEST_SWEEPS=str(inputs), CI=""
    )
    passed = sum(int(count) for count in PASSING.findall(ended.stdout))
    return passed, took_s, ended.stdout if ended.returncode or not passed else ""


def main() -> int:
    """Fuzz all parsers and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--inputs", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    shares = sum(item.share for item in PROPERTIES)
    total, failures = 0, []
    print("| parser | inputs | seconds | outcome |\n|--|--:|--:|--|")
    for item in PROPERTIES:
        passed, took_s, failure = fuzz(item, -(-given.inputs * item.share // shares), given.seed)
        total += passed
        failures += [failure] if failure else []
        outcome = "**failed**" if failure else "passed"
        print(f"| {item.parser} | {passed:,} | {took_s:.0f} | {outcome} |", flush=True)
    print(f"| all | {total:,} | | seed {given.seed} |")
    sys.stderr.writelines(failures)
    return int(bool(failures))


if __name__ == "__main__":
    raise SystemExit(main())
