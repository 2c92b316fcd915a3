"""Deprecated, and gone in the next version: hpcomm.run takes the place of run, and survive is a loop to be written with
Context.shrink (docs/failures.md)."""

import warnings
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from os import PathLike
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from .context import Context
from .errors import InvalidArgument, PeerFailed
from .exchange import Exchange
from .exchange.arguments import check_choice
from .recovery import Recovered, loop
from .recovery.loop import check_least

T = TypeVar("T")


@dataclass(frozen=True)
class Start:
    """Where the ranks of a context begin, or begin again.

    Attributes:
        context: of the ranks that are left; its `ranks` say who they were at first.
        clock: the largest that any of them gave.
        leader: the lowest rank that gave it: what it has is the newest.
    """

    context: Context
    clock: int
    leader: int

    def share(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Gives every rank the leader's values, in place. Collective.

        Args:
            arrays: C-contiguous; the same names, shapes and dtypes in the same order on every rank.

        Raises:
            InvalidArgument: an array cannot be written in place.
            ConfigError: ranks disagree about how many bytes these are.
            Timeout, PeerFailed: with the ranks still waited for.
        """
        parts = [_bytes_of(name, array) for name, array in arrays.items()]
        with ExitStack() as stack:
            window = self.context.window(max(1, sum(part.nbytes for part in parts)), signals=1)
            stack.callback(self.context.barrier)  # nobody lets go of the window while others wait
            if self.context.rank == self.leader:
                whole = np.concatenate([*parts, np.zeros(0, np.uint8)])
                for peer in range(self.context.size):
                    if peer != self.leader:
                        window.put_signal(peer, whole, signal=0, value=1)
                window.flush()
            else:
                window.wait_signal(0, 1, peer=self.leader)
                for part, end in zip(parts, np.cumsum([part.nbytes for part in parts]), strict=True):
                    part[:] = window.array[end - part.nbytes : end]


def survive(
    context: Context,
    train: Callable[[Start], T],
    *,
    clock: Callable[[], int] = lambda: 0,
    least: int = 1,
    timeout: float | None = None,
) -> T:
    """Deprecated: docs/failures.md has the loop, to be written with Context.shrink. train(start), and again with those
    that are left whenever it ends by PeerFailed; what it returns at last. Collective.

    Args:
        context: of all ranks. It stays the caller's to close; those that take its place are closed here.
        train: makes its exchange, queues and windows of start.context and trains from start.clock on. It is to let
            PeerFailed pass.
        clock: how far this rank has come by what it can still give, 0 or more: of steps or epochs, say. It is asked
            before each call of train.
        least: with fewer ranks PeerFailed is raised instead. More than half of the ranks is what keeps the two sides
            of a broken network from both going on.
        timeout: seconds for each shrink; None means the context's default.

    Raises:
        PeerFailed: fewer than least ranks are left.
        Timeout, TransportError: as Context.shrink.
    """
    _warn("survive", "write its loop with Context.revoke and Context.shrink, as docs/failures.md shows")
    first = context
    with ExitStack() as stack:
        while True:
            try:
                return train(_agree(context, clock()))
            except PeerFailed:  # what train has made goes with its frame
                context.revoke()  # where a rank has left, only those who wait for that one know
            gone, context = context, stack.enter_context(context.shrink(timeout))
            if gone is not first:
                gone.close()
            check_least("survive", first, context, least)


def run(
    exchange: Exchange,
    step: Callable[[Exchange, int], object],
    steps: int,
    *,
    first: int = 0,
    on_failure: str = "raise",
    recovered: Callable[[Recovered], object] = lambda _: None,
    checkpoint: str | PathLike[str] | None = None,
    least: int = 1,
    timeout: float | None = None,
) -> Exchange:
    """Deprecated: with on_failure="shrink" it is hpcomm.run, with "raise" a loop over the steps."""
    check_choice("on_failure", on_failure, ("raise", "shrink"))
    if on_failure == "raise":
        _warn("run", 'a loop over the steps does what on_failure="raise" does')
        loop.make_steps(exchange, step, first, steps)
        return exchange
    _warn("run", "call hpcomm.run, which always goes on")
    return loop.run(
        exchange, step, steps, first=first, recovered=recovered, checkpoint=checkpoint, least=least, timeout=timeout
    )


def _warn(name: str, instead: str) -> None:
    warnings.warn(f"hpcomm.elastic.{name} is deprecated: {instead}", DeprecationWarning, stacklevel=3)


def _agree(context: Context, clock: int) -> Start:
    parts = context.allgather(int(clock).to_bytes(8, "little", signed=True))
    clocks = [int.from_bytes(part, "little", signed=True) for part in parts]
    return Start(context, max(clocks), clocks.index(max(clocks)))


def _bytes_of(name: str, array: NDArray[Any]) -> NDArray[np.uint8]:
    if not isinstance(array, np.ndarray) or not array.flags.c_contiguous or not array.flags.writeable:
        raise InvalidArgument(f"share: {name!r} is no C-contiguous array that may be written")
    return array.reshape(-1).view(np.uint8)
