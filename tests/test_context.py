"""Contexts: collectives, events, and every way in which one ends."""

import gc
import multiprocessing
import os
import re
import signal
import socket
import sys
import threading
import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import mpi
import numpy as np
import pytest
from conftest import Left, on_both, run_threads, thread_worlds

import hpcomm
from hpcomm import _core, _ffi
from hpcomm._core import handle
from hpcomm.config import Config


def test_world_of_one(alone: hpcomm.Context) -> None:
    assert (alone.rank, alone.size, alone.local_rank, alone.local_size) == (0, 1, 0, 1)
    alone.barrier()
    assert alone.allgather(b"abc") == [b"abc"]
    (me,) = alone.peers
    assert (me.transport, me.state, me.pid) == ("self", "alive", os.getpid())
    assert all(isinstance(note, str) for note in alone.notes)


def test_collectives(transport: dict[str, Any]) -> None:
    def body(context: hpcomm.Context) -> list[bytes]:
        context.barrier()
        assert {peer.state for peer in context.peers} == {"alive"}
        assert context.allgather(b"") == [b""] * 3
        return context.allgather(bytes([context.rank]) * 5)

    assert run_threads(3, body, **transport) == [[b"\0" * 5, b"\1" * 5, b"\2" * 5]] * 3


@on_both
def test_allgather_of_different_lengths_is_told() -> None:
    def body(context: hpcomm.Context) -> None:
        context.allgather(b"x" * (3 + context.rank))

    with pytest.raises(hpcomm.ConfigError, match=r"rank 1 gives 4 bytes and rank 0 gives 3"):
        run_threads(2, body)


@on_both
def test_different_collectives_are_told() -> None:
    def body(context: hpcomm.Context) -> None:
        if context.rank == 0:
            context.barrier()
        else:
            context.window(8)

    with pytest.raises(hpcomm.ConfigError, match=r"barrier.*window"):
        run_threads(2, body)


def test_ranks_of_a_host_are_numbered_in_their_order(monkeypatch: pytest.MonkeyPatch, alone: hpcomm.Context) -> None:
    monkeypatch.setattr(hpcomm.Context, "hosts", (0, 1, 0, 1, 0))
    found = []
    for rank in range(5):
        monkeypatch.setattr(alone, "rank", rank)
        found.append((alone.local_rank, alone.local_size))
    assert found == [(0, 3), (0, 2), (1, 3), (1, 2), (2, 3)]


@pytest.mark.parametrize("timeout", [-1, float("nan"), "epoch 1", timedelta(seconds=1)])
def test_timeout_out_of_range(alone: hpcomm.Context, timeout: Any) -> None:
    with pytest.raises(hpcomm.InvalidArgument, match=re.escape(f"timeout is {timeout!r}: must be")):
        alone.barrier(timeout)


@on_both
def test_barrier_that_a_rank_misses_times_out() -> None:
    missed = threading.Event()

    def body(context: hpcomm.Context) -> None:
        if context.rank == 1:
            assert missed.wait(20)
            raise Left
        with pytest.raises(hpcomm.Timeout, match="barrier") as raised:
            context.barrier(timeout=0.05)
        assert (raised.value.op, raised.value.waiting_for) == ("barrier", (1,))
        with pytest.raises(hpcomm.ConfigError, match="earlier collective failed"):
            context.barrier()
        context.close()
        missed.set()
        raise Left

    run_threads(2, body)


def test_a_barrier_names_on_every_rank_those_that_do_not_come() -> None:
    missed = threading.Barrier(5)

    def body(context: hpcomm.Context) -> None:
        if context.rank not in (1, 3):
            with pytest.raises(hpcomm.Timeout, match="barrier") as raised:
                context.barrier(timeout=0.3)
            assert raised.value.waiting_for == (1, 3)
            assert [one.rank for one in raised.value.culprits] == [1, 3]
        missed.wait(20)
        context.close()
        raise Left

    run_threads(5, body)


def test_several_contexts_in_one_process() -> None:
    with hpcomm.init() as one, hpcomm.init() as two:
        first, second = one.window(8), two.window(8)
        first.put(0, b"1" * 8)
        second.put(0, b"2" * 8)
        one.close()
        second.put(0, b"3", 7)
        assert bytes(first.array) == b"1" * 8
        assert bytes(second.array) == b"22222223"


def test_what_is_told_goes_to_stderr_unless_logging_is_configured() -> None:
    """Other handlers may take it, or raise."""
    raises = "type('H', (logging.Handler,), {'emit': lambda self, record: exit(record.getMessage())})()"
    for before, told in (
        ("", "hpcomm HPCOMM_TIMEOUTS is not a setting"),
        ("logging.basicConfig(format='[%(levelname)s] %(message)s')", "[WARNING] HPCOMM_TIMEOUTS is not a setting"),
        ("logging.getLogger('hpcomm').setLevel(logging.ERROR)", ""),
        (f"logging.getLogger('hpcomm').addHandler({raises})", "HPCOMM_TIMEOUTS is not a setting"),
    ):
        code = f"import logging, hpcomm\n{before}\nhpcomm.init().close()"
        ended = mpi.command(sys.executable, "-c", code, env={"HPCOMM_TIMEOUTS": "3"})
        assert ended.stderr.startswith(told) if told else not ended.stderr
        assert ended.returncode == ("addHandler" in before)


def test_debug_tells_peers_and_calls(told_by_logger: Callable[[], str]) -> None:
    with hpcomm.init(debug="TRACE") as context:
        context.window(64, signals=2)
    told = told_by_logger()
    assert f"hpcomm rank 0: of 1, hpcomm {hpcomm.__version__}\n" in told
    assert "window of 64 bytes and 2 signals" in told
    hpcomm.init(debug="warn").close()
    assert told_by_logger() == ""


def test_debug_tells_the_choice_for_each_pair_once(told_by_logger: Callable[[], str]) -> None:
    run_threads(3, lambda context: None, transport="shm", debug="INFO")
    told = [line for line in told_by_logger().splitlines() if ": of 3, " in line]
    start = f"of 3, hpcomm {hpcomm.__version__}"
    assert sorted(told) == [
        f"hpcomm rank 0: {start}: shm to ranks 1, 2",
        f"hpcomm rank 1: {start}: shm to rank 2",
        f"hpcomm rank 2: {start}",
    ]


def test_debug_tells_where_peers_of_other_hosts_are(
    monkeypatch: pytest.MonkeyPatch, told_by_logger: Callable[[], str]
) -> None:
    peers = [("self", ""), ("shm", ""), ("tcp", "10.0.0.2:40001 by eth0"), ("shm", "")]
    known = {rank: (1, transport, "h2", 7, path, False) for rank, (transport, path) in enumerate(peers)}
    with hpcomm.init() as context:
        monkeypatch.setattr(_core, "context_peer", lambda _, rank: known[rank])
        monkeypatch.setattr(context, "size", 4)
        monkeypatch.setattr(context, "config", Config(debug="INFO"))
        context._tell_start()
        assert context.peers[2] == hpcomm.context.Peer(2, "tcp", "h2", 7, "alive", "10.0.0.2:40001 by eth0")
        monkeypatch.undo()
    told = told_by_logger()
    assert told.endswith(": tcp to rank 2 (h2) at 10.0.0.2:40001 by eth0; shm to ranks 1, 3\n")


def test_notes_of_the_start_are_told_at_info(
    monkeypatch: pytest.MonkeyPatch, told_by_logger: Callable[[], str]
) -> None:
    monkeypatch.setattr(_core, "context_notes", lambda _: (("few cores", False), ("refused a stranger", True)))
    hpcomm.init().close()
    assert told_by_logger() == "hpcomm rank 0: refused a stranger\n"
    hpcomm.init(debug="INFO").close()
    told = told_by_logger().splitlines()[1:]
    assert told == ["hpcomm rank 0: few cores", "hpcomm rank 0: refused a stranger"]


@pytest.mark.parametrize("end", [lambda context: context.close(), lambda context: context.abort("weary")])
@pytest.mark.parametrize("debug", ["WARN", "INFO"])
def test_strangers_are_warnings_and_other_later_notes_are_not(
    monkeypatch: pytest.MonkeyPatch,
    told_by_logger: Callable[[], str],
    debug: str,
    end: Callable[[hpcomm.Context], None],
) -> None:
    notes = [("few cores", False), ("refused an early stranger", True)]
    monkeypatch.setattr(_core, "context_notes", lambda _: tuple(notes))
    context = hpcomm.init(debug=debug)
    told_by_logger()
    notes.extend([("refused a stranger", True), ("no NUMA", False)])
    assert context.notes == ("few cores", "refused an early stranger", "refused a stranger", "no NUMA")
    if (child := os.fork()) == 0:
        context.close()  # nothing ends here
        os._exit(len(told_by_logger()))
    assert os.waitpid(child, 0)[1] == 0
    assert told_by_logger() == ""
    end(context)
    context.close()
    told = ["refused an early stranger", "refused a stranger", *(["no NUMA"] if debug == "INFO" else [])]
    assert told_by_logger() == "".join(f"hpcomm rank 0: {note}\n" for note in told)


def test_failed_start_tells_all_notes(monkeypatch: pytest.MonkeyPatch, told_by_logger: Callable[[], str]) -> None:
    class Broken:
        rank, size = 0, 2

        def allgather(self, data: bytes) -> list[bytes]:
            raise OSError("the wire is cut")

    monkeypatch.setattr(_core, "context_notes", lambda _: (("refused a stranger", True),))
    with pytest.raises(OSError, match="wire"):
        hpcomm.init(Broken())
    assert told_by_logger() == "hpcomm rank 0: refused a stranger\n"


def test_stranger_on_the_wire_is_told_once(told_by_logger: Callable[[], str]) -> None:
    def body(context: hpcomm.Context) -> tuple[str, ...]:
        if context.rank == 1:
            where = re.fullmatch(r"(.*):(\d+) by \w+", context.peers[0].path)
            assert where is not None
            for _ in range(2):
                with socket.create_connection((where[1].strip("[]"), int(where[2])), 10) as stranger:
                    stranger.sendall(b"GET / HTTP/1.0\r\n\r\n" * 8)
                    with suppress(ConnectionResetError):
                        assert stranger.recv(64) == b""
        context.barrier()
        return context.notes

    notes = run_threads(2, body, transport="tcp")
    assert notes[1] == ()
    (told,) = notes[0]
    assert re.fullmatch(r"refused a connection from 127\.0\.0\.1:\d+: .*", told)
    assert told_by_logger() == f"hpcomm rank 0: {told}\n"


# ---- events --------------------------------------------------------------------------------------------------------


def test_events_come_in_the_order_of_their_puts(transport: dict[str, Any]) -> None:
    def body(context: hpcomm.Context) -> list[hpcomm.context.Event]:
        window = context.window(64)
        if context.rank > 0:
            for imm in range(40):
                window.put_notify(0, bytes([imm]), context.rank, imm=imm)
            window.flush()
            return []
        return [context.wait_event() for _ in range(80)]

    events = run_threads(3, body, **transport)[0]
    for peer in (1, 2):
        assert [(event.imm, event.nbytes) for event in events if event.peer == peer] == [(imm, 1) for imm in range(40)]


def test_a_lane_has_its_own_events(transport: dict[str, Any]) -> None:
    def body(context: hpcomm.Context) -> None:
        lane, window = context.lane(), context.window(8)
        other = 1 - context.rank
        window.put_notify(other, b"lane", imm=1, lane=lane)
        assert context.wait_event(lane=lane) == (other, 1, 4)
        assert context.poll() is None
        context.barrier()
        window.put_notify(other, b"first", imm=2)
        assert context.wait_event() == (other, 2, 5)
        assert context.poll(lane) is None

    run_threads(2, body, **transport)


def test_no_event_times_out(alone: hpcomm.Context) -> None:
    assert alone.poll() is None
    with pytest.raises(hpcomm.Timeout, match=r"wait_event: .* in 0.05 s"):
        alone.wait_event(0.05)


def test_full_ring_of_events_times_out(alone: hpcomm.Context) -> None:
    window = alone.window(8)
    depth = _ffi.lib.HPC_NOTIFY_DEPTH
    for imm in range(depth):
        window.put_notify(0, b"", imm=imm)
    with pytest.raises(hpcomm.Timeout, match="put_notify"):
        window.put_notify(0, b"", imm=depth, timeout=0.01)
    assert alone.poll() == (0, 0, 0)
    window.put_notify(0, b"", imm=7, timeout=0.01)


# ---- close ---------------------------------------------------------------------------------------------------------


def test_closed_context_says_so(alone: hpcomm.Context) -> None:
    window = alone.window(8, signals=1)
    alone.close()
    alone.close()
    calls: list[Callable[[], object]] = [
        alone.barrier,
        alone.lane,
        alone.poll,
        lambda: alone.window(8),
        lambda: alone.allgather(b"x"),
        lambda: window.put(0, b"x"),
        lambda: window.wait_signal(0, 1),
        window.flush,
    ]
    for call in calls:
        with pytest.raises(hpcomm.InvalidArgument, match="closed"):
            call()


def test_close_ends_the_waits_of_other_threads(alone: hpcomm.Context) -> None:
    window = alone.window(8, signals=1)
    ended: list[BaseException] = []

    def wait() -> None:
        with pytest.raises(hpcomm.InvalidArgument) as raised:
            window.wait_signal(0, 1, timeout=30)
        ended.append(raised.value)

    thread = threading.Thread(target=wait)
    thread.start()
    alone.close()
    thread.join(20)
    assert "closed" in str(ended[0])


@on_both
def test_peer_that_left_fails_who_waits_for_it() -> None:
    def body(context: hpcomm.Context) -> None:
        window = context.window(8, signals=1)
        context.barrier()
        if context.rank == 1:
            window.put_signal(0, b"x", signal=0, value=1)
            context.close()
            raise Left
        assert window.wait_signal(0, 1, peer=1) == 1  # what it did before it left counts
        with pytest.raises(hpcomm.PeerFailed) as raised:
            window.wait_signal(0, 2, peer=1)
        assert (raised.value.ranks, raised.value.op, raised.value.waiting_for) == ((1,), "wait_signal", (1,))
        assert context.peers[1].state == "left"
        context.close()
        raise Left

    run_threads(2, body)


@on_both
def test_with_that_raises_tells_the_peers_why() -> None:
    def body(context: hpcomm.Context) -> None:
        window = context.window(8, signals=1)
        if context.rank == 1:
            with pytest.raises(ZeroDivisionError), context:
                raise ZeroDivisionError("seven by nought")
            raise Left
        with pytest.raises(hpcomm.PeerFailed, match="ZeroDivisionError: seven by nought") as raised:
            window.wait_signal(0, 1)
        assert raised.value.ranks == (1,)
        assert context.peers[1].state == "failed"
        context.close()
        raise Left

    run_threads(2, body)


def test_failed_init_leaves_nothing_open() -> None:
    class Broken:
        rank, size = 0, 2

        def allgather(self, data: bytes) -> list[bytes]:
            raise OSError("the wire is cut")

    gc.collect()
    before = open_files()
    with pytest.raises(OSError, match="wire") as raised:
        hpcomm.init(Broken())
    assert raised.tb is not None  # which keeps all alive that init had
    assert open_files() <= before + 1
    del raised
    gc.collect()
    assert open_files() == before


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def threads() -> set[str]:
    return set(os.listdir("/proc/self/task"))


def test_dropped_context_gives_all_back() -> None:
    hpcomm.init().close()
    gc.collect()
    files, before = open_files(), threads()
    for _ in range(5):
        context = hpcomm.init()
        window = context.window(1 << 16, signals=2)
        queue = context.receive_queue([], [], 8, buffers=2)
        lane = context.lane()
        assert open_files() > files
        del context, window, queue, lane
    gc.collect()
    # The kernel may list a thread that has ended a little longer, also one that is in before.
    end = time.monotonic() + 60
    while left := threads() - before:
        assert time.monotonic() < end, f"threads {left} are left"
    assert open_files() == files


def test_collective_lets_go_of_its_call_before_it_returns(monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread that makes the call for the main thread may end much later."""
    ended = threading.Event()

    class Lock:
        def __init__(self) -> None:
            self.lock = threading.Lock()
            self.acquire = self.lock.acquire

        def release(self) -> None:
            self.lock.release()
            ended.wait(30)

    class Call:
        def __call__(self, timeout: float) -> int:
            return 0

    main = threading.current_thread
    monkeypatch.setattr(handle, "threading", SimpleNamespace(current_thread=main, main_thread=main, Lock=Lock))
    call = Call()
    kept = weakref.ref(call)
    handle.collective(call, 1.0)
    del call
    lets_go = kept() is None
    ended.set()
    assert lets_go


def test_window_keeps_its_context_open() -> None:
    window = hpcomm.init().window(8, signals=1)
    gc.collect()
    window.put_signal(0, b"x", signal=0, value=3)
    assert window.wait_signal(0, 3) == 3


# ---- fork ----------------------------------------------------------------------------------------------------------


def test_forked_child_neither_uses_nor_ends_its_parents_context(alone: hpcomm.Context) -> None:
    window = alone.window(8, signals=1)
    answers: Any = multiprocessing.get_context("fork").Queue()

    def child() -> None:
        told = []
        for call in (alone.barrier, window.flush, lambda: window.put(0, b"x"), lambda: window.wait_signal(0, 1)):
            try:
                call()
            except hpcomm.InvalidArgument as error:
                told.append(str(error))
        alone.close()
        answers.put(told)

    process = multiprocessing.get_context("fork").Process(target=child)
    process.start()
    told = answers.get(timeout=30)
    process.join(30)
    assert process.exitcode == 0
    assert len(told) == 4
    assert all("fork" in sentence for sentence in told)
    alone.barrier()
    window.put_signal(0, b"parent", signal=0, value=1)
    assert window.wait_signal(0, 1) == 1


def test_forked_child_can_have_a_context_of_its_own(alone: hpcomm.Context) -> None:
    child = os.fork()
    if child == 0:
        status = 1
        try:
            with hpcomm.init() as context:
                context.window(8).put(0, b"mine")
                context.barrier()
            status = 0
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    alone.barrier()


# ---- Ctrl-C --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "wait",
    [
        lambda context: context.window(8, signals=1).wait_signal(0, 1),
        lambda context: context.wait_event(),
        lambda context: context.wait_event(60.0),
    ],
    ids=["wait_signal", "wait_event", "wait_event of its own timeout"],
)
def test_keyboard_interrupt_ends_a_wait(alone: hpcomm.Context, wait: Any) -> None:
    with interrupted(), pytest.raises(KeyboardInterrupt):
        wait(alone)
    alone.barrier()


@on_both
@pytest.mark.parametrize("call", ["recv", "send", "reduce", "acquire"])
def test_keyboard_interrupt_ends_a_wait_of_a_queue(call: str) -> None:
    """The main thread is rank 0; rank 1 is there and does nothing."""
    done = threading.Event()
    mine, other = thread_worlds(2)

    def rank_1() -> None:
        with hpcomm.init(other) as context:
            context.receive_queue([0], [0], 4, buffers=1)
            done.wait(60)

    thread = threading.Thread(target=rank_1)
    thread.start()
    try:
        with hpcomm.init(mine) as context:
            queue = context.receive_queue([1], [1], 4, buffers=1)
            own = queue.acquire(0)
            queue.send(1, own)
            waits: dict[str, Callable[[], object]] = {
                "recv": lambda: queue.recv(1),
                "send": lambda: queue.send(1, own),
                "reduce": lambda: queue.reduce(own),
                "acquire": lambda: queue.acquire(0),
            }
            with interrupted(), pytest.raises(KeyboardInterrupt):
                waits[call]()
            assert context.peers[1].state == "alive"
    finally:
        done.set()
        thread.join(30)


def interrupted() -> Any:
    """SIGINT for the main thread, once it waits in C."""

    class Interrupt(threading.Thread):
        def __enter__(self) -> None:
            self.start()

        def __exit__(self, *_: object) -> None:
            self.join()

        def run(self) -> None:
            wait_until_asleep(threading.main_thread())
            os.kill(os.getpid(), signal.SIGINT)

    return Interrupt()


SLEEPS = ("futex", "epoll", "ep_poll")  # in the kernel's function, by which a wait sleeps


def wait_until_asleep(thread: threading.Thread) -> None:
    """Until the kernel says that the thread sleeps, in C code that Python called."""
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        with open(f"/proc/self/task/{thread.native_id}/wchan", encoding="ascii") as file:
            slept_in = file.read()
        if any(call in slept_in for call in SLEEPS) and in_core(thread):
            return
    raise AssertionError("the thread did not sleep")


CALLERS = ("_core", "calls.py", "messages.py", "methods.py", "queue.py", "window.py")  # of Python, which call C


def in_core(thread: threading.Thread) -> bool:
    frame = sys._current_frames().get(thread.ident or 0)
    return frame is not None and not set(CALLERS).isdisjoint(frame.f_code.co_filename.split(os.sep)[-2:])


def interrupt_a_barrier() -> str:
    """Rank 0 alone waits in a barrier and is interrupted there."""
    world = mpi.world()
    assert world is not None
    context = hpcomm.init(world, timeout=30)
    window = context.window(8, signals=1)
    if world.rank == 1:
        with pytest.raises(hpcomm.PeerFailed) as raised:
            window.wait_signal(0, 1)
        return str(raised.value)
    try:
        with interrupted():
            context.barrier()
    except KeyboardInterrupt:
        context.abort("KeyboardInterrupt")
        return "interrupted"
    return "nothing"


@on_both
def test_keyboard_interrupt_ends_a_collective() -> None:
    values = mpi.spawn(2, interrupt_a_barrier).values
    assert values[0] == "interrupted"
    assert "KeyboardInterrupt" in values[1]


# ---- the GIL -------------------------------------------------------------------------------------------------------


def test_other_threads_run_while_one_waits(alone: hpcomm.Context) -> None:
    """The signal is put by a thread that can run only if the waiting one has let go of the GIL."""
    window = alone.window(8, signals=1)

    def put() -> None:
        wait_until_asleep(threading.main_thread())
        window.put_signal(0, b"x", signal=0, value=9)

    thread = threading.Thread(target=put)
    thread.start()
    assert window.wait_signal(0, 9, timeout=20) == 9
    thread.join()


# ---- the end of a process, in any order ------------------------------------------------------------------------------

kept: list[Any] = []


def end(how: str) -> str:
    """A rank whose context is never closed by hand. Rank 0 waits for it and tells what it learns."""
    context = hpcomm.init(mpi.world(), timeout=20)
    window = context.window(1 << 12, signals=1)
    queue = context.receive_queue([1 - context.rank], [1 - context.rank], 16, buffers=2)
    kept.extend([queue, window, context, window.array, queue.buffers])
    context.barrier()
    if context.rank == 0:
        with pytest.raises(hpcomm.PeerFailed) as raised:
            window.wait_signal(0, 1, peer=1)
        return str(raised.value)
    if how == "raise":
        raise LookupError("lost my way")
    if how == "drop":
        kept.clear()
    if how == "exit":
        sys.exit(3)
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "thread":
        threading.Thread(target=lambda: window.wait_signal(0, 1), daemon=True).start()
    return "ended"


@pytest.mark.some(4)
@on_both
@pytest.mark.parametrize(
    ("how", "code", "told"),
    [
        ("return", 0, "has ended"),
        ("drop", 0, "has ended"),
        ("thread", 0, "has ended"),
        ("exit", 3, "has ended"),
        ("raise", 1, "LookupError: lost my way"),
        ("kill", -signal.SIGKILL, "died"),
    ],
)
def test_end_of_a_process_is_told_to_its_peers(how: str, code: int, told: str) -> None:
    ended = mpi.spawn(2, end, how, check=False, taken_apart=True)
    assert ended.codes == [0, code], ended.err
    assert told in ended.values[0]
    assert "Fatal" not in ended.err


def outlive_mpi() -> list[float]:
    """MPI is finalized first; the context goes on, and is ended by the interpreter."""
    from mpi4py import MPI  # noqa: PLC0415

    context = hpcomm.init(MPI.COMM_WORLD)
    window = context.window((4,), "float64", signals=context.size)
    MPI.Finalize()
    right = (context.rank + 1) % context.size
    window.put_signal(right, np.full(4, context.rank, "float64"), signal=context.rank, value=1)
    window.wait_signal((context.rank - 1) % context.size, 1)
    context.barrier()
    kept.extend([context, window])
    return list(window.array)


@pytest.mark.some(1)
@on_both
def test_context_outlives_mpi() -> None:
    assert mpi.run(3, outlive_mpi) == [[2.0] * 4, [0.0] * 4, [1.0] * 4]


def test_waits_are_cut_into_slices() -> None:
    """A wait looks for signals ten times a second, and tells the whole timeout in the end."""
    slices: list[float] = []

    def call(seconds: float) -> int:
        slices.append(seconds)
        return _core.TIMED_OUT

    with pytest.raises(hpcomm.Timeout):
        _core.wait(call, 0.0)
    assert slices == [0.0]
    with pytest.raises(hpcomm.Timeout):
        _core.wait(call, 1e-3)
    assert all(0 < seconds <= 1e-3 for seconds in slices[1:])

    done = iter([_core.TIMED_OUT, _core.TIMED_OUT, 0])
    _core.wait(lambda seconds: slices.append(seconds) or next(done), 100.0)  # type: ignore[func-returns-value]
    assert slices[-3:] == [_core.SLICE] * 3
