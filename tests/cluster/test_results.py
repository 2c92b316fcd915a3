"""What arrives across hosts is what was sent: windows, queues, exchanges and checkpoints give exact numbers."""

import itertools
import re
from typing import Any

import numpy as np
import pytest
from conftest import run_threads

import hpcomm
from hpcomm import ASYNC, SGD, Exchange, Nesterov, ParameterServer, PlanOptions

from .bodies import block, put_and_signal
from .hosts import Cluster
from .job import Desk, Job

F32 = np.float32
LARGE = 1 << 19  # values: 4 MiB, more than the links' bucket and any socket's buffer
SHAPES = {"conv": (3, 5, 2), "fc": (400, 701), "bias": (7,), "scale": ()}


def numbers(seed: int) -> dict[str, Any]:
    """Whole numbers, so that sums are exact in whatever order."""
    rng = np.random.default_rng(seed)
    return {name: rng.integers(-8, 8, shape).astype(F32) for name, shape in SHAPES.items()}


# ---- windows -------------------------------------------------------------------------------------------------------


def flush_and_notify(desk: Desk, n: int, tcp_window: int = 0) -> list[Any]:
    """To the right: puts that are in place when flush has returned, then events."""
    with hpcomm.init(desk.world(), tcp_window=tcp_window) as ctx:
        right, left = (ctx.rank + 1) % ctx.size, (ctx.rank - 1) % ctx.size
        window = ctx.window((2, n), "int64")
        mine = block(ctx.rank, 1, n)
        window.put(right, mine)
        window.flush(right)
        mine[:] = 0  # it is ours again
        desk.meet("flushed")  # which nothing of hpcomm tells
        flushed = bool((window.array[0] == block(left, 1, n)).all())
        events = []
        for step in range(3):
            window.put_notify(right, block(ctx.rank, step, n), mine.nbytes, imm=7 + step)
            window.put_notify(right, b"", imm=1000)
            for _ in range(2):
                peer, imm, nbytes = ctx.wait_event()
                same = bool((window.array[1] == block(left, step, n)).all())
                events.append((peer == left, imm, nbytes, same))
            ctx.barrier()
        return [flushed, events]


@pytest.mark.some(1)
@pytest.mark.parametrize("ranks_per_host", [1, 2])
def test_data_are_there_when_their_signal_is(cluster: Cluster, ranks_per_host: int) -> None:
    with Job(cluster, put_and_signal, LARGE // 2, 3, hosts=cluster.hosts[: 4 // ranks_per_host],
             ranks_per_host=ranks_per_host) as job:  # fmt: skip
        assert job.values() == [0] * 4


def test_flush_means_in_place_and_events_follow_their_data(cluster: Cluster) -> None:
    with Job(cluster, flush_and_notify, LARGE, by="desk") as job:
        job.reached("flushed")
        job.go()
        events = [(True, imm, nbytes, True) for step in range(3) for imm, nbytes in ((7 + step, 8 * LARGE), (1000, 0))]
        assert job.values() == [[True, events]] * 4


@pytest.mark.parametrize("window", [0, 50000])
def test_a_connection_holds_little_if_asked(cluster: Cluster, window: int) -> None:
    with Job(cluster, flush_and_notify, LARGE, window, hosts=cluster.hosts[:2], by="desk") as job:
        job.reached("flushed")
        told = cluster.run("h1", ["ss", "-tmnH", "state", "established"], timeout=30).stdout
        buffers = [int(held) for held in re.findall(r"skmem:\(r\d+,rb(\d+)", told)]
        job.go()
        job.values()
    assert (2 * window in buffers) == (window > 0), told  # the kernel counts its own part, too


# ---- queues --------------------------------------------------------------------------------------------------------


def average(desk: Desk, n: int, steps: int, buffers: int) -> bytes:
    """NOTIFY-ACK over a directed graph: rank i sends to i + 1 and i + 2. All weights are whole."""
    with hpcomm.init(desk.world()) as ctx:
        into, out = ([(ctx.rank + sign * offset) % ctx.size for offset in (1, 2)] for sign in (-1, 1))
        queue = ctx.receive_queue(into, out, n, "float64", depth=2, buffers=buffers)
        mine = queue.acquire() if buffers else np.empty(n)
        mine[:] = block(ctx.rank, 0, n) % 1000
        for _ in range(steps):
            queue.send_all(mine)
            target = queue.acquire() if buffers else np.empty(n)
            mine = queue.reduce(mine, out=target, weights=[1.0, 2.0, 3.0])
            mine %= 1000
        ctx.barrier()
        return bytes(mine.tobytes())


@pytest.mark.some(1)
@pytest.mark.parametrize("buffers", [0, 2])
def test_a_queue_gives_the_sums_that_numpy_gives(cluster: Cluster, buffers: int) -> None:
    n, steps, size = 100_003, 8, 4
    models = [block(rank, 0, n) % 1000.0 for rank in range(size)]
    for _ in range(steps):
        models = [
            (models[rank] + 2 * models[(rank - 1) % size] + 3 * models[(rank - 2) % size]) % 1000
            for rank in range(size)
        ]
    with Job(cluster, average, n, steps, buffers) as job:
        assert job.values() == [model.tobytes() for model in models]


# ---- exchanges -----------------------------------------------------------------------------------------------------


PLACEMENTS: dict[str, dict[str, Any]] = {"CC": {}, "CS": {}, "NCS": {"servers": [1, 2]}}
STEPS = 3


def push_pull(desk: Desk, progress: Any) -> dict[str, Any]:
    """Of each placement, how many parameters were wrong, after any step, on a worker."""
    with hpcomm.init(desk.world()) as ctx:
        found: dict[str, Any] = {}
        for placement, servers in PLACEMENTS.items():
            topology = ParameterServer(placement, **servers)
            workers = topology.roles(ctx.size)[0]
            with Exchange(ctx, numbers(0), topology, rule=SGD(lr=1), reduce="sum", progress=progress) as ex:
                if ctx.rank not in workers:
                    ex.serve(30)
                    continue
                want, wrong = numbers(0), 0
                for step in range(1, STEPS + 1):
                    have = ex.step(numbers(10 * step + ctx.rank))
                    for name, worker in itertools.product(SHAPES, workers):
                        want[name] = want[name] - numbers(10 * step + worker)[name]
                    wrong += sum(int((have[name] != want[name]).sum()) for name in SHAPES)
                found[placement] = wrong
        return found


def push_late(desk: Desk) -> dict[str, Any]:
    """ASYNC: each pushes at its own pace; when all have, all see the sum of everything."""
    with hpcomm.init(desk.world()) as ctx:
        found = {}
        for placement in ("CC", "CS"):
            ex = Exchange(
                ctx, numbers(0), ParameterServer(placement), ASYNC, rule=SGD(lr=1), depth=2, progress="inline"
            )
            for step in range(1, STEPS + 1):
                for name, grad in numbers(10 * step + ctx.rank).items():
                    ex.gradient(name)[...] = grad
                    ex.push(name)
            for name in SHAPES:
                ex.pull(name)
            ctx.barrier()
            wrong = sum(int((ex.pull(name) != value).sum()) for name, value in everything(ctx.size).items())
            ctx.barrier()
            ex.close()
            found[placement] = wrong
        return found


def everything(size: int) -> dict[str, Any]:
    whole = numbers(0)
    for step, rank in itertools.product(range(1, STEPS + 1), range(size)):
        whole = {name: whole[name] - grad for name, grad in numbers(10 * step + rank).items()}
    return whole


@pytest.mark.some(2)
@pytest.mark.parametrize(("progress", "ranks_per_host"), [("inline", 1), ("thread", 1), ("inline", 2)])
def test_every_placement_sums_exactly(cluster: Cluster, progress: Any, ranks_per_host: int) -> None:
    hosts = cluster.hosts[: 4 // ranks_per_host]
    with Job(cluster, push_pull, progress, hosts=hosts, ranks_per_host=ranks_per_host) as job:
        values = job.values()
    assert values == [{name: 0 for name in PLACEMENTS if name != "NCS" or rank not in (1, 2)} for rank in range(4)]


def test_every_asynchronous_push_counts_once(cluster: Cluster) -> None:
    with Job(cluster, push_late) as job:
        assert job.values() == [{"CC": 0, "CS": 0}] * 4


# ---- the same bits as in one process, and a restart -----------------------------------------------------------------


def random(seed: int) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    return {name: rng.standard_normal(shape).astype(F32) for name, shape in SHAPES.items()}


def train(ex: Exchange, rank: int, steps: range) -> dict[str, bytes]:
    for step in steps:
        ex.step(random(100 * step + rank + 1))
    return {name: value.tobytes() for name, value in ex.params.items()}


def train_and_restart(desk: Desk, folder: str) -> list[Any]:
    """Parameters after six steps; after three of another exchange, that began with what was saved after three."""
    with hpcomm.init(desk.world()) as ctx:
        ex = Exchange(ctx, random(0), rule=Nesterov(lr=0.1), progress="inline")
        train(ex, ctx.rank, range(3))
        np.savez(f"{folder}/shard{ctx.rank}.npz", **ex.state_dict())
        ctx.barrier()
        through = train(ex, ctx.rank, range(3, 6))
        ex.close()
        again = Exchange(ctx, random(7), ParameterServer("CC", servers=[2]), rule=Nesterov(lr=0.1), progress="inline")
        again.load_state_dict([np.load(f"{folder}/shard{rank}.npz") for rank in range(ctx.size)])
        restarted = train(again, ctx.rank, range(3, 6))
        again.close()
        return [through, restarted]


def test_training_gives_the_bits_of_one_process_also_after_a_restart(cluster: Cluster, tmp_path: Any) -> None:
    def body(context: hpcomm.Context) -> dict[str, bytes]:
        with Exchange(context, random(0), rule=Nesterov(lr=0.1), progress="inline") as ex:
            return train(ex, context.rank, range(6))

    want = run_threads(4, body)[0]
    with Job(cluster, train_and_restart, str(tmp_path)) as job:
        assert job.values() == [[want, want]] * 4


def train_rounded(desk: Desk) -> dict[str, bytes]:
    """Parameters after three steps, which travel in bfloat16."""
    with (
        hpcomm.init(desk.world()) as ctx,
        Exchange(
            ctx, random(0), rule=Nesterov(lr=0.1), progress="inline", plan=PlanOptions(codec_out="bfloat16")
        ) as ex,
    ):
        return train(ex, ctx.rank, range(3))


@pytest.mark.some(1)
@pytest.mark.parametrize("ranks_per_host", [1, 2])
def test_parameters_in_16_bits_are_the_same_by_shm_and_tcp(cluster: Cluster, ranks_per_host: int) -> None:
    """With two ranks a host every owner writes into the memory of one worker, and sends to the others."""

    def body(context: hpcomm.Context) -> dict[str, bytes]:
        with Exchange(
            context, random(0), rule=Nesterov(lr=0.1), progress="inline", plan=PlanOptions(codec_out="bfloat16")
        ) as ex:
            return train(ex, context.rank, range(3))

    want = run_threads(4, body)[0]
    with Job(cluster, train_rounded, hosts=cluster.hosts[: 4 // ranks_per_host], ranks_per_host=ranks_per_host) as job:
        assert job.values() == [want] * 4
