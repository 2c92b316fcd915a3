"""Meetings of all ranks: each rank tells all others a row of numbers. A meeting that was interrupted by Ctrl-C or a
Timeout continues when the same call is made again.

A collective of a context cannot continue: once one has failed, ranks no longer agree on which collective is next.
"""

import _thread
import threading
from collections.abc import Callable, Sequence
from time import monotonic

import numpy as np
from numpy.typing import NDArray

from .. import _core
from ..context import Context
from ..errors import ConfigError, Timeout

_SLOTS = 2  # a rank can be one meeting ahead of another, which may still read its last row


class RollCall:
    """Meetings at which each rank tells all others a row of numbers. Making one is collective.

    A writer puts its row into the reader's window, and counts its rows with a signal in that window.
    """

    def __init__(self, ctx: Context, numbers: int, timeout: float | None = None) -> None:
        self._ctx, self._row = ctx, numbers + 1
        shape = (_SLOTS, ctx.size, self._row)
        self._window = ctx.window(shape, np.int64, signals=ctx.size, timeout=timeout)
        self._ended = 0
        self._told: list[int] = []  # ranks that have got this rank's row for the current meeting
        self._mine: NDArray[np.int64] | None = None

    def gather(self, op: str, numbers: Sequence[int], timeout: float | None = None) -> NDArray[np.int64]:
        """Returns the numbers of all ranks, one row for each rank. If the last meeting was interrupted, it continues
        with the numbers that were given then.

        Raises:
            ConfigError: another rank meets in another operation (op).
            Timeout, PeerFailed: the error names the rank that did not come.
        """
        ctx, window, number = self._ctx, self._window, self._ended + 1
        slot = number % _SLOTS
        if self._mine is None:
            row = np.zeros(self._row, np.int64)
            row[0] = _number_of(op)
            row[1 : 1 + len(numbers)] = numbers
            self._mine = row
        window.array[slot, ctx.rank] = self._mine
        others = [(ctx.rank + i) % ctx.size for i in range(1, ctx.size)]
        at = 8 * self._row * (slot * ctx.size + ctx.rank)
        for peer in others[len(self._told) :]:
            window.put_signal(peer, self._mine, at, signal=ctx.rank, value=number)
            self._told.append(peer)
        until = None if timeout is None else monotonic() + timeout
        for peer in others:
            left = None if until is None else max(0.0, until - monotonic())
            window.wait_signal(peer, number, left, peer)
        window.flush(timeout=timeout)  # needed since this rank may close after the last meeting
        every: NDArray[np.int64] = window.array[slot].copy()
        self._ended, self._mine = number, None
        self._told.clear()
        for rank in range(ctx.size):
            if every[rank, 0] != every[0, 0]:
                raise ConfigError(
                    f"rank {ctx.rank}: {op}: rank 0 calls {_OPS[every[0, 0]]} while rank {rank} calls "
                    f"{_OPS[every[rank, 0]]}: every rank must make the same calls in the same order"
                )
        return every[:, 1:]


_OPS = ["local.sync()", "local.step() in a join block", "join()", "the end of local.sync()", "optimizer.step()"]
SYNC, STEP, JOIN, END, MATES = _OPS


def _number_of(op: str) -> int:
    return _OPS.index(op)


class Aside:
    """A collective call that runs in a separate thread. If its caller is interrupted, the call continues, and the next
    caller waits for the same call."""

    def __init__(self, call: Callable[[], None]) -> None:
        self._call, self._over = call, threading.Lock()
        self._failed: BaseException | None = None
        self._over.acquire()
        name = _core.entered()
        _thread.start_new_thread(self._run, (name,))

    def _run(self, name: object) -> None:
        try:
            _core.enter(name)
            self._call()
        except BaseException as failed:
            self._failed = failed
        finally:
            del self._call  # the call may hold an exchange, which should not live as long as this thread
            self._over.release()

    @property
    def is_over(self) -> bool:
        return not self._over.locked()

    def wait(self, rank: int, op: str, timeout: float) -> None:
        """Waits until the call has ended.

        Raises:
            Timeout: the call still continues; wait again. If the call has failed, wait raises the call's error.
        """
        until = monotonic() + timeout
        while not self._over.acquire(timeout=max(0.0, min(_core.SLICE, until - monotonic()))):
            if monotonic() >= until:
                raise Timeout(
                    f"rank {rank}: {op}: the ranks have not had all updates in {timeout:.3g} s: call {op} again", op=op
                )
        self._over.release()
        if self._failed is not None:
            raise self._failed
