"""What ranks do in more than one test. It needs nothing but hpcomm and NumPy, so that any Python can run it."""

import os
from collections.abc import Callable
from typing import Any

import numpy as np

import hpcomm
from hpcomm import SGD, EngineOptions, Exchange, Hierarchy

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


def chosen(desk: Desk, cpus: int) -> tuple[str, int, bool]:
    """Who works for the cores of a rank that may use the first so many CPUs, and whether it was told that ranks share
    them."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:cpus])
    ones = {str(key): np.ones(1 << 14, np.float32) for key in range(8)}  # so that every rank owns some
    with hpcomm.init(desk.world()) as ctx, Exchange(ctx, ones, rule=SGD(lr=1)) as ex:
        ex.step(ones)
        stats = ex.stats()
        return stats.progress, stats.threads, any("share" in note for note in ctx.notes)


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


def file_at(address: int) -> tuple[str, str]:
    """Device and inode of the memory that is mapped there: the same in each process that maps it."""
    with open("/proc/self/maps") as maps:
        for line in maps:
            at, _, _, device, inode, *_ = line.split()
            low, high = (int(end, 16) for end in at.split("-"))
            if low <= address < high:
                return device, inode
    raise AssertionError(f"nothing is mapped at {address:#x}")


def shared_params(desk: Desk, shared: bool) -> dict[str, Any]:
    """Steps of parameter_hub, and a state that is saved and loaded; where its parameters are, and their bits."""
    with hpcomm.init(desk.world()) as ctx:
        rng = np.random.default_rng(ctx.rank)
        params = {"w": np.arange(N // 8, dtype=np.float32), "b": np.ones(33, np.float32)}
        found: dict[str, Any] = {"hosts": ctx.hosts, "bits": []}
        with hpcomm.parameter_hub(ctx, params, engine=EngineOptions(shared_params=shared), progress="inline") as ex:
            found["file"] = file_at(ex.params["w"].ctypes.data)
            found["writeable"] = any(array.flags.writeable for array in ex.params.values())
            for step in range(6):
                ex.step({name: rng.standard_normal(value.shape, np.float32) for name, value in params.items()})
                found["bits"].append([value.tobytes() for value in ex.params.values()])
                if step == 2:
                    saved = ex.state_dict()
            ctx.barrier()
            found["written"] = ex.stats().bytes_written
            ex.load_state_dict(saved)
            found["loaded"] = [value.tobytes() for value in ex.params.values()]
            ctx.barrier()
            ex.step({name: np.ones_like(value) for name, value in params.items()})
            found["after"] = [value.tobytes() for value in ex.params.values()]
        return found


def flat_shared_params(desk: Desk) -> str:
    """Why an exchange that is flat has no shared parameters here; and another exchange works after it."""
    with hpcomm.init(desk.world()) as ctx:
        params = {"w": np.zeros(64, np.float32)}
        try:
            Exchange(ctx, params, engine=EngineOptions(shared_params=True))
        except hpcomm.ConfigError as error:
            with Exchange(
                ctx, params, "auto", engine=EngineOptions(shared_params=True), rule=SGD(lr=1), reduce="sum"
            ) as ex:
                assert list(ex.push_pull("w", np.ones(64, np.float32))) == [-ctx.size] * 64
                ctx.barrier()
            return str(error)
        return "nothing"


def recovers_shared_params(desk: Desk) -> list[Any]:
    """Three steps, a death, and three steps of those that are left; clock and values in between and at the end."""
    ones = np.ones(5000, np.float32)
    with hpcomm.init(desk.world()) as ctx:
        topology = Hierarchy(leaders=(1, 4))
        ex = Exchange(
            ctx,
            {"w": ones},
            topology,
            rule=SGD(lr=1),
            reduce="sum",
            chunk_bytes=2048,
            engine=EngineOptions(shared_params=True),
        )
        for _ in range(3):
            ex.push_pull("w", ones)
        desk.meet("three steps")
        try:
            ex.push_pull("w", ones)
        except hpcomm.PeerFailed:
            recovered = hpcomm.recover(ex)
        ex = recovered.exchange
        found: list[Any] = [recovered.clock, set(ex.params["w"].tolist())]
        ex.context.barrier()
        for _ in range(3):
            ex.push_pull("w", ones)
        found += [set(ex.params["w"].tolist()), file_at(ex.params["w"].ctypes.data)]
        ex.close()
        ex.context.close()
        return found


def hosts_first(desk: Desk, topology: Any) -> dict[str, Any]:
    """Steps of parameter_hub; its plan, and its values."""
    with hpcomm.init(desk.world()) as ctx:
        params = {"w": np.zeros(N // 8, np.float32), "b": np.zeros(33, np.float32)}
        with hpcomm.parameter_hub(ctx, params, topology=topology, reduce="sum", progress="inline") as ex:
            for step in range(3):
                ex.step({name: np.full(value.shape, ctx.rank + 4 * step, np.float32) for name, value in params.items()})
            values = {name: sorted(set(value.tolist())) for name, value in ex.params.items()}
            return {"hosts": ctx.hosts, "plan": ex.plan.to_json(), "values": values}
