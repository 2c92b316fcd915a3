"""Placement and pinning where it matters, in a guest with two NUMA nodes of two CPUs each:

python tests/numa/run.py [--all]

Runs the C tests that ask the kernel where pages lie and threads run, and a few cases of the exchange's conformance
suite, with --all every one. If they fail they are run once more, unless the failure is red (tests/again.py).
Ends with 0 if they pass, with 1 if they do not, and with 77 where the machine cannot run the guest, saying why.
"""

import argparse
import re
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import again
import guest
import tree

SHARE = tree.ROOT / "build/numa/share"
SECONDS = 580.0  # for building and the guest together; a minute is usual
TESTS = {  # with their arguments
    "test_placement": "",
    "test_exchange_placement": "",
    "test_conformance_exchange": "shm-processes random_3_thread,random_4_auto,racks_4_full,relay_5_thread,large",
}
NODES = ["--memory", "4G", "--cpus", "4", "--numa", "2G,cpus=0-1", "--numa", "2G,cpus=2-3"]
SCRIPT = """export HPC_TEST_PATIENCE=3 HPC_TEST_SCALE=10  # percent: the CPUs are emulated
echo advise >/sys/kernel/mm/transparent_hugepage/shmem_enabled
"""


def verdict(output: str, tests: list[str]) -> str:
    """What is wrong with the guest's output; empty if nothing is."""
    if not output.rstrip().endswith("exit status 0"):
        return f"the guest did not come to its end; {SHARE}/console says how far it came"
    if "NUMA nodes: 2, CPUs: 4" not in output:
        return "the tests did not see two nodes"
    if re.search(r"\b[1-9]\d* skipped", output):
        return "a test was skipped in the guest, where none may be"
    failed = [test for test in tests if f"{test}: 0\n" not in output]
    return f"{', '.join(failed)} failed in the guest" if failed else ""


def run(seconds: float, whole: bool) -> tuple[str, str]:
    """One guest: what is wrong with it, and its output."""
    tests = list(TESTS)
    steps = []
    for test, arguments in TESTS.items():
        some = arguments.partition(" ")[0] if whole else arguments
        steps.append(f"echo {test}; '{tree.BUILD}/{test}' {some}; echo \"{test}: $?\"\n")
    output = guest.run(SCRIPT + "".join(steps), SHARE, seconds, *NODES)
    print(output, end="")
    return verdict(output, tests), output


def main() -> int:
    start = time.monotonic()
    parser = argparse.ArgumentParser(description="placement and pinning in a guest with two NUMA nodes")
    parser.add_argument("--all", action="store_true", help="every case of the exchange's conformance suite")
    arguments = parser.parse_args()
    try:
        guest.check_tools()
        guest.kernel()
        guest.virtme()
    except guest.Unavailable as why:
        print(f"skipped: {why}")
        return 77
    fetched = time.monotonic() - start
    SHARE.mkdir(parents=True, exist_ok=True)
    tree.build_tests(*TESTS)
    flaky = ""
    wrong, output = run(SECONDS - (time.monotonic() - start - fetched), arguments.all)
    if wrong and output.rstrip().endswith("exit status 0") and not again.why_red(output):
        print(f"FAILED: {wrong}; once more")
        flaky = f"FLAKY numa {again.keep('numa', output)}"
        wrong, output = run(SECONDS, arguments.all)
    if wrong:
        print(f"FAILED: {wrong}")
        return 1
    print(f"passed in {time.monotonic() - start:.0f} s, {fetched:.0f} s of it fetching")
    if flaky:
        print(flaky)
    return 0


if __name__ == "__main__":
    sys.exit(main())
