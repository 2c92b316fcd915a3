"""Placement and pinning where it matters, in a guest with two NUMA nodes of two CPUs each: python tests/numa/run.py

Runs the C tests that ask the kernel where pages lie and threads run. Ends with 0 if they pass, with 1 if they do not,
and with 77 where the machine cannot run the guest, saying why.
"""

import os
import re
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import guest

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build/numa"
SHARE = BUILD / "share"
SECONDS = 580.0  # for building and the guest together; a minute is usual
TESTS = {  # with their arguments
    "test_placement": "",
    "test_exchange_placement": "",
    "test_conformance_exchange": "shm-processes",
}
NODES = ["--memory", "4G", "--cpus", "4", "--numa", "2G,cpus=0-1", "--numa", "2G,cpus=2-3"]
SCRIPT = """export HPC_TEST_PATIENCE=3 HPC_TEST_SCALE=10  # percent: the CPUs are emulated
echo advise >/sys/kernel/mm/transparent_hugepage/shmem_enabled
"""


def build(tests: list[str]) -> None:
    beside_python = f"{Path(sys.executable).parent}:{os.environ.get('PATH', '')}"  # as if the venv were activated
    env = os.environ | {"PATH": beside_python}
    configure = ["cmake", "-G", "Ninja", "-S", str(ROOT), "-B", str(BUILD), "-DHPC_BUILD_TESTS=ON"]
    for command in (configure, ["cmake", "--build", str(BUILD), "--target", *tests]):
        subprocess.run(command, env=env, check=True, timeout=SECONDS, stdout=subprocess.DEVNULL)


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


def main() -> int:
    start = time.monotonic()
    try:
        guest.check_tools()
        guest.kernel()
        guest.virtme()
    except guest.Unavailable as why:
        print(f"skipped: {why}")
        return 77
    fetched = time.monotonic() - start
    tests = [test for test in TESTS if (ROOT / f"tests/c/{test}.c").exists()]
    SHARE.mkdir(parents=True, exist_ok=True)
    build(tests)
    script = SCRIPT + "".join(f"echo {test}; '{BUILD}/{test}' {TESTS[test]}; echo \"{test}: $?\"\n" for test in tests)
    output = guest.run(script, SHARE, SECONDS - (time.monotonic() - start - fetched), *NODES)
    print(output, end="")
    wrong = verdict(output, tests)
    print(
        f"FAILED: {wrong}" if wrong else f"passed in {time.monotonic() - start:.0f} s, {fetched:.0f} s of it fetching"
    )
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
