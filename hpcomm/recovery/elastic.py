"""Training that outlives its ranks: when some die or leave, the others shrink their context, agree on how far the
training has come, and go on.

    params, done = {"w": weights}, 0            # as of the last step that this rank has finished

    def train(start):
        start.share(params)                     # the newest of what is left
        ex = hpcomm.parameter_hub(start.context, params)
        for step in range(start.clock, steps):
            ex.step(gradients(ex.params))
            commit(ex.params, step + 1)         # copies into params, sets done

    hpcomm.elastic.survive(ctx, train, clock=lambda: done)

Where one exchange is all that has to go on, run makes its steps:

    def step(ex, n):
        ex.step(gradients(ex.params))

    ex = hpcomm.elastic.run(ex, step, steps, on_failure="shrink")   # or "raise"

The same as a loop of Horovod's elastic state (commit, restore, sync) or of ULFM's revoke, shrink and agree, without new
ranks in the places of dead ones. What is lost is what no rank has committed, and the data of the dead ranks' shards.
"""

import math
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from os import PathLike
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from ..context import Context
from ..errors import HpcommError, InvalidArgument, PeerFailed
from ..exchange import Exchange
from ..exchange.arguments import check_choice
from .recovery import Recovered, recover

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
    """train(start), and again with those that are left whenever it ends by PeerFailed; what it returns at last.
    Collective.

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
            _check_least("survive", first, context, least)


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
    """step(exchange, n) for n from first to steps - 1, and what to do when a rank dies or leaves meanwhile. Collective;
    a rank that only serves makes no steps, but serves until the workers have closed.

    Args:
        step: makes one step: every key is pushed and pulled once, of the exchange that it is given: after a recovery
            that is another one, with other arrays. It is to let PeerFailed pass, and may be called again for an n that
            it has been called for. With a quorum a rank that was late goes on from the n of the others.
        first: the step to begin with, of an exchange that was restored.
        on_failure: "raise": PeerFailed passes. "shrink": those that are left recover, and go on from the step that they
            have agreed on.
        recovered: is called after each recovery; a Checkpointer is closed and made anew there.
        checkpoint, timeout: as recover. The end, where nobody goes before all are done, has no deadline, as serve has
            none: the slowest may be far behind.
        least: with fewer ranks left PeerFailed is raised instead of going on.

    Returns:
        The exchange as it is in the end, for the trainer to close, and then its context; the context that the trainer
        had made stays the trainer's as well. Contexts between the two are closed here.

    Raises:
        PeerFailed: on_failure is "raise", or fewer than least ranks are left.
        Others as step, recover and recovered.
    """
    check_choice("on_failure", on_failure, ("raise", "shrink"))
    given, n = exchange.context, first
    news: Recovered | None = None
    while True:
        try:
            if news is not None:
                recovered(news)
            if not exchange.params:
                exchange.serve()
            begin = n - _folds(exchange)
            while n < steps and exchange.params:
                step(exchange, n)
                n = n + 1 if exchange._made.consistency.quorum is None else begin + _folds(exchange)
            if on_failure == "shrink" and len(exchange.plan.workers) == exchange.context.size:
                exchange.context.barrier(math.inf)  # nobody goes while others may have to recover
            return exchange
        except PeerFailed:
            if on_failure == "raise":
                raise
        lost = exchange.context
        try:
            news = recover(exchange, checkpoint=checkpoint, timeout=timeout)
        except BaseException:
            with suppress(HpcommError):  # what went wrong first is what counts
                if lost is not given:
                    lost.close()
            raise
        if lost is not given:
            lost.close()
        exchange, n = news.exchange, news.clock
        try:
            _check_least("run", given, exchange.context, least)
        except PeerFailed:
            exchange.context.close()
            raise


def _folds(exchange: Exchange) -> int:
    """How far the parameters are, counted from anywhere."""
    return exchange.clock if exchange.graph else exchange.version


def _check_least(op: str, first: Context, context: Context, least: int) -> None:
    if context.size >= least:
        return
    lost = tuple(rank for rank, name in enumerate(first.ranks) if name not in context.ranks)
    raise PeerFailed(
        f"rank {first.rank}: {op}: ranks {', '.join(map(str, lost))} are gone; {context.size} are left, and least is "
        f"{least}",
        ranks=lost,
        op=op,
    )


def _agree(context: Context, clock: int) -> Start:
    parts = context.allgather(int(clock).to_bytes(8, "little", signed=True))
    clocks = [int.from_bytes(part, "little", signed=True) for part in parts]
    return Start(context, max(clocks), clocks.index(max(clocks)))


def _bytes_of(name: str, array: NDArray[Any]) -> NDArray[np.uint8]:
    if not isinstance(array, np.ndarray) or not array.flags.c_contiguous or not array.flags.writeable:
        raise InvalidArgument(f"share: {name!r} is no C-contiguous array that may be written")
    return array.reshape(-1).view(np.uint8)
