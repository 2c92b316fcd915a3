"""The ranks that train, in a job where other ranks only serve (PHub, section 2.2: placements NCC and NCS)."""

from collections.abc import Callable
from contextlib import suppress
from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..context import Context
from ..errors import HpcommError, InvalidArgument, NotSupported


class CollectiveCall(IntEnum):
    """A collective call of the workers in which ranks that only serve take part."""

    END = 0  # the first worker closes; no call follows
    MEET = 1  # an allgather; size: how many bytes each rank gives
    GATHER = 2  # all ranks get the owners' values
    LOAD = 3  # the owners take a state; size: the state's bytes
    PUBLISH = 4  # the owners take parameters; size: the parameters' bytes
    SAVE = 5  # the owners copy their part of a checkpoint; size: the number of the saver


class Workers:
    """The workers of a job, as each rank knows them. Before each collective call the first worker tells the ranks that
    only serve which call it is, and they take part in it. If no rank only serves, nothing is sent. Making the object is
    collective.

    Attributes:
        ranks: the workers, in rising order.
        serving: the ranks that only serve.
        serves: whether this rank only serves.
        is_first: whether this rank is the first worker.
    """

    def __init__(self, ctx: Context, ranks: tuple[int, ...]) -> None:
        self.ranks, self._context = ranks, ctx
        self.serving = tuple(rank for rank in range(ctx.size) if rank not in ranks)
        self.serves = ctx.rank in self.serving
        self.is_first = ctx.rank == ranks[0]
        self._told = 0  # how many calls this rank has made or heard of
        self._ended = False
        if self.serving:
            self._window = ctx.window(2, np.int64, signals=1)
            ctx._exchanges[id(self)] = self  # closing the context also closes this object

    def allgather(self, data: bytes, timeout: float | None = None) -> list[bytes]:
        """Returns the bytes that each worker gives, in the order of ranks. Collective."""
        self.tell(CollectiveCall.MEET, len(data))
        every = self._context.allgather(data, timeout)
        return [every[rank] for rank in self.ranks]

    def tell(self, call: CollectiveCall, size: int = 0) -> None:
        """Announces a collective call that this rank makes. On a rank that only serves, waits until the workers make
        this call.

        Raises:
            InvalidArgument: this rank only serves, and the workers make another call.
        """
        if self.serves:
            self._expect(call)
        elif self.is_first and self.serving:
            self._say(call, size)

    def send(self, call: CollectiveCall, values: Callable[[], NDArray[np.uint8]]) -> None:
        """Announces a call, and sends the first worker's bytes to the ranks that only serve. All workers must have
        equally many bytes."""
        if self.serves:
            self.receive(self._expect(call))
        elif self.serving:
            data = values()
            self.tell(call, data.size)
            window = self._context.window(data.size)
            for server in self.serving if self.is_first else ():
                window.put(server, data)
            window.flush()
            self._context.barrier()

    def receive(self, size: int) -> NDArray[np.uint8]:
        """Returns the bytes that the first worker sends with a call. size: how many bytes."""
        window = self._context.window(size)
        self._context.barrier()
        return window.array

    def hear(self, timeout: float | None = None) -> tuple[CollectiveCall, int]:
        """Waits for the next call of the workers. Returns the call and its size. For ranks that only serve."""
        if self._ended:
            return CollectiveCall.END, 0
        # The wait blames no rank: a worker may wait for this rank while another computes, which is no deadlock.
        self._window.wait_signal(0, self._told + 1, timeout)
        self._told += 1
        call, size = self._window.array.tolist()
        self._ended = call == CollectiveCall.END
        return CollectiveCall(call), size

    def _expect(self, call: CollectiveCall) -> int:
        heard, size = self.hear()
        if heard != call:
            raise InvalidArgument(
                f"rank {self._context.rank} only serves, and makes another collective call than the workers: they "
                "call in the same order, or this rank calls optimizer.serve(), which takes part in all of them"
            )
        return size

    def _say(self, *told: int) -> None:
        self._told += 1
        for server in self.serving:
            self._window.put_signal(server, np.array(told, np.int64), signal=0, value=self._told)

    def no_recovery(self) -> NotSupported:
        return NotSupported(
            f"recover: the optimizer steps on each worker, and ranks {list(self.serving)} only serve: make another "
            "DistributedOptimizer, of the context that Context.shrink gives, and restore a checkpoint"
        )

    def close(self, timeout: float | None = None) -> None:
        """Tells the ranks that only serve that no further call comes. A second call does nothing."""
        if self.is_first and self.serving and not self._ended:
            self._ended = True
            with suppress(HpcommError):  # a rank that is gone need not be told
                self._say(CollectiveCall.END, 0)


def joined(parts: list[NDArray[Any]]) -> NDArray[np.uint8]:
    """Returns the bytes of arrays, one after the other."""
    return np.concatenate([part.reshape(-1).view(np.uint8) for part in parts])
