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
    """Calls step(exchange, n) for n from first to steps - 1, and calls recover() if a rank dies or leaves. Collective.

    The remaining ranks continue from a step on which they agree. A rank that only serves never calls step; it serves
    until the workers have closed.

        def step(ex, n):
            ex.step(gradients(ex.params))

        ex = hpcomm.run(ex, step, steps)

    In any other loop the trainer catches PeerFailed itself, and calls recover().

    Args:
        step: a function that makes one step. It must push and pull every key of the exchange that it is given exactly
            once. After a recovery it is given another exchange, with other arrays. It must not catch PeerFailed, and
            may be called again for the same n. With a quorum, a rank whose update was late continues from the n of the
            other ranks.
        first: the first n. It is more than 0 for an exchange that was restored.
        recovered: a function that is called after each recovery. Close the lost exchange's Checkpointer in it, and make
            another.
        checkpoint, survivors, timeout: as in recover(). The timeout does not apply to ranks that serve, nor to the end,
            at which ranks wait until all have made their steps: the slowest rank may be far behind.
        least: the number of ranks below which PeerFailed is raised. If least is more than half of the ranks, the two
            sides of a broken network cannot both continue.

    Returns:
        The exchange at the end. The trainer must close this exchange, then its context, then the context of the first
        exchange. run() closes the contexts that it made between the two.

    Raises:
        PeerFailed: fewer than least ranks remain.
        HpcommError: raised by step, recover() or the function recovered.
    """
    given, n = exchange.context, first
    news: Recovered | None = None
    while True:
        try:
            if news is not None:
                recovered(news)
            make_steps(exchange, step, n, steps)
            if len(exchange.plan.workers) == exchange.context.size:
                exchange.context.barrier(math.inf)  # no rank leaves while others may still have to recover
            return exchange
        except PeerFailed:
            lost = exchange.context
        try:
            news = recover(exchange, checkpoint=checkpoint, survivors=survivors, timeout=timeout)
        except BaseException:
            with suppress(HpcommError):  # the first error is the one to raise
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
    """Calls step(exchange, n) until n is steps; on a rank that only serves, serves the exchange until its workers
    close."""
    if not exchange.params:
        exchange.serve()
        return
    n, begin = first, first - _folds(exchange)
    while n < steps:
        step(exchange, n)
        n = begin + _folds(exchange) if exchange._state.any.jumps else n + 1


def _folds(exchange: Exchange) -> int:
    """Returns how many steps the parameters have had, plus a constant."""
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
