"""One rank of a fault test. The victim falls at a step of its life; every other rank writes what it saw, as JSON."""

import gc
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import NoReturn

import numpy as np
from oob import World

import hpcomm

STEPS = (
    "before_init",
    "exchange_1",
    "exchange_2",
    "init",
    "window",
    "queue",
    "put",
    "signal",
    "send",
    "recv",
    "hold",
    "ack",
    "reduce",
    "teardown",
)
COUNT = 1024


class Fallen(Exception):
    """What a victim raises."""


class Life:
    """The steps of a rank, and where it is."""

    def __init__(self, world: World, victim: int, step: str, how: str) -> None:
        self.world, self.rank, self.size = world, world.rank, world.size
        self._falls_at, self._how = step if world.rank == victim else "", how
        self._exchanges = 0
        self.step, self.since = "", time.monotonic()
        self.kept: list[object] = []  # until all have seen what the victim did: nobody else leaves before

    def at(self, step: str) -> None:
        self.step, self.since = step, time.monotonic()
        if step != self._falls_at:
            return
        if self._how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if self._how in ("stop", "silent"):
            os.kill(os.getpid(), signal.SIGSTOP)
        if self._how == "fork":
            if os.fork() == 0:
                signal.pause()  # with every socket of its parent
            os.kill(os.getpid(), signal.SIGKILL)
        if self._how == "exit":
            sys.exit(0)
        raise Fallen(f"rank {self.rank} falls at {step}")

    def allgather(self, data: bytes) -> list[bytes]:
        parts = self.world.allgather(data)
        self._exchanges += 1
        self.at(f"exchange_{self._exchanges}")
        return parts

    def exchange(self, context: hpcomm.Context) -> None:
        """Everybody with everybody: whoever is missing is missed by all the others."""
        others = [rank for rank in range(context.size) if rank != context.rank]
        update = np.full(COUNT, context.rank, np.float32)
        self.at("window")
        window = context.window((context.size, COUNT), "float32", signals=context.size)
        self.kept.append(window)
        self.at("queue")
        queue = context.receive_queue(others, others, (COUNT,))
        self.kept.append(queue)
        self.at("put")
        for peer in others:
            window.put_signal(peer, update, context.rank * update.nbytes, signal=context.rank, value=1)
        self.at("signal")
        for peer in others:
            window.wait_signal(peer, 1, peer=peer)
        self.at("send")
        queue.send_all(update)
        self.at("recv")
        held = [queue.recv(peer) for peer in others]
        self.at("hold")
        assert [set(came) for came in held] == [{peer} for peer in others]
        for peer in others:
            queue.ack(peer)
        self.at("ack")
        queue.send_all(update)
        self.at("reduce")
        queue.reduce(update, weights=[1.0] * context.size)
        self.at("teardown")
        context.barrier()

    def live(self, timeout: float, *, under_mpi: bool) -> None:
        self.at("before_init")
        context = hpcomm.init(None if under_mpi else self, timeout=timeout)
        self.kept.append(context)
        self.at("init")
        if self._how == ("raise" if self._falls_at else "exit"):
            # A rank that left is missed only by those who wait for it; these bring down those who wait for them.
            with context:
                self.exchange(context)
        else:
            self.exchange(context)


def shared_memory() -> list[str]:
    """What this process still holds of hpcomm's: mapped, or open."""
    held = [line for line in Path("/proc/self/maps").read_text().splitlines() if "hpcomm" in line and "memfd" in line]
    for entry in os.scandir("/proc/self/fd"):
        try:
            target = os.readlink(entry.path)
        except FileNotFoundError:
            continue
        if "memfd:hpcomm" in target:
            held.append(target)
    return held


def main(folder: str, address: str, rank: int, size: int, victim: int, step: str, how: str, timeout: float) -> NoReturn:
    """Under mpirun rank is what the launcher says."""
    mpi = "OMPI_COMM_WORLD_RANK" in os.environ
    rank = int(os.environ.get("OMPI_COMM_WORLD_RANK", rank))
    life = Life(World(address, rank, size), victim, step, how)
    life.world.meet()
    saw: dict[str, object] = {"error": None}
    try:
        life.live(timeout, under_mpi=mpi)
    except hpcomm.HpcommError as error:
        seconds = time.monotonic() - life.since
        saw = {
            "error": type(error).__name__,
            "message": str(error),
            "ranks": getattr(error, "ranks", ()),
            "waiting_for": getattr(error, "waiting_for", ()),
            "op": getattr(error, "op", ""),
            "step": life.step,
            "seconds": seconds,
        }
    life.world.finish()
    life.kept.clear()
    end = time.monotonic() + 5
    gc.collect()
    while (held := shared_memory()) and time.monotonic() < end:
        gc.collect()  # the thread of a failed collective may be about to let go
    saw["held"] = held
    Path(folder, str(rank)).write_text(json.dumps(saw), encoding="utf-8")
    sys.stdout.flush()
    if mpi:
        os._exit(0)  # MPI_Finalize would wait for the dead
    sys.exit(0)
