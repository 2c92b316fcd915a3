"""What only a wire makes hard: sources that are gone when they are sent, more ranks than cores, threads, memory that
outlives its context, and steps that wait for nobody's timer. What shm does too is tested on both where it is tested."""

import gc
import os
import threading
import time
from collections.abc import Callable
from typing import Any

import mpi
import numpy as np
import pytest
from conftest import Left, run_threads

import hpcomm
from hpcomm import SGD, Exchange

F32 = np.float32
MIB = 1 << 20


# ---- sources -------------------------------------------------------------------------------------------------------


def test_temporaries_of_every_kind_live_until_they_are_sent() -> None:
    """More than sockets hold, in arrays that nobody keeps; other arrays take their place as soon as they are free."""
    rounds = 24

    def body(context: hpcomm.Context) -> list[int]:
        window = context.window((rounds, MIB), "uint8", signals=1)
        lane = context.lane()
        if context.rank == 0:
            for i in range(rounds):
                kinds: list[Any] = [bytes([i + 1]) * MIB, np.full(MIB, i + 1, np.uint8), bytearray([i + 1]) * MIB]
                window.put(1, kinds[i % 3], i * MIB, lane=lane if i % 2 else None)
                del kinds
                gc.collect()
                np.full(MIB, 255, np.uint8)  # where the last one was, if it is gone
            window.flush()
            window.flush(lane=lane)
            window.put_signal(1, None, signal=0, value=1)
        else:
            window.wait_signal(0, 1)
        context.barrier()
        return [int(row[0]) if (row == row[0]).all() else -1 for row in window.array]

    assert run_threads(2, body, transport="tcp")[1] == [i + 1 for i in range(rounds)]


def test_source_is_its_owners_after_flush() -> None:
    def body(context: hpcomm.Context) -> None:
        window = context.window((8, MIB), "float32")
        source = np.empty(MIB, F32)
        for row in range(8):
            source[:] = row
            window.put(1 - context.rank, source, row * source.nbytes)
            window.flush(1 - context.rank)
        source[:] = -1
        context.barrier()
        assert [set(row) for row in window.array] == [{row} for row in range(8)]

    run_threads(2, body, transport="tcp")


def test_window_that_is_dropped_with_puts_under_way() -> None:
    """Its sources, its memory and its context go in any order, and the next window is whole."""

    def body(context: hpcomm.Context) -> None:
        for _ in range(4):
            window = context.window(8 * MIB)
            window.put(1 - context.rank, np.ones(8 * MIB, np.uint8))
            del window
            gc.collect()
        last = context.window(MIB, signals=1)
        last.put_signal(1 - context.rank, np.full(MIB, 7, np.uint8), signal=0, value=1)
        last.wait_signal(0, 1)
        assert set(last.array) == {7}

    run_threads(2, body, transport="tcp")


def test_update_of_a_queue_is_its_owners_on_return() -> None:
    def body(context: hpcomm.Context) -> None:
        other = 1 - context.rank
        queue = context.receive_queue([other], [other], (MIB,), depth=2)
        update = np.empty(MIB, F32)
        for step in range(6):
            update[:] = step
            queue.send(other, update)
            update[:] = -1
            assert set(queue.recv(other)) == {step}
            queue.ack(other)

    run_threads(2, body, transport="tcp")


# ---- memory --------------------------------------------------------------------------------------------------------


def test_arrays_outlive_their_window_and_the_connection() -> None:
    kept: list[Any] = []

    def body(context: hpcomm.Context) -> None:
        window = context.window((1 << 16,), "float64", signals=1)
        other = 1 - context.rank
        queue = context.receive_queue([other], [other], (1 << 10,), buffers=1)
        queue.send(other, queue.acquire())
        window.put_signal(other, np.full(1 << 16, float(other)), signal=0, value=1)
        window.wait_signal(0, 1)
        kept.append((context.rank, window.array, queue.recv(other), queue.buffers[0]))
        context.barrier()
        context.close()
        raise Left

    run_threads(2, body, transport="tcp")
    gc.collect()
    for rank, array, update, buffer in kept:
        assert set(array) == {rank}
        array[...] = 3
        buffer[...] = 4
        assert (array.sum(), update.sum()) == (3 * array.size, 0)


# ---- several -------------------------------------------------------------------------------------------------------


def test_two_contexts_at_once() -> None:
    """Each has its connections: what one carries, and its end, is nothing to the other."""

    def body(context: hpcomm.Context) -> None:
        parts = context.allgather(bytes([context.rank]))
        other = 1 - context.rank
        with hpcomm.init(Through(context, len(parts)), transport="tcp") as second:
            windows = [each.window((1000,), "int64", signals=1) for each in (context, second)]
            for value in range(1, 20):
                for i, window in enumerate(windows):
                    window.put_signal(other, np.full(1000, 100 * i + value), signal=0, value=value)
                for i, window in enumerate(windows):
                    window.wait_signal(0, value)
                    assert set(window.array) == {100 * i + value}
                context.barrier()
            second.barrier()
        windows[0].put_signal(other, np.zeros(1000, int), signal=0, value=99)
        assert windows[0].wait_signal(0, 99) == 99

    run_threads(2, body, transport="tcp")


class Through:
    """A communicator over another context."""

    def __init__(self, context: hpcomm.Context, size: int) -> None:
        self.rank, self.size = context.rank, size
        self.allgather = context.allgather


def test_threads_of_a_rank_wait_at_once() -> None:
    """One of them sleeps in the sockets and the others on the bell; each gets its own word in time."""
    n, rounds = 6, 40

    def body(context: hpcomm.Context) -> None:
        window = context.window(64, signals=2 * n)
        other = 1 - context.rank
        failed: list[hpcomm.HpcommError] = []

        def pass_on(signal: int) -> None:
            lane = lanes[signal]
            try:
                for value in range(1, rounds + 1):
                    if context.rank == 0:
                        window.put_signal(other, None, signal=signal, value=value, lane=lane)
                    window.wait_signal(signal, value, timeout=20)
                    if context.rank == 1:
                        window.put_signal(other, None, signal=signal, value=value, lane=lane)
            except hpcomm.HpcommError as error:
                failed.append(error)

        lanes = [context.lane() for _ in range(n)]
        threads = [threading.Thread(target=pass_on, args=(signal,)) for signal in range(n)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert failed == []
        context.barrier()

    run_threads(2, body, transport="tcp")


def everybody_with_everybody(rounds: int) -> float:
    context = hpcomm.init(mpi.world())
    others = [rank for rank in range(context.size) if rank != context.rank]
    queue = context.receive_queue(others, others, (1000,))
    model = np.full(1000, context.rank, F32)
    for _ in range(rounds):
        queue.send_all(model)
        queue.reduce(model, out=model)
    with Exchange(context, {"w": np.zeros(5000, F32)}, rule=SGD(lr=1)) as ex:
        for _ in range(rounds):
            ex.push_pull("w", np.full(5000, 2, F32))
        assert set(ex.params["w"]) == {-2.0 * rounds}
    context.close()
    assert model.min() == model.max()
    return float(model[0])


@pytest.mark.some(1)
@pytest.mark.parametrize(("n", "by"), [(8, "mpirun"), (16, "nobody")])
def test_more_ranks_than_cores(n: int, by: str) -> None:
    env = {"HPCOMM_TRANSPORT": "tcp"}
    if by == "mpirun":
        values = mpi.run(n, everybody_with_everybody, 5, env=env, timeout=120)
    else:
        values = mpi.spawn(n, everybody_with_everybody, 5, env=env, timeout=120).values
    assert values == [pytest.approx((n - 1) / 2)] * n


# ---- time ----------------------------------------------------------------------------------------------------------


def median(times: list[float]) -> float:
    return sorted(times)[len(times) // 2]


@pytest.mark.serial
def test_no_step_waits_for_a_timer() -> None:
    """Neither Nagle's (40 ms) nor a nap of our own: steps of small keys, of queues, and signals behind large puts."""
    if (os.cpu_count() or 1) < 2:
        pytest.skip("one core: others' time slices are as long")
    keys = {f"key {i}": np.zeros(50, F32) for i in range(40)}

    def body(context: hpcomm.Context) -> dict[str, float]:
        other, took = 1 - context.rank, {}
        window, queue = context.window(MIB, signals=1), context.receive_queue([other], [other], (100,))
        value = 0

        def ping() -> None:
            nonlocal value
            value += 1
            window.put_signal(other, b"12345678", signal=0, value=value)
            window.wait_signal(0, value)

        def behind() -> None:
            nonlocal value
            value += 1
            window.put(other, np.zeros(MIB - 1, np.uint8))
            window.put_signal(other, b"1", MIB - 1, signal=0, value=value)
            window.wait_signal(0, value)

        def swap() -> None:
            queue.send(other, np.zeros(100, F32))
            queue.reduce(np.zeros(100, F32))

        with Exchange(context, keys, rule=SGD(lr=1)) as ex:
            steps: dict[str, Callable[[], object]] = {
                "ping": ping,
                "behind": behind,
                "swap": swap,
                "step": lambda: ex.step(keys),
            }
            for what, step in steps.items():
                times = []
                for _ in range(60):
                    start = time.perf_counter()
                    step()
                    times.append(time.perf_counter() - start)
                took[what] = median(times)
            context.barrier()
        return took

    for took in run_threads(2, body, transport="tcp"):
        assert max(took.values()) < 35e-3, took
