"""Gradients that are being copied from a device to the host's memory. The exchange of a gradient begins when its copy
has ended."""

from collections import deque
from collections.abc import Callable
from time import monotonic, sleep
from typing import Any

from ..context import Context
from ..errors import Timeout
from ..exchange import Handle
from .counts import Counts
from .device import Copy

_SPIN, _NAP = 1e-3, 5e-5  # seconds: a copy of 16 MiB takes a millisecond
Begin = Callable[[], Handle]


class PendingStart:
    """The exchange of a key, which begins when a copy has ended. A trainer can wait for it as for a Handle."""

    __slots__ = ("_begin", "_handle", "_way", "copy", "name")

    def __init__(self, way: "PendingStarts", name: str, copy: Copy, begin: Begin) -> None:
        self.name, self._way, self.copy = name, way, copy
        self._begin: Begin | None = begin
        self._handle: Handle | None = None

    def test(self) -> bool:
        self._way.look()
        return self._handle is not None and self._handle.test()

    def wait(self, timeout: float | None = None) -> Any:
        while self._handle is None:
            self._way.next(timeout)
        return self._handle.wait(timeout)

    def begin(self) -> None:
        assert self._begin is not None
        self._handle = self._begin()
        del self.copy  # the copy keeps the gradient alive
        self._begin = None


class PendingStarts:
    """Gradients whose copies are pending. They are in the order in which the copies began, in which they also end."""

    def __init__(self, ctx: Context, counts: Counts) -> None:
        self._ctx, self._counts = ctx, counts
        self._sent: deque[PendingStart] = deque()

    def send(self, name: str, copy: Copy | None, begin: Begin) -> Any:
        """Returns the handle of an exchange that begins when the copy has ended. If copy is None, it begins now."""
        if copy is None:
            return begin()
        sent = PendingStart(self, name, copy, begin)
        self._sent.append(sent)
        self.look()
        return sent

    def look(self) -> None:
        """Begins the exchanges of those gradients whose copies have ended."""
        while self._sent and self._sent[0].copy.reached():
            self._begin()

    def next(self, timeout: float | None = None) -> None:
        """Waits until the first pending copy has ended, and begins the exchange of its gradient."""
        sent, start = self._sent[0], monotonic()
        until_reached(self._ctx, sent.name, sent.copy, timeout)
        self._counts.copy_wait += monotonic() - start
        self._begin()

    def drain(self) -> None:
        """Waits until all pending copies have ended, and begins their exchanges."""
        while self._sent:
            self.next()

    def drop(self) -> None:
        """Waits until all pending copies have ended, as they read and write memory; then forgets their gradients."""
        while self._sent:
            until_reached(self._ctx, self._sent[0].name, self._sent[0].copy)
            self._sent.popleft()

    def _begin(self) -> None:
        sent = self._sent[0]
        took = sent.copy.told()
        sent.begin()  # if it raises, this gradient stays the first one
        self._sent.popleft()
        if took is not None:
            self._counts.seconds_out += took[0]


def until_reached(ctx: Context, name: str, copy: Copy, timeout: float | None = None) -> None:
    """Waits until a copy has ended.

    Raises:
        Timeout: the copy has not ended in time.
    """
    limit, start = ctx.config.timeout if timeout is None else timeout, monotonic()
    while not copy.reached():
        waited = monotonic() - start
        if waited > limit:
            raise Timeout(
                f"rank {ctx.rank}: the copy of {name!r} between its device and the host's memory has not ended in "
                f"{limit:g} s: the device still computes, or is stuck: look at its work, or give a longer timeout",
                op="copy",
            )
        if waited > _SPIN:
            sleep(_NAP)
