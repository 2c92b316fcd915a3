"""Messages between two ranks: every dtype and size, their order, any sender and tag, both directions at once, beside
collectives; messages that do not fit; ranks that die or do not come; arguments that are refused."""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import mpi
import numpy as np
import pytest
from conftest import is_gone_soon, on_both, run_threads, thread_worlds
from test_collectives import DTYPES, KILLED, LARGE, inputs, noise, same
from test_context import interrupted

import hpcomm
from hpcomm.collective import Work, messages

Made = Callable[[hpcomm.Context], object]
LONG = 3_000_001  # bytes: a message that waits for its receiver


def numbers(n: int, start: float = 0) -> Any:
    return np.arange(start, start + n, dtype=np.float64)


# ---- every message ---------------------------------------------------------------------------------------------------


def around(ctx: hpcomm.Context) -> None:
    """Each rank sends to the next one, and receives from the one before."""
    n, rank = ctx.size, ctx.rank
    for name in DTYPES:
        for size in (0, 1, 7, 1000, LARGE):
            parts = inputs(n, size, name, 8)
            out = noise(size, name)
            work = ctx.send_nb(parts[rank], (rank + 1) % n, tag=size)
            assert ctx.recv(out.array, (rank - 1) % n, size) == (rank - 1) % n
            assert work.wait() is None
            out.ends_with(parts[rank - 1], name, size)


def order(ctx: hpcomm.Context) -> None:
    """Messages with one tag come in the order of the sends, short and long ones; other tags may be taken first."""
    n, rank = ctx.size, ctx.rank
    lengths = [1, LONG // 8, 3, 0, 20_000, 2] * 3
    works = [
        ctx.send_nb(numbers(length, i), (rank + 1) % n, tag) for tag in (5, 0, 7) for i, length in enumerate(lengths)
    ]
    for tag in (7, 5, 0):
        for i, length in enumerate(lengths):
            out = np.full(length, np.nan)
            ctx.recv(out, (rank - 1) % n, tag)
            same(out, numbers(length, i), "order", tag, i)
    for work in works:
        work.wait()


def any_sender(ctx: hpcomm.Context) -> None:
    """Rank 0 takes what comes, from any rank and with any tag; those of one rank come in their order."""
    many = 20
    if ctx.rank != 0:
        for i in range(many):
            ctx.send(np.array([ctx.rank, i]), 0, i % 3)
    else:
        came = [0] * ctx.size
        for i in range(many * (ctx.size - 1)):
            out = np.empty(2, np.int64)
            source = ctx.recv(out, None, None) if i % 2 else ctx.recv_nb(out, tag=None).wait()
            assert out.tolist() == [source, came[source]]
            came[source] += 1
        assert came == [0, *[many] * (ctx.size - 1)]
    ctx.barrier()
    if ctx.rank != 0:
        ctx.send(numbers(3, ctx.rank), 0, ctx.rank)
    else:
        for tag in range(ctx.size - 1, 0, -1):  # any sender, one tag
            assert ctx.recv(np.empty(3), tag=tag) == tag
    ctx.barrier()
    if ctx.rank != 0:
        ctx.send(numbers(1, 10), 0, 10)
        ctx.send(numbers(1, 11), 0, 11)
    else:
        for source in range(ctx.size - 1, 0, -1):  # one sender, any tag
            for tag in (10, 11):
                got = np.empty(1)
                assert ctx.recv(got, source, None) == source
                assert got[0] == tag


def both_directions(ctx: hpcomm.Context) -> None:
    """All pairs at once, both ways."""
    n, rank = ctx.size, ctx.rank
    for size in (1, 5000, LONG // 8):
        outs = np.full((n, size), np.nan)
        recvs = [ctx.recv_nb(outs[peer], peer, tag=3) for peer in range(n)]
        sends = [ctx.send_nb(numbers(size, rank), peer, tag=3) for peer in range(n)]
        assert [work.wait() for work in recvs] == list(range(n))
        for work in sends:
            while not work.test():
                pass
        for peer in range(n):
            same(outs[peer], numbers(size, peer), "both directions", peer, size)


def beside_collectives(ctx: hpcomm.Context) -> None:
    """A message may stay open across collectives, and be received before or behind them."""
    n, rank = ctx.size, ctx.rank
    for size in (2, LONG // 8):
        out, early = np.full(size, np.nan), np.full(size, np.nan)
        recv = ctx.recv_nb(early, (rank - 1) % n, 1)
        sends = [ctx.send_nb(numbers(size, rank + tag), (rank + 1) % n, tag) for tag in (2, 1)]
        assert int(ctx.allreduce(rank)) == n * (n - 1) // 2
        total = ctx.allreduce_nb(np.full(LARGE, 1.0))
        ctx.barrier()
        assert ctx.recv(out, (rank - 1) % n, 2) == (rank - 1) % n
        assert total.wait()[-1] == n
        recv.wait()
        same(out, numbers(size, (rank - 1) % n + 2))
        same(early, numbers(size, (rank - 1) % n + 1))
        for work in sends:
            work.wait()


def to_oneself(ctx: hpcomm.Context) -> None:
    ctx.send(numbers(5), ctx.rank)
    out = np.empty(5)
    assert ctx.recv(out, ctx.rank) == ctx.rank
    same(out, numbers(5))
    out = np.empty(LONG // 8)
    work = ctx.recv_nb(out)
    ctx.send(numbers(LONG // 8), ctx.rank)
    assert work.wait() == ctx.rank
    same(out, numbers(LONG // 8))


def objects(ctx: hpcomm.Context) -> None:
    n, rank = ctx.size, ctx.rank
    before, after = (rank - 1) % n, (rank + 1) % n
    for value in ({"rank": rank}, None, [1.5] * rank, b""):
        ctx.send_object(value, after, 4)
    ctx.send_object("last", after)
    assert ctx.recv_object(before) == ("last", before)
    assert ctx.recv_object(None, 4) == ({"rank": before}, before)
    assert ctx.recv_object(before, None) == (None, before)
    assert ctx.recv_object(None, None) == ([1.5] * before, before)
    assert ctx.recv_object(before, 4) == (b"", before)
    if n > 1 and rank == 0:
        ctx.send_object("x" * LONG, 1)
    if rank == 1:
        assert ctx.recv_object() == ("x" * LONG, 0)


def arrays(ctx: hpcomm.Context) -> None:
    """Any shape, a number, and any object with the buffer protocol."""
    ctx.send(numbers(6).reshape(2, 3), ctx.rank)
    out = np.empty((3, 2))
    ctx.recv(out)
    same(out, numbers(6).reshape(3, 2))
    ctx.send(2.5, ctx.rank)
    number = np.empty(())
    ctx.recv(number)
    assert number == 2.5
    data = bytearray(4)
    ctx.send(b"abcd", ctx.rank)
    ctx.recv(data)
    assert data == b"abcd"
    read_only = numbers(2)
    read_only.flags.writeable = False
    ctx.send(read_only, ctx.rank)
    ctx.recv(np.empty(2))


EVERY = (around, order, any_sender, both_directions, beside_collectives, to_oneself, objects, arrays)


def every_case() -> None:
    with hpcomm.init(mpi.world()) as ctx:
        for cases in EVERY:
            cases(ctx)
            ctx.barrier()


@pytest.mark.some(3)
@on_both
@pytest.mark.parametrize("n", [2, 3, 5])
def test_every_message(n: int) -> None:
    mpi.spawn(n, every_case, timeout=120)


def test_ranks_that_are_threads(transport: dict[str, Any]) -> None:
    def body(ctx: hpcomm.Context) -> None:
        for cases in EVERY:
            cases(ctx)
            ctx.barrier()

    run_threads(3, body, **transport)


def test_a_rank_alone(alone: hpcomm.Context) -> None:
    for cases in EVERY:
        cases(alone)


# ---- messages that do not fit ----------------------------------------------------------------------------------------

MISFITS: list[tuple[Any, Any, tuple[str, ...]]] = [
    (np.ones(3, np.float32), np.empty(4, np.float32), ("3 float32", "4 float32")),
    (np.ones(4, np.float32), np.empty(4, np.int32), ("4 float32", "4 int32")),
    (np.ones(0), np.empty(1), ("0 float64", "1 float64")),
    (np.ones(LONG), np.empty(LONG - 1), (f"{LONG} float64", f"{LONG - 1} float64")),
    (np.ones(5), np.empty(LONG), ("5 float64", f"{LONG} float64")),
]


@pytest.mark.parametrize("started", [False, True])
def test_a_message_that_does_not_fit_is_named_and_dropped(started: bool) -> None:
    def body(ctx: hpcomm.Context) -> None:
        for sent, out, words in MISFITS:
            if ctx.rank == 1:
                work = ctx.send_nb(sent, 0, 6)
                ctx.send(numbers(2, 8), 0, 6)
                ctx.barrier()
                is_over = sent.size < LONG  # a short one is on its way
                with nullcontext() if is_over else pytest.raises(hpcomm.ConfigError, match="rank 1 sends"):
                    work.wait()
                continue
            with pytest.raises(hpcomm.ConfigError) as raised:
                ctx.recv_nb(out, 1, 6).wait() if started else ctx.recv(out, 1, 6)
            for word in (*words, "rank 0", "rank 1", "tag 6"):
                assert word in str(raised.value), (word, str(raised.value))
            after = np.empty(2)
            ctx.recv(after, 1, 6)  # the next message
            same(after, numbers(2, 8))
            ctx.barrier()
        assert ctx.allreduce(1).item() == 2

    run_threads(2, body)


# ---- ranks that die or do not come -----------------------------------------------------------------------------------


def dies() -> bool:
    """Rank 2 dies; the others go on in a new context."""
    ctx = hpcomm.init(mpi.world(), timeout=30)
    pid = ctx.peers[2].pid
    if ctx.rank == 2:
        ctx.send(numbers(1), 0, 9)
    ctx.barrier()
    if ctx.rank == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    assert is_gone_soon(pid)
    out = np.empty(1)
    if ctx.rank == 0:
        assert ctx.recv(out, 2, 9) == 2  # it had come before
    calls: list[Callable[[], object]] = [
        lambda: ctx.recv(out, 2),
        lambda: ctx.recv_nb(out, 2).wait(),
        lambda: ctx.send(np.ones(LONG), 2),
        lambda: ctx.send_nb(np.ones(LONG), 2).wait(),
        lambda: ctx.recv_object(2),
    ]
    for call in calls:
        with pytest.raises(hpcomm.PeerFailed) as raised:
            call()
        assert raised.value.ranks == (2,), raised.value
    old, ctx = ctx, ctx.shrink()
    old.close()
    other = 1 - ctx.rank
    work = ctx.send_nb(numbers(1, ctx.rank), other)
    assert ctx.recv(out, other) == other
    assert out[0] == other
    work.wait()
    ctx.barrier()
    ctx.close()
    return True


@on_both
def test_a_death_is_told_to_those_who_wait_for_the_rank() -> None:
    ended = mpi.spawn(3, dies, check=False)
    assert ended.codes == [0, 0, KILLED], ended.err
    assert ended.values[:2] == [True, True]


def test_a_message_that_does_not_come_times_out() -> None:
    """The error names the sender, and the recv may be made again."""
    missed = threading.Event()

    def body(ctx: hpcomm.Context) -> None:
        out = np.empty(4)
        if ctx.rank != 0:
            assert missed.wait(20)
            if ctx.rank == 1:
                ctx.send(numbers(4), 0)
                ctx.send(numbers(4, 1), 0)
            return
        with pytest.raises(hpcomm.Timeout, match="recv") as raised:
            ctx.recv(out, 1, timeout=0.15)
        assert raised.value.waiting_for == (1,)
        with pytest.raises(hpcomm.Timeout) as raised:
            ctx.recv(out, timeout=0)
        assert raised.value.waiting_for == (1, 2)
        work = ctx.recv_nb(out, 1)
        with pytest.raises(hpcomm.Timeout):
            work.wait(timeout=0.01)
        assert not work.test()
        missed.set()
        assert work.wait() == 1
        same(out, numbers(4))
        ctx.recv(out, 1)
        same(out, numbers(4, 1))

    run_threads(3, body)


@pytest.mark.parametrize("started", [False, True])
def test_keyboard_interrupt_ends_a_recv(started: bool) -> None:
    """The context goes on: the recv is withdrawn."""
    mine, other = thread_worlds(2)
    done, seen = threading.Event(), []

    def peer() -> None:
        with hpcomm.init(other) as ctx:
            seen.append(done.wait(15))
            ctx.send(numbers(3), 0)

    thread = threading.Thread(target=peer)
    thread.start()
    try:
        with hpcomm.init(mine) as ctx:
            lost = np.zeros(3)
            with interrupted(), pytest.raises(KeyboardInterrupt):
                ctx.recv_nb(lost, 0).wait() if started else ctx.recv(lost, 1)
            done.set()
            out = np.empty(3)
            assert ctx.recv(out) == 1
            same(out, numbers(3))
            assert not lost.any()
    finally:
        done.set()
        thread.join(30)
    assert seen == [True]  # the interrupt came before the peer lost its patience


# ---- what is refused -------------------------------------------------------------------------------------------------


def wrong() -> Iterator[tuple[Made, str]]:
    """Calls of rank 0 of two, with a part of the error."""
    four, read_only = np.ones(4), np.ones(4)
    read_only.flags.writeable = False
    yield lambda c: c.send(four, 2), "send: to is 2: must be from 0 to 1"
    yield lambda c: c.send(four, -1), "send: to is -1: must be from 0 to 1"
    yield lambda c: c.send(four, 2**32), "send: to is 4294967296: must be from 0 to 1"
    yield lambda c: c.send(four, None), "send: to is None: must be a rank$"  # type: ignore[arg-type]
    yield lambda c: c.send(four, 1, -1), "send: tag is -1: must be from 0 to 2147483647"
    yield lambda c: c.send(four, 1, 2**31), "send: tag is 2147483648: must be from 0 to 2147483647"
    yield lambda c: c.send(four, 1, None), "send: tag is None: must be an int$"  # type: ignore[arg-type]
    yield lambda c: c.send(four, None, 0), "send: to is None: must be a rank$"  # type: ignore[arg-type]
    yield lambda c: c.send(four, 1, "a"), "send: tag is 'a': must be an int"  # type: ignore[arg-type]
    yield lambda c: c.recv(four, 7), "recv: source is 7: must be from 0 to 1"
    yield lambda c: c.recv(four, -1), "recv: source is -1: must be from 0 to 1"
    yield lambda c: c.recv(four, 1.0), "recv: source is 1.0: must be a rank, or None for any"  # type: ignore[arg-type]
    yield lambda c: c.recv(four, 1, -1), "recv: tag is -1: must be from 0"
    yield lambda c: c.recv(four, 1, 0.5), "recv: tag is 0.5: must be an int, or None for any"  # type: ignore[arg-type]
    yield lambda c: c.recv(read_only), "recv: out is read-only"
    yield lambda c: c.recv(3.0), "recv: out is 3.0: must be an array"
    yield lambda c: c.recv(np.ones((4, 4))[:, 1]), "out has shape .* not C-contiguous"
    yield lambda c: c.send(np.ones((4, 4))[:, 1], 1), "array has shape .* not C-contiguous"
    yield lambda c: c.send([1.0], 1), "send: array is a list"
    yield lambda c: c.send(np.array([None]), 1), "dtype object"
    yield lambda c: c.send(four.astype(">f8"), 1), "dtype >f8"
    yield lambda c: c.send(np.zeros(3, "V0"), 1), "dtype"
    yield lambda c: c.send(four, 1, timeout=-1), "timeout is -1: must be"
    yield lambda c: c.recv(four, 1, timeout="x"), "timeout is 'x': must be"  # type: ignore[arg-type]
    yield lambda c: c.send_nb(four, 9), "send_nb: to is 9"
    yield lambda c: c.recv_nb(read_only), "recv_nb: out is read-only"
    yield lambda c: c.send_object(1, 5), "to is 5"
    yield lambda c: c.recv_object(5), "recv_object: source is 5"


def test_what_is_wrong_is_refused_before_anything_is_sent() -> None:
    def body(ctx: hpcomm.Context) -> None:
        if ctx.rank == 0:
            for call, part in wrong():
                with pytest.raises(hpcomm.InvalidArgument, match=part):
                    call(ctx)
            with pytest.raises(AttributeError):  # pickle's own: a function within this one
                ctx.send_object(body, 1)
            ctx.send(numbers(1, 42), 1)
        else:
            out = np.empty(1)
            assert ctx.recv(out, None, None) == 0
            assert out[0] == 42

    run_threads(2, body)


def test_a_closed_context_makes_no_calls() -> None:
    ctx = hpcomm.init()
    ctx.close()
    calls: list[Made] = [
        lambda c: c.send(np.ones(1), 0),
        lambda c: c.recv(np.ones(1), timeout=0),
        lambda c: c.send_nb(np.ones(1), 0),
        lambda c: c.recv_object(timeout=0),
    ]
    for call in calls:
        with pytest.raises(hpcomm.InvalidArgument):
            call(ctx)


def test_memory_of_a_started_call_is_refused() -> None:
    def body(ctx: hpcomm.Context) -> None:
        array, other = np.ones(1000), 1 - ctx.rank
        ctx.allreduce(1)
        recv = ctx.recv_nb(array[:500], other)
        for call in (
            lambda: ctx.recv(array[499:], other, 1),
            lambda: ctx.send(array, other),
            lambda: ctx.recv_nb(array[:1], other, 1),
            lambda: ctx.allreduce(array, out=array),
            lambda: ctx.allreduce_nb(array),
            lambda: ctx.broadcast(array[3:9]),
        ):
            with pytest.raises(hpcomm.InvalidArgument, match="its memory overlaps that of a started recv: wait for"):
                call()
        ctx.barrier()
        sends = [ctx.send_nb(array[500:], other) for _ in range(3)]  # which only read it
        assert recv.wait() == other
        more = [ctx.recv_nb(np.empty(500), other) for _ in range(2)]
        for work in (*more, *sends):
            work.wait()
        ctx.allreduce(array, out=array)  # no call is left that uses it

    run_threads(2, body)


def test_memory_of_a_long_send_may_be_read_and_not_written() -> None:
    refused = threading.Barrier(2)

    def body(ctx: hpcomm.Context) -> None:
        if ctx.rank == 1:
            refused.wait(20)
            ctx.recv(np.empty(LONG), 0)
            ctx.recv(np.empty(LONG), 0)
            return
        array = np.ones(LONG)
        works = [ctx.send_nb(array, 1), ctx.send_nb(array, 1)]
        with pytest.raises(hpcomm.InvalidArgument, match="recv: its memory overlaps that of a started send"):
            ctx.recv(array[7:9], 1)
        refused.wait(20)
        for work in works:
            work.wait()
        ctx.send(numbers(2, 5), 0)
        ctx.recv(array[7:9], 0)
        assert array[7] == 5

    run_threads(2, body)


# ---- the short way ---------------------------------------------------------------------------------------------------


def test_plain_messages_take_the_short_way(alone: hpcomm.Context, monkeypatch: pytest.MonkeyPatch) -> None:
    took: list[str] = []
    longer = messages.Messages._run_message

    def record(context: Any, call: Any, timeout: Any) -> Any:
        took.append(call.name)
        return longer(context, call, timeout)

    monkeypatch.setattr(messages.Messages, "_run_message", record)
    for name in DTYPES:
        for size in (0, 1, 9):
            array = inputs(1, size, name, 1)[0]
            alone.send(array, 0)
            alone.recv(np.empty_like(array), 0)
            alone.send(array, 0, 3, timeout=5)
            alone.recv(np.empty_like(array), None, None, timeout=5)
            assert bool(took) == (name == "bfloat16"), (name, size, took)  # NumPy exports no buffers of bfloat16
            took.clear()
    work = alone.recv_nb(np.empty(1), 0, 5)
    alone.send(np.ones(1), 0, 4)
    assert took == ["send"]  # memory is compared
    alone.recv(np.empty(1), 0, 4)
    alone.send(np.ones(1), 0, 5)
    work.wait()
    took.clear()
    alone.send(np.ones(1), 0)
    alone.recv(np.empty(1), 0)
    assert took == []


def test_works_that_are_dropped_are_forgotten(alone: hpcomm.Context) -> None:
    for i in range(200):
        alone.send_nb(np.full(3, float(i)), 0)
        alone.recv_nb(np.empty(3), 0)
    assert len(alone._messages) <= 40
    alone.send(np.ones(3), 0)
    assert len(alone._messages) == 0
    alone.recv(np.empty(3), 0)


def test_memory_of_an_ended_call_is_free(alone: hpcomm.Context) -> None:
    """A started recv has ended when its message is there, even if no test or wait has said so."""
    out = np.zeros(3)
    work = alone.recv_nb(out, 0)
    alone.send(numbers(3, 1), 0)
    again = alone.recv_nb(out, 0, 1)
    alone.send(numbers(3, 5), 0, 1)
    assert work.wait() == again.wait() == 0
    assert out.tolist() == [5, 6, 7]


def test_a_work_of_a_message(alone: hpcomm.Context) -> None:
    out = np.zeros(2)
    recv: Work = alone.recv_nb(out, 0)
    assert (recv.name, recv.test()) == ("recv", False)
    assert "going on" in repr(recv)
    send = alone.send_nb(numbers(2, 1), 0)
    assert send.wait(timeout=5) is None
    assert recv.wait() == recv.wait() == 0
    assert out.tolist() == [1, 2]
    assert "recv, done" in repr(recv)


def test_torch_tensors_are_arrays(alone: hpcomm.Context) -> None:
    torch = pytest.importorskip("torch")
    tensor = torch.zeros(6)
    alone.send(torch.arange(6.0), 0)
    alone.recv(tensor, 0)
    assert tensor.tolist() == [0, 1, 2, 3, 4, 5]
