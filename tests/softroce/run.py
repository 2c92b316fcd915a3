"""hpcomm over RDMA in virtual machines with softRoCE: python tests/softroce/run.py [OPTION...] [WORD...]

Fetches and caches the guest's kernel, builds what the guests run, and boots them one after another: one with two NUMA
nodes and two RDMA devices, and one with one of each and 8 GiB of memory. Of programs whose cases take long a few of
each kind run; with --all they run whole, and with --quarter every fourth step of --all: which ones, the seed says
(tests/again.py). With --few one guest runs a few steps of each kind, which is what CI does for every commit. With
words, only the steps whose names, or whose guests' names, have one of them. With --sanitize one guest alone, for some
of the C tests under a sanitizer.
A step that fails is run once more, in a guest of its own after all others, unless its failure is red (tests/again.py).
Ends with 0 if every step passes, with 1 if one does not, and with 77 where the machine cannot run a guest, saying why.
"""

import argparse
import dataclasses
import importlib.util
import os
import re
import shutil
import sys
import time
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import again
import guest
import tree
from tree import PATH, command

from softroce import plan, steps

FOLDER = plan.ROOT / "build/softroce"
SHARE = FOLDER / "share"
IMAGE = FOLDER / "packages.ext4"
TOOLS = {  # what the guests run, and the package that has it
    "mke2fs": "e2fsprogs",
    "rdma": "iproute2",
    "ibv_devinfo": "ibverbs-utils",
    "ib_write_bw": "perftest",
    "/usr/include/infiniband/verbs.h": "libibverbs-dev",
    "/usr/lib/python3/dist-packages/pyverbs": "python3-pyverbs",
    "/etc/libibverbs.d/rxe.driver": "ibverbs-providers",
}
TIERS = {
    "all": "every case",
    "quarter": "every fourth step of --all, as .ci/run --full does",
    "few": "one guest with a few steps of each kind, as .ci/run does",
}
MEMORY = 9 << 30  # bytes for a guest of 8 GiB
TORCH = ("torch", "functorch", "torchgen", "sympy", "mpmath")  # a GiB that few steps need


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


def build_all(over: str, few: bool) -> None:
    """What the guests run, and the plain programs."""
    tree.build_tests("all", "foreign", "refused")
    tree.build_tests(
        "refused", *plan.PLAIN_TESTS, folder=plan.PLAIN, options=("-DHPC_VERBS=OFF", "-DCMAKE_BUILD_TYPE=Debug")
    )
    if over == "verbs":
        tree.give_verbs_to_package()
    if few:
        return
    found = command("hpcomm", "info", "--cmake-dir").strip()
    command("cmake", "-G", "Ninja", "-S", plan.ROOT / "examples/cpp", "-B", plan.CXX, f"-Dhpcomm_DIR={found}")
    command("cmake", "--build", plan.CXX)
    command(sys.executable, plan.ROOT / "examples/train_digits.py", "--export", plan.CXX / "digits.txt")


def build_sanitized(sanitizer: str) -> None:
    targets = sorted({test.split()[0] for test in plan.SANITIZED_TESTS})
    options = ("-DHPC_VERBS=ON", f"-DHPC_SANITIZE={sanitizer}")
    tree.build_tests(*targets, folder=plan.SANITIZED[sanitizer], options=options)


def pack(folder: Path, image: Path, left_out: Sequence[str]) -> None:
    """The folder as a file system in a file, but for packages that are left out: what a guest reads of that comes by
    large pieces, and once."""
    staged = image.with_suffix(".staged")
    shutil.rmtree(staged, ignore_errors=True)
    staged.parent.mkdir(parents=True, exist_ok=True)

    def ignored(where: str, names: list[str]) -> set[str]:
        return set(left_out).intersection(names) if Path(where) == folder else set()

    shutil.copytree(folder, staged, symlinks=True, ignore=ignored, copy_function=link)
    paths = [staged, *staged.rglob("*")]
    pages = sum(path.lstat().st_size // 4096 + 1 for path in paths)
    image.unlink(missing_ok=True)
    options = ["-q", "-t", "ext4", "-O", "^has_journal", "-m", "0", "-N", str(len(paths) + 1000)]
    command("mke2fs", *options, "-d", staged, image, f"{pages * 9 // 2 + (64 << 10)}k")
    shutil.rmtree(staged)


def link(source: str, target: str) -> None:
    """A second name for a file; a copy where the two folders are on two file systems."""
    try:
        os.link(source, target, follow_symlinks=False)
    except OSError:
        shutil.copy2(source, target, follow_symlinks=False)


def is_roomy() -> bool:
    """Whether this machine has the memory for a guest of 8 GiB."""
    available = re.search(r"^MemAvailable: +(\d+) kB", Path("/proc/meminfo").read_text(), re.MULTILINE)
    return available is not None and int(available[1]) << 10 >= MEMORY


def boot(which: plan.Guest) -> list[steps.Result]:
    """The results of a guest's steps; wrong are also those that it did not get to."""
    print(f"--- {which.name}", flush=True)
    folder = SHARE / re.sub(r"\W+", "_", which.name)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    steps.save(which.steps, folder)
    script = which.setup
    if which.python:
        packages = site_packages()
        pack(packages, IMAGE, () if which.torch else TORCH)
        script += f"modprobe ext4; modprobe loop; mount -o loop,ro '{IMAGE}' '{packages}'\n"
    script += f"export PATH='{PATH}'\n'{sys.executable}' '{steps.__file__}' '{folder}'\n"
    try:
        output = guest.run(script, folder, which.seconds, *which.options)
    finally:
        IMAGE.unlink(missing_ok=True)
    done = steps.results(folder)
    results = [done.get(step.name, steps.Result(step.name, 0, "the guest did not get there")) for step in which.steps]
    for result, step in zip(results, which.steps, strict=True):
        steps.tell(result, folder, step.log)
    if not output.rstrip().endswith("exit status 0"):
        print(f"FAILED: the guest did not come to its end; {folder}/console says how far it came\n{output}")
        results.append(steps.Result(which.name, 0, "RED: the guest did not come to its end"))
    return results


def chosen(name: str, among: Sequence[steps.Step], words: Sequence[str]) -> list[steps.Step]:
    return [step for step in among if not words or any(word in f"{name}: {step.name}" for word in words)]


def run(over: str, words: Sequence[str], tier: str) -> bool:
    """The plain build and all guests."""
    build_all(over, tier == "few")
    passed = True
    if plain := chosen("plain", plan.plain(), words):
        print("--- a build without rdma-core's headers, on this machine")
        SHARE.mkdir(parents=True, exist_ok=True)
        for step in plain:
            result = steps.perform(step, SHARE)
            steps.tell(result, SHARE, step.log)
            passed = passed and not result.wrong
    if tier == "few":
        return run_guests([plan.few(over)], words) and passed
    if not (roomy := is_roomy()):
        print("this machine has too little memory for a guest of 8 GiB: the window of more than 4 is left out")
    if tier == "quarter":
        return run_guests(plan.quarter(over, roomy, int(again.seed())), words) and passed
    return run_guests(plan.guests(over, tier == "all", roomy), words) and passed


def run_guests(guests: Sequence[plan.Guest], words: Sequence[str]) -> bool:
    failed: list[tuple[plan.Guest, str, str]] = []  # a guest, a step that failed in it, and what was said
    for each in guests:
        which = dataclasses.replace(each, steps=chosen(each.name, each.steps, words))
        if not which.steps:
            continue
        for result in boot(which):
            if result.wrong:
                log = SHARE / re.sub(r"\W+", "_", which.name) / steps.log_of(result.name)
                said = log.read_text(errors="replace") if log.exists() else ""
                failed.append((which, result.name, f"{result.wrong}\n{said}"))
    red = [f"RED {name}: {why}" for _, name, said in failed if (why := again.why_red(said))]
    if red or len(failed) > again.MOST:
        print(*red, sep="\n")
        return False
    flaky = []
    for which, name, said in failed:
        kept = again.keep(name, said)
        alone = [step for step in which.steps if step.name == name]
        if any(result.wrong for result in boot(dataclasses.replace(which, steps=alone))):
            print(f"FAILED twice; the first log: {kept}")
            return False
        flaky.append(f"FLAKY {name} {kept}")
    print("".join(f"{line}\n" for line in flaky), end="")
    return True


def main() -> int:
    start = time.monotonic()
    parser = argparse.ArgumentParser(description="hpcomm over RDMA, in guests with softRoCE")
    parser.add_argument(
        "words", nargs="*", metavar="WORD", help="only the steps, or guests, that have it in their names"
    )
    tier = parser.add_mutually_exclusive_group()
    for name, what in TIERS.items():
        tier.add_argument(f"--{name}", dest="tier", action="store_const", const=name, default="", help=what)
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
        passed = run(arguments.over, arguments.words, arguments.tier)
    print(f"{'passed' if passed else 'FAILED'} in {time.monotonic() - start:.0f} s")
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
