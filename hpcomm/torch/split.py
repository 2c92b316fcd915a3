"""apply="step": while the backward pass runs, owners fold gradients: they sum them over ranks and keep the mean. step()
then applies the rule to one key after the other. With overlap=True the rule is still being applied while the next
forward pass begins (Poseidon, section 3.1: wait-free backpropagation)."""

import math
from collections.abc import Callable, Sequence
from os import PathLike
from typing import Any

import torch

from ..context import Context
from ..errors import InvalidArgument
from ..exchange import Exchange
from ..recovery import Recovered
from . import state
from .counts import Counts
from .key import ParamKey
from .mode import Mode, Scaling, lie_in, scale_gradients, scale_of
from .rules import Rules
from .tensors import as_float32
from .vote import Vote


def made_in_two(make: Callable[..., Exchange], ctx: Context, keys: Sequence[ParamKey], rules: Rules) -> Exchange:
    """Returns an exchange in which an update takes two calls, fold and apply."""
    return make(ctx, {key.name: key.value() for key in keys}, rules.by_key(), split=True)


class Split(Mode):
    """The mode with two calls for each key: the hook calls fold, and step() calls apply. This class is for BSP with
    servers."""

    def __init__(
        self,
        ctx: Context,
        keys: Sequence[ParamKey],
        counts: Counts,
        passes: int,
        clip_norm: float | None,
        rules: Rules,
        make: Callable[..., Exchange],
        may_be_pairs: Sequence[ParamKey],
        refuse: Callable[[Sequence[ParamKey], "Split"], None],
    ) -> None:
        """may_be_pairs: the keys that may be sent as pairs of vectors. refuse: a function that is given keys that must
        be sent as matrices from now on; it remakes the exchange."""
        super().__init__(ctx, keys, counts, passes, clip_norm)
        self.rules, self._make, self._may_be_pairs, self._refuse = rules, make, may_be_pairs, refuse
        self._vote = Vote(ctx, may_be_pairs) if may_be_pairs else None
        self.bind(self._made())

    def _made(self) -> Exchange:
        return made_in_two(self._make, self.context, self.keys, self.rules)

    def remake(self) -> None:
        """Replaces the exchange by a new one that make() returns, with the same parameters and state. Collective,
        between two steps.

        Codecs' residuals are dropped. If remake() raises, recover() continues from the old exchange, even if that is
        closed.
        """
        self.wait()
        owned = state.gather(self.exchange)
        self.exchange.close()
        made = self._made()
        state.load(made, {name: state.Loaded(*own) for name, own in owned.items()})
        self.context.barrier()  # past it, all ranks have the new exchange
        self.bind(made)

    def bind(self, exchange: Exchange) -> None:
        self.takes(exchange)
        self._fold, self._unit = exchange.split.fold_nb, 1.0
        lie_in(self.keys, exchange)
        for key in self.keys:
            key.apart = not exchange._state.facts[key.name].takes_writes
            key.takes_slot(exchange)
        self._pairs = [key for key in self.keys if key.most]
        self._to_send = len(self._pairs)
        self._late = self.device.apart or any(key.skips for key in self._pairs)  # only step knows the refused keys

    def send(self, key: ParamKey) -> None:
        if not self.begun:  # no mean is used before step(), so small gradients are sent together
            self.exchange.together()
        key.fold = key.push(self._fold)
        self.begun = True
        if key.most:
            self._to_send -= 1
            if not self._to_send and not self._late:  # then the vote goes on while the backward pass continues
                self._cast()

    def step(self, scaling: Scaling | None) -> None:
        scaling = self._left(scaling)
        self._finish(again=scaling is not None and scaling.scale is None)
        self._agree()
        scale: float | None = 1.0
        if scaling is not None or self.clip_norm is not None:
            scale = scale_of(self._squares(), scaling, self.clip_norm)
        ex = self.exchange
        if scale is None:
            self.counts.skipped += 1
            with ex.together():
                for key in self.order:
                    key.find_home()
                    key.handle = ex.split.skip_nb(key.name)
        else:
            self.rules.update(ex)
            self._scaled(1.0 if scaling is None or scaling.scale is None else scaling.scale)
            apply = ex.split.apply_nb
            with ex.together():
                for key in self.order:
                    key.give()
                    key.handle = apply(key.name, scale * key.factor)
        self._end()
        self.pending = True
        self.guard()
        self.counts.steps += scale is not None

    def _left(self, scaling: Scaling | None) -> Scaling | None:
        """Returns the part of the scaling that the mean still needs; None if it needs none."""
        if scaling is not None and scaling.scale is None and not self.synchronized:
            raise InvalidArgument("gradients were unscaled on this rank alone: call optimizer.synchronize() before")
        return scaling

    def _scaled(self, unit: float) -> None:
        """Tells the codecs the unit of this step's gradients. They scale their residuals by it."""
        if unit == self._unit:
            return
        for key in self.keys:
            self.exchange.split.set_unit(key.name, unit)
        self._unit = unit

    def _finish(self, *, again: bool = False) -> None:
        """Folds the gradients that the hooks have not folded. again: whether to fold gradients that synchronize() has
        averaged once more."""
        if self.synchronized:
            for key in self.keys:
                if key.sends_again(again):
                    key.sent = False
        elif not self._looked:
            self.check_unchanged()
        fold = self._fold
        for key in self.keys:
            if key.sent:
                continue
            if key.handle is not None:  # the key's layer was not used, so nothing has waited
                key.receive()
            if key.is_there() and self._counts():
                key.fold = key.push(fold)
            else:
                if key.param.grad is not None:  # p.grad may lie in the slot, so guard() must wait
                    self._in_place = -1
                key.fold = key.push_nothing(fold)
        self.starts.drain()

    def _counts(self) -> bool:
        """Returns whether this rank's gradients count. After synchronize() all ranks have the mean; if the exchange
        sums updates, only the first worker's gradients count then."""
        return not self.synchronized or self.workers.is_first or not self.exchange._state.sums

    def _cast(self) -> None:
        if self._vote is not None and self._pairs and not self._vote.is_cast and not self.agreed:
            self._vote.cast()

    def _agree(self) -> None:
        """Waits for the vote, before any mean is used. Layers that any rank refuses as pairs are sent as matrices by
        all ranks. If there are any, the step folds all gradients once more, and codecs' residuals are dropped."""
        self._cast()
        if self._vote is None or not self._vote.is_cast:
            return
        refused = self._vote.refused()
        self.agreed = True
        if not refused:
            return
        for key in self.keys:
            key.find_home()
        for handle in [self.exchange.split.skip_nb(key.name) for key in self.keys]:
            handle.wait()
        self._refuse(refused, self)
        for key in self.keys:
            key.sent = False
        self._finish()

    def _squares(self) -> float:
        """Returns the sum of squares of the mean gradient. All ranks get the same bits, since they add in the same
        order of keys."""
        self._wait_folds()
        found = 0.0
        with self.exchange.together():
            asked = [self.exchange.split.squares_nb(key.name) for key in self.keys]
        for key, handle in zip(self.keys, asked, strict=True):
            found += key.factor**2 * handle.wait()
        return found

    def _wait_folds(self) -> None:
        for key in self.keys:
            assert key.fold is not None
            key.fold.wait()

    def synchronize(self) -> None:
        if self.synchronized:
            return
        self._finish()
        self._agree()
        self._wait_folds()
        self._free_slots()
        zero = []
        for key, handle in [(key, self.exchange.split.gather_nb(key.name)) for key in self.keys]:
            mean = handle.wait()
            if mean.any():
                self._averaged(key, mean)
            else:
                zero.append((key, mean))
        for key, mean in self._had(zero):
            self._averaged(key, mean)
        self.synchronized, self.unguarded = True, False

    def _free_slots(self) -> None:
        """Makes the slots free, because means are written into them next."""
        for key in self.keys:
            key.leave_kept()

    def _averaged(self, key: ParamKey, mean: Any) -> None:
        key.averaged(mean)

    def _had(self, zero: Sequence[tuple[ParamKey, Any]]) -> list[tuple[ParamKey, Any]]:
        """Returns those entries of zero for which any rank has a gradient. zero: keys whose mean is zero, with the
        means. All ranks then set p.grad to the mean, so that a trainer changes it on all of them. Collective."""
        if not zero:
            return []
        every = self.workers.allgather(bytes(key.is_there() for key, _ in zero))
        return [one for one, told in zip(zero, zip(*every, strict=True), strict=True) if any(told)]

    def check_scaler(self) -> None:
        if self.synchronized:
            return
        self._finish()
        self._agree()
        self._looked = True
        if not math.isfinite(self._squares()):
            first = next((key for key in self.keys if key.param.grad is not None), self.keys[0])
            first.param.grad = torch.full_like(first.param, math.inf)

    _looked = False  # whether a GradScaler looks at p.grad, and may write it

    def forget(self) -> None:
        if self.begun:
            self.starts.drain()
            for key in self.keys:
                key.find_home()
                if not key.sent:  # other ranks have folded this key, so this rank must push too
                    key.receive()
                    self._fold(key.name, nothing=True)
            self._cast()  # other ranks may have cast their votes
            for handle in [self.exchange.split.skip_nb(key.name) for key in self.keys]:
                handle.wait()
        self._end()

    def reset(self) -> None:
        super().reset()
        self._vote = None
        self._end()

    def recovered(self, checkpoint: str | PathLike[str] | None, timeout: float | None, *, survivors: bool) -> Recovered:
        found = super().recovered(checkpoint, timeout, survivors=survivors)
        if self._may_be_pairs:
            self._vote = Vote(found.exchange.context, self._may_be_pairs)
        return found

    def exchanges(self) -> list[Exchange]:
        return [*super().exchanges(), *([] if self._vote is None else [self._vote.exchange])]

    def close(self, timeout: float | None = None) -> None:
        super().close(timeout)
        if self._vote is not None:
            self._vote.close(timeout)

    def _end(self) -> None:
        """Forgets the gradients of a step, even if they were withdrawn."""
        self._looked = self.agreed = False
        self._to_send = len(self._pairs)
        if self._vote is not None and self._vote.is_cast:  # the step was withdrawn after the vote
            self._vote.refused()
        super().forget()


class SplitAlone(Split):
    """The mode with two calls for each key under SSP(s) and ASYNC, which apply each rank's update by itself. A rank
    clips, scales and skips its own gradient before it is sent. step() waits for no call of another rank, and other
    ranks need not call it."""

    def _counts(self) -> bool:
        return True

    def _had(self, zero: Sequence[tuple[ParamKey, Any]]) -> list[tuple[ParamKey, Any]]:
        return [(key, mean) for key, mean in zero if key.is_there()]

    def forget(self) -> None:
        """Withdraws the gradients. They were not sent, so the next gradients simply replace them."""
        self.starts.drain()
        for key in self.keys:
            key.find_home()
        self._end()


class SplitQuorum(Split):
    """The mode with two calls for each key under a quorum. Ranks are at different steps, and each version of all keys
    is folded once, so a trainer may change a mean only by a factor. The GradScalers of ranks may have different scales,
    so a rank unscales its gradients before it sends them. The first step shows whether the trainer has a scaler."""

    _has_scaler: bool | None = None  # None: not known yet
    _overflows = False  # whether this rank's gradients are not finite, so that they do not count

    def bind(self, exchange: Exchange) -> None:
        super().bind(exchange)
        self._means: list[tuple[ParamKey, Any]] = []

    def send(self, key: ParamKey) -> None:
        if self._has_scaler is not False:
            self.passed(key)
            return
        if not self.begun:
            self.wait()  # until the last version of all keys has come
        super().send(key)

    def _left(self, scaling: Scaling | None) -> Scaling | None:
        self._has_scaler = bool(self._has_scaler) or scaling is not None
        if scaling is None:
            return None
        if self.begun:
            raise InvalidArgument(
                "a GradScaler steps, and gradients have been sent: with a quorum each rank unscales its own before. "
                "Step by it from the first step on, without synchronize(); to clip give clip_norm"
            )
        if scaling.scale is not None and any(key.dtype == torch.float16 for key in self.keys):
            raise InvalidArgument(
                "a GradScaler steps, and with a quorum gradients in float16 would be unscaled in float16: give "
                "parameters in bfloat16, or in float32 with autocast"
            )
        self.wait()
        self._overflows = bool(scaling.found) or not scale_gradients(self.keys, scaling, None)
        return Scaling(None, scaling.found)

    def check_scaler(self) -> None:
        """Does nothing, since the scaler looks at this rank's own gradients."""

    def _counts(self) -> bool:
        return not self._overflows

    def _finish(self, *, again: bool = False) -> None:
        if self.synchronized:
            for key, mean in self._means:
                if key.changed():
                    key.scaled_by(mean, "with a quorum each mean is folded once: scale it, or leave it as it is")
            return
        self.wait()
        super()._finish()
        self.begun = True

    def synchronize(self) -> None:
        self._finish() if self.synchronized else super().synchronize()

    def _free_slots(self) -> None:
        """Also writes this rank's own gradient into the array that gather() fills. If the mean has already been
        applied, gather() leaves the array as it is."""
        super()._free_slots()
        for key in self.keys:
            grad, to = key.param.grad, self.exchange.split.gathered(key.name)
            if grad is None or to.ctypes.data != key.slot_at:
                to[...] = 0 if grad is None else as_float32(grad, key.order)

    def _averaged(self, key: ParamKey, mean: Any) -> None:
        """Sets p.grad to a copy of the mean, since an owner may apply the mean in the same memory."""
        key.averaged(mean, copy=True)
        self._means.append((key, mean))

    def _had(self, zero: Sequence[tuple[ParamKey, Any]]) -> list[tuple[ParamKey, Any]]:
        return [(key, mean) for key, mean in zero if key.is_there()]

    def _end(self) -> None:
        super()._end()
        self._overflows = False
        self._means.clear()


class After(Split):
    """apply="after": gradients are sent in step(), as with a plain parameter server."""

    def send(self, key: ParamKey) -> None:
        self.passed(key)
