"""The training loop that continues when ranks are lost."""

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
    """Calls step(exchange, n) for n from first to steps - 1, and recovers if a rank dies or leaves. Collective.

    The remaining ranks continue from a step on which they agree. A rank that only serves makes no steps; it serves
    until the workers have closed.

        def step(ex, n):
            ex.step(gradients(ex.params))

        ex = hpcomm.run(ex, step, steps)

    In any other loop the trainer gets PeerFailed itself, and calls recover.

    Args:
        step: makes one step: it must push and pull every key of the given exchange once. After a recovery that is
            another exchange, with other arrays. step must let PeerFailed pass, and may be called again for the same n.
            With a quorum, a rank whose update was late continues from the n of the others.
        first: the first n, for an exchange that was restored.
        recovered: is called after each recovery; close the Checkpointer in it, and make another.
        checkpoint, survivors, timeout: as in recover. serve, and the end, at which ranks wait until all are done, have
            no deadline: the slowest rank may be far behind.
        least: if fewer ranks remain, PeerFailed is raised. With more than half of the ranks as least, the two sides of
            a broken network cannot both continue.

    Returns:
        The exchange at the end. The trainer closes it, then its context, then the context that the trainer had made;
        contexts between the two are closed here.

    Raises:
        PeerFailed: fewer than least ranks remain.
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
                exchange.context.barrier(math.inf)  # no rank leaves while others may have to recover
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
    """Makes the steps of one exchange, or serves them, until a rank is lost."""
    if not exchange.params:
        exchange.serve()
        return
    n, begin = first, first - _folds(exchange)
    while n < steps:
        step(exchange, n)
        n = begin + _folds(exchange) if exchange._state.any.jumps else n + 1


def _folds(exchange: Exchange) -> int:
    """Returns how many steps the parameters have had, from an arbitrary start."""
    return exchange.clock if exchange._state.any.own else exchange.version()


def check_least(op: str, first: Context, context: Context, least: int) -> None:
    """Raises PeerFailed if fewer than least ranks of the first context remain."""
    if context.size >= least:
        return
    lost = tuple(rank for rank, name in enumerate(first.ranks) if name not in context.ranks)
    raise PeerFailed(
        f"rank {first.rank}: {op}: ranks {', '.join(map(str, lost))} are gone; {context.size} are left, fewer "
        f"than least={least}",
        ranks=lost,
        op=op,
    )
