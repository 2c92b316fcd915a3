"""Continuing on the remaining ranks, with the state that they keep, after a rank died or left."""

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
    """An exchange on the remaining ranks.

    Attributes:
        exchange: an exchange with the lost one's arguments, and the parameters and rule state of the remaining ranks.
            It has a new context; exchange.context.ranks has the numbers that its ranks had in the job's first context.
        clock: the step from which all ranks continue: the number of steps that count as made.
        lost: the ranks that are gone, by their numbers in the lost exchange.
        gap: the graph's spectral gap before and after. None with servers, and for more than 512 ranks without SciPy.
        extra: the extra values that were saved in the checkpoint by the rank that then had this rank's number. Empty if
            no checkpoint was read.
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
    """Makes a new exchange on the ranks that remain after others died or left early. Collective over the remaining
    ranks.

    Call it after PeerFailed. More ranks may die during the call. Ranks that still wait in the lost exchange get
    PeerFailed too (Context.revoke).

        try:
            w = ex.push_pull("w")
        except hpcomm.PeerFailed:
            recovered = hpcomm.recover(ex)
            ex, step = recovered.exchange, recovered.clock

    On a graph every rank keeps its own parameters and state. The graph is rebuilt by the function that was given as the
    topology, otherwise by graphs.among. Ranks that are behind take the clock of the furthest rank, and do not make up
    for the pushes that they missed. An interrupted step is folded only in the chunks that have all its updates.

    With servers, if all servers remain, the lost workers no longer count in the mean. A quorum that is larger than the
    number of remaining workers becomes that number. Each group of keys (EngineOptions.groups) continues from its newest
    version. An interrupted step is applied only in the chunks that had all its updates.

    If a rank that owned parameters is lost, these parameters are lost, and the last checkpoint is restored (ASAP,
    section 5) from a directory that all ranks can read. If receivers apply the rule (apply_at), this happens after the
    loss of any rank, since an interrupted step may be in only some of the copies.

    Among peers under BSP every rank has all parameters, so nothing is lost. The remaining copies are made equal: each
    chunk comes from the rank that has applied the most steps to it. Peers under SSP(s) need a checkpoint.

    Keys may have separate schemes. Then all schemes must be under BSP, with servers or among peers; or all under one
    quorum with servers (groups of keys). Each scheme continues as above.

    Under ASYNC and SSP(s), if all servers remain, the servers keep their state: every folded update counts once, also
    updates of lost workers. All workers continue from the first step of which no server has folded any part. So no
    worker pushes a folded update again, and workers that are behind skip steps. An update that was being sent counts
    only in the chunks that had received it.

    With survivors=True no checkpoint is read, even if owners are lost. recovered.clock is then the most steps of any
    row, and these rules hold:

    - A row whose owner remains keeps its parameters, the rule's state and the owner's residuals.
    - A row whose owner is lost continues from the newest copy that a worker has, judged by the answers that workers
      have received. All ranks take the same copy. The rule's state becomes zero. With a 16-bit codec_out the copy has
      16 bits. If the owner was writing a fold when it died, the copy may have the fold in only some elements.
    - A row that several ranks apply (apply_at, peers) comes, with its state, from the rank that has applied the most
      steps to it.
    - All rows of a key continue from the most steps of any of them; with a quorum, all rows of a group of keys do.
    - Under BSP no update of a remaining worker is lost. If a row has not applied a piece of this rank's last push
      (TopK, OneBit, Threshold), the piece goes back into this rank's residual. So does a piece that a row of this rank
      forwarded.
    - Under a quorum, ASYNC and SSP(s), and with split=True, the last push may be lost if it was interrupted.
    - Under ASYNC and SSP(s) workers continue from the first step that none of them has begun. A copy that is taken from
      a peer may lack updates of other peers.

    With codecs of pieces each rank keeps its residuals. The residuals of lost ranks are lost, and the log says so. The
    residual of an interrupted step is added to the next update, even if that step is made again.

    Close the lost exchange's Checkpointer before you call recover(), and make another afterwards. In the end the
    trainer closes exchange.context, and the context that it made itself. The lost exchange need not be closed, and its
    arrays stay readable. Rank 0 logs the spectral gap before and after, if it can be computed (logging's "hpcomm",
    WARNING).

    Args:
        ex: the exchange that raised PeerFailed.
        checkpoint: the directory of a Checkpointer. It is read only if parameters are lost.
        survivors: whether to continue from the remaining ranks' state even if owners are lost. On graphs recover()
            always does so. All ranks must give the same value.
        timeout: seconds for each part: agreeing on the remaining ranks, making the exchange, restoring. The time starts
            again when another rank dies.

    Raises:
        CheckpointError: a rank that owned parameters is lost, no checkpoint can be restored, and survivors is False.
        ConfigError: all remaining ranks only serve, so no worker remains; or ranks gave different values of survivors.
        NotSupported: the user gave the plan by its rows, so hpcomm cannot remake it without a rank; or each host has
            its own model (HostGraph); or keys have separate schemes, and one of them is on a graph, or they are neither
            all under BSP nor all under one quorum.
        InvalidArgument: on this or another rank, the function that was given as the topology makes no graph of so many
            ranks. Make another exchange over the context that Context.shrink returns.
        Timeout, TransportError: as Context.shrink.
    """
    made, old = ex._state.made, ex.context
    old.revoke()  # if a rank has left, only ranks that waited for it have noticed
    check_recovers(ex)
    for scheme in made.schemes:  # refuses schemes that cannot be rebuilt, before shrink takes over links
        scheme.among(range(len(made.ranks)), len(made.ranks))
    lost = [_lost(ex, {})]  # before shrink takes over the remaining links
    fresh = old.shrink(timeout)
    survivors = bool(survivors) and not ex._state.any.own
    while True:
        found: Recovered | None = None
        try:
            found = _over(ex, lost, fresh, checkpoint, survivors, timeout)
            fresh.barrier(timeout)  # a rank that has passed the barrier may push, also to ranks that have not
            return found
        except PeerFailed:  # ranks past the barrier call recover() on found; so does this rank if it has found
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
        kept: this rank's state from that exchange.
        extra: extra values of the checkpoint from which the exchange was restored.
        heard: this rank's knowledge of the exchange's rows; None until look() collects it.
    """

    exchange: Exchange
    kept: Kept
    extra: dict[str, Any]
    heard: Heard | None = None

    def look(self) -> Heard:
        """Returns the field heard. Call it after a shrink, when all remaining ranks have stopped, and before the
        context is closed."""
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
    """Makes the exchange on the ranks of a shrunk context.

    If a rank dies before all ranks have the new exchange, some ranks return here with it and others with the old one.
    So the new exchange depends only on the arguments of the job's first exchange and on the remaining ranks.

    Args:
        first: the exchange for which recover() was called.
        every: first, and all exchanges made since that have lost ranks as well.
        fresh: the shrunk context.
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
    """Returns the newest exchange that every rank has had. If any rank has continued with a later exchange, all others
    had that exchange too, since recover() ends with a barrier."""
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
    """Loads into each rank the rows that it owns in the new exchange, received from ranks that have them. Collective.
    Returns the clock."""
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
    if "encoders" in mine:  # in the new exchange the encoders belong to this rank
        mine |= whose(new._state.encoders)
    new.load_state_dict([mine, *others], timeout)
    return clock


def _agreed(
    ctx: Context, lost: _Lost, folded: int, missing: int, timeout: float | None
) -> tuple[int, int, NDArray[np.uint64], NDArray[np.float64]]:
    """Returns four values, the same on all ranks:

    - the most steps of which any rank has folded a part;
    - a dead rank that owned parameters in any rank's lost exchange, or -1 if none did;
    - for each key, the most steps of any row;
    - the rules' arguments, one row for each key, from the furthest worker: ranks may have been setting them when
      another died.
    """
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
    except NotSupported:  # a large graph without SciPy; the gap is only logged
        return None


def _told(gap: tuple[float, float] | None) -> str:
    return "; spectral gap " + ("not computed" if gap is None else f"{gap[0]:.4f} before, {gap[1]:.4f} now")


def _tell(lost: Sequence[int], clock: int, left: int, more: str) -> None:
    who = f"rank{'s' if len(lost) > 1 else ''} {', '.join(map(str, lost))}" if lost else "no rank"
    logger.warning("%s lost: %d ranks go on from step %d%s", who, left, clock, more)
