"""Going on after a rank died or left: over the survivors, with the state that they keep."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from os import PathLike
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .. import optim
from .._core import named
from ..checkpoint import restore
from ..checkpoint.resume import gather
from ..context import Context
from ..errors import CheckpointError, ConfigError, HpcommError, NotSupported, PeerFailed
from ..exchange import Exchange
from ..exchange.encoders import whose
from ..graphs import Graph, spectral_gap
from ..log import logger
from . import survivors as survivor_rows
from .copies import furthest
from .lost import Heard, Kept, check_recovers, clocks, go_on, heard_of, holds_back, kept_of, needed_of


@dataclass(frozen=True)
class Recovered:
    """An exchange over the ranks that are left.

    Attributes:
        exchange: made like the lost one, with the parameters and the rule's state of the survivors. It has a new
            context; exchange.context.ranks has the numbers of its ranks in the first context.
        clock: the step that all of them have agreed to go on from: the number of steps made.
        lost: the ranks that are gone, as the lost exchange called them.
        gap: the graph's spectral gap before and after; None with servers, and for more than 512 ranks without SciPy.
        extra: the extra values in the checkpoint, given by the rank that had this one's number then; empty without a
            checkpoint.
    """

    exchange: Exchange
    clock: int
    lost: tuple[int, ...]
    gap: tuple[float, float] | None
    extra: dict[str, Any]


@named("hpcomm.recover()", every=True)
def recover(
    ex: Exchange,
    *,
    checkpoint: str | PathLike[str] | None = None,
    survivors: bool = False,
    timeout: float | None = None,
) -> Recovered:
    """After PeerFailed: a new exchange over the survivors when ranks died, or left in the middle. Collective over the
    survivors; more may die meanwhile. Survivors that still wait in the lost exchange get PeerFailed too
    (Context.revoke).

        try:
            w = ex.push_pull("w")
        except hpcomm.PeerFailed:
            recovered = hpcomm.recover(ex)
            ex, step = recovered.exchange, recovered.clock

    On a graph every rank keeps its own parameters and state as they are, the graph is rebuilt (by the function that
    was given as the topology, or by graphs.among), and ranks that are behind take the clock of the furthest: their
    missing pushes are not made up for. A step that was cut short is folded in the chunks that have all its updates, and
    in no others.

    If all servers survive, the lost workers' part is dropped: their updates count no more, also not in the mean, and a
    quorum of more ranks than are left becomes one of all; each group of keys (EngineOptions.groups) goes on from its
    newest version. A step that was cut short is in the chunks that had all its updates, and in no others. A rank that
    owned parameters takes them with it, also when it leaves, and the last checkpoint is restored (ASAP, section 5),
    from a directory that all ranks can read. The same holds for any lost rank if receivers apply the rule (apply_at): a
    step that was cut short may be in some of their copies only.

    Among peers under BSP every rank has all parameters, and nothing is lost. The survivors' copies are made equal: each
    chunk comes from the rank that has applied most steps to it. Peers under SSP(s) need a checkpoint. If keys have
    separate schemes, all must be under BSP, with servers and among peers, or all under one quorum with servers (groups
    of keys), and each goes on as above.

    Under ASYNC and SSP(s), if all servers survive, they keep their state: every folded update counts once, also updates
    of lost workers. All workers go on from the first step that no server has folded any part of: no worker pushes a
    folded update again, and workers that are behind skip steps. An update that was on its way is in the chunks that had
    it already, and lost for the others.

    With survivors=True no checkpoint is read, for any lost rank, and recovered.clock is the most steps of any row:

    - A row whose owner survives goes on as it is: parameters, the rule's state and the owner's residuals. A row whose
      owner is gone goes on from the newest copy that a worker has, by the answers that have come there, with a state of
      zero; in 16 bits where codec_out says so. All ranks take the same copy. A fold that the owner was writing when it
      died may be in some elements of that copy.
    - If several ranks apply a row (apply_at, peers) it comes from the one that has applied most steps to it, with its
      state.
    - All rows of a key go on from the most steps of any of them; with a quorum all rows of a group of keys.
    - Under BSP a piece of this rank's last push (TopK, OneBit, Threshold) that a row has not applied goes back into
      this rank's residual, and so does a piece that a row of this rank had forwarded: nothing of a surviving worker is
      lost. Under a quorum, ASYNC and SSP(s), and with split=True, the last push may be lost where it was cut short.
    - Under ASYNC and SSP(s) workers go on from the first step that none of them has begun, and a peer's copy that is
      taken lacks some updates of the others.

    With codecs of pieces each rank keeps its residuals; residuals of lost ranks are lost, which the log says. The
    residual of a step that was cut short is added to the next update, also if that step is made again.

    Close a Checkpointer of the lost exchange before, and make another. The trainer closes exchange.context in the end,
    and the context that it made; the lost exchange needs no close, and its arrays stay readable. The spectral gap
    before and after is logged by rank 0 (logging's "hpcomm", WARNING), if it can be computed.

    Args:
        ex: the exchange that raised.
        checkpoint: a Checkpointer's directory, for a server that died; it is not read otherwise.
        survivors: go on from the survivors' state, also if owners are gone. On graphs recover always does. All ranks
            give the same.
        timeout: seconds for each part: to agree on the survivors, to make the exchange, to restore; again when another
            rank dies.

    Raises:
        CheckpointError: a rank that owned parameters is gone, there is no checkpoint to restore, and survivors is
            False.
        ConfigError: no worker is left, only ranks that serve; or ranks give different survivors.
        NotSupported: the plan was given by its rows, so that it cannot be remade without a rank; or each host has its
            own model (HostGraph); or keys have separate schemes, and one of them is on a graph, or they are neither
            all under BSP nor all under one quorum.
        InvalidArgument: the function that was given as the topology makes no graph of so many ranks, here or on another
            rank: make another exchange, of Context.shrink's context.
        Timeout, TransportError: as Context.shrink.
    """
    made, old = ex._state.made, ex.context
    old.revoke()  # if a rank has left, only ranks that wait for it know
    check_recovers(ex)
    for scheme in made.schemes:  # schemes that cannot be rebuilt are refused before the links change hands
        scheme.among(range(len(made.ranks)), len(made.ranks))
    lost = [_lost(ex, {})]  # before the links that are left change hands
    fresh = old.shrink(timeout)
    survivors = bool(survivors) and not ex._state.any.own
    while True:
        found: Recovered | None = None
        try:
            found = _over(ex, lost, fresh, checkpoint, survivors, timeout)
            fresh.barrier(timeout)  # a rank that has passed it may push, also to ranks that have not
            return found
        except PeerFailed:  # ranks that have passed it recover from found; so does this rank if it has one
            dead = fresh
        except BaseException:
            with suppress(HpcommError):  # the first error counts
                fresh.close()
            raise
        try:
            dead.revoke()
            if found is not None:
                lost.append(_lost(found.exchange, found.extra))
            fresh = dead.shrink(timeout)
            if found is not None and survivors:  # while its context is open
                lost[-1].look()
        except BaseException:
            with suppress(HpcommError):
                dead.close()
            raise
        dead.close()


@dataclass
class _Lost:
    """An exchange that has lost ranks.

    Attributes:
        kept: this rank's state from it.
        extra: extra values of the checkpoint that it was restored from.
        heard: this rank's knowledge of the others' rows; None: it has not looked yet.
    """

    exchange: Exchange
    kept: Kept
    extra: dict[str, Any]
    heard: Heard | None = None

    def look(self) -> Heard:
        """heard, once all ranks that are left have stopped: after a shrink, and before the context is closed."""
        if self.heard is None:
            self.heard = heard_of(self.exchange, self.kept)
        return self.heard


def _lost(ex: Exchange, extra: dict[str, Any]) -> _Lost:
    return _Lost(ex, kept_of(ex), extra)


def _over(
    first: Exchange,
    every: list[_Lost],
    fresh: Context,
    checkpoint: str | PathLike[str] | None,
    survivors: bool,
    timeout: float | None,
) -> Recovered:
    """The exchange over the ranks of a shrunk context. first: the one that recover was called for. every: that one, and
    the ones made since that have lost ranks as well.

    When a rank dies before all have it, some come again with it, others with the one before. So the new exchange
    depends on the arguments of the job's first exchange and on the survivors, and on nothing between.
    """
    if len(set(fresh.allgather(bytes([survivors]), timeout))) > 1:
        raise ConfigError("recover: some ranks give survivors=True and others do not: give all ranks the same")
    lost = _common(fresh, every, timeout) if survivors else every[-1]
    ex = lost.exchange
    made, old = ex._state.made, ex.context
    left = [made.ranks.index(name) for name in fresh.ranks]  # their numbers in the topology
    here = [old.ranks.index(name) for name in fresh.ranks]  # their numbers in ex
    gone = tuple(rank for rank, name in enumerate(first.context.ranks) if name not in fresh.ranks)
    schemes = [scheme.among(left, len(made.ranks)) for scheme in made.schemes]
    plan = made.plan
    if plan.cores is None and not ex.graph:
        plan = replace(plan, cores=max(core for _, core in ex.plan.places) + 1)
    found = survivor_rows.agreed(fresh, ex, lost.look(), here, timeout) if survivors else None
    needed = set() if survivors else needed_of(ex)
    missing = max((old.ranks[rank] for rank in needed.difference(here)), default=-1)
    clock, missing, steps, args = _agreed(fresh, lost, max(lost.kept.folded[rank] for rank in here), missing, timeout)
    if missing >= 0 and checkpoint is None:
        differ = ex._state.any.may_differ
        raise CheckpointError(
            f"rank {fresh.ranks[fresh.rank]}: recover: rank {missing} "
            f"{'is gone, and copies of the parameters may differ' if differ else 'owned parameters and is gone'}: give "
            "checkpoint, the directory of a Checkpointer, or survivors=True, to go on from the survivors' copies (the "
            "rank is numbered as in the first context)"
        )
    keys = {key.name: (key.shape, row) for key, row in zip(ex.plan.keys, args.tolist(), strict=True)}
    values = {  # in the order that the trainer gave
        name: ex.params[name] if ex.params else np.zeros(keys[name][0], np.float32) for name in ex.codecs
    }
    rule = optim.gathered(
        {
            name: optim.with_arguments(own, keys[name][1][: len(optim.arguments(own))])
            for name, own in optim.by_key(made.rule, values).items()
        }
    )
    topologies = {name: scheme.topology for scheme in schemes for name in scheme.names}
    consistencies = {name: scheme.consistency for scheme in schemes for name in scheme.names}
    new = Exchange(fresh, values, topologies, consistencies, rule, plan=plan, engine=made.engine, timeout=timeout)
    new._state.made = replace(made, plan=plan)
    extra = lost.extra
    held = ""
    if found is not None:
        clock = _go_on(fresh, lost, found, new, args, clock, timeout)
        held = survivor_rows.losses(ex, lost.kept, found, gone=bool(gone))
    elif missing >= 0:
        assert checkpoint is not None
        restored = restore(new, checkpoint, timeout=timeout)
        if restored is None:
            raise CheckpointError(f"recover: there is no checkpoint in {checkpoint}", path=checkpoint)
        clock, extra = restored.step, restored.extra
    else:
        kept = furthest(fresh, lost.kept, {name for name, its in ex._state.facts.items() if its.copied}, timeout)
        go_on(new, kept, args, clock, clocks(ex, steps, clock), timeout)
    gap = _gaps(first.graph, new.graph) if ex.graph else None
    if fresh.rank == 0:
        if not survivors and gone and holds_back(new):
            held = "; the lost ranks' residuals are lost"
        _tell(gone, clock, fresh.size, held + ("" if not ex.graph else _told(gap)))
    return Recovered(new, clock, gone, gap, extra)


def _common(ctx: Context, every: list[_Lost], timeout: float | None) -> _Lost:
    """The newest exchange that all ranks have had. If one of them has gone on with a later one, all others had that one
    too: they met before (recover)."""
    names = [list(one.exchange.context.ranks) for one in every]
    theirs = gather(ctx, names, ctx.config.timeout if timeout is None else timeout)
    return next(one for one, own in reversed(list(zip(every, names, strict=True))) if all(own in his for his in theirs))


def _go_on(
    ctx: Context,
    lost: _Lost,
    found: survivor_rows.Agreed,
    new: Exchange,
    args: NDArray[np.float64],
    folded: int,
    timeout: float | None,
) -> int:
    """Gives every rank its rows of the new exchange, from ranks that have them. Returns the clock. Collective."""
    ex, kept = lost.exchange, lost.kept
    shard = survivor_rows.residuals(ex, kept, lost.look(), found)
    mine = survivor_rows.moved(ctx, ex, kept, found, new, args, timeout)
    others = survivor_rows.strays(ctx, ex, shard, found, new, args, timeout)
    mine |= {name: value for name, value in shard.items() if name.startswith("encoder")}
    clock = int(found.steps.max())
    if ex._state.any.counts_updates:
        every = ctx.allgather(np.int64(kept.begun).tobytes(), timeout)
        clock = max(folded, *(int(np.frombuffer(part, np.int64)[0]) for part in every))
        mine["clock"] = clock
    if "encoders" in mine:  # which belong to this rank in new from here on
        mine |= whose(new._state.encoders)
    new.load_state_dict([mine, *others], timeout)
    return clock


def _agreed(
    ctx: Context, lost: _Lost, folded: int, missing: int, timeout: float | None
) -> tuple[int, int, NDArray[np.uint64], NDArray[np.float64]]:
    """The most steps of which any rank has folded anything; a dead rank that owned parameters in any rank's lost
    exchange, else -1; by key the most steps that a row has had; and the rules' arguments, a row a key, as the furthest
    worker has them: some may have been setting them when another one died."""
    args, steps = lost.kept.shard["args"], lost.kept.steps
    told = np.array([folded, missing, lost.kept.begun, *steps, *np.ravel(args)], np.float64).tobytes()
    every = [np.frombuffer(part) for part in ctx.allgather(told, timeout)]
    furthest = max(every, key=lambda part: float(part[2]))
    return (
        int(max(part[0] for part in every)),
        int(max(part[1] for part in every)),
        np.max([part[3 : 3 + len(steps)] for part in every], axis=0).astype(np.uint64),
        furthest[3 + len(steps) :].reshape(np.shape(args)),
    )


def _gaps(before: Sequence[Graph], now: Sequence[Graph]) -> tuple[float, float] | None:
    try:
        return spectral_gap(before), spectral_gap(now)
    except NotSupported:  # a large graph, and no SciPy: nothing depends on it
        return None


def _told(gap: tuple[float, float] | None) -> str:
    return "; spectral gap " + ("not computed" if gap is None else f"{gap[0]:.4f} before, {gap[1]:.4f} now")


def _tell(lost: Sequence[int], clock: int, left: int, more: str) -> None:
    who = f"rank{'s' if len(lost) > 1 else ''} {', '.join(map(str, lost))}" if lost else "no rank"
    logger.warning("%s lost: %d ranks go on from step %d%s", who, left, clock, more)
