"""Receive queues: NOTIFY-ACK over every transport, the weighted sum, registered buffers, and what is refused."""

import array
import threading
from typing import Any

import mpi
import numpy as np
import pytest
from conftest import Left, on_both, run_threads
from hypothesis import given, settings
from hypothesis import strategies as st
from test_window import Exported

import hpcomm


def ring(context: hpcomm.Context, **options: Any) -> hpcomm.Queue:
    """Each rank receives from its left and sends to its right."""
    left, right = (context.rank - 1) % context.size, (context.rank + 1) % context.size
    return context.receive_queue([left], [right], **{"shape": (64,), **options})


# ---- updates -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("depth", "buffers"), [(1, 0), (3, 0), (1, 2), (2, 4)])
def test_updates_arrive_whole_and_in_order(transport: dict[str, Any], depth: int, buffers: int) -> None:
    def body(context: hpcomm.Context) -> None:
        queue = ring(context, dtype="int64", depth=depth, buffers=buffers)
        left, right = queue.in_peers[0], queue.out_peers[0]
        for version in range(1, 30):
            update = queue.acquire() if buffers else np.empty(64, "int64")
            update[:] = 1000 * context.rank + version
            queue.send(right, update)
            if not buffers:
                update[:] = -1  # free to reuse on return
            came = queue.recv(left)
            assert came.shape == (64,)
            assert set(came) == {1000 * left + version}
            header, footer = queue.versions(left)
            assert header == footer > 0
            queue.ack(left)
        stats = queue.stats()
        assert (stats.sent, stats.received) == (29, 29)
        assert stats.bytes_sent == stats.bytes_received == 29 * 512
        assert min(stats.wait_send, stats.wait_recv) >= 0

    run_threads(3, body, **transport)


def test_update_is_read_only_and_in_place(transport: dict[str, Any]) -> None:
    def body(context: hpcomm.Context) -> None:
        queue = ring(context, depth=1)
        left, right = queue.in_peers[0], queue.out_peers[0]
        addresses, views = set(), []
        for _ in range(3):
            queue.send(right, np.full(64, 5, np.float32))
            came = queue.recv(left)
            addresses.add(came.ctypes.data)
            with pytest.raises(ValueError, match="read-only"):
                came[0] = 1
            with pytest.raises(ValueError, match="WRITEABLE"):
                came.flags.writeable = True
            views.append(came)
            queue.ack(left)
        assert len(addresses) == 1  # the one slot
        assert len({id(view) for view in views}) == 3  # whose views are each their receiver's own

    run_threads(2, body, **transport)


@on_both
def test_update_keeps_its_memory_mapped() -> None:
    def body(context: hpcomm.Context) -> None:
        queue = ring(context, shape=(1 << 16,), buffers=2)
        queue.acquire()[:] = context.rank + 1
        queue.send(queue.out_peers[0], queue.buffers[0])
        kept.append((queue.in_peers[0] + 1, queue.recv(queue.in_peers[0])))
        context.barrier()

    kept: list[Any] = []
    run_threads(2, body)
    for value, update in kept:
        assert set(update) == {value}


@on_both
def test_depth_bounds_what_is_under_way() -> None:
    """A sender waits for the ACK of the update that is depth updates old, and for nothing else."""

    def body(context: hpcomm.Context) -> None:
        queue = ring(context, depth=2)
        left, right = queue.in_peers[0], queue.out_peers[0]
        update = np.zeros(64, np.float32)
        queue.send(right, update)
        queue.send(right, update)
        with pytest.raises(hpcomm.Timeout, match="send") as raised:
            queue.send(right, update, timeout=0.02)
        assert raised.value.waiting_for == (right,)
        context.barrier()
        queue.recv(left)
        queue.recv(left)
        with pytest.raises(hpcomm.InvalidArgument, match="as many as the queue is deep"):
            queue.recv(left)
        queue.ack(left)
        context.barrier()
        queue.send(right, update, timeout=5)
        with pytest.raises(hpcomm.Timeout):
            queue.send(right, update, timeout=0.02)
        assert queue.stats().wait_send > 0

    run_threads(2, body)


@on_both
def test_nothing_to_receive_times_out() -> None:
    def body(context: hpcomm.Context) -> None:
        queue = ring(context)
        for wait in (
            lambda: queue.recv(queue.in_peers[0], 0.02),
            lambda: queue.reduce(np.zeros(64, np.float32), timeout=0.02),
        ):
            with pytest.raises(hpcomm.Timeout) as raised:
                wait()
            assert raised.value.waiting_for == queue.in_peers
        context.barrier()
        # a wait that timed out has taken nothing
        queue.send(queue.out_peers[0], np.ones(64, np.float32))
        assert queue.reduce(np.ones(64, np.float32)).sum() == 64

    run_threads(2, body)


@on_both
def test_buffer_is_free_when_every_peer_has_acknowledged() -> None:
    def body(context: hpcomm.Context) -> None:
        others = [(context.rank + 1) % 3, (context.rank + 2) % 3]
        queue = context.receive_queue(others, others, (8,), buffers=2, depth=2)
        first = queue.acquire(0)
        first[:] = context.rank
        queue.send_all(first)
        for peer in others:
            assert set(queue.recv(peer)) == {peer}
        context.barrier()
        queue.ack(others[0])
        context.barrier()
        with pytest.raises(hpcomm.Timeout, match="acquire") as raised:
            queue.acquire(0, timeout=0.02)
        assert raised.value.waiting_for == (others[0],)
        assert queue.acquire(1, timeout=0) is queue.buffers[1]
        context.barrier()
        queue.ack(others[1])
        context.barrier()
        assert queue.acquire(0, timeout=5) is queue.buffers[0]

    run_threads(3, body)


def test_acquire_goes_round_the_buffers(alone: hpcomm.Context) -> None:
    queue = alone.receive_queue([], [], (4,), buffers=3)
    taken = [queue.acquire() for _ in range(4)]
    assert [next(i for i, b in enumerate(queue.buffers) if b is t) for t in taken] == [0, 1, 2, 0]
    assert len({buffer.ctypes.data for buffer in queue.buffers}) == 3


# ---- reduce --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("buffers", [0, 2])
def test_reduce_is_the_mean(transport: dict[str, Any], dtype: str, buffers: int) -> None:
    def body(context: hpcomm.Context) -> None:
        others = [peer for peer in range(4) if peer != context.rank]
        queue = context.receive_queue(others, others, (3, 17), dtype, buffers=buffers)
        total: Any = None
        for step in range(5):
            all_of_them = [np.random.default_rng([step, rank]).random((3, 17)).astype(dtype) for rank in range(4)]
            own = all_of_them[context.rank]
            if buffers:
                sent = queue.acquire()
                sent[:] = own
                queue.send_all(sent)
            else:
                queue.send_all(own)
            total = queue.reduce(own, out=total)
            np.testing.assert_allclose(total, np.mean(all_of_them, axis=0), rtol=1e-6)

    run_threads(4, body, **transport)


@settings(max_examples=25)
@given(
    weights=st.lists(st.floats(-4, 4, width=32), min_size=3, max_size=3),
    shape=st.lists(st.integers(0, 5), min_size=0, max_size=3),
    seed=st.integers(0, 2**32),
)
def test_reduce_sums_in_the_order_of_its_peers(weights: list[float], shape: list[int], seed: int) -> None:
    """The very bits of ((w0*own + w1*first) + w2*second), each product and sum rounded to float32."""
    updates = [np.random.default_rng([seed, rank]).standard_normal(shape).astype(np.float32) for rank in range(3)]
    w = [np.float32(weight) for weight in weights]

    def body(context: hpcomm.Context) -> None:
        others = [(context.rank + 1) % 3, (context.rank + 2) % 3]
        queue = context.receive_queue(others, others, shape)
        own = updates[context.rank].copy()
        queue.send_all(own)
        want = (w[0] * own + w[1] * updates[others[0]]) + w[2] * updates[others[1]]
        assert queue.reduce(own, out=own, weights=weights) is own
        np.testing.assert_array_equal(own, want)

    run_threads(3, body)


def test_reduce_of_no_one_but_oneself(alone: hpcomm.Context) -> None:
    queue = alone.receive_queue([], [], (4,))
    own = np.arange(4, dtype=np.float32)
    assert list(queue.reduce(own)) == [0, 1, 2, 3]
    assert list(queue.reduce(own, weights=[2])) == [0, 2, 4, 6]


def test_update_of_other_libraries(alone: hpcomm.Context) -> None:
    queue = alone.receive_queue([], [], (3,))
    assert list(queue.reduce(array.array("f", [1, 2, 3]))) == [1, 2, 3]
    out = array.array("f", [0, 0, 0])
    assert queue.reduce(Exported(np.array([4, 5, 6], np.float32)), out=out) is out
    assert list(out) == [4, 5, 6]


def test_dtype_that_cannot_be_folded(alone: hpcomm.Context) -> None:
    queue = alone.receive_queue([], [], (4,), "int32")
    with pytest.raises(hpcomm.NotSupported, match="int32"):
        queue.reduce(np.zeros(4, np.int32))


# ---- what is refused -----------------------------------------------------------------------------------------------

F32 = np.float32


def read_only() -> Any:
    array_ = np.zeros((2, 3), F32)
    array_.flags.writeable = False
    return array_


REFUSED = {
    "no out-peer": (lambda q: q.send(0, np.zeros((2, 3), F32)), r"rank 0 is not among"),
    "peer no C int": (lambda q: q.send(2**40, np.zeros((2, 3), F32)), r"peer is"),
    "no in-peer": (lambda q: q.recv(0), r"rank 0 is not among"),
    "ack of nothing": (lambda q: q.ack(0), r"peer is 0"),
    "versions of nobody": (lambda q: q.versions(-1), r"peer is -1"),
    "another shape": (lambda q: q.reduce(np.zeros((3, 2), F32)), r"own is float32 \(3, 2\): must be float32 \(2, 3\)"),
    "another dtype": (lambda q: q.reduce(np.zeros((2, 3))), r"own is float64 \(2, 3\): must be float32"),
    "columns": (lambda q: q.reduce(np.zeros((3, 2), F32).T), r"not C-contiguous"),
    "objects": (lambda q: q.reduce(np.zeros((2, 3), object)), r"dtype object"),
    "text": (lambda q: q.reduce("six"), r"a str has neither"),
    "out of another shape": (lambda q: q.reduce(np.zeros((2, 3), F32), out=np.zeros(6, F32)), r"out is float32 \(6,\)"),
    "out read-only": (lambda q: q.reduce(np.zeros((2, 3), F32), out=read_only()), r"out is read-only"),
    "weights too few": (lambda q: q.reduce(np.zeros((2, 3), F32), weights=[]), r"must be 1 finite"),
    "weights too many": (lambda q: q.reduce(np.zeros((2, 3), F32), weights=[1, 2]), r"must be 1 finite"),
    "weights not finite": (lambda q: q.reduce(np.zeros((2, 3), F32), weights=[np.nan]), r"must be 1 finite"),
    "buffer too large": (lambda q: q.acquire(2), r"buffer is 2: this queue has 2"),
    "buffer negative": (lambda q: q.acquire(-1), r"buffer is -1"),
    "timeout negative": (lambda q: q.acquire(timeout=-1), r"timeout is -1"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(alone: hpcomm.Context, case: str) -> None:
    call, told = REFUSED[case]
    queue = alone.receive_queue([], [], (2, 3), buffers=2)
    with pytest.raises(hpcomm.InvalidArgument, match=told):
        call(queue)  # type: ignore[no-untyped-call]


def test_queue_without_buffers_has_none_to_acquire(alone: hpcomm.Context) -> None:
    with pytest.raises(hpcomm.InvalidArgument, match="this queue has 0"):
        alone.receive_queue([], [], 4).acquire()


@on_both
def test_queue_with_buffers_sends_nothing_else() -> None:
    def body(context: hpcomm.Context) -> None:
        queue = ring(context, buffers=1)
        with pytest.raises(hpcomm.InvalidArgument, match="not one of the queue's 1 registered buffers"):
            queue.send(queue.out_peers[0], np.zeros(64, np.float32))

    run_threads(2, body)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"in_peers": [0]}, "rank 0 has itself in in_peers"),
        ({"out_peers": [1]}, "rank 1 is out of range"),
        ({"out_peers": 3}, "sequence of ranks"),
        ({"in_peers": [0.5]}, "sequence of ranks"),
        ({"shape": (-1,)}, "negative"),
        ({"dtype": object}, "plain bytes"),
        ({"depth": 0}, "depth is 0"),
        ({"depth": "1"}, "depth is '1'"),
        ({"buffers": 65}, "buffers is 65"),
    ],
)
def test_queues_that_cannot_be(alone: hpcomm.Context, arguments: dict[str, Any], told: str) -> None:
    with pytest.raises(hpcomm.InvalidArgument, match=told):
        alone.receive_queue(**{"in_peers": [], "out_peers": [], "shape": 4, **arguments})


@on_both
@pytest.mark.parametrize(
    ("wants", "told"),
    [
        ({"shape": (32,)}, ("128", "256")),
        ({"shape": (8, 8)}, ("(8, 8)", "(64,)")),
        ({"dtype": "int32"}, ("int32", "float32")),
        ({"depth": 2}, ("2", "1")),
        ({"buffers": 2}, ("2", "0")),
    ],
)
def test_ranks_that_disagree_are_all_told_both_values(wants: dict[str, Any], told: tuple[str, str]) -> None:
    def body(context: hpcomm.Context) -> None:
        with pytest.raises(hpcomm.ConfigError) as raised:
            ring(context, **(wants if context.rank == 1 else {}))
        assert all(value in str(raised.value) for value in told)
        context.close()
        raise Left

    run_threads(2, body)


@on_both
def test_edge_that_one_side_denies_is_told_to_all() -> None:
    def body(context: hpcomm.Context) -> None:
        with pytest.raises(hpcomm.ConfigError, match="rank 0 has out-peer 1, but rank 1 has no in-peer 0"):
            context.receive_queue([], [1] if context.rank == 0 else [], 8)
        context.close()
        raise Left

    run_threads(2, body)


@on_both
def test_sender_that_left_fails_its_receiver_alone() -> None:
    sent, left = threading.Event(), threading.Event()

    def body(context: hpcomm.Context) -> None:
        queue = ring(context)
        queue.send(queue.out_peers[0], np.full(64, 4, np.float32))
        if context.rank == 1:
            queue.recv(0)
            assert sent.wait(20)  # else rank 0 may still wait in send
            context.close()
            left.set()
            raise Left
        sent.set()
        assert left.wait(20)
        assert set(queue.recv(1)) == {4}  # sent before it left
        queue.ack(1)
        with pytest.raises(hpcomm.PeerFailed) as raised:
            queue.recv(1)
        assert (raised.value.ranks, raised.value.op) == ((1,), "recv")
        context.close()
        raise Left

    run_threads(2, body)


# ---- processes -----------------------------------------------------------------------------------------------------


def gossip(steps: int, buffers: int) -> list[float]:
    """Ranks average with both neighbours of a ring until all agree."""
    context = hpcomm.init(mpi.world())
    peers = sorted({(context.rank + 1) % context.size, (context.rank - 1) % context.size})
    queue = context.receive_queue(peers, peers, (5000,), "float64", depth=2, buffers=buffers)
    model = np.full(5000, float(context.rank))
    for _ in range(steps):
        if buffers:
            sent = queue.acquire()
            sent[:] = model
            queue.send_all(sent)
        else:
            queue.send_all(model)
        queue.reduce(model, out=model)
    context.barrier()
    context.close()
    return [float(model.min()), float(model.max())]


@on_both
@pytest.mark.parametrize("buffers", [0, 3])
def test_processes_come_to_agree(buffers: int) -> None:
    for low, high in mpi.spawn(4, gossip, 40, buffers).values:
        assert low == pytest.approx(1.5, abs=1e-6)
        assert high == pytest.approx(1.5, abs=1e-6)
