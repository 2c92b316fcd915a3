"""The loop of a training that goes on when ranks are lost."""

import math
from collections.abc import Callable
from contextlib import suppress
from os import PathLike

from ..context import Context
from ..errors import HpcommError, PeerFailed
from ..exchange import Exchange
from .recovery import Recovered, recover


def run(
    exchange: Exchange,
    step: Callable[[Exchange, int], object],
    steps: int,
    *,
    first: int = 0,
    recovered: Callable[[Recovered], object] = lambda _: None,
    checkpoint: str | PathLike[str] | None = None,
    survivors: bool = False,
    least: int = 1,
    timeout: float | None = None,
) -> Exchange:
    """Calls step(exchange, n) for n from first to steps - 1. If a rank dies or leaves meanwhile, the survivors recover
    and go on from the step that they have agreed on. Collective; a rank that only serves makes no steps, but serves
    until the workers have closed.

        def step(ex, n):
            ex.step(gradients(ex.params))

        ex = hpcomm.run(ex, step, steps)

    Any other loop gets PeerFailed instead, and calls recover.

    Args:
        step: makes one step: every key is pushed and pulled once, of the exchange that it is given: after a recovery
            that is another one, with other arrays. It is to let PeerFailed pass, and may be called again for an n that
            it has been called for. With a quorum a rank whose update was late goes on from the n of the others.
        first: the step to begin with, of an exchange that was restored.
        recovered: is called after each recovery; close the Checkpointer and make another there.
        checkpoint, survivors, timeout: as recover. The end, where ranks wait until all are done, has no deadline, nor
            has serve: the slowest may be far behind.
        least: with fewer ranks left PeerFailed is raised instead of going on. More than half of the ranks is what keeps
            the two sides of a broken network from both going on.

    Returns:
        The exchange as it is in the end, for the trainer to close, and then its context; the context that the trainer
        had made stays the trainer's as well. Contexts between the two are closed here.

    Raises:
        PeerFailed: fewer than least ranks are left.
        HpcommError: as step, recover and recovered.
    """
    given, n = exchange.context, first
    news: Recovered | None = None
    while True:
        try:
            if news is not None:
                recovered(news)
            make_steps(exchange, step, n, steps)
            if len(exchange.plan.workers) == exchange.context.size:
                exchange.context.barrier(math.inf)  # no rank goes while others may have to recover
            return exchange
        except PeerFailed:
            lost = exchange.context
        try:
            news = recover(exchange, checkpoint=checkpoint, survivors=survivors, timeout=timeout)
        except BaseException:
            with suppress(HpcommError):  # the first error counts
                if lost is not given:
                    lost.close()
            raise
        if lost is not given:
            lost.close()
        exchange, n = news.exchange, news.clock
        try:
            check_least("run", given, exchange.context, least)
        except PeerFailed:
            exchange.context.close()
            raise


def make_steps(exchange: Exchange, step: Callable[[Exchange, int], object], first: int, steps: int) -> None:
    """The steps of one exchange, or serving them, until a rank is lost."""
    if not exchange.params:
        exchange.serve()
        return
    n, begin = first, first - _folds(exchange)
    while n < steps:
        step(exchange, n)
        n = begin + _folds(exchange) if exchange._state.any.jumps else n + 1


def _folds(exchange: Exchange) -> int:
    """How far the parameters are, counted from anywhere."""
    return exchange.clock if exchange._state.any.own else exchange.version()


def check_least(op: str, first: Context, context: Context, least: int) -> None:
    """Raises PeerFailed if fewer than least ranks of the first context are left."""
    if context.size >= least:
        return
    lost = tuple(rank for rank, name in enumerate(first.ranks) if name not in context.ranks)
    raise PeerFailed(
        f"rank {first.rank}: {op}: ranks {', '.join(map(str, lost))} are gone; {context.size} are left, fewer "
        f"than least={least}",
        ranks=lost,
        op=op,
    )
