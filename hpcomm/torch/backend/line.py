"""The order of a group's calls: a synchronous call runs in its caller's thread, after earlier asynchronous ones, which
one helper thread makes."""

import threading
import time
import weakref
from queue import SimpleQueue
from typing import Any, Protocol


class Queued(Protocol):
    """A call that the helper thread makes."""

    def make(self) -> None:
        """Makes the call. Raises nothing: the call keeps its failure."""

    def settle(self, limit: float | None = None) -> bool:
        """Waits until the call has been made. Returns False if limit seconds have passed before."""


_Queue = SimpleQueue[Queued | None]


def acquire(lock: Any, limit: float) -> bool:
    """Acquires a lock within limit seconds, which may be more than a lock takes. Returns whether it has."""
    return bool(lock.acquire(timeout=min(max(limit, 0.0), threading.TIMEOUT_MAX)))


class Line:
    """The calls of one group, in their order."""

    def __init__(self) -> None:
        self.turn = threading.Lock()  # of the thread that makes a collective
        self._begin = threading.Lock()
        self._last: weakref.ref[Queued] | None = None  # the latest call of the helper
        self.going: Any = None  # the call that the helper makes now
        self._queue: _Queue | None = None  # None: no call was asynchronous yet
        self._thread: threading.Thread | None = None

    def add(self, work: Queued) -> None:
        """Gives a call to the helper thread."""
        with self._begin:
            if self._queue is None:
                self._queue = SimpleQueue()
                self._thread = threading.Thread(
                    target=_make_calls, args=(self._queue,), name="hpcomm-group", daemon=True
                )
                self._thread.start()
            self._last = weakref.ref(work)
            self._queue.put(work)

    def is_helper(self) -> bool:
        """Returns whether this thread is the helper, which runs a callback. It makes the callback's calls at once: the
        callback may wait for them."""
        return self._thread is not None and threading.current_thread() is self._thread

    def settle(self, limit: float | None = None) -> bool:
        """Waits until the helper has made all its calls. Returns False if limit seconds have passed before. In the
        helper, for callbacks of futures, it does nothing."""
        last = self._last
        if last is None or self.is_helper():
            return True
        work = last()
        if work is not None and not work.settle(limit):
            return False
        if self._last is last:
            self._last = None
        return True

    def take(self, limit: float) -> float:
        """Settles, and takes the turn, which the caller then releases. Returns the seconds that are left of limit; a
        negative number if the time is over and the turn is not taken."""
        if self._last is None and self.turn.acquire(blocking=False):
            return limit
        until = time.monotonic() + limit
        if not self.settle(limit) or not acquire(self.turn, until - time.monotonic()):
            return -1.0
        return max(until - time.monotonic(), 0.0)

    def end(self, *, joins: bool = True) -> None:
        """Ends the helper thread, which first makes its calls; these fail if the context is closed. joins: waits for
        the end."""
        with self._begin:
            queue, thread = self._queue, self._thread
            self._queue = self._thread = None
        if queue is not None and thread is not None:
            queue.put(None)
            if joins and threading.current_thread() is not thread:
                thread.join()


def _make_calls(queue: _Queue) -> None:
    while True:
        work = queue.get()
        if work is None:
            return
        work.make()
        del work
