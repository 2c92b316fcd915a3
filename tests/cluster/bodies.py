"""What ranks do in more than one test. It needs nothing but hpcomm and NumPy, so that any Python can run it."""

from collections.abc import Callable
from typing import Any

import numpy as np

import hpcomm
from hpcomm import SGD, Exchange

from .job import Desk

N = 1 << 20  # values: a step takes a tenth of a second and more on links of 1 Gb/s


def who(desk: Desk) -> dict[str, Any]:
    """What a rank knows of its peers, and whose memory it sees."""
    with hpcomm.init(desk.world()) as ctx:
        window = ctx.window(8, "int64")
        window.array[:] = ctx.rank
        ctx.barrier()
        views = [window.peer_view(peer) for peer in range(ctx.size)]
        seen = [None if view is None else int(np.asarray(view)[7]) for view in views]
        peers = [(peer.transport, peer.host, peer.path, peer.state) for peer in ctx.peers]
        ctx.barrier()
        return {"peers": peers, "seen": seen}


def block(rank: int, step: int, n: int) -> Any:
    """Values that no other rank or step has."""
    return np.arange(n, dtype=np.int64) * 64 + (rank + 4 * step)


def put_and_signal(desk: Desk, n: int, steps: int) -> int:
    """Everybody writes into everybody's window; returns how many values were wrong when their signal was there."""
    with hpcomm.init(desk.world()) as ctx:
        others = [peer for peer in range(ctx.size) if peer != ctx.rank]
        window = ctx.window((ctx.size, n), "int64", signals=2 * ctx.size)
        wrong = 0
        for step in range(1, steps + 1):
            mine = block(ctx.rank, step, n)
            offset = ctx.rank * mine.nbytes
            for peer in others:
                window.put(peer, mine[: n // 3], offset)
                window.put_signal(peer, mine[n // 3 :], offset + mine[: n // 3].nbytes, signal=ctx.rank, value=step)
            for peer in others:
                window.wait_signal(peer, step, peer=peer)
                wrong += int((window.array[peer] != block(peer, step, n)).sum())
                window.put_signal(peer, None, signal=ctx.size + ctx.rank, value=step)  # read
            for peer in others:
                window.wait_signal(ctx.size + peer, step, peer=peer)
        return wrong


def steps_of(ctx: hpcomm.Context, kind: str) -> Callable[[int], None]:
    """A function that makes one step, and raises if what it finds is wrong."""
    others = [rank for rank in range(ctx.size) if rank != ctx.rank]
    if kind == "push_pull":
        ex = Exchange(ctx, {"w": np.zeros(N, np.float32)}, rule=SGD(lr=1), reduce="sum", progress="inline")

        def step(number: int) -> None:
            ex.gradient("w")[:] = ctx.rank + 1
            ex.push_pull("w")
            assert (ex.params["w"] == -10.0 * (number + 1)).all(), f"step {number} is wrong"

    elif kind == "queue":
        queue = ctx.receive_queue(others, others, N, "float32")
        mine, found = np.empty(N, np.float32), np.empty(N, np.float32)

        def step(number: int) -> None:
            mine[:] = ctx.rank + number
            queue.send_all(mine)
            queue.reduce(mine, out=found, weights=[1.0] * ctx.size)
            assert (found == 6.0 + ctx.size * number).all(), f"step {number} is wrong"

    elif kind == "flush":
        window = ctx.window((ctx.size, N), "float32")
        block = np.ones(N, np.float32)

        def step(number: int) -> None:
            for peer in others:
                window.put(peer, block, ctx.rank * block.nbytes)
            window.flush()
            window.flush()

    else:

        def step(number: int) -> None:
            for _ in range(100):
                ctx.barrier()

    return step


def hosts_first(desk: Desk, topology: Any) -> dict[str, Any]:
    """Steps of parameter_hub; its plan, and its values."""
    with hpcomm.init(desk.world()) as ctx:
        params = {"w": np.zeros(N // 8, np.float32), "b": np.zeros(33, np.float32)}
        with hpcomm.parameter_hub(ctx, params, topology=topology, reduce="sum", progress="inline") as ex:
            for step in range(3):
                ex.step({name: np.full(value.shape, ctx.rank + 4 * step, np.float32) for name, value in params.items()})
            values = {name: sorted(set(value.tolist())) for name, value in ex.params.items()}
            return {"hosts": ctx.hosts, "plan": ex.plan.to_json(), "values": values}
