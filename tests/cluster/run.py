"""The tests on several hosts, which are namespaces of this machine: python tests/cluster/run.py [PYTEST OPTION...]

Ends with 0 if they pass, with 1 if they do not, and with 77 where the machine cannot make the hosts, saying why. Looks
in the end whether anything is left: a process, a namespace, a link or a file.
"""

import importlib.util
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from cluster import hosts

FOLDER = Path(__file__).resolve().parent
SECONDS = 900.0  # for all tests; three or four minutes are usual on two cores
MARK = "CLUSTER_RUN"  # in the environment of every process of a run


def links() -> set[str]:
    """Links of this machine's own network that are named like a cluster's."""
    said = subprocess.run(["ip", "-brief", "link"], capture_output=True, text=True, timeout=30, check=True).stdout
    names = {line.split()[0].partition("@")[0] for line in said.splitlines()}
    return {name for name in names if re.fullmatch(r"(h|rack|core)\d+\.eth\d|br\d(r\d+)?|sink|void", name)}


def marked(mark: str) -> list[int]:
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if f"{MARK}={mark}".encode() in (process / "environ").read_bytes().split(b"\0"):
                found.append(int(process.name))
    return found


def end(tests: "subprocess.Popen[bytes]", mark: str) -> list[int]:
    """Ends whatever runs; what would not go within ten seconds."""
    with suppress(ProcessLookupError):
        os.killpg(tests.pid, signal.SIGKILL)
    tests.wait()
    late = time.monotonic() + 10
    while (left := marked(mark)) and time.monotonic() < late:
        time.sleep(0.01)  # the kernel takes a cluster down when its maker has gone
    for pid in left:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return left


def side_by_side() -> list[str]:
    """Two workers, each with hosts of its own: the tests wait more than they compute."""
    return ["-n2", "--dist=load"] if importlib.util.find_spec("xdist") else []


def run(options: Sequence[str], folder: Path) -> tuple[int, list[str]]:
    """pytest's exit status, and what is wrong beside it."""
    mark = folder.name
    again = [sys.executable, str(FOLDER.parent / "again.py"), "pytest", "cluster"]
    pytest = [*again, "-o", "faulthandler_timeout=100", *side_by_side(), *options]
    if not any("/" in option or option.endswith(".py") for option in options):
        pytest.append(str(FOLDER))
    wrong = []
    before = links()
    tests = subprocess.Popen(
        ["setpriv", "--pdeathsig", "KILL", *pytest],
        cwd=FOLDER.parents[1],
        env=os.environ | {MARK: mark, "TMPDIR": str(folder)},
        stdin=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        try:
            status = tests.wait(SECONDS)
        except subprocess.TimeoutExpired:
            status = 1
            wrong.append(f"the tests took more than {SECONDS:.0f} s")
    finally:
        ended = tests.poll() is not None
        left = end(tests, mark)
        clusters = list(folder.glob(f"{hosts.PREFIX}-*"))
    if left or (ended and clusters):
        wrong.append(f"left behind: processes {left}, folders {clusters}")
    if strayed := links() - before:
        wrong.append(f"left behind: links {strayed}")
    return status, wrong


def main() -> int:
    start = time.monotonic()
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(number, lambda number, _: sys.exit(128 + number))
    hosts.sweep()
    os.environ["PATH"] = f"{Path(sys.executable).parent}:{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
    folder = Path(tempfile.mkdtemp(prefix=f"{hosts.PREFIX}-{os.getpid()}-"))
    try:
        try:
            with hosts.Cluster(2):
                pass
        except hosts.Unavailable as why:
            print(f"skipped: {why}")
            return 77
        status, wrong = run(sys.argv[1:], folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    for sentence in wrong:
        print(f"FAILED: {sentence}")
    if status or wrong:
        return 1
    print(f"passed in {time.monotonic() - start:.0f} s; nothing is left")
    return 0


if __name__ == "__main__":
    sys.exit(main())
