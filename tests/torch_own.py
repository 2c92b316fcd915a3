"""PyTorch's own tests of torch.distributed, as the wheel ships them, over the backend "hpcomm" with four ranks.

    python tests/torch_own.py test_barrier test_broadcast     # prints a line of JSON for each: its name, how it ended
    python tests/torch_own.py                                 # all of them
    python tests/torch_own.py --check                         # all; fails where docs/torch_own_tests.md is wrong
    python tests/torch_own.py --as plugin                     # with the name of an unknown backend and no other
    python tests/torch_own.py --as gloo                       # over Gloo

The tests ask for a backend by its name: some run with Gloo or MPI alone, although they use nothing of it. So the name
here is "hpcomm", and equals "gloo" and "mpi". Tests of RPC that name Gloo get hpcomm. Ranks are forked, which saves
them the import of torch.
"""

import json
import os
import re
import sys
import tempfile
import time
import unittest
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

warnings.simplefilter("ignore")
CHECKS = sys.argv[1:] == ["--check"]
NAMES = [] if CHECKS else sys.argv[1:]
WAY = "hpcomm"
GROUPS_OF_RPC = (  # the others make no process group
    "test_deadlock",
    "test_dynamic_and_static_init_rpc_together",
    "test_init_pg_then_rpc",
    "test_init_rpc_then_pg",
    "test_pg_init_no_rpc_init",
)
if NAMES[:1] == ["--as"]:
    WAY, NAMES = NAMES[1], NAMES[2:]
VERSION = "2.13"  # of docs/torch_own_tests.md
FAIL = ("Gloo by name",)  # the page's groups of tests that fail; those of its other groups are skipped


class _Name(str):
    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return other in ("hpcomm", "gloo", "mpi")

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash("gloo")


folder = tempfile.TemporaryDirectory()
OURS = "gloo" if WAY == "gloo" else "hpcomm"
os.environ |= {"BACKEND": OURS, "WORLD_SIZE": "4", "INIT_METHOD": f"file://{folder.name}/store"}
if WAY == "hpcomm":  # torch takes the name from the environment, and asks for it while it makes the tests
    environment: Any = os.environ
    plain = environment.decodevalue
    environment.decodevalue = lambda value: _Name("hpcomm") if value == b"hpcomm" else plain(value)

import torch  # noqa: E402
from torch.testing._internal.common_distributed import DistTestCases  # noqa: E402

DistTestCases.backend_feature["plugin"].add("hpcomm")

from torch.testing._internal.common_distributed import MultiProcessTestCase  # noqa: E402
from torch.testing._internal.distributed import distributed_test as of_torch  # noqa: E402

import hpcomm.torch  # noqa: E402, F401 - makes the backend

distributed_test: Any = of_torch
cases: Any = MultiProcessTestCase
dist: Any = torch.distributed
init, sleep = dist.init_process_group, time.sleep


def begin(backend: Any = None, *args: Any, **options: Any) -> None:
    init(OURS if backend == "gloo" else backend, *args, **options)


def spawn(test: Any) -> None:
    test._start_processes(torch.multiprocessing.get_context("fork").Process)


def nap(seconds: Any) -> None:
    """Sleeps. The tests' ranks wait for each other in steps of 0.1 seconds, which takes most of their time."""
    sleep(0.01 if seconds == 0.1 else seconds)


class TestOwn(distributed_test.TestDistBackend, distributed_test.DistributedTest._DistTestBase):  # type: ignore[misc]
    def setUp(self) -> None:
        super().setUp()
        spawn(self)


def tests() -> Iterator[tuple[str, Any]]:
    """Yields the names and classes of the tests: of all, or of those that the command line names."""
    dist.init_process_group, cases._spawn_processes, time.sleep = begin, spawn, nap
    every = unittest.TestLoader().getTestCaseNames(TestOwn)
    yield from ((name, TestOwn) for name in every if not NAMES or name in NAMES)
    if NAMES and set(NAMES) <= set(every):
        return
    for suite in beside_rpc():
        for name in unittest.TestLoader().getTestCaseNames(suite):
            if ("Ddp" in suite.__name__ or name in GROUPS_OF_RPC) and (not NAMES or name in NAMES):
                yield name, suite


def beside_rpc() -> list[Any]:
    from torch.testing._internal.distributed import ddp_under_dist_autograd_test as ddp  # noqa: PLC0415
    from torch.testing._internal.distributed.rpc import rpc_test as rpc  # noqa: PLC0415
    from torch.testing._internal.distributed.rpc.tensorpipe_rpc_agent_test_fixture import (  # noqa: PLC0415
        TensorPipeRpcAgentTestFixture as Agent,
    )
    from torch.testing._internal.distributed.rpc_utils import generate_tests  # noqa: PLC0415

    suites: Any = [ddp.DdpUnderDistAutogradTest, ddp.DdpComparisonTest, ddp.CudaDdpComparisonTest]
    suites += [rpc.RpcTest, rpc.TensorPipeAgentRpcTest]
    return [*generate_tests("", Agent, suites, __name__).values()]


def ended(name: str, suite: Any) -> dict[str, Any]:
    """Runs a test, and says how it ended: "passed", "skipped" or "failed", why, and after how many seconds."""
    result = unittest.TestResult()
    began = time.monotonic()
    suite(name).run(result)
    told = {"name": name, "seconds": round(time.monotonic() - began, 2)}
    for how, found in (("failed", result.failures + result.errors), ("skipped", result.skipped)):
        if found:
            return {**told, "ended": how, "why": found[0][1]}
    return {**told, "ended": "passed", "why": ""}


def listed() -> dict[str, str]:
    """Returns the tests that the page lists as those that do not pass, and how each ends."""
    page = Path(__file__).resolve().parents[1] / "docs/torch_own_tests.md"
    groups = re.findall(r"^### (.+)\n\n```text\n((?:test_\w+\n)+)```$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {name: "failed" if group in FAIL else "skipped" for group, names in groups for name in names.split()}


def check() -> int:
    """Runs all tests, and a failed one once more. Returns 0 if each ends as the page says, 77 if this is another
    torch."""
    if not torch.__version__.startswith(f"{VERSION}."):
        print(f"skipped: the page is of torch {VERSION}, and this is {torch.__version__}")
        return 77
    due, found, wrong = listed(), {}, 0
    for name, suite in tests():
        once = ended(name, suite)
        if once["ended"] == "failed" and due.get(name) != "failed":
            again = ended(name, suite)
            if again["ended"] == "passed":
                print(f"FLAKY {name} {once['why']}", flush=True)
            once = again
        found[name] = once
    passed = [name for name, once in found.items() if once["ended"] == "passed"]
    print(f"{len(passed)} of {len(found)} tests of torch {torch.__version__} passed")
    for name, once in sorted(found.items()):
        if once["ended"] != due.get(name, "passed"):
            print(f"{name} {once['ended']}; the page says {due.get(name, 'passed')}: {once['why']}")
            wrong = 1
    for name in sorted(due.keys() - found.keys()):
        print(f"{name} is no test here: the page lists it")
        wrong = 1
    return wrong


def main() -> int:
    torch.set_num_threads(1)
    with folder:
        if CHECKS:
            return check()
        for each in tests():
            print(json.dumps(ended(*each)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
