"""LocalSteps: a rank trains by itself, and exchanges fragments of the parameters every H steps.

After its step t a rank *begins* the exchange of each fragment that is due: it pushes shared - own, where own are its
parameters and shared are the parameters that the fragment's last exchange gave. The owners fold the updates of all
ranks and apply the rule. The rank continues to train, and `delay` steps later it *takes* the new shared parameters.
(DiLoCo, algorithm 1; Streaming DiLoCo, algorithm 2.)

The shared parameters lie in the exchange. This file reads them only when an exchange begins and when it is taken;
between the two the owners write them.
"""

import hashlib
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from time import monotonic
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .._core import named, within
from ..context import Context
from ..errors import HpcommError, InvalidArgument, PeerFailed
from ..exchange import Exchange
from ..recovery import Recovered, equal_copies, recover
from ..stats import FragmentStats, LocalStats
from .agree import check_exchange, digest_of, ended_early, settings, tell
from .fragment import Fragment
from .fragments import Fragments
from .roll_call import END, JOIN, STEP, SYNC, Aside, RollCall
from .schedule import Schedule
from .values import Array, Arrays, Values, checked_arrays

_CURE = "local.join(), or hpcomm.torch.join of a DiLoCo,"
_ALIGNED, _MET, _LEVEL = 1, 2, 3  # phases of a sync, numbered by the part that has ended


@named("local_steps()", every=True)
def local_steps(
    ex: Exchange,
    params: Mapping[str, Any] | None = None,
    *,
    every: int,
    fragments: object = 1,
    delay: int = 0,
    mix: float = 1.0,
) -> "LocalSteps":
    """Makes LocalSteps: each rank trains alone, and ranks exchange their progress once in H steps. Collective.

    This is DiLoCo (arXiv 2311.08105, algorithm 1). With several fragments, a delay or a mix below 1 it is Streaming
    DiLoCo (arXiv 2501.18512, algorithm 2).

        ex = hpcomm.Exchange(ctx, {"w": w0}, rule=hpcomm.Nesterov(lr=0.7, momentum=0.9))
        local = hpcomm.local_steps(ex, every=50)
        for batch in batches:
            local.params["w"] -= rate * gradient(local.params["w"], batch)   # or any optimizer
            local.step()
        local.sync()

    The rule of the exchange is the outer optimizer. Its gradient is the mean over ranks of *parameters at the last
    exchange minus parameters now*. With SGD(lr=1), which is local SGD, ranks take the mean of their parameters.

    The codec of the exchange encodes updates. TopK with SGD(lr=1) is SparseLoCo (arXiv 2508.15706); TopK with Nesterov
    keeps the outer momentum. With apply_at="receivers" the folded updates are also encoded on their way back.

    Args:
        ex: an exchange over all ranks, with servers or peers. Under SSP(s) a rank may be s exchanges of a fragment
            ahead of the slowest rank. With a quorum, exchanges proceed without late ranks. A late rank takes the newest
            parameters, counts as many steps as the others, and continues. With a quorum and several fragments,
            Exchange(groups=) must name the same fragments.
        params: the trainer's array for each key: float32, of the key's shape, writable. The arrays are overwritten with
            the exchange's values, which are rank 0's. None: new arrays are made.
        every: H, the number of this rank's steps from one exchange of a fragment to its next.
        fragments: which keys are exchanged together. A number n makes n groups of neighbouring layers, with about the
            same number of elements each; keys that have the same name up to the last dot form a layer. It may also be
            hpcomm.local.Strided(n), or a sequence of sequences of key names. The fragments' exchanges are spread evenly
            over H steps.
        delay: the number of steps between the start of an exchange and the take of its parameters, 0 to H - 1. The
            exchange overlaps these steps only if a thread works for it: make ex with progress="thread".
        mix: the weight of the new parameters when a rank takes them, above 0 and at most 1 (1 - alpha in the paper):
            own = (1 - mix) * own + mix * shared. With a mix below 1, codecs that keep a residual are refused.

    Raises:
        InvalidArgument: this or another rank gave an invalid argument: every is below 1; delay is not below every;
            fragments leave out or repeat a key; mix is outside (0, 1]; or the exchange is on a graph, has the rule
            Average or Assign, or has split or codecs of factors.
        ConfigError: ranks gave different arguments.
    """
    wrong = None
    try:
        if not isinstance(ex, Exchange):
            raise InvalidArgument(f"ex is {ex!r}: must be an Exchange")
        ex._check_idle("local_steps")
        schedule, found = settings(ex, every, fragments, delay, mix)
        check_exchange(ex, schedule, found)
        arrays = checked_arrays(params, ex.params)
    except Exception as refused:
        if not isinstance(ex, Exchange):
            raise
        wrong = refused
    if wrong is not None:
        tell(ex.context, wrong)
        raise wrong
    tell(ex.context, None, digest_of(schedule, found))
    return LocalSteps(ex, Arrays(arrays), schedule, found)


class _States(NamedTuple):
    """The state of all ranks, one row for each rank: its steps, how often it has called sync(), whether it is in
    sync(), and for each fragment how many of its exchanges have come."""

    steps: NDArray[np.int64]
    syncs: NDArray[np.int64]
    syncing: NDArray[np.int64]
    done: NDArray[np.int64]


class LocalSteps:
    """The parameters that this rank trains, and the exchange of their changes. local_steps() makes it.

    Attributes:
        exchange: the exchange of the updates; LocalSteps.recover() replaces it.
        schedule: every, delay and mix.
        steps: how many steps this rank has made.
    """

    def __init__(self, ex: Exchange, values: Values, schedule: Schedule, fragments: Fragments) -> None:
        self.exchange, self.schedule, self.steps = ex, schedule, 0
        self._values = values
        self._fragments = [Fragment(names) for names in fragments]
        self._roll_call = RollCall(ex.context, 1 + len(self._fragments))
        self._trained = 0  # the last step that this rank trained itself; steps may also count others' steps
        self._cut = False  # whether the last step was interrupted
        self._meets = 0  # in a join block: how many meetings before exchanges have not ended
        self._joined = self._is_entered = False
        self._syncs = 0  # calls of sync
        self._syncing, self._phase = False, 0  # the last phase of the sync that has ended
        self._aside: Aside | None = None
        self._scratch: Array | None = None

    @property
    def context(self) -> Context:
        """The context of the ranks. After LocalSteps.recover(), of the remaining ranks."""
        return self.exchange.context

    @property
    def fragments(self) -> Fragments:
        """The names of each fragment's keys."""
        return tuple(one.names for one in self._fragments)

    @property
    def params(self) -> Mapping[str, Array]:
        """The arrays that this rank trains, by key name."""
        return self._values.arrays

    # ---- steps -------------------------------------------------------------------------------------------------------

    @named("local.step()", every=False)
    def step(self) -> None:
        """Begins the exchanges that are due, and takes the exchanges that began `delay` steps before.

        Call it after each step of this rank's training. It waits for other ranks only if an exchange that it takes has
        not come yet. After a Timeout or Ctrl-C the step counts as made, and nothing is lost: continue training; the
        next call of step(), sync() or wait() completes it.

        Raises:
            PeerFailed: a rank died: call LocalSteps.recover(), and continue with the next step. Or another rank has
                ended after fewer steps: use LocalSteps.join().
            Timeout: as in Exchange.push_pull.
            InvalidArgument: the last sync() was interrupted and not called again.
        """
        if self._syncing:
            raise InvalidArgument(f"rank {self.context.rank}: the last sync was cut short: call sync or recover first")
        for one in self._fragments:
            one.has_learned = True
        self.steps += 1
        self._trained = self.steps
        self._cut = True
        self._meets += self._joined and self.schedule.due(self.steps)
        try:
            self._complete()
        except PeerFailed as failed:
            raise ended_early(self.context, failed, "", self.steps, _CURE) from failed

    def _complete(self) -> None:
        """Completes the last step, and any earlier step that was interrupted."""
        if not self._cut:
            return
        try:
            while self._meets:
                self._runs(True)
                self._meets -= 1
            self._work()
        except BaseException:
            self._remember()
            raise
        self._cut = False

    def _remember(self) -> None:
        """Notes that the step is interrupted. Exchanges that should have been taken at this step lack the changes that
        this rank makes from now on. So this rank copies its parameters, and keeps the later changes when it takes the
        exchanges."""
        for one in self._fragments:
            if one.begun is None or one.full or not self._is_due(one):
                continue
            if not one.is_late:
                one.since.clear()
                one.is_late = True
                one.has_learned = one.has_learned and self.schedule.mix < 1
            new = [name for name in one.left if name in one.pushed and name not in one.since]
            one.since.update((name, self._values.copy(name)) for name in new)

    def _is_due(self, one: Fragment) -> bool:
        """Returns whether an exchange that has begun should have been taken by this step."""
        return one.begun is not None and self.steps >= one.begun + self.schedule.delay

    def _work(self) -> None:
        """Does all that is due at this step."""
        for number, one in enumerate(self._fragments):  # begin before waiting, so that the wire is not idle
            while one.scheduled < self.schedule.begun_by(number, self.steps) or one.is_owed:
                if one.begun is not None:  # as in a sync
                    self._take(number)
                self._begin(number)
        self._take_due()
        for number, one in enumerate(self._fragments):
            if one.trained_since is not None and one.look():
                self._unhide(number)

    def _take_due(self) -> None:
        for number, one in enumerate(self._fragments):
            if one.begun is not None and (self._syncing or self._is_due(one)):
                self._take(number)

    @named("local.sync()", every=True)
    def sync(self) -> None:
        """Exchanges all fragments now and takes the new parameters with mix 1, so that all ranks have the exchange's
        parameters. Collective.

        Use it at the end of the training, or before an evaluation. Ranks that have made fewer steps, as after a
        recovery, count as many steps as the others afterwards.

        An exchange that has begun is taken first. The changes that a rank has made since that exchange began are pushed
        in one more exchange. A fragment that no rank has trained since its last exchange is not exchanged, as only the
        outer momentum would act.

        After a Timeout or Ctrl-C call sync() again: it continues. Until it has ended, step() raises InvalidArgument.
        """
        if not self._syncing:
            self._complete()
            self._syncs += 1
            self._begin_sync()
        self._finish_sync()

    def _begin_sync(self) -> None:
        self._syncing, self._phase, self._aside = True, 0, None

    def _finish_sync(self) -> None:
        """Does the rest of a sync(), which may have been interrupted at any point."""
        if self._phase < _ALIGNED:
            self._align(SYNC)
            self._phase = _ALIGNED
        self._work()
        if not self.exchange._state.all.in_step:
            self._meet()
        for one in self._fragments:
            for name in one.names:
                self._values.take(name, self.exchange.params[name], 1.0)
            one.has_learned = False
        self._values.end()
        self._syncing = False

    def _align(self, op: str) -> None:
        """Sets the step count of all ranks to the largest one. Collective. In a sync() ranks also agree on the
        fragments that need one more exchange: those that some rank has changed since their last exchange, if no
        exchange is due that would send the changes."""
        told = [2 * one.scheduled + one.has_learned for one in self._fragments]
        every = self._roll_call.gather(op, [self.steps, *told])
        self.steps = max(int(every[:, 0].max()), self.steps)
        for number, one in enumerate(self._fragments):
            scheduled, learned = every[:, 1 + number] // 2, every[:, 1 + number] % 2 == 1
            due = self.schedule.begun_by(number, self.steps)
            one.is_owed = op == SYNC and bool((learned & (scheduled >= due)).any())

    def _meet(self) -> None:
        """Makes all ranks' parameters equal if the exchange is not under BSP. Collective.

        With servers a rank's parameters may lack pushes of others. Once all ranks have met, the owners have all updates
        and send the result to all. Peers may have added updates in different orders, so their copies are made equal.
        """
        if self._phase < _MET:
            self._roll_call.gather(END, [])
            self._phase = _MET
        if self._phase < _LEVEL:
            self._aside = self._aside or Aside(self._level)
            try:
                self._aside.wait(self.context.rank, SYNC, self.context.config.timeout)
            finally:
                if self._aside.is_over:
                    self._aside = None
            self._phase = _LEVEL

    def _level(self) -> None:
        ex = self.exchange
        facts = ex._state.facts  # under SSP(s) peers have added the same updates in different orders
        differ = {name for name, its in facts.items() if its.peers and not its.own and not its.copied}
        shard = equal_copies(self.context, ex.state_dict(), differ, math.inf)
        ex.load_state_dict(shard, math.inf)

    def _begin(self, number: int) -> None:
        one, start = self._fragments[number], monotonic()
        one.begin(self.steps, full=self._syncing)
        one.is_extra = one.scheduled >= self.schedule.begun_by(number, self.steps)
        if one.is_extra:
            one.extra, one.is_owed = one.extra + 1, False
        else:
            one.scheduled += 1
        with self.context.span(f"fragment {number}: begin"):
            self._push_rest(one)
        one.trained_since = monotonic()
        one.waited += one.trained_since - start

    def _push_rest(self, one: Fragment) -> None:
        """Pushes those keys of the fragment that are not pushed yet. A Timeout or Ctrl-C may have interrupted the
        pushes."""
        ex = self.exchange
        trains_on = self.schedule.delay > 0 and not one.full
        self._values.begin()
        with ex.together():
            for name in one.names:
                if name in one.pushed:
                    continue
                shared, slot, pushes = ex.params[name], ex.gradient(name), ex._state.pushes(name)
                narrow = slot.dtype != np.float32
                update = self._room(shared) if narrow else slot
                self._values.subtract(name, shared, update)
                if trains_on:
                    one.since[name] = self._values.copy(name)
                try:
                    one.handles.append(ex.push_pull_nb(name, update if narrow else None))
                except BaseException:
                    if ex._state.pushes(name) > pushes:  # the update is encoded, and perhaps sent
                        one.pushed.add(name)
                        one.cut.append(name)
                    raise
                one.pushed.add(name)
        one.handles.reverse()

    def _room(self, like: Array) -> Array:
        """Returns memory for an update that the codec encodes with fewer bytes than float32."""
        if self._scratch is None or self._scratch.size < like.size:
            self._scratch = np.empty(like.size, np.float32)
        return self._scratch[: like.size].reshape(like.shape)

    def _take(self, number: int) -> None:
        """Waits for the exchange and takes it.

        Changes that this rank has made between the start and the step of the take get the weight 1 - mix. If this rank
        has not trained up to that step (as in a sync), it keeps these changes in full. If the take was interrupted at
        its step, changes since then are kept in full too.
        """
        self._unhide(number)
        one, ex, start = self._fragments[number], self.exchange, monotonic()
        assert one.begun is not None
        stays = one.is_late or self._trained < one.begun + self.schedule.delay
        in_full = one.full or (self._syncing and not one.is_late)
        mix = 1.0 if in_full else self.schedule.mix
        with self.context.span(f"fragment {number}: take"):
            if len(one.pushed) < len(one.names):
                self._push_rest(one)
            one.come(ex)
            self._values.begin()
            late = set(ex.late).intersection(one.names)
            while one.left:
                name = one.left[-1]
                since = one.since.get(name) if stays else None
                self._values.take(name, ex.params[name], 1.0 if name in late else mix, since)
                one.left.pop()
            self._values.end()
        one.late += bool(late)
        one.has_learned = one.has_learned and (stays or (mix < 1 and not late))
        one.end()
        if late:
            self._catch_up(number)
        one.waited += monotonic() - start

    def _catch_up(self, number: int) -> None:
        """With a quorum, if this rank's update was late: counts the exchanges that others made without this rank, and
        sets the step count accordingly, so that all ranks end their training together."""
        one = self._fragments[number]
        one.scheduled = max(one.scheduled, self.exchange._state.folds(one.names[0]) - one.extra)
        steps = self.schedule.step_of(number, one.scheduled)
        if steps > self.steps:
            self._skip_to(steps)

    def _skip_to(self, steps: int) -> None:
        """Sets the step count, without the exchanges that were due until then."""
        self.steps = steps
        for number, one in enumerate(self._fragments):
            one.scheduled = max(one.scheduled, self.schedule.begun_by(number, steps))

    def _unhide(self, number: int) -> None:
        """Ends the time in which training overlaps a fragment's exchange: the exchange has come, or this rank now waits
        for it."""
        one = self._fragments[number]
        if one.trained_since is not None:
            one.hidden += monotonic() - one.trained_since
            self.context.span_since(f"fragment {number}: under way", one.trained_since)
            one.trained_since = None

    @named("local.wait()", every=False)
    def wait(self) -> None:
        """Waits until all begun exchanges have come. step() takes them at their steps. Also completes an interrupted
        step.

        Call it before a Checkpointer saves, and before you read exchange.params, which are the shared parameters.
        """
        if not self._syncing:
            self._complete()
        for number, one in enumerate(self._fragments):
            if one.begun is not None and len(one.pushed) < len(one.names):
                self._push_rest(one)
            self._unhide(number)
            start = monotonic()
            one.come(self.exchange)
            one.waited += monotonic() - start

    def stats(self) -> LocalStats:
        """Returns this rank's counts so far."""
        ex = self.exchange
        found = []
        for one in self._fragments:
            elements = sum(ex.params[name].size for name in one.names)
            sent = one.sent + ex._state.bytes_sent(one.names)
            found.append(FragmentStats(one.names, elements, one.rounds, one.late, sent, one.hidden, one.waited))
        return LocalStats(self.steps, tuple(found))

    # ---- ranks that run out, and ranks that die ----------------------------------------------------------------------

    @contextmanager
    def join(self) -> Iterator[None]:
        """Returns a with block in which ranks may make different numbers of steps. Collective: all ranks enter and
        leave it.

            with local.join():
                for batch in batches:
                    ...
                    local.step()

        A rank that has left the loop takes part in the others' exchanges, with the changes that it had made, until all
        ranks have left their loops. In the block all ranks meet whenever an exchange begins, so the exchange waits for
        the slowest rank. Afterwards all ranks count as many steps as the rank that made the most.
        """
        if self._joined:
            raise InvalidArgument(f"rank {self.context.rank}: join: these local steps are in a join block already")
        with within("join()", every=True):
            if not self._is_entered:  # if it is entered, the last call was interrupted after _align
                self._align(JOIN)
                self._is_entered = True
            self._work()
        self._joined, self._is_entered = True, False
        try:
            yield
            with within("join()", every=True):
                self._complete()
                while self._runs(False):
                    self.steps = self.schedule.next_due(self.steps)
                    self._work()
        finally:
            self._joined = False

    def _runs(self, runs: bool) -> bool:
        """Meets the other ranks before an exchange. Returns whether any rank makes a step. If none does, all ranks get
        the same step count."""
        every = self._roll_call.gather(STEP, [int(runs), self.steps])
        if every[:, 0].any():
            return True
        self.steps = int(every[:, 1].max())
        self._take_due()
        return False

    @named("local.recover()", every=True)
    def recover(self, timeout: float | None = None) -> Recovered:
        """Continues with the remaining ranks after PeerFailed, without a checkpoint. Collective over these ranks.

            try:
                local.step()
            except hpcomm.PeerFailed:
                local.recover()

        Parameters come from the remaining ranks. The following are lost, and a warning says so:

        - the dead rank's changes since its last exchange, and its residuals;
        - if owners apply the rule: the rule's state (such as the outer momentum) of elements that the dead rank owned.
          It becomes zero.

        The changes of the remaining ranks stay: interrupted exchanges begin again. Under SSP and with a quorum the
        changes are pushed in the next exchange instead; codecs that keep a residual may lose a push that was being
        sent; and slow ranks count as many steps as the others.

        recover() completes the step() or sync() that raised: continue with the next step. If some ranks were in a
        sync() that others had ended, all ranks sync again. Close the Checkpointer before, and make another one
        afterwards.

        Returns:
            The result of hpcomm.recover(); its clock is this rank's number of steps. The attributes context and
            exchange are new objects afterwards.

        Raises:
            InvalidArgument: this rank is in a join block: leave it first.
            PeerFailed: one more rank has died: call recover() again. The errors of hpcomm.recover() come through too.
        """
        if self._joined:
            raise InvalidArgument(
                f"rank {self.context.rank}: recover: leave the join block first, in which ranks meet that are gone"
            )
        if self._aside is not None:  # revoke makes this call end
            self.context.revoke()
            with suppress(HpcommError):
                self._aside.wait(self.context.rank, SYNC, self.context.config.timeout)
            self._aside = None
        for one in self._fragments:
            one.look()
        found = recover(self.exchange, survivors=True, timeout=timeout)
        for one in self._fragments:
            one.sent += self.exchange._state.bytes_sent(one.names)
        self.exchange = found.exchange
        states = self._states(timeout)
        self._roll_call = RollCall(self.context, 1 + len(self._fragments), timeout)
        self._drop_lost(states.done)
        self._meets, self._is_entered = 0, False
        if not self.exchange._state.all.in_step:  # after recovery all ranks push equally often
            self._skip_to(int(states.steps.max()))
        missing = (states.syncs < states.syncs.max()).any()  # some ranks had not called the sync of the others
        if self._syncing or (states.syncing.any() and not missing):
            self._cut = False
            self._begin_sync()
            self._finish_sync()
        else:
            self._cut = True
            self._complete()
        return replace(found, clock=self.steps)

    def _states(self, timeout: float | None) -> "_States":
        """Returns the state of all ranks. Collective."""
        done = [one.rounds - (one.begun is not None and not one.has_come()) for one in self._fragments]
        told = np.array([self.steps, self._syncs, self._syncing, *done], np.int64).tobytes()
        every = np.stack([np.frombuffer(part, np.int64) for part in self.context.allgather(told, timeout)])
        return _States(every[:, 0], every[:, 1], every[:, 2], every[:, 3:])

    def _drop_lost(self, done: NDArray[np.int64]) -> None:
        """Forgets exchanges that had begun in the lost exchange. done[r, p]: how many exchanges of fragment p have come
        to rank r.

        If an exchange has come to any rank, its result is in the shared parameters, so it counts as come on this rank
        too. Under BSP, where all ranks push a fragment equally often, any other exchange begins again. Under another
        consistency its changes are pushed in the next exchange. In both cases the update is computed again from the
        parameters. The values that the residual has (under BSP also values of the update that were not applied) would
        then count twice, so they are subtracted from this rank's changes.
        """
        ex, whole = self.exchange, self.exchange._state.all.in_step
        for one, most in zip(self._fragments, done.max(axis=0).tolist(), strict=True):
            one.handles.clear()
            one.cut.clear()
            one.trained_since, one.is_owed = None, False
            if one.begun is None:
                continue
            if whole and most >= one.rounds:
                one.pushed.update(one.names)
                continue
            for name in one.pushed:
                if ex._state.facts[name].keeps_back:
                    self._values.take(name, ex.params[name], 1.0, one.since.get(name))
            one.has_learned = True
            if one.is_extra:
                one.extra -= 1
            else:
                one.scheduled -= whole
            one.end()
        self._values.end()

    # ---- state -------------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Returns this rank's state that the exchange lacks: its own parameters, its step count, and its exchanges that
        are not taken yet. Waits for pending exchanges.

        It is a dict of arrays and numbers, for the argument extra of a Checkpointer or for numpy.savez.

            saver = hpcomm.Checkpointer(ex, "checkpoints", every=1000)
            local.step()
            local.wait()                         # if step + 1 is due
            saver.after(step + 1, local.state_dict)
        """
        self.wait()
        own = {f"local.own.{name}": value for name, value in self._values.saved().items()}
        since = {f"local.since.{name}": value for name, value in self.since().items()}
        return {**{f"local.{name}": value for name, value in self.progress().items()}, **own, **since}

    @named("local.load_state_dict()", every=False)
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Loads a result of state_dict(). Training then continues with the same bits, even if the state was saved while
        an exchange was pending.

        Restore the exchange first. Entries of state that state_dict() does not write are ignored.

            found = hpcomm.restore(ex, "checkpoints")
            local.load_state_dict(found.extra)

        Raises:
            InvalidArgument: the state has another schedule, other fragments or other keys.
        """
        try:
            found = {name: np.asarray(state[f"local.{name}"]).tolist() for name in self.progress()}
            names = [name for one in self._fragments for name in one.names]
            own = {name: state[f"local.own.{name}"] for name in names}
            since = {name: state[f"local.since.{name}"] for name in names if f"local.since.{name}" in state}
        except KeyError as missing:
            raise InvalidArgument(
                f"rank {self.context.rank}: load_state_dict: the state has no {missing}: give what state_dict of local "
                "steps with the same keys gave"
            ) from None
        self.set_progress(found, since)
        self._values.load(own)

    def progress(self) -> dict[str, Any]:
        """Returns the numbers in state_dict(): the step count and those of each fragment."""
        return {
            "every": self.schedule.every,
            "fragments": hashlib.blake2b(repr(self.fragments).encode(), digest_size=8).hexdigest(),
            "steps": self.steps,
            "synced": self._syncs,
            **{
                name: [one.numbers()[name] for one in self._fragments]
                for name in ("rounds", "syncs", "begun", "learned")
            },
        }

    def since(self) -> dict[str, Array]:
        """Returns the arrays in state_dict() that are not parameters: the copies that pending exchanges keep
        (Fragment.since)."""
        return {name: value for one in self._fragments for name, value in one.since.items()}

    def check_progress(self, found: Mapping[str, Any]) -> None:
        """Raises InvalidArgument if the result of progress() has another schedule, other fragments or other keys."""
        mine = self.progress()
        if missing := [name for name in mine if name not in found]:
            raise InvalidArgument(
                f"rank {self.context.rank}: load_state_dict: the state of local steps has no {missing[0]!r}"
            )
        if any(str(found[name]) != str(mine[name]) for name in ("every", "fragments")):
            raise InvalidArgument(
                f"rank {self.context.rank}: load_state_dict: the state is of every={found['every']} and "
                f"{len(found['rounds'])} fragments, and here are every={self.schedule.every} and "
                f"{len(self._fragments)} fragments: give the same every, and fragments of the same keys"
            )

    def set_progress(self, found: Mapping[str, Any], since: Mapping[str, Any]) -> None:
        """Loads results of progress() and since(). An exchange that was pending when they were saved counts as come.
        Waits for this rank's pending exchanges first."""
        self.check_progress(found)
        self.wait()
        self.steps = self._trained = int(found["steps"])
        self._syncs, self._syncing, self._cut, self._meets = int(found["synced"]), False, False, 0
        copies = {name: np.array(value, np.float32) for name, value in since.items()}
        for number, one in enumerate(self._fragments):
            one.load({name: found[name][number] for name in ("rounds", "syncs", "begun", "learned")}, copies)

    def __repr__(self) -> str:
        return (
            f"<hpcomm.local.LocalSteps rank {self.context.rank}, step {self.steps}, {len(self._fragments)} fragments "
            f"every {self.schedule.every} steps>"
        )
