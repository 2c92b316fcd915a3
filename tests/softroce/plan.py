"""The guests of tests/softroce/run.py: their hardware, and what each of them does, step by step."""

import sys
from dataclasses import dataclass
from pathlib import Path

from softroce.steps import Step

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent
BUILD = ROOT / "build/softroce"  # with verbs
PLAIN = ROOT / "build/softroce-plain"  # as on a machine without rdma-core's headers
CXX = ROOT / "build/softroce-cpp"  # examples/cpp
SANITIZED = {"address,undefined": ROOT / "build/softroce-asan", "thread": ROOT / "build/softroce-tsan"}

LARGE = "test_conformance_large"
# Every program of the conformance suite runs with ranks that are processes in the first guest, and all but two with
# ranks that are threads in one of the first two: what fails in an exchange takes long, and is the same in threads. The
# second guest repeats those of its processes that know of data and signals.
PROCESSES_ONLY = {"test_conformance_midwrite", "test_conformance_exchange_failure", "test_verbs_failure"}
THREADS_IN_SECOND = {f"test_conformance_{name}" for name in ("collective", "failure", "teardown")}
AGAIN_IN_SECOND = [f"test_conformance_{name}" for name in ("bounds", "order", "flush", "midwrite")]
# Programs, or one case of them: under a sanitizer and emulation more takes too long.
SANITIZED_TESTS = (
    "test_verbs",
    "test_verbs_lanes",
    "test_verbs_source",
    "test_verbs_failure",
    "test_conformance_exchange random_2_async",
    "test_conformance_exchange ring_4",
    "test_conformance_queue both_ways_3_registered",
    "test_conformance_teardown windows_come_and_go",
    "test_conformance_teardown freed_under_a_writer",
    "test_conformance_failure dies_under_writers",
    "test_conformance_order many_writers",
)
PLAIN_TESTS = ("test_conformance_order", "test_conformance_queue", "test_conformance_exchange")
PYTEST = (
    "test_context.py::test_collectives",
    "test_context.py::test_events_come_in_the_order_of_their_puts",
    "test_context.py::test_a_lane_has_its_own_events",
    "test_window.py::test_everybody_puts_to_everybody",
    "test_window.py::test_flush_is_remote_completion",
    "test_window.py::test_token_goes_round_the_ranks_of_mpi",
    "test_queue.py::test_updates_arrive_whole_and_in_order",
    "test_queue.py::test_reduce_is_the_mean",
    "test_exchange.py::test_every_placement_sums",
    "test_exchange.py::test_async_applies_each_update_as_it_comes",
    "test_exchange.py::test_gradients_rotate",
)
SETUP = """set -e
dmesg --console-level 1  # rdma_rxe has a line for every look at its ports, and the console is slow
ulimit -l unlimited
modprobe rdma_rxe && modprobe ib_uverbs && modprobe dummy
ip link set lo up
export HPC_TEST_SCALE=5 HPC_TEST_PATIENCE=3
export PYTHONDONTWRITEBYTECODE=1 MPLCONFIGDIR=/tmp/matplotlib
"""
DEVICE = """ip link add d{i} type dummy
ip address add 10.{net}.0.1/24 dev d{i}
ip link set d{i} mtu 9000 up
rdma link add rxe{i} type rxe netdev d{i}
"""
# An empty file in the place of libibverbs, as far as one command sees.
WITHOUT_LIBIBVERBS = """
: >/tmp/empty
for library in $(ldconfig -p | sed -n 's/.*libibverbs\\.so\\.1 .*=> //p'); do mount --bind /tmp/empty "$library"; done
exec "$@"
"""


@dataclass(frozen=True)
class Guest:
    """options are vng's; every device is an RDMA one of its own subnet. seconds: from its start until it is killed.
    python: some step is that of an installed hpcomm."""

    name: str
    options: list[str]
    devices: int
    seconds: float
    steps: list[Step]
    python: bool = False

    @property
    def setup(self) -> str:
        return SETUP + "".join(DEVICE.format(i=i, net=77 + i) for i in range(self.devices))


def program(name: str, *arguments: str, seconds: float = 180, build: Path = BUILD) -> Step:
    return Step(" ".join([name, *arguments]), [str(build / name), *arguments], seconds)


def check(name: str, *arguments: str, seconds: float) -> Step:
    return Step(name, [sys.executable, str(HERE / "checks.py"), name, *arguments], seconds)


def c_tests(pattern: str) -> list[str]:
    return sorted(path.stem for path in (ROOT / "tests/c").glob(pattern) if path.stem != LARGE)


def two_nodes(over: str) -> Guest:
    programs = c_tests("test_conformance_*.c")
    steps = [program(name, f"{over}-processes") for name in programs]
    steps += [
        program(name, f"{over}-threads")
        for name in programs
        if name not in PROCESSES_ONLY | THREADS_IN_SECOND and name != "test_conformance_exchange"  # a minute
    ]
    if over == "verbs":
        steps += [program(name) for name in [*c_tests("test_verbs*.c"), *c_tests("test_device.c")]]
    memory = ["--memory", "4G", "--cpus", "2", "--numa", "2G,cpus=0", "--numa", "2G,cpus=1"]
    return Guest("two nodes, two devices", memory, 2, 600, steps)


def one_node(over: str) -> Guest:
    pytest = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    pytest += [str(ROOT / "tests" / test) for test in PYTEST]
    hidden = ["unshare", "--mount", "sh", "-c", WITHOUT_LIBIBVERBS, "sh", str(BUILD / "refused")]
    steps = [check("perftest", seconds=60)]
    if over == "verbs":
        steps.append(Step("foreign", ["/usr/bin/python3", str(HERE / "foreign.py"), str(BUILD / "foreign")], 60))
    steps += [
        Step("without libibverbs", hidden, 30, {"HPC_REFUSAL": "libibverbs.so.1"}),
        *[program(name, f"{over}-processes") for name in AGAIN_IN_SECOND],
        *[program(name, f"{over}-threads") for name in sorted(THREADS_IN_SECOND)],
        Step("Python tests", pytest, 150, {"HPC_TEST_TRANSPORTS": over}),
        check("digits", over, seconds=300),
        check("cpp", str(CXX), over, seconds=120),
    ]
    return Guest("one node, one device", ["--memory", "4G", "--cpus", "2"], 1, 600, steps, python=True)


def large(over: str) -> Guest:
    steps = [program(LARGE, f"{over}-processes", seconds=270)]
    return Guest("8 GiB", ["--memory", "8G", "--cpus", "2"], 1, 300, steps)


def sanitized(over: str, sanitizer: str) -> Guest:
    """TSan sees ranks that are threads alone."""
    kind = "threads" if sanitizer == "thread" else "processes"
    steps = []
    for program_and_case in SANITIZED_TESTS:
        name, *case = program_and_case.split()
        if kind == "processes" or name not in PROCESSES_ONLY:
            steps.append(program(name, f"{over}-{kind}", *case, seconds=300, build=SANITIZED[sanitizer]))
    return Guest(f"two devices, {sanitizer}", ["--memory", "4G", "--cpus", "2"], 2, 900, steps)


def guests(over: str) -> list[Guest]:
    return [two_nodes(over), one_node(over), large(over)]


def plain() -> list[Step]:
    """What this machine does with a library that was built without rdma-core's headers."""
    env = {"HPC_TEST_SCALE": "10", "HPC_REFUSAL": "built without rdma-core's headers"}
    steps = [Step(f"{name} shm-processes", [str(PLAIN / name), "shm-processes"], 60, env) for name in PLAIN_TESTS]
    return [*steps, Step("refused", [str(PLAIN / "refused")], 30, env)]
