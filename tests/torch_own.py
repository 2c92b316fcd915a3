"""PyTorch's own tests of torch.distributed, as the wheel ships them, over the backend "hpcomm" with four ranks.

    python tests/torch_own.py test_barrier test_broadcast     # prints a line of JSON for each: its name, how it ended
    python tests/torch_own.py                                 # all of them

The tests ask for a backend by its name: some run with Gloo alone, although they use nothing of it. So the name here is
"hpcomm" and equals "gloo". Ranks are forked, which saves them the import of torch.
"""

import json
import os
import sys
import tempfile
import unittest
import warnings
from typing import Any

warnings.simplefilter("ignore")
os.environ |= {"BACKEND": "gloo", "WORLD_SIZE": "4", "INIT_METHOD": "file", "TEMP_DIR": tempfile.mkdtemp()}

import torch  # noqa: E402
from torch.testing._internal.common_distributed import DistTestCases  # noqa: E402

DistTestCases.backend_feature["plugin"].add("hpcomm")

from torch.testing._internal.distributed import distributed_test as of_torch  # noqa: E402

import hpcomm.torch  # noqa: E402, F401 - makes the backend


class _Name(str):
    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return other in ("hpcomm", "gloo")

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash("gloo")


distributed_test: Any = of_torch
distributed_test.BACKEND = _Name("hpcomm")


class TestOwn(distributed_test.TestDistBackend, distributed_test.DistributedTest._DistTestBase):  # type: ignore[misc]
    def setUp(self) -> None:
        super().setUp()
        self._start_processes(torch.multiprocessing.get_context("fork").Process)


def ended(name: str) -> dict[str, str]:
    """Runs a test, and says how it ended: "passed", "skipped" or "failed", and why."""
    result = unittest.TestResult()
    test: Any = TestOwn(name)
    test.run(result)
    for how, found in (("failed", result.failures + result.errors), ("skipped", result.skipped)):
        if found:
            return {"name": name, "ended": how, "why": found[0][1]}
    return {"name": name, "ended": "passed", "why": ""}


if __name__ == "__main__":
    torch.set_num_threads(1)
    for each in sys.argv[1:] or unittest.TestLoader().getTestCaseNames(TestOwn):
        print(json.dumps(ended(each)), flush=True)
    distributed_test.cleanup_temp_dir()
