"""hpcomm over RDMA in virtual machines with softRoCE: python tests/softroce/run.py [OPTION...] [WORD...]

Fetches and caches the guest's kernel, builds what the guests run, and boots them one after another: one with two NUMA
nodes and two RDMA devices, and one with one of each and 8 GiB of memory. Of programs whose cases take long CI runs a
few of each kind; with --all they run whole. With words, only the steps whose names, or whose guests' names, have one of
them. With --sanitize one guest alone, for some of the C tests under a sanitizer.
Ends with 0 if every step passes, with 1 if one does not, and with 77 where the machine cannot run a guest, saying why.
"""

import argparse
import dataclasses
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import guest

from softroce import plan, steps

SHARE = plan.BUILD / "share"
IMAGE = plan.BUILD / "packages.ext4"
BUILDING = 300.0  # seconds for each command
TOOLS = {  # what the guests run, and the package that has it
    "mke2fs": "e2fsprogs",
    "rdma": "iproute2",
    "ibv_devinfo": "ibverbs-utils",
    "ib_write_bw": "perftest",
    "/usr/include/infiniband/verbs.h": "libibverbs-dev",
    "/usr/lib/python3/dist-packages/pyverbs": "python3-pyverbs",
    "/etc/libibverbs.d/rxe.driver": "ibverbs-providers",
}
MEMORY = 9 << 30  # bytes for a guest of 8 GiB
PATH = f"{Path(sys.executable).parent}:{os.environ.get('PATH', '')}:/usr/sbin:/sbin"  # as if the venv were activated


def check_machine() -> None:
    """Unavailable unless the guests can run here."""
    missing = [
        package
        for what, package in TOOLS.items()
        if not (Path(what).exists() if what.startswith("/") else shutil.which(what, path=PATH))
    ]
    if missing:
        raise guest.Unavailable(f"packages are missing; on Debian: apt-get install -y {' '.join(missing)}")
    if importlib.util.find_spec("hpcomm") is None:
        raise guest.Unavailable(
            f"{sys.executable} has no hpcomm; make .venv/.installed-test gives it to .venv/bin/python"
        )
    if shutil.which("mpirun", path=PATH) is None:
        raise guest.Unavailable("no mpirun here; make mpi brings one")
    guest.check_tools()
    modules = guest.kernel().parents[1] / "lib/modules"
    if not any(modules.glob("*/kernel/drivers/infiniband/sw/rxe/rdma_rxe.ko*")):
        raise guest.Unavailable(f"the kernel in {modules} has no rdma_rxe; remove it, and the next run fetches another")
    guest.virtme()


def site_packages() -> Path:
    """Where the packages are that Python's ranks import."""
    numpy = importlib.util.find_spec("numpy")
    assert numpy is not None
    assert numpy.origin is not None
    return Path(numpy.origin).parents[1]


def command(*words: str | Path) -> str:
    done = subprocess.run(
        [str(word) for word in words],
        env=os.environ | {"PATH": PATH},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=BUILDING,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"{done.stdout}\nFAILED: {' '.join(str(word) for word in words)} ended with {done.returncode}")
    return done.stdout


def build(over: str) -> None:
    cmake = ["cmake", "-G", "Ninja", "-S", str(plan.ROOT), "-DHPC_BUILD_TESTS=ON"]
    command(*cmake, "-B", plan.BUILD, "-DHPC_VERBS=ON")
    command("cmake", "--build", plan.BUILD, "--target", "all", "foreign", "refused")
    command(*cmake, "-B", plan.PLAIN, "-DHPC_VERBS=OFF")
    command("cmake", "--build", plan.PLAIN, "--target", "refused", *plan.PLAIN_TESTS)
    info = command("hpcomm", "info")
    if over == "verbs" and not re.search(r"verbs=yes", info):
        raise SystemExit("FAILED: the installed hpcomm was built without rdma-core's headers; install it again")
    found = command("hpcomm", "info", "--cmake-dir").strip()
    command("cmake", "-G", "Ninja", "-S", plan.ROOT / "examples/cpp", "-B", plan.CXX, f"-Dhpcomm_DIR={found}")
    command("cmake", "--build", plan.CXX)
    command(sys.executable, plan.ROOT / "examples/train_digits.py", "--export", plan.CXX / "digits.txt")


def build_sanitized(sanitizer: str) -> None:
    folder = plan.SANITIZED[sanitizer]
    options = ["-DHPC_BUILD_TESTS=ON", "-DHPC_VERBS=ON", f"-DHPC_SANITIZE={sanitizer}"]
    command("cmake", "-G", "Ninja", "-S", plan.ROOT, "-B", folder, *options)
    command("cmake", "--build", folder, "--target", *sorted({test.split()[0] for test in plan.SANITIZED_TESTS}))


def pack(folder: Path, image: Path) -> None:
    """The folder as a file system in a file: what a guest reads of that comes by large pieces, and once."""
    paths = [folder, *folder.rglob("*")]
    pages = sum(path.lstat().st_size // 4096 + 1 for path in paths)
    image.unlink(missing_ok=True)
    options = ["-q", "-t", "ext4", "-O", "^has_journal", "-m", "0", "-N", str(len(paths) + 1000)]
    command("mke2fs", *options, "-d", folder, image, f"{pages * 9 // 2 + (64 << 10)}k")


def is_roomy() -> bool:
    """Whether this machine has the memory for a guest of 8 GiB."""
    available = re.search(r"^MemAvailable: +(\d+) kB", Path("/proc/meminfo").read_text(), re.MULTILINE)
    return available is not None and int(available[1]) << 10 >= MEMORY


def boot(which: plan.Guest) -> bool:
    """Whether all steps of a guest pass."""
    print(f"--- {which.name}", flush=True)
    folder = SHARE / re.sub(r"\W+", "_", which.name)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    steps.save(which.steps, folder)
    script = which.setup
    if which.python:
        packages = site_packages()
        pack(packages, IMAGE)
        script += f"modprobe ext4; modprobe loop; mount -o loop,ro '{IMAGE}' '{packages}'\n"
    script += f"export PATH='{PATH}'\n'{sys.executable}' '{steps.__file__}' '{folder}'\n"
    try:
        output = guest.run(script, folder, which.seconds, *which.options)
    finally:
        IMAGE.unlink(missing_ok=True)
    done = steps.results(folder)
    for step in which.steps:
        result = done.get(step.name, steps.Result(step.name, 0, "the guest did not get there"))
        steps.tell(result, folder, step.log)
    if not output.rstrip().endswith("exit status 0"):
        print(f"FAILED: the guest did not come to its end; {folder}/console says how far it came\n{output}")
        return False
    return all(step.name in done and not done[step.name].wrong for step in which.steps)


def chosen(name: str, among: Sequence[steps.Step], words: Sequence[str]) -> list[steps.Step]:
    return [step for step in among if not words or any(word in f"{name}: {step.name}" for word in words)]


def run(over: str, words: Sequence[str], whole: bool) -> bool:
    """The plain build and all guests."""
    build(over)
    passed = True
    if plain := chosen("plain", plan.plain(), words):
        print("--- a build without rdma-core's headers, on this machine")
        SHARE.mkdir(parents=True, exist_ok=True)
        for step in plain:
            result = steps.perform(step, SHARE)
            steps.tell(result, SHARE, step.log)
            passed = passed and not result.wrong
    if not (roomy := is_roomy()):
        print("this machine has too little memory for a guest of 8 GiB: the window of more than 4 is left out")
    return run_guests(plan.guests(over, whole, roomy), words) and passed


def run_guests(guests: Sequence[plan.Guest], words: Sequence[str]) -> bool:
    passed = True
    for each in guests:
        which = dataclasses.replace(each, steps=chosen(each.name, each.steps, words))
        if which.steps:
            passed = boot(which) and passed
    return passed


def main() -> int:
    start = time.monotonic()
    parser = argparse.ArgumentParser(description="hpcomm over RDMA, in guests with softRoCE")
    parser.add_argument(
        "words", nargs="*", metavar="WORD", help="only the steps, or guests, that have it in their names"
    )
    parser.add_argument("--all", action="store_true", help="every case, where CI runs a few of each kind")
    parser.add_argument("--over", default="verbs", help="another transport, to see whether it is verbs that fails")
    parser.add_argument("--sanitize", choices=plan.SANITIZED, help="some of the C tests under it, and nothing else")
    arguments = parser.parse_args()
    try:
        check_machine()
    except guest.Unavailable as why:
        print(f"skipped: {why}")
        return 77
    if arguments.sanitize:
        build_sanitized(arguments.sanitize)
        passed = run_guests([plan.sanitized(arguments.over, arguments.sanitize)], arguments.words)
    else:
        passed = run(arguments.over, arguments.words, arguments.all)
    print(f"{'passed' if passed else 'FAILED'} in {time.monotonic() - start:.0f} s")
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
