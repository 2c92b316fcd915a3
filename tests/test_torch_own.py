"""Some of PyTorch's own tests over the backend "hpcomm", and the page that says which of them do not pass.

.ci/run --full runs all of them: tests/torch_own.py --check."""

import json
import re
import sys
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import mpi
import pytest

PAGE = (Path(__file__).resolve().parents[1] / "docs/torch_own_tests.md").read_text(encoding="utf-8")
SOME = [
    "test_accumulate_gradients_no_sync_allreduce_with_then_hook",
    "test_all_gather_coalesced_with_empty",
    "test_all_gather_object_subgroup",
    "test_all_reduce_complex_unsupported_ops",
    "test_all_reduce_group_sum",
    "test_all_to_all_group",
    "test_all_to_all_single_unequal_split_complex",
    "test_batch_isend_irecv_gloo_tags",
    "test_get_future",
    "test_reduce_group_min",
    "test_scatter_object_list",
    "test_send_recv_any_source",
]
ASK_FOR_SENDER = {"test_send_recv_any_source"}  # which no backend in Python can tell from torch 2.14 on


@pytest.mark.xdist_group("group torch backend")
@pytest.mark.skipif(not (find_spec("torch") and find_spec("expecttest")), reason="torch or expecttest is not installed")
def test_some_of_them_pass() -> None:
    numbers = tuple(map(int, version("torch").split(".")[:2]))
    if not (2, 13) <= numbers <= (2, 15):
        pytest.skip("these names are of torch 2.13 to 2.15")
    names = [name for name in SOME if numbers < (2, 14) or name not in ASK_FOR_SENDER]
    ran = mpi.command(
        sys.executable,
        "-W",
        "ignore",
        Path(__file__).with_name("torch_own.py"),
        *names,
        timeout=100,
        env={"OMP_NUM_THREADS": "1", "DISTRIBUTED_TESTS_DEFAULT_TIMEOUT": "60"},
    )
    assert ran.returncode == 0, ran.stderr
    found = [json.loads(line) for line in ran.stdout.splitlines() if line.startswith("{")]
    assert [each["name"] for each in found] == names
    assert [each for each in found if each["ended"] != "passed"] == []


def test_the_page_counts_the_tests_that_do_not_pass() -> None:
    passed, of = map(int, re.findall(r"^(\d+) of the (\d+) tests pass", PAGE, re.MULTILINE)[0])
    rows = re.findall(r"^\| \[([\w ]+)\]\(#[\w-]+\) \| (\d+) \| .{30,} \|$", PAGE, re.MULTILINE)
    lists = re.findall(r"^### (.*)\n\n```text\n((?:test_\w+\n)+)```$", PAGE, re.MULTILINE)
    names = {group: text.split() for group, text in lists}
    assert {group: int(count) for group, count in rows} == {group: len(each) for group, each in names.items()}
    every = [name for each in names.values() for name in each]
    assert len(set(every)) == len(every) == of - passed
    assert not set(SOME) & set(every)
