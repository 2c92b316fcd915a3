"""The guests of tests/softroce/run.py: their hardware, and what each of them does, step by step."""

import sys
from dataclasses import dataclass, replace
from pathlib import Path

import chosen
import tree

from softroce.steps import Step

ROOT = tree.ROOT
HERE = Path(__file__).resolve().parent
BUILD = tree.BUILD  # with verbs
PLAIN = ROOT / "build/softroce-plain"  # as on a machine without rdma-core's headers
CXX = ROOT / "build/softroce-cpp"  # examples/cpp
SANITIZED = {"address,undefined": ROOT / "build/softroce-asan", "thread": ROOT / "build/softroce-tsan"}

LARGE = "test_conformance_large"
# The conformance suite and the graphs run with ranks that are processes in the first guest. In the second one those of
# THREADS, which know of data and signals, run with ranks that are threads; with --all every one but PROCESSES_ONLY.
THREADS = {f"test_conformance_{name}" for name in ("bounds", "flush", "notify", "order", "queue", "reduce")}
GRAPHS = ("test_graph", "test_graph_ends")
CALLS = ("test_collectives", "test_messages")
STAGES = (
    *("test_exchange_relays", "test_exchange_stages", "test_exchange_ways", "test_exchange_receivers"),
    "test_groups",
)
PROCESSES_ONLY = {"test_conformance_midwrite", "test_verbs_failure"}
# What a commit has time for, a second a case: a few of each kind in one guest (--few).
FEW = {
    "test_verbs": "jumps_at_once,events,flood",
    "test_verbs_lanes": "lanes_in_turn,rails",
    "test_verbs_corked": "kept_uncork,any_order",
    "test_verbs_source": "sources,staged",
    "test_verbs_failure": "killed_under_a_writer,names",
    "test_verbs_device": "",
    "test_device": "",
    "test_conformance_order": "data_before_signal,many_writers",
    "test_conformance_queue": "both_ways_2,held_while_streaming_2_registered",
    "test_conformance_notify": "all_to_all",
    "test_conformance_midwrite": "killed",
    "test_conformance_exchange": "random_2_inline,ring_4_bf16_thread",
    "test_conformance_exchange_failure": "dies_push_pull",
    "test_conformance_failure": "dies_wait_signal,leaves_send",
    "test_conformance_teardown": "several_contexts",
    "test_blame": "because,stopped",
    "test_graph": "exact_2,ssp_keeps_newest",
    "test_exchange_relays": "2_hosts_of_2_threads",
    "test_conformance_discipline": "bounded/ssp1_hosts,bounded/ssp3_graph_models",
    "test_collectives": "every_3,mismatch_count,dies_alltoall",
    "test_messages": "ring_2,in_order,given_up_long",
}
FEW_THREADS = {"test_conformance_order": "lanes_are_independent", "test_verbs": "two_lanes"}
FEW_PYTEST = "test_queue.py::test_updates_arrive_whole_and_in_order"
# One case of each kind. --all runs the programs whole.
SHORT = {
    "test_conformance_collective": "barriers_sleepy,allgathers_8,windows_disagree,edges_disagree,collectives_disagree,"
    "too_much_memory,one_is_missing,settings_disagree,broken_addresses",
    "test_conformance_exchange": "random_2_inline,random_3_thread,random_4_async_sleepy,racks_5_f16_eager,"
    "racks_4_full,relay_3,ring_4_bf16_thread,large",
    "test_conformance_exchange_failure": "dies_wait,stops_push_pull,leaves_owner,dies_thread_pull,dies_gradient,"
    "leaves_start,stops_serve,dies_publish,leaves_close,stops_relay,dies_create,dies_after_push_thread,"
    "dies_under_way_40,dies_under_way_owner,dies_waiting,frees_async,closes_thread",
    "test_conformance_failure": "dies_wait_signal,leaves_wait_event,dies_put_notify,stops_barrier,dies_allgather,"
    "leaves_window_create,stops_lane_create,dies_recv,leaves_send,dies_reduce,stops,dies_under_writers,dies_in_init",
    "test_conformance_teardown": "several_contexts,leave_after_barrier,freed_under_a_writer,windows_come_and_go,"
    "forked_children,child_outlives_parent",
    "test_conformance_large": "window_over_4_gib",
    "test_conformance_discipline": "bounded/ssp3_graph_models,bounded/barrier_graph_phases,names/barrier_graph,"
    "totals/ack_graph_phases,totals/ssp2_racks,bounded/ssp3_hosts,bounded/ssp2_racks",
    "test_conformance_discipline_failure": "dies_between/ack_graph,dies_between/barrier_graph,dies_between/ssp1_hosts",
    "test_conformance_discipline_split": "between/split_servers,between/split_peers,at_once/split_hosts",
    "test_conformance_discipline_state": "restored/ack_graph_phases,bits/bsp_racks",
    "test_graph": "exact_2,ssp_keeps_newest",
    "test_graph_ends": "closes_early_2,frees_early_async",
    "test_exchange_relays": "3_hosts_of_2_uneven,4_hosts_chain,published_chain,broadcast_binary",
    "test_groups": "names_silent,boxed,folds_for_others",
}
# Programs, or one case of them: under a sanitizer and emulation more takes too long.
SANITIZED_TESTS = (
    "test_verbs",
    "test_verbs_lanes",
    "test_verbs_corked",
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
    "test_window.py::test_everybody_puts_to_everybody",
    "test_window.py::test_flush_is_remote_completion",
    "test_queue.py::test_updates_arrive_whole_and_in_order",
    "test_exchange.py::test_every_placement_sums[{over}-CS-inline]",
    "test_exchange.py::test_every_placement_sums[{over}-NCC-thread]",
    "test_exchange.py::test_async_applies_each_update_as_it_comes[{over}-NCS]",
    "test_graph_exchange.py::test_what_is_late_is_whole_or_left_out[{over}-ASYNC]",
    "test_service.py::test_a_hub_gives_the_bits_of_a_server_in_the_job[{over}]",
    "test_service_cpp.py::test_a_hub_serves_jobs_in_python_torch_and_cpp_at_once[{over}]",
)
TORCH = (str(ROOT / "tests/test_torch.py"), "-k", "over_a_wire")  # of all its cases, seven minutes
MORE_PYTEST = (  # of --all
    "test_context.py::test_a_lane_has_its_own_events",
    "test_window.py::test_token_goes_round_the_ranks_of_mpi",
    "test_queue.py::test_reduce_is_the_mean",
    "test_exchange.py::test_every_placement_sums",
    "test_exchange.py::test_async_applies_each_update_as_it_comes",
    "test_exchange.py::test_gradients_rotate",
    "test_graph_exchange.py::test_gradients_go_into_ones_own_parameters",
    "test_graph_exchange.py::test_what_is_late_is_whole_or_left_out",
)
SETUP = """set -e
dmesg --console-level 1  # rdma_rxe has a line for every look at its ports, and the console is slow
ulimit -l unlimited
modprobe rdma_rxe && modprobe ib_uverbs && modprobe dummy
# Every process of verbs would load the drivers of all NICs there are.
mkdir /tmp/drivers && cp /etc/libibverbs.d/rxe.driver /tmp/drivers && mount --bind /tmp/drivers /etc/libibverbs.d
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
    python: some step is that of an installed hpcomm; torch: one of them needs torch."""

    name: str
    options: list[str]
    devices: int
    seconds: float
    steps: list[Step]
    python: bool = False
    torch: bool = False

    @property
    def setup(self) -> str:
        return SETUP + "".join(DEVICE.format(i=i, net=77 + i) for i in range(self.devices))


def program(name: str, *arguments: str, seconds: float = 180, build: Path = BUILD) -> Step:
    return Step(" ".join([name, *arguments]), [str(build / name), *arguments], seconds)


def cases(name: str, mode: str, whole: bool, seconds: float = 180) -> Step:
    """A program in one mode; unless whole, those of its cases that SHORT lists, where it does."""
    short = [] if whole or name not in SHORT else [SHORT[name]]
    every = {"HPC_TEST_MODES": "all"} if mode == "all" else {}
    return Step(f"{name} {mode}", [str(BUILD / name), mode, *short], seconds, every)


def check(name: str, *arguments: str, seconds: float) -> Step:
    return Step(name, [sys.executable, str(HERE / "checks.py"), name, *arguments], seconds)


def c_tests(pattern: str) -> list[str]:
    return sorted(path.stem for path in (ROOT / "tests/c").rglob(pattern) if path.stem != LARGE)


def two_nodes(over: str, whole: bool) -> Guest:
    programs = (*c_tests("test_conformance_*.c"), "test_blame", *GRAPHS, *STAGES, *CALLS)
    steps = [cases(name, f"{over}-processes", whole) for name in programs]
    if over == "verbs":
        mode = "all" if whole else "verbs-processes"
        steps += [cases(name, mode, whole) for name in [*c_tests("test_verbs*.c"), *c_tests("test_device.c")]]
    memory = ["--memory", "4G", "--cpus", "2", "--numa", "2G,cpus=0", "--numa", "2G,cpus=1"]
    return Guest("two nodes, two devices", memory, 2, 1200 if whole else 900, steps)


def one_node(over: str, whole: bool, roomy: bool) -> Guest:
    """With 8 GiB, and the window of more than 4, if the machine is roomy."""
    tests = [*PYTEST, *MORE_PYTEST] if whole else PYTEST
    pytest = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    pytest += [str(ROOT / "tests" / test.format(over=over)) for test in tests]
    hidden = ["unshare", "--mount", "sh", "-c", WITHOUT_LIBIBVERBS, "sh", str(BUILD / "refused")]
    threads = [
        name
        for name in (*c_tests("test_conformance_*.c"), *GRAPHS)
        if name in THREADS or (whole and name not in PROCESSES_ONLY)
    ]
    steps = [check("perftest", seconds=120)]
    if over == "verbs":
        steps.append(Step("foreign", ["/usr/bin/python3", str(HERE / "foreign.py"), str(BUILD / "foreign")], 120))
    steps += [
        Step("without libibverbs", hidden, 30, {"HPC_REFUSAL": "libibverbs.so.1"}),
        *[cases(name, f"{over}-threads", whole) for name in threads],
        check("cpp", str(CXX), over, seconds=120),
        Step("Python tests", pytest, 300, {"HPC_TEST_TRANSPORTS": over}),
    ]
    if roomy:
        steps.append(cases(LARGE, f"{over}-processes", whole, seconds=400))
    steps += [
        check("digits", over, seconds=300),
        Step("torch", [*pytest[:6], *TORCH], 600, {"HPC_TEST_TRANSPORTS": over}),
    ]
    memory = ["--memory", "8G" if roomy else "4G", "--cpus", "2"]
    return Guest("one node, one device", memory, 1, 1800 if whole else 1500, steps, python=True, torch=True)


def sanitized(over: str, sanitizer: str) -> Guest:
    """TSan sees ranks that are threads alone."""
    kind = "threads" if sanitizer == "thread" else "processes"
    steps = []
    for program_and_case in SANITIZED_TESTS:
        name, *case = program_and_case.split()
        if kind == "processes" or name not in PROCESSES_ONLY:
            steps.append(program(name, f"{over}-{kind}", *case, seconds=300, build=SANITIZED[sanitizer]))
    return Guest(f"two devices, {sanitizer}", ["--memory", "4G", "--cpus", "2"], 2, 900, steps)


def guests(over: str, whole: bool, roomy: bool) -> list[Guest]:
    return [two_nodes(over, whole), one_node(over, whole, roomy)]


def quarter(over: str, roomy: bool, seed: int) -> list[Guest]:
    """A quarter of the steps of --all, every fourth one of each guest; of torch's cases one. Four seeds in a row make
    all of them."""
    short = {"HPC_TEST_TRANSPORTS": over, chosen.BY_NAME: "yes", "HPC_TEST_SEED": str(seed)}
    drawn = []
    for guest in guests(over, True, roomy):
        steps = [replace(step, env=short) if step.name == "torch" else step for step in guest.steps]
        drawn.append(replace(guest, steps=[step for k, step in enumerate(steps) if (k + seed) % 4 == 0]))
    return drawn


def few(over: str) -> Guest:
    """A few steps of each kind, for every commit."""
    hidden = ["unshare", "--mount", "sh", "-c", WITHOUT_LIBIBVERBS, "sh", str(BUILD / "refused")]
    pytest = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(ROOT / "tests" / FEW_PYTEST)]
    steps = [check("perftest", seconds=120)]
    if over == "verbs":
        steps.append(Step("foreign", ["/usr/bin/python3", str(HERE / "foreign.py"), str(BUILD / "foreign")], 120))
    steps.append(Step("without libibverbs", hidden, 30, {"HPC_REFUSAL": "libibverbs.so.1"}))
    for kind, programs in (("processes", FEW), ("threads", FEW_THREADS)):
        for name, some in programs.items():
            if over == "verbs" or name.startswith(("test_conformance", "test_blame", "test_graph", *STAGES, *CALLS)):
                steps.append(program(name, f"{over}-{kind}", *[some] if some else []))
    steps.append(Step("Python test", pytest, 300, {"HPC_TEST_TRANSPORTS": over}))
    memory = ["--memory", "4G", "--cpus", "2", "--numa", "2G,cpus=0", "--numa", "2G,cpus=1"]
    return Guest("a few of each kind", memory, 2, 900, steps, python=True)


def plain() -> list[Step]:
    """What this machine does with a library that was built without rdma-core's headers."""
    env = {"HPC_TEST_SCALE": "10", "HPC_REFUSAL": "built without rdma-core's headers"}
    steps = [Step(f"{name} shm-processes", [str(PLAIN / name), "shm-processes"], 60, env) for name in PLAIN_TESTS]
    return [*steps, Step("refused", [str(PLAIN / "refused")], 30, env)]
